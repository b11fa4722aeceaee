/*
 * Internal to the shard: its layout, and what its two ways of applying gradients share. The parts, of which each calls
 * only those before it: layout.c, schedule.c (the live keys in force), snapshot.c, buffer.c (several pushes for a
 * step), apply.c, aggregate.c (synchronous steps), ps/shard.c.
 */
#ifndef PS_SHARD_INTERNAL_H
#define PS_SHARD_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/simulation.h"
#include "ps/shard.h"
#include "ps/store/codec.h"
#include "ps/store/optimizer.h"

enum {
    SHARD_ALIGN = 64,
    MAX_STRIPES = 16,
    STRIPE_FLOATS = SMALLER(32 * 1024, 64), /* at least, if there are several */
    PADDING_PACKED = 32,                    /* floats between two blocks: cheaper to send than a separate range */
};

/* Whole rows, or part of one row. */
struct shard_block {
    size_t first; /* in the model's flat vector */
    size_t local; /* in the shard's vectors */
    int stride;
    uint16_t rows, cols;
    uint8_t update; /* enum update_kind */
};

struct stripe {
    _Alignas(SHARD_ALIGN) pthread_mutex_t lock;
    size_t first_block, end_block;
};

struct snapshot {
    uint64_t number; /* 0: none */
    int64_t at_step;
    enum { SNAPSHOT_ARMED, SNAPSHOT_BEGUN, SNAPSHOT_READY } progress;
    int copy; /* index in shard->copies, once it began */
};
enum { SHARD_SNAPSHOTS = 1 + SHARD_ORDERS, SHARD_COPIES = 1 + SHARD_ORDERS_KEPT };

struct stage {
    struct shard *shard;
    float *values; /* [floats]: the gradient */
    float *answer; /* [floats]: with asynchronous training the same memory, because the gradient is used up by then */
    unsigned char *present; /* [block_count]: the push touches this block */
    uint8_t *ranges;        /* [block_count * RANGE_BYTES] of the answer */
    uint16_t *known;        /* [floats]: what its worker received last, with wire_dtype bfloat16; else NULL */
    uint64_t known_to;      /* on this connection */
    bool not_finite;
    uint32_t examples;      /* as its worker counts them, if examples are weighted */
    uint32_t staleness;     /* of the pushed gradient, in steps, where it matters */
    double squares;         /* of the gradient's norm, if it may be clipped */
    float cosine, norm;     /* of the last round it was part of: similarity to the mean, and its own norm */
    struct changes changes; /* being packed */
    size_t packed_local;    /* end of the last float packed, in the shard's vectors */
};

struct terms {
    struct config_train train;
    int64_t epoch_steps; /* the value of lr_decay_steps 0; 0: not known, and then the rate doesn't decay */
};

/* Live keys may change at a step (shard_schedule). */
struct schedule {
    pthread_mutex_t lock;
    struct terms now, next;
    bool is_set;  /* there is a next one */
    int64_t step; /* in force from this step on */
};

/* With train.buffer_size: what is gathered for the next step. */
struct buffer {
    int size;               /* differences per step; 0: each push is a step */
    float *mean;            /* [floats]: of those received; this and the next are guarded by the block's stripe */
    unsigned char *present; /* [block_count]: one of them touches this block, or did when the last step was made */
    int count;              /* differences received; this and the next are guarded by the first stripe's lock */
    double weight;          /* their total weight */
};

struct shard {
    struct schedule *schedule;
    const struct model *model;
    struct config_train train;  /* as at process start: live keys are the schedule's; with rounds the outer optimizer */
    struct config_train rounds; /* as configured: how a round's differences are combined */
    bool has_rounds;
    bool weighs_examples; /* in a synchronous step a worker has the weight of its examples */
    enum dtype wire_dtype;
    const struct optimizer_kernels *kernels;
    struct span spans[PLACEMENT_MAX_SPANS];
    size_t span_locals[PLACEMENT_MAX_SPANS];
    int span_count;
    size_t floats;

    struct shard_block *blocks;
    uint64_t *versions;   /* [block_count]: of the last change; guarded, with the vectors, by the block's stripe */
    unsigned char *moved; /* [block_count]: 0: its slots are unchanged since the start */
    size_t block_count;
    struct stripe stripes[MAX_STRIPES];
    int stripe_count;
    float *vectors[STORE_PS_VECTORS]; /* [floats]; NULL if there is none */

    /* Guarded by the first stripe's lock: the state on which the next operation to enter builds. */
    uint64_t version;
    int64_t global_step;
    uint32_t generation;
    /* Guarded by the last stripe's lock: the state after the last operation to leave. */
    uint64_t done_version;
    int64_t done_step;
    atomic_bool closed; /* written with the first stripe locked */

    size_t written[STORE_PS_VECTORS];           /* floats since shard_begin_write, without padding; each counts once */
    size_t written_to[STORE_PS_VECTORS];        /* end of the last one */
    pthread_mutex_t snapshot_lock;              /* taken after all other locks */
    struct snapshot snapshots[SHARD_SNAPSHOTS]; /* [0]: the plain one; then the ordered ones, in any order */
    atomic_bool armed;                          /* some snapshot waits for its step; otherwise steps need not look */
    float *copies[SHARD_COPIES][STORE_PS_VECTORS]; /* [floats] each; [0]: the plain snapshot's */
    void *order_memory;                            /* the ordered snapshots' copies; NULL: none was ever ordered */

    struct buffer buffer;
    struct aggregate *aggregate; /* with synchronous training */
    struct sent_log *sent_log;   /* with packed answers; else NULL */
    struct stage *stages;
    int worker_count;
    void *memory;
};

/* One pass through all stripes; see shard_apply. */
struct block_walk {
    uint64_t version;
    int64_t global_step; /* before it */
    int saves;           /* snapshots that get a copy of each stripe before it changes */
    struct walk_copy {
        uint64_t number;
        int copy;
    } copies[SHARD_COPIES];
};

/* Floats from a block's first to the end of its last row. Blocks of whole rows include their padding, so they touch. */
static inline size_t block_extent(const struct shard_block *block)
{
    return block->rows > 1 ? (size_t)block->rows * (size_t)block->stride : block->cols;
}

/* A step's constants, by kind of update. */
struct step {
    struct update updates[UPDATE_KINDS];
    optimizer_loop loop[UPDATE_KINDS], absent_loop[UPDATE_KINDS];
    bool absent_is_noop[UPDATE_KINDS], fresh_is_noop[UPDATE_KINDS];
    bool has_slots;
};
void shard_step_prepare(const struct shard *shard, int64_t global_step, struct step *step);

/* Does the block stay unchanged without a gradient? */
static inline bool block_is_unchanged(const struct shard *shard, const struct step *step, size_t i)
{
    const int kind = shard->blocks[i].update;
    return step->absent_is_noop[kind] || (step->fresh_is_noop[kind] && !shard->moved[i]);
}

/* Updates one block; gradient: where it lies in a vector like the shard's; NULL: absent. */
void shard_move_block(struct shard *shard, const struct step *step, size_t i, const float *gradient);

/* What a push does to the buffer, block by block, as it passes the stripes. */
struct buffer_turn {
    bool gathers, begins, makes_step; /* begins: it is the first of its step. Without a buffer each push makes a step */
    float keep, add;                  /* factors of the mean, and of the difference that is added to it */
};
/* First stripe locked. */
struct buffer_turn buffer_take(struct shard *shard, const struct stage *stage);
void buffer_forget(struct buffer *buffer);
/* The stripe's blocks; the stripe is locked. */
void buffer_gather(struct shard *shard, const struct buffer_turn *turn, const struct stage *stage,
                   const struct stripe *stripe);

/* Cuts spans of the model into blocks; returns how many. blocks NULL: only counts. */
size_t shard_cut(const struct model *model, const struct span *spans, int span_count, struct shard_block *blocks);

/* False, with the reason, if the shard has no such vector. */
bool shard_check_vector(const struct shard *shard, enum store_vector vector, struct error *error);

/* Where a range lies in the shard's vectors; false if it is not entirely in this shard. */
bool shard_locate(const struct shard *shard, struct range range, size_t *local, struct error *error);

/* Takes the first stripe's lock, unless the shard is closed or of another generation. */
bool shard_walk_enter(struct shard *shard, uint32_t generation);
/* Moves from stripe i, which is locked, to the next one, or leaves after the last. */
void shard_walk_on(struct shard *shard, int i, const struct block_walk *walk, int64_t global_step);

/* Snapshots of this step are taken by the thread that is about to leave it. First stripe locked. */
void shard_join_snapshots(struct shard *shard, struct block_walk *walk);
void shard_save_stripe(struct shard *shard, const struct stripe *stripe, const struct block_walk *walk);
void shard_snapshots_done(struct shard *shard, const struct block_walk *walk); /* last stripe locked */
/* The shard starts at this step: orders of earlier steps are void. First stripe locked. */
void shard_snapshots_from(struct shard *shard, int64_t global_step);

/*
 * Appends a block to an answer whose ranges lie at `ranges`, and counts its floats. *packed_local: end of the last
 * float packed so far. Returns how many floats before the block are sent along, because they cost less than a range of
 * its own.
 */
size_t shard_pack_range(struct changes *changes, uint8_t *ranges, size_t *packed_local,
                        const struct shard_block *block);
/* Writes `count` floats as `dtype` at float `at` of packed values. */
void shard_pack_values(void *values, uint64_t at, enum dtype dtype, const float *from, size_t count);

/* Memory and lifetime of what synchronous steps need. */
size_t aggregate_memory(size_t floats, size_t blocks, int workers);
void aggregate_create(struct shard *shard, void *memory); /* zeroed, aggregate_memory bytes, aligned */
void aggregate_destroy(struct shard *shard);

/* Memory of the sent model, and its start. */
size_t shard_sent_memory(size_t floats);
void shard_sent_create(struct shard *shard, const struct config_cluster *cluster, void *memory); /* zeroed, aligned */
void shard_sent_forget(struct shard *shard); /* the sent model was overwritten: no earlier version leads to it */
/* After a synchronous step, with all stripes still locked: encodes the change that brings the sent model up to it. */
void shard_sent_step(struct shard *shard, uint64_t version);
static inline size_t shard_round_up(size_t bytes)
{
    return (bytes + SHARD_ALIGN - 1) / SHARD_ALIGN * SHARD_ALIGN;
}

struct schedule *schedule_create(const struct config_train *train);
void schedule_destroy(struct schedule *schedule); /* NULL is fine */

/* How many divergences have lowered the learning rate; one set anew (shard_schedule) is used as it is. */
void schedule_set_retries(struct schedule *schedule, int retries);
int schedule_retries(struct schedule *schedule);

/* The shard will be restored at that step. */
void schedule_settle(struct schedule *schedule, int64_t global_step);
/* It was restored. False: the rate decays by epochs, and the steps per epoch are not known. */
bool schedule_begin(struct schedule *schedule, int64_t epoch_steps);
void schedule_prepare(struct schedule *schedule, struct update updates[UPDATE_KINDS], int64_t global_step);

#endif
