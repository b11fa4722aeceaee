/*
 * Two threads use the chief's connections and its copy of the state: the one that trains, when it validates or ends the
 * job, and the one that saves. A mutex is held for the whole of a snapshot, its transfer and its writing.
 *
 * Checkpoints by steps are of exactly those steps, although nobody stops for them: the shards are told of the next one
 * long before it comes, keep it when it does, and are asked for it afterwards. A shard holds one snapshot at a time, so
 * whatever else needs one first sees to the one that is ordered, and orders it anew if it had to be given up.
 */
#include "worker/remote/chief.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/profile.h"
#include "base/signals.h"
#include "net/handshake.h"
#include "ps/checkpoint_folder.h"
#include "ps/rollout/lineage.h"
#include "ps/supervisor.h"
#include "worker/evaluate.h"
#include "worker/initial.h"
#include "worker/remote/transfer.h"
#include "worker/report.h"

enum {
    SNAPSHOT_TRIES = 6,
    SNAPSHOT_WAIT_MS = 250,   /* for a step that is about to come, or has come to some shards */
    SNAPSHOT_PATIENCE_S = 60, /* with connections that break */
};

static const double MOMENT_S = 0.02; /* until all shards have heard of a snapshot, if nothing keeps them */
static const double LOOK_S = 0.02;   /* the saving thread looks at clock and step so often */
static const double RATE_S = 0.2;    /* steps per second are measured over so long, at least */
static const double AHEAD_S = 0.3;   /* an ordered step that is so near is waited for before its order is replaced... */
static const double STALL_S = 0.1;   /* ...unless there was no step for so long */

/* The next checkpoint by steps, as the shards were told of it. */
struct order {
    uint64_t number; /* of the snapshot; 0: there is none */
    int64_t step;
};

struct chief {
    struct chief_options options;
    struct push_pull shards;
    struct checkpoint_state state;
    struct config_output output;     /* when to save, and what to keep. Locked */
    struct checkpoint_folder folder; /* only with a train_dir */
    bool has_folder;
    struct supervisor supervisor;
    struct checkpoint_info info;
    struct evaluation evaluation;
    struct summary *summary; /* borrowed; NULL: none */
    uint32_t generation;     /* the last one written or found */
    uint64_t snapshots;      /* taken so far, on top of a random number: an earlier chief's must not be met */
    char last_checkpoint[CHECKPOINT_MAX_PATH]; /* "": none */
    bool checkpoint_failed;
    pthread_mutex_t mutex;
    pthread_t thread;
    bool saves; /* the thread runs */
    atomic_bool end;
    bool holds;         /* no checkpoints: a rollout may go back to the last one. Locked */
    struct order order; /* locked */
    int64_t ordered;    /* step of the last order; -1: there was none. Locked */
    atomic_llong global_step;
    double rate_s; /* when the step was looked at last */
    int64_t rate_step;
    double steps_per_s;
};

static bool averaged(const struct chief *chief)
{
    return chief->options.config->train.ema_decay > 0;
}

/* ---- Beginning ---- */

bool chief_create(struct chief **out, const struct chief_options *options, struct error *error)
{
    const struct config *config = options->config;
    struct chief *chief = calloc(1, sizeof *chief);
    if (!chief) {
        return error_set(error, "not enough memory for the chief");
    }
    chief->options = *options;
    chief->output = config->output;
    chief->info = (struct checkpoint_info){.validation_accuracy = -1, .best_accuracy = -1};
    chief->holds = lineage_is_fresh(config);
    chief->snapshots = handshake_new_incarnation() >> 1;
    pthread_mutex_init(&chief->mutex, NULL);
    struct push_pull_options exchange = {.config = config,
                                         .model = options->model,
                                         .engine = options->engine,
                                         .self = options->self,
                                         .traffic = options->traffic,
                                         .given_up = options->given_up,
                                         .context = options->context};
    bool done = push_pull_create(&chief->shards, &exchange, error) &&
                checkpoint_state_create(&chief->state, options->model, &config->train, error) &&
                evaluation_create(&chief->evaluation, options->model->widths[options->model->layer_count], error);
    if (done && config->output.train_dir[0] != '\0') {
        chief->has_folder = done =
            checkpoint_folder_open(&chief->folder, config->output.train_dir, &chief->output, error);
    }
    if (!done) {
        chief_destroy(chief);
        return false;
    }
    *out = chief;
    return true;
}

static void stop_saving(struct chief *chief)
{
    if (chief->saves) {
        atomic_store(&chief->end, true);
        pthread_join(chief->thread, NULL);
        chief->saves = false;
        atomic_store(&chief->end, false); /* it begins anew if training does */
    }
}

void chief_destroy(struct chief *chief)
{
    if (chief) {
        stop_saving(chief);
        push_pull_destroy(&chief->shards);
        checkpoint_state_destroy(&chief->state);
        evaluation_destroy(&chief->evaluation);
        if (chief->has_folder) {
            checkpoint_folder_close(&chief->folder);
        }
        pthread_mutex_destroy(&chief->mutex);
        free(chief);
    }
}

static bool initial_state(struct chief *chief, char *source, size_t size, struct error *error)
{
    const struct config *config = chief->options.config;
    const struct model *model = chief->options.model;
    struct checkpoint_state *state = &chief->state;
    if (!initial_parameters(config, model, state->vectors[STORE_PARAMETERS], source, size, error)) {
        return false;
    }
    if (state->vectors[STORE_AVERAGES]) {
        memcpy(state->vectors[STORE_AVERAGES], state->vectors[STORE_PARAMETERS], model->float_count * sizeof(float));
    }
    for (int slot = 0; slot < optimizer_slots(config->train.optimizer); slot++) {
        float initial = optimizer_slot_initial(&config->train, slot);
        for (size_t i = 0; i < model->float_count; i++) {
            state->vectors[STORE_SLOT0 + slot][i] = initial;
        }
    }
    return true;
}

/* A checkpoint that a rollout leads from or back to is taken over as far as it fits. */
static bool load_state(struct chief *chief, struct checkpoint_file *file, struct error *error)
{
    const struct config *config = chief->options.config;
    char source[256], lost[512];
    bool may_lose = false;
    if (checkpoint_load(file, &chief->state, error)) {
        return true;
    }
    if (!lineage_adopts(config, checkpoint_file_info(file)->config_digest, &may_lose)) {
        return false;
    }
    if (!initial_state(chief, source, sizeof source, error) ||
        !checkpoint_load_fitting(file, &chief->state, lost, sizeof lost, error)) {
        return false;
    }
    if (lost[0] != '\0' && !may_lose) {
        return error_set(error, "%.200s: this config would lose %.500s", checkpoint_path(file), lost);
    }
    log_info("%s is taken over as far as it fits%s%s", checkpoint_path(file), lost[0] != '\0' ? "; lost is " : "",
             lost);
    return true;
}

/* What the newest good checkpoint holds, or a new model; source: in words. load: the state too, not just the counters. */
static bool find_state(struct chief *chief, bool load, char *source, size_t size, struct error *error)
{
    const struct config *config = chief->options.config;
    struct checkpoint_file *file = NULL;
    if (chief->has_folder && !checkpoint_folder_newest(&chief->folder, &file, error)) {
        return false;
    }
    bool done = true;
    if (file) {
        done = !load || load_state(chief, file, error);
        chief->info = *checkpoint_file_info(file);
        snprintf(chief->last_checkpoint, sizeof chief->last_checkpoint, "%s", checkpoint_path(file));
        snprintf(source, size, "restored from %.200s", chief->last_checkpoint);
        checkpoint_close(file);
    } else if (load) {
        chief->info.global_step = 0;
        done = initial_state(chief, source, size, error);
    }
    chief->info.seed = config->train.seed;
    chief->info.fleet_version = config->fleet.version;
    memcpy(chief->info.config_digest, chief->options.self->digest, sizeof chief->info.config_digest);
    return done;
}

/* Do all shards hold the model, of one generation? newest: the highest generation any of them knows. */
static bool is_whole(const struct chief *chief, const struct shard_status *status, uint32_t *newest, int64_t *step)
{
    bool whole = true;
    *newest = 0;
    *step = 0;
    for (int i = 0; i < chief->shards.count; i++) {
        *newest = status[i].generation > *newest ? status[i].generation : *newest;
        *step = status[i].global_step > *step ? status[i].global_step : *step;
        whole = whole && status[i].ready && !status[i].over && status[i].generation == status[0].generation;
    }
    return whole;
}

static enum push_pull_end write_shards(struct chief *chief, uint32_t generation, struct chief_start *start,
                                       struct error *error)
{
    char source[256] = "";
    if (!find_state(chief, true, source, sizeof source, error)) {
        return PUSH_PULL_REFUSED;
    }
    start->global_step = chief->info.global_step;
    start->restored_from = chief->last_checkpoint[0] != '\0' ? chief->last_checkpoint : NULL;
    chief->generation = generation;
    if (generation > 1) {
        log_info("generation %u of the model begins at step %lld, %s", generation, (long long)start->global_step,
                 source);
    }
    struct transfer_steps steps = {.global_step = start->global_step,
                                   .last_step = chief->options.plan->last_step,
                                   .epoch_steps = plan_epoch_end(chief->options.plan, 1)};
    return transfer_restore(&chief->shards, generation, &chief->state, source, &steps, error);
}

static enum push_pull_end begin_once(struct chief *chief, struct shard_status *status, struct chief_start *start,
                                     struct error *error)
{
    uint32_t newest;
    char source[256];
    enum push_pull_end end = transfer_status(&chief->shards, status, error);
    if (end != PUSH_PULL_DONE) {
        return end;
    }
    *start = (struct chief_start){.resumed = true};
    if (!is_whole(chief, status, &newest, &start->global_step)) {
        start->resumed = false;
        /* Above what all ps forgot, too: what workers still send of it must not be taken for the new one's. */
        uint32_t above = newest > chief->generation ? newest : chief->generation;
        return write_shards(chief, above + 1, start, error);
    }
    chief->shards.generation = chief->generation = newest;
    return find_state(chief, false, source, sizeof source, error) ? PUSH_PULL_DONE : PUSH_PULL_REFUSED;
}

static void *save_on(void *context);

enum push_pull_end chief_begin(struct chief *chief, struct chief_start *start, struct error *error)
{
    struct shard_status *status = calloc((size_t)chief->shards.count, sizeof *status);
    enum push_pull_end end = PUSH_PULL_REFUSED;
    if (!status) {
        error_set(error, "not enough memory for the chief");
        return end;
    }
    pthread_mutex_lock(&chief->mutex);
    chief->order.number = 0;
    chief->ordered = -1;
    do {
        end = begin_once(chief, status, start, error);
    } while (end == PUSH_PULL_AGAIN && signals_pending() == 0);
    free(status);
    if (end == PUSH_PULL_DONE) {
        atomic_store(&chief->global_step, start->global_step);
        supervisor_begin(&chief->supervisor, &chief->output,
                         start->resumed ? chief->info.global_step : start->global_step, clock_monotonic_s());
    }
    pthread_mutex_unlock(&chief->mutex);
    if (end == PUSH_PULL_DONE && chief->has_folder && !chief->saves) {
        chief->saves = pthread_create(&chief->thread, NULL, save_on, chief) == 0;
        if (!chief->saves) {
            log_warning("no thread to save checkpoints: only the last one will be kept");
        }
    }
    return end == PUSH_PULL_AGAIN ? PUSH_PULL_STOPPED : end;
}

void chief_note_step(struct chief *chief, int64_t global_step)
{
    atomic_store_explicit(&chief->global_step, global_step, memory_order_relaxed);
}

/* ---- Snapshots ---- */

/* The next step to save after this one; -1: none before the last, which has a checkpoint of its own. */
static int64_t next_to_save(const struct chief *chief, int64_t step)
{
    int64_t left = supervisor_steps_to_save(&chief->supervisor, step);
    return left < chief->options.plan->last_step - step ? step + left : -1;
}

/* Checkpoints between the last one that was ordered and this one will not be. Locked. */
static void tell_of_skipped(struct chief *chief, int64_t step)
{
    int64_t every = chief->supervisor.save_steps;
    if (chief->ordered >= 0 && step > chief->ordered + every) {
        log_warning("no checkpoint of step %lld: it was past before that of step %lld had been fetched from the ps; a "
                    "larger --save_steps leaves time for each",
                    (long long)(chief->ordered + every), (long long)chief->ordered);
    }
    chief->ordered = step;
}

/* Tells the shards of the next checkpoint by steps. Locked. */
static void order_next(struct chief *chief)
{
    struct error error;
    struct snapshot_answer answer;
    int64_t step = atomic_load(&chief->global_step);
    chief->order.number = 0;
    if (!chief->has_folder || chief->holds || next_to_save(chief, step) < 0 ||
        transfer_newest_step(&chief->shards, &step, &error) != PUSH_PULL_DONE) {
        return;
    }
    struct order order = {.number = ++chief->snapshots, .step = next_to_save(chief, step)};
    if (order.step >= 0 &&
        transfer_snapshot(&chief->shards, order.number, order.step, 0, &answer, &error) == PUSH_PULL_DONE) {
        chief->order = order;
        tell_of_skipped(chief, order.step);
    }
}

/*
 * The state of one step, on every shard. Locked. which: as in transfer_read. With several shards that are not at the
 * same step just now, one a little ahead is agreed on, or the last one, where all of them stop. The last try looks once
 * more at what is there, for training may stand still. stopped: it does for good, so shards that differ are taken too:
 * a worker that was killed may have pushed to some of them only.
 */
static enum push_pull_end take_now(struct chief *chief, unsigned which, bool stopped, int64_t *global_step,
                                   struct error *error)
{
    enum push_pull_end end = PUSH_PULL_AGAIN;
    PROFILE("take snapshot");
    int workers = chief->options.config->cluster.worker_hosts.count;
    const double deadline_s = clock_monotonic_s() + SNAPSHOT_PATIENCE_S;
    int64_t seen = 0;        /* on some shard: this worker may be far behind the others' steps */
    chief->order.number = 0; /* replaced on the shards */
    for (int i = 0; i < SNAPSHOT_TRIES && end == PUSH_PULL_AGAIN; i++) {
        struct snapshot_answer answer;
        bool last = i + 1 == SNAPSHOT_TRIES;
        int64_t now = atomic_load(&chief->global_step), in_a_moment = (int64_t)(chief->steps_per_s * MOMENT_S);
        int64_t ahead = (now > seen ? now : seen) + (2 + workers + in_a_moment) * i;
        ahead = ahead < chief->options.plan->last_step ? ahead : chief->options.plan->last_step;
        bool exact = i > 0 && !last;
        uint64_t number = ++chief->snapshots;
        chief->shards.broken = false;
        end = transfer_snapshot(&chief->shards, number, exact ? ahead : -1, SNAPSHOT_WAIT_MS, &answer, error);
        seen = end == PUSH_PULL_DONE && answer.global_step > seen ? answer.global_step : seen;
        if (end == PUSH_PULL_DONE && (!answer.taken || (!answer.same && !(last && stopped)))) {
            end = PUSH_PULL_AGAIN;
        } else if (end == PUSH_PULL_DONE) {
            *global_step = answer.global_step;
            end = transfer_read(&chief->shards, number, which, &chief->state, error);
        }
        if (end == PUSH_PULL_AGAIN && chief->shards.broken && clock_monotonic_s() < deadline_s) {
            i--; /* a connection that broke says nothing about the snapshot */
        }
    }
    if (!stopped) {
        order_next(chief);
    }
    return end;
}

/* Writes the state that was taken. Locked. */
static void write_checkpoint(struct chief *chief, int targets, int64_t global_step)
{
    struct error error;
    struct checkpoint_info info = chief->info;
    const struct identity *now = self_identity(chief->options.self);
    char path[CHECKPOINT_MAX_PATH];
    info.global_step = global_step;
    info.fleet_version = (int64_t)now->fleet_version;
    snprintf(info.config_digest, sizeof info.config_digest, "%s", now->digest);
    if (targets & CHECKPOINT_MODEL) {
        supervisor_save_began(&chief->supervisor, global_step, clock_monotonic_s());
    }
    bool written = checkpoint_folder_save(&chief->folder, targets, &chief->state, &info, &error);
    if (targets & CHECKPOINT_MODEL) {
        supervisor_save_ended(&chief->supervisor, written);
    }
    if (!written) {
        chief->checkpoint_failed = true;
        log_error("%s; training goes on, and this run will end with status 1", error.text);
        return;
    }
    for (int target = CHECKPOINT_MODEL; target <= CHECKPOINT_BEST; target *= 2) {
        if (targets & target) {
            checkpoint_folder_name(&chief->folder, (enum checkpoint_target)target, global_step, path);
            report_checkpoint(&(struct report_checkpoint){
                .path = path, .global_step = global_step, .is_best = target == CHECKPOINT_BEST});
        }
    }
    if (targets & CHECKPOINT_MODEL) {
        checkpoint_folder_name(&chief->folder, CHECKPOINT_MODEL, global_step, chief->last_checkpoint);
    }
}

static bool state_is_finite(const struct chief *chief)
{
    for (int v = 0; v < STORE_VECTORS; v++) {
        const float *values = chief->state.vectors[v];
        for (size_t i = 0; values && i < chief->options.model->float_count; i++) {
            if (!isfinite(values[i])) {
                return false;
            }
        }
    }
    return true;
}

/* Saves the state that was taken, unless it is past saving. Locked. */
static void save_taken(struct chief *chief, int64_t global_step)
{
    if (state_is_finite(chief)) {
        write_checkpoint(chief, CHECKPOINT_MODEL, global_step);
    } else {
        log_warning("the model is not finite any more at step %lld: it is not saved", (long long)global_step);
    }
}

/* ---- Checkpoints by steps ---- */

/*
 * Reads and saves the checkpoint that was ordered, whose step has come to this worker at least. Locked. False: some
 * shard was past it when it was told, so that there is no such checkpoint.
 */
static bool collect_order(struct chief *chief)
{
    PROFILE("take snapshot");
    struct error error;
    struct snapshot_answer answer;
    struct order order = chief->order;
    chief->order.number = 0;
    enum push_pull_end end =
        transfer_snapshot(&chief->shards, order.number, order.step, SNAPSHOT_WAIT_MS, &answer, &error);
    if (end == PUSH_PULL_DONE && !answer.taken) {
        return false;
    }
    if (end == PUSH_PULL_DONE &&
        transfer_read(&chief->shards, order.number, ~0u, &chief->state, &error) == PUSH_PULL_DONE) {
        order_next(chief); /* before this one is written: the next may come meanwhile */
        save_taken(chief, order.step);
    }
    return true;
}

/*
 * To be called before another snapshot is taken. Locked. An ordered one that the shards hold already, or will in a
 * moment, is saved first. It is waited for only while others push: the thread that waits may be the one that trains.
 */
static void settle_order(struct chief *chief)
{
    struct error error;
    double now_s = clock_monotonic_s(), moved_s = now_s;
    int64_t step, before = -1;
    while (chief->order.number != 0 && now_s - moved_s < STALL_S &&
           transfer_newest_step(&chief->shards, &step, &error) == PUSH_PULL_DONE) {
        if (step >= chief->order.step) {
            collect_order(chief);
            return;
        }
        if ((double)(chief->order.step - step) > 2 + AHEAD_S * chief->steps_per_s) {
            return;
        }
        moved_s = step > before ? now_s : moved_s;
        before = step;
        shard_link_pause(now_s + LOOK_S);
        now_s = clock_monotonic_s();
    }
}

/* ---- Rollouts ---- */

bool chief_checkpoint(struct chief *chief, struct error *error)
{
    int64_t step;
    bool done = false;
    if (!chief->has_folder) {
        return error_set(error, "worker 0 has no train_dir, so there would be no checkpoint to go back to: give it one "
                                "by --train_dir");
    }
    pthread_mutex_lock(&chief->mutex);
    settle_order(chief);
    if (take_now(chief, ~0u, false, &step, error) == PUSH_PULL_DONE) {
        done = state_is_finite(chief) || error_set(error, "the model is not finite at step %lld", (long long)step);
        bool failed = chief->checkpoint_failed;
        if (done) {
            chief->checkpoint_failed = false;
            write_checkpoint(chief, CHECKPOINT_MODEL, step);
            done = !chief->checkpoint_failed || error_set(error, "the checkpoint to go back to could not be written");
        }
        chief->checkpoint_failed |= failed;
    }
    chief->holds = done;
    chief->order.number = 0;
    pthread_mutex_unlock(&chief->mutex);
    return done;
}

void chief_settle(struct chief *chief)
{
    pthread_mutex_lock(&chief->mutex);
    chief->holds = false;
    pthread_mutex_unlock(&chief->mutex);
}

void chief_retime(struct chief *chief, const struct config_output *output)
{
    pthread_mutex_lock(&chief->mutex);
    chief->output.save_steps = output->save_steps;
    chief->output.save_model_secs = output->save_model_secs;
    chief->output.max_to_keep = output->max_to_keep;
    chief->output.keep_every_n_hours = output->keep_every_n_hours;
    supervisor_retime(&chief->supervisor, &chief->output);
    chief->order.number = 0;
    chief->ordered = -1;
    pthread_mutex_unlock(&chief->mutex);
}

bool chief_restore(struct chief *chief, struct error *error)
{
    struct shard_status *status = calloc((size_t)chief->shards.count, sizeof *status);
    struct chief_start start = {0};
    if (!status) {
        return error_set(error, "not enough memory for the chief");
    }
    pthread_mutex_lock(&chief->mutex);
    chief->order.number = 0;
    chief->ordered = -1;
    enum push_pull_end end = transfer_status(&chief->shards, status, error);
    if (end == PUSH_PULL_DONE) {
        uint32_t newest;
        int64_t step;
        is_whole(chief, status, &newest, &step);
        end = write_shards(chief, (newest > chief->generation ? newest : chief->generation) + 1, &start, error);
    }
    if (end == PUSH_PULL_DONE) {
        atomic_store(&chief->global_step, start.global_step);
        supervisor_begin(&chief->supervisor, &chief->output, start.global_step, clock_monotonic_s());
        chief->holds = false;
    }
    pthread_mutex_unlock(&chief->mutex);
    free(status);
    return end == PUSH_PULL_DONE ||
           (end == PUSH_PULL_REFUSED ? false : error_set(error, "the shards are not all there"));
}

/* ---- The thread that saves ---- */

static void measure_rate(struct chief *chief, int64_t step)
{
    double now_s = clock_monotonic_s(), seconds = now_s - chief->rate_s;
    if (seconds >= RATE_S) {
        chief->steps_per_s = (double)(step - chief->rate_step) / seconds;
        chief->rate_step = step;
        chief->rate_s = now_s;
    }
}

/* Saves what is there, of whatever step. Locked. */
static void save_now(struct chief *chief)
{
    struct error error;
    int64_t step;
    if (take_now(chief, ~0u, false, &step, &error) == PUSH_PULL_DONE) {
        save_taken(chief, step);
    }
}

static void save_what_is_due(struct chief *chief, int64_t step)
{
    if (chief->holds || step >= chief->options.plan->last_step) {
        return; /* the end is at hand, and has a checkpoint of its own */
    }
    if (chief->order.number == 0) {
        order_next(chief);
    } else if (step >= chief->order.step && !collect_order(chief)) {
        save_now(chief); /* steps that follow one another so fast can't be had one by one */
    }
    if (supervisor_is_time_to_save(&chief->supervisor, step, clock_monotonic_s())) {
        settle_order(chief);
        save_now(chief);
    }
}

static void *save_on(void *context)
{
    struct chief *chief = context;
    profile_thread("checkpoints");
    while (!atomic_load(&chief->end)) {
        int64_t step = atomic_load(&chief->global_step);
        pthread_mutex_lock(&chief->mutex);
        measure_rate(chief, step);
        save_what_is_due(chief, step);
        pthread_mutex_unlock(&chief->mutex);
        shard_link_pause(clock_monotonic_s() + LOOK_S);
    }
    return NULL;
}

/* ---- Validation ---- */

/* What evaluation needs of the state, into the engine. Locked. */
static bool state_to_engine(struct chief *chief, struct error *error)
{
    struct engine *engine = chief->options.engine;
    size_t floats = chief->options.model->float_count;
    return engine->table->write(engine, STORE_PARAMETERS, 0, floats, chief->state.vectors[STORE_PARAMETERS], error) &&
           (!averaged(chief) ||
            engine->table->write(engine, STORE_AVERAGES, 0, floats, chief->state.vectors[STORE_AVERAGES], error));
}

enum chief_verdict chief_verdict(const struct chief *chief)
{
    const struct config_train *train = &chief->options.config->train;
    if (train->target_accuracy > 0 && chief->info.best_accuracy >= train->target_accuracy) {
        return CHIEF_TARGET;
    }
    return train->patience > 0 && chief->info.bad_validations >= train->patience ? CHIEF_PATIENCE : CHIEF_GO_ON;
}

static enum chief_verdict judge(struct chief *chief, int64_t step, struct error *error)
{
    PROFILE("validate");
    struct evaluation *evaluation = &chief->evaluation;
    struct checkpoint_info *info = &chief->info;
    if (!evaluate(evaluation, chief->options.engine, averaged(chief), &chief->options.dataset->validation, error)) {
        return CHIEF_FAILED;
    }
    if (!isfinite(evaluation->loss)) {
        error_set(error,
                  "the validation loss is %g at step %lld: training stops here; lower --learning_rate and start again",
                  report_number(evaluation->loss), (long long)step);
        return CHIEF_FAILED;
    }
    info->validation_accuracy = evaluation_accuracy(evaluation);
    bool is_best = info->validation_accuracy > info->best_accuracy;
    if (is_best) {
        info->best_accuracy = info->validation_accuracy;
        info->best_step = step;
    }
    info->bad_validations = is_best ? 0 : info->bad_validations + 1;
    report_validation(&(struct report_validation){.epoch = plan_epoch(chief->options.plan, step),
                                                  .global_step = step,
                                                  .accuracy = info->validation_accuracy,
                                                  .loss = evaluation->loss,
                                                  .best_accuracy = info->best_accuracy,
                                                  .best_step = info->best_step});
    summary_validation(chief->summary, step, info->validation_accuracy, evaluation->loss);
    if (is_best && chief->has_folder) {
        write_checkpoint(chief, CHECKPOINT_BEST, step);
    }
    info->validation_accuracy = -1; /* of the next checkpoint, which is of another step */
    return chief_verdict(chief);
}

void chief_watch(struct chief *chief, struct summary *summary)
{
    chief->summary = summary;
}

enum chief_verdict chief_validate(struct chief *chief, struct error *error)
{
    enum chief_verdict verdict = CHIEF_GO_ON;
    int64_t step = 0;
    unsigned which = chief->has_folder ? ~0u : 1u << STORE_PARAMETERS | 1u << STORE_AVERAGES;
    pthread_mutex_lock(&chief->mutex);
    settle_order(chief);
    /* Shards that can't be read now will be waited for by the next push; the next validation is not far. */
    if (take_now(chief, which, false, &step, error) == PUSH_PULL_DONE) {
        verdict = state_to_engine(chief, error) ? judge(chief, step, error) : CHIEF_FAILED;
    }
    pthread_mutex_unlock(&chief->mutex);
    return verdict;
}

/* ---- The end ---- */

enum push_pull_end chief_finish(struct chief *chief, bool ended, int64_t *global_step, struct error *error)
{
    stop_saving(chief);
    pthread_mutex_lock(&chief->mutex);
    if (chief->order.number != 0 && atomic_load(&chief->global_step) >= chief->order.step) {
        collect_order(chief);
    }
    enum push_pull_end end = take_now(chief, ~0u, true, global_step, error);
    if (end == PUSH_PULL_DONE && chief->has_folder && supervisor_is_unsaved(&chief->supervisor, *global_step)) {
        save_taken(chief, *global_step);
    }
    if (end == PUSH_PULL_DONE && ended && !state_to_engine(chief, error)) {
        end = PUSH_PULL_REFUSED;
    }
    pthread_mutex_unlock(&chief->mutex);
    return end;
}

bool chief_end_job(struct chief *chief, bool failed, double test_accuracy, const char *sentence, struct error *error)
{
    enum { STATE_JOB_DONE = 3, STATE_JOB_FAILED = 4 };
    struct message_end_job message = {.job_state = failed ? STATE_JOB_FAILED : STATE_JOB_DONE,
                                      .global_step = atomic_load(&chief->global_step),
                                      .test_accuracy = (float)test_accuracy,
                                      .sentence = sentence};
    pthread_mutex_lock(&chief->mutex);
    bool told = transfer_end_job(&chief->shards, &message, error);
    pthread_mutex_unlock(&chief->mutex);
    return told;
}

void chief_record(struct chief *chief, struct chief_record *record)
{
    pthread_mutex_lock(&chief->mutex);
    *record =
        (struct chief_record){.best_accuracy = chief->info.best_accuracy,
                              .best_step = chief->info.best_step,
                              .checkpoint_failed = chief->checkpoint_failed,
                              .last_checkpoint = chief->last_checkpoint[0] != '\0' ? chief->last_checkpoint : NULL};
    pthread_mutex_unlock(&chief->mutex);
}
