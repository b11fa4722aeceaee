/*
 * Which gradients make a synchronous step. Only counting, so that every rule (replicas_to_aggregate, min_replicas, lost
 * workers) can be tested without a job.
 */
#include "ps/job/job.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

bool aggregation_create(struct aggregation *aggregation, int workers, int shards, int wanted, int least,
                        struct error *error)
{
    assert(workers > 0 && shards > 0 && wanted > 0 && least > 0 && least <= wanted);
    *aggregation = (struct aggregation){.workers = workers, .shards = shards, .wanted = wanted, .least = least};
    aggregation->parts = calloc((size_t)workers, (size_t)shards);
    aggregation->taken = calloc((size_t)workers, 1);
    if (!aggregation->parts || !aggregation->taken) {
        aggregation_destroy(aggregation);
        return error_set(error, "out of memory");
    }
    return true;
}

void aggregation_destroy(struct aggregation *aggregation)
{
    free(aggregation->parts);
    free(aggregation->taken);
    memset(aggregation, 0, sizeof *aggregation);
}

void aggregation_begin(struct aggregation *aggregation, int64_t step)
{
    aggregation->step = step;
    aggregation->decided = false;
    aggregation->taken_count = 0;
    memset(aggregation->parts, PART_MISSING, (size_t)aggregation->workers * (size_t)aggregation->shards);
    memset(aggregation->taken, 0, (size_t)aggregation->workers);
}

static unsigned char *part_of(const struct aggregation *aggregation, int shard, int worker)
{
    assert(shard >= 0 && shard < aggregation->shards && worker >= 0 && worker < aggregation->workers);
    return &aggregation->parts[(size_t)worker * (size_t)aggregation->shards + (size_t)shard];
}

void aggregation_add(struct aggregation *aggregation, int shard, int worker, bool finite)
{
    unsigned char *part = part_of(aggregation, shard, worker);
    if (!aggregation->decided && *part != PART_HERE) {
        *part = finite ? PART_HERE : PART_NOT_FINITE;
    }
}

enum aggregation_part aggregation_get(const struct aggregation *aggregation, int shard, int worker)
{
    return (enum aggregation_part) * part_of(aggregation, shard, worker);
}

enum aggregation_part aggregation_whole(const struct aggregation *aggregation, int worker)
{
    enum aggregation_part whole = PART_HERE;
    for (int shard = 0; shard < aggregation->shards; shard++) {
        enum aggregation_part part = aggregation_get(aggregation, shard, worker);
        if (part == PART_NOT_FINITE) {
            return PART_NOT_FINITE;
        }
        whole = part == PART_MISSING ? PART_MISSING : whole;
    }
    return whole;
}

void aggregation_count(const struct aggregation *aggregation, const bool *is_awaited, int *possible, int *whole)
{
    *possible = *whole = 0;
    for (int worker = 0; worker < aggregation->workers; worker++) {
        enum aggregation_part part = aggregation_whole(aggregation, worker);
        *whole += part == PART_HERE;
        *possible += part == PART_HERE || (part == PART_MISSING && is_awaited[worker]);
    }
}

bool aggregation_decide(struct aggregation *aggregation, const bool *is_awaited)
{
    int possible, whole;
    if (aggregation->decided) {
        return true;
    }
    aggregation_count(aggregation, is_awaited, &possible, &whole);
    int needed = possible < aggregation->wanted ? possible : aggregation->wanted;
    needed = needed < aggregation->least ? aggregation->least : needed;
    if (whole < needed) {
        return false;
    }
    aggregation->decided = true;
    aggregation->taken_count = whole;
    for (int worker = 0; worker < aggregation->workers; worker++) {
        aggregation->taken[worker] = aggregation_whole(aggregation, worker) == PART_HERE;
    }
    return true;
}

void aggregation_apply_decision(struct aggregation *aggregation, const bool *taken)
{
    if (aggregation->decided) {
        return;
    }
    aggregation->decided = true;
    for (int worker = 0; worker < aggregation->workers; worker++) {
        aggregation->taken[worker] = taken[worker];
        aggregation->taken_count += taken[worker];
    }
}
