/* A link reconnects by itself, at a pace that spares the peer, whatever that peer does to it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/link.h"
#include "net/socket.h"
#include "tests/check.h"
#include "tests/net/listening.h"
#include "tests/net/accepting.h"

enum { PATIENCE_S = 60 }; /* of both sides with each other, however busy this machine is */

static const int index_1 = 1;

struct bench {
    struct traffic traffic;
    struct wake wake;
    struct link link;
    char host[32];
};

static void create_link(struct bench *bench, uint16_t port, struct link_options options)
{
    struct error error;
    snprintf(bench->host, sizeof bench->host, "127.0.0.1:%u", port);
    options.peer = (struct member){MEMBER_PS, 0};
    options.self = (struct hello_options){.hello = listening_worker, .context = &index_1, .idle_timeout_s = PATIENCE_S};
    options.traffic = &bench->traffic;
    options.quiet = true;
    assert_true(link_create(&bench->link, bench->host, &options, &error));
}

/* A port without a listener, for the moment. */
static uint16_t free_port(void)
{
    int fd;
    struct error error;
    assert_true(socket_listen(&fd, "127.0.0.1", 0, &error));
    uint16_t port = socket_port(fd);
    close(fd);
    return port;
}

static enum link_try try_until(struct link *link, enum link_try wanted, struct error *error)
{
    const double until_s = clock_monotonic_s() + PATIENCE_S;
    enum link_try result;
    do {
        result = link_try(link, error);
        link_await_try(link);
    } while (result != wanted && clock_monotonic_s() < until_s);
    return result;
}

static bool ping(struct link *link, struct error *error)
{
    struct message_ping message = {.nonce = 5};
    return channel_call(&link->channel, MESSAGE_ping, &message, MESSAGE_pong, clock_monotonic_s() + PATIENCE_S, NULL,
                        error);
}

/* Delays double from 20 ms up to the longest, and each is drawn from its upper half. */
TEST(backs_off)
{
    struct bench bench = {.wake.fd = -1};
    struct error error;
    create_link(&bench, free_port(), (struct link_options){.longest_delay_s = 0.1});
    for (int i = 0; i < 6; i++) {
        const double most_s = fmin(0.02 * (double)(1 << i), 0.1);
        const double before_s = clock_monotonic_s();
        bench.link.next_try_s = 0;
        assert_int_equal(link_try(&bench.link, &error), LINK_LATER);
        assert_true(bench.link.delay_s >= most_s / 2 && bench.link.delay_s <= most_s);
        assert_int_equal(bench.link.failures, i + 1);
        assert_true(bench.link.next_try_s >= before_s + bench.link.delay_s);
        bench.link.next_try_s += PATIENCE_S;
        assert_int_equal(link_try(&bench.link, &error), LINK_LATER); /* too early: no attempt is made */
        assert_int_equal(bench.link.failures, i + 1);
    }
    link_destroy(&bench.link);
}

/* A thousand links do not come back in step: each draws from all of the upper half. */
TEST(delays_differ)
{
    struct bench bench = {.wake.fd = -1};
    struct error error;
    double least_s = 1, most_s = 0;
    create_link(&bench, free_port(), (struct link_options){.longest_delay_s = 0.1});
    for (int i = 0; i < 50; i++) {
        bench.link.next_try_s = 0;
        bench.link.failures = 10;
        const double before_s = clock_monotonic_s();
        assert_int_equal(link_try(&bench.link, &error), LINK_LATER);
        assert_true(bench.link.next_try_s >= before_s + bench.link.delay_s);
        least_s = fmin(least_s, bench.link.delay_s);
        most_s = fmax(most_s, bench.link.delay_s);
    }
    assert_true(least_s >= 0.05 && least_s < 0.075 && most_s > 0.075 && most_s <= 0.1);
    link_destroy(&bench.link);
}

TEST(comes_back)
{
    struct bench bench = {.wake.fd = -1};
    struct listening owner = {.refusal = 0};
    struct error error;
    const uint16_t port = free_port();
    create_link(&bench, port, (struct link_options){.longest_delay_s = 0.1});
    assert_int_equal(link_try(&bench.link, &error), LINK_LATER);
    listening_start(&owner, NULL, port);
    assert_int_equal(try_until(&bench.link, LINK_OPEN, &error), LINK_OPEN);
    assert_int_equal(bench.link.incarnation, 11);
    assert_true(ping(&bench.link, &error));
    listening_stop(&owner);
    assert_false(ping(&bench.link, &error));
    link_lost(&bench.link, error.text);
    assert_int_equal(atomic_load(&bench.traffic.retries), 1);
    listening_start(&owner, NULL, port);
    assert_int_equal(try_until(&bench.link, LINK_OPEN, &error), LINK_OPEN);
    assert_int_equal(bench.link.opened, 2);
    link_destroy(&bench.link);
    listening_stop(&owner);
    assert_true(atomic_load(&bench.traffic.bytes_out) > 0 && atomic_load(&bench.traffic.bytes_in) > 0);
}

/* After a loss, and after the attempt that shows that the peer is gone; a time too short to matter changes nothing. */
TEST(comes_back_in_its_turn)
{
    static const struct {
        struct link_options options;
        double lost[2], gone[2];
    } cases[] = {{{.return_after_s = 0.3, .return_within_s = 0.6}, {0.3, 0.6}, {0.02, 0.04}},
                 {{.return_within_s = 0.4}, {0.01, 0.02}, {0, 0.4}},
                 {{.return_after_s = 0.005, .return_within_s = 0.01}, {0.01, 0.02}, {0.02, 0.04}},
                 {{.quiet = true}, {0.01, 0.02}, {0.02, 0.04}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench bench = {.wake.fd = -1};
        struct listening owner = {.refusal = 0};
        struct error error;
        double longest_s = 0;
        listening_start(&owner, NULL, 0);
        create_link(&bench, listener_port(owner.listener), cases[i].options);
        for (int j = 0; j < 8; j++) {
            bench.link.next_try_s = bench.link.delay_s = 0; /* as if it had lasted */
            assert_int_equal(link_try(&bench.link, &error), LINK_OPEN);
            link_lost(&bench.link, NULL);
            assert_true(bench.link.delay_s >= cases[i].lost[0] && bench.link.delay_s <= cases[i].lost[1]);
            longest_s = fmax(longest_s, bench.link.delay_s);
        }
        assert_true(longest_s > cases[i].lost[0]); /* a new draw each time */
        listening_stop(&owner);
        bench.link.next_try_s = 0;
        assert_int_equal(link_try(&bench.link, &error), LINK_LATER);
        assert_true(bench.link.delay_s >= cases[i].gone[0] && bench.link.delay_s <= cases[i].gone[1]);
        bench.link.next_try_s = 0;
        assert_int_equal(link_try(&bench.link, &error), LINK_LATER);
        assert_true(bench.link.delay_s <= 0.08);
        link_destroy(&bench.link);
    }
}

/* A peer that welcomes and drops connections at once is not retried ever more often. */
TEST(a_peer_that_drops_whom_it_welcomed)
{
    struct bench bench = {.wake.fd = -1};
    struct listening owner = {.refusal = 0};
    struct error error;
    atomic_store(&owner.drops, true);
    listening_start(&owner, NULL, 0);
    create_link(&bench, listener_port(owner.listener), (struct link_options){.longest_delay_s = 60});
    for (int i = 0; i < 8; i++) {
        bench.link.next_try_s = 0;
        assert_int_equal(link_try(&bench.link, &error), LINK_OPEN);
        bench.link.opened_s = clock_monotonic_s() + PATIENCE_S; /* on a slow machine, too, it did not last */
        link_lost(&bench.link, NULL);
    }
    assert_int_equal(bench.link.failures, 8);
    link_destroy(&bench.link);
    listening_stop(&owner);
}

struct stranger {
    int listener;
    const char *says; /* NULL: sends nothing, and keeps the connection */
    int taken[8], count;
    atomic_bool end;
};

static void *be_strange(void *context)
{
    struct stranger *stranger = context;
    while (!atomic_load(&stranger->end) && stranger->count < 8) {
        struct error error;
        char peer[ENDPOINT_TEXT];
        int fd;
        if (!accept_in_time(stranger->listener, &fd, peer, clock_monotonic_s() + 0.05, &error)) {
            continue;
        }
        if (stranger->says) {
            send(fd, stranger->says, strlen(stranger->says), MSG_NOSIGNAL);
            close(fd);
        } else {
            stranger->taken[stranger->count++] = fd;
        }
    }
    return NULL;
}

/* If something else listens there, or sends nothing: try later, within the time for an attempt. */
TEST(strangers)
{
    static const char *const lines[] = {"", "HTTP/1.1 400 Bad Request\r\n\r\n", "\x15\x03\x03\x00\x02\x02\x28", NULL};
    for (int i = 0; i < 4; i++) {
        struct bench bench = {.wake.fd = -1};
        struct stranger stranger = {.says = lines[i]};
        struct error error;
        pthread_t thread;
        assert_true(socket_listen(&stranger.listener, "127.0.0.1", 0, &error));
        assert_int_equal(pthread_create(&thread, NULL, be_strange, &stranger), 0);
        create_link(&bench, socket_port(stranger.listener),
                    (struct link_options){.timeout_s = lines[i] ? PATIENCE_S : 0.3});
        assert_int_equal(link_try(&bench.link, &error), LINK_LATER);
        assert_false(link_is_open(&bench.link));
        /* Silence makes other links suspect; an answer of any kind does not. */
        assert_int_equal(atomic_load(&bench.traffic.suspect_since_s) > 0, !lines[i]);
        atomic_store(&stranger.end, true);
        pthread_join(thread, NULL);
        link_destroy(&bench.link);
        for (int k = 0; k < stranger.count; k++) {
            close(stranger.taken[k]);
        }
        close(stranger.listener);
    }
}

/* What may be different in a moment is no last word; any word shows that somebody is there. */
TEST(refusals)
{
    static const struct {
        uint16_t reason;
        bool retries;
        enum link_try result;
    } cases[] = {{REFUSAL_CONFIG, false, LINK_REFUSED}, {REFUSAL_CLUSTER, false, LINK_REFUSED},
                 {REFUSAL_BUSY, false, LINK_LATER},     {REFUSAL_BEHIND, false, LINK_LATER},
                 {REFUSAL_AHEAD, false, LINK_LATER},    {REFUSAL_CONFIG, true, LINK_LATER}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench bench = {.wake.fd = -1};
        struct listening owner = {.refusal = cases[i].reason};
        struct error error;
        listening_start(&owner, NULL, 0);
        create_link(&bench, listener_port(owner.listener), (struct link_options){.retries_refusals = cases[i].retries});
        atomic_store(&bench.traffic.answer_within_s, 1000);
        assert_int_equal(link_try(&bench.link, &error), cases[i].result);
        assert_non_null(strstr(error.text, "nobody is let in"));
        assert_false(link_is_open(&bench.link));
        assert_true(atomic_load(&bench.traffic.answer_within_s) == 0);
        link_destroy(&bench.link);
        listening_stop(&owner);
    }
}

/* One link's silence is a reason to reopen the others before their next use; those heard from since are left alone. */
TEST(suspicion)
{
    struct bench bench = {.wake.fd = -1};
    struct listening owner = {.refusal = 0};
    struct error error;
    listening_start(&owner, NULL, 0);
    create_link(&bench, listener_port(owner.listener), (struct link_options){.timeout_s = PATIENCE_S});
    assert_int_equal(try_until(&bench.link, LINK_OPEN, &error), LINK_OPEN);
    atomic_store(&bench.traffic.suspect_since_s, clock_monotonic_s() + 0.01);
    assert_int_equal(try_until(&bench.link, LINK_OPEN, &error), LINK_OPEN);
    assert_true(bench.link.opened >= 2);
    const uint64_t opened = bench.link.opened;
    usleep(20000);
    assert_true(ping(&bench.link, &error));
    assert_int_equal(link_try(&bench.link, &error), LINK_OPEN);
    assert_int_equal(bench.link.opened, opened);
    link_destroy(&bench.link);
    listening_stop(&owner);
}

/* Meanwhile the log goes into a file. */
struct record {
    FILE *file;
    int out, err;
};

static void begin_record(struct record *record)
{
    fflush(NULL);
    *record = (struct record){tmpfile(), dup(1), dup(2)};
    assert_true(record->file && dup2(fileno(record->file), 1) == 1 && dup2(fileno(record->file), 2) == 2);
}

static const char *end_record(struct record *record)
{
    static char text[4096];
    fflush(NULL);
    dup2(record->out, 1);
    dup2(record->err, 2);
    const ssize_t size = pread(fileno(record->file), text, sizeof text - 1, 0);
    text[size > 0 ? size : 0] = '\0';
    close(record->out);
    close(record->err);
    fclose(record->file);
    return text;
}

static const char *what_a_try_says(struct link *link, enum link_try wanted)
{
    struct record record;
    struct error error;
    begin_record(&record);
    link->next_try_s = 0;
    const enum link_try result = link_try(link, &error);
    const char *text = end_record(&record);
    assert_int_equal(result, wanted);
    return text;
}

/* The seconds behind these words, if they are there; -1: not. */
static double told_seconds(const char *text, const char *words, const char *unit)
{
    char *end;
    const char *at = strstr(text, words);
    const double seconds = at ? strtod(at + strlen(words), &end) : -1;
    return at && strstr(end, unit) == end ? seconds : -1;
}

/* Five, and what the machine takes for it. */
static bool is_about_five(double seconds)
{
    return seconds >= 5 && seconds < 5 + PATIENCE_S;
}

/* A long wait is logged once, and then every ten seconds; so are its end, and the loss of a connection. */
TEST(waits_are_told)
{
    struct bench bench = {.wake.fd = -1};
    struct link *link = &bench.link;
    struct listening owner = {.refusal = 0};
    struct record record;
    const uint16_t port = free_port();
    char words[96];
    create_link(&bench, port, (struct link_options){.purpose = " to decide", .longest_delay_s = 0.1});
    link->quiet = false;
    link->missed_s += PATIENCE_S;
    assert_string_equal(what_a_try_says(link, LINK_LATER), "");
    link->missed_s -= PATIENCE_S + 5;
    snprintf(words, sizeof words, "waiting for ps 0 (127.0.0.1:%u) to decide, ", port);
    assert_true(is_about_five(told_seconds(what_a_try_says(link, LINK_LATER), words, " s: ")));
    link->logged_s += PATIENCE_S;
    assert_string_equal(what_a_try_says(link, LINK_LATER), "");
    link->logged_s -= PATIENCE_S + LINK_LOGGED_EVERY_S;
    assert_true(is_about_five(told_seconds(what_a_try_says(link, LINK_LATER), words, " s: ")));
    listening_start(&owner, NULL, port);
    snprintf(words, sizeof words, "ps 0 (127.0.0.1:%u) is there, after ", port);
    assert_true(is_about_five(told_seconds(what_a_try_says(link, LINK_OPEN), words, " s\n")));
    assert_string_equal(what_a_try_says(link, LINK_OPEN), "");
    begin_record(&record);
    link_lost(link, "it broke");
    link_lost(link, "it was broken");
    assert_string_equal(end_record(&record), "trainer: warning: it broke; connecting again\n");
    assert_string_equal(what_a_try_says(link, LINK_OPEN), ""); /* no wait was logged, so no end either */
    begin_record(&record);
    link_lost(link, NULL);
    assert_string_equal(end_record(&record), "");
    link->quiet = true;
    link->next_try_s = 0;
    assert_int_equal(link_try(link, &(struct error){""}), LINK_OPEN);
    begin_record(&record);
    link_lost(link, "it broke");
    assert_string_equal(end_record(&record), "");
    link->missed_s -= 100;
    listening_stop(&owner);
    assert_string_equal(what_a_try_says(link, LINK_LATER), "");
    link_destroy(link);
}

/* A peer whose silence ends a connection makes others suspect; one that closes it does not. */
TEST(silence_is_told_to_others)
{
    for (int i = 0; i < 3; i++) {
        struct bench bench = {.wake.fd = -1};
        struct listening owner = {.refusal = 0};
        struct error error;
        listening_start(&owner, NULL, 0);
        create_link(&bench, listener_port(owner.listener), (struct link_options){.timeout_s = PATIENCE_S});
        assert_int_equal(try_until(&bench.link, LINK_OPEN, &error), LINK_OPEN);
        const double before_s = clock_monotonic_s();
        if (i == 0) {
            assert_false(channel_receive(&bench.link.channel, clock_monotonic_s() + 0.02, &error));
            link_lost(&bench.link, NULL);
        } else if (i == 1) {
            link_timed_out(&bench.link, NULL);
        } else {
            link_lost(&bench.link, NULL);
        }
        const double since_s = atomic_load(&bench.traffic.suspect_since_s), now_s = clock_monotonic_s();
        const double ago_s = now_s - since_s; /* a quarter of the idle timeout */
        assert_true(i == 2 ? since_s <= 0 : ago_s >= PATIENCE_S / 4.0 && ago_s < 2 * PATIENCE_S);
        assert_false(link_is_open(&bench.link));
        assert_true(bench.link.missed_s >= before_s && bench.link.next_try_s > bench.link.missed_s);
        assert_int_equal(atomic_load(&bench.traffic.retries), 1);
        link_destroy(&bench.link);
        listening_stop(&owner);
    }
}

/* Bytes count once, however often totals are taken, over all connections. */
TEST(bytes_count_once)
{
    struct bench bench = {.wake.fd = -1};
    struct listening owner = {.refusal = 0};
    struct error error;
    uint64_t in = 0, out = 0;
    listening_start(&owner, NULL, 0);
    create_link(&bench, listener_port(owner.listener), (struct link_options){.timeout_s = PATIENCE_S});
    for (int i = 0; i < 3; i++) {
        assert_int_equal(try_until(&bench.link, LINK_OPEN, &error), LINK_OPEN);
        link_count(&bench.link);
        assert_true(ping(&bench.link, &error));
        in += connection_bytes_in(bench.link.channel.connection);
        out += connection_bytes_out(bench.link.channel.connection);
        for (int k = 0; k < 2; k++) {
            link_count(&bench.link);
            assert_int_equal(atomic_load(&bench.traffic.bytes_in), in);
            assert_int_equal(atomic_load(&bench.traffic.bytes_out), out);
        }
        link_close(&bench.link);
        link_count(&bench.link);
    }
    assert_true(in > 0 && out > 0 && in != out);
    link_destroy(&bench.link);
    listening_stop(&owner);
}

/* One attempt has the requested time, but never more than the idle timeout. */
TEST(times_for_a_try)
{
    static const struct {
        double asked_s, idle_s, has_s;
    } cases[] = {{0, 60, LINK_CONNECT_S}, {0, 2, 2}, {0.3, 60, 0.3}, {30, 60, 30}, {30, 2, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct traffic traffic = {.bytes_in = 0};
        struct link link;
        struct error error;
        const struct link_options options = {.peer = {MEMBER_PS, 0},
                                             .self = {.idle_timeout_s = cases[i].idle_s},
                                             .traffic = &traffic,
                                             .timeout_s = cases[i].asked_s};
        assert_true(link_create(&link, "127.0.0.1:1", &options, &error));
        assert_true(link.timeout_s == cases[i].has_s);
        assert_true(link.options.longest_delay_s == 1 && link.options.logged_after_s == 1);
        assert_string_equal(link.name, "ps 0 (127.0.0.1:1)");
        link_destroy(&link);
        assert_false(link_create(&link, "127.0.0.1", &options, &error)); /* no port */
    }
}

/* A goodbye ends it, with its reason; a ping is answered; everything else is for the caller. */
TEST(what_comes_unasked)
{
    struct bench bench = {.wake.fd = -1};
    struct connection *ours, *theirs;
    struct channel peer;
    struct error error;
    bool pinged = false;
    int ends[2];
    create_link(&bench, free_port(), (struct link_options){.timeout_s = PATIENCE_S});
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_true(connection_serve(&ours, ends[0], "ours", NULL, NULL, INFINITY, &error));
    assert_true(connection_serve(&theirs, ends[1], "theirs", NULL, NULL, INFINITY, &error));
    channel_open(&bench.link.channel, ours);
    channel_open(&peer, theirs);
    bench.link.channel.version = peer.version = PROTOCOL_VERSION_MAX;
    assert_true(channel_send(&peer, MESSAGE_ping, 7, &(struct message_ping){9}, INFINITY, &error));
    assert_true(link_receive_any(&bench.link, &pinged, &error));
    assert_true(pinged);
    assert_true(channel_receive(&peer, INFINITY, &error));
    assert_int_equal(peer.frame.type, MESSAGE_pong);
    assert_int_equal(peer.frame.request, 7);
    assert_int_equal(peer.message.pong.nonce, 9);
    assert_true(channel_send(&peer, MESSAGE_done, 8, &(struct message_done){.global_step = 5}, INFINITY, &error));
    assert_true(link_receive_any(&bench.link, &pinged, &error));
    assert_false(pinged);
    assert_int_equal(bench.link.channel.message.done.global_step, 5);
    assert_true(
        channel_send(&peer, MESSAGE_leave, 0, &(struct message_leave){.message = "good night"}, INFINITY, &error));
    assert_false(link_receive_any(&bench.link, &pinged, &error));
    assert_non_null(strstr(error.text, "leaves: good night"));
    channel_close(&peer);
    link_destroy(&bench.link);
}

/* Pings aside, the next frame is the answer, or its next part; anything else ends the call. */
TEST(requests_and_answers)
{
    struct bench bench = {.wake.fd = -1};
    struct connection *ours, *theirs;
    struct channel peer;
    struct error error;
    char text[] = "in bulk", heard[sizeof text];
    const struct iovec bulk = {text, sizeof text};
    const struct message_describe describe = {.digest = ""};
    const struct message_description description = {.digest = ""};
    struct outgoing request = {.type = MESSAGE_describe, .message = &describe, .bulk = &bulk, .bulk_parts = 1};
    uint16_t code = 99;
    int ends[2];
    create_link(&bench, free_port(), (struct link_options){.timeout_s = PATIENCE_S});
    struct link *link = &bench.link;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_true(connection_serve(&ours, ends[0], "ours", NULL, NULL, INFINITY, &error));
    assert_true(connection_serve(&theirs, ends[1], "theirs", NULL, NULL, INFINITY, &error));
    channel_open(&link->channel, ours);
    channel_open(&peer, theirs);
    link->channel.version = peer.version = PROTOCOL_VERSION_MAX;
    assert_true(channel_send(&peer, MESSAGE_ping, 7, &(struct message_ping){9}, INFINITY, &error));
    assert_true(channel_send(&peer, MESSAGE_description, 1, &description, INFINITY, &error));
    assert_true(link_call(link, &request, MESSAGE_description, &code, &error));
    assert_int_equal(request.request, 1);
    assert_int_equal(code, 0);
    assert_true(channel_receive(&peer, INFINITY, &error));
    assert_int_equal(peer.frame.type, MESSAGE_describe);
    assert_int_equal(peer.frame.request, 1);
    assert_true(channel_read_bulk(&peer, heard, sizeof heard, INFINITY, &error));
    assert_string_equal(heard, text);
    assert_true(channel_receive(&peer, INFINITY, &error));
    assert_int_equal(peer.frame.type, MESSAGE_pong);
    assert_true(channel_send_error(&peer, 2, ERROR_TOO_LATE, INFINITY, &error, "too late"));
    assert_false(link_call(link, &request, MESSAGE_description, &code, &error));
    assert_int_equal(request.request, 2);
    assert_int_equal(code, ERROR_TOO_LATE);
    assert_string_equal(error.text, "ours: too late");
    const uint64_t others[] = {2, 4};
    for (int i = 0; i < 2; i++) { /* for an earlier request, or for one that was never made: their errors don't count */
        code = 99;
        assert_true(channel_send_error(&peer, others[i], ERROR_TOO_LATE, INFINITY, &error, "too late"));
        assert_false(link_receive_answer(link, MESSAGE_describe, 3, MESSAGE_description, &code, &error));
        assert_int_equal(code, 0);
        assert_string_equal(error.text, "ours: answer to a request that was not made");
    }
    assert_true(channel_send(&peer, MESSAGE_done, 3, &(struct message_done){.global_step = 5}, INFINITY, &error));
    assert_false(link_receive_answer(link, MESSAGE_describe, 3, MESSAGE_description, NULL, &error));
    assert_string_equal(error.text, "ours: answered describe with done");
    channel_close(&peer);
    code = 99;
    assert_false(link_receive_answer(link, MESSAGE_describe, 3, MESSAGE_description, &code, &error));
    assert_int_equal(code, 0);
    link_destroy(link);
}

static bool on_the_third(void *context)
{
    return ++*(int *)context == 3;
}

/* It returns when the link is open, refused, or the caller has given up; not before. */
TEST(open_means_open)
{
    struct bench bench = {.wake.fd = -1};
    struct listening owner = {.refusal = 0};
    struct error error;
    int asked = 0;
    const uint16_t port = free_port();
    create_link(&bench, port, (struct link_options){.longest_delay_s = 0.02});
    assert_int_equal(link_open(&bench.link, on_the_third, &asked, &error), LINK_LATER);
    assert_int_equal(asked, 3);
    assert_int_equal(bench.link.failures, 3);
    listening_start(&owner, NULL, port);
    assert_int_equal(link_open(&bench.link, NULL, NULL, &error), LINK_OPEN);
    assert_true(ping(&bench.link, &error));
    assert_int_equal(link_open(&bench.link, on_the_third, &asked, &error), LINK_OPEN);
    assert_int_equal(asked, 3);
    link_close(&bench.link);
    owner.refusal = REFUSAL_CONFIG;
    bench.link.next_try_s = 0;
    assert_int_equal(link_open(&bench.link, on_the_third, &asked, &error), LINK_REFUSED);
    assert_int_equal(asked, 3);
    link_destroy(&bench.link);
    listening_stop(&owner);
}

static bool always(void *context)
{
    return true;
}

/* No attempt is made while links are held; a wake and given_up end waits. */
TEST(held_and_woken)
{
    struct bench bench = {.wake.fd = -1};
    struct error error;
    assert_true(wake_create(&bench.wake, &error));
    create_link(&bench, free_port(), (struct link_options){.wake = &bench.wake});
    atomic_store(&bench.traffic.held_until_s, clock_monotonic_s() + 60);
    const double begun_s = clock_monotonic_s();
    assert_int_equal(link_try(&bench.link, &error), LINK_LATER);
    assert_int_equal(bench.link.failures, 0);
    assert_non_null(strstr(error.text, "ps 0 (127.0.0.1:"));
    assert_non_null(strstr(error.text, " is not there"));
    assert_true(bench.link.next_try_s > begun_s && bench.link.next_try_s <= clock_monotonic_s() + 0.05);
    assert_int_equal(link_open(&bench.link, always, NULL, &error), LINK_LATER);
    bench.link.next_try_s = clock_monotonic_s() + 60;
    link_await_try(&bench.link); /* in slices, so that who waits can look at other things */
    assert_true(clock_monotonic_s() >= begun_s + 0.1 && clock_monotonic_s() < begun_s + 30);
    wake_raise(&bench.wake);
    for (int i = 0; i < 1000; i++) { /* 100 s without the wake */
        link_await_try(&bench.link);
    }
    link_destroy(&bench.link);
    wake_destroy(&bench.wake);
}

/* How long no peer has answered counts from the first attempt, however long the process did other things. */
TEST(somebody_answers_in_time_or_it_is_hopeless)
{
    struct bench bench = {.wake.fd = -1};
    struct listening owner = {.refusal = 0};
    struct error error;
    const uint16_t port = free_port();
    create_link(&bench, port, (struct link_options){.longest_delay_s = 0.02});
    atomic_store(&bench.traffic.answer_within_s, 1000);
    const double before_s = clock_monotonic_s();
    assert_int_equal(link_try(&bench.link, &error), LINK_LATER);
    assert_true(atomic_load(&bench.traffic.first_try_s) >= before_s);
    atomic_store(&bench.traffic.first_try_s, clock_monotonic_s() - 1000.2);
    bench.link.options.retries_refusals = true; /* it waits for ever */
    bench.link.next_try_s = 0;
    assert_int_equal(link_try(&bench.link, &error), LINK_LATER);
    bench.link.options.retries_refusals = false;
    assert_int_equal(link_open(&bench.link, NULL, NULL, &error), LINK_REFUSED);
    assert_non_null(strstr(error.text, "gave up waiting for ps 0"));
    assert_non_null(strstr(error.text, " s (join_secs), having reached no member: "));
    listening_start(&owner, NULL, port);
    bench.link.next_try_s = 0;
    assert_int_equal(try_until(&bench.link, LINK_OPEN, &error), LINK_OPEN);
    assert_true(atomic_load(&bench.traffic.answer_within_s) == 0); /* from now on it waits as long as it takes */
    link_destroy(&bench.link);
    listening_stop(&owner);
}

int main(void)
{
    return check_run(NULL, NULL);
}
