/*
 * The role of a ps: listens, and serves a shard (ps/shard.h) by what its job decides (ps/job/job.h).
 *
 * A thread per connection that has something to do. A worker may have several connections of one incarnation at once:
 * it is free to send heartbeats on one while a push waits on another. Pushes of a worker come one at a time; a push
 * that begins while another connection of the same worker is in the middle of one cuts that connection off, for the
 * worker must have given it up. Answers on one connection come in the order of the requests, and the next request is
 * read only when the answer is on its way: a worker that sends a push while an answer is due must read at the same
 * time.
 *
 * What workers can rely on:
 *  - get_model answers once training can begin (MODEL_READY and an empty message), or after wait_ms with a message that
 *    says what is missing; a chief that waits for nobody asks with wait_ms 0;
 *  - every frame that is sent carries the present generation; push and pull of another one get ERROR_OLD_GENERATION;
 *  - a pull that names ranges gets all of them, changed or not, in float32; one without gets what changed since its
 *    since_version;
 *  - a push whose answer was lost may be sent again, whole, on any connection: it counts once. Where the answer is held
 *    back for slower workers, it comes within a lease (SERVER_HOLD_S at most), if need be as ERROR_TOO_LATE: then the
 *    push is to be sent again;
 *  - writes are answered (by done) where the frame is flagged FRAME_LAST, so that many may be on their way;
 *  - a snapshot is answered by done with its global step; one at a time, for worker 0 alone;
 *  - a ping may come at any time between frames, with request 0, and wants a pong within JOB_PROBE_MS; while an answer
 *    is held back, for whatever reason, one comes four times in identity_idle_timeout_s: where none comes for that
 *    long, the connection is dead;
 *  - after end_job, heartbeats get JOB_DONE or JOB_FAILED, pushes PUSH_NOT_WANTED, pulls ERROR_JOB_OVER; the ps goes
 *    when all have left or hung up, at the latest JOB_END_MS later. It says leave, with request 0, before it closes.
 */
#ifndef PS_SERVER_H
#define PS_SERVER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/store/model.h"
#include "ps/identity.h"

enum {
    /* One more, and the one that said nothing for longest is cut: a member's links may have died without a word. */
    SERVER_CONNECTIONS_PER_WORKER = 6,
    SERVER_CONNECTIONS_PER_PS = 6,
    SERVER_CONNECTIONS_OF_WORKER = 3, /* that it has when all is well: pushes and pulls, heartbeats, reports */
    SERVER_CONNECTIONS_OF_PS = 2,
    SERVER_CONNECTIONS_OF_GUEST = 2, /* a member that reports: one, and the one that it has just lost */
    SERVER_OPERATORS = 32,
    SERVER_FRAME_S = 30,       /* until a message that began has to be there, and an answer to be taken; a peer
                                      that stands still in it is given up after identity_idle_timeout_s */
    SERVER_HOLD_S = 60,        /* that an answer is held back at most, if a lease is not shorter */
    SERVER_STACK = 256 * 1024, /* bytes of a connection's thread: the deepest, with wire_top, takes some 100 KB */
};

/*
 * Bytes that ps number `ps` takes, about, with so many connections on which whole pushes and answers travel: the shard,
 * and for each connection its thread, TLS, and its two buffers, as far as messages fill them.
 */
size_t server_memory(const struct model *model, const struct config *config, int ps, int connections);

/*
 * Runs ps number config->cluster.task_index until the job is over or the process is asked to leave
 * (base/process/signals.h).
 * Returns the exit status; errors are logged.
 */
int server_run(const struct config *config);

#endif
