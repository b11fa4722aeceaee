/* Checks only the form: host names by RFC 1123 (plus the underscore of container networks), IPv6 by inet_pton. */
#include "base/text/address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool parse_port(const char *text, int *port, struct error *error)
{
    size_t digits = strspn(text, "0123456789");
    long value = digits <= 5 ? strtol(text, NULL, 10) : 0;
    if (digits == 0 || text[digits] != '\0' || value < 1 || value > 65535) {
        return error_set(error, "the port must be a number from 1 to 65535");
    }
    *port = (int)value;
    return true;
}

static bool check_host_name(const char *host, struct error *error)
{
    size_t label = 0;
    for (const char *p = host; *p != '\0'; p++) {
        bool fine = isalnum((unsigned char)*p) || *p == '_' || (*p == '-' && label > 0) || (*p == '.' && label > 0);
        if (!fine || (label == 63 && *p != '.')) {
            return error_set(error, "not a host name or IPv4 address before the port");
        }
        label = *p == '.' ? 0 : label + 1;
    }
    return true;
}

bool address_parse(const char *text, struct address *address, struct error *error)
{
    *address = (struct address){0};
    const char *host = text, *end, *port;
    if (text[0] == '[') {
        host = text + 1;
        end = strchr(host, ']');
        if (!end || end[1] != ':') {
            return error_set(error, "an IPv6 address is written [address]:port");
        }
        port = end + 2;
        address->is_ipv6 = true;
    } else {
        end = strrchr(text, ':');
        if (!end) {
            return error_set(error, "missing port; write host:port");
        }
        if (memchr(text, ':', (size_t)(end - text))) {
            return error_set(error, "an IPv6 address is written [address]:port");
        }
        port = end + 1;
    }
    size_t length = (size_t)(end - host);
    if (length == 0 || length > ADDRESS_MAX_HOST) {
        return error_set(error, "the host must have 1 to %d characters", ADDRESS_MAX_HOST);
    }
    memcpy(address->host, host, length);
    struct in6_addr binary;
    if (address->is_ipv6 ? inet_pton(AF_INET6, address->host, &binary) != 1 : !check_host_name(address->host, error)) {
        return address->is_ipv6 ? error_set(error, "not an IPv6 address in the brackets") : false;
    }
    return parse_port(port, &address->port, error);
}
