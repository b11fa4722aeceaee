/* What the leader of rollouts keeps for its next process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "ps/rollout/record.h"
#include "tests/random.h"

static struct versions versions;
static char path[VERSIONS_PATH];
static struct error error;

static int enter(void **state)
{
    (void)state;
    snprintf(versions.folder, sizeof versions.folder, "/tmp/record.XXXXXX");
    return mkdtemp(versions.folder) == NULL || !file_join(path, sizeof path, versions.folder, "rollout", &error);
}

static int leave(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(versions.folder);
}

static void put(const char *text, size_t size)
{
    const struct file_part part = {text, size};
    assert_true(file_write_atomic(path, &part, 1, &error));
}

static void assert_same(const struct record *record)
{
    struct record read;
    bool there;
    if (!record_read(&versions, &there, &read, &error)) {
        fail_msg("%s", error.text);
    }
    assert_true(there);
    assert_int_equal(read.state, record->state);
    assert_int_equal(read.plan.target, record->plan.target);
    assert_int_equal(read.plan.fallback, record->plan.fallback);
    assert_int_equal(read.plan.kind, record->plan.kind);
    assert_int_equal(read.plan.waited, record->plan.waited);
    assert_true(read.plan.healthy_s == record->plan.healthy_s &&
                read.loss_before == record->loss_before); /* NOLINT: bits */
    assert_int_equal(read.highest, record->highest);
    assert_string_equal(read.reason, record->reason);
    assert_memory_equal(&read.plan.absent, &record->plan.absent, sizeof read.plan.absent);
}

static void assert_kept(const struct record *record)
{
    assert_true(record_store(&versions, record, &error));
    assert_same(record);
}

static void it_is_read_as_it_was_stored(void **state)
{
    (void)state;
    bool there = true;
    struct record record = {
        .state = ROLLOUT_SWITCHING,
        .plan = {.target = 5, .fallback = 4, .kind = ROLLOUT_JOB, .healthy_s = 10, .absent = {{4, 128}}},
        .loss_before = 0.3,
        .highest = 6};
    assert_true(record_read(&versions, &there, &record, &error));
    assert_false(there);
    assert_kept(&record);
    record.plan.waited = true;
    assert_kept(&record);
    snprintf(record.reason, sizeof record.reason, "worker 3: it goes on, without 01, of a job that waited");
    assert_kept(&record);
    record.plan.absent = (struct rollout_absent){{0}};
    assert_kept(&record);
}

/* As much as there can be, in as many characters as they take. */
static void all_may_be_off(void **state)
{
    (void)state;
    struct record record = {.state = ROLLOUT_GOING_BACK,
                            .plan = {.target = UINT64_MAX,
                                     .fallback = UINT64_MAX - 1,
                                     .kind = ROLLOUT_JOB,
                                     .healthy_s = 86399.000000000015,
                                     .waited = true},
                            .loss_before = -1.2345678901234567e-300,
                            .highest = UINT64_MAX};
    memset(record.plan.absent.bits, 0xff, sizeof record.plan.absent.bits);
    record.plan.absent.bits[0] = 0xfe;
    memset(record.reason, 'x', sizeof record.reason - 1);
    assert_kept(&record);
    struct test_random random = test_random_begin("all_may_be_off");
    for (int run = 0; run < 50; run++) {
        const int most = 1 + test_random_below(&random, ROLLOUT_MAX_LISTED / 8);
        record.plan.absent = (struct rollout_absent){{0}};
        for (int i = 1; i < most; i++) {
            record.plan.absent.bits[i] = (uint8_t)test_random_below(&random, 256);
        }
        record.reason[test_random_below(&random, 511)] = (char)('a' + test_random_below(&random, 26));
        assert_kept(&record);
    }
}

/* Before, it was not told who was off. */
static void the_version_before_is_read(void **state)
{
    (void)state;
    static const char text[] = "5 4 7 2 10 0.25 going back, of a job that waited\nps 1: can't\n",
                      plain[] = "5 4 5 1 0.5 0.25 watching\n\n";
    put(text, sizeof text - 1);
    assert_same(
        &(struct record){.state = ROLLOUT_GOING_BACK,
                         .plan = {.target = 5, .fallback = 4, .kind = ROLLOUT_JOB, .healthy_s = 10, .waited = true},
                         .loss_before = 0.25,
                         .highest = 7,
                         .reason = "ps 1: can't"});
    put(plain, sizeof plain - 1);
    assert_same(&(struct record){.state = ROLLOUT_WATCHING,
                                 .plan = {.target = 5, .fallback = 4, .kind = ROLLOUT_LOCAL, .healthy_s = 0.5},
                                 .loss_before = 0.25,
                                 .highest = 5});
}

static void a_damaged_one_is_refused_by_name(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "\n",
        "5 4 5 2 10 0.25 switching", /* torn */
        "5 4 5 2 10 switching\n\n",
        "5 4 5 3 10 0.25 switching\n\n",
        "5 4 5 2 10 0.25 sailing\n\n",
        "5 4 5 2 10 0.25 switching, without \n\n",
        "5 4 5 2 10 0.25 switching, without 4\n\n",
        "5 4 5 2 10 0.25 switching, without 0g\n\n",
        "5 4 5 2 10 0.25 switching, without 04 \n\n",
        "5 4 5 2 10 0.25 switching, without 01\n\n", /* the chief */
        "5 4 5 2 10 0.25 switching, without 04, of a job that waited\n\n",
    };
    struct record record;
    bool there;
    char text[2048], whole[VERSIONS_PATH + 80];
    snprintf(whole, sizeof whole, "%s: is damaged; remove it if no rollout was under way", path);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put(texts[i], strlen(texts[i]));
        assert_false(record_read(&versions, &there, &record, &error));
        assert_string_equal(error.text, whole);
    }
    int size =
        snprintf(text, sizeof text, "5 4 5 2 10 0.25 switching, without 04%0256d\n\n", 0); /* of one worker too many */
    put(text, (size_t)size);
    assert_false(record_read(&versions, &there, &record, &error));
    assert_string_equal(error.text, whole);
    memset(text, 'x', sizeof text);
    put(text, sizeof text);
    assert_false(record_read(&versions, &there, &record, &error));
    assert_non_null(strstr(error.text, path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_is_read_as_it_was_stored, enter, leave),
        cmocka_unit_test_setup_teardown(all_may_be_off, enter, leave),
        cmocka_unit_test_setup_teardown(the_version_before_is_read, enter, leave),
        cmocka_unit_test_setup_teardown(a_damaged_one_is_refused_by_name, enter, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
