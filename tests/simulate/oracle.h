/*
 * What must hold whatever happens to a cluster. The calls between the program's own parts are intercepted (wrap.h), and
 * their promises are tracked: those of pushes and generations in oracle.c, others in inputs.c, rounds.c, exchanges.c,
 * reference.c and checkpoints.c. service.c checks what a process leaves behind.
 *
 *  - a push is accepted once, applied once, and not answered as applied before it is (job_push, shard_apply,
 *    channel_send_frame);
 *  - a gradient has one number, however often it is sent, and was computed on what that very shard had;
 *  - within a generation no ps's global step goes back, and it is the restored step plus what was accepted since;
 *  - all shards of a generation were restored at one step, and make each synchronous step of the same set of gradients;
 *  - what is saved is one step's state: every row counts as many gradients as the step says, and with synchronous
 *    training all bits are those of one process that adds the sets up in the order of the workers' indexes;
 *  - a step has one learning rate on all shards, and no state that violates this is saved; exactly from its step on, a
 *    synchronous step takes as many gradients as a rollout says;
 *  - a checkpoint that was reported written is there after any crash, unless the disk broke its promises; what a chief
 *    restores is what was saved, bit for bit;
 *  - all gradients of a generation come from rows with the same preprocessing, its checkpoints contain it, and a
 *    process that restores one continues with it;
 *  - a round with participation below 1 selects as many workers as it should, of those present, in the order given by
 *    seed and round; it consists of differences of selected workers, and after its deadline it waits for nobody;
 *  - in asynchronous rounds every few differences make a step, on each ps in their order of arrival: what is saved has
 *    the bits of one process that adds them up in that order, by examples and staleness; each is of a model that this
 *    very ps has had, and what waits for a step is discarded with its generation;
 *  - in synchronous training all workers compute a step from the same parameters, to the bit, in whatever form sent;
 *  - each worker's validation of a step is added up once, and is of the model of that step;
 *  - memory and threads stay within bounds, and a process that ends in order has freed all of it.
 */
#ifndef TESTS_SIMULATE_ORACLE_H
#define TESTS_SIMULATE_ORACLE_H

/* After every event of a machine. */
struct machine;
void oracle_check(const struct machine *machine);

#endif
