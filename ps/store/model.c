/*
 * The layout of the flat vector, and initial values.
 *
 * Initial values are drawn by inversion, one random number per element: no state, no rejection, and the same value
 * whatever the layout, the thread or the engine.
 */
#include "ps/store/model.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random/philox.h"

/*
 * TensorFlow's variance_scaling divides by the standard deviation of a normal truncated at 2, so that the result has
 * the requested variance.
 */
static const double truncated_normal_stddev = 0.87962566103423978;

/* P(z < -2) of the standard normal distribution. */
static const double truncated_normal_tail = 0.022750131948179207;

static int row_stride(int cols)
{
    int lines = (cols + MODEL_ROW_ALIGN - 1) / MODEL_ROW_ALIGN;
    return (lines | 1) * MODEL_ROW_ALIGN;
}

/* prefix: of its net. */
static void add_variable(struct model *model, int net, const char *prefix, int layer, const char *what, int rows,
                         int cols)
{
    const bool is_weights = strcmp(what, "weights") == 0, is_encoded = model->views[net] != VIEW_RAW;
    assert(model->variable_count < MODEL_MAX_VARIABLES);
    struct variable *variable = &model->variables[model->variable_count++];
    snprintf(variable->name, sizeof variable->name, "%slayer%d/%s", prefix, layer, what);
    variable->rows = rows;
    variable->cols = cols;
    variable->stride = row_stride(cols);
    variable->offset = model->float_count;
    variable->is_weights = is_weights;
    variable->update = is_encoded ? (is_weights ? UPDATE_ENCODED_WEIGHTS : UPDATE_ENCODED_BIASES)
                                  : (is_weights ? UPDATE_WEIGHTS : UPDATE_BIASES);
    variable->panels = 1;
    variable->lanes = MODEL_ROW_ALIGN;
    model->float_count += (size_t)rows * (size_t)variable->stride;
    model->parameter_count += (size_t)rows * (size_t)cols;
}

void model_layout(struct model *model, const struct config_model *config)
{
    memset(model, 0, sizeof *model);
    model->net_count = config_nets(config);
    model->layer_count = config->layer_count - 1;
    model->activation = config->activation;
    memcpy(model->widths, config->layers, sizeof model->widths);
    model->widths[0] = config_net_inputs(config, 0);
    for (int net = 0; net < model->net_count; net++) {
        char prefix[16] = "";
        model->views[net] = config->net_count > 0 ? config->views[net] : VIEW_RAW;
        if (model->net_count > 1) {
            snprintf(prefix, sizeof prefix, "net%d/", net);
        }
        for (int layer = 0; layer < model->layer_count; layer++) {
            const int rows = layer == 0 ? config_net_inputs(config, net) : config->layers[layer];
            add_variable(model, net, prefix, layer, "weights", rows, config->layers[layer + 1]);
            add_variable(model, net, prefix, layer, "biases", 1, config->layers[layer + 1]);
        }
    }
}

size_t model_net(const struct model *model, int net, struct model *one)
{
    const int count = 2 * model->layer_count;
    const struct variable *variables = &model->variables[net * count];
    const size_t first = variables[0].offset;
    assert(net >= 0 && net < model->net_count);
    memset(one, 0, sizeof *one);
    one->net_count = 1;
    one->views[0] = model->views[net];
    one->layer_count = model->layer_count;
    one->activation = model->activation;
    memcpy(one->widths, model->widths, sizeof one->widths);
    one->widths[0] = variables[0].rows;
    one->variable_count = count;
    for (int i = 0; i < count; i++) {
        one->variables[i] = variables[i];
        one->variables[i].offset -= first;
        one->float_count += (size_t)variables[i].rows * (size_t)variables[i].stride;
        one->parameter_count += (size_t)variables[i].rows * (size_t)variables[i].cols;
    }
    return first;
}

void model_units_text(const struct config_model *config, char text[MODEL_UNITS_TEXT])
{
    bool differ = false;
    for (int net = 0; net < config_nets(config); net++) {
        differ |= config_net_inputs(config, net) != config->layers[0];
    }
    size_t used = (size_t)snprintf(text, MODEL_UNITS_TEXT, "%d", config_net_inputs(config, 0));
    for (int net = 1; differ && net < config->net_count && used < MODEL_UNITS_TEXT; net++) {
        used += (size_t)snprintf(text + used, MODEL_UNITS_TEXT - used, "+%d", config_net_inputs(config, net));
    }
    for (int i = 1; i < config->layer_count && used < MODEL_UNITS_TEXT; i++) {
        used += (size_t)snprintf(text + used, MODEL_UNITS_TEXT - used, ",%d", config->layers[i]);
    }
}

void model_ensemble_text(const struct model *model, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int net = 0, end; net < model->net_count && used < size; net = end) {
        end = net + 1;
        while (end < model->net_count && model->views[end] == model->views[net]) {
            end++;
        }
        used += (size_t)snprintf(text + used, size - used, "%s%s:%d", used > 0 ? "," : "",
                                 config_view_name(model->views[net]), end - net);
    }
}

bool model_parse_units(struct config_model *config, const char *text)
{
    int nets = 0, most = CONFIG_MAX_INPUTS;
    config->layer_count = 0;
    memset(config->net_inputs, 0, sizeof config->net_inputs);
    for (const char *at = text; config->layer_count < CONFIG_MAX_LAYERS;) {
        char *end;
        long width = strtol(at, &end, 10);
        const bool is_first = config->layer_count == 0, is_of_net = is_first && (nets > 0 || *end == '+');
        if (end == at || width < 1 || width > most || (is_of_net && nets >= config->net_count)) {
            return false;
        }
        if (is_of_net) {
            config->net_inputs[nets++] = (int)width;
            width = config->net_inputs[0];
        }
        at = end + 1;
        if (is_first && *end == '+') {
            continue;
        }
        if (nets > 0 && nets != config->net_count) {
            return false;
        }
        config->layers[config->layer_count++] = (int)width;
        most = CONFIG_MAX_WIDTH;
        if (*end != ',') {
            return *end == '\0' && config->layer_count >= 2;
        }
    }
    return false;
}

bool model_take_units(struct config_model *config, const char *text, struct error *error)
{
    struct config_model taken = *config;
    if (!model_parse_units(&taken, text)) {
        return error_set(error, "\"%.128s\" are no layers", text);
    }
    if (taken.layer_count != config->hidden_count + 2 ||
        memcmp(taken.layers + 1, config->hidden, (size_t)config->hidden_count * sizeof *config->hidden) != 0) {
        return error_set(error, "the layers %.128s have other hidden layers than model.hidden", text);
    }
    *config = taken;
    return true;
}

struct config_model model_with_ends(const struct config_model *model, const struct config_model *ends)
{
    struct config_model result = *model;
    if (model->hidden_count == CONFIG_AUTO) {
        return result;
    }
    result.layer_count = model->hidden_count + 2;
    result.layers[0] = ends->layers[0];
    memcpy(result.net_inputs, ends->net_inputs, sizeof result.net_inputs);
    memcpy(result.layers + 1, model->hidden, (size_t)model->hidden_count * sizeof *model->hidden);
    result.layers[result.layer_count - 1] = ends->layers[ends->layer_count - 1];
    return result;
}

void model_set_panels(struct model *model, int variable, int panels, int lanes)
{
    struct variable *cut = &model->variables[variable];
    cut->panels = panels;
    cut->lanes = lanes;
    int widest = 0;
    for (int i = 0; i < panels; i++) {
        int width = variable_panel_col(cut, i + 1) - variable_panel_col(cut, i);
        widest = width > widest ? width : widest;
    }
    cut->stride = (widest + MODEL_ROW_ALIGN - 1) / MODEL_ROW_ALIGN * MODEL_ROW_ALIGN;
    model->float_count = 0;
    for (int i = 0; i < model->variable_count; i++) {
        struct variable *each = &model->variables[i];
        each->offset = model->float_count;
        model->float_count += (size_t)each->panels * (size_t)each->rows * (size_t)each->stride;
    }
}

/*
 * The standard normal quantile of p for |p - 0.5| < 0.49, to about 1e-16. Source: M. J. Wichura, "Algorithm AS 241: The
 * percentage points of the normal distribution", Applied Statistics 37 (1988), routine PPND16 without its far tail.
 */
static double normal_quantile(double p)
{
    static const double a[] = {2509.0809287301226727, 33430.575583588128105, 67265.770927008700853,
                               45921.953931549871457, 13731.693765509461125, 1971.5909503065514427,
                               133.14166789178437745, 3.3871328727963666080};
    static const double b[] = {
        5226.4952788528545610, 28729.085735721942674, 39307.895800092710610, 21213.794301586595867,
        5394.1960214247511077, 687.18700749205790830, 42.313330701600911252, 1.0};
    static const double c[] = {7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
                               1.27045825245236838258,    3.64784832476320460504,    5.76949722146069140550,
                               4.63033784615654529590,    1.42343711074968357734};
    static const double d[] = {
        1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
        6.89767334985100004550e-1, 1.67638483018380384940,    2.05319162663775882187,    1.0};
    double q = p - 0.5;
    bool central = fabs(q) <= 0.425;
    double r = central ? 0.180625 - q * q : sqrt(-log(q < 0.0 ? p : 1.0 - p)) - 1.6;
    const double *above = central ? a : c;
    const double *below = central ? b : d;
    double numerator = above[0];
    double denominator = below[0];
    for (int i = 1; i < 8; i++) {
        numerator = numerator * r + above[i];
        denominator = denominator * r + below[i];
    }
    double magnitude = numerator / denominator;
    return central ? magnitude * q : copysign(magnitude, q);
}

/* As TensorFlow, which redraws normal numbers until one lies within 2 standard deviations: the same distribution. */
static double truncated_normal(double uniform)
{
    return normal_quantile(truncated_normal_tail + uniform * (1.0 - 2.0 * truncated_normal_tail));
}

/* uniform: in (0, 1). */
static double weight_of(const struct config_model *config, const struct variable *variable, double uniform)
{
    switch (config->initializer) {
    case INITIALIZER_ZEROS:
        return 0.0;
    case INITIALIZER_TRUNCATED_NORMAL:
        return config->init_stddev * truncated_normal(uniform);
    case INITIALIZER_GLOROT:
        return sqrt(6.0 / (variable->rows + variable->cols)) * (2.0 * uniform - 1.0);
    case INITIALIZER_HE:
        return sqrt(2.0 / variable->rows) / truncated_normal_stddev * truncated_normal(uniform);
    }
    return 0.0;
}

static void initialise_weights(const struct config_model *config, const struct variable *variable, uint32_t number,
                               int64_t seed, float *values)
{
    struct philox_key key = philox_key((uint64_t)seed);
    struct philox_block block = {{0}};
    uint32_t element = 0; /* of the plain row-major matrix, so that the layout does not matter; at most 2^32 of them */
    for (int row = 0; row < variable->rows; row++) {
        for (int col = 0; col < variable->cols; col++, element++) {
            if (element % 4 == 0) {
                block = philox(key, element / 4, number, 0, (uint32_t)RANDOM_INITIALISER << 28);
            }
            double uniform = ((double)block.word[element % 4] + 0.5) * 0x1p-32;
            values[(size_t)row * (size_t)variable->stride + (size_t)col] = (float)weight_of(config, variable, uniform);
        }
    }
}

void model_initialise(const struct model *model, const struct config_model *config, int64_t seed, float *parameters)
{
    memset(parameters, 0, model->float_count * sizeof *parameters);
    for (int number = 0; number < model->variable_count; number++) {
        const struct variable *variable = &model->variables[number];
        float *values = parameters + variable->offset;
        if (variable->is_weights && config->initializer != INITIALIZER_ZEROS) {
            initialise_weights(config, variable, (uint32_t)number, seed, values);
        }
        for (int col = 0; !variable->is_weights && col < variable->cols; col++) {
            values[col] = (float)config->init_bias;
        }
    }
}

/* --- Placement: cuts between rows, found by walking the few variables; nothing here grows with the model --- */

/* The row boundary nearest to `position`; of two, the first. */
static size_t nearest_row(const struct model *model, size_t position)
{
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        size_t stride = (size_t)variable->stride;
        size_t end = variable->offset + (size_t)variable->rows * stride;
        if (position < end) {
            size_t rows = (position - variable->offset + (stride - 1) / 2) / stride;
            return variable->offset + rows * stride;
        }
    }
    return model->float_count;
}

/* floor(total x part / parts) without overflow for any model that fits into memory. */
static size_t share(size_t total, size_t part, size_t parts)
{
    return total / parts * part + total % parts * part / parts;
}

static int ranges_spans(const struct model *model, int ps_count, int ps, struct span spans[PLACEMENT_MAX_SPANS])
{
    size_t first = nearest_row(model, share(model->float_count, (size_t)ps, (size_t)ps_count));
    size_t end = nearest_row(model, share(model->float_count, (size_t)ps + 1, (size_t)ps_count));
    spans[0] = (struct span){first, end - first};
    return end > first ? 1 : 0;
}

/* The ps with the fewest floats; counts: [ps_count]. */
static int least_loaded(const size_t *counts, int ps_count)
{
    int least = 0;
    for (int i = 1; i < ps_count; i++) {
        least = counts[i] < counts[least] ? i : least;
    }
    return least;
}

static int variable_spans(const struct model *model, bool greedy, int ps_count, int ps,
                          struct span spans[PLACEMENT_MAX_SPANS])
{
    size_t counts[CONFIG_MAX_HOSTS] = {0};
    int span_count = 0;
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        size_t count = (size_t)variable->rows * (size_t)variable->stride;
        int home = greedy ? least_loaded(counts, ps_count) : i % ps_count;
        counts[home] += count;
        if (home != ps) {
            continue;
        }
        struct span *last = span_count > 0 ? &spans[span_count - 1] : NULL;
        if (last && last->first + last->count == variable->offset) {
            last->count += count;
        } else {
            spans[span_count++] = (struct span){variable->offset, count};
        }
    }
    return span_count;
}

int placement_spans(const struct model *model, enum placement_policy policy, int ps_count, int ps,
                    struct span spans[PLACEMENT_MAX_SPANS])
{
    assert(ps_count > 0 && ps_count <= CONFIG_MAX_HOSTS && ps >= 0 && ps < ps_count);
    if (policy == PLACEMENT_RANGES) {
        return ranges_spans(model, ps_count, ps, spans);
    }
    return variable_spans(model, policy == PLACEMENT_GREEDY, ps_count, ps, spans);
}

int placement_first(const struct model *model, enum placement_policy policy, int ps_count)
{
    struct span spans[PLACEMENT_MAX_SPANS];
    int ps = 0;
    while (ps < ps_count && placement_spans(model, policy, ps_count, ps, spans) == 0) {
        ps++;
    }
    return ps < ps_count ? ps : 0;
}
