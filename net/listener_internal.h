/* The state of a listener, for listener.c and for tests that must know when its threads have come to rest. */
#ifndef NET_LISTENER_INTERNAL_H
#define NET_LISTENER_INTERNAL_H

#include <stdbool.h>
#include <sys/epoll.h>

#include "base/error.h"
#include "net/admission.h"
#include "net/credentials.h"
#include "net/listener.h"
#include "net/socket.h"

/* --- Connections that wait to be admitted --- */

/*
 * Connections that wait without a thread or buffer: new ones until they have sent their first bytes, by which they are
 * classified, and parked sessions until their peers send more.
 *
 * One thread, the listener's, uses it; any may call accept_queue_park.
 */

enum { ACCEPT_QUEUE_EVENTS = 128 /* that one wait reports; the next reports the others */ };

struct pending { /* a connection that is not yet a session */
    int fd;
    double since_s; /* when it was accepted */
    struct endpoint from;
    struct admission_source source;
    uint8_t token[HANDSHAKE_TOKEN_SIZE]; /* of PEER_MEMBER */
};

/* What is known of a pending connection. */
enum peer_class {
    PEER_UNKNOWN,         /* yet */
    PEER_MEMBER,          /* has a handshake token; in plain text there are none, and all are let through */
    PEER_UNAUTHENTICATED, /* speaks TLS, and has no token */
    PEER_PLAIN,           /* speaks something else */
    PEER_GONE,            /* hung up, or sent nothing in time */
};

struct accept_queue {
    const struct credentials *credentials; /* borrowed; NULL: plain text */
    double timeout_s;
    int room, count;
    struct pending *pending;                        /* [room], in the order in which they came */
    int epoll;                                      /* -1: none */
    struct epoll_event events[ACCEPT_QUEUE_EVENTS]; /* of the last wait, */
    int event_count;                                /* their number; */
    int next_pending, next_ready;                   /* and the next ones to look at */
};

bool accept_queue_create(struct accept_queue *queue, const struct credentials *credentials, int room, double timeout_s,
                         struct error *error);
void accept_queue_destroy(
    struct accept_queue *queue); /* closes pending connections; fine on zeros, or if not created */

/*
 * Waits until a peer sends something or connects (listener: a socket), or until the deadline; *connects: one may
 * connect.
 */
enum wake_result accept_queue_wait(struct accept_queue *queue, int listener, const struct wake *wake, double deadline_s,
                                   bool *connects);

/* By what a new connection has sent. */
enum peer_class accept_queue_classify(const struct accept_queue *queue, struct pending *pending);

/* Adds a connection that has sent nothing yet. True: the queue was full, and *evicted, the oldest, was removed. */
bool accept_queue_add(struct accept_queue *queue, const struct pending *pending, struct pending *evicted);

/* After a wait: removes the next connection with an event; PEER_UNKNOWN: there is none. */
enum peer_class accept_queue_next(struct accept_queue *queue, double now_s, struct pending *pending);

/*
 * Watches a parked session's socket until its peer sends something (for_input) or hangs up: accept_queue_next_ready
 * then reports it once. Closing the socket ends that. False if the system is out of resources.
 */
bool accept_queue_park(const struct accept_queue *queue, int fd, void *session, bool for_input);

/* After a wait: the next parked session with an event; NULL: there is none. It may have ended meanwhile. */
void *accept_queue_next_ready(struct accept_queue *queue);

/* --- The listener --- */

/* A thread that serves sessions. */
struct worker_thread {
    pthread_t thread;
    struct listener *listener;
    pthread_cond_t wakeup;
    bool woken;
    struct worker_thread *next; /* in the list of idle or of ended threads */
};

struct listener {
    struct listener_options options;
    /* Private to the owner's thread. */
    int fd;
    int places;
    int expected; /* members' handshakes at a time, beyond half of the spare ones */
    double tidied_s, expired_s;
    double pause_until_s;
    struct accept_queue accept_queue;
    /* Guarded by the lock. */
    char *sessions;                /* [places * session_size] */
    int used;                      /* of them, those ever used */
    struct listener_session *free; /* of the used ones, those free again */
    struct {
        struct listener_session *first, *last;
        int count;
    } ready;                     /* SESSION_NEW and SESSION_READY */
    struct {                     /* members whose handshakes must wait for others: a ring */
        struct pending *pending; /* [room] */
        int room, first, count;
    } handshake_queue;
    uint64_t connections;        /* so far */
    int open;                    /* sessions */
    int timed;                   /* sessions parked until a time */
    int handshaking[2];          /* SESSION_NEW and SESSION_HANDSHAKE: unauthenticated ones, members */
    double admitted_s;           /* time of the last admission */
    int threads, serving;        /* the other threads look for a session, or are starting */
    int working;                 /* threads that serve an admitted session, and don't wait for others */
    struct worker_thread *idle;  /* the last to become idle is woken first, since its caches are warmest */
    struct worker_thread *ended; /* to be joined */
    pthread_cond_t thread_ended, session_ended;
    bool ending, over;
    uint64_t bytes_in, bytes_out; /* of connections that ended */
    struct admission admission;
    struct reject_log rejected;
};

static inline struct listener_session *session_at(const struct listener *listener, int i)
{
    return (struct listener_session *)(void *)(listener->sessions + (size_t)i * listener->options.session_size);
}

#endif
