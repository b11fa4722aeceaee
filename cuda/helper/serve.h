/* Executes the client's commands one by one, until it sends QUIT or dies. */
#ifndef CUDA_HELPER_SERVE_H
#define CUDA_HELPER_SERVE_H

#include "cuda/protocol.h"

/* header: mapped from the start of `file`; commands may ask to map more of it. */
void serve(struct protocol_header *header, int file);

#endif
