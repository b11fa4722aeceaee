/* Addresses as text (base/text/address.h), names and socket addresses. */
#ifndef NET_ENDPOINT_H
#define NET_ENDPOINT_H

#include <stdbool.h>
#include <sys/socket.h>

#include "base/error.h"
#include "base/text/address.h"
#include "net/wake.h"

enum {
    ENDPOINT_TEXT = ADDRESS_MAX_HOST + 10, /* room for "[host]:65535" and its end */
    ENDPOINT_MAX = 16,                     /* addresses of one name; further ones are not tried */
};

struct endpoint {
    struct sockaddr_storage address;
    socklen_t size;
};

/* The addresses of a name, in the system's order of preference. */
struct endpoints {
    struct endpoint list[ENDPOINT_MAX];
    int count; /* at least 1 after endpoint_resolve */
};

/* Blocks on the system's resolver without a deadline: see resolver_find for one. */
bool endpoint_resolve(const struct address *address, struct endpoints *endpoints, struct error *error);

/* "10.0.0.1:2222" or "[::1]:2222"; IPv4 addresses mapped into IPv6 are written as IPv4. */
void endpoint_format(const struct endpoint *endpoint, char text[ENDPOINT_TEXT]);

/* The same without the port: "10.0.0.1" or "::1". */
void endpoint_format_host(const struct endpoint *endpoint, char text[ENDPOINT_TEXT]);

/* The text that address_parse accepts. */
void endpoint_format_address(const struct address *address, char text[ENDPOINT_TEXT]);

/* --- Lookups with a deadline --- */

/*
 * The system's resolver has its own timeouts (resolv.conf; 10 s and more by default), so it runs on a thread that is
 * abandoned if it takes too long. Any thread may call. At most RESOLVER_MOST lookups run at once, including abandoned
 * ones.
 */
enum { RESOLVER_MOST = 32 };

/* Numeric addresses are resolved at once. wake (NULL: none) ends the wait. */
bool resolver_find(const struct address *address, const struct wake *wake, double deadline_s,
                   struct endpoints *endpoints, struct error *error);

/* The system lookup; a test replaces it by a slow one. */
extern bool (*resolver_lookup)(const struct address *address, struct endpoints *endpoints, struct error *error);

#endif
