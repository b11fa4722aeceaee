/* A plain forward pass, sample by sample: it runs rarely, on few images, so clarity wins over speed. */
#include "worker/summary/activations.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    memset(input, 0, inputs * sizeof *input);
    for (size_t i = 0; i < numbers; i++) {
        input[i] = examples->values[at * numbers + i];
    }
    for (size_t i = 0; i < codes; i++) {
        int32_t place = examples->places[at * codes + i];
        if (place >= 0) {
            input[place] = 1;
        }
    }
}

bool activations_measure(const struct model *model, const float *parameters, const struct examples *examples, int count,
                         struct histogram *histograms, struct error *error)
{
    assert(count >= 0 && count <= ACTIVATIONS_IMAGES);
    int widest = 0;
    for (int i = 0; i <= model->layer_count; i++) {
        widest = model->widths[i] > widest ? model->widths[i] : widest;
    }
    float *memory = malloc((size_t)2 * (size_t)widest * sizeof *memory);
    if (!memory) {
        return error_set(error, "out of memory for the activations of %d units", widest);
    }
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
    return true;
}
