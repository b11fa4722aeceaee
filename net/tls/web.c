/*
 * Plain mbedTLS, records and all: answers to a browser are small, and one thread serves all of them. A client must not
 * occupy that thread: what one call takes from the socket is limited, because mbedTLS skips ChangeCipherSpec records as
 * long as they come.
 */
#include "net/tls/web.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <mbedtls/platform.h>
#include <sodium.h>

#include "base/file.h"
#include "base/trust.h"
#include "net/credentials.h"
#include "net/tls/tls.h"

enum { MOST_AT_ONCE = 256 * 1024 };

struct web_keys {
    mbedtls_x509_crt own;
    mbedtls_pk_context key;
    mbedtls_ssl_config config;
};

struct web_session {
    mbedtls_ssl_context ssl;
    int fd;
    bool is_established, wants_write;
    int failure;      /* mbedTLS's, of the handshake */
    size_t received;  /* in the handshake */
    size_t this_call; /* since the caller's call began */
};

/* --- Keys --- */

static bool describe(int result, const char *path, const char *what, struct error *error)
{
    char text[128];
    tls_describe(result, text);
    return error_set(error, "%s: %s (%s)", path, what, text);
}

static bool read_certificate(struct web_keys *keys, const char *path, struct error *error)
{
    uint8_t *bytes;
    size_t size;
    if (!trust_public_key(path, error) || !file_read(path, CREDENTIALS_MAX_FILE, &bytes, &size, error)) {
        return false;
    }
    const int result = mbedtls_x509_crt_parse(&keys->own, bytes, size + 1); /* with file_read's zero byte */
    sodium_memzero(bytes, size);
    free(bytes);
    return result == 0 || describe(result, path, "holds no certificate, or a damaged one", error);
}

static bool read_key(struct web_keys *keys, const char *path, struct error *error)
{
    uint8_t *bytes;
    size_t size;
    if (!trust_secret(path, "key", error) || !file_read(path, CREDENTIALS_MAX_FILE, &bytes, &size, error)) {
        return false;
    }
    const int result = mbedtls_pk_parse_key(&keys->key, bytes, size + 1, NULL, 0, tls_random, NULL);
    sodium_memzero(bytes, size);
    free(bytes);
    if (result != 0) {
        return describe(result, path, "holds no private key on an elliptic curve, or a damaged one", error);
    }
    return mbedtls_pk_check_pair(&keys->own.pk, &keys->key, tls_random, NULL) == 0 ||
           error_set(error, "%s: the private key does not belong to the certificate", path);
}

static bool configure(struct web_keys *keys, int side, struct error *error)
{
    int result = tls_config_common(&keys->config, side);
    mbedtls_ssl_conf_authmode(&keys->config, MBEDTLS_SSL_VERIFY_NONE);
    if (result == 0 && side == MBEDTLS_SSL_IS_SERVER) {
        result = mbedtls_ssl_conf_own_cert(&keys->config, &keys->own, &keys->key);
    }
    return result == 0 || describe(result, "TLS", "can't be set up", error);
}

/* Empty ones; NULL: it failed. */
static struct web_keys *prepare(const char *path, struct error *error)
{
    if (!tls_start(error)) {
        return NULL;
    }
    struct web_keys *keys = calloc(1, sizeof *keys);
    if (!keys) {
        error_set(error, "out of memory for what %s holds", path);
        return NULL;
    }
    mbedtls_x509_crt_init(&keys->own);
    mbedtls_pk_init(&keys->key);
    mbedtls_ssl_config_init(&keys->config);
    return keys;
}

/* Clients have the authority's own certificate, or do not trust it: it is not sent. */
static void leave_out_authority(mbedtls_x509_crt *own)
{
    for (mbedtls_x509_crt *at = own, *next; (next = at->next); at = next) {
        if (next->issuer_raw.len == next->subject_raw.len &&
            memcmp(next->issuer_raw.p, next->subject_raw.p, next->issuer_raw.len) == 0) {
            at->next = NULL;
            mbedtls_x509_crt_free(next); /* and those after it */
            mbedtls_free(next);
            return;
        }
    }
}

bool web_keys_load(struct web_keys **out, const char *certificate, const char *key, struct error *error)
{
    struct web_keys *keys = prepare(key, error);
    *out = NULL;
    if (!keys || !read_certificate(keys, certificate, error) || !read_key(keys, key, error) ||
        !configure(keys, MBEDTLS_SSL_IS_SERVER, error)) {
        web_keys_free(keys);
        return false;
    }
    leave_out_authority(&keys->own);
    *out = keys;
    return true;
}

/* A fleet's own certificate names no machine: being the trusted one is enough. */
static int verify(void *context, mbedtls_x509_crt *certificate, int depth, uint32_t *flags)
{
    const struct web_keys *keys = context;
    if (depth == 0 && tls_is_pinned(&keys->own, certificate)) {
        *flags = 0;
    }
    return 0;
}

bool web_keys_trust(struct web_keys **out, const char *certificates, struct error *error)
{
    struct web_keys *keys = prepare(certificates, error);
    *out = NULL;
    if (!keys || !read_certificate(keys, certificates, error) || !configure(keys, MBEDTLS_SSL_IS_CLIENT, error)) {
        web_keys_free(keys);
        return false;
    }
    mbedtls_ssl_conf_authmode(&keys->config, MBEDTLS_SSL_VERIFY_REQUIRED);
    mbedtls_ssl_conf_ca_chain(&keys->config, &keys->own, NULL);
    mbedtls_ssl_conf_verify(&keys->config, verify, keys);
    *out = keys;
    return true;
}

void web_keys_free(struct web_keys *keys)
{
    if (keys) {
        mbedtls_ssl_config_free(&keys->config);
        mbedtls_pk_free(&keys->key);
        mbedtls_x509_crt_free(&keys->own);
        free(keys);
    }
}

/* --- The socket, as mbedTLS sees it --- */

static int receive(void *context, unsigned char *bytes, size_t size)
{
    struct web_session *session = context;
    if (session->this_call >= MOST_AT_ONCE) {
        return MBEDTLS_ERR_SSL_WANT_READ;
    }
    const ssize_t n = recv(session->fd, bytes, size, 0);
    if (n < 0) {
        return errno == EAGAIN || errno == EINTR ? MBEDTLS_ERR_SSL_WANT_READ : MBEDTLS_ERR_SSL_INTERNAL_ERROR;
    }
    if (n == 0) {
        return MBEDTLS_ERR_SSL_CONN_EOF;
    }
    session->this_call += (size_t)n;
    session->received += session->is_established ? 0 : (size_t)n;
    return session->received > WEB_HANDSHAKE_BYTES ? MBEDTLS_ERR_SSL_INTERNAL_ERROR : (int)n;
}

static int transmit(void *context, const unsigned char *bytes, size_t size)
{
    struct web_session *session = context;
    const ssize_t n = send(session->fd, bytes, size, MSG_NOSIGNAL);
    if (n < 0) {
        return errno == EAGAIN || errno == EINTR ? MBEDTLS_ERR_SSL_WANT_WRITE : MBEDTLS_ERR_SSL_INTERNAL_ERROR;
    }
    return (int)n;
}

/* --- Sessions --- */

struct web_session *web_session_create(const struct web_keys *keys, const char *name, int fd)
{
    struct web_session *session = calloc(1, sizeof *session);
    if (!session) {
        return NULL;
    }
    session->fd = fd;
    mbedtls_ssl_init(&session->ssl);
    if (mbedtls_ssl_setup(&session->ssl, &keys->config) != 0 ||
        (name && mbedtls_ssl_set_hostname(&session->ssl, name) != 0)) {
        web_session_destroy(session);
        return NULL;
    }
    mbedtls_ssl_set_bio(&session->ssl, session, transmit, receive, NULL);
    return session;
}

void web_session_destroy(struct web_session *session)
{
    if (session) {
        mbedtls_ssl_free(&session->ssl);
        free(session);
    }
}

enum web_handshake web_session_handshake(struct web_session *session)
{
    session->this_call = 0;
    const int result = mbedtls_ssl_handshake(&session->ssl);
    session->wants_write = result == MBEDTLS_ERR_SSL_WANT_WRITE;
    if (result == 0) {
        session->is_established = true;
        return WEB_DONE;
    }
    if (result == MBEDTLS_ERR_SSL_WANT_READ || session->wants_write) {
        return WEB_AGAIN;
    }
    session->failure = result;
    return WEB_FAILED;
}

bool web_session_explain(const struct web_session *session, struct error *error)
{
    char text[128];
    const uint32_t flags = mbedtls_ssl_get_verify_result(&session->ssl);
    if (flags != 0 && flags != UINT32_MAX) {
        const bool is_trusted = (flags & MBEDTLS_X509_BADCERT_NOT_TRUSTED) == 0;
        return error_set(error, "its certificate is %s",
                         !is_trusted                                ? "not trusted here"
                         : flags & MBEDTLS_X509_BADCERT_CN_MISMATCH ? "for another name"
                         : flags & MBEDTLS_X509_BADCERT_EXPIRED     ? "out of date"
                                                                    : "not valid");
    }
    tls_describe(session->failure, text);
    return error_set(error, "can't be used for TLS 1.3 (%s)", text);
}

/* A number of bytes, or a code in its place. */
static ptrdiff_t outcome(struct web_session *session, int result)
{
    session->wants_write = result == MBEDTLS_ERR_SSL_WANT_WRITE;
    if (result > 0) {
        return result;
    }
    if (result == MBEDTLS_ERR_SSL_WANT_READ || result == MBEDTLS_ERR_SSL_WANT_WRITE) {
        return WEB_WANTS;
    }
    return result == 0 || result == MBEDTLS_ERR_SSL_PEER_CLOSE_NOTIFY ? 0 : WEB_BROKEN;
}

ptrdiff_t web_session_read(struct web_session *session, void *bytes, size_t size)
{
    session->this_call = 0;
    return outcome(session, mbedtls_ssl_read(&session->ssl, bytes, size));
}

ptrdiff_t web_session_write(struct web_session *session, const void *bytes, size_t size)
{
    session->this_call = 0;
    const ptrdiff_t n = outcome(session, mbedtls_ssl_write(&session->ssl, bytes, size));
    return n == 0 ? WEB_BROKEN : n;
}

void web_session_close_notify(struct web_session *session)
{
    mbedtls_ssl_close_notify(&session->ssl);
}

bool web_session_has_more(const struct web_session *session)
{
    return mbedtls_ssl_get_bytes_avail(&session->ssl) > 0;
}

bool web_session_wants_write(const struct web_session *session)
{
    return session->wants_write;
}
