/*
 * Where connections wait until they say something: they cost a socket, and neither a thread nor a buffer. What they say
 * first tells members, who show a pass (net/pass.h), from strangers. Sessions that have nothing to do rest here, too,
 * until their peers go on.
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

enum { DOOR_AT_A_TIME = 128 /* that a wait tells of; of the others the next one tells */ };

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
    DOOR_GONE,     /* it hung up, or said nothing in time */
};

struct door {
    const struct credentials *credentials; /* borrowed; NULL: plain text */
    double timeout_s;
    int room, count;
    struct pending *pending;                   /* [room], in the order in which they came */
    int set;                                   /* of epoll: all who wait here; -1: none */
    struct epoll_event events[DOOR_AT_A_TIME]; /* that the last wait told of, */
    int heard;                                 /* so many; */
    int looked_at, stirred_at;                 /* and how far they were looked at: for those pending, for who rested */
};

bool door_create(struct door *door, const struct credentials *credentials, int room, double timeout_s,
                 struct error *error);
void door_destroy(struct door *door); /* closes who is pending; fine on zeros, or where it could not be created */

/* Waits until somebody speaks or comes (listener: a socket), or until the deadline; *comes: somebody may. */
enum wake_result door_wait(struct door *door, int listener, const struct wake *wake, double deadline_s, bool *comes);

/* What a connection that has just come said. */
enum door_look door_look(const struct door *door, struct pending *pending);

/* Lets one in that said nothing yet. True: there was no room, and *out, whose time it is, had to leave for it. */
bool door_put(struct door *door, const struct pending *pending, struct pending *out);

/* After a wait: takes out the next one of which something is known; DOOR_NOTHING: there is none. */
enum door_look door_next(struct door *door, double now_s, struct pending *pending);

/*
 * Lets a session rest until its peer says something (for_requests) or hangs up: then, once, door_stirred tells of it.
 * Closing the socket ends that. False if the system has no room.
 */
bool door_rest(const struct door *door, int fd, void *session, bool for_requests);

/* After a wait: the next one that rested and does no more; NULL: there is none. It may have ended meanwhile. */
void *door_stirred(struct door *door);

#endif
