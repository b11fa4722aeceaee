/* From addresses as people write them (base/text/address.h) to those that sockets take, and back. */
#ifndef NET_ENDPOINT_H
#define NET_ENDPOINT_H

#include <stdbool.h>
#include <sys/socket.h>

#include "base/error.h"
#include "base/text/address.h"

enum {
    ENDPOINT_TEXT = ADDRESS_MAX_HOST + 10, /* room for "[host]:65535" and its end */
    ENDPOINT_MAX = 16,                     /* of one name; what lies beyond is not tried */
};

struct endpoint {
    struct sockaddr_storage address;
    socklen_t size;
};

/* What a name stands for, in the order the system prefers. */
struct endpoints {
    struct endpoint list[ENDPOINT_MAX];
    int count; /* at least 1 after endpoint_resolve */
};

/* Waits for the system's resolver, however long that takes: net/resolver.h has deadlines. */
bool endpoint_resolve(const struct address *address, struct endpoints *endpoints, struct error *error);

/* "10.0.0.1:2222" or "[::1]:2222"; IPv4 addresses mapped into IPv6 are written as IPv4. */
void endpoint_format(const struct endpoint *endpoint, char text[ENDPOINT_TEXT]);

/* The same without the port: "10.0.0.1" or "::1". */
void endpoint_format_host(const struct endpoint *endpoint, char text[ENDPOINT_TEXT]);

/* The text that address_parse takes. */
void endpoint_format_address(const struct address *address, char text[ENDPOINT_TEXT]);

#endif
