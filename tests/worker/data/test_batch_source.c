/* Batches depend only on seed, task and step, wherever their examples lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "worker/data/batch_source.h"

enum { EXAMPLES = 10, SIZE = 4 };

/* A stream whose batches have a size and a first label of the test's choice, or can't be read. */
static struct {
    int count;
    bool fails_to_create, fails_to_draw;
    uint32_t task;
    int64_t step;
} stream;

bool __wrap_streaming_create_batch(const struct streaming *streaming, struct examples *batch, struct error *error);
bool __wrap_streaming_draw(struct streaming *streaming, uint32_t task, int64_t step, struct examples *batch,
                           struct error *error);

bool __wrap_streaming_create_batch(const struct streaming *streaming, struct examples *batch, struct error *error)
{
    (void)streaming;
    memset(batch, 0, sizeof *batch);
    return !stream.fails_to_create || error_set(error, "no memory");
}

bool __wrap_streaming_draw(struct streaming *streaming, uint32_t task, int64_t step, struct examples *batch,
                           struct error *error)
{
    (void)streaming;
    stream.task = task;
    stream.step = step;
    batch->count = stream.count;
    return !stream.fails_to_draw || error_set(error, "a dead disk");
}

static struct sampler sampler_of(uint32_t task)
{
    return (struct sampler){.seed = 7, .task = task, .examples = EXAMPLES, .batch_size = SIZE};
}

static void from_memory(void **state)
{
    const struct examples examples = {.count = EXAMPLES};
    const struct sampler first = sampler_of(3);
    struct batch_source source;
    struct batch batch;
    struct error error;
    (void)state;
    assert_true(batch_source_create(&source, &examples, NULL, &first, &error));
    for (uint32_t task = 3; task < 5; task++) {
        for (int64_t step = 0; step < 6; step++) {
            int32_t wanted[SIZE];
            const struct sampler sampler = sampler_of(task);
            const int count = sampler_draw(&sampler, step, wanted);
            assert_true(batch_source_draw(&source, task, step, &batch, &error));
            assert_ptr_equal(batch.examples, &examples);
            assert_int_equal(batch.count, count);
            assert_int_equal(batch.task, task);
            assert_int_equal(batch.step, step);
            assert_memory_equal(batch.indexes, wanted, (size_t)count * sizeof *wanted);
        }
    }
    batch_source_destroy(&source);
    batch_source_destroy(&source);
}

static void from_a_stream(void **state)
{
    const struct sampler sampler = sampler_of(0);
    char anything;
    struct streaming *const streaming = (struct streaming *)(void *)&anything;
    struct batch_source source;
    struct batch batch;
    struct error error;
    (void)state;
    memset(&stream, 0, sizeof stream);
    assert_true(batch_source_create(&source, NULL, streaming, &sampler, &error));
    for (stream.count = 1; stream.count <= SIZE; stream.count++) {
        assert_true(batch_source_draw(&source, 2, 5 + stream.count, &batch, &error));
        assert_int_equal(stream.task, 2);
        assert_int_equal(stream.step, 5 + stream.count);
        assert_ptr_equal(batch.examples, &source.streamed);
        assert_int_equal(batch.count, stream.count);
        for (int i = 0; i < batch.count; i++) {
            assert_int_equal(batch.indexes[i], i);
        }
    }
    stream.fails_to_draw = true;
    assert_false(batch_source_draw(&source, 2, 5, &batch, &error));
    assert_string_equal(error.text, "a dead disk");
    batch_source_destroy(&source);
    stream.fails_to_create = true;
    assert_false(batch_source_create(&source, NULL, streaming, &sampler, &error));
    batch_source_destroy(&source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_memory),
        cmocka_unit_test(from_a_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
