/*
 * A listener that bears hostile peers: takes connections, lets in whom its owner admits, and serves each by a thread
 * while it has something to do. A session that has nothing to do rests at the door: without a thread, and without the
 * buffers of its connection.
 *
 * Threads: whoever comes gets one, a new one if none is free. What takes no waiting the owner's thread does for those
 * that rest (`glance`). For other sessions that go on after a rest LISTENER_THREADS are started at once, so that many
 * who speak at the same time take turns. Those that wait for others, and say so, do not count; nor may who is slow keep
 * others waiting: where none of them is free for LISTENER_SLOW_S, one more is started. There are never more than
 * places.
 *
 * Who has said nothing yet waits at the door, without a thread. Who shows a pass there (net/pass.h), as members do,
 * is served at once. All others are strangers, and share little: few handshakes at a time, a small part of one
 * processor (net/admission.h), and of that an address half at most. Members never wait for strangers, nor lose a place
 * to one. Wherever many wait, the oldest goes, so that a crowd that says nothing keeps nobody out for long. How many
 * connections one peer may have once it is admitted is for the owner's `admit` to bound, by listener_count. The log has
 * one line a minute for each cause of refusals (net/complaints.h).
 *
 * The owner's lock guards the table of sessions, so that what the owner decides about sessions and what the table says
 * agree. "Locked" below: it is held. One thread, the owner's, creates, accepts, ends and destroys.
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
#include "net/wake.h"

enum {
    LISTENER_SPARE = 64,       /* strangers in their handshakes; members in theirs, beyond those expected at once */
    LISTENER_DOOR = 256,       /* connections that have said nothing yet, beyond those expected at once */
    LISTENER_HANDSHAKE_S = 10, /* until a connection has to be through TLS and hello, whatever it sends */
    LISTENER_CROWDED_S = 2, /* the same, once half of the spare places are taken: of members, those who say nothing */
    LISTENER_SHAKING = 32,  /* members in their handshakes at a time: the others wait their turn in the lobby */
    LISTENER_THREADS = 64,  /* that serve sessions after a rest, and do not wait for others */
};

#define LISTENER_SLOW_S 0.005

/* What came of a session that the owner's thread had a look at. */
enum listener_glance {
    GLANCE_RESTS, /* all is done, and channel_rest succeeded */
    GLANCE_SERVE, /* a thread is to serve it */
    GLANCE_ENDS,
};

struct listener;

/* One connection. The owner's own struct begins with it. */
struct listener_session {
    struct listener *listener;
    char peer[ENDPOINT_TEXT]; /* its address */
    uint64_t number;          /* of the connection: 1, 2, ... */
    /* Used by the thread that serves it alone. */
    struct channel channel;
    struct connection_spare *spare; /* of that thread, for the channel's rest */
    bool deaf; /* when it rests next, it goes on when its peer hangs up or when it is roused, and for nothing else */
    /* Guarded by the lock. */
    double heard_s; /* when it was admitted; the owner may set it again when something is asked for */
    bool admitted;
    bool cut;

    /* The listener's. */
    enum {
        SESSION_FREE,
        SESSION_READY,  /* waits for a thread */
        SESSION_SERVED, /* by a thread */
        SESSION_RESTS,
    } life;
    bool roused;                   /* while it was served: it is to look around before it rests */
    bool waits;                    /* its thread waits for others */
    bool fresh;                    /* nobody has served it yet */
    bool glanced;                  /* it is served by the owner's thread */
    double since_s, rouse_s;       /* ready, or served; when it is to be roused: INFINITY for never */
    struct listener_session *next; /* ready, or free */
    int fd;
    double came_s, timeout_s;
    bool member; /* came with a pass, or in plain text */
    struct admission_source source;
    struct connection *connection; /* the channel's, for counting bytes; NULL: not open */
};

struct listener_options {
    const char *host; /* and port: as for socket_listen */
    uint16_t port;
    struct introduction self;
    pthread_mutex_t *lock; /* borrowed */
    size_t session_size;   /* of the owner's struct */
    size_t stack_size;     /* of a thread that serves */
    int members;           /* places for admitted sessions */
    int expected;          /* peers that may well come at the same time */
    int likely;            /* connections that there are once all are there; where fewer files may be open, it warns */
    void *context;
    /* A session's beginning, all zeros but for what is above: on the owner's thread. Locked. */
    void (*begin)(struct listener_session *session, void *context);
    /* As in handshake_rules, on a thread that serves. `admit` calls listener_admit where it welcomes a peer. */
    bool (*knows)(struct listener_session *session, const char *digest); /* may be NULL */
    uint16_t (*admit)(struct listener_session *session, const struct peer *peer, struct error *message);
    /*
     * Serves an admitted session until it ends (false), or has nothing to do (true, and channel_rest succeeded): then
     * it is served again once something comes, or it is roused. The channel must be resumed before it is used.
     */
    bool (*serve)(struct listener_session *session);
    /*
     * On the owner's thread, for a session that rested: does what takes no waiting, if it is that which came, or is due
     * now. So very many who ask little, and seldom, cost no change of threads. NULL: threads do all.
     */
    enum listener_glance (*glance)(struct listener_session *session);
    /* It ends, and was admitted: on the thread that serves it. Locked. */
    void (*leave)(struct listener_session *session);
};

/* Raises the limit of open files where it is too low for all places. */
bool listener_create(struct listener **listener, const struct listener_options *options, struct error *error);
uint16_t listener_port(const struct listener *listener);

/*
 * Deals with who comes or speaks before the deadline, and returns as soon as anybody has; joins threads that ended,
 * rouses whose time has come, and logs what was refused since. A failure to accept is logged and waited out for a
 * moment. False once the wake (NULL: none) is raised.
 */
bool listener_accept(struct listener *listener, const struct wake *wake, double deadline_s);

/* Takes no more connections, waits until all sessions have ended, and cuts those that are left after `grace_s`. */
void listener_end(struct listener *listener, double grace_s);
void listener_destroy(struct listener *listener); /* that, with no grace, and frees; NULL is fine */

/* Locked, in admit: the peer is welcome, and a newcomer no more. */
void listener_admit(struct listener_session *session);

/* Locked: the admitted session behind this one (NULL: the first) that is not cut; NULL: there are no more. */
struct listener_session *listener_next(const struct listener *listener, const struct listener_session *session);

/*
 * Locked: counts admitted sessions that are not cut and that `alike` holds for; *silent: the one of them that was heard
 * of least recently.
 */
int listener_count(const struct listener *listener,
                   bool (*alike)(const struct listener_session *session, const void *context), const void *context,
                   struct listener_session **silent);

/* Locked, by the thread that serves it: before it waits for others to do something, and afterwards. */
void listener_waits(struct listener_session *session, bool waits);

/* Locked: how long a session may keep its thread while nothing comes. 0: threads are scarce, so it may not. */
double listener_linger_s(const struct listener *listener);

/* Locked: a session that rests is served again; one that is served looks around before it rests. */
void listener_rouse(struct listener_session *session);

/* Locked, by the thread that serves it: when it rests next it is roused at that time, to half a second. */
void listener_rouse_at(struct listener_session *session, double when_s);

/* Locked: ends its connection, from outside: who serves it finds it closed. */
void listener_cut(struct listener_session *session);

/* Locked: bytes of all connections, those that ended among them. */
void listener_bytes(const struct listener *listener, uint64_t *in, uint64_t *out);

/* Has the peer hung up, as far as can be told without reading? */
bool listener_peer_hung_up(const struct listener_session *session);

#endif
