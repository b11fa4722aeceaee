/*
 * One event of a tfevents file under construction: when, at which step, and what was seen. Formats:
 * tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto.
 */
#ifndef WORKER_SUMMARY_EVENT_H
#define WORKER_SUMMARY_EVENT_H

#include <stddef.h>
#include <stdint.h>

#include "base/encoding/proto.h"
#include "worker/summary/histogram.h"

/* Zeros are fine to begin with; proto_free(&event.proto) releases it, for good or until the next event_begin. */
struct event {
    struct proto proto;
    size_t summary; /* its nested message, while it is open */
};

/* Begins an event of values; any of the next four, then event_end. */
void event_begin(struct event *event, double wall_s, int64_t step);
void event_scalar(struct event *event, const char *tag, double value);
void event_histogram(struct event *event, const char *tag, const struct histogram *histogram);
void event_image(struct event *event, const char *tag, int width, int height, const uint8_t *png, size_t size);
void event_text(struct event *event, const char *tag, const char *markdown);
void event_end(struct event *event);

/* A value that a plugin of TensorBoard understands: content is that plugin's own message. */
void event_plugin(struct event *event, const char *tag, const char *plugin, const struct proto *content);

/* Whole events of other kinds. */
void event_file_version(struct event *event, double wall_s);
void event_session_start(struct event *event, double wall_s, int64_t step); /* what came later before is void */
void event_graph(struct event *event, double wall_s, const struct proto *graph);

#endif
