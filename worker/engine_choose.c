/* A missing GPU that was requested is an error; with `auto` a log line says why the CPU trains. */
#include "worker/engine.h"

#include <stdio.h>

#include "base/log.h"
#include "cuda/client.h"
#include "cuda/probe.h"
#include "worker/ensemble.h"
#include "worker/gpu/engine.h"

/*
 * Is it worth starting the GPU engine's process? With auto only if there are signs of a GPU; an explicit request gets
 * the driver's own reason why there is none.
 */
static bool is_worth_it(enum device_kind device, struct error *why)
{
    struct gpu_probe probe;
    gpu_probe(&probe);
    const char *remedy = device == DEVICE_AUTO ? "" : ": use --device=cpu";
    if (!probe.usable && (device == DEVICE_AUTO || probe.hidden)) {
        return error_set(why, "%s%s", probe.reason, remedy);
    }
    if (!gpu_client_is_built()) {
        return error_set(why, "%s%s%s%s", probe.usable ? probe.reason : "", probe.usable ? ", but " : "",
                         "this build has no GPU engine", remedy);
    }
    return true;
}

static struct layer_placement placement_of(const struct engine_options *options)
{
    return layer_placement_of(&options->config->train, options->model->layer_count);
}

/* NULL with the reason. */
static struct gpu_client *begin(const struct engine_options *options, struct error *why)
{
    struct gpu_client *client;
    if (!is_worth_it(placement_of(options).device, why) ||
        !gpu_client_start(&client, options->config->train.gpu_timeout_secs, why)) {
        return NULL;
    }
    if (!gpu_engine_begin(client, options, why)) {
        gpu_client_stop(client);
        return NULL;
    }
    return client;
}

static bool has_towers(const struct engine_options *options)
{
    const char *towers = options->config->train.towers;
    return towers && towers[0] != '\0' && !options->only_forward;
}

void engine_begin(struct engine_startup *startup, const struct engine_options *options)
{
    struct error error;
    bool on_gpu = placement_of(options).device != DEVICE_CPU && !has_towers(options) && options->model->net_count == 1;
    startup->client = on_gpu ? begin(options, &error) : NULL;
}

void engine_startup_end(struct engine_startup *startup)
{
    gpu_client_stop(startup->client);
    startup->client = NULL;
}

/* GPUs have no kernels for positions among bins. */
static bool takes_rows(const struct engine_options *options, struct error *why)
{
    const struct examples *like = options->like ? options->like : options->train;
    return !like || like->piecewise == 0 ||
           error_set(why, "GPUs do not take numbers encoded in bins (data.encoding=ple) yet; use --device=cpu, or "
                          "--encoding=none");
}

/* Does the CPU compute whatever GPUs there are? A machine without one has the usual reason. */
static bool stays_here(const struct engine_options *options, struct error *why)
{
    const bool is_ensemble = options->model->net_count > 1;
    return is_ensemble && placement_of(options).device == DEVICE_AUTO &&
           (!is_worth_it(DEVICE_AUTO, why) ||
            !error_set(why, "an ensemble of nets trains on the CPU; a GPU can train one net (--ensemble=raw:1)"));
}

static bool create_on_gpu(struct engine **engine, const struct engine_options *options, struct engine_startup *startup,
                          struct error *why)
{
    if (options->model->net_count > 1) {
        return error_set(why, "an ensemble of nets trains on the CPU: use --device=cpu");
    }
    struct gpu_client *client = startup ? startup->client : NULL;
    if (startup) {
        startup->client = NULL;
    }
    if (!client) {
        client = begin(options, why);
    }
    return client && gpu_engine_create(engine, options, client, why);
}

/* A GPU without the whole set in its memory receives each batch as it is drawn: as the only tower. */
static bool create_for_streaming(struct engine **engine, const struct engine_options *options,
                                 struct engine_startup *startup, struct error *why)
{
    char device[16];
    snprintf(device, sizeof device, "gpu:%d", placement_of(options).gpu);
    if (startup) {
        engine_startup_end(startup);
    }
    return is_worth_it(placement_of(options).device, why) && towers_engine_create(engine, options, device, why);
}

/* What else differs when the CPU does a GPU's work: ", in float32, not tf32". */
static const char *of_precision(const struct config_train *train)
{
    return train->precision == PRECISION_TF32       ? ", in float32 and not tf32"
           : train->precision == PRECISION_BFLOAT16 ? ", in float32 and not bfloat16"
                                                    : "";
}

static bool create_on_cpu(struct engine **engine, const struct engine_options *options, struct error *error)
{
    if (!ensemble_create_on_cpu(engine, options, error)) {
        return false;
    }
    device_log(options, "cpu:0");
    return true;
}

bool engine_choose(struct engine **engine, const struct engine_options *options, struct engine_startup *startup,
                   struct error *error)
{
    const struct config_train *train = &options->config->train;
    struct layer_placement placement = placement_of(options);
    struct error why;
    char wanted[48];
    if (has_towers(options)) {
        if (!takes_rows(options, error) || !towers_engine_create(engine, options, train->towers, error)) {
            return false;
        }
        device_log(options, train->towers);
        return true;
    }
    if (placement.device == DEVICE_CPU || (placement.device == DEVICE_AUTO && options->only_forward)) {
        return create_on_cpu(engine, options, error);
    }
    snprintf(wanted, sizeof wanted, placement.by_hand ? "gpu:%d of train.placement" : "--device=gpu:%d", placement.gpu);
    const bool fits = !stays_here(options, &why) && takes_rows(options, &why),
               is_sent = options->streaming && options->model->net_count == 1;
    if (!fits && startup) {
        engine_startup_end(startup);
    }
    if (!fits     ? false
        : is_sent ? create_for_streaming(engine, options, startup, &why)
                  : create_on_gpu(engine, options, startup, &why)) {
        char name[16];
        snprintf(name, sizeof name, "gpu:%d", placement.gpu);
        device_log(options, name);
        return true;
    }
    if (placement.device == DEVICE_AUTO && (train->precision == PRECISION_FLOAT32 || train->allow_soft_placement)) {
        log_info("device     cpu%s: %s", of_precision(train), why.text);
    } else if (train->allow_soft_placement) {
        log_warning("using the CPU%s, since %s can't be used: %s", of_precision(train), wanted, why.text);
    } else if (placement.device == DEVICE_AUTO) {
        return error_set(error, "--precision=%s is not available: %s", config_precision_name(train->precision),
                         why.text);
    } else {
        return error_set(error, "%s can't be used: %s", wanted, why.text);
    }
    return create_on_cpu(engine, options, error);
}
