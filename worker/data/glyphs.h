/* The strokes of the ten digits, which worker/data/synth.c distorts and draws. */
#ifndef WORKER_DATA_GLYPHS_H
#define WORKER_DATA_GLYPHS_H

#include <stdint.h>

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
