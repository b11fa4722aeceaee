/*
 * Tables with data_sharding own: rows stay where they are, and all workers encode theirs by one preprocessing, that of
 * all rows together. Each worker surveys its own and tells ps 0 the figures; the chief merges them, and says what
 * follows (worker/data/table/figures.h).
 *
 * Only the first model is made so. Who comes when there is one, the chief too, takes what the model has: that of the
 * chief's newest checkpoint, or, before there is one, of what ps 0 was told. If both the chief and ps 0 are lost before
 * then, it is made again; whose rows are encoded by another starts again.
 */
#ifndef WORKER_REMOTE_OWN_ROWS_H
#define WORKER_REMOTE_OWN_ROWS_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "net/link.h"
#include "ps/identity.h"
#include "worker/data/table/schema.h"
#include "worker/remote/exchange/push_pull.h"

/*
 * Waits for ps 0, and for the chief; the chief waits for the workers of worker_hosts, for a lease at most. *schema: to
 * be freed by the caller, also what it points to. False also if the process is asked to leave.
 */
bool own_rows_agree(struct schema **schema, const struct config *config, const struct identity *identity,
                    struct traffic *traffic, struct error *error);

/*
 * For a worker that joins again: ps 0 may have been lost, and with it what it was told. Unless the chief tells it soon
 * how rows become inputs, it hears again what is in the rows here: a chief that was lost as well makes that again.
 */
enum exchange_result own_rows_tell_again(struct push_pull *exchange, const struct config *config, struct error *error);

#endif
