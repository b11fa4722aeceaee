/* A run's configuration for TensorBoard: as a text table, and as hyper-parameters. */
#ifndef WORKER_SUMMARY_DESCRIBE_H
#define WORKER_SUMMARY_DESCRIBE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "worker/summary/event.h"

/* All keys and values as one text event, tagged "config". */
void describe_config(struct event *event, const struct config *config, double wall_s, int64_t step);

/*
 * Events for TensorBoard's HParams page: the experiment (its hyper-parameters and metrics), the run's values, and how
 * it ended. Hyper-parameters are the job-scoped keys of model, train and data, those not at their default first.
 */
void describe_experiment(struct event *event, const struct config *config, double wall_s);
void describe_run_start(struct event *event, const struct config *config, const char *digest, double wall_s);
void describe_run_end(struct event *event, bool succeeded, double wall_s);

#endif
