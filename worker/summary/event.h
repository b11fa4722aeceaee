/*
 * An event of a tfevents file being built: time, step and values. Formats:
 * tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto.
 */
#ifndef WORKER_SUMMARY_EVENT_H
#define WORKER_SUMMARY_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/encoding/proto.h"
#include "base/error.h"
#include "worker/summary/histogram.h"

/* Start with zeros; proto_free(&event.proto) releases it, for good or until the next event_begin. */
struct event {
    struct proto proto;
    size_t summary; /* the open nested message */
};

/* Begins an event of values; then any of the next four calls, then event_end. */
void event_begin(struct event *event, double wall_s, int64_t step);
void event_scalar(struct event *event, const char *tag, double value);
void event_histogram(struct event *event, const char *tag, const struct histogram *histogram);
void event_image(struct event *event, const char *tag, int width, int height, const uint8_t *png, size_t size);
void event_text(struct event *event, const char *tag, const char *markdown);
/* For the PR curves plugin: values [6, thresholds], thresholds evenly from 0 to 1. */
void event_pr_curve(struct event *event, const char *tag, int thresholds, const float *values);
void event_end(struct event *event);

/* A value for a TensorBoard plugin; content is the plugin's own message. */
void event_plugin(struct event *event, const char *tag, const char *plugin, const struct proto *content);

void event_session_start(struct event *event, double wall_s,
                         int64_t step); /* discards earlier events from this step on */
void event_graph(struct event *event, double wall_s, const struct proto *graph);

/* --- The file --- */

/* A tfevents file: a sequence of events in TFRecord frames. TensorBoard reads it while it grows. */

enum { EVENT_FILE_PATH = 4096 };

struct event_file {
    int fd;
    char path[EVENT_FILE_PATH];
    struct proto pending; /* frames not written yet */
};

/*
 * Creates the folder if needed and a new file in it, events.out.tfevents.<seconds>.<host>.<process>. It begins with the
 * format version, which the first flush writes.
 */
bool event_file_create(struct event_file *file, const char *folder, struct error *error);

/* Appends an event, in memory. */
void event_file_add(struct event_file *file, const struct event *event);

/* Writes the pending events: whole ones only, so that readers see no truncated events unless the disk is full. */
bool event_file_flush(struct event_file *file, struct error *error);

void event_file_close(struct event_file *file); /* discards what was not flushed; safe after a failed create */

#endif
