/* A curve in a rectangle of characters: braille dots, two by four per character, or ASCII. */
#ifndef OBSERVE_TOP_CURVE_H
#define OBSERVE_TOP_CURVE_H

#include "observe/history.h"
#include "observe/top/screen.h"

struct curve_span {
    double from_s, to_s; /* seconds since 1970 */
};

/* The range of the curve's values. */
struct curve_range {
    double low, high;
};

struct curve_place {
    int row, column, width, height;
};

/* Draws the series' means over equal parts of the span, and sets the range. False: there is nothing to draw. */
bool curve_draw(struct screen *screen, const struct curve_place *place, const struct history_ring *ring, int series,
                const struct curve_span *span, struct curve_range *range);

#endif
