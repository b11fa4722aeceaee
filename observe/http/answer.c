/* Turns answers into bytes: heads, errors, the output queue and the release of its memory. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <zlib.h>

#include "base/clock.h"
#include "base/encoding/crc32c.h"
#include "base/text/text.h"
#include "net/socket.h"
#include "observe/http/internal.h"
#include "observe/http/server.h"

enum {
    MOST_HEAD = 2048,
    MOST_COPIED = 4096, /* bytes of a body that go into one piece with the head */
};

/*
 * For browsers: no foreign page may frame, read or run what is served here. A page sets its own policy for what it
 * loads.
 */
static const char security_headers[] = "X-Content-Type-Options: nosniff\r\n"
                                       "X-Frame-Options: DENY\r\n"
                                       "Referrer-Policy: no-referrer\r\n"
                                       "Cross-Origin-Opener-Policy: same-origin\r\n";
static const char retry_later[] = "Retry-After: 1\r\n";

/* --- Output --- */

static void free_output(struct http_connection *connection, struct output *output)
{
    if (output->release) {
        output->release(output->owner);
    }
    budget_release(&connection->account, output->held);
    free(output);
}

void output_free(struct http_connection *connection)
{
    while (connection->first) {
        struct output *next = connection->first->next;
        free_output(connection, connection->first);
        connection->first = next;
    }
    connection->last = NULL;
    connection->unsent = 0;
}

static void append(struct http_connection *connection, struct output *output)
{
    if (connection->last) {
        connection->last->next = output;
    } else {
        connection->first = output;
    }
    connection->last = output;
    connection->unsent += output->size;
}

void output_sent(struct http_connection *connection, size_t size)
{
    connection->unsent -= size;
    while (connection->first) {
        struct output *output = connection->first;
        const size_t left = output->size - output->sent;
        if (size < left) {
            output->sent += size;
            return;
        }
        size -= left;
        connection->first = output->next;
        if (!connection->first) {
            connection->last = NULL;
        }
        free_output(connection, output);
    }
}

enum { HEAD, BODY, TAIL, PARTS }; /* of an answer */

/* Copies the first `count` parts, one after another. */
static bool output_copy(struct http_connection *connection, const struct iovec *parts, int count)
{
    size_t size = 0;
    for (int i = 0; i < count; i++) {
        size += parts[i].iov_len;
    }
    struct output *output = malloc(sizeof *output + size);
    if (!output) {
        return false;
    }
    *output = (struct output){.bytes = output->own, .size = size, .held = sizeof *output + size};
    budget_force(&connection->account, output->held); /* one head, or a short answer, for each connection */
    uint8_t *end = output->own;
    for (int i = 0; i < count; i++) {
        if (parts[i].iov_len > 0) {
            memcpy(end, parts[i].iov_base, parts[i].iov_len);
        }
        end += parts[i].iov_len;
    }
    append(connection, output);
    return true;
}

bool output_add(struct http_connection *connection, const void *bytes, size_t size)
{
    return output_copy(connection, &(struct iovec){(void *)(uintptr_t)bytes, size}, 1);
}

/* Takes ownership of the answer and its charge; its parts from `first` on are sent in place. */
static bool output_lend(struct http_connection *connection, const struct http_answer *answer, const struct iovec *parts,
                        int first)
{
    struct output *outputs[PARTS] = {NULL};
    bool done = true;
    int last = first;
    for (int i = first; done && i < PARTS; i++) {
        if (parts[i].iov_len > 0) {
            outputs[i] = malloc(sizeof *outputs[i]);
            done = outputs[i];
            last = i;
        }
    }
    for (int i = first; i < PARTS; i++) {
        if (!done) {
            free(outputs[i]);
        } else if (outputs[i]) {
            *outputs[i] = (struct output){.bytes = parts[i].iov_base, .size = parts[i].iov_len};
            append(connection, outputs[i]);
        }
    }
    if (done) {
        outputs[last]->held = answer->charged;
        outputs[last]->release = answer->release;
        outputs[last]->owner = answer->owner;
    }
    return done;
}

/* --- Answers --- */

static const char *reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } reasons[] = {
        {200, "OK"},
        {204, "No Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {408, "Request Timeout"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        if (reasons[i].status == status) {
            return reasons[i].text;
        }
    }
    return ""; /* the reason may be missing */
}

/* What pages of other origins may do with the answer: only those that were allowed may read it. */
static void put_page_headers(const struct http_connection *connection, char text[512])
{
    const struct http_request *request = connection->request;
    if (request && request->origin) {
        snprintf(text, 512,
                 "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\nAccess-Control-Expose-Headers: "
                 "Model-Name, Model-Version, Inference-Header-Content-Length, Retry-After\r\n"
                 "Cross-Origin-Resource-Policy: cross-origin\r\n",
                 request->origin);
    } else {
        snprintf(text, 512, "Cross-Origin-Resource-Policy: same-origin\r\n%s",
                 connection->server->options.cors ? "Vary: Origin\r\n" : "");
    }
}

static int format_head(const struct http_connection *connection, const struct http_answer *answer, char head[MOST_HEAD],
                       const char *framing)
{
    char type[128] = "", page[512];
    if (answer->type) {
        snprintf(type, sizeof type, "Content-Type: %s\r\n", answer->type);
    }
    put_page_headers(connection, page);
    return snprintf(head, MOST_HEAD, "HTTP/1.1 %d %s\r\nDate: %s\r\n%s%s%s%s%s%s%s\r\n", answer->status,
                    reason(answer->status), connection->server->date, type, framing,
                    connection->request && connection->request->keeps_alive ? "" : "Connection: close\r\n",
                    connection->request && connection->request->keeps_alive && connection->request->is_old
                        ? "Connection: keep-alive\r\n"
                        : "",
                    security_headers, page, answer->headers ? answer->headers : "");
}

static void log_answer(const struct http_connection *connection, const struct http_answer *answer)
{
    const struct http_request *request = connection->request;
    const struct http_options *options = &connection->server->options;
    struct endpoint from = {.size = sizeof from.address};
    char host[ENDPOINT_TEXT] = "";
    if (!options->log) {
        return;
    }
    if (getpeername(connection->fd, (struct sockaddr *)&from.address, &from.size) == 0) {
        endpoint_format_host(&from, host);
    }
    const enum http_method method = request ? request->method : HTTP_METHOD_GET;
    const struct http_logged logged = {
        .client = host,
        .method = method == HTTP_METHOD_POST   ? "POST"
                  : method == HTTP_METHOD_HEAD ? "HEAD"
                                               : "GET",
        .path = request ? request->path : NULL,
        .status = answer->status,
        .bytes = answer->size + answer->tail_size,
        .seconds = request ? clock_monotonic_s() - request->began_s : 0,
    };
    options->log(options->context, &logged);
}

/* The parts copied into one piece with the head: those before the first large one. */
static int copied_parts(const struct iovec *parts, int wanted)
{
    size_t room = MOST_COPIED;
    int count = BODY;
    while (count < wanted && parts[count].iov_len <= room) {
        room -= parts[count++].iov_len;
    }
    return count;
}

/* A small JSON object: the texts are our own, except for what they quote. */
static size_t format_error(char *json, size_t size, const char *text)
{
    char quoted[2 * MOST_ERROR_TEXT];
    size_t n = 0;
    for (; *text != '\0' && n + 2 < sizeof quoted; text++) {
        if (*text == '"' || *text == '\\') {
            quoted[n++] = '\\';
        }
        quoted[n++] = (char)((unsigned char)*text < ' ' ? ' ' : *text);
    }
    quoted[n] = '\0';
    utf8_mend(quoted, n); /* text cut within a character, or quoted from a file */
    return (size_t)snprintf(json, size, "{\"error\":\"%s\"}\n", quoted);
}

/* In its own memory; without memory, an answer without a body. */
static struct http_answer make_error(int status, const char *headers, const char *text)
{
    char json[2 * MOST_ERROR_TEXT + 32];
    const size_t size = format_error(json, sizeof json, text);
    char *copy = strdup(json);
    return (struct http_answer){.status = status,
                                .type = "application/json",
                                .headers = headers         ? headers
                                           : status == 503 ? retry_later
                                                           : NULL,
                                .body = copy,
                                .size = copy ? size : 0,
                                .release = free,
                                .owner = copy};
}

static void release_answer(struct http_connection *connection, const struct http_answer *answer)
{
    if (answer->release) {
        answer->release(answer->owner);
    }
    budget_release(&connection->account, answer->charged);
}

/*
 * Charges the answer's memory, whoever allocated it: the server has it until it is sent. If that is too much, it
 * becomes an error that says so.
 */
static struct http_answer charge(struct http_connection *connection, const struct http_answer *answer)
{
    struct http_answer charged = *answer;
    const size_t size = answer->size + answer->tail_size;
    struct error error;
    if (!answer->release || answer->charged > 0) {
        return charged;
    }
    if (size <= MOST_COPIED) {
        budget_force(&connection->account, size);
    } else if (!budget_charge(&connection->account, size, &error)) {
        release_answer(connection, answer);
        const bool is_busy = budget_refusal(&connection->account) == BUDGET_LATER;
        charged = make_error(is_busy ? 503 : 413, NULL, error.text);
        budget_force(&connection->account, charged.size);
        charged.charged = charged.size;
        return charged;
    }
    charged.charged = size;
    return charged;
}

void answer_now(struct http_connection *connection, const struct http_answer *given)
{
    struct http_request *request = connection->request;
    const struct http_answer now = charge(connection, given), *answer = &now;
    char head[MOST_HEAD], framing[64] = "";
    if (request && atomic_load_explicit(&connection->server->drains, memory_order_relaxed)) {
        request->keeps_alive = false;
    }
    if (answer->status != 304 && answer->status != 204) {
        snprintf(framing, sizeof framing, "Content-Length: %zu\r\n", answer->size + answer->tail_size);
    }
    const int size = format_head(connection, answer, head, framing);
    const bool keeps_alive = request && request->keeps_alive;
    const struct iovec parts[PARTS] = {{head, (size_t)size},
                                       {(void *)(uintptr_t)answer->body, answer->size},
                                       {(void *)(uintptr_t)answer->tail, answer->tail_size}};
    const int wanted = request && request->method == HTTP_METHOD_HEAD ? BODY : PARTS;
    const int copied = copied_parts(parts, wanted);
    bool done = size < MOST_HEAD && output_copy(connection, parts, copied);
    const bool has_taken = done && copied < wanted && output_lend(connection, answer, parts, copied);
    done = done && (copied == wanted || has_taken);
    log_answer(connection, answer);
    if (!has_taken) {
        release_answer(connection, answer);
    }
    connection->request = NULL;
    request_free(request);
    atomic_fetch_add_explicit(&connection->server->requests, 1, memory_order_relaxed);
    if (answer->status >= 400) {
        atomic_fetch_add_explicit(&connection->server->refused, 1, memory_order_relaxed);
    }
    if (!done) {
        output_free(connection); /* no memory for an error message */
    }
    connection_live(connection, done && keeps_alive ? LIFE_ANSWERING : LIFE_ENDING);
}

void answer_error(struct http_connection *connection, int status, const char *headers, const char *text)
{
    const struct http_answer answer = make_error(status, headers, text);
    answer_now(connection, &answer);
}

/* --- For handlers --- */

void answer_preflight(struct http_connection *connection)
{
    answer_now(connection,
               &(struct http_answer){.status = 204,
                                     .headers = "Access-Control-Allow-Methods: GET, HEAD, POST\r\n"
                                                "Access-Control-Allow-Headers: Authorization, Content-Type, "
                                                "Content-Encoding, Inference-Header-Content-Length, Last-Event-ID\r\n"
                                                "Access-Control-Allow-Private-Network: true\r\n"
                                                "Access-Control-Max-Age: 600\r\n"});
}

void http_answer(struct http_request *request, const struct http_answer *answer)
{
    struct http_server *server = request->connection->server;
    if (pthread_equal(pthread_self(), server->thread)) {
        answer_now(request->connection, answer);
        return;
    }
    request->answer = *answer;
    request->answer_headers = answer->headers ? strdup(answer->headers) : NULL;
    request->answer.headers = request->answer_headers;
    pthread_mutex_lock(&server->mutex);
    const bool is_first = !server->answered; /* otherwise the server's thread has been woken and has not looked yet */
    request->next_answered = server->answered;
    server->answered = request;
    pthread_mutex_unlock(&server->mutex);
    if (is_first) {
        wake_raise(&server->wake);
    }
}

void http_answer_error(struct http_request *request, int status, const char *format, ...)
{
    char text[MOST_ERROR_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const struct http_answer answer = make_error(status, NULL, text);
    http_answer(request, &answer);
}

/* --- Streams --- */

static struct http_connection *connection_of(struct http_stream *stream)
{
    return (struct http_connection *)((char *)stream - offsetof(struct http_connection, stream));
}

struct http_stream *http_stream_begin(struct http_request *request, const char *type,
                                      void (*closed)(void *owner, struct http_stream *stream), void *owner)
{
    struct http_connection *connection = request->connection;
    char head[MOST_HEAD];
    const bool is_chunked = !request->is_old;
    const struct http_answer answer = {.status = 200, .type = type, .headers = "Cache-Control: no-store\r\n"};
    request->keeps_alive = false;
    const int size = format_head(connection, &answer, head, is_chunked ? "Transfer-Encoding: chunked\r\n" : "");
    connection->request = NULL;
    request_free(request);
    atomic_fetch_add_explicit(&connection->server->requests, 1, memory_order_relaxed);
    if (!output_add(connection, head, (size_t)size)) {
        connection_live(connection, LIFE_ENDING);
        return NULL;
    }
    connection->peer->streams++;
    connection->stream = (struct http_stream){.closed = closed, .owner = owner, .is_chunked = is_chunked};
    connection_live(connection, LIFE_STREAMING);
    atomic_fetch_add(&connection->server->stream_count, 1);
    return &connection->stream;
}

size_t http_stream_unsent(const struct http_stream *stream)
{
    return ((const struct http_connection *)((const char *)stream - offsetof(struct http_connection, stream)))->unsent;
}

int http_stream_crowd(const struct http_stream *stream)
{
    return ((const struct http_connection *)((const char *)stream - offsetof(struct http_connection, stream)))
        ->peer->streams;
}

bool http_stream_send(struct http_stream *stream, const void *bytes, size_t size)
{
    struct http_connection *connection = connection_of(stream);
    char frame[24];
    const int framed = stream->is_chunked ? snprintf(frame, sizeof frame, "%zx\r\n", size) : 0;
    const size_t whole = (size_t)framed + size + (stream->is_chunked ? 2 : 0);
    if (size == 0 || !budget_charge(&connection->account, sizeof(struct output) + whole, NULL)) {
        return size == 0;
    }
    struct output *output = malloc(sizeof *output + whole);
    if (!output) {
        budget_release(&connection->account, sizeof *output + whole);
        return false;
    }
    *output = (struct output){.bytes = output->own, .size = whole, .held = sizeof *output + whole};
    memcpy(output->own, frame, (size_t)framed);
    memcpy(output->own + framed, bytes, size);
    if (stream->is_chunked) {
        uint8_t *end = output->own + (size_t)framed + size;
        end[0] = '\r';
        end[1] = '\n';
    }
    append(connection, output);
    connection_watch(connection);
    return true;
}

void http_stream_end(struct http_stream *stream)
{
    static const char end[] = "0\r\n\r\n";
    struct http_connection *connection = connection_of(stream);
    atomic_fetch_sub(&connection->server->stream_count, 1);
    connection->peer->streams--;
    stream->closed(stream->owner, stream);
    connection_live(connection, LIFE_ENDING);
    if (stream->is_chunked) {
        output_add(connection, end, sizeof end - 1);
    }
    connection_watch(connection);
}

/* --- Embedded files --- */

/*
 * Files as the Makefile compressed them: every browser accepts gzip; curl and others get them unpacked. Files change
 * only with the program, so a digest shows whether a browser has one already.
 */

FILES_EMBED(page_index, "index.html");
FILES_EMBED(page_script, "app.js");
FILES_EMBED(page_style, "app.css");
FILES_EMBED(page_charts, "dygraph.js");

static const struct file page[] = {
    {"/", "text/html; charset=utf-8", page_index, page_index_end},
    {"/app.js", "text/javascript; charset=utf-8", page_script, page_script_end},
    {"/app.css", "text/css; charset=utf-8", page_style, page_style_end},
    {"/dygraph.js", "text/javascript; charset=utf-8", page_charts, page_charts_end},
    {NULL, NULL, NULL, NULL},
};

void files_get(void *context, struct http_request *request)
{
    (void)context;
    files_answer(page, request);
}

/* NULL: out of memory. The last four bytes of gzip data are its size unpacked. */
static uint8_t *unpack(const struct file *file, size_t *size)
{
    const uint8_t *end = file->end;
    *size = (size_t)end[-4] | (size_t)end[-3] << 8 | (size_t)end[-2] << 16 | (size_t)end[-1] << 24;
    uint8_t *bytes = malloc(*size + 1);
    z_stream stream = {.next_in = (Bytef *)(uintptr_t)file->bytes,
                       .avail_in = (uInt)(file->end - file->bytes),
                       .next_out = bytes,
                       .avail_out = (uInt)*size + 1};
    if (!bytes || inflateInit2(&stream, 15 + 16) != Z_OK) {
        free(bytes);
        return NULL;
    }
    inflate(&stream, Z_FINISH);
    inflateEnd(&stream);
    return bytes;
}

void file_answer(const struct file *file, const char *headers, struct http_request *request)
{
    char more[640];
    struct http_answer answer = {.status = 200, .type = file->type, .headers = headers};
    if (http_request_accepts(request, "accept-encoding", "gzip") ||
        http_request_accepts(request, "accept-encoding", "*")) {
        snprintf(more, sizeof more, "%sContent-Encoding: gzip\r\n", headers);
        answer.headers = more;
        answer.body = file->bytes;
        answer.size = (size_t)(file->end - file->bytes);
    } else {
        uint8_t *bytes = unpack(file, &answer.size);
        if (!bytes) {
            http_answer_error(request, 503, "out of memory; try again");
            return;
        }
        answer.body = answer.owner = bytes;
        answer.release = free;
    }
    http_answer(request, &answer);
}

void files_answer(const struct file *files, struct http_request *request)
{
    const struct file *file = files;
    while (file->path && strcmp(file->path, http_request_path(request)) != 0) {
        file++;
    }
    if (!file->path) {
        http_answer_error(request, 404, "there is no such file");
        return;
    }
    char tag[16], headers[512];
    const size_t size = (size_t)(file->end - file->bytes);
    snprintf(tag, sizeof tag, "\"%08x\"", crc32c(file->bytes, size));
    snprintf(headers, sizeof headers,
             "ETag: %s\r\nCache-Control: no-cache\r\nVary: Accept-Encoding\r\n"
             "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
             "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n",
             tag);
    const char *known = http_request_header(request, "if-none-match");
    if (!known || (!strstr(known, tag) && strcmp(known, "*") != 0)) {
        file_answer(file, headers, request);
        return;
    }
    http_answer(request, &(struct http_answer){.status = 304, .headers = headers});
}
