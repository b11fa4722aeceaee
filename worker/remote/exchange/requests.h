/*
 * Requests to the shards besides push and pull: the preprocessing of rows, their statistics, and validations on
 * workers' own rows.
 */
#ifndef WORKER_REMOTE_EXCHANGE_REQUESTS_H
#define WORKER_REMOTE_EXCHANGE_REQUESTS_H

#include <stdbool.h>

#include "base/error.h"
#include "worker/data/dataset.h"
#include "worker/remote/exchange/push_pull.h"

/* --- Preprocessing --- */

/*
 * All workers must encode rows alike: a table's preprocessing, or the names of the images' classes, must be worker 0's,
 * which the checkpoint contains. Digests are compared; the chief's text is sent only if they differ, so that the error
 * names the column.
 */

/* Digest in hex of the preprocessing's text, or of the names: members compare it. */
enum { PREPROCESSING_DIGEST = 65 };
void preprocessing_digest(const char *text, char digest[PREPROCESSING_DIGEST]);

/*
 * As the chief: sends ps 0 how rows become inputs, or the names of the classes, for the others to compare. Waits for ps
 * 0. For images with numbers as labels there is nothing to send. Also EXCHANGE_FAILED if ps 0 has something else
 * already.
 */
enum exchange_result preprocessing_publish(struct push_pull *exchange, const struct dataset *dataset,
                                           struct error *error);

/*
 * As another worker: compares with what the chief sent, if it has. EXCHANGE_FAILED: the chief's classes differ, or
 * (*differs) its rows become other inputs, and the error names the column.
 */
enum exchange_result preprocessing_agree(struct push_pull *exchange, const struct dataset *dataset, bool *differs,
                                         struct error *error);

/*
 * For a worker with its own data: the preprocessing that the chief sent, in *text, which the caller frees; NULL:
 * nothing yet. For the chief: what it, or its predecessor, sent in this job. Waits for ps 0.
 */
enum exchange_result preprocessing_fetch(struct push_pull *exchange, char **text, struct error *error);

/*
 * For a chief that takes over a running model: do its rows or classes match those sent to ps 0 at the start?
 * EXCHANGE_FAILED if not; what was never sent can't be compared. Waits for ps 0.
 */
enum exchange_result preprocessing_check(struct push_pull *exchange, const struct dataset *dataset,
                                         struct error *error);

/*
 * Statistics of rows that stay where they are (worker/data/table/survey_schema.h). The first function sends this
 * worker's to ps 0; with the second the chief fetches another worker's: *text is NULL if it has none, otherwise the
 * caller frees it; with the third ps 0 forgets those.
 */
enum exchange_result preprocessing_send_stats(struct push_pull *exchange, char *text, struct error *error);
enum exchange_result preprocessing_forget_stats(struct push_pull *exchange, int worker, struct error *error);
enum exchange_result preprocessing_fetch_stats(struct push_pull *exchange, int worker, char **text,
                                               struct error *error);

/* --- Validations on workers' own rows --- */

/*
 * Validations on workers' own rows: each worker reports its results to the ps that decides on steps, and the chief
 * fetches them all.
 */

/* A worker's own validation of a step's model. */
struct own_validation {
    int64_t step;
    int64_t examples;
    double score; /* of the deciding metric; NaN: undefined */
    bool rises;   /* a larger one is better */
};

/* bytes: the results (worker/evaluation/validation.h), at most VALIDATIONS_BYTES. */
#define VALIDATIONS_BYTES (1 << 20)
enum exchange_result validations_report(struct push_pull *exchange, const struct own_validation *own, uint8_t *bytes,
                                        size_t size, struct error *error);

/* Receives other workers' results. */
struct validations_receiver {
    void (*begin)(void *context); /* starts over, if a connection broke */
    /* size 0: the worker reported only its score, or memory ran out. */
    void (*take)(void *context, int worker, int64_t examples, double score, const uint8_t *bytes, size_t size);
    void *context;
};

/*
 * As the chief: the other workers' results for own->step, in the order of their indexes. Waits for those with that
 * model, at most wait_s; *missing: how many of them did not report.
 */
enum exchange_result validations_gather(struct push_pull *exchange, const struct own_validation *own, double wait_s,
                                        const struct validations_receiver *receiver, int *missing, struct error *error);

#endif
