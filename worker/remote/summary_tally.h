/*
 * The chief's summaries (worker/summary/summary.h): what it counts between two of them. global_step/sec is that of the
 * whole job; loss, accuracy, examples/sec and sec/batch are this worker's own.
 */
#ifndef WORKER_REMOTE_SUMMARY_TALLY_H
#define WORKER_REMOTE_SUMMARY_TALLY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/engine.h"
#include "worker/remote/shard_link.h"
#include "worker/summary/summary.h"

struct summary_tally {
    struct summary *summary; /* NULL: none wanted, and nothing below is used */
    const struct traffic *traffic;
    double begun_s;
    int64_t begun_step;
    int64_t steps, images, correct;
    double loss_sum, staleness_sum;
};

/* Zeros are fine for all that follow. */
bool summary_tally_open(struct summary_tally *watch, const struct summary_options *options,
                        const struct traffic *traffic, struct error *error);

/*
 * The intervals in options->config are others from now on. Where there were no summaries before they begin; that they
 * can't be is a warning.
 */
void summary_tally_retime(struct summary_tally *watch, const struct summary_options *options);

/* One step of this worker has been pushed. */
void summary_tally_count(struct summary_tally *watch, const struct train_result *done, uint32_t staleness);

/* Writes a summary if one is due in (before, step]. dropped: gradients of this worker that were not used, so far. */
void summary_tally_look(struct summary_tally *watch, int64_t before, int64_t step, int64_t dropped);

void summary_tally_close(struct summary_tally *watch, bool succeeded);

#endif
