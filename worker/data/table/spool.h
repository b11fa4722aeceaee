/*
 * Rows of a table larger than memory: they are preprocessed once, appended to a temporary file, and stream from there
 * (worker/data/source.h). So an epoch costs the same whatever the format, and later changes to the table's
 * own files do not matter.
 *
 * The file has no name, so nothing is left of it however the process ends.
 */
#ifndef WORKER_DATA_TABLE_SPOOL_H
#define WORKER_DATA_TABLE_SPOOL_H

#include <stdbool.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/source.h"
#include "worker/data/table/weights.h"

struct spool;

/* folder: for the file; must exist. like: the shape of the rows; what it borrows must outlive the spool. */
bool spool_create(struct spool **spool, const char *folder, const struct examples *like, struct error *error);

/* Appends example `index` of a set. */
bool spool_add(struct spool *spool, const struct examples *examples, int index, struct error *error);

/*
 * Call it after the last row: overflow->source becomes the spool, and its blocks all the rows. Rows are weighted as
 * they are read. Ownership of the weights passes to the spool, and of the spool to the overflow, even on failure.
 */
bool spool_finish(struct spool *spool, struct overflow *overflow, struct weights *weights, struct error *error);

void spool_destroy(struct spool *spool); /* before spool_finish; safe on NULL */

#endif
