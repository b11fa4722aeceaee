/*
 * How often a member that has nothing to do asks its ps: seldom enough that a ps with very many of them has next to
 * nothing to do either, and at least as often as the lease wants it. And who comes back when.
 */
#ifndef BASE_CONFIG_PACE_H
#define BASE_CONFIG_PACE_H

#include <math.h>

#include "base/config.h"

/* A worker says so often that it lives. */
static inline double pace_beat_s(const struct config_cluster *cluster)
{
    return fmin(cluster->lease_secs / 3, config_pace_s(cluster, 1));
}

/* A ps keeps the question of a worker that waits to be asked for a round so long, at most: it is silent meanwhile. */
static inline double pace_round_s(const struct config_cluster *cluster)
{
    return fmin(config_pace_s(cluster, 1), fmax(5, cluster->lease_secs / 4));
}

/* A member reports to ps 0 so often while nothing is rolled out: it hears that late of a rollout. */
static inline double pace_report_s(const struct config_cluster *cluster)
{
    return fmin(config_pace_s(cluster, 0.5), 20);
}

/*
 * Once a ps restarts, all its connections come back, and the handshake of each takes both ends milliseconds. So worker
 * 0 comes first, which has the model; what trains within this time, drawn at random; and what can wait in as long
 * again. Next to nothing for few workers, and bounded for very many, whom a listener lets in by turns anyway.
 */
static inline double pace_return_s(const struct config_cluster *cluster)
{
    return fmin(0.01 * cluster->worker_hosts.count, fmin(1, cluster->lease_secs / 8));
}

#endif
