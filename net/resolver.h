/*
 * Names to addresses before a deadline. The system's resolver has time-outs of its own (resolv.conf; 10 s and more if
 * nothing is set there), so it is asked on a thread that is left behind if it takes too long.
 *
 * Any thread may call. At most RESOLVER_MOST lookups are under way at once, those that were left behind among them.
 */
#ifndef NET_RESOLVER_H
#define NET_RESOLVER_H

#include <stdbool.h>

#include "base/error.h"
#include "net/endpoint.h"
#include "net/wake.h"

enum { RESOLVER_MOST = 32 };

/* Numeric addresses are answered at once. wake (NULL: none) ends the wait. */
bool resolver_find(const struct address *address, const struct wake *wake, double deadline_s,
                   struct endpoints *endpoints, struct error *error);

/* What asks the system; a test puts something slow in its place. */
extern bool (*resolver_lookup)(const struct address *address, struct endpoints *endpoints, struct error *error);

#endif
