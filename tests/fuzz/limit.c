/*
 * No input may keep a processor busy for long, nor take much memory: that would be a denial of service. libFuzzer's own
 * -timeout measures elapsed time, so that a busy machine would make a target fail; this measures the target's processor
 * time. Memory is counted by the sanitizer's hooks: the most that an input's allocations held at once, against what its
 * target promises (FUZZ_MEMORY). Linked with --wrap=LLVMFuzzerTestOneInput.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

enum { MOST_S = 5 };

int __real_LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int __wrap_LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));
size_t __sanitizer_get_allocated_size(const volatile void *memory);

static atomic_llong held, most_held; /* bytes since the input began */
static atomic_bool counts;

static void on_malloc(const volatile void *memory, size_t size)
{
    if (atomic_load(&counts)) {
        const long long now = atomic_fetch_add(&held, (long long)size) + (long long)size;
        if (now > atomic_load(&most_held)) {
            atomic_store(&most_held, now);
        }
    }
}

static void on_free(const volatile void *memory)
{
    if (memory && atomic_load(&counts)) {
        atomic_fetch_sub(&held, (long long)__sanitizer_get_allocated_size(memory));
    }
}

/* libFuzzer keeps the input of a target that aborts. */
static void give_up(int number)
{
    static const char text[] = "fuzz: an input takes more than 5 s of processor time\n";
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    abort();
}

static void check_memory(size_t size)
{
    if (getenv("FUZZ_SHOW_MEMORY")) { /* to find out what to promise */
        fprintf(stderr, "memory %zu %lld\n", size, (long long)atomic_load(&most_held));
    }
    const long long promised = (long long)fuzz_memory.times * (long long)size + (long long)fuzz_memory.constant;
    if (atomic_load(&most_held) > promised) {
        fprintf(stderr,
                "fuzz: an input of %zu bytes takes %lld bytes; at most %zu times its size and %zu are promised\n", size,
                (long long)atomic_load(&most_held), fuzz_memory.times, fuzz_memory.constant);
        abort();
    }
}

int __wrap_LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static bool is_installed;
    const struct itimerval most = {.it_value = {.tv_sec = MOST_S}}, none = {.it_value = {.tv_sec = 0}};
    const struct sigaction at_the_limit = {.sa_handler = give_up};
    if (!is_installed) {
        is_installed = true;
        __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
    }
    sigaction(SIGPROF, &at_the_limit, NULL);
    setitimer(ITIMER_PROF, &most, NULL);
    atomic_store(&held, 0);
    atomic_store(&most_held, 0);
    atomic_store(&counts, true);
    const int result = __real_LLVMFuzzerTestOneInput(bytes, size);
    atomic_store(&counts, false);
    setitimer(ITIMER_PROF, &none, NULL);
    check_memory(size);
    return result;
}
