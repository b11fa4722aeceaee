/*
 * A gradient on its way to the parameter servers: where an engine's blocks gather, in the form in which they travel.
 *
 * Rows of a variable that no block names, or that are zero all through, are absent: they are not sent, and count as
 * zero. As bfloat16, what rounding takes away from a gradient is kept and added to the next one (error feedback: Seide
 * et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014), so that nothing is lost in the long run; an absent
 * row
 * keeps its remainder until its next gradient.
 *
 * Memory: 4 bytes per float of the model, 6 as bfloat16, taken at creation.
 */
#ifndef WORKER_REMOTE_EXCHANGE_OUTBOX_H
#define WORKER_REMOTE_EXCHANGE_OUTBOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "net/message.h"
#include "ps/store/model.h"
#include "ps/store/placement.h"
#include "ps/store/store.h"

struct outbox {
    const struct model *model; /* borrowed */
    enum dtype dtype;
    float *values;                         /* float32: [float_count], in the model's layout */
    uint16_t *halves;                      /* bfloat16: likewise */
    float *remainders;                     /* bfloat16: [float_count] */
    _Atomic unsigned char *present;        /* per row of all variables */
    size_t first_row[MODEL_MAX_VARIABLES]; /* of each variable, in `present` */
    size_t rows;                           /* of all */
    void *memory;
};

/* remainders: NULL, or an outbox that lives longer, for gradients before and after this one's: it lends its own. */
bool outbox_create(struct outbox *outbox, const struct model *model, enum dtype dtype, const struct outbox *remainders,
                   struct error *error);
void outbox_destroy(struct outbox *outbox); /* fine on zeros */

/* Empties it for the next gradient. */
void outbox_begin(struct outbox *outbox);

/* Takes blocks from any threads, as long as they are disjoint. */
struct gradient_sink outbox_sink(struct outbox *outbox);

/* Runs of floats to send, ascending, within spans. */
struct outbox_cursor {
    const struct outbox *outbox;
    const struct span *spans;
    int span_count;
    int variable, row;
};
struct outbox_cursor outbox_open(const struct outbox *outbox, const struct span *spans, int span_count);

/* The next run: its range, and where its floats lie, in the outbox's dtype. False at the end. */
bool outbox_next(struct outbox_cursor *cursor, struct range *range, const void **floats);

#endif
