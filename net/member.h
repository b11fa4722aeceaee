/* A process's place in its cluster: a role and, where there are several, an index. */
#ifndef NET_MEMBER_H
#define NET_MEMBER_H

#include <stdbool.h>

#include "base/error.h"

/* Values on the wire: never renumber. */
enum member_role { MEMBER_NONE = 0, MEMBER_PS = 1, MEMBER_WORKER = 2, MEMBER_OPERATOR = 3 };

enum {
    MEMBER_ANY_INDEX = -1,
    MEMBER_MAX_INDEX = 65535,
    MEMBER_TEXT = 24, /* room for "worker 65535" and its end */
};

struct member {
    enum member_role role;
    int index; /* 0..MEMBER_MAX_INDEX; MEMBER_ANY_INDEX: any, or none as for operators */
};

/* "worker:1", "ps" (any index) or "operator", as in certificates and on the command line. */
bool member_parse(const char *text, struct member *member, struct error *error);

/* The inverse of member_parse, with ':' or ' ' between the two parts: "worker:1", "worker 1", "ps", "operator". */
void member_format(const struct member *member, char separator, char text[MEMBER_TEXT]);

/* True if `allowed` covers `who`; a role of MEMBER_NONE covers everybody. */
bool member_matches(const struct member *allowed, const struct member *who);

#endif
