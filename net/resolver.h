/*
 * Resolves names within a deadline. The system's resolver has its own timeouts (resolv.conf; 10 s and more by default),
 * so it runs on a thread that is abandoned if it takes too long.
 *
 * Any thread may call. At most RESOLVER_MOST lookups run at once, including abandoned ones.
 */
#ifndef NET_RESOLVER_H
#define NET_RESOLVER_H

#include <stdbool.h>

#include "base/error.h"
#include "net/endpoint.h"
#include "net/wake.h"

enum { RESOLVER_MOST = 32 };

/* Numeric addresses are resolved at once. wake (NULL: none) ends the wait. */
bool resolver_find(const struct address *address, const struct wake *wake, double deadline_s,
                   struct endpoints *endpoints, struct error *error);

/* The system lookup; a test replaces it by a slow one. */
extern bool (*resolver_lookup)(const struct address *address, struct endpoints *endpoints, struct error *error);

#endif
