/*
 * Sockets. A link has two streams; data arrives after a latency of its own, in order, as TCP delivers it. A reset
 * overtakes nothing. Reordering occurs between links: data sent on an abandoned link may arrive after its repetition on
 * the next. Loss and duplication are what TCP makes of them: delays, broken links, and requests repeated by a peer that
 * did not receive the answer.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <math.h>
#include <unistd.h>

#include "tests/simulate/world.h"

enum { WINDOW = 256 * 1024, MOST_LINKS = 4096 };

static const double GIVEN_UP_S = 30; /* by TCP_USER_TIMEOUT and keep-alive, see net/socket.h */

struct direction {
    uint8_t *bytes;
    size_t start, arrived, end, capacity; /* start..arrived: to be read, arrived..end: in flight */
    double last_s;                        /* when the last of them arrives */
    bool fin, fin_arrived;
};

struct link {
    int refs, index;
    struct machine *machines[2];
    struct file *ends[2];   /* NULL: closed */
    struct direction to[2]; /* towards that side */
    bool connected, dead;   /* dead: nothing passes any more */
    bool broken[2], shut[2];
    int error; /* errno where it is broken */
    uint16_t port;
};

double network_latency_s = 0.002;
static struct link *links[MOST_LINKS];
static int link_count;
static double parted_until_s[WORLD_MAX_MACHINES][WORLD_MAX_MACHINES];

enum happening { SYN, DATA, FIN, RESET, GIVE_UP };

void network_begin(void)
{
    memset(parted_until_s, 0, sizeof parted_until_s);
}

static void release(struct link *link)
{
    if (--link->refs > 0) {
        return;
    }
    links[link->index] = links[--link_count];
    links[link->index]->index = link->index;
    free(link->to[0].bytes);
    free(link->to[1].bytes);
    free(link);
}

void network_end(void)
{
    while (link_count > 0) {
        links[0]->refs = 1;
        release(links[0]);
    }
}

/* --- Files --- */

static void take_number(struct file *file)
{
    struct machine *machine = file->machine;
    for (int i = 0; i < WORLD_MAX_FILES; i++) {
        if (!machine->files[i]) {
            machine->files[i] = file;
            file->fd = i + 3;
            return;
        }
    }
    fail("%s has more than %d open files", machine->name, WORLD_MAX_FILES);
}

struct file *file_new(int kind)
{
    struct file *file = world_alloc(sizeof *file);
    file->kind = kind;
    file->machine = world.here;
    file->fd = -1;
    take_number(file);
    return file;
}

struct file *file_of(int fd)
{
    struct file *file = fd >= 3 && fd < WORLD_MAX_FILES + 3 ? world.here->files[fd - 3] : NULL;
    if (!file) {
        fail("%s uses file %d, which is not open", world.here->name, fd);
        errno = EBADF;
    }
    return file;
}

static void wake_end(struct link *link, int side)
{
    struct file *file = link->ends[side];
    if (file && file->fd >= 0) {
        thread_wake_poll(file->machine, file->fd);
    }
}

static void break_side(struct link *link, int side, int error)
{
    link->broken[side] = true;
    link->error = error;
    wake_end(link, side);
}

/* --- What happens on links --- */

static void happens(void *context, uint64_t argument);

static void arrange(struct link *link, double when_s, enum happening what, int side, size_t count)
{
    link->refs++;
    world_at(when_s, happens, link, (uint64_t)count << 8 | (uint64_t)what << 1 | (uint64_t)side);
}

static double arrival(struct link *link, int side)
{
    double when_s = world.now_s + network_latency_s * (0.1 + chance_real());
    if (chance(64) == 0) {
        when_s += network_latency_s * 50 * chance_real();
    }
    when_s = when_s > link->to[side].last_s ? when_s : link->to[side].last_s;
    return link->to[side].last_s = when_s;
}

static void send_reset(struct link *link, int side)
{
    arrange(link, arrival(link, side), RESET, side, 0);
}

static struct file *find_listener(const struct link *link)
{
    const struct machine *machine = link->machines[1];
    for (int i = 0; machine->runs && i < 16; i++) {
        if (machine->files[i] && machine->files[i]->kind == FILE_LISTENER &&
            machine->files[i]->listener.port == link->port) {
            return machine->files[i];
        }
    }
    return NULL;
}

static void take_syn(struct link *link)
{
    struct file *listener = find_listener(link);
    if (!listener || listener->listener.count == 64) {
        break_side(link, 0, ECONNREFUSED);
        return;
    }
    struct file *file = world_alloc(sizeof *file);
    file->kind = FILE_SOCKET;
    file->machine = link->machines[1];
    file->fd = -1;
    file->socket.link = link;
    file->socket.side = 1;
    link->refs++;
    link->ends[1] = file;
    link->connected = true;
    listener->listener.pending[listener->listener.count++] = file;
    thread_wake_poll(listener->machine, listener->fd);
    wake_end(link, 0);
}

/* Connecting takes both directions; sending takes one. */
static double parted_until(const struct link *link, int side, bool both)
{
    const int from = link->machines[!side]->number, to = link->machines[side]->number;
    return both && parted_until_s[to][from] > parted_until_s[from][to] ? parted_until_s[to][from]
                                                                       : parted_until_s[from][to];
}

static void happens(void *context, uint64_t argument)
{
    struct link *link = context;
    int side = (int)(argument & 1);
    enum happening what = (enum happening)(argument >> 1 & 127);
    double until_s = parted_until(link, side, what == SYN);
    if (what != GIVE_UP && until_s > world.now_s) { /* it is retransmitted until it passes */
        if (isinf(until_s)) {                       /* or TCP gives up the connection */
            world_at(world.now_s + GIVEN_UP_S, happens, context, (uint64_t)GIVE_UP << 1);
            return;
        }
        link->to[side].last_s = until_s > link->to[side].last_s ? until_s : link->to[side].last_s;
        world_at(until_s, happens, context, argument);
        return;
    }
    struct direction *to = &link->to[side];
    if (link->dead && what != GIVE_UP) {
        /* nothing passes */
    } else if (what == SYN && link->ends[0]) {
        take_syn(link);
    } else if (what == DATA && !link->ends[side]) {
        if (!link->broken[!side]) {
            send_reset(link, !side);
        }
    } else if (what == DATA) {
        to->arrived += argument >> 8;
        wake_end(link, side);
    } else if (what == FIN) {
        to->fin_arrived = true;
        wake_end(link, side);
    } else if (what == RESET) {
        break_side(link, side, ECONNRESET);
    } else if (what == GIVE_UP) {
        link->dead = true;
        break_side(link, 0, ETIMEDOUT);
        break_side(link, 1, ETIMEDOUT);
    }
    release(link);
}

/* --- Ends --- */

void network_close(struct file *file, bool silent)
{
    struct link *link = file->socket.link;
    if (!link) {
        return;
    }
    int side = file->socket.side;
    struct direction *to = &link->to[side];
    link->ends[side] = NULL;
    if (silent) {
        link->dead = true;
        arrange(link, world.now_s + GIVEN_UP_S, GIVE_UP, !side, 0);
    } else if (link->connected && !link->broken[side]) {
        bool unread = to->end > to->start;
        if (unread) {
            send_reset(link, !side);
        } else if (!link->to[!side].fin) {
            link->to[!side].fin = true;
            arrange(link, arrival(link, !side), FIN, !side, 0);
        }
    }
    release(link);
}

/* --- Sets of epoll --- */

struct watched {
    int fd;
    struct epoll_event event; /* its `events` are 0 after it was reported, until it is requested again */
};

static struct watched *find_watched(const struct file *set, int fd)
{
    for (int i = 0; i < set->set.count; i++) {
        if (set->set.watched[i].fd == fd) {
            return &set->set.watched[i];
        }
    }
    return NULL;
}

bool network_watches(const struct machine *machine, int set, int fd)
{
    const struct file *file = set >= 3 ? machine->files[set - 3] : NULL;
    return file && file->kind == FILE_SET && find_watched(file, fd);
}

/* Closed files are removed from all sets. */
static void leave_sets(const struct file *file)
{
    for (int i = 0; i < WORLD_MAX_FILES; i++) {
        struct file *set = file->machine->files[i];
        struct watched *watched = set && set->kind == FILE_SET ? find_watched(set, file->fd) : NULL;
        if (watched) {
            *watched = set->set.watched[--set->set.count];
        }
    }
}

void file_free(struct file *file)
{
    if (file->kind == FILE_SOCKET) {
        network_close(file, false);
    } else if (file->kind == FILE_LISTENER) {
        for (int i = 0; i < file->listener.count; i++) {
            file_free(file->listener.pending[i]);
        }
    } else if (file->kind == FILE_SET) {
        free(file->set.watched);
    } else if (file->kind != FILE_EVENT) {
        disk_close(file);
    }
    if (file->fd >= 3) {
        file->machine->files[file->fd - 3] = NULL;
        leave_sets(file);
    }
    free(file);
}

static bool is_between(const struct link *link, const struct machine *one, const struct machine *other)
{
    return (link->machines[0] == one && (!other || link->machines[1] == other)) ||
           (link->machines[1] == one && (!other || link->machines[0] == other));
}

void network_cut(struct machine *one, struct machine *other)
{
    for (int i = 0; i < link_count; i++) {
        if (is_between(links[i], one, other) && links[i]->connected && chance(2) == 0) {
            break_side(links[i], 0, ECONNRESET);
            break_side(links[i], 1, ECONNRESET);
            links[i]->dead = true;
        }
    }
}

void network_half_open(struct machine *one, struct machine *other)
{
    for (int i = 0; i < link_count; i++) {
        if (is_between(links[i], one, other) && links[i]->connected && !links[i]->dead && chance(2) == 0) {
            links[i]->dead = true;
            arrange(links[i], world.now_s + GIVEN_UP_S, GIVE_UP, 0, 0);
        }
    }
}

void network_silence(struct machine *machine)
{
    for (int i = 0; i < link_count; i++) {
        if (is_between(links[i], machine, NULL) && !links[i]->dead) {
            links[i]->dead = true;
            arrange(links[i], world.now_s + GIVEN_UP_S, GIVE_UP, 0, 0);
        }
    }
}

void network_part(struct machine *one, struct machine *other, enum partition how, double until_s)
{
    for (int i = 0; i < world.machine_count; i++) {
        if (other && i != other->number) {
            continue;
        }
        double *from = &parted_until_s[one->number][i], *to = &parted_until_s[i][one->number];
        if (how != PART_TO) {
            *from = until_s > *from ? until_s : *from;
        }
        if (how != PART_FROM) {
            *to = until_s > *to ? until_s : *to;
        }
    }
}

/* --- Replacements of system calls --- */

#define WRAP(type, name, ...)                                                                                          \
    type __wrap_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__)

static int wrong(int reason)
{
    errno = reason;
    return -1;
}

WRAP(int, socket, int domain, int type, int protocol)
{
    int reason = domain == AF_INET ? falls_short(SHORT_SOCKET) : EAFNOSUPPORT;
    return reason != 0 ? wrong(reason) : file_new(FILE_SOCKET)->fd;
}

WRAP(int, setsockopt, int fd, int level, int name, const void *value, socklen_t size)
{
    return 0;
}

WRAP(int, getsockopt, int fd, int level, int name, void *value, socklen_t *size)
{
    const struct link *link = file_of(fd)->socket.link;
    *(int *)value = link->broken[0] ? link->error : link->connected ? 0 : ETIMEDOUT;
    return 0;
}

WRAP(int, bind, int fd, const struct sockaddr *address, socklen_t size)
{
    struct file *file = file_of(fd);
    file->kind = FILE_LISTENER;
    memset(&file->listener, 0, sizeof file->listener);
    file->listener.port = ntohs(((const struct sockaddr_in *)(const void *)address)->sin_port);
    return 0;
}

WRAP(int, getsockname, int fd, struct sockaddr *address, socklen_t *size)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(file_of(fd)->listener.port)};
    memcpy(address, &own, sizeof own);
    *size = sizeof own;
    return 0;
}

WRAP(int, listen, int fd, int backlog)
{
    return 0;
}

WRAP(int, getaddrinfo, const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    struct {
        struct addrinfo info;
        struct sockaddr_in address;
    } *both = calloc(1, sizeof *both);
    if (!both) {
        return EAI_MEMORY;
    }
    if (hints->ai_family == AF_INET6) {
        free(both);
        return EAI_FAMILY;
    }
    both->address = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(service)), .sin_addr.s_addr = htonl(0x0a000001)};
    both->info = (struct addrinfo){.ai_family = AF_INET,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_addr = (struct sockaddr *)&both->address,
                                   .ai_addrlen = sizeof both->address};
    *found = &both->info;
    return 0;
}

WRAP(void, freeaddrinfo, struct addrinfo *found)
{
    free(found);
}

WRAP(int, connect, int fd, const struct sockaddr *address, socklen_t size)
{
    struct file *file = file_of(fd);
    uint16_t port = ntohs(((const struct sockaddr_in *)(const void *)address)->sin_port);
    struct machine *other = NULL;
    for (int i = 0; i < world.machine_count; i++) {
        other = world.machines[i].port == port ? &world.machines[i] : other;
    }
    if (!other || link_count == MOST_LINKS) {
        return wrong(ENETUNREACH);
    }
    int reason = falls_short(SHORT_CONNECT);
    if (reason != 0) {
        return wrong(reason);
    }
    struct link *link = world_alloc(sizeof *link);
    link->refs = 1;
    link->port = port;
    link->machines[0] = world.here;
    link->machines[1] = other;
    link->ends[0] = file;
    link->index = link_count;
    links[link_count++] = link;
    file->socket.link = link;
    file->socket.side = 0;
    arrange(link, arrival(link, 1), SYN, 1, 0);
    return wrong(EINPROGRESS);
}

WRAP(int, accept4, int fd, struct sockaddr *address, socklen_t *size, int flags)
{
    struct file *file = file_of(fd);
    int reason = file->listener.count == 0 ? EAGAIN : falls_short(SHORT_ACCEPT);
    if (reason != 0) {
        return wrong(reason);
    }
    struct file *new = file->listener.pending[0];
    memmove(file->listener.pending, file->listener.pending + 1,
            (size_t)--file->listener.count * sizeof file->listener.pending[0]); /* NOLINT: they are pointers */
    struct sockaddr_in from = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)(30000 + new->socket.link->machines[0]->number)),
                               .sin_addr.s_addr = htonl(0x0a000001)};
    memcpy(address, &from, sizeof from);
    *size = sizeof from;
    take_number(new);
    return new->fd;
}

static ssize_t receive(int fd, const struct iovec *parts, size_t count)
{
    struct file *file = file_of(fd);
    struct link *link = file->socket.link;
    int side = file->socket.side;
    struct direction *to = &link->to[side];
    size_t there = to->arrived - to->start, got = 0;
    int reason = there > 0 ? falls_short(SHORT_RECEIVE) : 0;
    if (reason != 0) {
        return wrong(reason);
    }
    if (there > 1 && chance(32) == 0) { /* reads may be short */
        there = 1 + chance(there);
    }
    for (size_t i = 0; i < count && got < there; i++) {
        size_t size = parts[i].iov_len < there - got ? parts[i].iov_len : there - got;
        memcpy(parts[i].iov_base, to->bytes + to->start + got, size);
        got += size;
    }
    to->start += got;
    if (to->start == to->end) {
        to->start = to->arrived = to->end = 0;
    }
    if (got > 0) {
        wake_end(link, !side);
        return (ssize_t)got;
    }
    if (link->broken[side]) {
        return wrong(link->error);
    }
    return to->fin_arrived || link->shut[side] ? 0 : wrong(EAGAIN);
}

WRAP(ssize_t, recvmsg, int fd, struct msghdr *message, int flags)
{
    return receive(fd, message->msg_iov, message->msg_iovlen);
}

WRAP(ssize_t, recv, int fd, void *bytes, size_t size, int flags)
{
    return receive(fd, &(struct iovec){bytes, size}, 1);
}

static void append(struct direction *to, const void *bytes, size_t size)
{
    if (to->end + size > to->capacity) {
        size_t used = to->end - to->start;
        uint8_t *larger = world_alloc(2 * (used + size) + 1024);
        if (used > 0) {
            memcpy(larger, to->bytes + to->start, used);
        }
        free(to->bytes);
        *to = (struct direction){.bytes = larger,
                                 .arrived = to->arrived - to->start,
                                 .end = used,
                                 .capacity = 2 * (used + size) + 1024,
                                 .last_s = to->last_s,
                                 .fin = to->fin,
                                 .fin_arrived = to->fin_arrived};
    }
    memcpy(to->bytes + to->end, bytes, size);
    to->end += size;
}

static ssize_t send_all(int fd, const struct iovec *parts, size_t count)
{
    struct file *file = file_of(fd);
    struct link *link = file->socket.link;
    int side = file->socket.side;
    struct direction *to = &link->to[!side];
    size_t room = WINDOW - (to->end - to->start), sent = 0, all = 0;
    if (link->broken[side] || link->shut[side] || to->fin) {
        return wrong(link->broken[side] ? link->error : EPIPE);
    }
    for (size_t i = 0; i < count; i++) {
        all += parts[i].iov_len;
    }
    int reason = room == 0 ? EAGAIN : falls_short(SHORT_SEND);
    if (reason != 0) {
        return wrong(reason);
    }
    if (all > 1 && chance(32) == 0) { /* writes may be short */
        room = 1 + chance(room < all ? room : all);
    }
    for (size_t i = 0; i < count && sent < room; i++) {
        size_t size = parts[i].iov_len < room - sent ? parts[i].iov_len : room - sent;
        append(to, parts[i].iov_base, size);
        sent += size;
    }
    if (link->dead && link->machines[!side]->runs && !link->ends[!side] && !link->broken[side]) {
        link->dead = false; /* the machine is back, and knows nothing of this */
    }
    if (sent > 0) {
        arrange(link, arrival(link, !side), DATA, !side, sent);
    }
    return (ssize_t)sent;
}

WRAP(ssize_t, sendmsg, int fd, const struct msghdr *message, int flags)
{
    return send_all(fd, message->msg_iov, message->msg_iovlen);
}

WRAP(ssize_t, send, int fd, const void *bytes, size_t size, int flags)
{
    return send_all(fd, &(struct iovec){(void *)(uintptr_t)bytes, size}, 1);
}

WRAP(int, shutdown, int fd, int how)
{
    struct file *file = file_of(fd);
    struct link *link = file->socket.link;
    int side = file->socket.side;
    if (!link->to[!side].fin) {
        link->to[!side].fin = true;
        arrange(link, arrival(link, !side), FIN, !side, 0);
    }
    if (how == SHUT_RDWR) {
        link->shut[side] = true;
        wake_end(link, side);
    }
    return 0;
}

static short look_at_set(const struct file *set);

static short look(const struct pollfd *polled)
{
    const struct file *file = file_of(polled->fd);
    short found = 0;
    if (!file) {
        return POLLNVAL;
    }
    if (file->kind == FILE_LISTENER) {
        return file->listener.count > 0 ? polled->events & POLLIN : 0;
    }
    if (file->kind == FILE_EVENT) {
        return file->event > 0 ? polled->events & POLLIN : 0;
    }
    if (file->kind == FILE_SET) {
        return look_at_set(file);
    }
    const struct link *link = file->socket.link;
    int side = file->socket.side;
    const struct direction *to = &link->to[side];
    if (link->broken[side]) {
        return (short)((polled->events & (POLLIN | POLLOUT)) | POLLERR | POLLHUP);
    }
    if (to->arrived > to->start || to->fin_arrived || link->shut[side]) {
        found |= POLLIN;
    }
    if (to->fin_arrived || link->shut[side]) {
        found |= POLLRDHUP;
    }
    if (link->connected && link->to[!side].end - link->to[!side].start < WINDOW) {
        found |= POLLOUT;
    }
    return found & (short)(polled->events | POLLERR | POLLHUP);
}

static short look_at_set(const struct file *set)
{
    for (int i = 0; i < set->set.count; i++) {
        const struct watched *watched = &set->set.watched[i];
        const struct pollfd one = {.fd = watched->fd, .events = (short)watched->event.events};
        if (watched->event.events != 0 && look(&one) != 0) {
            return POLLIN;
        }
    }
    return 0;
}

WRAP(int, epoll_create1, int flags)
{
    return file_new(FILE_SET)->fd;
}

WRAP(int, epoll_ctl, int fd, int operation, int of, struct epoll_event *event)
{
    struct file *file = file_of(fd);
    struct watched *watched = find_watched(file, of);
    if (operation == EPOLL_CTL_ADD ? (bool)watched : !watched) {
        return wrong(watched ? EEXIST : ENOENT);
    }
    if (operation == EPOLL_CTL_DEL) {
        *watched = file->set.watched[--file->set.count];
        return 0;
    }
    if (!watched && file->set.count == file->set.room) {
        struct watched *more = world_alloc((size_t)(file->set.room + 64) * sizeof *more);
        memcpy(more, file->set.watched, (size_t)file->set.count * sizeof *more);
        free(file->set.watched);
        file->set.watched = more;
        file->set.room += 64;
    }
    watched = watched ? watched : &file->set.watched[file->set.count++];
    *watched = (struct watched){of, *event};
    thread_wake_poll(world.here, fd);
    return 0;
}

/* Only poll ever waits in the program, so this call checks without waiting. */
WRAP(int, epoll_wait, int fd, struct epoll_event *events, int most, int timeout_ms)
{
    const struct file *file = file_of(fd);
    int count = 0;
    if (timeout_ms != 0) {
        fail("epoll_wait is to wait");
    }
    for (int i = 0; i < file->set.count && count < most; i++) {
        struct watched *watched = &file->set.watched[i];
        const uint32_t wanted = watched->event.events;
        const struct pollfd one = {.fd = watched->fd, .events = (short)wanted};
        const short found = wanted != 0 ? look(&one) : 0;
        if (found != 0) {
            events[count++] = (struct epoll_event){.events = (uint32_t)found, .data = watched->event.data};
            watched->event.events = wanted & EPOLLONESHOT ? 0 : wanted;
        }
    }
    return count;
}

WRAP(int, poll, struct pollfd *polled, nfds_t count, int timeout_ms)
{
    double until_s = timeout_ms < 0 ? INFINITY : world.now_s + here_s(timeout_ms * 1e-3);
    for (;;) {
        int found = 0;
        for (nfds_t i = 0; i < count; i++) {
            polled[i].revents = polled[i].fd >= 0 ? look(&polled[i]) : 0;
            found += polled[i].revents != 0;
        }
        if (found > 0 || world.now_s >= until_s) {
            return found;
        }
        thread_block_poll(polled, (int)count, until_s);
    }
}

WRAP(int, eventfd, unsigned start, int flags)
{
    struct file *file = file_new(FILE_EVENT);
    file->event = start;
    return file->fd;
}

WRAP(int, eventfd_write, int fd, eventfd_t value)
{
    file_of(fd)->event += value;
    thread_wake_poll(world.here, fd);
    return 0;
}

WRAP(int, eventfd_read, int fd, eventfd_t *value)
{
    struct file *file = file_of(fd);
    *value = file->event;
    file->event = 0;
    return *value > 0 ? 0 : wrong(EAGAIN);
}

/* How much of what was sent has not arrived. */
WRAP(int, ioctl, int fd, unsigned long request, int *bytes)
{
    const struct file *file = file_of(fd);
    if (request != TIOCOUTQ || !file->socket.link) {
        return wrong(ENOTTY);
    }
    const struct direction *to = &file->socket.link->to[!file->socket.side];
    *bytes = (int)(to->end - to->arrived);
    return 0;
}

WRAP(int, close, int fd)
{
    struct file *file = file_of(fd);
    if (!file) {
        return wrong(EBADF);
    }
    file_free(file);
    return 0;
}
