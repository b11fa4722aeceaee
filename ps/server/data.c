/*
 * What workers report about their data: preprocessing, layer widths, statistics and validations of their own rows. A ps
 * does not interpret any of it, except for comparing the validations' scores.
 */
#include "ps/server/requests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/status.h"

/* --- Preprocessing, and layer widths --- */

/*
 * Worker 0 sends how the workers' data are preprocessed, and the others, and a restarted worker 0, ask whether theirs
 * is the same. The layer widths a ps may have taken from worker 0's data itself (listen.c).
 */

/* Takes ownership of the bytes. Locked. */
static void keep_description(struct server *server, const char *digest, uint8_t *bytes, size_t size)
{
    free(server->description);
    server->description = bytes;
    server->description_size = size;
    snprintf(server->description_digest, sizeof server->description_digest, "%s", digest);
}

static bool take_description(struct session *session, const char *digest, struct error *error)
{
    uint8_t *bytes;
    size_t size;
    if (!serve_read_bulk(session, &bytes, &size, error)) {
        return false;
    }
    server_lock(session->server);
    keep_description(session->server, digest, bytes, size);
    server_unlock(session->server);
    return true;
}

/* The other workers compare their own data's layer widths themselves. */
bool serve_layers(struct session *session, struct error *error)
{
    char units[MODEL_UNITS_TEXT];
    model_units_text(&session->server->config->model, units);
    return serve_send(session, MESSAGE_layers, session->channel->frame.request,
                      &(struct message_layers){.units = units}, error);
}

bool serve_describe(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const uint64_t request = session->channel->frame.request;
    char own[sizeof server->description_digest], known[sizeof server->description_digest];
    struct message_description description = {.digest = known};
    snprintf(own, sizeof own, "%s", session->channel->message.describe.digest);
    const bool is_sent = session->worker == 0 && own[0] != '\0';
    if (is_sent && !take_description(session, own, error)) {
        return false;
    }
    server_lock(server);
    memcpy(known, server->description_digest, sizeof known);
    if (session->worker == 0 && !is_sent && server->job.state >= JOB_DONE) {
        known[0] = '\0'; /* this worker 0 begins another job */
    }
    const bool differs = known[0] != '\0' && strcmp(known, own) != 0;
    struct iovec bulk = {differs ? malloc(server->description_size + 1) : NULL, server->description_size};
    if (bulk.iov_base) {
        memcpy(bulk.iov_base, server->description, server->description_size);
    }
    serve_unlock(session);
    if (differs && !bulk.iov_base) { /* an empty text would pass for the chief's: let the worker ask again */
        return error_set(error, "out of memory for a description");
    }
    const struct outgoing frame = {.type = MESSAGE_description,
                                   .request = request,
                                   .message = &description,
                                   .bulk = &bulk,
                                   .bulk_parts = bulk.iov_base ? 1 : 0};
    const bool sent = channel_send_frame(session->channel, &frame, serve_deadline(), error);
    free(bulk.iov_base);
    return sent;
}

/* --- Statistics of the rows of workers with their own data, kept until the chief asks --- */

enum { FIGURES_MOST = 64 << 20 /* bytes, of all workers together */ };

/* Takes ownership of the bytes, unless they are too many; none: forgets the worker's. Locked. */
static bool keep_figures(struct server *server, int worker, uint8_t *bytes, size_t size)
{
    struct figures *figures = &server->figures[worker];
    if (server->figures_bytes - figures->size + size > FIGURES_MOST) {
        return false;
    }
    server->figures_bytes += size - figures->size;
    free(figures->bytes);
    *figures = (struct figures){bytes, size};
    return true;
}

static bool answer_figures(struct session *session, uint64_t request, int worker, struct iovec bulk,
                           struct error *error)
{
    const struct message_figures message = {.worker = worker};
    const struct outgoing frame = {.type = MESSAGE_figures,
                                   .request = request,
                                   .message = &message,
                                   .bulk = &bulk,
                                   .bulk_parts = bulk.iov_len > 0 ? 1 : 0};
    return channel_send_frame(session->channel, &frame, serve_deadline(), error);
}

static bool take_figures(struct session *session, uint64_t request, struct error *error)
{
    uint8_t *bytes;
    size_t size;
    if (!serve_read_bulk(session, &bytes, &size, error)) {
        return false;
    }
    server_lock(session->server);
    const bool kept = keep_figures(session->server, session->worker, bytes, size);
    server_unlock(session->server);
    if (!kept) {
        free(bytes);
        return serve_send_error(session, request, ERROR_INTERNAL,
                                "the workers' categories are more than this ps keeps; leave columns out (--ignore)",
                                error);
    }
    return answer_figures(session, request, session->worker, (struct iovec){0}, error);
}

bool serve_figures(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const uint64_t request = session->channel->frame.request;
    const int32_t worker = session->channel->message.figures.worker;
    if (session->channel->bulk_left > 0) {
        return take_figures(session, request, error);
    }
    const int about = worker < 0 ? -1 - worker : worker;
    if (session->worker != 0 || about >= config_worker_room(&server->config->cluster)) {
        return serve_send_error(session, request, ERROR_BAD_REQUEST,
                                "figures are sent by workers, each about its own rows, and requested by worker 0",
                                error);
    }
    server_lock(server);
    if (worker < 0) {
        keep_figures(server, about, NULL, 0); /* forgets them */
    }
    const struct figures *figures = &server->figures[about];
    struct iovec bulk = {malloc(figures->size + 1), figures->size};
    if (bulk.iov_base && figures->size > 0) {
        memcpy(bulk.iov_base, figures->bytes, figures->size);
    }
    server_unlock(server);
    const bool sent = bulk.iov_base ? answer_figures(session, request, worker, bulk, error)
                                    : error_set(error, "out of memory for figures of %zu bytes", bulk.iov_len);
    free(bulk.iov_base);
    return sent;
}

/* --- Validations: each worker's last one is kept, for status queries and for the chief, which adds them all up --- */

_Static_assert((int)SERVER_REPORTS == 2 * FIGURES_MOST + (int)SERVER_BULK, "as announced: figures, validations, bulk");

enum { VALIDATIONS_MOST = 64 << 20 /* bytes of bulk, of all workers together */ };

/* Locked. bytes: takes ownership, unless they are too many; NULL: none. */
static void keep_validation(struct server *server, int worker, const struct validation *sent, uint8_t *bytes,
                            size_t size)
{
    struct validation *kept = &server->validations[worker];
    server->validation_bytes -= kept->size;
    free(kept->bytes);
    const bool fits = server->validation_bytes + size <= VALIDATIONS_MOST;
    if (!fits) {
        free(bytes);
    }
    *kept = *sent;
    kept->bytes = fits ? bytes : NULL;
    kept->size = fits ? size : 0;
    server->validation_bytes += kept->size;
}

bool serve_validated(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const struct message_validated message = session->channel->message.validated;
    const uint64_t request = session->channel->frame.request;
    const struct validation sent = {.generation = session->channel->frame.generation,
                                    .step = message.step,
                                    .examples = message.examples,
                                    .score = message.score,
                                    .rises = message.rises == 1};
    uint8_t *bytes;
    size_t size;
    if (!serve_read_bulk(session, &bytes, &size, error)) {
        return false;
    }
    server_lock(server);
    const bool counts = job_is_current(&server->job, session->worker, session->incarnation) &&
                        sent.generation == server->job.generation;
    if (counts) {
        keep_validation(server, session->worker, &sent, bytes, size);
        pthread_cond_broadcast(&server->changed); /* the chief may be waiting for it */
    } else {
        free(bytes);
    }
    const int64_t global_step = server->job.global_step;
    serve_unlock(session);
    return serve_send_done(session, request, global_step, error);
}

static bool is_of_step(const struct validation *validation, uint32_t generation, int64_t step)
{
    return validation->generation == generation && validation->step == step && validation->examples > 0;
}

/*
 * Counts workers that took part in this step, so that they have its model, and have yet to report. A worker that
 * reported any step since the chief's last question has reported what was due: where rounds select only some workers, a
 * worker can end before the chief looks, which then validates the model of a later step than the others did.
 */
static int missing(const struct server *server, int64_t step)
{
    const struct job *job = &server->job;
    int count = 0;
    for (int i = 1; i < job->worker_count; i++) {
        const struct validation *kept = &server->validations[i];
        count += job->workers[i].present && job->workers[i].taken_step == step - 1 &&
                 !(kept->generation == job->generation && kept->step > server->validated_before);
    }
    return count;
}

static bool all_sent(struct session *session, int64_t step)
{
    return session->server->job.state != JOB_TRAINING || missing(session->server, step) == 0;
}

struct ranked {
    double score;
    int worker;
};

static int by_worst(const void *a, const void *b)
{
    const struct ranked *left = a, *right = b;
    return worst_first(left->score, left->worker, right->score, right->worker);
}

/* Marks who of those that reported this step is in the worst tenth. Locked. */
static void mark_worst(struct server *server, int64_t step)
{
    const struct job *job = &server->job;
    struct ranked *ranked = malloc((size_t)job->worker_count * sizeof *ranked);
    int count = 0;
    for (int i = 0; i < job->worker_count; i++) {
        const struct validation *kept = &server->validations[i];
        server->validations[i].is_worst = false;
        if (ranked && is_of_step(kept, job->generation, step)) {
            ranked[count++] = (struct ranked){kept->rises ? (double)kept->score : -(double)kept->score, i};
        }
    }
    if (ranked) {
        qsort(ranked, (size_t)count, sizeof *ranked, by_worst);
    }
    for (int i = 0; i < (count + 9) / 10 && count > 1; i++) {
        server->validations[ranked[i].worker].is_worst = true;
    }
    free(ranked);
}

static bool send_one(struct session *session, uint64_t request, const struct message_validation *message,
                     struct iovec bulk, struct error *error)
{
    const struct outgoing frame = {.type = MESSAGE_validation,
                                   .request = request,
                                   .message = message,
                                   .bulk = &bulk,
                                   .bulk_parts = bulk.iov_len > 0 ? 1 : 0,
                                   .more = message->worker >= 0};
    return channel_send_frame(session->channel, &frame, serve_deadline(), error);
}

/* Sends one worker's report if it is of this step; also true if there is none. */
static bool send_of(struct session *session, uint64_t request, int worker, int64_t step, struct error *error)
{
    struct server *server = session->server;
    struct message_validation message = {.worker = worker};
    struct iovec bulk = {NULL, 0}; /* a copy, because sending must not hold the lock */
    server_lock(server);
    const struct validation *kept = &server->validations[worker];
    const bool is_there = is_of_step(kept, server->job.generation, step);
    if (is_there) {
        message.examples = kept->examples;
        message.score = kept->score;
        bulk.iov_base = malloc(kept->size + 1);
        bulk.iov_len = bulk.iov_base ? kept->size : 0;
        if (bulk.iov_len > 0) {
            memcpy(bulk.iov_base, kept->bytes, bulk.iov_len);
        }
    }
    server_unlock(server);
    const bool sent = !is_there || send_one(session, request, &message, bulk, error);
    free(bulk.iov_base);
    return sent;
}

/* The chief repeats the request for the same step. Locked. */
static void record_question(struct server *server, const struct validation *own)
{
    const struct validation *last = &server->validations[0];
    if (last->generation != own->generation) {
        server->validated_before = -1;
    } else if (last->step != own->step) {
        server->validated_before = last->step;
    }
}

bool serve_validate(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const struct message_validate message = session->channel->message.validate;
    const uint64_t request = session->channel->frame.request;
    struct message_validation last = {.worker = -1};
    const struct validation own = {.generation = session->channel->frame.generation,
                                   .step = message.step,
                                   .examples = message.examples,
                                   .score = message.score,
                                   .rises = message.rises == 1};
    server_lock(server);
    record_question(server, &own);
    keep_validation(server, session->worker, &own, NULL, 0);
    const bool alive = serve_wait(session, all_sent, message.step, serve_wait_deadline(message.wait_ms));
    last.missing = (uint32_t)missing(server, message.step);
    mark_worst(server, message.step);
    serve_unlock(session);
    if (!alive) {
        return serve_wait_failed(session, " for validations", error);
    }
    const bool is_wanted = last.missing == 0 || message.wait_ms == 0;
    for (int i = 1; i < server->job.worker_count && is_wanted; i++) {
        if (!send_of(session, request, i, message.step, error)) {
            return false;
        }
    }
    return send_one(session, request, &last, (struct iovec){0}, error);
}
