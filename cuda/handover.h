/*
 * Hand-over of work between two processes through words in shared memory.
 *
 * A hand-over between two CPUs takes a tenth of a microsecond if both spin, and about five if they sleep. But spinning
 * on the CPU that the peer needs only delays it: so each side publishes which CPU it runs on, and spins only if the
 * peer was on another one.
 */
#ifndef CUDA_HANDOVER_H
#define CUDA_HANDOVER_H

#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "cuda/protocol.h"

static inline int64_t handover_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Sets a word and wakes its sleeper. A thread that sees the word also sees all earlier writes. */
static inline void handover_set(struct protocol_word *word, uint32_t value)
{
    atomic_store(&word->value, value); /* sequentially consistent: the sleeper accesses the two in the opposite order */
    if (atomic_load(&word->sleepers)) {
        syscall(SYS_futex, &word->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
}

/* Publishes the CPU of this thread; true if the peer last ran on another one. */
static inline bool handover_may_spin(_Atomic int32_t *own_cpu, const _Atomic int32_t *peer_cpu)
{
    int32_t here = sched_getcpu();
    atomic_store_explicit(own_cpu, here, memory_order_relaxed);
    int32_t there = atomic_load_explicit(peer_cpu, memory_order_relaxed);
    return here >= 0 && there >= 0 && here != there;
}

/* Spins until the word differs from `seen`, up to a time limit; true if it changed. */
static inline bool handover_spin(const struct protocol_word *word, uint32_t seen, int64_t spin_ns)
{
    enum { LOOKS = 64 }; /* between two clock reads */
    int64_t until = handover_now_ns() + spin_ns;
    do {
        for (int i = 0; i < LOOKS; i++) {
            if (atomic_load_explicit(&word->value, memory_order_acquire) != seen) {
                return true;
            }
            cpu_relax();
        }
    } while (handover_now_ns() < until);
    return false;
}

/* Sleeps until the word differs from `seen`, up to a time limit; true if it changed. */
static inline bool handover_sleep(struct protocol_word *word, uint32_t seen, int64_t sleep_ns)
{
    struct timespec most = {.tv_sec = sleep_ns / 1000000000, .tv_nsec = sleep_ns % 1000000000};
    atomic_store(&word->sleepers, 1);
    if (atomic_load(&word->value) == seen) {
        syscall(SYS_futex, &word->value, FUTEX_WAIT, seen, &most, NULL, 0);
    }
    atomic_store(&word->sleepers, 0);
    return atomic_load(&word->value) != seen;
}

#endif
