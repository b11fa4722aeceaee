/*
 * What `trainer top` draws: the user's view of a run on a screen. Pure: no terminal, no clock.
 */
#ifndef OBSERVE_TOP_VIEW_H
#define OBSERVE_TOP_VIEW_H

#include "observe/top/screen.h"
#include "observe/top/shown.h"

/* Draws all of it. Sorts the board's members. */
void view_draw(struct screen *screen, struct view *view, struct view_run *run);

/* Rows needed to show everything with is_once. */
int view_rows_once(const struct view_run *run);

/* Handles a key (observe/top/terminal.h); true if it has a meaning here. */
bool view_press(struct view *view, int key);

#endif
