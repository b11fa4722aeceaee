/*
 * Internal to the server: state shared by its connections, and the state of each connection. The parts, of which each
 * calls only those before it: state.c; session.c (what all requests need); steps.c (synchronous steps); coordinator.c
 * (rollouts); the requests by subject (pushes.c, model.c, members.c, data.c, rollouts.c); dispatch.c; listen.c (who may
 * connect); server.c (start, accept, stop).
 *
 * Everything shared is guarded by `lock`, except what is set once at start-up. The lock is never held during input,
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
#include "ps/identity.h"
#include "ps/job/job.h"
#include "ps/server.h"
#include "ps/shard.h"
#include "ps/status.h"
#include "ps/store/model.h"

enum { SERVER_TICK_MS = 250 /* how often idle connections check whether the server wants something of them */ };

#define SERVER_RARE_S 0.75 /* a peer whose requests are further apart than this gets no waiting thread */

/* The process may also have to stop for a rollout, with the job unfinished. */
enum shutdown_mode { SHUTDOWN_NONE, SHUTDOWN_RESTART, SHUTDOWN_FINAL };

/* One connection. */
struct session {
    struct listener_session base; /* must be first: the listener's part */
    struct server *server;
    struct channel *channel; /* the same as in base; used only by the thread that serves the session */
    bool ping_wanted;
    bool may_rest;     /* it gives up its thread while it is idle */
    bool has_frame;    /* a request has been received and not yet answered */
    bool is_rare;      /* its requests are so far apart that no thread waits for the next */
    struct member who; /* MEMBER_NONE: not known yet */
    bool is_guest;     /* a member that connected without a digest, to report */
    bool has_signed;   /* an operator's connection that has sent something with the operator's signature */
    int worker;        /* who.index if it is a worker and no guest; else -1 */
    uint64_t incarnation;
    size_t bulk_bytes;              /* its part of the server's; guarded by the lock */
    uint8_t link;                   /* message_status.link of this connection; guarded by the lock */
    uint64_t place_key;             /* of a member without an index: the only one for which it may ask; 0: not known */
    char program[65];               /* the peer's program and build */
    struct session *next_of_worker; /* another session of the same worker, of any incarnation */
    /* A pull that waits until its worker is selected for a round; meanwhile the session has no thread. */
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

/* A worker that connects as a guest only to get an index. */
static inline bool member_has_no_index(struct member who)
{
    return who.role == MEMBER_WORKER && who.index == MEMBER_ANY_INDEX;
}

struct server {
    const struct config *launched; /* as at process start */
    struct config filled;          /* the same, with layer widths from the chief's data */
    const struct config *config;   /* points to `filled` */
    struct model model;
    struct identity identity;
    struct shard *shard;
    int index;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* signalled after changes that threads may be waiting for */
    struct job job;
    struct listener *listener;    /* of sessions; it uses the same lock */
    struct session **sessions_of; /* [workers]: sessions of each worker */
    struct session **guests_of;   /* [workers]: likewise, sessions of guests */
    int guests;                   /* over all members */
    struct session *held;         /* sessions without a thread whose pull is held */
    struct held_for {             /* the state for which they were last checked */
        enum job_state state;
        uint32_t generation;
        int64_t global_step;
        uint64_t asks;
    } held_for;
    int waiting;            /* threads waiting on `changed` */
    pthread_cond_t stepped; /* synchronous: signalled when a step begins or ends, or a session was cut off */
    bool stepping;          /* synchronous: a step is being applied, and other threads may help */
    uint64_t steps_begun;
    bool following;               /* synchronous: another ps decides, and this one reports what is staged here */
    bool *finite, *not_finite;    /* [workers]: synchronous, of the report being processed */
    struct session **stage_users; /* [workers]: the session that uses a worker's stage; NULL: none */
    bool leaving;                 /* idle connections must close */
    atomic_int shutdown_mode;     /* enum shutdown_mode */
    const char *close_reason;
    int64_t pushes; /* pushes applied */
    float last_loss;
    uint32_t last_staleness;
    float steps_per_s;

    struct rollout_coordinator *coordinator; /* of rollouts: ps/server/coordinator.h */
    const struct server_observer *observer;  /* NULL: none */
    struct fleet_watch *watch;               /* watches the other ps for server_report; NULL: none */

    uint8_t *description; /* [description_size]: the chief's preprocessing; NULL: not received yet */
    size_t description_size;
    char description_digest[65]; /* "" without a description */
    struct figures {
        uint8_t *bytes; /* [size]; NULL: not reported */
        size_t size;
    } * figures; /* [workers]: statistics of each worker's own rows */
    size_t figures_bytes;
    size_t bulk_bytes; /* announced by bulks that are being received (serve_read_bulk) */

    struct validation {
        uint32_t generation;
        int64_t step;      /* of the model */
        uint64_t examples; /* 0: not reported */
        float score;
        bool rises, is_worst; /* a larger score is better; it is in the worst tenth of the reports of its step */
        uint8_t *bytes;       /* [size], for the chief */
        size_t size;
    } * validations; /* [workers]: each one's last validation on its own rows */
    size_t validation_bytes;
    int64_t validated_before; /* the step that the chief asked for before its present one; -1: none */

    struct described { /* the job's status as heartbeats receive it */
        char text[256];
        enum job_state state;
        double until_s; /* valid until then */
    } described;

    uint64_t orders_of;  /* the incarnation of worker 0 that last ordered snapshots */
    int64_t held_step;   /* pushes wait at this step until a snapshot is released; -1: they don't */
    double held_since_s; /* since then */

    pthread_mutex_t restoring; /* held while the chief writes one frame */
    uint64_t restored_by;      /* the incarnation of worker 0 that began the last restore; 0: none */
};

void server_lock(struct server *server);
void server_unlock(struct server *server);

/* Waits for a change, at most one tick, with the lock released; or carries out actions without waiting. */
void server_wait(struct server *server);

/*
 * Where the config gives hidden layers only: waits until worker 0 has reported the widths that follow from its data,
 * and fills them in. No other peer is served meanwhile. Also false if the process has to stop.
 */
bool server_wait_for_layers(struct server *server, struct error *error);

/* Listens on this ps's address. The main thread accepts connections by listener_accept. */
bool server_listen(struct server *server, struct error *error);

/*
 * Waits for a step to begin or end, or for anything else that ends the wait, at most one tick. No change made under the
 * lock is missed.
 */
void server_wait_step(struct server *server);

/*
 * Must training stay at the present step, because a snapshot of it is ordered and the chief still has two to read
 * before it? For at most a lease, and while that chief is connected; then the snapshot is dropped. Locked.
 */
bool server_keeps_step(struct server *server);

/* Synchronous: is a step decided and ready to apply, and none being applied? Locked. */
bool server_has_step(struct server *server);

/* From now on server_report has what the other ps report on themselves; until server_unwatch_fleet. */
void server_watch_fleet(struct server *server);
void server_unwatch_fleet(struct server *server);

/* Applies the decided step, if no thread is applying it yet. Locked on entry and on return. */
void server_apply_step(struct server *server);
/* Helps with the step being applied, once per step (*helped). Locked on entry and on return. False: nothing to do. */
bool server_help_step(struct server *server, uint64_t *helped);

/* Is this step over, or the job not training? Locked. */
bool server_is_past_step(struct session *session, int64_t step);
/* Or else, is the session's worker selected for the present round? Locked. */
bool server_is_selected_or_past(struct session *session, int64_t step);
/*
 * Lets a pull wait for that without a thread, until the deadline: server_unlock wakes its session. One per session.
 * Locked.
 */
void server_hold_pull(struct session *session, const struct message_pull *pull, double deadline_s);
/* Removes the session's held pull, if any. Locked. */
void server_release_held(struct session *session);

/* Serves an open channel after the handshake, until it ends (false) or is idle and gives up its thread (true). */
bool serve_until_idle(struct session *session);
/* Serves an idle session on the listener's thread: only requests that need no waiting. */
enum listener_inline serve_without_waiting(struct session *session);

/* A follower's threads, which exchange reports and decisions with the ps that decides on synchronous steps. */
struct follower;
bool follower_create(struct follower **follower, struct server *server, struct error *error);
void follower_destroy(struct follower *follower); /* NULL is fine */

#endif
