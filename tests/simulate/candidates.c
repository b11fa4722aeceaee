/* Keys of each kind (live, local, of the whole job) change, alone or together; some versions fail, in various ways. */
#include "tests/simulate/candidates.h"

#include "tests/simulate/programs.h"
#include "tests/simulate/setup.h"
#include "tests/simulate/world.h"

enum { BAD_RATE = SETUP_BAD_RATE };

/* Live keys of both ways to train. */
static void draw_cluster_keys(struct config_cluster *cluster)
{
    const int workers = setup.listed, before = cluster->replicas_to_aggregate;
    cluster->min_workers = 1 + (int)chance((uint64_t)workers);
    if (!setup.synchronous) {
        cluster->max_staleness = (cluster->max_staleness + 1 + (int)chance(3)) % 5;
        return;
    }
    cluster->replicas_to_aggregate = 1 + (int)chance((uint64_t)workers);
    if (cluster->replicas_to_aggregate == before) {
        cluster->replicas_to_aggregate = 0;
    }
}

struct candidate candidate_draw_program(const struct config *from, uint64_t version, struct disk *disk)
{
    struct candidate candidate = {.config = *from};
    bool good;
    candidate.config.fleet.version = (int64_t)version;
    candidate.config.cluster.recovery_wait_secs += chance(3) == 0 ? 0.25 : 0;
    candidate.binary = programs_draw(disk, &good);
    candidate.fate = good ? FATE_GOOD : FATE_BAD_PROGRAM;
    return candidate;
}

struct candidate candidate_draw(const struct config *from, uint64_t version)
{
    static const double rates[] = {1, 0.5, 2};
    struct candidate candidate = {.config = *from};
    struct config *config = &candidate.config;
    config->fleet.version = (int64_t)version;
    const uint64_t what = chance(10);
    if (what < 4 || what == 7) { /* NOLINTNEXTLINE: powers of two, as written */
        while (config->train.learning_rate == from->train.learning_rate) {
            config->train.learning_rate = rates[chance(3)];
        }
    }
    if (what == 4 || what == 7) {
        config->cluster.recovery_wait_secs += 0.25;
    }
    if (what == 5) {
        config->train.optimizer =
            config->train.optimizer == OPTIMIZER_SGD ? OPTIMIZER_MOMENTUM : OPTIMIZER_SGD; /* of momentum 0: the same */
    }
    if (what == 6) {
        config->cluster.lease_secs += 0.25;
    }
    if (what >= 8 || what == 0) {
        draw_cluster_keys(&config->cluster);
    }
    if (chance(4) == 0 && (what < 4 || what == 8)) {
        candidate.fate = FATE_DIVERGES;
        config->train.learning_rate = BAD_RATE;
    } else if (chance(4) == 0 && what >= 4 && what < 8) {
        candidate.fate = chance(2) == 0 ? FATE_KILLS : FATE_FAILS_ITS_TRIAL;
    } else if (chance(8) == 0) {
        /* One that is asked: one that comes later and can't cope stays where it is for good. */
        struct machine *small = &world.machines[chance((uint64_t)setup.ps + (uint64_t)setup.listed)];
        candidate.small = small->runs ? small : NULL;
    }
    if (candidate.fate == FATE_FAILS_ITS_TRIAL && what == 4) {
        candidate.fate = FATE_KILLS; /* local keys have no trial */
    }
    return candidate;
}
