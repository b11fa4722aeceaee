/* Each way of starting a program from memory, and the error if none works. */
#include "cuda/launch.h"
#include "tests/check.h"

#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/cuda/program.h"

static uint8_t *program;
static size_t program_size;

static struct launch_program of(int fd)
{
    return (struct launch_program){.name = "launched", .bytes = program, .size = program_size, .fd = fd};
}

/* The program's report, within 10 s. */
static void hear(int fd, char *text, size_t size)
{
    ssize_t got = read(fd, text, size - 1);
    text[got > 0 ? got : 0] = '\0';
}

static void starts(enum launch_way way)
{
    int ends[2];
    pid_t pid;
    char text[256], wanted[128], how[96];
    struct error error = {.text = ""};
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    int kept_open = dup(ends[0]); /* without CLOEXEC, as a careless parent's might be */
    struct launch_program what = of(ends[1]);
    if (!launch_by(way, &pid, &what, &error)) {
        fail_msg("%s", error.text);
    }
    close(ends[1]);
    hear(ends[0], text, sizeof text);
    /* 4 and up would be ours; the loader keeps none either */
    snprintf(wanted, sizeof wanted, "parent %d files 0 1 2 3", (int)getpid());
    assert_memory_equal(text, wanted, strlen(wanted));
    assert_non_null(strstr(text, "deaf"));
    assert_false(launch_ended(pid, how, sizeof how));
    kill(pid, SIGTERM);
    launch_kill(pid);
    assert_int_equal(waitpid(pid, NULL, WNOHANG), -1);
    close(ends[0]);
    close(kept_open);
}

TEST(starts_from_memory)
{
    starts(LAUNCH_MEMORY);
}

TEST(starts_by_the_loader)
{
    starts(LAUNCH_LOADER);
}

TEST(starts_from_a_file)
{
    starts(LAUNCH_FILE);
}

TEST(tells_how_it_ended)
{
    pid_t pid;
    char how[96];
    struct error error;
    int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
    struct launch_program what = of(nothing);
    setenv("LAUNCHED_ENDS", "1", 1);
    assert_true(launch(&pid, &what, &error));
    unsetenv("LAUNCHED_ENDS");
    double begin_s = clock_monotonic_s();
    while (!launch_ended(pid, how, sizeof how)) {
        assert_true(clock_monotonic_s() - begin_s < 60);
        usleep(1000);
    }
    assert_string_equal(how, "ended with status 42");
    close(nothing);
}

TEST(dies_with_its_parent)
{
    int ends[2];
    char text[256] = "";
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t parent = fork();
    if (parent == 0) {
        pid_t pid;
        struct error error;
        struct launch_program what = of(ends[1]);
        _exit(launch(&pid, &what, &error) ? 0 : 1);
    }
    int status;
    waitpid(parent, &status, 0);
    assert_int_equal(status, 0);
    close(ends[1]);
    /* The pipe's other end closes when the program dies; if it lived on, this would wait for ever. */
    while (read(ends[0], text, sizeof text) > 0) {
    }
    close(ends[0]);
}

/* The same program requesting a loader that is missing, as on a system with another libc. */
TEST(a_missing_libc_is_one_error_message)
{
    pid_t pid;
    struct error error;
    uint8_t *other = malloc(program_size);
    assert_non_null(other);
    memcpy(other, program, program_size);
    const Elf64_Ehdr *file = (const void *)other;
    for (int i = 0; i < file->e_phnum; i++) {
        const Elf64_Phdr *part = (const void *)(other + file->e_phoff + (size_t)i * sizeof *part);
        if (part->p_type == PT_INTERP) {
            other[part->p_offset + 1] = 'X';
        }
    }
    struct launch_program what = {.name = "launched", .bytes = other, .size = program_size, .fd = 2};
    assert_false(launch(&pid, &what, &error));
    assert_non_null(strstr(error.text, "this system has no glibc (/X"));
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    free(other);
}

TEST(what_is_no_program_is_one_error_message)
{
    pid_t pid;
    struct error error;
    struct launch_program what = {.name = "nonsense", .bytes = "nonsense", .size = 8, .fd = 2};
    assert_false(launch(&pid, &what, &error));
    assert_string_equal(error.text, "nonsense is not a program for this system");
    /* A header that points past the end. */
    uint8_t bytes[sizeof(Elf64_Ehdr)];
    memcpy(bytes, program, sizeof bytes);
    what = (struct launch_program){.name = "cut", .bytes = bytes, .size = sizeof bytes, .fd = 2};
    assert_false(launch(&pid, &what, &error));
    assert_string_equal(error.text, "cut is not a program for this system");
}

int main(void)
{
    alarm(600); /* a program that lives on must not hang this test */
    program = program_read("launched", &program_size);
    if (!program) {
        return 1;
    }
    int failed = check_run(NULL, NULL);
    free(program);
    return failed;
}
