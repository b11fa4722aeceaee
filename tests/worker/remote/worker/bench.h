/* One worker in a world of the test's own. */
#ifndef TESTS_WORKER_REMOTE_WORKER_BENCH_H
#define TESTS_WORKER_REMOTE_WORKER_BENCH_H

#include "tests/worker/remote/worker/cluster.h"
#include "tests/worker/remote/worker/computing.h"
#include "tests/worker/remote/worker/shards.h"
#include "tests/worker/remote/worker/world.h"
#include "worker/remote/worker.h"

struct bench {
    struct config config;
    struct remote_worker worker;
    struct updater_start start;
};

static inline void load(struct bench *bench, const char *const *flags)
{
    struct config_setting settings[24] = {{"insecure", "true"},
                                          {"layers", "6,20,3"},
                                          {"ps_hosts", "127.0.0.1:1,127.0.0.1:2"},
                                          {"worker_hosts", "127.0.0.1:3,127.0.0.1:4,127.0.0.1:5"},
                                          {"job_name", "worker"},
                                          {"train_dir", ""},
                                          {"batch_size", "4"},
                                          {"validation_size", "0"},
                                          {"log_steps", "0"},
                                          {"ema_decay", "0.5"},
                                          {"optimizer", "adam"},
                                          {"data_source", "synthetic"}};
    int count = 12;
    struct error error;
    memset(bench, 0, sizeof *bench);
    for (int i = 0; flags && flags[i]; i += 2) {
        settings[count++] = (struct config_setting){flags[i], flags[i + 1]};
    }
    if (!config_load(&bench->config, NULL, settings, count, &error)) {
        fail_msg("%s", error.text);
    }
    memset(&world, 0, sizeof world);
    world.now_s = 1000;
    world.loss = 0.5;
    world.job.test_accuracy = NAN;
    world.record.last_checkpoint_step = -1;
    told();
    listen_in();
}

/* Its parts as remote_worker_run makes them; opened. */
static inline bool begin(struct bench *bench, const char *const *flags, struct error *error)
{
    load(bench, flags);
    struct remote_worker *worker = &bench->worker;
    *worker = (struct remote_worker){.updater = {.table = &remote_updater_table},
                                     .training = {.updater = &worker->updater, .begun_s = world.now_s},
                                     .launched = &bench->config,
                                     .config = bench->config,
                                     .is_chief = bench->config.cluster.task_index == 0,
                                     .last_loss = NAN};
    return worker_open(worker, error);
}

static inline void end(struct bench *bench)
{
    worker_close(&bench->worker, "bye");
    config_free(&bench->config);
    heard();
}

static inline bool join(struct bench *bench)
{
    return remote_updater_table.join(&bench->worker.updater, &bench->start);
}

static inline bool step(struct bench *bench)
{
    return remote_updater_table.step(&bench->worker.updater);
}

/* One that has joined at this step. */
static inline void begin_joined(struct bench *bench, const char *const *flags, int64_t at)
{
    struct error error;
    if (!begin(bench, flags, &error)) {
        fail_msg("%s", error.text);
    }
    world.step = at;
    assert_true(join(bench));
    told();
}

static const char *const __attribute__((unused)) chief_flags[] = {"task_index", "0", NULL};
static const char *const __attribute__((unused)) other_flags[] = {"task_index", "2", NULL};
static const char *const __attribute__((unused)) sync_flags[] = {"task_index", "0", "issync", "true", NULL};

#endif
