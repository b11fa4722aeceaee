/* What tests ask of the stand-in of a device. */
#ifndef TESTS_CUDA_STANDIN_H
#define TESTS_CUDA_STANDIN_H

enum { STANDIN_FLOATS = 4096, STANDIN_FAULT_STEP = 100 };

/* Seeds: what happens at STANDIN_FAULT_STEP. */
enum { STANDIN_WELL, STANDIN_HANGS, STANDIN_CRASHES, STANDIN_LOSES, STANDIN_FAILS, STANDIN_LEAVES };

#endif
