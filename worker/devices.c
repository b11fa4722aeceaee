/* The command `trainer devices`: what --device can name on this machine, or why there is no GPU. */

#include <stdio.h>

#include <cJSON.h>

#include "base/cli/commands.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/text/json.h"
#include "base/threads.h"
#include "cuda/client.h"
#include "cuda/probe.h"

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
