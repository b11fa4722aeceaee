/*
 * Who may look: where a server listens, what encrypts it, and the token that it wants. Beyond loopback there is both,
 * or the user said that there need not be.
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
    char *token;           /* NULL: none is wanted */
};

/*
 * From observe.http and what belongs to it. fleet_key: the path of the member's own key, for TLS where no certificate
 * is given; NULL: there is none. guard_free in any case, also of the next.
 */
bool guard_prepare(struct guard *guard, const struct config_observe *observe, const char *fleet_key,
                   struct error *error);
/*
 * The other side, by the same keys: where a server is to be looked at, what it must show to be believed (the
 * certificate in observe.http_cert or an authority's, else the fleet's key), and the token that it wants.
 */
bool guard_visit(struct guard *guard, const struct config_observe *observe, const char *fleet_key, struct error *error);
void guard_free(struct guard *guard); /* fine on zeros */

/* Fills in what the options need of it; it is borrowed from then on. */
void guard_apply(const struct guard *guard, struct http_options *options);

#endif
