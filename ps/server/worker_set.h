/*
 * Sets of workers as they travel between ps: ranges of their numbers, ascending, none of which touches the next.
 */
#ifndef PS_SERVER_WORKER_SET_H
#define PS_SERVER_WORKER_SET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "net/message.h"

enum { WORKER_SET_BYTES = CONFIG_WORKER_RANGES * RANGE_BYTES /* of any set */ };

/* Adds a worker whose number is greater than those that are in the set. bytes: the set's, of WORKER_SET_BYTES. */
void worker_set_put(struct ranges *set, uint8_t *bytes, int worker);

/* What a peer said. has: [workers], whether each is in the set. False: it names others; `has` is of no use then. */
bool worker_set_read(const struct ranges *set, bool *has, int workers);

#endif
