/*
 * Confines this process to the system calls that its role needs, by a seccomp filter: whoever makes it run foreign code
 * can use the kernel no further. All that is not in the role's list fails with EPERM, calls that are newer than this
 * program with ENOSYS, as on an older kernel.
 *
 * A filter can't be removed, and holds for whatever the process executes: a restart in place, and a rolled-out program,
 * begin in the filter of the one before. So the lists of roles that restart hold what any version may need, rather than
 * what this one does; a process that a service manager starts anew has its own filter only.
 */
#ifndef BASE_PROCESS_CONFINE_H
#define BASE_PROCESS_CONFINE_H

#include <stdbool.h>

#include "base/error.h"

enum confine_role {
    CONFINE_NOT,      /* no filter */
    CONFINE_READER,   /* a command that reads files and writes some: no sockets, no processes, no executable memory */
    CONFINE_CLIENT,   /* the same, and connects to others */
    CONFINE_SERVER,   /* the same, and is connected to */
    CONFINE_PS,       /* also executes itself in place, or a program that was rolled out */
    CONFINE_LAUNCHER, /* also starts processes, among them the GPU engine's, which loads libraries and a driver */
};

/*
 * All threads of this process, from now on; once it is confined for that role, also by an ancestor, nothing is added.
 * Fails if the kernel has no such filters, or the process has more privileges than trust_begin leaves it.
 */
bool confine(enum confine_role role, struct error *error);

/* The same, with a warning if it fails; not in programs with sanitizers, which look into themselves by ptrace. */
void confine_or_warn(enum confine_role role);

/* The same without the warning, for commands, which end at once: where there are no filters, every one would warn. */
void confine_if_possible(enum confine_role role);

#endif
