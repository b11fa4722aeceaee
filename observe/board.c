/* The board: numbers under a lock, and the server thread's computations once a second. */
#include "observe/board.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

enum {
    RATE_S = 10, /* over which rates are averaged */
    SAVE_S = 60, /* between two writes of the history's file */
};

/* The series that every run has, in this order; metrics follow as they appear. */
static const char *const series[] = {"loss",         "learning_rate", "steps_per_s",    "examples_per_s",
                                     "memory_bytes", "cpu_percent",   "bytes_in_per_s", "bytes_out_per_s"};
enum { SERIES = sizeof series / sizeof series[0] };

const double board_step_bounds[BOARD_STEP_BUCKETS - 1] = {1e-5, 3e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01,
                                                          0.02, 0.05, 0.1,  0.2,  0.5,  1,    5,    30};

const char *board_state_name(enum board_state state)
{
    static const char *const names[] = {"starting", "waiting", "training",    "validating",
                                        "saving",   "done",    "interrupted", "failed"};
    return names[state];
}

const char *board_metric_text(const struct board_metric *metric, char text[BOARD_METRIC_TEXT])
{
    const bool is_share = strstr(metric->name, "accuracy");
    snprintf(text, BOARD_METRIC_TEXT, is_share ? "%s %.2f%%" : "%s %.4g", metric->name,
             is_share ? 100 * metric->value : metric->value);
    return text;
}

bool board_create(struct board *board, const char *role, int task, const char *train_dir, struct error *error)
{
    const char *slash = strrchr(train_dir, '/');
    *board = (struct board){.task = task, .started_s = clock_wall_s(), .loss = NAN, .gpu_percent = NAN};
    pthread_mutex_init(&board->mutex, NULL);
    board->numbers = (struct board_numbers){
        .config_version = -1, .last_step = -1, .best_step = -1, .saved_step = -1, .best_saved_step = -1};
    snprintf(board->role, sizeof board->role, "%s", role);
    snprintf(board->train_dir, sizeof board->train_dir, "%s", train_dir);
    snprintf(board->name, sizeof board->name, "%s", slash && slash[1] != '\0' ? slash + 1 : train_dir);
    if (board->name[0] == '\0') {
        snprintf(board->name, sizeof board->name, "%s", role);
    }
    board->events = calloc(BOARD_EVENTS, sizeof *board->events);
    board->samples = calloc(RATE_S, sizeof *board->samples);
    board->validated = calloc(BOARD_VALIDATIONS, sizeof *board->validated);
    if (!board->events || !board->validated || !board->samples || !history_create(&board->history, error)) {
        board_destroy(board);
        return error_set(error, "out of memory to watch the run");
    }
    for (int i = 0; i < SERIES; i++) {
        history_series(&board->history, series[i]);
    }
    return true;
}

void board_destroy(struct board *board)
{
    free(board->events);
    free(board->samples);
    free(board->validated);
    free(board->about);
    free(board->members);
    free(board->rollout.diff);
    history_destroy(&board->history);
    *board = (struct board){.task = 0};
}

void board_forget(struct board *board)
{
    struct history *history = &board->history;
    pthread_mutex_lock(&board->mutex);
    board->last_event = 0;
    board->validated_count = 0;
    pthread_mutex_unlock(&board->mutex);
    history->recent.count = history->whole.count = 0;
    history->width_s = 1;
}

void board_keep_history(struct board *board, const char *path)
{
    struct error error;
    bool damaged;
    snprintf(board->path, sizeof board->path, "%s", path);
    if (!history_load(&board->history, path, &damaged, &error) && damaged) {
        log_warning("%s; the history of this run begins again", error.text);
    }
}

void board_save_history(struct board *board)
{
    struct error error;
    if (board->path[0] != '\0' && !history_save(&board->history, board->path, &error)) {
        log_warning("%s; the history of this run is kept only in memory", error.text);
        board->path[0] = '\0';
    }
}

/* --- Numbers --- */

struct board_numbers *board_lock(struct board *board)
{
    pthread_mutex_lock(&board->mutex);
    return &board->numbers;
}

void board_unlock(struct board *board)
{
    pthread_mutex_unlock(&board->mutex);
}

void board_copy(struct board *board, struct board_numbers *numbers)
{
    *numbers = *board_lock(board);
    board_unlock(board);
}

void board_set_about(struct board *board, char *about)
{
    pthread_mutex_lock(&board->mutex);
    char *old = board->about;
    board->about = about;
    pthread_mutex_unlock(&board->mutex);
    free(old);
}

void board_validated(struct board *board, int64_t step, const struct board_metric *metrics, int count)
{
    pthread_mutex_lock(&board->mutex);
    if (board->validated_count < BOARD_VALIDATIONS) {
        struct board_validation *validation = &board->validated[board->validated_count++];
        validation->time_s = clock_wall_s();
        validation->step = step;
        validation->metric_count = count < BOARD_METRICS ? count : BOARD_METRICS;
        memcpy(validation->metrics, metrics, (size_t)validation->metric_count * sizeof *metrics);
    }
    pthread_mutex_unlock(&board->mutex);
}

/* --- Events --- */

void board_event(struct board *board, const char *kind, const char *member, int64_t step, const char *text)
{
    board_event_at(board, clock_wall_s(), kind, member, step, text);
}

void board_event_at(struct board *board, double time_s, const char *kind, const char *member, int64_t step,
                    const char *text)
{
    pthread_mutex_lock(&board->mutex);
    const int64_t id = ++board->last_event;
    struct board_event *event = &board->events[id % BOARD_EVENTS];
    *event = (struct board_event){.id = id, .step = step, .time_s = time_s};
    snprintf(event->kind, sizeof event->kind, "%s", kind);
    snprintf(event->member, sizeof event->member, "%s", member ? member : "");
    snprintf(event->text, sizeof event->text, "%s", text);
    pthread_mutex_unlock(&board->mutex);
}

bool board_event_from(struct board *board, int64_t id, struct board_event *event)
{
    pthread_mutex_lock(&board->mutex);
    const int64_t oldest = board->last_event > BOARD_EVENTS ? board->last_event - BOARD_EVENTS + 1 : 1;
    id = id < oldest ? oldest : id;
    const bool found = id <= board->last_event;
    if (found) {
        *event = board->events[id % BOARD_EVENTS];
    }
    pthread_mutex_unlock(&board->mutex);
    return found;
}

int64_t board_last_event(struct board *board)
{
    pthread_mutex_lock(&board->mutex);
    const int64_t id = board->last_event;
    pthread_mutex_unlock(&board->mutex);
    return id;
}

/* --- Members --- */

bool board_begin_members(struct board *board, int count)
{
    if (count > board->member_room) {
        struct board_member *members = realloc(board->members, (size_t)count * sizeof *members);
        if (!members) {
            board->member_count = 0;
            return false;
        }
        board->members = members;
        board->member_room = count;
    }
    if (count > 0) {
        memset(board->members, 0, (size_t)count * sizeof *board->members);
    }
    board->member_count = count;
    return true;
}

/* --- Each second --- */

static struct board_sample sample(const struct board *board, const struct board_numbers *numbers, double now_s)
{
    return (struct board_sample){.time_s = now_s,
                                 .step = numbers->global_step,
                                 .examples = numbers->examples,
                                 .loss_steps = numbers->loss_steps,
                                 .loss_sum = numbers->loss_sum,
                                 .cpu_s = board->use.cpu_s,
                                 .gpu_s = board->use.gpu_s,
                                 .bytes_in = numbers->bytes_in,
                                 .bytes_out = numbers->bytes_out};
}

static double rate(double now, double before, double seconds)
{
    return seconds > 0 && now >= before ? (now - before) / seconds : 0;
}

/* Means over the last RATE_S seconds, or as many as there are; starts over when the step goes back. */
static void measure(struct board *board, const struct board_sample *now)
{
    const struct board_sample *newest = &board->samples[(board->ticks + RATE_S - 1) % RATE_S];
    if (board->ticks > 0 && (now->step < newest->step || now->time_s <= newest->time_s)) {
        board->ticks = 0;
    }
    const int64_t kept = board->ticks < RATE_S ? board->ticks : RATE_S;
    if (kept > 0) {
        const struct board_sample *then = &board->samples[(board->ticks - kept) % RATE_S];
        const double seconds = now->time_s - then->time_s;
        board->steps_per_s = rate((double)now->step, (double)then->step, seconds);
        board->examples_per_s = rate((double)now->examples, (double)then->examples, seconds);
        board->cpu_percent = 100 * rate(now->cpu_s, newest->cpu_s, now->time_s - newest->time_s);
        if (now->loss_steps > newest->loss_steps) {
            board->loss = (now->loss_sum - newest->loss_sum) / (double)(now->loss_steps - newest->loss_steps);
        }
    }
    board->samples[board->ticks % RATE_S] = *now;
    board->ticks++;
}

static void clear(float values[HISTORY_SERIES])
{
    for (int i = 0; i < HISTORY_SERIES; i++) {
        values[i] = NAN;
    }
}

/* Each at its own step and time: between two validations nothing is known. */
static void add_validation(struct history *history, const struct board_validation *validation)
{
    float values[HISTORY_SERIES];
    clear(values);
    for (int i = 0; i < validation->metric_count; i++) {
        char name[HISTORY_NAME];
        snprintf(name, sizeof name, "metric:%s", validation->metrics[i].name);
        const int index = history_series(history, name);
        if (index >= 0) {
            values[index] = (float)validation->metrics[i].value;
        }
    }
    history_add(history, validation->time_s, validation->step, values);
}

static void add_validations(struct board *board)
{
    pthread_mutex_lock(&board->mutex);
    for (int i = 0; i < board->validated_count; i++) {
        add_validation(&board->history, &board->validated[i]);
    }
    board->validated_count = 0;
    pthread_mutex_unlock(&board->mutex);
}

/* A series that only runs with a GPU have. */
static void add_gpu(struct board *board, const struct board_sample *now, const struct board_sample *before,
                    float values[HISTORY_SERIES])
{
    const int gpus = board->use.gpus, index = gpus > 0 ? history_series(&board->history, "gpu_percent") : -1;
    const double busy = rate(now->gpu_s, before->gpu_s, now->time_s - before->time_s);
    board->gpu_percent = gpus > 0 ? fmin(100, 100 * busy / gpus) : (double)NAN;
    if (index >= 0) {
        values[index] = (float)board->gpu_percent;
    }
}

static bool is_running(enum board_state state)
{
    return state == BOARD_TRAINING || state == BOARD_VALIDATING || state == BOARD_SAVING;
}

void board_tick(struct board *board)
{
    const double now_s = clock_wall_s();
    struct board_numbers numbers;
    float values[HISTORY_SERIES];
    board_copy(board, &numbers);
    process_measure(&board->use);
    const struct board_sample now = sample(board, &numbers, now_s), before = board->before;
    const double seconds = now.time_s - before.time_s;
    const bool first = before.time_s == 0 || now.step < before.step;
    measure(board, &now);
    board->before = now;
    add_validations(board);
    if (first) {
        return;
    }
    clear(values);
    values[0] = now.loss_steps > before.loss_steps ? (float)board->loss : NAN;
    values[1] = is_running(numbers.state) ? (float)numbers.learning_rate : NAN;
    values[2] = (float)rate((double)now.step, (double)before.step, seconds);
    values[3] = (float)rate((double)now.examples, (double)before.examples, seconds);
    values[4] = (float)board->use.resident_bytes;
    add_gpu(board, &now, &before, values);
    values[5] = (float)(100 * rate(now.cpu_s, before.cpu_s, seconds));
    values[6] = (float)rate((double)now.bytes_in, (double)before.bytes_in, seconds);
    values[7] = (float)rate((double)now.bytes_out, (double)before.bytes_out, seconds);
    history_add(&board->history, now_s, numbers.global_step, values);
    if (++board->unsaved == SAVE_S) {
        board->unsaved = 0;
        board_save_history(board);
    }
}
