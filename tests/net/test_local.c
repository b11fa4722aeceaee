/* Connections through shared memory: what arrives, who is woken, and what a peer that writes anything can do. */
#include "net/local.h"

#include "tests/check.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/connection.h"
#include "tests/net/writing.h"
#include "tests/random.h"

enum { HEADS = 256 /* bytes at the beginning of the memory, the positions among them */ };

static double soon(void)
{
    return clock_monotonic_s() + 60;
}

/* One side of an offer that was taken. */
struct side {
    struct local *local;
    int fd;
};

static void agree(struct side *offering, struct side *taking, size_t bytes)
{
    struct local_offer offer;
    struct error error;
    assert_true(local_offer(&offer, &error));
    assert_true(local_take(&taking->local, &taking->fd, offer.name, offer.secret, bytes, &error));
    assert_true(local_accept(&offering->local, &offering->fd, &offer, &error));
    local_offer_end(&offer);
}

static void end(struct side *side)
{
    local_free(side->local);
    close(side->fd);
}

/* Two connections that have moved to shared memory. */
static void connect_both(struct connection *both[2], const struct wake *wake)
{
    struct side sides[2];
    struct error error;
    int ends[2];
    agree(&sides[0], &sides[1], 1);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    for (int i = 0; i < 2; i++) {
        assert_true(connection_serve(&both[i], ends[i], "a peer", NULL, wake, INFINITY, &error));
        const int number = connection_fd(both[i]);
        assert_true(connection_move(both[i], sides[i].local, sides[i].fd, &error));
        assert_int_equal(connection_fd(both[i]), number); /* tables of sessions know it by that */
        assert_true(connection_is_local(both[i]));
    }
}

enum { STREAM = 16 * 1024 * 1024, MOST_AT_ONCE = 200 * 1000 };

static uint8_t byte_at(size_t i)
{
    return (uint8_t)(i * 2654435761U >> 24);
}

static void *send_stream(void *context)
{
    struct test_random random = {2};
    uint8_t *bytes = malloc(MOST_AT_ONCE);
    bool sent = true;
    for (size_t at = 0, size; sent && at < STREAM; at += size) {
        struct error error;
        size = 1 + (size_t)test_random_below(&random, MOST_AT_ONCE);
        size = size < STREAM - at ? size : STREAM - at;
        for (size_t i = 0; i < size; i++) {
            bytes[i] = byte_at(at + i);
        }
        sent = write_now(context, &(struct iovec){bytes, size}, 1, soon(), &error);
    }
    free(bytes);
    return sent ? context : NULL;
}

static void *receive_stream(void *context)
{
    struct test_random random = {3};
    uint8_t *bytes = malloc(MOST_AT_ONCE);
    bool good = true;
    for (size_t at = 0, size; good && at < STREAM; at += size) {
        struct error error;
        size = 1 + (size_t)test_random_below(&random, MOST_AT_ONCE);
        size = size < STREAM - at ? size : STREAM - at;
        good = connection_read(context, bytes, size, soon(), &error);
        for (size_t i = 0; good && i < size; i++) {
            good = bytes[i] == byte_at(at + i);
        }
    }
    free(bytes);
    return good ? context : NULL;
}

/* All bytes arrive in order, in each direction, through rings that are smaller than most writes. */
TEST(bytes_arrive_in_order)
{
    struct connection *both[2];
    pthread_t thread;
    (void)state;
    connect_both(both, NULL);
    for (int i = 0; i < 2; i++) { /* one thread at a time uses a connection */
        void *sent;
        assert_int_equal(pthread_create(&thread, NULL, send_stream, both[i]), 0);
        assert_non_null(receive_stream(both[1 - i]));
        pthread_join(thread, &sent);
        assert_non_null(sent);
    }
    assert_int_equal(connection_bytes_out(both[0]), STREAM);
    assert_int_equal(connection_bytes_in(both[0]), STREAM);
    connection_close(both[0]);
    connection_close(both[1]);
}

static bool is_readable(const struct connection *connection)
{
    return poll(&(struct pollfd){.fd = connection_fd(connection), .events = POLLIN}, 1, 0) == 1;
}

static bool has_come(struct connection *connection)
{
    bool ready;
    struct error error;
    assert_true(connection_wait(connection, 0, &ready, &error));
    return ready;
}

/* Who polls the descriptor after a look that found nothing is woken by what comes, and by the end. */
TEST(the_descriptor_shows_what_comes)
{
    struct connection *both[2];
    struct error error;
    char got[8];
    (void)state;
    connect_both(both, NULL);
    for (int i = 0; i < 3; i++) {
        assert_false(has_come(both[0]));
        assert_false(is_readable(both[0]));
        assert_true(write_now(both[1], &(struct iovec){(char[]){"ab"}, 2}, 1, soon(), &error));
        assert_true(is_readable(both[0]));
        assert_true(has_come(both[0]));
        assert_true(connection_read(both[0], got, 2, soon(), &error));
        assert_memory_equal(got, "ab", 2);
    }
    /* What has come between a look and a rest is not slept over. */
    assert_true(write_now(both[1], &(struct iovec){(char[]){"c"}, 1}, 1, soon(), &error));
    assert_false(connection_park(both[0]));
    assert_true(connection_read(both[0], got, 1, soon(), &error));
    assert_true(connection_park(both[0]));
    assert_false(is_readable(both[0]));
    assert_true(write_now(both[1], &(struct iovec){(char[]){"d"}, 1}, 1, soon(), &error));
    assert_true(is_readable(both[0]));
    assert_true(connection_resume(both[0], &error));
    assert_true(connection_read(both[0], got, 1, soon(), &error));
    assert_int_equal(got[0], 'd');
    /* The end comes after the last bytes. */
    assert_false(has_come(both[0]));
    assert_true(write_now(both[1], &(struct iovec){(char[]){"last"}, 4}, 1, soon(), &error));
    connection_close(both[1]);
    assert_true(is_readable(both[0]));
    assert_true(connection_read(both[0], got, 4, soon(), &error));
    assert_memory_equal(got, "last", 4);
    assert_false(connection_read(both[0], got, 1, soon(), &error));
    assert_string_equal(error.text, "a peer closed the connection");
    assert_int_equal(connection_state(both[0]), CONNECTION_CLOSED);
    connection_close(both[0]);
}

/* A message of many parts wakes its reader once, at its end; one that is larger than a ring, before. */
TEST(a_message_wakes_once)
{
    enum { PARTS = 100, PART = 300 };
    struct connection *both[2];
    struct error error;
    char bells[16];
    uint8_t *bytes = calloc(2, LOCAL_RING_LEAST);
    (void)state;
    connect_both(both, NULL);
    for (int round = 0; round < 3; round++) {
        assert_false(has_come(both[0]));
        for (int i = 0; i < PARTS; i++) {
            assert_true(
                connection_write_more(both[1], &(struct iovec){memset(bytes, i, PART), PART}, 1, soon(), &error));
            assert_false(is_readable(both[0]));
        }
        assert_true(connection_flush(both[1], soon(), &error));
        assert_int_equal(recv(connection_fd(both[0]), bells, sizeof bells, MSG_PEEK | MSG_DONTWAIT), 1);
        for (int i = 0; i < PARTS; i++) {
            assert_true(connection_read(both[0], bytes, PART, soon(), &error));
            assert_true(bytes[0] == i && bytes[PART - 1] == i);
        }
    }
    assert_false(has_come(both[0]));
    assert_false(connection_write_more(both[1], &(struct iovec){bytes, LOCAL_RING_LEAST + 1}, 1, 0, &error));
    assert_true(is_readable(both[0]));
    connection_close(both[0]);
    connection_close(both[1]);
    free(bytes);
}

/* A peer that takes nothing is waited for until the deadline; the bytes that it has not taken are known. */
TEST(a_full_ring_is_waited_for)
{
    struct connection *both[2];
    struct error error;
    uint8_t *bytes = calloc(2, LOCAL_RING_LEAST);
    (void)state;
    connect_both(both, NULL);
    assert_int_equal(connection_unsent(both[0]), 0);
    assert_false(write_now(both[0], &(struct iovec){bytes, (size_t)2 * LOCAL_RING_LEAST}, 1, clock_monotonic_s() + 0.01,
                           &error));
    assert_non_null(strstr(error.text, "a peer has accepted no data for "));
    assert_int_equal(connection_state(both[0]), CONNECTION_TIMED_OUT);
    assert_int_equal(connection_unsent(both[0]), LOCAL_RING_LEAST);
    connection_close(both[0]);
    assert_true(connection_read(both[1], bytes, LOCAL_RING_LEAST, soon(), &error)); /* it was sent all the same */
    connection_close(both[1]);
    connect_both(both, NULL);
    connection_close(both[1]);
    assert_false(write_now(both[0], &(struct iovec){bytes, (size_t)2 * LOCAL_RING_LEAST}, 1, soon(), &error));
    assert_non_null(strstr(error.text, "lost a peer: "));
    connection_close(both[0]);
    free(bytes);
}

/* --- Peers that are not what they should be --- */

/* A taker that passes memory of its own making, to which it keeps access. */
static int take_falsely(const struct local_offer *offer, const char *secret, int memory)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } passed = {.bytes = {0}};
    struct iovec part = {(void *)(uintptr_t)secret, strlen(secret)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    const int size = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "trainer-%s", offer->name);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address,
                             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)size)),
                     0);
    if (memory >= 0) {
        message.msg_control = passed.bytes;
        message.msg_controllen = sizeof passed.bytes;
        passed.header =
            (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof memory), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&passed.header), &memory, sizeof memory);
    }
    assert_int_equal(sendmsg(fd, &message, 0), part.iov_len);
    return fd;
}

static int make_memory(size_t bytes, int seals)
{
    const int memory = memfd_create("false", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(memory >= 0 && ftruncate(memory, (off_t)bytes) == 0);
    assert_int_equal(fcntl(memory, F_ADD_SEALS, seals), 0);
    return memory;
}

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, RIGHT = HEADS + 2 * LOCAL_RING_LEAST };

TEST(memory_is_checked)
{
    static const struct {
        bool right_secret, none;
        size_t bytes;
        int seals;
        const char *error;
    } cases[] = {
        {.right_secret = true, .bytes = RIGHT, .seals = SEALS},
        {.right_secret = false, .bytes = RIGHT, .seals = SEALS, .error = "another process came by its name"},
        {.right_secret = true, .none = true, .error = "another process came by its name"},
        {.right_secret = true, .bytes = RIGHT, .seals = F_SEAL_GROW, .error = "memory that is not sealed"},
        {.right_secret = true, .bytes = RIGHT, .seals = F_SEAL_SHRINK, .error = "memory that is not sealed"},
        {.right_secret = true, .bytes = RIGHT + 2, .seals = SEALS, .error = "memory of 131330 bytes"},
        {.right_secret = true, .bytes = 0, .seals = SEALS, .error = "memory of 0 bytes"},
        {.right_secret = true, .bytes = 100, .seals = SEALS, .error = "memory of 100 bytes"},
        {.right_secret = true,
         .bytes = HEADS + (size_t)4 * LOCAL_RING_MOST,
         .seals = SEALS,
         .error = "memory of 33554688 bytes"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct local_offer offer;
        struct side side;
        struct error error = {""};
        assert_true(local_offer(&offer, &error));
        const int memory = cases[i].none ? -1 : make_memory(cases[i].bytes, cases[i].seals);
        const int fd =
            take_falsely(&offer, cases[i].right_secret ? offer.secret : "00000000000000000000000000000000", memory);
        const bool taken = local_accept(&side.local, &side.fd, &offer, &error);
        assert_int_equal(taken, !cases[i].error);
        assert_string_equal(error.text, cases[i].error ? cases[i].error : "");
        if (taken) {
            end(&side);
        }
        close(fd);
        if (memory >= 0) {
            close(memory);
        }
        local_offer_end(&offer);
    }
}

static int open_files(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++) {
        count += fcntl(fd, F_GETFD) >= 0;
    }
    return count;
}

/* What a process has too little of says so on the side that lacks it, and nothing stays open. */
TEST(shortages_leave_nothing_behind)
{
    struct rlimit files, sizes;
    const int before = open_files(), after_last = dup(0);
    int agreed = 0;
    (void)state;
    close(after_last); /* the lowest free number: each limit above it allows one more */
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &sizes), 0);
    signal(SIGXFSZ, SIG_IGN);
    for (int more = 0; more < 8; more++) {
        struct local_offer offer = {.listener = -1};
        struct side sides[2] = {{NULL, -1}, {NULL, -1}};
        struct error error = {""};
        const struct rlimit few = {(rlim_t)(after_last + more), files.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        const bool offered = local_offer(&offer, &error);
        const bool taken = offered && local_take(&sides[1].local, &sides[1].fd, offer.name, offer.secret, 1, &error);
        const bool accepted = taken && local_accept(&sides[0].local, &sides[0].fd, &offer, &error);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
        assert_int_equal(accepted, error.text[0] == '\0');
        agreed += accepted;
        for (int i = 0; i < 2; i++) {
            if (sides[i].local) {
                end(&sides[i]);
            }
        }
        local_offer_end(&offer);
        assert_int_equal(open_files(), before);
    }
    assert_in_range(agreed, 1, 7);
    struct local_offer offer;
    struct side side;
    struct error error;
    assert_true(local_offer(&offer, &error));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){LOCAL_RING_LEAST, sizes.rlim_max}), 0);
    assert_false(local_take(&side.local, &side.fd, offer.name, offer.secret, 1, &error));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &sizes), 0);
    assert_string_equal(error.text, "no shared memory: File too large");
    assert_false(local_accept(&side.local, &side.fd, &offer, &error));
    local_offer_end(&offer);
    assert_int_equal(open_files(), before);
    signal(SIGXFSZ, SIG_DFL);
}

TEST(nobody_came)
{
    struct local_offer offer;
    struct side side;
    struct error error;
    (void)state;
    assert_true(local_offer(&offer, &error));
    assert_false(local_accept(&side.local, &side.fd, &offer, &error));
    assert_non_null(strstr(error.text, "nobody came: "));
    local_offer_end(&offer);
    local_offer_end(&offer);
}

/* A name leads to a socket of ours or nowhere. */
TEST(names_are_checked)
{
    static const char *const names[] = {"", "0", "0000000000000000000000000000000", "../../../../run/systemd/private.",
                                        "0000000000000000000000000000000G"};
    static const char nobody[] = "00000000000000000000000000000000";
    struct side side;
    struct error error;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_false(local_take(&side.local, &side.fd, names[i], nobody, 1, &error));
        assert_string_equal(error.text, "malformed name");
    }
    assert_false(local_take(&side.local, &side.fd, nobody, "", 1, &error));
    assert_string_equal(error.text, "malformed name");
    assert_false(local_take(&side.local, &side.fd, nobody, nobody, 1, &error));
    assert_non_null(strstr(error.text, "it is in another container, or on another machine ("));
}

/* A process of another user neither takes an offer nor has one taken. */
TEST(other_users_are_refused)
{
    enum { NOBODY = 65534 };
    struct local_offer offer;
    struct side side;
    struct error error;
    int status;
    (void)state;
    if (geteuid() != 0) {
        skip();
    }
    assert_true(local_offer(&offer, &error));
    const pid_t child = fork();
    if (child == 0) {
        const bool refused = setuid(NOBODY) == 0 &&
                             !local_take(&side.local, &side.fd, offer.name, offer.secret, 1, &error) &&
                             strcmp(error.text, "it belongs to another user, 0") == 0;
        const int fd = refused ? take_falsely(&offer, offer.secret, -1) : -1;
        _exit(fd >= 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_false(local_accept(&side.local, &side.fd, &offer, &error));
    assert_string_equal(error.text, "it belongs to another user, 65534");
    local_offer_end(&offer);
}

/* A position that makes no sense ends the connection; what is in the memory is never more than bytes. */
TEST(positions_are_checked)
{
    struct local_offer offer;
    struct side side;
    struct error error;
    char byte;
    struct iovec part = {&byte, 1};
    (void)state;
    assert_true(local_offer(&offer, &error));
    const int memory = make_memory(RIGHT, SEALS);
    uint64_t *shared = mmap(NULL, RIGHT, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    assert_true(shared != MAP_FAILED);
    const int fd = take_falsely(&offer, offer.secret, memory);
    assert_true(local_accept(&side.local, &side.fd, &offer, &error));
    for (size_t i = 0; i < HEADS / sizeof *shared; i++) {
        shared[i] = 1ULL << 40;
    }
    errno = 0;
    assert_int_equal(local_receive(side.local, side.fd, &part, 1), -1);
    assert_int_equal(errno, EBADMSG);
    errno = 0;
    assert_int_equal(local_send(side.local, side.fd, &part, 1), -1);
    assert_int_equal(errno, EBADMSG);
    assert_int_equal(local_unsent(side.local), 0);
    end(&side);
    close(fd);
    close(memory);
    munmap(shared, RIGHT);
    local_offer_end(&offer);
}

struct scribbler {
    _Atomic uint64_t *shared;
    atomic_bool over;
    struct test_random random;
};

static void *scribble(void *context)
{
    struct scribbler *scribbler = context;
    while (!atomic_load(&scribbler->over)) {
        const uint64_t value = test_random_next(&scribbler->random);
        const size_t at = (size_t)test_random_below(&scribbler->random, 2 * HEADS / 8);
        scribbler->shared[at] = value >> (value % 64);
    }
    return NULL;
}

/* The peer writes into the memory, the positions included, while it is used. */
TEST(anything_may_be_written)
{
    enum { CALLS = 200 * 1000 };
    struct scribbler scribbler = {.random = test_random_begin("anything_may_be_written")};
    struct test_random random = {test_random_next(&scribbler.random)};
    struct local_offer offer;
    struct side side;
    struct error error;
    pthread_t thread;
    uint8_t *bytes = malloc(LOCAL_RING_LEAST);
    (void)state;
    assert_true(local_offer(&offer, &error));
    const int memory = make_memory(RIGHT, SEALS);
    void *mapped = mmap(NULL, RIGHT, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    assert_true(mapped != MAP_FAILED);
    scribbler.shared = mapped;
    const int fd = take_falsely(&offer, offer.secret, memory);
    assert_true(local_accept(&side.local, &side.fd, &offer, &error));
    assert_int_equal(pthread_create(&thread, NULL, scribble, &scribbler), 0);
    for (int i = 0; i < CALLS; i++) {
        struct iovec part = {bytes, 1 + (size_t)test_random_below(&random, LOCAL_RING_LEAST)};
        const ssize_t done =
            i % 2 ? local_receive(side.local, side.fd, &part, 1) : local_send(side.local, side.fd, &part, 1);
        assert_true(done >= -1 && done <= (ssize_t)part.iov_len);
        local_must_wait(side.local, side.fd, i % 3 == 0);
        local_publish(side.local, side.fd);
        assert_true(local_unsent(side.local) <= LOCAL_RING_LEAST);
    }
    atomic_store(&scribbler.over, true);
    pthread_join(thread, NULL);
    end(&side);
    close(fd);
    close(memory);
    munmap(mapped, RIGHT);
    local_offer_end(&offer);
    free(bytes);
}

/* A peer that sent something before it moved does not mean what it says. */
TEST(what_is_left_refuses_a_move)
{
    struct connection *connection;
    struct side sides[2];
    struct error error;
    int ends[2];
    (void)state;
    agree(&sides[0], &sides[1], 1);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    assert_true(connection_serve(&connection, ends[0], "a peer", NULL, NULL, INFINITY, &error));
    assert_int_equal(send(ends[1], "x", 1, 0), 1);
    assert_true(has_come(connection));
    assert_false(connection_move(connection, sides[0].local, sides[0].fd, &error));
    assert_string_equal(error.text, "a peer sent something before it moved to shared memory");
    connection_close(connection);
    end(&sides[1]);
    close(ends[1]);
}

TEST(machines)
{
    int ends[2];
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_false(local_is_same_machine(ends[0])); /* no addresses to compare */
    assert_false(local_is_same_machine(-1));
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    return check_run(NULL, NULL);
}
