#include "tests/cuda/fake/grid.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace
{

constexpr size_t stack_bytes = 128 << 10;
constexpr unsigned warp_size = 32;

struct warp {
    unsigned arrived = 0;
    unsigned generation = 0;
    char values[2][warp_size * fake_lane_bytes]; // of this exchange and the next: lanes may be one apart
};

struct block {
    unsigned threads = 0, waiting = 0, gone = 0, generation = 0;
    unsigned held = 0; // rounds that it skips
    int any[2] = {0, 0};
    std::unique_ptr<char[]> memory;
    char *shared = nullptr;
    std::vector<warp> warps;
};

enum class state { ready, at_barrier, at_exchange, gone };

#if defined(__x86_64__)
typedef void *context;
#else
typedef ucontext_t context;
#endif

struct fiber {
    fake_place place;
    struct block *block = nullptr;
    enum state state = state::ready;
    char *stack = nullptr;
    context saved;
};

const char *kernel_name = "";
const std::function<void()> *kernel_code = nullptr;
context scheduler;
fiber *running = nullptr;
std::vector<char *> spare_stacks;
uint64_t seed = 0;
uint64_t random_state = 0;

[[noreturn]] void fail(const char *what)
{
    const fake_place &at = running->place;
    fprintf(stderr, "fake CUDA: kernel %s, block %u, thread %u: %s\n", kernel_name, at.block.x, at.thread.x, what);
    abort();
}

// ---- switching ----

#if defined(__x86_64__)
extern "C" void fake_switch(void **save, void *load);
asm(R"(
.text
.type fake_switch, @function
fake_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size fake_switch, .-fake_switch
)");

void switch_to(context &save, context &load)
{
    fake_switch(&save, load);
}
#else
void switch_to(context &save, context &load)
{
    swapcontext(&save, &load);
}
#endif

void leave_to_scheduler()
{
    fiber *self = running;
    switch_to(self->saved, scheduler);
}

void fiber_main()
{
    (*kernel_code)();
    running->state = state::gone;
    running->block->gone++;
    if (running->block->waiting > 0) {
        fail("ends while others of its block wait at a barrier");
    }
    leave_to_scheduler();
    abort();
}

char *take_stack()
{
    if (!spare_stacks.empty()) {
        char *stack = spare_stacks.back();
        spare_stacks.pop_back();
        return stack;
    }
    void *memory =
        mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, 4096, PROT_NONE) != 0) {
        perror("fake CUDA: out of memory for a stack");
        abort();
    }
    return static_cast<char *>(memory);
}

void prepare(fiber &f)
{
    f.stack = take_stack(); // not poisoned: the fiber that had it before returned from everything but fiber_main
#if defined(__x86_64__)
    void **top = reinterpret_cast<void **>(f.stack + stack_bytes) - 1; // as after a call: 8 bytes off a multiple of 16
    *--top = reinterpret_cast<void *>(fiber_main);
    for (int i = 0; i < 6; i++) {
        *--top = nullptr;
    }
    f.saved = top;
#else
    getcontext(&f.saved);
    f.saved.uc_stack.ss_sp = f.stack + 4096;
    f.saved.uc_stack.ss_size = stack_bytes - 4096;
    makecontext(&f.saved, fiber_main, 0);
#endif
}

// ---- scheduling ----

void shuffle(std::vector<fiber *> &fibers)
{
    for (size_t i = fibers.size(); seed != 0 && i > 1; i--) {
        std::swap(fibers[i - 1], fibers[fake_random() % i]);
    }
}

// Blocks must not rely on running in step: now and then one stands still while others continue as far as they can.
void hold_blocks(std::vector<block> &blocks)
{
    for (block &b : blocks) {
        if (b.held > 0) {
            b.held--;
        } else if (seed != 0 && blocks.size() > 1 && fake_random() % 32 == 0) {
            b.held = static_cast<unsigned>(fake_random() % 128);
        }
    }
}

void run_fibers(std::vector<fiber> &fibers, std::vector<block> &blocks)
{
    std::vector<fiber *> ready;
    size_t left = fibers.size();
    unsigned idle = 0;
    while (left > 0) {
        bool held = false;
        ready.clear();
        hold_blocks(blocks);
        for (fiber &f : fibers) {
            if (f.state == state::ready && f.block->held == 0) {
                ready.push_back(&f);
            }
            held |= f.state == state::ready && f.block->held > 0;
        }
        if ((ready.empty() && !held) || idle > 100000) {
            for (fiber &f : fibers) {
                running = &f;
                if (f.state != state::gone) {
                    fail(f.state == state::at_barrier    ? "waits at a barrier for ever"
                         : f.state == state::at_exchange ? "waits in a warp's exchange for lanes that do not come"
                                                         : "spins for ever");
                }
            }
        }
        shuffle(ready);
        // If all that could run in a round only checked whether it may continue, nothing changed.
        size_t before = left;
        bool changed = false;
        for (fiber *f : ready) {
            running = f;
            fake_here = &f->place;
            switch_to(scheduler, f->saved);
            changed |= f->state != state::ready;
            left -= f->state == state::gone;
        }
        idle = changed || held || left != before ? 0 : idle + 1;
    }
}

void run_blocks(unsigned first, unsigned count, unsigned blocks, unsigned threads, size_t shared_bytes)
{
    std::vector<block> state(count);
    std::vector<fiber> fibers(size_t{count} * threads);
    for (unsigned b = 0; b < count; b++) {
        state[b].threads = threads;
        state[b].warps.resize(threads / warp_size);
        state[b].memory.reset(new char[shared_bytes + 16]);
        // At the end of the allocation, so that reads past it are caught.
        size_t off = -reinterpret_cast<uintptr_t>(state[b].memory.get()) % 16;
        state[b].shared = state[b].memory.get() + off;
        memset(state[b].shared, 0xff, shared_bytes);
#if defined(__SANITIZE_ADDRESS__)
        __asan_poison_memory_region(state[b].shared + (shared_bytes + 7) / 8 * 8, (16 - off) / 8 * 8);
#endif
        for (unsigned t = 0; t < threads; t++) {
            fiber &f = fibers[size_t{b} * threads + t];
            f.place = {{t, 0, 0}, {first + b, 0, 0}, {threads, 1, 1}, {blocks, 1, 1}};
            f.block = &state[b];
            prepare(f);
        }
    }
    run_fibers(fibers, state);
    for (fiber &f : fibers) {
        spare_stacks.push_back(f.stack);
    }
#if defined(__SANITIZE_ADDRESS__)
    for (block &b : state) {
        __asan_unpoison_memory_region(b.memory.get(), shared_bytes + 16);
    }
#endif
}

} // namespace

fake_place *fake_here;

void *fake_shared_memory()
{
    return running->block->shared;
}

void fake_yield()
{
    leave_to_scheduler();
}

int fake_barrier(int value)
{
    fiber *self = running;
    block &b = *self->block;
    unsigned generation = b.generation;
    if (b.gone > 0) {
        fail("reaches a barrier that others of its block will not come to");
    }
    b.any[generation % 2] |= value != 0;
    if (++b.waiting == b.threads) {
        b.waiting = 0;
        b.generation++;
        b.any[b.generation % 2] = 0;
        fiber *first = self - self->place.thread.x;
        for (unsigned t = 0; t < b.threads; t++) {
            first[t].state = state::ready;
        }
        leave_to_scheduler(); // so that the last to arrive gets no head start
    } else {
        self->state = state::at_barrier;
        leave_to_scheduler();
    }
    return b.any[generation % 2];
}

const char *fake_exchange(unsigned mask, const void *value, size_t bytes)
{
    fiber *self = running;
    unsigned lane = self->place.thread.x % warp_size;
    warp &w = self->block->warps[self->place.thread.x / warp_size];
    unsigned generation = w.generation;
    if (mask != 0xffffffffu) {
        fail("a warp's exchange among some lanes only is not made");
    }
    memcpy(w.values[generation % 2] + lane * fake_lane_bytes, value, bytes);
    if (++w.arrived == warp_size) {
        w.arrived = 0;
        w.generation++;
        fiber *first = self - lane;
        for (unsigned i = 0; i < warp_size; i++) {
            first[i].state = state::ready;
        }
    } else {
        self->state = state::at_exchange;
        leave_to_scheduler();
    }
    return w.values[generation % 2];
}

void fake_set_seed(uint64_t value)
{
    seed = random_state = value;
}

// splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
uint64_t fake_random()
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void fake_run_grid(const char *name, unsigned blocks, unsigned threads, size_t shared_bytes, bool together,
                   const std::function<void()> &kernel)
{
    kernel_name = name;
    kernel_code = &kernel;
#if defined(__x86_64__)
    unsigned mode = _mm_getcsr(); // as nvcc -ftz=true has it
    _mm_setcsr(mode | 0x8040);
#endif
    if (together) {
        run_blocks(0, blocks, blocks, threads, shared_bytes);
    } else {
        std::vector<unsigned> order(blocks);
        for (unsigned i = 0; i < blocks; i++) {
            order[i] = i;
        }
        for (unsigned i = blocks; seed != 0 && i > 1; i--) {
            std::swap(order[i - 1], order[fake_random() % i]);
        }
        for (unsigned b : order) {
            run_blocks(b, 1, blocks, threads, shared_bytes);
        }
    }
#if defined(__x86_64__)
    _mm_setcsr(mode);
#endif
}
