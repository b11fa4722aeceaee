/*
 * The role of a worker without a network: shards, heartbeats, chief, rollouts and the clock are the test's own, and
 * record what they are asked. Its parts, the order in which it joins and steps, what it reports meanwhile, and what
 * each answer makes it do.
 */
#include "tests/check.h"
#include "tests/worker/remote/worker/bench.h"

static const char *const piped_flags[] = {"task_index", "2", "pipeline_depth", "2", NULL};
static const char *const fed_flags[] = {"task_index", "2", "data_sharding", "chief", NULL};

/* What each consists of, and in which order it is destroyed. */
TEST(parts_of_a_worker)
{
    struct bench bench;
    struct error error;
    (void)state;
    assert_true(begin(&bench, other_flags, &error));
    assert_string_equal(told(), "holds links\nengine begins\nloads data\n"
                                "engine of 672 floats, no slots, averages 0, like the data\n"
                                "exchange\nheartbeat of a fake\n");
    assert_null(bench.worker.training.test);
    assert_int_equal(bench.worker.training.plan.epoch_batches, 8);
    end(&bench);
    assert_string_equal(told(), "exchange goes\ngoodbye: bye\nengine goes\n");
    const char *const all[] = {"task_index", "0", "data_sharding", "chief", "pipeline_depth", "3", "train_steps",
                               "50",         NULL};
    assert_true(begin(&bench, all, &error));
    assert_string_equal(told(), "holds links\nengine begins\nloads data and test\n"
                                "engine of 672 floats, no slots, averages 0.5, like the data\n"
                                "exchange, writes the model\npipeline of 3\nheartbeat of a fake\nchief, to step 50\n");
    assert_ptr_equal(bench.worker.training.test, &bench.worker.test);
    assert_true(worker_begin(&bench.worker));
    assert_string_equal(told(), "rollouts with a chief\nserves 30 images\nready: worker 0 is running\n");
    end(&bench);
    assert_string_equal(told(), "data server goes\npipeline goes\nrollouts go\nchief goes\nexchange goes\n"
                                "goodbye: bye\nengine goes\n");
}

/* A worker without data learns from the chief how much there is, and plans accordingly. */
TEST(data_by_the_chief)
{
    struct bench bench;
    struct error error;
    (void)state;
    assert_true(begin(&bench, fed_flags, &error));
    assert_string_equal(told(), "holds links\nengine of 672 floats, no slots, averages 0\nexchange\n"
                                "heartbeat of a fake\nfetcher\n");
    assert_true(join(&bench));
    assert_string_equal(told(), "rollouts\nready: worker 2 is running\nsays: waiting for worker 0, which has the data\n"
                                "asks for data\nstarting at 0, 0 here, 0/s, loss nan, stale 0\n"
                                "says: waiting for the model\ntakes no part\njoins\nagrees\nsays: \ntakes part\n"
                                "training at 0, 0 here, 0/s, loss nan, stale 0\nsays: \n");
    assert_int_equal(bench.worker.training.plan.epoch_batches, 11);
    assert_string_equal(bench.worker.dataset.description, "from afar");
    assert_int_equal(bench.worker.dataset.validation.count, 11);
    assert_true(step(&bench));
    assert_non_null(strstr(told(), "takes batch 0\ncomputes 4 of task 2, step 0, from -1\n"));
    world.took = EXCHANGE_FAILED;
    assert_false(step(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_FAILED);
    end(&bench);
    assert_true(was_told("fetcher goes\nrollouts go"));
    assert_true(begin(&bench, fed_flags, &error));
    world.asked = EXCHANGE_STOPPED;
    world.over = true;
    assert_false(join(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_BY_OTHERS);
    end(&bench);
}

TEST(configs_that_do_not_fit)
{
    const char *const micro[] = {"micro_batches", "2", NULL};
    const char *const large[] = {"data_sharding", "chief", "batch_size", "60000", "layers", "65536,3", NULL};
    const char *const few[] = {"data_sharding", "disjoint", "worker_hosts",
                               "a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9,a:10,"
                               "a:11,a:12,a:13,a:14,a:15,a:16,a:17,a:18,a:19,a:20,a:21,a:22,a:23,a:24,a:25,a:26,a:27,"
                               "a:28,a:29,a:30,a:31",
                               NULL};
    const char *const *const flags[] = {micro, large, few, chief_flags};
    const char *const texts[] = {"workers of a cluster push the gradient of one batch", "and a message holds",
                                 "30 images are too few for 31 workers", "no data"};
    struct bench bench;
    struct error error;
    (void)state;
    for (int i = 0; i < 4; i++) {
        load(&bench, flags[i]);
        world.cannot_load = i == 3;
        struct remote_worker *worker = &bench.worker;
        *worker = (struct remote_worker){.updater = {.table = &remote_updater_table},
                                         .training = {.updater = &worker->updater},
                                         .launched = &bench.config,
                                         .config = bench.config,
                                         .is_chief = true};
        assert_false(worker_open(worker, &error));
        end(&bench);
        assert_non_null(strstr(error.text, texts[i]));
    }
}

/* Each draws from its own part if the config says so; a batch depends on task and step. */
TEST(share_of_the_data)
{
    const char *const disjoint[] = {"task_index", "2", "data_sharding", "disjoint", NULL};
    struct bench bench;
    (void)state;
    begin_joined(&bench, disjoint, 0);
    assert_int_equal(bench.worker.share.count, 10);
    assert_int_equal(bench.worker.share.images[0], 20);
    assert_true(step(&bench));
    assert_non_null(strstr(told(), "computes 4 of task 2, step 0, from 20\n"));
    end(&bench);
    begin_joined(&bench, other_flags, 0);
    assert_int_equal(bench.worker.share.count, IMAGES);
    struct sampler same = {.seed = (uint64_t)bench.config.train.seed, .task = 2, .examples = IMAGES, .batch_size = 4};
    int32_t wanted[BATCH];
    struct batch batch;
    assert_true(worker_draw(&bench.worker, 0, &batch));
    assert_int_equal(batch.count, sampler_draw(&same, 0, wanted));
    assert_memory_equal(batch.indexes, wanted, sizeof wanted);
    end(&bench);
}

/* The chief first ensures that there is a model; others wait for it. Again, if a ps is lost meanwhile. */
TEST(joining)
{
    struct bench bench;
    struct error error;
    (void)state;
    assert_true(begin(&bench, chief_flags, &error));
    told();
    world.step = 31;
    world.says = (struct checkpoint_info){.global_step = 30, .best_score = 0.75};
    world.joined = EXCHANGE_REJOIN;
    assert_true(join(&bench));
    assert_string_equal(told(), "rollouts with a chief\nready: worker 0 is running\n"
                                "starting at 0, 0 here, 0/s, loss nan, stale 0\nsays: waiting for the model\n"
                                "takes no part\nchief begins\njoins\nchief begins\njoins\nsays: \ntakes part\n"
                                "training at 31, 0 here, 0/s, loss nan, stale 0\nsays: \n");
    assert_int_equal(bench.start.global_step, 31);
    assert_string_equal(bench.start.restored_from, "a checkpoint");
    assert_true(bench.start.record.best_score == 0.75);
    assert_int_equal(bench.worker.first_draw, 10); /* of three workers, each has drawn as many */
    world.begun = EXCHANGE_FAILED;
    assert_false(join(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_FAILED);
    end(&bench);
    assert_true(begin(&bench, piped_flags, &error));
    told();
    world.drift = "drifts";
    assert_true(join(&bench));
    assert_string_equal(told(), "rollouts\nready: worker 2 is running\n"
                                "starting at 0, 0 here, 0/s, loss nan, stale 0\nsays: waiting for the model\n"
                                "takes no part\ndrains\njoins\nagrees\nloads the mirror\nsays: \ntakes part\n"
                                "training at 0, 0 here, 0/s, loss nan, stale 0\nsays: drifts\n");
    world.cannot_load = true;
    assert_false(join(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_FAILED);
    world.cannot_load = false;
    world.agreed = EXCHANGE_REJOIN;
    world.signal = SIGTERM; /* then it is not tried again */
    bench.worker.training.end = TRAINING_GOES_ON;
    told();
    assert_false(join(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_INTERRUPTED);
    assert_int_equal(times(told(), "joins"), 1);
    end(&bench);
}

/* The preprocessing was derived again meanwhile: this process restarts to encode its rows by it. */
TEST(joins_a_job_begun_anew)
{
    const char *const flags[] = {"task_index", "2", "data_sharding", "own", NULL};
    struct schema schema = {0};
    struct bench bench;
    (void)state;
    begin_joined(&bench, flags, 0);
    bench.worker.dataset.schema = &schema;
    assert_true(join(&bench));
    assert_non_null(strstr(told(), "tells its own rows again\njoins\nagrees\n"));
    world.agreed = EXCHANGE_REJOIN; /* ps 0 is lost again */
    assert_true(join(&bench));
    assert_int_equal(times(told(), "tells its own rows again\njoins\nagrees\n"), 2);
    world.agreed = EXCHANGE_FAILED;
    assert_false(join(&bench));
    remote_updater_table.finish(&bench.worker.updater);
    assert_int_equal(bench.worker.training.end, TRAINING_LEAVES);
    assert_int_equal(bench.worker.training.leave_status, RESTART_STATUS);
    assert_int_equal(times(heard_so_far(), "restarting, to encode its rows by the model's preprocessing"), 1);
    world.told_again = EXCHANGE_FAILED;
    assert_false(join(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_FAILED);
    bench.worker.dataset.schema = NULL; /* images mean the same to all */
    bench.worker.training.end = TRAINING_GOES_ON;
    told();
    assert_true(join(&bench));
    assert_false(was_told("own rows"));
    end(&bench);
}

/* On a machine with too many members a worker that has joined gives way to others: once, and only if it can restart. */
TEST(gives_way)
{
    struct bench bench;
    struct error error;
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_true(begin(&bench, other_flags, &error));
        bench.worker.low_priority = true;
        world.cannot_stand_by = i > 0;
        told();
        assert_true(join(&bench));
        assert_true(join(&bench));
        const char *text = told();
        assert_int_equal(times(text, "stands by"), 1);
        assert_int_equal(times(text, "gives way"), i == 0);
        end(&bench);
    }
}

/* A step: draw, compute, push; then count, check for a change, and report the state at times. */
TEST(steps)
{
    struct bench bench;
    (void)state;
    begin_joined(&bench, chief_flags, 10);
    world.answer.staleness = 2;
    assert_true(step(&bench));
    assert_string_equal(told(), "computes 4 of task 0, step 3, from 0\n"
                                "pushes step 10, 0 here, 4 examples, loss 0.5: 20 at 0\nlooks at 11, loss 0.5\n"
                                "notes 11\n");
    assert_true(step(&bench));
    assert_string_equal(told(), "computes 4 of task 0, step 4, from 0\n"
                                "pushes step 11, 1 here, 4 examples, loss 0.5: 20 at 48\nlooks at 12, loss 0.5\n"
                                "training at 12, 2 here, 8/s, loss 0.5, stale 2\nsays: \nnotes 12\n");
    world.changes = true;
    world.drift = "drifts";
    assert_true(step(&bench));
    assert_true(was_told("retimed to 77\nnotes 13"));
    assert_int_equal(bench.worker.training.plan.last_step, 77);
    assert_true(step(&bench));
    assert_true(was_told("training at 14, 4 here, 8/s, loss 0.5, stale 2\nsays: drifts\n"));
    struct summary_cluster summary;
    atomic_store(&bench.worker.traffic.bytes_in, 5);
    atomic_store(&bench.worker.traffic.bytes_out, 6);
    remote_updater_table.summarise(&bench.worker.updater, 4, &summary);
    assert_true(summary.staleness == 2);
    assert_int_equal(summary.dropped_gradients, 0);
    assert_int_equal(summary.bytes_received, 5);
    assert_int_equal(summary.bytes_sent, 6);
    remote_updater_table.summarise(&bench.worker.updater, 4, &summary);
    assert_true(summary.staleness == 0);
    end(&bench);
}

/* The shards' answers to a push. */
TEST(answers_to_a_push)
{
    struct bench bench;
    struct summary_cluster summary;
    (void)state;
    begin_joined(&bench, other_flags, 0);
    world.answer.stale = true;
    assert_true(step(&bench));
    world.answer = (struct push_answer){.not_finite = true};
    assert_true(step(&bench));
    assert_int_equal(times(heard_so_far(), "a gradient was refused at global step 2: it is not finite"), 1);
    remote_updater_table.summarise(&bench.worker.updater, 2, &summary);
    assert_int_equal(summary.dropped_gradients, 2);
    world.answer = (struct push_answer){.over = true, .not_finite = true};
    told();
    assert_false(step(&bench));
    assert_false(was_told("looks"));
    assert_int_equal(bench.worker.training.end, TRAINING_LAST_STEP);
    assert_int_equal(times(heard_so_far(), "a gradient was refused"), 1);
    assert_int_equal(bench.worker.training.local_step, 2);
    world.cannot_compute = true;
    bench.worker.training.end = TRAINING_GOES_ON;
    assert_false(step(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_FAILED);
    assert_string_equal(bench.worker.training.error.text, "the device fails");
    end(&bench);
}

/* How a failed push ends training, depending on who reports what. */
TEST(ends_of_a_push)
{
    struct bench bench;
    (void)state;
    begin_joined(&bench, other_flags, 0);
    enum training_end *how = &bench.worker.training.end;
    struct {
        enum exchange_result end;
        int signal;
        enum live_config_end live;
        bool refused;
        enum training_end wanted;
    } cases[] = {{EXCHANGE_REJOIN, 0, LIVE_STAYS, false, TRAINING_REJOINS},
                 {EXCHANGE_REJOIN, SIGTERM, LIVE_STAYS, false, TRAINING_INTERRUPTED},
                 {EXCHANGE_FAILED, 0, LIVE_STAYS, false, TRAINING_FAILED},
                 {EXCHANGE_STOPPED, 0, LIVE_RESTARTS, true, TRAINING_LEAVES},
                 {EXCHANGE_STOPPED, SIGTERM, LIVE_STAYS, false, TRAINING_INTERRUPTED},
                 {EXCHANGE_STOPPED, SIGTERM, LIVE_STAYS, true, TRAINING_FAILED},
                 {EXCHANGE_STOPPED, 0, LIVE_STAYS, false, TRAINING_BY_OTHERS}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        *how = TRAINING_GOES_ON;
        world.pushed = cases[i].end;
        world.signal = cases[i].signal;
        world.live_end = cases[i].live;
        world.job.refused = cases[i].refused;
        strcpy(world.job.message, "another process has this place");
        assert_false(step(&bench));
        assert_int_equal(*how, cases[i].wanted);
        assert_int_equal(strcmp(bench.worker.training.error.text, world.job.message) == 0,
                         cases[i].refused && cases[i].live == LIVE_STAYS);
    }
    world.signal = 0;
    end(&bench);
}

/* If a loss is not finite nothing is pushed. Newer parameters may be better; if not, the chief gives up. */
TEST(loss_that_is_not_finite)
{
    struct bench bench;
    (void)state;
    for (int is_chief = 0; is_chief < 2; is_chief++) {
        begin_joined(&bench, is_chief ? chief_flags : other_flags, 5);
        world.loss = INFINITY;
        world.is_rolling = true; /* the rollout handles it */
        for (int i = 1; i <= 12; i++) {
            const double before_s = world.now_s;
            assert_false(step(&bench));
            assert_true(fabs(world.now_s - before_s - 0.01 * i) < 1e-9); /* longer each time */
        }
        const char *text = told();
        assert_int_equal(times(text, "looks at 5, loss nan, not finite\nrefreshes\n"), 12);
        assert_int_equal(times(text, "pushes"), 0);
        assert_int_equal(times(heard_so_far(), "the loss is inf at global step 5: nothing is pushed"), 1);
        assert_int_equal(bench.worker.training.end, TRAINING_GOES_ON);
        world.is_rolling = false;
        assert_false(step(&bench));
        assert_int_equal(bench.worker.training.end, is_chief ? TRAINING_FAILED : TRAINING_GOES_ON);
        if (is_chief) {
            assert_non_null(strstr(bench.worker.training.error.text, "the loss is inf after step 5"));
        }
        world.loss = 0.5; /* all is well: the count starts over */
        bench.worker.training.end = TRAINING_GOES_ON;
        assert_true(step(&bench));
        world.loss = NAN;
        for (int i = 0; i < 9; i++) {
            assert_false(step(&bench));
            assert_int_equal(bench.worker.training.end, TRAINING_GOES_ON);
        }
        assert_false(step(&bench));
        assert_int_equal(bench.worker.training.end, is_chief ? TRAINING_FAILED : TRAINING_GOES_ON);
        end(&bench);
    }
}

/* Gradients that are refused again and again, though their loss is finite, end a job like losses that are not. */
TEST(gradients_that_are_refused)
{
    struct bench bench;
    (void)state;
    for (int is_chief = 0; is_chief < 2; is_chief++) {
        begin_joined(&bench, is_chief ? chief_flags : other_flags, 0);
        world.is_rolling = true; /* the rollout handles it */
        world.answer = (struct push_answer){.not_finite = true};
        for (int i = 0; i < 12; i++) {
            assert_true(step(&bench));
        }
        world.is_rolling = false;
        world.answer = (struct push_answer){.not_finite = false}; /* all is well: the count starts over */
        assert_true(step(&bench));
        for (int i = 0; i < 9; i++) {
            world.answer = (struct push_answer){.not_finite = true};
            assert_true(step(&bench));
            world.answer = (struct push_answer){.stale = true}; /* says nothing of the gradient */
            assert_true(step(&bench));
        }
        world.answer = (struct push_answer){.not_finite = true};
        assert_int_equal(step(&bench), !is_chief);
        assert_int_equal(bench.worker.training.end, is_chief ? TRAINING_FAILED : TRAINING_GOES_ON);
        if (is_chief) {
            assert_non_null(strstr(bench.worker.training.error.text, "the gradient is nan after step 32"));
            assert_true(bench.worker.training.has_diverged);
        }
        end(&bench);
    }
}

/* With a model to go back to, the shards get it, and the worker joins again, at a lower rate. */
TEST(a_divergence_that_goes_back)
{
    struct bench bench;
    (void)state;
    begin_joined(&bench, chief_flags, 5);
    bench.worker.training.good = (struct good_model){.is_there = true, .global_step = 3};
    world.loss = NAN;
    for (int i = 0; i < 10; i++) {
        assert_false(step(&bench));
    }
    assert_int_equal(times(told(), "chief goes back to 3, lowered 1 times\n"), 1);
    assert_int_equal(bench.worker.training.end, TRAINING_REJOINS);
    assert_int_equal(bench.worker.config.train.retries, 1);
    assert_int_equal(times(heard_so_far(), "training goes back to step 3 and continues at 0.3 times that rate"), 1);
    bench.worker.training.end = TRAINING_GOES_ON;
    bench.worker.training.good.record.retries = 3; /* as often as it may */
    for (int i = 0; i < 10; i++) {
        assert_false(step(&bench));
    }
    assert_int_equal(bench.worker.training.end, TRAINING_FAILED);
    end(&bench);
}

/* In synchronous training the others wait for a push: an empty one is sent, and the next step is awaited. */
TEST(empty_push)
{
    struct bench bench;
    (void)state;
    begin_joined(&bench, sync_flags, 5);
    assert_true(step(&bench));
    told();
    world.loss = NAN;
    world.stands = true;
    assert_false(step(&bench));
    assert_string_equal(told(), "computes 4 of task 0, step 6, from 0\nlooks at 6, loss nan, not finite\n"
                                "pushes step 6, 1 here, 1 examples, loss nan: nothing\nawaits the step after 6\n");
    assert_int_equal(bench.worker.training.global_step, 7);
    world.stands = false;
    assert_false(step(&bench));
    assert_string_equal(told(), "computes 2 of task 0, step 7, from 0\nlooks at 7, loss nan, not finite\n"
                                "pushes step 7, 1 here, 1 examples, loss nan: nothing\n");
    assert_int_equal(bench.worker.training.global_step, 8);
    world.stands = true;
    world.pushed = EXCHANGE_REJOIN;
    assert_false(step(&bench));
    assert_false(was_told("awaits"));
    assert_int_equal(bench.worker.training.end, TRAINING_REJOINS);
    end(&bench);
}

/*
 * Rounds with participation below 1: the chief looks at each step that others make, another worker sleeps until it is
 * selected.
 */
TEST(rounds_of_others)
{
    struct bench bench;
    (void)state;
    begin_joined(&bench, sync_flags, 5);
    world.unasked = 1;
    assert_true(step(&bench));
    assert_string_equal(told(), "waits to be asked after step 5\nlooks at 6, loss nan\nnotes 6\n");
    assert_int_equal(bench.worker.training.global_step, 6);
    assert_true(step(&bench));
    assert_true(was_told("pushes step 6"));
    world.unasked = 1;
    world.awaited = EXCHANGE_REJOIN;
    assert_false(step(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_REJOINS);
    end(&bench);
    const char *const flags[] = {"task_index", "2", "issync", "true", NULL};
    begin_joined(&bench, flags, 5);
    world.unasked = 1;
    assert_true(step(&bench));
    char text[64];
    snprintf(text, sizeof text, "waits to be asked after step %lld\n", (long long)JOB_MAX_STEP);
    assert_true(was_told(text));
    assert_false(was_told("notes"));
    end(&bench);
}

/*
 * Own rows are validated when due, and worker 0, which adds up the results, gets them; a missing answer does not end
 * training.
 */
TEST(validates_together)
{
    const char *const others[] = {"task_index",    "2",   "issync",         "true", "ema_decay", "0",
                                  "data_sharding", "own", "validate_steps", "2",    NULL};
    struct bench bench;
    (void)state;
    begin_joined(&bench, others, 0);
    struct training *training = &bench.worker.training;
    begin_evaluation(&training->evaluation);
    bench.worker.dataset.validation.count = 6; /* they share memory with the training rows */
    assert_true(step(&bench));
    assert_false(was_told("validated"));
    assert_true(step(&bench));
    assert_non_null(strstr(told(), "validated step 2, 6 examples, 6 right, score 1.00\n"));
    assert_true(step(&bench));
    world.validated = EXCHANGE_FAILED;
    assert_true(step(&bench));
    assert_int_equal(times(heard_so_far(), "a validation was not accepted: as the test wants"), 1);
    assert_true(step(&bench));
    world.validated = EXCHANGE_REJOIN;
    assert_false(step(&bench));
    assert_int_equal(training->end, TRAINING_REJOINS);
    evaluation_destroy(&training->evaluation);
    end(&bench);
}

TEST(chief_adds_up_validations)
{
    const char *const flags[] = {"task_index",    "0",   "issync",         "true", "ema_decay", "0",
                                 "data_sharding", "own", "validate_steps", "2",    NULL};
    struct bench bench;
    struct error error;
    struct validators validators;
    (void)state;
    begin_joined(&bench, flags, 0);
    struct training *training = &bench.worker.training;
    begin_evaluation(&training->evaluation);
    struct examples six = bench.worker.dataset.train;
    six.count = 6;
    assert_true(evaluate(&training->evaluation, &the_engine, false, &six, &error));
    assert_true(evaluation_part_room(&training->evaluation) <= sizeof world.part);
    world.part_size = evaluation_part_write(&training->evaluation, world.part);
    struct updater *updater = &bench.worker.updater;
    assert_true(remote_updater_table.gather(updater, 4, METRIC_ACCURACY, &training->evaluation, &validators));
    char wanted[80];
    snprintf(wanted, sizeof wanted, "asks for validations of step 4 for %g s\n", bench.config.cluster.lease_secs);
    assert_string_equal(told(), wanted);
    assert_int_equal(training->evaluation.images, 12);
    assert_int_equal(training->evaluation.correct, 12);
    assert_int_equal(validators.count, 2);
    assert_int_equal(validators.scores[0].worker, 1);
    assert_true(validators.scores[0].score == 0.25);
    assert_int_equal(validators.scores[1].worker, 0);
    assert_int_equal(validators.worst, 1);
    assert_int_equal(validators.missing, 1);
    assert_int_equal(times(heard_so_far(), "the validation of worker 2 does not count"), 1);
    assert_true(remote_updater_table.gather(updater, 5, METRIC_ACCURACY, &training->evaluation, &validators));
    assert_int_equal(validators.count, 2);
    assert_int_equal(times(heard_so_far(), "does not count"), 1); /* once is enough */
    world.validated = EXCHANGE_FAILED;
    assert_true(remote_updater_table.gather(updater, 6, METRIC_ACCURACY, &training->evaluation, &validators));
    assert_int_equal(times(heard_so_far(), "the other workers' validations are missing: as the test wants"), 1);
    world.validated = EXCHANGE_STOPPED;
    assert_false(remote_updater_table.gather(updater, 6, METRIC_ACCURACY, &training->evaluation, &validators));
    evaluation_destroy(&training->evaluation);
    end(&bench);
}

/* Pushes in flight are waited for before the shards are asked for something else. */
TEST(pipelined)
{
    struct bench bench;
    (void)state;
    begin_joined(&bench, piped_flags, 0);
    assert_true(step(&bench)); /* no answer yet */
    assert_string_equal(told(), "computes 4 of task 2, step 0, from 0\n"
                                "pushes step 0, 0 here, 4 examples, loss 0.5: 20 at 0\nlooks at 0, loss 0.5\n");
    world.answers = 1;
    assert_true(step(&bench));
    assert_int_equal(bench.worker.training.global_step, 1);
    told();
    remote_updater_table.settle(&bench.worker.updater);
    assert_string_equal(told(), "drains\n");
    assert_int_equal(bench.worker.training.global_step, 2);
    assert_null(strstr(heard_so_far(), "the last gradients were not accepted"));
    world.loss = NAN;
    assert_false(step(&bench));
    assert_non_null(strstr(told(), "drains\nrefreshes\nloads the mirror\n"));
    world.refreshed = EXCHANGE_REJOIN;
    assert_false(step(&bench));
    assert_null(strstr(told(), "loads the mirror"));
    assert_int_equal(bench.worker.training.end, TRAINING_REJOINS);
    bench.worker.training.end = TRAINING_GOES_ON;
    world.cannot_load = true;
    assert_false(step(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_FAILED);
    world.drained = EXCHANGE_FAILED;
    world.answers = 0;
    remote_updater_table.settle(&bench.worker.updater);
    assert_int_equal(times(heard_so_far(), "the last gradients were not accepted: as the test wants"), 1);
    end(&bench);
}

/* A validation borrows the engine: the next step first restores the parameters. */
TEST(validation_borrows_the_engine)
{
    struct bench bench;
    struct held_model held;
    (void)state;
    begin_joined(&bench, chief_flags, 20);
    struct updater *updater = &bench.worker.updater;
    assert_true(remote_updater_table.hold(updater, &held));
    assert_int_equal(held.global_step, 20);
    assert_ptr_equal(held.record, &held_record);
    remote_updater_table.release(updater, true);
    assert_string_equal(told(), "holds\nreleases the best\n");
    assert_true(step(&bench));
    assert_true(was_told("refreshes\ncomputes"));
    told();
    assert_true(step(&bench));
    assert_false(was_told("refreshes"));
    assert_true(remote_updater_table.hold(updater, &held));
    remote_updater_table.release(updater, false);
    assert_true(was_told("releases\n"));
    world.refreshed = EXCHANGE_REJOIN;
    told();
    assert_false(step(&bench));
    assert_string_equal(told(), "refreshes\n");
    bench.worker.training.end = TRAINING_GOES_ON;
    assert_true(join(&bench)); /* this brings them, too */
    told();
    assert_true(step(&bench));
    assert_false(was_told("refreshes"));
    for (int i = 0; i < 2; i++) {
        world.held = i == 0 ? CHIEF_NOT_NOW : CHIEF_HOLD_FAILED;
        assert_false(remote_updater_table.hold(updater, &held));
        assert_int_equal(bench.worker.training.end, i == 0 ? TRAINING_GOES_ON : TRAINING_FAILED);
    }
    told();
    bench.worker.training.end = TRAINING_GOES_ON;
    assert_true(step(&bench));
    assert_false(was_told("refreshes"));
    end(&bench);
}

/* What the loop learns of the chief's record; others have none. */
TEST(record_of_the_run)
{
    struct bench bench;
    struct updater_record record;
    (void)state;
    begin_joined(&bench, other_flags, 0);
    remote_updater_table.record(&bench.worker.updater, &record);
    assert_true(isnan(record.best_score) && isnan(record.threshold));
    assert_int_equal(record.last_checkpoint_step, -1);
    end(&bench);
    begin_joined(&bench, chief_flags, 0);
    world.record = (struct updater_record){.best_score = 0.5,
                                           .best_step = 7,
                                           .threshold = 0.25,
                                           .checkpoint_failed = true,
                                           .last_checkpoint = "x",
                                           .last_checkpoint_step = 9};
    remote_updater_table.record(&bench.worker.updater, &record);
    assert_true(record.best_score == 0.5 && record.threshold == 0.25 && record.checkpoint_failed);
    assert_int_equal(record.best_step, 7);
    assert_int_equal(record.last_checkpoint_step, 9);
    assert_string_equal(record.last_checkpoint, "x");
    end(&bench);
}

/* Is an end known, and whose report counts for whom? */
TEST(looks_for_the_end)
{
    const char *const one_ps[] = {"task_index", "2", "ps_hosts", "127.0.0.1:1", "train_steps", "20", NULL};
    const char *const two_ps[] = {"task_index", "2", "train_steps", "20", NULL};
    const char *const sync[] = {"task_index", "2", "train_steps", "20", "issync", "true", NULL};
    const char *const *const flags[] = {one_ps, two_ps, sync};
    struct bench bench;
    (void)state;
    for (int i = 0; i < 3; i++) {
        begin_joined(&bench, flags[i], 19);
        remote_updater_table.look_for_end(&bench.worker.updater);
        assert_int_equal(bench.worker.training.end, TRAINING_GOES_ON);
        bench.worker.training.global_step = 20;
        remote_updater_table.look_for_end(&bench.worker.updater);
        assert_int_equal(bench.worker.training.end, i == 1 ? TRAINING_GOES_ON : TRAINING_LAST_STEP);
        end(&bench);
    }
    for (int is_chief = 0; is_chief < 2; is_chief++) {
        begin_joined(&bench, is_chief ? chief_flags : other_flags, 0);
        char why[256];
        assert_false(world.given_up(world.context));
        world.over = true; /* the chief ends the job itself */
        assert_int_equal(world.given_up(world.context), !is_chief);
        remote_updater_table.look_for_end(&bench.worker.updater);
        assert_int_equal(bench.worker.training.end, is_chief ? TRAINING_GOES_ON : TRAINING_BY_OTHERS);
        world.over = false;
        world.fenced = true;
        assert_true(world.given_up(world.context));
        world.fenced = false;
        world.live_end = LIVE_LEAVES;
        assert_true(world.given_up(world.context));
        bench.worker.training.end = TRAINING_GOES_ON;
        remote_updater_table.look_for_end(&bench.worker.updater);
        assert_int_equal(bench.worker.training.end, TRAINING_LEAVES);
        world.needs_rejoin = "ps 1 has no model";
        assert_true(world.asks_to_rejoin(world.context, GENERATION, 1, why));
        assert_string_equal(why, "ps 1 has no model");
        end(&bench);
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
