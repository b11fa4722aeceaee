/*
 * Profiles of several members (base/profile.h), read back, and brought to one clock.
 *
 * Clocks of two machines need not agree. What tells them apart are the requests: a push is served after it was sent, and
 * its answer is there after that was begun. Of all pushes between a worker and a ps the one with the least time to spare
 * says best how far their clocks are apart, as NTP's clock filter does (RFC 5905, 10).
 */
#ifndef WORKER_PROFILE_TRACE_H
#define WORKER_PROFILE_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

enum { TRACE_MAX_FILES = 64, TRACE_MAX_NAMES = 128, TRACE_MAX_THREADS = 4096 };

struct trace_span {
    double begin_us, us;            /* since the member's profile began */
    double cipher_us;               /* of it: encryption */
    double self_us, self_cipher_us; /* without the spans within it, of the same thread */
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
    uint64_t forgotten; /* spans that were no longer kept when it ended */
    double begin_us;    /* when it began, by the member's clock, since 1970 */
    double shift_us;    /* to be added to its times */
    double behind_us;   /* its clock is so much behind the one that all are aligned to... */
    double unsure_us;   /* ...give or take this; negative: nothing is known of this clock, and it is taken as right */
};

/*
 * Reads the files, one of each member, puts them in the order ps, workers, and sets the shifts: to the clock of the first
 * ps, else of the first trace. *traces: [count], for trace_free.
 */
bool trace_read(struct trace **traces, char *const *paths, int count, struct error *error);
void trace_free(struct trace *traces, int count); /* NULL is fine */

/* All of them as one file, by one clock, with an arrow from each push to where it is served. */
bool trace_write(const struct trace *traces, int count, const char *path, struct error *error);

#endif
