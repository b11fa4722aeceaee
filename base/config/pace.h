/*
 * Polling intervals of idle members, in seconds: long enough that thousands of members cost a ps next to nothing, short
 * enough to renew their leases. Also, when members reconnect after a ps restarts.
 */
#ifndef BASE_CONFIG_PACE_H
#define BASE_CONFIG_PACE_H

#include <math.h>

#include "base/config.h"

/* The interval between a worker's heartbeats. */
static inline double pace_beat_s(const struct config_cluster *cluster)
{
    return fmin(cluster->lease_secs / 3, config_pace_s(cluster, 1));
}

/* The longest time that a ps holds the request of a worker waiting for a round; the worker is silent meanwhile. */
static inline double pace_round_s(const struct config_cluster *cluster)
{
    return fmin(config_pace_s(cluster, 1), fmax(5, cluster->lease_secs / 4));
}

/* The interval between a member's reports to ps 0 while nothing is rolled out: how late it may hear of a rollout. */
static inline double pace_report_s(const struct config_cluster *cluster)
{
    return fmin(config_pace_s(cluster, 0.5), 20);
}

/*
 * When a ps restarts, all its peers reconnect, and each handshake takes both ends milliseconds. So worker 0, which has
 * the model, comes first; links that training needs follow within this time, at random; links that can wait come after
 * them, within as long again. Next to nothing for few workers, and bounded for very many, whom a listener admits in
 * turn anyway.
 */
static inline double pace_return_s(const struct config_cluster *cluster)
{
    return fmin(0.01 * cluster->worker_hosts.count, fmin(1, cluster->lease_secs / 8));
}

#endif
