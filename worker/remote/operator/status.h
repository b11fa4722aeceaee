/* Asks a running cluster how its members are, for `trainer status` and the progress line of `trainer cluster`. */
#ifndef WORKER_REMOTE_OPERATOR_STATUS_H
#define WORKER_REMOTE_OPERATOR_STATUS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "net/message.h"
#include "ps/identity.h"

/*
 * What is known of one member. Of one that did not answer the state is STATE_ABSENT, and the message says why. An empty
 * digest: it is not known which version of the config it is in.
 */
struct status_entry {
    struct member member;
    const char *address; /* in the config; borrowed */
    bool is_missing;
    enum member_state state;
    uint32_t silent_ms, generation, staleness;
    int64_t global_step, local_step; /* -1: none */
    float steps_per_s, loss;         /* loss NaN: none */
    uint64_t dropped, retries, bytes_in, bytes_out, config_version;
    char host[256], device[129], program[65], digest[65], message[256];
};

struct status_query;

/* As an operator. config is borrowed. */
bool status_query_create(struct status_query **query, const struct config *config, struct error *error);
void status_query_destroy(struct status_query *query); /* NULL is fine */

/*
 * Asks all ps at once and waits at most `timeout_s` for each. The entries, ps first, are the query's until it is asked
 * again. Connections are kept for the next time.
 */
const struct status_entry *status_query_ask(struct status_query *query, double timeout_s, int *count);

#endif
