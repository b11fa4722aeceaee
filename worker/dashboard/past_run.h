/*
 * A run as recorded in its folder: its curves (history.bin, or else TensorBoard's event files) and what its newest
 * checkpoint contains. Nothing in the folder is changed or locked.
 */
#ifndef WORKER_DASHBOARD_PAST_RUN_H
#define WORKER_DASHBOARD_PAST_RUN_H

#include <stdbool.h>

#include "base/error.h"
#include "observe/board.h"

/*
 * Creates *board, in state done, or training while a process holds the folder's lock. Fails if the folder has no run.
 */
bool past_run_read(struct board *board, const char *folder, struct error *error);

#endif
