// A grid of CUDA threads on one CPU thread: every CUDA thread is a fiber; blocks of a cooperative launch run
// interleaved.
//
// Fibers run until they wait for one another. In which order those that could go on do so is drawn from a seed, so that
// what depends on an order that CUDA does not promise shows. A barrier that some threads of a block have left for good,
// or a wait that nothing can end, aborts the process with a line that says where.
#ifndef TESTS_CUDA_FAKE_GRID_H
#define TESTS_CUDA_FAKE_GRID_H

#include <cstddef>
#include <cstdint>
#include <functional>

struct fake_dim {
    unsigned x, y, z;
};

// What a kernel sees of itself; of the fiber that runs.
struct fake_place {
    fake_dim thread, block, block_dim, grid_dim;
};

extern fake_place *fake_here;

void *fake_shared_memory();
void fake_yield();
int fake_barrier(int value); // returns whether any thread's value was not 0

// What every lane of a warp brings, at most fake_lane_bytes: [32][fake_lane_bytes]. Stays until the second exchange
// after.
constexpr size_t fake_lane_bytes = 64;
const char *fake_exchange(unsigned mask, const void *value, size_t bytes);

// Runs `kernel` once for each thread. threads: a multiple of 32.
void fake_run_grid(const char *name, unsigned blocks, unsigned threads, size_t shared_bytes, bool together,
                   const std::function<void()> &kernel);

// 0: in the order of their numbers.
void fake_set_seed(uint64_t seed);
uint64_t fake_random();

#endif
