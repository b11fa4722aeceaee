/*
 * A client with the right key that, in the middle of the handshake, says what no client does: a server of ours refuses
 * it at once, says why in its log, and tells the peer by an alert that it can read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/time.h>

#include "net/tls/record.h"
#include "net/tls/tls.h"
#include "tests/net/fleet_key.h"

/* The client: mbedTLS with our key, up to the first record that it encrypts. */
struct client {
    mbedtls_ssl_context ssl;
    int fd;
    bool is_done; /* that record is due, and is not sent */
    size_t secret_size;
    uint8_t own[RECORD_MOST_SECRET], servers[RECORD_MOST_SECRET]; /* of the handshake; of what follows it */
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
    (void)client_random, (void)server_random, (void)prf;
    assert_true(size <= RECORD_MOST_SECRET);
    client->secret_size = size;
    if (type == MBEDTLS_SSL_KEY_EXPORT_TLS1_3_CLIENT_HANDSHAKE_TRAFFIC_SECRET) {
        memcpy(client->own, secret, size);
    } else if (type == MBEDTLS_SSL_KEY_EXPORT_TLS1_3_SERVER_APPLICATION_TRAFFIC_SECRET) {
        memcpy(client->servers, secret, size);
    }
}

static void begin(struct client *client, const struct loopback *server)
{
    const struct timeval patience = {.tv_sec = 20};
    struct error error;
    memset(client, 0, sizeof *client);
    assert_true(socket_connect(&client->fd, &server->address, NULL, clock_monotonic_s() + 10, &error));
    assert_int_equal(fcntl(client->fd, F_SETFL, 0), 0); /* it waits */
    assert_int_equal(setsockopt(client->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    mbedtls_ssl_init(&client->ssl);
    assert_int_equal(mbedtls_ssl_setup(&client->ssl, &fleet_key->client), 0);
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

static enum record_cipher cipher_of(const struct client *client)
{
    return client->secret_size == record_secret_size(RECORD_AES_256_GCM_SHA384) ? RECORD_AES_256_GCM_SHA384
                                                                                : RECORD_CHACHA20_POLY1305_SHA256;
}

/* Its first record under the keys of the handshake. */
static void say_sealed(const struct client *client, uint8_t type, const void *content, size_t size)
{
    struct record_key key;
    uint8_t record[64];
    assert_true(record_key_set(&key, cipher_of(client), client->own));
    memcpy(record + RECORD_HEADER, content, size);
    const size_t sealed = record_seal(&key, type, record, size);
    assert_int_equal(send(client->fd, record, sealed, MSG_NOSIGNAL), sealed);
}

/* The number of the alert that comes: under the server's keys for data, for it has sent its Finished; 0: none. */
static int hear_alert(const struct client *client)
{
    struct record_key key;
    uint8_t record[RECORD_HEADER + 2 + 1 + RECORD_TAG], plain[2 + 1], type = 0;
    if (recv(client->fd, record, sizeof record, MSG_WAITALL) != sizeof record) {
        return 0;
    }
    assert_true(record_key_set(&key, cipher_of(client), client->servers));
    assert_int_equal(record_open(&key, record, sizeof record - RECORD_HEADER, plain, &type), 2);
    assert_int_equal(type, RECORD_ALERT);
    assert_int_equal(plain[0], MBEDTLS_SSL_ALERT_LEVEL_FATAL);
    return plain[1];
}

/* What it says then, sealed or not, and what becomes of that. */
struct saying {
    uint8_t type, content[2];
    size_t size;
    bool is_plain;
    int answer;       /* an alert; 0: none */
    const char *says; /* the server's log */
};

static void sayings(void **state)
{
    static const struct saying cases[] = {
        {RECORD_CHANGE_CIPHER_SPEC,
         {1},
         1,
         false,
         MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE,
         "failed: an encrypted ChangeCipherSpec"},
        {RECORD_ALERT, {2, MBEDTLS_SSL_ALERT_MSG_UNKNOWN_CA}, 2, false, 0, "refused us: "},
        {RECORD_ALERT, {2, 200}, 2, false, 0, "refused us: TLS alert 200"},
        {RECORD_ALERT, {2, 200}, 2, true, 0, "refused us: TLS alert 200"},
        {RECORD_DATA, {'h', 'i'}, 2, false, MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, "failed: "},
        {RECORD_HANDSHAKE, {20, 1}, 2, true, MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, "failed: "},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct saying *saying = &cases[i];
        const uint8_t plain[] = {saying->type, 3, 3, 0, 2, saying->content[0], saying->content[1]};
        struct loopback server = {0};
        struct client client;
        loopback_start(&server, fleet_key, NULL, NULL);
        begin(&client, &server);
        const double begun_s = clock_monotonic_s();
        if (saying->is_plain) {
            assert_int_equal(send(client.fd, plain, sizeof plain, MSG_NOSIGNAL), sizeof plain);
        } else {
            say_sealed(&client, saying->type, saying->content, saying->size);
        }
        const int alert = hear_alert(&client);
        loopback_end(&server);
        assert_false(server.served);
        if (!strstr(server.error.text, saying->says) || alert != saying->answer) {
            fail_msg("case %zu: alert %d, \"%s\"", i, alert, server.error.text);
        }
        assert_true(clock_monotonic_s() < begun_s + 8); /* it did not wait for more */
        close(client.fd);
        mbedtls_ssl_free(&client.ssl);
    }
}

/* A first flight that differs from a true one, and what its sender is told, without any keys. */
static void first_flights(void **state)
{
    static const struct {
        uint8_t from[7], to[7]; /* from NULs: the client's share of the key, which is no point */
        size_t size;
        int alert;
        const char *says;
    } cases[] = {
        {{0, 43, 0, 3, 2, 3, 4}, {0, 43, 0, 3, 2, 3, 3}, 7, 70, " does not speak TLS 1.3"},
        {{0, 43, 0, 3, 2, 3, 4}, {0, 43, 0, 3, 3, 3, 4}, 7, 50, "a syntactic error"},
        {{22, 3}, {23, 3}, 2, 71, "speaks plain text, but this side TLS"},
        {{0, 13}, {255, 13}, 2, 109, "was incorrect or inconsistent"},
        {{0x13, 2, 0x13, 3}, {0x13, 9, 0x13, 9}, 4, 40, "handshake"},
        {{0}, {0}, 0, 47, ""},
    };
    uint8_t hello[1024];
    (void)state;
    const size_t size = loopback_hello(fleet_key, hello, sizeof hello);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct loopback server = {0};
        struct error error;
        uint8_t changed[1024], alert[8] = {0};
        int fd;
        memcpy(changed, hello, size);
        uint8_t *at = cases[i].size > 0 ? memmem(changed, size, cases[i].from, cases[i].size)
                                        : memmem(changed, size, (uint8_t[]){0, 51}, 2);
        if (!at) {
            assert_int_equal(cases[i].alert, 40); /* without AES in hardware one cipher alone is offered */
            continue;
        }
        memcpy(at, cases[i].to, cases[i].size);
        if (cases[i].size == 0) {
            memset(at + 10, 0, at[9]);
        }
        loopback_start(&server, fleet_key, NULL, NULL);
        assert_true(socket_connect(&fd, &server.address, NULL, clock_monotonic_s() + 10, &error));
        assert_int_equal(send(fd, changed, size, MSG_NOSIGNAL), size);
        assert_int_equal(wake_wait(fd, POLLIN, NULL, clock_monotonic_s() + 10), WAKE_READY);
        const ssize_t got = recv(fd, alert, sizeof alert, 0);
        close(fd);
        loopback_end(&server);
        if (got != 7 || memcmp(alert, (uint8_t[]){21, 3, 3, 0, 2, 2}, 6) != 0 || alert[6] != cases[i].alert ||
            !strstr(server.error.text, cases[i].says)) {
            fail_msg("case %zu: %zd bytes, alert %d, \"%s\"", i, got, alert[6], server.error.text);
        }
        assert_ptr_equal(strstr(server.error.text, "refused 127.0.0.1:"), server.error.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sayings), cmocka_unit_test(first_flights)};
    return cmocka_run_group_tests(tests, make_key, remove_key);
}
