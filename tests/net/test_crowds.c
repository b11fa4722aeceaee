/* A listener by a clock of its test's own, step by step: who has to wait, for how long, and who makes room for whom. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/listener_internal.h"
#include "net/transport.h"
#include "tests/check.h"
#include "tests/net/fleet_key.h"
#include "tests/net/listening.h"

/* --- What the system does --- */

static const double PATIENCE_S = 60; /* with the system, however busy this machine is */

static _Atomic double ahead_s, stopped_s; /* of the true time; when the clock was stopped, 0: it runs */
static atomic_bool has_threads = true, has_room = true, is_impatient;
static atomic_int begun, ended; /* threads */
static atomic_size_t stack_size;

double __real_clock_monotonic_s(void);
double __wrap_clock_monotonic_s(void);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context);
bool __real_accept_queue_park(const struct accept_queue *queue, int fd, void *session, bool for_input);
bool __wrap_accept_queue_park(const struct accept_queue *queue, int fd, void *session, bool for_input);

bool __real_condition_wait_for(pthread_cond_t *condition, pthread_mutex_t *mutex, double seconds);
bool __wrap_condition_wait_for(pthread_cond_t *condition, pthread_mutex_t *mutex, double seconds);

bool __wrap_condition_wait_for(pthread_cond_t *condition, pthread_mutex_t *mutex, double seconds)
{
    return __real_condition_wait_for(condition, mutex, atomic_load(&is_impatient) ? fmin(seconds, 0.001) : seconds);
}

double __wrap_clock_monotonic_s(void)
{
    const double at_s = atomic_load(&stopped_s);
    return (at_s > 0 ? at_s : __real_clock_monotonic_s()) + atomic_load(&ahead_s);
}

/* However busy this machine is, only `advance` lets time go by, until the end of the test or run_clock. */
static void stop_clock(void)
{
    atomic_store(&stopped_s, __real_clock_monotonic_s());
}

static void run_clock(void)
{
    atomic_store(&stopped_s, 0);
}

enum wake_result __real_wake_wait(int fd, short events, const struct wake *wake, double deadline_s);
enum wake_result __wrap_wake_wait(int fd, short events, const struct wake *wake, double deadline_s);

/* While the clock stands, short waits end by the true time: pauses, and those before a session rests. */
enum wake_result __wrap_wake_wait(int fd, short events, const struct wake *wake, double deadline_s)
{
    const double left_s = deadline_s - clock_monotonic_s();
    if (atomic_load(&stopped_s) > 0 && left_s > 0 && left_s < 0.01) {
        usleep((useconds_t)(left_s * 1e6));
        deadline_s = clock_monotonic_s();
    }
    return __real_wake_wait(fd, events, wake, deadline_s);
}

struct task {
    void *(*run)(void *context);
    void *context;
};

static void *run_task(void *context)
{
    const struct task task = *(struct task *)context;
    free(context);
    void *result = task.run(task.context);
    atomic_fetch_add(&ended, 1);
    return result;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context)
{
    size_t size = 0;
    if (attributes) {
        pthread_attr_getstacksize(attributes, &size);
        atomic_store(&stack_size, size);
    }
    if (!atomic_load(&has_threads)) {
        return EAGAIN;
    }
    struct task *task = malloc(sizeof *task);
    assert_non_null(task);
    *task = (struct task){run, context};
    atomic_fetch_add(&begun, 1);
    return __real_pthread_create(thread, attributes, run_task, task);
}

bool __wrap_accept_queue_park(const struct accept_queue *queue, int fd, void *session, bool for_input)
{
    return atomic_load(&has_room) && __real_accept_queue_park(queue, fd, session, for_input);
}

static void advance(double seconds)
{
    atomic_store(&ahead_s, atomic_load(&ahead_s) + seconds);
}

/* --- A listener, and who comes to it --- */

enum {
    MOST = 400,
    EXPECTED = 4,                            /* listening.h's, as are its 8 members */
    SHAKING = EXPECTED + LISTENER_SPARE / 2, /* handshakes of members before others wait */
    PLACES = 8 + EXPECTED + 2 * LISTENER_SPARE,
};

static struct listening owner;
static int fds[MOST], came, log_file, kept_log;
static char log_text[64 * 1024];

static void begin(struct credentials *credentials, int members)
{
    char path[128];
    came = 0;
    owner = (struct listening){.members = members};
    snprintf(path, sizeof path, "%s/log", key_folder);
    fflush(stderr);
    kept_log = dup(2);
    log_file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0600);
    assert_true(kept_log >= 0 && log_file >= 0);
    dup2(log_file, 2);
    listening_create(&owner, credentials, 0);
}

static int begin_plain(void **state)
{
    begin(NULL, 0);
    return 0;
}

static int begin_tls(void **state)
{
    begin(fleet_key, 0);
    return 0;
}

enum { MANY = LISTENER_THREADS + 2 };

/* For more members, whose sessions rest as soon as they have nothing to do. */
static int begin_many(void **state)
{
    begin(NULL, MANY);
    owner.keep_s = 0.0001;
    return 0;
}

/* What the log says so far. */
static const char *said(void)
{
    const ssize_t size = pread(log_file, log_text, sizeof log_text - 1, 0);
    log_text[size > 0 ? size : 0] = '\0';
    return log_text;
}

static int end(void **state)
{
    run_clock();
    listening_destroy(&owner);
    dup2(kept_log, 2);
    close(kept_log);
    close(log_file);
    while (came > 0) {
        close(fds[--came]);
    }
    return 0;
}

static int lines(void)
{
    int count = 0;
    for (const char *at = said(); *at; at++) {
        count += *at == '\n';
    }
    return count;
}

/* One look of the listener's. */
static void look(void)
{
    assert_true(listener_accept(owner.listener, &owner.wake, clock_monotonic_s()));
}

/* Another one comes, a moment after the last, and says nothing. The listener can take it at its next look. */
static void knock(void)
{
    struct pollfd comes = {.fd = owner.listener->fd, .events = POLLIN};
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(listener_port(owner.listener)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    advance(0.001);
    fds[came] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fds[came] >= 0);
    assert_int_equal(connect(fds[came++], (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(poll(&comes, 1, (int)(1000 * PATIENCE_S)), 1);
}

static void knock_and_look(int count)
{
    for (int i = 0; i < count; i++) {
        knock();
        look();
    }
}

static bool is_closed(int i)
{
    char byte;
    const ssize_t got = recv(fds[i], &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return got == 0 || (got < 0 && errno == ECONNRESET);
}

static int count_closed(int from, int to)
{
    int count = 0;
    for (int i = from; i < to; i++) {
        count += is_closed(i);
    }
    return count;
}

/* Looks until so many of these are closed, which is not all at once; returns how many are. */
static int look_until_closed(int from, int to, int count)
{
    const double until_s = __real_clock_monotonic_s() + PATIENCE_S;
    while (count_closed(from, to) < count && __real_clock_monotonic_s() < until_s) {
        look();
        usleep(500);
    }
    return count_closed(from, to);
}

static void await_closed(int from, int to, int count)
{
    assert_int_equal(look_until_closed(from, to, count), count);
}

/* Locked. Sessions that threads serve, all of them still waiting for what their peers say next; otherwise -1. */
static int count_waiting(void)
{
    for (int i = 0; i < owner.listener->used; i++) {
        const struct listener_session *session = session_at(owner.listener, i);
        struct pollfd said = {.fd = session->fd, .events = POLLIN};
        if ((session->state == SESSION_HANDSHAKE || session->state == SESSION_SERVED) && poll(&said, 1, 0) != 0) {
            return -1;
        }
    }
    return owner.listener->serving;
}

/* So many threads serve a session, and have read what its peer said, however slow they were to start. */
static void await_serving(int count)
{
    const double until_s = __real_clock_monotonic_s() + PATIENCE_S;
    int serving;
    do {
        usleep(500);
        pthread_mutex_lock(&owner.lock);
        serving = count_waiting();
        pthread_mutex_unlock(&owner.lock);
    } while (serving != count && __real_clock_monotonic_s() < until_s);
    assert_int_equal(serving, count);
}

/* One that comes as a worker while a thread accepts. */
struct visitor {
    struct channel channel;
    int worker;
    bool welcome;
};

static void *visit(void *context)
{
    struct visitor *visitor = context;
    struct error error;
    visitor->welcome = listening_come_in(&visitor->channel, &owner, visitor->worker, &error);
    return NULL;
}

static void let_in(struct visitor *visitor, int worker)
{
    const int admitted = atomic_load(&owner.admitted);
    pthread_t thread;
    *visitor = (struct visitor){.worker = worker};
    assert_int_equal(pthread_create(&thread, NULL, visit, visitor), 0);
    const double until_s = __real_clock_monotonic_s() + PATIENCE_S;
    while (atomic_load(&owner.admitted) == admitted && __real_clock_monotonic_s() < until_s) {
        look();
        usleep(500);
    }
    pthread_join(thread, NULL);
    assert_true(visitor->welcome);
}

/* --- Tests --- */

/* Where there are no threads, who comes is turned away, and keeps neither a place nor a file. */
TEST_WITH(without_threads, begin_plain, end)
{
    struct visitor visitor;
    stop_clock();
    const int unused = dup(0);
    close(unused);
    atomic_store(&has_threads, false);
    for (int i = 0; i < PLACES + 20; i++) {
        knock_and_look(1);
        await_closed(0, 1, 1);
        close(fds[--came]);
    }
    atomic_store(&has_threads, true);
    const int next = dup(0);
    close(next);
    assert_int_equal(next, unused);
    assert_non_null(strstr(said(), "too many handshakes are in progress"));
    assert_int_equal(lines(), 1);
    let_in(&visitor, 1);
    assert_true(atomic_load(&stack_size) >= 1024 * 1024 && atomic_load(&stack_size) < 4 * 1024 * 1024);
    channel_close(&visitor.channel);
}

/* A silent connection is closed, and logged, once a handshake's time is over. */
TEST_WITH(silent_connections_end, begin_tls, end)
{
    stop_clock();
    knock_and_look(1);
    advance(LISTENER_HANDSHAKE_S - 1);
    look();
    assert_false(is_closed(0));
    knock_and_look(1);
    advance(1.1);
    await_closed(0, came, 1);
    assert_true(is_closed(0));
    assert_non_null(strstr(said(), ": it sent no ClientHello in time\n"));
    advance(LISTENER_HANDSHAKE_S - 1);
    await_closed(0, came, 2);
}

/* Handshakes beyond the limit are queued, in order; once the queue is full the oldest handshake is evicted. */
TEST_WITH(handshakes_are_queued, begin_plain, end)
{
    stop_clock();
    const int before = atomic_load(&begun);
    knock_and_look(SHAKING + EXPECTED);
    assert_int_equal(atomic_load(&begun) - before, SHAKING);
    look();
    assert_int_equal(count_closed(0, came), 0);
    knock_and_look(1); /* the queue is full */
    await_closed(0, came, 1);
    assert_true(is_closed(0));
    assert_int_equal(atomic_load(&begun) - before, SHAKING + 1);
    /* After a while without the end of a handshake, stalled ones are evicted for those in the queue. */
    await_serving(SHAKING);
    advance(LISTENER_UNDER_LOAD_S - 1);
    look();
    look();
    assert_int_equal(count_closed(0, came), 1);
    advance(1.5);
    for (int i = 0; i < EXPECTED; i++) {
        await_closed(1, SHAKING, i + 1);
        assert_true(is_closed(i + 1));
        advance(0.2);
    }
    for (int i = 0; i < 5; i++) {
        look();
        advance(0.2);
    }
    assert_int_equal(count_closed(SHAKING, came), 0);
    assert_non_null(strstr(said(), "its handshake was not finished, and others are waiting"));
}

/* Connections in the queue when the listener ends are closed. */
TEST_WITH(the_queue_closes, begin_plain, end)
{
    stop_clock();
    knock_and_look(SHAKING + EXPECTED);
    listener_end(owner.listener, 0);
    for (int i = 0; i < came; i++) {
        struct pollfd ends = {.fd = fds[i], .events = POLLIN};
        assert_int_equal(poll(&ends, 1, (int)(1000 * PATIENCE_S)), 1);
    }
    assert_int_equal(count_closed(0, came), came);
    assert_string_equal(said(), ""); /* nobody was refused */
}

/* As long as others are admitted, none is evicted for those in the queue. */
TEST_WITH(a_queue_that_moves, begin_plain, end)
{
    struct visitor visitors[2];
    stop_clock();
    knock_and_look(SHAKING - 1);
    let_in(&visitors[0], 1);
    advance(LISTENER_UNDER_LOAD_S - 0.5);
    let_in(&visitors[1], 2);
    knock_and_look(2);
    advance(1);
    for (int i = 0; i < 3; i++) {
        look();
        advance(0.1);
    }
    assert_int_equal(count_closed(0, came), 0);
    channel_close(&visitors[0].channel);
    channel_close(&visitors[1].channel);
}

/* Another one comes, says no more, and is refused for it. */
static void come_for_nothing(void)
{
    knock();
    shutdown(fds[came - 1], SHUT_WR);
    await_closed(came - 1, came, 1);
}

/* One line at once, and the rest of a minute's in another. */
TEST_WITH(refusals_are_counted, begin_tls, end)
{
    stop_clock();
    for (int i = 0; i < 3; i++) {
        come_for_nothing();
    }
    assert_int_equal(lines(), 1);
    advance(59);
    look();
    assert_int_equal(lines(), 1);
    advance(1.1);
    look();
    assert_int_equal(lines(), 2);
    assert_non_null(strstr(said(), "2 more connections in 60 s "));
    come_for_nothing();
    assert_int_equal(lines(), 2);
    listener_end(owner.listener, 0); /* what was only counted is said at the end */
    assert_int_equal(lines(), 3);
    assert_non_null(strstr(said(), "1 more connections in "));
}

/* A crowd that is turned away does not get all of a processor; and a wake is heard at once. */
TEST_WITH(turning_away_takes_its_time, begin_tls, end)
{
    const double begun_s = __real_clock_monotonic_s();
    for (int i = 0; i < 5; i++) {
        come_for_nothing();
    }
    assert_true(__real_clock_monotonic_s() - begun_s >= 4 * 0.005 - 0.002);
    wake_raise(&owner.wake);
    assert_false(listener_accept(owner.listener, &owner.wake, clock_monotonic_s() + 60));
}

/* Without files nobody can be taken: it is said once, and tried again after a pause. */
TEST_WITH(without_files, begin_plain, end)
{
    struct rlimit before;
    struct visitor visitor;
    knock();
    const int next = dup(0);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)next, before.rlim_max}), 0);
    const double begun_s = __real_clock_monotonic_s();
    look();
    look();
    const double took_s = __real_clock_monotonic_s() - begun_s;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_true(took_s >= 0.2);
    assert_int_equal(lines(), 1);
    assert_non_null(strstr(said(), "can't accept connections: Too many open files"));
    assert_false(is_closed(0));
    let_in(&visitor, 1);
    channel_close(&visitor.channel);
}

/* A session that the system can't wait for ends, and the log says why. */
TEST_WITH(without_rest, begin_plain, end)
{
    struct visitor visitor;
    struct error error;
    char byte;
    owner.keep_s = 0.001;
    atomic_store(&has_room, false);
    let_in(&visitor, 1);
    assert_false(connection_read(visitor.channel.connection, &byte, 1, clock_monotonic_s() + PATIENCE_S, &error));
    atomic_store(&has_room, true);
    assert_int_equal(connection_state(visitor.channel.connection), CONNECTION_CLOSED);
    assert_int_equal(atomic_load(&owner.left), 1);
    assert_non_null(strstr(said(), "dropped 127.0.0.1:"));
    assert_non_null(strstr(said(), ": the system is out of resources to wait for it\n"));
    channel_close(&visitor.channel);
}

/* One more comes, says this much, and no more; the listener looks when it has got there. */
static void come_and_say(const uint8_t *bytes, size_t size)
{
    const double until_s = __real_clock_monotonic_s() + PATIENCE_S;
    int on_the_way = 1;
    knock();
    assert_int_equal(send(fds[came - 1], bytes, size, MSG_NOSIGNAL), size);
    while (on_the_way > 0 && __real_clock_monotonic_s() < until_s) {
        assert_int_equal(ioctl(fds[came - 1], SIOCOUTQ, &on_the_way), 0);
    }
    assert_int_equal(on_the_way, 0);
    look();
}

enum { FIRST_BYTES = 11 + HANDSHAKE_TOKEN_SIZE };

static const uint8_t first_bytes[FIRST_BYTES] = {22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}; /* of a hello, without a token */

/* What an unauthenticated peer sends first for TLS, or something else. */
static void come_unauthenticated(bool speaks_tls)
{
    uint8_t bytes[FIRST_BYTES];
    memcpy(bytes, first_bytes, sizeof bytes);
    bytes[0] = speaks_tls ? 22 : 'G';
    come_and_say(bytes, sizeof bytes);
}

/* What a member says first. */
static void come_as_member(void)
{
    uint8_t bytes[FIRST_BYTES];
    memcpy(bytes, first_bytes, sizeof bytes);
    handshake_token_make(credentials_token_keys(fleet_key), bytes + FIRST_BYTES - HANDSHAKE_TOKEN_SIZE);
    come_and_say(bytes, sizeof bytes);
}

static bool ping(struct visitor *visitor)
{
    const struct message_ping message = {.nonce = 5};
    struct error error;
    return channel_call(&visitor->channel, MESSAGE_ping, &message, MESSAGE_pong, clock_monotonic_s() + PATIENCE_S, NULL,
                        &error);
}

/*
 * Members that never finish their handshakes make room for each other, the oldest first; they take no places from
 * unauthenticated peers or from admitted members.
 */
TEST_WITH(a_crowd_of_members, begin_tls, end)
{
    enum { MORE = 8 }; /* than may be in handshakes: half of them are queued */
    struct visitor early, late;
    stop_clock();
    let_in(&early, 1);
    come_unauthenticated(true);
    come_unauthenticated(true);
    for (int i = 0; i < SHAKING + MORE; i++) {
        come_as_member();
    }
    await_closed(2, came, MORE - EXPECTED);
    await_serving(1 + 2 + SHAKING);
    advance(LISTENER_UNDER_LOAD_S + 0.1);
    for (int i = MORE - EXPECTED; i < MORE; i++) {
        await_closed(2, came, i + 1);
        advance(0.2);
    }
    assert_int_equal(count_closed(2, 2 + MORE), MORE);
    assert_int_equal(count_closed(0, 2), 0);
    assert_true(ping(&early));
    run_clock();
    let_in(&late, 2);
    assert_true(ping(&early) && ping(&late));
    channel_close(&early.channel);
    channel_close(&late.channel);
}

/* A full pipe: a thread that logs a line waits until it is read. */
static int begin_full_log(int *kept)
{
    char bytes[4096] = {0};
    int ends[2];
    *kept = dup(2);
    assert_true(*kept >= 0 && pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
    while (write(ends[1], bytes, sizeof bytes) > 0) {
    }
    assert_int_equal(fcntl(ends[1], F_SETFL, 0), 0);
    assert_int_equal(dup2(ends[1], 2), 2);
    close(ends[1]);
    return ends[0];
}

static void end_full_log(int log, int kept)
{
    assert_int_equal(dup2(kept, 2), 2);
    close(kept);
    close(log); /* a waiting thread then writes into a closed pipe: the signal is ignored */
}

static int count_cut(void)
{
    int count = 0;
    pthread_mutex_lock(&owner.lock);
    for (int i = 0; i < owner.listener->used; i++) {
        count += session_at(owner.listener, i)->disconnected;
    }
    pthread_mutex_unlock(&owner.lock);
    return count;
}

/* No more of them make room than others need places, even if one leaves slowly. */
TEST_WITH(one_makes_room_for_one, begin_tls, end)
{
    int kept;
    signal(SIGPIPE, SIG_IGN);
    stop_clock();
    for (int i = 0; i < SHAKING + 1; i++) {
        come_as_member();
    }
    await_serving(SHAKING);
    const int log = begin_full_log(&kept);
    advance(LISTENER_UNDER_LOAD_S + 0.1);
    const int closed = look_until_closed(0, came, 1);
    const bool first = is_closed(0);
    for (int i = 0; i < 5; i++) { /* it can't leave; meanwhile a second one would have been told to */
        advance(0.2);
        look();
    }
    const int cut = count_cut();
    end_full_log(log, kept);
    assert_true(closed == 1 && first);
    assert_int_equal(cut, 1);
}

/* Unauthenticated peers have less time, and the oldest of them leaves, once half of their places are taken. */
TEST_WITH(a_crowd_without_tokens, begin_tls, end)
{
    enum { HALF = LISTENER_SPARE / 2 };
    stop_clock();
    for (int i = 0; i < HALF; i++) {
        come_unauthenticated(true);
    }
    assert_int_equal(count_closed(0, came), 0);
    come_unauthenticated(true);
    await_closed(0, came, 1);
    assert_true(is_closed(0));
    advance(LISTENER_UNDER_LOAD_S + 1);
    for (int i = 1; i < came; i++) {
        assert_int_equal(send(fds[i], "x", 1, MSG_NOSIGNAL), 1);
    }
    await_closed(1, came, 1);
    assert_true(is_closed(came - 1));
    advance(LISTENER_HANDSHAKE_S - LISTENER_UNDER_LOAD_S);
    for (int i = 1; i < came - 1; i++) {
        assert_int_equal(send(fds[i], "x", 1, MSG_NOSIGNAL), 1);
    }
    await_closed(0, came, came);
}

/* The rate limit of unauthenticated peers, and what is logged of those beyond it. */
TEST_WITH(the_rate_limit, begin_tls, end)
{
    enum { SHARE = 50 }; /* half of what all may take, in handshakes of the least cost */
    struct visitor visitor;
    stop_clock();
    do {
        advance(0.02);
        come_unauthenticated(true);
    } while (!is_closed(came - 1) && came < 4 * SHARE);
    assert_in_range(came, SHARE + 1, 4 * SHARE - 1); /* it fills up all the while */
    assert_non_null(
        strstr(said(), "no valid handshake token, and unauthenticated handshakes have used up their CPU time\n"));
    come_unauthenticated(false);
    await_closed(came - 1, came, 1);
    assert_non_null(strstr(said(), ": it does not speak TLS\n"));
    let_in(&visitor, 1); /* members come in as ever */
    channel_close(&visitor.channel);
}

static bool any(const struct listener_session *session, const void *context)
{
    return true;
}

/* Of all that are in the one that was heard from least recently is known; who is cut does not count any more. */
TEST_WITH(who_is_silent, begin_plain, end)
{
    static const double last_active_s[] = {7, 5, 6};
    struct visitor visitors[3];
    struct listener_session *sessions[3], *silent;
    uint64_t in, out, heard = 0;
    bool is_recent = true;
    stop_clock();
    for (int i = 0; i < 3; i++) {
        let_in(&visitors[i], i + 1);
        heard += connection_bytes_in(visitors[i].channel.connection);
    }
    do { /* an answer may arrive before its sender has counted it */
        pthread_mutex_lock(&owner.lock);
        listener_bytes(owner.listener, &in, &out);
        pthread_mutex_unlock(&owner.lock);
    } while (out < heard);
    pthread_mutex_lock(&owner.lock);
    const double keep_s = listener_keep_thread_s(owner.listener);
    for (int i = 0; i < 3; i++) {
        sessions[i] = listener_next(owner.listener, i > 0 ? sessions[i - 1] : NULL);
        is_recent = is_recent && sessions[i]->last_active_s <= clock_monotonic_s() &&
                    sessions[i]->last_active_s > clock_monotonic_s() - 10;
        sessions[i]->last_active_s = last_active_s[i];
    }
    listener_bytes(owner.listener, &in, &out);
    for (int i = 0; i < 3; i++) {
        in -= connection_bytes_in(sessions[i]->connection);
        out -= connection_bytes_out(sessions[i]->connection);
    }
    const bool is_last = !listener_next(owner.listener, sessions[2]);
    const int count = listener_count(owner.listener, any, NULL, &silent);
    const bool is_second = silent == sessions[1];
    listener_disconnect(sessions[1]);
    const int left = listener_count(owner.listener, any, NULL, &silent);
    const bool is_third = silent == sessions[2];
    pthread_mutex_unlock(&owner.lock);
    assert_true(is_recent);
    assert_int_equal(in, 0); /* none of them is missing */
    assert_int_equal(out, 0);
    assert_true(keep_s > 0 && is_last && is_second && is_third);
    assert_int_equal(count, 3);
    assert_int_equal(left, 2);
    for (int i = 0; i < 3; i++) {
        channel_close(&visitors[i].channel);
    }
}

/* Looks until a count is what it should be. */
static void look_until(atomic_int *count, int wanted)
{
    const double until_s = __real_clock_monotonic_s() + PATIENCE_S;
    while (atomic_load(count) < wanted && __real_clock_monotonic_s() < until_s) {
        look();
        usleep(500);
    }
    assert_int_equal(atomic_load(count), wanted);
}

/* Looks until a session waits for a thread. */
static void look_until_ready(void)
{
    const double until_s = __real_clock_monotonic_s() + PATIENCE_S;
    int ready;
    do {
        usleep(500);
        look();
        pthread_mutex_lock(&owner.lock);
        ready = owner.listener->ready.count;
        pthread_mutex_unlock(&owner.lock);
    } while (ready == 0 && __real_clock_monotonic_s() < until_s);
    assert_int_equal(ready, 1);
}

/* Half a request: whoever serves it has to wait for the rest. */
static void say_half(const struct visitor *visitor)
{
    assert_int_equal(send(connection_fd(visitor->channel.connection), "half", 4, MSG_NOSIGNAL), 4);
}

static struct listener_session *session_of(int worker)
{
    struct listener_session *session = listener_next(owner.listener, NULL);
    while (session && ((struct listening_session *)(void *)session)->worker != worker) {
        session = listener_next(owner.listener, session);
    }
    assert_non_null(session);
    return session;
}

/* Many that go on at once share some threads; others have theirs once those are slow, or wait for somebody else. */
TEST_WITH(many_share_threads, begin_many, end)
{
    static struct visitor visitors[MANY];
    for (int i = 0; i < MANY; i++) {
        let_in(&visitors[i], i);
    }
    look_until(&owner.parked, MANY);
    stop_clock();
    int served = atomic_load(&owner.served);
    for (int i = 0; i < LISTENER_THREADS; i++) {
        say_half(&visitors[i]);
    }
    look_until(&owner.served, served += LISTENER_THREADS);
    const int threads = atomic_load(&begun);
    say_half(&visitors[LISTENER_THREADS]);
    look_until_ready();
    assert_int_equal(atomic_load(&begun), threads);
    assert_int_equal(atomic_load(&owner.served), served);
    pthread_mutex_lock(&owner.lock);
    const double keep_s = listener_keep_thread_s(owner.listener);
    pthread_mutex_unlock(&owner.lock);
    assert_true(keep_s == 0); /* somebody waits for a thread */
    advance(2 * LISTENER_SLOW_S);
    look_until(&owner.served, served += 1);
    assert_int_equal(atomic_load(&begun), threads + 1);
    advance(-2 * LISTENER_SLOW_S);
    say_half(&visitors[LISTENER_THREADS + 1]);
    look_until_ready();
    assert_int_equal(atomic_load(&begun), threads + 1);
    pthread_mutex_lock(&owner.lock);
    listener_set_waiting(session_of(3), true);
    listener_set_waiting(session_of(4), true);
    pthread_mutex_unlock(&owner.lock);
    look_until(&owner.served, served += 1);
    assert_int_equal(atomic_load(&begun), threads + 2);
    run_clock();
    for (int i = 0; i < MANY; i++) {
        channel_close(&visitors[i].channel);
    }
    const double until_s = __real_clock_monotonic_s() + PATIENCE_S;
    while (atomic_load(&owner.left) < MANY && __real_clock_monotonic_s() < until_s) {
        look();
        usleep(500);
    }
    assert_int_equal(atomic_load(&owner.left), MANY);
}

/* A thread that nobody needs ends, and another one begins when somebody does. */
TEST_WITH(threads_end, begin_many, end)
{
    struct visitor visitor;
    atomic_store(&is_impatient, true);
    let_in(&visitor, 1);
    for (int i = 0; i < 3; i++) {
        const int threads = atomic_load(&begun);
        const struct message_ping ping = {.nonce = 5};
        struct error error;
        look_until(&owner.parked, i + 1);
        look_until(&ended, threads);
        advance(0.2);
        look(); /* it is joined */
        assert_true(channel_send(&visitor.channel, MESSAGE_ping, 1, &ping, clock_monotonic_s() + PATIENCE_S, &error));
        look_until(&begun, threads + 1);
        assert_true(channel_receive(&visitor.channel, clock_monotonic_s() + PATIENCE_S, &error));
    }
    atomic_store(&is_impatient, false);
    channel_close(&visitor.channel);
}

/* owner.parked is counted just before a session is parked: wait until it is. */
static void await_parked(int worker)
{
    const double until_s = __real_clock_monotonic_s() + PATIENCE_S;
    bool rests = false;
    while (!rests && __real_clock_monotonic_s() < until_s) {
        usleep(500);
        pthread_mutex_lock(&owner.lock);
        struct listener_session *session;
        rests =
            listener_count(owner.listener, listening_is_of, &worker, &session) == 1 && session->state == SESSION_PARKED;
        pthread_mutex_unlock(&owner.lock);
    }
    assert_true(rests);
}

/* Who has a time to go on at is served then, once, and nobody else is. */
TEST_WITH(a_time_to_go_on, begin_many, end)
{
    struct visitor visitors[3];
    struct error error;
    const struct message_ping ping = {.nonce = 5};
    stop_clock();
    for (int i = 0; i < 3; i++) {
        let_in(&visitors[i], i);
    }
    look_until(&owner.parked, 3);
    int served = atomic_load(&owner.served);
    for (int i = 1; i < 3; i++) {
        advance(0.6);
        look();
        assert_int_equal(atomic_load(&owner.served), served);
        atomic_store(&owner.timed, i); /* a tenth of a second after its next rest */
        const double until_s = clock_monotonic_s() + PATIENCE_S;
        assert_true(channel_send(&visitors[i].channel, MESSAGE_ping, 1, &ping, until_s, &error));
        look_until(&owner.parked, 2 + 2 * i);
        await_parked(i);
        assert_int_equal(atomic_load(&owner.served), served += 1);
        advance(0.6);
        look();
        look_until(&owner.parked, 3 + 2 * i);
        assert_int_equal(atomic_load(&owner.served), served += 1);
        advance(0.6);
        look();
        usleep(1000);
        assert_int_equal(atomic_load(&owner.served), served);
        assert_true(channel_receive(&visitors[i].channel, until_s, &error));
    }
    for (int i = 0; i < 3; i++) {
        channel_close(&visitors[i].channel);
    }
}

int main(void)
{
    return check_run(make_key, remove_key);
}
