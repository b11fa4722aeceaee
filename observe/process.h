/* What this process takes of the machine, as the kernel counts it. */
#ifndef OBSERVE_PROCESS_H
#define OBSERVE_PROCESS_H

#include <stdint.h>

struct process_use {
    double cpu_s;
    uint64_t resident_bytes, virtual_bytes;
    int descriptors, most_descriptors, threads; /* -1: not known */
};
void process_measure(struct process_use *use);

#endif
