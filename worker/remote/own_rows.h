/*
 * Tables with data_sharding own: rows stay where they are, and all workers encode theirs by one preprocessing, derived
 * from all rows together. Each worker surveys its own rows and sends ps 0 the statistics; the chief merges them and
 * publishes the result (worker/data/table/survey_schema.h).
 *
 * This is done for the first model only. A worker or chief that joins an existing model uses the model's preprocessing:
 * from the chief's newest checkpoint, or, before there is one, from ps 0. If both the chief and ps 0 are lost before
 * then, it is derived again, and workers whose rows are encoded otherwise restart.
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
 * Waits for ps 0 and for the chief; the chief waits for the workers of worker_hosts, at most a lease. *schema: the
 * caller frees it and what it points to. Also false if the process is stopped.
 */
bool own_rows_agree(struct schema **schema, const struct config *config, const struct identity *identity,
                    struct traffic *traffic, struct error *error);

/*
 * For a worker that joins again: ps 0 may have been lost with everything it knew. Unless the chief soon sends it the
 * preprocessing, it gets the statistics of the rows here again: if the chief was lost too, it derives the preprocessing
 * again from them.
 */
enum exchange_result own_rows_resend(struct push_pull *exchange, const struct config *config, struct error *error);

#endif
