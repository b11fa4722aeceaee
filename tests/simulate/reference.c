/*
 * A synchronous step is made once, of the set of gradients that the first ps makes it of; all others must use the same.
 * Steps of asynchronous rounds are made of what each ps applies, in its order, on the part of the model that it has.
 */
#include "tests/simulate/reference.h"

#include <math.h>
#include <string.h>

#include "base/random/sampler.h"
#include "ps/shard/internal.h"
#include "tests/simulate/engine.h"
#include "tests/simulate/records.h"
#include "tests/simulate/setup.h"
#include "tests/simulate/world.h"
#include "tests/simulate/wrap.h"

struct lineage lineage;

static struct reference {
    uint32_t generation;
    int64_t first_step, step;
    float parameters[RECORDS_MAX_STEPS][SETUP_FLOATS]; /* at each step */
    bool sets[RECORDS_MAX_STEPS][WORKERS_MAX_SIMULATED];
} reference;

void reference_begin(uint32_t generation, int64_t step, const struct saved *saved, uint64_t preprocessing)
{
    lineage.generation = generation;
    lineage.first_step = lineage.end_step = step;
    lineage.base = saved ? saved->sum : 0;
    lineage.mixed = false;
    lineage.preprocessing = preprocessing;
    reference.generation = generation;
    reference.first_step = reference.step = step;
    if (saved) {
        memcpy(reference.parameters[step], saved->parameters, sizeof reference.parameters[0]);
    } else {
        memset(reference.parameters[0], 0, sizeof reference.parameters[0]);
    }
}

/* --- Learning rates --- */

WRAP(void, schedule_prepare, struct schedule *schedule, struct update *update, int64_t global_step)
{
    __real_schedule_prepare(schedule, update, global_step);
    const double rate = (double)update->learning_rate;
    const struct ps_record *record = records_here();
    if (!record->restored || record->generation != lineage.generation || global_step >= RECORDS_MAX_STEPS) {
        return;
    }
    setup.diverged = setup.diverged || rate >= SETUP_BAD_RATE;
    if (global_step >= lineage.end_step) {
        for (; lineage.end_step <= global_step; lineage.end_step++) {
            lineage.rate[lineage.end_step] = lineage.end_step < global_step ? NAN : rate; /* NAN: not seen yet */
        }
    } else if (isnan(lineage.rate[global_step])) {
        lineage.rate[global_step] = rate;
    } else if (rate < lineage.rate[global_step] || rate > lineage.rate[global_step]) {
        say("step %lld is made at learning rate %g, and was made at %g elsewhere", (long long)global_step, rate,
            lineage.rate[global_step]);
        lineage.mixed = true;
    }
}

/* --- Asynchronous rounds --- */

static void make_step(struct ps_record *record, const struct shard_block *block)
{
    for (size_t at = block->first; at < block->first + block_extent(block); at++) {
        reference.parameters[record->step + 1][at] = reference.parameters[record->step][at] - record->mean[at];
    }
}

/* Adds one more difference, float by float, to the mean of those gathered; the last of them makes a step of it. */
static void gather(struct ps_record *record, const struct shard *shard, const struct stage *stage, int worker)
{
    const double own = setup_examples(worker), all = record->weight + own;
    const float keep = (float)(record->weight / all), add = (float)(own / all / sqrt(1.0 + stage->staleness));
    const bool is_last = record->gathered + 1 == setup.buffer;
    for (size_t i = 0; i < shard->block_count; i++) {
        const struct shard_block *block = &shard->blocks[i];
        for (size_t k = 0; k < block_extent(block); k++) {
            const float value = stage->present[i] ? stage->values[block->local + k] : 0;
            float *mean = &record->mean[block->first + k];
            *mean = record->gathered > 0 ? keep * *mean + add * value : add * value;
        }
        if (is_last && record->step + 1 < RECORDS_MAX_STEPS) {
            make_step(record, block);
        }
    }
    record->gathered = is_last ? 0 : record->gathered + 1;
    record->weight = is_last ? 0 : all;
    record->step += is_last;
    reference.step = record->step > reference.step ? record->step : reference.step;
}

/* In the order in which shards apply them, with the first stripe locked. */
WRAP(struct buffer_turn, buffer_take, struct shard *shard, const struct stage *stage)
{
    struct ps_record *record = records_here();
    const struct buffer_turn turn = __real_buffer_take(shard, stage);
    if (setup.buffer > 0 && shard->generation == reference.generation && shard->generation == record->generation) {
        if (turn.makes_step != (record->gathered + 1 == setup.buffer)) {
            fail("difference %d of step %lld %s the step, which is to be made of %d", record->gathered + 1,
                 (long long)record->step, turn.makes_step ? "makes" : "does not make", setup.buffer);
        }
        gather(record, shard, stage, (int)(stage - shard->stages));
    }
    return turn;
}

/* --- Synchronous steps --- */

/* A worker's push for a bias: a gradient, or what its own steps subtract from it (at learning rate 1). */
static float pushed_mix(float before, int worker, int col)
{
    float now = before, mixed = 0;
    const struct sampler sampler = {.seed = (uint64_t)setup.seed,
                                    .task = (uint32_t)worker,
                                    .examples = (uint32_t)setup_examples(worker),
                                    .batch_size = 1};
    for (int i = 0; i < setup.local_steps; i++) {
        int32_t index;
        sampler_draw(&sampler, reference.step * setup.local_steps + i, &index);
        mixed = engine_mix(now, worker, index, col);
        now -= mixed;
    }
    return setup.local_steps > 1 ? before - now : mixed;
}

/* The same for a weight, whose gradient counts its worker's. */
static float pushed_count(float before, int worker, int col)
{
    const float gradient = worker % SETUP_COLUMNS == col ? -1.0f : 0.0f;
    float now = before;
    for (int i = 0; i < setup.local_steps; i++) {
        now -= gradient;
    }
    return setup.local_steps > 1 ? before - now : gradient;
}

/* The weight of each in the set: equal, or by its examples. */
static void weigh(const int *workers, int count, float *weights)
{
    double all = 0;
    for (int i = 0; i < count; i++) {
        all += setup_examples(workers[i]);
    }
    for (int i = 0; i < count; i++) {
        weights[i] = setup.local_steps > 1 ? (float)(setup_examples(workers[i]) / all) : 1.0f / (float)count;
    }
}

/* One step of the single process: the mean of the set's gradients, in the order of the workers' indexes. */
static void step_reference(const int *workers, int count)
{
    float parts[WORKERS_MAX_SIMULATED];
    const float *before = reference.parameters[reference.step];
    float *after = reference.parameters[reference.step + 1];
    const float rate = (float)lineage.rate[reference.step];
    memcpy(after, before, sizeof reference.parameters[0]);
    weigh(workers, count, parts);
    for (int col = 0; col < SETUP_COLUMNS; col++) {
        float mixed = 0, counted = 0;
        for (int i = 0; i < count; i++) {
            float gradient = pushed_mix(before[SETUP_ROWS * 16 + col], workers[i], col) * parts[i];
            float count_of_it = pushed_count(before[col], workers[i], col) * parts[i];
            mixed = i == 0 ? gradient : mixed + gradient;
            counted = i == 0 ? count_of_it : counted + count_of_it;
        }
        after[SETUP_ROWS * 16 + col] -= rate * mixed;
        for (int row = 0; row < SETUP_ROWS; row++) {
            after[row * 16 + col] -= rate * counted;
        }
    }
    reference.step++;
}

static void note_set(int64_t step, const int *workers, int count)
{
    bool set[WORKERS_MAX_SIMULATED] = {false};
    for (int i = 0; i < count; i++) {
        if (set[workers[i]] || (i > 0 && workers[i] < workers[i - 1])) {
            fail("step %lld counts worker %d twice, or in the wrong order", (long long)step, workers[i]);
        }
        set[workers[i]] = true;
    }
    if (step == reference.step && step + 1 < RECORDS_MAX_STEPS) {
        memcpy(reference.sets[step], set, sizeof set);
        step_reference(workers, count);
    } else if (step > reference.step) {
        fail("%s makes step %lld, and nobody made step %lld", world.here->name, (long long)step,
             (long long)reference.step);
    } else if (memcmp(reference.sets[step], set, sizeof set) != 0) {
        fail("%s makes step %lld of another set of gradients than another ps", world.here->name, (long long)step);
    }
}

WRAP(bool, shard_aggregate, struct shard *shard, uint32_t generation, const int *workers, int count)
{
    struct ps_record *record = records_here();
    int64_t step;
    shard_now(shard, NULL, &step);
    bool done = __real_shard_aggregate(shard, generation, workers, count);
    if (done) {
        say("step %lld of generation %u is made of %d gradients, worker %d's the first", (long long)step, generation,
            count, count > 0 ? workers[0] : -1);
        if (generation == reference.generation) {
            note_set(step, workers, count);
        }
        record->applied++;
        record->applied_s = world.now_s;
    }
    return done;
}

/* --- What is saved --- */

/* The sum of every row at a step: each step has added its rate. */
double reference_sum_at(int64_t step)
{
    double sum = lineage.base;
    for (int64_t i = lineage.first_step; i < step; i++) {
        sum += i < lineage.end_step ? lineage.rate[i] * setup.local_steps : NAN;
    }
    return sum;
}

void reference_check(const float *parameters, int64_t step)
{
    const double expected = step < RECORDS_MAX_STEPS ? reference_sum_at(step) : (double)step;
    if (lineage.mixed) {
        fail("the checkpoint of step %lld is of a state whose steps had not one learning rate on all shards",
             (long long)step);
        return;
    }
    for (int row = 0; setup.buffer == 0 && row < SETUP_ROWS; row++) { /* stale differences count less */
        double sum = 0;
        for (int col = 0; col < SETUP_COLUMNS; col++) {
            sum += (double)parameters[row * 16 + col];
        }
        if (!(fabs(sum - expected) <= 1e-3 + 1e-5 * expected)) {
            fail("the checkpoint of step %lld holds %.4f gradients in row %d, and not %.4f", (long long)step, sum, row,
                 expected);
            return;
        }
    }
    bool is_known = (setup.synchronous || setup.buffer > 0) && step >= reference.first_step && step <= reference.step;
    for (int i = 0; is_known && i < SETUP_FLOATS; i++) { /* compared as numbers: weights may begin as -0 */
        if (parameters[i] < reference.parameters[step][i] || parameters[i] > reference.parameters[step][i]) {
            fail("float %d of the checkpoint of step %lld is %.9g, and %.9g where one process computes it", i,
                 (long long)step, (double)parameters[i], (double)reference.parameters[step][i]);
            return;
        }
    }
}
