/* Counts what would otherwise fill a disk: a stranger can connect several thousand times a second. */
#include "net/complaints.h"

#include <stdio.h>
#include <string.h>

static const char *const descriptions[COMPLAINT_KINDS] = {
    [COMPLAINT_SILENT] = "said nothing",
    [COMPLAINT_PLAIN] = "spoke no TLS",
    [COMPLAINT_SHARE] = "showed no pass while unauthenticated handshakes had used up their CPU time",
    [COMPLAINT_TLS] = "failed in TLS",
    [COMPLAINT_HELLO] = "were refused at their first message",
    [COMPLAINT_CROWD] = "exceeded the limit of handshakes",
    [COMPLAINT_ACCEPT] = "could not be accepted",
};

/* An address that is among the newest becomes the newest again. */
static void keep_address(struct complaints_of *of, const struct admission_source *source, const char *peer)
{
    int out = 0;
    while (out < of->newest && memcmp(&of->sources[out], source, sizeof *source) != 0) {
        out++;
    }
    if (out == of->newest && out < COMPLAINTS_NEWEST) {
        of->newest++;
    } else {
        out = out < of->newest ? out : 0;
        for (int i = out; i + 1 < of->newest; i++) {
            of->sources[i] = of->sources[i + 1];
            memcpy(of->peers[i], of->peers[i + 1], sizeof of->peers[i]);
        }
    }
    of->sources[of->newest - 1] = *source;
    snprintf(of->peers[of->newest - 1], sizeof of->peers[0], "%s", peer);
}

bool complaints_note(struct complaints *complaints, enum complaint cause, const struct admission_source *source,
                     const char *peer, const struct error *text, double now_s)
{
    struct complaints_of *of = &complaints->of[cause];
    if (of->unsaid == 0 && (of->said_s <= 0 || now_s >= of->said_s + COMPLAINTS_EVERY_S)) {
        of->said_s = now_s;
        return true;
    }
    of->unsaid++;
    of->latest = *text;
    keep_address(of, source, peer);
    return false;
}

bool complaints_next(struct complaints *complaints, double now_s, bool last, char line[COMPLAINTS_LINE])
{
    for (int cause = 0; cause < COMPLAINT_KINDS; cause++) {
        struct complaints_of *of = &complaints->of[cause];
        if (of->unsaid == 0 || (!last && now_s < of->said_s + COMPLAINTS_EVERY_S)) {
            continue;
        }
        int used = snprintf(line, COMPLAINTS_LINE, "%llu more connections in %.0f s %s; the newest from ",
                            (unsigned long long)of->unsaid, now_s - of->said_s, descriptions[cause]);
        for (int i = of->newest - 1; i >= 0; i--) {
            used += snprintf(line + used, COMPLAINTS_LINE - (size_t)used, "%s%s", of->peers[i], i > 0 ? ", " : "");
        }
        snprintf(line + used, COMPLAINTS_LINE - (size_t)used, ": %s", of->latest.text);
        *of = (struct complaints_of){.said_s = now_s};
        return true;
    }
    return false;
}
