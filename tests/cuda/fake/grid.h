// A grid of CUDA threads on one CPU thread: every CUDA thread is a fiber; blocks of a cooperative launch run
// interleaved.
//
// Fibers run until they wait for one another. A seed decides the order of those that can run, so that dependence on
// an order that CUDA does not promise shows. A barrier that some threads of a block have left for good, or a wait
// that nothing can end, aborts the process with a line that says where.
#ifndef TESTS_CUDA_FAKE_GRID_H
#define TESTS_CUDA_FAKE_GRID_H

#include <cstddef>
#include <cstdint>
#include <functional>

struct fake_dim {
    unsigned x, y, z;
};

// What a kernel sees of itself; for the running fiber.
struct fake_place {
    fake_dim thread, block, block_dim, grid_dim;
};

extern fake_place *fake_here;

void *fake_shared_memory();
void fake_yield();
int fake_barrier(int value); // returns whether any thread's value was not 0

// Each lane of a warp contributes a value of at most fake_lane_bytes: [32][fake_lane_bytes]. Valid until the second
// exchange after it.
constexpr size_t fake_lane_bytes = 64;
const char *fake_exchange(unsigned mask, const void *value, size_t bytes);

// Runs `kernel` once for each thread. threads: a multiple of 32.
void fake_run_grid(const char *name, unsigned blocks, unsigned threads, size_t shared_bytes, bool together,
                   const std::function<void()> &kernel);

// 0: in numerical order
void fake_set_seed(uint64_t seed);
uint64_t fake_random();

#endif
