/*
 * Allocations that fail on demand, to check that each failure is reported and leaves nothing behind. In functions that
 * end the process where there is no memory (base/memory.h), nothing fails, and nothing is counted: a test that includes
 * this is linked with memory_link (tests/unit.mk).
 */
#ifndef TESTS_NO_MEMORY_H
#define TESTS_NO_MEMORY_H

#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <string.h>
#include <unwind.h>

#include "tests/allocations.h"

enum { NO_MEMORY_PLACES = 1000 };

/* Counted from 1 since no_memory_from; those from first up to, but not including, end fail. */
static struct {
    atomic_int calls, first, end;
} no_memory = {.first = INT_MAX, .end = INT_MAX};

/* Of one thread alone: places in the program that allocate. */
static struct {
    const void *seen[NO_MEMORY_PLACES]; /* [count] */
    int count;
    const void *fails; /* at its next call; NULL: none does */
    bool looks;
} no_memory_places;

static _Thread_local bool no_memory_is_mine;

/* The first-th allocation from now on fails, and those after it, `count` in all. */
static inline void no_memory_from(int first, int count)
{
    atomic_store(&no_memory.calls, 0);
    atomic_store(&no_memory.end, first + count);
    atomic_store(&no_memory.first, first);
}

/* Memory is available again. Returns the number of allocations. */
static inline int no_memory_end(void)
{
    atomic_store(&no_memory.first, INT_MAX);
    return atomic_load(&no_memory.calls);
}

/* Which places of the program allocate on this thread, from now on until no_memory_seen. */
static inline void no_memory_look(void)
{
    no_memory_places.count = 0;
    no_memory_places.looks = no_memory_is_mine = true;
}

/* How many there were. */
static inline int no_memory_seen(void)
{
    no_memory_places.looks = no_memory_is_mine = false;
    return no_memory_places.count;
}

/* The next allocation of this thread at one of these places fails. */
static inline void no_memory_at(int place)
{
    no_memory_places.fails = no_memory_places.seen[place];
    no_memory_is_mine = true;
}

/* There is memory again. Did it fail? */
static inline bool no_memory_failed(void)
{
    const bool failed = !no_memory_places.fails;
    no_memory_places.fails = NULL;
    no_memory_is_mine = false;
    return failed;
}

static inline void no_memory_note(const void *place)
{
    int i = 0;
    while (i < no_memory_places.count && no_memory_places.seen[i] != place) {
        i++;
    }
    if (i == no_memory_places.count && i < NO_MEMORY_PLACES) {
        no_memory_places.seen[no_memory_places.count++] = place;
    }
}

static inline bool no_memory_here(const void *place)
{
    const bool fails = place == no_memory_places.fails;
    if (no_memory_places.looks) {
        no_memory_note(place);
    } else if (fails) {
        no_memory_places.fails = NULL;
    }
    return fails;
}

static inline _Unwind_Reason_Code no_memory_frame(struct _Unwind_Context *frame, void *ends)
{
    static const char *const endings[] = {"must_alloc",      "must_zero",    "must_align",        "must_grow",
                                          "must_copy",       "config_parse", "config_in_version", "config_job_text",
                                          "config_key_text", "config_diff",  "config_digest"};
    Dl_info info;
    const char *name = dladdr((const void *)_Unwind_GetIP(frame), &info) != 0 ? info.dli_sname : NULL;
    for (size_t i = 0; name && i < sizeof endings / sizeof *endings; i++) {
        if (strcmp(name, endings[i]) == 0) {
            *(bool *)ends = true;
            return _URC_NORMAL_STOP;
        }
    }
    return _URC_NO_REASON;
}

/*
 * Is a caller one of those that end the process where there is no memory? The program's symbols say so, which it is
 * linked with for that.
 */
static inline bool no_memory_must(void)
{
    bool ends = false;
    _Unwind_Backtrace(no_memory_frame, &ends);
    return ends;
}

bool allocation_fails(size_t size, const void *place)
{
    const int first = atomic_load(&no_memory.first);
    if ((first == INT_MAX && !no_memory_is_mine) || no_memory_must()) {
        return false;
    }
    const int call = atomic_fetch_add(&no_memory.calls, 1) + 1;
    return (call >= first && call < atomic_load(&no_memory.end)) || (no_memory_is_mine && no_memory_here(place));
}

#endif
