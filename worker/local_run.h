/* Training in one process, from the data to the test. */
#ifndef WORKER_LOCAL_RUN_H
#define WORKER_LOCAL_RUN_H

#include <stdbool.h>

#include "base/config.h"

/* What the exit status does not say. */
struct local_outcome {
    bool has_read;     /* the data could be read and used */
    bool has_diverged; /* it failed because the loss was not finite */
};

struct clients_options;

/*
 * clients: with rounds, the workers simulated here. outcome: may be NULL. Returns the exit status; errors are logged.
 */
int local_run(const struct config *config, const struct clients_options *clients, struct local_outcome *outcome);

/*
 * Training that follows a folder of tables (trainer train --follow; worker/follow.c): it learns from new files, and a
 * new model goes into service only if it is better on held-out rows. Returns the exit status, usually that of a signal;
 * reports its own errors.
 */
int follow_run(const struct config *config);

#endif
