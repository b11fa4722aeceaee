/*
 * A worker's number where the config gives it none (task_index=auto): the one that its certificate names; or else a
 * free one beyond worker_hosts, which ps 0 keeps for it, and gives it again after a restart.
 *
 * What it is known by there is its key, where it has one of its own (net/credentials.h), else its machine, folder and
 * command line: several workers of a machine that hold the fleet's key must differ in one of these.
 */
#ifndef WORKER_REMOTE_PLACE_H
#define WORKER_REMOTE_PLACE_H

#include "base/config.h"

/* Sets task_index, if this is a worker without one: before anything else is done with the config. */
bool place_find(struct config *config, struct error *error);

#endif
