/* A listener serves those it knows while strangers come in crowds, say nothing, or say nonsense. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/net/fleet_key.h"
#include "tests/net/listening.h"

enum { CROWD = 150 };

static double soon(void)
{
    return clock_monotonic_s() + 10;
}

/* Comes as a worker; false: it was not let in. */
static bool come_in(struct channel *channel, const struct listening *owner, int worker, struct error *error)
{
    static const struct member ps_0 = {MEMBER_PS, 0};
    const struct address address = {.host = "127.0.0.1", .port = listener_port(owner->listener)};
    const struct hello_identity hello = listening_worker(&worker);
    struct connection *connection;
    struct peer peer;
    if (!connection_connect(&connection, &address, &ps_0, owner->credentials, NULL, soon(), error)) {
        return false;
    }
    channel_open(channel, connection);
    if (!handshake_connect(channel, &hello, &ps_0, &peer, soon(), NULL, error)) {
        channel_close(channel);
        return false;
    }
    return true;
}

/* At the first try or soon after: strangers that were cut take a moment to leave. */
static void get_in(struct channel *channel, const struct listening *owner, int worker)
{
    const double until_s = soon();
    struct error error;
    bool welcome = come_in(channel, owner, worker, &error);
    while (!welcome && clock_monotonic_s() < until_s) {
        usleep(20 * 1000);
        welcome = come_in(channel, owner, worker, &error);
    }
    if (!welcome) {
        fail_msg("%s", error.text);
    }
}

static bool ping(struct channel *channel)
{
    struct error error;
    struct message_ping message = {.nonce = 5};
    return channel_call(channel, MESSAGE_ping, &message, MESSAGE_pong, soon(), NULL, &error);
}

static int knock(const struct listening *owner)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(listener_port(owner->listener)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static bool is_closed(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
}

/* A crowd that says nothing is bounded, keeps nobody out, and takes nobody's place. */
static void silent_crowd(void **state)
{
    (void)state;
    struct listening owner = {.refusal = 0};
    struct channel early, late;
    struct error error;
    int fds[CROWD], open = 0;
    listening_start(&owner, fleet_key, 0);
    assert_true(come_in(&early, &owner, 1, &error));
    for (int i = 0; i < CROWD; i++) {
        fds[i] = knock(&owner);
    }
    get_in(&late, &owner, 2);
    assert_true(ping(&early) && ping(&late));
    assert_true(is_closed(fds[0])); /* the oldest go */
    for (int i = 0; i < CROWD; i++) {
        open += !is_closed(fds[i]);
    }
    assert_true(open <= 4 + LISTENER_SPARE); /* `expected`, and the spare places */
    for (int i = 0; i < CROWD; i++) {
        close(fds[i]);
    }
    channel_close(&early);
    channel_close(&late);
    listening_stop(&owner);
    assert_int_equal(atomic_load(&owner.left), 2);
}

/* The older connection of a member makes room for the newer. */
static void the_same_again(void **state)
{
    (void)state;
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

/* Nonsense, hundreds of times a second: a few lines in the log, and then a count. */
static void refusals_are_few_lines(void **state)
{
    (void)state;
    struct listening owner = {.refusal = 0};
    struct channel channel;
    char path[128], text[64 * 1024];
    snprintf(path, sizeof path, "%s/log", key_folder);
    listening_start(&owner, fleet_key, 0);
    fflush(stderr);
    const int kept = dup(2), log = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(kept >= 0 && log >= 0);
    dup2(log, 2);
    for (int i = 0; i < 200; i++) {
        int fd = knock(&owner);
        send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
        close(fd);
        usleep(2000);
    }
    get_in(&channel, &owner, 1);
    const double until_s = clock_monotonic_s() + 30;
    bool counted = false;
    int lines = 0;
    while (!counted && clock_monotonic_s() < until_s) {
        usleep(100 * 1000);
        ssize_t size = pread(log, text, sizeof text - 1, 0);
        text[size > 0 ? size : 0] = '\0';
        counted = strstr(text, "more connections in");
    }
    dup2(kept, 2);
    close(kept);
    close(log);
    unlink(path);
    for (const char *line = text; (line = strstr(line, "refused 127.0.0.1:")); line++) {
        lines++;
    }
    assert_true(counted);
    assert_true(lines >= 1 && lines <= 3 * (LISTENER_COMPLAINTS + 1)); /* in as many intervals as that took */
    channel_close(&channel);
    listening_stop(&owner);
}

/* Sessions that would go on for ever are cut when the grace is over. */
static void the_end_comes(void **state)
{
    (void)state;
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
    listener_end(owner.listener, 0.2);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silent_crowd),
        cmocka_unit_test(the_same_again),
        cmocka_unit_test(refusals_are_few_lines),
        cmocka_unit_test(the_end_comes),
    };
    return cmocka_run_group_tests(tests, make_key, remove_key);
}
