/*
 * The shared model is in a separate store; between two rounds the engine inside has a copy of its parameters, and of
 * its averages while it evaluates them.
 */
#include "worker/clients/clients.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/random/sampler.h"
#include "ps/job/plan.h"
#include "ps/store/store.h"
#include "ps/store/rounds.h"
#include "worker/clients/players.h"
#include "worker/clients/small_messages.h"
#include "worker/evaluation_part.h"
#include "worker/validation_sum.h"

struct clients {
    struct engine engine;
    struct engine *inside; /* owned */
    const struct model *model;
    const struct config *config;
    struct config_train outer;
    struct store shared;
    struct players *players;
    struct small_messages *messages; /* NULL: everything exchanged arrives unchanged */
    bool shows_sent;                 /* the engine inside has what was sent to clients, not the shared model */
    const struct clients_data *data;
    struct client_validations { /* by each client, on its own rows */
        struct validation_sum sum;
        struct evaluation one;
        uint8_t *bytes; /* NULL: there was none yet */
    } validation;
    int count, in_round;
    unsigned char *chosen;   /* [count]: takes part in this round */
    int *taking;             /* [in_round]: their numbers, ascending */
    double examples;         /* total of theirs */
    float *sum;              /* [float_count]: the result of a round's differences */
    float *differences;      /* [in_round * float_count], if they are clipped or not averaged; otherwise NULL */
    const float **pointers;  /* [in_round]: to them */
    float *weights, *scales; /* [in_round] */
    void *scratch;           /* robust_scratch */
    bool has_averages;       /* the engine inside has the newest */
    bool is_asked_as_sent;   /* forward passes use what clients have */
};

static struct clients *of(struct engine *engine)
{
    return (struct clients *)engine;
}

static int examples_of(const struct clients *all, int client)
{
    return partition_count(&all->data->partition, client);
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
    all->examples = 0;
    for (int client = 0, taking = 0; client < all->count; client++) {
        if (all->chosen[client]) {
            all->taking[taking++] = client;
            all->examples += examples_of(all, client);
        }
    }
}

/* The weight of a client's difference. */
static float weight_of(const struct clients *all, int client)
{
    return all->config->train.round_weights == WEIGHTS_BY_EXAMPLES
               ? outer_weight(examples_of(all, client), all->examples)
               : 1.0f / (float)all->in_round;
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

/* Sums the round's differences, each clipped to the norm; weights: of each in a mean. */
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
        gradient_feed(all->model, all->pointers[k], &sink);
    }
}

/* One client's part of a round, into a collector. */
static bool deliver(struct clients *all, int client, struct local_steps *steps, struct collector *collector,
                    struct error *error)
{
    const struct gradient_sink arrives = collector_sink(collector);
    const struct gradient_sink sink = all->messages ? small_messages_sink(all->messages, client) : arrives;
    if (!local_steps_end(steps, &sink, error)) {
        return false;
    }
    if (all->messages) {
        gradient_feed(all->model, small_messages_deliver(all->messages, client), &arrives);
    }
    return true;
}

/* Adds up a client's difference, or keeps it if all are needed first. */
static bool end_steps(void *context, int at, struct local_steps *steps, struct error *error)
{
    struct clients *all = context;
    const int client = all->taking[at];
    struct collector collector = {
        .model = all->model, .sum = all->sum, .weight = weight_of(all, client), .first = at == 0};
    if (all->differences) {
        all->weights[at] = collector.weight;
        collector.sum = all->differences + (size_t)at * all->model->float_count;
        collector.weight = 1;
        collector.first = true;
    }
    return deliver(all, client, steps, &collector, error);
}

static const float *known_parameters(const struct clients *all)
{
    return all->messages ? small_messages_sent_model(all->messages) : all->shared.vectors[STORE_PARAMETERS];
}

/* The result of the round's differences, into the sum. */
static bool gather(struct clients *all, struct train_result *result, struct error *error)
{
    const struct players_round round = {.clients = all->taking,
                                        .count = all->in_round,
                                        .parameters = known_parameters(all),
                                        .global_step = all->shared.global_step,
                                        .ends = end_steps,
                                        .context = all};
    if (!players_play(all->players, &round, result, error)) {
        return false;
    }
    if (all->differences && result->finite) {
        combine(all, all->weights);
    }
    return true;
}

static bool write_inside(struct clients *all, const float *parameters, struct error *error)
{
    return all->inside->table->write(all->inside, STORE_PARAMETERS, 0, all->model->float_count, parameters, error);
}

/* Copies the shared parameters to the engine inside. */
static bool show(struct clients *all, struct error *error)
{
    all->shows_sent = all->has_averages = false;
    return write_inside(all, all->shared.vectors[STORE_PARAMETERS], error);
}

/* Copies to it the shared parameters as clients have them, or exactly. */
static bool show_as(struct clients *all, bool sent, struct error *error)
{
    if (!all->messages || all->shows_sent == sent) {
        return true;
    }
    all->shows_sent = sent;
    return write_inside(all, sent ? known_parameters(all) : all->shared.vectors[STORE_PARAMETERS], error);
}

static void apply(struct clients *all)
{
    store_begin_step(&all->shared);
    const struct gradient_sink sink = store_sink(&all->shared);
    gradient_feed(all->model, all->sum, &sink);
    store_end_step(&all->shared);
    if (all->messages) {
        small_messages_tell(all->messages, all->shared.vectors[STORE_PARAMETERS]);
    }
}

static bool clients_train(struct engine *base, int64_t n, struct train_result *result, struct error *error)
{
    struct clients *all = of(base);
    *result = (struct train_result){.finite = true};
    for (int64_t i = 0; i < n; i++) {
        struct train_result round = {.finite = true};
        choose(all);
        if (!show_as(all, true, error) || !gather(all, &round, error)) {
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
    return (averaged ? all->has_averages : show_as(all, all->is_asked_as_sent, error)) &&
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
    if (all->messages && vector == STORE_PARAMETERS) {
        small_messages_forget(all->messages, all->shared.vectors[STORE_PARAMETERS]);
    }
    return show(all, error);
}

static void clients_keep(struct engine *base, int64_t global_step)
{
    struct clients *all = of(base);
    struct error error;
    if (all->messages && !small_messages_keep(all->messages, global_step, &error)) {
        log_warning("the unsent parts of small messages are not saved: %s", error.text);
    }
}

static bool clients_recall(struct engine *base, int64_t global_step, struct error *error)
{
    struct clients *all = of(base);
    return !all->messages ||
           (small_messages_recall(all->messages, global_step, all->shared.vectors[STORE_PARAMETERS], error) &&
            show(all, error));
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
        players_destroy(all->players);
        all->inside->table->destroy(all->inside);
        small_messages_destroy(all->messages);
        validation_sum_destroy(&all->validation.sum);
        evaluation_destroy(&all->validation.one);
        free(all->validation.bytes);
        store_destroy(&all->shared);
        free(all->chosen);
        free(all->taking);
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
    .keep = clients_keep,
    .recall = clients_recall,
    .describe = clients_describe,
    .destroy = clients_destroy,
};

/* --- Validation --- */

static bool begin_validation(struct clients *all, const struct evaluation *like, struct error *error)
{
    struct client_validations *validation = &all->validation;
    struct evaluation_options options = like->options;
    if (validation->bytes) {
        return true;
    }
    options.rows = options.rows > 0 ? held_out_most(&all->data->held_out, all->count) : 0;
    validation->bytes = malloc(evaluation_part_room(like));
    return (validation->bytes || error_set(error, "out of memory for the validations of clients")) &&
           validation_sum_create(&validation->sum, like, all->count, error) &&
           evaluation_create(&validation->one, &options, error);
}

/* One client's validation, in the form that a worker would send. */
static bool add_validation(struct clients *all, int client, enum metric metric, struct error *error)
{
    struct client_validations *validation = &all->validation;
    struct evaluation *one = &validation->one;
    const struct examples own = held_out_of(&all->data->held_out, client);
    if (!evaluate(one, &all->engine, false, &own, error)) {
        return false;
    }
    const struct worker_score score = {client, one->images, (double)(float)evaluation_metric(one, metric)};
    const size_t size = evaluation_part_write(one, validation->bytes);
    if (one->images > 0 && !validation_sum_add(&validation->sum, &score, validation->bytes, size, error)) {
        log_warning("the validation of client %d does not count: %s", client, error->text);
    }
    return true;
}

bool clients_validate(struct engine *engine, enum metric metric, struct evaluation *evaluation,
                      struct validators *validators, struct error *error)
{
    struct clients *all = of(engine);
    struct validation_sum *sum = &all->validation.sum;
    bool done = begin_validation(all, evaluation, error);
    if (done) {
        validation_sum_begin(sum, evaluation, metric);
        validation_sum_again(sum);
    }
    all->is_asked_as_sent = true;
    for (int client = 1; client < all->count && done; client++) {
        done = !all->chosen[client] || add_validation(all, client, metric, error);
    }
    all->is_asked_as_sent = false;
    if (done) {
        validation_sum_end(sum, metric, validators);
    }
    return done;
}

/* --- Create and destroy --- */

bool clients_data_create(struct clients_data *data, const struct clients_options *options,
                         const struct dataset *dataset, const struct config *config, struct error *error)
{
    *data = (struct clients_data){.examples = dataset->train};
    if (dataset->streaming) {
        return error_set(error, "clients train on examples in memory, and these do not fit: raise data.memory_mb");
    }
    const bool holds_out = clients_hold_out(options, config);
    if (holds_out) {
        data->examples = dataset->validation; /* these lie before the others */
        data->examples.count += dataset->train.count;
    }
    return partition_create(&data->partition, options->partition, options->count, &data->examples, config, error) &&
           (!holds_out || held_out_create(&data->held_out, &data->partition, &data->examples, config, error));
}

void clients_data_destroy(struct clients_data *data)
{
    partition_destroy(&data->partition);
    held_out_destroy(&data->held_out);
}

struct dataset clients_dataset(const struct clients_data *data, const struct dataset *dataset)
{
    struct dataset seen = *dataset;
    if (data->held_out.first) {
        seen.train = data->examples;
        seen.train.count -= data->held_out.examples.count;
        seen.validation = held_out_of(&data->held_out, 0);
    }
    return seen;
}

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
                           const struct clients_options *clients, const struct clients_data *data, struct error *error)
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
                            .data = data,
                            .outer = outer_train(train),
                            .count = clients->count,
                            .in_round = round_share(train->participation, clients->count)};
    all->chosen = calloc((size_t)all->count, sizeof *all->chosen);
    all->taking = calloc((size_t)all->in_round, sizeof *all->taking);
    all->sum = calloc(all->model->float_count, sizeof *all->sum);
    const bool there = all->chosen && all->taking && all->sum && (!keeps_differences(train) || make_room(all));
    if (!(there || error_set(error, "out of memory for %d clients", all->count)) ||
        !store_create(&all->shared, all->model, &all->outer, error) ||
        !players_create(&all->players, inside, options, &data->examples, &data->partition, all->in_round, error) ||
        !(!clients->exchanges || !small_messages_are_known(&options->config->cluster) ||
          small_messages_create(&all->messages, all->model, options->config, all->count, error))) {
        clients_destroy(&all->engine);
        return false;
    }
    *engine = &all->engine;
    return true;
}
