/*
 * A worker as the host of its rollout agent: its answer to each order, when it adopts a live change, and how long links
 * are held around a restart. Agent, chief and trial are the test's own.
 */
#include "worker/remote/live_config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/statvfs.h>

#include <cmocka.h>

#include "base/log.h"
#include "ps/rollout/participant.h"
#include "ps/rollout/history.h"
#include "tests/worker/remote/story.h"

static struct world {
    struct agent_options agent;
    double now_s;
    uint64_t memory;
    uint64_t blocks; /* of 16 bytes, on disk */
    bool no_disk;    /* that can be inspected */
    bool has_lineage, cannot, rolling, trial_asked_for;
    struct lineage lineage;
    const char *drift;
    int signal, pauses;
} world;

double __wrap_clock_monotonic_s(void);
void __wrap_clock_pause(double until_s);
bool __wrap_memory_for_this_process(uint64_t *bytes);
bool __wrap_lineage_read(const struct config *config, struct lineage *lineage);
void __wrap_restart_within(unsigned seconds);
int __wrap_signals_pending(void);

double __wrap_clock_monotonic_s(void)
{
    return world.now_s;
}

void __wrap_clock_pause(double until_s)
{
    world.pauses++;
    world.now_s = until_s;
}

bool __wrap_memory_for_this_process(uint64_t *bytes)
{
    *bytes = world.memory;
    return world.memory > 0;
}

bool __wrap_lineage_read(const struct config *config, struct lineage *lineage)
{
    *lineage = world.lineage;
    return world.has_lineage;
}

void __wrap_restart_within(unsigned seconds)
{
    tell("restarts within %u s\n", seconds);
}

int __wrap_signals_pending(void)
{
    return world.signal;
}

int __wrap_statvfs(const char *path, struct statvfs *disk);

int __wrap_statvfs(const char *path, struct statvfs *disk)
{
    assert_string_equal(path, "/tmp");
    *disk = (struct statvfs){.f_frsize = 16, .f_bavail = world.blocks, .f_bfree = 1 << 30, .f_bsize = 1 << 20};
    return world.no_disk ? -1 : 0;
}

static char an_agent, a_chief;

bool agent_create(struct agent **agent, const struct agent_options *options, struct error *error)
{
    world.agent = *options;
    *agent = (struct agent *)(void *)&an_agent;
    return !world.cannot || error_set(error, "no agent");
}

void agent_destroy(struct agent *agent)
{
}

bool agent_is_rolling(struct agent *agent)
{
    return world.rolling;
}

void agent_show(struct agent *agent, struct board_rollout *shown)
{
    tell("shows\n");
}

void agent_drift(struct agent *agent, char text[CONFIG_DRIFT_TEXT])
{
    snprintf(text, CONFIG_DRIFT_TEXT, "%s", world.drift);
}

bool agent_knows(struct agent *agent, const char *digest)
{
    return strcmp(digest, "known") == 0;
}

bool chief_checkpoint(struct chief *chief, struct error *error)
{
    assert_ptr_equal(chief, &a_chief);
    tell("checkpoint\n");
    return !world.cannot || error_set(error, "no checkpoint");
}

bool chief_restore(struct chief *chief, struct error *error)
{
    assert_ptr_equal(chief, &a_chief);
    tell("restore\n");
    return !world.cannot || error_set(error, "no restore");
}

void chief_settle(struct chief *chief)
{
    assert_ptr_equal(chief, &a_chief);
    tell("settle\n");
}

bool trial_run(const struct config *then, const char *train_dir, bool may_lose, bool (*given_up)(void *context),
               void *context, struct error *error)
{
    tell("trial in %s%s\n", train_dir, may_lose ? ", may lose" : "");
    assert_false(given_up(context));
    world.signal = 15;
    assert_true(given_up(context));
    world.signal = 0;
    return true;
}

static struct config config;
static struct traffic traffic;
static struct live_config *live;

/* Worker `index` of ten, in version 4. */
static void load(const char *index)
{
    const struct config_setting settings[] = {{"insecure", "true"},
                                              {"layers", "6,20,3"},
                                              {"batch_size", "10"},
                                              {"ps_hosts", "b:1"},
                                              {"worker_hosts", "a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9,a:10"},
                                              {"job_name", "worker"},
                                              {"task_index", index},
                                              {"train_dir", "/tmp"}};
    struct error error;
    if (!config_load(&config, NULL, settings, 8, &error)) {
        fail_msg("%s", error.text);
    }
    config.fleet.version = 4;
    memset(&world, 0, sizeof world);
    atomic_store(&traffic.held_until_s, 0);
    world.now_s = 100;
    world.drift = "";
    told();
}

static void begin(const char *index)
{
    struct error error;
    load(index);
    struct chief *chief = index[0] == '0' ? (struct chief *)(void *)&a_chief : NULL;
    if (!live_config_create(&live, &config, &config.model, NULL, chief, &traffic, &error)) {
        fail_msg("%s", error.text);
    }
}

static void end(void)
{
    live_config_destroy(live);
    config_free(&config);
}

static const struct participant_host *host(void)
{
    return &world.agent.host;
}

/* Adopted between two steps, once, from its step on; another one replaces it. */
static void live_change(void **state)
{
    struct config next, mine;
    begin("1");
    config_defaults(&next);
    config_defaults(&mine);
    next.train.learning_rate = 0.125;
    void *context = host()->context;
    assert_false(live_config_look(live, &mine, 50, 0.5f, true));
    assert_int_equal(host()->switch_to(context, &next, 60), SWITCH_PENDING);
    assert_int_equal(host()->switch_to(context, &next, 60), SWITCH_PENDING);
    assert_false(live_config_look(live, &mine, 59, 0.5f, true));
    assert_true(live_config_look(live, &mine, 60, 0.5f, true));
    assert_true(mine.train.learning_rate == 0.125);
    assert_false(live_config_look(live, &mine, 61, 0.5f, true));
    assert_int_equal(host()->switch_to(context, &next, 60), SWITCH_DONE);
    next.train.learning_rate = 0.25; /* going back, or the same once more, is another change */
    assert_int_equal(host()->switch_to(context, &next, 60), SWITCH_PENDING);
    assert_int_equal(host()->switch_to(context, &next, 70), SWITCH_PENDING);
    assert_false(live_config_look(live, &mine, 69, 0.5f, true));
    assert_int_equal(host()->switch_to(context, &next, 0), SWITCH_DONE); /* at once, without waiting for a step */
    assert_true(live_config_look(live, &mine, 69, 0.5f, true));
    assert_true(mine.train.learning_rate == 0.25);
    config_free(&next);
    config_free(&mine);
    end();
}

/* The contents of reports: the last loss, none after a restore, NaN while it is not finite. */
static void last_loss(void **state)
{
    begin("1");
    void *context = world.agent.context;
    assert_true(world.agent.loss(context) == -1);
    live_config_look(live, &config, 1, 0.5f, true);
    assert_true(world.agent.loss(context) == 0.5f);
    live_config_look(live, &config, 1, 0.5f, false);
    assert_true(isnan(world.agent.loss(context)));
    assert_false(host()->ready(context));
    live_config_note_joined(live);
    assert_true(host()->ready(context));
    assert_true(world.agent.loss(context) == -1);
    live_config_note_joining(live);
    assert_false(host()->ready(context));
    live_config_note_joining(NULL);
    live_config_note_joined(NULL);
    end();
}

/* Worker 0 is responsible for the model; others have nothing to save. */
static void orders_of_a_rollout(void **state)
{
    struct error error;
    begin("0");
    void *context = host()->context;
    assert_int_equal(world.agent.who.role, MEMBER_WORKER);
    assert_int_equal(world.agent.who.index, 0);
    assert_true(host()->save(context, &error) && host()->restore(context, &error));
    host()->settle(context);
    assert_true(host()->try_out(context, &config, true, &error));
    assert_string_equal(told(), "checkpoint\nrestore\nsettle\ntrial in /tmp, may lose\n");
    world.cannot = true;
    assert_false(host()->save(context, &error));
    assert_false(host()->restore(context, &error));
    told();
    assert_int_equal(live_config_end(live), LIVE_STAYS);
    assert_int_equal(live_config_end(NULL), LIVE_STAYS);
    host()->leave(context, false);
    assert_int_equal(live_config_end(live), LIVE_RESTARTS);
    host()->leave(context, true);
    assert_int_equal(live_config_end(live), LIVE_LEAVES);
    assert_string_equal(told(), "restarts within 15 s\nrestarts within 15 s\n");
    assert_false(live_config_is_rolling(live));
    world.rolling = true;
    assert_true(live_config_is_rolling(live));
    assert_true(live_config_knows(live, "known"));
    assert_false(live_config_knows(live, "other"));
    end();
    begin("1");
    assert_true(!host()->save && !host()->restore && !host()->settle && !host()->try_out);
    end();
    load("1");
    world.cannot = true;
    assert_false(live_config_create(&live, &config, &config.model, NULL, NULL, &traffic, &error));
    world.cannot = false;
    config_free(&config);
}

/* A message about the worker, followed by what is known of drift. */
static void drift(void **state)
{
    char message[256] = "";
    begin("1");
    live_config_drift(live, message);
    assert_string_equal(message, "");
    world.drift = "it drifts";
    live_config_drift(live, message);
    assert_string_equal(message, "it drifts");
    live_config_drift(live, message);
    assert_string_equal(message, "it drifts; it drifts");
    world.drift = "";
    live_config_drift(live, message);
    assert_string_equal(message, "it drifts; it drifts");
    live_config_drift(NULL, message);
    assert_string_equal(message, "it drifts; it drifts");
    end();
}

/* A machine that is far too small reports it before anything changes. */
static void memory_that_is_wanted(void **state)
{
    /* 672 floats, six times; and for 10 examples of 29 units, three times; as bfloat16 once more, at two bytes */
    const uint64_t wanted = 4 * (6 * 672 + 3 * 29 * 10);
    struct error error;
    begin("1");
    void *context = host()->context;
    const struct {
        enum wire_dtype wire;
        uint64_t there;
        bool good;
    } cases[] = {{WIRE_FLOAT32, wanted, true},
                 {WIRE_FLOAT32, wanted - 1, false},
                 {WIRE_FLOAT32, 0, true}, /* not known */
                 {WIRE_BFLOAT16, wanted + 2 * 672, true},
                 {WIRE_INT8, wanted + 2 * 672 + 4 * 672, true}, /* the sent model, too */
                 {WIRE_INT8, wanted + 2 * 672 + 4 * 672 - 1, false},
                 {WIRE_BFLOAT16, wanted + 2 * 672 - 1, false}};
    for (int i = 0; i < 7; i++) {
        config.cluster.wire_dtype = cases[i].wire;
        config.cluster.issync = cases[i].wire == WIRE_INT8;
        world.memory = cases[i].there;
        assert_int_equal(host()->check(context, &config, &error), cases[i].good);
    }
    assert_non_null(strstr(error.text, "MiB of memory here, but there are"));
    end();
}

/* Worker 0 needs room for two checkpoints: of the parameters, the optimizer's slots, and averages. */
static void disk_that_is_wanted(void **state)
{
    struct error error;
    begin("0");
    config.train.optimizer = OPTIMIZER_ADAM;
    config.train.ema_decay = 0.9;
    const uint64_t blocks = 2 * (1 + 2 + 1) * 672 * 4 / 16;
    for (int i = 0; i < 4; i++) {
        world.blocks = blocks - (i > 0);
        world.no_disk = i == 2; /* the writer will notice */
        config.train.ema_decay = i == 3 ? 0 : 0.9;
        assert_int_equal(host()->check(host()->context, &config, &error), i != 1);
    }
    assert_non_null(strstr(error.text, "/tmp: two checkpoints would take 0 MiB there, but 0 are left"));
    end();
    begin("1"); /* others keep none */
    assert_true(host()->check(host()->context, &config, &error));
    end();
}

/* The agent decides what is shown of a rollout. */
static void a_rollout_that_is_shown(void **state)
{
    struct board_rollout shown;
    begin("1");
    live_config_show(live, &shown);
    assert_string_equal(told(), "shows\n");
    live_config_show(NULL, &shown);
    assert_string_equal(told(), "");
    end();
}

/* Links are held if a rollout has just restarted the job, and only then; worker 0 gets a head start. */
static void links_are_held(void **state)
{
    for (int index = 0; index < 2; index++) {
        const struct {
            bool has;
            enum rollout_kind kind;
            uint64_t target, fallback;
            bool held;
        } cases[] = {{false, ROLLOUT_JOB, 4, 3, false},
                     {true, ROLLOUT_LOCAL, 4, 3, false},
                     {true, ROLLOUT_JOB, 6, 5, false},
                     {true, ROLLOUT_JOB, 4, 3, true},
                     {true, ROLLOUT_JOB, 5, 4, true}};
        for (int i = 0; i < 5; i++) {
            load(index == 0 ? "0" : "1");
            world.has_lineage = cases[i].has;
            world.lineage =
                (struct lineage){.kind = cases[i].kind, .target = cases[i].target, .fallback = cases[i].fallback};
            live_config_hold(&traffic, &config);
            const double until_s = atomic_load(&traffic.held_until_s);
            assert_true(cases[i].held ? until_s >= 120 && until_s <= 120.2 : until_s == 0);
            assert_true(index > 0 || world.pauses == 0);
            config_free(&config);
        }
    }
}

/* Worker 0's head start depends on the number of workers; a worker that is told to stop does not wait for it. */
static void the_start_that_worker_0_gets(void **state)
{
    double longest_s = 0;
    for (int i = 0; i < 60; i++) {
        load("1");
        world.has_lineage = true;
        world.lineage = (struct lineage){.kind = ROLLOUT_JOB, .target = 4, .fallback = 3};
        const int hosts = config.cluster.worker_hosts.count;
        config.cluster.worker_hosts.count = i < 40 ? 1000 : hosts;
        world.signal = i >= 20 && i < 40 ? 15 : 0;
        live_config_hold(&traffic, &config);
        config.cluster.worker_hosts.count = hosts;
        const double waited_s = atomic_load(&traffic.held_until_s) - 120;
        assert_true(waited_s >= 0 && waited_s <= (i < 20 ? 2 : i < 40 ? 0 : 0.2));
        longest_s = waited_s > longest_s ? waited_s : longest_s;
        config_free(&config);
    }
    assert_true(longest_s > 0.5); /* one of twenty */
}

/* Until ps 0 is in this version and has a model; then each waits for its own moment. Worker 0 does not wait. */
static void links_are_let_go(void **state)
{
    for (int index = 0; index < 2; index++) {
        begin(index == 0 ? "0" : "1");
        void *context = world.agent.context;
        atomic_store(&traffic.held_until_s, 120);
        world.agent.heard(context, 3, true);
        assert_true(atomic_load(&traffic.held_until_s) == 120);
        world.agent.heard(context, 4, false);
        assert_true(atomic_load(&traffic.held_until_s) == (index == 0 ? 100 : 120));
        world.agent.heard(context, 4, true);
        const double until_s = atomic_load(&traffic.held_until_s);
        assert_true(index == 0 ? until_s == 100 : until_s >= 100 && until_s < 100.1);
        atomic_store(&traffic.held_until_s, 150);
        world.agent.heard(context, 4, true); /* once is enough */
        assert_true(atomic_load(&traffic.held_until_s) == 150);
        end();
        begin(index == 0 ? "0" : "1");
        atomic_store(&traffic.held_until_s, 50); /* long past: no longer held */
        world.agent.heard(world.agent.context, 4, true);
        assert_true(atomic_load(&traffic.held_until_s) == 50);
        end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(live_change),           cmocka_unit_test(last_loss),
        cmocka_unit_test(orders_of_a_rollout),   cmocka_unit_test(drift),
        cmocka_unit_test(memory_that_is_wanted), cmocka_unit_test(links_are_held),
        cmocka_unit_test(links_are_let_go),      cmocka_unit_test(the_start_that_worker_0_gets),
        cmocka_unit_test(disk_that_is_wanted),   cmocka_unit_test(a_rollout_that_is_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
