/* Each column of dots shows the mean of its time span, and extends up or down to the previous one. */
#include "observe/top/curve.h"

#include <math.h>

enum { MOST_DOTS = 2 * SCREEN_MOST_SIDE };

/* Means by column of dots; NaN: nothing was measured then. */
static void take_means(const struct history_ring *ring, int series, const struct curve_span *span, int count,
                       double *means)
{
    int numbers[MOST_DOTS];
    for (int i = 0; i < count; i++) {
        means[i] = 0;
        numbers[i] = 0;
    }
    for (int i = 0; i < ring->count; i++) {
        const struct history_bucket *bucket = history_at(ring, i);
        const double place = (bucket->time_s - span->from_s) / (span->to_s - span->from_s) * count;
        const float value = bucket->values[series];
        if (isfinite(value) && place >= 0 && place <= count) {
            const int at = place < count ? (int)place : count - 1;
            means[at] += (double)value;
            numbers[at]++;
        }
    }
    for (int i = 0; i < count; i++) {
        means[i] = numbers[i] > 0 ? means[i] / numbers[i] : (double)NAN;
    }
}

/* If a second is wider than a column, a straight line connects them. */
static void bridge(double *means, int count)
{
    int before = -1;
    for (int i = 0; i < count; i++) {
        if (isnan(means[i])) {
            continue;
        }
        for (int k = before + 1; before >= 0 && k < i; k++) {
            means[k] = means[before] + (means[i] - means[before]) * (k - before) / (i - before);
        }
        before = i;
    }
}

static bool find_range(const double *means, int count, struct curve_range *range)
{
    *range = (struct curve_range){.low = INFINITY, .high = -INFINITY};
    for (int i = 0; i < count; i++) {
        if (!isnan(means[i])) {
            range->low = fmin(range->low, means[i]);
            range->high = fmax(range->high, means[i]);
        }
    }
    return range->low <= range->high;
}

/* Rows of dots from the bottom; -1: none. */
static int height_of(double mean, const struct curve_range *range, int dots)
{
    if (isnan(mean)) {
        return -1;
    }
    const double part = range->high > range->low ? (mean - range->low) / (range->high - range->low) : 0.5;
    return (int)lround(part * (dots - 1));
}

/* A dot in a character of braille: its bits count down the left half, then the right one, and the bottom row last. */
static uint32_t braille_dot(int x, int from_top)
{
    static const uint32_t bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    return bits[from_top % 4][x % 2];
}

static void add_dot(struct screen *screen, int row, int column, uint32_t bit)
{
    if (row >= 0 && row < screen->height && column >= 0 && column < screen->width) {
        const uint32_t before = screen->cells[row * screen->width + column].character;
        screen_put_character(screen, row, column, CYAN, (before >= 0x2800 ? before : 0x2800) | bit);
    }
}

static void draw_braille(struct screen *screen, const struct curve_place *place, const double *means, int count,
                         const struct curve_range *range)
{
    const int dots = 4 * place->height;
    int before = -1;
    for (int x = 0; x < count; x++) {
        const int here = height_of(means[x], range, dots);
        if (here < 0) {
            continue;
        }
        const int step = before < 0 || before == here ? 0 : here > before ? 1 : -1;
        for (int y = before < 0 || step == 0 ? here : before + step;; y += step) {
            const int from_top = dots - 1 - y;
            add_dot(screen, place->row + from_top / 4, place->column + x / 2, braille_dot(x, from_top));
            if (y == here) {
                break;
            }
        }
        before = here;
    }
}

/* One mark a column, at one of three heights within its row. */
static void draw_ascii(struct screen *screen, const struct curve_place *place, const double *means, int count,
                       const struct curve_range *range)
{
    static const char marks[] = {'.', '-', '\''};
    for (int x = 0; x < count; x++) {
        const int here = height_of(means[x], range, 3 * place->height);
        if (here >= 0) {
            screen_put_character(screen, place->row + place->height - 1 - here / 3, place->column + x, CYAN,
                                 (uint32_t)marks[here % 3]);
        }
    }
}

bool curve_draw(struct screen *screen, const struct curve_place *place, const struct history_ring *ring, int series,
                const struct curve_span *span, struct curve_range *range)
{
    double means[MOST_DOTS];
    const int count = screen->has_unicode ? 2 * place->width : place->width;
    if (count < 1 || place->height < 1 || count > MOST_DOTS || span->to_s <= span->from_s) {
        return false;
    }
    take_means(ring, series, span, count, means);
    bridge(means, count);
    if (!find_range(means, count, range)) {
        return false;
    }
    if (screen->has_unicode) {
        draw_braille(screen, place, means, count, range);
    } else {
        draw_ascii(screen, place, means, count, range);
    }
    return true;
}
