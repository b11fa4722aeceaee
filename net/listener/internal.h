/*
 * Inside the listener: the table of sessions, and what its parts share. attendants.c has the sessions that are ready
 * and the threads that serve them; newcomers.c the places for new connections, the lobby and refusals; listener.c, one
 * folder up, what the owner's thread does and asks.
 */
#ifndef NET_LISTENER_INTERNAL_H
#define NET_LISTENER_INTERNAL_H

#include "net/complaints.h"
#include "net/door.h"
#include "net/listener.h"

/* One that serves. */
struct attendant {
    pthread_t thread;
    struct listener *listener;
    pthread_cond_t call;
    bool called;
    struct attendant *next, *before; /* that waits for a call, or ended */
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
    int used;                      /* of them, that ever were somebody's */
    struct listener_session *free; /* of those */
    struct ready ready;
    uint64_t connections;
    int here;
    int timed;         /* sessions that rest until a time */
    int newcomers[2];  /* sessions that are here and not admitted: strangers, members */
    double admitted_s; /* when somebody was admitted last */
    struct {
        struct pending *waits; /* [room]: a ring */
        int room, first, count;
    } lobby;
    int threads, serving;      /* the others look for a session, or will once they have begun to run */
    int working;               /* that serve a session after a rest, and do not wait for others */
    struct attendant *waiting; /* for a call: the last one to begin is called first, for it has the warmest caches */
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

/* --- Sessions that are ready, and threads for them: attendants.c. Locked, but for the last three --- */

void listener_put_ready(struct ready *queue, struct listener_session *session);

/* One more thread, if there may be. */
bool listener_start_thread(struct listener *listener);

/* One of the threads that wait; where there is none, those who are on their way here find what is ready. */
void listener_call_one(struct listener *listener);

/* Sees to it that the session that has been ready for longest is taken by somebody. False: there is no thread. */
bool listener_call_thread(struct listener *listener, bool at_once);

void listener_make_ready(struct listener_session *session);

/* Lets it rest, or look around once more first. False: the system can't. */
bool listener_let_rest(struct listener_session *session);

/* Closes its connection, and frees its place. */
void listener_end_session(struct listener_session *session);

/* Joins the threads that ended. */
void listener_join_ended(struct listener *listener);

/* --- New connections: newcomers.c --- */

void listener_note_refusal(struct listener *listener, enum complaint cause, const struct admission_source *source,
                           const char *peer, const struct error *error);

/* Closes it, and complains. */
void listener_refuse(struct listener *listener, enum complaint cause, const struct pending *pending, const char *why);

/* Logs what was only counted, and is due. */
void listener_complain(struct listener *listener, double now_s, bool last);

/* Lets it in, or to the lobby, or turns it away, by what it showed at the door. */
void listener_deal_with(struct listener *listener, enum door_look look, const struct pending *pending);

/* Locked: members in the lobby have their turns as others are done. */
void listener_call_in(struct listener *listener);

/* Locked: the first of the lobby. */
struct pending listener_leave_lobby(struct listener *listener);

/* Those in the lobby whose time is over leave it; those that keep a full lobby waiting make room. */
void listener_look_into_lobby(struct listener *listener, double now_s);

#endif
