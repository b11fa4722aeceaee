/*
 * Slurm's hostlist expressions: "login,n[1,3-5],rack[0-1]-n[08-11]". Numbers keep the leading zeros of the range's
 * start; with several brackets, the last one varies fastest.
 */
#ifndef BASE_TEXT_HOSTLIST_H
#define BASE_TEXT_HOSTLIST_H

#include "base/error.h"

enum {
    HOSTLIST_MAX_HOST = 253,
    HOSTLIST_MAX_BRACKETS = 4, /* in one name */
};

/*
 * Calls `add` for each host in order; the host's text is valid only during the call. Fails if there are more than
 * `most` hosts, or if `add` fails, so that the running time is bounded by `most` and the length of the text.
 */
typedef bool hostlist_add(void *context, const char *host, struct error *error);
bool hostlist_expand(const char *text, int most, hostlist_add *add, void *context, struct error *error);

#endif
