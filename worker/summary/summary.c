/* Summaries in TensorBoard's event files. */
#include "worker/summary/summary.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/config/keys.h"
#include "base/encoding/proto.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/profile.h"
#include "base/random/sampler.h"
#include "ps/store/model.h"
#include "ps/store/optimizer.h"
#include "ps/store/store.h"
#include "worker/data/examples.h"
#include "worker/data/image.h"
#include "worker/data/tfrecord/reader.h"
#include "worker/evaluation/evaluate.h"

/* --- Event files --- */

/* Start with zeros; proto_free(&event.proto) releases it, for good or until the next event_begin. */
struct event {
    struct proto proto;
    size_t summary; /* the open nested message */
};

/* --- The file --- */

/* A tfevents file: a sequence of events in TFRecord frames. TensorBoard reads it while it grows. */

enum { EVENT_FILE_PATH = 4096 };

struct event_file {
    int fd;
    char path[EVENT_FILE_PATH];
    struct proto pending; /* frames not written yet */
};

/* Events in protocol buffers; field numbers are those of event.proto and summary.proto. */

enum { EVENT_WALL = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_GRAPH = 4, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1 };
enum { VALUE_TAG = 1, VALUE_SCALAR = 2, VALUE_IMAGE = 4, VALUE_HISTOGRAM = 5, VALUE_TENSOR = 8, VALUE_METADATA = 9 };
enum { SESSION_START = 1, DT_FLOAT = 1, DT_INT32 = 3, DT_STRING = 7, GREYSCALE = 1 };

static void begin(struct event *event, double wall_s, int64_t step)
{
    proto_clear(&event->proto);
    proto_double(&event->proto, EVENT_WALL, wall_s);
    proto_integer(&event->proto, EVENT_STEP, step);
}

static void event_begin(struct event *event, double wall_s, int64_t step)
{
    begin(event, wall_s, step);
    event->summary = proto_begin(&event->proto, EVENT_SUMMARY);
}

static void event_end(struct event *event)
{
    proto_end(&event->proto, event->summary);
}

static size_t begin_value(struct event *event, const char *tag)
{
    size_t value = proto_begin(&event->proto, SUMMARY_VALUE);
    proto_text(&event->proto, VALUE_TAG, tag);
    return value;
}

static void event_scalar(struct event *event, const char *tag, double number)
{
    size_t value = begin_value(event, tag);
    proto_float(&event->proto, VALUE_SCALAR, (float)number);
    proto_end(&event->proto, value);
}

static void event_histogram(struct event *event, const char *tag, const struct histogram *histogram)
{
    size_t value = begin_value(event, tag);
    histogram_encode(histogram, &event->proto, VALUE_HISTOGRAM);
    proto_end(&event->proto, value);
}

static void event_image(struct event *event, const char *tag, int width, int height, const uint8_t *png, size_t size)
{
    size_t value = begin_value(event, tag), image = proto_begin(&event->proto, VALUE_IMAGE);
    proto_integer(&event->proto, 1, height);
    proto_integer(&event->proto, 2, width);
    proto_integer(&event->proto, 3, GREYSCALE);
    proto_bytes(&event->proto, 4, png, size);
    proto_end(&event->proto, image);
    proto_end(&event->proto, value);
}

static void put_metadata(struct event *event, const char *plugin, const struct proto *content)
{
    size_t metadata = proto_begin(&event->proto, VALUE_METADATA), data = proto_begin(&event->proto, 1);
    proto_text(&event->proto, 1, plugin);
    if (content) {
        proto_bytes(&event->proto, 2, content->bytes, content->size);
    }
    proto_end(&event->proto, data);
    proto_end(&event->proto, metadata);
}

static void event_text(struct event *event, const char *tag, const char *markdown)
{
    size_t value = begin_value(event, tag), tensor = proto_begin(&event->proto, VALUE_TENSOR);
    proto_integer(&event->proto, 1, DT_STRING);
    size_t shape = proto_begin(&event->proto, 2); /* no dimensions: one string */
    proto_end(&event->proto, shape);
    proto_text(&event->proto, 8, markdown);
    proto_end(&event->proto, tensor);
    put_metadata(event, "text", NULL);
    proto_end(&event->proto, value);
}

static void event_pr_curve(struct event *event, const char *tag, int thresholds, const float *values)
{
    enum { ROWS = 6 };
    struct proto content = {0};
    size_t value = begin_value(event, tag), tensor = proto_begin(&event->proto, VALUE_TENSOR);
    proto_integer(&event->proto, 1, DT_FLOAT);
    size_t shape = proto_begin(&event->proto, 2);
    const int sizes[] = {ROWS, thresholds};
    for (int i = 0; i < 2; i++) {
        size_t dimension = proto_begin(&event->proto, 2);
        proto_integer(&event->proto, 1, sizes[i]);
        proto_end(&event->proto, dimension);
    }
    proto_end(&event->proto, shape);
    proto_bytes(&event->proto, 4, values, (size_t)ROWS * (size_t)thresholds * sizeof *values); /* little-endian */
    proto_end(&event->proto, tensor);
    proto_integer(&content, 2, thresholds);
    put_metadata(event, "pr_curves", &content);
    proto_end(&event->proto, value);
    proto_free(&content);
}

static void event_plugin(struct event *event, const char *tag, const char *plugin, const struct proto *content)
{
    size_t value = begin_value(event, tag);
    put_metadata(event, plugin, content);
    proto_end(&event->proto, value);
}

/* Complete events of other kinds. */
static void event_file_version(struct event *event, double wall_s)
{
    proto_clear(&event->proto);
    proto_double(&event->proto, EVENT_WALL, wall_s);
    proto_text(&event->proto, EVENT_VERSION, "brain.Event:2");
}

static void event_session_start(struct event *event, double wall_s, int64_t step)
{
    begin(event, wall_s, step);
    size_t session = proto_begin(&event->proto, EVENT_SESSION);
    proto_integer(&event->proto, 1, SESSION_START);
    proto_end(&event->proto, session);
}

static void event_graph(struct event *event, double wall_s, const struct proto *graph)
{
    begin(event, wall_s, 0);
    proto_bytes(&event->proto, EVENT_GRAPH, graph->bytes, graph->size);
}

/* --- The file --- */

/*
 * Frames are collected in memory and appended by one write, so that TensorBoard, which reads the growing file, sees
 * whole events.
 */

enum { MOST_TRIES = 1000 };

/* The host name, restricted to characters allowed in a file name. */
static void host_name(char *name, size_t size)
{
    if (gethostname(name, size) != 0) {
        snprintf(name, size, "localhost");
    }
    name[size - 1] = '\0';
    for (char *next = name; *next != '\0'; next++) {
        *next = *next == '/' ? '-' : *next;
    }
}

static bool create_file(struct event_file *file, const char *folder, struct error *error)
{
    char host[128], name[256];
    host_name(host, sizeof host);
    for (int i = 0; i < MOST_TRIES; i++) {
        snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%ld.%d", (long long)clock_wall_s(), host,
                 (long)getpid(), i);
        if (!file_join(file->path, sizeof file->path, folder, name, error)) {
            return false;
        }
        file->fd = file_create(file->path, 0666, error);
        if (file->fd >= 0 || errno != EEXIST) {
            break;
        }
    }
    return file->fd >= 0;
}

static void event_file_add(struct event_file *file, const struct event *event)
{
    tfrecord_append(&file->pending, event->proto.bytes, event->proto.size);
}

static bool event_file_create(struct event_file *file, const char *folder, struct error *error)
{
    struct event event = {0};
    *file = (struct event_file){.fd = -1};
    if (!file_make_folder(folder, error) || !create_file(file, folder, error)) {
        return false;
    }
    event_file_version(&event, clock_wall_s());
    event_file_add(file, &event);
    proto_free(&event.proto);
    return true;
}

static bool event_file_flush(struct event_file *file, struct error *error)
{
    for (size_t done = 0; done < file->pending.size;) {
        ssize_t written = write(file->fd, file->pending.bytes + done, file->pending.size - done);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0) {
            return file_error(error, file->path, "cannot be written", errno);
        }
        done += (size_t)written;
    }
    proto_clear(&file->pending);
    return true;
}

static void event_file_close(struct event_file *file)
{
    if (file->fd >= 0) {
        close(file->fd);
    }
    proto_free(&file->pending);
    file->fd = -1;
}

/* --- The config as text and as hyper-parameters --- */

/*
 * A run's configuration for TensorBoard: as a text table, and as hyper-parameters.
 *
 * Formats: tensorboard/plugins/hparams/plugin_data.proto and api.proto, google/protobuf/struct.proto.
 */

enum { EXPERIMENT = 2, START = 3, END = 4 };
enum { TYPE_STRING = 1, TYPE_BOOL = 2, TYPE_NUMBER = 3, STATUS_UNKNOWN = 0, STATUS_SUCCESS = 1, STATUS_FAILURE = 2 };

/* The page shows the first one by default. */
static const char *const metrics[] = {"validation/accuracy", "test/accuracy", "train/accuracy", "loss"};

/* All keys and values as one text event, tagged "config". */
static void describe_config(struct event *event, const struct config *config, double wall_s, int64_t step)
{
    struct proto text = {0};
    static const char head[] = "| key | value |\n| --- | --- |\n";
    proto_raw(&text, head, sizeof head - 1);
    for (const struct config_key *key = config_keys; key->section; key++) {
        char path[CONFIG_PATH_SIZE];
        char *value = config_key_chosen_text(key, config);
        config_key_path(key, path);
        proto_raw(&text, "| ", 2);
        proto_raw(&text, path, strlen(path));
        proto_raw(&text, " | ", 3);
        proto_raw(&text, value, strlen(value));
        proto_raw(&text, " |\n", 3);
        free(value);
    }
    proto_raw(&text, "", 1); /* NUL-terminates it */
    event_begin(event, wall_s, step);
    event_text(event, "config", (const char *)text.bytes);
    event_end(event);
    proto_free(&text);
}

static bool is_hyper_parameter(const struct config_key *key)
{
    bool section =
        strcmp(key->section, "model") == 0 || strcmp(key->section, "train") == 0 || strcmp(key->section, "data") == 0;
    return section && key->scope == SCOPE_JOB;
}

static int type_of(const struct config_key *key)
{
    switch (key->type) {
    case KEY_SWITCH:
        return TYPE_BOOL;
    case KEY_COUNT:
    case KEY_LONG:
    case KEY_NUMBER:
        /* "auto" is a number by now, except where it stays. */
        return key->offset == offsetof(struct config, data.validation_size) ||
                       key->offset == offsetof(struct config, train.threshold)
                   ? TYPE_STRING
                   : TYPE_NUMBER;
    case KEY_TEXT:
    case KEY_WORD:
    case KEY_LAYERS:
    case KEY_HOSTS:
    case KEY_NAMES:
    case KEY_HIDDEN:
    case KEY_DEVICE:
    case KEY_DEVICES:
    case KEY_LAYER_DEVICES:
        break;
    }
    return TYPE_STRING;
}

/* One event of the plugin: its data with `content` in field `field`. */
static void put_hparams(struct event *event, const char *tag, double wall_s, int field, const struct proto *content)
{
    struct proto data = {0};
    proto_integer(&data, 1, 0); /* the version of the data */
    proto_bytes(&data, field, content->bytes, content->size);
    event_begin(event, wall_s, 0);
    event_plugin(event, tag, "hparams", &data);
    event_end(event);
    proto_free(&data);
}

/* Is a key shown first: does it always identify a run, or is it not at its default? */
static bool is_informative(const struct config_key *key, const struct config *config, const struct config *defaults)
{
    char *text = config_key_text(key, config), *initial = config_key_text(key, defaults);
    bool filled_in = strcmp(key->name, "lr_decay_steps") == 0 && config->train.lr_decay == 1;
    bool informative = strcmp(key->name, "optimizer") == 0 || strcmp(key->name, "layers") == 0 ||
                       (!filled_in && strcmp(text, initial) != 0);
    free(text);
    free(initial);
    return informative;
}

/*
 * Events for TensorBoard's HParams page: the experiment (its hyper-parameters and metrics), the run's values, and how
 * it ended. Hyper-parameters are the job-scoped keys of model, train and data, those not at their default first.
 */
static void describe_experiment(struct event *event, const struct config *config, double wall_s)
{
    struct proto experiment = {0};
    struct config defaults;
    config_defaults(&defaults);
    proto_double(&experiment, 3, wall_s);
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (is_hyper_parameter(key)) {
            size_t info = proto_begin(&experiment, 4);
            proto_text(&experiment, 1, key->name);
            proto_text(&experiment, 3, key->description);
            proto_integer(&experiment, 4, type_of(key));
            if (is_informative(key, config, &defaults)) {
                proto_integer(&experiment, 7, 1); /* "differs": the page puts it first */
            }
            proto_end(&experiment, info);
        }
    }
    for (size_t i = 0; i < sizeof metrics / sizeof metrics[0]; i++) {
        size_t info = proto_begin(&experiment, 5), name = proto_begin(&experiment, 1);
        proto_text(&experiment, 2, metrics[i]);
        proto_end(&experiment, name);
        proto_end(&experiment, info);
    }
    config_free(&defaults);
    put_hparams(event, "_hparams_/experiment", wall_s, EXPERIMENT, &experiment);
    proto_free(&experiment);
}

/* Adds the value as a google.protobuf.Value. */
static void put_value(struct proto *proto, int field, const struct config_key *key, const struct config *config)
{
    char *text = config_key_chosen_text(key, config);
    size_t value = proto_begin(proto, field);
    if (type_of(key) == TYPE_BOOL) {
        proto_integer(proto, 4, strcmp(text, "true") == 0);
    } else if (type_of(key) == TYPE_NUMBER) {
        proto_double(proto, 2, strtod(text, NULL));
    } else {
        proto_text(proto, 3, text);
    }
    proto_end(proto, value);
    free(text);
}

static void describe_run_start(struct event *event, const struct config *config, const char *digest, double wall_s)
{
    struct proto start = {0};
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (is_hyper_parameter(key)) {
            size_t entry = proto_begin(&start, 1);
            proto_text(&start, 1, key->name);
            put_value(&start, 2, key, config);
            proto_end(&start, entry);
        }
    }
    proto_text(&start, 4, digest); /* runs of one configuration form a group */
    proto_double(&start, 5, wall_s);
    put_hparams(event, "_hparams_/session_start_info", wall_s, START, &start);
    proto_free(&start);
}

static void describe_run_end(struct event *event, int status, double wall_s)
{
    struct proto end = {0};
    proto_integer(&end, 1, status);
    proto_double(&end, 2, wall_s);
    put_hparams(event, "_hparams_/session_end_info", wall_s, END, &end);
    proto_free(&end);
}

/* --- The graph --- */

/*
 * The model as a GraphDef, so that TensorBoard draws it like TensorFlow's.
 *
 * Format: tensorflow/core/framework/graph.proto, node_def.proto and attr_value.proto.
 */

enum { GRAPH_NODE = 1, GRAPH_VERSIONS = 4, NODE_NAME = 1, NODE_OP = 2, NODE_INPUT = 3, NODE_ATTRIBUTE = 5 };
enum { ATTRIBUTE_TYPE = 6, ATTRIBUTE_SHAPE = 7, PRODUCER = 27, NAME = 64 };

static void put_type(struct proto *graph, const char *key, int type)
{
    size_t attribute = proto_begin(graph, NODE_ATTRIBUTE);
    proto_text(graph, 1, key);
    size_t value = proto_begin(graph, 2);
    proto_integer(graph, ATTRIBUTE_TYPE, type);
    proto_end(graph, value);
    proto_end(graph, attribute);
}

/* Negative: any number. */
static void put_shape(struct proto *graph, int dimensions, const int64_t *sizes)
{
    size_t attribute = proto_begin(graph, NODE_ATTRIBUTE);
    proto_text(graph, 1, "shape");
    size_t value = proto_begin(graph, 2), shape = proto_begin(graph, ATTRIBUTE_SHAPE);
    for (int i = 0; i < dimensions; i++) {
        size_t dimension = proto_begin(graph, 2);
        proto_integer(graph, 1, sizes[i]);
        proto_end(graph, dimension);
    }
    proto_end(graph, shape);
    proto_end(graph, value);
    proto_end(graph, attribute);
}

/* inputs: ends with NULL. The caller adds attributes and ends the node. */
static size_t begin_node(struct proto *graph, const char *name, const char *op, const char *const *inputs)
{
    size_t node = proto_begin(graph, GRAPH_NODE);
    proto_text(graph, NODE_NAME, name);
    proto_text(graph, NODE_OP, op);
    for (; *inputs; inputs++) {
        proto_text(graph, NODE_INPUT, *inputs);
    }
    return node;
}

static void put_node(struct proto *graph, const char *name, const char *op, const char *const *inputs)
{
    size_t node = begin_node(graph, name, op, inputs);
    put_type(graph, "T", DT_FLOAT);
    proto_end(graph, node);
}

static void put_source(struct proto *graph, const char *name, const char *op, int type, int dimensions,
                       const int64_t *sizes)
{
    size_t node = begin_node(graph, name, op, (const char *[]){NULL});
    put_type(graph, "dtype", type);
    put_shape(graph, dimensions, sizes);
    proto_end(graph, node);
}

static void put_layer(struct proto *graph, const struct model *model, const struct config *config, int layer,
                      char input[NAME])
{
    static const char *const operators[] = {[ACTIVATION_RELU] = "Relu",
                                            [ACTIVATION_SIGMOID] = "Sigmoid",
                                            [ACTIVATION_TANH] = "Tanh",
                                            [ACTIVATION_IDENTITY] = "Identity"};
    const struct variable *weights = &model->variables[2 * layer], *biases = weights + 1;
    const int length = (int)(strrchr(weights->name, '/') - weights->name);
    char product[NAME], sum[NAME];
    snprintf(product, sizeof product, "%.*s/MatMul", length, weights->name);
    snprintf(sum, sizeof sum, "%.*s/BiasAdd", length, weights->name);
    put_source(graph, weights->name, "VariableV2", DT_FLOAT, 2, (int64_t[]){weights->rows, weights->cols});
    put_source(graph, biases->name, "VariableV2", DT_FLOAT, 1, (int64_t[]){biases->cols});
    put_node(graph, product, "MatMul", (const char *[]){input, weights->name, NULL});
    put_node(graph, sum, "BiasAdd", (const char *[]){product, biases->name, NULL});
    snprintf(input, NAME, "%s", sum);
    if (layer + 1 < model->layer_count) {
        snprintf(input, NAME, "%.*s/%s", length, weights->name, operators[model->activation]);
        put_node(graph, input, operators[model->activation], (const char *[]){sum, NULL});
        if (config->train.dropout > 0) {
            char active[NAME];
            memcpy(active, input, sizeof active);
            snprintf(input, NAME, "%.*s/dropout", length, weights->name);
            put_node(graph, input, "Dropout", (const char *[]){active, NULL});
        }
    }
}

/* The mean cross-entropy, plus the L2 term if there is one; `loss` becomes the name of the training loss. */
static void put_loss(struct proto *graph, const struct model *model, const struct config *config, const char *logits,
                     char loss[NAME])
{
    const char *weights[CONFIG_MAX_WEIGHTS + 1] = {NULL};
    put_node(graph, "loss/cross_entropy", "SparseSoftmaxCrossEntropyWithLogits",
             (const char *[]){logits, "labels", NULL});
    put_node(graph, "loss/mean", "Mean", (const char *[]){"loss/cross_entropy", NULL});
    snprintf(loss, NAME, "loss/mean");
    if (config->train.l2 > 0) {
        for (int i = 0; 2 * i < model->variable_count; i++) {
            weights[i] = model->variables[2 * i].name;
        }
        put_node(graph, "loss/l2", "L2Loss", weights);
        put_node(graph, "loss/total", "Add", (const char *[]){"loss/mean", "loss/l2", NULL});
        snprintf(loss, NAME, "loss/total");
    }
}

static void put_training(struct proto *graph, const struct model *model, const struct config *config,
                         const char *logits)
{
    static const char *const operators[] = {
        [OPTIMIZER_SGD] = "ApplyGradientDescent", [OPTIMIZER_MOMENTUM] = "ApplyMomentum",
        [OPTIMIZER_ADAGRAD] = "ApplyAdagrad",     [OPTIMIZER_ADADELTA] = "ApplyAdadelta",
        [OPTIMIZER_ADAM] = "ApplyAdam",           [OPTIMIZER_RMSPROP] = "ApplyRMSProp",
        [OPTIMIZER_FTRL] = "ApplyFtrl",
    };
    char loss[NAME];
    put_node(graph, "softmax", "Softmax", (const char *[]){logits, NULL});
    put_loss(graph, model, config, logits, loss);
    for (int i = 0; i < model->variable_count; i++) {
        char name[NAME];
        snprintf(name, sizeof name, "train/%s", model->variables[i].name);
        put_node(graph, name, operators[config->train.optimizer],
                 (const char *[]){model->variables[i].name, loss, NULL});
    }
}

/* Appends the message to `graph`. */
static void graph_encode(struct proto *graph, const struct model *model, const struct config *config)
{
    char outputs[CONFIG_MAX_NETS][NAME];
    const char *means[CONFIG_MAX_NETS + 1] = {NULL};
    put_source(graph, "images", "Placeholder", DT_FLOAT, 2, (int64_t[]){-1, model->widths[0]});
    put_source(graph, "labels", "Placeholder", DT_INT32, 1, (int64_t[]){-1});
    for (int net = 0; net < model->net_count; net++) {
        struct model one;
        model_net(model, net, &one);
        snprintf(outputs[net], NAME, "images");
        for (int layer = 0; layer < one.layer_count; layer++) {
            put_layer(graph, &one, config, layer, outputs[net]);
        }
        means[net] = outputs[net];
    }
    if (model->net_count > 1) {
        put_node(graph, "nets/average", "Mean", means);
    }
    put_training(graph, model, config, model->net_count > 1 ? "nets/average" : outputs[0]);
    size_t versions = proto_begin(graph, GRAPH_VERSIONS);
    proto_integer(graph, 1, PRODUCER);
    proto_end(graph, versions);
}

/* --- Confusions and curves --- */

/*
 * A table's validation: its confusions, and a binary model's precision-recall curve.
 *
 * Confusions are an image with a square per pair of classes: the more examples of the row's class were classified as
 * the column's, the darker; for few classes there is also a table with names and numbers. The curve has the format of
 * TensorBoard's PR curves plugin: six rows of a tensor, a column per threshold.
 */

enum { THRESHOLDS = 101, SIDE = 256, PR_ROWS = 6, MOST_NAMED = 32, MOST_NAME = 64 };

static void put_confusions(struct event *event, const struct evaluation *evaluation)
{
    int classes = evaluation->classes, square = SIDE / classes > 1 ? SIDE / classes : 1, side = classes * square;
    uint8_t *pixels = must_alloc((size_t)side * (size_t)side, "a picture of the confusions"), *png;
    size_t size;
    struct error error;
    for (int i = 0; i < side * side; i++) {
        int label = i / side / square, predicted = i % side / square;
        int64_t all = evaluation->class_images[label];
        int64_t taken = evaluation->confusions[(size_t)label * (size_t)classes + (size_t)predicted];
        pixels[i] = (uint8_t)(255 - (all > 0 ? 255 * taken / all : 0));
    }
    const struct image image = {.width = side, .height = side, .channels = 1, .pixels = pixels};
    if (image_encode_png(&image, &png, &size, &error)) {
        event_image(event, "validation/confusion", side, side, png, size);
        free(png);
    }
    free(pixels);
}

static void put_text(struct proto *text, const char *part)
{
    proto_raw(text, part, strlen(part));
}

/* The name of a class, escaped for a Markdown table, in bold. */
static void put_name(struct proto *text, const struct evaluation *evaluation, int class)
{
    char number[EVALUATION_NAME];
    const char *name = evaluation_name(evaluation, class, number);
    put_text(text, " | **");
    for (int i = 0; i < MOST_NAME && name[i] != '\0'; i++) {
        const bool is_plain = (unsigned char)name[i] >= ' ';
        if (is_plain && strchr("\\`*_{}[]<>()#+!|", name[i])) {
            proto_raw(text, "\\", 1);
        }
        proto_raw(text, is_plain ? &name[i] : " ", 1);
    }
    put_text(text, "**");
}

static void put_table(struct event *event, const struct evaluation *evaluation)
{
    const int classes = evaluation->classes;
    struct proto text = {0};
    char number[32];
    put_text(&text, "| of a row, taken for a column");
    for (int i = 0; i < classes; i++) {
        put_name(&text, evaluation, i);
    }
    put_text(&text, " |\n|");
    for (int i = 0; i <= classes; i++) {
        put_text(&text, i == 0 ? " --- |" : " ---: |");
    }
    put_text(&text, "\n");
    for (int label = 0; label < classes; label++) {
        put_name(&text, evaluation, label);
        for (int i = 0; i < classes; i++) {
            snprintf(number, sizeof number, " | %" PRId64,
                     evaluation->confusions[(size_t)label * (size_t)classes + (size_t)i]);
            put_text(&text, number);
        }
        put_text(&text, " |\n");
    }
    proto_raw(&text, "", 1); /* NUL-terminates it */
    event_text(event, "validation/confusions", (const char *)text.bytes);
    proto_free(&text);
}

static void put_pr_curve(struct event *event, const struct evaluation *evaluation)
{
    float rows[PR_ROWS][THRESHOLDS];
    for (int i = 0; i < THRESHOLDS; i++) {
        struct pr_point point;
        metrics_pr_point(evaluation->ranked, (int)evaluation->images, (double)i / (THRESHOLDS - 1), &point);
        rows[0][i] = (float)point.true_positives;
        rows[1][i] = (float)point.false_positives;
        rows[2][i] = (float)point.true_negatives;
        rows[3][i] = (float)point.false_negatives;
        rows[4][i] = (float)point.precision;
        rows[5][i] = (float)point.recall;
    }
    event_pr_curve(event, "validation/pr_curve", THRESHOLDS, &rows[0][0]);
}

/* Adds both to the event, as far as the evaluation has them. */
static void curves_put(struct event *event, const struct evaluation *evaluation)
{
    if (evaluation->classes > 0 && evaluation->confusions) {
        put_confusions(event, evaluation);
        if (evaluation->classes <= MOST_NAMED) {
            put_table(event, evaluation);
        }
    }
    if (evaluation->ranked && !evaluation->is_merged && evaluation_is_binary(evaluation)) {
        put_pr_curve(event, evaluation);
    }
}

/* --- Activations --- */

/*
 * Activations of each layer for a few examples, for histograms. A separate forward pass in plain C: engines do not
 * expose intermediate results, and this runs rarely, so clarity wins over speed.
 */

enum { ACTIVATIONS_IMAGES = 32 };

static void add_scaled(float *restrict sum, const float *restrict row, float factor, int count)
{
    for (int i = 0; i < count; i++) {
        sum[i] += factor * row[i];
    }
}

static float activate(enum activation activation, float value)
{
    switch (activation) {
    case ACTIVATION_RELU:
        return value > 0 ? value : 0;
    case ACTIVATION_SIGMOID:
        return 1 / (1 + expf(-value));
    case ACTIVATION_TANH:
        return tanhf(value);
    case ACTIVATION_IDENTITY:
        break;
    }
    return value;
}

/* input: [model->widths[layer]]; output: [model->widths[layer + 1]]. Zeros, frequent in images, are skipped. */
static void run_layer(const struct model *model, const float *parameters, int layer, const float *input, float *output)
{
    const struct variable *weights = &model->variables[2 * layer], *biases = weights + 1;
    memcpy(output, parameters + biases->offset, (size_t)biases->cols * sizeof *output);
    for (int i = 0; i < weights->rows; i++) {
        if (input[i] != 0) {
            add_scaled(output, parameters + weights->offset + (size_t)i * (size_t)weights->stride, input[i],
                       weights->cols);
        }
    }
    for (int i = 0; i < biases->cols && layer + 1 < model->layer_count; i++) {
        output[i] = activate(model->activation, output[i]);
    }
}

/* What the first layer sees of an example. */
static void put_inputs(const struct model *model, const struct examples *examples, int example, float *input)
{
    size_t inputs = (size_t)model->widths[0], at = (size_t)example;
    if (!examples_are_rows(examples)) {
        for (size_t i = 0; i < inputs; i++) {
            input[i] = (float)examples->images[at * inputs + i] / 255.0f;
        }
        return;
    }
    size_t numbers = (size_t)examples->numbers, codes = (size_t)examples->codes;
    int32_t first = examples_dense(examples);
    memset(input, 0, inputs * sizeof *input);
    for (size_t i = 0; i < numbers; i++) {
        input[i] = examples->values[at * numbers + i];
    }
    for (int column = 0, bin = 0; column < examples->piecewise && numbers == 0; bin += examples->bins[column++]) {
        const float position = examples->positions[at * (size_t)examples->piecewise + (size_t)column];
        for (int i = 0; i < examples->bins[column]; i++) {
            const float filled = position - (float)i;
            input[bin + i] = filled < 0 ? 0 : filled > 1 ? 1 : filled;
        }
    }
    for (size_t i = 0; i < codes; i++) {
        int32_t place = examples->places[at * codes + i];
        if (place >= 0) {
            input[first + place] = 1;
        }
    }
}

/*
 * Of the first `count` examples, <= ACTIVATIONS_IMAGES; parameters: in the model's layout; histograms:
 * [model->layer_count], cleared first: the activations of each hidden layer, and the logits. Fails only if out of
 * memory.
 */
static void activations_measure(const struct model *model, const float *parameters, const struct examples *examples,
                                int count, struct histogram *histograms)
{
    assert(count >= 0 && count <= ACTIVATIONS_IMAGES);
    int widest = 0;
    for (int i = 0; i <= model->layer_count; i++) {
        widest = model->widths[i] > widest ? model->widths[i] : widest;
    }
    float *memory = must_alloc((size_t)2 * (size_t)widest * sizeof *memory, "a summary's activations");
    for (int layer = 0; layer < model->layer_count; layer++) {
        histogram_clear(&histograms[layer]);
    }
    for (int image = 0; image < count; image++) {
        float *input = memory, *output = memory + widest;
        put_inputs(model, examples, image, input);
        for (int layer = 0; layer < model->layer_count; layer++) {
            run_layer(model, parameters, layer, input, output);
            histogram_add(&histograms[layer], output, (size_t)model->widths[layer + 1]);
            float *swap = input;
            input = output;
            output = swap;
        }
    }
    free(memory);
}

/* --- Summaries --- */

/* Decides when a summary is due and what goes into it. A failure to write costs the summaries, never the training. */

#define DEFAULT_FOLDER "summaries"

enum { CURVES_STEPS = 100 /* at least between two pictures of validations, if summaries are by time */ };

struct summary {
    struct summary_options options;
    struct event_file file;
    struct event event; /* the one being made */
    int64_t steps;      /* between summaries; 0: not by steps */
    double seconds;     /* likewise */
    double last_s;
    int64_t written;
    int64_t curves_step; /* of the last validation with curves; 0: none yet */
    bool broken;         /* writing failed and was reported; no more summaries */
    float *parameters;   /* [float_count] */
    float *gradient;     /* likewise; NULL if the engine gives none */
    int32_t *indexes;    /* [batch_size] */
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

static void take_memory(struct summary *summary)
{
    static const char what[] = "summaries: disable them with --save_summaries_steps=0";
    const struct summary_options *options = &summary->options;
    size_t floats = options->model->float_count;
    summary->parameters = must_alloc(floats * sizeof *summary->parameters, what);
    if (options->engine->table->step && options->dataset->sample.count > 0) {
        summary->gradient = must_zero(floats, sizeof *summary->gradient, what);
        summary->indexes = must_alloc((size_t)options->config->train.batch_size * sizeof *summary->indexes, what);
    }
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
        const struct image image = {.width = examples_columns(train),
                                    .height = train->height,
                                    .channels = examples_channels(train),
                                    .pixels = train->images + (size_t)i * pixels};
        if (image_encode_png(&image, &png, &size, &error)) {
            event_image(event, tag, image.width, image.height, png, size);
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
    struct summary *summary = must_zero(1, sizeof *summary, "summaries");
    summary->options = *options;
    summary->steps = output->save_summaries_steps;
    summary->seconds = output->save_summaries_secs;
    summary->last_s = clock_monotonic_s();
    summary->file.fd = -1;
    take_memory(summary);
    if (!event_file_create(&summary->file, folder, error)) {
        summary_close(summary, false, false);
        return false;
    }
    put_preamble(summary);
    flush(summary);
    *opened = summary;
    return true;
}

/* --- when --- */

void summary_reschedule(struct summary *summary, const struct config_output *output)
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

static void put_activations(struct summary *summary)
{
    const struct summary_options *options = &summary->options;
    const struct model *model = options->model;
    const struct examples *sample = &options->dataset->sample;
    int count = sample->count < ACTIVATIONS_IMAGES ? sample->count : ACTIVATIONS_IMAGES;
    for (int net = 0; net < model->net_count; net++) {
        struct model one;
        const size_t first = model_net(model, net, &one);
        const struct examples seen = examples_view(sample, model->views[net]);
        activations_measure(&one, summary->parameters + first, &seen, count, summary->histograms);
        for (int layer = 0; layer < model->layer_count; layer++) {
            char tag[48], prefix[16] = "";
            if (model->net_count > 1) {
                snprintf(prefix, sizeof prefix, "net%d/", net);
            }
            if (layer + 1 < model->layer_count) {
                snprintf(tag, sizeof tag, "%slayer%d/activations", prefix, layer);
            } else {
                snprintf(tag, sizeof tag, "%slogits", prefix);
            }
            event_histogram(&summary->event, tag, &summary->histograms[layer]);
        }
    }
}

static bool put_histograms(struct summary *summary, int64_t step, struct error *error)
{
    put_variables(summary, summary->parameters, "");
    put_activations(summary);
    return !summary->gradient || put_gradient(summary, step, error);
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

/* Pictures take longer than many a validation of few rows. */
static bool curves_are_due(const struct summary *summary, int64_t step)
{
    const int64_t every = summary->steps > 0 ? summary->steps : CURVES_STEPS;
    return summary->curves_step == 0 || step / every != summary->curves_step / every;
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
        if (evaluation->options.rows > 0 && curves_are_due(summary, global_step)) {
            curves_put(&summary->event, evaluation);
            summary->curves_step = global_step;
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

void summary_close(struct summary *summary, bool succeeded, bool interrupted)
{
    if (!summary) {
        return;
    }
    if (summary->file.fd >= 0 && !summary->broken) {
        const int status = succeeded ? STATUS_SUCCESS : interrupted ? STATUS_UNKNOWN : STATUS_FAILURE;
        describe_run_end(&summary->event, status, clock_wall_s());
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
