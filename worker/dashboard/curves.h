/* A run's curves from its event files, for folders without a history file. */
#ifndef WORKER_DASHBOARD_CURVES_H
#define WORKER_DASHBOARD_CURVES_H

#include <stdbool.h>

#include "base/error.h"
#include "observe/history.h"

/* Adds the values in the folder's event files, in order. Damaged records are skipped; no files is no error. */
bool curves_read(struct history *history, const char *folder, struct error *error);

#endif
