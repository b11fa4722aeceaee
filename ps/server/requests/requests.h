/*
 * Between the files that serve: what the requests of a connection have in common, and what each of them comes to.
 *
 * All return false when the connection is to end, with the reason in *error. A session's thread calls them, unlocked
 * unless said otherwise.
 */
#ifndef PS_SERVER_REQUESTS_REQUESTS_H
#define PS_SERVER_REQUESTS_REQUESTS_H

#include "base/simulation.h"
#include "ps/server/internal.h"

enum {
    SERVE_FRAME_FLOATS = SMALLER(256 * 1024, 100), /* of an answer's frame */
    SERVE_CHUNK_FLOATS = SMALLER(8 * 1024, 40),    /* that pass through the stack of a connection's thread */
};

/* --- Frames: serve.c --- */

double serve_deadline(void); /* of a frame that begins now */
bool serve_send(struct session *session, enum message_type type, uint64_t request, const void *message,
                struct error *error);
bool serve_send_done(struct session *session, uint64_t request, int64_t global_step, struct error *error);
/*
 * The next frame. One that breaks the protocol ends the connection, with a line in the log that names the peer, and a
 * word to it.
 */
bool serve_receive(struct session *session, struct error *error);
/* A refusal that the connection survives; one of ERROR_BAD_REQUEST it does not. */
bool serve_send_error(struct session *session, uint64_t request, uint16_t code, const char *message,
                      struct error *error);
/* That, if the verdict is an error; else done. */
bool serve_send_verdict(struct session *session, uint64_t request, const struct verdict *verdict, int64_t global_step,
                        struct error *error);
/* Gives the lock back; what this connection sends carries the generation that was the present one until then. */
void serve_unlock(struct session *session);

/* --- Waiting on behalf of a request: hold.c --- */

/*
 * Waits, locked, until ready(session, argument) or the deadline. Meanwhile the worker counts as alive, since it is we
 * who keep it waiting. False if the connection is to end.
 */
bool serve_hold(struct session *session, bool (*ready)(struct session *session, int64_t argument), int64_t argument,
                double deadline_s);
/* As serve_hold, but the worker's training goes on beside it: it isn't shown as waiting, and its lease goes on. */
bool serve_wait(struct session *session, bool (*ready)(struct session *session, int64_t argument), int64_t argument,
                double deadline_s);
/* For both: may the model be trained on; is the shard at this step, or the job not training? Locked. */
bool serve_is_ready(struct session *session, int64_t unused);
bool serve_is_at_step(struct session *session, int64_t step);
double serve_hold_deadline(const struct server *server); /* of an answer that waits for others */
double serve_wait_deadline(uint32_t wait_ms);            /* of one that waits as long as the peer wants */
/* False, with the reason that serve_hold or serve_wait said so; for_what: " for a checkpoint", say, or "". */
bool serve_give_up(const struct session *session, const char *for_what, struct error *error);
/*
 * Locked, but for a while inside: sends a ping to a peer that is kept waiting, if one is due. *keepalive_sent_s: the
 * last one.
 */
bool send_keepalive(struct session *session, double *keepalive_sent_s);

/* The stage of the session's worker, for one thread. cut: the thread that has it is cut off. */
bool serve_take_stage(struct session *session, bool cut, struct error *error);
void serve_leave_stage(struct session *session);

/* --- Bulk: bulk.c, push.c --- */

/* The whole bulk of the frame; the caller frees *bytes, which are there even if there are none. */
bool serve_read_bulk(struct session *session, uint8_t **bytes, size_t *size, struct error *error);

/* Reads `count` floats of the frame's bulk to where they belong. */
bool serve_read_floats(struct session *session, enum dtype dtype, float *values, size_t count, double deadline_s,
                       struct error *error);

/* What an answer holds that was asked for as this dtype. The stage of the session's worker is taken. */
struct wanted {
    enum dtype dtype;       /* that it travels as; packed: or as float32, as the changes say */
    enum dtype packed;      /* that it is to be packed as */
    uint64_t since_version; /* what changed after this one */
    bool in_full;           /* nothing was told on this connection yet */
};
struct wanted serve_wanted(const struct session *session, uint8_t dtype, uint64_t since_version);

static inline uint8_t serve_dtype(const struct wanted *wanted, const struct changes *changes)
{
    return (uint8_t)(dtype_is_packed(wanted->dtype) ? changes->dtype : wanted->dtype);
}

/* Sends what was packed as many frames of `type`. ranges: the field of `message` that says what a frame holds. */
bool serve_send_changes(struct session *session, enum message_type type, uint64_t request, const void *message,
                        struct ranges *ranges, const struct changes *changes, const struct wanted *wanted,
                        struct error *error);

/*
 * All frames of a push, into the stage; NULL: they are dropped. first: the message of its first frame, without its
 * ranges. Where a push is malformed, its sender has been told so.
 */
bool serve_receive_push(struct session *session, struct stage *stage, const struct message_push *first,
                        uint64_t request, struct error *error);

/* Receives the next request, of any kind, and answers it. */
bool serve_request(struct session *session, struct error *error);

/* --- Requests, each from its first frame on to its answer --- */

bool serve_push(struct session *session, struct error *error);
bool serve_pull(struct session *session, struct error *error);
bool serve_read(struct session *session, struct error *error);

/* A pull that is held: goes on with it, or rests (*rests) to wait on. */
bool serve_held_pull(struct session *session, bool *rests, struct error *error);

/* Synchronous training: a push, and what followers ask of the coordinator. */
bool serve_synchronous_push(struct session *session, struct error *error);
bool serve_staged(struct session *session, struct error *error);
bool serve_get_aggregate(struct session *session, struct error *error);

/* The model as a whole. */
bool serve_get_model(struct session *session, struct error *error);
bool serve_begin_restore(struct session *session, struct error *error);
bool serve_write(struct session *session, struct error *error);
bool serve_end_restore(struct session *session, struct error *error);
bool serve_snapshot(struct session *session, struct error *error);
bool serve_release(struct session *session, struct error *error);

/* Members, and the job. */
bool serve_heartbeat(struct session *session, struct error *error);
bool serve_get_place(struct session *session, struct error *error);
bool serve_ping(struct session *session, struct error *error);
bool serve_pong(struct session *session, struct error *error);
bool serve_leave(struct session *session, struct error *error);
bool serve_end_job(struct session *session, struct error *error);
bool serve_get_status(struct session *session, struct error *error);
bool serve_describe(struct session *session, struct error *error);
bool serve_layers(struct session *session, struct error *error);
bool serve_figures(struct session *session, struct error *error);

/* Validations of workers' own rows: validations.c. */
bool serve_validated(struct session *session, struct error *error);
bool serve_validate(struct session *session, struct error *error);

/* Programs that are rolled out: programs.c. */
bool serve_offer_program(struct session *session, struct error *error);
bool serve_put_program(struct session *session, struct error *error);
bool serve_get_program(struct session *session, struct error *error);

/* Rollouts. */
bool serve_report(struct session *session, struct error *error);
bool serve_propose(struct session *session, struct error *error);
bool serve_abort_rollout(struct session *session, struct error *error);

#endif
