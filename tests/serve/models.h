/* Versions of models for tests, without files: images of 4 pixels, and a table; an engine that adds up inputs. */
#ifndef TESTS_SERVE_MODELS_H
#define TESTS_SERVE_MODELS_H

#include <assert.h>
#include <math.h>
#include <string.h>

#include "serve/model.h"
#include "worker/data/table/schema.h"

static int batches[64], batch_count;    /* rows of each forward pass... */
static const uint8_t *batch_images[64]; /* ...and where they were, if they were images */

/* A row's outputs are the sum of its inputs, then 0. */
static bool adding_forward(struct engine *engine, bool averaged, const struct examples *examples, int first, int count,
                           float *logits, struct error *error)
{
    if (batch_count < 64) {
        batch_images[batch_count] = examples->images;
        batches[batch_count++] = count;
    }
    for (int i = 0; i < count; i++) {
        const size_t row = (size_t)(first + i);
        float sum = 0;
        for (int j = 0; examples->images && j < 4; j++) {
            sum += examples->images[row * 4 + (size_t)j];
        }
        for (int j = 0; j < examples->numbers; j++) {
            sum += examples->values[row * (size_t)examples->numbers + (size_t)j];
        }
        logits[2 * i] = sum;
        logits[2 * i + 1] = 0;
    }
    return true;
}

static const struct engine_table adding_table = {.name = "adding", .forward = adding_forward};

/* Held once by the test, so that it is never freed. */
static inline void make_version(struct version *version, struct engine **engines, struct engine *engine, int workers)
{
    static uint64_t ids;
    *engine = (struct engine){.table = &adding_table};
    *version = (struct version){.id = ++ids, .number = 7, .workers = workers, .engines = engines};
    atomic_init(&version->holders, 1);
    version->trained.threshold = NAN;
    version->trained.model.layer_count = 1;
    version->trained.model.widths[0] = 4;
    version->trained.model.widths[1] = 2;
    for (int i = 0; i < workers; i++) {
        engines[i] = engine;
    }
}

/* Two numbers and a category, of two classes. */
static inline void make_schema(struct schema *schema)
{
    struct error error;
    *schema = (struct schema){.task = TASK_CLASS};
    const char *const numbers[] = {"age", "h\"ight"};
    for (int i = 0; i < 2; i++) {
        struct schema_column *column = schema_add(schema, numbers[i], SCHEMA_FEATURE, SCHEMA_NUMBER);
        column->may_miss = i == 0;
        column->scale = 1;
    }
    struct schema_column *city = schema_add(schema, "city", SCHEMA_FEATURE, SCHEMA_CATEGORY);
    dictionary_add(&city->categories, "Bonn", 4);
    dictionary_add(&city->categories, "Ulm", 3);
    struct schema_column *target = schema_add(schema, "kind", SCHEMA_TARGET, SCHEMA_CATEGORY);
    dictionary_add(&target->categories, "no", 2);
    dictionary_add(&target->categories, "yes", 3);
    schema->classes = 2;
    const bool done = schema_finish(schema, &error);
    assert(done);
    (void)done;
}

#endif
