/* What this process takes of the machine, as the kernel counts it, and of its GPUs. Any thread may ask. */
#ifndef OBSERVE_PROCESS_H
#define OBSERVE_PROCESS_H

#include <stdint.h>

struct process_use {
    double cpu_s;
    uint64_t resident_bytes, virtual_bytes;
    int descriptors, most_descriptors, threads; /* -1: not known */
    double gpu_s;                               /* that GPUs have computed for it, all together */
    int gpus;                                   /* that it has taken */
};
void process_measure(struct process_use *use);

/* How much of it there is, as members tell each other: measured once a second at most, whoever asks. */
struct process_load {
    uint64_t memory_bytes;          /* 0: not known */
    float cpu_percent, gpu_percent; /* of one core; of each GPU's time. NaN: not known, or none */
};
void process_load(struct process_load *load);

/* From now on that function tells what GPUs have computed, in seconds, and how many there are. */
void process_watch_gpus(double (*seconds)(int *gpus));

#endif
