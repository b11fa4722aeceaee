/*
 * A link: a channel to one peer that comes back by itself. Its owner asks for it to be open; it is tried with back-off
 * and jitter, and a wait is named in the log, at once and then every ten seconds:
 * "waiting for ps 0 (a:2222), 12 s: connection refused".
 *
 * One thread drives a link; its counters may be read by any.
 */
#ifndef NET_LINK_H
#define NET_LINK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text/address.h"
#include "net/channel.h"
#include "net/handshake.h"
#include "net/wake.h"

enum {
    LINK_ANSWER_S = 30,       /* for the answer to a request that needs no waiting, and for a frame that has begun; the
                                 idle timeout ends a silence sooner */
    LINK_LOGGED_EVERY_S = 10, /* between two log lines about the same wait */
};

/* What the links of one process share. Any thread adds and reads; all zeros to begin with. */
struct traffic {
    atomic_ullong bytes_in, bytes_out;
    atomic_ullong retries; /* connections and requests that had to be tried again */
    /* A connection was given up for its silence shortly after this. What broke it has likely broken others: those that
       nothing came on since are opened again before they are used, and cost no silence of their own. */
    _Atomic(double) suspect_since_s;
    /* Until then no link is tried: this process has just been started in a version that ps 0 may not be in yet, and
       would be turned away after a whole handshake on every link, again and again, as would all others. 0: not so. */
    _Atomic(double) held_until_s;
    /* So long after the first try some peer must have answered, if only to refuse, or links give up; 0: however long,
       or one has. */
    _Atomic(double) answer_within_s;
    _Atomic(double) first_try_s; /* 0: nobody has been tried */
};

/* Everything but `peer`, `self` and `traffic` may be left zero. */
struct link_options {
    struct member peer;
    struct introduction self;
    struct traffic *traffic; /* borrowed */
    const struct wake *wake; /* borrowed: ends every wait; NULL: none */
    const char *purpose; /* borrowed: " to decide on steps", behind the peer's name in "waiting for ..."; may be NULL */
    double timeout_s;    /* for one try: TCP, TLS and the handshake; LINK_CONNECT_S and the idle timeout bound it */
    double longest_delay_s; /* between two tries; 0: 1 s */
    /* Where a peer restarts, what all wait for comes back first, and the rest not all at once: a lost connection is
       tried again at once, and if the peer is not there, within return_within_s, drawn at random; with return_after_s
       between the two from the beginning. 0: only delays that double. */
    double return_after_s, return_within_s;
    double logged_after_s; /* shorter waits are not logged; 0: 1 s */
    bool quiet;            /* nothing is logged: somebody else does it */
    bool retries_refusals; /* a refusal is not for good: try again */
};

enum { LINK_CONNECT_S = 10 };

struct link {
    struct link_options options;
    struct member member; /* the peer */
    struct address address;
    char name[CONNECTION_NAME]; /* "ps 0 (a:2222)" */
    bool quiet;
    double timeout_s;       /* for one try */
    double idle_timeout_s;  /* without a sign of life while something is owed */
    struct channel channel; /* closed: channel.connection is NULL */
    uint64_t incarnation;   /* of the peer, at the last handshake */
    uint64_t opened;        /* counts the connections */
    uint64_t counted_in, counted_out;
    int failures;      /* in a row */
    double delay_s;    /* after the last of them */
    double opened_s;   /* when the connection was opened */
    double next_try_s; /* not before */
    double missed_s;   /* since when it is wanted; meaningless while it is open */
    double logged_s;   /* when this wait was logged; 0: not yet */
};

/* host: "a:2222". Fails only where that is no address. Nothing is tried yet. */
bool link_create(struct link *link, const char *host, const struct link_options *options, struct error *error);
void link_destroy(struct link *link); /* fine on zeros */

static inline bool link_is_open(const struct link *link)
{
    return link->channel.connection;
}

/* How a try ended. */
enum link_try {
    LINK_OPEN,
    LINK_LATER,   /* not now: next_try_s says when to ask again */
    LINK_REFUSED, /* for good, with the reason in the error: other keys, another job, a second worker of our number, or
                     nobody answered for too long */
};

/* One try, unless it is open already or next_try_s lies ahead. */
enum link_try link_try(struct link *link, struct error *error);

/* Waits until the next try is due or the wake is raised, and at most a tenth of a second: callers look at signals. */
void link_await_try(const struct link *link);

/*
 * Tries until it is open, or `given_up` says so, or the process was asked to leave: then it returns LINK_LATER. NULL:
 * nobody else has a say.
 */
enum link_try link_open(struct link *link, bool (*given_up)(void *context), void *context, struct error *error);

/* Receives the next frame of an answer; a ping that comes before it is answered on the way. */
bool link_receive(struct link *link, struct error *error);
/* Receives one frame, and answers it if it is a ping: *pinged. */
bool link_receive_any(struct link *link, bool *pinged, struct error *error);

/* link_receive, and channel_check_answer; *code (may be NULL) is 0 for failures of the link. */
bool link_receive_answer(struct link *link, enum message_type type, uint64_t request, enum message_type answer,
                         uint16_t *code, struct error *error);

/*
 * As channel_call, for a request with or without bulk, which gets its number here; and a ping that comes before the
 * answer is answered on the way.
 */
bool link_call(struct link *link, struct outgoing *request, enum message_type answer, uint16_t *code,
               struct error *error);

/* The connection is no good any more: closes it and counts a retry. why: for the log; NULL: no line. */
void link_lost(struct link *link, const char *why);
/* The same because of silence; a deadline that passed during a call counts as that by itself. */
void link_timed_out(struct link *link, const char *why);

/* Closes it, in order; link_try opens it again. */
void link_close(struct link *link);

/* Adds what the connection moved since the last call to the traffic. */
void link_count(struct link *link);

#endif
