/*
 * A shard: the parameters, optimizer slots and moving averages of the spans that one ps holds, and what pushes need to
 * be applied to them.
 *
 * Order. Floats are grouped into blocks (whole rows or part of one row of a variable, up to SHARD_BLOCK floats), blocks
 * into a few stripes with a lock each. What changes the shard, or copies it as a whole, walks through the stripes in
 * order and takes the next lock before it gives back the last one: so operations never overtake one another, though
 * several are under way at once. Every push gets a version (1, 2, ...) and a global step at the first stripe; what its
 * answer holds is the shard exactly as that push left it, and a snapshot is exactly one step's state. No update is
 * lost, no lock is held longer than one stripe takes, and no thread but the connections' own is needed.
 *
 * Savings, lossless. A block knows the version of its last change, so an answer holds only blocks that changed after
 * the version a worker has. What a gradient leaves out (a block that no range of the push touches) is zero there:
 *  - sgd and adagrad without l2 and averages: a zero gradient changes nothing, so such blocks stay unchanged and are
 *    not sent back. On MNIST that is the rows of pixels that are 0 in the whole batch, 30% of them at batch 100;
 *  - momentum, adadelta and adam without l2 and averages: all blocks change that ever had a gradient (momentum rolls
 *    on); only pixels that were never set yet stay, 8% of the rows;
 *  - with l2 or averages: every weight changes in every step, and answers are whole; pushes save as before.
 *
 * Memory is taken at shard_create: 4 bytes x floats x (2 x (1 + slots + averages) + one per worker), the second half
 * for snapshots, plus 0.4 bytes per float for the blocks' book-keeping. Checkpoints by steps take 4 bytes x floats x 2
 * x (1 + slots + averages) more, when the first is ordered. Synchronous training takes another 4 bytes x floats x (2 +
 * one per worker): answers cannot lie where gradients still wait for their step, and two hold what all workers get.
 * train.buffer_size takes 4 bytes x floats, however large it is. With wire_dtype bfloat16, 2 bytes x floats per worker
 * remember what it was told; where answers are packed (ps/store/told.h), 4 bytes x floats x 4 do so for all workers. A
 * push allocates nothing.
 *
 * Threads: any may call anything, but one stage is used by one thread at a time. The shard knows neither clock nor
 * network; waits are for locks that are held for microseconds.
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
#include "ps/store/placement.h"
#include "ps/store/store.h"

enum { SHARD_BLOCK = SMALLER(512, 64) /* floats of a block, at most */ };

struct shard;

/* What ps number `ps` of the config's ps_hosts holds. model and config are borrowed. */
bool shard_create(struct shard **shard, const struct model *model, const struct config *config, int ps,
                  struct error *error);
void shard_destroy(struct shard *shard); /* NULL is fine */

/* Bytes that shard_create takes, and orders if output.save_steps wants any. */
size_t shard_memory(const struct model *model, const struct config *config, int ps);

int shard_spans(const struct shard *shard, const struct span **spans);
size_t shard_floats(const struct shard *shard); /* held, padding included */
bool shard_has(const struct shard *shard, enum store_vector vector);

/* The last version that is applied in full, and its global step. Each may be NULL. */
void shard_now(struct shard *shard, uint64_t *version, int64_t *global_step);

/*
 * Restoring. shard_begin_write waits for what is under way and closes the shard: until shard_end_write, applying,
 * reading and snapshots fail. Slots are back at their initial values then, all else is zero, the version is 0.
 * shard_claim_write tells where the values of a range go; the caller writes them there, before shard_end_write, and
 * shard_wrote says that it has. A vector's ranges ascend; where a connection broke, they may go on from an earlier one.
 * shard_end_write fails if parameters are missing or a value is not finite; averages that nobody wrote, and what
 * workers were told, begin as copies of the parameters. epoch_steps stands in for train.lr_decay_steps where that is 0.
 * The version is 1 afterwards. One thread writes.
 */
void shard_begin_write(struct shard *shard, uint32_t generation);
bool shard_claim_write(struct shard *shard, enum store_vector vector, struct range range, float **values,
                       struct error *error);
void shard_wrote(struct shard *shard, enum store_vector vector, struct range range);
bool shard_end_write(struct shard *shard, int64_t global_step, int64_t epoch_steps, struct error *error);

/*
 * Where a worker's gradient is gathered until it is complete, and its answer afterwards. stage_begin forgets what is
 * there. stage_claim tells where the floats of a range go, as float32; once they are there, stage_check looks at them.
 * Ranges may come in any order; what comes twice counts as it came last.
 */
struct stage;
struct stage *shard_stage(struct shard *shard, int worker); /* worker < config_worker_room */
void stage_begin(struct stage *stage);
bool stage_claim(struct stage *stage, struct range range, float **values, struct error *error);
/* The same for single floats of a range, at ascending places in it: the others are zero. */
bool stage_scatter(struct stage *stage, struct range range, const uint16_t *places, const float *values, size_t count,
                   struct error *error);
void stage_check(struct stage *stage, const float *values, size_t count);
/* Once it is complete: what it counts, where examples are weighed; and its norm is taken, where that is bounded. */
void stage_weigh(struct stage *stage, uint32_t examples);
/* With train.buffer_size: how many steps were made since the model that it comes from. */
void stage_age(struct stage *stage, uint32_t staleness);
bool stage_is_finite(const struct stage *stage); /* nothing that was checked since stage_begin is NaN or infinite */

/* Parameters that changed, packed one range after another; they lie in the stage, and stay until it is used again. */
struct changes {
    uint64_t version;    /* of the shard with these changes */
    int64_t global_step; /* likewise */
    enum dtype dtype;
    const uint8_t *ranges; /* [range_count * RANGE_BYTES], as on the wire; padding between rows may be in them */
    uint32_t range_count;
    const void *values;   /* float32 or bfloat16; of a packed dtype: told_piece_at, one after another, and no ranges */
    uint64_t value_count; /* of a packed dtype: bytes */
    void *shared;         /* of shard_answer: several may hold the same */
};

/*
 * Applies the stage's gradient, as one step at the shard's global step, and gathers what changed after base_version.
 * With train.buffer_size it goes into the mean of what waits for the next step, and the last of so many makes that
 * (ps/store/outer.h); a restore forgets what waits. The answer is the shard as this push leaves it in any case.
 * False if the shard is being written, or of another generation: nothing happened then.
 */
bool shard_apply(struct shard *shard, uint32_t generation, struct stage *stage, uint64_t base_version, enum dtype dtype,
                 struct changes *changes);

/*
 * Where answers are packed (ps/store/told.h): a piece of one, and where the next begins. Those of a version are
 * ascending; those of the next version follow.
 */
enum { TOLD_HEAD = RANGE_BYTES + 4 };
struct told_piece {
    struct range range;
    uint32_t size;
    const uint8_t *bytes;
};
struct told_piece told_piece_at(const uint8_t *bytes);
bool shard_tells(const struct shard *shard); /* are they packed? */

/*
 * The same without applying anything. since_version 0: all. Of a packed dtype, where shard_tells: what was told since
 * that version; or, if that is not known any more, the told model, as float32 (changes->dtype).
 */
bool shard_changes(struct shard *shard, uint32_t generation, struct stage *stage, uint64_t since_version,
                   enum dtype dtype, struct changes *changes);

/*
 * Differences (ps/store/bfloat16.h): with wire_dtype bfloat16 a stage keeps what its worker was told last.
 * stage_is_known_to says whether that is of use on this connection; to others, every value is told in full. connection:
 * a number, not 0, that no other one ever has. stage_tell brings what is kept up to `halves`, the floats of these
 * ranges one after another, and writes how to `told`, which has room for bfloat16_told_room(floats) + ranges->count
 * bytes; returns how many it takes.
 */
bool stage_remembers(const struct stage *stage); /* is anything kept? */
bool stage_is_known_to(const struct stage *stage, uint64_t connection);
size_t stage_tell(struct stage *stage, uint64_t connection, const struct ranges *ranges, const uint16_t *halves,
                  bool in_full, uint8_t *told);

/*
 * Synchronous steps (cluster.issync). shard_aggregate applies the mean of the stages of `workers` (ascending) as one
 * step: element by element ((g0 / n + g1 / n) + ...), as ps/store/collect.h has it, so that the bits are those of a
 * process that trains with micro-batches. With rounds (ps/store/outer.h) workers may count by their examples instead,
 * long differences are scaled down, and it may be another middle than the mean (ps/store/robust.h).
 * A stage must stay as it is from when its gradient is complete until then.
 * Threads that have nothing to do may call shard_help meanwhile: all work on disjoint stripes, and it returns when
 * none is left. shard_aggregate returns once all is done, false if the shard is closed or of another generation; one
 * step at a time.
 */
bool shard_aggregate(struct shard *shard, uint32_t generation, const int *workers, int count);
void shard_help(struct shard *shard);
/*
 * In rounds, of a worker whose difference the last aggregate was made of: its cosine to what came out, and its norm, of
 * what this shard holds. NaN: not known.
 */
void shard_round_figures(const struct shard *shard, int worker, float *cosine, float *norm);
bool shard_wants_help(const struct shard *shard); /* is it large enough to be worth waking somebody for? */

/*
 * As shard_changes; but what the last aggregate changed is packed once for all who want just that. To be given back by
 * shard_answered.
 */
bool shard_answer(struct shard *shard, uint32_t generation, struct stage *stage, uint64_t base_version,
                  enum dtype dtype, struct changes *changes);
void shard_answered(struct shard *shard, struct changes *changes);

/*
 * From this global step on (the number of steps made before it; 0: at once) updates use the live keys of `train`, where
 * lr_decay_steps 0 stands for epoch_steps (0: as before). What was scheduled before and is in force stays so until
 * then; what was not is forgotten. What has come into force stays so when the shard is restored at an earlier step.
 * Any thread.
 */
void shard_schedule(struct shard *shard, const struct config_train *train, int64_t epoch_steps, int64_t step);

/* Copies one range as it is now. False if it is not held here, or the shard is being written. */
bool shard_read(struct shard *shard, enum store_vector vector, struct range range, float *values, struct error *error);

/*
 * Snapshots, of all vectors as they are at one step. The number tells the kind:
 *  - a plain one (no SNAPSHOT_ORDER in it), one at a time: another number replaces it. at_step -1: now;
 *  - an order, of a step that is yet to come; it stays until it is released. It may be placed while the shard is being
 *    written. There are SHARD_ORDERS at most (the earliest gives way), and memory for SHARD_ORDERS_KEPT that are
 *    taken and not yet released. shard_must_wait says when there is none for an ordered step: then the step must not
 *    be left. A thread that leaves it nevertheless loses that order.
 * To be asked again with the same number as long as it says SNAPSHOT_PENDING. The chief alone uses them, so a reader
 * that is overtaken by a newer snapshot is its own fault (it reads other values, no worse).
 */
enum { SHARD_ORDERS = 4, SHARD_ORDERS_KEPT = 2 };
enum snapshot_state {
    SNAPSHOT_TAKEN,
    SNAPSHOT_PENDING, /* that step is not reached */
    SNAPSHOT_PASSED,  /* that step is over */
    SNAPSHOT_CLOSED,  /* the shard is being written */
    SNAPSHOT_NO_MEMORY,
};
enum snapshot_state shard_snapshot(struct shard *shard, uint64_t number, int64_t at_step, int64_t *global_step);
void shard_release(struct shard *shard, uint64_t number);
void shard_forget_snapshots(struct shard *shard);

/* Must updates wait at this step (the number of steps made)? No more than a load while nothing is ordered. */
bool shard_must_wait(struct shard *shard, int64_t step);
void shard_skip_order(struct shard *shard, int64_t step); /* forgets what is ordered of this step, if it is not taken */

/* One range of a vector of the snapshot, and the global step that it is of. */
bool shard_snapshot_values(struct shard *shard, uint64_t number, enum store_vector vector, struct range range,
                           const float **values, int64_t *global_step, struct error *error);

#endif
