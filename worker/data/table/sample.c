/* A hash of a row's number decides whether it is kept: whenever room runs out, half of the rows are dropped. */
#include "worker/data/table/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/table/wide.h"

enum { LEAST_ROWS = 1024, MOST_LEVEL = 63 };

static const uint64_t ODD = 0x9E3779B97F4A7C15u, OTHER = 0xD6E8FEB86659FD93u;

bool sample_create(struct sample *sample, int columns, uint64_t bytes)
{
    const uint64_t rows = bytes / ((uint64_t)columns * sizeof(double));
    *sample = (struct sample){.columns = columns, .capacity = rows > LEAST_ROWS ? (int)rows : LEAST_ROWS};
    sample->values = malloc((size_t)sample->capacity * (size_t)columns * sizeof *sample->values);
    sample->numbers = malloc((size_t)sample->capacity * sizeof *sample->numbers);
    return sample->values && sample->numbers;
}

void sample_free(struct sample *sample)
{
    free(sample->values);
    free(sample->numbers);
    *sample = (struct sample){.capacity = 0};
}

void sample_clear(struct sample *sample)
{
    sample->count = sample->level = 0;
    sample->next = 0;
}

static bool is_kept(const struct sample *sample, uint64_t number)
{
    return sample->level == 0 || wide_mix(number ^ OTHER, ODD) >> (64 - sample->level) == 0;
}

static void thin(struct sample *sample)
{
    const size_t columns = (size_t)sample->columns;
    int kept = 0;
    sample->level++;
    for (int i = 0; i < sample->count; i++) {
        if (is_kept(sample, sample->numbers[i])) {
            sample->numbers[kept] = sample->numbers[i];
            memmove(sample->values + (size_t)kept * columns, sample->values + (size_t)i * columns,
                    columns * sizeof *sample->values);
            kept++;
        }
    }
    sample->count = kept;
}

double *sample_add(struct sample *sample)
{
    const uint64_t number = sample->next++;
    while (sample->count == sample->capacity && sample->level < MOST_LEVEL) {
        thin(sample);
    }
    if (sample->count == sample->capacity || !is_kept(sample, number)) {
        return NULL;
    }
    sample->numbers[sample->count] = number;
    return sample->values + (size_t)sample->count++ * (size_t)sample->columns;
}

static int by_value(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

/* The column's values in ascending order, which the caller frees; NULL if out of memory. */
static double *sort_values(const struct sample *sample, int column, int *count)
{
    double *sorted = malloc(((size_t)sample->count + 1) * sizeof *sorted);
    *count = 0;
    for (int i = 0; sorted && i < sample->count; i++) {
        const double value = sample->values[(size_t)i * (size_t)sample->columns + (size_t)column];
        if (!isnan(value)) {
            sorted[(*count)++] = value;
        }
    }
    if (sorted) {
        qsort(sorted, (size_t)*count, sizeof *sorted, by_value);
    }
    return sorted;
}

static double quantile_of(const double *sorted, int count, double share)
{
    if (count == 0) {
        return (double)NAN;
    }
    const double place = share * (count - 1);
    const int below = (int)floor(place), above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (sorted[above] - sorted[below]) * (place - (double)below);
}

bool sample_quantile(const struct sample *sample, int column, const double *shares, int count, double *quantiles)
{
    int there;
    double *sorted = sort_values(sample, column, &there);
    for (int i = 0; sorted && i < count; i++) {
        quantiles[i] = quantile_of(sorted, there, shares[i]);
    }
    free(sorted);
    return sorted;
}

/* The different values, up to `most` of them; one more means that there are more. */
static int count_different(const double *sorted, int count, int most)
{
    int different = count > 0;
    for (int i = 1; i < count && different <= most; i++) {
        different += sorted[i] > sorted[i - 1];
    }
    return different;
}

bool sample_edges(const struct sample *sample, int column, int bins, double *edges, int *count)
{
    int there, found = 0;
    double *sorted = sort_values(sample, column, &there);
    if (!sorted) {
        return false;
    }
    const bool are_few = count_different(sorted, there, bins + 1) <= bins + 1;
    for (int i = 0; i < (are_few ? there : bins + 1); i++) {
        const double edge = are_few ? sorted[i] : quantile_of(sorted, there, (double)i / bins);
        if (found == 0 || edge > edges[found - 1]) {
            edges[found++] = edge;
        }
    }
    *count = found;
    free(sorted);
    return true;
}
