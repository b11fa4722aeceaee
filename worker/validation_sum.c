/* The sum is rebuilt from bytes: there is no other way to take back what was added before a connection broke. */
#include "worker/validation_sum.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "ps/status.h"
#include "worker/evaluation_part.h"

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
