/* Memory, and the limits of it. */
#include "base/memory.h"
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- Memory --- */

/* Large memory: where it lies, what it contains, and what is refused. */

static const size_t mib = (size_t)1 << 20;

/* As without the sanitizer: NULL for what no machine has. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

TEST(aligned_to_cache_lines)
{
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
TEST(zeroed_to_the_last_byte)
{
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

TEST(what_no_machine_has_is_refused)
{
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
    return must_have(NULL, 123, "a config");
}

/* The process ends with its label, whichever call it was. */
TEST(what_must_be_there_ends_the_process)
{
    volatile size_t most = SIZE_MAX / 2; /* volatile, or compilers would warn */
    expect_end(ask_alloc, most, "trainer: error: out of memory: 8796093022208.0 MiB for the model: make it smaller\n");
    expect_end(ask_product, most, "trainer: error: out of memory: 17592186044416.0 MiB for rows\n");
    expect_end(ask_growth, most, "trainer: error: out of memory: 17592186044416.0 MiB for rows\n");
    expect_end(ask_aligned, most, "trainer: error: out of memory: 8796093022208.0 MiB for activations\n");
    expect_end(ask_library, most, "trainer: error: out of memory: 123 bytes for a config\n");
}

TEST(nothing_is_memory_too)
{
    void *const memory[] = {must_alloc(0, "nothing"), must_zero(0, 8, "nothing"), must_align(0, "nothing"),
                            must_grow(NULL, 0, 8, "nothing"), must_copy("")};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
        assert_non_null(memory[i]);
        free(memory[i]);
    }
}

TEST(a_process_knows_what_it_may_take)
{
    uint64_t bytes = 0;
    assert_true(memory_for_this_process(&bytes));
    assert_true(bytes > mib);
}

TEST(more_than_there_is_is_not_free)
{
    assert_true(memory_is_free(mib, mib));
    assert_false(memory_is_free(SIZE_MAX / 4, 0));
    assert_false(memory_is_free(mib, SIZE_MAX / 4));
    assert_false(memory_is_free(SIZE_MAX, SIZE_MAX));
}

/* --- Limits of a container --- */

/* The limits of a process's own cgroup and of those above it, in folders made like the kernel's. */

static char folder[64], membership[128];

static void run(const char *format, ...)
{
    char command[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c) */
}

static int enter(void **state)
{
    strcpy(folder, "/tmp/test_cgroup.XXXXXX");
    if (!mkdtemp(folder)) {
        return -1;
    }
    snprintf(membership, sizeof membership, "%s/membership", folder);
    return 0;
}

static int leave(void **state)
{
    run("rm -rf %s", folder);
    return 0;
}

static void belongs(const char *lines)
{
    run("printf '%s' >%s", lines, membership);
}

static void put(const char *path, const char *text)
{
    run("mkdir -p $(dirname %s/fs/%s) && echo '%s' >%s/fs/%s", folder, path, text, folder, path);
}

static void limits_are(uint64_t memory_bytes, int cpus)
{
    char mounted[128];
    snprintf(mounted, sizeof mounted, "%s/fs", folder);
    const struct cgroup_limits limits = cgroup_read(membership, mounted);
    assert_int_equal(limits.memory_bytes, memory_bytes);
    assert_int_equal(limits.cpus, cpus);
}

TEST_WITH(of_a_unit, enter, leave)
{
    belongs("0::/system.slice/trainer.service\n");
    put("cgroup.controllers", "cpu memory");
    put("system.slice/memory.max", "max");
    put("system.slice/cpu.max", "max 100000");
    put("system.slice/trainer.service/memory.max", "536870912");
    put("system.slice/trainer.service/memory.high", "max");
    put("system.slice/trainer.service/cpu.max", "250000 100000");
    limits_are(536870912, 2); /* rounded down */
    put("system.slice/trainer.service/memory.high", "268435456");
    limits_are(268435456, 2);
    put("system.slice/trainer.service/cpu.max", "50000 100000");
    limits_are(268435456, 1);
}

TEST_WITH(of_those_above, enter, leave)
{
    belongs("0::/a/b/c\n");
    put("a/memory.max", "1000");
    put("a/b/memory.max", "2000");
    put("a/b/c/memory.max", "3000");
    put("a/b/cpu.max", "300000 100000");
    put("a/b/c/cpu.max", "max 100000");
    limits_are(1000, 3);
}

TEST_WITH(of_version_1, enter, leave)
{
    belongs("5:cpu,cpuacct:/system.slice/x.service\n4:memory:/system.slice/x.service\n0::/\n");
    put("memory/memory.limit_in_bytes", "9223372036854771712");
    put("memory/system.slice/x.service/memory.limit_in_bytes", "41943040");
    put("cpu,cpuacct/cpu.cfs_quota_us", "-1");
    put("cpu,cpuacct/cpu.cfs_period_us", "100000");
    put("cpu,cpuacct/system.slice/x.service/cpu.cfs_quota_us", "150000");
    put("cpu,cpuacct/system.slice/x.service/cpu.cfs_period_us", "100000");
    limits_are(41943040, 1);
}

/* A container without a cgroup namespace: the host's path does not exist here, and the mount's root is its own. */
TEST_WITH(of_a_container, enter, leave)
{
    belongs("0::/docker/0123\n");
    put("memory.max", "1048576");
    put("cpu.max", "400000 100000");
    limits_are(1048576, 4);
    belongs("0::/../../elsewhere\n");
    limits_are(1048576, 4);
}

TEST_WITH(none, enter, leave)
{
    limits_are(UINT64_MAX, 0);
    belongs("what is this\n0::\n");
    put("memory.max", "garbage");
    put("cpu.max", "garbage");
    limits_are(UINT64_MAX, 0);
}

int main(void)
{
    return check_run(NULL, NULL);
}
