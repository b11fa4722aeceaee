/* From the loop's state to the numbers of a board. */
#include "worker/observed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/json_writer.h"
#include "observe/observe.h"
#include "ps/store/optimizer.h"
#include "worker/metrics.h"

/* --- Command line and settings --- */

bool observed_setting(const struct config_key *key, const char *value)
{
    static const char *const always[] = {"optimizer", "learning_rate", "batch_size", "seed", "layers", "data_dir"};
    const bool is_of_run =
        strcmp(key->section, "model") == 0 || strcmp(key->section, "train") == 0 || strcmp(key->section, "data") == 0;
    const bool is_chosen = strcmp(key->initial, "auto") == 0;
    bool shows = strcmp(value, key->initial) != 0 && !(is_chosen && strcmp(value, "0") == 0);
    if (strcmp(key->name, "lr_decay_steps") == 0) {
        return false; /* filled in, even without a decay */
    }
    for (size_t i = 0; i < sizeof always / sizeof *always; i++) {
        shows = shows || strcmp(key->name, always[i]) == 0;
    }
    return is_of_run && shows && value[0] != '\0';
}

static void add_settings(struct text_buffer *text, const struct config *config)
{
    json_write_open(text, "settings", '{');
    for (const struct config_key *key = config_keys; key->section; key++) {
        char *value = config_key_chosen_text(key, config);
        if (value && observed_setting(key, value)) {
            json_write_string(text, key->name, value);
        }
        free(value);
    }
    json_write_close(text, '}');
}

/* As a shell reads it. */
static void add_argument(struct text_buffer *line, const char *argument)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
    if (argument[0] != '\0' && argument[strspn(argument, plain)] == '\0') {
        text_buffer_add(line, "%s", argument);
        return;
    }
    text_buffer_add(line, "'");
    for (; *argument != '\0'; argument++) {
        text_buffer_add(line, *argument == '\'' ? "'\\''" : "%c", *argument);
    }
    text_buffer_add(line, "'");
}

static void add_command(struct text_buffer *text, char *const *arguments)
{
    struct text_buffer line = {.bytes = NULL};
    size_t size;
    for (int i = 0; arguments && arguments[i]; i++) {
        text_buffer_add(&line, i > 0 ? " " : "");
        add_argument(&line, arguments[i]);
    }
    char *command = arguments ? text_buffer_take(&line, &size) : NULL;
    json_write_string(text, "command", command);
    free(command);
}

void observed_about(const struct config *config, char *const *arguments, const char *data)
{
    static char *const *command;
    struct text_buffer text = {.bytes = NULL};
    size_t size;
    if (!observe_is_on()) {
        return;
    }
    command = arguments ? arguments : command;
    json_write_open(&text, NULL, '{');
    add_command(&text, command);
    json_write_string(&text, "data", data);
    add_settings(&text, config);
    json_write_close(&text, '}');
    observe_about(text_buffer_take(&text, &size));
}

/* --- The loop --- */

void observed_start(const struct config *config, const char *data, const char *digest, struct engine *engine,
                    const struct plan *plan, enum metric metric, const struct updater_start *start)
{
    const bool has_best = start->record.metric == METRIC_AUTO || start->record.metric == metric;
    char text[BOARD_TEXT];
    if (!observe_is_on()) {
        return;
    }
    observed_about(config, NULL, data);
    engine->table->describe(engine, text, sizeof text);
    observe_run(&(struct observe_start_of_run){
        .engine = text,
        .digest = digest,
        .metric = config_metric_name(metric),
        .metric_rises = metric_rises(metric),
        .layers = config->model.layers,
        .layer_count = config->model.layer_count,
        .global_step = start->global_step,
        .last_step = plan->last_step == INT64_MAX ? -1 : plan->last_step,
        .config_version = config->fleet.version,
        .best_value = has_best ? start->record.best_score : (double)NAN,
        .best_step = start->record.best_step,
        .restored_from = start->restored_from,
    });
}

void observed_steps(const struct config *config, const struct plan *plan, int64_t global_step, int64_t local_step,
                    const struct train_result *done, double seconds)
{
    const struct config_train *train = &config->train;
    if (!observe_is_on()) {
        return;
    }
    const double batches = (double)global_step * (double)plan->batches_per_step;
    observe_steps(&(struct observe_steps){
        .global_step = global_step,
        .local_step = local_step,
        .steps = done->steps,
        .examples = done->images,
        .seconds = seconds,
        .loss_sum = done->loss_sum,
        .epoch = batches / (double)plan->epoch_batches,
        .learning_rate = schedule_learning_rate(train, global_step > 0 ? global_step - 1 : 0),
        .run_examples = (int64_t)(batches * train->batch_size),
    });
}

/* The one that decides comes first. Returns how many there are. */
static int list_metrics(const struct evaluation *evaluation, enum metric metric,
                        struct board_metric metrics[BOARD_METRICS])
{
    int count = 0;
    for (int i = 0; i < METRICS && count < BOARD_METRICS; i++) {
        const enum metric each = (enum metric)(((int)metric + i) % METRICS);
        const double value = each == METRIC_AUTO || !metric_applies(each, evaluation->loss_kind)
                                 ? (double)NAN
                                 : evaluation_metric(evaluation, each);
        if (!isnan(value)) {
            snprintf(metrics[count].name, sizeof metrics[count].name, "%s", config_metric_name(each));
            metrics[count++].value = value;
        }
    }
    return count;
}

void observed_test(const struct evaluation *evaluation, enum metric metric, int64_t global_step)
{
    struct board_metric metrics[BOARD_METRICS] = {{.value = 0}};
    if (observe_is_on()) {
        observe_test(global_step, metrics, list_metrics(evaluation, metric, metrics));
    }
}

void observed_validation(const struct evaluation *evaluation, enum metric metric, const struct held_model *held)
{
    struct board_metric metrics[BOARD_METRICS] = {{.value = 0}};
    if (!observe_is_on()) {
        return;
    }
    const int count = list_metrics(evaluation, metric, metrics);
    observe_validation(&(struct observe_validation){.global_step = held->global_step,
                                                    .metrics = metrics,
                                                    .metric_count = count,
                                                    .best_value = held->record->best_score,
                                                    .best_step = held->record->best_step});
}
