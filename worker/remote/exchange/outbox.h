/*
 * A gradient on its way to the parameter servers: collects an engine's blocks in the form in which they are sent.
 *
 * Rows that no block names, or that are entirely zero, are absent: they are not sent, and count as zero. With bfloat16,
 * what rounding takes from a gradient, its residual, is kept and added to the next one (error feedback: Seide et al.,
 * "1-Bit Stochastic Gradient Descent", Interspeech 2014), so that nothing is lost in the long run; an absent row keeps
 * its residual until its next gradient.
 *
 * A packed gradient (int8, or the largest) stays in float32 until outbox_pack encodes it; everything that the encoding
 * loses is its residual.
 *
 * Memory, allocated at creation: per float of the model 4 bytes, 6 with bfloat16; if packed 8, and the largest size of
 * the encoding.
 */
#ifndef WORKER_REMOTE_EXCHANGE_OUTBOX_H
#define WORKER_REMOTE_EXCHANGE_OUTBOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "net/message.h"
#include "ps/store/model.h"
#include "ps/store/store.h"

/* What earlier packed gradients still owe the shards. */
struct outbox_residual {
    float *now;  /* [float_count]: before the gradient that is being collected, or was packed last */
    float *next; /* likewise: includes that gradient, and after packing what is owed then */
};

/* The form in which a gradient is sent. */
struct outbox_form {
    enum dtype dtype;
    double share; /* share of a ps's floats to send, with the largest */
};
struct outbox_form outbox_form(const struct config *config);

struct outbox_piece {
    struct range range;
    size_t at; /* offset in `packed` */
    uint32_t bytes;
};

struct outbox {
    const struct model *model; /* borrowed */
    enum dtype dtype;
    double share;
    struct outbox_residual *residual;    /* if packed: this outbox's, or the lender's */
    struct outbox_residual own_residual; /* of an outbox without a lender */
    uint8_t *packed;
    struct outbox_piece *pieces; /* ascending for each ps */
    size_t piece_count, packed_bytes;
    float *values;                         /* float32: [float_count], in the model's layout */
    uint16_t *halves;                      /* bfloat16: likewise */
    float *half_residual;                  /* bfloat16: [float_count] */
    _Atomic unsigned char *present;        /* per row, over all variables */
    size_t first_row[MODEL_MAX_VARIABLES]; /* of each variable, in `present` */
    size_t rows;                           /* of all variables */
    atomic_bool not_finite;                /* some value of the gradient is NaN or infinite */
    void *memory;
};

/*
 * lender: NULL, or an outbox that lives longer, for the gradients before and after this one's; its residual is shared.
 */
void outbox_create(struct outbox *outbox, const struct model *model, struct outbox_form form, struct outbox *lender);
void outbox_destroy(struct outbox *outbox); /* fine on zeros */

/* Clears it for the next gradient. */
void outbox_begin(struct outbox *outbox);

/* Accepts disjoint blocks from any threads. */
struct gradient_sink outbox_sink(struct outbox *outbox);

/*
 * Of the gradient so far. Each ps sees only its part, and would accept that where another must refuse: then the
 * gradient is pushed with a loss that is not finite, which all of them refuse.
 */
bool outbox_is_finite(const struct outbox *outbox);

/*
 * Call these when the gradient is complete, before sending it: outbox_pack for each ps, then outbox_packed. They do
 * nothing unless the form is packed; if it is, there is nothing to send before. The residual stays as it was if the
 * gradient is not finite.
 */
void outbox_pack(struct outbox *outbox, const struct span *spans, int span_count);
void outbox_packed(struct outbox *outbox);

/*
 * The gradient packed last did not count: takes the residual back to what it was before. Call it before the next
 * outbox_begin.
 */
void outbox_restore_residual(struct outbox *outbox);

/* Runs of floats to send, in ascending order, within spans. */
struct outbox_cursor {
    const struct outbox *outbox;
    const struct span *spans;
    int span_count;
    int variable, row;
    size_t piece;
};
struct outbox_cursor outbox_open(const struct outbox *outbox, const struct span *spans, int span_count);

/* The next run: its range, and its floats in the outbox's dtype, and their bytes. False at the end. */
bool outbox_next(struct outbox_cursor *cursor, struct range *range, const void **floats, size_t *bytes);

/* --- Files with residuals --- */

/*
 * Files with the residual of a worker's gradients, so that it survives the process,
 * and a job that continues from a checkpoint continues with the residual of that step. Also of the sent model
 * (ps/store/codec.h), whose difference from the parameters is the ps's residual. A process that plays all workers
 * (worker/clients/clients.c) has all their residuals in one file.
 *
 * They lie in the worker's own train_dir: residual-workerW-STEP; the sent model, in the chief's: sent-model-STEP; of
 * all clients: residual-clients-STEP. Of steps at which checkpoints are due the RESIDUAL_FILES_DUE newest are kept, of
 * others the RESIDUAL_FILES_OTHERS newest. A file is 40 bytes (magic, version, worker, global step, floats, CRC-32C of
 * these bytes and of the floats, all little-endian), then the floats in the model's layout.
 */

enum {
    RESIDUAL_FILES_DUE = 5,    /* a checkpoint reaches the disk a few intervals later */
    RESIDUAL_FILES_OTHERS = 2, /* whether the last push counted is known only after its answer */
    /* Instead of a worker's index: */
    RESIDUAL_FILES_SENT = -1, /* the sent model */
    RESIDUAL_FILES_CLIENTS = -2,
};

struct residual_files {
    const char *folder; /* borrowed, like the floats; "": nothing is kept */
    int worker;
    size_t count;
    int64_t every; /* checkpoints are due at multiples of this step; 0: never */
};

/* Writes or replaces the file of that step, and removes the oldest ones. */
bool residual_files_save(const struct residual_files *files, int64_t step, const float *floats, struct error *error);

/*
 * Loads the newest file of this step or an earlier one; later ones belong to an abandoned run and are removed. *found:
 * its step; -1: there is none. A damaged one, or one of another model, is skipped with a warning.
 */
bool residual_files_load(const struct residual_files *files, int64_t step, float *floats, int64_t *found,
                         struct error *error);

#endif
