/* The table of members: as many columns as fit, sorted by one, filtered by a text, scrolled. */
#ifndef OBSERVE_TOP_MEMBERS_H
#define OBSERVE_TOP_MEMBERS_H

#include "observe/top/screen.h"
#include "observe/top/shown.h"

/* Sorts the board's members; limits view->scroll to the rows that exist. */
void members_draw(struct screen *screen, int row, int rows, struct view *view, struct board *board);

/* The next column to sort by; by: 1 or -1. */
int members_next_column(int column, int by);

#endif
