// The kernels by name, compiled from the real source.
#ifndef TESTS_CUDA_FAKE_KERNELS_H
#define TESTS_CUDA_FAKE_KERNELS_H

#include <cstddef>
#include <vector>

struct fake_kernel {
    const char *name;
    void (*call)(void **arguments); // in a CUDA thread; arguments as cuLaunchKernel takes them
    std::vector<size_t> sizes;      // of the arguments
    size_t shared_limit = 48 << 10; // of dynamic shared memory, unless it is raised
};

std::vector<fake_kernel> &fake_kernels();

#endif
