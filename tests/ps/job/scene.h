/* A job for tests; the test is its host: who joins, who pushes, and what the host is told. */
#ifndef TESTS_PS_JOB_SCENE_H
#define TESTS_PS_JOB_SCENE_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ps/job/job.h"
#include "tests/check.h"

static char hosts[4][16] = {"b:2222", "c:2222", "d:2222", "e:2222"};
static char *host_list[] = {hosts[0], hosts[1], hosts[2], hosts[3]};

struct scene {
    struct config config;
    struct job job;
    double now_s;
    char log[8192]; /* all lines so far */
    int probes, cuts;
    uint64_t spared; /* by the last cut */
};

/* The host's part: lines are collected, other actions counted. */
static inline void play(struct scene *scene)
{
    struct job_action action;
    while (job_next_action(&scene->job, &action)) {
        if (action.kind == JOB_LOG) {
            size_t used = strlen(scene->log);
            snprintf(scene->log + used, sizeof scene->log - used, "%s\n", action.text);
        }
        scene->probes += action.kind == JOB_PROBE;
        scene->cuts += action.kind == JOB_CUT;
        scene->spared = action.kind == JOB_CUT ? action.incarnation : scene->spared;
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

static inline uint16_t hello(struct scene *scene, int worker, uint64_t incarnation, struct error *message)
{
    const struct peer who = {.member = {MEMBER_WORKER, worker}, .incarnation = incarnation, .program = "trainer"};
    char address[32];
    snprintf(address, sizeof address, "10.0.0.%d:%d", worker, (int)incarnation);
    return job_hello(&scene->job, &who, address, scene->now_s, message);
}

static inline void come(struct scene *scene, int worker, uint64_t incarnation)
{
    struct error message;
    assert_int_equal(hello(scene, worker, incarnation, &message), 0);
    job_note_ready(&scene->job, worker, incarnation, scene->now_s);
    play(scene);
}

static inline void set_up_at(struct scene *scene, int workers, int ps_count, int ps)
{
    struct error error;
    memset(scene, 0, sizeof *scene);
    scene->config.model.layer_count = 2;
    scene->config.model.layers[0] = 4;
    scene->config.model.layers[1] = 3;
    scene->config.cluster.ps_hosts.items = host_list;
    scene->config.cluster.ps_hosts.count = ps_count;
    scene->config.cluster.worker_hosts.items = host_list;
    scene->config.cluster.worker_hosts.count = workers;
    scene->config.cluster.min_workers = 1;
    scene->config.cluster.lease_secs = 10;
    scene->now_s = 100;
    assert_true(job_create(&scene->job, &scene->config, ps, scene->now_s, &error));
}

static inline void set_up(struct scene *scene, int workers)
{
    set_up_at(scene, workers, 1, 0);
}

static inline void restore(struct scene *scene, uint32_t generation, int64_t step, int64_t last_step)
{
    struct verdict verdict;
    memset(&verdict, 0xff, sizeof verdict);
    job_begin_restore(&scene->job, 0, generation, "initialised", scene->now_s, &verdict);
    assert_int_equal(verdict.code, 0);
    play(scene);
    scene->config.train.train_steps = last_step;
    job_schedule(&scene->job, &scene->config, 0, scene->now_s);
    job_end_restore(&scene->job, 0, generation, step, 600, scene->now_s, &verdict);
    assert_int_equal(verdict.code, 0);
    play(scene);
}

static inline struct verdict push_as(struct scene *scene, int worker, uint64_t incarnation, uint32_t generation,
                                     uint64_t sequence, bool finite)
{
    struct verdict verdict;
    memset(&verdict, 0xff, sizeof verdict);
    const struct job_push push = {
        .generation = generation, .sequence = sequence, .base_step = scene->job.global_step, .finite = finite};
    job_push(&scene->job, worker, incarnation, &push, scene->now_s, &verdict);
    play(scene);
    return verdict;
}

static inline enum push_outcome push(struct scene *scene, int worker, uint64_t sequence)
{
    struct verdict verdict = push_as(scene, worker, (uint64_t)worker + 1, scene->job.generation, sequence, true);
    assert_int_equal(verdict.code, 0);
    return verdict.outcome;
}

#endif
