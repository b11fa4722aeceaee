/* Carries out what the client asks for, one command after the other, until it says QUIT or is gone. */
#ifndef CUDA_HELPER_SERVE_H
#define CUDA_HELPER_SERVE_H

#include "cuda/protocol.h"

/* header: mapped from the start of `file`, which this maps more of when it is told to. */
void serve(struct protocol_header *header, int file);

#endif
