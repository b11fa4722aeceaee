/* trainer dashboard: finished runs side by side, on the page that a run serves itself. */
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cli/commands.h"
#include "base/clock.h"
#include "base/config/keys.h"
#include "base/encoding/proto.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/signals.h"
#include "base/text/json_writer.h"
#include "net/socket.h"
#include "observe/api.h"
#include "observe/board.h"
#include "observe/guard.h"
#include "observe/http/server.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/folder.h"
#include "ps/identity.h"
#include "worker/data/names.h"
#include "worker/data/tfrecord/reader.h"
#include "worker/evaluation/metrics.h"
#include "worker/export/first_layer.h"
#include "worker/observed.h"

/* --- Event files --- */

/*
 * A run's settings, test and end from its event files, and its curves, for folders without a history file.
 *
 * Only what the page can show is read; other events cost no more than a look at their tags.
 */

/*
 * Fields of tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto and tensor.proto, and of
 * tensorboard's hparams/plugin_data.proto and api.proto.
 */
enum {
    EVENT_TIME = 1,
    EVENT_STEP = 2,
    EVENT_SUMMARY = 5,
    SUMMARY_VALUE = 1,
    VALUE_TAG = 1,
    VALUE_SCALAR = 2,
    VALUE_TENSOR = 8,
    VALUE_METADATA = 9,
    TENSOR_STRING = 8,
    METADATA_PLUGIN = 1,
    PLUGIN_CONTENT = 2,
    HPARAMS_END = 4,
    END_STATUS = 1,
};

/* What event files record of a run. */
struct recorded {
    struct board *board;
    bool wants_curves;
    enum board_state end; /* BOARD_STARTING: no end was recorded */
};

static const struct {
    const char *tag, *series;
} known[] = {
    {"cross_entropy", "loss"},
    {"learning_rate", "learning_rate"},
    {"global_step/sec", "steps_per_s"},
    {"examples/sec", "examples_per_s"},
};

static const char validation[] = "validation/";

/* The series that a tag is for; -1: none. */
static int series_of(struct history *history, const char *tag)
{
    char name[HISTORY_NAME];
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(tag, known[i].tag) == 0) {
            return history_series(history, known[i].series);
        }
    }
    if (strncmp(tag, validation, strlen(validation)) != 0) {
        return -1;
    }
    const int length = snprintf(name, sizeof name, "metric:%s", tag + strlen(validation));
    return length < (int)sizeof name ? history_series(history, name) : -1;
}

/* The first field of that number in nested bytes, or in what they contain, level by level; size 0: there is none. */
static struct proto_field dig(struct proto_field field, const int *numbers, int count)
{
    for (int i = 0; i < count; i++) {
        struct proto_reader reader = proto_read(field.bytes, field.size);
        do {
            if (!proto_next(&reader, &field)) {
                return (struct proto_field){.size = 0};
            }
        } while (field.number != numbers[i] || (i < count - 1 && field.wire != PROTO_BYTES));
    }
    return field;
}

/* "| train.optimizer | adam |": the settings of a table, as JSON. */
static void take_settings(struct recorded *recorded, const struct proto_field *table)
{
    struct text_buffer text = {.bytes = NULL};
    char *lines = strndup((const char *)table->bytes, table->size), *rest = lines;
    size_t size;
    json_write_open(&text, NULL, '{');
    json_write_open(&text, "settings", '{');
    for (char *line; lines && (line = strsep(&rest, "\n"));) {
        char section[32], name[64], value[1024];
        if (sscanf(line, "| %31[a-z].%63[a-z0-9_] | %1023[^\n]", section, name, value) != 3 || strlen(value) < 2) {
            continue;
        }
        value[strlen(value) - 2] = '\0'; /* " |" */
        const struct config_key *key = config_key_by_path(section, name);
        if (key && observed_setting(key, value)) {
            json_write_string(&text, name, value);
        }
    }
    free(lines);
    json_write_close(&text, '}');
    json_write_close(&text, '}');
    text_buffer_add(&text, "%c", 0);
    board_set_about(recorded->board, text_buffer_take(&text, &size));
}

static void take_end(struct recorded *recorded, const struct proto_field *metadata)
{
    static const int path[] = {METADATA_PLUGIN, PLUGIN_CONTENT, HPARAMS_END, END_STATUS};
    static const enum board_state states[] = {BOARD_INTERRUPTED, BOARD_DONE, BOARD_FAILED};
    const struct proto_field status = dig(*metadata, path, sizeof path / sizeof *path);
    recorded->end = status.number == END_STATUS && status.value < 3 ? states[status.value] : BOARD_INTERRUPTED;
}

static void take_test(struct board_numbers *numbers, const char *name, double value)
{
    int at = 0;
    while (at < numbers->test_count && strcmp(numbers->test[at].name, name) != 0) {
        at++;
    }
    if (at < BOARD_METRICS) {
        snprintf(numbers->test[at].name, sizeof numbers->test[at].name, "%.23s", name);
        numbers->test[at].value = value;
        numbers->test_count = at == numbers->test_count ? at + 1 : numbers->test_count;
    }
}

static void take_scalar(struct recorded *recorded, const char *tag, float scalar, float values[HISTORY_SERIES])
{
    static const char test[] = "test/";
    if (strncmp(tag, test, strlen(test)) == 0) {
        take_test(&recorded->board->numbers, tag + strlen(test), (double)scalar);
    } else if (recorded->wants_curves) {
        const int index = series_of(&recorded->board->history, tag);
        if (index >= 0) {
            values[index] = scalar;
        }
    }
}

static void take_value(struct recorded *recorded, const struct proto_field *value, float values[HISTORY_SERIES])
{
    static const int text[] = {TENSOR_STRING};
    struct proto_reader reader = proto_read(value->bytes, value->size);
    struct proto_field field, tensor = {.size = 0}, metadata = {.size = 0};
    char tag[64] = "";
    float scalar = NAN;
    while (proto_next(&reader, &field)) {
        if (field.number == VALUE_TAG && field.wire == PROTO_BYTES && field.size < sizeof tag) {
            memcpy(tag, field.bytes, field.size);
            tag[field.size] = '\0';
        } else if (field.number == VALUE_SCALAR && field.wire == PROTO_FIXED32) {
            scalar = proto_float_of(field.value);
        } else if (field.number == VALUE_TENSOR && field.wire == PROTO_BYTES) {
            tensor = field;
        } else if (field.number == VALUE_METADATA && field.wire == PROTO_BYTES) {
            metadata = field;
        }
    }
    if (isfinite(scalar)) {
        take_scalar(recorded, tag, scalar, values);
    } else if (strcmp(tag, "config") == 0 && tensor.size > 0) {
        const struct proto_field table = dig(tensor, text, 1);
        take_settings(recorded, &table);
    } else if (strcmp(tag, "_hparams_/session_start_info") == 0) {
        recorded->end = BOARD_STARTING;
        recorded->board->numbers.test_count = 0;
    } else if (strcmp(tag, "_hparams_/session_end_info") == 0) {
        take_end(recorded, &metadata);
    }
}

static void take_summary(struct recorded *recorded, const struct proto_field *summary, float values[HISTORY_SERIES])
{
    struct proto_reader reader = proto_read(summary->bytes, summary->size);
    struct proto_field field;
    while (proto_next(&reader, &field)) {
        if (field.number == SUMMARY_VALUE && field.wire == PROTO_BYTES) {
            take_value(recorded, &field, values);
        }
    }
}

static void take_event(struct recorded *recorded, const uint8_t *record, size_t size)
{
    struct history *history = &recorded->board->history;
    struct proto_reader reader = proto_read(record, size);
    struct proto_field field;
    float values[HISTORY_SERIES];
    double time_s = NAN;
    int64_t step = 0;
    bool any = false;
    for (int i = 0; i < HISTORY_SERIES; i++) {
        values[i] = NAN;
    }
    while (proto_next(&reader, &field)) {
        if (field.number == EVENT_TIME && field.wire == PROTO_FIXED64) {
            memcpy(&time_s, &field.value, sizeof time_s);
        } else if (field.number == EVENT_STEP && field.wire == PROTO_VARINT) {
            step = (int64_t)field.value;
        } else if (field.number == EVENT_SUMMARY && field.wire == PROTO_BYTES) {
            take_summary(recorded, &field, values);
        }
    }
    for (int i = 0; i < history->series; i++) {
        any |= !isnan(values[i]);
    }
    if (any && time_s > 0 && step >= 0 && !reader.damaged) {
        history_add(history, time_s, step, values);
    }
}

static bool read_file(struct recorded *recorded, const char *path, struct error *error)
{
    struct tfrecord_reader *reader;
    enum tfrecord_status status;
    const uint8_t *record;
    size_t size;
    if (!tfrecord_open(&reader, path, error)) {
        return false;
    }
    do {
        status = tfrecord_next(reader, &record, &size, error);
        if (status == TFRECORD_RECORD) {
            take_event(recorded, record, size);
        }
    } while (status == TFRECORD_RECORD || status == TFRECORD_DAMAGED);
    tfrecord_close(reader);
    return status == TFRECORD_END;
}

/* Reads the folder's event files, in order. Damaged records are skipped; no files is no error. */
static bool read_events(struct recorded *recorded, const char *folder, struct error *error)
{
    struct names names = {.items = NULL};
    char path[4096];
    bool done = names_list(&names, folder, "events.out.tfevents.*", error);
    for (int i = 0; i < names.count && done; i++) {
        done = file_join(path, sizeof path, folder, names.items[i], error) && read_file(recorded, path, error);
    }
    names_free(&names);
    return done;
}

/* --- A run from its folder --- */

/*
 * A run as recorded in its folder: its curves (history.bin, or else TensorBoard's event files) and what its newest
 * checkpoint contains. Nothing in the folder is changed or locked.
 *
 * The last values measured stand for the run's last validation.
 */

/* Does a process write there? Tests its lock without taking it. */
static bool is_in_use(const char *folder)
{
    char path[CHECKPOINT_MAX_PATH];
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    struct error error;
    const int fd = file_join(path, sizeof path, folder, "trainer.lock", &error)
                       ? open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC)
                       : -1;
    if (fd < 0) {
        return false;
    }
    const bool held = fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    close(fd);
    return held;
}

static double last_in(const struct history_ring *ring, int series)
{
    for (int i = ring->count - 1; i >= 0; i--) {
        const float value = history_at(ring, i)->values[series];
        if (!isnan(value)) {
            return (double)value;
        }
    }
    return (double)NAN;
}

/* The last known value of a series; NaN: none. A mean only if the last hour has none. */
static double last_of(const struct history *history, int series)
{
    const double value = last_in(&history->recent, series);
    return isnan(value) ? last_in(&history->whole, series) : value;
}

static void end_numbers(struct board *board)
{
    const struct history *history = &board->history;
    struct board_numbers *numbers = &board->numbers;
    static const char prefix[] = "metric:";
    for (int i = 0; i < history->series; i++) {
        const char *name = history->names[i];
        const double value = last_of(history, i);
        if (isnan(value)) {
            continue;
        }
        if (strcmp(name, "loss") == 0) {
            board->loss = value;
        } else if (strcmp(name, "learning_rate") == 0) {
            numbers->learning_rate = value;
        } else if (strcmp(name, "steps_per_s") == 0) {
            board->steps_per_s = value;
        } else if (strcmp(name, "examples_per_s") == 0) {
            board->examples_per_s = value;
        } else if (strncmp(name, prefix, strlen(prefix)) == 0 && numbers->metric_count < BOARD_METRICS) {
            struct board_metric *metric = &numbers->metrics[numbers->metric_count++];
            snprintf(metric->name, sizeof metric->name, "%.23s", name + strlen(prefix));
            metric->value = value;
        }
    }
    if (history->whole.count > 0) {
        board->started_s = history_at(&history->whole, 0)->time_s;
        numbers->global_step = history_at(&history->whole, history->whole.count - 1)->step;
    }
}

static double written_s(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 ? (double)status.st_mtim.tv_sec : 0;
}

static void best_checkpoint(struct board *board)
{
    struct board_numbers *numbers = &board->numbers;
    struct error error;
    char path[CHECKPOINT_MAX_PATH];
    if (numbers->best_step >= 0 && file_join(path, sizeof path, board->train_dir, CHECKPOINT_BEST_NAME, &error) &&
        file_exists(path)) {
        numbers->best_saved_step = numbers->best_step;
        snprintf(numbers->best_saved_path, sizeof numbers->best_saved_path, "%.255s", path);
    }
}

static void newest_checkpoint(struct board *board, const struct checkpoint_file *file)
{
    const struct checkpoint_info *info = checkpoint_file_info(file);
    struct board_numbers *numbers = &board->numbers;
    struct config_model model = {.layer_count = 0};
    const enum metric metric = info->metric == METRIC_AUTO ? METRIC_ACCURACY : info->metric;
    checkpoint_file_model(file, &model);
    numbers->layer_count = model.layer_count;
    memcpy(numbers->layers, model.layers, sizeof numbers->layers);
    snprintf(numbers->digest, sizeof numbers->digest, "%s", info->config_digest);
    snprintf(numbers->metric, sizeof numbers->metric, "%s", config_metric_name(metric));
    numbers->metric_rises = metric_rises(metric);
    numbers->config_version = info->fleet_version > 0 ? info->fleet_version : -1;
    numbers->best_step = isnan(info->best_score) ? -1 : info->best_step;
    numbers->best_value = info->best_score;
    numbers->saved_step = info->global_step;
    numbers->saved_time_s = written_s(checkpoint_path(file));
    snprintf(numbers->saved_path, sizeof numbers->saved_path, "%s", checkpoint_path(file));
    best_checkpoint(board);
    if (numbers->global_step < info->global_step) {
        numbers->global_step = info->global_step;
    }
}

/* One event for each checkpoint that still exists. */
static bool list_checkpoints(struct board *board, const char *folder, struct error *error)
{
    struct names names = {.items = NULL};
    char path[CHECKPOINT_MAX_PATH];
    bool done = names_list(&names, folder, "model-*.safetensors", error);
    for (int i = 0; i < names.count && done; i++) {
        long long step = -1;
        done = file_join(path, sizeof path, folder, names.items[i], error);
        if (done && sscanf(names.items[i], "model-%lld.", &step) == 1) {
            board_event_at(board, written_s(path), "checkpoint", NULL, step, path);
        }
    }
    board->numbers.saved = (uint64_t)(names.count > 0 ? names.count : 0);
    names_free(&names);
    return done;
}

/* A run of less than a second leaves an empty history. */
static bool knows_losses(struct history *history)
{
    const int loss = history_series(history, "loss");
    return loss >= 0 && !isnan(last_of(history, loss));
}

/* *has_curves: from the history file; it is emptied otherwise. */
static bool read_history(struct board *board, const char *folder, bool *has_curves, struct error *error)
{
    char path[CHECKPOINT_MAX_PATH];
    bool damaged;
    if (!file_join(path, sizeof path, folder, "history.bin", error)) {
        return false;
    }
    *has_curves = history_load(&board->history, path, &damaged, error) && knows_losses(&board->history);
    if (*has_curves) {
        return true;
    }
    if (damaged) {
        log_warning("%s; its event files are read instead", error->text);
    }
    history_destroy(&board->history);
    history_create(&board->history);
    return true;
}

static bool read_run(struct recorded *recorded, const char *folder, struct error *error)
{
    char path[CHECKPOINT_MAX_PATH];
    bool has_curves;
    if (!read_history(recorded->board, folder, &has_curves, error)) {
        return false;
    }
    recorded->wants_curves = !has_curves;
    return file_join(path, sizeof path, folder, "summaries", error) && read_events(recorded, path, error);
}

static bool fill(struct board *board, const char *folder, struct error *error)
{
    struct checkpoint_file *file = NULL;
    struct recorded recorded = {.board = board};
    if (!read_run(&recorded, folder, error) || !list_checkpoints(board, folder, error)) {
        return false;
    }
    /* A process that was killed records no end; one without event files may have come to any. */
    const bool knows_end = recorded.end != BOARD_STARTING || board->about;
    board->numbers.state = is_in_use(folder)                ? BOARD_TRAINING
                           : !knows_end                     ? BOARD_DONE
                           : recorded.end == BOARD_STARTING ? BOARD_INTERRUPTED
                                                            : recorded.end;
    end_numbers(board);
    if (!checkpoint_folder_find(folder, &file, error)) {
        return false;
    }
    if (file) {
        newest_checkpoint(board, file);
        checkpoint_close(file);
    }
    return file || board->history.whole.count > 0 ||
           error_set(error, "%s holds no run: neither a checkpoint nor history.bin nor summaries", folder);
}

/*
 * Creates *board, in the state in which the run ended, or training while a process holds the folder's lock. Fails if
 * the folder has no run.
 */
static bool past_run_read(struct board *board, const char *folder, struct error *error)
{
    char name[CHECKPOINT_MAX_PATH];
    size_t size = strlen(folder);
    while (size > 1 && folder[size - 1] == '/') {
        size--;
    }
    snprintf(name, sizeof name, "%.*s", (int)size, folder);
    board_create(board, "dashboard", 0, name);
    if (!fill(board, name, error)) {
        board_destroy(board);
        return false;
    }
    return true;
}

/* --- The command --- */

enum { MOST_RUNS = 64, MOST_BYTES = 48 * 1024 * 1024 /* of requests and answers in progress */ };

static void tick(void *context)
{
    api_tick(context);
}

static bool serve_until_stopped(const struct guard *guard, struct api *api, struct error *error)
{
    struct http_server *server = NULL;
    struct http_options options = {.routes = api_routes, .context = api, .tick = tick, .most_bytes = MOST_BYTES};
    struct address address = guard->address;
    char text[ENDPOINT_TEXT];
    guard_apply(guard, &options);
    if (!http_server_start(&server, &options, error)) {
        return false;
    }
    api->server = server;
    address.port = http_server_port(server);
    endpoint_format_address(&address, text);
    log_info("watch at %s://%s/", guard->keys ? "https" : "http", text);
    while (signals_pending() == 0) {
        clock_pause(clock_monotonic_s() + 3600);
    }
    http_server_stop(server);
    return true;
}

static bool show(const struct config *config, struct api_run *runs, int count, struct error *error)
{
    static char default_address[] = "127.0.0.1:6006";
    struct config_observe observe = config->observe; /* its strings stay the config's */
    struct api api = {.runs = runs, .run_count = count};
    struct guard guard = {.token = NULL};
    char key[4096];
    if (observe.http[0] == '\0') {
        observe.http = default_address;
    }
    signals_catch();
    const bool done = identity_key_path(config, key, sizeof key, error) &&
                      guard_prepare(&guard, &observe, key, error) && serve_until_stopped(&guard, &api, error);
    guard_free(&guard);
    return done;
}

static int run_dashboard(const struct command_call *call)
{
    struct error error;
    int opened = 0, status = COMMAND_FAILED;
    if (call->operand_count == 0) {
        log_error("dashboard needs a train_dir of a run, or of several to compare");
        return COMMAND_MISUSED;
    }
    struct board *boards = must_zero((size_t)call->operand_count, sizeof *boards, "a page of runs: name fewer");
    struct api_run *runs = must_zero((size_t)call->operand_count, sizeof *runs, "a page of runs: name fewer");
    bool done = checkpoint_use_key(call->config->output.checkpoint_key, &error);
    for (; done && opened < call->operand_count; opened += done) {
        done = past_run_read(&boards[opened], call->operands[opened], &error);
        runs[opened] = (struct api_run){.board = &boards[opened]};
        if (done && first_layer_is_known(call->operands[opened])) {
            runs[opened].extras =
                (struct api_extras){.make[EXTRA_WEIGHTS] = first_layer_json, .context = call->operands[opened]};
        } else if (done && first_layer_has_columns(call->operands[opened])) {
            runs[opened].extras =
                (struct api_extras){.make[EXTRA_COLUMNS] = first_layer_columns, .context = call->operands[opened]};
        }
    }
    if (done && show(call->config, runs, opened, &error)) {
        status = COMMAND_DONE;
    } else {
        log_error("%s", error.text);
    }
    for (int i = 0; i < opened; i++) {
        board_destroy(&boards[i]);
    }
    free(boards);
    free(runs);
    return status;
}

const struct command command_dashboard = {
    .name = "dashboard",
    .operands = "TRAIN_DIR...",
    .max_operands = MOST_RUNS,
    .summary = "show finished runs, side by side, on a page for browsers",
    .details =
        "Reads each train_dir once: its history.bin, its event files, and its newest checkpoint. Serves at --http, "
        "by default http://127.0.0.1:6006/, until it is interrupted. It changes nothing.",
    .takes_config = true,
    .confine = CONFINE_SERVER,
    .run = run_dashboard,
};
