/* Slices of training by the engine itself, and checkpoints of its state. */
#include "worker/local_updater.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/profile.h"
#include "ps/checkpoint/writer.h"
#include "ps/store/rounds.h"
#include "worker/checkpoint_ledger.h"
#include "worker/clients/clients.h"
#include "worker/initial.h"
#include "worker/kept_rows.h"

enum { SOUNDNESS_IMAGES = 100 /* on which a state must have a finite loss before it is saved */ };

static const double SLICE_S = 0.05;

struct local_updater {
    struct updater updater;
    struct training *training;
    struct config_train train; /* by which the state is kept */
    struct checkpoint_ledger ledger;
    struct checkpoint_writer *writer; /* NULL: no train_dir, and then neither folder nor snapshot */
    struct checkpoint_state snapshot;
    char *kept_rows;     /* of the last checkpoint: the ledger's info borrows it */
    int64_t slice_steps; /* for about SLICE_S */
};

static struct local_updater *of(struct updater *updater)
{
    return (struct local_updater *)updater;
}

/* --- Checkpoints --- */

/* The outcome of the checkpoint in progress, once it is known. A failed one makes the run end with status 1. */
static void collect_saved(struct local_updater *local, bool wait)
{
    struct checkpoint_report saved;
    struct error error;
    if (!local->writer) {
        return;
    }
    enum checkpoint_outcome outcome = wait ? checkpoint_writer_wait(local->writer, &saved, &error)
                                           : checkpoint_writer_poll(local->writer, &saved, &error);
    if (outcome == CHECKPOINT_NO_NEWS) {
        return;
    }
    checkpoint_ledger_done(&local->ledger, &saved, outcome == CHECKPOINT_FAILED ? &error : NULL,
                           local->training->progress.active);
}

/* Is the present state worth saving: does it still have a finite loss? Costs one small batch. */
static bool state_is_sound(struct training *training)
{
    struct examples few = training->dataset->sample;
    few.count = few.count < SOUNDNESS_IMAGES ? few.count : SOUNDNESS_IMAGES;
    if (!evaluate(&training->evaluation, training->engine, false, &few, &training->error)) {
        return training_fail(training);
    }
    const double loss = training->evaluation.loss;
    return isfinite(loss) || training_fail_not_finite(training, "the loss", loss, training->global_step);
}

static bool copy_state(struct local_updater *local)
{
    struct training *training = local->training;
    struct engine *engine = training->engine;
    for (int v = 0; v < STORE_VECTORS; v++) {
        float *values = local->snapshot.vectors[v];
        if (values && !engine->table->read(engine, (enum store_vector)v, 0, training->model->float_count, values,
                                           &training->error)) {
            return training_fail(training);
        }
    }
    return true;
}

/* Starts saving the present state in the background; waits only if an earlier checkpoint is still in progress. */
static void begin_to_save(struct local_updater *local, int targets)
{
    struct training *training = local->training;
    const double begin_s = clock_monotonic_s();
    collect_saved(local, true);
    if (!state_is_sound(training) || !copy_state(local)) {
        return;
    }
    if ((targets & CHECKPOINT_MODEL) && training->engine->table->keep) {
        training->engine->table->keep(training->engine, training->global_step);
    }
    free(local->kept_rows);
    local->kept_rows = kept_rows_tell(training->config, training->dataset, training->test, &local->snapshot);
    local->ledger.info.kept_rows = local->kept_rows;
    local->ledger.info.global_step = training->global_step;
    checkpoint_writer_submit(local->writer, targets, &local->snapshot, &local->ledger.info);
    checkpoint_ledger_begin(&local->ledger, targets, training->global_step);
    training_charge(training, clock_monotonic_s() - begin_s);
}

static void save(struct updater *updater, bool is_best)
{
    struct local_updater *local = of(updater);
    const bool ends = local->training->end != TRAINING_GOES_ON;
    const int64_t step = local->training->global_step, save_steps = local->ledger.supervisor.save_steps;
    if (local->writer) {
        /*
         * Checkpoints by steps must be of those steps: if the disk can't keep up, training waits for it. Those by time
         * are delayed instead.
         */
        collect_saved(local, ends || (save_steps > 0 && step % save_steps == 0));
        bool is_due = ends ? supervisor_is_unsaved(&local->ledger.supervisor, step)
                           : supervisor_should_save(&local->ledger.supervisor, step, clock_monotonic_s());
        int targets = (is_due ? CHECKPOINT_MODEL : 0) | (is_best ? CHECKPOINT_BEST : 0);
        if (targets != 0) {
            begin_to_save(local, targets);
        }
    }
    local->ledger.info.validation_score = NAN; /* the next checkpoint is of another step */
}

static void record(struct updater *updater, struct updater_record *record)
{
    struct local_updater *local = of(updater);
    collect_saved(local, true);
    checkpoint_ledger_record(&local->ledger, record);
}

/* If this process simulates workers that validate on their own rows. */
static bool gather(struct updater *updater, int64_t global_step, enum metric metric, struct evaluation *evaluation,
                   struct validators *validators)
{
    struct training *training = of(updater)->training;
    (void)global_step;
    return !training->validates_as_all || !isfinite(evaluation->loss) ||
           clients_validate(training->engine, metric, evaluation, validators, &training->error) ||
           training_fail(training);
}

static void finish(struct updater *updater)
{
    collect_saved(of(updater), true); /* the last one was ordered at the end of training */
}

/* --- Where training starts --- */

static bool put_state(struct local_updater *local, const struct checkpoint_state *state)
{
    struct training *training = local->training;
    return engine_put_vectors(training->engine, state->vectors, training->model->float_count, &training->error) ||
           training_fail(training);
}

static bool put_initial_state(struct local_updater *local)
{
    struct training *training = local->training;
    const struct config *config = training->config;
    /* Uses the snapshot's memory, if there is one: it is not needed before the first checkpoint. */
    struct checkpoint_state own = {.memory = NULL}, *state = local->writer ? &local->snapshot : &own;
    char source[256];
    if (!local->writer && !checkpoint_state_create(&own, training->model, &local->train, &training->error)) {
        return training_fail(training);
    }
    bool done = initial_state(config, state, source, sizeof source, &training->error) ? put_state(local, state)
                                                                                      : training_fail(training);
    checkpoint_state_destroy(&own);
    return done;
}

/* Loads the newest good checkpoint into the engine. *restored is false if there is none. */
static bool restore(struct local_updater *local, bool *restored)
{
    struct training *training = local->training;
    struct checkpoint_file *file = NULL;
    if (!checkpoint_folder_newest(&local->ledger.folder, &file, &training->error)) {
        return training_fail(training);
    }
    *restored = file;
    if (!file) {
        return true;
    }
    if (!initial_fits(file, training->dataset, &training->error)) {
        checkpoint_close(file);
        return training_fail(training);
    }
    bool done = checkpoint_load(file, &local->snapshot, &training->error) ? put_state(local, &local->snapshot)
                                                                          : training_fail(training);
    checkpoint_ledger_restored(&local->ledger, file);
    checkpoint_close(file);
    return done;
}

static bool join(struct updater *updater, struct updater_start *start)
{
    struct local_updater *local = of(updater);
    struct training *training = local->training;
    const struct config *config = training->config;
    bool restored = false;
    if (local->writer && !restore(local, &restored)) {
        return false;
    }
    if (restored && local->ledger.info.seed != config->train.seed) {
        log_warning("%s was trained with seed %lld and continues with seed %lld: the order of the data changes",
                    local->ledger.last, (long long)local->ledger.info.seed, (long long)config->train.seed);
    }
    if (!restored && !put_initial_state(local)) {
        return false;
    }
    initial_record(&local->ledger.info, config, training->dataset);
    snprintf(local->ledger.info.config_digest, sizeof local->ledger.info.config_digest, "%s", training->digest);
    training->global_step = restored ? local->ledger.info.global_step : 0;
    training->engine->table->set_global_step(training->engine, training->global_step);
    if (restored && training->engine->table->recall &&
        !training->engine->table->recall(training->engine, training->global_step, &training->error)) {
        return training_fail(training);
    }
    supervisor_begin(&local->ledger.supervisor, &config->output, training->global_step, clock_monotonic_s());
    *start = (struct updater_start){.restored_from = restored ? local->ledger.last : NULL,
                                    .global_step = training->global_step,
                                    .record = local->ledger.info};
    return true;
}

/* --- Training --- */

static void look_for_end(struct updater *updater)
{
    struct training *training = of(updater)->training;
    if (training->global_step >= training->plan.last_step) {
        training_stop(training, TRAINING_LAST_STEP);
    }
}

static int64_t next_slice(const struct local_updater *local)
{
    const struct training *training = local->training;
    const int64_t to_due = training_steps_to_due(training);
    const int64_t to_save =
        local->writer ? supervisor_steps_to_save(&local->ledger.supervisor, training->global_step) : INT64_MAX;
    const int64_t n = to_save < to_due ? to_save : to_due;
    return local->slice_steps < n ? local->slice_steps : n;
}

static bool step(struct updater *updater)
{
    PROFILE("train");
    struct local_updater *local = of(updater);
    struct training *training = local->training;
    struct train_result done = {.finite = true};
    const double begin_s = clock_monotonic_s();
    if (!training->engine->table->train(training->engine, next_slice(local), &done, &training->error)) {
        return training_fail(training);
    }
    const double end_s = clock_monotonic_s();
    training->global_step += done.steps;
    training_account(training, &done, end_s - begin_s, end_s);
    if (!done.finite) {
        return training_fail_not_finite(training, "the loss", done.bad_loss, training->global_step);
    }
    /* Grows by doubling: the first steps are slow, and a delayed one must not set the pace. */
    int64_t wanted = (int64_t)(training->recent_steps_per_s * SLICE_S);
    wanted = wanted > 2 * local->slice_steps ? 2 * local->slice_steps : wanted;
    local->slice_steps = wanted < 1 ? 1 : wanted;
    return true;
}

/* Between two steps nothing else changes the model. */
static bool hold(struct updater *updater, struct held_model *held)
{
    struct local_updater *local = of(updater);
    *held = (struct held_model){.global_step = local->training->global_step, .record = &local->ledger.info};
    return true;
}

/* The best model goes with this step's checkpoint, if there is one: save handles both. */
static void release(struct updater *updater, bool is_best)
{
    (void)updater;
    (void)is_best;
}

/* --- Create and destroy --- */

static const struct updater_table local_table = {
    .is_shared = false,
    .join = join,
    .look_for_end = look_for_end,
    .step = step,
    .save = save,
    .hold = hold,
    .release = release,
    .gather = gather,
    .finish = finish,
    .record = record,
};

static bool open_folder(struct local_updater *local, struct error *error)
{
    const struct training *training = local->training;
    const struct config *config = training->config;
    if (!checkpoint_folder_open(&local->ledger.folder, config->output.train_dir, &config->output, error)) {
        return false;
    }
    if (!checkpoint_writer_create(&local->writer, &local->ledger.folder, error)) {
        checkpoint_folder_close(&local->ledger.folder);
        return false;
    }
    return checkpoint_state_create(&local->snapshot, training->model, &local->train, error);
}

bool local_updater_create(struct updater **updater, struct training *training, struct error *error)
{
    struct local_updater *local = calloc(1, sizeof *local);
    if (!local) {
        return error_set(error, "out of memory for training");
    }
    *local = (struct local_updater){.updater = {.table = &local_table},
                                    .training = training,
                                    .train = outer_train(&training->config->train),
                                    .ledger.info = {.validation_score = NAN, .best_score = NAN},
                                    .slice_steps = 1};
    if (training->config->output.train_dir[0] != '\0' && !open_folder(local, error)) {
        local_updater_destroy(&local->updater);
        return false;
    }
    *updater = &local->updater;
    return true;
}

void local_updater_destroy(struct updater *updater)
{
    struct local_updater *local = of(updater);
    if (local && local->writer) {
        checkpoint_writer_destroy(local->writer);
        checkpoint_folder_close(&local->ledger.folder);
        checkpoint_state_destroy(&local->snapshot);
        free(local->kept_rows);
    }
    free(local);
}
