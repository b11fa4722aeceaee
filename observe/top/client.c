/*
 * Non-blocking sockets, with a deadline for the whole request. A kept connection may have ended since its last use, so
 * a request that fails on it is repeated once, on a new one.
 */
#include "observe/top/client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <llhttp.h>

#include "base/clock.h"
#include "net/endpoint.h"
#include "net/socket.h"
#include "net/tls/web.h"

enum {
    MOST_BODY = 16 * 1024 * 1024,
    MOST_REQUEST = 8192,
    READ_AT_ONCE = 16 * 1024,
};

static const double TIMEOUT_S = 5;

struct client {
    const struct guard *guard;
    const struct wake *wake;
    char name[ENDPOINT_TEXT];
    int fd; /* -1: not connected */
    struct web_session *session;
    double deadline_s; /* of the current request */
    llhttp_t parser;
    char *body;
    size_t size, room;
    bool is_whole;
};

/* --- The answer --- */

static int on_body(llhttp_t *parser, const char *at, size_t size)
{
    struct client *client = parser->data;
    if (size > MOST_BODY - client->size) {
        return -1;
    }
    if (client->size + size + 1 > client->room) {
        const size_t room = 2 * (client->size + size) + 1;
        char *body = realloc(client->body, room);
        if (!body) {
            return -1;
        }
        client->body = body;
        client->room = room;
    }
    memcpy(client->body + client->size, at, size);
    client->size += size;
    client->body[client->size] = '\0';
    return 0;
}

static int on_message_complete(llhttp_t *parser)
{
    struct client *client = parser->data;
    client->is_whole = true;
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {.on_body = on_body, .on_message_complete = on_message_complete};

/* --- The connection --- */

static void disconnect(struct client *client)
{
    web_session_destroy(client->session);
    client->session = NULL;
    if (client->fd >= 0) {
        close(client->fd);
    }
    client->fd = -1;
}

static bool wait_for(const struct client *client, short events, struct error *error)
{
    switch (wake_wait(client->fd, events, client->wake, client->deadline_s)) {
    case WAKE_READY:
        return true;
    case WAKE_TIMEOUT:
        return error_set(error, "no answer within %.0f s", TIMEOUT_S);
    case WAKE_RAISED:
        return error_set(error, "it was interrupted");
    }
    return false;
}

static bool wait_for_session(const struct client *client, struct error *error)
{
    return wait_for(client, web_session_wants_write(client->session) ? POLLOUT : POLLIN, error);
}

static bool shake(struct client *client, struct error *error)
{
    client->session = web_session_create(client->guard->keys, client->guard->address.host, client->fd);
    if (!client->session) {
        return error_set(error, "out of memory for TLS");
    }
    for (;;) {
        switch (web_session_handshake(client->session)) {
        case WEB_DONE:
            return true;
        case WEB_FAILED:
            return web_session_explain(client->session, error);
        case WEB_AGAIN:
            if (!wait_for_session(client, error)) {
                return false;
            }
        }
    }
}

static bool send_all(struct client *client, const char *bytes, size_t size, struct error *error)
{
    while (size > 0) {
        const ptrdiff_t n = client->session ? web_session_write(client->session, bytes, size)
                                            : send(client->fd, bytes, size, MSG_NOSIGNAL);
        const bool waits = client->session ? n == WEB_WANTS : n < 0 && (errno == EAGAIN || errno == EINTR);
        if (n >= 0) {
            bytes += n;
            size -= (size_t)n;
        } else if (!waits) {
            return error_set(error, "the connection broke");
        } else if (!(client->session ? wait_for_session(client, error) : wait_for(client, POLLOUT, error))) {
            return false;
        }
    }
    return true;
}

/* Some bytes; 0: the end. -1: it failed. */
static ptrdiff_t receive(struct client *client, char *bytes, size_t size, struct error *error)
{
    for (;;) {
        const ptrdiff_t n =
            client->session ? web_session_read(client->session, bytes, size) : recv(client->fd, bytes, size, 0);
        const bool waits = client->session ? n == WEB_WANTS : n < 0 && (errno == EAGAIN || errno == EINTR);
        if (n >= 0) {
            return n;
        }
        if (!waits) {
            error_set(error, "the connection broke");
            return -1;
        }
        if (!(client->session ? wait_for_session(client, error) : wait_for(client, POLLIN, error))) {
            return -1;
        }
    }
}

/* --- Questions --- */

static bool read_answer(struct client *client, struct error *error)
{
    char bytes[READ_AT_ONCE];
    llhttp_init(&client->parser, HTTP_RESPONSE, &settings);
    client->parser.data = client;
    client->size = 0;
    client->is_whole = false;
    while (!client->is_whole) {
        const ptrdiff_t n = receive(client, bytes, sizeof bytes, error);
        if (n < 0) {
            return false;
        }
        const llhttp_errno_t result =
            n == 0 ? llhttp_finish(&client->parser) : llhttp_execute(&client->parser, bytes, (size_t)n);
        if (!client->is_whole && (n == 0 || result != HPE_OK)) {
            return error_set(error,
                             n == 0 ? "the connection ended" : "this is not an answer of a member's HTTP server");
        }
    }
    return true;
}

static bool ask(struct client *client, const char *path, struct error *error)
{
    char request[MOST_REQUEST];
    const char *token = client->guard->token;
    const int size =
        snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: keep-alive\r\n%s%s%s\r\n", path,
                 client->name, token ? "Authorization: Bearer " : "", token ? token : "", token ? "\r\n" : "");
    if (size >= (int)sizeof request) {
        return error_set(error, "the token is too long");
    }
    if (client->fd < 0) {
        if (!socket_connect(&client->fd, &client->guard->address, client->wake, client->deadline_s, error)) {
            client->fd = -1;
            return false;
        }
        if (client->guard->keys && !shake(client, error)) {
            return false;
        }
    }
    return send_all(client, request, (size_t)size, error) && read_answer(client, error);
}

/* A server reports errors as {"error": "..."}, or on a line. */
static bool refused(const struct client *client, struct error *error)
{
    static const char prefix[] = "{\"error\":\"";
    const char *text = client->size > 0 ? client->body : "";
    text += strncmp(text, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0;
    return error_set(error, "%s answers %d%s%.*s", client->name, client->parser.status_code,
                     text[0] != '\0' ? ": " : "", (int)strcspn(text, "\"\\\n"), text);
}

bool client_get(struct client *client, const char *path, char **body, size_t *size, struct error *error)
{
    const bool was_kept = client->fd >= 0;
    client->deadline_s = clock_monotonic_s() + TIMEOUT_S;
    bool done = ask(client, path, error);
    if (!done && was_kept) {
        disconnect(client);
        done = ask(client, path, error);
    }
    if (!done || !llhttp_should_keep_alive(&client->parser)) {
        disconnect(client);
    }
    if (!done) {
        return strstr(error->text, client->name) ? false : error_wrap(error, "%s", client->name);
    }
    if (client->parser.status_code != 200 || client->size == 0) {
        return refused(client, error);
    }
    *body = client->body;
    *size = client->size;
    client->body = NULL;
    client->size = client->room = 0;
    return true;
}

struct client *client_create(const struct guard *guard, const struct wake *wake)
{
    struct client *client = calloc(1, sizeof *client);
    if (client) {
        client->guard = guard;
        client->wake = wake;
        client->fd = -1;
        endpoint_format_address(&guard->address, client->name);
    }
    return client;
}

void client_destroy(struct client *client)
{
    if (client) {
        disconnect(client);
        free(client->body);
        free(client);
    }
}
