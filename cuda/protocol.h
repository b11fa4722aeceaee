/*
 * The protocol between the program and the process that hosts its GPU: one file in shared memory, one command at a
 * time.
 *
 * The two are built together and one embeds the other, so there is no version negotiation: `magic` and `layout` are
 * sanity checks. The client writes `command` (and its data into the areas after the header), then posts; the helper
 * executes it, writes `reply`, then completes. Between post and completion the header and the areas named in the
 * command belong to the helper, except `ready`, which the client may read.
 *
 * The file: the header, rounded up to PROTOCOL_PAGE; the transfer area, whose size is in OPEN and which the helper pins
 * for the GPU; then, during DATA, the training set. Offsets in commands are from the start of the file.
 */
#ifndef CUDA_PROTOCOL_H
#define CUDA_PROTOCOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/device/device.h"

enum {
    PROTOCOL_PAGE = 65536,   /* a multiple of any page size */
    PROTOCOL_UPDATES = 8192, /* most steps of one TRAIN */
    PROTOCOL_MAX_DEVICES = 64,
};

#define PROTOCOL_MAGIC 0x7570672d72746e65ULL

enum protocol_verb {
    PROTOCOL_LIST,    /* which devices the driver shows */
    PROTOCOL_OPEN,    /* ordinal, shape, memory_fraction, transfer_bytes */
    PROTOCOL_DATA,    /* examples: their number; arrays_at: after the transfer area; file_bytes */
    PROTOCOL_WRITE,   /* vector, first, count, floats_at */
    PROTOCOL_READ,    /* likewise */
    PROTOCOL_TRAIN,   /* step, steps; updates in the header */
    PROTOCOL_STEP,    /* step, task, examples, arrays_at, count, floats_at: of the gradient; ready grows */
    PROTOCOL_FORWARD, /* averaged, examples, arrays_at: of the inputs, floats_at: of the outputs */
    PROTOCOL_QUIT,
    PROTOCOL_VERBS
};

struct protocol_command {
    int32_t verb; /* enum protocol_verb */
    int32_t ordinal;
    struct device_shape shape;
    double memory_fraction;
    uint64_t transfer_bytes, file_bytes;
    int32_t vector; /* enum store_vector */
    uint64_t first, count;
    int64_t step;
    int32_t steps, examples, averaged;
    uint32_t task;
    uint64_t arrays_at[DEVICE_ARRAYS]; /* offsets of the examples' arrays; undefined for arrays that the shape lacks */
    uint64_t floats_at;
};

enum protocol_status {
    PROTOCOL_DONE,
    PROTOCOL_FAILED,
    PROTOCOL_LOST /* the device: no further command will work */
};

struct protocol_reply {
    int32_t status; /* enum protocol_status */
    struct error error;
    struct device_outcome outcome; /* of TRAIN and STEP */
    char description[256];         /* of OPEN */
    int32_t precision;             /* of OPEN: device_precision's */
    int32_t driver_version;        /* of LIST, as cuDriverGetVersion */
    int32_t device_count;
    struct driver_device devices[PROTOCOL_MAX_DEVICES];
};

/* Words that both processes write are on separate cache lines. */
#define PROTOCOL_LINE 64

struct protocol_word {
    _Alignas(PROTOCOL_LINE) _Atomic uint32_t value; /* of a futex */
    _Atomic uint32_t sleepers;                      /* 1: the waiter sleeps */
};

struct protocol_header {
    uint64_t magic;
    uint64_t layout;                                                /* sizeof(struct protocol_header) */
    int64_t parent;                                                 /* the client's process id */
    struct protocol_word hello;                                     /* 1: the helper runs */
    struct protocol_word posted;                                    /* commands so far */
    struct protocol_word completed;                                 /* likewise */
    _Alignas(PROTOCOL_LINE) _Atomic int32_t client_cpu, helper_cpu; /* CPU that each side last ran on; -1: unknown */
    _Alignas(PROTOCOL_LINE) _Atomic uint64_t ready;                 /* leading floats of the gradient that are final */
    _Alignas(PROTOCOL_LINE) struct protocol_command command;
    struct protocol_reply reply;
    struct update updates[PROTOCOL_UPDATES][2]; /* of TRAIN's steps: biases, weights */
};

/* Sizes within the file. */
static inline uint64_t protocol_round_up(uint64_t bytes)
{
    return (bytes + PROTOCOL_PAGE - 1) / PROTOCOL_PAGE * PROTOCOL_PAGE;
}

static inline uint64_t protocol_header_bytes(void)
{
    return protocol_round_up(sizeof(struct protocol_header));
}

#endif
