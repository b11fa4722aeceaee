/*
 * The role of a ps: listens, and serves a shard (ps/shard.h) as its job decides (ps/job/job.h).
 *
 * A thread per active connection. A worker may have several connections of one incarnation at once, for instance to
 * send heartbeats on one while a push waits on another. A worker pushes one gradient at a time; a push that begins
 * while another connection of the same worker is in the middle of one cuts that connection, which the worker must have
 * given up. Answers on one connection come in the order of the requests, and the next request is read only when the
 * answer is on its way: a worker that sends a push while an answer is due must read at the same time.
 *
 * What workers can rely on:
 *  - get_model answers once training can begin (MODEL_READY and an empty message), or after wait_ms with a message that
 *    says what is missing; a chief that waits for nobody asks with wait_ms 0;
 *  - every frame sent carries the present generation; push and pull with another one get ERROR_OLD_GENERATION;
 *  - a pull that names ranges gets all of them, changed or not, in float32; one without gets what changed after
 *    since_version;
 *  - a push whose answer was lost may be sent again, whole, on any connection: it counts once. An answer held back for
 *    slower workers comes within a lease (SERVER_HOLD_S at most), if need be as ERROR_TOO_LATE: then send the push
 *    again;
 *  - writes are answered (by done) only if the frame is flagged FRAME_LAST, so that many may be in flight;
 *  - a snapshot is answered by done with its global step; one at a time, for worker 0 alone;
 *  - a ping may come at any time between frames, with request 0, and needs a pong within JOB_PROBE_MS; while an answer
 *    is held back, for whatever reason, four pings come per identity_idle_timeout_s: if none comes for that long, the
 *    connection is dead;
 *  - after end_job, heartbeats get JOB_DONE or JOB_FAILED, pushes PUSH_NOT_WANTED, pulls ERROR_JOB_OVER; the ps exits
 *    when all have left or hung up, at the latest JOB_END_MS later. It sends leave, with request 0, before it closes.
 */
#ifndef PS_SERVER_H
#define PS_SERVER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/board_member.h"
#include "base/config.h"
#include "base/error.h"
#include "net/message.h"
#include "ps/store/model.h"
#include "ps/identity.h"

enum {
    /* Beyond these limits the connection silent for longest is cut: a member's links may have died silently. */
    SERVER_CONNECTIONS_PER_WORKER = 6,
    SERVER_CONNECTIONS_PER_PS = 6,
    SERVER_CONNECTIONS_OF_WORKER = 3, /* in normal operation: pushes and pulls, heartbeats, reports */
    SERVER_CONNECTIONS_OF_PS = 2,
    SERVER_CONNECTIONS_OF_GUEST = 2, /* a reporting member: one, and one that it has just lost */
    SERVER_BULK = 64 << 20,          /* bytes of requests, other than gradients, that are being received at a time */
    SERVER_REPORTS =
        192 << 20, /* the most that all workers' reports of their data take, those being received included */
    SERVER_OPERATORS = 32,
    SERVER_FRAME_S = 30,       /* to receive a message that has begun, or to send an answer; a peer that stalls
                                  meanwhile is given up after identity_idle_timeout_s */
    SERVER_HOLD_S = 60,        /* longest time to hold back an answer, unless a lease is shorter */
    SERVER_STACK = 256 * 1024, /* bytes, per connection thread: the deepest, with wire_top, uses some 100 KB */
};

/*
 * Approximate bytes that ps number `ps` takes, with `connections` that carry whole pushes and answers: the shard, and
 * for each connection its thread, TLS, and two buffers, as far as messages fill them.
 */
size_t server_memory(const struct model *model, const struct config *config, int ps, int connections);

/* A ps, its job and its cluster, as it knows them, for whoever shows them. */
struct server_report {
    enum job_state state;
    uint32_t generation;
    int64_t global_step; /* -1: no model yet */
    int64_t last_step;   /* -1: none */
    int64_t pushes;
    uint64_t not_finite, stale; /* dropped gradients */
    int buffer_size, buffered;  /* differences per step, and those gathered; 0: each push is a step */
    double buffer_staleness;    /* mean over those of the last step; NaN: none yet */
    uint64_t bytes_in, bytes_out;
    int64_t config_version;
    char digest[CONFIG_DIGEST_HEX + 1];
    float loss;      /* NaN: not known */
    char waits[256]; /* what training waits for; "": nothing */

    struct board_member *members;  /* the caller's, with room for server_most_members: all ps, then the workers */
    int member_count;              /* set */
    struct board_rollout *rollout; /* the caller's, from report to report */
};

struct server;
int server_most_members(const struct server *server);
/* Any thread. */
void server_report(struct server *server, struct server_report *report);

/* What the caller of server_run may follow. All on the main thread. */
struct server_observer {
    void *context;
    void (*begin)(void *context, struct server *server); /* from now on server_report may be called */
    void (*end)(void *context);                          /* no longer */
    void (*alive)(void *context);                        /* several times a second */
};

/*
 * Runs ps number config->cluster.task_index until the job is over or the process is asked to leave
 * (base/process/signals.h). observer: NULL if nobody looks; else it also queries the other ps, so that their reports
 * are among the members. Returns the exit status; errors are logged.
 */
int server_run(const struct config *config, const struct server_observer *observer);

#endif
