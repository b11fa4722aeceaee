/*
 * Synchronous steps: applying them, and the exchange between the ps that decides (the coordinator) and the others.
 *
 * The waiting threads apply a step themselves: the first to find it decided leads, the others help. A follower has two
 * exchanges with the coordinator, each on its own thread and connection: reports of what is staged here, and the
 * decisions that come back. On a new connection each starts over; repeating a report does no harm.
 */
#include "ps/server/requests.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "net/link.h"

enum { DECISION_WAIT_MS = 1000 };

static const double CONNECT_S = 5.0, ANSWER_S = 10.0;
static const double LOG_AFTER_S = 2.0; /* without a coordinator */

struct follower_exchange {
    struct follower *follower;
    struct link link;
    bool (*poll_once)(struct follower_exchange *exchange, struct error *error);
    uint64_t sent_changes;
    uint8_t finite[WORKER_SET_BYTES], not_finite[WORKER_SET_BYTES];
    pthread_t thread;
    bool runs;
};

struct follower {
    struct server *server;
    struct traffic traffic;
    struct wake wake;
    bool end; /* guarded by the server's lock */
    struct follower_exchange report, listen;
};

/* --- Steps --- */

void server_apply_step(struct server *server)
{
    struct job_step step;
    if (!server_has_step(server) || !job_take_step(&server->job, &step)) {
        return;
    }
    server->stepping = true;
    server->steps_begun++;
    if (shard_wants_help(server->shard) || server->job.gathered.shards > 1) { /* wakes followers' requests at once */
        pthread_cond_broadcast(&server->stepped);
    }
    server_unlock(server);
    bool applied = shard_aggregate(server->shard, step.generation, step.workers, step.count);
    server_lock(server);
    server->stepping = false;
    server->pushes += step.count;
    for (int i = 0; applied && i < step.count; i++) {
        struct job_worker *worker = &server->job.workers[step.workers[i]];
        shard_round_figures(server->shard, step.workers[i], &worker->cosine, &worker->norm);
    }
    job_step_applied(&server->job, &step, applied, clock_monotonic_s());
    pthread_cond_broadcast(&server->stepped);
}

/* Helps with the step being applied, once per step. Locked on entry and on return. */
bool server_help_step(struct server *server, uint64_t *helped)
{
    if (!server->stepping || *helped == server->steps_begun || !shard_wants_help(server->shard)) {
        return false;
    }
    *helped = server->steps_begun;
    server_unlock(server);
    shard_help(server->shard);
    server_lock(server);
    return true;
}

/* --- Sets of workers, as exchanged between ps --- */

void worker_set_put(struct ranges *set, uint8_t *bytes, int worker)
{
    struct range last = set->count > 0 ? range_get(set, set->count - 1) : (struct range){0};
    if (set->count > 0 && last.first + last.count == (uint64_t)worker) {
        range_put(bytes, set->count - 1, (struct range){last.first, last.count + 1});
    } else {
        range_put(bytes, set->count++, (struct range){(uint64_t)worker, 1});
    }
}

bool worker_set_read(const struct ranges *set, bool *has, int workers)
{
    memset(has, 0, (size_t)workers * sizeof *has);
    for (uint32_t i = 0; i < set->count; i++) {
        struct range range = range_get(set, i);
        if (range.first >= (uint64_t)workers || range.count > (uint64_t)workers - range.first) {
            return false;
        }
        for (uint32_t k = 0; k < range.count; k++) {
            has[range.first + k] = true;
        }
    }
    return true;
}

/* --- The coordinator: requests of followers --- */

bool serve_staged(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const struct message_staged *staged = &session->channel->message.staged;
    const uint64_t request = session->channel->frame.request;
    struct verdict verdict = {0};
    server_lock(server);
    int workers = server->job.worker_count;
    if (!worker_set_read(&staged->finite, server->finite, workers) ||
        !worker_set_read(&staged->not_finite, server->not_finite, workers)) {
        verdict = (struct verdict){.code = ERROR_BAD_REQUEST, .message = "it names workers that do not exist"};
    } else {
        job_report(&server->job, session->who.index, session->channel->frame.generation, staged->step, server->finite,
                   server->not_finite, clock_monotonic_s(), &verdict);
        server_apply_step(server);
    }
    int64_t global_step = server->job.global_step;
    serve_unlock(session);
    return serve_send_verdict(session, request, &verdict, global_step, error);
}

/* The set of workers of a decided step; false: not decided, or forgotten. */
static bool find_set(const struct server *server, uint32_t generation, int64_t step, uint8_t *bytes, struct ranges *set)
{
    const struct job *job = &server->job;
    *set = (struct ranges){bytes, 0};
    if (generation != job->generation) {
        return false;
    }
    const unsigned char *taken = NULL;
    if (step == job->gathered.step && job->gathered.decided) {
        taken = job->gathered.taken;
    } else if (step == job->last_set_step) {
        taken = job->last_set;
    }
    for (int i = 0; taken && i < job->worker_count; i++) {
        if (taken[i]) {
            worker_set_put(set, bytes, i);
        }
    }
    return taken;
}

bool serve_get_aggregate(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const struct message_get_aggregate wanted = session->channel->message.get_aggregate;
    const uint64_t request = session->channel->frame.request;
    const uint32_t generation = session->channel->frame.generation;
    uint8_t bytes[WORKER_SET_BYTES];
    struct message_aggregate aggregate = {.step = wanted.step};
    double looked_s = clock_monotonic_s();
    const double deadline_s = looked_s + wanted.wait_ms / 1000.0;
    bool alive = true;
    server_lock(server);
    while (alive && !find_set(server, generation, wanted.step, bytes, &aggregate.workers) &&
           generation == server->job.generation && clock_monotonic_s() < deadline_s) {
        serve_wait_step(session);
        double now_s = clock_monotonic_s();
        if (now_s - looked_s >= SERVER_TICK_MS / 2000.0) {
            alive = !listener_peer_hung_up(&session->base);
        }
        alive = alive && !server->leaving;
        looked_s = now_s;
    }
    bool same = generation == server->job.generation;
    serve_unlock(session);
    if (!alive) {
        return serve_wait_failed(session, "", error);
    }
    if (!same) {
        return serve_send_error(session, request, ERROR_OLD_GENERATION, "the model was restored since", error);
    }
    if (aggregate.workers.count == 0) {
        return serve_send_error(session, request, ERROR_TOO_LATE, "that step is not decided yet", error);
    }
    return serve_send(session, MESSAGE_aggregate, request, &aggregate, error);
}

/* --- A follower: reporting what is staged --- */

static bool must_end(struct follower *follower)
{
    server_lock(follower->server);
    bool end = follower->end || follower->server->leaving;
    server_unlock(follower->server);
    return end;
}

/* Waits a limited time for something to report; false: there is nothing. */
static bool next_report(struct follower_exchange *exchange, struct message_staged *staged)
{
    uint8_t *finite = exchange->finite, *not_finite = exchange->not_finite;
    struct server *server = exchange->follower->server;
    struct job *job = &server->job;
    server_lock(server);
    bool changed = job->changes != exchange->sent_changes && job->state == JOB_TRAINING;
    if (!changed && !exchange->follower->end && !server->leaving) {
        server_wait_step(server);
        changed = job->changes != exchange->sent_changes && job->state == JOB_TRAINING;
    }
    exchange->sent_changes = changed ? job->changes : exchange->sent_changes;
    exchange->link.channel.generation = job->generation;
    *staged = (struct message_staged){.step = job->global_step};
    staged->finite.bytes = finite;
    staged->not_finite.bytes = not_finite;
    for (int i = 0; changed && i < job->worker_count; i++) {
        enum aggregation_part part = aggregation_get(&job->gathered, 0, i);
        if (part == PART_HERE) {
            worker_set_put(&staged->finite, finite, i);
        } else if (part == PART_NOT_FINITE) {
            worker_set_put(&staged->not_finite, not_finite, i);
        }
    }
    server_unlock(server);
    return changed && staged->finite.count + staged->not_finite.count > 0;
}

/* Sent now and then while there is nothing to report, so that a dead connection is noticed before it is needed. */
static bool is_alive(struct follower_exchange *exchange, struct error *error)
{
    const double timeout_s = identity_idle_timeout_s(&exchange->follower->server->identity);
    struct message_ping ping = {0};
    double now_s = clock_monotonic_s();
    return now_s - connection_last_received_s(exchange->link.channel.connection) < timeout_s / 4 ||
           channel_call(&exchange->link.channel, MESSAGE_ping, &ping, MESSAGE_pong, now_s + ANSWER_S, NULL, error);
}

static bool report(struct follower_exchange *exchange, struct error *error)
{
    struct message_staged staged;
    uint16_t code;
    if (!next_report(exchange, &staged)) {
        return is_alive(exchange, error);
    }
    return channel_call(&exchange->link.channel, MESSAGE_staged, &staged, MESSAGE_done, clock_monotonic_s() + ANSWER_S,
                        &code, error) ||
           code == ERROR_OLD_GENERATION;
}

/* --- A follower: receiving decisions --- */

static bool take_decision(struct server *server, const struct channel *channel, struct error *error)
{
    const struct message_aggregate *aggregate = &channel->message.aggregate;
    bool *taken = must_alloc((size_t)server->job.worker_count * sizeof *taken, "a decision");
    bool done = worker_set_read(&aggregate->workers, taken, server->job.worker_count) ||
                error_set(error, "the coordinator names workers that do not exist");
    if (done) {
        server_lock(server);
        done = job_apply_decision(&server->job, channel->frame.generation, aggregate->step, taken) ||
               error_set(error, "the coordinator decided on gradients that are not complete here, or on none");
        server_apply_step(server);
        pthread_cond_broadcast(&server->stepped);
        server_unlock(server);
    }
    free(taken);
    return done;
}

/* Asks about the step whose pushes are being gathered here. */
static bool listen_for_decision(struct follower_exchange *exchange, struct error *error)
{
    struct server *server = exchange->follower->server;
    struct job *job = &server->job;
    struct channel *channel = &exchange->link.channel;
    uint16_t code;
    server_lock(server);
    if (job->state != JOB_TRAINING || job->gathered.decided) {
        server_wait_step(server);
    }
    bool gathers = job->state == JOB_TRAINING && !job->gathered.decided;
    struct message_get_aggregate wanted = {.step = job->global_step, .wait_ms = DECISION_WAIT_MS};
    channel->generation = job->generation;
    server_unlock(server);
    if (!gathers) {
        return true;
    }
    if (channel_call(channel, MESSAGE_get_aggregate, &wanted, MESSAGE_aggregate,
                     clock_monotonic_s() + DECISION_WAIT_MS / 1e3 + ANSWER_S, &code, error)) {
        return take_decision(server, channel, error);
    }
    if (code == ERROR_OLD_GENERATION) { /* one of the two ps is being restored: wait */
        server_lock(server);
        server_wait_step(server);
        server_unlock(server);
    }
    return code == ERROR_TOO_LATE || code == ERROR_OLD_GENERATION;
}

/* --- A follower: both --- */

/*
 * Whatever breaks, and whatever the coordinator refuses, is tried again: without the coordinator this ps can do
 * nothing.
 */
static void *exchange_loop(void *context)
{
    struct follower_exchange *exchange = context;
    struct link *link = &exchange->link;
    uint64_t opened = 0;
    while (!must_end(exchange->follower)) {
        struct error error;
        if (link_try(link, &error) != LINK_OPEN) {
            link_await_try(link);
            continue;
        }
        if (link->opened != opened) { /* the coordinator may be a new process, without any state */
            opened = link->opened;
            exchange->sent_changes = 0;
        }
        if (!exchange->poll_once(exchange, &error)) {
            link_lost(link, NULL);
        }
    }
    link_close(link);
    return NULL;
}

static bool start_exchange(struct follower_exchange *exchange, struct follower *follower, bool quiet,
                           bool (*poll_once)(struct follower_exchange *exchange, struct error *error),
                           struct error *error)
{
    const struct server *server = follower->server;
    const int coordinator = server->job.coordinator;
    const char *host = server->config->cluster.ps_hosts.items[coordinator];
    const struct link_options options = {.peer = {MEMBER_PS, coordinator},
                                         .self = identity_hello_options(&server->identity),
                                         .traffic = &follower->traffic,
                                         .wake = &follower->wake,
                                         .purpose = ", which decides on the steps",
                                         .timeout_s = CONNECT_S,
                                         .logged_after_s = LOG_AFTER_S,
                                         .quiet = quiet,
                                         .retries_refusals = true};
    if (!link_create(&exchange->link, host, &options, error)) {
        return error_wrap(error, "cluster.ps_hosts: %s", host);
    }
    exchange->follower = follower;
    exchange->poll_once = poll_once;
    exchange->runs = pthread_create(&exchange->thread, NULL, exchange_loop, exchange) == 0;
    return exchange->runs || error_set(error, "no thread for the exchange with %s", exchange->link.name);
}

bool follower_create(struct follower **out, struct server *server, struct error *error)
{
    *out = NULL;
    if (!job_is_follower(&server->job)) {
        return true;
    }
    struct follower *follower = must_zero(1, sizeof *follower, "the exchange with ps 0");
    follower->server = server;
    follower->wake.fd = -1;
    server->following = true;
    /* Only one of the two threads logs trouble. */
    if (!wake_create(&follower->wake, error) || !start_exchange(&follower->report, follower, false, report, error) ||
        !start_exchange(&follower->listen, follower, true, listen_for_decision, error)) {
        follower_destroy(follower);
        return false;
    }
    *out = follower;
    return true;
}

void follower_destroy(struct follower *follower)
{
    if (!follower) {
        return;
    }
    server_lock(follower->server);
    follower->end = true;
    pthread_cond_broadcast(&follower->server->stepped);
    server_unlock(follower->server);
    if (follower->wake.fd >= 0) {
        wake_raise(&follower->wake);
    }
    if (follower->report.runs) {
        pthread_join(follower->report.thread, NULL);
    }
    if (follower->listen.runs) {
        pthread_join(follower->listen.thread, NULL);
    }
    wake_destroy(&follower->wake);
    free(follower);
}
