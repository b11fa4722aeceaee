/* Large memory: where it lies, what it contains, and what is refused. */
#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const size_t mib = (size_t)1 << 20;

/* As without the sanitizer: NULL for what no machine has. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static void aligned_to_cache_lines(void **state)
{
    (void)state;
    const size_t sizes[] = {1, 63, 64, 65, 4096, 8 * mib - 1, 8 * mib, 9 * mib + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint8_t *memory = memory_aligned(sizes[i]);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 64, 0);
        memset(memory, 0xA5, sizes[i]);
        free(memory);
    }
}

/* Where huge pages begin, between them, and after the last one: zeros, and writable. */
static void zeroed_to_the_last_byte(void **state)
{
    (void)state;
    const size_t sizes[] = {1, 4097, 8 * mib - 1, 8 * mib, 9 * mib + 13};
    for (int round = 0; round < 2; round++) { /* the second time on used memory */
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            uint8_t *memory = memory_zeroed(sizes[i], 1);
            assert_non_null(memory);
            assert_true(memory[0] == 0 && memcmp(memory, memory + 1, sizes[i] - 1) == 0);
            memset(memory, 0xA5, sizes[i]);
            free(memory);
        }
    }
}

static void what_no_machine_has_is_refused(void **state)
{
    (void)state;
    volatile size_t most = SIZE_MAX; /* volatile, or compilers would warn */
    assert_null(memory_aligned(most));
}

/* Of a child that asks for it: how it ends, and what it says. */
static void expect_end(void *(*ask)(size_t most), size_t most, const char *said)
{
    static char text[1 << 14];
    size_t size = 0;
    int status, ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        free(ask(most));
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], text + size, sizeof text - 1 - size)) > 0; size += (size_t)got) {
    }
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    text[size] = '\0';
    assert_true(size >= strlen(said));
    assert_string_equal(text + size - strlen(said), said); /* the sanitizer may have said more before */
}

static void *ask_alloc(size_t most)
{
    return must_alloc(most, "the model: make it smaller");
}

static void *ask_product(size_t most)
{
    return must_zero(most / 2, 4, "rows");
}

static void *ask_growth(size_t most)
{
    return must_grow(NULL, most / 2, 4, "rows");
}

static void *ask_aligned(size_t most)
{
    return must_align(most, "activations");
}

static void *ask_library(size_t most)
{
    (void)most;
    return must_have(NULL, 123, "a config");
}

/* The process ends with its label, whichever call it was. */
static void what_must_be_there_ends_the_process(void **state)
{
    (void)state;
    volatile size_t most = SIZE_MAX / 2; /* volatile, or compilers would warn */
    expect_end(ask_alloc, most, "trainer: error: out of memory: 8796093022208.0 MiB for the model: make it smaller\n");
    expect_end(ask_product, most, "trainer: error: out of memory: 17592186044416.0 MiB for rows\n");
    expect_end(ask_growth, most, "trainer: error: out of memory: 17592186044416.0 MiB for rows\n");
    expect_end(ask_aligned, most, "trainer: error: out of memory: 8796093022208.0 MiB for activations\n");
    expect_end(ask_library, most, "trainer: error: out of memory: 123 bytes for a config\n");
}

static void nothing_is_memory_too(void **state)
{
    (void)state;
    void *const memory[] = {must_alloc(0, "nothing"), must_zero(0, 8, "nothing"), must_align(0, "nothing"),
                            must_grow(NULL, 0, 8, "nothing"), must_copy("")};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
        assert_non_null(memory[i]);
        free(memory[i]);
    }
}

static void a_process_knows_what_it_may_take(void **state)
{
    (void)state;
    uint64_t bytes = 0;
    assert_true(memory_for_this_process(&bytes));
    assert_true(bytes > mib);
}

static void more_than_there_is_is_not_free(void **state)
{
    (void)state;
    assert_true(memory_is_free(mib, mib));
    assert_false(memory_is_free(SIZE_MAX / 4, 0));
    assert_false(memory_is_free(mib, SIZE_MAX / 4));
    assert_false(memory_is_free(SIZE_MAX, SIZE_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(aligned_to_cache_lines),         cmocka_unit_test(zeroed_to_the_last_byte),
        cmocka_unit_test(what_no_machine_has_is_refused), cmocka_unit_test(what_must_be_there_ends_the_process),
        cmocka_unit_test(nothing_is_memory_too),          cmocka_unit_test(a_process_knows_what_it_may_take),
        cmocka_unit_test(more_than_there_is_is_not_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
