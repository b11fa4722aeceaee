/* A ps for which there is no memory: whichever allocation fails, it says so and ends, and nothing of it stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/process/signals.h"
#include "net/socket.h"
#include "ps/identity.h"
#include "ps/server.h"
#include "tests/no_memory.h"
#include "tests/worker/remote/story.h"

enum { LISTS = 8 /* of workers */, OTHERS = 4 /* at the least: the shard's, and the job's */ };

static struct config config;
static atomic_int asked_to_leave; /* by this signal */

int __wrap_signals_pending(void);
int __wrap_signals_pending(void)
{
    return atomic_load(&asked_to_leave);
}

void __wrap_notify_ready(const char *state);
void __wrap_notify_ready(const char *state)
{
    (void)state;
    atomic_store(&asked_to_leave, SIGTERM);
}

static void load(void)
{
    char host[64];
    struct error error;
    int fd;
    if (!socket_listen(&fd, "127.0.0.1", 0, &error)) {
        fail_msg("%s", error.text);
    }
    snprintf(host, sizeof host, "127.0.0.1:%d", socket_port(fd));
    close(fd);
    const struct config_setting settings[] = {{"ps_hosts", host}, {"worker_hosts", "b:1,c:1"}, {"bind", "127.0.0.1"},
                                              {"job_name", "ps"}, {"insecure", "true"},        {"layers", "3,4,2"},
                                              {"task_index", "0"}};
    if (!config_load(&config, NULL, settings, sizeof settings / sizeof *settings, &error)) {
        fail_msg("%s", error.text);
    }
}

/* Its status, with memory up to the allocation before `failing`; 0: with all. */
static int run(int failing, const char **log)
{
    atomic_store(&asked_to_leave, 0);
    listen_in();
    if (failing > 0) {
        no_memory_from(failing, 1);
    }
    const int status = server_run(&config, NULL);
    no_memory_end();
    *log = heard();
    return status;
}

/* Allocations to find out who it is, which come first. */
static int of_identity(void)
{
    struct identity identity;
    struct error error;
    listen_in();
    no_memory_from(INT_MAX - 1, 1);
    assert_true(identity_create(&identity, &config, (struct member){MEMBER_PS, 0}, &error));
    const int count = no_memory_end();
    identity_destroy(&identity);
    heard();
    return count;
}

/* The lowest that is free. */
static int free_descriptor(void)
{
    const int fd = dup(STDERR_FILENO);
    close(fd);
    return fd;
}

static void what_a_ps_has_no_memory_for_it_says(void **state)
{
    const char *log;
    int failures = 0;
    (void)state;
    load();
    assert_int_equal(run(0, &log), signals_exit_status(SIGTERM));
    const int before = of_identity(), fd = free_descriptor();
    while (run(before + failures + 1, &log) == 1) {
        assert_non_null(strstr(log, "ps 0: out of memory"));
        assert_int_equal(free_descriptor(), fd);
        failures++;
    }
    assert_true(failures >= LISTS + OTHERS);
    config_free(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_a_ps_has_no_memory_for_it_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
