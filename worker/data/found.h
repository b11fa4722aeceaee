/*
 * What data_dir contains, and which kind of data set is read from it. Nothing is made up: a folder that is missing,
 * unreadable or empty, or that holds nothing of the kinds known, is an error. It names the folder, the place where it
 * was set, what the folder holds, and what to do.
 */
#ifndef WORKER_DATA_FOUND_H
#define WORKER_DATA_FOUND_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/files.h"

/* What data_dir contains of one part. */
struct found {
    bool is_there;
    struct data_files files;    /* of DATA_IDX */
    char folder[DATA_MAX_PATH]; /* of DATA_FOLDERS */
};

/* True if data_dir is a folder that can be read. */
bool found_check_folder(const struct config *config, struct error *error);

/* Looks for a part of this kind. Fails only if the folder can't be read. */
bool found_look(struct found *found, enum data_source source, enum dataset_part part, const struct config *config,
                struct error *error);

/* Says that data_dir has no such part; returns false. */
bool found_say_missing(enum data_source source, enum dataset_part part, const struct config *config,
                       struct error *error);

/*
 * Decides what to read: the kind that the config names, or with DATA_AUTO the first one that data_dir has. *source is
 * DATA_SYNTHETIC only if the config names it. Fails if the part is not there.
 */
bool found_choose(struct found *found, enum data_source *source, enum dataset_part part, const struct config *config,
                  struct error *error);

#endif
