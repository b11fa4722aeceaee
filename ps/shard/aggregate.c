/*
 * Synchronous steps: one thread leads, idle ones help.
 *
 * The leader takes all stripes' locks in order, like a pass through them, and determines which blocks change: that
 * fixes each block's place in the answer, so that stripes can be processed in any order. For every stripe the gradients
 * are summed in the first stage's memory, the optimizer updates the parameters, and what changed is packed. The sum is
 * computed without flushing denormals to zero, as by a collector (ps/store/store.h); the optimizer runs with it, as
 * everywhere.
 */
#include <assert.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/profile.h"
#include "ps/shard/internal.h"
#include "ps/store/rounds.h"

enum { HELP_FLOATS = 64 * 1024 /* of a shard; for fewer, waking a thread takes as long as the work */ };

enum { BLOCK_HAS_GRADIENT = 1, BLOCK_CHANGES = 2, BLOCK_GAP_SHIFT = 2 /* floats before it that are sent along */ };
_Static_assert((PADDING_PACKED << BLOCK_GAP_SHIFT | BLOCK_HAS_GRADIENT | BLOCK_CHANGES) <= UCHAR_MAX,
               "a fate is a byte");

/* A step's changes, packed for all workers. */
struct broadcast {
    float *values;   /* [floats] */
    uint8_t *ranges; /* [block_count * RANGE_BYTES] */
    struct changes changes;
    uint64_t base_version; /* the version before it, and its own */
    uint32_t generation;   /* 0: empty */
    int users;
};

struct aggregate {
    pthread_mutex_t lock; /* guards open, helpers, and the broadcasts' users and contents while nobody packs */
    pthread_cond_t idle;
    bool open;
    int helpers;
    atomic_int next; /* next stripe to process */

    /* Of the current step; written by the leader before it is open. */
    const int *workers;
    int count;
    float *weights; /* [count]: the weight of each worker's gradient; for a median its scale */
    int cut;        /* for a median: values left out at each end; -1: it is a mean */
    struct step step;
    struct block_walk walk;
    enum dtype dtype;
    struct broadcast *broadcast;  /* NULL: both are in use, or answers are packed */
    uint64_t starts[MAX_STRIPES]; /* floats of the answer before each stripe */

    unsigned char *fates; /* [block_count]: the step's effect on a block */
    struct broadcast broadcasts[2], *latest;
    struct round_work {
        const float **values; /* [workers]: of a block; NULL: absent */
        void *scratch;        /* of robust_mean */
        double *dots;         /* [workers]: of each difference with the result, of this stripe so far */
        double *squares;      /* [workers]: of each difference */
        double squares_of_mean;
    } workspaces[MAX_STRIPES]; /* of rounds */
};

static size_t workspace_bytes(int workers)
{
    return shard_round_up((size_t)workers * sizeof(float *)) + shard_round_up(robust_scratch(workers)) +
           2 * shard_round_up((size_t)workers * sizeof(double));
}

/* Zero pages from the system: without rounds the workspaces take no memory. */
size_t aggregate_memory(size_t floats, size_t blocks, int workers)
{
    return MAX_STRIPES * workspace_bytes(workers) + shard_round_up(sizeof(struct aggregate)) +
           shard_round_up((size_t)workers * sizeof(float)) + shard_round_up(blocks) +
           2 * (shard_round_up(floats * sizeof(float)) + shard_round_up(blocks * RANGE_BYTES));
}

void aggregate_create(struct shard *shard, void *memory)
{
    char *at = memory;
    struct aggregate *aggregate = memory;
    at += shard_round_up(sizeof *aggregate);
    aggregate->weights = (float *)(void *)at;
    at += shard_round_up((size_t)shard->worker_count * sizeof(float));
    aggregate->fates = (unsigned char *)at;
    at += shard_round_up(shard->block_count);
    for (int i = 0; i < 2; i++) {
        aggregate->broadcasts[i].values = (float *)(void *)at;
        at += shard_round_up(shard->floats * sizeof(float));
        aggregate->broadcasts[i].ranges = (uint8_t *)at;
        at += shard_round_up(shard->block_count * RANGE_BYTES);
    }
    for (int i = 0; i < MAX_STRIPES; i++) {
        const size_t workers = (size_t)shard->worker_count;
        struct round_work *workspace = &aggregate->workspaces[i];
        workspace->values = (const float **)(void *)at;
        at += shard_round_up(workers * sizeof(float *));
        workspace->scratch = at;
        at += shard_round_up(robust_scratch(shard->worker_count));
        workspace->dots = (double *)(void *)at;
        at += shard_round_up(workers * sizeof(double));
        workspace->squares = (double *)(void *)at;
        at += shard_round_up(workers * sizeof(double));
    }
    pthread_mutex_init(&aggregate->lock, NULL);
    pthread_cond_init(&aggregate->idle, NULL);
    shard->aggregate = aggregate;
}

void aggregate_destroy(struct shard *shard)
{
    if (shard->aggregate) {
        pthread_cond_destroy(&shard->aggregate->idle);
        pthread_mutex_destroy(&shard->aggregate->lock);
    }
}

bool shard_wants_help(const struct shard *shard)
{
    return shard->floats >= HELP_FLOATS && shard->stripe_count > 1;
}

/* --- One stripe --- */

/* Added to the zero that earlier workers left, so that no sum starts as -0, as in collect.c. */
static void begin_sum(float *restrict sum, const float *restrict gradient, float weight, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] = 0.0f + weight * gradient[i];
    }
}

static void scale_in_place(float *sum, float weight, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] *= weight;
    }
}

static void add(float *restrict sum, const float *restrict gradient, float weight, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] += weight * gradient[i];
    }
}

/*
 * The mean of one block's gradients, in the first worker's stage: no other memory is needed, and that stage is not used
 * after its step. A gradient is divided before it is added, as for micro-batches (ps/store/store.h); the other order
 * gives other bits.
 */
static void sum_block(struct shard *shard, const struct aggregate *aggregate, size_t i)
{
    const struct shard_block *block = &shard->blocks[i];
    size_t extent = block_extent(block);
    struct stage *first = &shard->stages[aggregate->workers[0]];
    float *sum = first->values + block->local;
    bool begun = first->present[i];
    if (begun && aggregate->weights[0] < 1.0f) {
        scale_in_place(sum, aggregate->weights[0], extent);
    }
    for (int k = 1; k < aggregate->count; k++) {
        const struct stage *stage = &shard->stages[aggregate->workers[k]];
        if (!stage->present[i]) {
            continue;
        }
        if (begun) {
            add(sum, stage->values + block->local, aggregate->weights[k], extent);
        } else {
            begin_sum(sum, stage->values + block->local, aggregate->weights[k], extent);
        }
        begun = true;
    }
}

/* --- Rounds --- */

/* Where each worker has the block; the first one's is about to be overwritten, and so it is copied. */
static void gather_block(struct shard *shard, struct aggregate *aggregate, struct round_work *workspace, size_t i,
                         float own[SHARD_BLOCK])
{
    const struct shard_block *block = &shard->blocks[i];
    for (int k = 0; k < aggregate->count; k++) {
        const struct stage *stage = &shard->stages[aggregate->workers[k]];
        workspace->values[k] = stage->present[i] ? stage->values + block->local : NULL;
    }
    if (workspace->values[0]) {
        memcpy(own, workspace->values[0], block_extent(block) * sizeof *own);
        workspace->values[0] = own;
    }
}

static void measure_row(struct aggregate *aggregate, struct round_work *workspace, const float *mean, size_t at,
                        size_t cols)
{
    workspace->squares_of_mean = outer_squares(workspace->squares_of_mean, mean + at, cols);
    for (int k = 0; k < aggregate->count; k++) {
        const float *values = workspace->values[k];
        float dot = 0, squares = 0;
        for (size_t i = 0; values && i < cols; i++) {
            dot += values[at + i] * mean[at + i];
            squares += values[at + i] * values[at + i];
        }
        workspace->dots[k] += (double)dot;
        workspace->squares[k] += (double)squares;
    }
}

/* One block of a round's result, and how close each difference is to it. */
static void combine_block(struct shard *shard, struct aggregate *aggregate, struct round_work *workspace, size_t i)
{
    const struct shard_block *block = &shard->blocks[i];
    float own[SHARD_BLOCK], *mean = shard->stages[aggregate->workers[0]].values + block->local;
    gather_block(shard, aggregate, workspace, i, own);
    if (aggregate->cut < 0) {
        sum_block(shard, aggregate, i);
    } else {
        robust_mean(mean, workspace->values, aggregate->weights, aggregate->count, aggregate->cut, block_extent(block),
                    workspace->scratch);
    }
    for (int row = 0; row < block->rows; row++) {
        measure_row(aggregate, workspace, mean, (size_t)row * (size_t)block->stride, block->cols);
    }
}

static void begin_figures(struct shard *shard, struct aggregate *aggregate)
{
    for (int k = 0; k < shard->stripe_count; k++) {
        struct round_work *workspace = &aggregate->workspaces[k];
        workspace->squares_of_mean = 0;
        memset(workspace->dots, 0, (size_t)aggregate->count * sizeof *workspace->dots);
        memset(workspace->squares, 0, (size_t)aggregate->count * sizeof *workspace->squares);
    }
}

static void end_figures(struct shard *shard, const struct aggregate *aggregate)
{
    double squares_of_mean = 0;
    for (int k = 0; k < shard->stripe_count; k++) {
        squares_of_mean += aggregate->workspaces[k].squares_of_mean;
    }
    for (int w = 0; w < aggregate->count; w++) {
        struct stage *stage = &shard->stages[aggregate->workers[w]];
        double dot = 0, squares = 0;
        for (int k = 0; k < shard->stripe_count; k++) {
            dot += aggregate->workspaces[k].dots[w];
            squares += aggregate->workspaces[k].squares[w];
        }
        stage->norm = (float)sqrt(squares);
        stage->cosine = (float)(dot / sqrt(squares * squares_of_mean)); /* NaN if either is zero */
    }
}

void shard_round_figures(const struct shard *shard, int worker, float *cosine, float *norm)
{
    *cosine = shard->has_rounds ? shard->stages[worker].cosine : NAN;
    *norm = shard->has_rounds ? shard->stages[worker].norm : NAN;
}

static void do_stripe(struct shard *shard, struct aggregate *aggregate, int k)
{
    const struct stripe *stripe = &shard->stripes[k];
    const float *gradient = shard->stages[aggregate->workers[0]].values;
    struct broadcast *broadcast = aggregate->broadcast;
    uint64_t packed = aggregate->starts[k];
    shard_save_stripe(shard, stripe, &aggregate->walk);
    for (size_t i = stripe->first_block; i < stripe->end_block; i++) {
        if (!(aggregate->fates[i] & BLOCK_HAS_GRADIENT)) {
            continue;
        }
        if (shard->has_rounds) {
            combine_block(shard, aggregate, &aggregate->workspaces[k], i);
        } else {
            sum_block(shard, aggregate, i);
        }
    }
    unsigned mode = optimizer_enter();
    for (size_t i = stripe->first_block; i < stripe->end_block; i++) {
        if (aggregate->fates[i] & BLOCK_CHANGES) {
            const struct shard_block *block = &shard->blocks[i];
            shard_move_block(shard, &aggregate->step, i, aggregate->fates[i] & BLOCK_HAS_GRADIENT ? gradient : NULL);
            shard->versions[i] = aggregate->walk.version;
            if (broadcast) {
                size_t gap = aggregate->fates[i] >> BLOCK_GAP_SHIFT, count = gap + block_extent(block);
                shard_pack_values(broadcast->values, packed, aggregate->dtype,
                                  shard->vectors[STORE_PARAMETERS] + block->local - gap, count);
                packed += count;
            }
        }
    }
    optimizer_leave(mode);
}

static void do_stripes(struct shard *shard, struct aggregate *aggregate)
{
    for (;;) {
        int k = atomic_fetch_add(&aggregate->next, 1);
        if (k >= shard->stripe_count) {
            return;
        }
        do_stripe(shard, aggregate, k);
    }
}

/* --- One step --- */

static struct broadcast *free_broadcast(struct aggregate *aggregate)
{
    for (int i = 0; i < 2; i++) {
        if (aggregate->broadcasts[i].users == 0) {
            return &aggregate->broadcasts[i];
        }
    }
    return NULL;
}

/* Determines which blocks change, and their places in the answer. */
static void plan_blocks(struct shard *shard, struct aggregate *aggregate)
{
    struct changes changes = {0};
    struct broadcast *broadcast = aggregate->broadcast;
    size_t packed_local = 0;
    for (int k = 0; k < shard->stripe_count; k++) {
        aggregate->starts[k] = changes.value_count;
        for (size_t i = shard->stripes[k].first_block; i < shard->stripes[k].end_block; i++) {
            unsigned present = 0;
            for (int w = 0; w < aggregate->count; w++) {
                present |= shard->stages[aggregate->workers[w]].present[i];
            }
            bool changes_it = present || !block_is_unchanged(shard, &aggregate->step, i);
            aggregate->fates[i] =
                (unsigned char)((present ? BLOCK_HAS_GRADIENT : 0) | (changes_it ? BLOCK_CHANGES : 0));
            if (changes_it && broadcast) {
                size_t gap = shard_pack_range(&changes, broadcast->ranges, &packed_local, &shard->blocks[i]);
                aggregate->fates[i] |= (unsigned char)(gap << BLOCK_GAP_SHIFT);
            }
        }
    }
    if (broadcast) {
        changes.version = aggregate->walk.version;
        changes.global_step = aggregate->walk.global_step + 1;
        changes.dtype = aggregate->dtype;
        changes.ranges = broadcast->ranges;
        changes.values = broadcast->values;
        changes.shared = broadcast;
        broadcast->changes = changes;
        broadcast->base_version = aggregate->walk.version - 1;
    }
}

/* Equal weights, unless they are weighted by examples. */
static void weigh(const struct shard *shard, struct aggregate *aggregate)
{
    double all = 0;
    for (int k = 0; shard->weighs_examples && k < aggregate->count; k++) {
        all += shard->stages[aggregate->workers[k]].examples;
    }
    aggregate->cut = shard->has_rounds ? robust_cut(&shard->rounds, aggregate->count) : -1;
    for (int k = 0; k < aggregate->count; k++) {
        const struct stage *stage = &shard->stages[aggregate->workers[k]];
        const float weight = aggregate->cut >= 0 ? 1.0f
                             : all > 0           ? outer_weight(stage->examples, all)
                                                 : 1.0f / (float)aggregate->count;
        aggregate->weights[k] = weight * outer_clip(stage->squares, shard->rounds.clip_difference_norm);
    }
}

/*
 * With the first stripe locked: opens the step for helpers, with all stripes locked. They are locked in order, so
 * passes in progress leave first; because the leader keeps all locks, helpers may process the stripes in any order.
 */
static void open_step(struct shard *shard, struct aggregate *aggregate, const int *workers, int count)
{
    for (int k = 1; k < shard->stripe_count; k++) {
        pthread_mutex_lock(&shard->stripes[k].lock);
    }
    aggregate->workers = workers;
    aggregate->count = count;
    weigh(shard, aggregate);
    if (shard->has_rounds) {
        begin_figures(shard, aggregate);
    }
    aggregate->walk = (struct block_walk){.version = ++shard->version, .global_step = shard->global_step++};
    shard_step_prepare(shard, aggregate->walk.global_step, &aggregate->step);
    shard_join_snapshots(shard, &aggregate->walk);
    pthread_mutex_lock(&aggregate->lock);
    aggregate->broadcast = shard->sent_log ? NULL : free_broadcast(aggregate);
    aggregate->latest = NULL;
    plan_blocks(shard, aggregate);
    atomic_store(&aggregate->next, 0);
    aggregate->open = true;
    pthread_mutex_unlock(&aggregate->lock);
}

/* From here on the answers' users are counted: before, nobody can use what is still being packed. */
static void close_step(struct shard *shard, struct aggregate *aggregate, uint32_t generation)
{
    pthread_mutex_lock(&aggregate->lock);
    aggregate->open = false;
    while (aggregate->helpers > 0) {
        pthread_cond_wait(&aggregate->idle, &aggregate->lock);
    }
    if (shard->has_rounds) {
        end_figures(shard, aggregate);
    }
    aggregate->latest = aggregate->broadcast;
    if (aggregate->latest) {
        aggregate->latest->generation = generation;
    }
    pthread_mutex_unlock(&aggregate->lock);
    if (shard->sent_log) {
        shard_sent_step(shard, aggregate->walk.version);
    }
    shard->done_version = aggregate->walk.version;
    shard->done_step = aggregate->walk.global_step + 1;
    shard_snapshots_done(shard, &aggregate->walk);
    for (int k = 0; k < shard->stripe_count; k++) {
        pthread_mutex_unlock(&shard->stripes[k].lock);
    }
}

bool shard_aggregate(struct shard *shard, uint32_t generation, const int *workers, int count)
{
    PROFILE("aggregate");
    struct aggregate *aggregate = shard->aggregate;
    assert(aggregate && count > 0);
    if (!shard_walk_enter(shard, generation)) {
        return false;
    }
    aggregate->dtype = shard->wire_dtype;
    open_step(shard, aggregate, workers, count);
    do_stripes(shard, aggregate);
    close_step(shard, aggregate, generation);
    return true;
}

void shard_help(struct shard *shard)
{
    PROFILE("aggregate");
    struct aggregate *aggregate = shard->aggregate;
    pthread_mutex_lock(&aggregate->lock);
    bool open = aggregate->open;
    aggregate->helpers += open;
    pthread_mutex_unlock(&aggregate->lock);
    if (!open) {
        return;
    }
    do_stripes(shard, aggregate);
    pthread_mutex_lock(&aggregate->lock);
    aggregate->helpers--;
    pthread_cond_signal(&aggregate->idle);
    pthread_mutex_unlock(&aggregate->lock);
}

/* --- Answers --- */

bool shard_answer(struct shard *shard, uint32_t generation, struct stage *stage, uint64_t base_version,
                  enum dtype dtype, struct changes *changes)
{
    struct aggregate *aggregate = shard->aggregate;
    pthread_mutex_lock(&aggregate->lock);
    struct broadcast *latest = aggregate->latest;
    bool fits = latest && latest->generation == generation && latest->base_version == base_version &&
                latest->changes.dtype == dtype;
    if (fits) {
        latest->users++;
        *changes = latest->changes;
    }
    pthread_mutex_unlock(&aggregate->lock);
    return fits || shard_changes(shard, generation, stage, base_version, dtype, changes);
}

void shard_answered(struct shard *shard, struct changes *changes)
{
    if (changes->shared) {
        struct broadcast *broadcast = changes->shared;
        pthread_mutex_lock(&shard->aggregate->lock);
        broadcast->users--;
        pthread_mutex_unlock(&shard->aggregate->lock);
        changes->shared = NULL;
    }
}
