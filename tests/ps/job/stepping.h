/* Jobs of synchronous steps for tests, which are their workers, their hosts and their clock: of one ps, or of two. */
#ifndef TESTS_PS_JOB_STEPPING_H
#define TESTS_PS_JOB_STEPPING_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ps/job/job.h"

enum { MOST = 4 };

static char hosts[MOST][16] = {"b:2222", "c:2222", "d:2222", "e:2222"};
static char *host_list[] = {hosts[0], hosts[1], hosts[2], hosts[3]};
static char ps_hosts[2][16] = {"p:2222", "q:2222"};
static char *ps_list[] = {ps_hosts[0], ps_hosts[1]};

struct scene {
    struct config config;
    struct job jobs[2]; /* of ps 0 and ps 1 */
    int ps_count;
    double now_s;
    char log[8192];
    uint64_t sequences[MOST];
};

static inline void play(struct scene *scene)
{
    struct job_action action;
    for (int ps = 0; ps < scene->ps_count; ps++) {
        while (job_next_action(&scene->jobs[ps], &action)) {
            size_t used = strlen(scene->log);
            snprintf(scene->log + used, sizeof scene->log - used, "%s\n", action.text);
        }
    }
}

static inline bool told(struct scene *scene, const char *text)
{
    play(scene);
    bool found = strstr(scene->log, text);
    if (!found) {
        print_error("not told: %s\nbut:\n%s", text, scene->log);
    }
    scene->log[0] = '\0';
    return found;
}

static inline void come(struct scene *scene, int worker, uint64_t incarnation)
{
    const struct peer who = {.member = {MEMBER_WORKER, worker}, .incarnation = incarnation, .program = "trainer"};
    struct error message;
    char address[32];
    snprintf(address, sizeof address, "10.0.0.%d:1", worker);
    for (int ps = 0; ps < scene->ps_count; ps++) {
        assert_int_equal(job_hello(&scene->jobs[ps], &who, address, scene->now_s, &message), 0);
        job_note_ready(&scene->jobs[ps], worker, incarnation, scene->now_s);
        play(scene);
    }
}

static inline void restore(struct scene *scene, uint32_t generation, int64_t step, int64_t last_step)
{
    struct verdict verdict;
    for (int ps = 0; ps < scene->ps_count; ps++) {
        job_begin_restore(&scene->jobs[ps], 0, generation, "initialised", scene->now_s, &verdict);
        assert_int_equal(verdict.code, 0);
        scene->config.train.train_steps = last_step;
        job_schedule(&scene->jobs[ps], &scene->config, 0, scene->now_s);
        job_end_restore(&scene->jobs[ps], 0, generation, step, 600, scene->now_s, &verdict);
        assert_int_equal(verdict.code, 0);
        play(scene);
    }
}

/* `present` of four workers are there, worker i with incarnation i + 1. */
static inline void begin(struct scene *scene, int ps_count, int present, int wanted, int least)
{
    struct error error;
    memset(scene, 0, sizeof *scene);
    scene->ps_count = ps_count;
    scene->config.cluster.ps_hosts.items = ps_list;
    scene->config.cluster.ps_hosts.count = ps_count;
    scene->config.cluster.worker_hosts.items = host_list;
    scene->config.cluster.worker_hosts.count = MOST;
    scene->config.cluster.issync = true;
    scene->config.cluster.replicas_to_aggregate = wanted;
    scene->config.cluster.min_replicas = least;
    scene->config.cluster.min_workers = 1;
    scene->config.cluster.lease_secs = 10;
    scene->config.model.layers[0] = 6;
    scene->config.model.layers[1] = 3;
    scene->config.model.layer_count = 2;
    scene->now_s = 100;
    for (int ps = 0; ps < ps_count; ps++) {
        assert_true(job_create(&scene->jobs[ps], &scene->config, ps, scene->now_s, &error));
    }
    for (int i = 0; i < present; i++) {
        come(scene, i, (uint64_t)i + 1);
    }
    restore(scene, 1, 0, 0);
}

static inline void end(struct scene *scene)
{
    for (int ps = 0; ps < scene->ps_count; ps++) {
        job_destroy(&scene->jobs[ps]);
    }
}

static inline struct job_push push_of(struct scene *scene, int worker, int64_t step, bool finite)
{
    return (struct job_push){.generation = scene->jobs[0].generation,
                             .sequence = scene->sequences[worker],
                             .base_step = step,
                             .token = step,
                             .finite = finite};
}

/* A whole push to one ps; returns whether it was to be received. */
static inline bool offer_as(struct scene *scene, int ps, int worker, uint64_t incarnation, int64_t step, bool finite)
{
    struct verdict verdict;
    memset(&verdict, 0xff, sizeof verdict);
    bool receive;
    const struct job_push push = push_of(scene, worker, step, finite);
    job_stage(&scene->jobs[ps], worker, incarnation, &push, scene->now_s, &verdict, &receive);
    assert_int_equal(verdict.code, 0);
    memset(&verdict, 0xff, sizeof verdict);
    job_staged(&scene->jobs[ps], worker, incarnation, &push, receive, scene->now_s, &verdict);
    assert_int_equal(verdict.code, 0);
    play(scene);
    return receive;
}

static inline bool offer(struct scene *scene, int worker, int64_t step)
{
    scene->sequences[worker]++;
    return offer_as(scene, 0, worker, (uint64_t)worker + 1, step, true);
}

/* -1: it still waits. */
static inline int outcome(struct scene *scene, int worker, int64_t step)
{
    struct verdict verdict;
    memset(&verdict, 0xff, sizeof verdict);
    const struct job_push push = push_of(scene, worker, step, true);
    if (!job_settled(&scene->jobs[0], worker, (uint64_t)worker + 1, &push, &verdict)) {
        return -1;
    }
    assert_int_equal(verdict.code, 0);
    return (int)verdict.outcome;
}

/* Applies the step that is decided on; returns how many gradients it has, 0: there is none. */
static inline int apply(struct scene *scene, int ps)
{
    struct job_step step;
    if (!job_take_step(&scene->jobs[ps], &step)) {
        return 0;
    }
    assert_false(job_take_step(&scene->jobs[ps], &(struct job_step){0})); /* one does it */
    job_step_applied(&scene->jobs[ps], &step, true, scene->now_s);
    play(scene);
    return step.count;
}

static inline void pass(struct scene *scene, double seconds)
{
    const double end_s = scene->now_s + seconds;
    while (scene->now_s < end_s) {
        scene->now_s = scene->now_s + 0.5 < end_s ? scene->now_s + 0.5 : end_s;
        for (int ps = 0; ps < scene->ps_count; ps++) {
            while (job_tick(&scene->jobs[ps], scene->now_s)) {
                play(scene);
            }
        }
        play(scene);
    }
}

static inline void beat(struct scene *scene, int ps, int worker, enum member_state how, const char *message)
{
    const struct message_heartbeat heartbeat = {
        .state = (uint8_t)how, .loss = 1, .host = "h", .device = "cpu", .message = message};
    job_heartbeat(&scene->jobs[ps], worker, (uint64_t)worker + 1, &heartbeat, scene->now_s);
}

static inline void hear(struct scene *scene, int worker)
{
    for (int ps = 0; ps < scene->ps_count; ps++) {
        job_touch(&scene->jobs[ps], worker, (uint64_t)worker + 1, scene->now_s);
    }
}

/* What ps 1 has, told to ps 0. */
static inline void report(struct scene *scene)
{
    bool finite[MOST] = {false}, not_finite[MOST] = {false};
    struct verdict verdict;
    for (int i = 0; i < MOST; i++) {
        enum aggregation_part part = aggregation_get(&scene->jobs[1].gathered, 0, i);
        finite[i] = part == PART_HERE;
        not_finite[i] = part == PART_NOT_FINITE;
    }
    job_report(&scene->jobs[0], 1, scene->jobs[1].generation, scene->jobs[1].global_step, finite, not_finite,
               scene->now_s, &verdict);
    assert_int_equal(verdict.code, 0);
}

#endif
