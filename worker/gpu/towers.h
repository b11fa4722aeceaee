/*
 * Several devices as one engine: towers, as TensorFlow's tutorials call them. Each has the parameters, computes gradients of
 * batches of its own, and the host averages them and makes the update, in the order of the batches. So how many towers
 * there are changes how fast a step is made, and nothing about what it comes to: n towers share out the micro-batches that
 * train.micro_batches says a step has.
 *
 * The update stays with the host on purpose. It has all gradients anyway, in memory that it shares with the devices' processes,
 * and must send something to every device after the sum: the new parameters, which are no longer than the sum would be. A
 * device that made the update itself would save the host's pass over the vectors and nothing of what travels, and would
 * need the slots and averages of every optimizer kept alike on all devices. What would save traffic is that devices read one
 * another's memory; that is between processes here, and not to be tried without two GPUs.
 *
 * A tower whose device fails goes on with the CPU, as train.allow_soft_placement has it.
 */
#ifndef WORKER_GPU_TOWERS_H
#define WORKER_GPU_TOWERS_H

#include "worker/engine.h"

/* devices: as in train.towers, "gpu:0,gpu:1"; cpu is one too. From the main thread. */
bool towers_engine_create(struct engine **engine, const struct engine_options *options, const char *devices,
                          struct error *error);

#endif
