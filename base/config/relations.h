/*
 * What keys have to do with each other: values that follow from others, and combinations that can't be. Part of
 * config_load; nobody else calls it.
 */
#ifndef BASE_CONFIG_RELATIONS_H
#define BASE_CONFIG_RELATIONS_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"

/* Fills in what is left to other keys: the learning rate, and which of train_steps and epochs bounds the run. */
void config_fill_in(struct config *config);

/* The error names file, line and column, or the flag, of one of the keys concerned. */
bool config_check_relations(const struct config *config, struct error *error);

#endif
