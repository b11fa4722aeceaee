/* The GPU engine's program, embedded by builds with nvcc, and facts about it. */
#ifndef CUDA_PAYLOAD_H
#define CUDA_PAYLOAD_H

#include <stddef.h>

/* An ELF program for the system's libc; NULL and 0 in a build without it. */
const void *payload_program(size_t *size);

/* "sm_75 sm_80 ..."; "" in a build without it. */
const char *payload_architectures(void);

#endif
