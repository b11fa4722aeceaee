/* A process that dies in a new version comes back on the fallback, whoever starts it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/config.h"
#include "base/process/restart.h"
#include "base/config/versions.h"
#include "base/file.h"
#include "tests/check.h"

static char folder[64], config_path[80];

static int make_folder(void **state)
{
    strcpy(folder, "/tmp/probation-XXXXXX");
    if (!mkdtemp(folder)) {
        return 1;
    }
    snprintf(config_path, sizeof config_path, "%s/config.json", folder);
    return 0;
}

static int remove_folder(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static uint64_t current(void)
{
    bool there;
    uint64_t number;
    struct error error;
    assert_true(versions_current(config_path, &there, &number, &error));
    assert_true(there);
    return number;
}

static void begin_version_2(void)
{
    struct versions versions;
    struct error error;
    assert_true(versions_open(&versions, config_path, &error));
    assert_true(versions_add(&versions, 1, "{}", 2, &error));
    assert_true(versions_add(&versions, 2, "[]", 2, &error));
    assert_true(probation_begin(config_path, 2, 1, &error));
    assert_true(versions_switch(&versions, 2, &error));
}

TEST_WITH(two_deaths_are_enough, make_folder, remove_folder)
{
    struct probation probation;
    assert_false(probation_read(config_path, &probation));
    probation_check(config_path);
    probation_check(NULL);
    begin_version_2();
    for (int start = 1; start <= PROBATION_STARTS; start++) {
        probation_check(config_path);
        assert_int_equal(current(), 2);
    }
    probation_check(config_path);
    assert_int_equal(current(), 1);
    assert_true(probation_read(config_path, &probation));
    assert_true(probation.failed && probation.target == 2 && probation.fallback == 1);
    probation_check(config_path); /* from now on it stays */
    assert_int_equal(current(), 1);
    probation_end(config_path);
    assert_false(probation_read(config_path, &probation));
}

static void damage(const char *name)
{
    char path[200];
    const struct file_part part = {"[ ]", 3};
    struct error error;
    snprintf(path, sizeof path, "%s.d/%s", config_path, name);
    assert_true(file_write_atomic(path, &part, 1, &error));
}

/* A version's file damaged by the disk says nothing about the version: it may be taken again. */
TEST_WITH(a_damaged_version_did_not_fail, make_folder, remove_folder)
{
    struct probation probation;
    begin_version_2();
    probation_check(config_path);
    damage("00000002.json");
    probation_check(config_path);
    assert_int_equal(current(), 1);
    assert_false(probation_read(config_path, &probation));
    begin_version_2(); /* this writes it again */
    probation_check(config_path);
    assert_int_equal(current(), 2);
    damage("00000001.json"); /* nor is a fallback that can't be read */
    damage("00000002.json");
    for (int start = 0; start < PROBATION_STARTS + 2; start++) {
        probation_check(config_path);
        assert_int_equal(current(), 2);
    }
}

/* Both copies of the record are damaged. */
static void name_records(char paths[2][256])
{
    char id[RESTART_ID];
    restart_identity(id);
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "%s.d/probation-%s%s", config_path, id, i > 0 ? ".copy" : "");
    }
}

/* An invalid record is ignored, and counts nothing. */
TEST_WITH(a_damaged_record_is_none, make_folder, remove_folder)
{
    static const char *const texts[] = {"", "2 1", "2 1 -1 0\n", "2 1 -2147483648 0\n", "x 1 1 0\n"};
    struct probation probation;
    char paths[2][256];
    begin_version_2();
    name_records(paths);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        for (int k = 0; k < 2; k++) {
            FILE *file = fopen(paths[k], "w");
            assert_true(file && fputs(texts[i], file) >= 0 && fclose(file) == 0);
        }
        assert_false(probation_read(config_path, &probation));
        probation_check(config_path);
        assert_int_equal(current(), 2);
    }
    probation_end(config_path);
}

/* A changed number of starts, or another fallback, must not make it go back. */
TEST_WITH(a_damaged_one_is_not_obeyed, make_folder, remove_folder)
{
    struct probation probation;
    char paths[2][256];
    uint8_t *bytes;
    size_t size;
    struct error error;
    begin_version_2();
    name_records(paths);
    const char *path = paths[0];
    assert_int_equal(unlink(paths[1]), 0); /* one copy is damaged, the other is not there */
    assert_true(file_read(path, 100, &bytes, &size, &error));
    assert_memory_equal(bytes, "2 1 0 0 #", 9);
    for (size_t at = 0; at < 7; at += 2) {
        bytes[at] ^= 2;
        const struct file_part part = {bytes, size};
        assert_true(file_write_atomic(path, &part, 1, &error));
        assert_false(probation_read(config_path, &probation));
        probation_check(config_path);
        assert_int_equal(current(), 2);
        bytes[at] ^= 2;
    }
    free(bytes);
    const struct file_part former = {"2 1 0 0\n", 8}; /* as written by hand */
    assert_true(file_write_atomic(path, &former, 1, &error));
    assert_true(probation_read(config_path, &probation));
    assert_int_equal(probation.target, 2);
}

/* Damage to one of the two copies strands no process in a version that kills it. */
TEST_WITH(one_sound_copy_is_enough, make_folder, remove_folder)
{
    struct probation probation;
    char paths[2][256];
    for (int rotten = 0; rotten < 2; rotten++) {
        begin_version_2();
        name_records(paths);
        for (int start = 1; start <= PROBATION_STARTS; start++) {
            FILE *file = fopen(paths[rotten], "r+");
            assert_true(file && fputs("3 9", file) >= 0 && fclose(file) == 0);
            probation_check(config_path);
            assert_int_equal(current(), 2);
            assert_true(probation_read(config_path, &probation));
            assert_int_equal(probation.starts, start);
        }
        probation_check(config_path);
        assert_int_equal(current(), 1);
        probation_end(config_path);
        assert_false(probation_read(config_path, &probation) || file_exists(paths[0]) || file_exists(paths[1]));
    }
}

TEST_WITH(a_process_that_lives_is_left_alone, make_folder, remove_folder)
{
    begin_version_2();
    probation_check(config_path);
    probation_end(config_path);
    for (int i = 0; i < 5; i++) {
        probation_check(config_path);
        assert_int_equal(current(), 2);
    }
}

/* Processes of one machine share the folder, but each has its own count. */
TEST_WITH(each_process_for_itself, make_folder, remove_folder)
{
    char one[] = "trainer", index0[] = "--task_index=0", index1[] = "--task_index=1";
    char *first[] = {one, index0, NULL}, *second[] = {one, index1, NULL};
    char id[RESTART_ID], other[RESTART_ID];
    struct probation probation;
    restart_remember(first);
    restart_identity(id);
    begin_version_2();
    restart_remember(second);
    restart_identity(other);
    assert_string_not_equal(id, other);
    assert_false(probation_read(config_path, &probation));
    restart_remember(first);
    assert_true(probation_read(config_path, &probation));
    restart_remember(NULL);
}

int main(void)
{
    return check_run(NULL, NULL);
}
