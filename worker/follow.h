/*
 * Training that follows a folder of tables (trainer train --follow): what new files hold is learnt, and only what is
 * better on rows held out becomes the model in service.
 */
#ifndef WORKER_FOLLOW_H
#define WORKER_FOLLOW_H

#include "base/config.h"

/* Returns the exit status, of a signal usually; reports its own errors. */
int follow_run(const struct config *config);

#endif
