/* Addresses between text and sockets. IPv4 mapped into IPv6 is shown as IPv4, as the config writes it. */
#include "net/endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

void endpoint_format_address(const struct address *address, char text[ENDPOINT_TEXT])
{
    snprintf(text, ENDPOINT_TEXT, address->is_ipv6 ? "[%s]:%d" : "%s:%d", address->host, address->port);
}

bool endpoint_resolve(const struct address *address, struct endpoints *endpoints, struct error *error)
{
    char port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    snprintf(port, sizeof port, "%d", address->port);
    int result = getaddrinfo(address->host, port, &hints, &found);
    if (result != 0) {
        return error_set(error, "host %s: %s", address->host,
                         result == EAI_SYSTEM ? strerror(errno) : gai_strerror(result));
    }
    endpoints->count = 0;
    for (struct addrinfo *next = found; next && endpoints->count < ENDPOINT_MAX; next = next->ai_next) {
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

void endpoint_format_host(const struct endpoint *endpoint, char text[ENDPOINT_TEXT])
{
    snprintf(text, ENDPOINT_TEXT, "?");
    if (endpoint->address.ss_family == AF_INET6) {
        struct sockaddr_in6 six;
        memcpy(&six, &endpoint->address, sizeof six);
        if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
            inet_ntop(AF_INET, six.sin6_addr.s6_addr + 12, text, ENDPOINT_TEXT);
        } else {
            inet_ntop(AF_INET6, &six.sin6_addr, text, ENDPOINT_TEXT);
        }
    } else {
        struct sockaddr_in four;
        memcpy(&four, &endpoint->address, sizeof four);
        inet_ntop(AF_INET, &four.sin_addr, text, ENDPOINT_TEXT);
    }
}

void endpoint_format(const struct endpoint *endpoint, char text[ENDPOINT_TEXT])
{
    char host[ENDPOINT_TEXT];
    struct sockaddr_in four; /* its port lies where that of an IPv6 address does */
    endpoint_format_host(endpoint, host);
    memcpy(&four, &endpoint->address, sizeof four);
    snprintf(text, ENDPOINT_TEXT, strchr(host, ':') ? "[%.*s]:%u" : "%.*s:%u", (int)(ENDPOINT_TEXT - 9), host,
             ntohs(four.sin_port));
}
