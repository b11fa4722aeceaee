/*
 * The bucket of a float is looked up by its exponent and upper four bits of mantissa: such a cell is narrower than any
 * bucket, so it contains at most one limit, and one comparison decides.
 */
#include "worker/summary/summary.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

enum { CELL_SHIFT = 19, CELLS = 1 << (31 - CELL_SHIFT), INFINITE_CELL = 0xFF << 4, ZERO = HISTOGRAM_SIDE };

static double limits[HISTOGRAM_SIDE];      /* above zero */
static float float_limits[HISTOGRAM_SIDE]; /* rounded up, for floats: value < limit as before */
static uint16_t cells[CELLS];              /* number of limits <= the smallest value of the cell */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static float cell_start(uint32_t cell)
{
    uint32_t bits = cell << CELL_SHIFT;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float round_up(double limit)
{
    float value = limit > (double)FLT_MAX ? INFINITY : (float)limit;
    return (double)value < limit ? nextafterf(value, INFINITY) : value;
}

static void prepare(void)
{
    limits[0] = 1e-12;
    for (int i = 1; i < HISTOGRAM_SIDE - 1; i++) {
        limits[i] = limits[i - 1] * 1.1;
    }
    limits[HISTOGRAM_SIDE - 1] = DBL_MAX;
    for (int i = 0; i < HISTOGRAM_SIDE; i++) {
        float_limits[i] = round_up(limits[i]);
    }
    int below = 0;
    for (uint32_t cell = 0; cell < INFINITE_CELL; cell++) {
        while (below < HISTOGRAM_SIDE - 1 && float_limits[below] <= cell_start(cell)) {
            below++;
        }
        cells[cell] = (uint16_t)below;
    }
}

void histogram_clear(struct histogram *histogram)
{
    memset(histogram, 0, sizeof *histogram);
}

/* finite */
static int bucket_of(uint32_t bits)
{
    uint32_t magnitude = bits & 0x7FFFFFFF;
    float value;
    memcpy(&value, &magnitude, sizeof value);
    int at_most = cells[magnitude >> CELL_SHIFT], sign = (int)(bits >> 31);
    at_most += value >= float_limits[at_most];
    return ZERO + 1 +
           (at_most ^ -sign); /* ZERO - at_most below zero; signs are random, so a branch would be mispredicted */
}

/* Several sums side by side, which compilers turn into vectors. */
struct measures {
    double sum[8], squares[8];
    int32_t least, most; /* as order_of has them */
};

/* Maps floats to integers of the same order; its own inverse. Negative zero counts as zero. */
static int32_t order_of(float value)
{
    int32_t bits;
    value += 0.0f;
    memcpy(&bits, &value, sizeof bits);
    return bits ^ (bits < 0 ? INT32_MAX : 0);
}

static float in_order(int32_t order)
{
    float value;
    order ^= order < 0 ? INT32_MAX : 0;
    memcpy(&value, &order, sizeof value);
    return value;
}

static void measure(struct measures *measures, const float *values, size_t count)
{
    for (size_t i = 0; i + 8 <= count; i += 8) {
        for (size_t k = 0; k < 8; k++) {
            double value = (double)values[i + k];
            measures->sum[k] += value;
            measures->squares[k] += value * value;
        }
    }
    for (size_t i = count - count % 8; i < count; i++) {
        measures->sum[0] += (double)values[i];
        measures->squares[0] += (double)values[i] * (double)values[i];
    }
    /* Compilers may vectorise minima of integers, but not of floats. */
    int32_t least = INT32_MAX, most = INT32_MIN;
    for (size_t i = 0; i < count; i++) {
        int32_t order = order_of(values[i]);
        least = order < least ? order : least;
        most = order > most ? order : most;
    }
    measures->least = least;
    measures->most = most;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    value += 0.0f; /* turns negative zero into zero */
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Rare, so it may be slow: some values are not finite. */
static void add_finite(struct histogram *histogram, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (isfinite(values[i])) {
            histogram_add(histogram, &values[i], 1);
        }
    }
}

void histogram_add(struct histogram *histogram, const float *values, size_t count)
{
    struct measures measures = {.sum = {0}};
    pthread_once(&once, prepare);
    measure(&measures, values, count);
    double sum = 0, squares = 0;
    for (int k = 0; k < 8; k++) {
        sum += measures.sum[k];
        squares += measures.squares[k];
    }
    if (!isfinite(squares)) { /* squares of finite floats are finite doubles, and so is any sum of them here */
        if (count > 1) {
            add_finite(histogram, values, count);
        }
        return;
    }
    if (count == 0) {
        return;
    }
    size_t i = 0;
    for (; i + HISTOGRAM_LANES <= count; i += HISTOGRAM_LANES) {
        for (size_t lane = 0; lane < HISTOGRAM_LANES; lane++) {
            histogram->lanes[lane][bucket_of(bits_of(values[i + lane]))]++;
        }
    }
    for (; i < count; i++) {
        histogram->lanes[0][bucket_of(bits_of(values[i]))]++;
    }
    float minimum = in_order(measures.least), maximum = in_order(measures.most);
    histogram->minimum = histogram->count > 0 ? fminf(histogram->minimum, minimum) : minimum;
    histogram->maximum = histogram->count > 0 ? fmaxf(histogram->maximum, maximum) : maximum;
    histogram->count += count;
    histogram->sum += sum;
    histogram->squares += squares;
}

uint64_t histogram_count(const struct histogram *histogram, int bucket)
{
    uint64_t count = 0;
    for (int lane = 0; lane < HISTOGRAM_LANES; lane++) {
        count += histogram->lanes[lane][bucket];
    }
    return count;
}

double histogram_limit(int bucket)
{
    assert(bucket >= 0 && bucket < HISTOGRAM_BUCKETS);
    pthread_once(&once, prepare);
    return bucket == ZERO ? 0 : bucket > ZERO ? limits[bucket - ZERO - 1] : -limits[ZERO - 1 - bucket];
}

void histogram_encode(const struct histogram *histogram, struct proto *proto, int field)
{
    double ends[HISTOGRAM_BUCKETS], counts[HISTOGRAM_BUCKETS];
    size_t used = 0;
    bool was_empty = false;
    for (int i = 0; i < HISTOGRAM_BUCKETS; i++) {
        uint64_t count = histogram_count(histogram, i);
        used -= count == 0 && was_empty; /* extends the run: one empty bucket as wide as all of them */
        was_empty = count == 0;
        ends[used] = histogram_limit(i);
        counts[used++] = (double)count;
    }
    size_t begun = proto_begin(proto, field);
    proto_double(proto, 1, (double)histogram->minimum);
    proto_double(proto, 2, (double)histogram->maximum);
    proto_double(proto, 3, (double)histogram->count);
    proto_double(proto, 4, histogram->sum);
    proto_double(proto, 5, histogram->squares);
    proto_packed_doubles(proto, 6, ends, used);
    proto_packed_doubles(proto, 7, counts, used);
    proto_end(proto, begun);
}
