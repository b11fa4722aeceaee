/*
 * The chief on the test's own shards: what it writes into them and when, which steps it orders, what becomes a
 * checkpoint, and what it does when a shard is gone, is past a step, or holds something else than the others.
 */
#include "tests/check.h"
#include "tests/worker/remote/chief/shards.h"

/* If all shards are empty a new model is written, with a later generation than any, and orders precede its release. */
TEST(new_model)
{
    struct bench bench;
    struct chief_start found;
    begin(&bench, "10");
    shards.status[0].generation = 3;
    shards.status[1].generation = 7;
    assert_int_equal(start(&bench, &found), EXCHANGE_OK);
    assert_string_equal(told(), "status\nagree as chief\nrestore generation 8: initialised with seed 1\n"
                                "order 10\norder 20\norder 30\nend restore at 0, epoch of 55\n");
    assert_false(found.resumed);
    assert_null(found.restored_from);
    assert_int_equal(found.global_step, 0);
    end(&bench, "");
}

/* What shards forget of generations their chief remembers. */
TEST(generations_go_up)
{
    struct bench bench;
    struct chief_start found;
    begin(&bench, "0");
    shards.status[1].generation = 7;
    assert_int_equal(start(&bench, &found), EXCHANGE_OK);
    memset(shards.status, 0, sizeof shards.status);
    told();
    assert_int_equal(start(&bench, &found), EXCHANGE_OK);
    assert_string_equal(told(), "status\nagree as chief\nrestore generation 9: initialised with seed 1\n"
                                "end restore at 0, epoch of 55\n");
    end(&bench, "");
}

/* Each due step is saved as it was, the next is ordered before a shard may forget the last, and all are kept. */
TEST(each_ordered_step_is_saved)
{
    struct bench bench;
    struct error error;
    int64_t step;
    begin_training(&bench, "10");
    advance(bench.chief, 10);
    assert_true(await_told("saved 10"));
    assert_string_equal(told(), "order 40\nread 10\nsaved 10 of version 7, now\n");
    advance(bench.chief, 32);
    assert_true(await_told("saved 30"));
    assert_string_equal(told(), "order 50\nread 20\nsaved 20 of version 7, now\n"
                                "order 60\nread 30\nsaved 30 of version 7, now\n");
    advance(bench.chief, 45);
    assert_true(await_told("saved 40"));
    told();
    advance(bench.chief, 56);
    assert_int_equal(chief_finish(bench.chief, &step, &error), EXCHANGE_OK);
    assert_int_equal(step, 56);
    assert_true(was_told("saved 50"));
    assert_true(
        was_told("snapshot at -1, 250 ms\nread 56\nsaved 56 of version 7, now\nengine: parameters of step 56\n"));
    assert_true(was_told("engine: averages of step 56\n"));
    assert_int_equal(shards.order_count, 0);
    struct updater_record record;
    chief_record(bench.chief, &record);
    assert_false(record.checkpoint_failed);
    assert_int_equal(record.last_checkpoint_step, 56);
    assert_non_null(strstr(record.last_checkpoint, "/model-0000000056.safetensors"));
    end(&bench, "model-0000000010.safetensors model-0000000020.safetensors model-0000000030.safetensors "
                "model-0000000040.safetensors model-0000000050.safetensors model-0000000056.safetensors ");
}

/* Orders end before the last step, which has its own checkpoint; and the end does not repeat what is saved. */
TEST(orders_end_with_the_job)
{
    struct bench bench;
    struct error error;
    int64_t step;
    begin_training(&bench, "10");
    for (int64_t at = 10; at <= 90; at += 10) {
        char saved[32];
        snprintf(saved, sizeof saved, "saved %lld ", (long long)at);
        advance(bench.chief, at);
        assert_true(await_told(saved));
        told();
    }
    assert_int_equal(shards.order_count, 0);
    assert_int_equal(chief_save_last(bench.chief, &step, &error), EXCHANGE_OK);
    assert_string_equal(told(), "snapshot at -1, 250 ms\nread 90\n"); /* saved before; and nobody tests */
    chief_destroy(bench.chief);
    bench.chief = NULL;
    assert_int_equal(times(files(bench.folder, true), ".safetensors"), 9);
    end(&bench, "");
}

/* Shards that hold the model are left alone, and orders start after their step. */
TEST(shards_are_found_again)
{
    struct bench bench;
    struct chief_start found;
    begin(&bench, "10");
    shards.status[0] = (struct shard_status){.ready = true, .generation = 4, .global_step = 23};
    shards.status[1] = (struct shard_status){.ready = true, .generation = 4, .global_step = 29};
    shards.steps[0] = 23;
    shards.steps[1] = 29;
    shards.asked = EXCHANGE_REJOIN; /* a connection breaks */
    assert_int_equal(start(&bench, &found), EXCHANGE_OK);
    assert_string_equal(told(), "status\nstatus\ncheck\nagree as chief\norder 30\norder 40\norder 50\n");
    assert_true(found.resumed);
    assert_int_equal(found.global_step, 29);
    shards.checked = EXCHANGE_FAILED; /* it was begun with other rows: no message about these */
    assert_int_equal(start(&bench, &found), EXCHANGE_FAILED);
    assert_string_equal(told(), "status\ncheck\n");
    /* A shard of another generation, of a finished job, or without a model makes all of them start over. */
    const struct shard_status others[] = {{.ready = true, .generation = 5, .global_step = 29},
                                          {.ready = true, .generation = 4, .global_step = 29, .over = true},
                                          {.generation = 4, .global_step = 29}};
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < SHARDS; k++) {
            shards.status[1 - k] = (struct shard_status){.ready = true, .generation = 4, .global_step = 23};
            shards.status[k] = others[i];
            shards.order_count = 0;
            told();
            assert_int_equal(start(&bench, &found), EXCHANGE_OK);
            assert_false(found.resumed);
            assert_true(was_told("restore generation "));
            assert_true(was_told("order 10\norder 20\norder 30\nend restore at 0"));
        }
    }
    end(&bench, "");
}

/* How it ends if the process must stop, or a ps refuses. */
TEST(beginnings_that_fail)
{
    struct bench bench;
    struct chief_start found;
    begin(&bench, "10");
    const enum exchange_result ends[] = {EXCHANGE_STOPPED, EXCHANGE_FAILED};
    for (int i = 0; i < 2; i++) {
        shards.asked = ends[i];
        assert_int_equal(start(&bench, &found), ends[i]);
        assert_string_equal(told(), "status\n");
        shards.written = ends[i];
        assert_int_equal(start(&bench, &found), ends[i]);
        assert_false(was_told("end restore"));
        told();
    }
    shards.ended = EXCHANGE_REJOIN; /* meanwhile a shard lost it: all again, with new orders */
    shards.order_count = 0;
    assert_int_equal(start(&bench, &found), EXCHANGE_OK);
    const char *text = told();
    assert_int_equal(times(text, "restore generation"), 2);
    assert_int_equal(times(text, "order 10\norder 20\norder 30\nend restore at 0"), 2);
    end(&bench, "");
}

/* A chief that returns after all had gone restores its newest checkpoint. */
TEST(newest_checkpoint_is_restored)
{
    struct bench bench;
    struct chief_start found;
    struct error error;
    int64_t step;
    begin_training(&bench, "0");
    shards.steps[0] = shards.steps[1] = 34;
    assert_int_equal(chief_save_last(bench.chief, &step, &error), EXCHANGE_OK);
    chief_destroy(bench.chief);
    memset(shards.status, 0, sizeof shards.status);
    bench.config.output.save_steps = 10;
    create(&bench);
    told();
    assert_int_equal(start(&bench, &found), EXCHANGE_OK);
    assert_int_equal(found.global_step, 34);
    assert_non_null(strstr(found.restored_from, "model-0000000034.safetensors"));
    assert_true(shards.first == 34);
    const char *text = told();
    assert_non_null(strstr(text, "restore generation 1: restored from /tmp/test_chief."));
    assert_non_null(strstr(text, "order 40\norder 50\norder 60\nend restore at 34, epoch of 55\n"));
    struct updater_record record;
    chief_record(bench.chief, &record);
    assert_string_equal(found.record.config_digest, "digest");
    assert_int_equal(record.last_checkpoint_step, 34);
    assert_int_equal(chief_finish(bench.chief, &step, &error), EXCHANGE_OK);
    assert_null(strstr(told(), "saved")); /* it would add nothing */
    end(&bench, "model-0000000034.safetensors ");
}

/* A checkpoint with other layers is taken only if a rollout leads from it, and loses parameters only if allowed to. */
TEST(checkpoint_of_another_model)
{
    struct bench bench;
    struct chief_start found;
    struct error error;
    int64_t step;
    begin_training(&bench, "0");
    shards.steps[0] = shards.steps[1] = 34;
    assert_int_equal(chief_save_last(bench.chief, &step, &error), EXCHANGE_OK);
    chief_destroy(bench.chief);
    bench.config.model.layers[1] = 12; /* of 20 */
    model_layout(&bench.model, &bench.config.model);
    create(&bench);
    for (int i = 0; i < 3; i++) {
        adopts = i > 0;
        adopts_with_loss = i > 1;
        memset(shards.status, 0, sizeof shards.status);
        told();
        assert_int_equal(chief_begin(bench.chief, &found, &error), i < 2 ? EXCHANGE_FAILED : EXCHANGE_OK);
        assert_true(i != 1 || strstr(error.text, "this config would lose"));
        assert_int_equal(was_told("restore generation"), i == 2);
    }
    assert_int_equal(found.global_step, 34);
    end(&bench, "model-0000000034.safetensors ");
}

/* Steps that some shard is past when it learns of them are not saved, and that is reported; later ones are. */
TEST(orders_that_come_too_late)
{
    struct bench bench;
    struct chief_start found;
    begin(&bench, "10");
    shards.status[0] = shards.status[1] = (struct shard_status){.ready = true, .generation = 4, .global_step = 8};
    shards.passed = shards.steps[0] = 37; /* meanwhile the others train on */
    shards.steps[1] = 36;
    listen_in();
    assert_int_equal(start(&bench, &found), EXCHANGE_OK);
    const char *text = heard();
    assert_string_equal(told(),
                        "status\ncheck\nagree as chief\norder 10\nrelease 10\nnewest\norder 40\norder 50\norder 60\n");
    assert_non_null(strstr(text, "no checkpoint of step 10: ps 1 is past it\n"));
    assert_non_null(strstr(text, "no checkpoint of step 20, nor of any other before step 40: "));
    assert_int_equal(times(text, "no checkpoint of"), 2);
    end(&bench, "");
}

/* An order that waited too long is lost; for a while the shards are not held, which costs an order. */
TEST(an_order_is_lost)
{
    struct bench bench;
    begin_training(&bench, "10");
    listen_in();
    shards.lost = 10;
    advance(bench.chief, 20);
    const bool saved = await_told("saved 20");
    const char *text = heard();
    assert_true(saved);
    assert_non_null(strstr(text, "no checkpoint of step 10: ps 1 is past it\n"));
    assert_string_equal(told(), "release 10\norder 40\nread 20\nsaved 20 of version 7, now\n");
    assert_int_equal(shards.order_count, 2); /* and not three */
    advance(bench.chief, 30);
    assert_true(await_told("saved 30"));
    assert_string_equal(told(), "order 50\nread 30\nsaved 30 of version 7, now\n");
    end(&bench, "model-0000000020.safetensors model-0000000030.safetensors ");
}

/* At the end, orders that can no longer be reached are released, and all before the end are saved. */
TEST(ends_with_orders)
{
    struct bench bench;
    struct error error;
    int64_t step;
    begin_training(&bench, "10");
    pthread_mutex_lock(&shards.lock);
    shards.steps[0] = shards.steps[1] = 30;
    shards.stuck = 20;
    pthread_mutex_unlock(&shards.lock);
    listen_in();
    const enum exchange_result how = chief_finish(bench.chief, &step, &error);
    const char *text = heard();
    assert_int_equal(how, EXCHANGE_OK);
    assert_non_null(strstr(text, "no checkpoint of step 20: some ps has not come to it"));
    assert_int_equal(times(text, "no checkpoint"), 1);
    text = told();
    assert_non_null(strstr(text, "waits 250 ms for 20\nrelease 20\n"));
    assert_non_null(strstr(text, "read 30\nsaved 30 of version 7, now\nrelease 40\n"));
    assert_int_equal(times(text, "saved 30"), 1);
    end(&bench, "model-0000000010.safetensors model-0000000030.safetensors ");
}

/* Shards at different steps agree on a future one, later at every try; at the end on what is there. */
TEST(snapshots_of_one_step)
{
    struct bench bench;
    struct error error;
    struct checkpoint_info *record;
    int64_t step;
    begin_training(&bench, "0");
    shards.steps[0] = 40;
    shards.steps[1] = 42;
    shards.breaks = 2;
    shards.trains = true;
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), CHIEF_HELD);
    assert_int_equal(step, 47); /* one step per worker, and two */
    assert_true(isnan(record->validation_score));
    assert_string_equal(told(), "snapshot at -1, 250 ms\nsnapshot at -1, 250 ms\nsnapshot at -1, 250 ms\n"
                                "snapshot at 47, 250 ms\nread 47\n"
                                "engine: parameters of step 47\n"
                                "engine: averages of step 47\n");
    record->validation_score = 0.5;
    chief_release(bench.chief, true);
    assert_string_equal(told(), "saved as best 47 of version 7, now\n");
    assert_true(isnan(record->validation_score));
    shards.trains = false; /* no shard reaches any step */
    shards.steps[0] = 46;
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), CHIEF_NOT_NOW);
    assert_string_equal(told(), "snapshot at -1, 250 ms\nsnapshot at 52, 250 ms\nsnapshot at 62, 250 ms\n"
                                "snapshot at 77, 250 ms\nsnapshot at 95, 250 ms\nsnapshot at -1, 250 ms\n");
    assert_int_equal(chief_finish(bench.chief, &step, &error), EXCHANGE_OK);
    assert_int_equal(step, 47);
    assert_true(was_told("snapshot at 95, 250 ms\nsnapshot at -1, 250 ms\nread 47\nsaved 47"));
    end(&bench, "best.safetensors model-0000000047.safetensors ");
}

/* A validation that finds the engine failing ends training; one that finds no state waits for a better time. */
TEST(validations_that_fail)
{
    struct bench bench;
    struct error error;
    struct checkpoint_info *record;
    int64_t step;
    begin_training(&bench, "0");
    shards.mute = true;
    shards.read = EXCHANGE_STOPPED;
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), CHIEF_NOT_NOW);
    shards.read = EXCHANGE_FAILED;
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), CHIEF_NOT_NOW);
    shards.value = -1;
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), CHIEF_HOLD_FAILED);
    assert_int_equal(chief_finish(bench.chief, &step, &error), EXCHANGE_FAILED);
    shards.value = 0;
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), CHIEF_HELD); /* the lock was released */
    told();
    chief_release(bench.chief, false);
    assert_string_equal(told(), "");
    end(&bench, "");
}

/* Without a folder nothing is saved, and only what a validation needs is read. */
TEST(no_folder)
{
    struct bench bench;
    struct error error;
    struct checkpoint_info *record;
    struct chief_start found;
    int64_t step;
    begin(&bench, "10");
    chief_destroy(bench.chief);
    bench.config.output.train_dir[0] = '\0';
    create(&bench);
    assert_int_equal(start(&bench, &found), EXCHANGE_OK);
    assert_false(was_told("order"));
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), CHIEF_HELD);
    chief_release(bench.chief, true);
    assert_false(chief_checkpoint(bench.chief, &error));
    assert_non_null(strstr(error.text, "worker 0 has no train_dir"));
    assert_int_equal(chief_finish(bench.chief, &step, &error), EXCHANGE_OK);
    struct updater_record kept;
    chief_record(bench.chief, &kept);
    assert_null(kept.last_checkpoint);
    assert_int_equal(kept.last_checkpoint_step, -1);
    assert_false(was_told("saved"));
    end(&bench, "");
}

/* By the clock: the current state, as soon as it has changed. */
TEST(checkpoints_by_time)
{
    struct bench bench;
    begin(&bench, "0");
    chief_destroy(bench.chief);
    bench.config.output.save_model_secs = 0.05;
    create(&bench);
    struct chief_start found;
    assert_int_equal(start(&bench, &found), EXCHANGE_OK);
    told();
    clock_pause(clock_monotonic_s() + 0.1);
    assert_string_equal(told(), ""); /* nothing has changed */
    advance(bench.chief, 3);
    assert_true(await_told("saved 3 "));
    assert_string_equal(told(), "snapshot at -1, 250 ms\nread 3\nsaved 3 of version 7, now\n");
    advance(bench.chief, LAST_STEP); /* it has its own checkpoint */
    clock_pause(clock_monotonic_s() + 0.1);
    assert_string_equal(told(), "");
    end(&bench, "model-0000000003.safetensors ");
}

/* A state that is not finite is no checkpoint. */
TEST(model_that_is_not_finite)
{
    struct bench bench;
    struct error error;
    int64_t step;
    begin_training(&bench, "0");
    shards.value = NAN;
    shards.steps[0] = shards.steps[1] = 12;
    assert_false(chief_checkpoint(bench.chief, &error));
    assert_non_null(strstr(error.text, "the model is not finite at step 12"));
    listen_in();
    const enum exchange_result how = chief_save_last(bench.chief, &step, &error);
    const char *text = heard();
    assert_int_equal(how, EXCHANGE_OK);
    assert_non_null(strstr(text, "the model is no longer finite at step 12 and is not saved"));
    end(&bench, "");
}

/* A full disk: training continues, and the record reports the failure. */
TEST(checkpoint_that_fails)
{
    struct bench bench;
    struct error error;
    struct updater_record record;
    begin_training(&bench, "10");
    char away[80];
    snprintf(away, sizeof away, "%s.away", bench.folder);
    assert_int_equal(rename(bench.folder, away), 0);
    listen_in();
    advance(bench.chief, 10);
    const bool failed = await_told("not saved 10");
    chief_record(bench.chief, &record);
    const bool prepared = chief_checkpoint(bench.chief, &error);
    const char *text = heard();
    assert_true(failed);
    assert_true(record.checkpoint_failed);
    assert_int_equal(record.last_checkpoint_step, -1);
    assert_false(prepared);
    assert_non_null(strstr(error.text, "the checkpoint to go back to could not be written"));
    assert_non_null(strstr(text, "training continues, and this run will end with status 1"));
    assert_int_equal(rename(away, bench.folder), 0);
    told();
    assert_true(chief_checkpoint(bench.chief, &error));
    chief_record(bench.chief, &record);
    assert_true(record.checkpoint_failed); /* of the previous one */
    assert_int_equal(record.last_checkpoint_step, 10);
    end(&bench, "model-0000000010.safetensors ");
}

/* Around a rollout: a checkpoint to go back to, none after it, the way back, and then as before. */
TEST(checkpoint_to_go_back_to)
{
    struct bench bench;
    struct error error;
    begin_training(&bench, "10");
    advance(bench.chief, 14);
    assert_true(await_told("saved 10 "));
    told();
    for (int i = 0; i < 2; i++) {
        assert_true(chief_checkpoint(bench.chief, &error));
        assert_string_equal(told(), "snapshot at -1, 2000 ms\nread 14\nsaved 14 of version 7, now\n"
                                    "release 20\nrelease 30\nrelease 40\n");
        advance(bench.chief, 33);
        clock_pause(clock_monotonic_s() + 0.05);
        assert_string_equal(told(), "");
        assert_true(chief_restore(bench.chief, &error));
        assert_true(await_told("order 40\n"));
        char generation[64];
        snprintf(generation, sizeof generation, "status\nrestore generation %d: restored from", 2 + i);
        const char *text = told();
        assert_non_null(strstr(text, generation));
        assert_non_null(strstr(text, "end restore at 14, epoch of 55\nnewest\norder 20\norder 30\norder 40\n"));
        assert_true(shards.first == 14);
    }
    assert_true(chief_checkpoint(bench.chief, &error));
    told();
    chief_settle(bench.chief);
    assert_true(await_told("order 40\n"));
    shards.asked = EXCHANGE_STOPPED;
    assert_false(chief_restore(bench.chief, &error));
    assert_string_equal(error.text, "some ps is missing");
    shards.asked = EXCHANGE_FAILED;
    assert_false(chief_restore(bench.chief, &error));
    assert_string_equal(error.text, "no status");
    end(&bench, "model-0000000010.safetensors model-0000000014.safetensors ");
}

/* A process that has just entered a new version saves nothing until the rollout is settled: it may go back. */
TEST(fresh_version_saves_nothing)
{
    struct bench bench;
    struct chief_start found;
    begin(&bench, "10");
    chief_destroy(bench.chief);
    is_fresh = true;
    create(&bench);
    assert_int_equal(start(&bench, &found), EXCHANGE_OK);
    assert_false(was_told("order"));
    advance(bench.chief, 10);
    clock_pause(clock_monotonic_s() + 0.05);
    assert_false(was_told("order"));
    chief_settle(bench.chief);
    assert_true(await_told("newest\norder 20\norder 30\norder 40\n"));
    end(&bench, "");
}

static void *settle(void *chief)
{
    chief_settle(chief);
    return NULL;
}

/*
 * The participant in the rollout reports that it is settled. A ps may refuse this chief until the participant has
 * adopted another version, so it must not wait for a thread that starts, or validates.
 */
TEST(settling_waits_for_nobody)
{
    struct bench bench;
    struct error error;
    struct checkpoint_info *record;
    struct timespec until;
    pthread_t thread;
    int64_t step;
    begin_training(&bench, "0");
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), CHIEF_HELD);
    assert_int_equal(pthread_create(&thread, NULL, settle, bench.chief), 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    const int ended = pthread_timedjoin_np(thread, NULL, &until);
    chief_release(bench.chief, false);
    if (ended != 0) {
        pthread_join(thread, NULL);
    }
    assert_int_equal(ended, 0);
    end(&bench, "");
}

/* New intervals and a new end apply at once, after orders by the old ones are read or released. */
TEST(retimed)
{
    struct bench bench;
    begin_training(&bench, "10");
    struct config_output output = bench.config.output;
    struct plan plan = bench.plan;
    plan.last_step = 20;
    chief_reschedule(bench.chief, &output, &plan); /* the same steps */
    assert_string_equal(told(), "");
    output.save_steps = 7;
    plan.last_step = 22;
    chief_reschedule(bench.chief, &output, &plan);
    assert_string_equal(told(), "release 10\nrelease 20\nrelease 30\nnewest\norder 7\norder 14\norder 21\n");
    output.save_steps = 0;
    output.save_model_secs = 0.05;
    output.max_to_keep = 1;
    chief_reschedule(bench.chief, &output, &plan);
    assert_string_equal(told(), "release 7\nrelease 14\nrelease 21\n");
    advance(bench.chief, 5);
    assert_true(await_told("saved 5 "));
    advance(bench.chief, 6);
    assert_true(await_told("saved 6 "));
    end(&bench, "model-0000000006.safetensors ");
}

/* What every ps is told at the end. */
TEST(ends_the_job)
{
    struct bench bench;
    struct error error;
    begin_training(&bench, "0");
    chief_note_step(bench.chief, 44);
    assert_true(chief_end_job(bench.chief, false, 0.75, "all is well", &error));
    assert_true(chief_end_job(bench.chief, true, 0.5, "no", &error));
    shards.ended = EXCHANGE_REJOIN;
    assert_false(chief_end_job(bench.chief, true, 0.5, "no", &error));
    char wanted[256];
    snprintf(wanted, sizeof wanted, "end job %d at 44, 0.75: all is well\nend job %d at 44, 0.50: no\n", JOB_DONE,
             JOB_FAILED);
    assert_non_null(strstr(told(), wanted));
    end(&bench, "");
}

/* Without the saving thread there is a checkpoint at the end; shards keep nothing that nobody would read. */
TEST(no_thread)
{
    struct bench bench;
    struct chief_start found;
    struct error error;
    int64_t step;
    begin(&bench, "10");
    listen_in();
    has_no_thread = true;
    const enum exchange_result end_of_start = start(&bench, &found);
    has_no_thread = false;
    assert_int_equal(times(heard(), "the thread that saves checkpoints cannot start"), 1);
    assert_int_equal(end_of_start, EXCHANGE_OK);
    const char *text = told();
    assert_int_equal(times(text, "order "), 3);
    assert_int_equal(times(text, "release "), 3);
    assert_int_equal(shards.order_count, 0);
    shards.steps[0] = shards.steps[1] = 34;
    assert_int_equal(chief_save_last(bench.chief, &step, &error), EXCHANGE_OK);
    assert_int_equal(step, 34);
    end(&bench, "model-0000000034.safetensors ");
}

/* The newest checkpoint contains the preprocessing; without one nothing is known. */
TEST(preprocessing_of_a_checkpoint)
{
    static char made[] = "{\"made\":\"of rows\"}";
    struct bench bench;
    struct checkpoint_state values;
    const struct checkpoint_info info = {.global_step = 5, .preprocessing = made};
    struct error error;
    char *text, path[128];
    begin(&bench, "0");
    assert_true(chief_preprocessing(&text, &bench.config, &error)); /* an empty folder */
    assert_null(text);
    chief_destroy(bench.chief);
    snprintf(path, sizeof path, "%s/none", bench.folder);
    free(bench.config.output.train_dir);
    bench.config.output.train_dir = path; /* does not exist yet */
    assert_true(chief_preprocessing(&text, &bench.config, &error));
    assert_null(text);
    assert_int_not_equal(access(path, F_OK), 0);
    bench.config.output.train_dir = strcpy(path, "");
    assert_true(chief_preprocessing(&text, &bench.config, &error));
    assert_null(text);
    bench.config.output.train_dir = strdup(bench.folder);
    checkpoint_state_create(&values, &bench.model, &bench.config.train);
    snprintf(path, sizeof path, "%s/model-0000000005.safetensors", bench.folder);
    if (!checkpoint_write(path, &values, &info, &error)) {
        fail_msg("%s", error.text);
    }
    assert_true(chief_preprocessing(&text, &bench.config, &error));
    assert_string_equal(text, made);
    free(text);
    checkpoint_state_destroy(&values);
    create(&bench);
    end(&bench, "model-0000000005.safetensors ");
}

int main(void)
{
    log_setup(LOG_TEXT, LOG_WARNING);
    return check_run(NULL, NULL);
}
