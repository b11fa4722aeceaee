/*
 * Training that follows a folder of tables (trainer train --follow): it learns from new files, and a new model goes
 * into service only if it is better on held-out rows.
 */
#ifndef WORKER_FOLLOW_H
#define WORKER_FOLLOW_H

#include "base/config.h"

/* Returns the exit status, usually that of a signal; reports its own errors. */
int follow_run(const struct config *config);

#endif
