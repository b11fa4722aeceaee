/* Prepares batches for the team: draws their images, and indexes their nonzero pixels. */
#include <stdlib.h>
#include <string.h>

#include "base/profile.h"
#include "worker/cpu/engine/internal.h"

/* Pairing similar images pays off only with at least this many strips of columns. */
static bool is_paired(const struct cpu_engine *engine)
{
    enum { FROM_STRIPS = 4, FROM_PIXELS = 64 };
    return !examples_are_rows(&engine->network.like) && engine->indexes[0].row_stride != 0 &&
           engine->network.strips[0].count >= FROM_STRIPS && engine->model->widths[0] >= FROM_PIXELS;
}

/* 16 times 8 pixels of the middle three quarters: the rest is mostly empty. */
static void take_signature(const uint8_t *image, int pixels, uint64_t bits[2])
{
    enum { PIECES = 16 };
    const uint64_t low = 0x7F7F7F7F7F7F7F7F;
    bits[0] = bits[1] = 0;
    for (int i = 0; i < PIECES; i++) {
        uint64_t piece;
        memcpy(&piece, image + pixels / 8 + i * (pixels / 4 * 3) / PIECES, sizeof piece);
        uint64_t zero = ~(((piece & low) + low) | piece | low); /* the highest bit of each byte that is zero */
        bits[i / 8] |= zero >> i % 8;
    }
}

static void take_signatures(void *context, int thread)
{
    struct cpu_engine *engine = context;
    int pixels = engine->model->widths[0], end = share_first(engine, engine->train->count, thread + 1);
    for (int i = share_first(engine, engine->train->count, thread); i < end; i++) {
        take_signature(engine->train->images + (size_t)i * (size_t)pixels, pixels, engine->bits[i]);
    }
}

bool cpu_take_signatures(struct cpu_engine *engine, struct error *error)
{
    if (!engine->train || engine->draws[0].source.streaming || !is_paired(engine)) {
        return true;
    }
    engine->bits = calloc((size_t)engine->train->count, sizeof *engine->bits);
    if (!engine->bits) {
        return error_set(error, "out of memory for 16 bytes for each of %d images", engine->train->count);
    }
    pool_run(engine->pool, take_signatures, engine);
    return true;
}

/* For image `index` of a draw. */
static void signature_of(const struct cpu_engine *engine, const struct sampled_batch *draw, int32_t index,
                         uint64_t bits[2])
{
    size_t pixels = (size_t)engine->model->widths[0];
    if (engine->bits && draw->examples->images == engine->train->images) {
        memcpy(bits, engine->bits[index], sizeof engine->bits[index]);
    } else {
        take_signature(draw->examples->images + (size_t)index * pixels, (int)pixels, bits);
    }
}

/* Rows stay as they are drawn: nothing would be gained by another order. */
static void take_as_drawn(struct cpu_engine *engine, struct sampled_batch *draw, const int32_t *indexes, int count)
{
    const struct examples *examples = draw->examples;
    size_t targets = (size_t)engine->targets;
    for (int i = 0; i < count; i++) {
        size_t from = (size_t)indexes[i];
        draw->places[i] = i;
        draw->indexes[i] = indexes[i];
        if (targets > 0) {
            memcpy(draw->wanted + (size_t)i * (size_t)engine->wanted_stride, examples->target_values + from * targets,
                   targets * sizeof(float));
        } else {
            draw->labels[i] = examples->labels[from];
        }
        if (examples->weights) {
            draw->weights[i] = examples->weights[from];
        }
    }
    draw->is_weighted = examples->weights;
}

/* Sorts by label, with similar ones side by side. */
static void take_in_order(struct cpu_engine *engine, struct sampled_batch *draw, const int32_t *indexes, int count)
{
    const int32_t *labels = draw->examples->labels;
    int classes = engine->model->widths[engine->network.layers];
    int32_t *first = engine->first_of_class;
    memset(first, 0, (size_t)(classes + 1) * sizeof *first);
    for (int i = 0; i < count; i++) {
        first[labels[indexes[i]] + 1]++;
    }
    for (int i = 0; i < classes; i++) {
        first[i + 1] += first[i];
    }
    bool paired = is_paired(engine);
    for (int i = 0; i < count; i++) {
        struct signature *signature = &engine->signatures[first[labels[indexes[i]]]++];
        signature->place = i;
        if (paired) {
            signature_of(engine, draw, indexes[i], signature->bits);
        }
    }
    if (paired) {
        engine->network.kernels->pair(count, engine->signatures);
    }
    for (int i = 0; i < count; i++) {
        int32_t place = engine->signatures[i].place;
        draw->places[i] = place;
        draw->indexes[i] = indexes[place];
        draw->labels[i] = labels[indexes[place]];
    }
}

void cpu_draw_take(struct cpu_engine *engine, struct sampled_batch *draw, const struct batch *batch)
{
    draw->examples = batch->examples;
    draw->dropout = (struct dropout_batch){batch->task, batch->step};
    if (examples_are_rows(batch->examples)) {
        take_as_drawn(engine, draw, batch->indexes, batch->count);
    } else {
        take_in_order(engine, draw, batch->indexes, batch->count);
    }
    draw->count = batch->count;
    atomic_store_explicit(&draw->next_block, 0, memory_order_relaxed);
}

/*
 * If examples can't be read any more, the first one of earlier ones replaces them: the team finishes its run, which
 * then fails as a whole.
 */
void cpu_draw_batch(const struct engine_run *run, int64_t number)
{
    struct cpu_engine *engine = run->engine;
    struct sampled_batch *draw = &engine->draws[number % DRAWS];
    struct batch_source *source = &draw->source;
    const uint32_t task = source->sampler.task + (uint32_t)(number % micro_batches(engine));
    const int64_t step = run->first_step + number / micro_batches(engine);
    struct batch batch = {
        .examples = &source->streamed, .indexes = source->indexes, .count = 1, .task = task, .step = step};
    if (!engine->starved && !batch_source_draw(source, task, step, &batch, &engine->starved_error)) {
        engine->starved = true; /* written only if so: other threads read what lies beside it */
    }
    batch.count = engine->starved ? 1 : batch.count;
    cpu_draw_take(engine, draw, &batch);
}

static void fetch(const void *memory, size_t bytes)
{
    enum { LINE = 64 };
    for (size_t at = 0; at < bytes; at += LINE) {
        __builtin_prefetch((const char *)memory + at, 0, 2);
    }
}

/* Into the L2 cache, because L1 has no room; by prefetches, which do not stall what follows. */
void cpu_fetch_images(const struct engine_run *run, int64_t number, int part, int parts)
{
    if (number >= run->batches) {
        return;
    }
    const struct sampled_batch *draw = &run->engine->draws[number % DRAWS];
    const struct examples *examples = draw->examples;
    size_t pixels = (size_t)run->engine->model->widths[0];
    for (int i = (int)((int64_t)draw->count * part / parts); i < (int)((int64_t)draw->count * (part + 1) / parts);
         i++) {
        size_t index = (size_t)draw->indexes[i];
        if (examples_are_rows(examples)) {
            fetch(examples->values + index * (size_t)examples->numbers, (size_t)examples->numbers * sizeof(float));
            fetch(examples->places + index * (size_t)examples->codes, (size_t)examples->codes * sizeof(int32_t));
        } else {
            fetch(examples->images + index * pixels, pixels);
        }
    }
}

void cpu_index_batch(const struct engine_run *run, int64_t number, int thread)
{
    PROFILE("index batch");
    struct cpu_engine *engine = run->engine;
    struct batch_index *index = &engine->indexes[number % INDEXES];
    struct sampled_batch *draw = &engine->draws[number % DRAWS];
    for (int block;
         (block = atomic_fetch_add_explicit(&draw->next_block, 1, memory_order_relaxed)) < index->block_count;) {
        network_index_build(&engine->network, index, block, &engine->members[thread].index_scratch, draw->examples,
                            draw->indexes, draw->count);
    }
}
