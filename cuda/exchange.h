/*
 * One command at a time to the process that hosts the GPU (cuda/protocol.h), and the end of that process: it is asked over
 * the header in memory that both map, every wait has a deadline, and a process that has ended, hangs or has lost its device
 * leaves a dead exchange, whose every further command fails with the same message.
 *
 * What lies behind the header in the file, and what commands mean, is its user's (cuda/client.c). One thread uses it.
 */
#ifndef CUDA_EXCHANGE_H
#define CUDA_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"
#include "cuda/protocol.h"

struct exchange {
    pid_t pid; /* 0: it is over */
    int file;  /* that both map; -1: none */
    struct protocol_header *header;
    uint32_t posted; /* commands */
    bool greeted, dead;
    struct error death; /* if dead */
};

/* What is awaited: in words, and until when. */
struct wait {
    const char *what; /* "train" */
    double seconds;
    void (*grown)(void *context, size_t floats); /* of a gradient, as header->ready grows; NULL: nobody asks */
    void *context;
    size_t most; /* floats of it */
    size_t seen; /* what grown was told last */
};

/* Starts the program in `bytes`, without waiting for it. From the main thread. Nothing is left of it where that fails. */
bool exchange_start(struct exchange *exchange, const void *bytes, size_t size, struct error *error);

/* Ends the process within `seconds`, at once if it is not idle. All zero but for file -1: nothing to do. */
void exchange_stop(struct exchange *exchange, double seconds);

/* Has a command carried out: exchange_post and exchange_finish. False: it failed, and why. */
bool exchange_carry_out(struct exchange *exchange, const struct protocol_command *command, struct wait *wait,
                        struct error *error);

/* Only begins it; a process that does not run yet finds it when it does. */
void exchange_post(struct exchange *exchange, const struct protocol_command *command);
bool exchange_finish(struct exchange *exchange, struct wait *wait, struct error *error);

#endif
