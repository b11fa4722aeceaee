/* Roles and indexes as text, in certificates, on the command line and in the log. */
#include "net/member.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const char *const role_names[] = {"", "ps", "worker", "operator"};

static bool parse_index(const char *text, int *index)
{
    int value = 0;
    if (text[0] == '\0' || (text[0] == '0' && text[1] != '\0')) {
        return false;
    }
    for (; *text; text++) {
        if (*text < '0' || *text > '9') {
            return false;
        }
        value = value * 10 + (*text - '0');
        if (value > MEMBER_MAX_INDEX) {
            return false;
        }
    }
    *index = value;
    return true;
}

bool member_parse(const char *text, struct member *member, struct error *error)
{
    for (int role = MEMBER_PS; role <= MEMBER_OPERATOR; role++) {
        size_t length = strlen(role_names[role]);
        if (strncmp(text, role_names[role], length) != 0) {
            continue;
        }
        int index = MEMBER_ANY_INDEX;
        bool indexed = text[length] == ':' && role != MEMBER_OPERATOR && parse_index(text + length + 1, &index);
        if (indexed || text[length] == '\0') {
            *member = (struct member){(enum member_role)role, index};
            return true;
        }
    }
    return error_set(
        error, "\"%.40s\" is not a member of a cluster: write ps:0, worker:1, ps or worker (any index), or operator",
        text);
}

void member_format(const struct member *member, char separator, char text[MEMBER_TEXT])
{
    assert(member->role >= MEMBER_NONE && member->role <= MEMBER_OPERATOR);
    if (member->index == MEMBER_ANY_INDEX || member->role == MEMBER_OPERATOR) {
        snprintf(text, MEMBER_TEXT, "%s", role_names[member->role]);
    } else {
        snprintf(text, MEMBER_TEXT, "%s%c%d", role_names[member->role], separator, member->index);
    }
}

bool member_matches(const struct member *allowed, const struct member *who)
{
    if (allowed->role == MEMBER_NONE) {
        return true;
    }
    return allowed->role == who->role && (allowed->index == MEMBER_ANY_INDEX || allowed->index == who->index);
}
