/*
 * Heartbeats, the end of a worker or of the job, and what a ps knows about itself and its workers, for those who ask.
 */
#include "ps/server/requests.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/process/usage.h"
#include "base/text/text.h"
#include "net/local.h"
#include "ps/server/coordinator.h"
#include "ps/status.h"

/* --- Members --- */

/*
 * Finding out whom the job waits for means a look at all workers. With very many workers the result is reused instead
 * of computed for each that asks. Locked.
 */
static const char *describe(struct server *server, double now_s)
{
    static const double A_WORKER_S = 1e-4; /* maximum age, per worker */
    struct described *described = &server->described;
    if (now_s >= described->until_s || described->state != server->job.state) {
        job_describe(&server->job, now_s, described->text);
        described->state = server->job.state;
        described->until_s = now_s + A_WORKER_S * server->job.worker_count;
    }
    return described->text;
}

bool serve_heartbeat(struct session *session, struct error *error)
{
    struct server *server = session->server;
    struct job *job = &server->job;
    char message[256];
    double now_s = clock_monotonic_s();
    server_lock(server);
    job_heartbeat(job, session->worker, session->incarnation, &session->channel->message.heartbeat, now_s);
    struct message_lease lease = {
        .lease_ms = server->identity.hello.lease_ms,
        .job_state = (uint8_t)job->state,
        .global_step = job_initialised(job) ? job->global_step : -1,
        .test_accuracy = job->test_accuracy,
        .message = message,
    };
    snprintf(message, sizeof message, "%s", describe(server, now_s));
    serve_unlock(session);
    return serve_send(session, MESSAGE_lease, session->channel->frame.request, &lease, error);
}

bool serve_end_job(struct session *session, struct error *error)
{
    struct server *server = session->server;
    struct verdict verdict;
    server_lock(server);
    job_end(&server->job, session->worker, &session->channel->message.end_job, clock_monotonic_s(), &verdict);
    int64_t global_step = server->job.global_step;
    serve_unlock(session);
    return serve_send_verdict(session, session->channel->frame.request, &verdict, global_step, error);
}

/* A worker reports its error in a heartbeat; a ps has no other message to ps 0 than this one. */
static void log_failed_ps(const struct session *session)
{
    const char *message = session->channel->message.leave.message;
    char shown[256];
    if (session->who.role == MEMBER_PS && message[0] != '\0') {
        log_error("ps %d (%s) failed: %s", session->who.index, connection_peer(session->channel->connection),
                  printable(shown, sizeof shown, message));
    }
}

bool serve_leave(struct session *session, struct error *error)
{
    struct server *server = session->server;
    log_failed_ps(session);
    server_lock(server);
    if (session->worker >= 0) {
        job_leave(&server->job, session->worker, session->incarnation, session->channel->message.leave.message,
                  clock_monotonic_s());
    }
    int64_t global_step = server->job.global_step;
    server_unlock(server);
    return serve_send_done(session, session->channel->frame.request, global_step, error);
}

bool serve_get_place(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const uint64_t request = session->channel->frame.request, key = session->channel->message.get_place.key;
    struct verdict verdict;
    if (key == 0) {
        return serve_send_error(session, request, ERROR_BAD_REQUEST, "0 is not a worker's key", error);
    }
    if (session->place_key != 0 && session->place_key != key) {
        return serve_send_error(session, request, ERROR_BAD_REQUEST, "a worker has one key", error);
    }
    session->place_key = key;
    server_lock(server);
    const struct message_place place = {.index = job_assign_index(&server->job, key, clock_monotonic_s(), &verdict)};
    server_unlock(server);
    return verdict.code != 0 ? serve_send_error(session, request, verdict.code, verdict.message, error)
                             : serve_send(session, MESSAGE_place, request, &place, error);
}

/* A worker on this machine offers to exchange through shared memory. */
bool serve_local(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const struct message_local *offer = &session->channel->message.local;
    struct local *local = NULL;
    struct error why = {""};
    int fd = -1;
    server_lock(server);
    const size_t bytes = server->shard ? shard_floats(server->shard) * sizeof(float) : LOCAL_RING_MOST;
    server_unlock(server);
    if (!server->config->cluster.local) {
        error_set(&why, "it was started with --local=false");
    } else if (connection_is_local(session->channel->connection)) {
        error_set(&why, "it is in use already");
    } else {
        local_take(&local, &fd, offer->name, offer->secret, bytes, &why);
    }
    const struct message_local_taken taken = {.why_not = why.text};
    const bool sent = serve_send(session, MESSAGE_local_taken, session->channel->frame.request, &taken, error);
    if (local && !sent) {
        local_free(local);
        close(fd);
    }
    const bool moved = sent && local && connection_move(session->channel->connection, local, fd, error);
    if (moved) {
        server_lock(server);
        session->link = STATUS_LINK_MEMORY;
        server_unlock(server);
    }
    return sent && (!local || moved);
}

bool serve_ping(struct session *session, struct error *error)
{
    struct message_pong pong = {.nonce = session->channel->message.ping.nonce};
    return serve_send(session, MESSAGE_pong, session->channel->frame.request, &pong, error);
}

bool serve_pong(struct session *session, struct error *error)
{
    struct server *server = session->server;
    (void)error;
    if (session->worker >= 0) {
        server_lock(server);
        job_pong(&server->job, session->worker, session->incarnation, session->channel->message.pong.nonce);
        server_unlock(server);
    }
    return true;
}

/* --- Status --- */

static uint32_t milliseconds(double seconds)
{
    return seconds < 0 ? 0 : seconds > 4e6 ? UINT32_MAX : (uint32_t)(seconds * 1000.0);
}

static uint8_t own_state(const struct job *job)
{
    switch (job->state) {
    case JOB_WAITING:
    case JOB_RESTORING:
        return STATE_STARTING;
    case JOB_TRAINING:
        return STATE_READY;
    case JOB_DONE:
        return STATE_DONE;
    case JOB_FAILED:
        return STATE_FAILED;
    }
    return STATE_FAILED;
}

static void describe_self(struct server *server, const struct process_load *load, struct message_status *status,
                          char host[256], char message[256], char digest[CONFIG_DIGEST_HEX + 1])
{
    struct job *job = &server->job;
    if (gethostname(host, 255) != 0) {
        host[0] = '\0';
    }
    host[255] = '\0';
    *status = (struct message_status){
        .role = MEMBER_PS,
        .index = server->index,
        .incarnation = server->identity.hello.incarnation,
        .state = own_state(job),
        .generation = job->generation,
        .global_step = job_initialised(job) ? job->global_step : -1,
        .local_step = server->pushes,
        .steps_per_s = server->steps_per_s,
        .loss = server->last_loss,
        .staleness = server->last_staleness,
        .dropped = job_dropped(job),
        .digest = digest,
        .program = server->identity.program,
        .host = host,
        .device = "cpu",
        .message = message,
        .memory_bytes = load->memory_bytes,
        .cpu_percent = load->cpu_percent,
        .gpu_percent = load->gpu_percent,
    };
    job_describe(job, clock_monotonic_s(), message);
    coordinator_drift(server->coordinator, message, 256);
    coordinator_version(server->coordinator, &status->fleet_version, digest);
    listener_bytes(server->listener, &status->bytes_in, &status->bytes_out);
}

/* What it says of itself; while it says nothing, what is known of its failures and its idleness. */
static void describe_trouble(const struct job_worker *worker, double now_s, char message[256])
{
    if (worker->failures > 0 && !worker->ready) {
        snprintf(message, 256, "failed%s: %.200s", worker->failures > 1 ? " repeatedly" : "", worker->failure);
    } else if (worker->idle) {
        snprintf(message, 256, "has sent no gradient for %.0f s", now_s - worker->worked_s);
    } else {
        snprintf(message, 256, "%s", worker->message);
    }
}

/* Heartbeats have connections of their own: what leaves the network is the one that carries gradients. Locked. */
static uint8_t link_of(const struct server *server, int worker)
{
    uint8_t link = STATUS_LINK_UNKNOWN;
    for (const struct session *one = server->sessions_of[worker]; one; one = one->next_of_worker) {
        link = one->link > link ? one->link : link;
    }
    return link;
}

/* message: room for the status's text. Locked. */
static void describe_worker(const struct server *server, int index, const struct job_worker *worker, double now_s,
                            char message[256], struct message_status *status)
{
    const struct job *job = &server->job;
    describe_trouble(worker, now_s, message);
    *status = (struct message_status){
        .role = MEMBER_WORKER,
        .index = index,
        .incarnation = worker->incarnation,
        .state = (uint8_t)job_worker_state(job, index),
        .silent_ms = worker->incarnation == 0 ? UINT32_MAX : milliseconds(now_s - worker->heard_s),
        .generation = job->generation,
        .global_step = worker->global_step,
        .local_step = worker->local_step > worker->applied ? worker->local_step : worker->applied,
        .steps_per_s = worker->steps_per_s,
        .loss = worker->loss,
        .staleness = worker->applied > 0 ? (uint32_t)worker->staleness : worker->reported_staleness,
        .dropped = (uint64_t)(worker->stale + worker->not_finite),
        .retries = worker->retries,
        .bytes_in = worker->bytes_in,
        .bytes_out = worker->bytes_out,
        .fleet_version = worker->fleet_version,
        .digest = worker->digest,
        .program = worker->program,
        .host = worker->host[0] != '\0'   ? worker->host
                : worker->peer[0] != '\0' ? worker->peer
                                          : config_worker_host(&job->config.cluster, index),
        .device = worker->device,
        .message = message,
        .memory_bytes = worker->memory_bytes,
        .cpu_percent = worker->cpu_percent,
        .gpu_percent = worker->gpu_percent,
        .link = link_of(server, index),
    };
}

static void describe_rounds(const struct server *server, int index, struct message_rounds *rounds)
{
    const struct job *job = &server->job;
    const struct job_worker *worker = &job->workers[index];
    const struct validation *validation = &server->validations[index];
    *rounds = (struct message_rounds){
        .worker = index,
        .is_asked = config_asks_some(&job->config.train) && job_token(job, index, job->global_step) >= 0,
        .asked = (uint64_t)worker->asked,
        .counted = worker->asked > 0 ? (uint64_t)worker->applied : 0,
        .late = worker->asked > 0 ? (uint64_t)worker->stale : 0,
        .missed = (uint64_t)worker->missed,
        .cosine = worker->cosine,
        .norm = worker->norm,
        .validated = validation->examples,
        .validated_step = validation->step,
        .score = validation->score,
        .is_worst = validation->is_worst,
    };
}

/* The next worker from `index` on that is listed, or connected without being listed; worker_count: none. */
static int next_shown(struct server *server, int index)
{
    const struct job *job = &server->job;
    server_lock(server);
    while (index >= job->config.cluster.worker_hosts.count && index < job->worker_count &&
           job_worker_state(job, index) == STATE_ABSENT) {
        index++;
    }
    server_unlock(server);
    return index;
}

static bool send_part(struct session *session, enum message_type type, const void *message, bool more,
                      struct error *error)
{
    const struct outgoing frame = {
        .type = type, .request = session->channel->frame.request, .message = message, .more = more};
    return channel_send_frame(session->channel, &frame, serve_deadline(), error);
}

bool serve_get_status(struct session *session, struct error *error)
{
    const bool members = session->channel->message.get_status.members > 0;
    const bool with_rounds = session->channel->message.get_status.members > 1;
    struct server *server = session->server;
    struct message_status status;
    struct process_load load;
    struct message_rounds rounds;
    char host[256], message[256], digest[CONFIG_DIGEST_HEX + 1];
    const int workers = members ? server->job.worker_count : 0;
    int next = members ? next_shown(server, 0) : 0;
    process_load(&load);
    server_lock(server);
    describe_self(server, &load, &status, host, message, digest);
    server_unlock(server);
    if (!send_part(session, MESSAGE_status, &status, next < workers, error)) {
        return false;
    }
    while (next < workers) {
        const int i = next;
        /* A copy, because sending must not hold the lock. */
        struct job_worker worker;
        server_lock(server);
        worker = server->job.workers[i];
        describe_worker(server, i, &worker, clock_monotonic_s(), message, &status);
        describe_rounds(server, i, &rounds);
        server_unlock(server);
        next = next_shown(server, i + 1);
        if (!send_part(session, MESSAGE_status, &status, with_rounds || next < workers, error) ||
            (with_rounds && !send_part(session, MESSAGE_rounds, &rounds, next < workers, error))) {
            return false;
        }
    }
    return true;
}

/* --- For dashboards --- */

static void report_self(const struct server *server, const struct message_status *status, struct server_report *report)
{
    const struct job *job = &server->job;
    report->state = job->state;
    report->generation = job->generation;
    report->global_step = status->global_step;
    report->last_step = job->last_step > 0 ? job->last_step : -1;
    report->pushes = server->pushes;
    report->not_finite = job_not_finite(job);
    report->stale = status->dropped - report->not_finite;
    report->buffer_size = job->config.train.buffer_size;
    report->buffered = job->buffered;
    report->buffer_staleness = job->mean_staleness;
    report->bytes_in = status->bytes_in;
    report->bytes_out = status->bytes_out;
    report->config_version = (int64_t)status->fleet_version;
    report->certificate_until_s = identity_valid_until_s(&server->identity);
    snprintf(report->digest, sizeof report->digest, "%.64s", status->digest);
    report->loss = server->last_loss;
}

/* Workers that are not listed only while they are connected. */
static void report_workers(struct server *server, double now_s, struct server_report *report)
{
    const struct config_cluster *cluster = &server->config->cluster;
    struct message_status status;
    struct message_rounds rounds;
    char message[256];
    for (int i = 0; i < server->job.worker_count; i++) {
        const bool is_listed = i < cluster->worker_hosts.count;
        if (is_listed || job_worker_state(&server->job, i) != STATE_ABSENT) {
            struct board_member *member = &report->members[report->member_count++];
            describe_worker(server, i, &server->job.workers[i], now_s, message, &status);
            describe_rounds(server, i, &rounds);
            status_show(member, &status, config_worker_host(cluster, i));
            status_show_rounds(member, &rounds);
        }
    }
}

int server_most_members(const struct server *server)
{
    return server->config->cluster.ps_hosts.count + server->job.worker_count;
}

/* The other ps by their own reports, and the workers as this ps knows them. */
void server_report(struct server *server, struct server_report *report)
{
    const struct string_list *ps_hosts = &server->config->cluster.ps_hosts;
    struct message_status status;
    struct process_load load;
    char host[256], message[256], digest[CONFIG_DIGEST_HEX + 1];
    const double now_s = clock_monotonic_s();
    const int watched = server->watch ? fleet_watch_members(server->watch, report->members, ps_hosts->count) : 0;
    report->member_count = watched > 0 ? watched : 1;
    struct board_member *own = &report->members[report->member_count > server->index ? server->index : 0];
    process_load(&load);
    server_lock(server);
    describe_self(server, &load, &status, host, message, digest);
    status_show(own, &status, ps_hosts->items[server->index]);
    report_self(server, &status, report);
    report_workers(server, now_s, report);
    const bool awaits = job_describe_wait(&server->job, now_s, report->waits);
    if (!awaits && job_ready(&server->job, now_s, report->waits)) {
        report->waits[0] = '\0';
    }
    coordinator_show(server->coordinator, report->rollout);
    server_unlock(server);
}

void server_watch_fleet(struct server *server)
{
    struct error error;
    if (server->config->cluster.ps_hosts.count > 1 &&
        !fleet_watch_create(&server->watch, server->config, &server->identity, &error)) {
        log_warning("the other ps are not shown: %s", error.text);
    }
}

void server_unwatch_fleet(struct server *server)
{
    fleet_watch_destroy(server->watch);
    server->watch = NULL;
}
