/*
 * trainer serve: models answer requests over HTTP. The main thread looks for newer checkpoints, one thread serves
 * connections (observe/http), and worker threads compute (serve/work.c).
 */
#include "serve/routes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli/commands.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process/confine.h"
#include "base/process/notify.h"
#include "base/process/signals.h"
#include "base/threads.h"
#include "observe/guard.h"
#include "ps/identity.h"

enum {
    MOST_MEGABYTES = 1024,
    MOST_WAITING = 65536,
    DEFAULT_WAITING = 1024,
    DEFAULT_BATCH = 64,
    DEFAULT_BODY_MEGABYTES = 16,
    BODIES = 4,             /* as large as may be, for which there is memory without --max_memory_mb... */
    BESIDE_MEGABYTES = 192, /* ...and this for others */
    LEAST_MEGABYTES = 16,
    DEFAULT_LOG_MEGABYTES = 64,
    MOST_MODELS_MEGABYTES = 1 << 20,
    DRAIN_S = 30, /* for requests already received */
};

/* A number from a flag within bounds; the default without the flag. False: invalid, and the error says why. */
static bool number_flag(const struct command_call *call, const char *name, double initial, double least, double most,
                        double *value, struct error *error)
{
    const char *text = command_value(call, name);
    char *end;
    *value = initial;
    if (!text) {
        return true;
    }
    *value = strtod(text, &end);
    return (end != text && *end == '\0' && *value >= least && *value <= most) ||
           error_set(error, "--%s: must be a number from %g to %g, not \"%.32s\"", name, least, most, text);
}

static bool read_options(const struct command_call *call, struct service *service, struct error *error)
{
    struct work_options *options = &service->options;
    double workers, batch, wait_us, waiting, megabytes, memory, models_megabytes, share, log_megabytes;
    const int usual = call->config->train.device == DEVICE_GPU ? 1 : threads_available(); /* one worker for a GPU */
    if (!number_flag(call, "workers", usual, 1, POOL_MAX_THREADS, &workers, error) ||
        !number_flag(call, "max_batch", DEFAULT_BATCH, 1, 65536, &batch, error) ||
        !number_flag(call, "max_wait_us", 0, 0, 1e6, &wait_us, error) ||
        !number_flag(call, "max_queue", DEFAULT_WAITING, 1, MOST_WAITING, &waiting, error) ||
        !number_flag(call, "max_body_mb", DEFAULT_BODY_MEGABYTES, 1, MOST_MEGABYTES, &megabytes, error) ||
        !number_flag(call, "max_memory_mb", BODIES * megabytes + BESIDE_MEGABYTES, LEAST_MEGABYTES,
                     MOST_MODELS_MEGABYTES, &memory, error) ||
        !number_flag(call, "max_models_mb", MOST_MODELS_MEGABYTES, 1, MOST_MODELS_MEGABYTES, &models_megabytes,
                     error) ||
        !number_flag(call, "request_log_share", 1, 0, 1, &share, error) ||
        !number_flag(call, "request_log_mb", DEFAULT_LOG_MEGABYTES, 1, MOST_MODELS_MEGABYTES, &log_megabytes, error) ||
        !number_flag(call, "interval_secs", 1, 0.05, 3600, &service->interval_s, error)) {
        return false;
    }
    if (memory < megabytes) {
        return error_set(error,
                         "--max_memory_mb=%g: a body of --max_body_mb=%g would never fit; set it to at least that, or "
                         "better to four times that and %d",
                         memory, megabytes, BESIDE_MEGABYTES);
    }
    *options = (struct work_options){.workers = (int)workers,
                                     .most_rows = (int)batch,
                                     .most_waiting = (int)waiting,
                                     .most_wait_s = wait_us / 1e6,
                                     .most_body = (size_t)(megabytes * 1024 * 1024)};
    service->budget.most = (size_t)(models_megabytes * 0x1p20);
    service->most_memory = (size_t)(memory * 0x1p20);
    service->log_options = (struct request_log_options){
        .folder = command_value(call, "request_log"), .share = share, .most_bytes = (size_t)(log_megabytes * 0x1p20)};
    const char *which = command_value(call, "checkpoint");
    service->takes_best = !which || strcmp(which, "best") == 0;
    return service->takes_best || strcmp(which, "newest") == 0 ||
           error_set(error, "--checkpoint: must be best or newest, not \"%.32s\"", which);
}

/* "NAME=FOLDER"; without a name it is "model". */
static bool add_model(struct service *service, const struct config *config, char *operand, struct error *error)
{
    char *equals = strchr(operand, '='), name[SERVE_MOST_NAME] = "model";
    const char *source = equals ? equals + 1 : operand;
    if (equals) {
        snprintf(name, sizeof name, "%.*s", (int)(equals - operand), operand);
    }
    for (int i = 0; i < service->count; i++) {
        if (strcmp(service->models[i].name, name) == 0) {
            return error_set(error, "two models are called %s; name them: trainer serve NAME=%s ...", name, source);
        }
    }
    struct served *served = &service->models[service->count];
    if (!served_init(served, name, source, error)) {
        return false;
    }
    service->count++;
    served->config = config;
    served->workers = service->options.workers;
    served->takes_best = service->takes_best;
    served->budget = &service->budget;
    served->spare = service->most_memory;
    return !service->log_options.folder || request_log_open(&served->log, &service->log_options, served->name, error);
}

static bool add_models(const struct command_call *call, struct service *service, struct error *error)
{
    const int count = call->operand_count > 0 ? call->operand_count : 1;
    service->models = calloc((size_t)count, sizeof *service->models);
    if (!service->models) {
        return error_set(error, "out of memory for %d models", count);
    }
    if (call->operand_count == 0 && call->config->output.train_dir[0] == '\0') {
        return error_set(
            error, "no model given: name its folder, as in trainer serve run1 or trainer serve digits=run1 plant=run2");
    }
    for (int i = 0; i < call->operand_count; i++) {
        if (!add_model(service, call->config, call->operands[i], error)) {
            return false;
        }
    }
    return call->operand_count > 0 || add_model(service, call->config, call->config->output.train_dir, error);
}

/* --- References --- */

/* The model whose reference starts here: "NAME=". NULL: none, so the text is part of a path. */
static struct served *named_at(struct service *service, const char *text)
{
    for (int i = 0; i < service->count; i++) {
        const size_t length = strlen(service->models[i].name);
        if (strncmp(text, service->models[i].name, length) == 0 && text[length] == '=') {
            return &service->models[i];
        }
    }
    return NULL;
}

/* "DATA" is for all models, "NAME=DATA,NAME=DATA" for the named ones. */
static bool share_references(struct service *service, const char *text, struct error *error)
{
    service->references = text ? strdup(text) : NULL;
    if (!service->references) {
        return !text || error_set(error, "out of memory");
    }
    for (int i = 0; i < service->count && !named_at(service, text); i++) {
        service->models[i].reference = service->references;
    }
    char *at = service->references, *comma = NULL;
    while (at) { /* a comma without a model's name after it is part of a path */
        struct served *served = named_at(service, at);
        if (served && served->reference) {
            return error_set(error, "--reference: names %s twice", served->name);
        }
        if (served) {
            served->reference = at + strlen(served->name) + 1;
        }
        if (served && comma) {
            *comma = '\0';
        }
        comma = strchr(at, ',');
        at = comma ? comma + 1 : NULL;
    }
    for (int i = 0; i < service->count; i++) {
        if (service->models[i].reference && service->models[i].reference[0] == '\0') {
            return error_set(error, "--reference: has no data for %s", service->models[i].name);
        }
    }
    return true;
}

/* --- following the checkpoints --- */

/* before: the step that was in service; -1: none. */
static void report_current(const struct served *served, int64_t before)
{
    const struct version *version = served->current;
    char checked[64] = "";
    if (version->checked_rows > 0) {
        snprintf(checked, sizeof checked, "; checked on %d rows kept with it", version->checked_rows);
    }
    log_info("%s: %s, step %lld, is in service%s%s; digest %.12s", served->name, version->path,
             (long long)version->number, checked,
             version->number == before ? "; another model than the one before, of the same step" : "", version->digest);
}

static void refresh(struct served *served)
{
    struct error error;
    const struct version *before = served->current; /* only this thread changes it */
    const int64_t step = before ? before->number : -1;
    const uint64_t failures = served->failures;
    if (served_refresh(served, &error)) {
        if (served->current != before) {
            report_current(served, step);
        }
    } else if (served->failures != failures) {
        log_warning("%s: %s%s", served->name, error.text, before ? "; the one in service stays" : "");
    }
}

/* Loads what exists. A folder may still be empty: training fills it. */
static bool load_all(struct service *service, struct error *error)
{
    for (int i = 0; i < service->count; i++) {
        struct served *served = &service->models[i];
        if (served_refresh(served, error)) {
            report_current(served, -1);
        } else if (!file_is_folder(served->source) || served->was_found) {
            return false;
        } else {
            log_warning("%s: %s; waiting for one", served->name, error->text);
        }
    }
    return true;
}

static void follow(struct service *service)
{
    double next_s = clock_monotonic_s() + service->interval_s;
    threads_give_way(); /* loading a model yields to requests, not the other way round */
    while (signals_pending() == 0) {
        clock_pause(next_s);
        notify_alive();
        for (int i = 0; i < service->count; i++) {
            if (service->models[i].log) {
                request_log_write(service->models[i].log);
            }
        }
        if (clock_monotonic_s() < next_s) {
            continue;
        }
        next_s = clock_monotonic_s() + service->interval_s;
        for (int i = 0; i < service->count; i++) {
            refresh(&service->models[i]);
        }
    }
}

/* --- the command --- */

static bool listen_and_serve(const struct command_call *call, struct service *service, struct error *error)
{
    char key[4096];
    struct guard guard = {0};
    bool done = identity_key_path(call->config, key, sizeof key, error) &&
                guard_prepare(&guard, &call->config->observe, key, error) &&
                access_open(&service->access, command_value(call, "access_log"), error) &&
                work_start(&service->work, &service->options, error) && routes_serve(service, &guard, error);
    if (done) {
        char text[ENDPOINT_TEXT];
        guard.address.port = http_server_port(service->server);
        endpoint_format_address(&guard.address, text);
        log_info("serving at %s://%s/", guard.keys ? "https" : "http", text);
        notify_ready("serving");
        follow(service);
        log_info("%s: answering the requests received, then exiting", signals_name(signals_pending()));
        notify_stopping();
        atomic_store(&service->is_draining, true);
        http_server_drain(service->server, clock_monotonic_s() + DRAIN_S);
    }
    work_stop(service->work);
    http_server_stop(service->server);
    work_free(service->work);
    packer_end(&service->packer);
    access_close(&service->access);
    guard_free(&guard);
    return done;
}

static int run(const struct command_call *call)
{
    struct service service = {.begun_s = clock_wall_s()};
    struct error error;
    signals_catch();
    if (call->config->security.seccomp) {
        confine_or_warn(config_may_use_gpus(&call->config->train) ? CONFINE_LAUNCHER : CONFINE_SERVER);
    }
    if (!call->config->output.shared_files) {
        file_keep_private(); /* of the log of requests */
    }
    service.listener = notify_listener();
    if (call->config->observe.http[0] == '\0') {
        log_error("where? Give --http=127.0.0.1:8500");
        return COMMAND_MISUSED;
    }
    bool done = read_options(call, &service, &error) && add_models(call, &service, &error) &&
                share_references(&service, command_value(call, "reference"), &error) && load_all(&service, &error) &&
                listen_and_serve(call, &service, &error);
    for (int i = 0; i < service.count; i++) {
        request_log_close(service.models[i].log);
        served_destroy(&service.models[i]);
    }
    free(service.models);
    free(service.references);
    if (!done) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    return COMMAND_DONE;
}

static const struct command_flag flags[] = {
    {"checkpoint", "best|newest", "which checkpoint of a folder (best; the newest until there is a best one)"},
    {"workers", "N", "threads that compute (one for each processor)"},
    {"max_batch", "N", "requests that are computed together, at most (64)"},
    {"max_wait_us", "N", "how long the first request of a batch waits for others; 0 = not at all (0)"},
    {"max_queue", "N", "requests that may wait; beyond that clients get 503 and Retry-After (1024)"},
    {"max_body_mb", "N", "largest request body, uncompressed (16)"},
    {"max_memory_mb", "N",
     "memory of all requests and answers together; beyond that clients get 413 or 503 (4 times "
     "max_body_mb, and 192)"},
    {"max_models_mb", "N", "memory of all models together; a checkpoint that needs more is refused (no limit)"},
    {"reference", "[NAME=]DATA,...", "the training table, or data_dir of pictures, with which requests are compared"},
    {"request_log", "FOLDER", "record requests and predictions in FOLDER, as data to train on"},
    {"request_log_share", "X", "share of the requests to record, 0 to 1 (1)"},
    {"request_log_mb", "N", "space for each model's request log; the oldest files are deleted (64)"},
    {"access_log", "FILE", "write one JSON object per response; may be rotated at any time"},
    {"interval_secs", "X", "how often to look for a newer checkpoint (1)"},
    {NULL, NULL, NULL},
};

const struct command command_serve = {
    .name = "serve",
    .operands = "[NAME=]RUN...",
    .max_operands = SERVE_MOST_MODELS,
    .summary = "answer requests over HTTP with trained models",
    .details = "RUN is a train_dir or a checkpoint. While training continues there, each new checkpoint is loaded "
               "beside the old one, checked, and swapped in between two requests; if one is damaged or has diverged, "
               "the log says so and the old one stays. Clients use KServe's Open Inference Protocol 2, TensorFlow "
               "Serving's REST API v1, or post CSV files and pictures: docs/serving.md.",
    .flags = flags,
    .takes_config = true,
    .run = run,
};
