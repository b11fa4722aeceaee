/*
 * The chief's checkpoints in difficulties: requests that fail, orders that are delayed or dropped, shards at different
 * steps; what is reported of them; and the sent model beside them.
 */
#include "tests/check.h"
#include "tests/worker/remote/chief/shards.h"

/* --- The saving thread's waits --- */

static atomic_bool rests_are_told;

int __real_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until);

int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    if (atomic_load(&rests_are_told)) {
        tell("rests\n");
    }
    return __real_pthread_cond_timedwait(condition, mutex, until);
}

/* A chief with another config than begin() gives it, on empty shards. */
static void create_again(struct bench *bench)
{
    struct chief_start found;
    chief_destroy(bench->chief);
    create(bench);
    memset(shards.status, 0, sizeof shards.status);
    told();
    assert_int_equal(start(bench, &found), EXCHANGE_OK);
}

/* --- Messages --- */

/* Each checkpoint is reported once, with its path; the best one as such. */
TEST(checkpoints_are_told)
{
    struct bench bench;
    struct error error;
    struct checkpoint_info *record;
    int64_t step;
    char wanted[256];
    log_setup(LOG_TEXT, LOG_INFO);
    begin_training(&bench, "0");
    listen_in();
    shards.steps[0] = shards.steps[1] = 7;
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), CHIEF_HELD);
    chief_release(bench.chief, true);
    shards.steps[0] = shards.steps[1] = 9;
    assert_int_equal(chief_save_last(bench.chief, &step, &error), EXCHANGE_OK);
    const char *text = heard();
    log_setup(LOG_TEXT, LOG_WARNING);
    snprintf(wanted, sizeof wanted, "checkpoint at step 7, the best so far: %s/best.safetensors\n", bench.folder);
    assert_int_equal(times(text, wanted), 1);
    snprintf(wanted, sizeof wanted, "checkpoint at step 9: %s/model-0000000009.safetensors\n", bench.folder);
    assert_int_equal(times(text, wanted), 1);
    assert_int_equal(times(text, "checkpoint at"), 2);
    struct updater_record kept;
    chief_record(bench.chief, &kept);
    assert_non_null(strstr(kept.last_checkpoint, "/model-0000000009.safetensors")); /* not the best one */
    end(&bench, "best.safetensors model-0000000009.safetensors ");
}

/* After a failed checkpoint the previous one, with its step, is still the last good one. */
TEST(a_checkpoint_that_fails_after_a_good_one)
{
    struct bench bench;
    struct updater_record record;
    char away[80];
    begin_training(&bench, "10");
    advance(bench.chief, 10);
    assert_true(await_told("saved 10"));
    snprintf(away, sizeof away, "%s.away", bench.folder);
    assert_int_equal(rename(bench.folder, away), 0);
    listen_in();
    advance(bench.chief, 20);
    const bool failed = await_told("not saved 20");
    heard();
    assert_true(failed);
    chief_record(bench.chief, &record);
    assert_true(record.checkpoint_failed);
    assert_non_null(strstr(record.last_checkpoint, "/model-0000000010.safetensors"));
    assert_int_equal(record.last_checkpoint_step, 10);
    assert_int_equal(rename(away, bench.folder), 0);
    advance(bench.chief, 30);
    assert_true(await_told("saved 30"));
    chief_record(bench.chief, &record);
    assert_int_equal(record.last_checkpoint_step, 30);
    assert_true(record.checkpoint_failed); /* once is enough */
    end(&bench, "model-0000000010.safetensors model-0000000030.safetensors ");
}

/* --- Trouble --- */

/* A connection that breaks during an order or a read costs an attempt, but no checkpoint. */
TEST(orders_are_asked_for_again)
{
    struct bench bench;
    begin_training(&bench, "10");
    shards.read = EXCHANGE_REJOIN;
    advance(bench.chief, 10);
    assert_true(await_told("saved 10"));
    assert_string_equal(told(), "order 40\nread 10\nread 10\nsaved 10 of version 7, now\n");
    pthread_mutex_lock(&shards.lock);
    shards.ordered = EXCHANGE_REJOIN;
    pthread_mutex_unlock(&shards.lock);
    advance(bench.chief, 20);
    assert_true(await_told("saved 20"));
    assert_string_equal(told(), "order 50\nread 20\nsaved 20 of version 7, now\n");
    assert_int_equal(shards.ordered, EXCHANGE_OK);
    end(&bench, "model-0000000010.safetensors model-0000000020.safetensors ");
}

/* A snapshot that is refused, or that nobody waits for any more, is not requested again. */
TEST(snapshots_that_fail)
{
    static const enum exchange_result ends[] = {EXCHANGE_STOPPED, EXCHANGE_FAILED};
    struct bench bench;
    struct error error;
    struct checkpoint_info *record;
    int64_t step;
    begin_training(&bench, "10");
    for (int i = 0; i < 2; i++) {
        shards.taken = ends[i];
        assert_false(chief_checkpoint(bench.chief, &error));
        assert_string_equal(told(), "snapshot at -1, 2000 ms\n"); /* and all orders stay */
        shards.taken = ends[i];
        assert_int_equal(chief_hold(bench.chief, &step, &record, &error), CHIEF_NOT_NOW);
        assert_string_equal(told(), "snapshot at -1, 250 ms\n");
    }
    advance(bench.chief, 10);
    assert_true(await_told("saved 10")); /* nothing is held back */
    shards.taken = EXCHANGE_STOPPED;
    assert_int_equal(chief_finish(bench.chief, &step, &error), EXCHANGE_STOPPED);
    assert_false(was_told("engine: ")); /* nothing that was not read is tested */
    end(&bench, "model-0000000010.safetensors ");
}

/* While shards wait at the last ordered step, no snapshot is of a later one. */
TEST(snapshots_where_shards_wait)
{
    struct bench bench;
    struct error error;
    struct checkpoint_info *record;
    int64_t step;
    begin_training(&bench, "10");
    shards.stuck = 10; /* so that none is released */
    shards.trains = true;
    shards.steps[0] = 24;
    shards.steps[1] = 26;
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), CHIEF_HELD);
    assert_int_equal(step, 30);
    chief_release(bench.chief, false);
    assert_non_null(strstr(told(), "snapshot at -1, 250 ms\nsnapshot at 30, 250 ms\nread 30\n"));
    shards.steps[0] = 28;
    shards.steps[1] = 30; /* this very step, which the other one never reaches here */
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), CHIEF_NOT_NOW);
    assert_int_equal(times(told(), "snapshot at 30, 250 ms\n"), 4);
    shards.steps[0] = 31;
    shards.steps[1] = 32; /* some shard did not wait */
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), CHIEF_HELD);
    assert_int_equal(step, 37);
    chief_release(bench.chief, false);
    end(&bench, "");
}

/* In asynchronous rounds these workers make fewer steps, so fewer are in flight. */
TEST(snapshots_of_steps_that_take_several_pushes)
{
    struct bench bench;
    struct error error;
    struct checkpoint_info *record;
    int64_t step;
    begin_training(&bench, "0");
    bench.config.train.buffer_size = 3; /* equal to the number of workers */
    shards.trains = true;
    shards.steps[0] = 40;
    shards.steps[1] = 42;
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), CHIEF_HELD);
    assert_int_equal(step, 42 + 2 + 1);
    chief_release(bench.chief, false);
    end(&bench, "");
}

/* Shards may still have an earlier chief's snapshots: no new number equals one of those. */
TEST(snapshots_of_two_chiefs)
{
    struct bench bench;
    struct error error;
    uint64_t numbers[2];
    begin_training(&bench, "0");
    for (int i = 0; i < 2; i++) {
        create_again(&bench);
        assert_true(chief_checkpoint(bench.chief, &error));
        numbers[i] = shards.plain.number;
    }
    assert_true(numbers[0] != numbers[1]);
    end(&bench, "model-0000000000.safetensors ");
}

/* --- The saving thread --- */

/* All orders up to step 30 are kept. The saving thread does not rest before they are saved. */
static void saves_without_a_rest(int64_t own_step)
{
    struct bench bench;
    begin_training(&bench, "10");
    atomic_store(&rests_are_told, true);
    assert_true(await_told("rests\n"));
    pthread_mutex_lock(&shards.lock);
    shards.steps[0] = shards.steps[1] = 32;
    pthread_mutex_unlock(&shards.lock);
    chief_note_step(bench.chief, own_step);
    assert_true(await_told("saved 30"));
    atomic_store(&rests_are_told, false);
    const char *first = strstr(told(), "saved 10");

    assert_non_null(first);
    const char *last = strstr(first, "saved 30"), *rest = strstr(first, "rests\n");
    assert_non_null(last);
    assert_true(!rest || rest > last);
    end(&bench, "model-0000000010.safetensors model-0000000020.safetensors model-0000000030.safetensors ");
}

TEST(no_rest_before_all_is_saved)
{
    saves_without_a_rest(32);
    saves_without_a_rest(1); /* the chief's own worker is far behind the others, whom the shards hold meanwhile */
}

/* Orders that are there are saved before the current state, which is of a later step. */
TEST(ordered_steps_are_saved_before_the_moment)
{
    struct bench bench;
    begin(&bench, "10");
    bench.config.output.save_model_secs = 0.05;
    create_again(&bench);
    told();
    pthread_mutex_lock(&shards.lock);
    shards.steps[0] = shards.steps[1] = 12;
    pthread_mutex_unlock(&shards.lock);
    chief_note_step(bench.chief, 1); /* its own worker is far behind */
    assert_true(await_told("saved 12"));
    const char *text = told(), *ordered = strstr(text, "saved 10 "), *moment = strstr(text, "saved 12 ");
    assert_true(ordered && ordered < moment);
    end(&bench, "model-0000000010.safetensors model-0000000012.safetensors ");
}

/* After a lost step the shards are not held for 64 checkpoints; then they are again. */
TEST(caution_ends)
{
    struct bench bench;
    struct updater_record record;
    begin(&bench, "1");
    bench.plan.last_step = 1000;
    create_again(&bench);
    shards.lost = 1;
    listen_in();
    for (int64_t step = 2; step <= 64; step++) {
        char saved[32];
        snprintf(saved, sizeof saved, "saved %lld ", (long long)step);
        told();
        advance(bench.chief, step);
        const bool there = await_told(saved);
        chief_record(bench.chief, &record); /* not while it saves */
        pthread_mutex_lock(&shards.lock);
        const int orders = shards.order_count;
        pthread_mutex_unlock(&shards.lock);
        if (!there || orders != SHARD_ORDERS_KEPT) {
            heard();
            fail_msg("%d orders after step %lld", orders, (long long)step);
        }
    }
    advance(bench.chief, 65);
    const bool waits_again = await_told("order 68\n");
    heard();
    assert_true(waits_again);
    chief_destroy(bench.chief);
    bench.chief = NULL;
    assert_int_equal(times(files(bench.folder, true), "model-"), 64);
    end(&bench, "");
}

/* Orders dropped for a rollout are not reported as missed. */
TEST(orders_that_are_dropped_are_not_missed)
{
    struct bench bench;
    struct error error;
    begin_training(&bench, "10");
    advance(bench.chief, 4);
    assert_true(chief_checkpoint(bench.chief, &error));
    advance(bench.chief, 65);
    told();
    listen_in();
    chief_settle(bench.chief);
    const bool ordered = await_told("order 90\n");
    assert_string_equal(heard(), "");
    assert_true(ordered);
    assert_string_equal(told(), "newest\norder 70\norder 80\norder 90\n");
    end(&bench, "model-0000000004.safetensors ");
}

/* --- The sent model --- */

static void begin_telling(struct bench *bench)
{
    begin(bench, "10");
    bench->config.cluster.issync = true;
    bench->config.cluster.wire_dtype = WIRE_INT8;
    create_again(bench);
}

static bool is_there(const struct bench *bench, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", bench->folder, name);
    return access(path, F_OK) == 0;
}

/* It lies beside each checkpoint, and is restored with it; if it is lost, workers are sent the complete model. */
TEST(what_was_told_comes_back)
{
    struct bench bench;
    struct error error;
    struct checkpoint_info *record;
    int64_t step;
    char path[128];
    listen_in();
    begin_telling(&bench);
    assert_true(shards.first_sent == shards.first && shards.first != 0); /* a new model is sent completely */
    advance(bench.chief, 10);
    assert_true(await_told("saved 10"));
    assert_true(was_told("read 10 and what was told\n"));
    shards.steps[0] = shards.steps[1] = 34;
    told();
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), CHIEF_HELD);
    chief_release(bench.chief, true);
    assert_true(was_told("read 34\n")); /* a validation does not need it */
    assert_false(is_there(&bench, "sent-model-34"));
    assert_int_equal(chief_save_last(bench.chief, &step, &error), EXCHANGE_OK);
    assert_true(is_there(&bench, "sent-model-10") && is_there(&bench, "sent-model-34"));
    create_again(&bench);
    assert_true(shards.first == 34 && shards.first_sent == 34.5f);
    assert_string_equal(heard(), "");
    snprintf(path, sizeof path, "%s/sent-model-34", bench.folder);
    assert_int_equal(unlink(path), 0);
    listen_in();
    create_again(&bench);
    assert_int_equal(times(heard(), "the sent model of step 34 is missing"), 1);
    assert_true(shards.first == 34 && shards.first_sent == 34);
    end(&bench, "best.safetensors model-0000000010.safetensors model-0000000020.safetensors "
                "model-0000000030.safetensors model-0000000034.safetensors ");
}

/* Failing to store it is no reason not to save. */
TEST(what_was_told_can_not_be_kept)
{
    struct bench bench;
    struct error error;
    int64_t step;
    char path[128];
    begin_telling(&bench);
    snprintf(path, sizeof path, "%s/sent-model-34", bench.folder);
    assert_int_equal(mkdir(path, 0700), 0);
    shards.steps[0] = shards.steps[1] = 34;
    listen_in();
    assert_int_equal(chief_save_last(bench.chief, &step, &error), EXCHANGE_OK);
    assert_int_equal(times(heard(), "the sent model is not saved: "), 1);
    rmdir(path);
    end(&bench, "model-0000000010.safetensors model-0000000020.safetensors model-0000000030.safetensors "
                "model-0000000034.safetensors ");
}

int main(void)
{
    log_setup(LOG_TEXT, LOG_WARNING);
    return check_run(NULL, NULL);
}
