/*
 * A small parent for a process that shall come back when it dies, where nothing else (systemd, Kubernetes) sees to
 * that.
 *
 * The parent executes its own program again, with the same arguments, and waits. It holds no state that a crash could
 * cost: which version of the config a process starts in is decided by that process (base/process/probation.h).
 */
#ifndef BASE_PROCESS_SUPERVISE_H
#define BASE_PROCESS_SUPERVISE_H

#include <stdbool.h>

/* Is this the child of such a parent? */
bool supervise_is_child(void);

/*
 * Starts children until one ends by itself with status 0, or misused (status 2) at its very first start, or the
 * parent was asked to leave, which it passes on; a child that dies again and again within a minute is given up.
 * Returns the status to end with. To be called before the process has threads.
 */
int supervise(char *const *arguments);

#endif
