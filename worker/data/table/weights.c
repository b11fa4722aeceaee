/* Counts the rows and their weights by class. From these follow one factor per class, and the mean. */
#include "worker/data/table/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The class of a row: its label, or the value of a single target of 0 and 1. */
static int class_of(const struct examples *examples, int row)
{
    return examples->labels ? examples->labels[row] : (int)examples->target_values[row];
}

static int find_class(const struct schema *schema, const char *name, size_t size)
{
    if (schema->task == TASK_CLASS) {
        return dictionary_find(&schema_target(schema, 0)->categories, name, size);
    }
    return size == 1 && (*name == '0' || *name == '1') ? *name - '0' : -1;
}

/* Reads "name:weight,..."; a name may contain colons, because the last one counts. */
static bool parse_list(double *weights, const struct schema *schema, const char *text, struct error *error)
{
    while (*text != '\0') {
        const size_t length = strcspn(text, ",");
        const char *colon = memrchr(text, ':', length);
        char *end = NULL;
        const double weight = colon ? strtod(colon + 1, &end) : -1;
        if (!colon || end != text + length || !(weight >= 0) || !isfinite(weight)) {
            return error_set(error, "train.class_weights: \"%.*s\" is no name:weight; weights are 0 or more",
                             (int)(length < 64 ? length : 64), text);
        }
        const int found = find_class(schema, text, (size_t)(colon - text));
        if (found < 0) {
            return error_set(error, "train.class_weights: the target has no class %.*s", (int)(colon - text), text);
        }
        weights[found] = weight;
        text += length + (text[length] == ',');
    }
    return true;
}

bool weights_begin(struct weights *weights, const struct schema *schema, const char *class_weights, struct error *error)
{
    const bool is_binary = schema->task == TASK_FLAGS && schema->targets == 1;
    *weights = (struct weights){.classes = 1, .mean = 1};
    if (class_weights[0] != '\0') {
        if (schema->task != TASK_CLASS && !is_binary) {
            return error_set(error, "train.class_weights: what is learnt here has no classes; leave it out");
        }
        weights->classes = is_binary ? 2 : schema->classes;
        weights->are_balanced = strcmp(class_weights, "balanced") == 0;
    }
    const size_t classes = (size_t)weights->classes;
    weights->factors = malloc(classes * sizeof *weights->factors);
    weights->sums = calloc(classes, sizeof *weights->sums);
    weights->rows = calloc(classes, sizeof *weights->rows);
    if (!weights->factors || !weights->sums || !weights->rows) {
        return error_set(error, "out of memory for the weights of %zu classes", classes);
    }
    for (size_t i = 0; i < classes; i++) {
        weights->factors[i] = 1;
    }
    return weights->are_balanced || parse_list(weights->factors, schema, class_weights, error);
}

void weights_free(struct weights *weights)
{
    free(weights->factors);
    free(weights->sums);
    free(weights->rows);
    *weights = (struct weights){.classes = 0};
}

void weights_count(struct weights *weights, const struct examples *examples, int row)
{
    const int class = weights->classes > 1 ? class_of(examples, row) : 0;
    weights->rows[class]++;
    weights->sums[class] += examples->weights ? (double)examples->weights[row] : 1;
}

bool weights_settle(struct weights *weights, const char *name, struct error *error)
{
    int64_t rows = 0;
    double sum = 0;
    for (int i = 0; i < weights->classes; i++) {
        rows += weights->rows[i];
    }
    for (int i = 0; i < weights->classes; i++) {
        if (weights->are_balanced) {
            weights->factors[i] =
                weights->rows[i] > 0 ? (double)rows / ((double)weights->classes * (double)weights->rows[i]) : 0;
        }
        sum += weights->factors[i] * weights->sums[i];
    }
    if (rows == 0) {
        return error_set(
            error,
            "%s: no rows are left to train on beside those held out: add rows, lower --validation_size, or "
            "set --test_share=0",
            name);
    }
    weights->mean = sum / (double)rows;
    return weights->mean > 0 || error_set(error, "%s: the weights of all its rows are 0", name);
}

void weights_apply(const struct weights *weights, const struct examples *examples, int held_out)
{
    for (int row = 0; examples->weights && weights->classes > 0 && row < examples->count; row++) {
        const bool is_trained_on = weights->classes > 1 && row >= held_out;
        const double factor = is_trained_on ? weights->factors[class_of(examples, row)] : 1;
        examples->weights[row] = (float)((double)examples->weights[row] * factor / weights->mean);
    }
}
