#include "net/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static bool parse_port(const char *text, uint16_t *port)
{
    uint32_t value = 0;
    if (*text == '\0') {
        return false;
    }
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || value > 6553) {
            return false;
        }
        value = value * 10 + (uint32_t)(*text - '0');
    }
    if (value < 1 || value > 65535) {
        return false;
    }
    *port = (uint16_t)value;
    return true;
}

/* A host is taken as it is, as long as it can't be mistaken for something else; the resolver knows the rest. */
static bool host_is_sane(const char *host, size_t length, bool in_brackets)
{
    if (length < 1 || length > ADDRESS_MAX_HOST) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)host[i];
        if (c <= ' ' || c >= 0x7f || strchr("[]/,@\"'", c) || (c == ':') > in_brackets) {
            return false;
        }
    }
    return true;
}

bool address_parse(const char *text, struct address *address, struct error *error)
{
    struct address parsed = {.port = 0};
    const char *host = text, *end;
    bool in_brackets = text[0] == '[';
    if (in_brackets) {
        host = text + 1;
        end = strchr(host, ']');
    } else {
        end = strrchr(text, ':');
    }
    const char *port = end && in_brackets ? end + 1 : end;
    if (!end || !host_is_sane(host, (size_t)(end - host), in_brackets) || *port != ':' ||
        !parse_port(port + 1, &parsed.port)) {
        return error_set(error, "\"%.300s\" is no address: write host:port, with an IPv6 address in brackets", text);
    }
    memcpy(parsed.host, host, (size_t)(end - host));
    *address = parsed;
    return true;
}

void address_format(const struct address *address, char text[ADDRESS_TEXT])
{
    snprintf(text, ADDRESS_TEXT, strchr(address->host, ':') ? "[%s]:%u" : "%s:%u", address->host, address->port);
}

bool address_resolve(const struct address *address, struct endpoints *endpoints, struct error *error)
{
    char port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    snprintf(port, sizeof port, "%u", address->port);
    int result = getaddrinfo(address->host, port, &hints, &found);
    if (result != 0) {
        return error_set(error, "host %s: %s", address->host,
                         result == EAI_SYSTEM ? strerror(errno) : gai_strerror(result));
    }
    endpoints->count = 0;
    for (struct addrinfo *next = found; next && endpoints->count < ADDRESS_MAX_ENDPOINTS; next = next->ai_next) {
        struct endpoint *endpoint = &endpoints->list[endpoints->count];
        if (next->ai_addrlen <= sizeof endpoint->address) {
            memcpy(&endpoint->address, next->ai_addr, next->ai_addrlen);
            endpoint->size = next->ai_addrlen;
            endpoints->count++;
        }
    }
    freeaddrinfo(found);
    if (endpoints->count == 0) {
        return error_set(error, "host %s: has no address", address->host);
    }
    return true;
}

void address_of_endpoint(const struct endpoint *endpoint, char text[ADDRESS_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (endpoint->address.ss_family == AF_INET6) {
        struct sockaddr_in6 six;
        memcpy(&six, &endpoint->address, sizeof six);
        if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
            inet_ntop(AF_INET, six.sin6_addr.s6_addr + 12, host, sizeof host);
            snprintf(text, ADDRESS_TEXT, "%s:%u", host, ntohs(six.sin6_port));
        } else {
            inet_ntop(AF_INET6, &six.sin6_addr, host, sizeof host);
            snprintf(text, ADDRESS_TEXT, "[%s]:%u", host, ntohs(six.sin6_port));
        }
    } else {
        struct sockaddr_in four;
        memcpy(&four, &endpoint->address, sizeof four);
        inet_ntop(AF_INET, &four.sin_addr, host, sizeof host);
        snprintf(text, ADDRESS_TEXT, "%s:%u", host, ntohs(four.sin_port));
    }
}
