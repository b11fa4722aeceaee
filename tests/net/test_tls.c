/* Whom TLS admits: fleet keys, authorities, roles, dates, plain text; and that each refusal says whom and why. */
#include "net/connection.h"
#include "tests/check.h"

#include <poll.h>
#include <sodium.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

#include "net/credentials.h"
#include "net/tls/tls.h"
#include "tests/net/keys.h"
#include "tests/net/loopback.h"
#include "tests/net/writing.h"
#include "tests/system.h"

/* The date, which may be another than today. */
static time_t ahead_s;

time_t time(time_t *now)
{
    const time_t then = SYSTEM(time)(NULL) + ahead_s;
    if (now) {
        *now = then;
    }
    return then;
}

static struct credentials *load(const char *name)
{
    struct credentials *credentials;
    struct error error;
    if (!credentials_load(&credentials, file(name), &error)) {
        fail_msg("%s", error.text);
    }
    return credentials;
}

/* What both ends reported of one attempt. */
struct attempt {
    bool connected; /* the client got an answer to its first byte */
    bool served;
    struct error client, server;
    struct error first_read; /* of the server, if its handshake succeeded */
    struct member client_sees, server_sees;
    char cipher[64];
};

static void answer(struct connection **connection, void *context)
{
    struct attempt *attempt = context;
    struct error error;
    uint8_t byte;
    struct iovec part = {&byte, 1};
    attempt->first_read.text[0] = '\0';
    attempt->server_sees = connection_credential(*connection);
    if (connection_read(*connection, &byte, 1, clock_monotonic_s() + 60, &attempt->first_read)) {
        write_now(*connection, &part, 1, clock_monotonic_s() + 60, &error);
    }
}

/* A client with key `client` (NULL: plain text) expects `expected` on a server with key `server`. */
static struct attempt try(const char *client, const char *server, struct member expected)
{
    struct attempt attempt = {.connected = false};
    struct loopback loopback = {.listener = -1};
    struct credentials *client_key = client ? load(client) : NULL, *server_key = server ? load(server) : NULL;
    struct connection *connection;
    double deadline_s = clock_monotonic_s() + 60;
    uint8_t byte = 7;
    struct iovec part = {&byte, 1};
    loopback_start(&loopback, server_key, answer, &attempt);
    if (connection_connect(&connection, &loopback.address, &expected, client_key, NULL, deadline_s, &attempt.client)) {
        attempt.client_sees = connection_credential(connection);
        snprintf(attempt.cipher, sizeof attempt.cipher, "%s", connection_cipher(connection));
        attempt.connected = write_now(connection, &part, 1, deadline_s, &attempt.client) &&
                            connection_read(connection, &byte, 1, deadline_s, &attempt.client);
        connection_close(connection);
    }
    loopback_end(&loopback);
    attempt.served = loopback.served;
    attempt.server = loopback.error;
    credentials_free(client_key);
    credentials_free(server_key);
    return attempt;
}

static const struct member ps0 = {MEMBER_PS, 0}, ps1 = {MEMBER_PS, 1}, worker1 = {MEMBER_WORKER, 1};

static void assert_well(struct attempt attempt)
{
    if (!attempt.connected || !attempt.served) {
        fail_msg("client: %s; server: %s", attempt.client.text, attempt.server.text);
    }
}

/* Both ends failed, each with one message that names the other and contains these words. */
static void assert_refused(struct attempt attempt, const char *client_says, const char *server_says)
{
    assert_false(attempt.connected);
    if (!strstr(attempt.client.text, client_says) || !strstr(attempt.client.text, "127.0.0.1:")) {
        fail_msg("client says \"%s\", not \"%s\"", attempt.client.text, client_says);
    }
    if (server_says) {
        assert_false(attempt.served);
        if (!strstr(attempt.server.text, server_says) || !strstr(attempt.server.text, "refused 127.0.0.1:")) {
            fail_msg("server says \"%s\", not \"%s\"", attempt.server.text, server_says);
        }
    }
}

TEST(same_fleet_key)
{
    struct attempt attempt = try("a.key", "a.key", ps0);
    assert_well(attempt);
    assert_int_equal(attempt.client_sees.role, MEMBER_NONE);
    assert_int_equal(attempt.server_sees.role, MEMBER_NONE);
    assert_true(strcmp(attempt.cipher, "TLS1-3-AES-256-GCM-SHA384") == 0 ||
                strcmp(attempt.cipher, "TLS1-3-CHACHA20-POLY1305-SHA256") == 0);
}

TEST(other_fleet_key)
{
    assert_refused(try("b.key", "a.key", ps0), "its fleet key differs", NULL);
}

/* The two keys of a rotation: a member with both talks to members with either. */
TEST(rotated_fleet_key)
{
    assert_int_equal(link(file("a.key"), file("phase.key")), 0);
    assert_refused(try("b.key", "phase.key", ps0), "its fleet key differs", NULL);
    assert_int_equal(link(file("b.key"), file("phase.key.next")), 0);
    assert_well(try("a.key", "phase.key", ps0));
    assert_well(try("phase.key", "a.key", ps0));
    assert_refused(try("phase.key", "b.key", ps0), "does not accept our key", "its fleet key differs");
    assert_int_equal(link(file("b.key"), file("new.key")), 0);
    assert_int_equal(link(file("a.key"), file("new.key.previous")), 0);
    assert_well(try("phase.key", "new.key", ps0));
    assert_well(try("new.key", "phase.key", ps0));
}

TEST(named_members)
{
    struct attempt attempt = try("worker1.key", "ps0.key", ps0);
    assert_well(attempt);
    assert_int_equal(attempt.client_sees.role, MEMBER_PS);
    assert_int_equal(attempt.client_sees.index, 0);
    assert_int_equal(attempt.server_sees.role, MEMBER_WORKER);
    assert_int_equal(attempt.server_sees.index, 1);
    attempt = try("worker.key", "ps0.key", ps0);
    assert_well(attempt);
    assert_int_equal(attempt.server_sees.index, MEMBER_ANY_INDEX);
    attempt = try("operator.key", "worker.key", worker1);
    assert_well(attempt);
    assert_int_equal(attempt.server_sees.role, MEMBER_OPERATOR);
}

TEST(wrong_role_or_index)
{
    struct attempt attempt = try("worker1.key", "worker1.key", ps0);
    assert_refused(attempt, "its certificate is for worker:1, but we expect ps:0", NULL);
    assert_non_null(strstr(attempt.first_read.text, "does not accept our certificate for this role"));
    assert_refused(try("worker1.key", "ps0.key", ps1), "its certificate is for ps:0, but we expect ps:1", NULL);
}

TEST(other_authority)
{
    assert_refused(try("stranger.key", "ps0.key", ps0), "not signed by the authority that we trust", "not signed by");
    assert_refused(try("a.key", "ps0.key", ps0), "its fleet key differs", "not signed by");
}

TEST(expired)
{
    assert_refused(try("worker1.key", "expired.key", ps0), "its certificate expired on ", NULL);
    assert_refused(try("expired.key", "ps0.key", ps0), "our certificate is expired", "its certificate expired on ");
}

/* With the date, for it may be a clock that is wrong. */
TEST(dates_are_told)
{
    enum { DAY = 86400 };
    struct error error;
    char words[96];
    time_t when = time(NULL) - 100 * DAY;
    ahead_s = -200 * DAY;
    assert_true(credentials_create_member(file("ca"), &ps0, 100, file("past.key"), &error));
    ahead_s = 0;
    strftime(words, sizeof words, "its certificate expired on %Y-%m-%d (by our clock)", gmtime(&when));
    assert_refused(try("worker1.key", "past.key", ps0), words, NULL);
    ahead_s = 300 * DAY;
    assert_true(credentials_create_member(file("ca"), &ps0, 100, file("future.key"), &error));
    ahead_s = 0;
    when = time(NULL) + 299 * DAY; /* with a day of grace */
    strftime(words, sizeof words, "its certificate is valid from %Y-%m-%d only, and our clock says ", gmtime(&when));
    const struct attempt attempt = try("worker1.key", "future.key", ps0);
    assert_refused(attempt, words, NULL);
    assert_non_null(strstr(attempt.first_read.text, "refused us: "));
}

/* With a fleet key clocks do not matter, however wrong they are. */
TEST(a_fleet_key_has_no_dates)
{
    ahead_s = -(time_t)30 * 365 * 86400;
    const struct attempt attempt = try("a.key", "a.key", ps0);
    ahead_s = 0;
    assert_well(attempt);
}

/* A name is one that fits, whole. */
TEST(common_names)
{
    struct credentials *credentials = load("worker1.key"), *pinned = load("a.key");
    char name[32] = "";
    assert_true(tls_common_name(&credentials->own, name, sizeof name));
    assert_string_equal(name, "worker:1");
    memset(name, 'x', sizeof name);
    assert_true(tls_common_name(&credentials->own, name, sizeof "worker:1"));
    assert_string_equal(name, "worker:1");
    assert_false(tls_common_name(&credentials->own, name, sizeof "worker:1" - 1));
    assert_false(tls_is_pinned(&pinned->own, &credentials->own));
    assert_true(tls_is_pinned(&pinned->own, &pinned->trusted));
    credentials_free(credentials);
    credentials_free(pinned);
}

TEST(plain_text)
{
    assert_refused(try(NULL, "a.key", ps0), "speaks TLS, but this side was started with --insecure",
                   "speaks plain text, but this side TLS");
    assert_refused(try("a.key", NULL, ps0), "speaks plain text", NULL);
    assert_well(try(NULL, NULL, ps0));
}

static void assert_not_loaded(const char *path, const char *says)
{
    struct credentials *credentials;
    struct error error;
    assert_false(credentials_load(&credentials, path, &error));
    assert_null(credentials);
    if (!strstr(error.text, says) || !strstr(error.text, path)) {
        fail_msg("\"%s\" instead of \"%s\"", error.text, says);
    }
}

static void write_file(const char *path, const char *text, size_t size)
{
    FILE *stream = fopen(path, "w");
    assert_non_null(stream);
    assert_int_equal(fwrite(text, 1, size, stream), size);
    fclose(stream);
    chmod(path, 0600);
}

TEST(damaged_files)
{
    char text[8192];
    FILE *stream = fopen(file("a.key"), "r");
    size_t size = fread(text, 1, sizeof text, stream);
    fclose(stream);
    assert_not_loaded(file("missing.key"), "trainer keygen --out=");
    write_file(file("empty.key"), "", 0);
    assert_not_loaded(file("empty.key"), "holds no certificate, or a damaged one (");
    assert_not_loaded(file("empty.key"), " - ");
    const char *certificate = strstr(text, "-----BEGIN CERTIFICATE");
    assert_non_null(certificate);
    write_file(file("bare.key"), certificate, size - (size_t)(certificate - text));
    assert_not_loaded(file("bare.key"), "holds no private key, or a damaged one (");
    assert_not_loaded(file("bare.key"), " - ");
    for (size_t cut = 0; cut + 2 < size; cut += 61) {
        write_file(file("cut.key"), text, cut);
        assert_not_loaded(file("cut.key"), "holds no");
    }
    struct error error;
    assert_false(credentials_create_fleet_key(file("a.key"), &error));
    assert_non_null(strstr(error.text, "already exists, and is not overwritten"));
    chmod(file("b.key"), 0644);
    assert_not_loaded(file("b.key"), "chmod 600");
    chmod(file("b.key"), 0600);
}

static bool passes(const char *from, const char *to)
{
    struct credentials *client = load(from), *server = load(to);
    uint8_t pass[HANDSHAKE_TOKEN_SIZE];
    handshake_token_make(credentials_token_keys(client), pass);
    const bool good = handshake_token_check(credentials_token_keys(server), pass);
    for (int i = 0; i < HANDSHAKE_TOKEN_SIZE; i++) { /* every byte counts */
        pass[i] ^= 1;
        assert_false(handshake_token_check(credentials_token_keys(server), pass));
        pass[i] ^= 1;
    }
    credentials_free(client);
    credentials_free(server);
    return good;
}

/* As specified in net/PROTOCOL.md for other implementations. */
TEST(a_pass_is_made_as_documented)
{
    static const char text[] = "trainer: key of handshake tokens";
    static const uint8_t secret[32] = {1, 2, 3};
    struct handshake_token_keys keys = {.count = 0};
    uint8_t key[32], pass[HANDSHAKE_TOKEN_SIZE];
    handshake_token_add_key(&keys, secret, sizeof secret);
    crypto_generichash(key, sizeof key, secret, sizeof secret, (const uint8_t *)text, strlen(text));
    for (int i = 0; i < 16; i++) {
        pass[i] = (uint8_t)(i + 7);
    }
    crypto_generichash(pass + 16, 16, pass, 16, key, sizeof key);
    assert_true(handshake_token_check(&keys, pass));
    handshake_token_make(&keys, pass);
    uint8_t tag[16];
    crypto_generichash(tag, sizeof tag, pass, 16, key, sizeof key);
    assert_memory_equal(tag, pass + 16, sizeof tag);
}

/* A pass distinguishes those with the key, or a key of the same authority, from all others; also while keys change. */
TEST(passes_of_members)
{
    struct error error;
    assert_true(passes("a.key", "a.key"));
    assert_false(passes("b.key", "a.key"));
    assert_false(passes("a.key", "ps0.key"));
    assert_true(passes("worker1.key", "ps0.key"));
    assert_true(passes("ps0.key", "operator.key"));
    assert_false(passes("stranger.key", "ps0.key"));
    assert_true(credentials_create_fleet_key(file("old.key"), &error));
    assert_true(credentials_create_fleet_key(file("old.key.next"), &error));
    assert_true(passes("old.key.next", "old.key"));
    assert_false(passes("a.key", "old.key"));
}

/* Nothing that a connection shows makes tokens: neither a certificate, the authority's included, nor a public key. */
TEST(what_is_public_makes_no_tokens)
{
    static const char *const names[] = {"a.key", "ps0.key"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct credentials *credentials = load(names[i]);
        const mbedtls_x509_crt *const shown[] = {&credentials->own, &credentials->trusted};
        for (size_t j = 0; j < 2; j++) {
            uint8_t token[HANDSHAKE_TOKEN_SIZE];
            struct handshake_token_keys forged = {.count = 0};
            handshake_token_add_key(&forged, shown[j]->raw.p, shown[j]->raw.len);
            handshake_token_add_key(&forged, shown[j]->pk_raw.p, shown[j]->pk_raw.len);
            handshake_token_make(&forged, token);
            assert_false(handshake_token_check(credentials_token_keys(credentials), token));
            forged.count = 1;
            memcpy(forged.keys[0], forged.keys[1], sizeof forged.keys[0]);
            handshake_token_make(&forged, token);
            assert_false(handshake_token_check(credentials_token_keys(credentials), token));
        }
        credentials_free(credentials);
    }
}

/* No more keys than there is room for, and without any a pass is nobody's. */
TEST(keys_of_passes)
{
    struct handshake_token_keys *keys = calloc(1, sizeof *keys);
    uint8_t pass[HANDSHAKE_TOKEN_SIZE], other[HANDSHAKE_TOKEN_SIZE];
    handshake_token_make(keys, pass);
    handshake_token_make(keys, other);
    assert_memory_not_equal(pass, other, sizeof pass);
    assert_false(handshake_token_check(keys, pass));
    for (int i = 0; i < HANDSHAKE_TOKEN_KEYS + 3; i++) {
        handshake_token_add_key(keys, (uint8_t[]){(uint8_t)i, 1}, 2);
        assert_int_equal(keys->count, i < HANDSHAKE_TOKEN_KEYS ? i + 1 : HANDSHAKE_TOKEN_KEYS);
    }
    for (int i = 0; i < HANDSHAKE_TOKEN_KEYS; i++) { /* any of them is good */
        struct handshake_token_keys one = {.count = 0};
        handshake_token_add_key(&one, (uint8_t[]){(uint8_t)i, 1}, 2);
        handshake_token_make(&one, pass);
        assert_true(handshake_token_check(keys, pass));
    }
    free(keys);
}

/* Members with keys of an authority are told apart by them, and a fleet key tells nobody apart. */
TEST(identities)
{
    struct credentials *worker = load("worker1.key"), *again = load("worker1.key"), *ps = load("ps0.key");
    struct credentials *fleet = load("a.key");
    assert_true(credentials_identity(worker) != 0);
    assert_true(credentials_identity(worker) == credentials_identity(again));
    assert_true(credentials_identity(worker) != credentials_identity(ps));
    assert_true(credentials_identity(fleet) == 0);
    credentials_free(worker);
    credentials_free(again);
    credentials_free(ps);
    credentials_free(fleet);
}

struct caller {
    struct address address;
    struct credentials *credentials;
};

static void *call(void *context)
{
    const struct caller *caller = context;
    struct connection *connection;
    struct error error;
    connection_connect(&connection, &caller->address, NULL, caller->credentials, NULL, clock_monotonic_s() + 60,
                       &error);
    connection_close(connection);
    return NULL;
}

/* It is the first thing that a client sends. */
TEST(hello_has_the_pass)
{
    struct loopback server = {.listener = -1};
    struct caller caller = {.credentials = load("a.key")};
    struct credentials *other = load("b.key");
    struct error error;
    char peer[ENDPOINT_TEXT];
    pthread_t thread;
    uint8_t first[11 + HANDSHAKE_TOKEN_SIZE];
    int fd;
    loopback_listen(&server);
    caller.address = server.address;
    assert_int_equal(pthread_create(&thread, NULL, call, &caller), 0);
    assert_true(accept_in_time(server.listener, &fd, peer, clock_monotonic_s() + 60, &error));
    assert_int_equal(wake_wait(fd, POLLIN, NULL, clock_monotonic_s() + 60), WAKE_READY);
    assert_int_equal(recv(fd, first, sizeof first, MSG_WAITALL), sizeof first);
    close(fd);
    close(server.listener);
    pthread_join(thread, NULL);
    assert_int_equal(first[0], 0x16);
    assert_int_equal(first[5], 1);
    assert_true(handshake_token_check(credentials_token_keys(caller.credentials), first + 11));
    assert_false(handshake_token_check(credentials_token_keys(other), first + 11));
    credentials_free(caller.credentials);
    credentials_free(other);
}

int main(void)
{
    return check_run(make_keys, remove_keys);
}
