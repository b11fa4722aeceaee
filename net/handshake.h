/*
 * The first exchange on a connection: it establishes identity, protocol version and a common job.
 *
 * The connecting side sends hello; the other answers welcome or refused. The answering side makes all checks, and its
 * message is shown on both sides.
 */
#ifndef NET_HANDSHAKE_H
#define NET_HANDSHAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "net/channel.h"
#include "net/member.h"
#include "net/message.h"

/* What a process says about itself. All texts are borrowed. */
struct hello_identity {
    struct member member;
    uint64_t incarnation; /* random, one for each process */
    const char *program;  /* "trainer 1.0" */
    const char *cluster;  /* name of the cluster */
    uint64_t fleet_version;
    const char *digest; /* of the job config, hex; "" for pure queries, which skips the comparison */
    const char *job;    /* the job config, canonical JSON */
    uint32_t lease_ms;  /* sent to connecting peers */
};

/*
 * How this process identifies itself, for links and listeners that live as long as it does. The identity may change
 * meanwhile (a new version of the config), so hello is called each time, from any thread; its texts stay valid.
 */
struct hello_options {
    const struct credentials *credentials; /* borrowed; NULL: plain text */
    struct hello_identity (*hello)(const void *context);
    const void *context;   /* borrowed */
    double idle_timeout_s; /* a peer that owes an answer and is silent for this long is given up */
};

/* A random incarnation number, never 0. */
uint64_t handshake_new_incarnation(void);

/* The other side. */
struct peer {
    struct member member;
    uint16_t version; /* of the protocol, agreed on */
    uint64_t incarnation;
    uint64_t fleet_version;
    uint32_t lease_ms;
    char program[65];
    char digest[65];
};

/*
 * Sends hello on a fresh channel and receives the answer. expected: the peer we mean to reach. A refusal is an error
 * with the peer's message, and *reason (may be NULL) is its enum refusal; for failures of the connection it is 0.
 */
bool handshake_connect(struct channel *channel, const struct hello_identity *identity, const struct member *expected,
                       struct peer *peer, double deadline_s, uint16_t *reason, struct error *error);

/*
 * After handshake_connect, to a peer on this machine: offers to move the connection to shared memory (net/local.h) and,
 * if the peer takes the offer, moves it. *why_not: empty if it has moved; else why it stays as it was. False: the
 * connection is lost.
 */
bool handshake_offer_memory(struct channel *channel, double deadline_s, struct error *why_not, struct error *error);

/* The answering side's hooks, which its role provides. They are called on the thread that serves the connection. */
struct handshake_rules {
    /*
     * Says in one message how two job configs differ, given that their digests do: "worker 1 has
     * model.layers=[784,300,10], ps 0 has [784,500,10]". NULL: handshake_describe_difference.
     */
    void (*describe_difference)(void *context, const char *their_name, const char *theirs, const char *our_name,
                                const char *ours, struct error *message);
    /*
     * A peer without a digest may only query; enforcing that is up to `admit`. It may also be a worker without a number
     * (MEMBER_ANY_INDEX).
     */
    /* True if a digest other than ours is acceptable, as that of a version being rolled in or out. NULL: none is. */
    bool (*knows)(void *context, const char *digest);
    /* The final decision: 0 to welcome the peer, or an enum refusal with a message. NULL: all are welcome. */
    uint16_t (*admit)(void *context, const struct peer *peer, struct error *message);
    void *context;
};

/*
 * Answers the hello of a fresh channel. False if the peer was refused or lost; the error names its address and the
 * reason and is meant to be logged as it is, once.
 */
bool handshake_accept(struct channel *channel, const struct hello_identity *identity,
                      const struct handshake_rules *rules, struct peer *peer, double deadline_s, struct error *error);

/*
 * Two JSON objects, compared member by member: the message names up to three paths that differ, with both values. A
 * pure function; text that is not JSON is handled as well.
 */
void handshake_describe_difference(void *context, const char *their_name, const char *theirs, const char *our_name,
                                   const char *ours, struct error *message);

#endif
