/*
 * The chief on shards of the test's own: what it writes into them and when, which steps it has them keep, what becomes
 * a checkpoint, and what it does when a shard is gone, is past a step, or holds something else than the others.
 */
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
#include "tests/locks.h"
#include "tests/worker/remote/story.h"
#include "worker/remote/chief/transfer.h"
#include "worker/remote/exchange/preprocessing.h"

enum { SHARDS = 2, MOST_ORDERS = 64, LAST_STEP = 95 };

/* --- The shards --- */

struct kept {
    uint64_t number;
    int64_t step; /* that it is of */
};

/* Locked by the story's lock where the saving thread and the test meet: all of it. */
static struct {
    pthread_mutex_t lock;
    struct shard_status status[SHARDS];
    int64_t steps[SHARDS];
    struct kept orders[MOST_ORDERS];
    int order_count;
    int64_t passed; /* orders up to here come too late */
    int64_t lost;   /* the order of this step was not kept, as is found out when it is asked for again */
    int64_t stuck;  /* likewise: never taken by all */
    bool trains;    /* shards come to any step that is asked for */
    bool apart;     /* they never meet */
    int breaks;     /* so many snapshots fail as their connection breaks */
    bool mute;      /* snapshots and reads are not told */
    float value;    /* of all that is read */
    enum push_pull_end asked, checked, written, ended, read; /* how the next request of its kind ends; then well */
    struct kept plain;                                       /* the snapshot of now */
    float first;                                             /* of the parameters that were written last */
} shards = {.lock = PTHREAD_MUTEX_INITIALIZER};

static enum push_pull_end once(enum push_pull_end *end)
{
    const enum push_pull_end now = *end;
    *end = PUSH_PULL_DONE;
    return now;
}

static int64_t highest(void)
{
    return shards.steps[0] > shards.steps[1] ? shards.steps[0] : shards.steps[1];
}

static int64_t lowest(void)
{
    return shards.steps[0] < shards.steps[1] ? shards.steps[0] : shards.steps[1];
}

/* The shards go on to this step; the chief's own worker has seen it. */
static void advance(struct chief *chief, int64_t step)
{
    pthread_mutex_lock(&shards.lock);
    shards.steps[0] = shards.steps[1] = step;
    pthread_mutex_unlock(&shards.lock);
    chief_note_step(chief, step);
}

enum push_pull_end transfer_status(struct push_pull *exchange, struct shard_status *status, struct error *error)
{
    assert_int_equal(exchange->count, SHARDS);
    memcpy(status, shards.status, sizeof shards.status);
    tell("status\n");
    const enum push_pull_end end = once(&shards.asked);
    return end == PUSH_PULL_DONE ? end : (error_set(error, "no status"), end);
}

enum push_pull_end transfer_newest_step(struct push_pull *exchange, int64_t *global_step, struct error *error)
{
    (void)exchange, (void)error;
    pthread_mutex_lock(&shards.lock);
    *global_step = highest();
    pthread_mutex_unlock(&shards.lock);
    tell("newest\n");
    return once(&shards.asked);
}

enum push_pull_end preprocessing_agree(struct push_pull *exchange, const struct dataset *dataset, bool is_chief,
                                       bool *differs, struct error *error)
{
    (void)exchange, (void)error;
    *differs = false;
    tell("agree%s%s\n", is_chief ? " as chief" : "", dataset->schema ? " on a schema" : "");
    return PUSH_PULL_DONE;
}

enum push_pull_end preprocessing_check(struct push_pull *exchange, const struct dataset *dataset, struct error *error)
{
    (void)exchange, (void)dataset, (void)error;
    tell("check\n");
    return once(&shards.checked);
}

enum push_pull_end transfer_restore(struct push_pull *exchange, uint32_t generation,
                                    const struct checkpoint_state *state, const char *source, struct error *error)
{
    (void)error;
    exchange->generation = generation;
    shards.first = state->vectors[STORE_PARAMETERS][0];
    tell("restore generation %u: %.30s\n", generation, source);
    return once(&shards.written);
}

enum push_pull_end transfer_end_restore(struct push_pull *exchange, const struct transfer_place *place,
                                        struct error *error)
{
    (void)error;
    tell("end restore at %lld, epoch of %lld\n", (long long)place->global_step, (long long)place->epoch_batches);
    const enum push_pull_end end = once(&shards.ended);
    for (int i = 0; i < SHARDS && end == PUSH_PULL_DONE; i++) {
        shards.steps[i] = place->global_step;
        shards.status[i] =
            (struct shard_status){.ready = true, .generation = exchange->generation, .global_step = place->global_step};
    }
    return end;
}

enum push_pull_end transfer_snapshot(struct push_pull *exchange, uint64_t number, int64_t at_step, uint32_t wait_ms,
                                     struct snapshot_answer *answer, struct error *error)
{
    assert_int_equal(number & SNAPSHOT_ORDER, 0);
    pthread_mutex_lock(&shards.lock);
    assert_true(number != shards.plain.number);
    const bool breaks = shards.breaks > 0;
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
    return breaks ? (error_set(error, "it broke"), PUSH_PULL_AGAIN) : PUSH_PULL_DONE;
}

static struct kept *find_order(uint64_t number)
{
    for (int i = 0; i < shards.order_count; i++) {
        if (shards.orders[i].number == number) {
            return &shards.orders[i];
        }
    }
    return NULL;
}

enum push_pull_end transfer_order(struct push_pull *exchange, uint64_t number, int64_t step, uint32_t wait_ms,
                                  enum order_state *state, struct error *error)
{
    (void)exchange;
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
    pthread_mutex_unlock(&shards.lock);
    error_set(error, "ps 1 is past it");
    return PUSH_PULL_DONE;
}

void transfer_release(struct push_pull *exchange, uint64_t number)
{
    (void)exchange;
    pthread_mutex_lock(&shards.lock);
    struct kept *order = find_order(number);
    assert_non_null(order);
    tell("release %lld\n", (long long)order->step);
    *order = shards.orders[--shards.order_count];
    pthread_mutex_unlock(&shards.lock);
}

enum push_pull_end transfer_read(struct push_pull *exchange, uint64_t number, unsigned which,
                                 struct checkpoint_state *state, struct error *error)
{
    pthread_mutex_lock(&shards.lock);
    struct kept *order = find_order(number);
    assert_true(order || number == shards.plain.number);
    const enum push_pull_end end = once(&shards.read);
    const int64_t step = order ? order->step : shards.plain.step;
    for (int v = 0; v < STORE_VECTORS && end == PUSH_PULL_DONE; v++) {
        for (size_t i = 0; state->vectors[v] && (which >> v & 1) && i < exchange->model->float_count; i++) {
            state->vectors[v][i] = (float)step + shards.value;
        }
    }
    if (order || !shards.mute) {
        tell("read %lld\n", (long long)step);
    }
    if (order && end == PUSH_PULL_DONE) {
        *order = shards.orders[--shards.order_count];
    }
    pthread_mutex_unlock(&shards.lock);
    return end == PUSH_PULL_DONE ? end : (error_set(error, "not read"), end);
}

bool transfer_end_job(struct push_pull *exchange, const struct message_end_job *message, double deadline_s,
                      struct error *error)
{
    assert_true(deadline_s > clock_monotonic_s()); /* cut links have time to come back */
    (void)exchange;
    tell("end job %d at %lld, %.2f: %s\n", message->job_state, (long long)message->global_step,
         (double)message->test_accuracy, message->message);
    return once(&shards.ended) == PUSH_PULL_DONE || error_set(error, "ps 1 is gone");
}

/* --- The folder, and what came by a rollout --- */

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
    (void)config;
    return is_fresh;
}

bool __wrap_lineage_adopts(const struct config *config, const char *digest, bool *may_lose)
{
    (void)config, (void)digest;
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

static bool engine_write(struct engine *engine, enum store_vector vector, size_t first, size_t count,
                         const float *values, struct error *error)
{
    (void)engine, (void)error;
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

static void create(struct bench *bench)
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

/* Checkpoints every so many steps, of two shards without a model. */
static void begin(struct bench *bench, const char *save_steps)
{
    const struct config_setting settings[] = {{"insecure", "true"},
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
    if (!config_load(&bench->config, NULL, settings, 11, &error)) {
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
    shards.asked = shards.written = shards.ended = shards.read = PUSH_PULL_DONE;
    shards.plain = (struct kept){.number = 0};
    is_fresh = adopts = adopts_with_loss = false;
    told();
    create(bench);
}

/* The files of the folder, by name; then it is gone. */
static const char *files(const char *folder, bool clear)
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

static void end(struct bench *bench, const char *wanted_files)
{
    char hidden[128];
    chief_destroy(bench->chief);
    assert_string_equal(files(bench->folder, true), wanted_files);
    snprintf(hidden, sizeof hidden, "%s/.lock", bench->folder);
    unlink(hidden);
    rmdir(bench->folder);
    config_free(&bench->config);
}

static enum push_pull_end start(struct bench *bench, struct chief_start *found)
{
    struct error error;
    return chief_begin(bench->chief, found, &error);
}

/* A chief whose shards have a new model, at step 0. */
static void begin_training(struct bench *bench, const char *save_steps)
{
    struct chief_start found;
    begin(bench, save_steps);
    assert_int_equal(start(bench, &found), PUSH_PULL_DONE);
    told();
}

/* Where all shards are empty a new model goes in, behind all generations, and orders go before its release. */
static void new_model(void **state)
{
    struct bench bench;
    struct chief_start found;
    (void)state;
    begin(&bench, "10");
    shards.status[0].generation = 3;
    shards.status[1].generation = 7;
    assert_int_equal(start(&bench, &found), PUSH_PULL_DONE);
    assert_string_equal(told(), "status\nagree as chief\nrestore generation 8: initialised with seed 1\n"
                                "order 10\norder 20\norder 30\nend restore at 0, epoch of 55\n");
    assert_false(found.resumed);
    assert_null(found.restored_from);
    assert_int_equal(found.global_step, 0);
    end(&bench, "");
}

/* What shards forget of generations their chief does not. */
static void generations_go_up(void **state)
{
    struct bench bench;
    struct chief_start found;
    (void)state;
    begin(&bench, "0");
    shards.status[1].generation = 7;
    assert_int_equal(start(&bench, &found), PUSH_PULL_DONE);
    memset(shards.status, 0, sizeof shards.status);
    told();
    assert_int_equal(start(&bench, &found), PUSH_PULL_DONE);
    assert_string_equal(told(), "status\nagree as chief\nrestore generation 9: initialised with seed 1\n"
                                "end restore at 0, epoch of 55\n");
    end(&bench, "");
}

/* Each step that is due is saved as it was, the next is ordered before a shard may forget the last, and all is kept. */
static void each_ordered_step_is_saved(void **state)
{
    struct bench bench;
    struct error error;
    int64_t step;
    (void)state;
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
    assert_int_equal(chief_finish(bench.chief, true, &step, &error), PUSH_PULL_DONE);
    assert_int_equal(step, 56);
    assert_true(was_told("saved 50"));
    assert_true(
        was_told("snapshot at -1, 250 ms\nread 56\nsaved 56 of version 7, now\nengine: parameters of step 56\n"));
    assert_true(was_told("engine: averages of step 56\n"));
    assert_int_equal(shards.order_count, 0);
    struct chief_record record;
    chief_record(bench.chief, &record);
    assert_false(record.checkpoint_failed);
    assert_int_equal(record.last_checkpoint_step, 56);
    assert_non_null(strstr(record.last_checkpoint, "/model-0000000056.safetensors"));
    end(&bench, "model-0000000010.safetensors model-0000000020.safetensors model-0000000030.safetensors "
                "model-0000000040.safetensors model-0000000050.safetensors model-0000000056.safetensors ");
}

/* Orders end before the last step, which has a checkpoint of its own; and so does the end what is saved already. */
static void orders_end_with_the_job(void **state)
{
    struct bench bench;
    struct error error;
    int64_t step;
    (void)state;
    begin_training(&bench, "10");
    for (int64_t at = 10; at <= 90; at += 10) {
        char saved[32];
        snprintf(saved, sizeof saved, "saved %lld ", (long long)at);
        advance(bench.chief, at);
        assert_true(await_told(saved));
        told();
    }
    assert_int_equal(shards.order_count, 0);
    assert_int_equal(chief_finish(bench.chief, false, &step, &error), PUSH_PULL_DONE);
    assert_string_equal(told(), "snapshot at -1, 250 ms\nread 90\n"); /* saved before; and nobody tests */
    chief_destroy(bench.chief);
    bench.chief = NULL;
    assert_int_equal(times(files(bench.folder, true), ".safetensors"), 9);
    end(&bench, "");
}

/* Shards that hold the model are let be, and what is ordered comes after where they are. */
static void shards_are_found_again(void **state)
{
    struct bench bench;
    struct chief_start found;
    (void)state;
    begin(&bench, "10");
    shards.status[0] = (struct shard_status){.ready = true, .generation = 4, .global_step = 23};
    shards.status[1] = (struct shard_status){.ready = true, .generation = 4, .global_step = 29};
    shards.steps[0] = 23;
    shards.steps[1] = 29;
    shards.asked = PUSH_PULL_AGAIN; /* a connection breaks */
    assert_int_equal(start(&bench, &found), PUSH_PULL_DONE);
    assert_string_equal(told(), "status\nstatus\ncheck\nagree as chief\norder 30\norder 40\norder 50\n");
    assert_true(found.resumed);
    assert_int_equal(found.global_step, 29);
    shards.checked = PUSH_PULL_REFUSED; /* it was begun with other rows: nothing is said of these */
    assert_int_equal(start(&bench, &found), PUSH_PULL_REFUSED);
    assert_string_equal(told(), "status\ncheck\n");
    /* One of another generation, or whose job is over, or without a model makes all of them begin again. */
    const struct shard_status others[] = {{.ready = true, .generation = 5, .global_step = 29},
                                          {.ready = true, .generation = 4, .global_step = 29, .over = true},
                                          {.generation = 4, .global_step = 29}};
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < SHARDS; k++) {
            shards.status[1 - k] = (struct shard_status){.ready = true, .generation = 4, .global_step = 23};
            shards.status[k] = others[i];
            shards.order_count = 0;
            told();
            assert_int_equal(start(&bench, &found), PUSH_PULL_DONE);
            assert_false(found.resumed);
            assert_true(was_told("restore generation "));
            assert_true(was_told("order 10\norder 20\norder 30\nend restore at 0"));
        }
    }
    end(&bench, "");
}

/* How it ends if the process is to leave, or a ps refuses. */
static void beginnings_that_fail(void **state)
{
    struct bench bench;
    struct chief_start found;
    (void)state;
    begin(&bench, "10");
    const enum push_pull_end ends[] = {PUSH_PULL_STOPPED, PUSH_PULL_REFUSED};
    for (int i = 0; i < 2; i++) {
        shards.asked = ends[i];
        assert_int_equal(start(&bench, &found), ends[i]);
        assert_string_equal(told(), "status\n");
        shards.written = ends[i];
        assert_int_equal(start(&bench, &found), ends[i]);
        assert_false(was_told("end restore"));
        told();
    }
    shards.ended = PUSH_PULL_AGAIN; /* a shard forgot it meanwhile: all again, with orders anew */
    shards.order_count = 0;
    assert_int_equal(start(&bench, &found), PUSH_PULL_DONE);
    const char *text = told();
    assert_int_equal(times(text, "restore generation"), 2);
    assert_int_equal(times(text, "order 10\norder 20\norder 30\nend restore at 0"), 2);
    end(&bench, "");
}

/* A chief that comes back after everybody went restores its newest checkpoint. */
static void newest_checkpoint_is_restored(void **state)
{
    struct bench bench;
    struct chief_start found;
    struct error error;
    int64_t step;
    (void)state;
    begin_training(&bench, "0");
    shards.steps[0] = shards.steps[1] = 34;
    assert_int_equal(chief_finish(bench.chief, false, &step, &error), PUSH_PULL_DONE);
    chief_destroy(bench.chief);
    memset(shards.status, 0, sizeof shards.status);
    bench.config.output.save_steps = 10;
    create(&bench);
    told();
    assert_int_equal(start(&bench, &found), PUSH_PULL_DONE);
    assert_int_equal(found.global_step, 34);
    assert_non_null(strstr(found.restored_from, "model-0000000034.safetensors"));
    assert_true(shards.first == 34);
    const char *text = told();
    assert_non_null(strstr(text, "restore generation 1: restored from /tmp/test_chief."));
    assert_non_null(strstr(text, "order 40\norder 50\norder 60\nend restore at 34, epoch of 55\n"));
    struct chief_record record;
    chief_record(bench.chief, &record);
    assert_string_equal(record.info.config_digest, "digest");
    assert_int_equal(record.last_checkpoint_step, 34);
    assert_int_equal(chief_finish(bench.chief, true, &step, &error), PUSH_PULL_DONE);
    assert_null(strstr(told(), "saved")); /* it would add nothing */
    end(&bench, "model-0000000034.safetensors ");
}

/* A checkpoint of other layers is taken only where a rollout leads from it, and drops things only if that is said. */
static void checkpoint_of_another_model(void **state)
{
    struct bench bench;
    struct chief_start found;
    struct error error;
    int64_t step;
    (void)state;
    begin_training(&bench, "0");
    shards.steps[0] = shards.steps[1] = 34;
    assert_int_equal(chief_finish(bench.chief, false, &step, &error), PUSH_PULL_DONE);
    chief_destroy(bench.chief);
    bench.config.model.layers[1] = 12; /* of 20 */
    model_layout(&bench.model, &bench.config.model);
    create(&bench);
    for (int i = 0; i < 3; i++) {
        adopts = i > 0;
        adopts_with_loss = i > 1;
        memset(shards.status, 0, sizeof shards.status);
        told();
        assert_int_equal(chief_begin(bench.chief, &found, &error), i < 2 ? PUSH_PULL_REFUSED : PUSH_PULL_DONE);
        assert_true(i != 1 || strstr(error.text, "this config would lose"));
        assert_int_equal(was_told("restore generation"), i == 2);
    }
    assert_int_equal(found.global_step, 34);
    end(&bench, "model-0000000034.safetensors ");
}

/* Steps that some shard is past when it hears of them are not saved, which is said; those behind it are. */
static void orders_that_come_too_late(void **state)
{
    struct bench bench;
    struct chief_start found;
    (void)state;
    begin(&bench, "10");
    shards.status[0] = shards.status[1] = (struct shard_status){.ready = true, .generation = 4, .global_step = 8};
    shards.passed = shards.steps[0] = 37; /* the others train on meanwhile */
    shards.steps[1] = 36;
    listen_in();
    assert_int_equal(start(&bench, &found), PUSH_PULL_DONE);
    const char *text = heard();
    assert_string_equal(told(),
                        "status\ncheck\nagree as chief\norder 10\nrelease 10\nnewest\norder 40\norder 50\norder 60\n");
    assert_non_null(strstr(text, "no checkpoint of step 10: ps 1 is past it\n"));
    assert_non_null(strstr(text, "no checkpoint of step 20, nor of any other before step 40: "));
    assert_int_equal(times(text, "no checkpoint of"), 2);
    end(&bench, "");
}

/* One that was kept waiting for too long is lost; for a while the shards are not made to wait, which costs an order. */
static void an_order_is_lost(void **state)
{
    struct bench bench;
    (void)state;
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

/* At the end, what was ordered and will not come any more is let go, and all before the end is saved. */
static void ends_with_orders(void **state)
{
    struct bench bench;
    struct error error;
    int64_t step;
    (void)state;
    begin_training(&bench, "10");
    pthread_mutex_lock(&shards.lock);
    shards.steps[0] = shards.steps[1] = 30;
    shards.stuck = 20;
    pthread_mutex_unlock(&shards.lock);
    listen_in();
    const enum push_pull_end how = chief_finish(bench.chief, true, &step, &error);
    const char *text = heard();
    assert_int_equal(how, PUSH_PULL_DONE);
    assert_non_null(strstr(text, "no checkpoint of step 20: some ps has not come to it"));
    assert_int_equal(times(text, "no checkpoint"), 1);
    text = told();
    assert_non_null(strstr(text, "waits 250 ms for 20\nrelease 20\n"));
    assert_non_null(strstr(text, "read 30\nsaved 30 of version 7, now\nrelease 40\n"));
    assert_int_equal(times(text, "saved 30"), 1);
    end(&bench, "model-0000000010.safetensors model-0000000030.safetensors ");
}

/* Shards that are not at one step agree on one that comes, later at every try; at the end on what is there. */
static void snapshots_of_one_step(void **state)
{
    struct bench bench;
    struct error error;
    struct checkpoint_info *record;
    int64_t step;
    (void)state;
    begin_training(&bench, "0");
    shards.steps[0] = 40;
    shards.steps[1] = 42;
    shards.breaks = 2;
    shards.trains = true;
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), PUSH_PULL_DONE);
    assert_int_equal(step, 47); /* a step of each worker, and two */
    assert_true(isnan(record->validation_score));
    assert_string_equal(told(), "snapshot at -1, 250 ms\nsnapshot at -1, 250 ms\nsnapshot at -1, 250 ms\n"
                                "snapshot at 47, 250 ms\nread 47\n"
                                "engine: parameters of step 47\n"
                                "engine: averages of step 47\n");
    record->validation_score = 0.5;
    chief_release(bench.chief, true);
    assert_string_equal(told(), "saved as best 47 of version 7, now\n");
    assert_true(isnan(record->validation_score));
    shards.trains = false; /* nobody comes to any step */
    shards.steps[0] = 46;
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), PUSH_PULL_AGAIN);
    assert_string_equal(told(), "snapshot at -1, 250 ms\nsnapshot at 52, 250 ms\nsnapshot at 62, 250 ms\n"
                                "snapshot at 77, 250 ms\nsnapshot at 95, 250 ms\nsnapshot at -1, 250 ms\n");
    assert_int_equal(chief_finish(bench.chief, true, &step, &error), PUSH_PULL_DONE);
    assert_int_equal(step, 47);
    assert_true(was_told("snapshot at 95, 250 ms\nsnapshot at -1, 250 ms\nread 47\nsaved 47"));
    end(&bench, "best.safetensors model-0000000047.safetensors ");
}

/* A validation that does not find the engine well ends training; one that finds no state waits for a better time. */
static void validations_that_fail(void **state)
{
    struct bench bench;
    struct error error;
    struct checkpoint_info *record;
    int64_t step;
    (void)state;
    begin_training(&bench, "0");
    shards.mute = true;
    shards.read = PUSH_PULL_STOPPED;
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), PUSH_PULL_AGAIN);
    shards.read = PUSH_PULL_REFUSED;
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), PUSH_PULL_AGAIN);
    shards.value = -1;
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), PUSH_PULL_REFUSED);
    assert_int_equal(chief_finish(bench.chief, true, &step, &error), PUSH_PULL_REFUSED);
    shards.value = 0;
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), PUSH_PULL_DONE); /* the lock was let go */
    told();
    chief_release(bench.chief, false);
    assert_string_equal(told(), "");
    end(&bench, "");
}

/* Without a folder nothing is saved, and only what a validation needs is read. */
static void no_folder(void **state)
{
    struct bench bench;
    struct error error;
    struct checkpoint_info *record;
    struct chief_start found;
    int64_t step;
    (void)state;
    begin(&bench, "10");
    chief_destroy(bench.chief);
    bench.config.output.train_dir[0] = '\0';
    create(&bench);
    assert_int_equal(start(&bench, &found), PUSH_PULL_DONE);
    assert_false(was_told("order"));
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), PUSH_PULL_DONE);
    chief_release(bench.chief, true);
    assert_false(chief_checkpoint(bench.chief, &error));
    assert_non_null(strstr(error.text, "worker 0 has no train_dir"));
    assert_int_equal(chief_finish(bench.chief, true, &step, &error), PUSH_PULL_DONE);
    struct chief_record kept;
    chief_record(bench.chief, &kept);
    assert_null(kept.last_checkpoint);
    assert_int_equal(kept.last_checkpoint_step, -1);
    assert_false(was_told("saved"));
    end(&bench, "");
}

/* By the clock: the state of the moment, as soon as it has changed. */
static void checkpoints_by_time(void **state)
{
    struct bench bench;
    (void)state;
    begin(&bench, "0");
    chief_destroy(bench.chief);
    bench.config.output.save_model_secs = 0.05;
    create(&bench);
    struct chief_start found;
    assert_int_equal(start(&bench, &found), PUSH_PULL_DONE);
    told();
    clock_pause(clock_monotonic_s() + 0.1);
    assert_string_equal(told(), ""); /* nothing has changed */
    advance(bench.chief, 3);
    assert_true(await_told("saved 3 "));
    assert_string_equal(told(), "snapshot at -1, 250 ms\nread 3\nsaved 3 of version 7, now\n");
    advance(bench.chief, LAST_STEP); /* which has one of its own */
    clock_pause(clock_monotonic_s() + 0.1);
    assert_string_equal(told(), "");
    end(&bench, "model-0000000003.safetensors ");
}

/* What is not finite is no checkpoint. */
static void model_that_is_not_finite(void **state)
{
    struct bench bench;
    struct error error;
    int64_t step;
    (void)state;
    begin_training(&bench, "0");
    shards.value = NAN;
    shards.steps[0] = shards.steps[1] = 12;
    assert_false(chief_checkpoint(bench.chief, &error));
    assert_non_null(strstr(error.text, "the model is not finite at step 12"));
    listen_in();
    const enum push_pull_end how = chief_finish(bench.chief, false, &step, &error);
    const char *text = heard();
    assert_int_equal(how, PUSH_PULL_DONE);
    assert_non_null(strstr(text, "the model is no longer finite at step 12 and is not saved"));
    end(&bench, "");
}

/* A full disk: training goes on, and the record says what became of it. */
static void checkpoint_that_fails(void **state)
{
    struct bench bench;
    struct error error;
    struct chief_record record;
    (void)state;
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
    assert_true(record.checkpoint_failed); /* of before */
    assert_int_equal(record.last_checkpoint_step, 10);
    end(&bench, "model-0000000010.safetensors ");
}

/* Around a rollout: a checkpoint to go back to, none after it, the way back, and then as before. */
static void checkpoint_to_go_back_to(void **state)
{
    struct bench bench;
    struct error error;
    (void)state;
    begin_training(&bench, "10");
    advance(bench.chief, 14);
    assert_true(await_told("saved 10 "));
    told();
    for (int i = 0; i < 2; i++) {
        assert_true(chief_checkpoint(bench.chief, &error));
        assert_string_equal(told(), "snapshot at -1, 250 ms\nread 14\nsaved 14 of version 7, now\n"
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
    shards.asked = PUSH_PULL_STOPPED;
    assert_false(chief_restore(bench.chief, &error));
    assert_string_equal(error.text, "some ps is missing");
    shards.asked = PUSH_PULL_REFUSED;
    assert_false(chief_restore(bench.chief, &error));
    assert_string_equal(error.text, "no status");
    end(&bench, "model-0000000010.safetensors model-0000000014.safetensors ");
}

/* A process that has just come into a new version saves nothing until the rollout is settled: it may go back. */
static void fresh_version_saves_nothing(void **state)
{
    struct bench bench;
    struct chief_start found;
    (void)state;
    begin(&bench, "10");
    chief_destroy(bench.chief);
    is_fresh = true;
    create(&bench);
    assert_int_equal(start(&bench, &found), PUSH_PULL_DONE);
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
 * That a rollout is settled is said by who takes part in rollouts. A ps may refuse this chief until that one has taken
 * another version, so it does not wait for who begins, or validates.
 */
static void settling_waits_for_nobody(void **state)
{
    struct bench bench;
    struct error error;
    struct checkpoint_info *record;
    struct timespec until;
    pthread_t thread;
    int64_t step;
    (void)state;
    begin_training(&bench, "0");
    assert_int_equal(chief_hold(bench.chief, &step, &record, &error), PUSH_PULL_DONE);
    assert_int_equal(pthread_create(&thread, NULL, settle, bench.chief), 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    const int ended = pthread_timedjoin_np(thread, NULL, &until);
    chief_release(bench.chief, false);
    if (ended != 0) {
        pthread_join(thread, NULL);
    }
    assert_int_equal(ended, 0);
    end(&bench, "");
}

/* Other intervals and another end hold at once, with what was ordered by the old ones read or let go first. */
static void retimed(void **state)
{
    struct bench bench;
    (void)state;
    begin_training(&bench, "10");
    struct config_output output = bench.config.output;
    struct plan plan = bench.plan;
    plan.last_step = 20;
    chief_retime(bench.chief, &output, &plan); /* the same steps */
    assert_string_equal(told(), "");
    output.save_steps = 7;
    plan.last_step = 22;
    chief_retime(bench.chief, &output, &plan);
    assert_string_equal(told(), "release 10\nrelease 20\nrelease 30\nnewest\norder 7\norder 14\norder 21\n");
    output.save_steps = 0;
    output.save_model_secs = 0.05;
    output.max_to_keep = 1;
    chief_retime(bench.chief, &output, &plan);
    assert_string_equal(told(), "release 7\nrelease 14\nrelease 21\n");
    advance(bench.chief, 5);
    assert_true(await_told("saved 5 "));
    advance(bench.chief, 6);
    assert_true(await_told("saved 6 "));
    end(&bench, "model-0000000006.safetensors ");
}

/* What every ps is told at the end. */
static void ends_the_job(void **state)
{
    struct bench bench;
    struct error error;
    (void)state;
    begin_training(&bench, "0");
    chief_note_step(bench.chief, 44);
    assert_true(chief_end_job(bench.chief, false, 0.75, "all is well", &error));
    assert_true(chief_end_job(bench.chief, true, 0.5, "no", &error));
    shards.ended = PUSH_PULL_AGAIN;
    assert_false(chief_end_job(bench.chief, true, 0.5, "no", &error));
    char wanted[256];
    snprintf(wanted, sizeof wanted, "end job %d at 44, 0.75: all is well\nend job %d at 44, 0.50: no\n", JOB_DONE,
             JOB_FAILED);
    assert_non_null(strstr(told(), wanted));
    end(&bench, "");
}

/* Without the thread that saves there is a checkpoint at the end; shards keep nothing that nobody would read. */
static void no_thread(void **state)
{
    struct bench bench;
    struct chief_start found;
    struct error error;
    int64_t step;
    (void)state;
    begin(&bench, "10");
    listen_in();
    has_no_thread = true;
    const enum push_pull_end end_of_start = start(&bench, &found);
    has_no_thread = false;
    assert_int_equal(times(heard(), "the thread that saves checkpoints cannot start"), 1);
    assert_int_equal(end_of_start, PUSH_PULL_DONE);
    const char *text = told();
    assert_int_equal(times(text, "order "), 3);
    assert_int_equal(times(text, "release "), 3);
    assert_int_equal(shards.order_count, 0);
    shards.steps[0] = shards.steps[1] = 34;
    assert_int_equal(chief_finish(bench.chief, false, &step, &error), PUSH_PULL_DONE);
    assert_int_equal(step, 34);
    end(&bench, "model-0000000034.safetensors ");
}

/* How rows become inputs stands in the newest checkpoint; where there is none nothing is known. */
static void preprocessing_of_a_checkpoint(void **state)
{
    static char made[] = "{\"made\":\"of rows\"}";
    struct bench bench;
    struct checkpoint_state values;
    const struct checkpoint_info info = {.global_step = 5, .preprocessing = made};
    struct error error;
    char *text, path[128];
    (void)state;
    begin(&bench, "0");
    assert_true(chief_preprocessing(&text, &bench.config, &error)); /* an empty folder */
    assert_null(text);
    chief_destroy(bench.chief);
    snprintf(path, sizeof path, "%s/none", bench.folder);
    free(bench.config.output.train_dir);
    bench.config.output.train_dir = path; /* is not there yet */
    assert_true(chief_preprocessing(&text, &bench.config, &error));
    assert_null(text);
    assert_int_not_equal(access(path, F_OK), 0);
    bench.config.output.train_dir = strcpy(path, "");
    assert_true(chief_preprocessing(&text, &bench.config, &error));
    assert_null(text);
    bench.config.output.train_dir = strdup(bench.folder);
    assert_true(checkpoint_state_create(&values, &bench.model, &bench.config.train, &error));
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_model),
        cmocka_unit_test(generations_go_up),
        cmocka_unit_test(each_ordered_step_is_saved),
        cmocka_unit_test(orders_end_with_the_job),
        cmocka_unit_test(shards_are_found_again),
        cmocka_unit_test(beginnings_that_fail),
        cmocka_unit_test(newest_checkpoint_is_restored),
        cmocka_unit_test(checkpoint_of_another_model),
        cmocka_unit_test(orders_that_come_too_late),
        cmocka_unit_test(an_order_is_lost),
        cmocka_unit_test(ends_with_orders),
        cmocka_unit_test(snapshots_of_one_step),
        cmocka_unit_test(validations_that_fail),
        cmocka_unit_test(no_folder),
        cmocka_unit_test(checkpoints_by_time),
        cmocka_unit_test(model_that_is_not_finite),
        cmocka_unit_test(checkpoint_that_fails),
        cmocka_unit_test(checkpoint_to_go_back_to),
        cmocka_unit_test(fresh_version_saves_nothing),
        cmocka_unit_test(settling_waits_for_nobody),
        cmocka_unit_test(retimed),
        cmocka_unit_test(ends_the_job),
        cmocka_unit_test(no_thread),
        cmocka_unit_test(preprocessing_of_a_checkpoint),
    };
    log_setup(LOG_TEXT, LOG_WARNING);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
