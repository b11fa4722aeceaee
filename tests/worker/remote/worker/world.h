/*
 * The world around a worker: shards, heartbeats, chief, rollouts, data and the clock are the test's own, and tell what
 * they are asked for. What they answer is set here; clock and system are here, too, the others in computing.h, shards.h
 * and cluster.h. A test includes bench.h, which has all of it around one worker.
 */
#ifndef TESTS_WORKER_REMOTE_WORKER_WORLD_H
#define TESTS_WORKER_REMOTE_WORKER_WORLD_H

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/cli/command.h"
#include "base/log.h"
#include "base/process/restart.h"
#include "base/process/signals.h"
#include "ps/job/job.h"
#include "tests/worker/remote/story.h"
#include "worker/remote/remote_worker.h"

enum { PIXELS = 6, CLASSES = 3, IMAGES = 30, BATCH = 4, GENERATION = 3 };

static struct world {
    double now_s;
    int signal;
    int64_t step;              /* of the shards */
    struct push_answer answer; /* but for its step */
    bool stands;               /* pushes make no step */
    int answers;               /* of a pipeline */
    int unasked;               /* rounds that are others' */
    double loss;
    enum exchange_result begun, joined, pushed, refreshed, drained, finished, took, asked, agreed, told_again, awaited,
        validated;               /* then well */
    enum chief_hold_result held; /* then well */
    struct updater_record record;
    struct checkpoint_info says; /* the next checkpoint */
    struct job_status job;
    bool over, fenced, is_rolling, changes, cannot_notify, cannot_load, cannot_compute, cannot_stand_by;
    const char *needs_rejoin, *drift;
    enum live_config_end live_end;
    int rows;           /* of the gradient, so far */
    int fails_in_round; /* a step of a round, counted from 1; 0: none */
    int not_finite_at;  /* likewise: of its loss */
    int signal_after;   /* likewise: then a signal comes */
    int over_after;     /* likewise: then the job is over */
    bool cannot_begin_round, cannot_end_round, streams, cannot_draw, cannot_watch, signals_at_load;
    void (*at_pause)(void);
    void (*at_push)(void);
    bool (*given_up)(void *context);
    bool (*asks_to_rejoin)(void *context, uint32_t generation, double since_s, char why[256]);
    bool (*knows)(void *context, const char *digest);
    void *context;
    double hurried_s;
    uint8_t part[4096]; /* what another worker's validation counted */
    size_t part_size;
} world;

static inline enum exchange_result once(enum exchange_result *end, struct error *error)
{
    const enum exchange_result now = *end;
    *end = EXCHANGE_OK;
    return now == EXCHANGE_OK ? now : (error_set(error, "as the test wants"), now);
}

double __wrap_clock_monotonic_s(void);
void __wrap_clock_pause(double until_s);
bool __wrap_restart_spawn_helper(void);
void __wrap_threads_give_way(void);
int __wrap_threads_available(void);
void __wrap_notify_ready(const char *status);
void __wrap_notify_stopping(void);
void __wrap_notify_restarting(void);

double __wrap_clock_monotonic_s(void)
{
    return world.now_s;
}

void __wrap_clock_pause(double until_s)
{
    world.now_s = until_s > world.now_s ? until_s : world.now_s;
    if (world.at_pause) {
        world.at_pause();
    }
}

bool __wrap_restart_spawn_helper(void)
{
    tell("stands by\n");
    return !world.cannot_stand_by;
}

void __wrap_threads_give_way(void)
{
    tell("gives way\n");
}

int __wrap_threads_available(void)
{
    return 2;
}

void __wrap_notify_ready(const char *status)
{
    tell("ready: %s\n", status);
}

void __wrap_notify_stopping(void)
{
    tell("stopping\n");
}

void __wrap_notify_restarting(void)
{
    tell("restarting\n");
}

void signals_catch(void)
{
}

int signals_pending(void)
{
    return world.signal;
}

const char *signals_name(int number)
{
    return number == SIGTERM ? "SIGTERM" : "?";
}

int signals_exit_status(int number)
{
    return 128 + number;
}

#endif
