/*
 * Relations between keys: values derived from others, and combinations that are not allowed. Part of config_load.
 */
#ifndef BASE_CONFIG_RELATIONS_H
#define BASE_CONFIG_RELATIONS_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"

/*
 * Derives values from other keys: what "auto" means for this kind of data (except what takes the data themselves), and
 * which of train_steps and epochs bounds the run. A function of the config alone, so that all members of a job agree.
 */
void config_fill_in(struct config *config);

/* Reads the nets of model.ensemble into the model; "auto": one. */
bool config_take_ensemble(struct config *config, struct error *error);

/* The error names file, line and column, or the flag, of one of the keys concerned. */
bool config_check_relations(const struct config *config, struct error *error);

/*
 * Prefixes the error with where the key's value came from, "config.json:3:17: data.data_dir: ", "--data_dir: "; returns
 * false. Values found wrong only later are reported by it.
 */
bool config_error_at(const struct config *config, const char *section, const char *name, struct error *error);

#endif
