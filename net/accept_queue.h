/*
 * Connections that wait without a thread or buffer: new ones until they have sent their first bytes, by which they are
 * classified, and parked sessions until their peers send more.
 *
 * One thread, the listener's, uses it; any may call accept_queue_park.
 */
#ifndef NET_ACCEPT_QUEUE_H
#define NET_ACCEPT_QUEUE_H

#include <stdbool.h>
#include <sys/epoll.h>

#include "base/error.h"
#include "net/admission.h"
#include "net/credentials.h"
#include "net/endpoint.h"
#include "net/wake.h"

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

#endif
