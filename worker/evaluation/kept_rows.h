/*
 * A few rows held out of training that a checkpoint stores (output.kept_rows), with its model's outputs for them, so
 * that a program that loads it elsewhere can check that it computes the same there. Inputs are as the first layer sees
 * them; labels are not kept. Where each worker has its own rows, none are kept: they must not leave their machine.
 *
 * As JSON: [tolerance, [numbers and positions, other inputs that are 1, outputs], ...], in the metadata "kept_rows".
 */
#ifndef WORKER_KEPT_ROWS_H
#define WORKER_KEPT_ROWS_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/checkpoint/checkpoint.h"
#include "worker/data/dataset.h"
#include "worker/engine.h"

/*
 * The text of checkpoint_info.kept_rows: the first rows of the validation data, or if there are none of the test data
 * (NULL: none either), and the outputs of the model in `state`, by its averages if it has them. It depends on these
 * alone, not on the engine. The caller frees it; NULL: none are kept, or out of memory.
 */
char *kept_rows_write(const struct config *config, const struct dataset *dataset, const struct examples *test,
                      const struct checkpoint_state *state);

/*
 * Checks that the engine, which has a checkpoint's model, computes the outputs in `text`. Small differences are
 * allowed, since kernels round differently, and larger ones for a GPU at reduced precision. like: the shape of
 * examples; *count: the number of rows. text NULL: no rows, always true.
 */
bool kept_rows_check(const char *text, const struct model *model, const struct examples *like, enum precision precision,
                     struct engine *engine, int *count, struct error *error);

/*
 * The rows alone, without their outputs; none where text is NULL. Each row's places come first, in ascending order,
 * whichever columns they are of. The caller frees them with examples_free.
 */
bool kept_rows_read(const char *text, const struct model *model, const struct examples *like, struct examples *rows,
                    struct error *error);

#endif
