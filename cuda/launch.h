/*
 * Starts a program from memory, linked against the system's libc, as a child that dies with its parent.
 *
 * Avoids writing a file: the bytes go to a memfd, which is executed in place. If the system forbids that
 * (vm.memfd_noexec), the system's dynamic loader runs it; the last resort is an unnamed file in a folder that allows
 * execution.
 *
 * Main thread only: for the kernel, the parent has died when the forking thread ends.
 */
#ifndef CUDA_LAUNCH_H
#define CUDA_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

enum launch_way {
    LAUNCH_MEMORY, /* execveat of a memfd */
    LAUNCH_LOADER, /* the loader named by the program, on a memfd that may not be executed itself */
    LAUNCH_FILE,   /* an unnamed file, in the first folder that allows execution */
    LAUNCH_WAYS
};

/* The program to start, an ELF file. Its only descriptors are 0 (empty), 1 and 2 (our standard error), and `fd`. */
struct launch_program {
    const char *name; /* in process lists */
    const void *bytes;
    size_t size;
    int fd; /* passed to the program, which gets its number in argv[1] */
};

/* Tries the ways in turn. *pid: pass it to launch_ended or launch_kill until one reports the end. */
bool launch(pid_t *pid, const struct launch_program *program, struct error *error);

/* Tries only this way. */
bool launch_by(enum launch_way way, pid_t *pid, const struct launch_program *program, struct error *error);

/* True if it has ended; `how` then describes it in a clause: "was killed by signal 9 (Killed)". Does not wait. */
bool launch_ended(pid_t pid, char *how, size_t size);

/* Kills it and waits briefly: a process stuck in its driver is left to the kernel. */
void launch_kill(pid_t pid);

/* --- The GPU engine's program, embedded by builds with nvcc (payload.c) --- */

/* An ELF program for the system's libc; NULL and 0 in a build without it. */
const void *payload_program(size_t *size);

/* "sm_75 sm_80 ..."; "" in a build without it. */
const char *payload_architectures(void);

#endif
