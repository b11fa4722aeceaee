/*
 * Deadlines, buffers and names: everything about a connection that is the same for TLS and plain TCP.
 *
 * Small writes gather in the out buffer, so that a frame's header, message and first rows leave in one send. Plain TCP
 * sends what is large straight from where it lies, and receives to where it belongs; TLS turns it into records in the
 * out buffer, 80 KiB at a time, which is a quarter faster than a send for each record. In shared memory a write is a
 * copy into the ring, and a read one out of it: only small parts of messages pass through the in buffer, too.
 */
#include "net/connection.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/memory.h"
#include "base/simulation.h"
#include "net/local.h"
#include "net/transport.h"

/* TLS records are sent once this many bytes have gathered: the peer decrypts these while we encrypt the next ones. */
enum { SEND_BYTES = 100 * 1024 };

/* In shared memory looking again costs nothing: little is read ahead, and only by reads that are small themselves. */
enum { LOCAL_SMALL = 512, LOCAL_AHEAD = 4096 };

/* What a fatal TLS alert looks like: "insufficient security", sent to a peer that can't be spoken to. */
static const uint8_t plain_alert[] = {0x15, 3, 3, 0, 2, 2, 71};

ptrdiff_t transport_fail(struct connection *connection, enum connection_state state, struct error *error,
                         const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    connection->state = state;
    return TRANSPORT_FAILED;
}

/* Was the peer's key revoked since the handshake? Then nothing more is read or written, not even what has come. */
static bool is_cut(struct connection *connection, struct error *error)
{
    char why[512];
    if (!atomic_load_explicit(&connection->watch.is_cut, memory_order_relaxed)) {
        return false;
    }
    const bool is_known = revocations_name(connection->watch.revocations, &connection->watch.peer, why, sizeof why);
    transport_fail(connection, CONNECTION_BROKEN, error, "the connection with %s is cut: %s", connection->name,
                   is_known ? why : "its key was revoked");
    return true;
}

/* As recvmsg and sendmsg, wherever the connection's bytes travel. */
static ssize_t receive_bytes(const struct connection *connection, struct iovec *parts, uint16_t count)
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    return connection->local ? local_receive(connection->local, connection->fd, parts, count)
                             : recvmsg(connection->fd, &message, 0);
}

static ssize_t send_bytes(const struct connection *connection, struct iovec *parts, uint16_t count)
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    return connection->local ? local_send(connection->local, connection->fd, parts, count)
                             : sendmsg(connection->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* As wake_wait, wherever the connection's bytes travel. */
static enum wake_result wait_bytes(const struct connection *connection, short events, double deadline_s)
{
    if (connection->local) {
        if (!local_must_wait(connection->local, connection->fd, (events & POLLOUT) != 0)) {
            return WAKE_READY;
        }
        events = POLLIN;
    }
    return wake_wait(connection->fd, events, connection->wake, deadline_s);
}

void transport_send_now(const struct connection *connection, const void *bytes, size_t size)
{
    struct iovec part = {(void *)(uintptr_t)bytes, size} /* which only receiving would change */;
    ssize_t ignored = send_bytes(connection, &part, 1);
    (void)ignored;
}

/* How much of what has come may go into the in buffer, behind what is in it. */
static size_t ahead_of(const struct connection *connection, size_t size)
{
    const size_t room = CONNECTION_BUFFER - connection->in_end;
    return !connection->local ? room : size >= LOCAL_SMALL ? 0 : room < LOCAL_AHEAD ? room : LOCAL_AHEAD;
}

static ptrdiff_t reject_mismatch(struct connection *connection, struct error *error)
{
    transport_send_now(connection, plain_alert, sizeof plain_alert);
    return transport_fail(
        connection, CONNECTION_BROKEN, error,
        connection->transport->begins_as_tls
            ? "%s speaks plain text, but this side TLS: was one of the two started with --insecure?"
            : "%s speaks TLS, but this side was started with --insecure: give both sides the fleet key",
        connection->name);
}

/* What is in the in buffer moves to its beginning, so that there is room behind it. */
static void compact(struct connection *connection)
{
    size_t waiting = connection->in_end - connection->in_start;
    if (connection->in_start > 0 && waiting > 0) {
        memmove(connection->in, connection->in + connection->in_start, waiting);
    }
    connection->in_start = 0;
    connection->in_end = waiting;
}

/*
 * True if the deadline had passed at the previous read, which then was the last. One more read after the deadline finds
 * what arrived while this thread was descheduled; a peer that keeps sending does not keep its thread.
 */
static bool was_late(struct due *due, double deadline_s, double now_s)
{
    const bool late = due->late && due->deadline_s == deadline_s;
    *due = (struct due){deadline_s, now_s >= deadline_s};
    return late;
}

/* From here on what comes counts against this deadline. */
static void begin_reading(struct connection *connection, double deadline_s)
{
    if (connection->in_due.deadline_s != deadline_s) {
        connection->in_due = (struct due){deadline_s, false};
    }
}

/* Has the peer had its time, or its bytes, with what it just sent? */
static bool sends_too_long(struct connection *connection, struct error *error)
{
    if (was_late(&connection->in_due, connection->in_due.deadline_s, connection->last_received_s)) {
        transport_fail(connection, CONNECTION_TIMED_OUT, error, "%s did not finish sending in time", connection->name);
        return true;
    }
    if (connection->shaking && connection_bytes_in(connection) > CONNECTION_HANDSHAKE_BYTES + CONNECTION_BUFFER) {
        transport_fail(connection, CONNECTION_BROKEN, error, "%s sends an endless TLS handshake", connection->name);
        return true;
    }
    return false;
}

ptrdiff_t transport_receive(struct connection *connection, void *bytes, size_t size, struct error *error)
{
    compact(connection);
    assert(size == 0 || connection->in_end == 0);
    struct iovec parts[] = {{bytes, size}, {connection->in + connection->in_end, ahead_of(connection, size)}};
    ssize_t got;
    do {
        got = receive_bytes(connection, size > 0 ? parts : parts + 1, size > 0 ? 2 : 1);
    } while (got < 0 && errno == EINTR);
    if (got == 0) {
        return TRANSPORT_END;
    }
    if (got < 0 && errno == EAGAIN) {
        return TRANSPORT_WANTS;
    }
    if (got < 0) {
        return transport_fail(connection, CONNECTION_BROKEN, error, "lost %s: %s", connection->name, strerror(errno));
    }
    const uint8_t *first = size > 0 ? bytes : connection->in;
    bool looks_like_tls = first[0] == 0x16 || first[0] == 0x15;
    if (connection->bytes_in == 0 && looks_like_tls != connection->transport->begins_as_tls) {
        return reject_mismatch(connection, error);
    }
    connection->last_received_s = clock_monotonic_s();
    atomic_fetch_add_explicit(&connection->bytes_in, (uint64_t)got, memory_order_relaxed);
    if (sends_too_long(connection, error)) {
        return TRANSPORT_FAILED;
    }
    if ((size_t)got > size) {
        connection->in_end += (size_t)got - size;
    }
    return got;
}

/* For what happens on the socket, until the deadline; but no longer than the idle timeout without a sign of life. */
static enum wake_result wait_for(struct connection *connection, short events, double deadline_s)
{
    const double timeout_s = connection->timeout_s;
    if (timeout_s <= 0) {
        return wait_bytes(connection, events, deadline_s);
    }
    double now_s = clock_monotonic_s(), moved_s = now_s;
    size_t unsent = connection_unsent(connection);
    for (;;) {
        double until_s = fmin(deadline_s, fmin(now_s + timeout_s / 8, moved_s + timeout_s));
        enum wake_result how = wait_bytes(connection, events, until_s);
        if (how != WAKE_TIMEOUT) {
            return how;
        }
        size_t still_unsent = connection_unsent(connection);
        now_s = clock_monotonic_s();
        if (still_unsent != unsent) {
            unsent = still_unsent;
            moved_s = now_s;
        }
        if (now_s >= deadline_s || now_s >= moved_s + timeout_s) {
            return how;
        }
    }
}

static bool wait_failed(struct connection *connection, enum wake_result how, const char *format, double started_s,
                        double deadline_s, struct error *error)
{
    if (how == WAKE_RAISED) {
        transport_fail(connection, CONNECTION_WOKEN, error, "the connection with %s was given up", connection->name);
    } else {
        connection->state = CONNECTION_TIMED_OUT;
        char text[32];
        snprintf(text, sizeof text, "%.3g s", fmax(0.0, fmin(deadline_s, clock_monotonic_s()) - started_s));
        error_set(error, format, connection->name, text); /* NOLINT: both callers pass "%s ... %s" */
    }
    return false;
}

bool transport_wait(struct connection *connection, double started_s, double deadline_s, struct error *error)
{
    enum wake_result how = wait_for(connection, POLLIN, deadline_s);
    return how == WAKE_READY ||
           wait_failed(connection, how, "no answer from %s within %s", started_s, deadline_s, error);
}

/* Sends all parts, which it changes, waiting where the socket takes no more. (C libraries disagree about the type of
 * msg_iovlen; a uint16_t fits into each.) */
static bool send_parts(struct connection *connection, struct iovec *parts, uint16_t count, double started_s,
                       double deadline_s, struct error *error)
{
    while (count > 0) {
        ssize_t sent = send_bytes(connection, parts, count);
        if (sent < 0 && errno == EAGAIN) {
            enum wake_result how = wait_for(connection, POLLOUT, deadline_s);
            if (how == WAKE_READY && was_late(&connection->out_due, deadline_s, clock_monotonic_s())) {
                how = WAKE_TIMEOUT;
            }
            if (how != WAKE_READY) {
                return wait_failed(connection, how,
                                   "%s has accepted no data for %s: is it stopped, or do large packets get lost (MTU)?",
                                   started_s, deadline_s, error);
            }
            continue;
        }
        if (sent < 0 && errno != EINTR) {
            const int reason = errno;
            if (is_cut(connection, error)) {
                return false;
            }
            transport_fail(connection, CONNECTION_BROKEN, error, "lost %s: %s", connection->name, strerror(reason));
            return false;
        }
        size_t left = sent < 0 ? 0 : (size_t)sent;
        atomic_fetch_add_explicit(&connection->bytes_out, left, memory_order_relaxed);
        while (count > 0 && left >= parts->iov_len) {
            left -= parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            parts->iov_base = (uint8_t *)parts->iov_base + left;
            parts->iov_len -= left;
        }
    }
    return true;
}

bool transport_flush(struct connection *connection, double started_s, double deadline_s, struct error *error)
{
    struct iovec part = {connection->out + connection->out_start, connection->out_end - connection->out_start};
    connection->out_start = connection->out_end = 0; /* what can't be sent is lost with the connection */
    if (connection->local) {
        local_publish(connection->local, connection->fd);
        return true;
    }
    return send_parts(connection, &part, part.iov_len > 0, started_s, deadline_s, error);
}

/* Buffers for the next connections. None in the simulator, where a machine that dies takes all its memory with it. */
enum { IDLE = SMALLER(CONNECTION_IDLE, 0) };
static _Atomic(uint8_t *) idle[CONNECTION_IDLE];

static bool take_buffers(struct connection *connection)
{
    const size_t size = 2 * (size_t)CONNECTION_BUFFER;
    uint8_t *buffers = NULL;
    for (int i = 0; i < IDLE && !buffers; i++) {
        buffers = idle[i] ? atomic_exchange(&idle[i], NULL) : NULL;
    }
    if (buffers) {
        sanitizer_unpoison(buffers, size);
    } else {
        buffers = malloc(size);
    }
    connection->in = buffers;
    connection->out = buffers ? buffers + CONNECTION_BUFFER : NULL;
    return buffers;
}

static void return_buffers(struct connection *connection)
{
    uint8_t *buffers = connection->in;
    connection->in = connection->out = NULL;
    connection->in_start = connection->in_end = connection->out_start = connection->out_end = 0;
    if (!buffers) {
        return;
    }
    sanitizer_poison(buffers, 2 * (size_t)CONNECTION_BUFFER);
    for (int i = 0; i < IDLE; i++) {
        uint8_t *nothing = NULL;
        if (!idle[i] && atomic_compare_exchange_strong(&idle[i], &nothing, buffers)) {
            return;
        }
    }
    free(buffers);
}

static struct connection *create(int fd, const char *peer, const struct wake *wake)
{
    struct connection *connection = calloc(1, sizeof *connection);
    if (!connection || !take_buffers(connection)) {
        free(connection);
        return NULL;
    }
    connection->transport = &transport_plain;
    connection->fd = fd;
    connection->wake = wake;
    connection->last_received_s = clock_monotonic_s();
    snprintf(connection->peer, sizeof connection->peer, "%s", peer);
    snprintf(connection->name, sizeof connection->name, "%s", peer);
    return connection;
}

bool connection_is_empty(const struct connection *connection)
{
    return connection->in_end == connection->in_start && connection->transport->pending(connection, NULL) == 0 &&
           connection->out_end == connection->out_start &&
           (!connection->transport->gathered || connection->transport->gathered(connection) == 0);
}

/* Without waiting: has something come by shared memory since the last look? If not, the socket will show it. */
static bool has_come_locally(const struct connection *connection)
{
    return connection->local && !local_must_wait(connection->local, connection->fd, false);
}

bool connection_park(struct connection *connection)
{
    assert(connection->state == CONNECTION_OPEN);
    if (!connection_is_empty(connection) || has_come_locally(connection)) {
        return false;
    }
    return_buffers(connection);
    return true;
}

bool connection_resume(struct connection *connection, struct error *error)
{
    return connection->in || take_buffers(connection) ||
           error_set(error, "out of memory for the connection with %s", connection->name);
}

void connection_rename(struct connection *connection, const struct member *member)
{
    char text[MEMBER_TEXT];
    member_format(member, ' ', text);
    snprintf(connection->name, sizeof connection->name, text[0] ? "%s (%s)" : "%s%s", text, connection->peer);
}

/* credentials NULL: it stays plain. */
static bool open_transport(struct connection *connection, const struct credentials *credentials,
                           const struct member *expected, bool server, double deadline_s, struct error *error)
{
    connection->transport = credentials ? &transport_tls : &transport_plain;
    begin_reading(connection, deadline_s);
    connection->shaking = true;
    const bool done = !connection->transport->open ||
                      connection->transport->open(connection, credentials, expected, server, deadline_s, error);
    connection->shaking = false;
    return done;
}

bool connection_connect(struct connection **connection, const struct address *address, const struct member *expected,
                        const struct credentials *credentials, const struct wake *wake, double deadline_s,
                        struct error *error)
{
    static const struct member any = {MEMBER_NONE, MEMBER_ANY_INDEX};
    int fd;
    char text[ENDPOINT_TEXT];
    *connection = NULL;
    if (!socket_connect(&fd, address, wake, deadline_s, error)) {
        return false;
    }
    endpoint_format_address(address, text);
    struct connection *new = create(fd, text, wake);
    if (!new) {
        close(fd);
        return error_set(error, "out of memory for a connection to %s", text);
    }
    if (!expected) {
        expected = &any;
    }
    connection_rename(new, expected);
    if (!open_transport(new, credentials, expected, false, deadline_s, error)) {
        connection_close(new);
        return false;
    }
    *connection = new;
    return true;
}

/*
 * A peer that was refused must be able to read why: closing a socket that still has data to be read would send a
 * reset, and that overtakes the alert. So what still comes is thrown away, for a moment.
 */
static void drain_input(struct connection *connection)
{
    enum { MOST_BYTES = 256 * 1024 };
    double deadline_s = clock_monotonic_s() + 0.5;
    size_t dropped = 0;
    shutdown(connection->fd, SHUT_WR);
    while (dropped < MOST_BYTES && wake_wait(connection->fd, POLLIN, connection->wake, deadline_s) == WAKE_READY) {
        ssize_t got = recv(connection->fd, connection->in, CONNECTION_BUFFER, 0);
        if (got <= 0) {
            break;
        }
        dropped += (size_t)got;
    }
}

bool connection_serve(struct connection **connection, int fd, const char *peer, const struct credentials *credentials,
                      const struct wake *wake, double deadline_s, struct error *error)
{
    *connection = create(fd, peer, wake);
    if (!*connection) {
        return error_set(error, "out of memory for a connection from %s", peer);
    }
    if (!open_transport(*connection, credentials, NULL, true, deadline_s, error)) {
        if ((*connection)->state == CONNECTION_BROKEN) {
            drain_input(*connection);
        }
        return error_wrap(error, "refused %s", peer);
    }
    return true;
}

void connection_close(struct connection *connection)
{
    if (!connection) {
        return;
    }
    if (connection->state == CONNECTION_OPEN && !connection->in && !take_buffers(connection)) {
        connection->state = CONNECTION_BROKEN; /* without memory there is no close_notify */
    }
    connection->transport->close(connection, connection->state == CONNECTION_OPEN);
    if (connection->state == CONNECTION_OPEN && connection->out_end > connection->out_start) {
        transport_send_now(connection, connection->out + connection->out_start,
                           connection->out_end - connection->out_start);
    }
    if (connection->state == CONNECTION_OPEN && connection->local) {
        local_publish(connection->local, connection->fd);
    }
    revocations_forget(&connection->watch);
    close(connection->fd);
    local_free(connection->local);
    return_buffers(connection);
    free(connection);
}

bool connection_is_local(const struct connection *connection)
{
    return connection->local;
}

bool connection_read(struct connection *connection, void *bytes, size_t size, double deadline_s, struct error *error)
{
    double started_s = -1.0; /* of waiting: what lies in the buffer costs no look at the clock */
    uint8_t *next = bytes;
    assert(connection->state == CONNECTION_OPEN);
    begin_reading(connection, deadline_s);
    while (size > 0) {
        ptrdiff_t got = connection->transport->read(connection, next, size, error);
        if (is_cut(connection, error)) {
            return false;
        }
        if (got > 0) {
            next += got;
            size -= (size_t)got;
            continue;
        }
        if (got == TRANSPORT_END) {
            transport_fail(connection, CONNECTION_CLOSED, error, "%s closed the connection", connection->name);
            return false;
        }
        started_s = started_s < 0.0 ? clock_monotonic_s() : started_s;
        if (got == TRANSPORT_FAILED || !transport_wait(connection, started_s, deadline_s, error)) {
            return false;
        }
    }
    return true;
}

/* TLS: turns the part into records, sending the out buffer whenever the next one might not fit. */
static bool write_encoded(struct connection *connection, const uint8_t *bytes, size_t size, double started_s,
                          double deadline_s, struct error *error)
{
    while (size > 0) {
        if (connection->out_end + connection->transport->room > SEND_BYTES &&
            !transport_flush(connection, started_s, deadline_s, error)) {
            return false;
        }
        ptrdiff_t taken = connection->transport->write(connection, bytes, size, error);
        if (taken < 0) {
            return false;
        }
        bytes += taken;
        size -= (size_t)taken;
    }
    return true;
}

/*
 * Plain TCP: small parts gather in the out buffer; a large one leaves from where it lies, right after them. In shared
 * memory all gather where the peer reads them.
 */
static bool write_plain(struct connection *connection, const struct iovec *part, double started_s, double deadline_s,
                        struct error *error)
{
    size_t used = connection->out_end - connection->out_start;
    if (!connection->local && part->iov_len <= CONNECTION_BUFFER / 4 &&
        connection->out_end + part->iov_len <= CONNECTION_BUFFER) {
        copy_bytes(connection->out + connection->out_end, part->iov_base, part->iov_len);
        connection->out_end += part->iov_len;
        return true;
    }
    struct iovec both[] = {{connection->out + connection->out_start, used}, *part};
    connection->out_start = connection->out_end = 0;
    return send_parts(connection, both, 2, started_s, deadline_s, error);
}

bool connection_write_more(struct connection *connection, const struct iovec *parts, int count, double deadline_s,
                           struct error *error)
{
    double started_s = clock_monotonic_s();
    assert(connection->state == CONNECTION_OPEN);
    if (is_cut(connection, error)) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        if (parts[i].iov_len == 0) {
            continue;
        }
        bool written = connection->transport->write ? write_encoded(connection, parts[i].iov_base, parts[i].iov_len,
                                                                    started_s, deadline_s, error)
                                                    : write_plain(connection, &parts[i], started_s, deadline_s, error);
        if (!written) {
            return false;
        }
    }
    return true;
}

bool connection_flush(struct connection *connection, double deadline_s, struct error *error)
{
    double started_s = clock_monotonic_s();
    assert(connection->state == CONNECTION_OPEN);
    if (connection->transport->finish) {
        if (connection->out_end + connection->transport->room > CONNECTION_BUFFER &&
            !transport_flush(connection, started_s, deadline_s, error)) {
            return false;
        }
        if (!connection->transport->finish(connection, error)) {
            return false;
        }
    }
    return transport_flush(connection, started_s, deadline_s, error);
}

bool connection_wait(struct connection *connection, double deadline_s, bool *ready, struct error *error)
{
    assert(connection->state == CONNECTION_OPEN);
    begin_reading(connection,
                  INFINITY); /* this wait ends by itself: what comes may be no end of records without data */
    *ready = true;
    for (bool late = false;;) {
        /* Bytes in memory may be half a record, or one without data: TLS looks at them, and nothing is taken. */
        ptrdiff_t got = connection->transport->read(connection, NULL, 0, error);
        if (is_cut(connection, error) || got == TRANSPORT_FAILED) {
            return false;
        }
        if (got == TRANSPORT_END || connection->transport->pending(connection, NULL) > 0) {
            return true;
        }
        enum wake_result how = !late                          ? wait_bytes(connection, POLLIN, deadline_s)
                               : has_come_locally(connection) ? WAKE_READY
                                                              : WAKE_TIMEOUT;
        if (how != WAKE_READY) {
            *ready = false;
            return true;
        }
        late = clock_monotonic_s() >= deadline_s;
    }
}

size_t connection_peek(const struct connection *connection, const uint8_t **bytes)
{
    return connection->transport->pending(connection, bytes);
}

void connection_set_idle_timeout(struct connection *connection, double seconds)
{
    connection->timeout_s = seconds;
}

double connection_last_received_s(const struct connection *connection)
{
    return connection->last_received_s;
}

size_t connection_unsent(const struct connection *connection)
{
    if (connection->local) {
        return local_unsent(connection->local);
    }
    int bytes = 0; /* TIOCOUTQ of a socket (SIOCOUTQ, tcp(7)): what is not acknowledged */
    return ioctl(connection->fd, TIOCOUTQ, &bytes) == 0 && bytes > 0 ? (size_t)bytes : 0;
}

enum connection_state connection_state(const struct connection *connection)
{
    return connection->state;
}

const char *connection_name(const struct connection *connection)
{
    return connection->name;
}

const char *connection_peer(const struct connection *connection)
{
    return connection->peer;
}

struct member connection_credential(const struct connection *connection)
{
    return connection->credential;
}

const char *connection_cipher(const struct connection *connection)
{
    return connection->transport->cipher(connection);
}

uint64_t connection_bytes_in(const struct connection *connection)
{
    return atomic_load_explicit(&connection->bytes_in, memory_order_relaxed);
}

uint64_t connection_bytes_out(const struct connection *connection)
{
    return atomic_load_explicit(&connection->bytes_out, memory_order_relaxed);
}

int connection_fd(const struct connection *connection)
{
    return connection->fd;
}

static ptrdiff_t plain_read(struct connection *connection, void *bytes, size_t size, struct error *error)
{
    size_t waiting = connection->in_end - connection->in_start;
    if (waiting == 0) { /* straight to where it belongs, and what comes behind it into the buffer */
        ptrdiff_t got = transport_receive(connection, bytes, size, error);
        if (got <= 0) {
            return got;
        }
        return size == 0 ? TRANSPORT_WANTS : (size_t)got < size ? got : (ptrdiff_t)size;
    }
    size_t taken = waiting < size ? waiting : size;
    if (taken == 0) {
        return TRANSPORT_WANTS; /* asked for nothing: what has come stays where it is */
    }
    copy_bytes(bytes, connection->in + connection->in_start, taken);
    connection->in_start += taken;
    return (ptrdiff_t)taken;
}

static size_t plain_pending(const struct connection *connection, const uint8_t **bytes)
{
    if (bytes) {
        *bytes = connection->in + connection->in_start;
    }
    return connection->in_end - connection->in_start;
}

static void plain_close(struct connection *connection, bool in_order)
{
    (void)connection, (void)in_order;
}

static const char *plain_cipher(const struct connection *connection)
{
    (void)connection;
    return "plain TCP";
}

static const char *local_cipher(const struct connection *connection)
{
    (void)connection;
    return "shared memory";
}

const struct transport_table transport_plain = {
    .cipher = plain_cipher, .read = plain_read, .pending = plain_pending, .close = plain_close};

/* Nothing is encoded in shared memory either. */
static const struct transport_table transport_local = {
    .cipher = local_cipher, .read = plain_read, .pending = plain_pending, .close = plain_close};

bool connection_move(struct connection *connection, struct local *local, int fd, struct error *error)
{
    assert(connection->state == CONNECTION_OPEN && !connection->local);
    if (!connection_is_empty(connection) || dup2(fd, connection->fd) < 0) { /* the descriptor's number stays */
        close(fd);
        local_free(local);
        return error_set(error, "%s sent something before it moved to shared memory", connection->name);
    }
    close(fd);
    connection->transport->close(connection, false);
    connection->transport = &transport_local;
    connection->local = local;
    return true;
}
