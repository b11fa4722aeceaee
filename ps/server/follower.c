/*
 * A follower's two conversations with the coordinator, each on a thread and a connection of its own: what is staged here
 * goes there as it comes, and what is decided there comes here. Either is said again from the start on a new connection;
 * nothing is lost by saying it twice.
 */
#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text/address.h"
#include "ps/server/internal.h"

enum { DECISION_WAIT_MS = 1000 };

static const double CONNECT_S = 5.0, ANSWER_S = 10.0;
static const double FIRST_DELAY_S = 0.02, LONGEST_DELAY_S = 1.0;
static const double NAMED_AFTER_S = 2.0, TOLD_EVERY_S = 10.0;

struct coordinator_channel {
    struct follower *follower;
    struct channel channel;
    bool (*talk)(struct coordinator_channel *dialogue, struct error *error);
    bool tells; /* the log about trouble: one of the two is enough */
    uint64_t told_changes;
    pthread_t thread;
    bool runs;
};

struct follower {
    struct server *server;
    struct address address;
    struct member coordinator;
    char name[CONNECTION_NAME];
    struct wake wake;
    bool end;                        /* guarded by the server's lock */
    _Atomic(double) suspect_since_s; /* as in a worker's struct traffic */
    struct coordinator_channel report, listen;
};

static bool must_end(struct follower *follower)
{
    server_lock(follower->server);
    bool end = follower->end || follower->server->leaving;
    server_unlock(follower->server);
    return end;
}

/* --- Telling what is staged -------------------------------------------------------------------------------------------- */

static void put_worker(uint8_t *bytes, struct ranges *ranges, int worker)
{
    struct range last = ranges->count > 0 ? range_get(ranges, ranges->count - 1) : (struct range){0};
    if (ranges->count > 0 && last.first + last.count == (uint64_t)worker) {
        range_put(bytes, ranges->count - 1, (struct range){last.first, last.count + 1});
    } else {
        range_put(bytes, ranges->count++, (struct range){(uint64_t)worker, 1});
    }
}

/* Waits for something to tell, at most a while; false: there is nothing. */
static bool compose(struct coordinator_channel *dialogue, struct message_staged *staged, uint8_t *finite,
                    uint8_t *not_finite)
{
    struct server *server = dialogue->follower->server;
    struct job *job = &server->job;
    server_lock(server);
    bool news = job->changes != dialogue->told_changes && job->state == JOB_TRAINING;
    if (!news && !dialogue->follower->end && !server->leaving) {
        server_wait_step(server);
        news = job->changes != dialogue->told_changes && job->state == JOB_TRAINING;
    }
    dialogue->told_changes = news ? job->changes : dialogue->told_changes;
    dialogue->channel.generation = job->generation;
    *staged = (struct message_staged){.step = job->global_step};
    staged->finite.bytes = finite;
    staged->not_finite.bytes = not_finite;
    for (int i = 0; news && i < job->worker_count; i++) {
        enum aggregation_part part = aggregation_get(&job->gathered, 0, i);
        if (part == PART_HERE) {
            put_worker(finite, &staged->finite, i);
        } else if (part == PART_NOT_FINITE) {
            put_worker(not_finite, &staged->not_finite, i);
        }
    }
    server_unlock(server);
    return news && staged->finite.count + staged->not_finite.count > 0;
}

/* Asked now and then while there is nothing to tell, so that a dead connection is not found when it is needed. */
static bool is_alive(struct coordinator_channel *dialogue, struct error *error)
{
    const double timeout_s = identity_idle_timeout_s(&dialogue->follower->server->identity);
    struct message_ping ping = {0};
    double now_s = clock_monotonic_s();
    return now_s - connection_heard_s(dialogue->channel.connection) < timeout_s / 4 ||
           channel_call(&dialogue->channel, MESSAGE_ping, &ping, MESSAGE_pong, now_s + ANSWER_S, NULL, error);
}

static bool report(struct coordinator_channel *dialogue, struct error *error)
{
    uint8_t finite[CONFIG_MAX_HOSTS * RANGE_BYTES], not_finite[CONFIG_MAX_HOSTS * RANGE_BYTES];
    struct message_staged staged;
    uint16_t code;
    if (!compose(dialogue, &staged, finite, not_finite)) {
        return is_alive(dialogue, error);
    }
    return channel_call(&dialogue->channel, MESSAGE_staged, &staged, MESSAGE_done, clock_monotonic_s() + ANSWER_S,
                        &code, error) ||
           code == ERROR_OLD_GENERATION;
}

/* --- Hearing what is decided ------------------------------------------------------------------------------------------- */

static bool take_decision(struct server *server, const struct channel *channel, struct error *error)
{
    const struct message_aggregate *aggregate = &channel->message.aggregate;
    bool *taken = calloc((size_t)server->job.worker_count, sizeof *taken);
    bool done = taken != NULL || error_set(error, "out of memory");
    for (uint32_t i = 0; done && i < aggregate->workers.count; i++) {
        struct range range = range_get(&aggregate->workers, i);
        done = (range.first < (uint64_t)server->job.worker_count &&
                range.count <= (uint64_t)server->job.worker_count - range.first) ||
               error_set(error, "the coordinator names workers that there are not");
        for (uint32_t k = 0; done && k < range.count; k++) {
            taken[range.first + k] = true;
        }
    }
    if (done) {
        server_lock(server);
        job_apply_decision(&server->job, channel->frame.generation, aggregate->step, taken);
        server_lead(server);
        pthread_cond_broadcast(&server->stepped);
        server_unlock(server);
    }
    free(taken);
    return done;
}

/* Asks about the step that is being gathered here. */
static bool listen_for_decision(struct coordinator_channel *dialogue, struct error *error)
{
    struct server *server = dialogue->follower->server;
    struct job *job = &server->job;
    struct channel *channel = &dialogue->channel;
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
    if (code == ERROR_OLD_GENERATION) { /* one of us is being restored: there is nothing to do before */
        server_lock(server);
        server_wait_step(server);
        server_unlock(server);
    }
    return code == ERROR_TOO_LATE || code == ERROR_OLD_GENERATION;
}

/* --- Both -------------------------------------------------------------------------------------------------------------- */

static bool open_channel(struct coordinator_channel *dialogue, struct error *error)
{
    struct follower *follower = dialogue->follower;
    const struct identity *identity = &follower->server->identity;
    struct connection *connection;
    struct peer peer;
    double deadline_s = clock_monotonic_s() + fmin(CONNECT_S, identity_idle_timeout_s(identity));
    if (!connection_connect(&connection, &follower->address, &follower->coordinator, identity->credentials,
                            &follower->wake, deadline_s, error)) {
        return false;
    }
    channel_open(&dialogue->channel, connection);
    if (!handshake_connect(&dialogue->channel, identity_hello(identity), &follower->coordinator, &peer, deadline_s,
                           NULL, error)) {
        channel_close(&dialogue->channel);
        return false;
    }
    connection_set_idle_timeout(connection, identity_idle_timeout_s(identity));
    dialogue->told_changes = 0;
    return true;
}

/* What broke the other dialogue's connection has likely broken this one, if nothing came on it since. */
static bool is_suspect(const struct coordinator_channel *dialogue)
{
    return connection_heard_s(dialogue->channel.connection) < atomic_load(&dialogue->follower->suspect_since_s);
}

static void pause_for(struct follower *follower, double seconds)
{
    double until_s = clock_monotonic_s() + seconds;
    while (clock_monotonic_s() < until_s && !must_end(follower)) {
        struct timespec slice = {.tv_nsec = 10 * 1000000L};
        nanosleep(&slice, NULL);
    }
}

static void *converse(void *context)
{
    struct coordinator_channel *dialogue = context;
    struct follower *follower = dialogue->follower;
    double delay_s = FIRST_DELAY_S, missed_s = clock_monotonic_s(), told_s = 0;
    while (!must_end(follower)) {
        struct error error;
        double now_s = clock_monotonic_s();
        if (open_channel(dialogue, &error)) {
            delay_s = FIRST_DELAY_S;
            if (told_s > 0) {
                log_info("%s, which decides on the steps, is there", follower->name);
            }
            told_s = 0;
            while (!must_end(follower) && !is_suspect(dialogue) && dialogue->talk(dialogue, &error)) {
            }
            if (connection_state(dialogue->channel.connection) == CONNECTION_TIMED_OUT) {
                atomic_store(&follower->suspect_since_s,
                             clock_monotonic_s() - identity_idle_timeout_s(&follower->server->identity) / 4);
            }
            channel_close(&dialogue->channel);
            missed_s = clock_monotonic_s();
        } else if (dialogue->tells && now_s - missed_s >= NAMED_AFTER_S && now_s - told_s >= TOLD_EVERY_S) {
            told_s = now_s;
            log_info("waiting for %s, which decides on the steps, %.0f s: %s", follower->name, now_s - missed_s,
                     error.text);
        }
        pause_for(follower, delay_s);
        delay_s = delay_s * 2 < LONGEST_DELAY_S ? delay_s * 2 : LONGEST_DELAY_S;
    }
    return NULL;
}

static bool start_channel(struct coordinator_channel *dialogue, struct follower *follower,
                          bool (*talk)(struct coordinator_channel *dialogue, struct error *error), struct error *error)
{
    dialogue->follower = follower;
    dialogue->talk = talk;
    dialogue->runs = pthread_create(&dialogue->thread, NULL, converse, dialogue) == 0;
    return dialogue->runs || error_set(error, "no thread to talk to %s", follower->name);
}

bool follower_create(struct follower **out, struct server *server, struct error *error)
{
    *out = NULL;
    if (!job_is_follower(&server->job)) {
        return true;
    }
    const char *host = server->config->cluster.ps_hosts.items[server->job.coordinator];
    struct follower *follower = calloc(1, sizeof *follower);
    if (follower == NULL) {
        return error_set(error, "out of memory");
    }
    follower->server = server;
    follower->wake.fd = -1;
    follower->coordinator = (struct member){MEMBER_PS, server->job.coordinator};
    snprintf(follower->name, sizeof follower->name, "ps %d (%s)", server->job.coordinator, host);
    follower->report.tells = true;
    server->following = true;
    if (!wake_create(&follower->wake, error) || !address_parse(host, &follower->address, error) ||
        !start_channel(&follower->report, follower, report, error) ||
        !start_channel(&follower->listen, follower, listen_for_decision, error)) {
        follower_destroy(follower);
        return false;
    }
    *out = follower;
    return true;
}

void follower_destroy(struct follower *follower)
{
    if (follower == NULL) {
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
