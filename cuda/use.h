/* How long GPUs have computed for this process: what its commands took, of all clients together. Any thread. */
#ifndef CUDA_USE_H
#define CUDA_USE_H

/* A client has taken a device, or no longer has it. */
void gpu_use_take(void);
void gpu_use_return(void);

/* A device computes from now on; until now. */
void gpu_use_begin(void);
void gpu_use_end(void);

/* Seconds so far, those of commands under way included; *gpus: how many are taken. */
double gpu_use_seconds(int *gpus);

#endif
