/*
 * What a rollout does next: the decisions of the member that leads it, ps 0.
 *
 * A state machine without clock, threads, sockets or files. Its host tells it what happened and when (now_s:
 * monotonic seconds, never going back) and reads from it what every member is to do (`order`, `step`) until the next
 * event. One thread at a time. `changes` counts what must be on disk before members hear of it: the host compares it
 * after every event with what it stored last.
 *
 *     idle -> staging -> switching -> watching -> idle            all went well: the fleet is on the target
 *               | ^          |            |
 *               v |          +-----+------+
 *   trying -> saving               v
 *       idle                   going back -> restoring -> idle    the fleet is on the fallback
 *
 * Staging: every member has verified and stored both versions, and worker 0 has written a checkpoint. What follows
 * depends on what changes, the kind of the rollout:
 *
 * - live: every ps takes the target from the same global step on, while training goes on. To go back, all take the
 *   fallback at once, and then (restoring) worker 0 writes that checkpoint to every shard as a new generation.
 * - job: worker 0 tries the target on a copy of the checkpoint (trying) and writes one more of the whole job
 *   (saving); then (switching) every member restarts in the target, and worker 0 restores. Going back is the same
 *   way. Until saving is over nothing has changed.
 * - local: workers restart in the target in waves. The first wave is a single worker, the canary, which is watched
 *   for a while. A ps, whose restart would cost steps, takes it at its next start. Going back is the same way.
 *
 * A local rollout may bring a program. Then the waves are those of its manifest, and the first has a canary of each
 * architecture; a member counts as restarted once it says in a handshake that it is the new build, and a worker once it
 * has made a step in it. One that is much slower than before goes no further (ps/rollout/waves.h). When the workers
 * have, worker 0 writes a checkpoint, and every ps restarts at once, which costs a generation. ps 0 goes last; when it
 * comes back in the target, the rollout goes on.
 *
 * With a disruption budget so many workers may be away at once, restarting or failed. The first that fails, the canary
 * left aside, pauses the rollout: no other restarts until it is back or the operator resumes, which goes on without it,
 * as if it had been off. One more than the budget allows, and all go back.
 *
 * A live change belongs to one generation. If that ends before all have switched, as it does when a ps is lost, some
 * would begin the next one with the target and some without, so all go back.
 *
 * A target under which the job would be over before it is in force is not rolled out: there would be nothing to
 * watch, and a number that is too small by mistake would end a job for good.
 *
 * Watching: for healthy_s, and until that has brought steps, every member must be heard of, steps must be made, and
 * losses must stay finite and near what they were. Going back is never given up.
 *
 * Workers that the config does not list (cluster.elastic) take part from when they are heard of during staging, or
 * have staged it later, until they fall silent or are late. Nobody waits for them then, and the rollout is given up
 * for one only if it says why it can't. What they missed they are told when they are back.
 *
 * A listed worker that was not heard of for ROLLOUT_IDLE_TIMEOUT_S when the rollout began is off, and treated the
 * same way; the chief is always waited for. Who was off is part of what a restarted leader must know, or it would
 * wait from then on for a worker that the whole job does without.
 *
 * A job that waits for workers (cluster.min_workers) can be given another config too, which may be what it waits for.
 * It is kept waiting until all have switched, so that a live change comes before any step; missing workers are
 * treated like unlisted ones; and as long as it waits, neither steps nor ready workers are asked for. It is watched
 * until it has trained for healthy_s.
 */
#ifndef PS_ROLLOUT_DECIDE_H
#define PS_ROLLOUT_DECIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/member.h"
#include "ps/rollout/state.h"

const char *rollout_state_name(enum rollout_state state);
bool rollout_state_by_name(const char *name, enum rollout_state *state);

/* Is something in force, or about to be, that may have to be undone? */
bool rollout_state_is_risky(enum rollout_state state);

/* False for a ps and the chief, which are always waited for. */
bool rollout_is_absent(const struct rollout_absent *absent, struct member who);

/* ps and workers: how many are listed; room: for all workers, with those that may join. False without memory. */
bool rollout_create(struct rollout *rollout, int ps, int workers, int room);
void rollout_destroy(struct rollout *rollout);

/*
 * False, with a message, while another one is under way, or if the job would be over, or if, once all have restarted,
 * it would wait for workers that are off. The host has checked the manifest.
 */
bool rollout_begin(struct rollout *rollout, const struct rollout_plan *plan, const struct rollout_vitals *vitals,
                   double now_s, char message[256]);

/*
 * The leader was restarted during a rollout; `state` is what it had stored. A job that was restarting goes on, for the
 * leader is a part of it, and so does a rollout that brings a program if the leader is in it by now; anything else that
 * may have switched goes back. reason: why it was going back already.
 */
void rollout_resume(struct rollout *rollout, enum rollout_state state, const struct rollout_plan *plan,
                    double loss_before, const char *reason, double now_s);

void rollout_heard(struct rollout *rollout, struct member who, const struct rollout_report *report, double now_s);
void rollout_tick(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s);

/* The leader itself stood still for this long: what others did not do or say meanwhile is not held against them. */
void rollout_stood_still(struct rollout *rollout, double seconds);

/* Programs are on their way: staging takes longer then. */
void rollout_moves(struct rollout *rollout, double now_s);

/* False, with a message, if there is nothing to abort. */
bool rollout_abort(struct rollout *rollout, double now_s, char message[256]);

/* Goes on without those that could not follow. False, with a message, if it is not paused. */
bool rollout_go_on(struct rollout *rollout, double now_s, char message[256]);

/* Must the job not begin to train yet? */
bool rollout_keeps_waiting(const struct rollout *rollout);

/* What this member is to do, and from which step on (0: at once); rollout_told once it has been told. */
int64_t rollout_order_step(const struct rollout *rollout);
enum rollout_order rollout_order(const struct rollout *rollout, struct member who);
void rollout_told(struct rollout *rollout, struct member who);

/*
 * What a member that was away is to do, whose version is not the one in force at ps 0: while no rollout is under way,
 * or before it can take part in one.
 */
enum rollout_order rollout_catch_up(const struct rollout *rollout, uint64_t in_force, uint64_t version);

/* Is this member where the current state wants everybody to be? True for one that takes no part. */
bool rollout_is_in(const struct rollout *rollout, const struct rollout_member *member);

/* Was it heard of lately? */
bool rollout_is_here(const struct rollout_member *member, double now_s);

/* How many take part. */
int rollout_count_members(const struct rollout *rollout);

/* "switching at step 1200: 3 of 4 members are there, waiting for worker 1" */
void rollout_describe(const struct rollout *rollout, char *text, size_t size);

#endif
