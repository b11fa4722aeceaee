/* Formats: tensorboard/plugins/hparams/plugin_data.proto and api.proto, google/protobuf/struct.proto. */
#include "worker/summary/describe.h"

#include <stdlib.h>
#include <string.h>

#include "base/config/keys.h"

enum { EXPERIMENT = 2, START = 3, END = 4 };
enum { TYPE_STRING = 1, TYPE_BOOL = 2, TYPE_NUMBER = 3, STATUS_SUCCESS = 1, STATUS_FAILURE = 2 };

/* The page shows the first one by default. */
static const char *const metrics[] = {"validation/accuracy", "test/accuracy", "train/accuracy", "loss"};

void describe_config(struct event *event, const struct config *config, double wall_s, int64_t step)
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
        proto_raw(&text, value ? value : "", value ? strlen(value) : 0);
        proto_raw(&text, " |\n", 3);
        free(value);
    }
    proto_raw(&text, "", 1); /* NUL-terminates it */
    event_begin(event, wall_s, step);
    if (!text.failed) {
        event_text(event, "config", (const char *)text.bytes);
    }
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
        return key->offset == offsetof(struct config, data.validation_size) ? TYPE_STRING : TYPE_NUMBER;
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
static void put_event(struct event *event, const char *tag, double wall_s, int field, const struct proto *content)
{
    struct proto data = {0};
    proto_integer(&data, 1, 0); /* the version of the data */
    proto_bytes(&data, field, content->bytes, content->size);
    data.failed = data.failed || content->failed;
    event_begin(event, wall_s, 0);
    event_plugin(event, tag, "hparams", &data);
    event_end(event);
    proto_free(&data);
}

/* Is a key shown first: does it always identify a run, or is it not at its default? */
static bool is_telling(const struct config_key *key, const struct config *config, const struct config *defaults)
{
    char *text = config_key_text(key, config), *initial = config_key_text(key, defaults);
    bool filled_in = strcmp(key->name, "lr_decay_steps") == 0 && config->train.lr_decay == 1;
    bool telling = strcmp(key->name, "optimizer") == 0 || strcmp(key->name, "layers") == 0 ||
                   (!filled_in && text && initial && strcmp(text, initial) != 0);
    free(text);
    free(initial);
    return telling;
}

void describe_experiment(struct event *event, const struct config *config, double wall_s)
{
    struct proto experiment = {0};
    struct config defaults;
    struct error error;
    bool known = config_defaults(&defaults, &error);
    proto_double(&experiment, 3, wall_s);
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (is_hyper_parameter(key)) {
            size_t info = proto_begin(&experiment, 4);
            proto_text(&experiment, 1, key->name);
            proto_text(&experiment, 3, key->description);
            proto_integer(&experiment, 4, type_of(key));
            if (known && is_telling(key, config, &defaults)) {
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
    if (known) {
        config_free(&defaults);
    }
    put_event(event, "_hparams_/experiment", wall_s, EXPERIMENT, &experiment);
    proto_free(&experiment);
}

/* Adds the value as a google.protobuf.Value. */
static void put_value(struct proto *proto, int field, const struct config_key *key, const struct config *config)
{
    char *text = config_key_chosen_text(key, config);
    size_t value = proto_begin(proto, field);
    if (type_of(key) == TYPE_BOOL) {
        proto_integer(proto, 4, text && strcmp(text, "true") == 0);
    } else if (type_of(key) == TYPE_NUMBER) {
        proto_double(proto, 2, text ? strtod(text, NULL) : 0);
    } else {
        proto_text(proto, 3, text ? text : "");
    }
    proto_end(proto, value);
    free(text);
}

void describe_run_start(struct event *event, const struct config *config, const char *digest, double wall_s)
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
    put_event(event, "_hparams_/session_start_info", wall_s, START, &start);
    proto_free(&start);
}

void describe_run_end(struct event *event, bool succeeded, double wall_s)
{
    struct proto end = {0};
    proto_integer(&end, 1, succeeded ? STATUS_SUCCESS : STATUS_FAILURE);
    proto_double(&end, 2, wall_s);
    put_event(event, "_hparams_/session_end_info", wall_s, END, &end);
    proto_free(&end);
}
