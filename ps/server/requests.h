/*
 * Shared by the files that serve requests: helpers common to all requests, and one function for each request.
 *
 * All return false if the connection must end, with the reason in *error. A session's thread calls them, unlocked
 * unless stated otherwise.
 */
#ifndef PS_SERVER_REQUESTS_H
#define PS_SERVER_REQUESTS_H

#include "base/simulation.h"
#include "ps/server/internal.h"

enum {
    SERVE_FRAME_FLOATS = SMALLER(256 * 1024, 100), /* per frame of an answer */
    SERVE_CHUNK_FLOATS = SMALLER(8 * 1024, 40),    /* that pass through the stack of a session's thread */
};

/* --- Frames: session.c --- */

double serve_deadline(void); /* for a frame that begins now */
bool serve_send(struct session *session, enum message_type type, uint64_t request, const void *message,
                struct error *error);
bool serve_send_done(struct session *session, uint64_t request, int64_t global_step, struct error *error);
/*
 * The next frame. One that violates the protocol ends the connection: the log names the peer, and the peer gets an
 * error.
 */
bool serve_receive(struct session *session, struct error *error);
/* Sends an error. The connection survives it, except after ERROR_BAD_REQUEST. */
bool serve_send_error(struct session *session, uint64_t request, uint16_t code, const char *message,
                      struct error *error);
/* Sends the verdict's error if it is one; else `done`. */
bool serve_send_verdict(struct session *session, uint64_t request, const struct verdict *verdict, int64_t global_step,
                        struct error *error);
/* Releases the lock; answers on this connection carry the generation that was current until now. */
void serve_unlock(struct session *session);

/* --- Waiting on behalf of a request --- */

/*
 * Waits, locked, until ready(session, argument) or the deadline. Meanwhile the worker counts as alive, since it is the
 * server that keeps it waiting. False if the connection must end.
 */
bool serve_hold(struct session *session, bool (*ready)(struct session *session, int64_t argument), int64_t argument,
                double deadline_s);
/* As serve_hold, but the worker goes on training meanwhile: it isn't shown as waiting, and its lease runs on. */
bool serve_wait(struct session *session, bool (*ready)(struct session *session, int64_t argument), int64_t argument,
                double deadline_s);
/* Conditions for both: may the model be trained on; is the shard at this step, or the job not training? Locked. */
bool serve_is_ready(struct session *session, int64_t unused);
bool serve_is_at_step(struct session *session, int64_t step);
/* server_wait_step, for a request. Locked. */
void serve_wait_step(struct session *session);
double serve_hold_deadline(const struct server *server); /* for an answer that waits for others */
double serve_wait_deadline(uint32_t wait_ms);            /* for one that waits as long as the peer asked */
/* Returns false, with the reason why serve_hold or serve_wait did; for_what: " for a checkpoint", say, or "". */
bool serve_wait_failed(const struct session *session, const char *for_what, struct error *error);
/*
 * Locked, but releases the lock for a while: pings a peer that is kept waiting, if a ping is due. *keepalive_sent_s:
 * time of the last one.
 */
bool send_keepalive(struct session *session, double *keepalive_sent_s);

/* Takes the stage of the session's worker for one thread. cut: cuts off the thread that has it. */
bool serve_take_stage(struct session *session, bool cut, struct error *error);
void serve_leave_stage(struct session *session);

/* --- Bulk --- */

/* Reads the whole bulk of a frame; the caller frees *bytes, which are there even if it is empty. */
bool serve_read_bulk(struct session *session, uint8_t **bytes, size_t *size, struct error *error);

/* Reads `count` floats of the frame's bulk straight to their destination. */
bool serve_read_floats(struct session *session, enum dtype dtype, float *values, size_t count, double deadline_s,
                       struct error *error);

/* What an answer contains, if the worker asked for this dtype. Needs the stage of the session's worker. */
struct wanted {
    enum dtype dtype;       /* of the values sent; packed: or float32, as the changes say */
    enum dtype packed;      /* packed form */
    uint64_t since_version; /* changes after this version */
    bool in_full;           /* nothing was sent on this connection yet */
};
struct wanted serve_wanted(const struct session *session, uint8_t dtype, uint64_t since_version);

static inline uint8_t serve_dtype(const struct wanted *wanted, const struct changes *changes)
{
    return (uint8_t)(dtype_is_packed(wanted->dtype) ? changes->dtype : wanted->dtype);
}

/*
 * Sends packed values as frames of `type`, as many as needed. ranges: the field of `message` that lists a frame's
 * contents.
 */
bool serve_send_changes(struct session *session, enum message_type type, uint64_t request, const void *message,
                        struct ranges *ranges, const struct changes *changes, const struct wanted *wanted,
                        struct error *error);

/* Receives the next request, of any kind, and answers it. */
bool serve_request(struct session *session, struct error *error);

/* --- Sets of workers, as exchanged between ps: ranges of their indexes, ascending; no two of them touch --- */

enum { WORKER_SET_BYTES = CONFIG_WORKER_RANGES * RANGE_BYTES /* the largest encoding of a set */ };

/* Adds a worker whose index is greater than all in the set. bytes: the set's, of WORKER_SET_BYTES. */
void worker_set_put(struct ranges *set, uint8_t *bytes, int worker);

/* Decodes a peer's set. has: [workers], whether each is in the set. False: it names others; `has` is invalid then. */
bool worker_set_read(const struct ranges *set, bool *has, int workers);

/* --- Requests, each from its first frame to its answer --- */

bool serve_push(struct session *session, struct error *error);
bool serve_pull(struct session *session, struct error *error);
bool serve_read(struct session *session, struct error *error);

/* Continues a held pull, or gives up the thread to wait on (*rests). */
bool serve_held_pull(struct session *session, bool *rests, struct error *error);

/* What followers ask the coordinator of synchronous steps. */
bool serve_staged(struct session *session, struct error *error);
bool serve_get_aggregate(struct session *session, struct error *error);

/* The model as a whole. */
bool serve_get_model(struct session *session, struct error *error);
bool serve_begin_restore(struct session *session, struct error *error);
bool serve_write(struct session *session, struct error *error);
bool serve_end_restore(struct session *session, struct error *error);
bool serve_snapshot(struct session *session, struct error *error);
bool serve_release(struct session *session, struct error *error);

/* Members and the job. */
bool serve_heartbeat(struct session *session, struct error *error);
bool serve_local(struct session *session, struct error *error);
bool serve_get_place(struct session *session, struct error *error);
bool serve_ping(struct session *session, struct error *error);
bool serve_pong(struct session *session, struct error *error);
bool serve_leave(struct session *session, struct error *error);
bool serve_end_job(struct session *session, struct error *error);
bool serve_get_status(struct session *session, struct error *error);
bool serve_describe(struct session *session, struct error *error);
bool serve_layers(struct session *session, struct error *error);
bool serve_figures(struct session *session, struct error *error);

/* Validations on workers' own rows. */
bool serve_validated(struct session *session, struct error *error);
bool serve_validate(struct session *session, struct error *error);

/* Programs of a rollout. */
bool serve_offer_program(struct session *session, struct error *error);
bool serve_put_program(struct session *session, struct error *error);
bool serve_get_program(struct session *session, struct error *error);

/* Rollouts. */
bool serve_report(struct session *session, struct error *error);
bool serve_propose(struct session *session, struct error *error);
bool serve_abort_rollout(struct session *session, struct error *error);

/* Revoked keys. */
bool serve_revoke(struct session *session, struct error *error);
bool serve_get_revoked(struct session *session, struct error *error);

#endif
