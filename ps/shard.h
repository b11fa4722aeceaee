/*
 * A shard: the parameters, optimizer slots and moving averages of the spans that one ps holds, and the application of
 * pushes to them.
 *
 * Order. Floats are grouped into blocks (whole rows or part of one row of a variable, up to SHARD_BLOCK floats), blocks
 * into a few stripes with a lock each. Operations that change the shard, or copy it as a whole, walk through the
 * stripes in order and take the next lock before they release the last one: so they never overtake one another, though
 * several run at once. Every push gets a version (1, 2, ...) and a global step at the first stripe; its answer holds
 * the shard exactly as that push left it, and a snapshot is exactly one step's state. No update is lost, no lock is
 * held longer than one stripe takes, and the connections' own threads suffice.
 *
 * Savings, lossless. A block records the version of its last change, so an answer holds only blocks that changed after
 * the worker's version. A gradient is zero where it is left out (blocks that no range of the push touches):
 *  - sgd and adagrad without l2 and averages: a zero gradient changes nothing, so such blocks stay unchanged and are
 *    not sent back. On MNIST that is the rows of pixels that are 0 in the whole batch, 30% of them at batch 100;
 *  - momentum, adadelta and adam without l2 and averages: all blocks change that ever had a gradient (momentum keeps
 *    them moving); only rows of pixels never set so far stay unchanged, 8% of them;
 *  - with l2 or averages: every weight changes in every step, and answers are complete; pushes save as before.
 *
 * Memory is allocated by shard_create: 4 bytes x floats x (2 x (1 + slots + averages) + one per worker), the second
 * half for snapshots, plus 0.4 bytes per float for the blocks' book-keeping. Checkpoints by steps take 4 bytes x floats
 * x 2 x (1 + slots + averages) more, when the first is ordered. Synchronous training takes another 4 bytes x floats x
 * (2 + one per worker): answers cannot use the memory of gradients that still wait for their step, and two buffers hold
 * the answers shared by all workers. train.buffer_size takes 4 bytes x floats, however large it is. With wire_dtype
 * bfloat16, 2 bytes x floats per worker remember what it was sent; where answers are packed (ps/store/codec.h), 4
 * bytes x floats x 4 do so for all workers. A push allocates nothing.
 *
 * Threads: any may call anything, but only one thread at a time uses a stage. The shard knows neither clock nor
 * network; it waits only for locks, which are held for microseconds.
 */
#ifndef PS_SHARD_H
#define PS_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "base/simulation.h"
#include "net/message.h"
#include "ps/store/model.h"
#include "ps/store/store.h"

enum { SHARD_BLOCK = SMALLER(512, 64) /* most floats of a block */ };

struct shard;

/* The shard of ps number `ps` of the config's ps_hosts. model and config are borrowed. */
bool shard_create(struct shard **shard, const struct model *model, const struct config *config, int ps,
                  struct error *error);
void shard_destroy(struct shard *shard); /* NULL is fine */

/* Bytes that shard_create allocates, and for ordered snapshots if output.save_steps is set. */
size_t shard_memory(const struct model *model, const struct config *config, int ps);

int shard_spans(const struct shard *shard, const struct span **spans);
size_t shard_floats(const struct shard *shard); /* held, padding included */
bool shard_has(const struct shard *shard, enum store_vector vector);

/* The last fully applied version, and its global step. Each may be NULL. */
void shard_now(struct shard *shard, uint64_t *version, int64_t *global_step);

/*
 * Restoring. shard_begin_write waits for running operations and closes the shard: until shard_end_write, applying,
 * reading and snapshots fail. It resets slots to their initial values, all else to zero, and the version to 0.
 * shard_claim_write returns where the values of a range go; the caller writes them there, before shard_end_write, and
 * then calls shard_wrote. A vector's ranges ascend; after a broken connection they may resume from an earlier one.
 * shard_end_write fails if parameters are missing or a value is not finite; unwritten averages, and the sent model,
 * start as copies of the parameters. epoch_steps replaces a train.lr_decay_steps of 0. The version is 1 afterwards. One
 * thread writes.
 */
void shard_begin_write(struct shard *shard, uint32_t generation);
bool shard_claim_write(struct shard *shard, enum store_vector vector, struct range range, float **values,
                       struct error *error);
void shard_wrote(struct shard *shard, enum store_vector vector, struct range range);
bool shard_end_write(struct shard *shard, int64_t global_step, int64_t epoch_steps, struct error *error);

/* How many divergences have lowered the learning rate (train.retries). Set while the shard is being written. */
void shard_set_retries(struct shard *shard, int retries);
int shard_retries(struct shard *shard);

/*
 * A stage holds a worker's gradient until it is complete, then its answer. stage_begin empties it. stage_claim returns
 * where the floats of a range go, as float32; once they are there, stage_check examines them. Ranges may come in any
 * order; if a range comes twice, the last one counts.
 */
struct stage;
struct stage *shard_stage(struct shard *shard, int worker); /* worker < config_worker_room */
void stage_begin(struct stage *stage);
bool stage_claim(struct stage *stage, struct range range, float **values, struct error *error);
/* The same for single floats of a range, at ascending places in it; the others are zero. */
bool stage_scatter(struct stage *stage, struct range range, const uint16_t *places, const float *values, size_t count,
                   struct error *error);
void stage_check(struct stage *stage, const float *values, size_t count);
/* Once it is complete: sets its weight, if rounds weigh by examples, and computes its norm, if that is limited. */
void stage_set_weight(struct stage *stage, uint32_t examples);
/* With train.buffer_size: sets how many steps were made since the model it was computed from. */
void stage_set_staleness(struct stage *stage, uint32_t staleness);
bool stage_is_finite(const struct stage *stage); /* nothing checked since stage_begin is NaN or infinite */

/* Changed parameters, packed one range after another, in the stage's memory; valid until the stage is used again. */
struct changes {
    uint64_t version;    /* of the shard with these changes */
    int64_t global_step; /* likewise */
    enum dtype dtype;
    const uint8_t *ranges; /* [range_count * RANGE_BYTES], as on the wire; they may include padding between rows */
    uint32_t range_count;
    const void *values;   /* float32 or bfloat16; for a packed dtype: consecutive sent_piece_at, and no ranges */
    uint64_t value_count; /* for a packed dtype: bytes */
    void *shared;         /* for shard_answer: may be shared by several */
};

/*
 * Applies the stage's gradient, as one step at the shard's global step, and collects the changes after base_version.
 * With train.buffer_size the gradient is added to the buffered mean instead, and the last of buffer_size gradients
 * makes the step (ps/store/rounds.h); a restore clears the buffer. In any case the answer is the shard as this push
 * leaves it. False, without any effect, if the shard is being written, or of another generation.
 */
bool shard_apply(struct shard *shard, uint32_t generation, struct stage *stage, uint64_t base_version, enum dtype dtype,
                 struct changes *changes);

/*
 * Packed answers (ps/store/codec.h): one piece; the next begins after its bytes. The pieces of a version are
 * ascending; those of the next version follow.
 */
enum { SENT_HEAD = RANGE_BYTES + 4 };
struct sent_piece {
    struct range range;
    uint32_t size;
    const uint8_t *bytes;
};
struct sent_piece sent_piece_at(const uint8_t *bytes);
bool shard_compresses_answers(const struct shard *shard); /* true if answers are packed */

/*
 * The same without applying anything. since_version 0: all. For a packed dtype, if shard_compresses_answers: what was
 * sent since that version; or, if that is no longer known, the sent model, as float32 (changes->dtype).
 */
bool shard_changes(struct shard *shard, uint32_t generation, struct stage *stage, uint64_t since_version,
                   enum dtype dtype, struct changes *changes);

/*
 * Differences (ps/store/codec.h): with wire_dtype bfloat16 a stage remembers what its worker was last sent.
 * stage_is_known_to is true if this connection can use that; others are sent every value in full. connection: a unique
 * number, not 0. stage_encode_delta updates the memory to `halves`, the floats of these ranges one after another, and
 * encodes the update to `encoded`, which has room for bfloat16_encoded_room(floats) + ranges->count bytes; returns the
 * bytes used.
 */
bool stage_keeps_known(const struct stage *stage); /* true if it remembers anything */
bool stage_is_known_to(const struct stage *stage, uint64_t connection);
size_t stage_encode_delta(struct stage *stage, uint64_t connection, const struct ranges *ranges, const uint16_t *halves,
                          bool in_full, uint8_t *encoded);

/*
 * Synchronous steps (cluster.issync). shard_aggregate applies the mean of the stages of `workers` (ascending) as one
 * step: element by element ((g0 / n + g1 / n) + ...), as ps/store/store.h has it, so that the bits are those of a
 * process that trains with micro-batches. With rounds (ps/store/rounds.h) workers may be weighted by their examples
 * instead, long differences may be scaled down, and a robust mean may be used (ps/store/rounds.h). A stage must not
 * change from the completion of its gradient until then. Idle threads may call shard_help meanwhile: all work on
 * disjoint stripes, and it returns when none is left. shard_aggregate returns once all is done, false if the shard is
 * closed or of another generation; one step at a time.
 */
bool shard_aggregate(struct shard *shard, uint32_t generation, const int *workers, int count);
void shard_help(struct shard *shard);
/*
 * In rounds, for a worker whose difference was part of the last aggregate: its cosine to the aggregate, and its norm,
 * within this shard. NaN: not known.
 */
void shard_round_figures(const struct shard *shard, int worker, float *cosine, float *norm);
bool shard_wants_help(const struct shard *shard); /* true if it is large enough that waking helpers pays */

/*
 * As shard_changes, but the changes of the last aggregate are packed once for all who ask for just those. Release with
 * shard_answered.
 */
bool shard_answer(struct shard *shard, uint32_t generation, struct stage *stage, uint64_t base_version,
                  enum dtype dtype, struct changes *changes);
void shard_answered(struct shard *shard, struct changes *changes);

/*
 * Makes updates use the live keys of `train` from this global step on (the number of steps made before it; 0: at once);
 * an lr_decay_steps of 0 stands for epoch_steps (0: as before). Keys in force stay so until then; an earlier schedule
 * not yet in force is replaced. Keys in force also stay so when the shard is restored at an earlier step. Any thread.
 */
void shard_schedule(struct shard *shard, const struct config_train *train, int64_t epoch_steps, int64_t step);

/* Copies the present values of one range. False if it is not held here, or the shard is being written. */
bool shard_read(struct shard *shard, enum store_vector vector, struct range range, float *values, struct error *error);

/*
 * Snapshots of all vectors at one step. The number says which kind:
 *  - a plain one (without SNAPSHOT_ORDER), one at a time: another number replaces it. at_step -1: now;
 *  - an order, for a future step; kept until released. It may be placed while the shard is being written. There are at
 *    most SHARD_ORDERS (the earliest gives way), and memory for SHARD_ORDERS_KEPT taken and not yet released.
 *    shard_must_wait is true if there is none for an ordered step: updates must then not leave that step. A thread that
 *    leaves it nevertheless loses that order.
 * Call again with the same number while the result is SNAPSHOT_PENDING. Only the chief uses them, so a reader overtaken
 * by a newer snapshot is its own fault (it reads newer values, nothing worse).
 */
enum { SHARD_ORDERS = 4, SHARD_ORDERS_KEPT = 2 };
enum snapshot_state {
    SNAPSHOT_TAKEN,
    SNAPSHOT_PENDING, /* that step is not reached yet */
    SNAPSHOT_PASSED,  /* that step is over */
    SNAPSHOT_CLOSED,  /* the shard is being written */
    SNAPSHOT_NO_MEMORY,
};
enum snapshot_state shard_snapshot(struct shard *shard, uint64_t number, int64_t at_step, int64_t *global_step);
void shard_release(struct shard *shard, uint64_t number);
void shard_forget_snapshots(struct shard *shard);

/* True if updates must wait at this step (the number of steps made). Only a load while nothing is ordered. */
bool shard_must_wait(struct shard *shard, int64_t step);
void shard_skip_order(struct shard *shard, int64_t step); /* drops this step's order, if not taken yet */

/* One range of a vector of the snapshot, and the snapshot's global step. */
bool shard_snapshot_values(struct shard *shard, uint64_t number, enum store_vector vector, struct range range,
                           const float **values, int64_t *global_step, struct error *error);

#endif
