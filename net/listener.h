/*
 * A listener that withstands hostile peers: accepts connections, admits peers by its owner's rules, and serves each
 * session on a worker thread while it has something to do. An idle session is parked, without a thread and without its
 * connection's buffers.
 *
 * Threads: a new connection gets one, newly started if none is free. For parked sessions that become readable the
 * owner's thread does what does not block (`try_inline`). Other sessions that resume share up to LISTENER_THREADS
 * threads, so that many which become active at once take turns. Threads that wait for others, and say so, do not count;
 * nor do slow ones hold up the rest: if none is free for LISTENER_SLOW_S, one more is started. There are never more
 * threads than places.
 *
 * Under attack: a connection that has sent nothing yet is in the accept queue (net/admission.h), without a thread.
 * One with a handshake token, as members have, is served at once. All others are unauthenticated and share little: few
 * handshakes at a time, a small part of one CPU (net/admission.h), and at most half of that per address. Members never
 * wait for them, nor lose a place to one. Every full queue drops its oldest entry, so that idle connections cannot
 * exhaust it. The owner's `admit` limits the connections of an admitted peer, by listener_count. The log has one line a
 * minute for each reason of rejections.
 *
 * The owner's lock guards the table of sessions, so that the owner's decisions and the table agree. "Locked" below: the
 * caller holds it. One thread, the owner's, creates, accepts, ends and destroys.
 */
#ifndef NET_LISTENER_H
#define NET_LISTENER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "net/admission.h"
#include "net/channel.h"
#include "net/handshake.h"
#include "net/socket.h"

enum {
    LISTENER_SPARE = 64,         /* unauthenticated handshakes; those of members, beyond the ones expected at once */
    LISTENER_ACCEPT_QUEUE = 256, /* connections that have sent nothing yet, beyond those expected at once */
    LISTENER_HANDSHAKE_S = 10,   /* for TLS and hello together, whatever the peer sends */
    LISTENER_UNDER_LOAD_S = 2,   /* the same once half of the spare places are taken; for members, only silent ones */
    LISTENER_HANDSHAKES = 32,    /* concurrent handshakes of members; others are in the handshake queue */
    LISTENER_THREADS = 64,       /* threads that serve resumed sessions and do not wait for others */
};

#define LISTENER_SLOW_S 0.005

/* The result of `try_inline`. */
enum listener_inline {
    INLINE_PARKED,       /* all is done, and channel_park succeeded */
    INLINE_NEEDS_THREAD, /* a thread must serve it */
    INLINE_CLOSE,
};

struct listener;

/* One connection. The owner's own struct begins with it. */
struct listener_session {
    struct listener *listener;
    char peer[ENDPOINT_TEXT]; /* its address */
    uint64_t number;          /* of the connection: 1, 2, ... */
    /* Private to the thread that serves it. */
    struct channel channel;
    bool read_paused; /* once parked it is resumed only when its peer hangs up or it is woken */
    /* Guarded by the lock. */
    double last_active_s; /* when it was admitted; the owner may update it on each request */
    bool disconnected;
    enum {
        SESSION_FREE,
        SESSION_NEW,       /* waits for a thread, */
        SESSION_HANDSHAKE, /* which performs its handshake */
        SESSION_READY,     /* admitted, as all below: waits for a thread */
        SESSION_SERVED,    /* by a thread */
        SESSION_INLINE,    /* served by the owner's thread */
        SESSION_PARKED,
    } state;

    /* Private to the listener. */
    bool woken;                    /* while served: `serve` runs once more before it is parked */
    bool waiting;                  /* its thread waits for other sessions, or for a peer in its handshake */
    bool is_member;                /* came with a handshake token, or in plain text */
    double since_s, wake_s;        /* since when it is ready or served; when to wake it: INFINITY for never */
    struct listener_session *next; /* ready, or free */
    int fd;
    double accepted_s, timeout_s;
    struct admission_source source;
    struct connection *connection; /* the channel's, for counting bytes; NULL: not open */
};

struct listener_options {
    const char *host; /* and port: as for socket_listen */
    uint16_t port;
    struct hello_options self;
    pthread_mutex_t *lock; /* borrowed */
    size_t session_size;   /* of the owner's struct */
    size_t stack_size;     /* of a thread that serves */
    int members;           /* places for admitted sessions */
    int expected;          /* peers likely to connect at the same time */
    int likely;            /* connections once all peers are present; warns if the open-file limit is lower */
    void *context;
    /* Initializes a session, all zeros except for the fields above. On the owner's thread. Locked. */
    void (*begin)(struct listener_session *session, void *context);
    /* As in handshake_rules, on a serving thread. `admit` calls listener_admit if it welcomes a peer. */
    bool (*knows)(struct listener_session *session, const char *digest); /* may be NULL */
    uint16_t (*admit)(struct listener_session *session, const struct peer *peer, struct error *message);
    /*
     * Serves an admitted session until it ends (false) or is idle (true, after channel_park succeeded): it is then
     * called again when something arrives, or the session is woken. The channel must be resumed before use.
     */
    bool (*serve)(struct listener_session *session);
    /*
     * On the owner's thread, for a parked session: handles what arrived, or is due, if that does not block. So
     * very many peers with small, rare requests cost no thread switches. NULL: threads do everything.
     */
    enum listener_inline (*try_inline)(struct listener_session *session);
    /* An admitted session ends; on the thread that serves it. Locked. */
    void (*leave)(struct listener_session *session);
};

/* Raises the limit of open files if it is too low for all places. */
bool listener_create(struct listener **listener, const struct listener_options *options, struct error *error);
uint16_t listener_port(const struct listener *listener);

/*
 * Waits until the deadline for peers that connect or send something, handles them, and returns; joins ended threads,
 * wakes sessions that are due, and logs rejections. After a failure to accept it logs that and pauses briefly. False
 * once the wake (NULL: none) is raised.
 */
bool listener_accept(struct listener *listener, const struct wake *wake, double deadline_s);

/* Accepts no more connections, waits until all sessions have ended, and disconnects the rest after `grace_s`. */
void listener_end(struct listener *listener, double grace_s);
void listener_destroy(struct listener *listener); /* the same without grace, then frees; NULL is fine */

/* Locked, in `admit`: marks the peer as admitted. */
void listener_admit(struct listener_session *session);

/* Locked: the next admitted session that is not disconnected, after this one (NULL: the first); NULL: no more. */
struct listener_session *listener_next(const struct listener *listener, const struct listener_session *session);

/*
 * Locked: counts admitted sessions that are not disconnected and for which `alike` is true; *silent: the one of them
 * that was active least recently.
 */
int listener_count(const struct listener *listener,
                   bool (*alike)(const struct listener_session *session, const void *context), const void *context,
                   struct listener_session **silent);

/* Locked, by the serving thread: call it before and after waiting for other sessions. */
void listener_set_waiting(struct listener_session *session, bool waiting);

/* Locked: how long an idle session may keep its thread. 0: threads are scarce, so it may not. */
double listener_keep_thread_s(const struct listener *listener);

/* Locked: has a parked session served again; one being served runs `serve` once more before it is parked. */
void listener_wake(struct listener_session *session);

/* Locked, by the serving thread: wakes the session at that time (to within 0.5 s) once it is parked. */
void listener_wake_at(struct listener_session *session, double when_s);

/* Locked: ends its connection from outside; the serving thread finds it closed. */
void listener_disconnect(struct listener_session *session);

/* Locked: bytes of all connections, including ended ones. */
void listener_bytes(const struct listener *listener, uint64_t *in, uint64_t *out);

/* True if the peer has hung up, as far as is known without reading. */
bool listener_peer_hung_up(const struct listener_session *session);

#endif
