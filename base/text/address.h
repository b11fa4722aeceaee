/*
 * The form of addresses: host:port, 10.0.0.1:port, [ipv6]:port. Name resolution is up to net/.
 */
#ifndef BASE_TEXT_ADDRESS_H
#define BASE_TEXT_ADDRESS_H

#include <stdbool.h>

#include "base/error.h"

enum { ADDRESS_MAX_HOST = 253, ADDRESS_MAX_TEXT = ADDRESS_MAX_HOST + 8 };

struct address {
    char host[ADDRESS_MAX_HOST + 1]; /* without brackets */
    bool is_ipv6;                    /* was in brackets */
    int port;                        /* 1..65535 */
};

/*
 * An address to listen on: host, host:port, [ipv6], [ipv6]:port or :port. Without a host (""): every address; without a
 * port: 0.
 */
bool address_parse_bind(const char *text, struct address *address, struct error *error);

bool address_same(const struct address *one, const struct address *other);

/* Splits an address; the error is a reason without the text itself: "missing port; write host:port". */
bool address_parse(const char *text, struct address *address, struct error *error);

#endif
