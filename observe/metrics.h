/*
 * A run's numbers for Prometheus: its text format, and OpenMetrics 1.0. docs/metrics.md lists every metric.
 */
#ifndef OBSERVE_METRICS_H
#define OBSERVE_METRICS_H

#include <stdbool.h>

#include "base/text/json_writer.h"
#include "observe/board.h"
#include "observe/http/server.h"

/* open: OpenMetrics. server NULL: none. The board's looking thread. */
void metrics_write(struct text_buffer *text, struct board *board, const struct http_server *server, bool open);

/* Those of every process, for servers without a board: its version and role, and what it uses. */
void metrics_write_process(struct text_buffer *text, const char *role, double started_s,
                           const struct http_server *server, bool open);

#endif
