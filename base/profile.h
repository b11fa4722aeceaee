/*
 * Profiling: what every thread of this process did, and when, as a Chrome trace ("Trace Event Format") for Perfetto and
 * chrome://tracing. Spans are recorded where work is done:
 *
 *     PROFILE("backward");              until the end of the scope
 *     PROFILE_PEER("push", peer, number);  the same, with the peer and the number of its request
 *
 * When off, a span costs one branch. When on, it costs two clock reads and 48 bytes; the newest million spans of all
 * threads are kept, and written when the profile is closed. Any thread may record spans.
 *
 * Times are microseconds since the profile began; the file gives that moment by this machine's clock ("begin_us", since
 * 1970); `trainer profile` aligns the files of several machines.
 */
#ifndef BASE_PROFILE_H
#define BASE_PROFILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* The peer of a span; each member is a separate process in the trace. */
enum { PROFILE_NOBODY = -1, PROFILE_LOCAL = 0, PROFILE_PS = 1, PROFILE_WORKER = 1001 /* + its index */ };

/* Starts recording, as the member `identity`. path: the file that profile_close writes. */
bool profile_open(const char *path, int identity, struct error *error);

/*
 * Stops recording and writes the file. True without doing anything if no profile is open. Other threads may still be
 * inside spans.
 */
bool profile_close(struct error *error);

/* Names the calling thread in the trace; at most 31 characters. */
void profile_thread(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* "ps 0", "worker 12" */
void profile_member_name(int member, char name[32]);

extern atomic_bool profile_is_on;

struct profile_scope {
    const char *name;
    uint64_t begin_ns;  /* 0: not recorded */
    uint64_t cipher_ns; /* the thread's total at the beginning */
    int64_t number;
    int peer;
};

uint64_t profile_now_ns(void);
uint64_t profile_cipher_ns(void);
void profile_scope_note(const struct profile_scope *scope);

/* Adds the time the calling thread spent on encryption since begin_ns (0: not recorded) to the enclosing span. */
void profile_note_cipher(uint64_t begin_ns);

static inline uint64_t profile_begin_ns(void)
{
    return atomic_load_explicit(&profile_is_on, memory_order_relaxed) ? profile_now_ns() : 0;
}

static inline struct profile_scope profile_scope_begin(const char *name, int peer, int64_t number)
{
    struct profile_scope scope = {.name = name, .begin_ns = profile_begin_ns(), .number = number, .peer = peer};
    scope.cipher_ns = scope.begin_ns != 0 ? profile_cipher_ns() : 0;
    return scope;
}

static inline void profile_scope_end(const struct profile_scope *scope)
{
    if (scope->begin_ns != 0) {
        profile_scope_note(scope);
    }
}

/* name: a string that outlives the profile. */
#define PROFILE_PEER(name, peer, number)                                                                               \
    const struct profile_scope profile_scope_here __attribute__((cleanup(profile_scope_end), unused)) =                \
        profile_scope_begin(name, peer, number)
#define PROFILE(name) PROFILE_PEER(name, PROFILE_NOBODY, 0)

#endif
