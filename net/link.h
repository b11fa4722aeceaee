/*
 * A link: a channel to one peer that reconnects by itself. Its owner asks for it to be open; it retries with back-off
 * and jitter, and logs what it waits for, at once and then every ten seconds: "waiting for ps 0 (a:2222), 12 s:
 * connection refused".
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
#include "net/socket.h"

enum {
    LINK_ANSWER_S = 30,       /* to answer a request that needs no waiting, and to complete a frame; the idle timeout
                               ends a silence sooner */
    LINK_LOGGED_EVERY_S = 10, /* between two log lines about the same wait */
};

/* Shared by the links of one process. Any thread may add and read; starts as zeros. */
struct traffic {
    atomic_ullong bytes_in, bytes_out;
    atomic_ullong retries; /* connections and requests that were retried */
    /* A connection was given up for silence shortly after this time. Its cause has probably broken others, too:
       those that have received nothing since are reopened before use, instead of waiting for their own timeout. */
    _Atomic(double) suspect_since_s;
    /* Until this time no link is tried: this process was just started in a version that ps 0 may not have yet, and
       would be refused again and again, after a whole handshake on every link, as would all others. 0: no such hold. */
    _Atomic(double) held_until_s;
    /* Links give up unless some peer answers, if only by a refusal, within this time of the first try; 0: no limit,
       or one has answered. */
    _Atomic(double) answer_within_s;
    _Atomic(double) first_try_s; /* 0: no try yet */
};

/* Everything but `peer`, `self` and `traffic` may be left zero. */
struct link_options {
    struct member peer;
    struct hello_options self;
    struct traffic *traffic; /* borrowed */
    const struct wake *wake; /* borrowed: ends every wait; NULL: none */
    const char *purpose; /* borrowed: " to decide on steps", after the peer's name in "waiting for ..."; may be NULL */
    double timeout_s;    /* for one try: TCP, TLS and the handshake; LINK_CONNECT_S and the idle timeout bound it */
    double longest_delay_s; /* between two tries; 0: 1 s */
    /* When a peer restarts, the links that all wait for reconnect first, and the rest not all at once. A lost
       connection is retried at once, and if that fails, at a random time within return_within_s; with return_after_s
       set, the first retry comes at a random time between the two instead. 0: only doubling delays. */
    double return_after_s, return_within_s;
    double logged_after_s; /* shorter waits are not logged; 0: 1 s */
    bool local;            /* exchanges through shared memory with a peer on this machine (net/local.h) */
    bool quiet;            /* nothing is logged: the owner does that */
    bool retries_refusals; /* a refusal is not final: retry */
};

enum { LINK_CONNECT_S = 10 };

struct link {
    struct link_options options;
    struct member member; /* the peer */
    struct address address;
    char name[CONNECTION_NAME]; /* "ps 0 (a:2222)" */
    bool quiet;
    bool not_local;         /* to this peer it failed: the link stays as it is */
    double timeout_s;       /* for one try */
    double idle_timeout_s;  /* limit on silence while an answer is owed */
    struct channel channel; /* closed: channel.connection is NULL */
    uint64_t incarnation;   /* of the peer, at the last handshake */
    uint64_t opened;        /* connections opened so far */
    uint64_t counted_in, counted_out;
    int failures;      /* in a row */
    double delay_s;    /* after the last of them */
    double opened_s;   /* when the connection was opened */
    double next_try_s; /* not before */
    double missed_s;   /* when it was first needed; undefined while it is open */
    double logged_s;   /* when this wait was last logged; 0: not yet */
};

/* host: "a:2222". Fails only if that is not an address. Does not connect yet. */
bool link_create(struct link *link, const char *host, const struct link_options *options, struct error *error);
void link_destroy(struct link *link); /* fine on zeros */

static inline bool link_is_open(const struct link *link)
{
    return link->channel.connection;
}

/* How a try ended. */
enum link_try {
    LINK_OPEN,
    LINK_LATER,   /* not now: next_try_s says when to try again */
    LINK_REFUSED, /* permanently, with the reason in the error: other keys, another job, a second worker with our
                     number, or no answer for too long */
};

/* Tries once, unless it is open already or next_try_s is in the future. */
enum link_try link_try(struct link *link, struct error *error);

/* Waits until the next try is due or the wake is raised, at most 0.1 s, so that callers can check for signals. */
void link_await_try(const struct link *link);

/*
 * Tries until it is open or refused. Returns LINK_LATER if `given_up` (may be NULL) says so, or the process was asked
 * to leave.
 */
enum link_try link_open(struct link *link, bool (*given_up)(void *context), void *context, struct error *error);

/* Receives the next frame of an answer; answers pings that come before it. */
bool link_receive(struct link *link, struct error *error);
/* Receives one frame; if it is a ping, answers it and sets *pinged. */
bool link_receive_any(struct link *link, bool *pinged, struct error *error);

/* link_receive, then channel_check_answer; *code (may be NULL) is 0 for failures of the link. */
bool link_receive_answer(struct link *link, enum message_type type, uint64_t request, enum message_type answer,
                         uint16_t *code, struct error *error);

/*
 * Like channel_call, for a request with or without bulk, to which it gives its number; answers pings that come before
 * the answer.
 */
bool link_call(struct link *link, struct outgoing *request, enum message_type answer, uint16_t *code,
               struct error *error);

/* Closes a broken connection and counts a retry. why: for the log; NULL: no line. */
void link_lost(struct link *link, const char *why);
/* The same because of silence. link_lost recognizes a deadline that passed during a call by itself. */
void link_timed_out(struct link *link, const char *why);

/* Closes it in order; link_try reopens it. */
void link_close(struct link *link);

/* Adds the bytes moved since the last call to the traffic. */
void link_count(struct link *link);

#endif
