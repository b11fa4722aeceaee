/*
 * `trainer top`: a run in a terminal. The data comes from a source: a member's HTTP server (below), or the ps of a
 * cluster.
 */
#ifndef OBSERVE_TOP_TOP_H
#define OBSERVE_TOP_TOP_H

#include <cJSON.h>

#include <stddef.h>

#include "net/socket.h"
#include "observe/board.h"
#include "observe/guard.h"
#include "observe/top/terminal.h"

/* --- The view --- */

/* What `trainer top` draws: the user's view of a run on a screen. Pure: no terminal, no clock. */

enum { VIEW_DRIFT = 8, VIEW_FILTER = 40 };

/* A board as a source reports it, and what boards don't hold. */
struct view_run {
    struct board board;
    double time_s; /* by the source's clock; 0: nothing reported yet */
    double eta_s;  /* NaN: not known */
    char waiting_for[BOARD_TEXT];
    char drift[VIEW_DRIFT][BOARD_TEXT];
    int drift_count, drift_shown; /* total; those in `drift` */
    int missing;
};

enum view_page { VIEW_ALL, VIEW_CURVES, VIEW_MEMBERS, VIEW_EVENTS, VIEW_PAGES };
enum view_span { VIEW_MINUTES, VIEW_HOUR, VIEW_WHOLE, VIEW_SPANS };

struct view {
    enum view_page page;
    enum view_span span;
    int sort; /* a column's number: observe/top/view.c */
    bool reversed, paused, helps;
    bool is_typing; /* the filter */
    char filter[VIEW_FILTER];
    int scroll;          /* of members, or events */
    bool is_once;        /* printed once: no keys, nothing hidden */
    const char *source;  /* the source's name: "127.0.0.1:9200" */
    const char *trouble; /* why there is nothing new; "": nothing is wrong */
    double silent_s;     /* since the last answer */
};

/* Draws all of it. Sorts the board's members. */
void view_draw(struct screen *screen, struct view *view, struct view_run *run);

/* Rows needed to show everything with is_once. */
int view_rows_once(const struct view_run *run);

/* Handles a key (observe/top/terminal.h); true if it has a meaning here. */
bool view_press(struct view *view, int key);

/* --- A client of a member --- */

/*
 * Queries a member's HTTP server, one request at a time, over a persistent connection; after a failure it reconnects
 * with the next request. One thread at a time uses a client.
 */

struct client;

/* guard (from guard_visit) and wake (ends waits) are borrowed. */
struct client *client_create(const struct guard *guard, const struct wake *wake);
void client_destroy(struct client *client); /* NULL is fine */

/* The body of a 200 answer, followed by a zero byte; the caller frees it. */
bool client_get(struct client *client, const char *path, char **body, size_t *size, struct error *error);

/* --- Answers --- */

/* Reads a member's HTTP answers (docs/operations.md) into a board; missing or invalid values count as unknown. */

void read_status(const cJSON *status, struct view_run *run);
void read_history(const cJSON *history, struct board *board);
void read_events(const cJSON *events, struct board *board, int64_t *last_id);

/* All calls come from one thread. */
struct top_source {
    const char *name;                                  /* for the title */
    bool (*ask)(void *context, struct error *error);   /* may take seconds */
    void (*fill)(void *context, struct view_run *run); /* with the last answers; does not block */
    void *context;
};

struct top_options {
    bool is_once, is_ascii;
    struct wake *wake; /* raised to end the source's waits */
};

/* Runs until the user quits, or shows it once. False: it could not show anything. */
bool top_show(const struct top_source *source, const struct top_options *options, struct error *error);

/* --- A member's HTTP server --- */

struct top_member;
struct top_member *top_member_create(struct client *client); /* borrowed */
void top_member_destroy(struct top_member *member);          /* NULL is fine */
struct top_source top_member_source(struct top_member *member, const char *name);

#endif
