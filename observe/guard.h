/*
 * Access control: where a server listens, its TLS keys, and the token that it requires. Beyond loopback both are
 * mandatory, unless the user has waived them.
 */
#ifndef OBSERVE_GUARD_H
#define OBSERVE_GUARD_H

#include "base/config.h"
#include "base/error.h"
#include "base/text/address.h"
#include "observe/http/server.h"

struct guard {
    struct address address;
    struct web_keys *keys; /* NULL: plain text */
    char *token;           /* NULL: none is required */
    const char *hosts;     /* further names in Host; borrowed from the config, as the next */
    const char *cors;      /* origins whose pages may use the server */
};

/*
 * From observe.http and its related keys. fleet_key: the path of the member's own key, for TLS if no certificate is
 * given; NULL: none. Call guard_free in any case, also after guard_visit.
 */
bool guard_prepare(struct guard *guard, const struct config_observe *observe, const char *fleet_key,
                   struct error *error);
/*
 * The client's side, from the same keys: the server's address, what authenticates it (the certificate in
 * observe.http_cert or an authority's, else the fleet's key), and the token that it requires.
 */
bool guard_visit(struct guard *guard, const struct config_observe *observe, const char *fleet_key, struct error *error);
void guard_free(struct guard *guard); /* fine on zeros */

/* Fills in the options, which borrow the guard from then on. */
void guard_apply(const struct guard *guard, struct http_options *options);

#endif
