/*
 * Asynchronous rounds (train.buffer_size): differences are gathered as they arrive, and every size-th makes a step.
 *
 * Only their mean is kept, so that memory does not grow with the buffer, and no sum of finite differences overflows.
 * They are weighted by examples, or equally; stale ones count less (outer_freshness) without the others counting more:
 * what is missing makes the step smaller, as in FedBuff.
 *
 * The mean is updated in the pass through the stripes that answers the push, with denormals flushed to zero as in the
 * optimizer: a push is in the mean before the next one reaches that stripe.
 */
#include "ps/shard/internal.h"
#include "ps/store/rounds.h"

void buffer_forget(struct buffer *buffer)
{
    buffer->count = 0;
    buffer->weight = 0;
}

struct buffer_turn buffer_take(struct shard *shard, const struct stage *stage)
{
    struct buffer *buffer = &shard->buffer;
    if (buffer->size == 0) {
        return (struct buffer_turn){.makes_step = true};
    }
    const double own = shard->weighs_examples ? stage->examples : 1, all = buffer->weight + own;
    const double scale =
        outer_freshness(stage->staleness) * (double)outer_clip(stage->squares, shard->rounds.clip_difference_norm);
    const struct buffer_turn turn = {
        .gathers = true,
        .begins = buffer->count == 0,
        .makes_step = buffer->count + 1 >= buffer->size,
        .keep = all > 0 ? (float)(buffer->weight / all) : 0,
        .add = all > 0 ? (float)(own / all * scale) : 0, /* all without examples: nothing to learn from */
    };
    buffer->count++;
    buffer->weight = all;
    if (turn.makes_step) {
        buffer_forget(buffer);
    }
    return turn;
}

static void add(float *restrict mean, const float *restrict values, float keep, float share, size_t count)
{
    for (size_t k = 0; k < count; k++) {
        mean[k] = keep * mean[k] + share * values[k];
    }
}

static void begin(float *restrict mean, const float *restrict values, float share, size_t count)
{
    for (size_t k = 0; k < count; k++) {
        mean[k] = 0.0f + share * values[k]; /* never -0: some blocks of zeros are not sent */
    }
}

static void keep_only(float *mean, float keep, size_t count)
{
    for (size_t k = 0; k < count; k++) {
        mean[k] = keep * mean[k] + 0.0f;
    }
}

static void gather_block(struct shard *shard, const struct buffer_turn *turn, const struct stage *stage, size_t i)
{
    struct buffer *buffer = &shard->buffer;
    const struct shard_block *block = &shard->blocks[i];
    const bool has = !turn->begins && buffer->present[i], comes = stage->present[i];
    const size_t extent = block_extent(block);
    float *mean = buffer->mean + block->local;
    if (has && comes) {
        add(mean, stage->values + block->local, turn->keep, turn->add, extent);
    } else if (comes) {
        begin(mean, stage->values + block->local, turn->add, extent);
    } else if (has) {
        keep_only(mean, turn->keep, extent);
    }
    buffer->present[i] = has || comes;
}

void buffer_gather(struct shard *shard, const struct buffer_turn *turn, const struct stage *stage,
                   const struct stripe *stripe)
{
    for (size_t i = stripe->first_block; turn->gathers && i < stripe->end_block; i++) {
        gather_block(shard, turn, stage, i);
    }
}
