/*
 * Listener internals: the table of sessions, and what the parts share. attendants.c: the queue of ready sessions and
 * the threads that serve them. newcomers.c: places for new connections, the lobby, refusals. listener.c, one folder up:
 * the owner's thread.
 */
#ifndef NET_LISTENER_INTERNAL_H
#define NET_LISTENER_INTERNAL_H

#include "net/complaints.h"
#include "net/door.h"
#include "net/listener.h"

/* A thread that serves sessions. */
struct attendant {
    pthread_t thread;
    struct listener *listener;
    pthread_cond_t call;
    bool called;
    struct attendant *next, *before; /* in the list of waiting or of ended threads */
};

struct ready {
    struct listener_session *first, *last;
    int count;
};

struct listener {
    struct listener_options options;
    int fd;
    int places, expected; /* expected: members' handshakes at a time, beyond half of the spare ones */
    double tidied_s, roused_s;
    double busy_until_s;
    struct door door;
    /* Guarded by the lock. */
    char *sessions;                /* [places * session_size] */
    int used;                      /* of them, those ever used */
    struct listener_session *free; /* of the used ones, those free again */
    struct ready ready;
    uint64_t connections;
    int here;
    int timed;         /* sessions that rest until a time */
    int newcomers[2];  /* sessions not admitted yet: strangers, members */
    double admitted_s; /* time of the last admission */
    struct {
        struct pending *waits; /* [room]: a ring */
        int room, first, count;
    } lobby;
    int threads, serving;      /* the other threads look for a session, or are starting */
    int working;               /* threads that serve a session after a rest, and don't wait for others */
    struct attendant *waiting; /* idle: the last to become idle is called first, since its caches are warmest */
    struct attendant *ended;   /* to be joined */
    pthread_cond_t no_more;    /* a thread ended */
    bool ending, over;
    uint64_t bytes_in, bytes_out; /* of connections that ended */
    pthread_cond_t left;          /* a session is gone */
    struct admission admission;
    struct complaints complaints;
};

static inline struct listener_session *session_at(const struct listener *listener, int i)
{
    return (struct listener_session *)(void *)(listener->sessions + (size_t)i * listener->options.session_size);
}

static inline void lock(const struct listener *listener)
{
    pthread_mutex_lock(listener->options.lock);
}

static inline void unlock(const struct listener *listener)
{
    pthread_mutex_unlock(listener->options.lock);
}

/* --- Ready sessions and their threads: attendants.c. Locked, except the last three --- */

void listener_put_ready(struct ready *queue, struct listener_session *session);

/* Starts another thread, within the limit. */
bool listener_start_thread(struct listener *listener);

/* Wakes an idle thread; if there is none, threads that are starting find what is ready. */
void listener_call_one(struct listener *listener);

/*
 * Makes sure that a thread takes the session that has been ready longest: if none is free, starts one, within
 * LISTENER_THREADS unless at_once. False: there is no thread for it.
 */
bool listener_call_thread(struct listener *listener, bool at_once);

void listener_make_ready(struct listener_session *session);

/* Lets it rest, or makes it ready again if it was woken meanwhile. False: the system is out of resources. */
bool listener_let_rest(struct listener_session *session);

/* Closes its connection, and frees its place. */
void listener_end_session(struct listener_session *session);

/* Joins the threads that ended. */
void listener_join_ended(struct listener *listener);

/* --- New connections: newcomers.c --- */

void listener_note_refusal(struct listener *listener, enum complaint cause, const struct admission_source *source,
                           const char *peer, const struct error *error);

/* Closes the connection and logs why. */
void listener_refuse(struct listener *listener, enum complaint cause, const struct pending *pending, const char *why);

/* Logs refusals that were only counted so far, once they are due. */
void listener_complain(struct listener *listener, double now_s, bool last);

/* Gives it a place, queues it in the lobby or turns it away, by what the door saw of it. */
void listener_deal_with(struct listener *listener, enum door_look look, const struct pending *pending);

/* Locked. Gives members in the lobby the places that others have left. */
void listener_call_in(struct listener *listener);

/* Locked. Takes the oldest connection out of the lobby. */
struct pending listener_leave_lobby(struct listener *listener);

/* Drops connections that waited in the lobby for too long, and stalled handshakes that keep others waiting there. */
void listener_look_into_lobby(struct listener *listener, double now_s);

#endif
