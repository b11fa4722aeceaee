/*
 * The loop: one thread waits for all connections and advances each as far as possible. A connection's state is its life
 * (enum connection_life); each life has a queue whose members all have the same timeout, so that the next to expire is
 * at the front and setting a deadline costs nothing.
 *
 * Closed connections are freed only after the current batch of epoll events, since some may be theirs.
 */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/threads.h"
#include "net/socket.h"
#include "observe/http/internal.h"

enum {
    EVENTS = 64,
    ACCEPTED_AT_ONCE = 64,
    PARTS = 16,              /* of one write */
    ROUNDS = 16,             /* consecutive reads from one connection before others get their turn */
    SPARE_DESCRIPTORS = 512, /* left to the rest of the program */
    FEWEST_CONNECTIONS = 16,
    MOST_LINGERED = 1024 * 1024, /* bytes that are read and discarded after a last answer */
    SHARE = 8,                   /* an address has this part of the places; it gets more while others are free */
    HEALTH_PLACES = 16,          /* connections of health checks that are not closed to make room */
    LOOKED_AT = 64,              /* of each life: candidates when room must be made */
};

/* --- Addresses --- */

/* IPv4 as mapped into IPv6, and of IPv6 the network: a subscriber has all its addresses. */
static void key_of(const struct endpoint *from, uint8_t key[16])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    memset(key, 0, 16);
    if (from->address.ss_family == AF_INET) {
        memcpy(key, mapped, sizeof mapped);
        memcpy(key + sizeof mapped, &((const struct sockaddr_in *)(const void *)&from->address)->sin_addr, 4);
    } else if (from->address.ss_family == AF_INET6) {
        const uint8_t *address = ((const struct sockaddr_in6 *)(const void *)&from->address)->sin6_addr.s6_addr;
        memcpy(key, address, memcmp(address, mapped, sizeof mapped) == 0 ? 16 : 8);
    }
}

static struct caller **bucket_of(struct http_server *server, const uint8_t key[16])
{
    uint32_t sum = 2166136261U; /* FNV-1a: whoever finds collisions has one bucket, as long as the places */
    for (int i = 0; i < 16; i++) {
        sum = (sum ^ key[i]) * 16777619U;
    }
    return &server->peers[(sum ^ sum >> 16) % PEER_BUCKETS];
}

/* NULL: out of memory. */
static struct caller *caller_enter(struct http_server *server, const struct endpoint *from)
{
    uint8_t key[16];
    key_of(from, key);
    struct caller **bucket = bucket_of(server, key), *peer = *bucket;
    while (peer && memcmp(peer->address, key, sizeof key) != 0) {
        peer = peer->next;
    }
    if (!peer && (peer = calloc(1, sizeof *peer))) {
        memcpy(peer->address, key, sizeof key);
        peer->next = *bucket;
        *bucket = peer;
    }
    if (peer) {
        peer->connections++;
    }
    return peer;
}

static void caller_leave(struct http_server *server, struct caller *peer)
{
    if (--peer->connections > 0) {
        return;
    }
    struct caller **at = bucket_of(server, peer->address);
    while (*at != peer) {
        at = &(*at)->next;
    }
    *at = peer->next;
    free(peer);
}

/* --- Lives --- */

static void free_pending(struct http_connection *connection)
{
    free(connection->pending);
    budget_release(&connection->account, connection->pending_size);
    connection->pending = NULL;
    connection->pending_size = 0;
}

static void defer_free(struct http_connection *connection)
{
    connection->after = connection->server->dead;
    connection->server->dead = connection;
}

static void drop(struct http_connection *connection)
{
    struct http_server *server = connection->server;
    const bool is_kept = connection->life == LIFE_HANDLED; /* by a handler, whose answer will be discarded */
    connection_leave(connection);
    if (connection->life == LIFE_STREAMING) {
        atomic_fetch_sub(&server->stream_count, 1);
        assert(connection->peer); /* known since its first byte */
        connection->peer->streams--;
        connection->stream.closed(connection->stream.owner, &connection->stream);
    }
    output_free(connection);
    free_pending(connection);
    web_session_destroy(connection->session);
    connection->session = NULL;
    /* A child that is just being started holds the socket too, for a moment, and epoll would go on reporting it. */
    epoll_ctl(server->poll_fd, EPOLL_CTL_DEL, connection->fd, NULL);
    close(connection->fd);
    connection->is_gone = true;
    budget_close(&connection->account); /* the handler may stop */
    caller_leave(server, connection->peer);
    connection->peer = NULL;
    atomic_fetch_sub(&server->connection_count, 1);
    if (!is_kept) {
        request_free(connection->request);
        connection->request = NULL;
        defer_free(connection);
    }
}

static void free_dead(struct http_server *server)
{
    while (server->dead) {
        struct http_connection *next = server->dead->after;
        assert(atomic_load(&server->dead->account.used) == 0);
        free(server->dead);
        server->dead = next;
    }
}

/* --- Writing --- */

enum { AGAIN = -1, BROKEN = -2 };

static ptrdiff_t write_some(struct http_connection *connection)
{
    if (connection->session) {
        const struct output *output = connection->first;
        return web_session_write(connection->session, output->bytes + output->sent, output->size - output->sent);
    }
    struct iovec parts[PARTS];
    uint16_t count = 0; /* fits into msg_iovlen, whichever type libc gives it */
    for (const struct output *output = connection->first; output && count < PARTS; output = output->next) {
        parts[count++] = (struct iovec){(void *)(uintptr_t)(output->bytes + output->sent), output->size - output->sent};
    }
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    const ssize_t n = sendmsg(connection->fd, &message, MSG_NOSIGNAL);
    return n >= 0 ? n : errno == EAGAIN || errno == EINTR ? AGAIN : BROKEN;
}

/* Sends what can be sent. False: the connection is closed. */
static bool flush(struct http_connection *connection)
{
    while (connection->first) {
        const ptrdiff_t n = write_some(connection);
        if (n == BROKEN) {
            drop(connection);
            return false;
        }
        if (n == AGAIN) {
            break;
        }
        connection->moved += (uint64_t)n;
        atomic_fetch_add_explicit(&connection->server->bytes_out, (uint64_t)n, memory_order_relaxed);
        output_sent(connection, (size_t)n);
    }
    if (connection->first) {
        return true;
    }
    if (connection->life == LIFE_ANSWERING) {
        connection_live(connection, LIFE_IDLE);
    } else if (connection->life == LIFE_ENDING) {
        if (connection->session) {
            web_session_close_notify(connection->session);
        }
        shutdown(connection->fd, SHUT_WR);
        connection_live(connection, LIFE_LINGERING);
    }
    return true;
}

/* --- Reading --- */

static void keep_pending(struct http_connection *connection, const uint8_t *bytes, size_t size)
{
    if (size == 0 || connection->life == LIFE_ENDING || connection->life == LIFE_LINGERING ||
        connection->life == LIFE_STREAMING) {
        return; /* nobody will read it */
    }
    budget_force(&connection->account, size); /* READ_BYTES at most: it is read again only once this was used */
    uint8_t *copy = malloc(size);
    if (!copy) {
        budget_release(&connection->account, size);
        drop(connection);
        return;
    }
    memcpy(copy, bytes, size);
    connection->pending = copy;
    connection->pending_size = size;
}

static void handle(struct http_connection *connection)
{
    struct http_request *request = connection->request;
    if (connection->refusal != 0) {
        answer_error(connection, connection->refusal, connection->refusal_headers, connection->refusal_text);
        connection->refusal = 0;
        connection->refusal_headers = NULL;
        return;
    }
    connection_live(connection, LIFE_HANDLED);
    if (request->is_preflight) {
        answer_preflight(connection);
        return;
    }
    request->route->handle(connection->server->options.context, request);
}

/* The request can't be read to its end. */
static void refuse_rest(struct http_connection *connection)
{
    if (connection->request) {
        connection->request->keeps_alive = false;
    }
    answer_error(connection, connection->refusal, connection->refusal_headers, connection->refusal_text);
}

/* Parses bytes, with as many requests as they contain. False: the connection is closed. */
static bool take_in(struct http_connection *connection, const uint8_t *bytes, size_t size)
{
    while (size > 0 &&
           (connection->life == LIFE_IDLE || connection->life == LIFE_HEAD || connection->life == LIFE_BODY)) {
        size_t taken;
        if (connection->life == LIFE_IDLE) {
            connection_live(connection, LIFE_HEAD);
            connection->has_asked = true;
        }
        if (!parse(connection, bytes, size, &taken)) {
            refuse_rest(connection);
            return flush(connection);
        }
        bytes += taken;
        size -= taken;
        if (connection->wants_continue) {
            static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
            connection->wants_continue = false;
            if (!output_add(connection, go_on, sizeof go_on - 1) || !flush(connection)) {
                return false;
            }
        }
        if (connection->request && connection->request->is_whole) {
            handle(connection);
            if (!flush(connection)) {
                return false;
            }
        }
    }
    keep_pending(connection, bytes, size);
    return !connection->is_gone;
}

static bool take_pending(struct http_connection *connection)
{
    if (!connection->pending || connection->life != LIFE_IDLE) {
        return true;
    }
    uint8_t *bytes = connection->pending;
    const size_t size = connection->pending_size;
    connection->pending = NULL;
    connection->pending_size = 0;
    budget_release(&connection->account, size); /* the rest is counted again */
    const bool lives = take_in(connection, bytes, size);
    free(bytes);
    return lives;
}

static ptrdiff_t read_some(struct http_connection *connection, uint8_t *bytes, size_t size)
{
    if (connection->session) {
        return web_session_read(connection->session, bytes, size);
    }
    const ssize_t n = recv(connection->fd, bytes, size, 0);
    return n >= 0 ? n : errno == EAGAIN || errno == EINTR ? AGAIN : BROKEN;
}

static bool is_reading(const struct http_connection *connection)
{
    return connection->life == LIFE_IDLE || connection->life == LIFE_HEAD || connection->life == LIFE_BODY ||
           connection->life == LIFE_STREAMING || connection->life == LIFE_LINGERING;
}

/* Reads until nothing is left. epoll does not report what TLS has already decrypted. False: closed. */
static bool read_all(struct http_connection *connection)
{
    for (int round = 0; is_reading(connection); round++) {
        if (round >= ROUNDS && !(connection->session && web_session_has_more(connection->session))) {
            return true;
        }
        size_t size = READ_BYTES;
        uint8_t *room = parse_room(connection, &size);
        uint8_t *bytes = room ? room : connection->server->scratch;
        const ptrdiff_t n = read_some(connection, bytes, size);
        if (n == AGAIN) {
            return true;
        }
        if (n <= 0) {
            drop(connection);
            return false;
        }
        connection->moved += (uint64_t)n;
        atomic_fetch_add_explicit(&connection->server->bytes_in, (uint64_t)n, memory_order_relaxed);
        if (connection->life == LIFE_LINGERING && connection->moved > MOST_LINGERED) {
            drop(connection);
            return false;
        }
        if (!take_in(connection, bytes, (size_t)n)) {
            return false;
        }
        if (!connection->session && (size_t)n < size) {
            return true;
        }
    }
    return true;
}

/* --- A connection's turn --- */

static bool shake(struct http_connection *connection)
{
    switch (web_session_handshake(connection->session)) {
    case WEB_DONE:
        connection_live(connection, LIFE_IDLE);
        return true;
    case WEB_AGAIN:
        return true;
    case WEB_FAILED:
        break;
    }
    drop(connection);
    return false;
}

static void move_on(struct http_connection *connection)
{
    if (connection->is_gone) {
        return;
    }
    if (connection->life == LIFE_SHAKING && !shake(connection)) {
        return;
    }
    if (flush(connection) && take_pending(connection) && read_all(connection)) {
        connection_watch(connection);
    }
}

static void on_event(struct http_connection *connection, uint32_t events)
{
    const bool is_handled = connection->life == LIFE_HANDLED;
    if (connection->is_gone) {
        return; /* since epoll reported it: its descriptor may be another's already */
    }
    if ((events & EPOLLRDHUP) && connection->left_s <= 0) {
        connection->left_s = connection->server->now_s; /* or it only sends no more: drop_leavers */
    }
    if ((events & (EPOLLERR | EPOLLHUP)) && (is_handled || !(events & EPOLLIN))) {
        drop(connection);
    } else if (is_handled && (events & (EPOLLRDHUP | EPOLLIN))) {
        connection_watch_for(connection, 0); /* what arrives meanwhile is read after the answer */
    } else {
        move_on(connection);
    }
}

/* --- Connections come --- */

/* Does it hold an answer, or memory for one, without reading? */
static bool is_stalled(const struct http_connection *connection)
{
    return connection->unsent > 0 && connection->moved == 0 &&
           connection->server->now_s - connection->since_s >= HTTP_STALL_S;
}

static bool is_served(enum connection_life life)
{
    return life == LIFE_HANDLED || life == LIFE_ANSWERING || life == LIFE_ENDING;
}

/* Half of the places are left to those who come: who reads slowly, but does, could otherwise hold all of them. */
static bool keeps_its_place(const struct http_connection *connection)
{
    const struct queue *queues = connection->server->queues;
    const int served = queues[LIFE_HANDLED].count + queues[LIFE_ANSWERING].count + queues[LIFE_ENDING].count;
    return is_served(connection->life) && served <= connection->server->most_connections / 2;
}

/*
 * How readily a connection is closed to make room. What it has shown counts most, then whether its address has more
 * than its share, then what it is doing: work in progress is not thrown away for one that has sent nothing yet, and one
 * that has just come may first say what it wants before others go on waiting.
 */
static int expendable(const struct http_connection *connection)
{
    enum { UNKNOWN = 1 << 28, CROWD = 1 << 8, STALLED = 16, FRESH = 4, SERVED = 1 };
    static const int lives[LIFE_COUNT] = {
        [LIFE_LINGERING] = 15, [LIFE_IDLE] = 13,     [LIFE_SHAKING] = 11,  [LIFE_HEAD] = 10,  [LIFE_BODY] = 9,
        [LIFE_ENDING] = 8,     [LIFE_ANSWERING] = 7, [LIFE_STREAMING] = 3, [LIFE_HANDLED] = 5};
    const struct http_server *server = connection->server;
    const int crowd = connection->peer->connections;
    const bool comes = connection->life == LIFE_SHAKING || connection->life == LIFE_HEAD ||
                       (connection->life == LIFE_IDLE && !connection->has_asked);
    const bool is_new = comes && server->now_s - connection->since_s < HTTP_STALL_S;
    return (connection->is_known ? 0 : UNKNOWN) + (crowd > server->most_connections / SHARE ? crowd * CROWD : 0) +
           (is_stalled(connection)        ? STALLED
            : is_new                      ? FRESH
            : keeps_its_place(connection) ? SERVED
                                          : lives[connection->life]);
}

/* Closes the connection that can best be done without; of equal ones the one that has been so for longest. */
static bool evict(struct http_server *server)
{
    struct http_connection *victim = NULL;
    int most = -1;
    for (int life = 0; life < LIFE_COUNT; life++) {
        int looked = 0, healthy = 0;
        for (struct http_connection *at = server->queues[life].first; at && looked < LOOKED_AT; at = at->after) {
            looked++;
            if (at->is_health && healthy++ < HEALTH_PLACES) {
                continue;
            }
            const int score = expendable(at);
            if (score > most) {
                most = score;
                victim = at;
            }
        }
    }
    if (victim) {
        atomic_fetch_add_explicit(&server->evicted, 1, memory_order_relaxed);
        drop(victim);
    }
    return victim;
}

/*
 * Requests were refused because answers that nobody reads fill the memory: their connections end, unknown peers' first,
 * until half of it is free.
 */
static void evict_stalled(struct http_server *server)
{
    static const enum connection_life lives[] = {LIFE_ANSWERING, LIFE_ENDING, LIFE_STREAMING};
    for (int known = 0; known < 2; known++) {
        for (int i = 0; i < 3; i++) {
            struct http_connection *next;
            for (struct http_connection *at = server->queues[lives[i]].first; at; at = next) {
                next = at->after;
                if (atomic_load(&server->budget.used) <= server->budget.most / 2) {
                    return;
                }
                if (is_stalled(at) && at->is_known == (known == 1)) {
                    atomic_fetch_add_explicit(&server->evicted, 1, memory_order_relaxed);
                    drop(at);
                }
            }
        }
    }
}

/*
 * Handlers need not answer those who have left. Who only sends no more looks the same until the answer is sent, and
 * gets HTTP_LEFT_S, or HTTP_STALL_S while other requests wait.
 */
static void drop_leavers(struct http_server *server)
{
    struct http_connection *next;
    const bool is_busy = server->options.is_busy && server->options.is_busy(server->options.context);
    const double most_s = is_busy ? HTTP_STALL_S : HTTP_LEFT_S;
    for (struct http_connection *at = server->queues[LIFE_HANDLED].first; at; at = next) {
        next = at->after;
        if (at->left_s > 0 && server->now_s - fmax(at->left_s, at->since_s) >= most_s) {
            drop(at);
        }
    }
}

static void add_connection(struct http_server *server, int fd, const struct endpoint *from)
{
    struct http_connection *connection = calloc(1, sizeof *connection);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = connection};
    if (connection && server->options.keys) {
        connection->session = web_session_create(server->options.keys, NULL, fd);
    }
    if (connection) {
        connection->peer = caller_enter(server, from);
    }
    if (!connection || !connection->peer || (server->options.keys && !connection->session) ||
        epoll_ctl(server->poll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        if (connection) {
            web_session_destroy(connection->session);
        }
        if (connection && connection->peer) {
            caller_leave(server, connection->peer);
        }
        free(connection);
        close(fd);
        return;
    }
    socket_set_options(fd, from);
    connection->server = server;
    connection->fd = fd;
    connection->events = EPOLLIN | EPOLLRDHUP;
    connection->life = server->options.keys ? LIFE_SHAKING : LIFE_IDLE;
    connection->since_s = server->now_s;
    parse_begin(connection);
    connection_enter(connection);
    atomic_fetch_add(&server->connection_count, 1);
}

/* accepting: false while there are no descriptors. */
static void listen_on(struct http_server *server, bool accepting)
{
    struct epoll_event event = {.events = accepting ? EPOLLIN : 0, .data.ptr = server};
    epoll_ctl(server->poll_fd, EPOLL_CTL_MOD, server->listener, &event);
    server->is_accepting = accepting;
}

static void accept_some(struct http_server *server)
{
    for (int i = 0; i < ACCEPTED_AT_ONCE; i++) {
        struct endpoint from;
        struct error error;
        int fd;
        switch (socket_accept(server->listener, &fd, &from, &error)) {
        case SOCKET_NONE:
            return;
        case SOCKET_FAILED:
            if (!evict(server)) {
                listen_on(server, false);
                return;
            }
            break;
        case SOCKET_ACCEPTED:
            if (atomic_load(&server->connection_count) >= server->most_connections && !evict(server)) {
                close(fd);
            } else {
                add_connection(server, fd, &from);
            }
            break;
        }
    }
}

/* --- Time --- */

static void expire(struct http_connection *connection)
{
    const bool moves = connection->moved >= HTTP_MOVE_BYTES;
    switch (connection->life) {
    case LIFE_HEAD:
    case LIFE_BODY:
        if (connection->life == LIFE_BODY && moves) {
            connection_live(connection, LIFE_BODY);
            return;
        }
        connection->refusal = 408;
        connection->refusal_headers = NULL;
        connection->refusal_text = "the request came too slowly";
        refuse_rest(connection);
        if (flush(connection)) {
            connection_watch(connection);
        }
        return;
    case LIFE_ANSWERING:
    case LIFE_ENDING:
    case LIFE_STREAMING:
        if (moves || (connection->life == LIFE_STREAMING && (connection->unsent == 0 || connection->moved > 0))) {
            connection_live(connection, connection->life);
            return;
        }
        break;
    case LIFE_IDLE:
    case LIFE_SHAKING:
    case LIFE_HANDLED:
    case LIFE_LINGERING:
    case LIFE_COUNT:
        break;
    }
    drop(connection);
}

static void tick(struct http_server *server)
{
    const time_t now = (time_t)clock_wall_s();
    struct tm parts;
    gmtime_r(&now, &parts);
    strftime(server->date, sizeof server->date, "%a, %d %b %Y %H:%M:%S GMT", &parts);
    for (int life = 0; life < LIFE_COUNT; life++) {
        struct http_connection *first;
        while ((first = server->queues[life].first) && first->deadline_s <= server->now_s) {
            expire(first);
        }
    }
    drop_leavers(server);
    const uint64_t too_busy = atomic_load(&server->budget.later);
    if (too_busy != server->too_busy) {
        server->too_busy = too_busy;
        evict_stalled(server);
    }
    if (!server->is_accepting && !atomic_load(&server->drains)) {
        listen_on(server, true);
    }
    if (server->options.tick) {
        server->options.tick(server->options.context);
    }
}

/* --- Answers from other threads --- */

static void deliver(struct http_request *request)
{
    struct http_connection *connection = request->connection;
    char *headers = request->answer_headers;
    const struct http_answer answer = request->answer;
    if (connection->is_gone) {
        if (answer.release) {
            answer.release(answer.owner);
        }
        budget_release(&connection->account, answer.charged);
        request_free(request);
        connection->request = NULL;
        defer_free(connection);
    } else {
        answer_now(connection, &answer);
        move_on(connection);
    }
    free(headers);
}

static void deliver_all(struct http_server *server)
{
    wake_lower(&server->wake);
    pthread_mutex_lock(&server->mutex);
    struct http_request *newest = server->answered, *oldest = NULL;
    server->answered = NULL;
    pthread_mutex_unlock(&server->mutex);
    while (newest) { /* in the order of their answers */
        struct http_request *next = newest->next_answered;
        newest->next_answered = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest) {
        struct http_request *next = oldest->next_answered;
        deliver(oldest);
        oldest = next;
    }
}

/* --- The thread --- */

static void take_event(struct http_server *server, const struct epoll_event *event)
{
    if (event->data.ptr == server) {
        accept_some(server);
    } else if (event->data.ptr == &server->wake) {
        deliver_all(server);
    } else {
        on_event(event->data.ptr, event->events);
    }
}

static void drain(struct http_server *server)
{
    if (server->is_accepting) {
        listen_on(server, false);
    }
    if (!server->has_drained) { /* the last events, while clients are still connected */
        server->has_drained = true;
        tick(server);
    }
    while (server->queues[LIFE_IDLE].first) {
        drop(server->queues[LIFE_IDLE].first);
    }
}

static void *run(void *context)
{
    struct http_server *server = context;
    if (server->options.low_priority) {
        threads_give_way();
    } else {
        threads_run_soon();
    }
    while (!atomic_load(&server->stops)) {
        struct epoll_event events[EVENTS];
        const double left_s = server->ticked_s + 1 - clock_monotonic_s();
        const int count = epoll_wait(server->poll_fd, events, EVENTS, left_s > 0 ? (int)(left_s * 1e3) + 1 : 0);
        server->now_s = clock_monotonic_s();
        for (int i = 0; i < count; i++) {
            take_event(server, &events[i]);
        }
        if (server->now_s >= server->ticked_s + 1) {
            server->ticked_s = server->now_s;
            tick(server);
        }
        if (atomic_load(&server->drains)) {
            drain(server);
        }
        free_dead(server);
    }
    return NULL;
}

/* --- Create and destroy --- */

/* As many connections as there are spare descriptors; the limit is raised as far as allowed. */
static int most_connections(const struct http_options *options)
{
    const int wanted = options->most_connections > 0 ? options->most_connections
                       : options->keys               ? HTTP_TLS_CONNECTIONS
                                                     : HTTP_CONNECTIONS;
    const rlim_t needed = (rlim_t)wanted + SPARE_DESCRIPTORS;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return FEWEST_CONNECTIONS;
    }
    if (limit.rlim_cur < needed) {
        limit.rlim_cur = limit.rlim_max < needed ? limit.rlim_max : needed;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur >= needed) {
        return wanted;
    }
    return limit.rlim_cur > SPARE_DESCRIPTORS + FEWEST_CONNECTIONS ? (int)(limit.rlim_cur - SPARE_DESCRIPTORS)
                                                                   : FEWEST_CONNECTIONS;
}

static bool add_to_poll(struct http_server *server, int fd, void *mark)
{
    return epoll_ctl(server->poll_fd, EPOLL_CTL_ADD, fd, &(struct epoll_event){EPOLLIN, {.ptr = mark}}) == 0;
}

/* Signals are for the program's other threads. */
static bool begin_thread(struct http_server *server)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    server->has_thread = pthread_create(&server->thread, NULL, run, server) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return server->has_thread;
}

bool http_server_start(struct http_server **out, const struct http_options *options, struct error *error)
{
    struct http_server *server = calloc(1, sizeof *server);
    if (!server || sodium_init() < 0) {
        free(server);
        return error_set(error, "out of memory");
    }
    *server = (struct http_server){.options = *options, .listener = -1, .poll_fd = -1, .wake = {-1}};
    server->budget.most = options->most_bytes;
    server->budget.setting = options->memory_setting;
    server->now_s = clock_monotonic_s();
    server->most_connections = most_connections(options);
    server->is_accepting = true;
    pthread_mutex_init(&server->mutex, NULL);
    server->scratch = malloc(READ_BYTES);
    server->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    bool done = server->scratch && server->poll_fd >= 0 ? true : error_set(error, "out of memory or descriptors");
    server->listener = options->listener > 0 ? options->listener : -1;
    done = done && wake_create(&server->wake, error) &&
           (server->listener >= 0 || socket_listen(&server->listener, options->host, options->port, error));
    if (done && (!add_to_poll(server, server->wake.fd, &server->wake) ||
                 !add_to_poll(server, server->listener, server) || !begin_thread(server))) {
        done = error_set(error, "can't serve HTTP: out of memory or threads");
    }
    if (!done) {
        http_server_stop(server);
        return false;
    }
    *out = server;
    return true;
}

void http_server_drain(struct http_server *server, double deadline_s)
{
    atomic_store(&server->drains, true);
    wake_raise(&server->wake);
    while (atomic_load(&server->connection_count) > 0 && clock_monotonic_s() < deadline_s) {
        clock_pause(fmin(deadline_s, clock_monotonic_s() + 0.01));
    }
}

void http_server_stop(struct http_server *server)
{
    if (!server) {
        return;
    }
    if (server->has_thread) {
        atomic_store(&server->stops, true);
        wake_raise(&server->wake);
        pthread_join(server->thread, NULL);
        deliver_all(server);
    }
    for (int life = 0; life < LIFE_COUNT; life++) {
        while (server->queues[life].first) {
            drop(server->queues[life].first);
        }
    }
    free_dead(server);
    requests_free_spare(server);
    wake_destroy(&server->wake);
    if (server->listener >= 0) {
        close(server->listener);
    }
    if (server->poll_fd >= 0) {
        close(server->poll_fd);
    }
    pthread_mutex_destroy(&server->mutex);
    free(server->scratch);
    free(server);
}

uint16_t http_server_port(const struct http_server *server)
{
    return socket_port(server->listener);
}

void http_server_counts(const struct http_server *server, struct http_counts *counts)
{
    *counts = (struct http_counts){.requests = atomic_load(&server->requests),
                                   .refused = atomic_load(&server->refused),
                                   .bytes_in = atomic_load(&server->bytes_in),
                                   .bytes_out = atomic_load(&server->bytes_out),
                                   .evicted = atomic_load(&server->evicted),
                                   .connections = atomic_load(&server->connection_count),
                                   .streams = atomic_load(&server->stream_count),
                                   .memory = atomic_load(&server->budget.used),
                                   .most_memory = server->budget.most,
                                   .peak_memory = atomic_load(&server->budget.peak),
                                   .too_large = atomic_load(&server->budget.never),
                                   .too_busy = atomic_load(&server->budget.later)};
}
