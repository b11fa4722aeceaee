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

/* Splits an address; the error is a reason without the text itself: "missing port; write host:port". */
bool address_parse(const char *text, struct address *address, struct error *error);

#endif
