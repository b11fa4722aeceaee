/* An engine that has parameters and computes nothing. */
#ifndef TESTS_WORKER_REMOTE_EXCHANGE_FAKE_ENGINE_H
#define TESTS_WORKER_REMOTE_EXCHANGE_FAKE_ENGINE_H

#include <string.h>

#include "worker/engine.h"

struct fake_engine {
    struct engine engine;
    float *parameters;
    int writes;
};

static inline bool fake_engine_write(struct engine *base, enum store_vector vector, size_t first, size_t count,
                                     const float *values, struct error *error)
{
    struct fake_engine *engine = (struct fake_engine *)base;
    engine->writes++;
    memcpy(engine->parameters + first, values, count * sizeof *values);
    return true;
}

static inline float *fake_engine_parameters(struct engine *base)
{
    return ((struct fake_engine *)base)->parameters;
}

/* One whose parameters are in memory, like the CPU's, and one that must be handed them, like a GPU's. */
static const struct engine_table fake_engine_near = {
    .name = "near", .write = fake_engine_write, .parameters = fake_engine_parameters};
static const struct engine_table fake_engine_far = {.name = "far", .write = fake_engine_write};

#endif
