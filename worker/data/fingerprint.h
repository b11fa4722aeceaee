/*
 * The fingerprint of a training set: how many examples it has and a digest of their content. Checkpoints store it, so
 * that a run goes on only with the data it was trained on: on others, the rows held out may be rows it has learnt.
 *
 * A table's digest covers every byte of every row of the training files, in any order, as rows are held out by content.
 * That of pictures covers, in their order, since the first are held out, all labels and pixels; of more than some
 * megabytes the pixels of an even sample; if they stream, only the first ones.
 */
#ifndef WORKER_DATA_FINGERPRINT_H
#define WORKER_DATA_FINGERPRINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/examples.h"

enum { FINGERPRINT_TEXT = 192 /* as CHECKPOINT_DATA_TEXT */, FINGERPRINT_FIRST = 1000 };

struct fingerprint {
    int64_t count; /* examples of the training files; 0: there is no fingerprint */
    int64_t held_out;
    int height, width; /* of pictures; 0: rows */
    uint64_t first;    /* digest of the first FINGERPRINT_FIRST pictures */
    uint64_t whole;    /* of all; 0: not known */
};

/*
 * Of pictures, of which `examples` are in memory (at least the first FINGERPRINT_FIRST) out of `count`. Fast: reads the
 * memory once.
 */
struct fingerprint fingerprint_of_pictures(const struct examples *examples, int64_t count);

/* A table's digest is the sum of this over its rows. */
uint64_t fingerprint_of_row(const void *raw, size_t size);

/* As checkpoints store it: "count=60000 held_out=5000 ...". */
void fingerprint_text(const struct fingerprint *fingerprint, char text[FINGERPRINT_TEXT]);
bool fingerprint_parse(struct fingerprint *fingerprint, const char *text);

/* True if both are of the same data; otherwise the error says what differs ("there" and "here"). */
bool fingerprint_same(const struct fingerprint *there, const struct fingerprint *here, struct error *error);

#endif
