/* A tfevents file: a sequence of events in TFRecord frames. TensorBoard reads it while it grows. */
#ifndef WORKER_SUMMARY_EVENT_FILE_H
#define WORKER_SUMMARY_EVENT_FILE_H

#include <stdbool.h>

#include "base/encoding/proto.h"
#include "base/error.h"
#include "worker/summary/event.h"

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

/* Writes the pending events: whole ones only, so that readers see no torn events unless the disk is full. */
bool event_file_flush(struct event_file *file, struct error *error);

void event_file_close(struct event_file *file); /* discards what was not flushed; safe after a failed create */

#endif
