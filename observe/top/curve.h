/* A curve in a rectangle of characters: dots of braille, two by four to a character, or what ASCII has. */
#ifndef OBSERVE_TOP_CURVE_H
#define OBSERVE_TOP_CURVE_H

#include "observe/history.h"
#include "observe/top/screen.h"

struct curve_span {
    double from_s, to_s; /* seconds since 1970 */
};

/* What the curve goes between; false: there is nothing to draw. */
struct curve_range {
    double low, high;
};

struct curve_place {
    int row, column, width, height;
};

/* Draws the series' means over equal stretches of the span. */
bool curve_draw(struct screen *screen, const struct curve_place *place, const struct history_ring *ring, int series,
                const struct curve_span *span, struct curve_range *range);

#endif
