/* A run's curves from its event files, for folders that hold no history of their own. */
#ifndef WORKER_DASHBOARD_CURVES_H
#define WORKER_DASHBOARD_CURVES_H

#include <stdbool.h>

#include "base/error.h"
#include "observe/history.h"

/* Adds what the event files in `folder` say, in their order. What is damaged in them is left out; none are no fault. */
bool curves_read(struct history *history, const char *folder, struct error *error);

#endif
