/*
 * Sends one command at a time to the process that hosts the GPU (cuda/protocol.h), over a header in shared memory, and
 * ends that process. Every wait has a deadline. If the process ends, hangs or loses its device, the exchange is dead:
 * every further command fails with the same message.
 *
 * The file's content after the header, and the meaning of commands, are up to its user (cuda/client.c). One thread uses
 * it.
 */
#ifndef CUDA_EXCHANGE_H
#define CUDA_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"
#include "cuda/protocol.h"

struct exchange {
    pid_t pid; /* 0: it has ended */
    int file;  /* shared memory; -1: none */
    struct protocol_header *header;
    uint32_t posted; /* commands */
    bool greeted, dead;
    struct error death; /* if dead */
};

/* What to wait for, in words, and for how long. */
struct wait {
    const char *what; /* "train" */
    double seconds;
    void (*grown)(void *context, size_t floats); /* called as header->ready grows; NULL: not wanted */
    void *context;
    size_t most; /* floats of the whole gradient */
    size_t seen; /* last value passed to grown */
};

/* Starts the program in `bytes`, without waiting for it. Main thread only. Cleans up on failure. */
bool exchange_start(struct exchange *exchange, const void *bytes, size_t size, struct error *error);

/* Ends the process within `seconds`, at once if it is not idle. All zero but for file -1: nothing to do. */
void exchange_stop(struct exchange *exchange, double seconds);

/* Runs a command: exchange_post, then exchange_finish. */
bool exchange_carry_out(struct exchange *exchange, const struct protocol_command *command, struct wait *wait,
                        struct error *error);

/* Only posts the command; a process that is still starting finds it later. */
void exchange_post(struct exchange *exchange, const struct protocol_command *command);
bool exchange_finish(struct exchange *exchange, struct wait *wait, struct error *error);

#endif
