/* trainer top: the source that is a member's HTTP server, and the loop that shows any source. */
#include "observe/top/top.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/process/signals.h"
#include "base/text/json.h"
#include "observe/top/client.h"
#include "observe/top/terminal.h"

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
    struct top_member *member = calloc(1, sizeof *member);
    if (member) {
        member->client = client;
    }
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

static bool fit(struct top *top, struct error *error)
{
    int width, height;
    terminal_size(&width, &height);
    return screen_resize(&top->screen, width, height, error);
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
            done = terminal_suspend(error) && fit(top, error);
        } else if (key == KEY_RESIZED || key == KEY_REDRAW) {
            done = fit(top, error);
        } else if (key != KEY_NONE) {
            view_press(&top->view, key);
        }
    }
    return done;
}

static bool show_live(struct top *top, struct error *error)
{
    if (!fit(top, error) || !wake_create(&top->ended, error)) {
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
    if (!screen_resize(&top->screen, width, view_rows_once(&top->run), error)) {
        return false;
    }
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
    struct top *top = calloc(1, sizeof *top);
    if (!top) {
        return error_set(error, "out of memory");
    }
    top->source = source;
    top->options = options;
    pthread_mutex_init(&top->mutex, NULL);
    top->view = (struct view){.is_once = options->is_once, .span = VIEW_HOUR, .source = source->name, .trouble = ""};
    top->screen.has_unicode = !options->is_ascii && knows_unicode();
    top->screen.has_colors = is_terminal && !is_set("NO_COLOR");
    bool done = board_create(&top->run.board, "top", 0, "", error);
    if (done && options->is_once) {
        done = show_once(top, error);
    } else if (done) {
        done = is_terminal ? show_live(top, error)
                           : error_set(error, "standard output is not a terminal: --once prints one screen");
    }
    screen_free(&top->screen);
    board_destroy(&top->run.board);
    free(top);
    return done;
}
