/*
 * Numbers for Prometheus: its text format, and OpenMetrics 1.0; and those of a run. docs/metrics.md lists every metric.
 */
#ifndef OBSERVE_METRICS_H
#define OBSERVE_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text/json_writer.h"
#include "observe/board.h"
#include "observe/http/server.h"

/* --- The formats --- */

struct metrics {
    struct text_buffer *text;
    bool open; /* OpenMetrics */
};

enum metric_kind { METRIC_GAUGE, METRIC_COUNTER, METRIC_HISTOGRAM, METRIC_INFO };

/*
 * Begins a family. name: without "_total" or "_info", which these functions add; it ends in its unit, if it has one
 * (else ""). Then come its samples, with pairs of a label's name and its value, any text, up to NULL.
 */
void metrics_family(const struct metrics *to, enum metric_kind kind, const char *name, const char *unit,
                    const char *help);
void metrics_sample(const struct metrics *to, enum metric_kind kind, const char *name, double value, ...)
    __attribute__((sentinel));

/* A family of a single sample. */
void metrics_one(const struct metrics *to, enum metric_kind kind, const char *name, const char *unit, double value,
                 const char *help);

/* The samples of a histogram: counts [count] up to each of bounds [count - 1], and beyond. label NULL: none. */
void metrics_histogram(const struct metrics *to, const char *name, const char *label, const char *value,
                       const double *bounds, const uint64_t *counts, int count, double sum);

/* --- A run's --- */

/* open: OpenMetrics. server NULL: none. The board's looking thread. */
void metrics_write(struct text_buffer *text, struct board *board, const struct http_server *server, bool open);

/* Those of every process, for servers without a board: its version and role, and what it uses. */
void metrics_write_process(const struct metrics *to, const char *role, double started_s,
                           const struct http_server *server);

#endif
