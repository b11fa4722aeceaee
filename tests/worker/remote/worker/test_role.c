/*
 * What the role of a worker has around its steps: streaming data, the fleet that a chief shows, and its start and end
 * as a process. The world around it is that of world.h.
 */
#include "tests/check.h"
#include "tests/worker/remote/worker/bench.h"

#include "observe/observe.h"
#include "ps/status.h"
#include "worker/data/streaming.h"

/* --- Streaming data --- */

bool __wrap_streaming_draw(struct streaming *streaming, uint32_t task, int64_t step, struct examples *drawn,
                           struct error *error);
bool __wrap_streaming_create_batch(const struct streaming *streaming, struct examples *batch, struct error *error);
void __wrap_streaming_take_share(struct streaming *streaming, int64_t first, int64_t count);
void __wrap_streaming_destroy(struct streaming *streaming);

bool __wrap_streaming_draw(struct streaming *streaming, uint32_t task, int64_t step, struct examples *drawn,
                           struct error *error)
{
    assert_ptr_equal(streaming, &world);
    tell("draws step %lld of task %u\n", (long long)step, task);
    drawn->count = 3;
    return !world.cannot_draw || error_set(error, "the file has changed");
}

bool __wrap_streaming_create_batch(const struct streaming *streaming, struct examples *batch, struct error *error)
{
    assert_ptr_equal(streaming, &world);
    make_examples(batch, BATCH);
    batch->images[0] = 77;
    tell("room for a batch\n");
    return true;
}

void __wrap_streaming_take_share(struct streaming *streaming, int64_t first, int64_t count)
{
    assert_ptr_equal(streaming, &world);
    tell("%lld from %lld on\n", (long long)count, (long long)first);
}

void __wrap_streaming_destroy(struct streaming *streaming)
{
}

/* Batches are drawn from the files, and all that were drawn are trained on, in order. */
TEST(batches_from_files)
{
    const char *const flags[] = {"task_index", "2", "data_sharding", "disjoint", NULL};
    struct bench bench;
    struct error error;
    struct batch batch;
    load(&bench, flags);
    world.streams = true;
    struct remote_worker *worker = &bench.worker;
    *worker = (struct remote_worker){.updater = {.table = &remote_updater_table},
                                     .training = {.updater = &worker->updater},
                                     .launched = &bench.config,
                                     .config = bench.config,
                                     .last_loss = NAN};
    assert_true(worker_open(worker, &error));
    assert_non_null(strstr(told(), "10 from 20 on\nroom for a batch\n"));
    assert_true(join(&bench));
    told();
    assert_true(step(&bench));
    assert_non_null(strstr(told(), "draws step 0 of task 2\ncomputes 3 of task 2, step 0, from 77\n"));
    assert_true(worker_draw(worker, 4, &batch));
    assert_non_null(strstr(told(), "draws step 5 of task 2\n"));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(batch.indexes[i], i);
    }
    world.cannot_draw = true;
    assert_false(step(&bench));
    assert_int_equal(worker->training.end, TRAINING_FAILED);
    assert_string_equal(worker->training.error.text, "the file has changed");
    assert_false(was_told("computes"));
    end(&bench);
}

/* --- The fleet that a chief shows --- */

static char the_watch;
static void (*source)(void *context, struct board *board);
static void *source_context;

bool __wrap_fleet_watch_create(struct fleet_watch **watch, const struct config *config, const struct identity *identity,
                               struct error *error);
void __wrap_fleet_watch_destroy(struct fleet_watch *watch);
int __wrap_fleet_watch_members(struct fleet_watch *watch, struct board_member *members, int room);
int __wrap_fleet_watch_most(const struct fleet_watch *watch);
void __wrap_observe_source(void (*fill)(void *context, struct board *board), void *context);

bool __wrap_fleet_watch_create(struct fleet_watch **watch, const struct config *config, const struct identity *identity,
                               struct error *error)
{
    assert_non_null(identity);
    assert_int_equal(config->cluster.ps_hosts.count, 2);
    tell("watches\n");
    *watch = (struct fleet_watch *)(void *)&the_watch;
    return !world.cannot_watch || error_set(error, "no thread");
}

void __wrap_fleet_watch_destroy(struct fleet_watch *watch)
{
    assert_null(source); /* nobody queries it any more */
    assert_ptr_equal(watch, &the_watch);
    tell("watch ends\n");
}

int __wrap_fleet_watch_members(struct fleet_watch *watch, struct board_member *members, int room)
{
    assert_ptr_equal(watch, &the_watch);
    assert_true(room >= 3);
    members[0].task = 7;
    return 3;
}

int __wrap_fleet_watch_most(const struct fleet_watch *watch)
{
    assert_ptr_equal(watch, &the_watch);
    return 5;
}

void __wrap_observe_source(void (*fill)(void *context, struct board *board), void *context)
{
    source = fill;
    source_context = context;
}

/* The chief's dashboards show all members, and a rollout's state; without a viewer nothing is watched. */
TEST(the_fleet_that_a_chief_shows)
{
    struct bench bench;
    struct board board = {.member_count = 0};
    atomic_store(&observe_serves, true);
    begin_joined(&bench, chief_flags, 0);
    atomic_store(&observe_serves, false);
    assert_non_null(source);
    board.rollout.is_under_way = true; /* the stand-in reports none */
    source(source_context, &board);
    assert_int_equal(board.member_count, 3);
    assert_int_equal(board.members[0].task, 7);
    assert_false(board.rollout.is_under_way);
    free(board.members);
    end(&bench);
    assert_true(was_told("watch ends\n"));
    assert_null(source);
    for (int i = 0; i < 3; i++) {
        atomic_store(&observe_serves, i > 0);
        load(&bench, i < 2 ? other_flags : chief_flags);
        config_free(&bench.config);
        heard();
        begin_joined(&bench, i == 1 ? other_flags : chief_flags, 0);
        assert_int_equal(!bench.worker.watch, i != 2);
        atomic_store(&observe_serves, false);
        told();
        end(&bench);
        assert_int_equal(was_told("watch ends\n"), i == 2);
    }
}

/* Failing to watch is no reason not to train. */
TEST(a_fleet_that_can_not_be_watched)
{
    struct bench bench;
    struct error error;
    assert_true(begin(&bench, chief_flags, &error));
    world.cannot_watch = true;
    atomic_store(&observe_serves, true);
    assert_true(join(&bench));
    atomic_store(&observe_serves, false);
    assert_null(source);
    assert_int_equal(times(heard_so_far(), "dashboard limited to this worker: no thread"), 1);
    end(&bench);
}

/* --- The process --- */

/* With more than two members per processor here, judging by host names, a worker gives way. */
TEST(crowded_machines)
{
    static const struct {
        const char *ps, *workers, *index;
        bool crowded;
    } cases[] = {{"a:1,a:2", "a:3,a:4,a:5", "2", true},
                 {"a:1", "a:3,a:4,a:5", "2", false},     /* four, and two processors */
                 {"a:1,b:2", "a:3,a:4,a:5", "2", false}, /* likewise, and one elsewhere */
                 {"b:1,b:2", "b:3,b:4,a:5", "2", false}, /* others are crowded */
                 {"a:1,a:2,a:3", "a:4,b:5,a:6", "2", true},
                 {"a:1,a:2", "a:3,a:4,a:5", "3", false}}; /* not listed: its place is unknown */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const flags[] = {"ps_hosts", cases[i].ps,  "worker_hosts", cases[i].workers, "elastic",
                                     "true",     "task_index", cases[i].index, "train_steps",    "1",
                                     NULL};
        struct bench bench;
        load(&bench, flags);
        world.over = world.job.over = true;
        remote_worker_run(&bench.config);
        heard();
        assert_int_equal(was_told("gives way"), cases[i].crowded);
        config_free(&bench.config);
    }
}

/* How it ends if it can't even start: with an error, or as the signal that arrived meanwhile says. */
TEST(beginnings_that_fail)
{
    struct bench bench;
    for (int signaled = 0; signaled < 2; signaled++) {
        load(&bench, other_flags);
        world.cannot_load = true;
        world.signals_at_load = signaled;
        assert_int_equal(remote_worker_run(&bench.config), signaled ? 128 + SIGTERM : COMMAND_FAILED);
        assert_int_equal(times(heard(), "error: no data\n"), !signaled);
        assert_true(was_told("stopping\n"));
        config_free(&bench.config);
    }
    load(&bench, other_flags);
    bench.config.cluster.ps_hosts.count = 0;
    assert_int_equal(remote_worker_run(&bench.config), COMMAND_MISUSED);
    assert_int_equal(times(heard(), "error: "), 1);
    assert_string_equal(told(), ""); /* nothing was started */
    bench.config.cluster.ps_hosts.count = 2;
    config_free(&bench.config);
}

int main(void)
{
    return check_run(NULL, NULL);
}
