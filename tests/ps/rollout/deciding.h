/* A rollout for tests that provide its clock and its members: two ps and three workers, in training. */
#ifndef TESTS_PS_ROLLOUT_DECIDING_H
#define TESTS_PS_ROLLOUT_DECIDING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ps/rollout/decide.h"

enum { PS = 2, WORKERS = 3 };
static const struct member chief = {MEMBER_WORKER, 0};
static const struct rollout_vitals fine = {.global_step = 1000, .steps_per_s = 100, .loss = 0.5, .training = true};

static struct rollout rollout;
static char message[256];

static inline int enter(void **state)
{
    (void)state;
    return !rollout_create(&rollout, PS, WORKERS, WORKERS);
}

static inline int leave(void **state)
{
    (void)state;
    rollout_destroy(&rollout);
    return 0;
}

/* A member reports, still in the fallback. */
static inline void say_why(struct member who, enum rollout_phase phase, const char *why, double now_s)
{
    const struct rollout_report report = {
        .phase = phase, .version = 1, .target = rollout.target, .ready = true, .message = why};
    rollout_on_report(&rollout, who, &report, now_s);
}

static inline void say(struct member who, enum rollout_phase phase, double now_s)
{
    say_why(who, phase, phase == PHASE_FAILED ? "can't" : "", now_s);
}

static inline void all_say(enum rollout_phase phase, double now_s)
{
    for (int i = 0; i < rollout.count; i++) {
        say(rollout.members[i].who, phase, now_s);
    }
}

#endif
