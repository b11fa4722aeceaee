#include "worker/remote/shard_link.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/process/signals.h"
#include "net/endpoint.h"

static const double FIRST_DELAY_S = 0.02, LONGEST_DELAY_S = 1.0;
static const double PAUSE_S = 0.1;
static const double HELD_S = 0.05;   /* between two looks at held_until_s */
static const double UNNAMED_S = 1.0; /* shorter waits are nobody's business */

bool shard_link_create_to(struct shard_link *link, struct member member, const char *host,
                          const struct identity *identity, struct traffic *traffic, struct wake *wake,
                          struct error *error)
{
    char who[MEMBER_TEXT];
    *link = (struct shard_link){.member = member,
                                .longest_delay_s = LONGEST_DELAY_S,
                                .timeout_s = fmin(LINK_CONNECT_S, identity_idle_timeout_s(identity)),
                                .idle_timeout_s = identity_idle_timeout_s(identity),
                                .identity = identity,
                                .traffic = traffic,
                                .wake = wake,
                                .missed_s = clock_monotonic_s()};
    member_format(&member, ' ', who);
    if (!address_parse(host, &link->address, error)) {
        return error_wrap(error, "cluster.%s: %s", member.role == MEMBER_PS ? "ps_hosts" : "worker_hosts", host);
    }
    snprintf(link->name, sizeof link->name, "%s (%s)", who, host);
    return true;
}

bool shard_link_create(struct shard_link *link, const struct config *config, int ps, const struct identity *identity,
                       struct traffic *traffic, struct wake *wake, struct error *error)
{
    if (!shard_link_create_to(link, (struct member){MEMBER_PS, ps}, config->cluster.ps_hosts.items[ps], identity,
                              traffic, wake, error)) {
        return false;
    }
    link->longest_delay_s = config->cluster.recovery_wait_secs;
    return true;
}

void shard_link_count(struct shard_link *link)
{
    if (shard_link_is_open(link)) {
        uint64_t in = connection_bytes_in(link->channel.connection);
        uint64_t out = connection_bytes_out(link->channel.connection);
        atomic_fetch_add_explicit(&link->traffic->bytes_in, in - link->counted_in, memory_order_relaxed);
        atomic_fetch_add_explicit(&link->traffic->bytes_out, out - link->counted_out, memory_order_relaxed);
        link->counted_in = in;
        link->counted_out = out;
    }
}

void shard_link_close(struct shard_link *link)
{
    shard_link_count(link);
    if (shard_link_is_open(link)) {
        channel_close(&link->channel);
    }
    link->counted_in = link->counted_out = 0;
}

void shard_link_destroy(struct shard_link *link)
{
    if (link->traffic) {
        shard_link_close(link);
    }
    memset(link, 0, sizeof *link);
}

void shard_link_pause(double until_s)
{
    double left = until_s - clock_monotonic_s();
    left = left < PAUSE_S ? left : PAUSE_S;
    if (left > 0) {
        struct timespec time = {.tv_nsec = (long)(left * 1e9)};
        nanosleep(&time, NULL);
    }
}

/* Between half and the whole of a delay that doubles: so that a thousand workers do not come back in step. */
static void back_off(struct shard_link *link)
{
    double delay = FIRST_DELAY_S;
    for (int i = 0; i < link->failures && delay < link->longest_delay_s; i++) {
        delay *= 2;
    }
    delay = delay < link->longest_delay_s ? delay : link->longest_delay_s;
    double share = 0.5 + 0.5 * (double)randombytes_uniform(1000) / 1000.0;
    link->next_try_s = clock_monotonic_s() + delay * share;
    link->failures++;
}

static void tell_missing(struct shard_link *link, const char *why)
{
    double now_s = clock_monotonic_s();
    if (!link->quiet && now_s - link->missed_s >= UNNAMED_S && now_s - link->told_s >= LINK_TOLD_EVERY_S) {
        link->told_s = now_s;
        log_info("waiting for %s, %.0f s: %s", link->name, now_s - link->missed_s, why);
    }
}

/* Signs of life come four times in a silence; so what is heard of that often is not doubted. */
static void suspect_others(struct shard_link *link)
{
    atomic_store(&link->traffic->suspect_since_s, clock_monotonic_s() - link->idle_timeout_s / 4);
}

void shard_link_timed_out(struct shard_link *link, const char *why)
{
    suspect_others(link);
    shard_link_lost(link, why);
}

void shard_link_lost(struct shard_link *link, const char *why)
{
    if (shard_link_is_open(link)) {
        if (connection_state(link->channel.connection) == CONNECTION_TIMED_OUT) {
            suspect_others(link);
        }
        shard_link_close(link);
        link->missed_s = clock_monotonic_s();
        atomic_fetch_add_explicit(&link->traffic->retries, 1, memory_order_relaxed);
        if (!link->quiet && why) {
            log_warning("%s; connecting again", why);
        }
        back_off(link);
    }
}

bool shard_link_receive_any(struct shard_link *link, bool *pinged, struct error *error)
{
    struct channel *channel = &link->channel;
    if (!channel_receive(channel, clock_monotonic_s() + LINK_ANSWER_S, error)) {
        return false;
    }
    if (channel->frame.type == MESSAGE_leave) {
        return error_set(error, "%s leaves: %s", link->name, channel->message.leave.message);
    }
    *pinged = channel->frame.type == MESSAGE_ping;
    struct message_pong pong = {channel->message.ping.nonce};
    return !*pinged || channel_send(channel, MESSAGE_pong, channel->frame.request, FRAME_LAST, &pong, NULL, 0,
                                    clock_monotonic_s() + LINK_ANSWER_S, error);
}

bool shard_link_receive(struct shard_link *link, struct error *error)
{
    bool pinged;
    do {
        if (!shard_link_receive_any(link, &pinged, error)) {
            return false;
        }
    } while (pinged);
    return true;
}

static bool is_final(uint16_t reason)
{
    return reason != 0 && reason != REFUSAL_BUSY && reason != REFUSAL_BEHIND && reason != REFUSAL_AHEAD;
}

static enum link_try try_now(struct shard_link *link, struct error *error)
{
    struct connection *connection;
    struct peer peer;
    uint16_t reason = 0;
    double deadline_s = clock_monotonic_s() + link->timeout_s;
    if (!connection_connect(&connection, &link->address, &link->member, link->identity->credentials, link->wake,
                            deadline_s, error)) {
        return LINK_LATER;
    }
    channel_open(&link->channel, connection);
    if (handshake_connect(&link->channel, identity_hello(link->identity), &link->member, &peer, deadline_s, &reason,
                          error)) {
        link->incarnation = peer.incarnation;
        connection_set_idle_timeout(connection, link->idle_timeout_s);
        return LINK_OPEN;
    }
    shard_link_close(link);
    return is_final(reason) ? LINK_REFUSED : LINK_LATER;
}

/* Another connection fell silent, and nothing came on this one since. */
static bool is_suspect(const struct shard_link *link)
{
    return connection_heard_s(link->channel.connection) < atomic_load(&link->traffic->suspect_since_s);
}

enum link_try shard_link_try(struct shard_link *link, struct error *error)
{
    if (shard_link_is_open(link) && is_suspect(link)) {
        shard_link_close(link);
        link->missed_s = clock_monotonic_s();
        link->next_try_s = 0;
        atomic_fetch_add_explicit(&link->traffic->retries, 1, memory_order_relaxed);
    }
    if (shard_link_is_open(link)) {
        return LINK_OPEN;
    }
    if (clock_monotonic_s() < atomic_load(&link->traffic->held_until_s)) {
        link->next_try_s = clock_monotonic_s() + HELD_S;
    }
    if (clock_monotonic_s() < link->next_try_s) {
        error_set(error, "%s is not there", link->name);
        return LINK_LATER;
    }
    const double begun_s = clock_monotonic_s();
    enum link_try result = try_now(link, error);
    if (result == LINK_OPEN) {
        if (link->told_s > 0 && !link->quiet) {
            log_info("%s is there, after %.0f s", link->name, clock_monotonic_s() - link->missed_s);
        }
        link->failures = 0;
        link->told_s = 0;
    } else if (result == LINK_LATER) {
        if (clock_monotonic_s() >= begun_s + link->timeout_s) {
            suspect_others(link);
        }
        tell_missing(link, error->text);
        back_off(link);
    }
    return result;
}

enum link_try shard_link_open(struct shard_link *link, bool (*given_up)(void *context), void *context,
                              struct error *error)
{
    for (;;) {
        enum link_try result = shard_link_try(link, error);
        if (result != LINK_LATER || signals_pending() != 0 || (given_up && given_up(context))) {
            return result;
        }
        shard_link_pause(link->next_try_s);
    }
}
