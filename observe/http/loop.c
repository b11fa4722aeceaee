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
#include <signal.h>
#include <stdio.h>
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
#include "base/log.h"
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
};

static double time_for(enum connection_life life)
{
    static const int seconds[LIFE_COUNT] = {
        [LIFE_IDLE] = HTTP_IDLE_S,      [LIFE_SHAKING] = HTTP_HEAD_S, [LIFE_HEAD] = HTTP_HEAD_S,
        [LIFE_BODY] = HTTP_MOVE_S,      [LIFE_HANDLED] = 0,           [LIFE_ANSWERING] = HTTP_MOVE_S,
        [LIFE_STREAMING] = HTTP_MOVE_S, [LIFE_ENDING] = HTTP_MOVE_S,  [LIFE_LINGERING] = HTTP_LINGER_S};
    return seconds[life] == 0 ? (double)INFINITY : seconds[life];
}

/* --- Memory --- */

bool server_hold(struct http_server *server, size_t bytes)
{
    if (bytes > server->options.most_bytes - server->held) {
        return false;
    }
    server->held += bytes;
    return true;
}

void server_let_go(struct http_server *server, size_t bytes)
{
    assert(bytes <= server->held);
    server->held -= bytes;
}

/* --- Lives --- */

static void leave_queue(struct http_connection *connection)
{
    struct queue *queue = &connection->server->queues[connection->life];
    *(connection->before ? &connection->before->after : &queue->first) = connection->after;
    *(connection->after ? &connection->after->before : &queue->last) = connection->before;
}

static void enter_queue(struct http_connection *connection)
{
    struct queue *queue = &connection->server->queues[connection->life];
    connection->before = queue->last;
    connection->after = NULL;
    *(queue->last ? &queue->last->after : &queue->first) = connection;
    queue->last = connection;
}

static void watch_for(struct http_connection *connection, uint32_t events)
{
    if (events != connection->events) {
        connection->events = events;
        struct epoll_event event = {.events = events, .data.ptr = connection};
        epoll_ctl(connection->server->poll_fd, EPOLL_CTL_MOD, connection->fd, &event);
    }
}

void connection_watch(struct http_connection *connection)
{
    static const uint32_t wanted[LIFE_COUNT] = {
        [LIFE_IDLE] = EPOLLIN, [LIFE_SHAKING] = EPOLLIN,   [LIFE_HEAD] = EPOLLIN,
        [LIFE_BODY] = EPOLLIN, [LIFE_STREAMING] = EPOLLIN, [LIFE_LINGERING] = EPOLLIN};
    const bool writes = connection->first || connection->life == LIFE_ENDING ||
                        (connection->session && web_session_wants_write(connection->session));
    const uint32_t events = wanted[connection->life] | (writes ? (uint32_t)EPOLLOUT : 0);
    /*
     * Most peers send nothing while they wait for an answer, so it does not matter that epoll would report it
     * (on_event).
     */
    if (connection->life != LIFE_HANDLED || writes || connection->events != EPOLLIN) {
        watch_for(connection, events);
    }
}

void connection_live(struct http_connection *connection, enum connection_life life)
{
    leave_queue(connection);
    connection->life = life;
    connection->deadline_s = connection->server->now_s + time_for(life);
    connection->moved = 0;
    enter_queue(connection);
}

static void let_pending_go(struct http_connection *connection)
{
    server_let_go(connection->server, connection->pending_size);
    free(connection->pending);
    connection->pending = NULL;
    connection->pending_size = 0;
}

static void bury(struct http_connection *connection)
{
    connection->after = connection->server->dead;
    connection->server->dead = connection;
}

static void drop(struct http_connection *connection)
{
    struct http_server *server = connection->server;
    const bool is_kept = connection->life == LIFE_HANDLED; /* by a handler, whose answer will be discarded */
    leave_queue(connection);
    if (connection->life == LIFE_STREAMING) {
        atomic_fetch_sub(&server->stream_count, 1);
        connection->stream.closed(connection->stream.owner, &connection->stream);
    }
    output_free(connection);
    let_pending_go(connection);
    web_session_destroy(connection->session);
    connection->session = NULL;
    close(connection->fd);
    connection->is_gone = true;
    atomic_fetch_sub(&server->connection_count, 1);
    if (!is_kept) {
        request_free(connection->request);
        connection->request = NULL;
        bury(connection);
    }
}

static void free_dead(struct http_server *server)
{
    while (server->dead) {
        struct http_connection *next = server->dead->after;
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
    uint8_t *copy = server_hold(connection->server, size) ? malloc(size) : NULL;
    if (!copy) {
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
    server_let_go(connection->server, size); /* the rest is counted again */
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
    if (!connection->is_gone && (events & (EPOLLERR | EPOLLHUP)) && !(events & EPOLLIN)) {
        drop(connection);
    } else if (connection->life == LIFE_HANDLED && (events & EPOLLIN)) {
        watch_for(connection, 0); /* what arrives meanwhile is read after the answer */
    } else {
        move_on(connection);
    }
}

/* --- Connections come --- */

static bool evict(struct http_server *server)
{
    struct http_connection *oldest = server->queues[LIFE_IDLE].first;
    oldest = oldest ? oldest : server->queues[LIFE_LINGERING].first;
    oldest = oldest ? oldest : server->queues[LIFE_SHAKING].first;
    oldest = oldest ? oldest : server->queues[LIFE_HEAD].first;
    if (oldest) {
        drop(oldest);
    }
    return oldest;
}

static void add_connection(struct http_server *server, int fd, const struct endpoint *from)
{
    struct http_connection *connection = calloc(1, sizeof *connection);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (connection && server->options.keys) {
        connection->session = web_session_create(server->options.keys, NULL, fd);
    }
    if (!connection || (server->options.keys && !connection->session) ||
        epoll_ctl(server->poll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        if (connection) {
            web_session_destroy(connection->session);
        }
        free(connection);
        close(fd);
        return;
    }
    socket_set_options(fd, from);
    connection->server = server;
    connection->fd = fd;
    connection->events = EPOLLIN;
    connection->life = server->options.keys ? LIFE_SHAKING : LIFE_IDLE;
    connection->deadline_s = server->now_s + time_for(connection->life);
    parse_begin(connection);
    enter_queue(connection);
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
        request_free(request);
        connection->request = NULL;
        bury(connection);
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

static void let_go(struct http_server *server)
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
    if (server->options.gives_way) {
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
            let_go(server);
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
                                   .connections = atomic_load(&server->connection_count),
                                   .streams = atomic_load(&server->stream_count)};
}
