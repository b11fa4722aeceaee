/* The counts of another worker's validation: refused, and nothing is added; or added, and written again unchanged. */
#include "tests/fuzz/fuzz.h"

#include "worker/evaluation/validation.h"

FUZZ_MEMORY(64, 128 << 10)

enum { OUTPUTS = 3, TARGETS = 2, ROOM = 1 << 20 };

static void add(const struct evaluation_options *options, const uint8_t *bytes, size_t size)
{
    struct evaluation sum, again;
    struct error error;
    evaluation_create(&sum, options);
    evaluation_create(&again, options);
    evaluation_clear(&sum);
    evaluation_clear(&again);
    uint8_t *written = malloc(evaluation_part_room(&sum));
    assert(written && evaluation_part_room(&sum) < ROOM);
    const bool is_good = evaluation_part_add(&sum, bytes, size, &error);
    assert(sum.is_merged == is_good && (is_good || (sum.images == 0 && sum.correct == 0 && sum.loss_sum == 0)));
    const size_t count = evaluation_part_write(&sum, written);
    assert(count <= evaluation_part_room(&sum) && evaluation_part_add(&again, written, count, &error));
    evaluation_measure(&sum);
    assert(again.images == sum.images && again.correct == sum.correct);
    free(written);
    evaluation_destroy(&sum);
    evaluation_destroy(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const struct config_train classes = {.loss = LOSS_SOFTMAX}, yes = {.loss = LOSS_SIGMOID},
                                     numbers = {.loss = LOSS_MSE};
    add(&(struct evaluation_options){.train = &classes, .outputs = OUTPUTS}, bytes, size);
    add(&(struct evaluation_options){.train = &yes, .outputs = 1, .targets = 1, .bins = true}, bytes, size);
    add(&(struct evaluation_options){.train = &numbers, .outputs = TARGETS, .targets = TARGETS}, bytes, size);
    return 0;
}
