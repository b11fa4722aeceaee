/* trainer top: the source that is a member's HTTP server, and the loop that shows any source. */
#include "observe/top/top.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <llhttp.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/process/signals.h"
#include "base/text/json.h"
#include "net/socket.h"
#include "net/tls/web.h"
#include "observe/top/terminal.h"

/* --- A client of a member --- */

/* Queries of a member's HTTP server, and its answers read into a board. */

/* --- Requests --- */

/*
 * Non-blocking sockets, with a deadline for the whole request. A kept connection may have ended since its last use, so
 * a request that fails on it is repeated once, on a new one.
 */

enum {
    MOST_BODY = 16 * 1024 * 1024,
    MOST_REQUEST = 8192,
    READ_AT_ONCE = 16 * 1024,
};

static const double TIMEOUT_S = 5;

struct client {
    const struct guard *guard;
    const struct wake *wake;
    char name[ENDPOINT_TEXT];
    int fd; /* -1: not connected */
    struct web_session *session;
    double deadline_s; /* of the current request */
    llhttp_t parser;
    char *body;
    size_t size, room;
    bool is_whole;
};

/* --- The answer --- */

static int on_body(llhttp_t *parser, const char *at, size_t size)
{
    struct client *client = parser->data;
    if (size > MOST_BODY - client->size) {
        return -1;
    }
    if (client->size + size + 1 > client->room) {
        const size_t room = 2 * (client->size + size) + 1;
        char *body = realloc(client->body, room);
        if (!body) {
            return -1;
        }
        client->body = body;
        client->room = room;
    }
    memcpy(client->body + client->size, at, size);
    client->size += size;
    client->body[client->size] = '\0';
    return 0;
}

static int on_message_complete(llhttp_t *parser)
{
    struct client *client = parser->data;
    client->is_whole = true;
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {.on_body = on_body, .on_message_complete = on_message_complete};

/* --- The connection --- */

static void disconnect(struct client *client)
{
    web_session_destroy(client->session);
    client->session = NULL;
    if (client->fd >= 0) {
        close(client->fd);
    }
    client->fd = -1;
}

static bool wait_for(const struct client *client, short events, struct error *error)
{
    switch (wake_wait(client->fd, events, client->wake, client->deadline_s)) {
    case WAKE_READY:
        return true;
    case WAKE_TIMEOUT:
        return error_set(error, "no answer within %.0f s", TIMEOUT_S);
    case WAKE_RAISED:
        return error_set(error, "it was interrupted");
    }
    return false;
}

static bool wait_for_session(const struct client *client, struct error *error)
{
    return wait_for(client, web_session_wants_write(client->session) ? POLLOUT : POLLIN, error);
}

static bool shake(struct client *client, struct error *error)
{
    client->session = web_session_create(client->guard->keys, client->guard->address.host, client->fd);
    if (!client->session) {
        return error_set(error, "out of memory for TLS");
    }
    for (;;) {
        switch (web_session_handshake(client->session)) {
        case WEB_DONE:
            return true;
        case WEB_FAILED:
            return web_session_explain(client->session, error);
        case WEB_AGAIN:
            if (!wait_for_session(client, error)) {
                return false;
            }
        }
    }
}

static bool send_all(struct client *client, const char *bytes, size_t size, struct error *error)
{
    while (size > 0) {
        const ptrdiff_t n = client->session ? web_session_write(client->session, bytes, size)
                                            : send(client->fd, bytes, size, MSG_NOSIGNAL);
        const bool waits = client->session ? n == WEB_WANTS : n < 0 && (errno == EAGAIN || errno == EINTR);
        if (n >= 0) {
            bytes += n;
            size -= (size_t)n;
        } else if (!waits) {
            return error_set(error, "the connection broke");
        } else if (!(client->session ? wait_for_session(client, error) : wait_for(client, POLLOUT, error))) {
            return false;
        }
    }
    return true;
}

/* Some bytes; 0: the end. -1: it failed. */
static ptrdiff_t receive(struct client *client, char *bytes, size_t size, struct error *error)
{
    for (;;) {
        const ptrdiff_t n =
            client->session ? web_session_read(client->session, bytes, size) : recv(client->fd, bytes, size, 0);
        const bool waits = client->session ? n == WEB_WANTS : n < 0 && (errno == EAGAIN || errno == EINTR);
        if (n >= 0) {
            return n;
        }
        if (!waits) {
            error_set(error, "the connection broke");
            return -1;
        }
        if (!(client->session ? wait_for_session(client, error) : wait_for(client, POLLIN, error))) {
            return -1;
        }
    }
}

/* --- Questions --- */

static bool read_answer(struct client *client, struct error *error)
{
    char bytes[READ_AT_ONCE];
    llhttp_init(&client->parser, HTTP_RESPONSE, &settings);
    client->parser.data = client;
    client->size = 0;
    client->is_whole = false;
    while (!client->is_whole) {
        const ptrdiff_t n = receive(client, bytes, sizeof bytes, error);
        if (n < 0) {
            return false;
        }
        const llhttp_errno_t result =
            n == 0 ? llhttp_finish(&client->parser) : llhttp_execute(&client->parser, bytes, (size_t)n);
        if (!client->is_whole && (n == 0 || result != HPE_OK)) {
            return error_set(error,
                             n == 0 ? "the connection ended" : "this is not an answer of a member's HTTP server");
        }
    }
    return true;
}

static bool send_request(struct client *client, const char *path, struct error *error)
{
    char request[MOST_REQUEST];
    const char *token = client->guard->token;
    const int size =
        snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: keep-alive\r\n%s%s%s\r\n", path,
                 client->name, token ? "Authorization: Bearer " : "", token ? token : "", token ? "\r\n" : "");
    if (size >= (int)sizeof request) {
        return error_set(error, "the token is too long");
    }
    if (client->fd < 0) {
        if (!socket_connect(&client->fd, &client->guard->address, client->wake, client->deadline_s, error)) {
            client->fd = -1;
            return false;
        }
        if (client->guard->keys && !shake(client, error)) {
            return false;
        }
    }
    return send_all(client, request, (size_t)size, error) && read_answer(client, error);
}

/* A server reports errors as {"error": "..."}, or on a line. */
static bool refused(const struct client *client, struct error *error)
{
    static const char prefix[] = "{\"error\":\"";
    const char *text = client->size > 0 ? client->body : "";
    text += strncmp(text, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0;
    return error_set(error, "%s answers %d%s%.*s", client->name, client->parser.status_code,
                     text[0] != '\0' ? ": " : "", (int)strcspn(text, "\"\\\n"), text);
}

bool client_get(struct client *client, const char *path, char **body, size_t *size, struct error *error)
{
    const bool was_kept = client->fd >= 0;
    client->deadline_s = clock_monotonic_s() + TIMEOUT_S;
    bool done = send_request(client, path, error);
    if (!done && was_kept) {
        disconnect(client);
        done = send_request(client, path, error);
    }
    if (!done || !llhttp_should_keep_alive(&client->parser)) {
        disconnect(client);
    }
    if (!done) {
        return strstr(error->text, client->name) ? false : error_wrap(error, "%s", client->name);
    }
    if (client->parser.status_code != 200 || client->size == 0) {
        return refused(client, error);
    }
    *body = client->body;
    *size = client->size;
    client->body = NULL;
    client->size = client->room = 0;
    return true;
}

struct client *client_create(const struct guard *guard, const struct wake *wake)
{
    struct client *client = must_zero(1, sizeof *client, "a client");
    client->guard = guard;
    client->wake = wake;
    client->fd = -1;
    endpoint_format_address(&guard->address, client->name);
    return client;
}

void client_destroy(struct client *client)
{
    if (client) {
        disconnect(client);
        free(client->body);
        free(client);
    }
}

/* --- Answers --- */

/* Reads cJSON trees, since these answers are small, or requested only once. */

static double number(const cJSON *object, const char *name)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(value) ? value->valuedouble : (double)NAN;
}

/* Whole numbers that doubles hold exactly. */
static int64_t whole(double value, int64_t unknown)
{
    return fabs(value) < 9e15 ? (int64_t)value : unknown;
}

static int64_t integer(const cJSON *object, const char *name, int64_t unknown)
{
    return whole(number(object, name), unknown);
}

static int small(const cJSON *object, const char *name)
{
    const int64_t value = integer(object, name, 0);
    return value < 0 ? 0 : value > INT32_MAX ? INT32_MAX : (int)value;
}

static const char *string(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
    return text ? text : "";
}

#define COPY(to, object, name) snprintf(to, sizeof(to), "%.*s", (int)sizeof(to) - 1, string(object, name))

#define READ_TEXT(field, size, name) COPY(to->field, object, name);
#define READ_FLAG(field, name)       to->field = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, name));
#define READ_SMALL(field, name)      to->field = small(object, name);
#define READ_WHOLE(field, name)      to->field = integer(object, name, -1);
#define READ_COUNT(field, name)      to->field = (uint64_t)integer(object, name, 0);
#define READ_NUMBER(field, name)     to->field = number(object, name);
#define READ(TABLE)                  TABLE(READ_TEXT, READ_FLAG, READ_SMALL, READ_WHOLE, READ_COUNT, READ_NUMBER)

static void read_rounds(const cJSON *object, struct board_rounds *to)
{
    if (object) {
        READ(BOARD_ROUNDS_FIELDS)
    }
}

static void read_own(const cJSON *object, struct board_own *to)
{
    if (object) {
        READ(BOARD_OWN_FIELDS)
    }
}

static void read_member(const cJSON *object, struct board_member *to)
{
    READ(BOARD_MEMBER_FIELDS)
    read_rounds(cJSON_GetObjectItemCaseSensitive(object, "rounds"), &to->rounds);
    read_own(cJSON_GetObjectItemCaseSensitive(object, "validation"), &to->own);
}

static void read_members(const cJSON *members, struct board *board)
{
    const cJSON *each;
    int i = 0;
    if (board_begin_members(board, cJSON_GetArraySize(members))) {
        cJSON_ArrayForEach(each, members)
        {
            read_member(each, &board->members[i++]);
        }
    }
}

static enum board_state state_of(const char *name)
{
    for (enum board_state state = BOARD_STARTING; state <= BOARD_FAILED; state++) {
        if (strcmp(name, board_state_name(state)) == 0) {
            return state;
        }
    }
    return BOARD_STARTING;
}

static void read_run(const cJSON *object, struct view_run *run)
{
    struct board *board = &run->board;
    struct board_numbers *numbers = &board->numbers;
    const cJSON *each;
    COPY(board->name, object, "name");
    COPY(board->train_dir, object, "train_dir");
    COPY(board->role, object, "role");
    COPY(run->waiting_for, object, "waiting_for");
    COPY(numbers->engine, object, "engine");
    COPY(numbers->digest, object, "config_digest");
    COPY(numbers->metric, object, "metric");
    board->task = small(object, "task");
    numbers->state = state_of(string(object, "state"));
    numbers->config_version = integer(object, "config_version", -1);
    numbers->generation = small(object, "generation");
    numbers->metric_rises = strcmp(string(object, "metric_goal"), "min") != 0;
    numbers->layer_count = 0;
    cJSON_ArrayForEach(each, cJSON_GetObjectItemCaseSensitive(object, "layers"))
    {
        if (cJSON_IsNumber(each) && numbers->layer_count < CONFIG_MAX_LAYERS) {
            numbers->layers[numbers->layer_count++] = each->valueint;
        }
    }
}

static void read_progress(const cJSON *object, struct view_run *run)
{
    struct board *board = &run->board;
    struct board_numbers *numbers = &board->numbers;
    const cJSON *best = cJSON_GetObjectItemCaseSensitive(object, "best"), *each;
    numbers->global_step = integer(object, "global_step", 0);
    numbers->last_step = integer(object, "last_step", -1);
    numbers->epoch = number(object, "epoch");
    numbers->examples = integer(object, "examples", 0);
    numbers->learning_rate = number(object, "learning_rate");
    board->steps_per_s = number(object, "steps_per_s");
    board->examples_per_s = number(object, "examples_per_s");
    board->loss = number(object, "loss");
    run->eta_s = number(object, "eta_s");
    numbers->best_step = integer(best, "step", -1);
    numbers->best_value = number(best, "value");
    numbers->metric_count = 0;
    cJSON_ArrayForEach(each, cJSON_GetObjectItemCaseSensitive(object, "metrics"))
    {
        if (cJSON_IsNumber(each) && numbers->metric_count < BOARD_METRICS) {
            struct board_metric *metric = &numbers->metrics[numbers->metric_count++];
            snprintf(metric->name, sizeof metric->name, "%.23s", each->string);
            metric->value = each->valuedouble;
        }
    }
}

static void read_checkpoints(const cJSON *object, struct board_numbers *numbers)
{
    numbers->saved_step = integer(object, "last_step", -1);
    numbers->saved_time_s = number(object, "last_time");
    numbers->saves_failed = (uint64_t)small(object, "failed");
}

static void read_rollout(const cJSON *object, struct board_rollout *rollout)
{
    rollout->is_under_way = cJSON_IsObject(object);
    rollout->version = integer(object, "version", 0);
    rollout->since_s = number(object, "since");
    COPY(rollout->phase, object, "phase");
    COPY(rollout->text, object, "text");
    const cJSON *diff = cJSON_GetObjectItemCaseSensitive(object, "diff"), *each;
    if (!board_begin_diff(rollout, cJSON_GetArraySize(diff))) {
        return;
    }
    cJSON_ArrayForEach(each, diff)
    {
        const char *line = cJSON_GetStringValue(each);
        snprintf(rollout->diff[rollout->diff_count++], BOARD_TEXT, "%.*s", BOARD_TEXT - 1, line ? line : "");
    }
}

void read_status(const cJSON *status, struct view_run *run)
{
    const cJSON *drift = cJSON_GetObjectItemCaseSensitive(status, "drift"), *each;
    run->time_s = number(status, "time");
    run->board.started_s = number(status, "started");
    run->missing = small(status, "missing");
    run->drift_count = cJSON_GetArraySize(drift);
    run->drift_shown = 0;
    cJSON_ArrayForEach(each, drift)
    {
        if (cJSON_IsString(each) && run->drift_shown < VIEW_DRIFT) {
            snprintf(run->drift[run->drift_shown++], BOARD_TEXT, "%.*s", BOARD_TEXT - 1, each->valuestring);
        }
    }
    read_run(cJSON_GetObjectItemCaseSensitive(status, "run"), run);
    read_progress(cJSON_GetObjectItemCaseSensitive(status, "progress"), run);
    read_members(cJSON_GetObjectItemCaseSensitive(status, "members"), &run->board);
    read_checkpoints(cJSON_GetObjectItemCaseSensitive(status, "checkpoints"), &run->board.numbers);
    read_rollout(cJSON_GetObjectItemCaseSensitive(status, "rollout"), &run->board.rollout);
}

/* Lists of one ring, side by side, walked along together. */
struct columns {
    const cJSON *time, *step, *values[HISTORY_SERIES];
};

static void open_columns(const cJSON *ring, struct history *history, struct columns *columns)
{
    const cJSON *each;
    *columns = (struct columns){.time = NULL};
    const cJSON *time = cJSON_GetObjectItemCaseSensitive(ring, "time");
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(ring, "global_step");
    columns->time = time ? time->child : NULL;
    columns->step = step ? step->child : NULL;
    cJSON_ArrayForEach(each, cJSON_GetObjectItemCaseSensitive(ring, "values"))
    {
        const int series = history_series(history, each->string);
        if (series >= 0) {
            columns->values[series] = each->child;
        }
    }
}

/* Those within (after_s, before_s). */
static void add_ring(const cJSON *ring, struct history *history, double after_s, double before_s)
{
    struct columns columns;
    open_columns(ring, history, &columns);
    while (columns.time && columns.step) {
        float values[HISTORY_SERIES];
        for (int i = 0; i < HISTORY_SERIES; i++) {
            const cJSON *value = columns.values[i];
            values[i] = value && cJSON_IsNumber(value) ? (float)value->valuedouble : NAN;
            columns.values[i] = value ? value->next : NULL;
        }
        const double time_s = columns.time->valuedouble;
        if (time_s > after_s && time_s < before_s) {
            history_add(history, time_s, whole(columns.step->valuedouble, 0), values);
        }
        columns.time = columns.time->next;
        columns.step = columns.step->next;
    }
}

static double first_time(const cJSON *ring)
{
    const cJSON *time = cJSON_GetObjectItemCaseSensitive(ring, "time");
    return time && time->child ? time->child->valuedouble : INFINITY;
}

void read_history(const cJSON *object, struct board *board)
{
    struct history *history = &board->history;
    const cJSON *recent = cJSON_GetObjectItemCaseSensitive(object, "recent");
    const struct history_ring *known = &history->recent;
    double after_s = known->count > 0 ? history_at(known, known->count - 1)->time_s : -INFINITY;
    if (known->count == 0) { /* the label before the seconds */
        add_ring(cJSON_GetObjectItemCaseSensitive(object, "whole"), history, after_s, first_time(recent));
    }
    add_ring(recent, history, after_s, INFINITY);
}

void read_events(const cJSON *object, struct board *board, int64_t *last_id)
{
    const cJSON *each;
    cJSON_ArrayForEach(each, cJSON_GetObjectItemCaseSensitive(object, "events"))
    {
        const int64_t id = integer(each, "id", 0);
        if (id > *last_id) {
            *last_id = id;
            board_event_at(board, number(each, "time"), string(each, "kind"), string(each, "member"),
                           integer(each, "step", -1), string(each, "text"));
        }
    }
}

/* --- A member's HTTP server --- */

/* Three requests a second: the status, new history, new events. */

struct top_member {
    struct client *client;
    cJSON *status, *history, *events; /* requested, and not filled in yet */
    double started_s, since_s;        /* when the member started; the newest known second of its history */
    int64_t event_id;
    bool begins; /* this is another process than before, or the first */
};

static void drop(struct top_member *member)
{
    cJSON_Delete(member->status);
    cJSON_Delete(member->history);
    cJSON_Delete(member->events);
    member->status = member->history = member->events = NULL;
}

static bool get(struct top_member *member, const char *path, cJSON **tree, struct error *error)
{
    struct json_place place;
    char *body;
    size_t size;
    if (!client_get(member->client, path, &body, &size, error)) {
        return false;
    }
    bool done = json_check(body, size, &place, error) || error_wrap(error, "%s", path);
    if (done) {
        *tree = json_build(body, size);
        done = *tree || error_set(error, "out of memory for %s", path);
    }
    free(body);
    return done;
}

static bool ask(void *context, struct error *error)
{
    struct top_member *member = context;
    char path[96];
    drop(member);
    if (!get(member, "/api/status", &member->status, error)) {
        return false;
    }
    const cJSON *started = cJSON_GetObjectItemCaseSensitive(member->status, "started");
    const double started_s = cJSON_IsNumber(started) ? started->valuedouble : 0;
    if (started_s != member->started_s) {
        member->started_s = started_s;
        member->since_s = 0;
        member->event_id = 0;
        member->begins = true;
    }
    snprintf(path, sizeof path, "/api/history?since=%.3f", member->since_s);
    if (!get(member, path, &member->history, error)) {
        return false;
    }
    snprintf(path, sizeof path, "/api/events?since=%lld", (long long)member->event_id);
    return get(member, path, &member->events, error);
}

static void fill(void *context, struct view_run *run)
{
    struct top_member *member = context;
    struct board *board = &run->board;
    if (member->begins) {
        board_forget(board);
        member->begins = false;
    }
    read_status(member->status, run);
    read_history(member->history, board);
    read_events(member->events, board, &member->event_id);
    const struct history_ring *recent = &board->history.recent;
    member->since_s = recent->count > 0 ? history_at(recent, recent->count - 1)->time_s : 0;
    drop(member);
}

struct top_member *top_member_create(struct client *client)
{
    struct top_member *member = must_zero(1, sizeof *member, "a member");
    member->client = client;
    return member;
}

void top_member_destroy(struct top_member *member)
{
    if (member) {
        drop(member);
        free(member);
    }
}

struct top_source top_member_source(struct top_member *member, const char *name)
{
    return (struct top_source){.name = name, .ask = ask, .fill = fill, .context = member};
}

/* --- The loop --- */

/*
 * Two threads: one queries the source, and may block on the network; the other draws and reads keys, and must not.
 * Results are copied under a lock that is held only briefly.
 */

static const double PERIOD_S = 1;

struct top {
    const struct top_source *source;
    const struct top_options *options;
    struct view view;
    struct screen screen;
    pthread_t asker;
    struct wake ended;     /* wakes the querying thread from its pause */
    pthread_mutex_t mutex; /* guards these: */
    struct view_run run;
    struct error trouble; /* "": none */
    double answered_s;    /* clock_monotonic_s; 0: never */
    bool paused;          /* according to the view */
    atomic_bool quits;
};

/* --- Asking --- */

static bool look(struct top *top)
{
    struct error error;
    const bool done = top->source->ask(top->source->context, &error);
    pthread_mutex_lock(&top->mutex);
    if (!done) {
        top->trouble = error;
    } else {
        top->trouble.text[0] = '\0';
        top->answered_s = clock_monotonic_s();
        if (!top->paused) {
            top->source->fill(top->source->context, &top->run);
        }
    }
    pthread_mutex_unlock(&top->mutex);
    return done;
}

static void *ask_on(void *context)
{
    struct top *top = context;
    while (!atomic_load(&top->quits)) {
        const double began_s = clock_monotonic_s();
        look(top);
        wake_wait(-1, 0, &top->ended, began_s + PERIOD_S);
    }
    return NULL;
}

/* --- Drawing --- */

static void draw(struct top *top)
{
    pthread_mutex_lock(&top->mutex);
    struct view *view = &top->view;
    const bool is_new = top->run.time_s > 0;
    view->trouble = top->trouble.text[0] != '\0' ? top->trouble.text : is_new ? "" : "asking for the first time";
    view->silent_s = top->answered_s > 0 ? clock_monotonic_s() - top->answered_s : 0;
    top->paused = view->paused;
    view_draw(&top->screen, view, &top->run);
    pthread_mutex_unlock(&top->mutex);
}

static bool show(struct top *top)
{
    struct text_buffer text = {.bytes = NULL};
    size_t size;
    draw(top);
    screen_send(&top->screen, &text);
    char *bytes = text_buffer_take(&text, &size);
    const bool done = size == 0 || terminal_write(bytes, size);
    free(bytes);
    return done;
}

static void fit(struct top *top)
{
    int width, height;
    terminal_size(&width, &height);
    screen_resize(&top->screen, width, height);
}

/* --- Keys --- */

/* Runs until the user quits. */
static bool follow(struct top *top, struct error *error)
{
    bool done = true, goes_on = true;
    while (done && goes_on && signals_pending() == 0) {
        int key;
        goes_on = show(top) && terminal_key(clock_monotonic_s() + PERIOD_S, &key);
        if (!goes_on || (key == 'q' && !top->view.is_typing)) {
            break;
        }
        if (key == KEY_SUSPEND) {
            done = terminal_suspend(error);
            fit(top);
        } else if (key == KEY_RESIZED || key == KEY_REDRAW) {
            fit(top);
        } else if (key != KEY_NONE) {
            view_press(&top->view, key);
        }
    }
    return done;
}

static bool show_live(struct top *top, struct error *error)
{
    fit(top);
    if (!wake_create(&top->ended, error)) {
        return false;
    }
    signals_catch();
    bool done = terminal_enter(error);
    if (done) {
        done = pthread_create(&top->asker, NULL, ask_on, top) == 0 || error_set(error, "can't start a thread");
        if (done) {
            done = follow(top, error);
            atomic_store(&top->quits, true);
            wake_raise(&top->ended);
            wake_raise(top->options->wake);
            pthread_join(top->asker, NULL);
        }
        terminal_leave();
    }
    wake_destroy(&top->ended);
    return done;
}

static bool show_once(struct top *top, struct error *error)
{
    struct text_buffer text = {.bytes = NULL};
    int width, height;
    size_t size;
    terminal_size(&width, &height);
    if (!look(top)) {
        return error_set(error, "%s", top->trouble.text);
    }
    screen_resize(&top->screen, width, view_rows_once(&top->run));
    draw(top);
    screen_print(&top->screen, &text);
    char *bytes = text_buffer_take(&text, &size);
    const bool done = bytes && fwrite(bytes, 1, size, stdout) == size && fflush(stdout) == 0;
    free(bytes);
    return done || error_set(error, "can't write to standard output");
}

/* --- The terminal's capabilities --- */

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] != '\0';
}

/* By the locale, if it says; Linux's console has no braille in any case. */
static bool knows_unicode(void)
{
    const char *terminal = getenv("TERM");
    if (terminal && (strcmp(terminal, "linux") == 0 || strncmp(terminal, "vt", 2) == 0)) {
        return false;
    }
    const char *name = is_set("LC_ALL") ? "LC_ALL" : is_set("LC_CTYPE") ? "LC_CTYPE" : "LANG";
    const char *value = is_set(name) ? getenv(name) : "UTF-8";
    return strcasestr(value, "UTF-8") || strcasestr(value, "utf8");
}

bool top_show(const struct top_source *source, const struct top_options *options, struct error *error)
{
    const bool is_terminal = isatty(STDOUT_FILENO);
    struct top *top = must_zero(1, sizeof *top, "a screen");
    bool done;
    top->source = source;
    top->options = options;
    pthread_mutex_init(&top->mutex, NULL);
    top->view = (struct view){.is_once = options->is_once, .span = VIEW_HOUR, .source = source->name, .trouble = ""};
    top->screen.has_unicode = !options->is_ascii && knows_unicode();
    top->screen.has_colors = is_terminal && !is_set("NO_COLOR");
    board_create(&top->run.board, "top", 0, "");
    if (options->is_once) {
        done = show_once(top, error);
    } else {
        done = is_terminal ? show_live(top, error)
                           : error_set(error, "standard output is not a terminal: --once prints one screen");
    }
    screen_free(&top->screen);
    board_destroy(&top->run.board);
    free(top);
    return done;
}
