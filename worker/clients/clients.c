/* One process that simulates many workers: their packed messages, their steps, and an engine whose steps are rounds. */
#include "worker/clients/clients.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/copy.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random/sampler.h"
#include "base/threads.h"
#include "ps/job/plan.h"
#include "ps/store/codec.h"
#include "ps/store/model.h"
#include "ps/store/rounds.h"
#include "ps/store/store.h"
#include "worker/clients/partition.h"
#include "worker/engine.h"
#include "worker/ensemble.h"
#include "worker/evaluation/validation.h"
#include "worker/local_steps.h"
#include "worker/remote/exchange/outbox.h"

/* --- Packed messages --- */

/*
 * Packed messages (cluster.wire_dtype int8, cluster.wire_top) where one process simulates many workers. Nothing is
 * sent; but what a client pushes is packed and unpacked again, and a round begins with the model as sent to clients. So
 * the bits are those of a cluster with one ps (worker/remote/exchange/outbox.h, ps/store/codec.h).
 *
 * Memory: 4 bytes x floats x 6, the largest size of packed floats, and 4 bytes x floats for each client that has taken
 * part in a round, for the residual of its messages.
 *
 * One outbox serves all clients: before each one's difference it gets the residual of that client's messages.
 */

struct small_messages {
    const struct model *model;
    const struct config *config;
    int clients;
    bool has_residuals; /* some of them is not zero */
    struct span whole;  /* held by the single ps */
    struct outbox outbox;
    struct sent_packer packer;
    float *residuals;       /* [clients, float_count]: of zero pages until a client takes part */
    float *arrived;         /* [float_count] */
    float *sent_model;      /* [float_count]: the parameters as clients have them */
    float *packer_residual; /* [float_count] */
};

static size_t count_values(const struct model *model)
{
    size_t values = 0;
    for (int i = 0; i < model->variable_count; i++) {
        values += (size_t)model->variables[i].rows * (size_t)model->variables[i].cols;
    }
    return values;
}

/* NULL is fine */
static void small_messages_destroy(struct small_messages *messages)
{
    if (messages) {
        outbox_destroy(&messages->outbox);
        free(messages->residuals);
        free(messages->arrived);
        free(messages->sent_model);
        free(messages->packer_residual);
        free(messages);
    }
}

/* model and config are borrowed. */
static struct small_messages *small_messages_create(const struct model *model, const struct config *config, int clients)
{
    static const char what[] = "the unsent parts of the clients' messages";
    const size_t floats = model->float_count;
    struct small_messages *messages = must_zero(1, sizeof *messages, what);
    *messages = (struct small_messages){.model = model, .config = config, .clients = clients, .whole = {0, floats}};
    messages->residuals = must_zero((size_t)clients * floats, sizeof(float), what);
    messages->arrived = must_zero(floats, sizeof(float), what);
    messages->sent_model = must_zero(floats, sizeof(float), what);
    messages->packer_residual = must_zero(floats, sizeof(float), what);
    outbox_create(&messages->outbox, model, outbox_form(config), NULL);
    sent_packer_begin(&messages->packer, &config->cluster, count_values(model), messages->packer_residual);
    return messages;
}

/* All clients have these parameters, as after a restore; residuals are cleared. */
static void small_messages_forget(struct small_messages *messages, const float *parameters)
{
    const size_t floats = messages->model->float_count;
    if (messages->has_residuals) {
        memset(messages->residuals, 0, (size_t)messages->clients * floats * sizeof(float));
        messages->has_residuals = false;
    }
    copy_bytes(messages->sent_model, parameters, floats * sizeof(float));
}

/* --- To the ps --- */

static float *residual_of(const struct small_messages *messages, int client)
{
    return messages->residuals + (size_t)client * messages->model->float_count;
}

/* Where a client's difference goes; then how it arrives, [float_count], valid until the next one. */
static struct gradient_sink small_messages_sink(struct small_messages *messages, int client)
{
    copy_bytes(messages->outbox.residual->now, residual_of(messages, client),
               messages->model->float_count * sizeof(float));
    outbox_begin(&messages->outbox);
    return outbox_sink(&messages->outbox);
}

static const float *small_messages_deliver(struct small_messages *messages, int client)
{
    struct outbox *outbox = &messages->outbox;
    const size_t bytes = messages->model->float_count * sizeof(float);
    outbox_pack(outbox, &messages->whole, 1);
    outbox_packed(outbox);
    copy_bytes(residual_of(messages, client), outbox->residual->now, bytes);
    messages->has_residuals = true;
    memset(messages->arrived, 0, bytes);
    struct outbox_cursor cursor = outbox_open(outbox, &messages->whole, 1);
    struct range range;
    const void *piece;
    size_t size;
    while (outbox_next(&cursor, &range, &piece, &size)) {
        const size_t took = sent_model_apply(messages->arrived + range.first, piece, size, range.count, outbox->dtype);
        assert(took == size);
        (void)took;
    }
    return messages->arrived;
}

/* --- Files --- */

static struct residual_files files_of(const struct small_messages *messages, int whose)
{
    const struct config_output *output = &messages->config->output;
    const size_t floats = messages->model->float_count;
    return (struct residual_files){.folder = output->train_dir,
                                   .worker = whose,
                                   .count =
                                       whose == RESIDUAL_FILES_CLIENTS ? (size_t)messages->clients * floats : floats,
                                   .every = output->save_steps};
}

/*
 * Saves and loads the residuals of both directions, in files beside this step's checkpoint
 * (worker/remote/exchange/outbox.h). Without files the state is as after small_messages_forget.
 */
static bool small_messages_save(const struct small_messages *messages, int64_t step, struct error *error)
{
    const struct residual_files clients = files_of(messages, RESIDUAL_FILES_CLIENTS),
                                sent = files_of(messages, RESIDUAL_FILES_SENT);
    return residual_files_save(&clients, step, messages->residuals, error) &&
           residual_files_save(&sent, step, messages->sent_model, error);
}

/* *found: is there one of exactly this step? */
static bool load(const struct residual_files *files, int64_t step, float *floats, bool *found, struct error *error)
{
    int64_t of_step;
    const bool done = residual_files_load(files, step, floats, &of_step, error);
    *found = done && of_step == step;
    return done;
}

static bool small_messages_load(struct small_messages *messages, int64_t step, const float *parameters,
                                struct error *error)
{
    const struct residual_files clients = files_of(messages, RESIDUAL_FILES_CLIENTS),
                                sent = files_of(messages, RESIDUAL_FILES_SENT);
    bool has_clients, has_sent;
    messages->has_residuals = true;
    if (!load(&clients, step, messages->residuals, &has_clients, error) ||
        !load(&sent, step, messages->sent_model, &has_sent, error)) {
        return false;
    }
    if (!has_clients || !has_sent) {
        log_warning("the unsent parts of small messages at step %lld are missing: starting without any",
                    (long long)step);
        small_messages_forget(messages, parameters);
    }
    return true;
}

/* --- Steps of clients --- */

/*
 * Players take the steps of several clients at a time, each with its own thread and engine, so that none waits for
 * another within a step. An idle runner takes the next client. Results are delivered in the order of clients, so the
 * bits are those of one runner that takes the clients one after another.
 *
 * There is one runner per thread of the engine inside, if that is a CPU engine and a round has enough clients;
 * otherwise a single runner uses the engine inside. Memory: for each runner, that of local_steps and of a CPU engine
 * with one thread.
 *
 * A runner takes a client, takes its steps, and waits for its turn to deliver the result: clients take about equally
 * long, so that is a short wait. An aborted round still passes the turn on, so nobody waits for ever.
 */

struct runners_round {
    const int *clients; /* [count], ascending */
    int count;
    const float *parameters; /* at the start; the engine inside has them */
    int64_t global_step;
    /* Ends the local steps of the client at position `at`; called for each in turn. */
    bool (*ends)(void *context, int at, struct local_steps *steps, struct error *error);
    void *context;
};

struct runner {
    struct engine *engine;
    struct local_steps *local;
    int32_t *indexes; /* [batch_size] */
};

struct runners {
    const struct config *config;
    const struct examples *examples;
    const struct partition *partition;
    size_t float_count;
    struct engine *inside;
    struct config alone; /* of an engine of one thread; owns nothing */
    struct pool *pool;   /* NULL: one runner, on the engine inside */
    struct runner *each; /* [count] */
    int count;

    /* A round. */
    const struct runners_round *round;
    atomic_int next; /* next client to take */
    pthread_mutex_t lock;
    pthread_cond_t passed; /* the turn was passed */
    int turn;
    struct train_result *result;
    bool is_over; /* aborted */
    bool failed;
    struct error error; /* of the one that failed */
};

/* --- A round --- */

/* The steps of one client; a loss that is not finite ends them. */
static bool take_steps(struct runners *runners, struct runner *runner, int client, struct train_result *result,
                       struct error *error)
{
    const struct config_train *train = &runners->config->train;
    const struct partition *partition = runners->partition;
    const struct sampler sampler = {.seed = (uint64_t)train->seed,
                                    .task = (uint32_t)client,
                                    .examples = (uint32_t)partition_count(partition, client),
                                    .batch_size = (uint32_t)train->batch_size};
    const int64_t steps = round_batches(train, sampler_epoch_batches(&sampler));
    const int32_t *own = partition->order ? partition->order + partition->first[client] : NULL;
    for (int64_t i = 0; i < steps && result->finite; i++) {
        const int64_t number = runners->round->global_step * steps + i;
        struct batch batch = {
            .examples = runners->examples, .indexes = runner->indexes, .task = sampler.task, .step = number};
        batch.count = sampler_draw(&sampler, number, runner->indexes);
        for (int k = 0; own && k < batch.count; k++) {
            runner->indexes[k] = own[runner->indexes[k]];
        }
        if (!local_steps_take(runner->local, &batch, result, error)) {
            return false;
        }
    }
    return true;
}

/* In its turn: delivers a client's result. done: all its steps were taken, as far as losses were finite. */
static bool hand_over(struct runners *runners, struct runner *runner, int at, bool done,
                      const struct train_result *result, struct error *error)
{
    if (!done) {
        return false;
    }
    train_result_add(runners->result, result);
    return result->finite ? runners->round->ends(runners->round->context, at, runner->local, error)
                          : local_steps_end(runner->local, NULL, error);
}

/* Waits for its turn. False: the round was aborted meanwhile. */
static bool await_turn(struct runners *runners, int at)
{
    pthread_mutex_lock(&runners->lock);
    while (runners->turn != at) {
        pthread_cond_wait(&runners->passed, &runners->lock);
    }
    const bool goes_on = !runners->is_over;
    pthread_mutex_unlock(&runners->lock);
    return goes_on;
}

static void pass_turn(struct runners *runners, bool is_over)
{
    pthread_mutex_lock(&runners->lock);
    runners->is_over |= is_over;
    runners->turn++;
    pthread_cond_broadcast(&runners->passed);
    pthread_mutex_unlock(&runners->lock);
}

static bool is_over(struct runners *runners)
{
    pthread_mutex_lock(&runners->lock);
    const bool over = runners->is_over;
    pthread_mutex_unlock(&runners->lock);
    return over;
}

static void run_client(struct runners *runners, struct runner *runner, int at)
{
    const struct runners_round *round = runners->round;
    struct train_result result = {.finite = true};
    struct error error;
    bool done =
        is_over(runners) || (local_steps_begin(runner->local, &runners->config->train, round->global_step, &error) &&
                             take_steps(runners, runner, round->clients[at], &result, &error));
    if (!await_turn(runners, at)) {
        pass_turn(runners, true);
        return;
    }
    done = hand_over(runners, runner, at, done, &result, &error);
    if (!done) {
        runners->failed = true;
        runners->error = error;
    }
    pass_turn(runners, !done || !result.finite);
}

/* A runner with its own engine first needs the parameters. */
static void run_thread(void *context, int index)
{
    struct runners *runners = context;
    struct runner *runner = &runners->each[index];
    const struct runners_round *round = runners->round;
    struct engine *engine = runner->engine;
    int at;
    if (engine != runners->inside) {
        memcpy(engine->table->parameters(engine), round->parameters, runners->float_count * sizeof(float));
    }
    while ((at = atomic_fetch_add(&runners->next, 1)) < round->count) {
        run_client(runners, runner, at);
    }
}

/*
 * Adds up what the clients' steps did. If a client's loss is not finite, the round is given up: result->finite is
 * false.
 */
static bool run_clients(struct runners *runners, const struct runners_round *round, struct train_result *result,
                        struct error *error)
{
    runners->round = round;
    runners->result = result;
    runners->turn = 0;
    runners->failed = runners->is_over = false;
    atomic_store(&runners->next, 0);
    if (runners->pool) {
        pool_run(runners->pool, run_thread, runners);
    } else {
        run_thread(runners, 0);
    }
    if (runners->failed) {
        *error = runners->error;
    }
    return !runners->failed;
}

/* --- Create and destroy --- */

/* As many as there are threads, if the engine inside has threads and there are enough clients for all. */
static int count_runners(const struct engine *inside, const struct config_train *train, int in_round)
{
    const int threads = train->num_threads > 0 ? train->num_threads : threads_available();
    const int most = threads < POOL_MAX_THREADS ? threads : POOL_MAX_THREADS;
    return strcmp(inside->table->name, "cpu") == 0 && in_round >= most ? most : 1;
}

static bool create_runner(struct runners *runners, struct runner *runner, const struct engine_options *options,
                          struct error *error)
{
    runner->indexes =
        must_zero((size_t)runners->config->train.batch_size, sizeof *runner->indexes, "the batches of clients");
    runner->engine = runners->inside;
    if (runners->pool && !ensemble_create_on_cpu(&runner->engine, options, error)) {
        return false;
    }
    runner->local = local_steps_create(options->model, runner->engine, &runners->config->train);
    return true;
}

static bool create_all(struct runners *runners, const struct engine_options *options, struct error *error)
{
    struct engine_options own = *options;
    runners->each = must_zero((size_t)runners->count, sizeof *runners->each, "the threads of clients");
    if (runners->count > 1 && !pool_create(&runners->pool, runners->count, error)) {
        return false;
    }
    runners->alone = *options->config;
    runners->alone.train.num_threads = 1;
    runners->alone.train.optimizer = OPTIMIZER_SGD; /* local_steps has the state of the optimizer */
    own.config = &runners->alone;
    for (int i = 0; i < runners->count; i++) {
        if (!create_runner(runners, &runners->each[i], &own, error)) {
            return false;
        }
    }
    if (runners->pool && options->low_priority) {
        pool_give_way(runners->pool);
    }
    return true;
}

/* NULL is fine */
static void runners_destroy(struct runners *runners)
{
    if (!runners) {
        return;
    }
    for (int i = 0; runners->each && i < runners->count; i++) {
        struct runner *runner = &runners->each[i];
        local_steps_destroy(runner->local);
        free(runner->indexes);
        if (runner->engine && runner->engine != runners->inside) {
            runner->engine->table->destroy(runner->engine);
        }
    }
    pool_destroy(runners->pool);
    pthread_cond_destroy(&runners->passed);
    pthread_mutex_destroy(&runners->lock);
    free(runners->each);
    free(runners);
}

/* Everything is borrowed; the examples are the partition's. At most `in_round` clients take part in a round. */
static bool runners_create(struct runners **out, struct engine *inside, const struct engine_options *options,
                           const struct examples *examples, const struct partition *partition, int in_round,
                           struct error *error)
{
    struct runners *runners = must_zero(1, sizeof *runners, "the threads of clients");
    runners->config = options->config;
    runners->examples = examples;
    runners->partition = partition;
    runners->float_count = options->model->float_count;
    runners->inside = inside;
    runners->count = count_runners(inside, &options->config->train, in_round);
    pthread_mutex_init(&runners->lock, NULL);
    pthread_cond_init(&runners->passed, NULL);
    if (!create_all(runners, options, error)) {
        runners_destroy(runners);
        return false;
    }
    *out = runners;
    return true;
}

/* --- The engine --- */

/*
 * The shared model is in a separate store; between two rounds the engine inside has a copy of its parameters, and of
 * its averages while it evaluates them.
 */

struct clients {
    struct engine engine;
    struct engine *inside; /* owned */
    const struct model *model;
    const struct config *config;
    struct config_train outer;
    struct store shared;
    struct runners *runners;
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
    return all->messages ? all->messages->sent_model : all->shared.vectors[STORE_PARAMETERS];
}

/* The result of the round's differences, into the sum. */
static bool gather(struct clients *all, struct train_result *result, struct error *error)
{
    const struct runners_round round = {.clients = all->taking,
                                        .count = all->in_round,
                                        .parameters = known_parameters(all),
                                        .global_step = all->shared.global_step,
                                        .ends = end_steps,
                                        .context = all};
    if (!run_clients(all->runners, &round, result, error)) {
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
    struct small_messages *messages = all->messages;
    if (messages) { /* sends all clients the change */
        sent_packer_pack(&messages->packer, all->shared.vectors[STORE_PARAMETERS], messages->sent_model,
                         &messages->whole, 1, NULL);
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
    if (all->messages && !small_messages_save(all->messages, global_step, &error)) {
        log_warning("the unsent parts of small messages are not saved: %s", error.text);
    }
}

static bool clients_load_state(struct engine *base, int64_t global_step, struct error *error)
{
    struct clients *all = of(base);
    return !all->messages ||
           (small_messages_load(all->messages, global_step, all->shared.vectors[STORE_PARAMETERS], error) &&
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
        runners_destroy(all->runners);
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
    .load_state = clients_load_state,
    .describe = clients_describe,
    .destroy = clients_destroy,
};

/* --- Validation --- */

static void begin_validation(struct clients *all, const struct evaluation *like)
{
    struct client_validations *validation = &all->validation;
    struct evaluation_options options = like->options;
    if (validation->bytes) {
        return;
    }
    options.rows = options.rows > 0 ? held_out_most(&all->data->held_out, all->count) : 0;
    validation->bytes = must_alloc(evaluation_part_room(like), "the validations of clients");
    validation_sum_create(&validation->sum, like, all->count);
    evaluation_create(&validation->one, &options);
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
    bool done = true;
    begin_validation(all, evaluation);
    validation_sum_begin(sum, evaluation, metric);
    validation_sum_again(sum);
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

static void make_room(struct clients *all)
{
    static const char what[] = "the differences of a round";
    const size_t count = (size_t)all->in_round;
    all->differences = must_zero(count * all->model->float_count, sizeof *all->differences, what);
    all->pointers = must_zero(count, sizeof *all->pointers, what);
    all->weights = must_zero(count, sizeof *all->weights, what);
    all->scales = must_zero(count, sizeof *all->scales, what);
    all->scratch = must_alloc(robust_scratch(all->in_round), what);
}

bool clients_engine_create(struct engine **engine, struct engine *inside, const struct engine_options *options,
                           const struct clients_options *clients, const struct clients_data *data, struct error *error)
{
    const struct config_train *train = &options->config->train;
    struct clients *all = must_zero(1, sizeof *all, "clients");
    *all = (struct clients){.engine = {.table = &clients_table},
                            .inside = inside,
                            .model = options->model,
                            .config = options->config,
                            .data = data,
                            .outer = outer_train(train),
                            .count = clients->count,
                            .in_round = round_share(train->participation, clients->count)};
    all->chosen = must_zero((size_t)all->count, sizeof *all->chosen, "clients");
    all->taking = must_zero((size_t)all->in_round, sizeof *all->taking, "clients");
    all->sum = must_zero(all->model->float_count, sizeof *all->sum, "the sum of the clients' differences");
    if (keeps_differences(train)) {
        make_room(all);
    }
    store_create(&all->shared, all->model, &all->outer);
    if (clients->exchanges && dtype_is_packed(sent_model_gradient_dtype(&options->config->cluster))) {
        all->messages = small_messages_create(all->model, options->config, all->count);
    }
    if (!runners_create(&all->runners, inside, options, &data->examples, &data->partition, all->in_round, error)) {
        clients_destroy(&all->engine);
        return false;
    }
    *engine = &all->engine;
    return true;
}
