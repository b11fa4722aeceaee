/*
 * Where connections wait until they have said something: they cost a socket, and neither a thread nor a buffer. What
 * they say first tells members, who show a pass (net/credentials.h), from strangers.
 *
 * One thread, the listener's, uses it.
 */
#ifndef NET_DOOR_H
#define NET_DOOR_H

#include <poll.h>
#include <stdbool.h>

#include "base/error.h"
#include "net/admission.h"
#include "net/credentials.h"
#include "net/endpoint.h"
#include "net/pass.h"
#include "net/wake.h"

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
    int looked_at;           /* of those pending, so many were looked at since the last wait */
    struct pending *pending; /* [room], in the order in which they came */
    struct pollfd *waits;    /* [2 + room]: the wake, the listener, those pending */
};

bool door_create(struct door *door, const struct credentials *credentials, int room, double timeout_s);
void door_destroy(struct door *door); /* closes who is there; fine on zeros */

/* Waits until somebody speaks or comes (listener: a socket), or until the deadline; *comes: somebody may. */
enum wake_result door_wait(struct door *door, int listener, const struct wake *wake, double deadline_s, bool *comes);

/* What a connection that has just come said. */
enum door_look door_look(const struct door *door, struct pending *pending);

/* Lets one in that said nothing yet. True: there was no room, and *out, whose time it is, had to leave for it. */
bool door_put(struct door *door, const struct pending *pending, struct pending *out);

/* After a wait: takes out the next one of which something is known; DOOR_NOTHING: there is none. */
enum door_look door_next(struct door *door, double now_s, struct pending *pending);

#endif
