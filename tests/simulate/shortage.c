/*
 * Calls that fail because the system has run out of something, or breaks: one kind of call in each run, its nth, and
 * perhaps those that follow it, on one machine.
 */
#include <errno.h>
#include <string.h>

#include "tests/simulate/world.h"

struct shortage shortage;

static const struct {
    const char *name;
    int reason;
} kinds[] = {
    [SHORT_OF_MEMORY] = {"malloc", ENOMEM}, [SHORT_READ] = {"read", EIO},
    [SHORT_WRITE] = {"write", EIO},         [SHORT_FSYNC] = {"fsync", EIO},
    [SHORT_RENAME] = {"rename", EIO},       [SHORT_OPEN] = {"open", EMFILE},
    [SHORT_SOCKET] = {"socket", EMFILE},    [SHORT_CONNECT] = {"connect", ENETUNREACH},
    [SHORT_ACCEPT] = {"accept", EMFILE},    [SHORT_RECEIVE] = {"recv", ECONNRESET},
    [SHORT_SEND] = {"send", ECONNRESET},    [SHORT_THREAD] = {"thread", EAGAIN},
};

const char *shortage_name(int kind)
{
    return kind >= 0 && kind < SHORT_KINDS ? kinds[kind].name : NULL;
}

int shortage_find(const char *name)
{
    int kind = 0;
    while (kind < SHORT_KINDS && strcmp(kinds[kind].name, name) != 0) {
        kind++;
    }
    return kind < SHORT_KINDS ? kind : -1;
}

int falls_short(int kind)
{
    if (kind != shortage.kind || !world.here || world.here->number != shortage.machine) {
        return 0;
    }
    uint64_t call = ++shortage.calls;
    if (call < shortage.first || call >= shortage.first + shortage.count) {
        return 0;
    }
    shortage.failed++;
    say("call %llu of %s fails: %s", (unsigned long long)call, kinds[kind].name, strerror(kinds[kind].reason));
    return kinds[kind].reason;
}
