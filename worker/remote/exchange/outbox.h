/*
 * A gradient on its way to the parameter servers: where an engine's blocks gather, in the form in which they travel.
 *
 * Rows of a variable that no block names, or that are zero all through, are absent: they are not sent, and count as
 * zero. As bfloat16, what rounding takes away from a gradient, its residual, is kept and added to the next one (error
 * feedback: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014), so that nothing is lost in the long
 * run; an absent row keeps its residual until its next gradient.
 *
 * What is packed (int8, or the largest) stands as float32 until outbox_pack makes bytes of it: all that they lack
 * is the residual, likewise.
 *
 * Memory, taken at creation: 4 bytes per float of the model, 6 as bfloat16; packed 8, and what its bytes take at most.
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
#include "ps/store/placement.h"
#include "ps/store/store.h"

/* What earlier gradients still owe to the shards, if they are packed. */
struct outbox_residual {
    float *now;  /* [float_count]: before the gradient that is gathered or was packed last */
    float *next; /* likewise: with it, and after it was packed, what is owed then */
};

/* How a gradient travels. */
struct outbox_form {
    enum dtype dtype;
    double share; /* of a ps's floats that are chosen, of the largest */
};
struct outbox_form outbox_form(const struct config *config);

struct outbox_piece {
    struct range range;
    size_t at; /* in `packed` */
    uint32_t bytes;
};

struct outbox {
    const struct model *model; /* borrowed */
    enum dtype dtype;
    double share;
    struct outbox_residual *residual;    /* packed: this outbox's, or the lender's */
    struct outbox_residual own_residual; /* of one that lends */
    uint8_t *packed;
    struct outbox_piece *pieces; /* ascending for each ps */
    size_t piece_count, packed_bytes;
    float *values;                         /* float32: [float_count], in the model's layout */
    uint16_t *halves;                      /* bfloat16: likewise */
    float *half_residual;                  /* bfloat16: [float_count] */
    _Atomic unsigned char *present;        /* per row of all variables */
    size_t first_row[MODEL_MAX_VARIABLES]; /* of each variable, in `present` */
    size_t rows;                           /* of all */
    void *memory;
};

/* lender: NULL, or an outbox that lives longer, for gradients before and after this one's, whose residual it uses. */
bool outbox_create(struct outbox *outbox, const struct model *model, struct outbox_form form, struct outbox *lender,
                   struct error *error);
void outbox_destroy(struct outbox *outbox); /* fine on zeros */

/* Empties it for the next gradient. */
void outbox_begin(struct outbox *outbox);

/* Takes blocks from any threads, as long as they are disjoint. */
struct gradient_sink outbox_sink(struct outbox *outbox);

/*
 * Once the gradient is whole, and before it is sent: packs what goes to each ps; then outbox_packed. They do nothing
 * for what is not packed. A gradient that is not packed has nothing in it.
 */
void outbox_pack(struct outbox *outbox, const struct span *spans, int span_count);
void outbox_packed(struct outbox *outbox);

/*
 * The gradient that was packed last did not count: the residual is again what it was before that one. To be called
 * before the next outbox_begin.
 */
void outbox_take_back(struct outbox *outbox);

/* Runs of floats to send, ascending, within spans. */
struct outbox_cursor {
    const struct outbox *outbox;
    const struct span *spans;
    int span_count;
    int variable, row;
    size_t piece;
};
struct outbox_cursor outbox_open(const struct outbox *outbox, const struct span *spans, int span_count);

/* The next run: its range, and where its floats lie, in the outbox's dtype, and how many bytes. False at the end. */
bool outbox_next(struct outbox_cursor *cursor, struct range *range, const void **floats, size_t *bytes);

#endif
