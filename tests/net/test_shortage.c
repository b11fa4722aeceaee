/*
 * System calls that fail while a key is loaded, during a TLS handshake, and while data flows: a connection is made and
 * carries what it should, or both ends soon report why not and leak nothing; the next one works.
 */
#include "net/connection.h"
#include "tests/check.h"

#include <errno.h>
#include <stdatomic.h>

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "net/channel.h"
#include "net/credentials.h"
#include "net/listener.h"
#include "net/socket.h"
#include "net/tls/tls.h"
#include "net/tls/web.h"
#include "tests/allocations.h"
#include "tests/net/loopback.h"
#include "tests/net/writing.h"
#include "tests/random.h"

/* --- calls that fail --- */

enum kind { ALLOCATION, RECEIVE, SEND, KINDS };

static struct {
    enum kind kind;
    int reason;             /* errno of the failure; 0: as if the peer were gone */
    atomic_long first, end; /* calls that fail, counted from 1 */
    atomic_long calls[KINDS];
} shortage;

static bool fails(enum kind kind)
{
    long call = atomic_fetch_add(&shortage.calls[kind], 1) + 1;
    return kind == shortage.kind && call >= atomic_load(&shortage.first) && call < atomic_load(&shortage.end);
}

static void fail_calls(enum kind kind, long first, long count)
{
    shortage.kind = kind;
    atomic_store(&shortage.first, first);
    atomic_store(&shortage.end, first + count);
    for (int i = 0; i < KINDS; i++) {
        atomic_store(&shortage.calls[i], 0);
    }
}

static bool has_no(enum kind kind, int reason)
{
    bool failed = fails(kind);
    errno = !failed ? errno : shortage.reason != 0 ? shortage.reason : reason;
    return failed;
}

bool allocation_fails(size_t size, const void *place)
{
    return has_no(ALLOCATION, ENOMEM);
}

ssize_t recv(int fd, void *bytes, size_t size, int flags)
{
    return has_no(RECEIVE, ECONNRESET) ? -1 : SYSTEM(recv)(fd, bytes, size, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    return has_no(RECEIVE, ECONNRESET) ? -1 : SYSTEM(recvmsg)(fd, message, flags);
}

ssize_t send(int fd, const void *bytes, size_t size, int flags)
{
    return has_no(SEND, EPIPE) ? -1 : SYSTEM(send)(fd, bytes, size, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    return has_no(SEND, EPIPE) ? -1 : SYSTEM(sendmsg)(fd, message, flags);
}

/*
 * Waits that ended at their deadline. A connection lingers for half a second before it closes; all other waits have ten
 * seconds and more, and each that used them up waited for something that a failed call had prevented.
 */
static atomic_long deadlines_met;

int poll(struct pollfd *waits, nfds_t count, int timeout_ms)
{
    const struct timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    const int ready = ppoll(waits, count, timeout_ms < 0 ? NULL : &timeout, NULL);
    if (ready == 0 && timeout_ms > 500) {
        atomic_fetch_add(&deadlines_met, 1);
    }
    return ready;
}

/*
 * mbedTLS 3.6 frees a transform that it could not fill without freeing its parts (library/ssl_tls13_keys.c, label
 * `cleanup` of the functions that compute transforms): one cipher's context leaks if memory ran out just then.
 */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:gcm_ctx_alloc\nleak:chachapoly_ctx_alloc\n";
}

/* --- one exchange --- */

static char folder[64], key[96];

static int make_key(void **state)
{
    struct error error;
    loopback_make_folder(folder);
    snprintf(key, sizeof key, "%s/fleet.key", folder);
    if (!credentials_create_fleet_key(key, &error)) {
        fail_msg("%s", error.text);
    }
    return 0;
}

static int remove_key(void **state)
{
    loopback_remove_folder(folder);
    return 0;
}

enum { TALK = 100 * 1000, DEADLINE_S = 30 }; /* bytes each way, several records */

static void echo(struct connection **connection, void *context)
{
    static uint8_t bytes[TALK];
    struct iovec part = {bytes, sizeof bytes};
    struct error *error = context;
    double deadline_s = clock_monotonic_s() + DEADLINE_S;
    if (connection_read(*connection, bytes, sizeof bytes, deadline_s, error)) {
        write_now(*connection, &part, 1, deadline_s, error);
    }
}

/* False: *error says why. The server's thread is always joined, and its own error is never empty if it failed. */
static bool converse(const struct credentials *server_key, struct error *error)
{
    static uint8_t sent[TALK], received[TALK];
    struct loopback loopback = {.listener = -1};
    struct error served = {""};
    struct credentials *credentials = NULL;
    struct connection *connection = NULL;
    struct member ps0 = {MEMBER_PS, 0};
    double deadline_s = clock_monotonic_s() + DEADLINE_S;
    struct iovec part = {sent, sizeof sent};
    for (int i = 0; i < TALK; i++) {
        sent[i] = (uint8_t)(i * 31);
    }
    if (!credentials_load(&credentials, key, error)) {
        return false;
    }
    loopback_start(&loopback, server_key, echo, &served);
    bool well = connection_connect(&connection, &loopback.address, &ps0, credentials, NULL, deadline_s, error) &&
                write_now(connection, &part, 1, deadline_s, error) &&
                connection_read(connection, received, sizeof received, deadline_s, error);
    connection_close(connection);
    if (!well) { /* it may have failed before connecting; if so, the server gets a connection to wait for */
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in to = {.sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)loopback.address.port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        (void)connect(fd, (struct sockaddr *)&to, sizeof to);
        close(fd);
    }
    loopback_end(&loopback);
    credentials_free(credentials);
    assert_true(loopback.served || loopback.error.text[0] != '\0');
    if (shortage.kind == RECEIVE) { /* an end that can't hear the other can't blame it */
        assert_null(strstr(error->text, "refused us"));
        assert_null(strstr(loopback.error.text, "refused us"));
    }
    if (well) {
        assert_memory_equal(sent, received, sizeof sent);
    }
    return well;
}

/* All buffers that connections keep for the next: these will have to allocate theirs. */
static struct connection *holders[CONNECTION_IDLE];

static void hold_buffers(void)
{
    for (int i = 0; i < CONNECTION_IDLE; i++) {
        holders[i] = loopback_alone();
    }
}

static void release_buffers(void)
{
    for (int i = 0; i < CONNECTION_IDLE; i++) {
        connection_close(holders[i]);
    }
}

static void try_all(enum kind kind, const char *name)
{
    struct credentials *server_key;
    struct error error = {""};
    assert_true(credentials_load(&server_key, key, &error));
    hold_buffers();
    fail_calls(kind, 0, 0);
    assert_true(converse(server_key, &error));
    const long calls = atomic_load(&shortage.calls[kind]);
    release_buffers();
    assert_true(calls > 0);
    /* About a hundred of the calls, different ones each time, once and permanently. */
    struct test_random dice = test_random_begin(name);
    const long stride = calls > 100 ? calls / 100 : 1;
    long failures = 0, tried = 0;
    for (long n = 1 + test_random_below(&dice, (int)stride); n <= calls; n += stride) {
        for (int often = 0; often < 2; often++) {
            error.text[0] = '\0';
            hold_buffers();
            fail_calls(kind, n, often ? calls : 1);
            if (!converse(server_key, &error)) {
                assert_true(error.text[0] != '\0');
                failures++;
            }
            fail_calls(kind, 0, 0);
            release_buffers();
            tried++;
        }
    }
    if (!converse(server_key, &error)) {
        fail_msg("after all that: %s", error.text);
    }
    credentials_free(server_key);
    print_message("%s: %ld calls in a conversation, %ld of %ld shortages ended it\n", name, calls, failures, tried);
    assert_true(failures > 0);
    assert_int_equal(atomic_load(&deadlines_met), 0);
}

TEST(test_allocations)
{
    try_all(ALLOCATION, "allocations");
}

TEST(test_receiving)
{
    try_all(RECEIVE, "receiving");
}

TEST(test_sending)
{
    try_all(SEND, "sending");
}

/* A signal, or a socket that is not ready after all, ends nothing: the call is repeated. */
TEST(test_interruptions)
{
    static const int reasons[] = {EINTR, EAGAIN};
    struct test_random dice = test_random_begin("interruptions");
    struct credentials *server_key;
    struct error error;
    assert_true(credentials_load(&server_key, key, &error));
    fail_calls(SEND, 0, 0);
    assert_true(converse(server_key, &error));
    const long calls[] = {
        [RECEIVE] = atomic_load(&shortage.calls[RECEIVE]), [SEND] = atomic_load(&shortage.calls[SEND])};
    for (int i = 0; i < 20; i++) {
        const enum kind kind = i % 2 ? SEND : RECEIVE;
        shortage.reason = reasons[i / 2 % 2];
        fail_calls(kind, 1 + test_random_below(&dice, (int)calls[kind]), 1 + i / 4 % 2);
        if (!converse(server_key, &error)) {
            fail_msg("%s: %s", strerror(shortage.reason), error.text);
        }
    }
    shortage.reason = 0;
    fail_calls(SEND, 0, 0);
    credentials_free(server_key);
}

/* A member's key is loaded together with what it trusts, or not at all. */
TEST(test_keys_of_members)
{
    const struct member worker = {MEMBER_WORKER, 1};
    struct credentials *credentials;
    struct error error;
    char authority[96], path[96];
    long calls;
    snprintf(authority, sizeof authority, "%s/ca", folder);
    snprintf(path, sizeof path, "%s/worker.key", folder);
    assert_true(credentials_create_authority(authority, &error));
    assert_true(credentials_create_member(authority, &worker, 1, path, &error));
    fail_calls(ALLOCATION, 0, 0);
    assert_true(credentials_load(&credentials, path, &error));
    calls = atomic_load(&shortage.calls[ALLOCATION]);
    credentials_free(credentials);
    for (long n = 1; n <= calls; n++) {
        fail_calls(ALLOCATION, n, 1);
        const bool loaded = credentials_load(&credentials, path, &error);
        fail_calls(ALLOCATION, 0, 0);
        if (loaded) {
            assert_non_null(credentials->trusted.raw.p);
            assert_int_equal(credentials_member(credentials).index, 1);
            credentials_free(credentials);
        }
    }
}

static int next_number(void)
{
    const int fd = dup(0);
    close(fd);
    return fd;
}

/* A lookup without memory says so, and the next one is well. */
TEST(test_lookups)
{
    const struct address address = {.host = "localhost", .port = 22};
    const int unused = next_number();
    struct endpoints endpoints;
    struct error error;
    fail_calls(ALLOCATION, 1, 1);
    const bool found = resolver_find(&address, NULL, clock_monotonic_s() + DEADLINE_S, &endpoints, &error);
    fail_calls(ALLOCATION, 0, 0);
    assert_false(found);
    assert_string_equal(error.text, "host localhost: out of memory while looking it up");
    assert_true(resolver_find(&address, NULL, clock_monotonic_s() + DEADLINE_S, &endpoints, &error));
    const double until_s = clock_monotonic_s() + DEADLINE_S;
    while (next_number() != unused && clock_monotonic_s() < until_s) { /* the thread that looked it up lets go */
        usleep(1000);
    }
    assert_int_equal(next_number(), unused);
}

/* Keys are made, or there is none, and it says why; so it is with what browsers are shown. */
TEST(test_making_keys)
{
    const struct member worker = {MEMBER_WORKER, 1};
    struct error error;
    char authority[96], path[96];
    const int unused = next_number();
    int failures = 0;
    snprintf(authority, sizeof authority, "%s/makers", folder);
    snprintf(path, sizeof path, "%s/made.key", folder);
    assert_true(credentials_create_authority(authority, &error));
    for (int kind = 0; kind < 3; kind++) {
        bool made = false;
        for (long n = 1; !made; n += n < 40 ? 1 : 97) {
            struct credentials *credentials = NULL;
            struct web_keys *keys = NULL;
            unlink(path);
            error.text[0] = '\0';
            fail_calls(ALLOCATION, n, 1);
            made = kind == 0   ? credentials_create_fleet_key(path, &error)
                   : kind == 1 ? credentials_create_member(authority, &worker, 1, path, &error)
                               : web_keys_load(&keys, key, key, &error);
            const bool failed = atomic_load(&shortage.calls[ALLOCATION]) >= n;
            fail_calls(ALLOCATION, 0, 0);
            assert_int_equal(access(path, F_OK), made && kind < 2 ? 0 : -1);
            assert_true(made || error.text[0] != '\0');
            assert_true(!strstr(error.text, "can't make the key for ") || strstr(error.text, " - "));
            failures += !made;
            if (made && kind < 2) { /* where another way was found, it is as good */
                assert_true(credentials_load(&credentials, path, &error));
                credentials_free(credentials);
            }
            web_keys_free(keys);
            made = made && !failed;
        }
    }
    assert_true(failures > 20);
    assert_int_equal(next_number(), unused);
}

/* A session of a browser is there or not. */
TEST(test_sessions_of_browsers)
{
    struct web_keys *keys;
    struct web_session *session = NULL;
    struct error error;
    assert_true(web_keys_load(&keys, key, key, &error));
    long n = 1;
    for (; !session; n++) {
        fail_calls(ALLOCATION, n, 1);
        session = web_session_create(keys, "a.name", 0);
        fail_calls(ALLOCATION, 0, 0);
    }
    assert_true(n > 3);
    web_session_destroy(session);
    web_keys_free(keys);
}

static struct hello_identity say_nothing(const void *context)
{
    return (struct hello_identity){.program = ""};
}

/* A listener that there is no memory for is none, and listens on nothing. */
TEST(test_listeners)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const struct listener_options options = {.host = "127.0.0.1",
                                             .self = {.hello = say_nothing},
                                             .lock = &lock,
                                             .session_size = sizeof(struct listener_session),
                                             .members = 8,
                                             .expected = 4};
    const int unused = next_number();
    for (long n = 1; n < 5; n++) { /* the listener, its places, its handshake queue and its accept queue */
        struct listener *listener = (void *)&lock;
        struct error error = {""};
        fail_calls(ALLOCATION, n, 1);
        const bool created = listener_create(&listener, &options, &error);
        fail_calls(ALLOCATION, 0, 0);
        assert_false(created);
        assert_null(listener);
        assert_string_equal(error.text, "out of memory");
        assert_int_equal(next_number(), unused);
    }
    listener_destroy(NULL);
}

/* A message that there is no memory for ends a call with words, and the channel goes on with the next one. */
TEST(test_messages)
{
    struct error error;
    int ends[2];
    for (int i = 0; i < 2; i++) {
        struct connection *here, *there;
        struct channel ours, theirs;
        fail_calls(ALLOCATION, 0, 0);
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
        assert_true(connection_serve(&here, ends[0], "ours", NULL, NULL, clock_monotonic_s() + DEADLINE_S, &error));
        assert_true(connection_serve(&there, ends[1], "theirs", NULL, NULL, clock_monotonic_s() + DEADLINE_S, &error));
        channel_open(&ours, here);
        channel_open(&theirs, there);
        ours.version = theirs.version = PROTOCOL_VERSION_MAX;
        const struct message_ping ping = {.nonce = 5};
        const double deadline_s = clock_monotonic_s() + DEADLINE_S;
        bool good[2];
        fail_calls(ALLOCATION, 1 + i, 1); /* the sender's buffer, the receiver's */
        good[0] = channel_send(&theirs, MESSAGE_ping, 1, &ping, deadline_s, &error);
        good[1] = good[0] && channel_receive(&ours, deadline_s, &error);
        fail_calls(ALLOCATION, 0, 0);
        assert_true(good[0] == (i == 1) && !good[1]);
        assert_string_equal(error.text, i == 0 ? "out of memory for a message of 8 bytes with theirs"
                                               : "out of memory for a message of 8 bytes with ours");
        if (i == 0) {
            assert_true(channel_send(&theirs, MESSAGE_ping, 1, &ping, deadline_s, &error));
            assert_true(channel_receive(&ours, deadline_s, &error));
            assert_int_equal(ours.message.ping.nonce, 5);
        }
        channel_close(&ours);
        channel_close(&theirs);
    }
}

int main(void)
{
    return check_run(make_key, remove_key);
}
