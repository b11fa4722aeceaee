/*
 * How often a member that has nothing to do asks its ps: seldom enough that a ps with very many of them has next to
 * nothing to do either, and at least as often as the lease wants it.
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

#endif
