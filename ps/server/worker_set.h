/* Sets of workers as exchanged between ps: ranges of their indexes, ascending; no two of them touch. */
#ifndef PS_SERVER_WORKER_SET_H
#define PS_SERVER_WORKER_SET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "net/message.h"

enum { WORKER_SET_BYTES = CONFIG_WORKER_RANGES * RANGE_BYTES /* the largest encoding of a set */ };

/* Adds a worker whose index is greater than all in the set. bytes: the set's, of WORKER_SET_BYTES. */
void worker_set_put(struct ranges *set, uint8_t *bytes, int worker);

/* Decodes a peer's set. has: [workers], whether each is in the set. False: it names others; `has` is invalid then. */
bool worker_set_read(const struct ranges *set, bool *has, int workers);

#endif
