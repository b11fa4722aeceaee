/* Averages are of what the nets say in double precision, in the order of the nets. */
#include "worker/ensemble.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/threads.h"
#include "worker/evaluation/evaluate.h"

enum {
    CHUNK_FLOATS = 1 << 17, /* outputs of a net that are computed at once ... */
    MOST_ROWS = 4096,       /* ... of at most so many examples */
};

/* One net of it. */
struct one_net {
    struct engine *engine;
    enum number_view view;
    struct model model;      /* this net alone */
    struct config config;    /* by which it trains; owns nothing */
    struct examples train;   /* as it sees them */
    struct examples like;    /* likewise */
    size_t first;            /* of its floats in the whole vector */
    float *outputs;          /* [chunk_rows, outputs], scratch */
    struct gradient_sink to; /* of the whole model's gradient */
    int first_variable;
    struct train_result result; /* of the call in progress, like the next two */
    struct error error;
    bool done;
};

struct ensemble {
    struct engine engine;
    const struct model *model;   /* borrowed */
    const struct config *config; /* borrowed: live keys of it change */
    enum loss_kind loss;
    struct pool *pool; /* a thread for each net, or for several */
    int outputs, chunk_rows, count;
    double *row; /* [count + 1, outputs], scratch */
    struct one_net members[CONFIG_MAX_NETS];
};

static struct ensemble *of(struct engine *engine)
{
    return (struct ensemble *)engine;
}

/* --- All nets at once --- */

/* A call that each net gets; one of them. */
struct nets_call {
    struct ensemble *ensemble;
    bool (*run)(const struct nets_call *call, struct one_net *member);
    int64_t steps;
    const struct batch *batch;
    bool averaged;
    const struct examples *examples;
    int first, rows;
};

static void run_some(void *context, int thread)
{
    const struct nets_call *call = context;
    const int threads = pool_threads(call->ensemble->pool);
    for (int i = thread; i < call->ensemble->count; i += threads) {
        struct one_net *member = &call->ensemble->members[i];
        member->done = call->run(call, member);
    }
}

/* False with the error of the first net that failed. */
static bool run_all(struct nets_call *call, struct error *error)
{
    struct ensemble *ensemble = call->ensemble;
    pool_run(ensemble->pool, run_some, call);
    for (int i = 0; i < ensemble->count; i++) {
        if (!ensemble->members[i].done) {
            *error = ensemble->members[i].error;
            return false;
        }
    }
    return true;
}

/* --- Training --- */

/* Keys of the training section may have changed since the last call. */
static void take_config(struct ensemble *ensemble)
{
    for (int i = 0; i < ensemble->count; i++) {
        struct config_train *train = &ensemble->members[i].config.train;
        const int threads = train->num_threads;
        *train = ensemble->config->train;
        train->num_threads = threads;
    }
}

/*
 * Of a step, what the nets did on average: an example counts as classified correctly as often as the nets did so. A net
 * whose loss is not finite ends it for all.
 */
static struct train_result merge(const struct ensemble *ensemble)
{
    struct train_result all = {.finite = true};
    const int count = ensemble->count;
    for (int i = 0; i < count; i++) {
        const struct train_result *one = &ensemble->members[i].result;
        all.loss_sum += one->loss_sum / count;
        all.last_loss += one->last_loss / count;
        all.correct += one->correct;
        all.images = i == 0 || one->images < all.images ? one->images : all.images;
        all.steps = i == 0 || one->steps < all.steps ? one->steps : all.steps;
        if (all.finite && !one->finite) {
            all.finite = false;
            all.bad_loss = one->bad_loss;
        }
    }
    all.correct /= count;
    return all;
}

static bool train_net(const struct nets_call *call, struct one_net *member)
{
    return member->engine->table->train(member->engine, call->steps, &member->result, &member->error);
}

static bool train(struct engine *engine, int64_t n, struct train_result *result, struct error *error)
{
    struct ensemble *ensemble = of(engine);
    struct nets_call call = {.ensemble = ensemble, .run = train_net, .steps = n};
    take_config(ensemble);
    if (!run_all(&call, error)) {
        return false;
    }
    *result = merge(ensemble);
    return true;
}

/* A block of a net's gradient, as one of the whole model's. */
static void pass_on(void *context, const struct gradient_block *block)
{
    const struct one_net *member = context;
    struct gradient_block whole = *block;
    whole.variable += member->first_variable;
    member->to.block(member->to.context, &whole);
}

static bool step_net(const struct nets_call *call, struct one_net *member)
{
    const struct examples seen = examples_view(call->batch->examples, member->view);
    struct batch batch = *call->batch;
    const struct gradient_sink sink = {.block = pass_on, .context = member};
    batch.examples = &seen;
    return member->engine->table->step(member->engine, &batch, &sink, &member->result, &member->error);
}

static bool step(struct engine *engine, const struct batch *batch, const struct gradient_sink *sink,
                 struct train_result *result, struct error *error)
{
    struct ensemble *ensemble = of(engine);
    struct nets_call call = {.ensemble = ensemble, .run = step_net, .batch = batch};
    take_config(ensemble);
    for (int i = 0; i < ensemble->count; i++) {
        ensemble->members[i].to = *sink;
    }
    if (!run_all(&call, error)) {
        return false;
    }
    *result = merge(ensemble);
    return true;
}

/* --- Answers --- */

/* log(e^a + e^b); NaN if one of them is. */
static double log_sum(double a, double b)
{
    const double most = a > b ? a : b;
    return isinf(most) && a == b ? a : most + log1p(exp(-fabs(a - b)));
}

/* Of a row of logits: the log of the sum of their powers of e. */
static double log_sum_of(const double *logits, int count)
{
    double most = logits[0], sum = 0;
    for (int i = 1; i < count; i++) {
        most = logits[i] > most ? logits[i] : most;
    }
    for (int i = 0; i < count; i++) {
        sum += exp(logits[i] - most);
    }
    return most + log(sum);
}

/* log(1 / (1 + e^-z)) */
static double log_sigmoid(double z)
{
    return z < 0 ? z - log1p(exp(z)) : -log1p(exp(-z));
}

/* Logs of the mean probabilities, whose softmax they are. */
static void average_classes(int nets, int outputs, const double *logits, double *average)
{
    double sums[CONFIG_MAX_NETS] = {0};
    for (int net = 0; net < nets; net++) {
        sums[net] = log_sum_of(logits + (ptrdiff_t)net * outputs, outputs);
    }
    for (int i = 0; i < outputs; i++) {
        double sum = logits[i] - sums[0];
        for (int net = 1; net < nets; net++) {
            sum = log_sum(sum, logits[(ptrdiff_t)net * outputs + i] - sums[net]);
        }
        average[i] = sum - log((double)nets);
    }
}

/* Log odds of the mean probabilities. */
static double average_odds(int nets, int outputs, const double *logits)
{
    double yes = log_sigmoid(logits[0]), no = log_sigmoid(-logits[0]);
    for (int net = 1; net < nets; net++) {
        const double z = logits[(ptrdiff_t)net * outputs];
        yes = log_sum(yes, log_sigmoid(z));
        no = log_sum(no, log_sigmoid(-z));
    }
    return yes - no;
}

static double mean_of(int nets, int outputs, const double *numbers)
{
    double sum = 0;
    for (int net = 0; net < nets; net++) {
        sum += numbers[(ptrdiff_t)net * outputs];
    }
    return sum / nets;
}

void ensemble_average(enum loss_kind loss, int nets, int outputs, const double *values, double *average)
{
    if (loss == LOSS_SOFTMAX) {
        average_classes(nets, outputs, values, average);
        return;
    }
    for (int i = 0; i < outputs; i++) {
        average[i] =
            loss == LOSS_SIGMOID ? average_odds(nets, outputs, values + i) : mean_of(nets, outputs, values + i);
    }
}

static void average(const struct ensemble *ensemble, const double *values, double *outputs)
{
    ensemble_average(ensemble->loss, ensemble->count, ensemble->outputs, values, outputs);
}

/* What a net says of one output: its probability, or the number. */
static double said(enum loss_kind loss, int outputs, const double *values, int output)
{
    return loss == LOSS_SOFTMAX   ? exp(values[output] - log_sum_of(values, outputs))
           : loss == LOSS_SIGMOID ? exp(log_sigmoid(values[output]))
                                  : values[output];
}

static void deviate(const struct ensemble *ensemble, const double *values, double *spreads)
{
    const int outputs = ensemble->outputs;
    for (int i = 0; i < outputs; i++) {
        double mean = 0, squares = 0;
        for (int net = 0; net < ensemble->count; net++) {
            mean += said(ensemble->loss, outputs, values + (ptrdiff_t)net * outputs, i) / ensemble->count;
        }
        for (int net = 0; net < ensemble->count; net++) {
            const double off = said(ensemble->loss, outputs, values + (ptrdiff_t)net * outputs, i) - mean;
            squares += off * off / ensemble->count;
        }
        spreads[i] = sqrt(squares);
    }
}

static bool forward_net(const struct nets_call *call, struct one_net *member)
{
    const struct examples seen = examples_view(call->examples, member->view);
    return member->engine->table->forward(member->engine, call->averaged, &seen, call->first, call->rows,
                                          member->outputs, &member->error);
}

/* One row of the call: what all nets say of it, combined. */
static void combine_row(struct ensemble *ensemble, int row,
                        void (*combined)(const struct ensemble *ensemble, const double *values, double *result),
                        float *out)
{
    const size_t outputs = (size_t)ensemble->outputs, nets = (size_t)ensemble->count;
    double *result = ensemble->row + nets * outputs;
    for (size_t net = 0; net < nets; net++) {
        const float *values = ensemble->members[net].outputs + (size_t)row * outputs;
        for (size_t i = 0; i < outputs; i++) {
            ensemble->row[net * outputs + i] = (double)values[i];
        }
    }
    combined(ensemble, ensemble->row, result);
    for (size_t i = 0; i < outputs; i++) {
        out[i] = (float)result[i];
    }
}

/* Has each row's outputs of all nets combined into `out`, [count, outputs]. */
static bool combine(struct ensemble *ensemble, bool averaged, const struct examples *examples, int first, int count,
                    void (*combined)(const struct ensemble *ensemble, const double *values, double *result), float *out,
                    struct error *error)
{
    for (int at = 0; at < count; at += ensemble->chunk_rows) {
        struct nets_call call = {.ensemble = ensemble,
                                 .run = forward_net,
                                 .averaged = averaged,
                                 .examples = examples,
                                 .first = first + at,
                                 .rows = count - at < ensemble->chunk_rows ? count - at : ensemble->chunk_rows};
        if (!run_all(&call, error)) {
            return false;
        }
        for (int row = 0; row < call.rows; row++) {
            combine_row(ensemble, row, combined, out + (size_t)(at + row) * (size_t)ensemble->outputs);
        }
    }
    return true;
}

static bool forward(struct engine *engine, bool averaged, const struct examples *examples, int first, int count,
                    float *logits, struct error *error)
{
    return combine(of(engine), averaged, examples, first, count, average, logits, error);
}

/* --- State --- */

/* The part of floats [first, first + count) that is a net's: where it begins in the whole vector; 0 if there is none.
 */
static size_t part_of(const struct one_net *member, size_t first, size_t count, size_t *begin)
{
    const size_t end = member->first + member->model.float_count;
    *begin = first > member->first ? first : member->first;
    const size_t until = first + count < end ? first + count : end;
    return until > *begin ? until - *begin : 0;
}

/* Reads into `values`, or if that is NULL writes what is in `written`. */
static bool move_state(struct engine *engine, enum store_vector vector, size_t first, size_t count, float *values,
                       const float *written, struct error *error)
{
    struct ensemble *ensemble = of(engine);
    bool done = true;
    for (int i = 0; done && i < ensemble->count; i++) {
        struct one_net *member = &ensemble->members[i];
        const struct engine_table *table = member->engine->table;
        size_t begin;
        const size_t part = part_of(member, first, count, &begin), at = begin - member->first;
        if (part > 0) {
            done = values ? table->read(member->engine, vector, at, part, values + (begin - first), error)
                          : table->write(member->engine, vector, at, part, written + (begin - first), error);
        }
    }
    return done;
}

static bool read_state(struct engine *engine, enum store_vector vector, size_t first, size_t count, float *values,
                       struct error *error)
{
    return move_state(engine, vector, first, count, values, NULL, error);
}

static bool write_state(struct engine *engine, enum store_vector vector, size_t first, size_t count,
                        const float *values, struct error *error)
{
    return move_state(engine, vector, first, count, NULL, values, error);
}

static int64_t global_step(const struct engine *engine)
{
    const struct engine *first = ((const struct ensemble *)engine)->members[0].engine;
    return first->table->global_step(first);
}

static void set_global_step(struct engine *engine, int64_t step)
{
    struct ensemble *ensemble = of(engine);
    for (int i = 0; i < ensemble->count; i++) {
        ensemble->members[i].engine->table->set_global_step(ensemble->members[i].engine, step);
    }
}

static void describe(const struct engine *engine, char *text, size_t size)
{
    const struct ensemble *ensemble = (const struct ensemble *)engine;
    const struct engine *first = ensemble->members[0].engine;
    char one[256];
    first->table->describe(first, one, sizeof one);
    snprintf(text, size, "%s for each of %d nets at a time", one, pool_threads(ensemble->pool));
}

/* --- Create and destroy --- */

static void destroy(struct engine *engine)
{
    struct ensemble *ensemble = of(engine);
    for (int i = 0; i < ensemble->count; i++) {
        if (ensemble->members[i].engine) {
            ensemble->members[i].engine->table->destroy(ensemble->members[i].engine);
        }
        free(ensemble->members[i].outputs);
    }
    pool_destroy(ensemble->pool);
    free(ensemble->row);
    free(ensemble);
}

static const struct engine_table ensemble_table = {
    .name = "cpu",
    .train = train,
    .step = step,
    .forward = forward,
    .read = read_state,
    .write = write_state,
    .parameters = NULL,
    .global_step = global_step,
    .set_global_step = set_global_step,
    .describe = describe,
    .destroy = destroy,
};

static bool create_member(struct ensemble *ensemble, const struct engine_options *options, int net, int threads,
                          struct error *error)
{
    struct one_net *member = &ensemble->members[net];
    struct engine_options own = *options;
    member->view = options->model->views[net];
    member->config = *options->config;
    member->config.train.num_threads = threads;
    member->first = model_net(options->model, net, &member->model);
    member->first_variable = net * member->model.variable_count;
    own.model = &member->model;
    own.config = &member->config;
    own.net = net;
    if (options->train) {
        member->train = examples_view(options->train, member->view);
        own.train = &member->train;
    }
    if (options->like) {
        member->like = examples_view(options->like, member->view);
        own.like = &member->like;
    }
    member->outputs = must_zero((size_t)ensemble->chunk_rows * (size_t)ensemble->outputs, sizeof *member->outputs,
                                "the outputs of the nets of an ensemble");
    return cpu_engine_create(&member->engine, &own, error);
}

static bool create_all(struct ensemble *ensemble, const struct engine_options *options, struct error *error)
{
    const int wanted = options->config->train.num_threads, all = wanted > 0 ? wanted : threads_available();
    const int at_once = all < ensemble->count ? all : ensemble->count;
    if (!pool_create(&ensemble->pool, at_once, error)) {
        return false;
    }
    ensemble->row = must_zero((size_t)(ensemble->count + 1) * (size_t)ensemble->outputs, sizeof *ensemble->row,
                              "a row of the nets of an ensemble");
    for (int i = 0; i < ensemble->count; i++) {
        if (!create_member(ensemble, options, i, all / at_once, error)) {
            return false;
        }
    }
    if (options->low_priority) {
        pool_give_way(ensemble->pool);
    }
    return true;
}

bool ensemble_create_on_cpu(struct engine **out, const struct engine_options *options, struct error *error)
{
    const struct model *model = options->model;
    const struct examples *like = options->like ? options->like : options->train;
    if (model->net_count == 1 && model->views[0] == VIEW_RAW) {
        return cpu_engine_create(out, options, error);
    }
    if (options->streaming) {
        return error_set(error, "an ensemble of nets needs the training set in memory, and this one is larger than "
                                "data.memory_mb; raise that, or set --ensemble=raw:1");
    }
    struct ensemble *ensemble = must_zero(1, sizeof *ensemble, "an ensemble of nets");
    const int outputs = model->widths[model->layer_count], rows = CHUNK_FLOATS / outputs;
    *ensemble = (struct ensemble){.engine = {.table = &ensemble_table},
                                  .model = model,
                                  .config = options->config,
                                  .loss = evaluation_loss(&options->config->train, like ? like->targets : 0),
                                  .outputs = outputs,
                                  .chunk_rows = rows < 1           ? 1
                                                : rows > MOST_ROWS ? MOST_ROWS
                                                                   : rows,
                                  .count = model->net_count};
    if (!create_all(ensemble, options, error)) {
        destroy(&ensemble->engine);
        return false;
    }
    *out = &ensemble->engine;
    return true;
}

bool ensemble_spread(struct engine *engine, const struct examples *examples, int first, int count, float *spreads,
                     struct error *error)
{
    if (engine->table == &ensemble_table) {
        return combine(of(engine), false, examples, first, count, deviate, spreads, error);
    }
    return error_set(error, "the model is a single net, and a spread needs several (model.ensemble)");
}
