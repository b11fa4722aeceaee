/* What dashboards show of a ps in this process. */
#ifndef WORKER_OBSERVED_PS_H
#define WORKER_OBSERVED_PS_H

#include "ps/server.h"

/* For server_run; NULL while nothing is observed (observe.http). */
const struct server_observer *observed_ps(void);

#endif
