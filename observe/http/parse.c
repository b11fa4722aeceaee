/*
 * Turns bytes into requests: llhttp parses the grammar, this file builds the request and enforces limits. A bad head is
 * refused before its body is read; if there is a body, the connection ends with the refusal, since the body can't be
 * distinguished from a next request.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <sodium.h>

#include "base/text/text.h"
#include "observe/http/internal.h"

enum {
    FIRST_HEAD = 512,
    FIRST_BODY = 4096,
    MOST_RECEIVED = 1 << 18, /* bytes at once, so that others get their turn, too */
    HASH_BYTES = 32,
    MOST_TIDY = 192,                /* bytes of a path that is compared with what may have been meant */
    MOST_SPARE = 64,                /* requests kept for reuse... */
    MOST_SPARE_BYTES = 1024 * 1024, /* ...with at most this much memory in all */
};

/* --- Refusals --- */

/* Always -1: what a callback of llhttp returns to stop it. */
static int refuse(struct http_connection *connection, int status, const char *text)
{
    if (connection->refusal == 0) {
        connection->refusal = status;
        connection->refusal_text = text;
    }
    return -1;
}

/* After a charge was refused, or memory ran out. */
static int refuse_memory(struct http_connection *connection)
{
    if (budget_refusal(&connection->account) == BUDGET_NEVER) {
        return refuse(connection, 413, "the request is larger than one may be here");
    }
    return refuse(connection, 503, "the server is busy: try again later");
}

/* size: 0: unknown. */
static int refuse_body(struct http_connection *connection, uint64_t size)
{
    struct http_server *server = connection->server;
    const struct http_route *route = connection->request->route;
    char *text = server->refusal_text, arrived[48] = "the body is too large";
    const char *setting = server->options.body_setting;
    if (connection->refusal != 0 || !route || route->most_body == 0) {
        return refuse(connection, 413, "no body is accepted here");
    }
    if (size > 0) {
        snprintf(arrived, sizeof arrived, "the body has %llu bytes", (unsigned long long)size);
    }
    snprintf(text, sizeof server->refusal_text, "%s; at most %zu are accepted here%s%s", arrived, route->most_body,
             setting ? ": send fewer rows at a time, or raise " : "", setting ? setting : "");
    return refuse(connection, 413, text);
}

/* --- The head's text --- */

static bool grow_head(struct http_connection *connection, size_t needed)
{
    struct http_request *request = connection->request;
    size_t room = request->head_room == 0 ? FIRST_HEAD : request->head_room;
    while (room < needed) {
        room *= 2;
    }
    if (room == request->head_room) {
        return true;
    }
    if (!budget_charge(&connection->account, room - request->head_room, NULL)) {
        return false;
    }
    char *head = realloc(request->head, room);
    if (!head) {
        budget_release(&connection->account, room - request->head_room);
        return false;
    }
    request->head = head;
    request->head_room = room;
    return true;
}

static int add_text(llhttp_t *parser, const char *at, size_t size)
{
    struct http_connection *connection = parser->data;
    struct http_request *request = connection->request;
    if (request->head_size + size + 1 > HTTP_MOST_HEAD) {
        return refuse(connection, 431, "the request's head is longer than 16 KiB");
    }
    if (!request->has_head && !grow_head(connection, request->head_size + size + 1)) {
        return refuse_memory(connection);
    }
    if (!request->has_head) { /* trailers are not used: only their size counts */
        memcpy(request->head + request->head_size, at, size);
    }
    request->head_size += size;
    return 0;
}

/* Ends the current text and returns its start. */
static size_t end_text(struct http_request *request)
{
    const size_t began = request->began;
    while (request->head_size > began && strchr(" \t", request->head[request->head_size - 1])) {
        request->head_size--;
    }
    request->head[request->head_size++] = '\0';
    request->began = request->head_size;
    return began;
}

static struct http_request *take_spare(struct http_server *server)
{
    struct http_request *request = server->spare;
    server->spare = request->next_answered;
    server->spare_count--;
    server->spare_bytes -= request->head_room + request->body_room;
    *request = (struct http_request){
        .head = request->head, .head_room = request->head_room, .body = request->body, .body_room = request->body_room};
    return request;
}

static int on_message_begin(llhttp_t *parser)
{
    struct http_connection *connection = parser->data;
    struct http_server *server = connection->server;
    struct http_request *spare = server->spare;
    const size_t size = sizeof *spare + (spare ? spare->head_room + spare->body_room : 0);
    connection->account.most = server->options.most_each;
    atomic_store(&connection->account.refusal, (int)BUDGET_FITS);
    if (!budget_charge(&connection->account, size, NULL)) {
        return refuse_memory(connection);
    }
    connection->request = spare ? take_spare(server) : calloc(1, sizeof *connection->request);
    if (!connection->request) {
        budget_release(&connection->account, size);
        return refuse(connection, 503, "out of memory: try again later");
    }
    connection->request->connection = connection;
    connection->request->began_s = server->now_s;
    return 0;
}

static int on_url(llhttp_t *parser, const char *at, size_t size)
{
    struct http_connection *connection = parser->data;
    if (connection->request->head_size + size > HTTP_MOST_TARGET) {
        return refuse(connection, 414, "the request target is longer than 4 KiB");
    }
    return add_text(parser, at, size);
}

static int on_url_complete(llhttp_t *parser)
{
    struct http_connection *connection = parser->data;
    if (connection->request->head_size == 0) {
        return refuse(connection, 400, "there is no request target: write GET /path HTTP/1.1");
    }
    end_text(connection->request);
    return 0;
}

static int on_version_complete(llhttp_t *parser)
{
    if (parser->http_major != 1 || parser->http_minor > 1) {
        return refuse(parser->data, 505, "only HTTP/1.1 and 1.0 are supported");
    }
    return 0;
}

static int on_header_field_complete(llhttp_t *parser)
{
    struct http_connection *connection = parser->data;
    struct http_request *request = connection->request;
    if (request->has_head) {
        return 0;
    }
    if (parser->http_major != 1) {
        return refuse(connection, 505, "only HTTP/1.1 and 1.0 are supported");
    }
    if (request->header_count == HTTP_MOST_HEADERS) {
        return refuse(connection, 431, "more than 64 headers");
    }
    if (!grow_head(connection, request->head_size + 1)) {
        return refuse_memory(connection);
    }
    request->headers[request->header_count].name = (uint16_t)end_text(request);
    return 0;
}

static int on_header_value_complete(llhttp_t *parser)
{
    struct http_connection *connection = parser->data;
    struct http_request *request = connection->request;
    if (request->has_head) {
        return 0;
    }
    if (request->head_size + 1 > HTTP_MOST_HEAD) {
        return refuse(connection, 431, "the request's head is longer than 16 KiB");
    }
    if (!grow_head(connection, request->head_size + 1)) {
        return refuse_memory(connection);
    }
    request->headers[request->header_count++].value = (uint16_t)end_text(request);
    return 0;
}

/* --- Interpreting the head --- */

const char *http_request_header(const struct http_request *request, const char *name)
{
    for (int i = 0; i < request->header_count; i++) {
        if (strcasecmp(request->head + request->headers[i].name, name) == 0) {
            return request->head + request->headers[i].value;
        }
    }
    return NULL;
}

static int header_times(const struct http_request *request, const char *name)
{
    int times = 0;
    for (int i = 0; i < request->header_count; i++) {
        times += strcasecmp(request->head + request->headers[i].name, name) == 0;
    }
    return times;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Decodes %XX in place, and '+' if it stands for a space. False: the result is not valid text. */
static bool decode(char *text, bool plus)
{
    char *to = text;
    for (const char *from = text; *from != '\0'; from++) {
        char c = *from;
        if (c == '%') {
            const int high = hex_digit(from[1]), low = high < 0 ? -1 : hex_digit(from[2]);
            if (low < 0 || (high == 0 && low == 0)) {
                return false;
            }
            c = (char)(high * 16 + low);
            from += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        *to++ = c;
    }
    *to = '\0';
    return utf8_check(text, (size_t)(to - text));
}

/* "/path?query", or with "http://host" before it, as proxies write it. */
static bool split_target(struct http_request *request)
{
    char *target = request->head;
    for (int i = 0; i < 2; i++) {
        static const char *const schemes[] = {"http://", "https://"};
        if (strncasecmp(target, schemes[i], strlen(schemes[i])) == 0) {
            char *path = strchr(target + strlen(schemes[i]), '/');
            target = path ? path : NULL;
            break;
        }
    }
    if (!target || target[0] != '/' || strchr(target, '#')) {
        return false;
    }
    request->path = target;
    request->query = strchr(target, '?');
    if (request->query) {
        *request->query++ = '\0';
    }
    return decode(request->path, false);
}

static enum http_method method_of(const llhttp_t *parser)
{
    switch (parser->method) {
    case HTTP_GET:
        return HTTP_METHOD_GET;
    case HTTP_HEAD:
        return HTTP_METHOD_HEAD;
    case HTTP_POST:
        return HTTP_METHOD_POST;
    default:
        return 0;
    }
}

/* An asterisk matches any text. */
static bool path_fits(const struct http_route *route, const char *path)
{
    const size_t size = strlen(path), before = strcspn(route->path, "*");
    if (route->path[before] == '\0') {
        return strcmp(route->path, path) == 0;
    }
    const char *behind = route->path + before + 1;
    return size >= before + strlen(behind) && memcmp(route->path, path, before) == 0 &&
           strcmp(path + size - strlen(behind), behind) == 0;
}

static const struct http_route *route_of(const struct http_connection *connection, const char *path)
{
    for (const struct http_route *route = connection->server->options.routes; route->path; route++) {
        if (path_fits(route, path)) {
            return route;
        }
    }
    return NULL;
}

/* Copies the path without doubled slashes and one at its end. */
static void tidy(const char *path, char *copy, size_t size)
{
    size_t n = 0;
    for (; *path != '\0' && n + 1 < size; path++) {
        if (*path != '/' || n == 0 || copy[n - 1] != '/') {
            copy[n++] = *path;
        }
    }
    n -= n > 1 && copy[n - 1] == '/';
    copy[n] = '\0';
}

/* Not found: paths are as listed, to the byte; `meant` is named if it is one. */
static void refuse_path(struct http_connection *connection, char meant[MOST_TIDY])
{
    struct http_server *server = connection->server;
    char *text = server->refusal_text;
    const char *at = server->options.paths_at, *path = connection->request->path;
    if (strlen(path) < MOST_TIDY && strcmp(path, meant) != 0 && route_of(connection, meant)) {
        snprintf(text, sizeof server->refusal_text, "not found: write %s, without doubled or trailing slashes", meant);
    } else {
        const int shown = snprintf(meant, MOST_TIDY, "%s", path) < MOST_TIDY ? (int)strlen(meant) : 80;
        snprintf(text, sizeof server->refusal_text, "not found: %.*s; %s lists the paths", shown, path,
                 at ? at : "docs/operations.md");
        utf8_mend(text, strlen(text));
    }
    refuse(connection, 404, text);
}

/* The answer to a request that fits no route: not found, or method not allowed. */
static void find_route(struct http_connection *connection, const llhttp_t *parser)
{
    static const char *const allow[] = {"", "Allow: GET, HEAD\r\n", "Allow: POST\r\n", "Allow: GET, HEAD, POST\r\n"};
    struct http_request *request = connection->request;
    char meant[MOST_TIDY];
    tidy(request->path, meant, sizeof meant);
    const bool is_tidy = strlen(request->path) >= sizeof meant || strcmp(request->path, meant) == 0;
    const struct http_route *route = is_tidy ? route_of(connection, request->path) : NULL;
    if (!route) {
        refuse_path(connection, meant);
        return;
    }
    const int gets = route->methods & HTTP_METHOD_GET, posts = route->methods & HTTP_METHOD_POST;
    if ((int)request->method & (route->methods | (gets ? HTTP_METHOD_HEAD : 0))) {
        request->route = route;
        return;
    }
    char *text = connection->server->refusal_text;
    connection->refusal_headers = allow[(gets ? 1 : 0) + (posts ? 2 : 0)];
    snprintf(text, sizeof connection->server->refusal_text, "%s is not allowed here; this path takes %.*s",
             llhttp_method_name((llhttp_method_t)parser->method), (int)strcspn(connection->refusal_headers, "\r") - 7,
             connection->refusal_headers + 7);
    refuse(connection, 405, text);
}

/* In constant time, which reveals nothing about the token, not even its length. */
static bool is_token(const char *given, const char *wanted)
{
    unsigned char a[HASH_BYTES], b[HASH_BYTES];
    crypto_generichash(a, sizeof a, (const unsigned char *)given, strlen(given), NULL, 0);
    crypto_generichash(b, sizeof b, (const unsigned char *)wanted, strlen(wanted), NULL, 0);
    return sodium_memcmp(a, b, sizeof a) == 0;
}

static bool may_ask(struct http_connection *connection)
{
    const struct http_request *request = connection->request;
    const char *token = connection->server->options.token;
    const char *given = http_request_header(request, "authorization");
    if (!token || (request->route && request->route->is_public)) {
        return true;
    }
    connection->is_known = header_times(request, "authorization") == 1 && strncasecmp(given, "bearer ", 7) == 0 &&
                           is_token(given + 7 + strspn(given + 7, " "), token);
    return connection->is_known;
}

/* Is this text, whatever its case, one of the words of a list with commas? */
static bool is_listed(const char *list, const char *text, size_t size)
{
    while (list && *list != '\0') {
        const size_t length = strcspn(list, ",");
        if (length == size && strncasecmp(list, text, size) == 0) {
            return true;
        }
        list += length + (list[length] == ',');
    }
    return false;
}

/* The same for hosts, which may have brackets and a final dot in the list, too. */
static bool is_listed_host(const char *list, const char *host, size_t size)
{
    while (list && *list != '\0') {
        const size_t length = strcspn(list, ",");
        size_t bare = length - (list[0] == '[' ? 2 : 0);
        const char *name = list + (list[0] == '[');
        bare -= bare > 1 && name[bare - 1] == '.';
        if (bare == size && strncasecmp(name, host, size) == 0) {
            return true;
        }
        list += length + (list[length] == ',');
    }
    return false;
}

/*
 * The bytes of "host:port" that are the host's: without the brackets of an IPv6 address, or the dot of a whole name.
 */
static const char *host_of(const char *text, size_t *size)
{
    const bool is_literal = text[0] == '[';
    const char *host = text + is_literal, *end = host + strcspn(host, is_literal ? "]" : ":");
    const char *port = end + (is_literal && *end == ']');
    *size = (size_t)(end - host);
    *size -= !is_literal && *size > 1 && host[*size - 1] == '.';
    if (*port == ':') {
        port += 1 + strspn(port + 1, "0123456789");
    }
    *size = *port == '\0' ? *size : 0; /* "[::1]elsewhere" is no host at all */
    return host;
}

/*
 * Does Host name this machine? Without a token, a foreign page whose owner points its name here for a moment could
 * otherwise read what we show: browsers consider it the same origin.
 */
static bool is_for_us(const struct http_connection *connection)
{
    const struct http_options *options = &connection->server->options;
    const char *host = http_request_header(connection->request, "host");
    size_t size;
    if (options->token || !options->only_host || !host) {
        return true;
    }
    host = host_of(host, &size);
    return is_listed_host("localhost,127.0.0.1,::1", host, size) || is_listed_host(options->only_host, host, size) ||
           is_listed_host(options->hosts, host, size);
}

/* --- Pages of other origins --- */

/* "http://host:port" is ours if it is what Host says, or one of the allowed names behind which a proxy stands. */
static bool is_own_origin(const struct http_connection *connection, const char *origin)
{
    const char *host = http_request_header(connection->request, "host"), *authority = strstr(origin, "://");
    if (!authority || !host) {
        return false;
    }
    authority += 3;
    size_t size, host_size = strlen(host);
    const char *usual = strncasecmp(origin, "https:", 6) == 0 ? ":443" : ":80"; /* browsers leave it out */
    if (host_size > strlen(usual) && strcmp(host + host_size - strlen(usual), usual) == 0) {
        host_size -= strlen(usual);
    }
    if (strlen(authority) == host_size && strncasecmp(authority, host, host_size) == 0) {
        return true;
    }
    const char *name = host_of(authority, &size);
    return is_listed_host(connection->server->options.hosts, name, size);
}

/*
 * Did a page of another origin send this? Browsers say: it could not read the answer, but its request would count, in
 * the log of requests for instance.
 */
static bool is_foreign(const struct http_connection *connection)
{
    const struct http_request *request = connection->request;
    const char *origin = http_request_header(request, "origin"), *site = http_request_header(request, "sec-fetch-site");
    if (request->origin) {
        return false;
    }
    return (origin && (header_times(request, "origin") > 1 || !is_own_origin(connection, origin))) ||
           (site && strcasecmp(site, "same-origin") != 0 && strcasecmp(site, "none") != 0);
}

static void find_origin(struct http_connection *connection)
{
    struct http_request *request = connection->request;
    const char *origin = http_request_header(request, "origin");
    if (origin && header_times(request, "origin") == 1 &&
        is_listed(connection->server->options.cors, origin, strlen(origin))) {
        request->origin = origin;
    }
}

/* Hard refusals: what follows can't be trusted. */
static int check_form(struct http_connection *connection, const llhttp_t *parser)
{
    const struct http_request *request = connection->request;
    const int hosts = header_times(request, "host");
    if (parser->http_major != 1 || parser->http_minor > 1) {
        return refuse(connection, 505, "only HTTP/1.1 and 1.0 are supported");
    }
    if (hosts > 1 || (hosts == 0 && parser->http_minor == 1)) {
        return refuse(connection, 400, "there must be one Host header");
    }
    if (!split_target(connection->request)) {
        return refuse(connection, 400, "the request target is not a path in UTF-8");
    }
    if ((parser->flags & F_TRANSFER_ENCODING) &&
        (!(parser->flags & F_CHUNKED) ||
         strcasecmp(http_request_header(request, "transfer-encoding"), "chunked") != 0)) {
        return refuse(connection, 501, "the only transfer encoding supported is chunked");
    }
    if ((parser->flags & F_TRANSFER_ENCODING) && (request->is_old || header_times(request, "transfer-encoding") > 1)) {
        return refuse(connection, 400, "Transfer-Encoding is for HTTP/1.1, and once");
    }
    return 0;
}

/* Refusals after which the connection may continue, if there is no body. */
static void check_conditions(struct http_connection *connection, const llhttp_t *parser)
{
    struct http_request *request = connection->request;
    if (!is_for_us(connection)) {
        refuse(connection, 421,
               "the Host header names another machine: allow the name by --http_hosts=NAME, or use a "
               "token, which lifts this rule");
        return;
    }
    find_origin(connection);
    if (parser->method == HTTP_OPTIONS && request->origin &&
        http_request_header(request, "access-control-request-method")) {
        request->is_preflight = true; /* never with a token */
        return;
    }
    find_route(connection, parser);
    connection->is_health = request->route && request->route->is_health;
    if (request->method == HTTP_METHOD_POST && is_foreign(connection)) {
        refuse(connection, 403, "this comes from a page of another origin: allow it by --http_cors=ORIGIN");
        return;
    }
    if (!may_ask(connection)) {
        connection->refusal = 401;
        connection->refusal_text = "a token is required: Authorization: Bearer TOKEN";
        connection->refusal_headers = "WWW-Authenticate: Bearer realm=\"trainer\"\r\n";
        return;
    }
    const char *expected = http_request_header(request, "expect");
    if (expected && strcasecmp(expected, "100-continue") != 0) {
        refuse(connection, 417, "the only expectation supported is 100-continue");
    }
    if ((parser->flags & F_CONTENT_LENGTH) &&
        parser->content_length > (request->route ? request->route->most_body : 0)) {
        refuse_body(connection, parser->content_length);
    }
}

static int on_headers_complete(llhttp_t *parser)
{
    struct http_connection *connection = parser->data;
    struct http_request *request = connection->request;
    request->has_head = true;
    request->is_old = parser->http_minor == 0;
    request->keeps_alive = llhttp_should_keep_alive(parser) && !parser->upgrade; /* what follows is not parsed */
    request->method = method_of(parser);
    if (check_form(connection, parser) != 0) {
        return -1;
    }
    const bool has_body = (parser->flags & F_CHUNKED) || parser->content_length > 0;
    check_conditions(connection, parser);
    if (has_body && (connection->refusal != 0 || !request->route || request->route->most_body == 0)) {
        return refuse_body(connection, parser->content_length);
    }
    if (has_body) {
        connection->wants_continue = http_request_header(request, "expect") && !request->is_old;
        request->body_length = parser->flags & F_CHUNKED ? 0 : parser->content_length;
        connection_live(connection, LIFE_BODY);
    }
    return 0;
}

/* --- The body --- */

static bool grow_body(struct http_connection *connection, size_t needed)
{
    struct http_request *request = connection->request;
    size_t room = request->body_room == 0 ? FIRST_BODY : request->body_room;
    while (room < needed) {
        room *= 2;
    }
    if (room == request->body_room) {
        return true;
    }
    const size_t each = connection->server->options.most_each;
    connection->account.most = each > 0 ? each + (size_t)HTTP_TIMES * needed : 0;
    if (!budget_charge(&connection->account, room - request->body_room, NULL)) {
        return false;
    }
    uint8_t *body = realloc(request->body, room + HTTP_BODY_SLACK);
    if (!body) {
        budget_release(&connection->account, room - request->body_room);
        return false;
    }
    request->body = body;
    request->body_room = room;
    return true;
}

static int on_body(llhttp_t *parser, const char *at, size_t size)
{
    struct http_connection *connection = parser->data;
    struct http_request *request = connection->request;
    connection->wants_continue = false; /* the client did not wait for it */
    if (size > request->route->most_body - request->body_size) {
        return refuse_body(connection, 0);
    }
    if (!grow_body(connection, request->body_size + size)) {
        return refuse_memory(connection);
    }
    if ((const uint8_t *)at != request->body + request->body_size) { /* otherwise it was received in place */
        memcpy(request->body + request->body_size, at, size);
    }
    request->body_size += size;
    return 0;
}

uint8_t *parse_room(struct http_connection *connection, size_t *size)
{
    struct http_request *request = connection->request;
    if (connection->life != LIFE_BODY || request->body_length <= request->body_size) {
        return NULL;
    }
    const uint64_t left = request->body_length - request->body_size;
    const size_t some = left < READ_BYTES ? (size_t)left : READ_BYTES;
    if (!grow_body(connection, request->body_size + some)) {
        return NULL; /* refuse it after the bytes have arrived */
    }
    const size_t room = request->body_room - request->body_size;
    *size = left < room ? (size_t)left : room;
    *size = *size < MOST_RECEIVED ? *size : MOST_RECEIVED;
    return request->body + request->body_size;
}

static int on_message_complete(llhttp_t *parser)
{
    struct http_connection *connection = parser->data;
    connection->request->is_whole = true;
    budget_forget(&connection->account); /* parse_room may have been refused what was granted later */
    return HPE_PAUSED;
}

/* --- The parser --- */

static const llhttp_settings_t settings = {
    .on_message_begin = on_message_begin,
    .on_url = on_url,
    .on_url_complete = on_url_complete,
    .on_version_complete = on_version_complete,
    .on_header_field = add_text,
    .on_header_field_complete = on_header_field_complete,
    .on_header_value = add_text,
    .on_header_value_complete = on_header_value_complete,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

void parse_begin(struct http_connection *connection)
{
    llhttp_init(&connection->parser, HTTP_REQUEST, &settings);
    connection->parser.data = connection;
    connection->account.budget = &connection->server->budget;
    connection->account.most = connection->server->options.most_each;
}

bool parse(struct http_connection *connection, const uint8_t *bytes, size_t size, size_t *taken)
{
    llhttp_t *parser = &connection->parser;
    const llhttp_errno_t result = llhttp_execute(parser, (const char *)bytes, size);
    *taken = size;
    if (result == HPE_OK) {
        return true;
    }
    if (result == HPE_PAUSED || result == HPE_PAUSED_UPGRADE) {
        *taken = (size_t)((const uint8_t *)llhttp_get_error_pos(parser) - bytes);
        if (result == HPE_PAUSED_UPGRADE) { /* no other protocol is supported */
            llhttp_resume_after_upgrade(parser);
        } else {
            llhttp_resume(parser);
        }
        return true;
    }
    if (result == HPE_PAUSED_H2_UPGRADE || result == HPE_INVALID_VERSION) {
        refuse(connection, 505, "only HTTP/1.1 and 1.0 are supported");
    }
    refuse(connection, 400, "this is not an HTTP/1.1 request");
    return false;
}

static void give_back(struct http_request *request)
{
    free(request->head);
    free(request->body);
    free(request);
}

/* Some are kept for reuse: freeing and allocating memory for each would go through the system every time. */
void request_free(struct http_request *request)
{
    if (!request) {
        return;
    }
    struct http_server *server = request->connection->server;
    const size_t size = request->head_room + request->body_room;
    budget_release(&request->connection->account, sizeof *request + size);
    if (server->spare_count < MOST_SPARE && size <= MOST_SPARE_BYTES - server->spare_bytes) {
        request->next_answered = server->spare;
        server->spare = request;
        server->spare_count++;
        server->spare_bytes += size;
    } else {
        give_back(request);
    }
}

void requests_free_spare(struct http_server *server)
{
    while (server->spare) {
        struct http_request *next = server->spare->next_answered;
        give_back(server->spare);
        server->spare = next;
    }
}

/* --- For handlers --- */

const char *http_request_path(const struct http_request *request)
{
    return request->path;
}

struct budget_account *http_request_account(struct http_request *request)
{
    return &request->connection->account;
}

const uint8_t *http_request_body(const struct http_request *request, size_t *size)
{
    *size = request->body_size;
    return request->body;
}

bool http_request_parameter(const struct http_request *request, const char *name, char *text, size_t size)
{
    const size_t name_size = strlen(name);
    for (const char *at = request->query; at;) {
        const char *end = at + strcspn(at, "&");
        if (strncmp(at, name, name_size) == 0 && at[name_size] == '=') {
            const char *value = at + name_size + 1;
            if ((size_t)(end - value) >= size) {
                return false;
            }
            memcpy(text, value, (size_t)(end - value));
            text[end - value] = '\0';
            return decode(text, true);
        }
        at = *end == '&' ? end + 1 : NULL;
    }
    return false;
}

bool http_request_accepts(const struct http_request *request, const char *header, const char *word)
{
    const size_t size = strlen(word);
    for (const char *at = http_request_header(request, header); at && *at != '\0';) {
        at += strspn(at, " \t,");
        const char *end = at + strcspn(at, ",");
        if (strncasecmp(at, word, size) == 0 && strchr(" \t;,", at[size])) { /* the end of the text counts as well */
            const char *weight = strstr(at, "q=");
            return !weight || weight > end || strtod(weight + 2, NULL) > 0;
        }
        at = end;
    }
    return false;
}
