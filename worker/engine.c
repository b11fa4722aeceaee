/* Common to all engines: writing parameters, feeding gradients, adding up results. */
#include "worker/engine.h"

#include "base/copy.h"

float *engine_parameters_in_place(struct engine *engine)
{
    return engine->table->parameters ? engine->table->parameters(engine) : NULL;
}

bool engine_put_parameters(struct engine *engine, const float *values, size_t count, struct error *error)
{
    float *parameters = engine_parameters_in_place(engine);
    if (parameters) {
        copy_bytes(parameters, values, count * sizeof *values);
        return true;
    }
    return engine->table->write(engine, STORE_PARAMETERS, 0, count, values, error);
}

bool engine_put_vectors(struct engine *engine, float *const vectors[STORE_VECTORS], size_t count, struct error *error)
{
    for (int v = 0; v < STORE_VECTORS; v++) {
        if (vectors[v] && !engine->table->write(engine, (enum store_vector)v, 0, count, vectors[v], error)) {
            return false;
        }
    }
    return true;
}

void gradient_feed(const struct model *model, const float *gradient, const struct gradient_sink *sink)
{
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        sink->block(sink->context, &(struct gradient_block){.variable = i,
                                                            .rows = variable->rows,
                                                            .cols = variable->cols,
                                                            .values = gradient + variable->offset,
                                                            .stride = variable->stride});
    }
}

void train_result_add(struct train_result *sum, const struct train_result *later)
{
    sum->steps += later->steps;
    sum->loss_sum += later->loss_sum;
    sum->last_loss = later->steps > 0 ? later->last_loss : sum->last_loss;
    sum->correct += later->correct;
    sum->images += later->images;
    sum->finite = later->finite;
    sum->bad_loss = later->bad_loss;
}
