/* Decides when a summary is due and what goes into it. A failure to write costs the summaries, never the training. */
#include "worker/summary/summary.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/profile.h"
#include "ps/store/store.h"
#include "ps/store/optimizer.h"
#include "worker/data/image/image.h"
#include "base/random/sampler.h"
#include "worker/summary/activations.h"
#include "worker/summary/curves.h"
#include "worker/summary/describe.h"
#include "worker/summary/event_file.h"
#include "worker/summary/graph.h"

#define DEFAULT_FOLDER "summaries"

struct summary {
    struct summary_options options;
    struct event_file file;
    struct event event; /* the one being made */
    int64_t steps;      /* between summaries; 0: not by steps */
    double seconds;     /* likewise */
    double last_s;
    int64_t written;
    bool broken;       /* writing failed and was reported; no more summaries */
    float *parameters; /* [float_count] */
    float *gradient;   /* likewise; NULL if the engine gives none */
    int32_t *indexes;  /* [batch_size] */
    struct histogram histograms[CONFIG_MAX_LAYERS];
};

/* --- beginning --- */

/* summary_dir, or summaries/ in train_dir; "" for none. */
static bool choose_folder(char folder[EVENT_FILE_PATH], const struct config_output *output, struct error *error)
{
    folder[0] = '\0';
    if (output->save_summaries_steps == 0 && output->save_summaries_secs == 0) {
        return true;
    }
    if (output->summary_dir[0] != '\0') {
        int used = snprintf(folder, EVENT_FILE_PATH, "%s", output->summary_dir);
        return used < EVENT_FILE_PATH || error_set(error, "output.summary_dir: the path is too long");
    }
    return output->train_dir[0] == '\0' || file_join(folder, EVENT_FILE_PATH, output->train_dir, DEFAULT_FOLDER, error);
}

static bool take_memory(struct summary *summary, struct error *error)
{
    const struct summary_options *options = &summary->options;
    size_t floats = options->model->float_count;
    bool has_gradient = options->engine->table->step && options->dataset->sample.count > 0;
    summary->parameters = malloc(floats * sizeof *summary->parameters);
    if (has_gradient) {
        summary->gradient = calloc(floats, sizeof *summary->gradient);
        summary->indexes = malloc((size_t)options->config->train.batch_size * sizeof *summary->indexes);
    }
    return (summary->parameters && (!has_gradient || (summary->gradient && summary->indexes))) ||
           error_set(error, "out of memory for summaries of %zu parameters; disable them with --save_summaries_steps=0",
                     floats);
}

static void put_event(struct summary *summary)
{
    event_file_add(&summary->file, &summary->event);
}

/* A few images of the training set, as PNG; rows have none. */
static void put_images(struct summary *summary, double wall_s)
{
    const struct examples *train = &summary->options.dataset->sample;
    struct event *event = &summary->event;
    size_t pixels = (size_t)train->height * (size_t)train->width;
    event_begin(event, wall_s, summary->options.global_step);
    for (int i = 0; i < SUMMARY_IMAGES && i < train->count && !examples_are_rows(train); i++) {
        char tag[32];
        uint8_t *png;
        size_t size;
        struct error error;
        snprintf(tag, sizeof tag, "input/image/%d", i);
        if (image_encode_png(train->images + (size_t)i * pixels, train->width, train->height, &png, &size, &error)) {
            event_image(event, tag, train->width, train->height, png, size);
            free(png);
        }
    }
    event_end(event);
    put_event(summary);
}

static void put_preamble(struct summary *summary)
{
    const struct summary_options *options = &summary->options;
    double wall_s = clock_wall_s();
    struct proto graph = {0};
    event_session_start(&summary->event, wall_s, options->global_step);
    put_event(summary);
    graph_encode(&graph, options->model, options->config);
    event_graph(&summary->event, wall_s, &graph);
    put_event(summary);
    proto_free(&graph);
    describe_config(&summary->event, options->config, wall_s, options->global_step);
    put_event(summary);
    describe_experiment(&summary->event, options->config, wall_s);
    put_event(summary);
    describe_run_start(&summary->event, options->config, options->digest, wall_s);
    put_event(summary);
    put_images(summary, wall_s);
}

/* Writes pending events. A failure is reported once and ends the summaries, not training. */
static void flush(struct summary *summary)
{
    struct error error;
    if (!summary->broken && !event_file_flush(&summary->file, &error)) {
        log_warning("%s; training continues without summaries", error.text);
        summary->broken = true;
    }
}

bool summary_open(struct summary **opened, const struct summary_options *options, struct error *error)
{
    char folder[EVENT_FILE_PATH];
    const struct config_output *output = &options->config->output;
    *opened = NULL;
    if (!choose_folder(folder, output, error)) {
        return false;
    }
    if (folder[0] == '\0') {
        return true;
    }
    struct summary *summary = calloc(1, sizeof *summary);
    if (!summary) {
        return error_set(error, "out of memory for summaries; disable them with --save_summaries_steps=0");
    }
    summary->options = *options;
    summary->steps = output->save_summaries_steps;
    summary->seconds = output->save_summaries_secs;
    summary->last_s = clock_monotonic_s();
    summary->file.fd = -1;
    if (!take_memory(summary, error) || !event_file_create(&summary->file, folder, error)) {
        summary_close(summary, false);
        return false;
    }
    put_preamble(summary);
    flush(summary);
    *opened = summary;
    return true;
}

/* --- when --- */

void summary_retime(struct summary *summary, const struct config_output *output)
{
    if (summary) {
        summary->steps = output->save_summaries_steps;
        summary->seconds = output->save_summaries_secs;
    }
}

bool summary_is_due(const struct summary *summary, int64_t before, int64_t step, double now_s)
{
    if (!summary) {
        return false;
    }
    bool by_step = summary->steps > 0 && step / summary->steps > before / summary->steps;
    return by_step || (summary->seconds > 0 && now_s - summary->last_s >= summary->seconds);
}

int64_t summary_steps_to_due(const struct summary *summary, int64_t step)
{
    return summary && summary->steps > 0 ? (step / summary->steps + 1) * summary->steps - step : INT64_MAX;
}

/* --- what --- */

/* l2/2 x |weights|^2, as in the loss. */
static double l2_loss(const struct summary *summary)
{
    const struct model *model = summary->options.model;
    double squares = 0;
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        for (int row = 0; row < variable->rows && variable->is_weights; row++) {
            const float *values = summary->parameters + variable->offset + (size_t)row * (size_t)variable->stride;
            for (int col = 0; col < variable->cols; col++) {
                squares += (double)values[col] * (double)values[col];
            }
        }
    }
    return summary->options.config->train.l2 / 2 * squares;
}

static void put_scalars(struct summary *summary, const struct summary_step *step)
{
    struct event *event = &summary->event;
    const struct config_train *train = &summary->options.config->train;
    double l2 = train->l2 > 0 ? l2_loss(summary) : 0;
    event_scalar(event, "loss", step->cross_entropy + l2);
    event_scalar(event, "cross_entropy", step->cross_entropy);
    event_scalar(event, "l2_loss", l2);
    const int64_t last = step->global_step > 0 ? step->global_step - 1 : 0; /* a step may consist of many pushes */
    event_scalar(event, "learning_rate", schedule_learning_rate(train, last));
    if (!isnan(step->accuracy)) {
        event_scalar(event, "train/accuracy", step->accuracy);
    }
    event_scalar(event, "global_step/sec", step->steps_per_s);
    event_scalar(event, "examples/sec", step->examples_per_s);
    event_scalar(event, "sec/batch", step->seconds_per_batch);
    if (step->cluster) {
        event_scalar(event, "cluster/staleness", step->cluster->staleness);
        if (step->cluster->dropped_gradients >= 0) {
            event_scalar(event, "cluster/dropped_gradients", (double)step->cluster->dropped_gradients);
        }
        event_scalar(event, "cluster/bytes_sent", (double)step->cluster->bytes_sent);
        event_scalar(event, "cluster/bytes_received", (double)step->cluster->bytes_received);
    }
}

/* One histogram per variable, of a vector in the model's layout. */
static void put_variables(struct summary *summary, const float *vector, const char *suffix)
{
    const struct model *model = summary->options.model;
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        struct histogram *histogram = &summary->histograms[0];
        char tag[64];
        histogram_clear(histogram);
        for (int row = 0; row < variable->rows; row++) {
            histogram_add(histogram, vector + variable->offset + (size_t)row * (size_t)variable->stride,
                          (size_t)variable->cols);
        }
        snprintf(tag, sizeof tag, "%s%s", variable->name, suffix);
        event_histogram(&summary->event, tag, histogram);
    }
}

/*
 * The gradient of the next step's batch or, if the training set streams, of a batch of its first images; without the L2
 * term.
 */
static bool put_gradient(struct summary *summary, int64_t step, struct error *error)
{
    const struct summary_options *options = &summary->options;
    const struct config_train *train = &options->config->train;
    const struct dataset *dataset = options->dataset;
    const struct examples *from = dataset->streaming ? &dataset->sample : &dataset->train;
    struct sampler sampler = {
        .seed = (uint64_t)train->seed, .examples = (uint32_t)from->count, .batch_size = (uint32_t)train->batch_size};
    struct batch batch = {.examples = from, .indexes = summary->indexes, .step = step};
    struct collector collector = {.model = options->model, .sum = summary->gradient, .weight = 1, .first = true};
    struct gradient_sink sink = collector_sink(&collector);
    struct train_result done;
    batch.count = sampler_draw(&sampler, step, summary->indexes);
    if (!options->engine->table->step(options->engine, &batch, &sink, &done, error)) {
        return false;
    }
    put_variables(summary, summary->gradient, "/gradient");
    return true;
}

static bool put_activations(struct summary *summary, struct error *error)
{
    const struct summary_options *options = &summary->options;
    const struct model *model = options->model;
    const struct examples *sample = &options->dataset->sample;
    int count = sample->count < ACTIVATIONS_IMAGES ? sample->count : ACTIVATIONS_IMAGES;
    if (!activations_measure(model, summary->parameters, sample, count, summary->histograms, error)) {
        return false;
    }
    for (int layer = 0; layer < model->layer_count; layer++) {
        char tag[32];
        snprintf(tag, sizeof tag, layer + 1 < model->layer_count ? "layer%d/activations" : "logits", layer);
        event_histogram(&summary->event, tag, &summary->histograms[layer]);
    }
    return true;
}

static bool put_histograms(struct summary *summary, int64_t step, struct error *error)
{
    put_variables(summary, summary->parameters, "");
    return put_activations(summary, error) && (!summary->gradient || put_gradient(summary, step, error));
}

void summary_write(struct summary *summary, const struct summary_step *step)
{
    PROFILE("write summary");
    struct error error;
    if (!summary || summary->broken) {
        return;
    }
    const struct summary_options *options = &summary->options;
    bool with_histograms = summary->steps == 0 || summary->written % SUMMARY_HISTOGRAMS == 0;
    bool needs_parameters = with_histograms || options->config->train.l2 > 0;
    if (needs_parameters && !options->engine->table->read(options->engine, STORE_PARAMETERS, 0,
                                                          options->model->float_count, summary->parameters, &error)) {
        return; /* the device has failed; the next step reports it */
    }
    event_begin(&summary->event, clock_wall_s(), step->global_step);
    put_scalars(summary, step);
    if (with_histograms && !put_histograms(summary, step->global_step, &error)) {
        log_warning("a summary lacks its histograms: %s", error.text);
    }
    event_end(&summary->event);
    put_event(summary);
    flush(summary);
    summary->written++;
    summary->last_s = clock_monotonic_s();
}

static void put_metrics(struct summary *summary, const char *of, const struct evaluation *evaluation)
{
    bool is_of_table = evaluation->options.rows > 0 || evaluation->regression;
    char tag[64];
    if (!evaluation->regression) {
        snprintf(tag, sizeof tag, "%s/accuracy", of);
        event_scalar(&summary->event, tag, evaluation_accuracy(evaluation));
    }
    for (int m = METRIC_BALANCED_ACCURACY; m < METRICS && is_of_table; m++) {
        double value = evaluation_metric(evaluation, (enum metric)m);
        if (!isnan(value)) {
            snprintf(tag, sizeof tag, "%s/%s", of, config_metric_name((enum metric)m));
            event_scalar(&summary->event, tag, value);
        }
    }
}

/* For workers that validate on their own rows. */
static void put_validators(struct summary *summary, const struct validators *validators)
{
    double worst = 0;
    for (int i = 0; i < validators->worst; i++) {
        worst += validators->scores[i].score / validators->worst;
    }
    event_scalar(&summary->event, "validation/workers", validators->count);
    if (validators->worst > 0 && !isnan(worst)) {
        event_scalar(&summary->event, "validation/worst_tenth", worst);
    }
}

void summary_validation(struct summary *summary, int64_t global_step, const struct evaluation *evaluation,
                        const struct validators *validators)
{
    if (summary && !summary->broken) {
        event_begin(&summary->event, clock_wall_s(), global_step);
        put_metrics(summary, "validation", evaluation);
        event_scalar(&summary->event, "validation/loss", evaluation->loss);
        if (validators->count > 0) {
            put_validators(summary, validators);
        }
        if (evaluation->options.rows > 0) {
            curves_put(&summary->event, evaluation);
        }
        event_end(&summary->event);
        put_event(summary);
        flush(summary);
    }
}

void summary_test(struct summary *summary, int64_t global_step, const struct evaluation *evaluation)
{
    if (summary && !summary->broken) {
        event_begin(&summary->event, clock_wall_s(), global_step);
        put_metrics(summary, "test", evaluation);
        event_end(&summary->event);
        put_event(summary);
        flush(summary);
    }
}

void summary_close(struct summary *summary, bool succeeded)
{
    if (!summary) {
        return;
    }
    if (summary->file.fd >= 0 && !summary->broken) {
        describe_run_end(&summary->event, succeeded, clock_wall_s());
        put_event(summary);
        flush(summary);
    }
    event_file_close(&summary->file);
    proto_free(&summary->event.proto);
    free(summary->parameters);
    free(summary->gradient);
    free(summary->indexes);
    free(summary);
}
