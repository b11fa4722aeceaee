/*
 * Starts a program that is bytes in memory, linked against the system's libc, as a child that dies with its parent.
 *
 * No file is written where that can be avoided: the bytes go to a memfd that is executed in place. Where the system
 * forbids that (vm.memfd_noexec), the system's own dynamic loader is asked to run it, and then a file without a name in
 * a folder that allows programs.
 *
 * To be called from the main thread: the kernel takes the end of the thread that forked for the end of the parent.
 */
#ifndef CUDA_LAUNCH_H
#define CUDA_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

enum launch_way {
    LAUNCH_MEMORY, /* execveat of a memfd */
    LAUNCH_LOADER, /* the loader that the program names, on a memfd that may not be executed itself */
    LAUNCH_FILE,   /* a file without a name, in the first folder that lets it run */
    LAUNCH_WAYS
};

/* What is started. The bytes are an ELF program; its only descriptors are 0 (empty), 1 and 2 (our standard error), and `fd`. */
struct launch_program {
    const char *name; /* in process lists */
    const void *bytes;
    size_t size;
    int fd; /* for the program, which finds its number in argv[1] */
};

/* Tries the ways in turn. *pid: to be handed to launch_ended or launch_kill until one says that it is over. */
bool launch(pid_t *pid, const struct launch_program *program, struct error *error);

/* Tries this one way. */
bool launch_by(enum launch_way way, pid_t *pid, const struct launch_program *program, struct error *error);

/* True if it is over, and then how in a clause: "was killed by signal 9 (Killed)". Never waits. */
bool launch_ended(pid_t pid, char *how, size_t size);

/* Kills it, and waits a moment for its end: one that hangs in its driver is left to the kernel. */
void launch_kill(pid_t pid);

#endif
