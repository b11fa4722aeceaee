/* Evaluation: each thread takes chunks of images through the whole network on its own, without barriers. */
#include <assert.h>
#include <string.h>

#include "base/profile.h"
#include "worker/cpu/engine/internal.h"

struct evaluation_task {
    struct cpu_engine *engine;
    const float *parameters;
    const struct examples *examples;
    int first, count;
    float *logits; /* [count, classes] */
};

/* The next `count` examples from `first` on, counted in the whole set. */
static const float *evaluate_chunk(const struct evaluation_task *evaluation, struct engine_thread *member, int first,
                                   int count, int *pitch)
{
    const struct network *network = &evaluation->engine->network;
    struct workspace *workspace = &member->evaluation;
    const struct examples examples = examples_part(evaluation->examples, first, count);
    const struct pass pass = {.network = network,
                              .parameters = evaluation->parameters,
                              .index = &member->evaluation_index,
                              .count = count,
                              .workspace = workspace};
    for (int i = 0; i < member->evaluation_index.block_count; i++) {
        network_index_build(network, &member->evaluation_index, i, &member->index_scratch, &examples, NULL, count);
    }
    for (int l = 0; l < network->layers; l++) {
        bool last = l + 1 == network->layers;
        struct matrix *out = last ? &workspace->logits : &workspace->activations[l];
        bool partial = last && network->narrow && l > 0;
        int strips = network->strips[partial ? l - 1 : l].count;
        for (int i = 0; i < strips; i++) {
            if (l == 0) {
                pass_first(&pass, out, i, 1);
            } else if (partial) {
                pass_partial(&pass, &workspace->activations[l - 1], workspace->partials[0], i);
            } else {
                pass_forward(&pass, l, &workspace->activations[l - 1], out, i);
            }
        }
        if (partial) {
            pass_sum(&pass, workspace->partials[0], member->scratch.logits);
            *pitch = KERNEL_NARROW;
            return member->scratch.logits;
        }
    }
    *pitch = workspace->logits.pitch;
    return workspace->logits.values;
}

static void evaluate_thread(void *context, int thread)
{
    PROFILE("evaluate");
    const struct evaluation_task *evaluation = context;
    struct cpu_engine *engine = evaluation->engine;
    int classes = engine->model->widths[engine->network.layers];
    int chunks = chunk_count(evaluation->count);
    for (int chunk = thread; chunk < chunks; chunk += engine->threads) {
        int first = chunk_first(evaluation->count, chunk);
        int count = chunk_first(evaluation->count, chunk + 1) - first;
        int pitch;
        const float *logits =
            evaluate_chunk(evaluation, &engine->members[thread], evaluation->first + first, count, &pitch);
        for (int i = 0; i < count; i++) {
            memcpy(evaluation->logits + (size_t)(first + i) * (size_t)classes, logits + (size_t)i * (size_t)pitch,
                   (size_t)classes * sizeof *logits);
        }
    }
}

bool cpu_forward(struct engine *base, bool averaged, const struct examples *examples, int first, int count,
                 float *logits, struct error *error)
{
    (void)error;
    struct cpu_engine *engine = (struct cpu_engine *)base;
    struct evaluation_task evaluation = {.engine = engine,
                                         .examples = examples,
                                         .first = first,
                                         .count = count,
                                         .logits = logits,
                                         .parameters =
                                             engine->store.vectors[averaged ? STORE_AVERAGES : STORE_PARAMETERS]};
    assert(evaluation.parameters && examples_are_rows(examples) == examples_are_rows(&engine->network.like));
    if (count > 0) {
        pool_run(engine->pool, evaluate_thread, &evaluation);
    }
    return true;
}
