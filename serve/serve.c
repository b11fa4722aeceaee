/*
 * trainer serve: models answer requests over HTTP. The main thread looks for newer checkpoints, one thread serves
 * connections (observe/http), and worker threads compute (serve/work.c).
 */
#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cli/commands.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process/confine.h"
#include "base/process/notify.h"
#include "base/process/signals.h"
#include "base/text/json_writer.h"
#include "base/threads.h"
#include "base/trust.h"
#include "base/version.h"
#include "net/socket.h"
#include "observe/guard.h"
#include "observe/http/server.h"
#include "observe/metrics.h"
#include "ps/identity.h"
#include "serve/model.h"
#include "serve/protocol.h"
#include "serve/request_log.h"
#include "serve/work.h"

/* --- The access log --- */

/*
 * An access log: one JSON object for each answer. Lines are kept for up to a second and written together. A file that
 * was moved away is created again, so that logrotate needs no signal. HTTP server's thread only, except open and close.
 * A log that can't be written is reported once and then skipped: predictions matter more.
 */

struct access_log {
    const char *path; /* borrowed; NULL: there is none */
    int fd;
    struct text_buffer lines;
    bool has_failed; /* and the failure was logged, once */
};

enum { MOST_KEPT = 1 << 16 };

/* A link is followed where nobody else can have put it: /dev/stdout, say. */
static int open_file(const char *path, struct error *error)
{
    struct error ignored;
    return file_append(path, 0640, file_exists(path) && trust_file(path, &ignored), error);
}

static bool access_open(struct access_log *log, const char *path, struct error *error)
{
    *log = (struct access_log){.path = path, .fd = -1};
    if (!path) {
        return true;
    }
    log->fd = open_file(path, error);
    return log->fd >= 0;
}

/* Continues in a new file if the old one was moved or deleted. */
static void reopen(struct access_log *log)
{
    struct stat own, there;
    if (fstat(log->fd, &own) == 0 && stat(log->path, &there) == 0 && own.st_ino == there.st_ino &&
        own.st_dev == there.st_dev) {
        return;
    }
    struct error ignored;
    const int fd = open_file(log->path, &ignored);
    if (fd >= 0) {
        close(log->fd);
        log->fd = fd;
    }
}

/* each second */
static void access_flush(struct access_log *log)
{
    struct error error;
    size_t size;
    if (!log->path || log->lines.size == 0) {
        return;
    }
    reopen(log);
    char *lines = text_buffer_take(&log->lines, &size);
    const ssize_t written = lines ? write(log->fd, lines, size) : -1;
    if (written != (ssize_t)size && !log->has_failed) {
        file_error(&error, log->path, "cannot be written", lines && written < 0 ? errno : ENOSPC);
        log_warning("%s; lines are lost", error.text);
    }
    log->has_failed = written != (ssize_t)size;
    free(lines);
}

static void access_add(struct access_log *log, const struct http_logged *logged)
{
    struct text_buffer *lines = &log->lines;
    if (!log->path) {
        return;
    }
    lines->follows = false;
    json_write_open(lines, NULL, '{');
    json_write_time(lines, "time", clock_wall_s());
    json_write_string(lines, "client", logged->client);
    json_write_string(lines, "method", logged->method);
    json_write_string(lines, "path", logged->path);
    json_write_integer(lines, "status", logged->status);
    json_write_integer(lines, "bytes", (int64_t)logged->bytes);
    json_write_number(lines, "ms", logged->seconds * 1e3);
    json_write_close(lines, '}');
    text_buffer_add(lines, "\n");
    if (lines->size >= MOST_KEPT) {
        access_flush(log);
    }
}

/* Fine on zeros. */
static void access_close(struct access_log *log)
{
    access_flush(log);
    if (log->path && log->fd >= 0) {
        close(log->fd);
    }
    text_buffer_free(&log->lines);
    log->path = NULL;
}

/* --- The service --- */

struct service {
    struct served *models; /* [count] */
    int count;
    bool takes_best;
    double interval_s;
    double begun_s;       /* by the wall clock */
    struct budget budget; /* of models */
    size_t most_memory;   /* bytes of all requests and answers */
    char *references;     /* models' references point into it; NULL: none */
    struct request_log_options log_options;
    struct access_log access;
    int listener; /* passed by systemd; 0: none */
    struct work_options options;
    struct work *work;
    struct http_server *server;
    struct packer packer;    /* the server's thread's */
    atomic_bool is_draining; /* no longer ready; requests that still come are answered */
};

/* --- The page to try a model on, and the API description --- */

/* Both are files (serve/page). */

FILES_EMBED(try_page, "try.html");
FILES_EMBED(try_style, "try.css");
FILES_EMBED(try_script, "try.js");
FILES_EMBED(openapi, "openapi.json");

static const struct file files[] = {
    {"/", "text/html; charset=utf-8", try_page, try_page_end},
    {"/try.css", "text/css; charset=utf-8", try_style, try_style_end},
    {"/try.js", "text/javascript; charset=utf-8", try_script, try_script_end},
    {NULL, NULL, NULL, NULL},
};

static const struct file description = {"/openapi.json", "application/json", openapi, openapi_end};

static void page_get(void *context, struct http_request *request)
{
    (void)context;
    files_answer(files, request);
}

static void page_openapi(void *context, struct http_request *request)
{
    (void)context;
    file_answer(&description, "Vary: Accept-Encoding\r\n", request);
}

/* --- answers --- */

static void answer_text(struct service *service, struct http_request *request, struct text_buffer *text,
                        const char *type)
{
    size_t size;
    char headers[128] = "";
    pack_answer(&service->packer, request, work_waiting(service->work) > service->options.workers, text, headers,
                sizeof headers);
    const size_t charged = text->account ? text->room : 0;
    char *bytes = text_buffer_take(text, &size);
    if (!bytes) {
        http_answer_error(request, 503, "out of memory for the answer; try again");
        return;
    }
    http_answer(request, &(struct http_answer){.status = 200,
                                               .type = type,
                                               .headers = headers,
                                               .body = bytes,
                                               .size = size,
                                               .release = free,
                                               .owner = bytes,
                                               .charged = charged});
}

static void answer_empty(struct http_request *request, int status)
{
    http_answer(request, &(struct http_answer){.status = status});
}

/* --- Parsing paths --- */

struct target {
    struct served *served;
    struct version *version; /* held; NULL: not loaded */
    char verb[32];           /* "infer", "predict", "ready", "metadata", or "" */
};

static struct served *find_model(struct service *service, const char *name, size_t length)
{
    for (int i = 0; i < service->count; i++) {
        const char *own = service->models[i].name;
        if (strlen(own) == length && memcmp(own, name, length) == 0) {
            return &service->models[i];
        }
    }
    return NULL;
}

/* NAME[/versions/N][/VERB] or NAME[/versions/N][:VERB]. Otherwise answers, and returns false. */
static bool find_target(struct service *service, struct http_request *request, const char *path, struct target *target)
{
    const size_t length = strcspn(path, "/:");
    long long number = -1;
    int used = 0;
    *target = (struct target){.served = find_model(service, path, length)};
    if (!target->served) {
        http_answer_error(request, 404, "there is no model %.*s here; GET /v2/repository/index lists them",
                          (int)(length < 64 ? length : 64), path);
        return false;
    }
    const char *rest = path + length;
    if (sscanf(rest, "/versions/%18lld%n", &number, &used) == 1 && used > 0) {
        rest += used;
    }
    if (*rest != '\0' && (strlen(rest) >= sizeof target->verb || (*rest != '/' && *rest != ':'))) {
        http_answer_error(request, 404,
                          "not found: after %s comes nothing, /versions/N, or what GET /openapi.json lists",
                          target->served->name);
        return false;
    }
    snprintf(target->verb, sizeof target->verb, "%s", *rest != '\0' ? rest + 1 : "");
    target->version = served_hold(target->served);
    if (number >= 0 && target->version && target->version->number != number) {
        http_answer_error(request, 404, "version %lld of %s is not in service; version %lld is", number,
                          target->served->name, (long long)target->version->number);
        version_release(target->version);
        return false;
    }
    return true;
}

static void describe(struct service *service, struct http_request *request, struct target *target,
                     void (*write)(struct text_buffer *text, const struct served *served,
                                   const struct version *version))
{
    struct text_buffer text = {.account = http_request_account(request)};
    if (!target->version) {
        http_answer_error(request, 503, "%s is not loaded yet", target->served->name);
        return;
    }
    write(&text, target->served, target->version);
    answer_text(service, request, &text, "application/json");
}

/* Passes the request, with its target's version, to the workers. */
static void take(struct service *service, struct http_request *request, struct target *target,
                 const struct protocol *protocol)
{
    work_take(service->work, request, target->served, target->version, protocol);
    target->version = NULL;
}

/* --- Open Inference Protocol --- */

static void handle_open_inference(void *context, struct http_request *request)
{
    struct service *service = context;
    struct target target;
    if (!find_target(service, request, http_request_path(request) + strlen("/v2/models/"), &target)) {
        return;
    }
    if (strcmp(target.verb, "infer") == 0) {
        take(service, request, &target, &protocol_open_inference);
    } else if (strcmp(target.verb, "ready") == 0) {
        answer_empty(request, target.version ? 200 : 503);
    } else if (strcmp(target.verb, "config") == 0) {
        describe(service, request, &target, open_inference_configure);
    } else if (target.verb[0] == '\0') {
        describe(service, request, &target, open_inference_describe);
    } else {
        http_answer_error(request, 404, "not found: POST .../infer, GET .../ready, .../config, or GET the model");
    }
    version_release(target.version);
}

static void handle_server(void *context, struct http_request *request)
{
    struct text_buffer text = {.account = http_request_account(request)};
    json_write_open(&text, NULL, '{');
    json_write_string(&text, "name", "trainer");
    json_write_string(&text, "version", version_trainer());
    json_write_open(&text, "extensions", '[');
    json_write_string(&text, NULL, "binary_tensor_data");
    json_write_string(&text, NULL, "model_repository");
    json_write_close(&text, ']');
    json_write_close(&text, '}');
    answer_text(context, request, &text, "application/json");
}

/* All models, as KServe and Triton list them. */
static void handle_index(void *context, struct http_request *request)
{
    struct service *service = context;
    struct text_buffer text = {.account = http_request_account(request)};
    json_write_open(&text, NULL, '[');
    for (int i = 0; i < service->count; i++) {
        struct version *version = served_hold(&service->models[i]);
        char number[24] = "";
        if (version) {
            snprintf(number, sizeof number, "%lld", (long long)version->number);
        }
        json_write_open(&text, NULL, '{');
        json_write_string(&text, "name", service->models[i].name);
        json_write_string(&text, "version", number);
        json_write_string(&text, "state", version ? "READY" : "UNAVAILABLE");
        json_write_string(&text, "reason", "");
        json_write_close(&text, '}');
        version_release(version);
    }
    json_write_close(&text, ']');
    answer_text(context, request, &text, "application/json");
}

/* Triton's clients may ask to load a model: here the server finds new checkpoints itself. */
static void handle_load(void *context, struct http_request *request)
{
    (void)context;
    http_answer_error(
        request, 400,
        "models are not loaded or unloaded by requests: a newer checkpoint in a model's folder is loaded by "
        "itself, and other models by starting trainer serve with NAME=RUN");
}

/* What Triton has beyond the protocol. */
static void handle_extension(void *context, struct http_request *request)
{
    (void)context;
    http_answer_error(request, 404,
                      "not found: this extension of Triton is not supported; GET /v2 lists those that are, and GET "
                      "/openapi.json all paths");
}

/* --- TensorFlow Serving --- */

static void tensorflow_status(struct text_buffer *text, const struct served *served, const struct version *version)
{
    char number[24];
    (void)served;
    snprintf(number, sizeof number, "%lld", (long long)version->number);
    json_write_open(text, NULL, '{');
    json_write_open(text, "model_version_status", '[');
    json_write_open(text, NULL, '{');
    json_write_string(text, "version", number);
    json_write_string(text, "state", "AVAILABLE");
    json_write_open(text, "status", '{');
    json_write_string(text, "error_code", "OK");
    json_write_string(text, "error_message", "");
    json_write_close(text, '}');
    json_write_close(text, '}');
    json_write_close(text, ']');
    json_write_close(text, '}');
}

static void handle_tensorflow(void *context, struct http_request *request)
{
    struct service *service = context;
    struct target target;
    if (!find_target(service, request, http_request_path(request) + strlen("/v1/models/"), &target)) {
        return;
    }
    if (strcmp(target.verb, "predict") == 0) {
        take(service, request, &target, &protocol_tensorflow_predict);
    } else if (strcmp(target.verb, "classify") == 0) {
        take(service, request, &target, &protocol_tensorflow_classify);
    } else if (strcmp(target.verb, "regress") == 0) {
        take(service, request, &target, &protocol_tensorflow_regress);
    } else if (strcmp(target.verb, "explain") == 0) {
        take(service, request, &target, &protocol_tensorflow_explain);
    } else if (strcmp(target.verb, "metadata") == 0) {
        describe(service, request, &target, tensorflow_describe);
    } else if (target.verb[0] == '\0') {
        describe(service, request, &target, tensorflow_status);
    } else {
        http_answer_error(
            request, 404,
            "not found: POST ...:predict, ...:classify, ...:regress or ...:explain, GET .../metadata, or GET the "
            "model");
    }
    version_release(target.version);
}

/* --- plain posts --- */

static void handle_plain(void *context, struct http_request *request)
{
    struct service *service = context;
    const char *path = http_request_path(request) + strlen("/predict");
    struct target target;
    if (*path == '\0' && service->count == 1) {
        target = (struct target){.served = &service->models[0], .version = served_hold(&service->models[0])};
        take(service, request, &target, &protocol_plain);
        return;
    }
    if (*path == '\0') {
        http_answer_error(request, 404,
                          "no model given: post to /predict/NAME; GET /v2/repository/index lists the names");
        return;
    }
    if (find_target(service, request, path + 1, &target)) {
        take(service, request, &target, &protocol_plain);
    }
}

/* --- health --- */

static void handle_alive(void *context, struct http_request *request)
{
    (void)context;
    http_answer(request, &(struct http_answer){.status = 200, .type = "text/plain", .body = "ok\n", .size = 3});
}

/* Are all models loaded, and is the process not about to stop? */
static void handle_ready(void *context, struct http_request *request)
{
    struct service *service = context;
    if (atomic_load(&service->is_draining)) {
        http_answer_error(request, 503, "this server is shutting down");
        return;
    }
    for (int i = 0; i < service->count; i++) {
        struct served *served = &service->models[i];
        struct version *version = served_hold(served);
        if (!version) {
            char problem[1024];
            pthread_mutex_lock(&served->mutex);
            snprintf(problem, sizeof problem, "%s", served->problem);
            pthread_mutex_unlock(&served->mutex);
            http_answer_error(request, 503, "%s: %s", served->name, problem);
            return;
        }
        version_release(version);
    }
    handle_alive(context, request);
}

/* --- metrics --- */

static void put_requests(const struct metrics *to, struct service *service)
{
    static const char name[] = "trainer_serve_requests", *const outcomes[] = {"answered", "faulty", "refused", "left"};
    metrics_family(to, METRIC_COUNTER, name, "",
                   "Prediction requests by outcome: answered, faulty (the client's fault), refused (queue or memory "
                   "full, or no model yet), left (the client did not wait).");
    for (int i = 0; i < service->count; i++) {
        struct served_counts *counts = &service->models[i].counts;
        const uint64_t values[] = {atomic_load(&counts->answered), atomic_load(&counts->faulty),
                                   atomic_load(&counts->refused), atomic_load(&counts->left)};
        for (int k = 0; k < 4; k++) {
            metrics_sample(to, METRIC_COUNTER, name, (double)values[k], "model", service->models[i].name, "outcome",
                           outcomes[k], NULL);
        }
    }
}

static void put_explained(const struct metrics *to, struct service *service)
{
    static const char name[] = "trainer_serve_explained_rows";
    metrics_family(to, METRIC_COUNTER, name, "", "Rows explained by :explain.");
    for (int i = 0; i < service->count; i++) {
        metrics_sample(to, METRIC_COUNTER, name, (double)atomic_load(&service->models[i].counts.explained), "model",
                       service->models[i].name, NULL);
    }
}

enum { MOST_BUCKETS = SERVED_LATENCY_BUCKETS };
_Static_assert((int)SERVED_BATCH_BUCKETS <= (int)MOST_BUCKETS, "room for both");

static void put_histogram(const struct metrics *to, const char *name, const char *model, const double *bounds,
                          const atomic_uint_fast64_t *buckets, int count, double sum)
{
    uint64_t counts[MOST_BUCKETS];
    for (int i = 0; i < count; i++) {
        counts[i] = atomic_load(&buckets[i]);
    }
    metrics_histogram(to, name, "model", model, bounds, counts, count, sum);
}

static void put_histograms(const struct metrics *to, struct service *service)
{
    static const char latency[] = "trainer_serve_latency_seconds", batch[] = "trainer_serve_batch_rows";
    double powers[SERVED_BATCH_BUCKETS];
    for (int i = 0; i < SERVED_BATCH_BUCKETS; i++) {
        powers[i] = 1 << i;
    }
    metrics_family(to, METRIC_HISTOGRAM, latency, "seconds",
                   "From the end of a request to the beginning of its response.");
    for (int i = 0; i < service->count; i++) {
        const struct served_counts *counts = &service->models[i].counts;
        put_histogram(to, latency, service->models[i].name, work_latency_bounds, counts->latency,
                      SERVED_LATENCY_BUCKETS, (double)atomic_load(&counts->latency_us) / 1e6);
    }
    metrics_family(to, METRIC_HISTOGRAM, batch, "", "Rows computed together.");
    for (int i = 0; i < service->count; i++) {
        const struct served_counts *counts = &service->models[i].counts;
        put_histogram(to, batch, service->models[i].name, powers, counts->batch, SERVED_BATCH_BUCKETS,
                      (double)atomic_load(&counts->rows));
    }
}

static void put_memory(const struct metrics *to, const struct service *service)
{
    static const char refused[] = "trainer_serve_memory_refused";
    struct http_counts counts;
    http_server_counts(service->server, &counts);
    metrics_one(to, METRIC_GAUGE, "trainer_serve_memory_bytes", "bytes", (double)counts.memory,
                "Memory of requests and responses in progress.");
    metrics_one(to, METRIC_GAUGE, "trainer_serve_memory_peak_bytes", "bytes", (double)counts.peak_memory,
                "The most that it has been.");
    metrics_one(to, METRIC_GAUGE, "trainer_serve_memory_limit_bytes", "bytes", (double)counts.most_memory,
                "Its limit: --max_memory_mb.");
    metrics_family(to, METRIC_COUNTER, refused, "",
                   "Requests for memory refused: too_large for one request, or too_busy with others.");
    metrics_sample(to, METRIC_COUNTER, refused, (double)counts.too_large, "reason", "too_large", NULL);
    metrics_sample(to, METRIC_COUNTER, refused, (double)counts.too_busy, "reason", "too_busy", NULL);
}

struct family {
    const char *name;
    enum metric_kind kind;
    const char *help;
};

static void put_models(const struct metrics *to, struct service *service)
{
    static const struct family families[] = {
        {"trainer_serve_model_version", METRIC_GAUGE, "Global step of the checkpoint in service; -1: none."},
        {"trainer_serve_model_swaps", METRIC_COUNTER, "Times that a newer checkpoint replaced an older one."},
        {"trainer_serve_model_failures", METRIC_COUNTER,
         "Checkpoints that could not be loaded or failed the self-check."},
    };
    for (int f = 0; f < 3; f++) {
        metrics_family(to, families[f].kind, families[f].name, "", families[f].help);
        for (int i = 0; i < service->count; i++) {
            struct served *served = &service->models[i];
            pthread_mutex_lock(&served->mutex);
            const double values[] = {served->current ? (double)served->current->number : -1, (double)served->swaps,
                                     (double)served->failures};
            pthread_mutex_unlock(&served->mutex);
            metrics_sample(to, families[f].kind, families[f].name, values[f], "model", served->name, NULL);
        }
    }
}

static void put_request_log(const struct metrics *to, struct service *service)
{
    static const struct family families[] = {
        {"trainer_serve_logged_rows", METRIC_COUNTER, "Rows written to the request log."},
        {"trainer_serve_lost_rows", METRIC_COUNTER,
         "Rows dropped from the request log because the disk could not keep up."},
    };
    for (int f = 0; service->log_options.folder && f < 2; f++) {
        metrics_family(to, families[f].kind, families[f].name, "", families[f].help);
        for (int i = 0; i < service->count; i++) {
            const struct request_log_counts counts = request_log_counts(service->models[i].log);
            metrics_sample(to, families[f].kind, families[f].name, (double)(f == 0 ? counts.kept : counts.lost),
                           "model", service->models[i].name, NULL);
        }
    }
}

static void put_drift(const struct metrics *to, struct service *service)
{
    static const struct family families[] = {
        {"trainer_serve_psi", METRIC_GAUGE,
         "Population stability index of a column against --reference; of the predictions where column is empty."},
        {"trainer_serve_unknown_values", METRIC_COUNTER,
         "Values that are categories which training saw rarely or never."},
        {"trainer_serve_outside_values", METRIC_COUNTER, "Numbers outside the range of --reference."},
    };
    for (int f = 0; f < 3; f++) {
        metrics_family(to, families[f].kind, families[f].name, "", families[f].help);
        for (int i = 0; i < service->count; i++) {
            struct version *version = served_hold(&service->models[i]);
            for (int c = 0; version && c < version->drift.count; c++) {
                const struct drift_state state = drift_state(&version->drift, c);
                const double values[] = {state.index, (double)state.unknown, (double)state.outside};
                if (isfinite(values[f])) { /* the index may not be known */
                    metrics_sample(to, families[f].kind, families[f].name, values[f], "model", service->models[i].name,
                                   "column", state.name, NULL);
                }
            }
            version_release(version);
        }
    }
}

static void put_predictions(const struct metrics *to, struct service *service)
{
    metrics_family(to, METRIC_COUNTER, "trainer_serve_predictions", "", "Rows by predicted class.");
    for (int i = 0; i < service->count; i++) {
        struct version *version = served_hold(&service->models[i]);
        for (int c = 0; version && c < version->drift.classes; c++) {
            char name[OUTCOME_NAME];
            metrics_sample(to, METRIC_COUNTER, "trainer_serve_predictions",
                           (double)drift_class(&version->drift, c).count, "model", service->models[i].name, "class",
                           outcome_name(&version->trained, c, name), NULL);
        }
        version_release(version);
    }
}

static void handle_metrics(void *context, struct http_request *request)
{
    struct service *service = context;
    struct text_buffer text = {.account = http_request_account(request)};
    const struct metrics to = {&text, http_request_accepts(request, "accept", "application/openmetrics-text")};
    metrics_write_process(&to, "serve", service->begun_s, service->server);
    put_requests(&to, service);
    put_explained(&to, service);
    put_memory(&to, service);
    metrics_one(&to, METRIC_GAUGE, "trainer_serve_queue_requests", "", work_waiting(service->work),
                "Requests waiting for a worker.");
    put_histograms(&to, service);
    put_models(&to, service);
    put_drift(&to, service);
    put_predictions(&to, service);
    put_request_log(&to, service);
    if (to.open) {
        text_buffer_add(&text, "# EOF\n");
    }
    answer_text(context, request, &text,
                to.open ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                        : "text/plain; version=0.0.4; charset=utf-8");
}

/* --- drift --- */

static void describe_drift(struct text_buffer *text, const struct served *served, struct version *version)
{
    struct drift_watch *drift = &version->drift;
    const int count = drift->count;
    json_write_open(text, NULL, '{');
    json_write_string(text, "model", served->name);
    json_write_integer(text, "version", version->number);
    json_write_integer(text, "rows", count > 0 ? (int64_t)drift_rows(drift) : 0);
    json_write_bool(text, "has_reference", drift->has_reference);
    if (count > 0) {
        json_write_number(text, "prediction_psi", drift_state(drift, count - 1).index);
    }
    json_write_open(text, "predictions", '[');
    for (int i = 0; i < drift->classes; i++) {
        char name[OUTCOME_NAME];
        const struct drift_class class = drift_class(drift, i);
        json_write_open(text, NULL, '{');
        json_write_string(text, "class", outcome_name(&version->trained, i, name));
        json_write_integer(text, "count", (int64_t) class.count);
        json_write_number(text, "expected_share", class.expected);
        json_write_close(text, '}');
    }
    json_write_close(text, ']');
    json_write_open(text, "columns", '[');
    for (int i = 0; i + 1 < count; i++) {
        const struct drift_state state = drift_state(drift, i);
        json_write_open(text, NULL, '{');
        json_write_string(text, "name", state.name);
        json_write_number(text, "psi", state.index);
        json_write_integer(text, "unknown", (int64_t)state.unknown);
        json_write_integer(text, "out_of_range", (int64_t)state.outside);
        json_write_close(text, '}');
    }
    json_write_close(text, ']');
    json_write_close(text, '}');
}

static void handle_drift(void *context, struct http_request *request)
{
    struct target target;
    struct text_buffer text = {.account = http_request_account(request)};
    if (!find_target(context, request, http_request_path(request) + strlen("/drift/"), &target)) {
        return;
    }
    if (target.verb[0] != '\0') {
        http_answer_error(request, 404, "not found: GET /drift/NAME");
    } else if (!target.version) {
        http_answer_error(request, 503, "%s is not loaded yet", target.served->name);
    } else {
        describe_drift(&text, target.served, target.version);
        answer_text(context, request, &text, "application/json");
    }
    version_release(target.version);
}

/* --- the table --- */

static void log_access(void *context, const struct http_logged *logged)
{
    struct service *service = context;
    access_add(&service->access, logged);
}

static void tick(void *context)
{
    struct service *service = context;
    access_flush(&service->access);
}

enum { MOST_SMALL = 4096 /* bytes of a body that is not a prediction's */ };

static struct http_route routes[] = {
    {"/", HTTP_METHOD_GET, true, false, 0, page_get},
    {"/app.css", HTTP_METHOD_GET, true, false, 0, files_get},
    {"/try.css", HTTP_METHOD_GET, true, false, 0, page_get},
    {"/try.js", HTTP_METHOD_GET, true, false, 0, page_get},
    {"/openapi.json", HTTP_METHOD_GET, true, false, 0, page_openapi},
    {"/drift/*", HTTP_METHOD_GET, false, false, 0, handle_drift},
    {"/healthz", HTTP_METHOD_GET, true, true, 0, handle_alive},
    {"/readyz", HTTP_METHOD_GET, true, true, 0, handle_ready},
    {"/metrics", HTTP_METHOD_GET, false, false, 0, handle_metrics},
    {"/v2", HTTP_METHOD_GET, false, false, 0, handle_server},
    {"/v2/health/live", HTTP_METHOD_GET, true, true, 0, handle_alive},
    {"/v2/health/ready", HTTP_METHOD_GET, true, true, 0, handle_ready},
    {"/v2/repository/index", HTTP_METHOD_GET | HTTP_METHOD_POST, false, false, MOST_SMALL, handle_index},
    {"/v2/repository/models/*", HTTP_METHOD_POST, false, false, MOST_SMALL, handle_load},
    {"/v2/models/*/infer", HTTP_METHOD_POST, false, false, 0, handle_open_inference},
    {"/v2/models/*", HTTP_METHOD_GET, false, false, 0, handle_open_inference},
    {"/v2/*", HTTP_METHOD_GET | HTTP_METHOD_POST, false, false, MOST_SMALL, handle_extension},
    {"/v1/models/*:predict", HTTP_METHOD_POST, false, false, 0, handle_tensorflow},
    {"/v1/models/*:classify", HTTP_METHOD_POST, false, false, 0, handle_tensorflow},
    {"/v1/models/*:regress", HTTP_METHOD_POST, false, false, 0, handle_tensorflow},
    {"/v1/models/*:explain", HTTP_METHOD_POST, false, false, 0, handle_tensorflow},
    {"/v1/models/*", HTTP_METHOD_GET, false, false, 0, handle_tensorflow},
    {"/predict", HTTP_METHOD_POST, false, false, 0, handle_plain},
    {"/predict/*", HTTP_METHOD_POST, false, false, 0, handle_plain},
    {NULL, 0, false, false, 0, NULL},
};

static bool is_busy(void *context)
{
    const struct service *service = context;
    return work_waiting(service->work) > 0;
}

enum { REQUEST_PART = 4 /* of --max_memory_mb, for one request */ };

/* Starts listening and answering; the caller stops service->server. The guard is borrowed. */
static bool routes_serve(struct service *service, const struct guard *guard, struct error *error)
{
    for (struct http_route *route = routes; route->path; route++) {
        if ((route->methods & HTTP_METHOD_POST) && route->most_body == 0) {
            route->most_body = service->options.most_body;
        }
    }
    struct http_options options = {.routes = routes,
                                   .context = service,
                                   .tick = tick,
                                   .is_busy = is_busy,
                                   .log = service->access.path ? log_access : NULL,
                                   .most_bytes = service->most_memory,
                                   .most_each = service->most_memory / REQUEST_PART,
                                   .memory_setting = "--max_memory_mb",
                                   .body_setting = "--max_body_mb",
                                   .paths_at = "GET /openapi.json"};
    guard_apply(guard, &options);
    options.listener = service->listener;
    return http_server_start(&service->server, &options, error);
}

/* --- The command --- */

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
        confine_or_warn(command_may_use_gpus(call->config) ? CONFINE_LAUNCHER : CONFINE_SERVER);
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
