/*
 * A link to one ps (or, for data, to worker 0): a channel that comes back by itself. Whoever needs it asks for it to be open; it is tried with
 * back-off and jitter, and what is being waited for is named in the log, at once and then every ten seconds:
 * "waiting for ps 0 (a:2222), 12 s: connection refused".
 *
 * One thread drives a link; its counters may be read by any.
 */
#ifndef WORKER_REMOTE_SHARD_LINK_H
#define WORKER_REMOTE_SHARD_LINK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "base/text/address.h"
#include "net/channel.h"
#include "net/socket.h"
#include "ps/identity.h"

enum {
    LINK_CONNECT_S = 10,    /* for one try, or a lease where that is shorter */
    LINK_ANSWER_S = 30,     /* for the answer to a request that needs no waiting, and for a frame that has begun; the
                               connection's patience ends a silence sooner */
    LINK_TOLD_EVERY_S = 10, /* between two log lines about the same wait */
};

/* What a worker's connections add up to. Any thread adds and reads. */
struct traffic {
    atomic_ullong bytes_in, bytes_out;
    atomic_ullong retries; /* connections and requests that had to be tried again */
    /* A connection was given up for its silence shortly after this. What broke it has likely broken others: those that
       nothing came on since are opened anew before they are used, and cost no silence of their own. */
    _Atomic(double) suspect_since_s;
    /* Until then no link is tried: this process has just been started in a version that ps 0 may not be in yet, and would
       be turned away after a whole handshake on every link, again and again, as would all others. 0: not so. */
    _Atomic(double) held_until_s;
};

struct shard_link {
    struct member member;
    struct address address;
    char name[CONNECTION_NAME];      /* "ps 0 (a:2222)" */
    const struct identity *identity; /* borrowed */
    struct traffic *traffic;         /* borrowed */
    struct wake *wake;               /* borrowed; may be NULL */
    bool quiet;                      /* somebody else tells the log about this ps */
    double timeout_s;                /* for one try: TCP, TLS and the handshake */
    double idle_timeout_s;  /* without a sign of life while something is owed; identity_idle_timeout_s unless changed */
    struct channel channel; /* closed: channel.connection is NULL */
    uint64_t incarnation;   /* of the ps, at the last handshake */
    uint64_t counted_in, counted_out;
    double longest_delay_s; /* between two tries */
    int failures;           /* in a row */
    double next_try_s;      /* not before */
    double missed_s;        /* since when it is wanted; 0: it is there */
    double told_s;
};

/* ps: index into ps_hosts. */
bool shard_link_create(struct shard_link *link, const struct config *config, int ps, const struct identity *identity,
                       struct traffic *traffic, struct wake *wake, struct error *error);
/* The same to any member, at host:port. */
bool shard_link_create_to(struct shard_link *link, struct member member, const char *host,
                          const struct identity *identity, struct traffic *traffic, struct wake *wake,
                          struct error *error);
void shard_link_destroy(struct shard_link *link); /* fine on zeros */

static inline bool shard_link_is_open(const struct shard_link *link)
{
    return link->channel.connection != NULL;
}

/* How a try ended. */
enum link_try {
    LINK_OPEN,
    LINK_LATER,   /* not now: next_try_s says when to ask again */
    LINK_REFUSED, /* for good, with the reason in the error: other keys, another job, a second worker of our number */
};

/* One try, unless it is open already or next_try_s lies ahead. */
enum link_try shard_link_try(struct shard_link *link, struct error *error);

/*
 * Tries until it is open, or `given_up` says so, or the process was asked to leave: then it returns LINK_LATER. NULL:
 * nobody else has a say.
 */
enum link_try shard_link_open(struct shard_link *link, bool (*given_up)(void *context), void *context,
                              struct error *error);

/* Receives the next frame of an answer; a ping that comes before it is answered on the way. */
bool shard_link_receive(struct shard_link *link, struct error *error);
/* Receives one frame, and answers it if it is a ping: *pinged. */
bool shard_link_receive_any(struct shard_link *link, bool *pinged, struct error *error);

/* The connection is no good any more: closes it and counts a retry. why: for the log; NULL: no line. */
void shard_link_lost(struct shard_link *link, const char *why);
/* The same because of silence; a deadline that passed during a call counts as that by itself. */
void shard_link_timed_out(struct shard_link *link, const char *why);

/* Closes it for good, in order. */
void shard_link_close(struct shard_link *link);

/* Adds what the connection moved since the last call to the traffic. */
void shard_link_count(struct shard_link *link);

/* Sleeps at most until `until_s`, and no longer than a tenth of a second, so that callers look at signals in time. */
void shard_link_pause(double until_s);

#endif
