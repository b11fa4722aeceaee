/*
 * A heap. Most calls are alarms of waits that end earlier, so stale ones are discarded whenever the agenda has about
 * doubled.
 */
#include "tests/simulate/agenda.h"

#include <stdlib.h>

static struct call calls[AGENDA_MOST];
static int call_count;
static uint64_t call_order;
static int purge_at; /* at that many calls, stale ones are discarded */
static bool (*is_stale)(const struct call *call);

void agenda_begin(bool (*stale)(const struct call *call))
{
    call_count = 0;
    call_order = 0;
    purge_at = 1024;
    is_stale = stale;
}

static bool is_before(const struct call *one, const struct call *other)
{
    return one->when_s < other->when_s || (one->when_s == other->when_s && one->order < other->order);
}

static int by_time(const void *one, const void *other)
{
    return is_before(one, other) ? -1 : is_before(other, one);
}

static void purge(void)
{
    int kept = 0;
    for (int i = 0; i < call_count; i++) {
        if (!is_stale(&calls[i])) {
            calls[kept++] = calls[i];
        }
    }
    call_count = kept;
    qsort(calls, (size_t)kept, sizeof calls[0], by_time); /* a sorted array is a heap */
    purge_at = 2 * kept + 1024 < AGENDA_MOST ? 2 * kept + 1024 : AGENDA_MOST;
}

bool agenda_add(const struct call *call)
{
    if (call_count >= purge_at) {
        purge();
    }
    if (call_count == AGENDA_MOST) {
        return false;
    }
    struct call new = *call;
    new.order = call_order++;
    int i = call_count++;
    for (; i > 0 && is_before(&new, &calls[(i - 1) / 2]); i = (i - 1) / 2) {
        calls[i] = calls[(i - 1) / 2];
    }
    calls[i] = new;
    return true;
}

bool agenda_take(double until_s, struct call *next)
{
    if (call_count == 0 || calls[0].when_s > until_s) {
        return false;
    }
    *next = calls[0];
    const struct call last = calls[--call_count];
    int i = 0;
    for (;;) {
        int child = 2 * i + 1;
        if (child + 1 < call_count && is_before(&calls[child + 1], &calls[child])) {
            child++;
        }
        if (child >= call_count || !is_before(&calls[child], &last)) {
            break;
        }
        calls[i] = calls[child];
        i = child;
    }
    calls[i] = last;
    return true;
}
