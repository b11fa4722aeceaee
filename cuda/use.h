/* GPU time of this process: the durations of its commands, summed over all clients. Any thread. */
#ifndef CUDA_USE_H
#define CUDA_USE_H

/* A client has opened a device, or closed it. */
void gpu_use_take(void);
void gpu_use_return(void);

/* A device starts computing; stops computing. */
void gpu_use_begin(void);
void gpu_use_end(void);

/* Seconds so far, running commands included; *gpus: the number of open devices. */
double gpu_use_seconds(int *gpus);

#endif
