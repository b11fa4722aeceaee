/*
 * TLS 1.3 for clients that have no certificate: browsers, Prometheus, curl; and as such a client. Never waits: each
 * call goes as far as the socket lets it.
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

enum { WEB_HANDSHAKE_BYTES = 64 * 1024 /* from the client, at most; honest ones have some 2 KiB */ };

/* What web_session_read and web_session_write say instead of a number of bytes. */
enum { WEB_WANTS = -1, WEB_BROKEN = -2 };

/* A certificate with the chain behind it, and its private key, both PEM; the key may be in the file of the former. */
bool web_keys_load(struct web_keys **keys, const char *certificate, const char *key, struct error *error);
void web_keys_free(struct web_keys *keys); /* NULL is fine; no session may be left */

/*
 * A client's: the server must show one of the certificates in the file (then its names and dates don't matter), or one
 * that an authority among them signed for the name that the session asks for.
 */
bool web_keys_trust(struct web_keys **keys, const char *certificates, struct error *error);

/* name: whom a client means to reach; a server gives NULL. NULL: out of memory. The socket stays the caller's. */
struct web_session *web_session_create(const struct web_keys *keys, const char *name, int fd);
void web_session_destroy(struct web_session *session); /* NULL is fine */

enum web_shake { WEB_DONE, WEB_AGAIN, WEB_FAILED };
enum web_shake web_session_shake(struct web_session *session);

/* Why a client's handshake failed. Returns false. */
bool web_session_explain(const struct web_session *session, struct error *error);

/* Bytes moved; 0 from read: the client closed in order. A write that WANTS is to be repeated with the same bytes. */
ptrdiff_t web_session_read(struct web_session *session, void *bytes, size_t size);
ptrdiff_t web_session_write(struct web_session *session, const void *bytes, size_t size);
void web_session_say_goodbye(struct web_session *session);

bool web_session_has_more(const struct web_session *session);    /* decrypted already, so the socket tells of nothing */
bool web_session_wants_write(const struct web_session *session); /* it can't go on before the socket takes bytes */

#endif
