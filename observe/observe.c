/*
 * The process's board and its server. While observation is off, only the check of a flag costs anything.
 */
#include "observe/observe.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/version.h"
#include "net/socket.h"
#include "observe/guard.h"

enum {
    MOST_BYTES = 48 * 1024 * 1024, /* of requests and answers in progress */
};

static const double LAST_WORDS_S = 1; /* for pages to receive the final state */

atomic_bool observe_serves;

static struct {
    struct board board;
    struct api api;
    struct api_run run;
    struct http_server *server;
    struct guard guard;
    pthread_mutex_t mutex; /* held while the source is queried: */
    void (*fill)(void *context, struct board *board);
    void *fill_context;
    bool had_source; /* since it serves */
    struct api_extras extras;
    /* Used by the server's thread only: the state to compare with the next second's. */
    int generation;
    char phase[BOARD_TEXT];
} self = {.mutex = PTHREAD_MUTEX_INITIALIZER};

__attribute__((format(printf, 4, 5))) static void add_event(const char *kind, const char *member, int64_t step,
                                                            const char *format, ...)
{
    if (!observe_is_on()) {
        return;
    }
    char text[BOARD_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    board_event(&self.board, kind, member, step, text);
}

/* --- Each second --- */

static void fill_in_itself(struct board *board)
{
    struct board_numbers numbers;
    struct board_member *own;
    if (!board_begin_members(board, 1)) {
        return;
    }
    own = board->members;
    board_copy(board, &numbers);
    snprintf(own->role, sizeof own->role, "%s", board->role);
    own->task = board->task;
    snprintf(own->state, sizeof own->state, "%s", board_state_name(numbers.state));
    snprintf(own->device, sizeof own->device, "%.128s", numbers.engine);
    snprintf(own->program, sizeof own->program, "%s", version_trainer());
    snprintf(own->digest, sizeof own->digest, "%s", numbers.digest);
    gethostname(own->host, sizeof own->host - 1);
    own->silent_ms = 0;
    own->generation = numbers.generation;
    own->global_step = numbers.global_step;
    own->local_step = numbers.local_step;
    own->config_version = numbers.digest[0] != '\0' ? numbers.config_version : -1;
    own->steps_per_s = board->steps_per_s;
    own->loss = board->loss;
    own->dropped = numbers.stale + numbers.not_finite;
    own->retries = numbers.retries;
    own->bytes_in = numbers.bytes_in;
    own->bytes_out = numbers.bytes_out;
    own->memory_bytes = (double)board->use.resident_bytes;
    own->cpu_percent = board->cpu_percent;
    own->gpu_percent = board->gpu_percent;
}

static void report_changes(struct board *board)
{
    struct board_numbers numbers;
    char phase[BOARD_TEXT];
    board_copy(board, &numbers);
    if (board->member_count > 1) {
        board_compare_members(board, false);
    }
    if (self.generation != 0 && numbers.generation > self.generation) {
        add_event("restored", NULL, numbers.global_step, "generation %d begins at step %lld", numbers.generation,
                  (long long)numbers.global_step);
    }
    self.generation = numbers.generation;
    snprintf(phase, sizeof phase, "%s", board->rollout.text);
    if (strcmp(phase, self.phase) != 0) {
        add_event("rollout", NULL, -1, "%s", phase[0] != '\0' ? phase : "no rollout is under way");
        snprintf(self.phase, sizeof self.phase, "%s", phase);
    }
}

static void tick(void *context)
{
    (void)context;
    pthread_mutex_lock(&self.mutex);
    if (self.fill) {
        self.fill(self.fill_context, &self.board);
    }
    self.run.extras = self.extras; /* the server's thread reads them there */
    pthread_mutex_unlock(&self.mutex);
    board_tick(&self.board);
    if (!self.had_source || self.board.member_count == 0) { /* a source may have no data yet */
        fill_in_itself(&self.board);
    }
    report_changes(&self.board);
    api_tick(&self.api);
}

void observe_extras(const struct api_extras *extras)
{
    pthread_mutex_lock(&self.mutex);
    self.extras = *extras;
    pthread_mutex_unlock(&self.mutex);
}

void observe_source(void (*fill)(void *context, struct board *board), void *context)
{
    pthread_mutex_lock(&self.mutex);
    self.fill = fill;
    self.fill_context = context;
    self.had_source = self.had_source || fill; /* its last data stays, for those who look after the end */
    pthread_mutex_unlock(&self.mutex);
}

/* --- Create and destroy --- */

static const char *role_name(const struct config *config)
{
    static const char *const names[] = {
        [JOB_LOCAL] = "local", [JOB_PS] = "ps", [JOB_WORKER] = "worker", [JOB_EVALUATOR] = "evaluator"};
    return names[config->cluster.job_name];
}

/* A file for each process that may share the folder: the chief's is the run's. */
static void keep_history(const struct config *config)
{
    const char *folder = config->output.train_dir;
    const int task = config->cluster.task_index;
    char path[600];
    const bool is_chief =
        config->cluster.job_name == JOB_LOCAL || (config->cluster.job_name == JOB_WORKER && task == 0);
    if (folder[0] == '\0' || (!is_chief && !file_exists(folder))) {
        return;
    }
    if (is_chief) {
        snprintf(path, sizeof path, "%s/history.bin", folder);
    } else {
        snprintf(path, sizeof path, "%s/history-%s-%d.bin", folder, role_name(config), task);
    }
    board_keep_history(&self.board, path);
}

static bool serve(const struct config *config, struct error *error)
{
    self.run = (struct api_run){.board = &self.board};
    self.api = (struct api){.runs = &self.run, .run_count = 1};
    struct http_options options = {
        .routes = api_routes, .context = &self.api, .tick = tick, .most_bytes = MOST_BYTES, .low_priority = true};
    guard_apply(&self.guard, &options);
    if (!http_server_start(&self.server, &options, error)) {
        return error_wrap(error, "observe.http %s", config->observe.http);
    }
    self.api.server = self.server;
    return true;
}

bool observe_start(const struct config *config, const char *fleet_key, struct error *error)
{
    const struct config_observe *observe = &config->observe;
    if (observe->http[0] == '\0') {
        return true;
    }
    if (!guard_prepare(&self.guard, observe, fleet_key, error)) {
        observe_stop(BOARD_FAILED);
        return false;
    }
    board_create(&self.board, role_name(config), config->cluster.task_index, config->output.train_dir);
    keep_history(config);
    tick(NULL);
    atomic_store(&observe_serves, true);
    if (!serve(config, error)) {
        observe_stop(BOARD_FAILED);
        return false;
    }
    char text[ENDPOINT_TEXT];
    self.guard.address.port = http_server_port(self.server);
    endpoint_format_address(&self.guard.address, text);
    log_info("watch this run at %s://%s/", self.guard.keys ? "https" : "http", text);
    add_event("started", NULL, -1, "%s %d started, version %s", self.board.role, self.board.task, version_trainer());
    return true;
}

void observe_stop(enum board_state end)
{
    const char *name = board_state_name(end);
    if (observe_is_on()) {
        observe_state(end);
        add_event(name, NULL, -1, "%s %d: %s", self.board.role, self.board.task, name);
    }
    if (self.server) {
        atomic_store(&self.api.ends, true);
        http_server_drain(self.server, clock_monotonic_s() + LAST_WORDS_S);
    }
    atomic_store(&observe_serves, false);
    http_server_stop(self.server);
    self.server = NULL;
    if (self.board.events) {
        board_tick(&self.board); /* the last part of a second */
        board_save_history(&self.board);
        board_destroy(&self.board);
    }
    guard_free(&self.guard);
}

/* --- Reports from a role --- */

static void note_alive(void)
{
    atomic_store_explicit(&self.board.alive_s, clock_monotonic_s(), memory_order_relaxed);
}

void observe_about(char *json)
{
    if (observe_is_on()) {
        board_set_about(&self.board, json);
    } else {
        free(json);
    }
}

void observe_alive(void)
{
    if (observe_is_on()) {
        note_alive();
    }
}

void observe_state(enum board_state state)
{
    if (observe_is_on()) {
        board_lock(&self.board)->state = state;
        board_unlock(&self.board);
        note_alive();
    }
}

void observe_waiting(const char *what)
{
    if (!observe_is_on()) {
        return;
    }
    static const char prefix[] = "waiting for ";
    what =
        strncmp(what, prefix, sizeof prefix - 1) == 0 ? what + sizeof prefix - 1 : ""; /* other texts are not waits */
    const size_t same = strcspn(what, ","); /* the same wait with another number of seconds */
    const double now_s = clock_monotonic_s();
    struct board_numbers *numbers = board_lock(&self.board);
    const bool is_new = strcspn(numbers->waiting_for, ",") != same || strncmp(numbers->waiting_for, what, same) != 0;
    if (is_new && numbers->waiting_for[0] != '\0') {
        numbers->waited_s += now_s - numbers->waiting_since_s;
    }
    if (is_new) {
        numbers->waiting_since_s = now_s;
        snprintf(numbers->waiting_for, sizeof numbers->waiting_for, "%.*s", (int)same, what);
    }
    if (what[0] != '\0') {
        numbers->state = BOARD_WAITING;
    } else if (numbers->state == BOARD_WAITING) {
        numbers->state = BOARD_TRAINING;
    }
    board_unlock(&self.board);
    note_alive();
    if (is_new && what[0] != '\0') {
        add_event("waiting", NULL, -1, "%s", what);
    }
}

void observe_certificate(double until_s)
{
    if (observe_is_on()) {
        board_lock(&self.board)->certificate_until_s = until_s;
        board_unlock(&self.board);
    }
}

void observe_traffic(uint64_t bytes_in, uint64_t bytes_out, uint64_t retries)
{
    if (observe_is_on()) {
        struct board_numbers *numbers = board_lock(&self.board);
        numbers->bytes_in = bytes_in;
        numbers->bytes_out = bytes_out;
        numbers->retries = retries;
        board_unlock(&self.board);
    }
}

void observe_run(const struct observe_start_of_run *run)
{
    if (!observe_is_on()) {
        return;
    }
    struct board_numbers *numbers = board_lock(&self.board);
    snprintf(numbers->engine, sizeof numbers->engine, "%s", run->engine);
    snprintf(numbers->digest, sizeof numbers->digest, "%s", run->digest);
    snprintf(numbers->metric, sizeof numbers->metric, "%s", run->metric);
    numbers->metric_rises = run->metric_rises;
    numbers->layer_count = run->layer_count;
    memcpy(numbers->layers, run->layers, (size_t)run->layer_count * sizeof *run->layers);
    numbers->global_step = run->global_step;
    numbers->last_step = run->last_step;
    numbers->config_version = run->config_version;
    numbers->best_step = isnan(run->best_value) ? -1 : run->best_step;
    numbers->best_value = run->best_value;
    numbers->state = BOARD_TRAINING;
    board_unlock(&self.board);
    if (run->restored_from) {
        add_event("restored", NULL, run->global_step, "from %s", run->restored_from);
    }
}

static int bucket_of(double seconds)
{
    int i = 0;
    while (i < BOARD_STEP_BUCKETS - 1 && seconds > board_step_bounds[i]) {
        i++;
    }
    return i;
}

void observe_steps(const struct observe_steps *steps)
{
    if (!observe_is_on()) {
        return;
    }
    struct board_numbers *numbers = board_lock(&self.board);
    numbers->global_step = steps->global_step;
    numbers->local_step = steps->local_step;
    numbers->epoch = steps->epoch;
    numbers->learning_rate = steps->learning_rate;
    numbers->examples = steps->run_examples;
    numbers->steps += steps->steps;
    numbers->step_s += steps->seconds;
    if (isfinite(steps->loss_sum)) {
        numbers->loss_steps += steps->steps;
        numbers->loss_sum += steps->loss_sum;
    }
    if (steps->steps > 0) {
        numbers->step_times[bucket_of(steps->seconds / (double)steps->steps)] += (uint64_t)steps->steps;
    }
    numbers->state = BOARD_TRAINING;
    board_unlock(&self.board);
    note_alive();
}

void observe_validation(const struct observe_validation *validation)
{
    if (!observe_is_on()) {
        return;
    }
    struct board_numbers *numbers = board_lock(&self.board);
    numbers->metric_count = validation->metric_count < BOARD_METRICS ? validation->metric_count : BOARD_METRICS;
    memcpy(numbers->metrics, validation->metrics, (size_t)numbers->metric_count * sizeof *numbers->metrics);
    numbers->best_step = isnan(validation->best_value) ? -1 : validation->best_step;
    numbers->best_value = validation->best_value;
    numbers->validations++;
    const struct board_metric first =
        numbers->metric_count > 0 ? numbers->metrics[0] : (struct board_metric){.name = ""};
    board_unlock(&self.board);
    note_alive();
    char text[BOARD_METRIC_TEXT];
    board_validated(&self.board, validation->global_step, validation->metrics, validation->metric_count);
    add_event("validation", NULL, validation->global_step, "%s", board_metric_text(&first, text));
}

void observe_test(int64_t global_step, const struct board_metric *metrics, int count)
{
    if (!observe_is_on() || count == 0) {
        return;
    }
    char text[BOARD_METRIC_TEXT];
    struct board_numbers *numbers = board_lock(&self.board);
    numbers->test_count = count < BOARD_METRICS ? count : BOARD_METRICS;
    memcpy(numbers->test, metrics, (size_t)numbers->test_count * sizeof *metrics);
    board_unlock(&self.board);
    add_event("test", NULL, global_step, "%s", board_metric_text(&metrics[0], text));
}

void observe_at(int64_t global_step)
{
    if (observe_is_on()) {
        struct board_numbers *numbers = board_lock(&self.board);
        numbers->global_step = global_step;
        numbers->state = BOARD_VALIDATING;
        board_unlock(&self.board);
        note_alive();
    }
}

void observe_saved(const char *path, int64_t step, double seconds)
{
    if (!observe_is_on()) {
        return;
    }
    struct board_numbers *numbers = board_lock(&self.board);
    numbers->saved_step = step;
    numbers->saved_time_s = clock_wall_s();
    numbers->saved_took_s = seconds;
    numbers->saved++;
    snprintf(numbers->saved_path, sizeof numbers->saved_path, "%s", path);
    board_unlock(&self.board);
    note_alive();
    add_event("checkpoint", NULL, step, "%s", path);
}

void observe_best_saved(const char *path, int64_t step)
{
    if (observe_is_on()) {
        struct board_numbers *numbers = board_lock(&self.board);
        numbers->best_saved_step = step;
        snprintf(numbers->best_saved_path, sizeof numbers->best_saved_path, "%s", path);
        board_unlock(&self.board);
        add_event("checkpoint", NULL, step, "%s, the best so far", path);
    }
}

void observe_failure(const char *why)
{
    add_event("error", NULL, -1, "%s", why);
}

void observe_save_failed(const char *why)
{
    if (observe_is_on()) {
        board_lock(&self.board)->saves_failed++;
        board_unlock(&self.board);
        add_event("error", NULL, -1, "%s", why);
    }
}
