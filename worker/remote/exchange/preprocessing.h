/*
 * All workers have to mean the same by a number: the preprocessing of a table, or the names of the classes of pictures,
 * has to be worker 0's, which stands in the checkpoint.
 */
#ifndef WORKER_REMOTE_EXCHANGE_PREPROCESSING_H
#define WORKER_REMOTE_EXCHANGE_PREPROCESSING_H

#include <stdbool.h>

#include "base/error.h"
#include "worker/dataset.h"
#include "worker/remote/exchange/push_pull.h"

/* Of the preprocessing's text, or of the names, in hex: what members compare. */
enum { PREPROCESSING_DIGEST = 65 };
void preprocessing_digest(const char *text, char digest[PREPROCESSING_DIGEST]);

/*
 * As the chief: tells ps 0 how rows become inputs, or what the classes are called, so that the others can compare.
 * Waits for ps 0. Of pictures whose labels are numbers there is nothing to say. EXCHANGE_FAILED also if ps 0 has been
 * told something else.
 */
enum exchange_result preprocessing_tell(struct push_pull *exchange, const struct dataset *dataset, struct error *error);

/*
 * As another worker: compares with what the chief said, if it has. EXCHANGE_FAILED: the chief's classes are others, or
 * (*differs) its rows become other inputs, and the error names the column.
 */
enum exchange_result preprocessing_agree(struct push_pull *exchange, const struct dataset *dataset, bool *differs,
                                         struct error *error);

/*
 * For a worker with data of its own: what the chief said, to encode its rows by, into *text, which the caller frees;
 * NULL: it has said nothing yet. For the chief, what it, or one before it, said of this job. Waits for ps 0.
 */
enum exchange_result preprocessing_ask(struct push_pull *exchange, char **text, struct error *error);

/*
 * For a chief that takes over a model that runs: is it of such rows or classes, as ps 0 was told when it began?
 * EXCHANGE_FAILED if not; what ps 0 was not told can't be compared. Waits for ps 0.
 */
enum exchange_result preprocessing_check(struct push_pull *exchange, const struct dataset *dataset,
                                         struct error *error);

/*
 * Figures of rows that stay where they are (worker/data/table/figures.h). The first tells ps 0 this worker's; the
 * second asks it, as the chief, for another's: *text is NULL if it has none, else the caller frees it.
 */
enum exchange_result preprocessing_tell_figures(struct push_pull *exchange, char *text, struct error *error);
enum exchange_result preprocessing_ask_figures(struct push_pull *exchange, int worker, char **text,
                                               struct error *error);

#endif
