/*
 * The decisions of a rollout, made by the member that leads it, ps 0.
 *
 * A state machine without clock, threads, sockets or files. Its host tells it what happened and when (now_s: monotonic
 * seconds, never going back) and reads from it what every member is to do (`order`, `step`) until the next event. One
 * thread at a time. `changes` counts changes that must be on disk before members learn of them: after every event the
 * host compares it with the value it stored last.
 *
 *     idle -> staging -> switching -> watching -> idle            all went well: the fleet is on the target
 *               | ^          |            |
 *               v |          +-----+------+
 *   trying -> saving               v
 *       idle                   going back -> restoring -> idle    the fleet is on the fallback
 *
 * Staging: every member verifies and stores both versions, and worker 0 writes a checkpoint. The rest depends on the
 * kind of the rollout:
 *
 * - live: every ps switches to the target at the same global step, while training continues. To go back, all switch to
 *   the fallback at once, and then (restoring) worker 0 writes that checkpoint to every shard as a new generation.
 * - job: worker 0 tries the target on a copy of the checkpoint (trying) and writes another one of the whole job
 *   (saving); then (switching) every member restarts in the target, and worker 0 restores. Going back works the same
 *   way. Nothing changes until saving is over.
 * - local: workers restart in the target in waves. The first wave is a single worker, the canary, which is watched for
 *   a while. A ps, whose restart would cost steps, switches at its next start. Going back works the same way.
 *
 * A local rollout may include a program. Then its manifest defines the waves, and the first has a canary of each
 * architecture; a member counts as restarted once a handshake reports the new build, and a worker once it has also made
 * a step in it. If canaries are much slower than before, the rollout goes no further (ps/rollout/waves.h). When the
 * workers are done, worker 0 writes a checkpoint, and every ps restarts at once, which costs a generation. ps 0 goes
 * last; when it is back in the target, the rollout continues.
 *
 * A disruption budget limits how many workers may be away at once, restarting or failed. The first failure (other than
 * of the canary) pauses the rollout: no other member restarts until the failed one is back or the operator resumes,
 * which continues without it, as if it had been off. If more fail than the budget allows, all go back.
 *
 * A live change belongs to one generation. If that ends before all have switched, for instance because a ps is lost,
 * some members would begin the next one in the target and some in the fallback, so all go back.
 *
 * A target under which the job would already be over when it comes into force is refused: there would be nothing to
 * watch, and a number that is too small by mistake would end the job for good.
 *
 * Watching: for healthy_s, and until there were steps, every member must report, steps must be made, and losses must
 * stay finite and near their old values. Going back is never abandoned.
 *
 * Workers that the config does not list (cluster.elastic) take part once they report during staging, or have staged
 * later, until they fall silent or are late. Then nobody waits for them, and the rollout is abandoned because of one
 * only if it reports why it can't follow. They catch up when they are back.
 *
 * A listed worker that had been silent for ROLLOUT_IDLE_TIMEOUT_S when the rollout began is off, and treated the same
 * way; the chief is always awaited. The set of workers that were off is stored for a restarted leader, which would
 * otherwise wait for a worker that the job does without.
 *
 * A job that waits for workers (cluster.min_workers) can take another config, too, which may end its wait. It is kept
 * waiting until all have switched, so that a live change comes before any step; missing workers are treated like
 * unlisted ones; and while it waits, neither steps nor ready workers are required. It is watched until it has trained
 * for healthy_s.
 */
#ifndef PS_ROLLOUT_DECIDE_H
#define PS_ROLLOUT_DECIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/member.h"
#include "ps/rollout/members.h"
#include "ps/rollout/state.h"

const char *rollout_state_name(enum rollout_state state);
bool rollout_state_by_name(const char *name, enum rollout_state *state);

/* True if something is in force, or about to be, that may have to be undone. */
bool rollout_state_is_risky(enum rollout_state state);

/*
 * False, with a message, if another rollout is in progress, if the job would be over, or if after the restart it would
 * wait for workers that are off. The host has checked the manifest.
 */
bool rollout_begin(struct rollout *rollout, const struct rollout_plan *plan, const struct rollout_vitals *vitals,
                   double now_s, char message[ROLLOUT_MESSAGE]);

/*
 * The leader was restarted during a rollout; `state` is its stored state. A rollout that restarts the whole job
 * continues, since that includes the leader, and so does one of a program that the leader now runs; any other that may
 * have switched goes back. reason: why it was already going back.
 */
void rollout_resume(struct rollout *rollout, enum rollout_state state, const struct rollout_plan *plan,
                    double loss_before, const char *reason, double now_s);

void rollout_heard(struct rollout *rollout, struct member who, const struct rollout_report *report, double now_s);
void rollout_tick(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s);

/* The leader itself stood still for this long: extends all deadlines of others accordingly. */
void rollout_stood_still(struct rollout *rollout, double seconds);

/* Programs are being transferred: extends staging. */
void rollout_moves(struct rollout *rollout, double now_s);

/* False, with a message, if there is nothing to abort. */
bool rollout_abort(struct rollout *rollout, double now_s, char message[ROLLOUT_MESSAGE]);

/* Continues without the members that could not follow. False, with a message, if it is not paused. */
bool rollout_go_on(struct rollout *rollout, double now_s, char message[ROLLOUT_MESSAGE]);

/* True if the job must not begin to train yet. */
bool rollout_keeps_waiting(const struct rollout *rollout);

/* The order for this member, and the step from which it applies (0: at once); once it was sent: rollout_delivered. */
int64_t rollout_order_step(const struct rollout *rollout);
enum rollout_order rollout_order(const struct rollout *rollout, struct member who);
void rollout_delivered(struct rollout *rollout, struct member who);

/*
 * The order for a member that was away and whose version is not the one in force at ps 0, while there is no rollout, or
 * before it can take part in one.
 */
enum rollout_order rollout_catch_up(const struct rollout *rollout, uint64_t in_force, uint64_t version);

/* True if this member has done what the current state requires of all, or takes no part. */
bool rollout_is_in(const struct rollout *rollout, const struct rollout_member *member);

/* "switching at step 1200: 3 of 4 members are there, waiting for worker 1" */
void rollout_describe(const struct rollout *rollout, char *text, size_t size);

#endif
