/* A tfevents file: events one after another in TFRecord's frames. TensorBoard reads it while it grows. */
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

/* Makes the folder if need be and a new file in it, events.out.tfevents.<seconds>.<host>.<process>, which begins with
 * the version of its format: the first flush writes it. */
bool event_file_create(struct event_file *file, const char *folder, struct error *error);

/* Puts an event behind the others, in memory. */
void event_file_add(struct event_file *file, const struct event *event);

/* Writes what is in memory: whole events only, so that a reader sees no torn ones unless the disk is full. */
bool event_file_flush(struct event_file *file, struct error *error);

void event_file_close(struct event_file *file); /* what was not flushed is lost; also fine after a failed create */

#endif
