/* The routes, and their JSON. A request names a run by ?run=ID, its index among the runs. */
#include "observe/api.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/text/json_writer.h"
#include "base/version.h"
#include "observe/http/server.h"
#include "observe/metrics.h"

/* --- A member as JSON --- */

/* Unknown values are null. */

static double known(int64_t value)
{
    return value < 0 ? (double)NAN : (double)value;
}

#define WRITE_TEXT(field, size, name) json_write_string(text, name, from->field);
#define WRITE_FLAG(field, name)       json_write_bool(text, name, from->field);
#define WRITE_SMALL(field, name)      json_write_integer(text, name, from->field);
#define WRITE_WHOLE(field, name)      json_write_number(text, name, known(from->field));
#define WRITE_COUNT(field, name)      json_write_integer(text, name, (int64_t)from->field);
#define WRITE_NUMBER(field, name)     json_write_number(text, name, from->field);
#define WRITE(TABLE)                  TABLE(WRITE_TEXT, WRITE_FLAG, WRITE_SMALL, WRITE_WHOLE, WRITE_COUNT, WRITE_NUMBER)

static void rounds_write(struct text_buffer *text, const struct board_rounds *from)
{
    json_write_open(text, "rounds", '{');
    WRITE(BOARD_ROUNDS_FIELDS)
    json_write_close(text, '}');
}

static void own_write(struct text_buffer *text, const struct board_own *from)
{
    json_write_open(text, "validation", '{');
    WRITE(BOARD_OWN_FIELDS)
    json_write_close(text, '}');
}

void member_write(struct text_buffer *text, const struct board_member *from)
{
    json_write_open(text, NULL, '{');
    WRITE(BOARD_MEMBER_FIELDS)
    if (from->rounds.asked > 0) {
        rounds_write(text, &from->rounds);
    }
    if (from->own.examples > 0) {
        own_write(text, &from->own);
    }
    json_write_close(text, '}');
}

/* --- Routes --- */

enum {
    MOST_STREAMS = 64,
    MOST_LAG = 1024 * 1024, /* unsent bytes of a stream that gets no more status */
    KEEP_ALIVE_TICKS = 15,
};

static const char json_type[] = "application/json";

/* Browsers run nothing here but the page's own files. */
static const char no_store[] = "Cache-Control: no-store\r\nContent-Security-Policy: default-src 'none'; "
                               "frame-ancestors 'none'\r\n";

static const char *const extra_names[API_EXTRAS] = {[EXTRA_WEIGHTS] = "weights",
                                                    [EXTRA_MISTAKES] = "mistakes",
                                                    [EXTRA_COLUMNS] = "columns",
                                                    [EXTRA_CLASSES] = "classes"};

/* --- The status --- */

static void add_run(struct text_buffer *text, const struct api_run *run, const struct board_numbers *numbers)
{
    const struct board *board = run->board;
    char waiting[BOARD_TEXT + 32];
    json_write_open(text, "run", '{');
    json_write_string(text, "name", board->name);
    json_write_string(text, "train_dir", board->train_dir);
    json_write_string(text, "role", board->role);
    json_write_integer(text, "task", board->task);
    json_write_string(text, "state", board_state_name(numbers->state));
    snprintf(waiting, sizeof waiting, "%s, %.0f s", numbers->waiting_for,
             clock_monotonic_s() - numbers->waiting_since_s);
    json_write_string(text, "waiting_for", numbers->waiting_for[0] != '\0' ? waiting : NULL);
    json_write_number(text, "config_version",
                      numbers->config_version < 0 ? (double)NAN : (double)numbers->config_version);
    json_write_string(text, "config_digest", numbers->digest);
    json_write_string(text, "engine", numbers->engine);
    json_write_open(text, "layers", '[');
    for (int i = 0; i < numbers->layer_count; i++) {
        json_write_integer(text, NULL, numbers->layers[i]);
    }
    json_write_close(text, ']');
    json_write_string(text, "metric", numbers->metric);
    json_write_string(text, "metric_goal", numbers->metric_rises ? "max" : "min");
    json_write_integer(text, "generation", numbers->generation);
    json_write_open(text, "extras", '[');
    for (int i = 0; i < API_EXTRAS; i++) {
        if (run->extras.make[i]) {
            json_write_string(text, NULL, extra_names[i]);
        }
    }
    json_write_close(text, ']');
    json_write_close(text, '}');
}

static void add_metrics(struct text_buffer *text, const char *name, const struct board_metric *metrics, int count)
{
    json_write_open(text, name, '{');
    for (int i = 0; i < count; i++) {
        json_write_number(text, metrics[i].name, metrics[i].value);
    }
    json_write_close(text, '}');
}

static void add_progress(struct text_buffer *text, const struct board *board, const struct board_numbers *numbers)
{
    const bool ends = numbers->last_step >= 0, is_over = numbers->state >= BOARD_DONE;
    const double left = (double)(numbers->last_step - numbers->global_step);
    json_write_open(text, "progress", '{');
    json_write_integer(text, "global_step", numbers->global_step);
    json_write_number(text, "last_step", ends ? (double)numbers->last_step : (double)NAN);
    json_write_number(text, "epoch", numbers->epoch);
    json_write_integer(text, "examples", numbers->examples);
    json_write_number(text, "eta_s", !ends || is_over ? (double)NAN : left <= 0 ? 0 : left / board->steps_per_s);
    json_write_number(text, "steps_per_s", board->steps_per_s);
    json_write_number(text, "examples_per_s", board->examples_per_s);
    json_write_number(text, "learning_rate", numbers->learning_rate);
    json_write_number(text, "loss", board->loss);
    add_metrics(text, "metrics", numbers->metrics, numbers->metric_count);
    add_metrics(text, "test", numbers->test, numbers->test_count);
    if (numbers->best_step >= 0) {
        json_write_open(text, "best", '{');
        json_write_integer(text, "step", numbers->best_step);
        json_write_number(text, "value", numbers->best_value);
        json_write_close(text, '}');
    } else {
        json_write_null(text, "best");
    }
    json_write_close(text, '}');
}

/* Returns how many are missing. */
static int add_members(struct text_buffer *text, const struct board *board)
{
    int missing = 0;
    json_write_open(text, "members", '[');
    for (int i = 0; i < board->member_count; i++) {
        member_write(text, &board->members[i]);
        missing += board->members[i].is_missing;
    }
    json_write_close(text, ']');
    return missing;
}

static void add_checkpoints(struct text_buffer *text, const struct board_numbers *numbers)
{
    json_write_open(text, "checkpoints", '{');
    json_write_number(text, "last_step", known(numbers->saved_step));
    json_write_time(text, "last_time", numbers->saved_time_s);
    json_write_string(text, "last_path", numbers->saved_path);
    json_write_number(text, "duration_s", numbers->saved > 0 ? numbers->saved_took_s : (double)NAN);
    json_write_integer(text, "written", (int64_t)numbers->saved);
    json_write_integer(text, "failed", (int64_t)numbers->saves_failed);
    json_write_number(text, "best_step", known(numbers->best_saved_step));
    json_write_string(text, "best_path", numbers->best_saved_step < 0 ? NULL : numbers->best_saved_path);
    json_write_close(text, '}');
}

static void add_rollout(struct text_buffer *text, const struct board_rollout *rollout)
{
    if (!rollout->is_under_way) {
        json_write_null(text, "rollout");
        return;
    }
    json_write_open(text, "rollout", '{');
    json_write_integer(text, "version", rollout->version);
    json_write_string(text, "phase", rollout->phase);
    json_write_time(text, "since", rollout->since_s);
    json_write_string(text, "text", rollout->text);
    json_write_open(text, "diff", '[');
    for (int i = 0; i < rollout->diff_count; i++) {
        json_write_string(text, NULL, rollout->diff[i]);
    }
    json_write_close(text, ']');
    json_write_close(text, '}');
}

/* Members whose config is known and differs from the most common one. */
static void add_drift(struct text_buffer *text, const struct board *board)
{
    const struct board_member *usual = NULL;
    int most = 0;
    json_write_open(text, "drift", '[');
    for (int i = 0; i < board->member_count; i++) {
        const struct board_member *member = &board->members[i];
        int same = 0;
        bool seen = false;
        for (int k = 0; k < i && !seen; k++) {
            seen = strcmp(board->members[k].digest, member->digest) == 0;
        }
        for (int k = i; !seen && member->digest[0] != '\0' && k < board->member_count; k++) {
            same += strcmp(board->members[k].digest, member->digest) == 0;
        }
        if (same > most) {
            most = same;
            usual = member;
        }
    }
    for (int i = 0; usual && i < board->member_count; i++) {
        const struct board_member *member = &board->members[i];
        if (member->digest[0] != '\0' && strcmp(member->digest, usual->digest) != 0) {
            char line[BOARD_TEXT];
            snprintf(line, sizeof line, "%s %d: config digest %.12s differs from %.12s, which most have", member->role,
                     member->task, member->digest, usual->digest);
            json_write_string(text, NULL, line);
        }
    }
    json_write_close(text, ']');
}

static void write_status(struct text_buffer *text, const struct api_run *run)
{
    struct board *board = run->board;
    struct board_numbers numbers;
    board_copy(board, &numbers);
    json_write_open(text, NULL, '{');
    json_write_string(text, "version", version_trainer());
    json_write_string(text, "build", version_libc());
    json_write_time(text, "time", clock_wall_s());
    json_write_time(text, "started", board->started_s);
    add_run(text, run, &numbers);
    add_progress(text, board, &numbers);
    const int missing = add_members(text, board);
    json_write_integer(text, "missing", missing);
    add_checkpoints(text, &numbers);
    add_rollout(text, &board->rollout);
    add_drift(text, board);
    json_write_integer(text, "event_id", board_last_event(board));
    json_write_close(text, '}');
}

/* --- Requests --- */

/* Frees the text. */
static void answer_status(struct http_request *request, int status, struct text_buffer *text, const char *type)
{
    size_t size;
    char *bytes = text_buffer_take(text, &size);
    if (!bytes) {
        http_answer_error(request, 503, "out of memory: try again later");
        return;
    }
    http_answer(request, &(struct http_answer){.status = status,
                                               .type = type,
                                               .headers = no_store,
                                               .body = bytes,
                                               .size = size,
                                               .release = free,
                                               .owner = bytes});
}

static void answer_text(struct http_request *request, struct text_buffer *text, const char *type)
{
    answer_status(request, 200, text, type);
}

/* NULL: there is no such run, and that has been answered. */
static const struct api_run *run_of(const struct api *api, struct http_request *request)
{
    char id[16], *end = id;
    if (!http_request_parameter(request, "run", id, sizeof id)) {
        return &api->runs[0];
    }
    const long index = strtol(id, &end, 10);
    if (end == id || *end != '\0' || index < 0 || index >= api->run_count) {
        http_answer_error(request, 404, "no run %s: /api/runs lists them", id);
        return NULL;
    }
    return &api->runs[index];
}

static void get_status(void *context, struct http_request *request)
{
    const struct api_run *run = run_of(context, request);
    struct text_buffer text = {.bytes = NULL};
    if (run) {
        write_status(&text, run);
        answer_text(request, &text, json_type);
    }
}

static void get_runs(void *context, struct http_request *request)
{
    const struct api *api = context;
    struct text_buffer text = {.bytes = NULL};
    json_write_open(&text, NULL, '{');
    json_write_open(&text, "runs", '[');
    for (int i = 0; i < api->run_count; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", i);
        json_write_open(&text, NULL, '{');
        json_write_string(&text, "id", id);
        json_write_string(&text, "name", api->runs[i].board->name);
        json_write_close(&text, '}');
    }
    json_write_close(&text, ']');
    json_write_close(&text, '}');
    answer_text(request, &text, json_type);
}

/* --- History --- */

static bool is_wanted(const char *list, const char *name)
{
    const size_t size = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, size) == 0 && (at[size] == ',' || at[size] == '\0')) {
            return true;
        }
    }
    return list[0] == '\0';
}

static int first_after(const struct history_ring *ring, double since_s)
{
    int low = 0, high = ring->count;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (history_at(ring, middle)->time_s > since_s) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static void add_ring(struct text_buffer *text, const char *name, const struct history *history,
                     const struct history_ring *ring, double since_s, const char *wanted)
{
    const int first = first_after(ring, since_s);
    json_write_open(text, name, '{');
    json_write_open(text, "time", '[');
    for (int i = first; i < ring->count; i++) {
        json_write_time(text, NULL, history_at(ring, i)->time_s);
    }
    json_write_close(text, ']');
    json_write_open(text, "global_step", '[');
    for (int i = first; i < ring->count; i++) {
        json_write_integer(text, NULL, history_at(ring, i)->step);
    }
    json_write_close(text, ']');
    json_write_open(text, "values", '{');
    for (int s = 0; s < history->series; s++) {
        if (is_wanted(wanted, history->names[s])) {
            json_write_open(text, history->names[s], '[');
            for (int i = first; i < ring->count; i++) {
                json_write_number(text, NULL, (double)history_at(ring, i)->values[s]);
            }
            json_write_close(text, ']');
        }
    }
    json_write_close(text, '}');
    json_write_close(text, '}');
}

static void get_history(void *context, struct http_request *request)
{
    const struct api_run *run = run_of(context, request);
    struct text_buffer text = {.bytes = NULL};
    char since[32] = "", wanted[512] = "", *end = since;
    if (!run) {
        return;
    }
    http_request_parameter(request, "series", wanted, sizeof wanted);
    http_request_parameter(request, "since", since, sizeof since);
    double since_s = strtod(since, &end);
    if (*end != '\0' || isnan(since_s)) {
        http_answer_error(request, 400, "since=%s is no time: write seconds since 1970", since);
        return;
    }
    since_s = since[0] == '\0' ? -1 : since_s + 0.0005; /* times have milliseconds, perhaps rounded down */
    const struct history *history = &run->board->history;
    json_write_open(&text, NULL, '{');
    json_write_string(&text, "name", run->board->name);
    json_write_time(&text, "time", clock_wall_s());
    json_write_integer(&text, "step_s", 1);
    json_write_open(&text, "series", '[');
    for (int i = 0; i < history->series; i++) {
        json_write_string(&text, NULL, history->names[i]);
    }
    json_write_close(&text, ']');
    add_ring(&text, "recent", history, &history->recent, since_s, wanted);
    add_ring(&text, "whole", history, &history->whole, since_s, wanted);
    json_write_close(&text, '}');
    answer_text(request, &text, json_type);
}

/* --- Events --- */

static void add_event(struct text_buffer *text, const struct board_event *event)
{
    json_write_open(text, NULL, '{');
    json_write_integer(text, "id", event->id);
    json_write_time(text, "time", event->time_s);
    json_write_string(text, "kind", event->kind);
    json_write_string(text, "member", event->member[0] != '\0' ? event->member : NULL);
    json_write_number(text, "step", known(event->step));
    json_write_string(text, "text", event->text);
    json_write_close(text, '}');
}

static void get_events(void *context, struct http_request *request)
{
    const struct api_run *run = run_of(context, request);
    struct text_buffer text = {.bytes = NULL};
    struct board_event event;
    char since[32] = "", *end = since;
    if (!run) {
        return;
    }
    http_request_parameter(request, "since", since, sizeof since);
    long long id = strtoll(since, &end, 10);
    if (*end != '\0') {
        http_answer_error(request, 400, "since=%s is no number of an event", since);
        return;
    }
    json_write_open(&text, NULL, '{');
    json_write_open(&text, "events", '[');
    while (id < INT64_MAX && board_event_from(run->board, id + 1, &event)) {
        add_event(&text, &event);
        id = event.id;
    }
    json_write_close(&text, ']');
    json_write_close(&text, '}');
    answer_text(request, &text, json_type);
}

/* --- Streams --- */

struct api_stream {
    struct api_stream *next;
    struct api *api;
    const struct api_run *run;
    struct http_stream *stream;
    int64_t sent; /* the last event */
    int quiet;    /* ticks without anything sent */
};

static void on_closed(void *owner, struct http_stream *stream)
{
    struct api_stream *gone = owner;
    (void)stream;
    for (struct api_stream **at = &gone->api->streams; *at; at = &(*at)->next) {
        if (*at == gone) {
            *at = gone->next;
            break;
        }
    }
    free(gone);
}

/* Those that it has not been sent yet. */
static void send_events(struct api_stream *stream)
{
    struct board_event event;
    struct text_buffer text = {.bytes = NULL};
    while (text.size < MOST_LAG / 4 && board_event_from(stream->run->board, stream->sent + 1, &event)) {
        text_buffer_add(&text, "event: event\nid: %lld\ndata: ", (long long)event.id);
        text.follows = false;
        add_event(&text, &event);
        text_buffer_add(&text, "\n\n");
        stream->sent = event.id;
    }
    if (text.size > 0 && !text.failed) {
        http_stream_send(stream->stream, text.bytes, text.size);
    }
    text_buffer_free(&text);
}

static void send_status(struct api_stream *stream, const struct text_buffer *status)
{
    if (http_stream_unsent(stream->stream) > MOST_LAG || status->failed) {
        return;
    }
    send_events(stream);
    if (http_stream_send(stream->stream, status->bytes, status->size)) {
        stream->quiet = 0;
    } else if (++stream->quiet % KEEP_ALIVE_TICKS == 0) {
        http_stream_send(stream->stream, ": still here\n\n", 14);
    }
}

static void write_status_event(struct text_buffer *text, const struct api_run *run)
{
    text_buffer_add(text, "event: status\ndata: ");
    write_status(text, run);
    text_buffer_add(text, "\n\n");
}

/* At the limit, the oldest stream of the address with most of them ends: its page, if anybody looks, asks again. */
static void make_room(struct api *api)
{
    struct api_stream *victim = NULL;
    int count = 0, most = 0;
    for (struct api_stream *each = api->streams; each; each = each->next) { /* newest first */
        const int crowd = http_stream_crowd(each->stream);
        count++;
        if (crowd >= most) {
            most = crowd;
            victim = each;
        }
    }
    if (count >= MOST_STREAMS) {
        http_stream_end(victim->stream); /* on_closed removes it from the list */
    }
}

static void get_stream(void *context, struct http_request *request)
{
    struct api *api = context;
    const struct api_run *run = run_of(api, request);
    if (!run) {
        return;
    }
    make_room(api);
    struct api_stream *stream = calloc(1, sizeof *stream);
    if (!stream) {
        http_answer_error(request, 503, "out of memory for another stream; try again later");
        return;
    }
    const char *last = http_request_header(request, "last-event-id");
    *stream = (struct api_stream){.api = api, .run = run};
    stream->sent = last ? strtoll(last, NULL, 10) : board_last_event(run->board);
    stream->stream = http_stream_begin(request, "text/event-stream", on_closed, stream);
    if (!stream->stream) {
        free(stream);
        return;
    }
    stream->next = api->streams;
    api->streams = stream;
    struct text_buffer text = {.bytes = NULL};
    text_buffer_add(&text, "retry: 2000\n\n");
    write_status_event(&text, run);
    send_status(stream, &text);
    text_buffer_free(&text);
}

void api_tick(struct api *api)
{
    const bool ends = atomic_load(&api->ends);
    for (int i = 0; i < api->run_count; i++) {
        struct text_buffer text = {.bytes = NULL};
        for (struct api_stream *stream = api->streams; stream; stream = stream->next) {
            if (stream->run == &api->runs[i]) {
                if (text.size == 0) {
                    write_status_event(&text, stream->run);
                }
                send_status(stream, &text);
            }
        }
        text_buffer_free(&text);
    }
    while (ends && api->streams) {
        http_stream_end(api->streams->stream); /* on_closed removes it from the list */
    }
}

/* --- Command line and settings; pictures, columns, classes --- */

static void get_about(void *context, struct http_request *request)
{
    const struct api_run *run = run_of(context, request);
    struct text_buffer text = {.bytes = NULL};
    if (run) {
        board_lock(run->board);
        text_buffer_add(&text, "%s", run->board->about ? run->board->about : "{}");
        board_unlock(run->board);
        answer_text(request, &text, json_type);
    }
}

static void get_extra(void *context, struct http_request *request)
{
    const struct api_run *run = run_of(context, request);
    const char *name = http_request_path(request) + sizeof "/api";
    struct text_buffer text = {.bytes = NULL};
    int extra = 0;
    while (extra + 1 < API_EXTRAS && strcmp(extra_names[extra], name) != 0) {
        extra++;
    }
    if (run && (!run->extras.make[extra] || !run->extras.make[extra](run->extras.context, &text.bytes, &text.size))) {
        http_answer_error(request, 404, "this run has none of these, or not yet");
    } else if (run) {
        answer_text(request, &text, json_type);
    }
}

/* --- Health, metrics --- */

static void answer_plain(struct http_request *request, int status, const char *line)
{
    struct text_buffer text = {.bytes = NULL};
    text_buffer_add(&text, "%s\n", line);
    answer_status(request, status, &text, "text/plain; charset=utf-8");
}

/* A run without progress for so long that it is not merely slow. */
static void get_health(void *context, struct http_request *request)
{
    const struct api *api = context;
    struct board *board = api->runs[0].board;
    const double alive_s = atomic_load(&board->alive_s), silent_s = clock_monotonic_s() - alive_s;
    struct board_numbers numbers;
    char line[2 * BOARD_TEXT];
    if (alive_s == 0 || silent_s < API_STANDSTILL_S) {
        answer_plain(request, 200, "ok");
        return;
    }
    board_copy(board, &numbers);
    snprintf(line, sizeof line, "nothing has moved for %.0f s: %s%s%s", silent_s, board_state_name(numbers.state),
             numbers.waiting_for[0] != '\0' ? " for " : "", numbers.waiting_for);
    answer_plain(request, 503, line);
}

static bool is_ready(const struct api *api, char why[BOARD_TEXT])
{
    struct board_numbers numbers;
    if (api->is_ready) {
        return api->is_ready(api->context, why);
    }
    board_copy(api->runs[0].board, &numbers);
    snprintf(why, BOARD_TEXT, "%s%s%.150s", board_state_name(numbers.state), numbers.waiting_for[0] ? " for " : "",
             numbers.waiting_for);
    return numbers.state == BOARD_TRAINING || numbers.state == BOARD_VALIDATING || numbers.state == BOARD_SAVING ||
           numbers.state == BOARD_DONE;
}

static void get_readiness(void *context, struct http_request *request)
{
    char why[BOARD_TEXT] = "";
    const bool ready = is_ready(context, why);
    answer_plain(request, ready ? 200 : 503, ready ? "ok" : why);
}

static void get_metrics(void *context, struct http_request *request)
{
    const struct api *api = context;
    const bool open = http_request_accepts(request, "accept", "application/openmetrics-text");
    struct text_buffer text = {.bytes = NULL};
    metrics_write(&text, api->runs[0].board, api->server, open);
    answer_text(request, &text,
                open ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                     : "text/plain; version=0.0.4; charset=utf-8");
}

const struct http_route api_routes[] = {
    {.path = "/api/status", .methods = HTTP_METHOD_GET, .handle = get_status},
    {.path = "/api/history", .methods = HTTP_METHOD_GET, .handle = get_history},
    {.path = "/api/events", .methods = HTTP_METHOD_GET, .handle = get_events},
    {.path = "/api/stream", .methods = HTTP_METHOD_GET, .handle = get_stream},
    {.path = "/api/runs", .methods = HTTP_METHOD_GET, .handle = get_runs},
    {.path = "/api/weights", .methods = HTTP_METHOD_GET, .handle = get_extra},
    {.path = "/api/mistakes", .methods = HTTP_METHOD_GET, .handle = get_extra},
    {.path = "/api/columns", .methods = HTTP_METHOD_GET, .handle = get_extra},
    {.path = "/api/classes", .methods = HTTP_METHOD_GET, .handle = get_extra},
    {.path = "/api/about", .methods = HTTP_METHOD_GET, .handle = get_about},
    {.path = "/metrics", .methods = HTTP_METHOD_GET, .handle = get_metrics},
    {.path = "/healthz", .methods = HTTP_METHOD_GET, .is_public = true, .is_health = true, .handle = get_health},
    {.path = "/readyz", .methods = HTTP_METHOD_GET, .is_public = true, .is_health = true, .handle = get_readiness},
    {.path = "/", .methods = HTTP_METHOD_GET, .is_public = true, .handle = files_get},
    {.path = "/app.js", .methods = HTTP_METHOD_GET, .is_public = true, .handle = files_get},
    {.path = "/app.css", .methods = HTTP_METHOD_GET, .is_public = true, .handle = files_get},
    {.path = "/dygraph.js", .methods = HTTP_METHOD_GET, .is_public = true, .handle = files_get},
    {.path = NULL},
};
