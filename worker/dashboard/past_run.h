/*
 * A run as its folder tells of it: what it was like from second to second (history.bin, or else TensorBoard's event
 * files), and what its newest checkpoint knows. Nothing in the folder is changed or locked.
 */
#ifndef WORKER_DASHBOARD_PAST_RUN_H
#define WORKER_DASHBOARD_PAST_RUN_H

#include <stdbool.h>

#include "base/error.h"
#include "observe/board.h"

/* Makes *board, in state done, or training while a process holds the folder's lock. Fails if there is no run in it. */
bool past_run_read(struct board *board, const char *folder, struct error *error);

#endif
