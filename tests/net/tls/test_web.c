/*
 * TLS for browsers: which keys are accepted, whom a client trusts, what either end learns. Both ends are sessions on a
 * pair of sockets, which never block unless a test makes them.
 */
#include "net/tls/web.h"
#include "tests/check.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

#include "net/credentials.h"
#include "tests/net/keys.h"
#include "tests/net/loopback.h"

/* Writes part of `name` from `head` on, followed by another file unless that is NULL. */
static void put_together(const char *name, const char *first, const char *head, const char *second)
{
    char text[16384] = "";
    const char *const from[] = {first, second};
    FILE *out = fopen(file(name), "w");
    assert_non_null(out);
    for (int i = 0; i < 2 && from[i]; i++) {
        FILE *in = fopen(file(from[i]), "r");
        assert_non_null(in);
        text[fread(text, 1, sizeof text - 1, in)] = '\0';
        fclose(in);
        const char *begin = strstr(text, head);
        assert_non_null(begin);
        fputs(begin, out);
    }
    fclose(out);
    assert_int_equal(chmod(file(name), 0600), 0);
}

static void write_text(const char *name, const char *text)
{
    FILE *out = fopen(file(name), "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
    assert_int_equal(chmod(file(name), 0600), 0);
}

/* --- Keys --- */

static void says(const struct error *error, const char *name, const char *words)
{
    if (!strstr(error->text, file(name)) || !strstr(error->text, words)) {
        fail_msg("\"%s\" instead of \"%s ... %s\"", error->text, file(name), words);
    }
}

static void not_loaded(const char *certificate, const char *key, const char *of, const char *words)
{
    struct web_keys *keys = (struct web_keys *)(void *)folder;
    struct error error;
    assert_false(web_keys_load(&keys, file(certificate), file(key), &error));
    assert_null(keys);
    says(&error, of, words);
}

TEST(keys_that_are_refused)
{
    struct web_keys *keys = (struct web_keys *)(void *)folder;
    struct error error;
    write_text("garbage", "garbage");
    put_together("a.crt", "a.key", "-----BEGIN CERTIFICATE", NULL);
    not_loaded("none", "a.key", "none", "No such file");
    not_loaded("garbage", "a.key", "garbage", "holds no certificate, or a damaged one (");
    not_loaded("a.key", "none", "none", "No such file");
    not_loaded("a.key", "garbage", "garbage", "holds no private key on an elliptic curve, or a damaged one (");
    not_loaded("a.key", "a.crt", "a.crt", "holds no private key");
    not_loaded("a.key", "b.key", "b.key", "the private key does not belong to the certificate");
    for (int bit = 1; bit <= 4; bit *= 2) {
        assert_int_equal(chmod(file("b.key"), (mode_t)(0600 | bit)), 0);
        not_loaded("b.key", "b.key", "b.key",
                   bit == 2 ? "can be written to by everybody" : "everybody on this machine can read this key");
    }
    assert_int_equal(chmod(file("b.key"), 0640), 0);
    assert_true(web_keys_load(&keys, file("b.key"), file("b.key"), &error));
    web_keys_free(keys);
    assert_int_equal(chmod(file("a.crt"), 0644), 0); /* everybody may read a certificate */
    assert_true(web_keys_load(&keys, file("a.crt"), file("a.key"), &error));
    web_keys_free(keys);
    assert_false(web_keys_trust(&keys, file("none"), &error));
    assert_null(keys);
    says(&error, "none", "No such file");
    assert_false(web_keys_trust(&keys, file("garbage"), &error));
    assert_null(keys);
    says(&error, "garbage", "holds no certificate, or a damaged one (");
    web_keys_free(NULL);
    web_session_destroy(NULL);
}

/* --- Both ends --- */

struct ends {
    int fds[2]; /* the server's, the client's */
    struct web_keys *keys[2];
    struct web_session *server, *client;
};

static void open_ends(struct ends *ends, const char *key, const char *trusted, const char *name)
{
    struct error error;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends->fds), 0);
    if (!web_keys_load(&ends->keys[0], file(key), file(key), &error) ||
        !web_keys_trust(&ends->keys[1], file(trusted), &error)) {
        fail_msg("%s", error.text);
    }
    ends->server = web_session_create(ends->keys[0], NULL, ends->fds[0]);
    ends->client = web_session_create(ends->keys[1], name, ends->fds[1]);
    assert_non_null(ends->server);
    assert_non_null(ends->client);
}

static void close_ends(struct ends *ends)
{
    web_session_destroy(ends->server);
    web_session_destroy(ends->client);
    for (int i = 0; i < 2; i++) {
        web_keys_free(ends->keys[i]);
        if (ends->fds[i] >= 0) {
            close(ends->fds[i]);
        }
    }
}

/* The result of the client's handshake, and of the server's. */
static enum web_handshake shake(struct ends *ends)
{
    enum web_handshake client = WEB_AGAIN, server = WEB_AGAIN;
    for (int i = 0; i < 100 && (client == WEB_AGAIN || server == WEB_AGAIN); i++) {
        client = client == WEB_AGAIN ? web_session_handshake(ends->client) : client;
        server = server == WEB_AGAIN ? web_session_handshake(ends->server) : server;
    }
    assert_int_not_equal(client, WEB_AGAIN);
    assert_int_equal(server, client); /* TLS 1.3 tells the server why, by an alert */
    return client;
}

static void reaches(const char *key, const char *trusted, const char *name)
{
    struct ends ends;
    struct error error = {""};
    char byte = 0;
    open_ends(&ends, key, trusted, name);
    if (shake(&ends) != WEB_DONE) {
        web_session_explain(ends.client, &error);
        fail_msg("%s", error.text);
    }
    assert_int_equal(web_session_write(ends.client, "?", 1), 1);
    assert_int_equal(web_session_read(ends.server, &byte, 1), 1);
    assert_int_equal(byte, '?');
    close_ends(&ends);
}

static void does_not_reach(const char *key, const char *trusted, const char *name, const char *why)
{
    struct ends ends;
    struct error error = {""};
    open_ends(&ends, key, trusted, name);
    assert_int_equal(shake(&ends), WEB_FAILED);
    assert_false(web_session_explain(ends.client, &error));
    assert_string_equal(error.text, why);
    close_ends(&ends);
}

TEST(whom_a_client_trusts)
{
    reaches("a.key", "a.key", "whoever.example"); /* the very certificate, whatever its name and dates */
    reaches("expired.key", "expired.key", "whoever.example");
    does_not_reach("b.key", "a.key", "whoever.example", "its certificate is not trusted here");
    put_together("both", "a.key", "-----BEGIN CERTIFICATE", "b.key");
    reaches("a.key", "both", "whoever.example");
    reaches("b.key", "both", "whoever.example");
    reaches("ps0.key", "ca/ca.key", "ps:0"); /* by its authority, under its name, at its time */
    does_not_reach("ps0.key", "ca/ca.key", "ps:1", "its certificate is for another name");
    does_not_reach("expired.key", "ca/ca.key", "ps:0", "its certificate is out of date");
    does_not_reach("ps0.key", "a.key", "ps:0", "its certificate is not trusted here");
}

TEST(no_tls_at_all)
{
    struct ends ends;
    struct error error = {""};
    open_ends(&ends, "a.key", "a.key", "whoever.example");
    assert_int_equal(web_session_handshake(ends.server), WEB_AGAIN);
    assert_int_equal(send(ends.fds[0], "HTTP/1.1 400 \r\n\r\n", 17, 0), 17);
    assert_int_equal(send(ends.fds[1], "GET / HTTP/1.1\r\n", 16, 0), 16);
    enum web_handshake client = WEB_AGAIN;
    for (int i = 0; i < 9 && client == WEB_AGAIN; i++) {
        client = web_session_handshake(ends.client);
    }
    assert_int_equal(client, WEB_FAILED);
    assert_int_equal(web_session_handshake(ends.server), WEB_FAILED);
    assert_false(web_session_explain(ends.client, &error));
    assert_non_null(strstr(error.text, "can't be used for TLS 1.3 (SSL - "));
    close_ends(&ends);
}

TEST(a_peer_that_is_gone)
{
    struct ends ends;
    struct error error = {""};
    char byte;
    open_ends(&ends, "a.key", "a.key", NULL);
    assert_int_equal(web_session_handshake(ends.client), WEB_AGAIN); /* its hello */
    close(ends.fds[0]);
    ends.fds[0] = -1;
    assert_int_equal(web_session_handshake(ends.client), WEB_FAILED);
    web_session_explain(ends.client, &error);
    assert_non_null(strstr(error.text, "can't be used for TLS 1.3 ("));
    close_ends(&ends);
    open_ends(&ends, "a.key", "a.key", "a");
    assert_int_equal(shake(&ends), WEB_DONE);
    close(ends.fds[0]);
    ends.fds[0] = -1;
    assert_int_equal(web_session_write(ends.client, "?", 1), WEB_BROKEN); /* and no SIGPIPE */
    assert_false(web_session_wants_write(ends.client));
    assert_true(web_session_read(ends.server, &byte, 1) <= 0);
    close_ends(&ends);
}

/* --- What sessions carry --- */

TEST(bytes_in_order_and_a_goodbye)
{
    struct ends ends;
    char text[16] = "";
    open_ends(&ends, "a.key", "a.key", "a");
    assert_int_equal(shake(&ends), WEB_DONE);
    assert_int_equal(web_session_read(ends.server, text, sizeof text), WEB_WANTS);
    assert_false(web_session_wants_write(ends.server)); /* it waits for data, not for room */
    assert_int_equal(web_session_write(ends.client, "question", 8), 8);
    assert_false(web_session_has_more(ends.server));
    assert_int_equal(web_session_read(ends.server, text, 5), 5);
    assert_memory_equal(text, "quest", 5);
    assert_true(web_session_has_more(ends.server));
    assert_int_equal(web_session_read(ends.server, text, sizeof text), 3);
    assert_memory_equal(text, "ion", 3);
    assert_false(web_session_has_more(ends.server));
    assert_int_equal(web_session_write(ends.server, "answer", 6), 6);
    ptrdiff_t got = WEB_WANTS;
    for (int i = 0; i < 9 && got == WEB_WANTS; i++) { /* session tickets come before it */
        got = web_session_read(ends.client, text, sizeof text);
    }
    assert_int_equal(got, 6);
    assert_memory_equal(text, "answer", 6);
    web_session_close_notify(ends.client);
    assert_int_equal(web_session_read(ends.server, text, sizeof text), 0);
    assert_int_equal(send(ends.fds[0], "\x17\x03\x03\x00\x11no record of them", 22, 0), 22);
    assert_int_equal(web_session_read(ends.client, text, sizeof text), WEB_BROKEN);
    close_ends(&ends);
}

/* What does not fit into the socket is sent later. */
TEST(a_write_that_waits_for_room)
{
    enum { MUCH = 1 << 20 };
    static uint8_t sent[MUCH], received[MUCH];
    struct ends ends;
    ptrdiff_t out = 0, in = 0, n;
    int waits = 0;
    for (int i = 0; i < MUCH; i++) {
        sent[i] = (uint8_t)(i * 31 + i / 1000);
    }
    open_ends(&ends, "a.key", "a.key", "a");
    assert_int_equal(shake(&ends), WEB_DONE);
    while (in < MUCH) {
        while (out < MUCH && (n = web_session_write(ends.server, sent + out, (size_t)(MUCH - out))) > 0) {
            assert_false(web_session_wants_write(ends.server));
            out += n;
        }
        if (out < MUCH) {
            assert_int_equal(n, WEB_WANTS);
            assert_true(web_session_wants_write(ends.server));
            waits++;
        }
        while ((n = web_session_read(ends.client, received + in, (size_t)(MUCH - in))) > 0) {
            in += n;
        }
        assert_true(n == WEB_WANTS || in == MUCH);
    }
    assert_true(waits > 0);
    assert_memory_equal(sent, received, MUCH);
    close_ends(&ends);
}

/* So does a handshake, and says what it waits for. */
TEST(a_handshake_that_waits_for_room)
{
    static const char bytes[4096];
    struct ends ends;
    open_ends(&ends, "a.key", "a.key", "a");
    assert_int_equal(web_session_handshake(ends.client), WEB_AGAIN);
    assert_false(web_session_wants_write(ends.client));
    while (send(ends.fds[0], bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
    }
    assert_int_equal(web_session_handshake(ends.server), WEB_AGAIN);
    assert_true(web_session_wants_write(ends.server));
    close_ends(&ends);
}

/* --- Clients that stream what is passed over --- */

/* A ChangeCipherSpec, which means nothing. */
static const char ignored_record[] = "\x14\x03\x03\x00\x01\x01";

static bool flood_handshake(const struct ends *ends, size_t bytes)
{
    enum web_handshake server = WEB_AGAIN;
    for (size_t sent = 0; sent < bytes && server == WEB_AGAIN; sent += 6) {
        assert_int_equal(send(ends->fds[1], ignored_record, 6, 0), 6);
        server = web_session_handshake(ends->server);
    }
    return server == WEB_AGAIN;
}

TEST(a_handshake_has_an_end)
{
    struct ends ends;
    struct error error = {""};
    open_ends(&ends, "a.key", "a.key", "a");
    assert_int_equal(web_session_handshake(ends.client), WEB_AGAIN);
    assert_int_equal(web_session_handshake(ends.server), WEB_AGAIN);
    assert_true(flood_handshake(&ends, WEB_HANDSHAKE_BYTES - 4096)); /* a hello is shorter than that */
    assert_false(flood_handshake(&ends, 4096));
    close_ends(&ends);
    open_ends(&ends, "a.key", "a.key", "a");
    assert_int_equal(web_session_handshake(ends.client), WEB_AGAIN);
    assert_int_equal(web_session_handshake(ends.server), WEB_AGAIN);
    assert_true(flood_handshake(&ends, WEB_HANDSHAKE_BYTES - 4096));
    if (shake(&ends) != WEB_DONE) {
        web_session_explain(ends.client, &error);
        fail_msg("%s", error.text);
    }
    char bytes[1000] = "";
    for (int i = 0; i < 100; i++) { /* later ones no longer count */
        assert_int_equal(web_session_write(ends.client, bytes, sizeof bytes), sizeof bytes);
        assert_int_equal(web_session_read(ends.server, bytes, sizeof bytes), sizeof bytes);
    }
    close_ends(&ends);
}

enum { RECORDS = 100000, RECORD = 6, AT_ONCE = 256 * 1024 };

static void *send_many_records(void *context)
{
    static char records[RECORDS * RECORD];
    const struct ends *ends = context;
    for (int i = 0; i < RECORDS; i++) {
        memcpy(records + (size_t)i * RECORD, ignored_record, RECORD);
    }
    for (size_t sent = 0; sent < sizeof records;) {
        const ssize_t n = send(ends->fds[1], records + sent, sizeof records - sent, MSG_NOSIGNAL);
        if (n < 0) {
            return NULL;
        }
        sent += (size_t)n;
    }
    web_session_write(ends->client, "x", 1);
    return NULL;
}

/* The thread that serves all clients returns from a call even if the socket always has more. */
TEST(no_call_takes_for_ever)
{
    struct ends ends;
    pthread_t thread;
    char byte = 0;
    int calls = 1;
    ptrdiff_t n;
    open_ends(&ends, "a.key", "a.key", "a");
    assert_int_equal(shake(&ends), WEB_DONE);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fcntl(ends.fds[i], F_SETFL, 0), 0); /* blocking */
    }
    assert_int_equal(pthread_create(&thread, NULL, send_many_records, &ends), 0);
    while ((n = web_session_read(ends.server, &byte, 1)) == WEB_WANTS) {
        assert_false(web_session_wants_write(ends.server));
        calls++;
    }
    shutdown(ends.fds[0], SHUT_RDWR);
    pthread_join(thread, NULL);
    assert_int_equal(n, 1);
    assert_int_equal(byte, 'x');
    assert_int_equal(calls, 1 + RECORDS * RECORD / AT_ONCE);
    close_ends(&ends);
}

int main(void)
{
    return check_run(make_keys, remove_keys);
}
