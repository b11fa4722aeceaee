/*
 * The shared model stands in a store of its own; the engine inside has a copy of its parameters between two rounds, and
 * of its averages when it evaluates them.
 */
#include "worker/clients/clients.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random/sampler.h"
#include "ps/job/round.h"
#include "ps/store/collect.h"
#include "ps/store/outer.h"
#include "ps/store/robust.h"
#include "worker/clients/partition.h"
#include "worker/local_steps.h"

struct clients {
    struct engine engine;
    struct engine *inside; /* owned */
    const struct model *model;
    const struct config *config;
    const struct examples *examples;
    struct config_train outer;
    struct store shared;
    struct local_steps *local;
    struct partition partition;
    int count, in_round;
    unsigned char *chosen;   /* [count]: takes part in this round */
    int32_t *indexes;        /* [batch_size] */
    float *sum;              /* [float_count]: what a round's differences come to */
    float *differences;      /* [in_round * float_count], where they are clipped or not averaged; else NULL */
    const float **pointers;  /* [in_round]: to them */
    float *weights, *scales; /* [in_round] */
    void *scratch;           /* robust_scratch */
    bool has_averages;       /* the engine inside has the newest */
};

static struct clients *of(struct engine *engine)
{
    return (struct clients *)engine;
}

/* --- A round --- */

static void choose(struct clients *all)
{
    struct sampler_order order;
    round_order(&order, all->config->train.seed, all->count, all->shared.global_step);
    memset(all->chosen, 0, (size_t)all->count);
    for (int i = 0; i < all->in_round; i++) {
        all->chosen[sampler_index(&order, (uint32_t)i)] = 1;
    }
}

/* What a client's difference counts. */
static float weight_of(const struct clients *all, int client, double examples)
{
    return all->config->train.round_weights == WEIGHTS_BY_EXAMPLES
               ? outer_weight(partition_count(&all->partition, client), examples)
               : 1.0f / (float)all->in_round;
}

/* The steps of one client; a loss that is not finite ends them. */
static bool take_steps(struct clients *all, int client, struct train_result *result, struct error *error)
{
    const struct config_train *train = &all->config->train;
    const struct partition *partition = &all->partition;
    const struct sampler sampler = {.seed = (uint64_t)train->seed,
                                    .task = (uint32_t)client,
                                    .examples = (uint32_t)partition_count(partition, client),
                                    .batch_size = (uint32_t)train->batch_size};
    const int64_t steps =
        train->local_epochs > 0 ? train->local_epochs * sampler_epoch_batches(&sampler) : train->local_steps;
    const int32_t *own = partition->order ? partition->order + partition->first[client] : NULL;
    for (int64_t i = 0; i < steps && result->finite; i++) {
        const int64_t number = all->shared.global_step * steps + i;
        struct batch batch = {.examples = all->examples, .indexes = all->indexes, .task = sampler.task, .step = number};
        batch.count = sampler_draw(&sampler, number, all->indexes);
        for (int k = 0; own && k < batch.count; k++) {
            all->indexes[k] = own[all->indexes[k]];
        }
        if (!local_steps_take(all->local, &batch, result, error)) {
            return false;
        }
    }
    return true;
}

static void for_each_variable(const struct model *model, const float *values, const struct gradient_sink *sink)
{
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        sink->block(sink->context, &(struct gradient_block){.variable = i,
                                                            .rows = variable->rows,
                                                            .cols = variable->cols,
                                                            .values = values + variable->offset,
                                                            .stride = variable->stride});
    }
}

static double squares_of(const struct model *model, const float *difference)
{
    double squares = 0;
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        for (int row = 0; row < variable->rows; row++) {
            squares = outer_squares(squares, difference + variable_at(variable, row, 0), (size_t)variable->cols);
        }
    }
    return squares;
}

/* The round's differences into the sum, each scaled down where it is too long; weights: what each counts in a mean. */
static void combine(struct clients *all, const float *weights)
{
    const struct config_train *train = &all->config->train;
    const int cut = robust_cut(train, all->in_round);
    for (int k = 0; k < all->in_round; k++) {
        all->pointers[k] = all->differences + (size_t)k * all->model->float_count;
        all->scales[k] = (cut >= 0 ? 1.0f : weights[k]) *
                         outer_clip(squares_of(all->model, all->pointers[k]), train->clip_difference_norm);
    }
    if (cut >= 0) {
        robust_mean(all->sum, all->pointers, all->scales, all->in_round, cut, all->model->float_count, all->scratch);
        return;
    }
    for (int k = 0; k < all->in_round; k++) {
        struct collector collector = {.model = all->model, .sum = all->sum, .weight = all->scales[k], .first = k == 0};
        const struct gradient_sink sink = collector_sink(&collector);
        for_each_variable(all->model, all->pointers[k], &sink);
    }
}

/* What the round's differences come to, into the sum. */
static bool gather(struct clients *all, struct train_result *result, struct error *error)
{
    double examples = 0;
    int done = 0;
    for (int client = 0; client < all->count; client++) {
        examples += all->chosen[client] ? partition_count(&all->partition, client) : 0;
    }
    for (int client = 0; client < all->count && result->finite; client++) {
        if (!all->chosen[client]) {
            continue;
        }
        struct collector collector = {
            .model = all->model, .sum = all->sum, .weight = weight_of(all, client, examples), .first = done == 0};
        if (all->differences) {
            all->weights[done] = collector.weight;
            collector.sum = all->differences + (size_t)done * all->model->float_count;
            collector.weight = 1;
            collector.first = true;
        }
        const struct gradient_sink sink = collector_sink(&collector);
        if (!local_steps_begin(all->local, &all->config->train, all->shared.global_step, error) ||
            !take_steps(all, client, result, error) ||
            !local_steps_end(all->local, result->finite ? &sink : NULL, error)) {
            return false;
        }
        done++;
    }
    if (all->differences && result->finite) {
        combine(all, all->weights);
    }
    return true;
}

/* The shared parameters to the engine inside. */
static bool show(struct clients *all, struct error *error)
{
    all->has_averages = false;
    return all->inside->table->write(all->inside, STORE_PARAMETERS, 0, all->model->float_count,
                                     all->shared.vectors[STORE_PARAMETERS], error);
}

static void apply(struct clients *all)
{
    store_begin_step(&all->shared);
    const struct gradient_sink sink = store_sink(&all->shared);
    for_each_variable(all->model, all->sum, &sink);
    store_end_step(&all->shared);
}

static bool clients_train(struct engine *base, int64_t n, struct train_result *result, struct error *error)
{
    struct clients *all = of(base);
    *result = (struct train_result){.finite = true};
    for (int64_t i = 0; i < n; i++) {
        struct train_result round = {.finite = true};
        choose(all);
        if (!gather(all, &round, error)) {
            return false;
        }
        if (!round.finite) {
            result->finite = false;
            result->bad_loss = round.bad_loss;
            return true;
        }
        apply(all);
        if (!show(all, error)) {
            return false;
        }
        result->steps++;
        result->last_loss = round.loss_sum / (double)round.steps;
        result->loss_sum += result->last_loss;
        result->images += round.images;
        result->correct += round.correct;
    }
    return true;
}

/* --- The rest of the table --- */

static bool clients_step(struct engine *base, const struct batch *batch, const struct gradient_sink *sink,
                         struct train_result *result, struct error *error)
{
    struct engine *inside = of(base)->inside;
    return inside->table->step(inside, batch, sink, result, error);
}

static bool clients_forward(struct engine *base, bool averaged, const struct examples *examples, int first, int count,
                            float *logits, struct error *error)
{
    struct clients *all = of(base);
    struct engine *inside = all->inside;
    if (averaged && !all->has_averages) {
        all->has_averages = inside->table->write(inside, STORE_AVERAGES, 0, all->model->float_count,
                                                 all->shared.vectors[STORE_AVERAGES], error);
    }
    return (!averaged || all->has_averages) &&
           inside->table->forward(inside, averaged, examples, first, count, logits, error);
}

static bool clients_read(struct engine *base, enum store_vector vector, size_t first, size_t count, float *values,
                         struct error *error)
{
    (void)error;
    memcpy(values, of(base)->shared.vectors[vector] + first, count * sizeof *values);
    return true;
}

static bool clients_write(struct engine *base, enum store_vector vector, size_t first, size_t count,
                          const float *values, struct error *error)
{
    struct clients *all = of(base);
    memcpy(all->shared.vectors[vector] + first, values, count * sizeof *values);
    store_restored(&all->shared);
    return show(all, error);
}

static float *clients_parameters(struct engine *base)
{
    (void)base;
    return NULL;
}

static int64_t clients_global_step(const struct engine *base)
{
    return ((const struct clients *)base)->shared.global_step;
}

static void clients_set_global_step(struct engine *base, int64_t global_step)
{
    of(base)->shared.global_step = global_step;
}

static void clients_describe(const struct engine *base, char *text, size_t size)
{
    const struct clients *all = (const struct clients *)base;
    char inside[256];
    all->inside->table->describe(all->inside, inside, sizeof inside);
    snprintf(text, size, "%d client%s, %d in each round, on %s", all->count, all->count == 1 ? "" : "s", all->in_round,
             inside);
}

static void clients_destroy(struct engine *base)
{
    struct clients *all = of(base);
    if (all) {
        local_steps_destroy(all->local);
        all->inside->table->destroy(all->inside);
        partition_destroy(&all->partition);
        store_destroy(&all->shared);
        free(all->chosen);
        free(all->indexes);
        free(all->sum);
        free(all->differences);
        free((void *)all->pointers);
        free(all->weights);
        free(all->scales);
        free(all->scratch);
        free(all);
    }
}

static const struct engine_table clients_table = {
    .name = "clients",
    .train = clients_train,
    .step = clients_step,
    .forward = clients_forward,
    .read = clients_read,
    .write = clients_write,
    .parameters = clients_parameters,
    .global_step = clients_global_step,
    .set_global_step = clients_set_global_step,
    .describe = clients_describe,
    .destroy = clients_destroy,
};

static bool keeps_differences(const struct config_train *train)
{
    return train->aggregate != AGGREGATE_MEAN || train->clip_difference_norm > 0;
}

static bool make_room(struct clients *all)
{
    const size_t count = (size_t)all->in_round;
    all->differences = calloc(count * all->model->float_count, sizeof *all->differences);
    all->pointers = calloc(count, sizeof *all->pointers);
    all->weights = calloc(count, sizeof *all->weights);
    all->scales = calloc(count, sizeof *all->scales);
    all->scratch = malloc(robust_scratch(all->in_round));
    return all->differences && all->pointers && all->weights && all->scales && all->scratch;
}

bool clients_engine_create(struct engine **engine, struct engine *inside, const struct engine_options *options,
                           const struct clients_options *clients, struct error *error)
{
    const struct config_train *train = &options->config->train;
    struct clients *all = calloc(1, sizeof *all);
    if (!all) {
        inside->table->destroy(inside);
        return error_set(error, "out of memory for %d clients", clients->count);
    }
    *all = (struct clients){.engine = {.table = &clients_table},
                            .inside = inside,
                            .model = options->model,
                            .config = options->config,
                            .examples = options->train,
                            .outer = outer_train(train),
                            .count = clients->count,
                            .in_round = round_share(train->participation, clients->count)};
    all->chosen = calloc((size_t)all->count, sizeof *all->chosen);
    all->indexes = calloc((size_t)train->batch_size, sizeof *all->indexes);
    all->sum = calloc(all->model->float_count, sizeof *all->sum);
    const bool there = all->chosen && all->indexes && all->sum && (!keeps_differences(train) || make_room(all));
    if (!(there || error_set(error, "out of memory for %d clients", all->count)) ||
        !store_create(&all->shared, all->model, &all->outer, error) ||
        !local_steps_create(&all->local, all->model, inside, train, error) ||
        !partition_create(&all->partition, clients->partition, all->count, all->examples, options->config, error)) {
        clients_destroy(&all->engine);
        return false;
    }
    *engine = &all->engine;
    return true;
}
