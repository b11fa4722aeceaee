/* `data info` for a table: what each column holds. */
#ifndef WORKER_DATA_TABLE_INFO_H
#define WORKER_DATA_TABLE_INFO_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/examples.h"

/*
 * Prints a line for each column of the part's files, or one JSON object if the log's format is JSON. *there: whether
 * there are such files.
 */
bool table_info(enum dataset_part part, bool *there, const struct config *config, struct error *error);

#endif
