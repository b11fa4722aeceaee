/*
 * TLS 1.3 with clients that have no certificate: browsers, Prometheus, curl; and as such a client. Never blocks: each
 * call goes as far as the socket allows.
 *
 * Keys are immutable once loaded, and shared by all sessions. A session belongs to one thread at a time.
 */
#ifndef NET_TLS_WEB_H
#define NET_TLS_WEB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct web_keys;
struct web_session;

enum { WEB_HANDSHAKE_BYTES = 64 * 1024 /* most bytes from the client; honest ones send some 2 KiB */ };

/* Results of web_session_read and web_session_write other than a number of bytes. */
enum { WEB_WANTS = -1, WEB_BROKEN = -2 };

/* Loads a certificate with its chain, and its private key, both PEM; the key may be in the certificate's file. */
bool web_keys_load(struct web_keys **keys, const char *certificate, const char *key, struct error *error);
void web_keys_free(struct web_keys *keys); /* NULL is fine; no session may be left */

/*
 * For a client: the server must present one of the certificates in the file (its names and dates are then ignored), or
 * one signed by an authority among them for the session's name.
 */
bool web_keys_trust(struct web_keys **keys, const char *certificates, struct error *error);

/*
 * name: the server that a client means to reach; NULL for a server. Returns NULL if out of memory. The caller keeps the
 * socket.
 */
struct web_session *web_session_create(const struct web_keys *keys, const char *name, int fd);
void web_session_destroy(struct web_session *session); /* NULL is fine */

enum web_handshake { WEB_DONE, WEB_AGAIN, WEB_FAILED };
enum web_handshake web_session_handshake(struct web_session *session);

/* Why a client's handshake failed. Returns false. */
bool web_session_explain(const struct web_session *session, struct error *error);

/*
 * Return the bytes moved; 0 from read: the peer closed in order. Repeat a write that returned WEB_WANTS with the same
 * bytes.
 */
ptrdiff_t web_session_read(struct web_session *session, void *bytes, size_t size);
ptrdiff_t web_session_write(struct web_session *session, const void *bytes, size_t size);
void web_session_close_notify(struct web_session *session);

bool web_session_has_more(const struct web_session *session);    /* decrypted already, so poll does not show it */
bool web_session_wants_write(const struct web_session *session); /* it can't continue before the socket is writable */

#endif
