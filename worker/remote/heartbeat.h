/*
 * Heartbeats: a thread with a connection of its own to every ps, that tells them how this worker is, answers their
 * pings while the worker computes, and learns from them how the job is. So a worker's lease does not depend on how long
 * its steps take.
 *
 * Everything here may be called from any thread.
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

/* How this worker is. */
struct vitals {
    enum member_state state;
    int64_t global_step, local_step;
    float steps_per_s, loss;
    uint32_t staleness;
};

/* What a ps said of the job. */
struct job_status {
    bool known; /* some ps answered */
    bool over;  /* the job is over... */
    bool failed;
    float test_accuracy; /* NaN: none */
    char message[256];
    bool refused; /* this process was refused for good, while it ran: the message says why */
};

/* device: what this worker computes on, copied. config, identity and traffic are borrowed. */
bool heartbeat_create(struct heartbeat **heartbeat, const struct config *config, const struct identity *identity,
                      struct traffic *traffic, const char *device, struct error *error);

/* Says goodbye to every ps that is connected, with this message, and ends the thread. NULL is fine. */
void heartbeat_destroy(struct heartbeat *heartbeat, const char *message);

void heartbeat_set_vitals(struct heartbeat *heartbeat, const struct vitals *vitals);

/* What it waits for, or does, for people who ask for the status; "" once it trains. */
void heartbeat_set_message(struct heartbeat *heartbeat, const char *message);

/* From now on it asks more often how the job is: something is about to end. */
void heartbeat_wake(struct heartbeat *heartbeat);

/*
 * Does some ps say that it has nothing to train on in this generation, or has it a later one, or is it another process
 * than at since_s? Of what it said before then nothing counts. why: in words.
 */
bool heartbeat_needs_rejoin(struct heartbeat *heartbeat, uint32_t generation, double since_s, char why[256]);

void heartbeat_job_status(struct heartbeat *heartbeat, struct job_status *job);

/* True once the job is over, or this process is out; and the second alone. Cheap. */
bool heartbeat_is_over(struct heartbeat *heartbeat);
bool heartbeat_is_fenced(struct heartbeat *heartbeat);

#endif
