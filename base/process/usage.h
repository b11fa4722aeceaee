/* Resources that this process uses, as the kernel counts them, and its GPUs. Any thread. */
#ifndef BASE_PROCESS_USAGE_H
#define BASE_PROCESS_USAGE_H

#include <stdint.h>

struct process_use {
    double cpu_s;
    uint64_t resident_bytes, virtual_bytes;
    int descriptors, most_descriptors, threads; /* -1: not known */
    double gpu_s;                               /* GPU time used, summed over GPUs */
    int gpus;                                   /* in use by it */
};
void process_measure(struct process_use *use);

/* The load that members report to each other: measured at most once a second, whoever asks. */
struct process_load {
    uint64_t memory_bytes;          /* 0: not known */
    float cpu_percent, gpu_percent; /* of one core; of each GPU's time. NaN: not known, or none */
};
void process_load(struct process_load *load);

/* Sets the function that returns the seconds of GPU time used, and the number of GPUs. */
void process_watch_gpus(double (*seconds)(int *gpus));

#endif
