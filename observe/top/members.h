/* The table of members: columns by what fits, sorted by one, filtered by a text, scrolled. */
#ifndef OBSERVE_TOP_MEMBERS_H
#define OBSERVE_TOP_MEMBERS_H

#include "observe/top/screen.h"
#include "observe/top/shown.h"

/* Sorts the board's members; what view->scroll says is cut to what there is. */
void members_draw(struct screen *screen, int row, int rows, struct view *view, struct board *board);

/* The column that members are sorted by after this one; by: 1 or -1. */
int members_next_column(int column, int by);

#endif
