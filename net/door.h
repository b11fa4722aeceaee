/*
 * Where connections wait until they send something: they cost a socket, but no thread or buffer. Their first bytes tell
 * members, who show a pass (net/pass.h), from strangers. Idle sessions rest here, too, until their peers send
 * more.
 *
 * One thread, the listener's, uses it; any may call door_rest.
 */
#ifndef NET_DOOR_H
#define NET_DOOR_H

#include <stdbool.h>
#include <sys/epoll.h>

#include "base/error.h"
#include "net/admission.h"
#include "net/credentials.h"
#include "net/endpoint.h"
#include "net/pass.h"
#include "net/wake.h"

enum { DOOR_AT_A_TIME = 128 /* events that one wait reports; the next reports the others */ };

struct pending { /* a connection that is not yet a session */
    int fd;
    double came_s;
    struct endpoint from;
    struct admission_source source;
    uint8_t pass[PASS_SIZE]; /* of a member */
};

/* What is known of a pending connection. */
enum door_look {
    DOOR_NOTHING,  /* yet */
    DOOR_MEMBER,   /* it shows a pass; in plain text there are none, and all are let through */
    DOOR_STRANGER, /* it speaks TLS, and has no pass */
    DOOR_PLAIN,    /* it speaks something else */
    DOOR_GONE,     /* it hung up, or sent nothing in time */
};

struct door {
    const struct credentials *credentials; /* borrowed; NULL: plain text */
    double timeout_s;
    int room, count;
    struct pending *pending;                   /* [room], in the order in which they came */
    int set;                                   /* epoll set of all who wait here; -1: none */
    struct epoll_event events[DOOR_AT_A_TIME]; /* of the last wait, */
    int heard;                                 /* their number; */
    int looked_at, stirred_at;                 /* and how far they were processed: pending ones, resting ones */
};

bool door_create(struct door *door, const struct credentials *credentials, int room, double timeout_s,
                 struct error *error);
void door_destroy(struct door *door); /* closes pending connections; fine on zeros, or after a failed create */

/*
 * Waits until a peer sends something or connects (listener: a socket), or until the deadline; *comes: one may connect.
 */
enum wake_result door_wait(struct door *door, int listener, const struct wake *wake, double deadline_s, bool *comes);

/* What a new connection has sent. */
enum door_look door_look(const struct door *door, struct pending *pending);

/* Adds a connection that has sent nothing yet. True: there was no room, and *out, the oldest, was removed for it. */
bool door_put(struct door *door, const struct pending *pending, struct pending *out);

/* After a wait: removes the next connection with an event; DOOR_NOTHING: there is none. */
enum door_look door_next(struct door *door, double now_s, struct pending *pending);

/*
 * Lets a session rest until its peer sends something (for_requests) or hangs up: door_stirred then reports it once.
 * Closing the socket ends that. False if the system has no room.
 */
bool door_rest(const struct door *door, int fd, void *session, bool for_requests);

/* After a wait: the next session that stopped resting; NULL: there is none. It may have ended meanwhile. */
void *door_stirred(struct door *door);

#endif
