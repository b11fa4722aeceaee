/*
 * Reads profiles of several members (base/profile.h) and aligns them to one clock.
 *
 * The clocks of two machines need not agree. Requests bound the offset between them: a push is served after it was
 * sent, and its answer arrives after the ps began to send it. Of all pushes between a worker and a ps, the one with the
 * tightest bounds gives the best estimate, as in NTP's clock filter (RFC 5905, section 10).
 */
#ifndef WORKER_EXPORT_PROFILE_H
#define WORKER_EXPORT_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

/* Limits on files, and per file. Our own lines have some 200 bytes, and a profile keeps about a million spans. */
enum {
    TRACE_MAX_FILES = 64,
    TRACE_MAX_NAMES = 128,
    TRACE_MAX_THREADS = 4096,
    TRACE_MAX_LINE = 4096,
    TRACE_MAX_SPANS = 1 << 22,
};

struct trace_span {
    double begin_us, us;            /* since the member's profile began */
    double cipher_us;               /* encryption within it */
    double self_us, self_cipher_us; /* without nested spans of the same thread */
    int64_t number;
    int name, thread; /* of the trace's */
    int peer;         /* as in base/profile.h */
};

struct trace_thread {
    int id;
    char name[32];
};

/* One member's. */
struct trace {
    const char *path;
    int member;
    char name[32];
    bool several;             /* members in one file */
    struct trace_span *spans; /* by thread, then by their beginnings */
    size_t count, room;
    char *names[TRACE_MAX_NAMES];
    int name_count;
    struct trace_thread *threads;
    int thread_count;
    uint64_t forgotten; /* spans overwritten before the profile was closed */
    double begin_us;    /* when it began, by the member's clock, since 1970 */
    double shift_us;    /* to be added to its times */
    double behind_us;   /* how far its clock is behind the reference clock ... */
    double unsure_us;   /* ... and the error bound; negative: offset unknown, taken as 0 */
};

/*
 * Reads the files, one per member, sorts them as ps, then workers, and sets the shifts relative to the clock of the
 * first ps, else of the first trace. *traces: [count], for trace_free.
 */
bool trace_read(struct trace **traces, char *const *paths, int count, struct error *error);
void trace_free(struct trace *traces, int count); /* safe on NULL */

/* Writes all traces to one file, by one clock, with an arrow from each push to the span that serves it. */
bool trace_write(const struct trace *traces, int count, const char *path, struct error *error);

#endif
