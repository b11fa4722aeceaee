/*
 * Inside the server: what its connections share, and what each has of its own. ps/server.c starts, accepts and ends;
 * learn.c waits, before there is a model, for the widths of its layers; sessions.c decides who is let in; requests/
 * answers them; lock.c has the lock they all take; rollout.c is a ps's part in rollouts, and follower.c in synchronous
 * steps that another ps decides; worker_set.h has the sets of workers that the two tell one another.
 *
 * Whatever the server shares is guarded by `lock`, but for what is set up once; the lock is never held during input,
 * output or arithmetic. server_unlock carries out what the job decided meanwhile.
 */
#ifndef PS_SERVER_INTERNAL_H
#define PS_SERVER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "net/channel.h"
#include "net/handshake.h"
#include "net/listener.h"
#include "ps/job/job.h"
#include "ps/store/model.h"
#include "ps/fleet_watch.h"
#include "ps/identity.h"
#include "ps/server.h"
#include "ps/shard.h"

enum { SERVER_TICK_MS = 250 /* idle connections look this often whether something is wanted of them */ };

#define SERVER_SELDOM_S 0.75 /* between two requests of one who asks seldom: more than a thread would stay */

/* A rollout may want this process to end, though the job is not over. */
enum shutdown_mode { SHUTDOWN_NONE, SHUTDOWN_RESTART, SHUTDOWN_FINAL };

/* One connection. */
struct session {
    struct listener_session base; /* first: the listener's */
    struct server *server;
    struct channel *channel; /* the base's; used by the thread that serves it alone */
    bool ping_wanted;
    bool may_rest;     /* it is served by a thread that goes when it rests */
    bool has_frame;    /* a request that has been received and not answered yet */
    bool seldom;       /* asks so seldom that no thread stays with it for the next request */
    struct member who; /* MEMBER_NONE: nobody yet */
    bool is_guest;     /* a member that came without a digest, to report */
    int worker;        /* who.index of a worker that is no guest; else -1 */
    uint64_t incarnation;
    char program[65];               /* the peer's, with its build */
    struct session *next_of_worker; /* another of the same worker, whatever its incarnation */
    /* A pull of who waits to be asked for a round: while it is held the session rests. */
    struct held_pull {
        bool holds;
        struct message_pull pull;
        uint8_t range[RANGE_BYTES];
        uint64_t request;
        uint32_t generation;
        double deadline_s, keepalive_sent_s;
        struct session *next, *before; /* held */
    } held;
};

/* A worker that comes, as a guest, to ask for a number and for nothing else. */
static inline bool member_has_no_number(struct member who)
{
    return who.role == MEMBER_WORKER && who.index == MEMBER_ANY_INDEX;
}

struct server {
    const struct config *launched; /* as the process was started */
    struct config filled;          /* the same, with layers that follow from the chief's data */
    const struct config *config;   /* that */
    struct model model;
    struct identity identity;
    struct shard *shard;
    int index;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* something happened that a waiting thread may wait for */
    struct job job;
    struct listener *listener;    /* of sessions, by the same lock */
    struct session **sessions_of; /* [workers]: of each */
    struct session **guests_of;   /* [workers]: likewise, of those that came as guests */
    int guests;                   /* of all members */
    struct session *held;         /* those that rest with a pull that is held */
    struct held_for {             /* what was last looked at for them */
        enum job_state state;
        uint32_t generation;
        int64_t global_step;
        uint64_t asks;
    } held_for;
    int waiting;            /* threads that wait for `changed` */
    pthread_cond_t stepped; /* synchronous: a step is being applied, is applied, or somebody was cut off */
    bool stepping;          /* synchronous: a step is being applied, and help is welcome */
    uint64_t steps_begun;
    bool following;               /* synchronous: another ps decides, and is told what is staged here */
    bool *finite, *not_finite;    /* [workers]: synchronous, of the report at hand */
    struct session **stage_users; /* [workers]: who uses a worker's stage; NULL: nobody */
    bool leaving;                 /* idle connections are to be closed */
    atomic_int shutdown_mode;     /* enum shutdown_mode */
    const char *close_reason;
    int64_t pushes; /* applied */
    float last_loss;
    uint32_t last_staleness;
    float steps_per_s;

    struct rollout_coordinator *coordinator; /* of rollouts: ps/server/coordinator.h */
    struct fleet_watch *watch;               /* of the other ps, for who watches; NULL: none */

    uint8_t *description; /* [description_size]: how the chief's data are preprocessed; NULL: it has said nothing */
    size_t description_size;
    char description_digest[65]; /* "" without one */
    struct figures {
        uint8_t *bytes; /* [size]; NULL: it has sent none */
        size_t size;
    } * figures; /* [workers]: of each one's own rows */
    size_t figures_bytes;

    struct validation {
        uint32_t generation;
        int64_t step;      /* of the model */
        uint64_t examples; /* 0: it has sent nothing */
        float score;
        bool rises, is_worst; /* a larger score is better; it is of the worst tenth of those of that step */
        uint8_t *bytes;       /* [size], for the chief */
        size_t size;
    } * validations; /* [workers]: of each one's own rows, the last */
    size_t validation_bytes;
    int64_t validated_before; /* the step that the chief asked for before the one that it asks for now; -1: none */
    bool *tells;              /* [workers]: it is of a version that sends them */

    struct described { /* what heartbeats are told of the job */
        char text[256];
        enum job_state state;
        double until_s; /* as long as it is good for */
    } described;

    uint64_t orders_of;  /* the incarnation of worker 0 that ordered snapshots last */
    int64_t held_step;   /* pushes wait at this step until a snapshot is released; -1: they do not wait */
    double held_since_s; /* since then */

    pthread_mutex_t restoring; /* held while the chief writes: one frame at a time */
    uint64_t restored_by;      /* the incarnation of worker 0 that began the last restore; 0: there was none */
};

void server_lock(struct server *server);
void server_unlock(struct server *server);

/*
 * Waits for something to change, at most one tick, with the lock given back; or carries out actions, and does not wait.
 */
void server_wait(struct server *server);

/*
 * Where the config gives hidden layers alone: waits until worker 0 has said how wide its data make the others, and
 * fills them in. Nobody else is served meanwhile. False also if the process is asked to leave.
 */
bool server_learn_layers(struct server *server, struct error *error);

/* Creates a listener at this ps's address, by its name and under its lock; `what` says who is served, and how. */
bool server_open(struct server *server, struct listener **listener, const struct listener_options *what,
                 struct error *error);

/* Listens on this ps's address. Connections are taken by listener_accept, on the main thread. */
bool server_listen(struct server *server, struct error *error);

/*
 * Waits for a step to begin or to end, or for something that ends the wait, at most one tick. Nothing that happens
 * under the lock is missed.
 */
void server_wait_step(struct server *server);

/*
 * Must the present step not be left yet, since it is to be kept and the chief has still to read two before it? For a
 * lease at most, and while that chief is there; then the step is given up. Locked.
 */
bool server_keeps_step(struct server *server);

/* Synchronous: is a step decided on and free to be applied, and none under way? Locked. */
bool server_has_step(struct server *server);

/* Who watches this process sees what the server knows, from now on: requests/status.c. */
void server_show(struct server *server);
void server_hide(struct server *server);

/* Applies the step that is decided on, if there is one that nobody applies yet. Locked on entry and on return. */
void server_lead(struct server *server);

/* Rouses those whose pulls are held, and have come to what they wait for. Locked. */
void server_rouse_held(struct server *server);
/* Its pull, if one is held, is so no longer. Locked. */
void server_release_held(struct session *session);

/* Serves an open channel whose peer was welcomed, until it ends (false) or has nothing to do, and rests (true). */
bool serve(struct session *session);
/* One that rested, on the listener's thread: what takes no waiting. */
enum listener_glance serve_at_a_glance(struct session *session);

/* A follower's threads that talk to the ps that decides on synchronous steps. */
struct follower;
bool follower_create(struct follower **follower, struct server *server, struct error *error);
void follower_destroy(struct follower *follower); /* NULL is fine */

#endif
