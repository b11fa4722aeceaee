/* Local training with an engine without arithmetic: what happens at which step, and what a checkpoint restores. */
#include "worker/local_run.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"

#include "base/cli/command.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process/signals.h"

enum { CLASSES = 3, PIXELS = 4, TRAINED_IMAGES = 50, VALIDATION_IMAGES = 20, MAX_ENDS = 4096 };

/* Every step multiplies and adds something that depends on the step: only the right history gives the right bits. */
struct fake_engine {
    struct engine engine;
    const struct model *model;
    const struct config *config;
    float *vectors[STORE_VECTORS];
    int64_t global_step;
    int64_t bad_step;          /* the loss of this step is NaN; -1: never */
    int64_t signal_step;       /* SIGTERM arrives in the slice with this step; -1: never */
    int steps_per_right_image; /* number of correct validation images: grows by one every this many steps; 0: none */
    int64_t best_step;         /* from here on it does not improve */
    int64_t ends[MAX_ENDS];    /* of the slices */
    int end_count;
    bool averaged;
};

static struct fake_engine *fake(struct engine *engine)
{
    return (struct fake_engine *)engine;
}

static bool fake_train(struct engine *engine, int64_t n, struct train_result *result, struct error *error)
{
    struct fake_engine *f = fake(engine);
    *result = (struct train_result){.finite = true};
    assert_true(n > 0);
    for (int64_t i = 0; i < n; i++) {
        if (f->global_step == f->bad_step) {
            result->finite = false;
            result->bad_loss = NAN;
            break;
        }
        if (f->global_step == f->signal_step) {
            f->signal_step = -1;
            raise(SIGTERM);
        }
        for (int v = 0; v < STORE_VECTORS; v++) {
            for (size_t k = 0; f->vectors[v] && k < f->model->float_count; k++) {
                f->vectors[v][k] = f->vectors[v][k] * 0.99f + (float)((f->global_step + v) % 17);
            }
        }
        f->global_step++;
        result->steps++;
        result->images += 10;
        result->loss_sum += 1;
    }
    result->last_loss = 1;
    assert_true(f->end_count < MAX_ENDS);
    f->ends[f->end_count++] = f->global_step;
    usleep(100);
    return true;
}

/* Image i has its label in pixel 0 and i in pixel 1; this many of the first are recognised. */
static bool fake_forward(struct engine *engine, bool averaged, const struct examples *examples, int first, int count,
                         float *logits, struct error *error)
{
    struct fake_engine *f = fake(engine);
    int64_t step = f->global_step < f->best_step ? f->global_step : f->best_step;
    const uint8_t *images = examples->images + (size_t)first * PIXELS;
    f->averaged = averaged;
    for (int i = 0; i < count; i++) {
        int label = images[i * PIXELS];
        bool right = f->steps_per_right_image > 0 && images[i * PIXELS + 1] < step / f->steps_per_right_image;
        for (int c = 0; c < CLASSES; c++) {
            logits[i * CLASSES + c] = c == (right ? label : (label + 1) % CLASSES);
        }
    }
    return true;
}

static bool fake_read(struct engine *engine, enum store_vector vector, size_t first, size_t count, float *values,
                      struct error *error)
{
    memcpy(values, fake(engine)->vectors[vector] + first, count * sizeof *values);
    return true;
}

static bool fake_write(struct engine *engine, enum store_vector vector, size_t first, size_t count, const float *values,
                       struct error *error)
{
    memcpy(fake(engine)->vectors[vector] + first, values, count * sizeof *values);
    return true;
}

static void fake_set_global_step(struct engine *engine, int64_t global_step)
{
    fake(engine)->global_step = global_step;
}

static void fake_describe(const struct engine *engine, char *text, size_t size)
{
    snprintf(text, size, "fake");
}

static const struct engine_table fake_table = {.name = "fake",
                                               .train = fake_train,
                                               .forward = fake_forward,
                                               .read = fake_read,
                                               .write = fake_write,
                                               .set_global_step = fake_set_global_step,
                                               .describe = fake_describe};

/* The environment of a run. */
struct stage {
    struct config config;
    struct model model;
    struct dataset dataset;
    struct fake_engine engine;
    char folder[64];
};

static void make_examples(struct examples *examples, int count)
{
    *examples = (struct examples){.count = count, .height = 2, .width = 2, .classes = CLASSES};
    examples->images = calloc((size_t)count, PIXELS);
    examples->labels = calloc((size_t)count, sizeof *examples->labels);
    for (int i = 0; i < count; i++) {
        examples->labels[i] = i % CLASSES;
        examples->images[i * PIXELS] = (uint8_t)(i % CLASSES);
        examples->images[i * PIXELS + 1] = (uint8_t)i;
    }
}

static void fake_begin(struct stage *stage)
{
    stage->engine = (struct fake_engine){.engine = {.table = &fake_table},
                                         .model = &stage->model,
                                         .config = &stage->config,
                                         .bad_step = -1,
                                         .signal_step = -1,
                                         .best_step = INT64_MAX};
    for (int v = 0; v < STORE_VECTORS; v++) {
        bool used = v == STORE_PARAMETERS || (v == STORE_AVERAGES && stage->config.train.ema_decay > 0) ||
                    (v != STORE_AVERAGES && v - STORE_SLOT0 < optimizer_slots(stage->config.train.optimizer));
        stage->engine.vectors[v] = used ? calloc(stage->model.float_count, sizeof(float)) : NULL;
    }
}

static void fake_end(struct stage *stage)
{
    for (int v = 0; v < STORE_VECTORS; v++) {
        free(stage->engine.vectors[v]);
        stage->engine.vectors[v] = NULL;
    }
}

static int set_up(void **state)
{
    struct stage *stage = calloc(1, sizeof *stage);
    config_defaults(&stage->config);
    snprintf(stage->folder, sizeof stage->folder, "/tmp/test_training.XXXXXX");
    assert_non_null(mkdtemp(stage->folder));
    free(stage->config.output.train_dir);
    stage->config.output.train_dir = strdup(stage->folder);
    stage->config.model.layers[0] = PIXELS;
    stage->config.model.layers[1] = CLASSES;
    stage->config.model.layer_count = 2;
    stage->config.train.optimizer = OPTIMIZER_ADAM;
    stage->config.train.ema_decay = 0.9;
    stage->config.train.lr_decay_steps = 5;
    stage->config.train.train_steps = 1000;
    stage->config.train.epochs = 0;
    stage->config.train.batch_size = 10;
    stage->config.output.log_steps = 30;
    stage->config.output.validate_steps = 70;
    stage->config.output.save_steps = 0;
    stage->config.output.save_model_secs = 0;
    stage->config.output.save_summaries_steps = 0;
    model_layout(&stage->model, &stage->config.model);
    make_examples(&stage->dataset.train, TRAINED_IMAGES);
    make_examples(&stage->dataset.validation, VALIDATION_IMAGES);
    *state = stage;
    log_setup(LOG_TEXT, LOG_ERROR);
    fake_begin(stage);
    return 0;
}

static void empty_folder(const char *path)
{
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char file[512];
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        unlink(file);
    }
    if (folder) {
        closedir(folder);
    }
}

static int tear_down(void **state)
{
    struct stage *stage = *state;
    fake_end(stage);
    empty_folder(stage->folder);
    rmdir(stage->folder);
    free(stage->dataset.train.images);
    free(stage->dataset.train.labels);
    free(stage->dataset.validation.images);
    free(stage->dataset.validation.labels);
    config_free(&stage->config);
    free(stage);
    return 0;
}

static bool open_training(struct stage *stage, struct training *training, struct error *error)
{
    *training = (struct training){.config = &stage->config,
                                  .model = &stage->model,
                                  .engine = &stage->engine.engine,
                                  .dataset = &stage->dataset,
                                  .test = &stage->dataset.validation,
                                  .digest = "test"};
    return training_check_data(training, error) && local_updater_create(&training->updater, training, error);
}

/* The result of a run. */
struct outcome {
    enum training_end end;
    int64_t global_step, local_steps;
    struct updater_record record; /* last_checkpoint: only whether it is NULL */
    int status;
    char error[1024];
};

static struct outcome run(struct stage *stage)
{
    struct training training;
    struct outcome outcome;
    struct error error;
    if (!open_training(stage, &training, &error)) {
        fail_msg("%s", error.text);
    }
    training_plan(&training);
    outcome.status = training_run(&training);
    outcome.end = training.end;
    outcome.global_step = training.global_step;
    outcome.local_steps = training.local_step;
    snprintf(outcome.error, sizeof outcome.error, "%s", training.end == TRAINING_FAILED ? training.error.text : "");
    training.updater->table->record(training.updater, &outcome.record);
    local_updater_destroy(training.updater);
    return outcome;
}

/* As a new process would: another engine, without any state. */
static struct outcome run_again(struct stage *stage)
{
    fake_end(stage);
    fake_begin(stage);
    return run(stage);
}

static bool slice_ended_at(const struct stage *stage, int64_t step)
{
    for (int i = 0; i < stage->engine.end_count; i++) {
        if (stage->engine.ends[i] == step) {
            return true;
        }
    }
    return false;
}

static void read_checkpoint(const struct stage *stage, int64_t step, uint8_t **bytes, size_t *size)
{
    char path[128];
    struct error error;
    snprintf(path, sizeof path, "%s/model-%010lld.safetensors", stage->folder, (long long)step);
    if (!file_read(path, 1 << 20, bytes, size, &error)) {
        fail_msg("%s", error.text);
    }
}

static bool has_checkpoint(const struct stage *stage, int64_t step)
{
    char path[128];
    snprintf(path, sizeof path, "%s/model-%010lld.safetensors", stage->folder, (long long)step);
    return file_exists(path);
}

TEST_WITH(slices_end_where_something_is_due, set_up, tear_down)
{
    struct stage *stage = *state;
    stage->config.output.save_steps = 110;
    struct outcome result = run(stage);
    assert_int_equal(result.end, TRAINING_LAST_STEP);
    assert_int_equal(result.global_step, 1000);
    assert_int_equal(result.local_steps, 1000);
    assert_int_equal(result.status, COMMAND_DONE);
    for (int64_t step = 1; step <= 1000; step++) {
        if (step % 30 == 0 || step % 70 == 0 || step % 110 == 0 || step == 1000) {
            assert_true(slice_ended_at(stage, step));
        }
    }
    assert_true(has_checkpoint(stage, 1000));
    assert_true(has_checkpoint(stage, 990));
    assert_true(stage->engine.averaged == false || stage->config.train.ema_decay > 0);
    assert_false(result.record.checkpoint_failed);
}

/* However it is interrupted, by the last step or not at all, the run writes the very same bytes. */
TEST_WITH(resumed_is_uninterrupted, set_up, tear_down)
{
    struct stage *stage = *state;
    uint8_t *whole, *pieces;
    size_t whole_size, pieces_size;
    stage->engine.steps_per_right_image = 100;
    run(stage);
    read_checkpoint(stage, 1000, &whole, &whole_size);
    empty_folder(stage->folder);

    const int64_t stops[] = {1, 2, 70, 71, 139, 140, 420, 999, 1000};
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++) {
        fake_end(stage);
        fake_begin(stage);
        stage->engine.steps_per_right_image = 100;
        /* Ends there as if killed right after the checkpoint: train_steps is not part of the state. */
        stage->config.train.train_steps = stops[i];
        assert_int_equal(run(stage).global_step, stops[i]);
    }
    stage->config.train.train_steps = 1000;
    read_checkpoint(stage, 1000, &pieces, &pieces_size);
    assert_int_equal(whole_size, pieces_size);
    assert_memory_equal(whole, pieces, whole_size);
    free(whole);
    free(pieces);
}

TEST_WITH(nothing_is_left_to_do_at_the_last_step, set_up, tear_down)
{
    struct stage *stage = *state;
    run(stage);
    struct outcome result = run_again(stage);
    assert_int_equal(result.end, TRAINING_LAST_STEP);
    assert_int_equal(result.local_steps, 0);
    assert_int_equal(result.global_step, 1000);
    assert_int_equal(stage->engine.end_count, 0);
    assert_int_equal(stage->engine.global_step, 1000);
}

TEST_WITH(a_loss_that_is_not_finite_ends_it, set_up, tear_down)
{
    struct stage *stage = *state;
    stage->config.output.save_steps = 50;
    stage->engine.bad_step = 123;
    struct outcome result = run(stage);
    assert_int_equal(result.end, TRAINING_FAILED);
    assert_int_equal(result.status, COMMAND_FAILED);
    assert_int_equal(result.global_step, 123);
    assert_non_null(strstr(result.error, "model-0000000100.safetensors"));
    assert_true(has_checkpoint(stage, 100));
    assert_false(has_checkpoint(stage, 123));
}

TEST_WITH(the_target_ends_it, set_up, tear_down)
{
    struct stage *stage = *state;
    stage->engine.steps_per_right_image = 20; /* 3, 7, 10 of 20 images at steps 70, 140, 210 */
    stage->config.train.target_accuracy = 0.5;
    struct outcome result = run(stage);
    assert_int_equal(result.end, TRAINING_TARGET);
    assert_int_equal(result.global_step, 210);
    assert_true(has_checkpoint(stage, 210));
    stage->config.train.train_steps = 2000; /* a resumed run knows that it has reached it */
    assert_int_equal(run_again(stage).local_steps, 0);
}

TEST_WITH(patience_ends_it, set_up, tear_down)
{
    struct stage *stage = *state;
    char best[128];
    stage->engine.steps_per_right_image = 20;
    stage->engine.best_step = 150; /* 7 of 20 from step 140 on */
    stage->config.train.patience = 3;
    struct outcome result = run(stage);
    assert_int_equal(result.end, TRAINING_PATIENCE);
    assert_int_equal(result.record.best_step, 140);
    assert_true(fabs(result.record.best_score - 7.0 / 20) < 1e-9);
    assert_int_equal(result.global_step, 140 + 3 * 70);
    snprintf(best, sizeof best, "%s/best.safetensors", stage->folder);
    assert_true(file_exists(best));
    assert_int_equal(run_again(stage).local_steps, 0);
}

TEST_WITH(stopping_rules_need_validation, set_up, tear_down)
{
    struct stage *stage = *state;
    struct training training;
    struct error error;
    stage->config.train.patience = 3;
    stage->dataset.validation.count = 0;
    assert_false(open_training(stage, &training, &error));
    assert_non_null(strstr(error.text, "validation_size"));
}

TEST_WITH(without_a_folder_nothing_is_kept, set_up, tear_down)
{
    struct stage *stage = *state;
    stage->config.output.train_dir[0] = '\0';
    stage->config.output.save_steps = 10;
    struct outcome result = run(stage);
    assert_int_equal(result.end, TRAINING_LAST_STEP);
    assert_null(result.record.last_checkpoint);
}

/* In a child, because the lock is the process's. Status 0: refused, naming the folder. */
TEST_WITH(a_folder_has_one_process, set_up, tear_down)
{
    struct stage *stage = *state;
    struct training training, second;
    struct error error;
    int status = -1;
    assert_true(open_training(stage, &training, &error));
    pid_t child = fork();
    if (child == 0) {
        _exit(open_training(stage, &second, &error) || !strstr(error.text, stage->folder));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    local_updater_destroy(training.updater);
    assert_true(open_training(stage, &training, &error));
    local_updater_destroy(training.updater);
}

TEST_WITH(another_model_is_refused, set_up, tear_down)
{
    struct stage *stage = *state;
    run(stage);
    stage->config.model.layers[1] = CLASSES + 1;
    model_layout(&stage->model, &stage->config.model);
    struct outcome result = run_again(stage);
    assert_int_equal(result.status, COMMAND_FAILED);
    assert_int_equal(result.local_steps, 0);
    assert_non_null(strstr(result.error, "layer0/weights"));
    assert_non_null(strstr(result.error, "train_dir"));
}

/* A full disk, simulated by a limit on file sizes: training continues, and the end reports it. */
TEST_WITH(a_full_disk_does_not_stop_training, set_up, tear_down)
{
    struct stage *stage = *state;
    struct rlimit before, tight;
    signals_catch();
    stage->config.output.save_steps = 100;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    tight = before;
    tight.rlim_cur = 100;
    fflush(NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    struct outcome result = run(stage);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(result.end, TRAINING_LAST_STEP);
    assert_true(result.record.checkpoint_failed);
    assert_int_equal(result.status, COMMAND_FAILED);
    assert_int_equal(result.global_step, 1000);
    assert_false(has_checkpoint(stage, 1000));
}

/* An updater whose model is lost now and then, while others take every second step. */
struct lossy_updater {
    struct updater updater;
    struct training *training;
    struct checkpoint_info info;
    int joins, finishes, settles, validations, concluded;
    int64_t lost_step;   /* there it is lost once, and training continues from step 0 */
    bool lost_at_finish; /* likewise */
};

static struct lossy_updater *lossy(struct updater *updater)
{
    return (struct lossy_updater *)updater;
}

static bool lossy_join(struct updater *updater, struct updater_start *start)
{
    lossy(updater)->joins++;
    lossy(updater)->training->global_step = 0;
    start->record = lossy(updater)->info;
    return true;
}

static void lossy_look_for_end(struct updater *updater)
{
    struct training *training = lossy(updater)->training;
    if (training->global_step >= training->plan.last_step) {
        training_stop(training, TRAINING_LAST_STEP);
    }
}

static bool lossy_step(struct updater *updater)
{
    struct training *training = lossy(updater)->training;
    const struct train_result done = {.steps = 1, .images = 10, .loss_sum = 1, .last_loss = 1, .finite = true};
    if (training->global_step >= lossy(updater)->lost_step) {
        lossy(updater)->lost_step = INT64_MAX;
        return training_stop(training, TRAINING_REJOINS);
    }
    training->global_step += 2;
    training_account(training, &done, 1e-3, 0);
    return true;
}

static bool lossy_hold(struct updater *updater, struct held_model *held)
{
    *held = (struct held_model){lossy(updater)->training->global_step, &lossy(updater)->info};
    lossy(updater)->validations++;
    return true;
}

static void lossy_release(struct updater *updater, bool is_best)
{
    assert_true(is_best == (lossy(updater)->validations == 1)); /* none is better than the first */
}

static void lossy_settle(struct updater *updater)
{
    lossy(updater)->settles++;
}

static void lossy_finish(struct updater *updater)
{
    lossy(updater)->finishes++;
    assert_int_equal(lossy(updater)->settles, lossy(updater)->finishes); /* by then everything in flight has arrived */
    if (lossy(updater)->lost_at_finish) {
        lossy(updater)->lost_at_finish = false;
        lossy(updater)->training->end = TRAINING_REJOINS;
    }
}

static void lossy_conclude(struct updater *updater, bool failed, double test_accuracy, const char *why)
{
    assert_false(failed);
    assert_true(test_accuracy >= 0);
    assert_string_equal(why, "last step reached");
    lossy(updater)->concluded++;
}

static void lossy_record(struct updater *updater, struct updater_record *record)
{
    *record = (struct updater_record){.best_score = lossy(updater)->info.best_score, .threshold = NAN};
}

static const struct updater_table lossy_table = {.is_shared = true,
                                                 .join = lossy_join,
                                                 .look_for_end = lossy_look_for_end,
                                                 .step = lossy_step,
                                                 .hold = lossy_hold,
                                                 .release = lossy_release,
                                                 .settle = lossy_settle,
                                                 .finish = lossy_finish,
                                                 .conclude = lossy_conclude,
                                                 .record = lossy_record};

/* In the middle and at the very end: it joins again and continues, and the job is concluded once. */
TEST_WITH(a_lost_model_is_joined_again, set_up, tear_down)
{
    struct stage *stage = *state;
    struct training training = {.config = &stage->config,
                                .model = &stage->model,
                                .engine = &stage->engine.engine,
                                .dataset = &stage->dataset,
                                .test = &stage->dataset.validation,
                                .digest = "test"};
    struct lossy_updater updater = {.updater = {.table = &lossy_table},
                                    .training = &training,
                                    .info = {.validation_score = NAN, .best_score = NAN},
                                    .lost_step = 100,
                                    .lost_at_finish = true};
    training.updater = &updater.updater;
    stage->config.output.validate_steps = 35; /* odd: others take every second such step */
    stage->config.train.train_steps = 200;
    training_plan(&training);
    assert_int_equal(training_run(&training), COMMAND_DONE);
    assert_int_equal(updater.joins, 3);
    assert_int_equal(updater.finishes, 2);
    assert_int_equal(updater.settles, 2); /* not for the lost model */
    assert_int_equal(updater.concluded, 1);
    assert_int_equal(training.local_step, 50 + 100 + 100);
    assert_int_equal(updater.validations, 2 + 5 + 5);
}

/* Last: the signal stays pending for the rest of the process. */
TEST_WITH(a_signal_checkpoints_and_leaves, set_up, tear_down)
{
    struct stage *stage = *state;
    signals_catch();
    stage->engine.signal_step = 77;
    struct outcome result = run(stage);
    assert_int_equal(result.end, TRAINING_INTERRUPTED);
    assert_int_equal(result.status, 128 + SIGTERM);
    assert_true(result.global_step > 77 && result.global_step < 1000);
    assert_true(has_checkpoint(stage, result.global_step));
    /* Requested before the first step: nothing to train, nothing new to save. */
    result = run_again(stage);
    assert_int_equal(result.end, TRAINING_INTERRUPTED);
    assert_int_equal(result.local_steps, 0);
}

int main(void)
{
    return check_run(NULL, NULL);
}
