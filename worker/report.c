/* Text is for people who read logs, JSON for programs; both say the same, so each report is in one function. */
#include "worker/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/progress.h"
#include "base/text/json.h"
#include "base/text/text.h"
#include "base/version.h"
#include "ps/store/optimizer.h"
#include "ps/store/rounds.h"

enum {
    SHOWN_CLASSES = 20, /* with more, only the worst are shown as text */
    SHOWN_WORST = 10,
    SHOWN_PAIRS = 5,
};

enum { METRIC_KEY = 48 };

double report_number(double value)
{
    return isnan(value) ? fabs(value) : value;
}

static void format_layers(char *text, size_t size, const struct model *model)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i <= model->layer_count && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%d", i > 0 ? "-" : "", model->widths[i]);
        for (int net = 1; i == 0 && net < model->net_count && used < size; net++) {
            const int inputs = model->variables[2 * model->layer_count * net].rows;
            if (inputs != model->widths[0]) {
                used += (size_t)snprintf(text + used, size - used, "+%d", inputs);
            }
        }
    }
    if (model->net_count > 1 && used < size) {
        char nets[64];
        model_ensemble_text(model, nets, sizeof nets);
        snprintf(text + used, size - used, ", nets %s", nets);
    }
}

static void format_optimizer(char *text, size_t size, const struct config_train *train)
{
    char decay[224] = "", l2[80] = "", averages[48] = "", micro[40] = "";
    if (train->lr_decay != 1) {
        snprintf(decay, sizeof decay, " x %g every %lld steps%s", train->lr_decay, (long long)train->lr_decay_steps,
                 train->lr_staircase ? " (in stairs)" : "");
    }
    size_t used = strlen(decay);
    if (train->lr_cosine_steps > 0) {
        used += (size_t)snprintf(decay + used, sizeof decay - used, " falling to %g of itself over %lld steps",
                                 train->lr_cosine_end, (long long)train->lr_cosine_steps);
    }
    if (train->lr_warmup_steps > 0) {
        snprintf(decay + used, sizeof decay - used, " after a warm-up of %lld steps",
                 (long long)train->lr_warmup_steps);
    }
    if (train->l2 > 0) {
        snprintf(l2, sizeof l2, ", L2 %g", train->l2);
    }
    if (train->weight_decay > 0) {
        used = strlen(l2);
        snprintf(l2 + used, sizeof l2 - used, ", weight decay %g", train->weight_decay);
    }
    if (train->ema_decay > 0) {
        snprintf(averages, sizeof averages, ", moving averages %g", train->ema_decay);
    }
    if (train->micro_batches > 1) {
        snprintf(micro, sizeof micro, "%d micro-batches of ", train->micro_batches);
    }
    snprintf(text, size, "%s, learning rate %g%s%s%s; batch %s%d", config_optimizer_name(train->optimizer),
             schedule_lowered_rate(train), decay, l2, averages, micro, train->batch_size);
}

/* Describes a round, or "" without rounds. */
static void format_rounds(char *text, size_t size, const struct config_train *train)
{
    char buffered[48] = "";
    text[0] = '\0';
    if (train->buffer_size > 0) {
        snprintf(buffered, sizeof buffered, " of every %d differences", train->buffer_size);
    }
    if (config_has_rounds(train)) {
        const bool epochs = train->local_epochs > 0;
        snprintf(text, size, "; rounds of %d local %s, then %s at %g%s",
                 epochs ? train->local_epochs : train->local_steps, epochs ? "epochs" : "steps",
                 config_outer_name(train->outer_optimizer), outer_train(train).learning_rate, buffered);
    }
}

/* "up to 12,000 steps (300.0 epochs), fewer after 30 validations without a better rmse" */
static void format_length(char *text, size_t size, const struct report_start *start)
{
    const int patience = start->patience;
    const double limit_s = start->config->train.time_limit;
    char steps[COUNT_TEXT], count[COUNT_TEXT], fewer[96] = "", time[48] = "";
    if (patience > 0) {
        snprintf(fewer, sizeof fewer, ", fewer after %s validations without a better %s", count_text(count, patience),
                 config_metric_name(start->metric));
    }
    if (limit_s > 0) {
        snprintf(time, sizeof time, "; at most %g s", limit_s);
    }
    if (start->last_step == INT64_MAX) {
        snprintf(text, size, "no limit of steps%s%s", fewer, time);
    } else {
        snprintf(text, size, "%s%s steps (%.1f epochs)%s%s", patience > 0 || limit_s > 0 ? "up to " : "",
                 count_text(steps, start->last_step), start->epochs, fewer, time);
    }
}

/* The keys of which that was chosen, because nobody set them; "" if there are none. */
static void format_chosen(char *text, size_t size, const struct config *config)
{
    static const char *const names[] = {"optimizer",   "learning_rate", "batch_size",
                                        "train_steps", "epochs",        "patience"};
    size_t used = 0;
    text[0] = '\0';
    if (config_is_of_table(config) && config_was_chosen(config, "model", "ensemble")) {
        used = (size_t)snprintf(text, size, "ensemble");
    }
    if (config->train.ema_decay > 0 && config_was_chosen(config, "train", "ema_decay")) {
        used += (size_t)snprintf(text + used, size - used, "%sema_decay", used > 0 ? ", " : "");
    }
    for (size_t i = 0; i < sizeof names / sizeof *names && used < size; i++) {
        if (config_was_chosen(config, "train", names[i])) {
            used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", names[i]);
        }
    }
}

static void start_as_json(const struct report_start *start, const char *layers)
{
    const struct config *config = start->config;
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddStringToObject(fields, "version", version_trainer());
    cJSON_AddStringToObject(fields, "data", start->data);
    cJSON_AddStringToObject(fields, "model", layers);
    cJSON_AddNumberToObject(fields, "parameters", (double)start->model->parameter_count);
    char chosen[128], nets[64];
    if (start->model->net_count > 1) {
        model_ensemble_text(start->model, nets, sizeof nets);
        cJSON_AddStringToObject(fields, "ensemble", nets);
    }
    format_chosen(chosen, sizeof chosen, config);
    cJSON_AddStringToObject(fields, "chosen", chosen);
    cJSON_AddStringToObject(fields, "optimizer", config_optimizer_name(config->train.optimizer));
    cJSON_AddNumberToObject(fields, "learning_rate", schedule_lowered_rate(&config->train));
    if (config_has_rounds(&config->train)) {
        cJSON_AddNumberToObject(fields, "local_steps", config->train.local_steps);
        cJSON_AddNumberToObject(fields, "local_epochs", config->train.local_epochs);
        cJSON_AddStringToObject(fields, "outer_optimizer", config_outer_name(config->train.outer_optimizer));
    }
    if (config->train.buffer_size > 0) {
        cJSON_AddNumberToObject(fields, "buffer_size", config->train.buffer_size);
    }
    cJSON_AddNumberToObject(fields, "batch_size", config->train.batch_size);
    cJSON_AddNumberToObject(fields, "seed", (double)config->train.seed);
    cJSON_AddStringToObject(fields, "engine", start->engine);
    cJSON_AddNumberToObject(fields, "config_version", (double)config->fleet.version);
    cJSON_AddStringToObject(fields, "config_digest", start->digest);
    cJSON_AddStringToObject(fields, "train_dir", config->output.train_dir);
    cJSON_AddNumberToObject(fields, "global_step", (double)start->global_step);
    if (start->last_step != INT64_MAX) {
        cJSON_AddNumberToObject(fields, "last_step", (double)start->last_step);
    }
    if (config->train.time_limit > 0) {
        cJSON_AddNumberToObject(fields, "time_limit", config->train.time_limit);
    }
    if (start->restored_from) {
        cJSON_AddStringToObject(fields, "restored_from", start->restored_from);
    }
    log_event("start", fields, NULL);
}

void report_start(const struct report_start *start)
{
    const struct config *config = start->config;
    char layers[128], optimizer[512], rounds[128], length[192], chosen[128];
    char parameters[COUNT_TEXT], step[COUNT_TEXT];
    format_layers(layers, sizeof layers, start->model);
    format_optimizer(optimizer, sizeof optimizer, &config->train);
    format_rounds(rounds, sizeof rounds, &config->train);
    if (log_format() == LOG_JSON) {
        start_as_json(start, layers);
        return;
    }
    log_info("trainer %s", version_trainer());
    log_info("data       %s", start->data);
    log_info("model      %s (%s parameters)", layers, count_text(parameters, (int64_t)start->model->parameter_count));
    log_info("optimizer  %s%s; seed %lld", optimizer, rounds, (long long)config->train.seed);
    format_length(length, sizeof length, start);
    format_chosen(chosen, sizeof chosen, config);
    log_info("length     %s", length);
    if (chosen[0] != '\0') {
        log_info("auto       %s (for %s)", chosen, config_is_of_table(config) ? "a table" : "pictures");
    }
    log_info("engine     %s", start->engine);
    log_info("config     %s, version %lld, digest %.16s", config->path ? config->path : "built-in defaults",
             (long long)config->fleet.version, start->digest);
    if (start->keeps_nothing) {
        log_info("train_dir  worker 0's: this worker joins at step %s", count_text(step, start->global_step));
    } else if (config->output.train_dir[0] == '\0') {
        log_info("train_dir  none: nothing of this run is saved");
    } else if (start->restored_from) {
        log_info("train_dir  %s: continues at step %s, restored from %s", config->output.train_dir,
                 count_text(step, start->global_step), start->restored_from);
    } else {
        log_info("train_dir  %s: a new run", config->output.train_dir);
    }
}

void report_step(const struct report_step *step)
{
    char rate[COUNT_TEXT];
    cJSON *fields = NULL;
    if (log_format() == LOG_JSON) {
        fields = cJSON_CreateObject();
        cJSON_AddNumberToObject(fields, "worker", step->worker);
        cJSON_AddNumberToObject(fields, "epoch", (double)step->epoch);
        cJSON_AddNumberToObject(fields, "global_step", (double)step->global_step);
        cJSON_AddNumberToObject(fields, "local_step", (double)step->local_step);
        cJSON_AddNumberToObject(fields, "loss", step->loss);
        cJSON_AddNumberToObject(fields, "learning_rate", step->learning_rate);
        cJSON_AddNumberToObject(fields, "ms_per_batch", step->ms_per_batch);
        cJSON_AddNumberToObject(fields, "examples_per_s", step->examples_per_s);
    }
    log_event("step", fields,
              "worker=%d,epoch=%lld,global_step=%lld,local_step=%lld,loss=%.4f (%.2f ms/batch, %s examples/s)",
              step->worker, (long long)step->epoch, (long long)step->global_step, (long long)step->local_step,
              step->loss, step->ms_per_batch, count_text(rate, (int64_t)(step->examples_per_s + 0.5)));
}

/* "validation_roc_auc": `of` and the metric's name. */
static const char *metric_key(char key[METRIC_KEY], const char *of, enum metric metric)
{
    snprintf(key, METRIC_KEY, "%s_%s", of, config_metric_name(metric));
    return key;
}

static bool is_of_table(const struct evaluation *evaluation)
{
    return evaluation->options.rows > 0 || evaluation->regression;
}

/* All known metrics of a table except accuracy and the loss, which have their own fields. */
static void add_metrics(cJSON *fields, const char *of, const struct evaluation *evaluation)
{
    for (int m = METRIC_BALANCED_ACCURACY; m < METRICS && is_of_table(evaluation); m++) {
        double value = evaluation_metric(evaluation, (enum metric)m);
        char key[METRIC_KEY];
        if (!isnan(value)) {
            cJSON_AddNumberToObject(fields, metric_key(key, of, (enum metric)m), value);
        }
    }
}

/* Those for which a line of text has room: the deciding one, and the usual ones. */
static void format_metrics(char *text, size_t size, const struct report_validation *validation)
{
    static const enum metric of_classes[] = {METRIC_ACCURACY, METRIC_ROC_AUC, METRIC_F1},
                             of_numbers[] = {METRIC_RMSE, METRIC_MAE, METRIC_R2};
    const struct evaluation *evaluation = validation->evaluation;
    const enum metric *usual = evaluation->regression ? of_numbers : of_classes;
    int count = is_of_table(evaluation) ? 3 : 1;
    bool named = validation->metric == METRIC_LOSS;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i <= count && used < size; i++) {
        enum metric metric = i < count ? usual[i] : validation->metric;
        double value = evaluation_metric(evaluation, metric);
        if (!isnan(value) && (i < count || !named)) {
            used +=
                (size_t)snprintf(text + used, size - used, "validation_%s=%.4f,", config_metric_name(metric), value);
        }
        named = named || metric == validation->metric;
    }
}

static cJSON *json_of_workers(const struct validators *validators, int count)
{
    cJSON *array = cJSON_CreateArray();
    for (int i = 0; i < count; i++) {
        const struct worker_score *each = &validators->scores[i];
        cJSON *object = cJSON_CreateObject();
        cJSON_AddNumberToObject(object, "worker", each->worker);
        cJSON_AddNumberToObject(object, "examples", (double)each->examples);
        if (isnan(each->score)) {
            cJSON_AddNullToObject(object, "score");
        } else {
            cJSON_AddNumberToObject(object, "score", each->score);
        }
        json_append(array, object);
    }
    return array;
}

enum { NAMED_WORST = 8 /* of the worst tenth, in a line */ };

/* ", of 20 workers' 1,234 rows (1 sent none); worst tenth: worker 3 0.8123 of 60, ..." */
static void format_validators(char *text, size_t size, const struct report_validation *validation)
{
    const struct validators *validators = validation->validators;
    char rows[COUNT_TEXT];
    size_t used = 0;
    count_text(rows, validation->evaluation->images);
    used += (size_t)snprintf(text, size, ",rows=%s of %d workers", rows, validators->count);
    if (validators->missing > 0 && used < size) {
        used += (size_t)snprintf(text + used, size - used, " (%d did not report)", validators->missing);
    }
    for (int i = 0; i < validators->worst && i < NAMED_WORST && used < size; i++) {
        const struct worker_score *each = &validators->scores[i];
        used += (size_t)snprintf(text + used, size - used, "%s worker %d %.4f of %lld", i == 0 ? "; worst tenth:" : ",",
                                 each->worker, report_number(each->score), (long long)each->examples);
    }
}

void report_validation(const struct report_validation *validation)
{
    const struct evaluation *evaluation = validation->evaluation;
    char key[METRIC_KEY];
    if (log_format() == LOG_JSON) {
        cJSON *fields = cJSON_CreateObject();
        cJSON_AddNumberToObject(fields, "worker", validation->worker);
        cJSON_AddNumberToObject(fields, "epoch", (double)validation->epoch);
        cJSON_AddNumberToObject(fields, "global_step", (double)validation->global_step);
        if (!evaluation->regression) {
            cJSON_AddNumberToObject(fields, "validation_accuracy", evaluation_accuracy(evaluation));
        }
        cJSON_AddNumberToObject(fields, "validation_loss", evaluation->loss);
        add_metrics(fields, "validation", evaluation);
        if (!isnan(evaluation->threshold)) {
            cJSON_AddNumberToObject(fields, "validation_threshold", evaluation->threshold);
        }
        cJSON_AddNumberToObject(fields, metric_key(key, "best", validation->metric), validation->best_score);
        cJSON_AddNumberToObject(fields, "best_step", (double)validation->best_step);
        if (validation->validators->count > 0) {
            cJSON_AddNumberToObject(fields, "validation_examples", (double)evaluation->images);
            cJSON_AddNumberToObject(fields, "validators", validation->validators->count);
            cJSON_AddNumberToObject(fields, "validators_missing", validation->validators->missing);
            json_put(fields, "worst_tenth", json_of_workers(validation->validators, validation->validators->worst));
        }
        log_event("validation", fields, NULL);
        return;
    }
    if (!validation->quiet) {
        char best[80] = "", metrics[256], validators[512] = "";
        if (validation->best_step != validation->global_step) {
            snprintf(best, sizeof best, " (best %.4f at step %lld)", validation->best_score,
                     (long long)validation->best_step);
        }
        format_metrics(metrics, sizeof metrics, validation);
        if (validation->validators->count > 0) {
            format_validators(validators, sizeof validators, validation);
        }
        log_info("worker=%d,epoch=%lld,global_step=%lld,%svalidation_loss=%.4f%s%s", validation->worker,
                 (long long)validation->epoch, (long long)validation->global_step, metrics, evaluation->loss, best,
                 validators);
    }
}

void report_checkpoint(const struct report_checkpoint *checkpoint)
{
    if (log_format() == LOG_JSON) {
        cJSON *fields = cJSON_CreateObject();
        cJSON_AddNumberToObject(fields, "global_step", (double)checkpoint->global_step);
        cJSON_AddStringToObject(fields, "path", checkpoint->path);
        cJSON_AddBoolToObject(fields, "best", checkpoint->is_best);
        log_event("checkpoint", fields, NULL);
    } else if (!checkpoint->quiet) {
        char step[COUNT_TEXT];
        log_info("checkpoint at step %s%s: %s", count_text(step, checkpoint->global_step),
                 checkpoint->is_best ? ", the best so far" : "", checkpoint->path);
    }
}

void report_interrupted(const char *signal, int64_t global_step, const char *checkpoint)
{
    char step[COUNT_TEXT];
    cJSON *fields = NULL;
    if (log_format() == LOG_JSON) {
        fields = cJSON_CreateObject();
        cJSON_AddStringToObject(fields, "signal", signal);
        cJSON_AddNumberToObject(fields, "global_step", (double)global_step);
        if (checkpoint) {
            cJSON_AddStringToObject(fields, "path", checkpoint);
        }
    }
    count_text(step, global_step);
    if (checkpoint) {
        log_event("interrupted", fields, "%s at step %s: saved in %s; run the same command to continue", signal, step,
                  checkpoint);
    } else {
        log_event("interrupted", fields, "%s at step %s: this step is not saved", signal, step);
    }
}

static double class_accuracy(const struct evaluation *evaluation, int class_index)
{
    int64_t images = evaluation->class_images[class_index];
    return images > 0 ? (double)evaluation->class_correct[class_index] / (double)images : 0;
}

/* The classes to show, in order: all of them, or the worst of many. classes: [SHOWN_CLASSES]. */
static int pick_classes(const struct evaluation *evaluation, int *classes)
{
    int found = 0;
    bool all = evaluation->classes <= SHOWN_CLASSES;
    for (int c = 0; c < evaluation->classes; c++) {
        if (evaluation->class_images[c] == 0) {
            continue;
        }
        int place = found;
        while (!all && place > 0 && class_accuracy(evaluation, classes[place - 1]) > class_accuracy(evaluation, c)) {
            place--;
        }
        if (!all && place == SHOWN_WORST) {
            continue;
        }
        found += all || found < SHOWN_WORST;
        memmove(classes + place + 1, classes + place, (size_t)(found - place - 1) * sizeof *classes);
        classes[place] = c;
    }
    return found;
}

/* The names of the model's outputs, in order. */
static void add_names(cJSON *fields, const struct evaluation *evaluation)
{
    const bool has_names = evaluation->options.schema || evaluation->names.count > 0;
    if (!has_names || evaluation_is_of_inputs(evaluation)) {
        return;
    }
    cJSON *names = cJSON_AddArrayToObject(fields, evaluation->classes > 0 ? "classes" : "targets");
    char text[EVALUATION_NAME];
    for (int i = 0; i < evaluation->options.outputs; i++) {
        json_append(names, cJSON_CreateString(evaluation_name(evaluation, i, text)));
    }
}

/* The share of true numbers that are in their interval. */
static double covered_share(const struct evaluation *evaluation)
{
    const int64_t numbers = evaluation->images * evaluation->options.outputs;
    return numbers > 0 ? (double)evaluation->covered / (double)numbers : NAN;
}

static void add_interval(cJSON *fields, const struct evaluation *evaluation)
{
    const struct interval *interval = &evaluation->interval;
    if (interval->coverage == 0) {
        return;
    }
    cJSON_AddNumberToObject(fields, "interval", interval->coverage);
    cJSON_AddNumberToObject(fields, "test_coverage", covered_share(evaluation));
    cJSON *low = cJSON_AddArrayToObject(fields, "interval_low"),
          *high = cJSON_AddArrayToObject(fields, "interval_high");
    for (int i = 0; i < interval->targets; i++) {
        json_append(low, cJSON_CreateNumber(interval->low[i]));
        json_append(high, cJSON_CreateNumber(interval->high[i]));
    }
}

/* The model's temperature and threshold, and their effect. */
static void add_decision(cJSON *fields, const struct evaluation *evaluation)
{
    if (evaluation->temperature > 0) {
        cJSON_AddNumberToObject(fields, "temperature", evaluation->temperature);
    }
    add_interval(fields, evaluation);
    if (isnan(evaluation->decision)) {
        return;
    }
    cJSON_AddNumberToObject(fields, "threshold", evaluation->decision);
    if (evaluation_is_of_inputs(evaluation)) {
        cJSON_AddNumberToObject(fields, "test_flagged", (double)evaluation->flagged);
    }
}

static void add_evaluation(cJSON *fields, const struct evaluation *evaluation)
{
    cJSON_AddNumberToObject(fields, is_of_table(evaluation) ? "test_rows" : "test_images", (double)evaluation->images);
    cJSON_AddNumberToObject(fields, "test_loss", evaluation->loss);
    add_metrics(fields, "test", evaluation);
    add_decision(fields, evaluation);
    add_names(fields, evaluation);
    if (evaluation->classes == 0) {
        return;
    }
    cJSON *accuracies = cJSON_AddArrayToObject(fields, "class_accuracy");
    for (int c = 0; c < evaluation->classes; c++) {
        json_append(accuracies, evaluation->class_images[c] > 0 ? cJSON_CreateNumber(class_accuracy(evaluation, c))
                                                                : cJSON_CreateNull());
    }
    cJSON *f1 = is_of_table(evaluation) && evaluation->confusions ? cJSON_AddArrayToObject(fields, "class_f1") : NULL;
    for (int c = 0; f1 && c < evaluation->classes; c++) {
        double value = metrics_f1_of(evaluation->confusions, evaluation->classes, c);
        json_append(f1, isnan(value) ? cJSON_CreateNull() : cJSON_CreateNumber(value));
    }
}

/* Everything known of a table, except accuracy and loss. */
static void show_metrics(const struct evaluation *evaluation)
{
    char text[512] = "";
    size_t used = 0;
    for (int m = METRIC_BALANCED_ACCURACY; m < METRICS && used < sizeof text; m++) {
        double value = evaluation_metric(evaluation, (enum metric)m);
        if (!isnan(value) && m != METRIC_LOG_LOSS) {
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %.6g", used > 0 ? ", " : "test ",
                                     config_metric_name((enum metric)m), value);
        }
    }
    log_info("%s", text);
}

/* Each of several yes/no targets separately. */
static void show_targets(const struct evaluation *evaluation)
{
    char correct[COUNT_TEXT], images[COUNT_TEXT], name[EVALUATION_NAME];
    int shown = evaluation->options.outputs <= SHOWN_CLASSES ? evaluation->options.outputs : SHOWN_CLASSES;
    for (int i = 0; i < shown && evaluation->loss_kind == LOSS_SIGMOID && shown > 1; i++) {
        const int64_t *table = evaluation->confusions + 4 * i;
        double f1 = metrics_f1_of(table, 2, 1);
        log_info("target %-10s  F1 %.4f  (%s of %s right)", evaluation_name(evaluation, i, name), isnan(f1) ? 0 : f1,
                 count_text(correct, table[0] + table[3]), count_text(images, evaluation->images));
    }
}

static void show_interval(const struct evaluation *evaluation)
{
    const struct interval *interval = &evaluation->interval;
    char name[EVALUATION_NAME];
    if (interval->coverage == 0) {
        return;
    }
    log_info("intervals for %g%% contain %.2f%% of the test's numbers", 100 * interval->coverage,
             100 * covered_share(evaluation));
    for (int i = 0; i < interval->targets; i++) {
        log_info("interval of %s: from prediction %+.6g to %+.6g", evaluation_name(evaluation, i, name),
                 interval->low[i], interval->high[i]);
    }
}

static void show_decision(const struct evaluation *evaluation)
{
    char flagged[COUNT_TEXT], rows[COUNT_TEXT], name[EVALUATION_NAME];
    show_interval(evaluation);
    if (evaluation->temperature > 0) {
        log_info("probabilities are calibrated by a temperature of %.4f", evaluation->temperature);
    }
    if (isnan(evaluation->decision)) {
        return;
    }
    if (evaluation_is_of_inputs(evaluation)) {
        log_info("anomalies (error above %.6g): %s of %s rows", evaluation->decision,
                 count_text(flagged, evaluation->flagged), count_text(rows, evaluation->images));
    } else if (evaluation_is_binary(evaluation)) {
        log_info("predicts %s from a probability of %.4f on",
                 evaluation_name(evaluation, evaluation->options.outputs - 1, name), evaluation->decision);
    }
}

static void show_evaluation(const struct evaluation *evaluation)
{
    char correct[COUNT_TEXT], images[COUNT_TEXT], name[EVALUATION_NAME];
    int classes[SHOWN_CLASSES];
    int shown = pick_classes(evaluation, classes);
    if (shown < evaluation->classes && evaluation->classes > SHOWN_CLASSES) {
        log_info("the %d worst of %d classes:", shown, evaluation->classes);
    }
    for (int i = 0; i < shown; i++) {
        int c = classes[i];
        log_info("class %-*s  %6.2f%%  (%s of %s)", evaluation->options.schema || evaluation->names.count > 0 ? 10 : 3,
                 evaluation_name(evaluation, c, name), 100 * class_accuracy(evaluation, c),
                 count_text(correct, evaluation->class_correct[c]), count_text(images, evaluation->class_images[c]));
    }
    if (is_of_table(evaluation)) {
        show_targets(evaluation);
        show_metrics(evaluation);
        show_decision(evaluation);
    }
    if (evaluation->regression) {
        log_info("%s rows, loss %.4f", count_text(images, evaluation->images), report_number(evaluation->loss));
        return;
    }
    log_info("test accuracy %.2f%% (%s of %s), loss %.4f", 100 * evaluation_accuracy(evaluation),
             count_text(correct, evaluation->correct), count_text(images, evaluation->images),
             report_number(evaluation->loss));
}

static void evaluation_as_json(const struct evaluation *evaluation, const char *checkpoint, int64_t global_step)
{
    struct confused_pair pairs[SHOWN_PAIRS];
    int count = evaluation_worst_pairs(evaluation, pairs, SHOWN_PAIRS);
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddStringToObject(fields, "checkpoint", checkpoint);
    cJSON_AddNumberToObject(fields, "global_step", (double)global_step);
    if (!evaluation->regression) {
        cJSON_AddNumberToObject(fields, "test_accuracy", evaluation_accuracy(evaluation));
    }
    add_evaluation(fields, evaluation);
    cJSON *array = cJSON_AddArrayToObject(fields, "confusions");
    for (int i = 0; i < count; i++) {
        cJSON *pair = cJSON_CreateObject(); /* by number, as classes and their metrics are listed */
        cJSON_AddNumberToObject(pair, "label", pairs[i].label);
        cJSON_AddNumberToObject(pair, "predicted", pairs[i].predicted);
        cJSON_AddNumberToObject(pair, "images", (double)pairs[i].images);
        json_append(array, pair);
    }
    log_event("evaluation", fields, NULL);
}

void report_evaluation(const struct evaluation *evaluation, const char *checkpoint, int64_t global_step)
{
    if (log_format() == LOG_JSON) {
        evaluation_as_json(evaluation, checkpoint, global_step);
        return;
    }
    struct confused_pair pairs[SHOWN_PAIRS];
    char number[COUNT_TEXT], label[EVALUATION_NAME], predicted[EVALUATION_NAME];
    int count = evaluation_worst_pairs(evaluation, pairs, SHOWN_PAIRS);
    log_info("checkpoint %s, step %s", checkpoint, count_text(number, global_step));
    show_evaluation(evaluation);
    for (int i = 0; i < count; i++) {
        log_info("%s %s taken for %s  %s", i == 0 ? "most confused:" : "              ",
                 evaluation_name(evaluation, pairs[i].label, label),
                 evaluation_name(evaluation, pairs[i].predicted, predicted), count_text(number, pairs[i].images));
    }
}

void report_done(const struct report_done *done)
{
    if (log_format() == LOG_JSON) {
        cJSON *fields = cJSON_CreateObject();
        char key[METRIC_KEY];
        if (done->test && !done->test->regression) {
            cJSON_AddNumberToObject(fields, "test_accuracy", evaluation_accuracy(done->test));
        }
        cJSON_AddNumberToObject(fields, "steps", (double)done->steps);
        cJSON_AddNumberToObject(fields, "steps_per_s", done->steps_per_s);
        if (done->global_steps_per_s > 0) {
            cJSON_AddNumberToObject(fields, "global_steps_per_s", done->global_steps_per_s);
        }
        cJSON_AddNumberToObject(fields, "seconds", done->seconds);
        cJSON_AddStringToObject(fields, "reason", done->reason);
        cJSON_AddNumberToObject(fields, "local_steps", (double)done->local_steps);
        cJSON_AddNumberToObject(fields, "epochs", done->epochs);
        if (!isnan(done->best_score)) {
            cJSON_AddNumberToObject(fields, metric_key(key, "best", done->metric), done->best_score);
            cJSON_AddNumberToObject(fields, "best_step", (double)done->best_step);
        }
        if (done->test) {
            cJSON_AddStringToObject(fields, "test_model", done->tests_best ? "best" : "newest");
            cJSON_AddNumberToObject(fields, "test_step", (double)(done->tests_best ? done->best_step : done->steps));
            add_evaluation(fields, done->test);
        }
        log_event("done", fields, NULL);
        return;
    }
    char steps[COUNT_TEXT], local[COUNT_TEXT], rate[COUNT_TEXT], tested[COUNT_TEXT], time[24], best[112] = "";
    if (!isnan(done->best_score) && done->metric == METRIC_ACCURACY) {
        snprintf(best, sizeof best, "; best validation %.2f%% at step %s", 100 * done->best_score,
                 count_text(steps, done->best_step));
    } else if (!isnan(done->best_score)) {
        snprintf(best, sizeof best, "; best validation %s %.6g at step %s", config_metric_name(done->metric),
                 done->best_score, count_text(steps, done->best_step));
    }
    if (done->test) {
        log_info("test of the %s model, of step %s", done->tests_best ? "best" : "newest",
                 count_text(tested, done->tests_best ? done->best_step : done->steps));
        show_evaluation(done->test);
    } else {
        log_info("no test: all rows are for training and validation (data.test_share is 0)");
    }
    progress_format_duration(time, sizeof time, done->seconds);
    log_info("%s at step %s (%.1f epochs)%s", done->reason, count_text(steps, done->steps), done->epochs, best);
    if (done->local_steps == 0) {
        return;
    }
    if (done->global_steps_per_s > 0) {
        log_info("all workers together: %s steps/s", count_text(rate, (int64_t)(done->global_steps_per_s + 0.5)));
    }
    log_info("%s steps in %s, %s steps/s", count_text(local, done->local_steps), time,
             count_text(rate, (int64_t)(done->steps_per_s + 0.5)));
}
