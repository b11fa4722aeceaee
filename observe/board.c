/* The board: numbers under a lock, and the server thread's computations once a second. */
#include "observe/board.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/encoding/crc32c.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"

/* --- History --- */

/*
 * Two rings of buckets. The coarse one is rebuilt in place when its buckets double in width; since buckets record when
 * they begin, gaps between two starts of a run cost nothing.
 *
 * The file: magic, version, counts, names, buckets, and the CRC-32C of all that, in this machine's byte order. Any
 * other file is not ours, and the history starts over.
 */

static const char magic[8] = "trnrhist";
enum { VERSION = 1 };

struct file_head {
    char magic[8];
    uint32_t version, series, recent, whole;
    double width_s;
    char names[HISTORY_SERIES][HISTORY_NAME];
};

void history_create(struct history *history)
{
    *history = (struct history){.recent = {.room = HISTORY_RECENT}, .whole = {.room = HISTORY_WHOLE}, .width_s = 1};
    history->recent.buckets = must_zero(HISTORY_RECENT, sizeof *history->recent.buckets, "the history of the run");
    history->whole.buckets = must_zero(HISTORY_WHOLE, sizeof *history->whole.buckets, "the history of the run");
}

void history_destroy(struct history *history)
{
    free(history->recent.buckets);
    free(history->whole.buckets);
    *history = (struct history){.series = 0};
}

/* Names are stored in JSON unescaped, even those of a foreign file. */
static bool name_is_good(const char *name)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:";
    return name[strspn(name, plain)] == '\0';
}

int history_series(struct history *history, const char *name)
{
    for (int i = 0; i < history->series; i++) {
        if (strcmp(history->names[i], name) == 0) {
            return i;
        }
    }
    if (history->series == HISTORY_SERIES || strlen(name) >= HISTORY_NAME || !name_is_good(name)) {
        return -1;
    }
    strcpy(history->names[history->series], name);
    return history->series++;
}

static struct history_bucket *at(const struct history_ring *ring, int index)
{
    return &ring->buckets[(ring->first + index) % ring->room];
}

const struct history_bucket *history_at(const struct history_ring *ring, int index)
{
    return at(ring, index);
}

/* Appends a bucket; the oldest is dropped if necessary. */
static struct history_bucket *add_bucket(struct history_ring *ring)
{
    if (ring->count == ring->room) {
        ring->first = (ring->first + 1) % ring->room;
        ring->count--;
    }
    return at(ring, ring->count++);
}

/* Means, weighted by seconds; a value known for only one is kept as it is. */
static void merge(struct history_bucket *into, const struct history_bucket *from)
{
    const float a = (float)into->seconds, b = (float)from->seconds;
    for (int i = 0; i < HISTORY_SERIES; i++) {
        if (isnan(into->values[i])) {
            into->values[i] = from->values[i];
        } else if (!isnan(from->values[i])) {
            into->values[i] = (into->values[i] * a + from->values[i] * b) / (a + b);
        }
    }
    into->step = from->step;
    into->seconds += from->seconds;
}

static double start_of(const struct history *history, double time_s)
{
    return floor(time_s / history->width_s) * history->width_s;
}

/* Doubles the width until a bucket is free. */
static void widen(struct history *history)
{
    struct history_ring *ring = &history->whole;
    while (ring->count == ring->room) {
        int kept = 0;
        history->width_s *= 2;
        for (int i = 0; i < ring->count; i++) {
            const struct history_bucket bucket = *at(ring, i);
            struct history_bucket *last = kept > 0 ? at(ring, kept - 1) : NULL;
            if (last && last->time_s == start_of(history, bucket.time_s)) {
                merge(last, &bucket);
            } else {
                struct history_bucket *next = at(ring, kept++);
                *next = bucket;
                next->time_s = start_of(history, bucket.time_s);
            }
        }
        ring->count = kept;
    }
}

void history_add(struct history *history, double time_s, int64_t step, const float *values)
{
    struct history_bucket bucket = {.time_s = time_s, .step = step, .seconds = 1};
    struct history_ring *recent = &history->recent, *whole = &history->whole;
    for (int i = 0; i < HISTORY_SERIES; i++) {
        bucket.values[i] = i < history->series ? values[i] : NAN;
    }
    if (recent->count > 0 && bucket.time_s < at(recent, recent->count - 1)->time_s) {
        bucket.time_s = at(recent, recent->count - 1)->time_s;
    }
    *add_bucket(recent) = bucket;
    bucket.time_s = start_of(history, bucket.time_s);
    if (whole->count > 0 && at(whole, whole->count - 1)->time_s >= bucket.time_s) {
        merge(at(whole, whole->count - 1), &bucket);
        return;
    }
    widen(history);
    bucket.time_s = start_of(history, bucket.time_s);
    if (whole->count > 0 && at(whole, whole->count - 1)->time_s >= bucket.time_s) {
        merge(at(whole, whole->count - 1), &bucket);
    } else {
        *add_bucket(whole) = bucket;
    }
}

/* --- The file --- */

static uint8_t *put(uint8_t *to, const void *bytes, size_t size)
{
    memcpy(to, bytes, size);
    return to + size;
}

static size_t file_size(uint32_t recent, uint32_t whole)
{
    return sizeof(struct file_head) + (recent + whole) * sizeof(struct history_bucket) + sizeof(uint32_t);
}

bool history_save(const struct history *history, const char *path, struct error *error)
{
    struct file_head head = {.version = VERSION,
                             .series = (uint32_t)history->series,
                             .recent = (uint32_t)history->recent.count,
                             .whole = (uint32_t)history->whole.count,
                             .width_s = history->width_s};
    memcpy(head.magic, magic, sizeof magic);
    memcpy(head.names, history->names, sizeof head.names);
    const size_t size = file_size(head.recent, head.whole);
    uint8_t *bytes = must_alloc(size, "the history of the run"), *to = put(bytes, &head, sizeof head);
    const struct history_ring *const rings[] = {&history->recent, &history->whole};
    for (int r = 0; r < 2; r++) {
        for (int i = 0; i < rings[r]->count; i++) {
            to = put(to, at(rings[r], i), sizeof(struct history_bucket));
        }
    }
    const uint32_t sum = crc32c(bytes, size - sizeof sum);
    put(to, &sum, sizeof sum);
    const bool done = file_write_atomic(path, &(struct file_part){bytes, size}, 1, error);
    free(bytes);
    return done;
}

static bool head_is_good(const struct file_head *head)
{
    bool good = memcmp(head->magic, magic, sizeof magic) == 0 && head->version == VERSION &&
                head->series <= HISTORY_SERIES && head->recent <= HISTORY_RECENT && head->whole <= HISTORY_WHOLE &&
                isfinite(head->width_s) && head->width_s >= 1;
    for (uint32_t i = 0; good && i < head->series; i++) {
        good = memchr(head->names[i], '\0', HISTORY_NAME) && name_is_good(head->names[i]);
    }
    return good;
}

/* In chronological order, without NaN. */
static bool take_buckets(struct history_ring *ring, const uint8_t *from, uint32_t count)
{
    double last_s = 0;
    ring->first = 0;
    ring->count = (int)count;
    for (uint32_t i = 0; i < count; i++) {
        struct history_bucket *bucket = &ring->buckets[i];
        memcpy(bucket, from + i * sizeof *bucket, sizeof *bucket);
        if (!(bucket->time_s >= last_s) || !isfinite(bucket->time_s)) {
            ring->count = 0;
            return false;
        }
        last_s = bucket->time_s;
    }
    return true;
}

static bool take(struct history *history, const uint8_t *bytes, size_t size)
{
    struct file_head head;
    uint32_t sum;
    if (size < sizeof head + sizeof sum) {
        return false;
    }
    memcpy(&head, bytes, sizeof head);
    memcpy(&sum, bytes + size - sizeof sum, sizeof sum);
    if (!head_is_good(&head) || size != file_size(head.recent, head.whole) || sum != crc32c(bytes, size - sizeof sum)) {
        return false;
    }
    const uint8_t *whole = bytes + sizeof head + head.recent * sizeof(struct history_bucket);
    if (!take_buckets(&history->recent, bytes + sizeof head, head.recent) ||
        !take_buckets(&history->whole, whole, head.whole)) {
        history->recent.count = history->whole.count = 0;
        return false;
    }
    memcpy(history->names, head.names, sizeof head.names);
    history->series = (int)head.series;
    history->width_s = head.width_s;
    return true;
}

bool history_load(struct history *history, const char *path, bool *damaged, struct error *error)
{
    uint8_t *bytes;
    size_t size;
    *damaged = false;
    if (!file_exists(path)) {
        return error_set(error, "%s: there is none", path);
    }
    if (!file_read(path, file_size(HISTORY_RECENT, HISTORY_WHOLE), &bytes, &size, error)) {
        *damaged = true;
        return false;
    }
    const bool good = take(history, bytes, size);
    free(bytes);
    *damaged = !good;
    return good || error_set(error, "%s: is damaged, or not a history file", path);
}

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

void board_create(struct board *board, const char *role, int task, const char *train_dir)
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
    board->events = must_zero(BOARD_EVENTS, sizeof *board->events, "the events of the run");
    board->samples = must_zero(RATE_S, sizeof *board->samples, "the rates of the run");
    board->validated = must_zero(BOARD_VALIDATIONS, sizeof *board->validated, "the validations of the run");
    history_create(&board->history);
    for (int i = 0; i < SERIES; i++) {
        history_series(&board->history, series[i]);
    }
}

void board_destroy(struct board *board)
{
    free(board->events);
    free(board->samples);
    free(board->validated);
    free(board->about);
    free(board->members);
    free(board->seen);
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

static const struct board_seen *seen_before(const struct board *board, const struct board_member *member)
{
    for (int i = 0; i < board->seen_count; i++) {
        if (board->seen[i].task == member->task && strcmp(board->seen[i].role, member->role) == 0) {
            return &board->seen[i];
        }
    }
    return NULL;
}

void board_compare_members(struct board *board, bool states)
{
    struct board_seen *seen = calloc((size_t)board->member_count + 1, sizeof *seen);
    for (int i = 0; seen && i < board->member_count; i++) {
        const struct board_member *member = &board->members[i];
        const struct board_seen *before = seen_before(board, member);
        const bool was_missing = !before || before->is_missing;
        char name[24], text[BOARD_TEXT];
        seen[i].task = member->task;
        seen[i].is_missing = member->is_missing;
        snprintf(seen[i].role, sizeof seen[i].role, "%s", member->role);
        snprintf(seen[i].state, sizeof seen[i].state, "%s", member->state);
        snprintf(name, sizeof name, "%s %d", member->role, member->task);
        if (board->seen && was_missing && !member->is_missing) {
            snprintf(text, sizeof text, "%s is here%s%.100s", name, member->host[0] != '\0' ? ", from " : "",
                     member->host);
            board_event(board, "joined", name, member->global_step, text);
        } else if (board->seen && !was_missing && member->is_missing) {
            snprintf(text, sizeof text, "%s is lost", name);
            board_event(board, "lost", name, member->global_step, text);
        } else if (states && before && strcmp(before->state, member->state) != 0) {
            snprintf(text, sizeof text, "%s was %s and is %s", name, before->state, member->state);
            board_event(board, "state", name, member->global_step, text);
        }
    }
    free(board->seen);
    board->seen = seen;
    board->seen_count = seen ? board->member_count : 0;
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
    const struct board_sample now = sample(board, &numbers, clock_monotonic_s()), before = board->before;
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
