/*
 * Heartbeats: a thread with its own connection to every ps. It reports this worker's state, answers pings while the
 * worker computes, and learns the state of the job. So a worker's lease does not depend on how long its steps take.
 *
 * Any thread may call these functions.
 */
#ifndef WORKER_REMOTE_HEARTBEAT_H
#define WORKER_REMOTE_HEARTBEAT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "net/message.h"
#include "ps/identity.h"
#include "worker/remote/shard_link.h"

struct heartbeat;

/* This worker's state. */
struct vitals {
    enum member_state state;
    int64_t global_step, local_step;
    float steps_per_s, loss;
    uint32_t staleness;
};

/* The job's state as a ps reports it. */
struct job_status {
    bool known; /* some ps answered */
    bool over;  /* the job is over... */
    bool failed;
    float test_accuracy; /* NaN: none */
    char message[256];
    bool refused; /* this process was refused for good while it ran: the message says why */
};

/* device: what this worker computes on; copied. config, identity and traffic are borrowed. */
bool heartbeat_create(struct heartbeat **heartbeat, const struct config *config, const struct identity *identity,
                      struct traffic *traffic, const char *device, struct error *error);

/*
 * Leaves: sends this message to every connected ps, and stops the thread. If the vitals say STATE_FAILED, it is the
 * error that ends this process. NULL is fine.
 */
void heartbeat_destroy(struct heartbeat *heartbeat, const char *message);

/* Before there are heartbeats: reports to ps 0 which error ends this process, if that can be done within seconds. */
void heartbeat_report_failure(const struct config *config, const struct identity *identity, const char *reason);

void heartbeat_set_vitals(struct heartbeat *heartbeat, const struct vitals *vitals);

/* What the worker waits for or does, for status queries; "" once it trains. */
void heartbeat_set_message(struct heartbeat *heartbeat, const char *message);

/* From now on it polls the job's state more often: something is about to end. */
void heartbeat_wake(struct heartbeat *heartbeat);

/*
 * Does some ps report that it has nothing to train on in this generation, or a later generation, or is it another
 * process than at since_s? Only reports after since_s count. why: in words.
 */
bool heartbeat_needs_rejoin(struct heartbeat *heartbeat, uint32_t generation, double since_s, char why[256]);

void heartbeat_job_status(struct heartbeat *heartbeat, struct job_status *job);

/* True once the job is over or this process is fenced; the second: only if fenced. Cheap. */
bool heartbeat_is_over(struct heartbeat *heartbeat);
bool heartbeat_is_fenced(struct heartbeat *heartbeat);

#endif
