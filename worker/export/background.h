/*
 * Rows of a table that a model is asked about without their targets: a sample of a file, one row of it, or those that
 * the checkpoint keeps (output.kept_rows).
 */
#ifndef WORKER_EXPORT_BACKGROUND_H
#define WORKER_EXPORT_BACKGROUND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/export/trained.h"

/*
 * At most `most` rows of the file, each with the same probability; which, depends on the file alone. It is read to the
 * end. what: names it in errors. Rows that the model can't read are left out. Without a single good one it fails. The
 * caller frees the rows.
 */
bool background_sample(struct examples *rows, const struct trained *trained, const char *path, int most,
                       const char *what, struct error *error);

/* A random number below `count`, which is less than 2^53; always the same. */
uint64_t background_draw(uint64_t count);

/* Row `number` of the file, from 1. */
bool background_row(struct examples *row, const struct trained *trained, const char *path, int64_t number,
                    struct error *error);

/* Those in the checkpoint; count 0: it has none. */
bool background_kept(struct examples *rows, const struct trained *trained, struct error *error);

/* At most `most` of these, spread evenly over them. */
bool background_part(struct examples *rows, const struct examples *from, int most, struct error *error);

#endif
