/* What `trainer top` draws: the user's view of a run on a screen. Pure: no terminal, no clock. */
#ifndef OBSERVE_TOP_VIEW_H
#define OBSERVE_TOP_VIEW_H

#include "observe/board.h"
#include "observe/top/terminal.h"

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

/* --- Drawing --- */

/*
 * What `trainer top` draws: the user's view of a run on a screen. Pure: no terminal, no clock.
 */

/* Draws all of it. Sorts the board's members. */
void view_draw(struct screen *screen, struct view *view, struct view_run *run);

/* Rows needed to show everything with is_once. */
int view_rows_once(const struct view_run *run);

/* Handles a key (observe/top/terminal.h); true if it has a meaning here. */
bool view_press(struct view *view, int key);

#endif
