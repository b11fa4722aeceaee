/* Large memory: where it lies, what it contains, and what is refused. */
#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const size_t mib = (size_t)1 << 20;

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

static void a_process_knows_what_it_may_take(void **state)
{
    (void)state;
    uint64_t bytes = 0;
    assert_true(memory_for_this_process(&bytes));
    assert_true(bytes > mib);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(aligned_to_cache_lines),
        cmocka_unit_test(zeroed_to_the_last_byte),
        cmocka_unit_test(what_no_machine_has_is_refused),
        cmocka_unit_test(a_process_knows_what_it_may_take),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
