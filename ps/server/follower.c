/*
 * A follower's two exchanges with the coordinator, each on its own thread and connection: reports of what is staged
 * here, and the decisions that come back. On a new connection each starts over; repeating a report does no harm.
 */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/link.h"
#include "ps/server/internal.h"
#include "ps/server/worker_set.h"

enum { DECISION_WAIT_MS = 1000 };

static const double CONNECT_S = 5.0, ANSWER_S = 10.0;
static const double LOG_AFTER_S = 2.0; /* without a coordinator */

struct follower_exchange {
    struct follower *follower;
    struct link link;
    bool (*talk)(struct follower_exchange *exchange, struct error *error);
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

static bool must_end(struct follower *follower)
{
    server_lock(follower->server);
    bool end = follower->end || follower->server->leaving;
    server_unlock(follower->server);
    return end;
}

/* --- Reporting what is staged --- */

/* Waits a limited time for something to report; false: there is nothing. */
static bool compose(struct follower_exchange *exchange, struct message_staged *staged)
{
    uint8_t *finite = exchange->finite, *not_finite = exchange->not_finite;
    struct server *server = exchange->follower->server;
    struct job *job = &server->job;
    server_lock(server);
    bool news = job->changes != exchange->sent_changes && job->state == JOB_TRAINING;
    if (!news && !exchange->follower->end && !server->leaving) {
        server_wait_step(server);
        news = job->changes != exchange->sent_changes && job->state == JOB_TRAINING;
    }
    exchange->sent_changes = news ? job->changes : exchange->sent_changes;
    exchange->link.channel.generation = job->generation;
    *staged = (struct message_staged){.step = job->global_step};
    staged->finite.bytes = finite;
    staged->not_finite.bytes = not_finite;
    for (int i = 0; news && i < job->worker_count; i++) {
        enum aggregation_part part = aggregation_get(&job->gathered, 0, i);
        if (part == PART_HERE) {
            worker_set_put(&staged->finite, finite, i);
        } else if (part == PART_NOT_FINITE) {
            worker_set_put(&staged->not_finite, not_finite, i);
        }
    }
    server_unlock(server);
    return news && staged->finite.count + staged->not_finite.count > 0;
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
    if (!compose(exchange, &staged)) {
        return is_alive(exchange, error);
    }
    return channel_call(&exchange->link.channel, MESSAGE_staged, &staged, MESSAGE_done, clock_monotonic_s() + ANSWER_S,
                        &code, error) ||
           code == ERROR_OLD_GENERATION;
}

/* --- Receiving decisions --- */

static bool take_decision(struct server *server, const struct channel *channel, struct error *error)
{
    const struct message_aggregate *aggregate = &channel->message.aggregate;
    bool *taken = malloc((size_t)server->job.worker_count * sizeof *taken);
    bool done = (taken || error_set(error, "out of memory")) &&
                (worker_set_read(&aggregate->workers, taken, server->job.worker_count) ||
                 error_set(error, "the coordinator names workers that do not exist"));
    if (done) {
        server_lock(server);
        done = job_apply_decision(&server->job, channel->frame.generation, aggregate->step, taken) ||
               error_set(error, "the coordinator decided on gradients that are not complete here, or on none");
        server_lead(server);
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

/* --- Both --- */

/*
 * Whatever breaks, and whatever the coordinator refuses, is tried again: without the coordinator this ps can do
 * nothing.
 */
static void *converse(void *context)
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
        if (!exchange->talk(exchange, &error)) {
            link_lost(link, NULL);
        }
    }
    link_close(link);
    return NULL;
}

static bool start_exchange(struct follower_exchange *exchange, struct follower *follower, bool quiet,
                           bool (*talk)(struct follower_exchange *exchange, struct error *error), struct error *error)
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
    exchange->talk = talk;
    exchange->runs = pthread_create(&exchange->thread, NULL, converse, exchange) == 0;
    return exchange->runs || error_set(error, "no thread to talk to %s", exchange->link.name);
}

bool follower_create(struct follower **out, struct server *server, struct error *error)
{
    *out = NULL;
    if (!job_is_follower(&server->job)) {
        return true;
    }
    struct follower *follower = calloc(1, sizeof *follower);
    if (!follower) {
        return error_set(error, "out of memory");
    }
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
