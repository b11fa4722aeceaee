/*
 * HTTP requests as arbitrary bytes, in pieces of any size: refused with a status and a reason, or complete within every
 * limit, with path and parameters in UTF-8, and the same however they were cut. All memory of a request is freed.
 */
#include "tests/fuzz/fuzz.h"

#include "base/text/text.h"
#include "observe/http/internal.h"

enum { MOST_REQUESTS = 4, MOST_BODY = 1024 };

/* What was understood of an input. */
struct understood {
    int requests, refusal, headers;
    uint32_t sum; /* over all paths, values and bodies */
};

/* Deadlines and epoll belong to the loop; a connection here has neither. */
void __wrap_connection_live(struct http_connection *connection, enum connection_life life);
void __wrap_connection_live(struct http_connection *connection, enum connection_life life)
{
    connection->life = life;
}

/* A request's head and body, each in room of twice its size while that grows, and the requests kept for reuse. */
FUZZ_MEMORY(8, 16 * 1024)

static void note(struct understood *seen, const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        seen->sum = seen->sum * 31 + ((const uint8_t *)bytes)[i];
    }
}

static void look(const struct http_request *request, struct understood *seen)
{
    char value[64];
    size_t size;
    const char *path = http_request_path(request), *agent = http_request_header(request, "x");
    assert(path && path[0] == '/' && utf8_check(path, strlen(path)));
    assert(request->head_size <= HTTP_MOST_HEAD && request->header_count <= HTTP_MOST_HEADERS && request->route);
    note(seen, path, strlen(path));
    note(seen, agent ? agent : "", agent ? strlen(agent) : 0);
    const uint8_t *body = http_request_body(request, &size);
    assert(size <= request->route->most_body);
    note(seen, body, size);
    if (http_request_parameter(request, "run", value, sizeof value)) {
        assert(strlen(value) < sizeof value && utf8_check(value, strlen(value)));
        note(seen, value, strlen(value));
    }
    seen->sum += http_request_accepts(request, "accept", "gzip");
    seen->headers += request->header_count;
    seen->requests++;
}

/* piece: bytes at a time; 0: all at once */
static struct understood read_all(struct http_server *server, const uint8_t *bytes, size_t size, size_t piece)
{
    struct understood seen = {.requests = 0};
    struct http_connection connection = {.server = server};
    parse_begin(&connection);
    while (size > 0 && seen.requests < MOST_REQUESTS) {
        const size_t some = piece == 0 || piece > size ? size : piece;
        size_t taken;
        const bool good = parse(&connection, bytes, some, &taken);
        assert(taken <= some);
        if (!good) {
            assert(connection.refusal >= 400 && connection.refusal_text);
            break;
        }
        bytes += taken;
        size -= taken;
        if (connection.request && connection.request->is_whole) {
            const bool goes_on = connection.request->keeps_alive && connection.refusal == 0;
            if (connection.refusal == 0) {
                look(connection.request, &seen);
            }
            request_free(connection.request);
            connection.request = NULL;
            if (!goes_on) {
                break;
            }
        } else {
            assert(taken == some);
        }
    }
    seen.refusal = connection.refusal;
    request_free(connection.request);
    requests_free_spare(server);
    assert(atomic_load(&server->budget.used) == 0);
    return seen;
}

/* Of what is malformed and too long, pieces may show the one before the other is seen. */
static bool is_same_refusal(int whole, int cut)
{
    return whole == cut || (whole == 400 && (cut == 414 || cut == 431));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const struct http_route routes[] = {{"/api/status", HTTP_METHOD_GET, false, false, 0, NULL},
                                               {"/api/thing", HTTP_METHOD_POST, false, false, MOST_BODY, NULL},
                                               {"/healthz", HTTP_METHOD_GET, true, true, 0, NULL},
                                               {"/files/*", HTTP_METHOD_GET, false, false, 0, NULL},
                                               {.path = NULL}};
    struct input input = input_of(bytes, size);
    const uint8_t kind = input_byte(&input);
    struct http_server server = {.options = {.routes = routes, .most_each = 1 << 18, .cors = "https://app"},
                                 .budget = {.most = 1 << 20}};
    server.options.token = kind & 1 ? "secret" : NULL;
    server.options.only_host = kind & 2 ? "here" : NULL;
    const struct understood whole = read_all(&server, input.next, input_left(&input), 0);
    const struct understood cut = read_all(&server, input.next, input_left(&input), 1 + kind / 4);
    assert(is_same_refusal(whole.refusal, cut.refusal));
    assert(whole.requests == cut.requests && whole.headers == cut.headers && whole.sum == cut.sum);
    return 0;
}
