/*
 * The server's lock, the actions of the job that are carried out when it is released, and how threads wait for changes
 * of what it guards; pulls that wait without a thread.
 */
#include "ps/server/internal.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/threads.h"
#include "net/local.h"

void server_lock(struct server *server)
{
    pthread_mutex_lock(&server->lock);
}

static void for_worker(struct server *server, const struct job_action *action)
{
    for (struct session *one = server->sessions_of[action->worker]; one; one = one->next_of_worker) {
        const bool same = one->incarnation == action->incarnation;
        if (action->kind == JOB_CUT && !same) {
            listener_disconnect(&one->base);
        } else if (action->kind == JOB_PROBE && same) {
            one->ping_wanted = true;
            listener_wake(&one->base);
        }
    }
}

bool server_is_past_step(struct session *session, int64_t step)
{
    const struct job *job = &session->server->job;
    return job->state != JOB_TRAINING || job->global_step > step;
}

/* A pull that names ranges comes from a worker that waits to be selected for a round. */
bool server_is_selected_or_past(struct session *session, int64_t step)
{
    const struct job *job = &session->server->job;
    return server_is_past_step(session, step) ||
           (config_asks_some(&job->config.train) && job_token(job, session->worker, job->global_step) >= 0);
}

static void wake_held(struct server *server)
{
    const struct job *job = &server->job;
    const struct held_for now = {job->state, job->generation, job->global_step, job->asks};
    struct held_for *last = &server->held_for;
    if (!server->held || (now.state == last->state && now.generation == last->generation &&
                          now.global_step == last->global_step && now.asks == last->asks)) {
        return;
    }
    *last = now;
    for (struct session *session = server->held; session; session = session->held.next) {
        if (server_is_selected_or_past(session, session->held.pull.after_step)) {
            listener_wake(&session->base);
        }
    }
}

/* Carries out actions on workers' sessions, and returns the lines to log once the lock is released. */
static int take_actions(struct server *server, struct job_action lines[JOB_MAX_LINES + 1])
{
    struct job_action action;
    int count = 0;
    while (job_next_action(&server->job, &action)) {
        if (action.kind == JOB_LOG) {
            lines[count++] = action;
        } else {
            for_worker(server, &action);
        }
    }
    if (server->waiting > 0) {
        pthread_cond_broadcast(&server->changed);
    }
    wake_held(server);
    return count;
}

void server_unlock(struct server *server)
{
    struct job_action lines[JOB_MAX_LINES + 1]; /* the last says how many were left out */
    int count = take_actions(server, lines);
    pthread_mutex_unlock(&server->lock);
    for (int i = 0; i < count; i++) {
        log_message(lines[i].level, "%s", lines[i].text);
    }
}

void server_wait(struct server *server)
{
    if (job_has_actions(&server->job)) {
        server_unlock(server);
        server_lock(server);
        return;
    }
    /* Starting to wait signals nobody: two waiters would wake each other for ever. */
    server->waiting++;
    condition_wait_for(&server->changed, &server->lock, SERVER_TICK_MS / 1000.0);
    server->waiting--;
}

void server_wait_step(struct server *server)
{
    if (job_has_actions(&server->job)) {
        server_unlock(server);
        server_lock(server);
        return;
    }
    condition_wait_for(&server->stepped, &server->lock, SERVER_TICK_MS / 1000.0);
}

bool server_keeps_step(struct server *server)
{
    struct job *job = &server->job;
    const int64_t step = job->global_step;
    if (job->state != JOB_TRAINING || !shard_must_wait(server->shard, step)) {
        server->held_step = -1;
        return false;
    }
    const double now_s = clock_monotonic_s();
    if (server->held_step != step) {
        server->held_step = step;
        server->held_since_s = now_s;
    }
    if (job->workers[0].present && job_is_current(job, 0, server->orders_of) &&
        now_s - server->held_since_s < server->config->cluster.lease_secs) {
        return true;
    }
    shard_skip_order(server->shard, step); /* the chief will ask for it and report it missing */
    server->held_step = -1;
    return false;
}

bool server_has_step(struct server *server)
{
    return !server->stepping && job_has_step(&server->job) && !server_keeps_step(server);
}

/* --- Pulls that wait without a thread --- */

void server_hold_pull(struct session *session, const struct message_pull *pull, double deadline_s)
{
    struct server *server = session->server;
    struct held_pull *held = &session->held;
    *held = (struct held_pull){.holds = true,
                               .pull = *pull,
                               .request = session->channel->frame.request,
                               .generation = session->channel->frame.generation,
                               .deadline_s = deadline_s,
                               .keepalive_sent_s = clock_monotonic_s(),
                               .next = server->held};
    memcpy(held->range, pull->ranges.bytes, sizeof held->range);
    held->pull.ranges.bytes = held->range;
    if (held->next) {
        held->next->held.before = session;
    }
    server->held = session;
    job_hold(&server->job, session->worker, session->incarnation, 1, clock_monotonic_s());
}

void server_release_held(struct session *session)
{
    struct server *server = session->server;
    struct held_pull *held = &session->held;
    if (!held->holds) {
        return;
    }
    held->holds = false;
    *(held->before ? &held->before->held.next : &server->held) = held->next;
    if (held->next) {
        held->next->held.before = held->before;
    }
    job_hold(&server->job, session->worker, session->incarnation, -1, clock_monotonic_s());
}

/* --- Memory --- */

/* Workers that are listed on the ps's own host, and so may share memory with it. */
static int count_neighbours(const struct config *config, int ps)
{
    const struct string_list *workers = &config->cluster.worker_hosts, *hosts = &config->cluster.ps_hosts;
    if (!config->cluster.local || ps >= hosts->count) {
        return 0;
    }
    const char *own = hosts->items[ps], *end = strrchr(own, ':');
    const size_t length = end ? (size_t)(end - own) + 1 : 0;
    int count = 0;
    for (int i = 0; i < workers->count; i++) {
        count += length > 0 && strncmp(workers->items[i], own, length) == 0;
    }
    return count;
}

size_t server_memory(const struct model *model, const struct config *config, int ps, int connections)
{
    enum { PROGRAM_BYTES = 4 << 20, CONNECTION_BYTES = 64 * 1024 };
    struct span spans[PLACEMENT_MAX_SPANS];
    size_t message = 0;
    int count = placement_spans(model, config->cluster.placement, config->cluster.ps_hosts.count, ps, spans);
    for (int i = 0; i < count; i++) {
        message += spans[i].count * sizeof(float);
    }
    /* A message in shared memory takes no other buffer, and one that needs a buffer no shared memory. */
    const size_t buffer = message < CONNECTION_BUFFER ? message : CONNECTION_BUFFER;
    const int listed = count_neighbours(config, ps), neighbours = listed < connections ? listed : connections;
    return PROGRAM_BYTES + shard_memory(model, config, ps) + (size_t)connections * CONNECTION_BYTES +
           (size_t)(connections - neighbours) * 2 * buffer + (size_t)neighbours * 2 * local_ring(message);
}
