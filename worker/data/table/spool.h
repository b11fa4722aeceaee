/*
 * Rows of a table that is larger than memory: they are preprocessed once, written one behind another into a temporary
 * file, and stream from there (worker/data/streaming/source.h). So an epoch costs the same whatever the format, and
 * what happens to the table's own files after that does not matter.
 *
 * The file has no name, so that nothing is left of it however the process ends.
 */
#ifndef WORKER_DATA_TABLE_SPOOL_H
#define WORKER_DATA_TABLE_SPOOL_H

#include <stdbool.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/streaming/overflow.h"
#include "worker/data/table/weights.h"

struct spool;

/* folder: where the file is; it exists. like: what the rows look like; what it borrows must outlive the spool. */
bool spool_create(struct spool **spool, const char *folder, const struct examples *like, struct error *error);

/* Writes example `index` of a set behind the others. */
bool spool_add(struct spool *spool, const struct examples *examples, int index, struct error *error);

/*
 * No more rows come: overflow->source becomes the spool, and its blocks all the rows. Rows are weighted as they are
 * read. The weights pass to the spool, as the spool does to the overflow, also if it fails.
 */
bool spool_finish(struct spool *spool, struct overflow *overflow, struct weights *weights, struct error *error);

void spool_destroy(struct spool *spool); /* before spool_finish; safe on NULL */

#endif
