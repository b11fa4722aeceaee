/* Names and order are TensorFlow's: variables, then forward and backward operations, and the updates. */
#include "worker/device_log.h"

#include <stdio.h>

#include "base/log.h"
#include "ps/store/model.h"
#include "worker/layer_placement.h"

/* Where something is: "job", task, "gpu:0". */
struct place {
    const char *job;
    int task;
    const char *device;
};

static void log_placement(const char *name, const char *operation, const struct place *place)
{
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddStringToObject(fields, "name", name);
    cJSON_AddStringToObject(fields, "operation", operation);
    cJSON_AddStringToObject(fields, "job", place->job);
    cJSON_AddNumberToObject(fields, "task", place->task);
    cJSON_AddStringToObject(fields, "device", place->device);
    log_event("placement", fields, "placement  %s (%s): /job:%s/task:%d/device:%s", name, operation, place->job,
              place->task, place->device);
}

/* A variable and its update are on every ps that holds a row of it; without ps, on the engine's device. */
static void log_variable(const struct engine_options *options, const struct variable *variable,
                         const struct place *local, const char *operation)
{
    const struct config_cluster *cluster = &options->config->cluster;
    char name[64];
    snprintf(name, sizeof name, "%s%s", variable->name, operation[0] == 'V' ? "" : "/update");
    if (cluster->job_name != JOB_WORKER) {
        log_placement(name, operation, local);
        return;
    }
    size_t end = variable->offset + (size_t)variable->rows * (size_t)variable->stride;
    for (int ps = 0; ps < cluster->ps_hosts.count; ps++) {
        struct span spans[PLACEMENT_MAX_SPANS];
        int count = placement_spans(options->model, cluster->placement, cluster->ps_hosts.count, ps, spans);
        for (int i = 0; i < count; i++) {
            if (spans[i].first < end && variable->offset < spans[i].first + spans[i].count) {
                log_placement(name, operation, &(struct place){"ps", ps, "cpu:0"});
                break;
            }
        }
    }
}

/* The engine's devices, and its layers that are on the CPU regardless. */
struct places {
    struct place engine, cpu;
    uint32_t cpu_layers;
};

static const struct place *place_of(const struct places *places, int layer)
{
    return places->cpu_layers >> layer & 1 ? &places->cpu : &places->engine;
}

static void log_layer(int layer, const char *prefix, const char *operation, const struct places *places)
{
    char name[64];
    snprintf(name, sizeof name, "%slayer%d/%s", prefix, layer, operation);
    log_placement(name, operation, place_of(places, layer));
}

void device_log(const struct engine_options *options, const char *device)
{
    const struct model *model = options->model;
    const struct config *config = options->config;
    bool remote = config->cluster.job_name == JOB_WORKER;
    const char *job = remote ? "worker" : "local";
    int task = remote ? config->cluster.task_index : 0;
    struct places places = {.engine = {job, task, device},
                            .cpu = {job, task, "cpu:0"},
                            .cpu_layers = layer_placement_of(&config->train, model->layer_count).cpu_layers};
    if (!config->train.log_device_placement) {
        return;
    }
    for (int i = 0; i < model->variable_count; i++) {
        log_variable(options, &model->variables[i], place_of(&places, i / 2), "Variable");
    }
    for (int layer = 0; layer < model->layer_count; layer++) {
        log_layer(layer, "", "MatMul", &places);
        log_layer(layer, "", "BiasAdd", &places);
        if (layer + 1 < model->layer_count) {
            log_layer(layer, "", config_activation_name(model->activation), &places);
        }
    }
    if (options->only_forward) {
        return;
    }
    log_placement("loss", "SparseSoftmaxCrossEntropy", &places.engine);
    for (int layer = model->layer_count - 1; layer >= 0; layer--) {
        log_layer(layer, "gradients/", "MatMul", &places);
    }
    for (int i = 0; i < model->variable_count; i++) {
        log_variable(options, &model->variables[i], place_of(&places, i / 2), "ApplyGradient");
    }
}
