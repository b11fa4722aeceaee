/*
 * A chief on the test's own shards, which record requests: they replace worker/remote/chief's transfers, and see what
 * is saved.
 */
#ifndef TESTS_WORKER_REMOTE_CHIEF_SHARDS_H
#define TESTS_WORKER_REMOTE_CHIEF_SHARDS_H

#include "worker/remote/chief.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "ps/checkpoint/folder.h"
#include "ps/shard.h"
#include "tests/worker/remote/story.h"
#include "worker/remote/exchange/requests.h"
#include "worker/remote/transfer.h"

enum { SHARDS = 2, MOST_ORDERS = 64, LAST_STEP = 95 };

/* --- The shards --- */

struct kept {
    uint64_t number;
    int64_t step;
};

/* All of it is guarded by the story's lock, which the saving thread and the test share. */
static struct {
    pthread_mutex_t lock;
    struct shard_status status[SHARDS];
    int64_t steps[SHARDS];
    struct kept orders[MOST_ORDERS];
    int order_count;
    int64_t passed; /* orders up to here come too late */
    int64_t lost;   /* the order of this step was not kept, as the next request for it shows */
    int64_t stuck;  /* likewise: never taken by all */
    bool trains;    /* shards reach any requested step */
    bool apart;     /* they are never at the same step */
    int breaks;     /* this many snapshots fail because their connection breaks */
    bool mute;      /* snapshots and reads are not recorded */
    float value;    /* of everything read */
    enum exchange_result asked, checked, written, ended, read, ordered, taken; /* of the next; then success */
    struct kept plain;                                                         /* the current snapshot */
    float first;                                                               /* of the parameters written last */
    float first_sent;                                                          /* likewise, of the sent model */
} shards = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline enum exchange_result once(enum exchange_result *end)
{
    const enum exchange_result now = *end;
    *end = EXCHANGE_OK;
    return now;
}

static inline int64_t highest(void)
{
    return shards.steps[0] > shards.steps[1] ? shards.steps[0] : shards.steps[1];
}

static inline int64_t lowest(void)
{
    return shards.steps[0] < shards.steps[1] ? shards.steps[0] : shards.steps[1];
}

/* The shards advance to this step; the chief's own worker has seen it. */
static inline void advance(struct chief *chief, int64_t step)
{
    pthread_mutex_lock(&shards.lock);
    shards.steps[0] = shards.steps[1] = step;
    pthread_mutex_unlock(&shards.lock);
    chief_note_step(chief, step);
}

enum exchange_result transfer_status(struct push_pull *exchange, struct shard_status *status, struct error *error)
{
    assert_int_equal(exchange->count, SHARDS);
    memcpy(status, shards.status, sizeof shards.status);
    tell("status\n");
    const enum exchange_result end = once(&shards.asked);
    return end == EXCHANGE_OK ? end : (error_set(error, "no status"), end);
}

enum exchange_result transfer_newest_step(struct push_pull *exchange, int64_t *global_step, struct error *error)
{
    pthread_mutex_lock(&shards.lock);
    *global_step = highest();
    pthread_mutex_unlock(&shards.lock);
    tell("newest\n");
    return once(&shards.asked);
}

enum exchange_result preprocessing_publish(struct push_pull *exchange, const struct dataset *dataset,
                                           struct error *error)
{
    tell("agree as chief%s\n", dataset->schema ? " on a schema" : "");
    return EXCHANGE_OK;
}

enum exchange_result preprocessing_check(struct push_pull *exchange, const struct dataset *dataset, struct error *error)
{
    tell("check\n");
    return once(&shards.checked);
}

enum exchange_result transfer_restore(struct push_pull *exchange, uint32_t generation,
                                      const struct checkpoint_state *state, const char *source, struct error *error)
{
    exchange->generation = generation;
    shards.first = state->vectors[STORE_PARAMETERS][0];
    shards.first_sent = state->vectors[STORE_SENT] ? state->vectors[STORE_SENT][0] : NAN;
    tell("restore generation %u: %.30s\n", generation, source);
    return once(&shards.written);
}

enum exchange_result transfer_end_restore(struct push_pull *exchange, const struct transfer_place *place,
                                          struct error *error)
{
    tell("end restore at %lld, epoch of %lld\n", (long long)place->global_step, (long long)place->epoch_batches);
    const enum exchange_result end = once(&shards.ended);
    for (int i = 0; i < SHARDS && end == EXCHANGE_OK; i++) {
        shards.steps[i] = place->global_step;
        shards.status[i] =
            (struct shard_status){.ready = true, .generation = exchange->generation, .global_step = place->global_step};
    }
    return end;
}

enum exchange_result transfer_snapshot(struct push_pull *exchange, uint64_t number, int64_t at_step, uint32_t wait_ms,
                                       struct snapshot_answer *answer, struct error *error)
{
    assert_int_equal(number & SNAPSHOT_ORDER, 0);
    pthread_mutex_lock(&shards.lock);
    assert_true(number != shards.plain.number);
    const bool breaks = shards.breaks > 0;
    const enum exchange_result end = once(&shards.taken);
    shards.breaks -= breaks;
    if (!breaks && shards.trains && at_step > highest()) {
        shards.steps[0] = at_step - shards.apart;
        shards.steps[1] = at_step;
    }
    *answer = (struct snapshot_answer){.taken = at_step <= lowest() || shards.apart,
                                       .same = !shards.apart && (at_step >= 0 || shards.steps[0] == shards.steps[1]),
                                       .global_step = at_step < 0 || shards.apart ? highest() : at_step};
    shards.plain = (struct kept){number, answer->global_step};
    if (!shards.mute) {
        tell("snapshot at %lld, %u ms\n", (long long)at_step, wait_ms);
    }
    pthread_mutex_unlock(&shards.lock);
    exchange->broken |= breaks;
    if (breaks) {
        error_set(error, "it broke");
        return EXCHANGE_REJOIN;
    }
    return end;
}

static inline struct kept *find_order(uint64_t number)
{
    for (int i = 0; i < shards.order_count; i++) {
        if (shards.orders[i].number == number) {
            return &shards.orders[i];
        }
    }
    return NULL;
}

enum exchange_result transfer_order(struct push_pull *exchange, uint64_t number, int64_t step, uint32_t wait_ms,
                                    enum order_state *state, struct error *error)
{
    assert_true(number & SNAPSHOT_ORDER);
    pthread_mutex_lock(&shards.lock);
    struct kept *order = find_order(number);
    const bool known = order;
    if (!known) {
        assert_true(shards.order_count < MOST_ORDERS);
        order = &shards.orders[shards.order_count++];
        *order = (struct kept){number, step};
        tell("order %lld\n", (long long)step);
    }
    assert_int_equal(order->step, step);
    const bool lost = step == shards.lost ? known : step <= shards.passed;
    *state = lost ? ORDER_LOST : step <= lowest() && step != shards.stuck ? ORDER_TAKEN : ORDER_PENDING;
    if (wait_ms > 0) {
        tell("waits %u ms for %lld\n", wait_ms, (long long)step);
    }
    const enum exchange_result end = known ? once(&shards.ordered) : EXCHANGE_OK;
    pthread_mutex_unlock(&shards.lock);
    error_set(error, "ps 1 is past it");
    return end;
}

void transfer_release(struct push_pull *exchange, uint64_t number)
{
    pthread_mutex_lock(&shards.lock);
    struct kept *order = find_order(number);
    assert_non_null(order);
    tell("release %lld\n", (long long)order->step);
    *order = shards.orders[--shards.order_count];
    pthread_mutex_unlock(&shards.lock);
}

enum exchange_result transfer_read(struct push_pull *exchange, uint64_t number, unsigned which,
                                   struct checkpoint_state *state, struct error *error)
{
    pthread_mutex_lock(&shards.lock);
    struct kept *order = find_order(number);
    assert_true(order || number == shards.plain.number);
    const enum exchange_result end = once(&shards.read);
    const int64_t step = order ? order->step : shards.plain.step;
    for (int v = 0; v < STORE_PS_VECTORS && end == EXCHANGE_OK; v++) {
        for (size_t i = 0; state->vectors[v] && (which >> v & 1) && i < exchange->model->float_count; i++) {
            state->vectors[v][i] = (float)step + (v == STORE_SENT ? 0.5f : shards.value);
        }
    }
    if (order || !shards.mute) {
        tell("read %lld%s\n", (long long)step,
             state->vectors[STORE_SENT] && (which >> STORE_SENT & 1) ? " and what was told" : "");
    }
    if (order && end == EXCHANGE_OK) {
        *order = shards.orders[--shards.order_count];
    }
    pthread_mutex_unlock(&shards.lock);
    return end == EXCHANGE_OK ? end : (error_set(error, "not read"), end);
}

bool transfer_end_job(struct push_pull *exchange, const struct message_end_job *message, double deadline_s,
                      struct error *error)
{
    assert_true(deadline_s > clock_monotonic_s()); /* broken links have time to reconnect */
    tell("end job %d at %lld, %.2f: %s\n", message->job_state, (long long)message->global_step,
         (double)message->test_accuracy, message->message);
    return once(&shards.ended) == EXCHANGE_OK || error_set(error, "ps 1 is gone");
}

/* --- The folder, and what a rollout brought --- */

bool __real_checkpoint_folder_save(struct checkpoint_folder *folder, int targets, const struct checkpoint_state *state,
                                   const struct checkpoint_info *info, struct error *error);
bool __wrap_checkpoint_folder_save(struct checkpoint_folder *folder, int targets, const struct checkpoint_state *state,
                                   const struct checkpoint_info *info, struct error *error);
bool __wrap_lineage_is_fresh(const struct config *config);
bool __wrap_lineage_adopts(const struct config *config, const char *digest, bool *may_lose);

/* What is saved is of one step, in every vector. */
bool __wrap_checkpoint_folder_save(struct checkpoint_folder *folder, int targets, const struct checkpoint_state *state,
                                   const struct checkpoint_info *info, struct error *error)
{
    for (int v = 0; v < STORE_VECTORS; v++) {
        for (size_t i = 0; state->vectors[v] && i < state->model->float_count; i++) {
            assert_true(state->vectors[v][i] == (float)info->global_step + shards.value);
        }
    }
    const bool done = __real_checkpoint_folder_save(folder, targets, state, info, error);
    tell("%s%s %lld of version %lld, %s\n", done ? "saved" : "not saved", targets & CHECKPOINT_BEST ? " as best" : "",
         (long long)info->global_step, (long long)info->fleet_version, info->config_digest);
    return done;
}

static bool is_fresh, adopts, adopts_with_loss;

bool __wrap_lineage_is_fresh(const struct config *config)
{
    return is_fresh;
}

bool __wrap_lineage_adopts(const struct config *config, const char *digest, bool *may_lose)
{
    *may_lose = adopts_with_loss;
    return adopts;
}

static bool has_no_thread;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context)
{
    return has_no_thread ? EAGAIN : __real_pthread_create(thread, attributes, run, context);
}

/* --- One chief --- */

struct bench {
    struct config config;
    struct model model;
    struct identity identity;
    struct dataset dataset;
    struct plan plan;
    struct traffic traffic;
    struct engine engine;
    struct chief *chief;
    char folder[64];
};

static inline bool engine_write(struct engine *engine, enum store_vector vector, size_t first, size_t count,
                                const float *values, struct error *error)
{
    assert_int_equal(first, 0);
    assert_int_equal(count, 672); /* all of the model */
    tell("engine: %s of step %g\n",
         vector == STORE_AVERAGES     ? "averages"
         : vector == STORE_PARAMETERS ? "parameters"
                                      : "?",
         (double)values[0]);
    return values[0] >= 0 || error_set(error, "the engine fails");
}

static const struct engine_table table = {.name = "fake", .write = engine_write};

static inline void create(struct bench *bench)
{
    struct error error;
    bench->engine.table = &table;
    const struct chief_options options = {.config = &bench->config,
                                          .model = &bench->model,
                                          .identity = &bench->identity,
                                          .engine = &bench->engine,
                                          .dataset = &bench->dataset,
                                          .plan = &bench->plan,
                                          .traffic = &bench->traffic};
    if (!chief_create(&bench->chief, &options, &error)) {
        fail_msg("%s", error.text);
    }
}

/* Checkpoints every few steps, for two shards without a model. */
static inline void begin(struct bench *bench, const char *save_steps)
{
    const struct config_setting settings[] = {{"insecure", "true"},
                                              {"local", "false"},
                                              {"layers", "6,20,3"},
                                              {"ps_hosts", "127.0.0.1:1,127.0.0.1:2"},
                                              {"worker_hosts", "127.0.0.1:3,127.0.0.1:4,127.0.0.1:5"},
                                              {"job_name", "worker"},
                                              {"optimizer", "momentum"},
                                              {"ema_decay", "0.9"},
                                              {"max_to_keep", "0"},
                                              {"save_model_secs", "0"},
                                              {"train_dir", bench->folder},
                                              {"save_steps", save_steps}};
    struct error error;
    memset(bench, 0, sizeof *bench);
    strcpy(bench->folder, "/tmp/test_chief.XXXXXX");
    assert_non_null(mkdtemp(bench->folder));
    if (!config_load(&bench->config, NULL, settings, sizeof settings / sizeof *settings, &error)) {
        fail_msg("%s", error.text);
    }
    model_layout(&bench->model, &bench->config.model);
    strcpy(bench->identity.digest, "digest");
    bench->identity.hello = (struct hello_identity){.member = {MEMBER_WORKER, 0}, .digest = "now", .fleet_version = 7};
    bench->plan = (struct plan){.last_step = LAST_STEP, .epoch_batches = 55};
    pthread_mutex_lock(&shards.lock);
    pthread_mutex_unlock(&shards.lock);
    memset(shards.status, 0, sizeof shards.status);
    memset(shards.steps, 0, sizeof shards.steps);
    shards.order_count = shards.breaks = 0;
    shards.passed = shards.lost = shards.stuck = -1;
    shards.trains = shards.apart = shards.mute = false;
    shards.value = 0;
    shards.asked = shards.written = shards.ended = shards.read = shards.ordered = shards.taken = EXCHANGE_OK;
    shards.plain = (struct kept){.number = 0};
    is_fresh = adopts = adopts_with_loss = false;
    told();
    create(bench);
}

/* Lists the folder's files by name, and removes it. */
static inline const char *files(const char *folder, bool clear)
{
    static char text[4096];
    struct dirent **entries;
    const int count = scandir(folder, &entries, NULL, alphasort);
    text[0] = '\0';
    for (int i = 0; i < count; i++) {
        char path[512];
        snprintf(path, sizeof path, "%.200s/%.250s", folder, entries[i]->d_name);
        if (strstr(entries[i]->d_name, ".safetensors")) {
            strcat(strcat(text, entries[i]->d_name), " ");
        }
        if (clear && entries[i]->d_name[0] != '.') {
            unlink(path);
        }
        free(entries[i]);
    }
    free(entries);
    return text;
}

static inline void end(struct bench *bench, const char *wanted_files)
{
    char hidden[128];
    chief_destroy(bench->chief);
    assert_string_equal(files(bench->folder, true), wanted_files);
    snprintf(hidden, sizeof hidden, "%s/.lock", bench->folder);
    unlink(hidden);
    rmdir(bench->folder);
    config_free(&bench->config);
}

static inline enum exchange_result start(struct bench *bench, struct chief_start *found)
{
    struct error error;
    return chief_begin(bench->chief, found, &error);
}

/* A chief whose shards have a new model, at step 0. */
static inline void begin_training(struct bench *bench, const char *save_steps)
{
    struct chief_start found;
    begin(bench, save_steps);
    assert_int_equal(start(bench, &found), EXCHANGE_OK);
    told();
}

#endif
