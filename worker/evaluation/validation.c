/* Results of other processes are not trusted; what was added before a connection broke can be taken back. */
#include "worker/evaluation/validation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "ps/status.h"

/* --- An evaluation as bytes --- */

/* One walk over all counts and sums, which writes them, checks written ones, or adds them. */

enum { COUNT_BYTES = 10, SUM_BYTES = 8 };

/* So that sums over many never overflow, nor squares of sums. */
static const int64_t MOST = INT64_C(1) << 48;
static const double LARGEST = 1e140;

struct walk {
    enum { WRITES, CHECKS, ADDS } mode;
    uint8_t *to;
    const uint8_t *from, *end;
    bool is_bad;
};

static void put_count(struct walk *walk, uint64_t count)
{
    for (; count >= 0x80; count >>= 7) {
        *walk->to++ = (uint8_t)(count | 0x80);
    }
    *walk->to++ = (uint8_t)count;
}

static int64_t get_count(struct walk *walk)
{
    uint64_t count = 0;
    for (int shift = 0; shift < 56; shift += 7) {
        if (walk->from == walk->end) {
            break;
        }
        const uint8_t byte = *walk->from++;
        count |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            walk->is_bad = walk->is_bad || count > (uint64_t)MOST;
            return walk->is_bad ? 0 : (int64_t)count;
        }
    }
    walk->is_bad = true;
    return 0;
}

static void take_count(struct walk *walk, int64_t *count)
{
    if (walk->mode == WRITES) {
        put_count(walk, (uint64_t)*count);
        return;
    }
    const int64_t other = get_count(walk);
    *count += walk->mode == ADDS ? other : 0;
}

/* What both sides must have in common. */
static void take_shape(struct walk *walk, int64_t value)
{
    if (walk->mode == WRITES) {
        put_count(walk, (uint64_t)value);
    } else {
        walk->is_bad = get_count(walk) != value || walk->is_bad;
    }
}

static void take_counts(struct walk *walk, int64_t *counts, size_t count)
{
    for (size_t i = 0; i < count && !walk->is_bad; i++) {
        size_t zeros = i;
        if (walk->mode == WRITES) {
            put_count(walk, (uint64_t)counts[i]);
            while (counts[i] == 0 && zeros + 1 < count && counts[zeros + 1] == 0) {
                zeros++;
            }
            if (counts[i] == 0) {
                put_count(walk, zeros - i);
            }
        } else {
            const int64_t other = get_count(walk);
            counts[i] += walk->mode == ADDS ? other : 0;
            if (other == 0) {
                const int64_t more = get_count(walk);
                walk->is_bad = walk->is_bad || more > (int64_t)(count - 1 - i);
                zeros += walk->is_bad ? 0 : (size_t)more;
            }
        }
        i = zeros;
    }
}

static void take_sum(struct walk *walk, double *sum)
{
    double other;
    if (walk->mode == WRITES) {
        memcpy(walk->to, sum, SUM_BYTES);
        walk->to += SUM_BYTES;
        return;
    }
    if (walk->end - walk->from < SUM_BYTES) {
        walk->is_bad = true;
        return;
    }
    memcpy(&other, walk->from, SUM_BYTES);
    walk->from += SUM_BYTES;
    walk->is_bad = walk->is_bad || !(fabs(other) <= LARGEST);
    *sum += walk->mode == ADDS ? other : 0;
}

static void take_regression(struct walk *walk, struct regression *regression)
{
    struct regression other = walk->mode == WRITES ? *regression : (struct regression){0};
    struct walk reads = *walk;
    reads.mode = walk->mode == WRITES ? WRITES : ADDS;
    take_count(&reads, &other.count);
    take_sum(&reads, &other.absolute);
    take_sum(&reads, &other.squared);
    take_sum(&reads, &other.pinball);
    take_sum(&reads, &other.mean);
    take_sum(&reads, &other.spread);
    reads.mode = walk->mode;
    *walk = reads;
    if (walk->mode == ADDS) {
        regression_merge(regression, &other);
    }
}

static void walk_all(struct walk *walk, struct evaluation *evaluation)
{
    const size_t cells = evaluation->confusions ? evaluation_cells(evaluation) : 0;
    const size_t bins = evaluation->bins ? (size_t)evaluation->units * METRICS_BINS * 2 : 0;
    take_shape(walk, (int64_t)evaluation->loss_kind);
    take_shape(walk, evaluation->options.outputs);
    take_shape(walk, evaluation->classes);
    take_shape(walk, (int64_t)cells);
    take_shape(walk, (int64_t)bins);
    take_count(walk, &evaluation->images);
    take_count(walk, &evaluation->correct);
    take_sum(walk, &evaluation->loss_sum);
    take_counts(walk, evaluation->class_images, (size_t)evaluation->classes);
    take_counts(walk, evaluation->class_correct, (size_t)evaluation->classes);
    take_counts(walk, evaluation->confusions, cells);
    take_counts(walk, evaluation->bins, bins);
    for (int i = 0; evaluation->regression && i < evaluation->options.outputs && !walk->is_bad; i++) {
        take_regression(walk, &evaluation->regression[i]);
    }
}

size_t evaluation_part_room(const struct evaluation *evaluation)
{
    const size_t targets = evaluation->regression ? (size_t)evaluation->options.outputs : 0;
    const size_t bins = evaluation->bins ? (size_t)evaluation->units * METRICS_BINS * 2 : 0;
    const size_t counts = 7 + 2 * (size_t)evaluation->classes + evaluation_cells(evaluation) + bins + targets;
    return counts * (COUNT_BYTES + 1) + (1 + 5 * targets) * SUM_BYTES; /* the 1 is for the byte after a single zero */
}

size_t evaluation_part_write(const struct evaluation *evaluation, uint8_t *bytes)
{
    struct walk walk = {.mode = WRITES, .to = bytes};
    struct evaluation read = *evaluation; /* its contents do not change */
    walk_all(&walk, &read);
    return (size_t)(walk.to - bytes);
}

bool evaluation_part_add(struct evaluation *evaluation, const uint8_t *bytes, size_t size, struct error *error)
{
    struct walk walk = {.mode = CHECKS, .from = bytes, .end = bytes + size};
    walk_all(&walk, evaluation);
    if (walk.is_bad || walk.from != walk.end) {
        return error_set(error, "its figures are damaged, not finite, or of another kind of evaluation");
    }
    walk = (struct walk){.mode = ADDS, .from = bytes, .end = bytes + size};
    walk_all(&walk, evaluation);
    evaluation->is_merged = true;
    return true;
}

/* --- The sum of several workers' validations --- */

/* The sum is rebuilt from bytes: there is no other way to take back what was added before a connection broke. */

void validation_sum_create(struct validation_sum *sum, const struct evaluation *like, int workers)
{
    *sum = (struct validation_sum){.room = workers};
    sum->own = must_alloc(evaluation_part_room(like), "the workers' validations");
    sum->scores = must_zero((size_t)workers, sizeof *sum->scores, "the workers' validations");
}

void validation_sum_destroy(struct validation_sum *sum)
{
    free(sum->own);
    free(sum->scores);
    *sum = (struct validation_sum){0};
}

void validation_sum_begin(struct validation_sum *sum, struct evaluation *into, enum metric metric)
{
    const double score = into->images > 0 ? evaluation_metric(into, metric) : NAN;
    sum->into = into;
    sum->own_size = evaluation_part_write(into, sum->own);
    sum->scores[0] = (struct worker_score){0, into->images, (double)(float)score}; /* rounded like the others */
    sum->count = 1;
}

void validation_sum_again(struct validation_sum *sum)
{
    struct evaluation *into = sum->into;
    const struct evaluation own = *into;
    struct error error;
    evaluation_clear(into);
    into->worst_count = own.worst_count; /* these stay worker 0's own */
    into->flagged = own.flagged;
    into->threshold = own.threshold;
    evaluation_part_add(into, sum->own, sum->own_size, &error);
    sum->count = 1;
}

bool validation_sum_add(struct validation_sum *sum, const struct worker_score *score, const uint8_t *bytes, size_t size,
                        struct error *error)
{
    if (sum->count == sum->room) {
        return true;
    }
    if (!evaluation_part_add(sum->into, bytes, size, error)) {
        return false;
    }
    sum->scores[sum->count++] = *score;
    return true;
}

static int by_score(const void *a, const void *b)
{
    const struct worker_score *left = a, *right = b;
    return worst_first(left->score, left->worker, right->score, right->worker);
}

static int by_loss(const void *a, const void *b)
{
    const struct worker_score *left = a, *right = b;
    return worst_first(-left->score, left->worker, -right->score, right->worker);
}

void validation_sum_end(struct validation_sum *sum, enum metric metric, struct validators *validators)
{
    evaluation_measure(sum->into);
    qsort(sum->scores, (size_t)sum->count, sizeof *sum->scores, metric_rises(metric) ? by_score : by_loss);
    validators->scores = sum->scores;
    validators->count = sum->count;
    validators->worst = sum->count > 1 ? (sum->count + 9) / 10 : 0;
    sum->into = NULL;
}
