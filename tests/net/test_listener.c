/* A listener serves members while unauthenticated peers come in crowds, send nothing, or send nonsense. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "net/admission.h"
#include "net/credentials.h"
#include "net/tls/tls.h"
#include "tests/check.h"
#include "tests/net/fleet_key.h"
#include "tests/net/listening.h"
#include "tests/net/slow_clock.h"
#include "tests/system.h"

enum { CROWD = 400 };

/* Threads that start late, as on a busy machine: the first from now on by this much, the next by twice that, ... */
static atomic_int late_by_ms, late_threads;

struct late_thread {
    void *(*run)(void *context);
    void *context;
    int late_ms;
};

static void *run_late(void *context)
{
    const struct late_thread late = *(struct late_thread *)context;
    free(context);
    usleep((useconds_t)late.late_ms * 1000);
    return late.run(late.context);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context)
{
    const int by_ms = atomic_load(&late_by_ms);
    if (by_ms == 0) {
        return SYSTEM(pthread_create)(thread, attributes, run, context);
    }
    struct late_thread *late = malloc(sizeof *late);
    assert_non_null(late);
    *late = (struct late_thread){run, context, by_ms * (1 + atomic_fetch_add(&late_threads, 1))};
    return SYSTEM(pthread_create)(thread, attributes, run_late, late);
}

static double soon(void)
{
    return clock_monotonic_s() + LISTENING_PATIENCE_S;
}

static bool come_in(struct channel *channel, const struct listening *owner, int worker, struct error *error)
{
    return listening_come_in(channel, owner, worker, error);
}

static bool ping(struct channel *channel)
{
    struct error error;
    struct message_ping message = {.nonce = 5};
    return channel_call(channel, MESSAGE_ping, &message, MESSAGE_pong, soon(), NULL, &error);
}

/* From an address of this machine. */
static int knock_from(const struct listening *owner, const char *source)
{
    struct sockaddr_in from = {.sin_family = AF_INET};
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(listener_port(owner->listener)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(inet_pton(AF_INET, source, &from.sin_addr), 1);
    assert_int_equal(setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &(int){1}, sizeof(int)), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static int knock(const struct listening *owner)
{
    return knock_from(owner, "127.0.0.1");
}

static bool is_closed(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
}

/* A silent crowd is bounded, keeps no member out, and takes no member's place. */
TEST(silent_crowd)
{
    struct listening owner = {.refusal = 0};
    struct channel early, late;
    struct error error;
    int fds[CROWD], open = 0;
    listening_start(&owner, fleet_key, 0);
    assert_true(come_in(&early, &owner, 1, &error));
    for (int i = 0; i < CROWD; i++) {
        fds[i] = knock(&owner);
    }
    assert_true(come_in(&late, &owner, 2, &error));
    assert_true(ping(&early) && ping(&late));
    const double until_s = soon();
    do { /* until all that were dropped have heard of it */
        open = 0;
        for (int i = 0; i < CROWD; i++) {
            open += !is_closed(fds[i]);
        }
    } while (open > 4 + LISTENER_ACCEPT_QUEUE && clock_monotonic_s() < until_s);
    assert_true(open <= 4 + LISTENER_ACCEPT_QUEUE); /* `expected`, and the spare places */
    assert_true(is_closed(fds[0]));                 /* the oldest are dropped */
    for (int i = 0; i < CROWD; i++) {
        close(fds[i]);
    }
    channel_close(&early);
    channel_close(&late);
    listening_stop(&owner);
    assert_int_equal(atomic_load(&owner.left), 2);
}

/* Only a crowd is dropped: a few slow peers are left alone, although others come. */
TEST(a_few_may_take_their_time)
{
    struct listening owner = {.refusal = 0};
    struct channel channel;
    struct error error;
    uint8_t hello[1024];
    int fds[3];
    listening_start(&owner, fleet_key, 0);
    const size_t size = loopback_hello(fleet_key, hello, sizeof hello);
    for (int i = 0; i < 3; i++) { /* the first sends a token, which is used up when the next ones repeat it */
        fds[i] = knock(&owner);
        assert_int_equal(send(fds[i], hello, size - 1, MSG_NOSIGNAL), size - 1);
    }
    for (int i = 0; i < 3; i++) { /* these come after them */
        assert_true(come_in(&channel, &owner, 1, &error));
        channel_close(&channel);
    }
    for (int i = 0; i < 3; i++) {
        assert_false(is_closed(fds[i]));
        close(fds[i]);
    }
    listening_stop(&owner);
}

/* All bytes of all connections, including those that have ended. */
TEST(bytes_of_all_count)
{
    struct listening owner = {.refusal = 0};
    struct channel channels[2];
    struct error error;
    uint64_t in, out, in_here = 0, out_here = 0;
    listening_start(&owner, NULL, 0);
    pthread_mutex_lock(&owner.lock);
    listener_bytes(owner.listener, &in, &out);
    pthread_mutex_unlock(&owner.lock);
    assert_int_equal(in + out, 0);
    for (int i = 0; i < 2; i++) {
        assert_true(come_in(&channels[i], &owner, i + 1, &error) && ping(&channels[i]));
        in_here += connection_bytes_in(channels[i].connection);
        out_here += connection_bytes_out(channels[i].connection);
    }
    channel_close(&channels[0]);
    while (atomic_load(&owner.left) == 0) {
        usleep(1000);
    }
    do { /* an answer may arrive before its sender has counted it */
        pthread_mutex_lock(&owner.lock);
        listener_bytes(owner.listener, &in, &out);
        pthread_mutex_unlock(&owner.lock);
    } while (out < in_here);
    assert_true(in >= out_here && in < out_here + 200); /* a leaving peer may say so */
    assert_int_equal(out, in_here);
    channel_close(&channels[1]);
    listening_stop(&owner);
}

/* A member's older connection makes room for the newer. */
TEST(the_same_again)
{
    struct listening owner = {.refusal = 0};
    struct channel channels[20];
    struct error error;
    listening_start(&owner, fleet_key, 0);
    for (int i = 0; i < 20; i++) {
        if (!come_in(&channels[i], &owner, 3, &error)) {
            fail_msg("%s", error.text);
        }
    }
    assert_true(ping(&channels[19]));
    for (int i = 0; i < 19; i++) {
        assert_false(ping(&channels[i]));
    }
    for (int i = 0; i < 20; i++) {
        channel_close(&channels[i]);
    }
    listening_stop(&owner);
    assert_int_equal(atomic_load(&owner.admitted), 20);
    assert_int_equal(atomic_load(&owner.left), 20);
}

/* Meanwhile the log goes into a file. */
struct record {
    char path[128], text[64 * 1024];
    int kept, log;
};

static void begin_record(struct record *record)
{
    snprintf(record->path, sizeof record->path, "%s/log", key_folder);
    fflush(stderr);
    record->kept = dup(2);
    record->log = open(record->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(record->kept >= 0 && record->log >= 0);
    dup2(record->log, 2);
}

static void look_at_record(struct record *record)
{
    ssize_t size = pread(record->log, record->text, sizeof record->text - 1, 0);
    record->text[size > 0 ? size : 0] = '\0';
}

static void end_record(struct record *record)
{
    dup2(record->kept, 2);
    close(record->kept);
    look_at_record(record);
    close(record->log);
    unlink(record->path);
}

static int count(const char *text, const char *words)
{
    int found = 0;
    for (; (text = strstr(text, words)); text++) {
        found++;
    }
    return found;
}

/* Nonsense, hundreds of times a second: one line for each cause, and one with the count and the newest address. */
TEST(refusals_are_few_lines)
{
    struct listening owner = {.refusal = 0};
    struct channel channel;
    struct record record;
    struct error error;
    begin_record(&record);
    listening_start(&owner, fleet_key, 0);
    for (int i = 0; i < 300; i++) {
        int fd = knock(&owner);
        send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
        close(fd);
    }
    const bool welcome = come_in(&channel, &owner, 1, &error);
    channel_close(&channel);
    listening_stop(&owner);
    end_record(&record);
    assert_true(welcome);
    assert_true(count(record.text, "\n") <= 2 * 4); /* first bytes, TLS, load, silence */
    assert_true(count(record.text, "more connections in") >= 1);
    assert_true(count(record.text, "; the latest: refused 127.0.0.1:") >= 1);
}

struct crowd {
    const struct listening *owner;
    const char *source;
    const uint8_t *hello;
    size_t size;
    atomic_bool enough;
    atomic_int came;
};

/* They send hello and never more; most of the time they ignore the answers. */
static void *knock_and_say_hello(void *context)
{
    struct crowd *crowd = context;
    struct linger hard = {1, 0};
    while (!atomic_load(&crowd->enough)) {
        int fd = knock_from(crowd->owner, crowd->source);
        ssize_t sent = send(fd, crowd->hello, crowd->size, MSG_NOSIGNAL);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        usleep(500);
        close(fd);
        atomic_fetch_add(&crowd->came, sent > 0);
    }
    return NULL;
}

/* Until it has come, and has used up its share, which takes longer on a slow machine: it fills up again meanwhile. */
static void await_crowd(struct crowd *crowd, struct record *record)
{
    const double until_s = soon();
    do {
        usleep(1000);
        look_at_record(record);
    } while (atomic_load(&crowd->came) < 300 ||
             (count(record->text, "no valid handshake token") == 0 && clock_monotonic_s() < until_s));
}

/* While a crowd asks for handshakes, members are admitted as always, and notice nothing. */
static void serve_under_load(struct credentials *credentials_of_crowd)
{
    enum { MEMBERS = 6 };
    struct listening owner = {.refusal = 0};
    struct channel channels[MEMBERS];
    struct record record;
    struct error error = {""};
    uint8_t hello[1024];
    pthread_t thread;
    int welcome = 0;
    double longest_s = 0;
    begin_record(&record);
    slow_clock_begin();
    listening_start(&owner, fleet_key, 0);
    struct crowd crowd = {&owner, "127.0.0.1", hello, loopback_hello(credentials_of_crowd, hello, sizeof hello), false,
                          0};
    assert_int_equal(pthread_create(&thread, NULL, knock_and_say_hello, &crowd), 0);
    await_crowd(&crowd, &record);
    for (int i = 0; i < MEMBERS; i++) {
        const double begun_s = clock_monotonic_s();
        welcome += come_in(&channels[i], &owner, i, &error);
        longest_s = fmax(longest_s, clock_monotonic_s() - begun_s);
    }
    atomic_store(&crowd.enough, true);
    pthread_join(thread, NULL);
    for (int i = 0; i < MEMBERS; i++) {
        channel_close(&channels[i]);
    }
    listening_stop(&owner);
    slow_clock_end();
    end_record(&record);
    if (welcome != MEMBERS || longest_s > 5) { /* by the slow clock, as are the 10 s of a handshake */
        fail_msg("%d of %d members came in, after %.1f s at the longest: %s", welcome, MEMBERS, longest_s, error.text);
    }
    assert_true(count(record.text, "no valid handshake token") >= 1);
    assert_true(count(record.text, "\n") <= 2 * REJECT_REASONS);
}

TEST(members_are_served_under_load)
{
    struct error error;
    struct credentials *other;
    char path[128];
    snprintf(path, sizeof path, "%s/other.key", key_folder);
    assert_true(credentials_create_fleet_key(path, &error) && credentials_load(&other, path, &error));
    serve_under_load(other);
    credentials_free(other);
    unlink(path);
}

/* An address that takes all it can leaves others their share, though they have no token either. */
TEST(other_addresses_have_their_share)
{
    enum { COME = 8 };
    struct listening owner = {.refusal = 0};
    struct channel channel;
    struct record record;
    struct error error = {""};
    struct credentials *without_token;
    char path[128];
    uint8_t hello[1024];
    pthread_t thread;
    int welcome = 0;
    snprintf(path, sizeof path, "%s/fleet.key", key_folder);
    assert_true(credentials_load(&without_token, path, &error));
    without_token->token_keys.count = 0;
    begin_record(&record);
    listening_start(&owner, fleet_key, 0);
    struct crowd crowd = {&owner, "127.0.0.2", hello, loopback_hello(without_token, hello, sizeof hello), false, 0};
    assert_int_equal(pthread_create(&thread, NULL, knock_and_say_hello, &crowd), 0);
    await_crowd(&crowd, &record);
    owner.credentials = without_token; /* for those that are admitted; the listener has the others */
    for (int i = 0; i < COME; i++) {
        if (come_in(&channel, &owner, 1, &error)) {
            welcome++;
            channel_close(&channel);
        }
    }
    atomic_store(&crowd.enough, true);
    pthread_join(thread, NULL);
    listening_stop(&owner);
    end_record(&record);
    credentials_free(without_token);
    if (welcome != COME) {
        fail_msg("%d of %d came in: %s", welcome, COME, error.text);
    }
    assert_true(count(record.text, "refused 127.0.0.2:") >= 1);
}

/* Eavesdropping is useless: a token counts once. */
TEST(members_are_served_under_replays)
{
    serve_under_load(fleet_key);
}

/* Sends, for TLS, the first bytes of a member with a token, and nothing more. */
static int begin_hello(const struct listening *owner)
{
    uint8_t bytes[11 + HANDSHAKE_TOKEN_SIZE] = {22, 3, 1,    2, 0, 1,
                                                0,  1, 0xfc, 3, 3}; /* up to the hello's random bytes */
    int fd = knock(owner);
    handshake_token_make(credentials_token_keys(fleet_key), bytes + 11);
    assert_int_equal(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    return fd;
}

/* If all places are taken, new peers are turned away; after one has left, the next takes its place. */
TEST(all_places_are_taken)
{
    enum { PLACES = 8 + 4 + 2 * LISTENER_SPARE };
    static struct channel channels[PLACES + 1];
    struct listening owner = {.refusal = 0};
    struct record record;
    struct error error;
    bool welcome = true, again;
    begin_record(&record);
    listening_start(&owner, NULL, 0);
    for (int i = 0; i < PLACES && welcome; i++) {
        atomic_store(&late_by_ms, i < PLACES - 2 ? 0 : 50); /* even so, no more threads than places */
        welcome = come_in(&channels[i], &owner, i, &error);
    }
    atomic_store(&late_by_ms, 0);
    if (!welcome) {
        end_record(&record);
        fail_msg("not everybody came in: %s\n%s", error.text, record.text);
    }
    const bool one_more = come_in(&channels[PLACES], &owner, PLACES, &error);
    channel_close(&channels[0]);
    const double until_s = soon();
    while (!(again = come_in(&channels[0], &owner, PLACES, &error)) && clock_monotonic_s() < until_s) {
        usleep(1000);
    }
    const bool served = again && ping(&channels[0]) && ping(&channels[PLACES - 1]);
    for (int i = 0; i < PLACES; i++) {
        channel_close(&channels[i]);
    }
    listening_stop(&owner);
    end_record(&record);
    assert_true(!one_more && served);
    assert_int_equal(atomic_load(&owner.left), PLACES + 1);
    assert_true(count(record.text, "too many handshakes are in progress") >= 1);
    assert_true(count(record.text, "warning: refused 127.0.0.1:") >= 1);
}

/* TLS failures and refused hellos have a line each, so that one does not hide the other. */
TEST(causes_are_told_apart)
{
    struct listening owner = {.refusal = REFUSAL_CONFIG};
    struct channel channel;
    struct record record;
    struct error error;
    begin_record(&record);
    listening_start(&owner, fleet_key, 0);
    int fd = begin_hello(&owner);
    send(fd, "no end of a hello that TLS could read", 37, MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    const bool welcome = come_in(&channel, &owner, 1, &error);
    const double until_s = soon();
    do { /* the refused peer knows before the log does */
        usleep(1000);
        look_at_record(&record);
    } while (count(record.text, "\n") < 2 && clock_monotonic_s() < until_s);
    close(fd);
    listening_stop(&owner);
    end_record(&record);
    assert_false(welcome);
    assert_int_equal(count(record.text, "\n"), 2);
    assert_int_equal(count(record.text, "refused 127.0.0.1:"), 2);
    assert_int_equal(count(record.text, "nobody is let in"), 1);
}

/* A descriptor that the listener closed may be reused by the time it is destroyed. */
TEST(the_end_closes_once)
{
    struct listening owner = {.refusal = 0};
    int fds[8];
    listening_start(&owner, NULL, 0);
    wake_raise(&owner.wake);
    pthread_join(owner.thread, NULL);
    const double begun_s = clock_monotonic_s();
    listener_end(owner.listener, 30); /* there is nobody to wait for */
    assert_true(clock_monotonic_s() < begun_s + 20);
    for (int i = 0; i < 8; i++) {
        fds[i] = dup(0);
    }
    listener_destroy(owner.listener);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(close(fds[i]), 0);
    }
    wake_destroy(&owner.wake);
    pthread_mutex_destroy(&owner.lock);
}

/* An address that no machine has: nothing of the listener remains, in memory (checked by the sanitizer) or open. */
TEST(nowhere_to_listen)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct listener *listener = NULL;
    struct error error = {""};
    const struct listener_options options = {
        .host = "192.0.2.1",
        .self = {.hello = listening_hello, .idle_timeout_s = 10},
        .lock = &lock,
        .session_size = sizeof(struct listening_session),
        .stack_size = 1024 * 1024,
        .members = 8,
        .expected = 4,
        .begin = listening_begin,
        .admit = listening_admit,
        .serve = listening_serve,
        .leave = listening_leave,
    };
    const int before = dup(0);
    close(before);
    assert_false(listener_create(&listener, &options, &error));
    assert_non_null(strstr(error.text, "can't listen on 192.0.2.1"));
    const int after = dup(0);
    close(after);
    assert_int_equal(after, before);
}

/*
 * The limit of open files is raised as needed, and never lowered; if it can't be, and is too low for the expected
 * peers, the log says so.
 */
TEST(open_files)
{
    enum { NEEDED = 8 + 4 + 2 * LISTENER_SPARE + 4 + LISTENER_ACCEPT_QUEUE };
    struct rlimit before, limit;
    struct record record;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (int i = 0; i < 4; i++) {
        struct listening owner = {.likely = i == 2 ? 300 : 200};
        const rlim_t soft = i == 1 ? NEEDED + 500 : 100;
        limit = (struct rlimit){soft, i >= 2 ? 300 : before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        begin_record(&record);
        listening_start(&owner, NULL, 0);
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
        listening_stop(&owner);
        end_record(&record);
        if (i == 0) {
            assert_in_range(limit.rlim_cur, NEEDED, NEEDED + 100);
        } else {
            assert_int_equal(limit.rlim_cur, i == 1 ? soft : 300);
        }
        assert_int_equal(
            count(record.text, "only 300 files may be open, but all members together need 300 connections"), i == 2);
        assert_int_equal(count(record.text, "\n"), i == 2);
    }
}

/* Whether a peer is still connected can be determined without reading from it. */
TEST(who_hangs_up)
{
    struct listening owner = {.refusal = 0};
    struct channel channels[2];
    struct error error;
    listening_start(&owner, NULL, 0);
    for (int i = 0; i < 2; i++) {
        assert_true(come_in(&channels[i], &owner, i, &error) && ping(&channels[i]));
    }
    pthread_mutex_lock(&owner.lock); /* so that no session can leave the table */
    struct listener_session *first = listener_next(owner.listener, NULL),
                            *second = listener_next(owner.listener, first);
    bool first_gone = listener_peer_hung_up(first), second_gone = listener_peer_hung_up(second);
    pthread_mutex_unlock(&owner.lock);
    assert_false(first_gone || second_gone);
    pthread_mutex_lock(&owner.lock);
    shutdown(connection_fd(channels[1].connection), SHUT_RDWR);
    const double until_s = soon();
    while (!(second_gone = listener_peer_hung_up(second)) && clock_monotonic_s() < until_s) {
        usleep(1000);
    }
    first_gone = listener_peer_hung_up(first);
    pthread_mutex_unlock(&owner.lock);
    assert_true(second_gone && !first_gone);
    for (int i = 0; i < 2; i++) {
        channel_close(&channels[i]);
    }
    listening_stop(&owner);
}

/* Endless sessions are cut after the grace period. */
TEST(the_end_comes)
{
    struct listening owner = {.refusal = 0};
    struct channel channels[4];
    struct error error;
    uint64_t in, out;
    listening_start(&owner, fleet_key, 0);
    for (int i = 0; i < 4; i++) {
        assert_true(come_in(&channels[i], &owner, i + 1, &error));
    }
    pthread_mutex_lock(&owner.lock);
    listener_bytes(owner.listener, &in, &out);
    pthread_mutex_unlock(&owner.lock);
    assert_true(in > 0 && out > 0);
    wake_raise(&owner.wake);
    pthread_join(owner.thread, NULL);
    const double begun_s = clock_monotonic_s();
    listener_end(owner.listener, 0.2);
    assert_true(clock_monotonic_s() >= begun_s + 0.2); /* and not before */
    assert_int_equal(atomic_load(&owner.left), 4);
    for (int i = 0; i < 4; i++) {
        assert_false(ping(&channels[i]));
        channel_close(&channels[i]);
    }
    listener_destroy(owner.listener);
    wake_destroy(&owner.wake);
    pthread_mutex_destroy(&owner.lock);
}

int main(void)
{
    return check_run(make_key, remove_key);
}
