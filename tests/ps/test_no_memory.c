/* A member for whose parts there is no memory: each says so, and nothing of it stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "base/log.h"
#include "ps/status.h"
#include "ps/identity.h"
#include "ps/shard.h"
#include "tests/no_memory.h"

static struct config config;
static struct identity identity;
static struct error error, why; /* why: of the last failure */

static bool no_threads;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context)
{
    return no_threads ? EAGAIN : __real_pthread_create(thread, attributes, run, context);
}

static int enter(void **state)
{
    const struct config_setting settings[] = {{"ps_hosts", "127.0.0.1:1,127.0.0.1:2"},
                                              {"worker_hosts", "127.0.0.1:3,127.0.0.1:4"},
                                              {"layers", "3,4,2"},
                                              {"insecure", "true"},
                                              {"job_name", "worker"},
                                              {"task_index", "0"}};
    (void)state;
    log_setup(LOG_TEXT, LOG_ERROR); /* nothing of plain text */
    return !config_load(&config, NULL, settings, sizeof settings / sizeof *settings, &error) ||
           !identity_create(&identity, &config, (struct member){MEMBER_WORKER, 0}, &error);
}

static int leave(void **state)
{
    (void)state;
    identity_destroy(&identity);
    config_free(&config);
    return 0;
}

/* Creates it, and destroys it if that succeeds. */
typedef bool attempt(void);

/* The lowest that is free. */
static int free_descriptor(void)
{
    const int fd = dup(STDERR_FILENO);
    close(fd);
    return fd;
}

/*
 * How often an allocation can fail, one after another; each time it says what there was no memory for, and leaves open
 * what was open before, and nothing else.
 */
static int count_failures(attempt *create)
{
    const int fd = free_descriptor();
    int failures = 0;
    for (bool created = false; !created; failures += !created) {
        error.text[0] = '\0';
        no_memory_from(failures + 1, 1);
        created = create();
        no_memory_end();
        assert_int_equal(free_descriptor(), fd);
        if (!created) {
            why = error;
            assert_non_null(strstr(why.text, "out of memory"));
        }
    }
    return failures;
}

static bool create_identity(void)
{
    struct identity one;
    const bool created = identity_create(&one, &config, (struct member){MEMBER_WORKER, 0}, &error);
    identity_destroy(&one);
    return created;
}

static bool change_identity(void)
{
    const uint64_t before = identity_hello(&identity)->fleet_version;
    const bool changed = identity_change(&identity, before + 1, "d16e57", "{}", &error);
    assert_int_equal(identity_hello(&identity)->fleet_version, before + changed);
    return changed;
}

static bool create_query(void)
{
    struct status_query *query = NULL;
    const bool created = status_query_create(&query, &config, &error);
    status_query_destroy(query);
    return created;
}

static bool create_query_for(void)
{
    struct status_query *query = NULL;
    const bool created = status_query_create_for(&query, &config, &identity, &error);
    status_query_destroy(query);
    return created;
}

static bool create_watch(void)
{
    struct fleet_watch *watch = NULL;
    const bool created = fleet_watch_create(&watch, &config, &identity, &error);
    fleet_watch_destroy(watch);
    return created;
}

static bool create_shard(void)
{
    struct model model;
    struct shard *shard = NULL;
    model_layout(&model, &config.model);
    const bool created = shard_create(&shard, &model, &config, 0, &error);
    shard_destroy(shard);
    return created;
}

static bool create_store(void)
{
    struct model model;
    struct store store;
    model_layout(&model, &config.model);
    const bool created = store_create(&store, &model, &config.train, &error);
    store_destroy(&store);
    return created;
}

static void who_a_process_is(void **state)
{
    (void)state;
    assert_true(count_failures(create_identity) >= 1);
    assert_int_equal(count_failures(change_identity), 1);
}

static void who_asks_for_the_status_of_members(void **state)
{
    (void)state;
    const int as_operator = count_failures(create_query), as_member = count_failures(create_query_for);
    assert_true(as_member >= 4);
    assert_true(as_operator > as_member);
    assert_true(count_failures(create_watch) >= as_member + 2);
    no_threads = true;
    assert_false(create_watch());
    no_threads = false;
    assert_string_equal(error.text, "can't start a thread to watch the fleet");
}

static void a_part_of_the_model(void **state)
{
    (void)state;
    assert_int_equal(count_failures(create_shard), 3);
    assert_non_null(strstr(why.text, "of parameters, optimizer slots, snapshot and 2 workers' pushes: use more ps"));
    assert_int_equal(count_failures(create_store), 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(who_a_process_is),
        TEST(who_asks_for_the_status_of_members),
        TEST(a_part_of_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
