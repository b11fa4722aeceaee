/* The devices that compute a model: the command `trainer devices`, the placement of layers, and its log. */
#include "worker/gpu/engine.h"

#include <stdio.h>

#include <cJSON.h>

#include "base/cli/commands.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/text/json.h"
#include "base/threads.h"
#include "cuda/client.h"
#include "cuda/probe.h"
#include "ps/store/model.h"

/* --- The command devices --- */

/* The command `trainer devices`: what --device can name on this machine, or why there is no GPU. */

static const double START_S = 10;

/* False: there is none, with the reason. */
static bool find(struct gpu_list *list, struct error *why)
{
    struct gpu_probe probe;
    struct gpu_client *client;
    gpu_probe(&probe);
    if (probe.hidden) {
        return error_set(why, "%s", probe.reason);
    }
    if (!gpu_client_is_built()) {
        return error_set(why, "this build has no GPU engine (built without nvcc); this machine: %s", probe.reason);
    }
    if (!gpu_client_start(&client, START_S, why)) {
        return false;
    }
    bool found = gpu_client_list(client, list, why);
    gpu_client_stop(client);
    return found;
}

static void print_text(const struct gpu_list *list, const char *why)
{
    const struct cpu_features *cpu = cpu_features_get();
    printf("cpu    %s, %d threads\n", cpu->model[0] != '\0' ? cpu->model : "unknown processor", threads_available());
    for (int i = 0; i < list->count; i++) {
        const struct driver_device *device = &list->devices[i];
        printf("gpu:%-2d %s, %.1f GiB, compute capability %d.%d, %d multiprocessors, %s\n", i, device->name,
               (double)device->memory_bytes / (1 << 30), device->major, device->minor, device->multiprocessors,
               device->uuid);
    }
    if (why) {
        printf("no GPU: %s\n", why);
    } else {
        printf("driver CUDA %d.%d\n", list->driver_version / 1000, list->driver_version % 1000 / 10);
    }
}

static void print_json(const struct gpu_list *list, const char *why)
{
    char text[32];
    cJSON *root = cJSON_CreateObject();
    cJSON *devices = cJSON_AddArrayToObject(root, "devices");
    for (int i = 0; i < list->count; i++) {
        const struct driver_device *device = &list->devices[i];
        cJSON *item = cJSON_CreateObject();
        snprintf(text, sizeof text, "gpu:%d", i);
        cJSON_AddStringToObject(item, "device", text);
        cJSON_AddStringToObject(item, "name", device->name);
        cJSON_AddNumberToObject(item, "memory_bytes", (double)device->memory_bytes);
        snprintf(text, sizeof text, "%d.%d", device->major, device->minor);
        cJSON_AddStringToObject(item, "compute_capability", text);
        cJSON_AddNumberToObject(item, "multiprocessors", device->multiprocessors);
        cJSON_AddStringToObject(item, "uuid", device->uuid);
        json_append(devices, item);
    }
    if (why) {
        cJSON_AddStringToObject(root, "no_gpu", why);
    } else {
        snprintf(text, sizeof text, "%d.%d", list->driver_version / 1000, list->driver_version % 1000 / 10);
        cJSON_AddStringToObject(root, "driver_cuda", text);
    }
    log_event("devices", root, NULL);
}

static int run(const struct command_call *call)
{
    struct gpu_list list = {.count = 0};
    struct error why;
    bool found = find(&list, &why);
    list.count = found ? list.count : 0;
    if (command_switch(call, "json")) {
        log_setup(LOG_JSON, LOG_INFO);
        print_json(&list, found ? NULL : why.text);
    } else {
        print_text(&list, found ? NULL : why.text);
    }
    return COMMAND_DONE;
}

static const struct command_flag flags[] = {
    {"json", NULL, "one JSON object"},
    {NULL, NULL, NULL},
};

const struct command command_devices = {
    .name = "devices",
    .summary = "list this machine's devices for --device: GPUs with memory, compute capability and driver, or why "
               "there are none",
    .flags = flags,
    .run = run,
};

/* --- Where layers are computed --- */

/* A layer placed by name overrides train.device; the others follow it. */

struct layer_placement layer_placement_of(const struct config_train *train, int layers)
{
    struct layer_placement result = {.device = train->device, .gpu = train->device_index};
    uint32_t all = (1u << layers) - 1;
    for (int l = 0; l < layers; l++) {
        int where = train->placement[l];
        if (where >= LAYER_ON_GPU) {
            result.by_hand |= train->device != DEVICE_GPU;
            result.device = DEVICE_GPU;
            result.gpu = where - LAYER_ON_GPU;
        } else if (where == LAYER_ON_CPU || train->device == DEVICE_CPU) {
            result.cpu_layers |= 1u << l;
        }
    }
    if (result.cpu_layers == all) {
        result.device = DEVICE_CPU;
    }
    return result;
}

/* --- The log of --log_device_placement --- */

/* Names and order are TensorFlow's: variables, then forward and backward operations, and the updates. */

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
