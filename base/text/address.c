/* Checks only the form: host names by RFC 1123 (plus the underscore of container networks), IPv6 by inet_pton. */
#include "base/text/address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool parse_port(const char *text, int *port, struct error *error)
{
    size_t digits = strspn(text, "0123456789");
    long value = digits <= 5 ? strtol(text, NULL, 10) : 0;
    if (text[0] == '\0') {
        return error_set(error, "the port is missing behind the colon; write host:port");
    }
    if (digits == 0 || text[digits] != '\0' || value < 1 || value > 65535) {
        return error_set(error, "the port must be a number from 1 to 65535");
    }
    *port = (int)value;
    return true;
}

static bool check_host_name(const char *host, struct error *error)
{
    struct in_addr four;
    size_t label = 0;
    for (const char *p = host; *p != '\0'; p++) {
        bool fine = isalnum((unsigned char)*p) || *p == '_' || (*p == '-' && label > 0) || (*p == '.' && label > 0);
        if ((unsigned char)*p >= 0x80) {
            return error_set(error, "a host name has ASCII characters only; write its xn-- form");
        }
        if (!fine || (label == 63 && *p != '.')) {
            return error_set(error, "not a host name or IPv4 address before the port");
        }
        label = *p == '.' ? 0 : label + 1;
    }
    if (host[strspn(host, "0123456789.")] == '\0' && inet_pton(AF_INET, host, &four) != 1) {
        return error_set(error, "not an IPv4 address before the port: four numbers from 0 to 255");
    }
    return true;
}

/* What people paste that is more than host:port. */
static bool check_form(const char *text, struct error *error)
{
    const char *scheme = strstr(text, "://");
    if (text[0] == '\0') {
        return error_set(error, "it is empty; is there a comma too many?");
    }
    if (text[strcspn(text, " \t\r\n")] != '\0') {
        return error_set(error, "it contains a blank; write addresses separated by commas alone");
    }
    if (scheme) {
        return error_set(error, "it has a scheme; write host:port without %.*s", (int)(scheme + 3 - text), text);
    }
    if (strchr(text, '/')) {
        return error_set(error, "it has a path; write host:port without what follows the /");
    }
    if (strchr(text, '@')) {
        return error_set(error, "it names a user; write host:port without what precedes the @");
    }
    return true;
}

/* There is more than one colon outside of brackets. */
static bool explain_colons(const char *text, struct error *error)
{
    char host[ADDRESS_MAX_TEXT + 1];
    struct in6_addr binary;
    const char *last = strrchr(text, ':');
    snprintf(host, sizeof host, "%.*s", (int)(last - text), text);
    if (inet_pton(AF_INET6, host, &binary) == 1) {
        return error_set(error, "an IPv6 address is written [address]:port, here [%s]:%s", host, last + 1);
    }
    return inet_pton(AF_INET6, text, &binary) == 1
               ? error_set(error, "missing port; an IPv6 address is written [address]:port")
               : error_set(error, "it has more than one colon; write host:port");
}

/* Where the host begins and ends, and where the port begins. */
static bool split(const char *text, struct address *address, const char **host, const char **end, const char **port,
                  struct error *error)
{
    *host = text;
    if (text[0] == '[') {
        *host = text + 1;
        *end = strchr(*host, ']');
        address->is_ipv6 = true;
        if (!*end) {
            return error_set(error, "the ] is missing; an IPv6 address is written [address]:port");
        }
        if ((*end)[1] != ':') {
            return error_set(error, "missing port; an IPv6 address is written [address]:port");
        }
        *port = *end + 2;
        return true;
    }
    *end = strrchr(text, ':');
    if (!*end) {
        return error_set(error, "missing port; write host:port");
    }
    *port = *end + 1;
    return !memchr(text, ':', (size_t)(*end - text)) || explain_colons(text, error);
}

static bool check_ipv6(const char *host, struct error *error)
{
    struct in6_addr binary;
    if (strchr(host, '%')) {
        return error_set(error, "an IPv6 address with a zone (%%) is valid on one machine only; use a global one");
    }
    return inet_pton(AF_INET6, host, &binary) == 1 || error_set(error, "not an IPv6 address in the brackets");
}

bool address_parse(const char *text, struct address *address, struct error *error)
{
    *address = (struct address){0};
    const char *host, *end, *port;
    if (!check_form(text, error) || !split(text, address, &host, &end, &port, error)) {
        return false;
    }
    size_t length = (size_t)(end - host);
    if (length == 0 || length > ADDRESS_MAX_HOST) {
        return error_set(error, "the host must have 1 to %d characters", ADDRESS_MAX_HOST);
    }
    memcpy(address->host, host, length);
    return (address->is_ipv6 ? check_ipv6(address->host, error) : check_host_name(address->host, error)) &&
           parse_port(port, &address->port, error);
}

bool address_parse_bind(const char *text, struct address *address, struct error *error)
{
    struct in6_addr binary;
    *address = (struct address){0};
    const size_t length = strlen(text);
    const bool is_bracketed = length > 2 && text[0] == '[' && text[length - 1] == ']';
    if (text[0] == ':' && !strchr(text + 1, ':')) {
        return parse_port(text + 1, &address->port, error);
    }
    if (is_bracketed && length - 2 <= ADDRESS_MAX_HOST) {
        memcpy(address->host, text + 1, length - 2);
        address->is_ipv6 = true;
        return check_ipv6(address->host, error);
    }
    address->is_ipv6 = inet_pton(AF_INET6, text, &binary) == 1;
    if (address->is_ipv6 || !strchr(text, ':')) {
        snprintf(address->host, sizeof address->host, "%s", text);
        return text[0] == '\0' || address->is_ipv6 ||
               (check_form(text, error) && check_host_name(address->host, error));
    }
    return address_parse(text, address, error);
}

bool address_same(const struct address *one, const struct address *other)
{
    return one->port == other->port && strcasecmp(one->host, other->host) == 0;
}
