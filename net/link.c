/*
 * Reconnecting. Every part of a fleet that restarts makes many others reconnect at once, hence random delays that
 * double; and a network that loses one connection has usually lost all of a process's, hence the suspicion that a
 * process's links share.
 */
#include "net/link.h"

#include <math.h>
#include <stdio.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/process/signals.h"
#include "base/simulation.h"
#include "net/socket.h"
#include "net/local.h"

static const double FIRST_DELAY_S = 0.02, LONGEST_DELAY_S = 1.0;
static const double SLICE_S = 0.1; /* the longest wait of link_await_try */
static const double HELD_S = 0.05; /* between two checks of held_until_s */
static const double LOGGED_AFTER_S = 1.0;
static const double SETTLED_S = 1.0; /* a connection that lasted this long, or as long as the last delay, was good */

static double or_default(double value, double otherwise)
{
    return value > 0 ? value : otherwise;
}

bool link_create(struct link *link, const char *host, const struct link_options *options, struct error *error)
{
    char who[MEMBER_TEXT];
    const double idle_timeout_s = options->self.idle_timeout_s;
    *link = (struct link){.options = *options,
                          .member = options->peer,
                          .quiet = options->quiet,
                          .timeout_s = fmin(or_default(options->timeout_s, LINK_CONNECT_S), idle_timeout_s),
                          .idle_timeout_s = idle_timeout_s,
                          .missed_s = clock_monotonic_s()};
    link->options.longest_delay_s = or_default(options->longest_delay_s, LONGEST_DELAY_S);
    link->options.logged_after_s = or_default(options->logged_after_s, LOGGED_AFTER_S);
    if (!address_parse(host, &link->address, error)) {
        return false;
    }
    member_format(&link->member, ' ', who);
    snprintf(link->name, sizeof link->name, "%s (%s)", who, host);
    return true;
}

void link_count(struct link *link)
{
    if (link_is_open(link)) {
        struct traffic *traffic = link->options.traffic;
        uint64_t in = connection_bytes_in(link->channel.connection);
        uint64_t out = connection_bytes_out(link->channel.connection);
        atomic_fetch_add_explicit(&traffic->bytes_in, in - link->counted_in, memory_order_relaxed);
        atomic_fetch_add_explicit(&traffic->bytes_out, out - link->counted_out, memory_order_relaxed);
        link->counted_in = in;
        link->counted_out = out;
    }
}

void link_close(struct link *link)
{
    if (link_is_open(link)) {
        link_count(link);
        channel_close(&link->channel);
    }
    link->counted_in = link->counted_out = 0;
}

void link_destroy(struct link *link)
{
    link_close(link);
}

static void pause_between(struct link *link, double from_s, double to_s)
{
    link->delay_s = from_s + (to_s - from_s) * (double)randombytes_uniform(1000) / 1000.0;
    link->next_try_s = clock_monotonic_s() + link->delay_s;
    link->failures++;
}

/* Between half and the whole of a delay that doubles, so that a thousand workers do not reconnect in step. */
static void back_off(struct link *link)
{
    const double longest_s = link->options.longest_delay_s;
    double delay_s = FIRST_DELAY_S;
    for (int i = 0; i < link->failures && delay_s < longest_s; i++) {
        delay_s *= 2;
    }
    delay_s = fmin(delay_s, longest_s);
    pause_between(link, 0.5 * delay_s, delay_s);
}

static bool has_random_delay(const struct link *link)
{
    return link->options.return_within_s > FIRST_DELAY_S; /* few members need no turns */
}

/* At once, for the peer may be back; a link that no caller waits for leaves the first moments to others. */
static void schedule_first_retry(struct link *link)
{
    if (link->failures == 0 && link->options.return_after_s > 0 && has_random_delay(link)) {
        pause_between(link, link->options.return_after_s, link->options.return_within_s);
    } else {
        back_off(link);
    }
}

/* The peer was absent at the first attempt: it restarts, and all reconnect. */
static void schedule_retry(struct link *link)
{
    if (link->failures == 1 && link->options.return_after_s == 0 && has_random_delay(link)) {
        pause_between(link, 0, link->options.return_within_s);
    } else {
        back_off(link);
    }
}

static void log_missing(struct link *link, const char *why)
{
    const struct link_options *options = &link->options;
    double now_s = clock_monotonic_s();
    if (!link->quiet && now_s - link->missed_s >= options->logged_after_s &&
        now_s - link->logged_s >= LINK_LOGGED_EVERY_S) {
        link->logged_s = now_s;
        log_info("waiting for %s%s, %.0f s: %s", link->name, options->purpose ? options->purpose : "",
                 now_s - link->missed_s, why);
    }
}

/* Keepalives come four times per idle timeout; so a link that has received something that recently is not suspected. */
static void suspect_others(struct link *link)
{
    atomic_store(&link->options.traffic->suspect_since_s, clock_monotonic_s() - link->idle_timeout_s / 4);
}

/* Another connection fell silent, and nothing has arrived on this one since. */
static bool is_suspect(const struct link *link)
{
    return connection_last_received_s(link->channel.connection) < atomic_load(&link->options.traffic->suspect_since_s);
}

/* A peer that welcomes us and disconnects at once is no better than an absent one: delays go on doubling. */
static void drop(struct link *link)
{
    link_close(link);
    link->missed_s = clock_monotonic_s();
    if (link->missed_s - link->opened_s >= fmin(link->delay_s, SETTLED_S)) {
        link->failures = 0;
    }
    atomic_fetch_add_explicit(&link->options.traffic->retries, 1, memory_order_relaxed);
}

void link_timed_out(struct link *link, const char *why)
{
    suspect_others(link);
    link_lost(link, why);
}

void link_lost(struct link *link, const char *why)
{
    if (link_is_open(link)) {
        if (connection_state(link->channel.connection) == CONNECTION_TIMED_OUT) {
            suspect_others(link);
        }
        drop(link);
        if (!link->quiet && why) {
            log_warning("%s; connecting again", why);
        }
        schedule_first_retry(link);
    }
}

bool link_receive_any(struct link *link, bool *pinged, struct error *error)
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
    return !*pinged || channel_send(channel, MESSAGE_pong, channel->frame.request, &pong,
                                    clock_monotonic_s() + LINK_ANSWER_S, error);
}

bool link_receive(struct link *link, struct error *error)
{
    bool pinged;
    do {
        if (!link_receive_any(link, &pinged, error)) {
            return false;
        }
    } while (pinged);
    return true;
}

bool link_receive_answer(struct link *link, enum message_type type, uint64_t request, enum message_type answer,
                         uint16_t *code, struct error *error)
{
    if (code) {
        *code = 0;
    }
    return link_receive(link, error) && channel_check_answer(&link->channel, type, request, answer, code, error);
}

bool link_call(struct link *link, struct outgoing *request, enum message_type answer, uint16_t *code,
               struct error *error)
{
    request->request = ++link->channel.next_request;
    if (code) {
        *code = 0;
    }
    return channel_send_frame(&link->channel, request, clock_monotonic_s() + LINK_ANSWER_S, error) &&
           link_receive_answer(link, request->type, request->request, answer, code, error);
}

static bool is_final(uint16_t reason)
{
    return reason != 0 && reason != REFUSAL_BUSY && reason != REFUSAL_BEHIND && reason != REFUSAL_AHEAD;
}

/* False: the connection is lost; it is opened again, without such an offer. */
static bool offer_memory(struct link *link, double deadline_s, struct error *error)
{
    struct error why_not;
    const bool open = handshake_offer_memory(&link->channel, deadline_s, &why_not, error);
    link->not_local = !open || why_not.text[0] != '\0';
    if (open && link->not_local && !link->quiet) {
        log_info("%s is on this machine, but not by shared memory: %s", link->name, why_not.text);
    }
    return open;
}

static bool is_worth_an_offer(const struct link *link)
{
    return link->options.local && !link->not_local && local_is_same_machine(connection_fd(link->channel.connection));
}

static enum link_try try_now(struct link *link, struct error *error)
{
    const struct hello_options *self = &link->options.self;
    struct connection *connection;
    struct peer peer;
    uint16_t reason = 0;
    double deadline_s = clock_monotonic_s() + link->timeout_s;
    if (!connection_connect(&connection, &link->address, &link->member, self->credentials, link->options.wake,
                            deadline_s, error)) {
        return LINK_LATER;
    }
    channel_open(&link->channel, connection);
    const struct hello_identity hello = self->hello(self->context);
    bool welcome = handshake_connect(&link->channel, &hello, &link->member, &peer, deadline_s, &reason, error);
    if (welcome || reason != 0) {
        atomic_store(&link->options.traffic->answer_within_s, 0);
    }
    if (welcome && is_worth_an_offer(link)) {
        welcome = offer_memory(link, deadline_s, error);
    }
    if (welcome) {
        link->incarnation = peer.incarnation;
        link->opened++;
        connection_set_idle_timeout(connection, link->idle_timeout_s);
        return LINK_OPEN;
    }
    link_close(link);
    return is_final(reason) && !link->options.retries_refusals ? LINK_REFUSED : LINK_LATER;
}

/* Has this process waited long enough for its first answer? */
static bool is_given_up(const struct link *link, struct error *error)
{
    const double within_s = atomic_load(&link->options.traffic->answer_within_s);
    const double waited_s = clock_monotonic_s() - atomic_load(&link->options.traffic->first_try_s);
    if (within_s <= 0 || waited_s < within_s || link->options.retries_refusals) {
        return false;
    }
    error_wrap(error, "gave up waiting for %s after %.0f s (join_secs), having reached no member", link->name,
               waited_s);
    return true;
}

enum link_try link_try(struct link *link, struct error *error)
{
    bool doubtful = link_is_open(link) && is_suspect(link);
    RARELY("a link is suspected", doubtful = link_is_open(link));
    if (doubtful) {
        drop(link);
        link->next_try_s = 0;
    }
    if (link_is_open(link)) {
        return LINK_OPEN;
    }
    if (clock_monotonic_s() < atomic_load(&link->options.traffic->held_until_s)) {
        link->next_try_s = clock_monotonic_s() + HELD_S;
    }
    if (clock_monotonic_s() < link->next_try_s) {
        error_set(error, "%s is not there", link->name);
        return LINK_LATER;
    }
    const double begun_s = clock_monotonic_s();
    double never = 0;
    atomic_compare_exchange_strong(&link->options.traffic->first_try_s, &never, begun_s);
    enum link_try result = try_now(link, error);
    if (result == LINK_LATER && is_given_up(link, error)) {
        return LINK_REFUSED;
    }
    if (result == LINK_OPEN) {
        if (link->logged_s > 0 && !link->quiet) {
            log_info("%s is there, after %.0f s", link->name, clock_monotonic_s() - link->missed_s);
        }
        link->opened_s = clock_monotonic_s();
        link->logged_s = 0;
    } else if (result == LINK_LATER) {
        if (clock_monotonic_s() >= begun_s + link->timeout_s) {
            suspect_others(link);
        }
        log_missing(link, error->text);
        schedule_retry(link);
    }
    return result;
}

void link_await_try(const struct link *link)
{
    wake_wait(-1, 0, link->options.wake, fmin(link->next_try_s, clock_monotonic_s() + SLICE_S));
}

enum link_try link_open(struct link *link, bool (*given_up)(void *context), void *context, struct error *error)
{
    for (;;) {
        enum link_try result = link_try(link, error);
        if (result != LINK_LATER || signals_pending() != 0 || (given_up && given_up(context))) {
            return result;
        }
        link_await_try(link);
    }
}
