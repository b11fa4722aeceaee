/*
 * Several devices as one engine: "towers", as TensorFlow's tutorials call them. Each has the parameters and computes
 * the gradients of its batches; the host averages them, in the order of the batches, and applies the update. The number
 * of towers changes the speed of a step, not its result: n towers share the train.micro_batches of a step.
 *
 * The host applies the update on purpose. It has all gradients anyway, in memory shared with the devices' processes,
 * and after summing must send every device either the sum or the new parameters, which are no larger. Updating on the
 * devices would save the host's pass over the vectors but no traffic, and all devices would have to keep identical
 * slots and averages. Direct transfers between devices would save traffic, but they are in different processes here,
 * and this cannot be tested without two GPUs.
 *
 * A tower whose device fails continues on the CPU, if train.allow_soft_placement is on.
 */
#ifndef WORKER_GPU_TOWERS_H
#define WORKER_GPU_TOWERS_H

#include "worker/engine.h"

/* devices: as in train.towers, "gpu:0,gpu:1"; "cpu" is allowed too. Main thread only. */
bool towers_engine_create(struct engine **engine, const struct engine_options *options, const char *devices,
                          struct error *error);

#endif
