/*
 * Batches depend only on seed, task and step, wherever their examples lie. Those that stream come from the test's own
 * source: example i has label i, and its pixels say so too.
 */
#include "tests/check.h"
#include "worker/data/batch_source.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIDE = 3, PIXELS = SIDE * SIDE, BATCH = 10, MOST = 2000, OF_BLOCK = 37 };

struct fake_source {
    struct example_source source;
    int broken_from; /* reads of this example and of later ones fail */
    int delay_us;
};

static bool fake_open(const struct example_source *source, struct example_reader **reader, struct error *error)
{
    *reader = calloc(1, sizeof **reader);
    assert_non_null(*reader);
    (*reader)->source = source;
    return true;
}

static bool fake_read(struct example_reader *reader, const struct stream_block *block, uint32_t first,
                      const struct examples *into, struct error *error)
{
    const struct fake_source *source = (const struct fake_source *)reader->source;
    usleep((useconds_t)source->delay_us);
    for (int i = 0; i < into->count; i++) {
        int example = (int)(block->offset + block->skip + first) + i;
        if (example >= source->broken_from) {
            return error_set(error, "example %d is gone", example);
        }
        memset(into->images + (size_t)i * PIXELS, example % 251, PIXELS);
        into->labels[i] = example;
    }
    return true;
}

static void fake_close(struct example_reader *reader)
{
    free(reader);
}

static void fake_destroy(struct example_source *source)
{
    free(source);
}

static const struct example_source_table fake_table = {
    .open = fake_open, .read = fake_read, .close = fake_close, .destroy = fake_destroy};

struct fixture {
    struct streaming *streaming;
    uint8_t images[BATCH * PIXELS];
    int32_t labels[BATCH];
    int count;
    struct error error;
};

static struct fixture make(int examples, int shuffle_buffer, int broken_from, int delay_us)
{
    const struct streaming_options options = {.seed = 5, .batch_size = BATCH, .shuffle_buffer = shuffle_buffer};
    struct fixture fixture = {.streaming = NULL};
    struct fake_source *source = calloc(1, sizeof *source);
    struct blocks blocks = {.items = NULL};
    assert_non_null(source);
    *source = (struct fake_source){
        .source = {.table = &fake_table, .like = {.height = SIDE, .width = SIDE, .classes = MOST}, .files = 1},
        .broken_from = broken_from,
        .delay_us = delay_us};
    for (int i = 0; i < examples; i += OF_BLOCK) {
        assert_true(blocks_add(&blocks, 0, (uint64_t)i, (uint32_t)(examples - i < OF_BLOCK ? examples - i : OF_BLOCK)));
    }
    fixture.streaming = streaming_create(&options, &source->source, &blocks);
    return fixture;
}

static bool try_to_draw(struct fixture *fixture, uint32_t task, int64_t step)
{
    struct examples batch = {.height = SIDE, .width = SIDE, .images = fixture->images, .labels = fixture->labels};
    const bool done = streaming_draw(fixture->streaming, task, step, &batch, &fixture->error);
    fixture->count = batch.count;
    return done;
}

static void draw(struct fixture *fixture, uint32_t task, int64_t step)
{
    assert_true(try_to_draw(fixture, task, step));
    for (int i = 0; i < fixture->count; i++) {
        for (int k = 0; k < PIXELS; k++) {
            assert_int_equal(fixture->images[i * PIXELS + k], fixture->labels[i] % 251);
        }
    }
}

TEST(every_example_once_an_epoch)
{
    static const int cases[][2] = {{1, 50},    {9, 50},     {10, 1},     {500, 100},
                                   {501, 100}, {1003, 250}, {1003, 255}, {777, 5000}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int examples = cases[c][0];
        int64_t batches = (examples + BATCH - 1) / BATCH;
        struct fixture fixture = make(examples, cases[c][1], MOST, 0);
        int32_t first[2] = {0}; /* labels of the second epoch start differently */
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            bool seen[MOST] = {false};
            int total = 0;
            for (int64_t b = 0; b < batches; b++) {
                draw(&fixture, 0, epoch * batches + b);
                assert_int_equal(fixture.count, b + 1 < batches ? BATCH : examples - (int)b * BATCH);
                for (int i = 0; i < fixture.count; i++) {
                    assert_in_range(fixture.labels[i], 0, examples - 1);
                    assert_false(seen[fixture.labels[i]]);
                    seen[fixture.labels[i]] = true;
                }
                total += fixture.count;
                first[epoch % 2] =
                    b == 0 ? fixture.labels[0] * 1000 + fixture.labels[fixture.count - 1] : first[epoch % 2];
            }
            assert_int_equal(total, examples);
            assert_true(examples < 100 || epoch == 0 || first[0] != first[1]);
        }
        streaming_destroy(fixture.streaming);
    }
}

/* What a resumed run does, and a worker that joins late; also backwards, and the same step again. */
TEST(a_jump_gives_what_going_there_gives)
{
    enum { STEPS = 260 };
    static int32_t labels[STEPS][BATCH];
    static const int64_t jumps[] = {0, 259, 3, 3, 130, 131, 99, 100, 101, 50, 258, 7};
    struct fixture whole = make(1003, 250, MOST, 0);
    for (int64_t step = 0; step < STEPS; step++) {
        draw(&whole, 1, step);
        memcpy(labels[step], whole.labels, sizeof labels[step]);
    }
    streaming_destroy(whole.streaming);
    struct fixture jumping = make(1003, 250, MOST, 0);
    for (size_t i = 0; i < sizeof jumps / sizeof jumps[0]; i++) {
        draw(&jumping, 1, jumps[i]);
        assert_memory_equal(jumping.labels, labels[jumps[i]], (size_t)jumping.count * sizeof(int32_t));
        struct fixture resumed = make(1003, 250, MOST, 0);
        draw(&resumed, 1, jumps[i]);
        assert_memory_equal(resumed.labels, labels[jumps[i]], (size_t)resumed.count * sizeof(int32_t));
        streaming_destroy(resumed.streaming);
    }
    streaming_destroy(jumping.streaming);
}

/* A window's examples come from all over the set, and a batch's from all over its window. */
TEST(mixes_what_lies_together)
{
    struct fixture fixture = make(2000, 500, MOST, 0);
    int blocks[2000 / OF_BLOCK + 1] = {0}, different = 0;
    double sum = 0;
    for (int64_t step = 0; step < 50; step++) {
        draw(&fixture, 0, step);
        for (int i = 0; i < BATCH; i++) {
            different += blocks[fixture.labels[i] / OF_BLOCK]++ == 0;
            sum += fixture.labels[i];
        }
    }
    assert_in_range(different, 500 / OF_BLOCK, 500 / OF_BLOCK + 2);
    assert_true(sum / 500 > 600 && sum / 500 < 1400); /* far from what the first or last 500 have: 250 or 1750 */
    int neighbours = 0, last = -2;
    for (int64_t step = 50; step < 100; step++) {
        draw(&fixture, 0, step);
        for (int i = 0; i < BATCH; i++) {
            neighbours += fixture.labels[i] == last + 1;
            last = fixture.labels[i];
        }
    }
    assert_true(neighbours < 10);
    streaming_destroy(fixture.streaming);
}

TEST(tasks_and_shares_differ)
{
    struct fixture fixture = make(1000, 200, MOST, 0);
    draw(&fixture, 0, 0);
    int32_t labels[BATCH];
    memcpy(labels, fixture.labels, sizeof labels);
    draw(&fixture, 1, 0);
    assert_memory_not_equal(labels, fixture.labels, sizeof labels);
    draw(&fixture, 0, 0); /* the first lane is where it was */
    assert_memory_equal(labels, fixture.labels, sizeof labels);
    streaming_destroy(fixture.streaming);

    fixture = make(1000, 200, MOST, 0);
    streaming_take_share(fixture.streaming, 333, 334);
    bool seen[1000] = {false};
    for (int64_t step = 0; step < 34; step++) {
        draw(&fixture, 2, step);
        for (int i = 0; i < fixture.count; i++) {
            assert_in_range(fixture.labels[i], 333, 666);
            assert_false(seen[fixture.labels[i]]);
            seen[fixture.labels[i]] = true;
        }
    }
    streaming_destroy(fixture.streaming);
}

TEST(a_failure_is_for_good)
{
    struct fixture fixture = make(1000, 100, 900, 0);
    int64_t step = 0;
    while (step < 100 && try_to_draw(&fixture, 0, step)) {
        step++;
    }
    assert_true(step < 100);
    assert_non_null(strstr(fixture.error.text, "is gone"));
    assert_false(try_to_draw(&fixture, 0, 0));
    streaming_destroy(fixture.streaming);
}

/* As for two connections of one worker, one of which is about to be cut. */
static void *draw_many(void *context)
{
    struct fixture *fixture = context;
    for (int64_t step = 0; step < 300; step++) {
        if (!try_to_draw(fixture, 0, step * 7 % 200)) {
            return context;
        }
    }
    return NULL;
}

TEST(two_may_draw_from_one_lane)
{
    struct fixture fixture = make(2000, 100, MOST, 50), other = fixture;
    pthread_t thread;
    void *failed;
    assert_int_equal(pthread_create(&thread, NULL, draw_many, &other), 0);
    assert_null(draw_many(&fixture));
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    streaming_destroy(fixture.streaming);
}

static struct sampler sampler_of(uint32_t task, int examples)
{
    return (struct sampler){.seed = 7, .task = task, .examples = (uint32_t)examples, .batch_size = BATCH};
}

TEST(a_source_of_what_is_in_memory)
{
    const struct examples examples = {.count = 3 * BATCH - 1};
    const struct sampler first = sampler_of(3, examples.count);
    struct batch_source source;
    struct batch batch;
    struct error error;
    assert_true(batch_source_create(&source, &examples, NULL, &first, &error));
    for (uint32_t task = 3; task < 5; task++) {
        for (int64_t step = 0; step < 6; step++) {
            int32_t wanted[BATCH];
            const struct sampler sampler = sampler_of(task, examples.count);
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

TEST(a_source_of_what_streams)
{
    enum { EXAMPLES = 203, BROKEN = 150 };
    const struct sampler sampler = sampler_of(0, EXAMPLES);
    struct fixture fixture = make(EXAMPLES, 50, MOST, 0), broken = make(EXAMPLES, EXAMPLES, BROKEN, 0);
    struct batch_source source;
    struct batch batch;
    struct error error;
    assert_true(batch_source_create(&source, NULL, fixture.streaming, &sampler, &error));
    for (int64_t step = 18; step < 22; step++) { /* the last batch of an epoch is short */
        draw(&fixture, 2, step);
        assert_true(batch_source_draw(&source, 2, step, &batch, &error));
        assert_int_equal(batch.count, fixture.count);
        assert_int_equal(batch.task, 2);
        assert_int_equal(batch.step, step);
        assert_memory_equal(batch.examples->labels, fixture.labels, (size_t)batch.count * sizeof *fixture.labels);
        assert_memory_equal(batch.examples->images, fixture.images, (size_t)batch.count * PIXELS);
        for (int i = 0; i < batch.count; i++) {
            assert_int_equal(batch.indexes[i], i);
        }
    }
    batch_source_destroy(&source);
    streaming_destroy(fixture.streaming);
    assert_true(batch_source_create(&source, NULL, broken.streaming, &sampler, &error));
    assert_false(batch_source_draw(&source, 0, 0, &batch, &error));
    assert_non_null(strstr(error.text, " is gone"));
    batch_source_destroy(&source);
    streaming_destroy(broken.streaming);
}

int main(void)
{
    return check_run(NULL, NULL);
}
