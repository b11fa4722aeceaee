/*
 * Addresses as people write them, and as the network wants them.
 *
 * "host:port", where host is a name, an IPv4 address or an IPv6 address in brackets: "a:2222", "10.0.0.1:2222",
 * "[fe80::1%eth0]:2222". Parsing is a pure function of the text; resolving asks the system.
 */
#ifndef NET_ADDRESS_H
#define NET_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/error.h"

enum {
    ADDRESS_MAX_HOST = 254,               /* characters; the longest DNS name has 253 */
    ADDRESS_TEXT = ADDRESS_MAX_HOST + 10, /* room for "[host]:65535" and its end */
    ADDRESS_MAX_ENDPOINTS = 16,           /* of one name; what lies beyond is not tried */
};

struct address {
    char host[ADDRESS_MAX_HOST + 1]; /* without brackets */
    uint16_t port;                   /* 1..65535 */
};

bool address_parse(const char *text, struct address *address, struct error *error);

/* The text that address_parse takes, with brackets where the host is an IPv6 address. */
void address_format(const struct address *address, char text[ADDRESS_TEXT]);

/* What a name stands for, in the order the system prefers. */
struct endpoint {
    struct sockaddr_storage address;
    socklen_t size;
};
struct endpoints {
    struct endpoint list[ADDRESS_MAX_ENDPOINTS];
    int count; /* at least 1 after address_resolve */
};

/* Waits for the system's resolver, which has time-outs of its own (resolv.conf; 10 s if nothing is set there). */
bool address_resolve(const struct address *address, struct endpoints *endpoints, struct error *error);

/* "10.0.0.1:2222" or "[::1]:2222"; IPv4 addresses mapped into IPv6 are written as IPv4. */
void address_of_endpoint(const struct endpoint *endpoint, char text[ADDRESS_TEXT]);

#endif
