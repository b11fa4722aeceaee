/* Paths are few and known; their parts (a model, a version, a verb) are parsed here, once. */
#include "serve/routes.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/trust.h"
#include "base/version.h"
#include "observe/http/server.h"
#include "observe/metrics.h"
#include "serve/protocol.h"

/* --- The access log --- */

/* A log that can't be written is reported once and then skipped: predictions matter more. */

enum { MOST_KEPT = 1 << 16 };

/* A link is followed where nobody else can have put it: /dev/stdout, say. */
static int open_file(const char *path, struct error *error)
{
    struct error ignored;
    return file_append(path, 0640, file_exists(path) && trust_file(path, &ignored), error);
}

bool access_open(struct access_log *log, const char *path, struct error *error)
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

void access_close(struct access_log *log)
{
    access_flush(log);
    if (log->path && log->fd >= 0) {
        close(log->fd);
    }
    text_buffer_free(&log->lines);
    log->path = NULL;
}

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

bool routes_serve(struct service *service, const struct guard *guard, struct error *error)
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
