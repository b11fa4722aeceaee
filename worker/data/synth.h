/*
 * Synthetic digits, 28x28, white strokes on black, for a first run without a data set.
 *
 * Every image is a pure function of (seed, split, number): any thread can draw any of them, in any order.
 */
#ifndef WORKER_DATA_SYNTH_H
#define WORKER_DATA_SYNTH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum { SYNTH_SIDE = 28, SYNTH_PIXELS = SYNTH_SIDE * SYNTH_SIDE, SYNTH_CLASSES = 10 };

enum synth_split { SYNTH_TRAIN, SYNTH_TEST };

/* Draws one image (image: [SYNTH_SIDE, SYNTH_SIDE] row-major) and returns its label, 0..9. */
int synth_draw(uint64_t seed, enum synth_split split, uint32_t number, uint8_t image[SYNTH_PIXELS]);

/*
 * Draws images 0..count-1 of a split into images [count, SYNTH_PIXELS] and labels [count]; fails only if threads cannot
 * be started.
 */
bool synth_fill(uint64_t seed, enum synth_split split, int count, int threads, uint8_t *images, int32_t *labels,
                struct error *error);

/* --- The strokes of the ten digits --- */

enum { GLYPH_MAX_POINTS = 24, GLYPH_MAX_STYLES = 5 };

/* The line runs smoothly through a point, turns sharply at it, or the pen is lifted there. */
enum glyph_turn { GLYPH_SMOOTH, GLYPH_CORNER, GLYPH_LIFT };

/* x to the right, y down, in hundredths of the digit's height; the box is about 0..100 high and 0..90 wide. */
struct glyph_point {
    int8_t x, y;
    int8_t turn; /* enum glyph_turn */
};

/* One way to write a digit. */
struct glyph {
    struct glyph_point points[GLYPH_MAX_POINTS]; /* the last one is a GLYPH_LIFT */
    int count;
    int weight; /* how common this style is, in percent */
};

extern const struct glyph glyphs[10][GLYPH_MAX_STYLES]; /* weight 0: no more styles */

#endif
