/* Without weights of either kind there is no array of them: all rows count 1. */
#include "worker/data/table/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The class of a row: its label, or of a single target of 0 and 1 its value. */
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

/* Reads "name:weight,..."; a name may hold colons, as the last one counts. */
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

static void balance(double *weights, int classes, const struct examples *examples, int held_out)
{
    for (int c = 0; c < classes; c++) {
        weights[c] = 0;
    }
    for (int row = held_out; row < examples->count; row++) {
        weights[class_of(examples, row)]++;
    }
    for (int c = 0; c < classes; c++) {
        weights[c] = weights[c] > 0 ? (double)(examples->count - held_out) / (classes * weights[c]) : 0;
    }
}

static bool weigh_classes(struct examples *examples, int held_out, const struct schema *schema, const char *text,
                          struct error *error)
{
    const bool is_binary = schema->task == TASK_FLAGS && schema->targets == 1;
    const int classes = is_binary ? 2 : schema->classes;
    if (schema->task != TASK_CLASS && !is_binary) {
        return error_set(error, "train.class_weights: what is learnt here has no classes; leave it out");
    }
    double *weights = calloc((size_t)classes, sizeof *weights);
    if (!examples->weights) {
        examples->weights = malloc((size_t)examples->count * sizeof *examples->weights);
        for (int row = 0; examples->weights && row < examples->count; row++) {
            examples->weights[row] = 1;
        }
    }
    bool done = (weights && examples->weights) || error_set(error, "out of memory for the weights of the rows");
    for (int c = 0; done && c < classes; c++) {
        weights[c] = 1;
    }
    if (done && strcmp(text, "balanced") == 0) {
        balance(weights, classes, examples, held_out);
    } else {
        done = done && parse_list(weights, schema, text, error);
    }
    for (int row = held_out; done && row < examples->count; row++) {
        examples->weights[row] = (float)((double)examples->weights[row] * weights[class_of(examples, row)]);
    }
    free(weights);
    return done;
}

bool weights_settle(struct examples *examples, int held_out, const struct schema *schema, const char *class_weights,
                    const char *name, struct error *error)
{
    if (class_weights[0] != '\0' && !weigh_classes(examples, held_out, schema, class_weights, error)) {
        return false;
    }
    if (!examples->weights) {
        return true;
    }
    double sum = 0;
    for (int row = held_out; row < examples->count; row++) {
        sum += (double)examples->weights[row];
    }
    const double mean = sum / (double)(examples->count > held_out ? examples->count - held_out : 1);
    if (!(mean > 0)) {
        return error_set(error, "%s: the weights of all its rows are 0", name);
    }
    for (int row = 0; row < examples->count; row++) {
        examples->weights[row] = (float)((double)examples->weights[row] / mean);
    }
    return true;
}
