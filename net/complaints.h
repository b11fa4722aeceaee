/*
 * What the log says of peers that were turned away: for each cause one line a minute, with a count and the newest
 * addresses, however many come. The first of a cause is told at once, in full. A pure state machine: its owner
 * has the clock, the lock and the log.
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
    COMPLAINT_SILENT, /* said nothing in time, or hung up, or had to make room for others */
    COMPLAINT_PLAIN,  /* spoke no TLS, where that was seen at once */
    COMPLAINT_SHARE,  /* came without a pass while strangers took all the processor time that they may */
    COMPLAINT_TLS,    /* TLS failed: another key, say */
    COMPLAINT_HELLO,  /* had a key, and was refused for what it said, or said nothing */
    COMPLAINT_CROWD,  /* was cut in its handshake, or never begun, for there were too many */
    COMPLAINT_ACCEPT, /* the system could not take a connection */
    COMPLAINT_KINDS
};

struct complaints {
    struct complaints_of {
        double said_s; /* when the last line was due; 0: never */
        uint64_t unsaid;
        int newest; /* addresses kept, of the unsaid; the last is the newest */
        struct admission_source sources[COMPLAINTS_NEWEST];
        char peers[COMPLAINTS_NEWEST][ENDPOINT_TEXT];
        struct error latest;
    } of[COMPLAINT_KINDS];
};

/* True if the text, which names the peer, is to be logged now; else it is counted. */
bool complaints_note(struct complaints *complaints, enum complaint cause, const struct admission_source *source,
                     const char *peer, const struct error *text, double now_s);

/* The next line that is due; last: everything that was only counted is. False: there is none. */
bool complaints_next(struct complaints *complaints, double now_s, bool last, char line[COMPLAINTS_LINE]);

#endif
