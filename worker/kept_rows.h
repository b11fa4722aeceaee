/*
 * A few rows that were held out of training and that a checkpoint keeps (output.kept_rows), with what its model answers
 * for them: whoever loads it elsewhere can tell by them whether it computes the same there. Inputs are as the first
 * layer sees them; labels are not kept. Where each worker has rows of its own none are: they stay where they are.
 *
 * As JSON: [tolerance, [inputs, places of ones, outputs], ...], in the file's metadata "kept_rows".
 */
#ifndef WORKER_KEPT_ROWS_H
#define WORKER_KEPT_ROWS_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/checkpoint/checkpoint.h"
#include "worker/dataset.h"
#include "worker/engine.h"

/*
 * For checkpoint_info.kept_rows: the first rows of the validation data, or where there are none of the test data (NULL:
 * not here either), and the outputs of the model in `state`: of its averages if it has some. A function of these alone,
 * whatever the engine. The caller frees it; NULL: none are kept, or there is no memory for it.
 */
char *kept_rows_tell(const struct config *config, const struct dataset *dataset, const struct examples *test,
                     const struct checkpoint_state *state);

/*
 * Does the engine, which has a checkpoint's model, answer as `text` says? Small differences are allowed, since kernels
 * round differently, and larger ones where a GPU is to compute with fewer digits. like: what examples look like;
 * *count: how many rows there are. text NULL: there are none, and it does.
 */
bool kept_rows_check(const char *text, const struct model *model, const struct examples *like, enum precision precision,
                     struct engine *engine, int *count, struct error *error);

#endif
