/*
 * Rate-limited logging of rejected peers: one line a minute for each cause, with a count and the newest addresses,
 * however many come. The first of a cause is logged at once, in full. A pure state machine: its owner has the clock,
 * the lock and the log.
 */
#ifndef NET_COMPLAINTS_H
#define NET_COMPLAINTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "net/admission.h"
#include "net/endpoint.h"

enum {
    COMPLAINTS_EVERY_S = 60,
    COMPLAINTS_NEWEST = 4,      /* addresses in a line, each once */
    COMPLAINTS_LINE = 2 * 1024, /* bytes of a line, its end included */
};

enum complaint {
    COMPLAINT_SILENT, /* sent nothing in time, hung up, or was evicted to make room */
    COMPLAINT_PLAIN,  /* did not speak TLS, as its first bytes showed */
    COMPLAINT_SHARE,  /* came without a pass while strangers had used up their CPU time */
    COMPLAINT_TLS,    /* TLS failed: another key, say */
    COMPLAINT_HELLO,  /* had a key, but was refused for its hello, or sent none */
    COMPLAINT_CROWD,  /* was cut off before or in its handshake, because there were too many */
    COMPLAINT_ACCEPT, /* accept failed */
    COMPLAINT_KINDS
};

struct complaints {
    struct complaints_of {
        double said_s; /* when the last line was due; 0: never */
        uint64_t unsaid;
        int newest; /* addresses kept, of the unlogged; the last is the newest */
        struct admission_source sources[COMPLAINTS_NEWEST];
        char peers[COMPLAINTS_NEWEST][ENDPOINT_TEXT];
        struct error latest;
    } of[COMPLAINT_KINDS];
};

/* True if the caller should log the text, which names the peer, now; else it is only counted. */
bool complaints_note(struct complaints *complaints, enum complaint cause, const struct admission_source *source,
                     const char *peer, const struct error *text, double now_s);

/* The next due line; last: everything counted is due. False: there is none. */
bool complaints_next(struct complaints *complaints, double now_s, bool last, char line[COMPLAINTS_LINE]);

#endif
