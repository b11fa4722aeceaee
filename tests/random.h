/* Random numbers for property tests: the seed is printed, and TEST_SEED=n repeats a run. */
#ifndef TESTS_RANDOM_H
#define TESTS_RANDOM_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct test_random {
    uint64_t state;
};

static inline struct test_random test_random_begin(const char *test)
{
    const char *given = getenv("TEST_SEED");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)now.tv_sec ^ (uint64_t)now.tv_nsec;
    fprintf(stderr, "%s: TEST_SEED=%llu\n", test, (unsigned long long)seed);
    return (struct test_random){seed};
}

/* SplitMix64 (Steele, Lea, Flood 2014). */
static inline uint64_t test_random_next(struct test_random *random)
{
    uint64_t z = random->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* 0..bound-1 */
static inline int test_random_below(struct test_random *random, int bound)
{
    return (int)(test_random_next(random) % (uint64_t)bound);
}

/* In [-1, 1). */
static inline float test_random_float(struct test_random *random)
{
    return (float)((double)(test_random_next(random) >> 40) * 0x1p-23 - 1.0);
}

#endif
