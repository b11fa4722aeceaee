/*
 * A client with the right key that, in the middle of the handshake, says what no client does: a server of ours refuses
 * it at once, says why in its log, and tells the peer by an alert that it can read. A client of ours does with servers.
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/time.h>

#include "net/tls/stream.h"
#include "net/tls/tls.h"
#include "tests/check.h"
#include "tests/net/fleet_key.h"

enum { PATIENCE_S = 60 }; /* of ours, as loopback.h's */

/* The client, or server: mbedTLS with our key, up to the first record that it encrypts. */
struct client {
    mbedtls_ssl_context ssl;
    int fd;
    bool is_done; /* that record is due, and not sent */
    size_t secret_size;
    uint8_t own[RECORD_MOST_SECRET], servers[RECORD_MOST_SECRET]; /* of the handshake; of what follows it */
    bool is_server;
    uint8_t clients[RECORD_MOST_SECRET]; /* a server's: of the handshake; `own` is the server's then */
};

static int transmit(void *context, const unsigned char *bytes, size_t size)
{
    struct client *client = context;
    client->is_done |= bytes[0] == RECORD_DATA;
    return client->is_done ? (int)size : (int)send(client->fd, bytes, size, MSG_NOSIGNAL);
}

static int receive(void *context, unsigned char *bytes, size_t size)
{
    const ssize_t got = recv(((struct client *)context)->fd, bytes, size, 0);
    return got > 0 ? (int)got : MBEDTLS_ERR_SSL_CONN_EOF;
}

static void keep_secret(void *context, mbedtls_ssl_key_export_type type, const unsigned char *secret, size_t size,
                        const unsigned char client_random[32], const unsigned char server_random[32],
                        mbedtls_tls_prf_types prf)
{
    struct client *client = context;
    assert_true(size <= RECORD_MOST_SECRET);
    client->secret_size = size;
    if (type == MBEDTLS_SSL_KEY_EXPORT_TLS1_3_CLIENT_HANDSHAKE_TRAFFIC_SECRET) {
        memcpy(client->is_server ? client->clients : client->own, secret, size);
    } else if (type == MBEDTLS_SSL_KEY_EXPORT_TLS1_3_SERVER_HANDSHAKE_TRAFFIC_SECRET && client->is_server) {
        memcpy(client->own, secret, size);
    } else if (type == MBEDTLS_SSL_KEY_EXPORT_TLS1_3_SERVER_APPLICATION_TRAFFIC_SECRET) {
        memcpy(client->servers, secret, size);
    }
}

/* Up to the record that is not sent. */
static void shake(struct client *client, const mbedtls_ssl_config *config)
{
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    assert_int_equal(fcntl(client->fd, F_SETFL, 0), 0); /* it waits */
    assert_int_equal(setsockopt(client->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    mbedtls_ssl_init(&client->ssl);
    assert_int_equal(mbedtls_ssl_setup(&client->ssl, config), 0);
    assert_int_equal(mbedtls_ssl_set_hostname(&client->ssl, NULL), 0);
    mbedtls_ssl_set_bio(&client->ssl, client, transmit, receive, NULL);
    mbedtls_ssl_set_export_keys_cb(&client->ssl, keep_secret, client);
    while (!client->is_done) {
        const int result = mbedtls_ssl_handshake_step(&client->ssl);
        if (result != 0) {
            fail_msg("mbedTLS: -0x%x", (unsigned)-result);
        }
    }
}

static void begin(struct client *client, const struct loopback *server)
{
    struct error error;
    memset(client, 0, sizeof *client);
    assert_true(socket_connect(&client->fd, &server->address, NULL, clock_monotonic_s() + PATIENCE_S, &error));
    shake(client, &fleet_key->client);
}

static enum record_cipher cipher_of(const struct client *client)
{
    return client->secret_size == record_secret_size(RECORD_AES_256_GCM_SHA384) ? RECORD_AES_256_GCM_SHA384
                                                                                : RECORD_CHACHA20_POLY1305_SHA256;
}

/* Its first record under the keys of the handshake. */
static void say_sealed(const struct client *client, uint8_t type, const void *content, size_t size, bool is_altered)
{
    struct record_key key;
    uint8_t record[64];
    assert_true(record_key_set(&key, cipher_of(client), client->own));
    memcpy(record + RECORD_HEADER, content, size);
    const size_t sealed = record_seal(&key, type, record, size);
    record[sealed - 1] ^= is_altered;
    assert_int_equal(send(client->fd, record, sealed, MSG_NOSIGNAL), sealed);
}

/*
 * The number of the alert that comes; 0: none. Under the server's keys for data, for it has sent its Finished; under
 * the client's for the handshake, for it has not.
 */
static int hear_alert(const struct client *client)
{
    struct record_key key;
    uint8_t record[RECORD_HEADER + 2 + 1 + RECORD_TAG], plain[2 + 1], type = 0;
    if (recv(client->fd, record, 1, MSG_PEEK) == 1 && record[0] == RECORD_CHANGE_CIPHER_SPEC) {
        assert_int_equal(recv(client->fd, record, RECORD_HEADER + 1, MSG_WAITALL), RECORD_HEADER + 1);
    }
    if (recv(client->fd, record, sizeof record, MSG_WAITALL) != sizeof record) {
        return 0;
    }
    assert_true(record_key_set(&key, cipher_of(client), client->is_server ? client->clients : client->servers));
    assert_int_equal(record_open(&key, record, sizeof record - RECORD_HEADER, plain, &type), 2);
    assert_int_equal(type, RECORD_ALERT);
    assert_int_equal(plain[0], MBEDTLS_SSL_ALERT_LEVEL_FATAL);
    return plain[1];
}

/* What it sends then, encrypted or not, and the result. */
struct saying {
    uint8_t type, content[2];
    size_t size;
    bool is_plain, is_altered;
    int answer;       /* an alert; 0: none */
    const char *says; /* in the server's log */
};

static const struct saying cases[] = {
    {RECORD_CHANGE_CIPHER_SPEC, {1}, 1, false, false, 10, "failed: an encrypted ChangeCipherSpec"},
    {RECORD_ALERT, {2, MBEDTLS_SSL_ALERT_MSG_UNKNOWN_CA}, 2, false, false, 0, "refused us: it does not accept our key"},
    {RECORD_ALERT, {2, 200}, 2, false, false, 0, "refused us: TLS alert 200"},
    {RECORD_ALERT, {2, 200}, 2, true, false, 0, "refused us: TLS alert 200"},
    {RECORD_DATA, {'h', 'i'}, 2, false, false, 10, "failed: "},
    {RECORD_HANDSHAKE, {20, 1}, 2, true, false, 10, "failed: "},
    {RECORD_HANDSHAKE, {20, 1}, 2, false, true, 20, "failed: "},
};
enum { CASES = sizeof cases / sizeof *cases };

static void say(const struct client *client, const struct saying *saying)
{
    const uint8_t plain[] = {saying->type, 3, 3, 0, 2, saying->content[0], saying->content[1]};
    if (saying->is_plain) {
        assert_int_equal(send(client->fd, plain, sizeof plain, MSG_NOSIGNAL), sizeof plain);
    } else {
        say_sealed(client, saying->type, saying->content, saying->size, saying->is_altered);
    }
}

TEST(sayings)
{
    for (size_t i = 0; i < CASES; i++) {
        struct loopback server = {0};
        struct client client;
        loopback_start(&server, fleet_key, NULL, NULL);
        begin(&client, &server);
        const double begun_s = clock_monotonic_s();
        say(&client, &cases[i]);
        const int alert = hear_alert(&client);
        close(client.fd);
        loopback_end(&server);
        assert_false(server.served);
        if (!strstr(server.error.text, cases[i].says) || alert != cases[i].answer) {
            fail_msg("case %zu: alert %d, \"%s\"", i, alert, server.error.text);
        }
        assert_true(clock_monotonic_s() < begun_s + 0.75 * PATIENCE_S); /* it did not wait for more */
        mbedtls_ssl_free(&client.ssl);
    }
}

/* A client of ours, on a thread of its own. */
struct caller {
    struct address address;
    struct error error;
    bool connected;
};

static void *call(void *context)
{
    struct caller *caller = context;
    struct connection *connection;
    caller->connected = connection_connect(&connection, &caller->address, NULL, fleet_key, NULL,
                                           clock_monotonic_s() + PATIENCE_S, &caller->error);
    connection_close(connection);
    return NULL;
}

/* The same of a server, behind its hello. */
TEST(sayings_of_servers)
{
    for (size_t i = 0; i < CASES; i++) {
        struct loopback loopback = {0};
        struct client server = {.is_server = true};
        struct caller caller = {.connected = false};
        struct error error;
        char peer[ENDPOINT_TEXT];
        pthread_t thread;
        loopback_listen(&loopback);
        caller.address = loopback.address;
        assert_int_equal(pthread_create(&thread, NULL, call, &caller), 0);
        assert_true(accept_in_time(loopback.listener, &server.fd, peer, clock_monotonic_s() + PATIENCE_S, &error));
        shake(&server, &fleet_key->server);
        const double begun_s = clock_monotonic_s();
        say(&server, &cases[i]);
        const int alert = hear_alert(&server);
        pthread_join(thread, NULL);
        assert_false(caller.connected);
        if (!strstr(caller.error.text, cases[i].says) || alert != cases[i].answer) {
            fail_msg("case %zu: alert %d, \"%s\"", i, alert, caller.error.text);
        }
        assert_true(clock_monotonic_s() < begun_s + 0.75 * PATIENCE_S); /* it did not wait for more */
        close(server.fd);
        close(loopback.listener);
        mbedtls_ssl_free(&server.ssl);
    }
}

static const struct flight {
    uint8_t from[7], to[7]; /* from 0, 51: the client's share of the key, which is no point */
    size_t size;
    int alert;
    const char *says;
} flights[] = {
    {{0, 43, 0, 3, 2, 3, 4}, {0, 43, 0, 3, 2, 3, 3}, 7, 70, " does not speak TLS 1.3"},
    {{0, 43, 0, 3, 2, 3, 4}, {0, 43, 0, 3, 3, 3, 4}, 7, 50, "a syntactic error"},
    {{22, 3}, {23, 3}, 2, 71, "speaks plain text, but this side TLS"},
    {{0, 13}, {255, 13}, 2, 109, "was incorrect or inconsistent"},
    {{0x13, 2, 0x13, 3}, {0x13, 9, 0x13, 9}, 4, 40, "handshake"},
    {{0, 51}, {0, 51}, 2, 47, ""},
};

static uint8_t *find(const uint8_t *hello, size_t size, const struct flight *flight)
{
    return memmem(hello, size, flight->from, flight->size);
}

/* Random bytes of a hello may look like what a flight changes: then it is of no use here. */
static bool is_ambiguous(const uint8_t *hello, size_t size)
{
    for (size_t i = 0; i < sizeof flights / sizeof *flights; i++) {
        const uint8_t *at = find(hello, size, &flights[i]);
        if (at && find(at + 1, size - (size_t)(at + 1 - hello), &flights[i])) {
            return true;
        }
    }
    return false;
}

/* A first flight that differs from a true one, and what its sender is told, without any keys. */
TEST(first_flights)
{
    uint8_t hello[1024];
    size_t size;
    do {
        size = loopback_hello(fleet_key, hello, sizeof hello);
    } while (is_ambiguous(hello, size));
    for (size_t i = 0; i < sizeof flights / sizeof *flights; i++) {
        struct loopback server = {0};
        struct error error;
        uint8_t changed[1024], alert[8] = {0};
        int fd;
        memcpy(changed, hello, size);
        uint8_t *at = find(changed, size, &flights[i]);
        if (!at) {
            assert_int_equal(flights[i].alert, 40); /* without AES in hardware one cipher alone is offered */
            continue;
        }
        memcpy(at, flights[i].to, flights[i].size);
        if (flights[i].to[1] == 51) {
            memset(at + 10, 0, at[9]);
        }
        loopback_start(&server, fleet_key, NULL, NULL);
        assert_true(socket_connect(&fd, &server.address, NULL, clock_monotonic_s() + PATIENCE_S, &error));
        assert_int_equal(send(fd, changed, size, MSG_NOSIGNAL), size);
        assert_int_equal(wake_wait(fd, POLLIN, NULL, clock_monotonic_s() + PATIENCE_S), WAKE_READY);
        const ssize_t got = recv(fd, alert, sizeof alert, 0);
        close(fd);
        loopback_end(&server);
        if (got != 7 || memcmp(alert, (uint8_t[]){21, 3, 3, 0, 2, 2}, 6) != 0 || alert[6] != flights[i].alert ||
            !strstr(server.error.text, flights[i].says)) {
            fail_msg("case %zu: %zd bytes, alert %d, \"%s\"", i, got, alert[6], server.error.text);
        }
        assert_ptr_equal(strstr(server.error.text, "refused 127.0.0.1:"), server.error.text);
    }
}

int main(void)
{
    return check_run(make_key, remove_key);
}
