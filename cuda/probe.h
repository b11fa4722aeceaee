/* Looks for signs of an NVIDIA GPU that this process may use, without loading the driver or starting a process. */
#ifndef CUDA_PROBE_H
#define CUDA_PROBE_H

#include <stdbool.h>

struct gpu_probe {
    bool usable;      /* there is one, visible to this process */
    bool hidden;      /* by CUDA_VISIBLE_DEVICES */
    char reason[160]; /* one clause: why not, or what is there: "no NVIDIA driver is loaded" */
};

void gpu_probe(struct gpu_probe *probe);

/*
 * The same with /dev and /proc below `root`, and the given values of CUDA_VISIBLE_DEVICES and LD_LIBRARY_PATH (NULL:
 * unset).
 */
void gpu_probe_at(struct gpu_probe *probe, const char *root, const char *visible_devices, const char *library_path);

#endif
