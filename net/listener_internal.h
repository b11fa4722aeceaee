/* The state of a listener, for listener.c and for tests that must know when its threads have come to rest. */
#ifndef NET_LISTENER_INTERNAL_H
#define NET_LISTENER_INTERNAL_H

#include "net/accept_queue.h"
#include "net/listener.h"

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
