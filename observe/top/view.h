/*
 * What `trainer top` draws: a run, on a screen, as its user wants to see it. Pure: it knows no terminal and no clock.
 */
#ifndef OBSERVE_TOP_VIEW_H
#define OBSERVE_TOP_VIEW_H

#include "observe/top/screen.h"
#include "observe/top/shown.h"

/* Draws all of it. Sorts the board's members. */
void view_draw(struct screen *screen, struct view *view, struct view_run *run);

/* Rows that hold all of it where is_once. */
int view_rows_once(const struct view_run *run);

/* A key (observe/top/terminal.h): true if it means something here. */
bool view_press(struct view *view, int key);

#endif
