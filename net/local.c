/* Rings of bytes in memory that two processes share, and how one of them gets that memory from the other. */
#include "net/local.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <sodium.h>

#include "base/copy.h"

enum { LINE = 64, SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* What both sides see of a ring. A position counts all bytes ever written or read. */
struct ring_head {
    _Alignas(LINE) _Atomic uint64_t written; /* by the sender, */
    _Atomic uint32_t sender_waits;           /* who wants a byte on the socket once there is room */
    _Alignas(LINE) _Atomic uint64_t read;    /* by the receiver, */
    _Atomic uint32_t receiver_waits;         /* likewise, once there is something to read */
};

/* The beginning of the memory; the rings' bytes follow. */
struct shared {
    struct ring_head heads[2]; /* [0]: from the side that offered */
};

/* One side's view of a ring: its own position, and the one that the peer was published last, by `head`. */
struct ring {
    struct ring_head *head;
    uint8_t *bytes; /* [size] */
    uint64_t at, published;
};

struct local {
    struct shared *shared;
    size_t mapped; /* bytes */
    size_t size;   /* of a ring */
    struct ring in, out;
    bool waits; /* asked for a byte that may have come */
    bool ended; /* the peer has gone */
};

/* --- Rings --- */

static bool write_bell(int fd)
{
    return send(fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1; /* if it takes no more, there is a byte already */
}

/* After a position was published: wakes a peer that waits for it. */
static void ring_bell(_Atomic uint32_t *waits, int fd)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(waits, memory_order_relaxed) != 0 && atomic_exchange(waits, 0) != 0) {
        write_bell(fd);
    }
}

/* Publishes how far this side has read. */
static void publish_read(struct local *local, int fd)
{
    struct ring *in = &local->in;
    if (in->published != in->at) {
        in->published = in->at;
        atomic_store_explicit(&in->head->read, in->at, memory_order_release);
        ring_bell(&in->head->sender_waits, fd);
    }
}

void local_publish(struct local *local, int fd)
{
    struct ring *out = &local->out;
    if (out->published != out->at) {
        out->published = out->at;
        atomic_store_explicit(&out->head->written, out->at, memory_order_release);
        ring_bell(&out->head->receiver_waits, fd);
    }
}

/* Takes back what local_must_wait asked for, and the bytes that came of it. */
static void end_wait(struct local *local, int fd)
{
    char bells[16];
    ssize_t got;
    if (!local->waits) {
        return;
    }
    local->waits = false;
    atomic_store_explicit(&local->in.head->receiver_waits, 0, memory_order_relaxed);
    atomic_store_explicit(&local->out.head->sender_waits, 0, memory_order_relaxed);
    do {
        got = recv(fd, bells, sizeof bells, MSG_DONTWAIT);
    } while (got == (ssize_t)sizeof bells || (got < 0 && errno == EINTR));
    local->ended = local->ended || got == 0 || (got < 0 && errno != EAGAIN);
}

/* How many bytes wait to be read; more than a ring holds if the peer's position makes no sense. */
static uint64_t readable(const struct local *local)
{
    return atomic_load_explicit(&local->in.head->written, memory_order_acquire) - local->in.at;
}

static uint64_t unread(const struct local *local)
{
    return local->out.at - atomic_load_explicit(&local->out.head->read, memory_order_acquire);
}

/* Copies `size` bytes between the ring, from position `at` on, and `bytes`. */
static void copy_ring(const struct local *local, const struct ring *ring, uint64_t at, void *bytes, size_t size,
                      bool into)
{
    const size_t first = (size_t)(at % local->size);
    const size_t straight = size < local->size - first ? size : local->size - first;
    if (into) {
        copy_bytes(ring->bytes + first, bytes, straight);
        copy_bytes(ring->bytes, (uint8_t *)bytes + straight, size - straight);
    } else {
        copy_bytes(bytes, ring->bytes + first, straight);
        copy_bytes((uint8_t *)bytes + straight, ring->bytes, size - straight);
    }
}

/* Copies up to `most` bytes between the ring and the parts; returns how many. */
static size_t copy_parts(const struct local *local, struct ring *ring, const struct iovec *parts, size_t count,
                         size_t most, bool into)
{
    size_t done = 0;
    for (size_t i = 0; i < count && done < most; i++) {
        const size_t size = parts[i].iov_len < most - done ? parts[i].iov_len : most - done;
        copy_ring(local, ring, ring->at, parts[i].iov_base, size, into);
        ring->at += size;
        done += size;
    }
    return done;
}

ssize_t local_receive(struct local *local, int fd, const struct iovec *parts, size_t count)
{
    end_wait(local, fd);
    const uint64_t there = readable(local); /* after end_wait: what a peer wrote before it went is there */
    if (there > local->size) {
        errno = EBADMSG;
        return -1;
    }
    if (there == 0) {
        errno = EAGAIN;
        return local->ended ? 0 : -1;
    }
    const size_t done = copy_parts(local, &local->in, parts, count, (size_t)there, false);
    if (done == there || local->in.at - local->in.published >= local->size / 4) { /* not for every row of a gradient */
        publish_read(local, fd);
    }
    return (ssize_t)done;
}

ssize_t local_send(struct local *local, int fd, const struct iovec *parts, size_t count)
{
    end_wait(local, fd);
    const uint64_t waiting = unread(local);
    if (waiting > local->size || local->ended) {
        errno = local->ended ? EPIPE : EBADMSG;
        return -1;
    }
    if (waiting == local->size) {
        errno = EAGAIN;
        return -1;
    }
    const size_t done = copy_parts(local, &local->out, parts, count, local->size - (size_t)waiting, true);
    if (done == local->size - waiting) {
        local_publish(local, fd);
    }
    return (ssize_t)done;
}

bool local_must_wait(struct local *local, int fd, bool to_send)
{
    publish_read(local, fd);
    local_publish(local, fd);
    local->waits = true;
    atomic_store(to_send ? &local->out.head->sender_waits : &local->in.head->receiver_waits, 1);
    atomic_thread_fence(memory_order_seq_cst);
    return to_send ? unread(local) == local->size : readable(local) == 0;
}

size_t local_unsent(const struct local *local)
{
    const uint64_t waiting = unread(local);
    return waiting <= local->size ? (size_t)waiting : 0;
}

/* --- Offering and taking --- */

bool local_is_same_machine(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_size = sizeof here, there_size = sizeof there;
    if (getsockname(fd, (struct sockaddr *)&here, &here_size) != 0 ||
        getpeername(fd, (struct sockaddr *)&there, &there_size) != 0 || here.ss_family != there.ss_family) {
        return false;
    }
    if (here.ss_family == AF_INET) {
        return ((const struct sockaddr_in *)&here)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)&there)->sin_addr.s_addr;
    }
    return here.ss_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)&here)->sin6_addr, &((const struct sockaddr_in6 *)&there)->sin6_addr,
                  sizeof(struct in6_addr)) == 0;
}

/* A name in Linux' abstract namespace, which needs no file and belongs to one network namespace. */
static socklen_t address_of(const char *name, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "trainer-%s", name);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static void draw_name(char name[LOCAL_NAME])
{
    uint8_t bytes[(LOCAL_NAME - 1) / 2];
    randombytes_buf(bytes, sizeof bytes);
    sodium_bin2hex(name, LOCAL_NAME, bytes, sizeof bytes);
}

bool local_offer(struct local_offer *offer, struct error *error)
{
    struct sockaddr_un address;
    draw_name(offer->name);
    draw_name(offer->secret);
    const socklen_t size = address_of(offer->name, &address);
    offer->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (offer->listener < 0 || bind(offer->listener, (const struct sockaddr *)&address, size) != 0 ||
        listen(offer->listener, 1) != 0) {
        error_set(error, "no Unix socket: %s", strerror(errno));
        local_offer_end(offer);
        return false;
    }
    return true;
}

void local_offer_end(struct local_offer *offer)
{
    if (offer->listener >= 0) {
        close(offer->listener);
    }
    offer->listener = -1;
}

static bool is_same_user(int fd, struct error *error)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        return error_set(error, "can't find out whose process it is: %s", strerror(errno));
    }
    return peer.uid == geteuid() || error_set(error, "it belongs to another user, %u", (unsigned)peer.uid);
}

/* Maps rings of `size` bytes each; `first`: is this the side that offered? */
static struct local *map_rings(int memory, size_t size, bool first, struct error *error)
{
    const size_t mapped = sizeof(struct shared) + 2 * size;
    struct local *local = calloc(1, sizeof *local);
    void *shared = local ? mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0) : MAP_FAILED;
    if (shared == MAP_FAILED) {
        free(local);
        error_set(error, "no room for %zu bytes of shared memory", mapped);
        return NULL;
    }
    *local = (struct local){.shared = shared, .mapped = mapped, .size = size};
    uint8_t *bytes = (uint8_t *)shared + sizeof(struct shared);
    const int in = first ? 1 : 0;
    local->in = (struct ring){&local->shared->heads[in], bytes + (size_t)in * size, 0, 0};
    local->out = (struct ring){&local->shared->heads[1 - in], bytes + (size_t)(1 - in) * size, 0, 0};
    return local;
}

/*
 * Memory that neither side can make smaller, which would kill the other at its next access, and that exists at once, so
 * that a machine without memory says so here.
 */
static int make_memory(size_t size, struct error *error)
{
    const off_t bytes = (off_t)(sizeof(struct shared) + 2 * size);
    const int memory = memfd_create("trainer-local", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory < 0 || ftruncate(memory, bytes) != 0 || fallocate(memory, 0, 0, bytes) != 0 ||
        fcntl(memory, F_ADD_SEALS, SEALS) != 0) {
        error_set(error, "no shared memory: %s", strerror(errno));
        if (memory >= 0) {
            close(memory);
        }
        return -1;
    }
    return memory;
}

/* The message that passes the memory: the secret, with the memory's descriptor beside it. */
union passed {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr header; /* for its alignment */
};

static bool pass_memory(int fd, int memory, const char *secret, struct error *error)
{
    char sent[LOCAL_NAME - 1];
    union passed passed = {.bytes = {0}};
    struct iovec part = {sent, sizeof sent};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = passed.bytes, .msg_controllen = sizeof passed.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof memory);
    memcpy(CMSG_DATA(header), &memory, sizeof memory);
    memcpy(sent, secret, sizeof sent);
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == LOCAL_NAME - 1 ||
           error_set(error, "can't pass memory: %s", strerror(errno));
}

/* The memory that came with the right secret; -1: none did. */
static int receive_memory(int fd, const char *secret, struct error *error)
{
    char got[LOCAL_NAME - 1];
    union passed passed = {.bytes = {0}};
    struct iovec part = {got, sizeof got};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = passed.bytes, .msg_controllen = sizeof passed.bytes};
    int memory = -1;
    const ssize_t size = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *header = size > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof memory)) {
        memcpy(&memory, CMSG_DATA(header), sizeof memory);
    }
    if (memory >= 0 && size == (ssize_t)sizeof got && sodium_memcmp(got, secret, sizeof got) == 0) {
        return memory;
    }
    error_set(error, "another process came by its name");
    if (memory >= 0) {
        close(memory);
    }
    return -1;
}

/* What the two sides have opened; no memory: -1. */
struct way {
    int socket, memory;
    bool offered; /* this side did */
};

/* Maps the memory and hands over the socket. size: of a ring; 0: something has failed, and the error says what. */
static bool begin_local(struct local **local, int *fd, struct way way, size_t size, struct error *error)
{
    *local = size > 0 ? map_rings(way.memory, size, way.offered, error) : NULL;
    if (way.memory >= 0) {
        close(way.memory);
    }
    if (*local) {
        *fd = way.socket;
    } else {
        close(way.socket);
    }
    return *local;
}

size_t local_ring(size_t bytes)
{
    const size_t most = LOCAL_RING_MOST / LOCAL_RING_LEAST;
    const size_t units = bytes / LOCAL_RING_LEAST + bytes / LOCAL_RING_LEAST / 16; /* what a message has besides */
    return (units < most ? units + 1 : most) * LOCAL_RING_LEAST;
}

bool local_take(struct local **local, int *fd, const char *name, const char *secret, size_t bytes, struct error *error)
{
    struct sockaddr_un address;
    const size_t size = local_ring(bytes);
    *local = NULL;
    if (strlen(name) != LOCAL_NAME - 1 || strspn(name, "0123456789abcdef") != LOCAL_NAME - 1 ||
        strlen(secret) != LOCAL_NAME - 1) {
        return error_set(error, "malformed name");
    }
    const socklen_t address_size = address_of(name, &address);
    const int socket_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (socket_fd < 0) {
        return error_set(error, "no Unix socket: %s", strerror(errno));
    }
    int memory = -1;
    if (connect(socket_fd, (const struct sockaddr *)&address, address_size) != 0) {
        error_set(error, "it is in another container, or on another machine (%s)", strerror(errno));
    } else if (is_same_user(socket_fd, error)) {
        memory = make_memory(size, error);
    }
    const bool passed = memory >= 0 && pass_memory(socket_fd, memory, secret, error);
    return begin_local(local, fd, (struct way){socket_fd, memory, false}, passed ? size : 0, error);
}

/* Is it memory that stays as large as it is, of two rings? */
static bool check_memory(int memory, size_t *size, struct error *error)
{
    struct stat facts;
    const int seals = fcntl(memory, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(memory, &facts) != 0) {
        return error_set(error, "memory that is not sealed");
    }
    *size = facts.st_size > (off_t)sizeof(struct shared) ? ((size_t)facts.st_size - sizeof(struct shared)) / 2 : 0;
    const bool fits = *size >= LOCAL_RING_LEAST && *size <= LOCAL_RING_MOST && *size % LOCAL_RING_LEAST == 0;
    return fits || error_set(error, "memory of %lld bytes", (long long)facts.st_size);
}

bool local_accept(struct local **local, int *fd, const struct local_offer *offer, struct error *error)
{
    size_t size;
    *local = NULL;
    const int socket_fd = accept4(offer->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket_fd < 0) {
        return error_set(error, "nobody came: %s", strerror(errno));
    }
    const int memory = is_same_user(socket_fd, error) ? receive_memory(socket_fd, offer->secret, error) : -1;
    const bool fits = memory >= 0 && check_memory(memory, &size, error);
    return begin_local(local, fd, (struct way){socket_fd, memory, true}, fits ? size : 0, error);
}

void local_free(struct local *local)
{
    if (local) {
        munmap(local->shared, local->mapped);
        free(local);
    }
}
