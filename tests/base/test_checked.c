/* Whatever a disk does to one of these files, the damage is reported and the content not used. */
#include "base/checked.h"
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

static char folder[64], path[128], sum_path[160], other[128];
static struct error error;

static int enter(void **state)
{
    strcpy(folder, "/tmp/test_checked.XXXXXX");
    return mkdtemp(folder) && file_join(path, sizeof path, folder, "file", &error) &&
                   file_join(sum_path, sizeof sum_path, folder, "file.sum", &error) &&
                   file_join(other, sizeof other, folder, "other", &error)
               ? 0
               : -1;
}

static int leave(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command); /* NOLINT(cert-env33-c) */
}

static void put(const char *file, const void *bytes, size_t size)
{
    const struct file_part part = {bytes, size};
    assert_true(file_write_atomic(file, &part, 1, &error));
}

static size_t get(const char *file, char text[256])
{
    uint8_t *bytes;
    size_t size;
    assert_true(file_read(file, 255, &bytes, &size, &error));
    memcpy(text, bytes, size + 1);
    free(bytes);
    return size;
}

static void assert_named(const char *file)
{
    assert_non_null(strstr(error.text, file));
    assert_non_null(strstr(error.text, ": is damaged: "));
}

TEST_WITH(a_line_is_what_was_written_or_refused, enter, leave)
{
    char good[256], text[256], line[CHECKED_LINE];
    assert_true(checked_line_write(path, "12 7", &error));
    assert_true(checked_line_read(path, line, &error));
    assert_string_equal(line, "12 7");
    const size_t size = get(path, good);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        memcpy(text, good, size);
        text[bit / 8] = (char)(text[bit / 8] ^ (1 << bit % 8));
        put(path, text, size);
        if (checked_line_read(path, line, &error)) { /* what looks like no checksum is part of the line */
            assert_true(strlen(line) == size - 1 && strncmp(line, "12 7", 4) == 0);
        } else {
            assert_named(path);
        }
    }
    for (size_t left = 0; left < size; left++) {
        put(path, good, left);
        assert_false(checked_line_read(path, line, &error));
        assert_named(path);
    }
    put(other, good, size); /* another file's bytes */
    assert_false(checked_line_read(other, line, &error));
    assert_named(other);
    memset(text, '1', 200);
    text[200] = '\0';
    assert_false(checked_line_write(path, text, &error));
}

TEST_WITH(a_line_of_an_earlier_program_is_taken, enter, leave)
{
    char line[CHECKED_LINE];
    put(path, "12\n", 3);
    assert_true(checked_line_read(path, line, &error));
    assert_string_equal(line, "12");
    put(path, "1\n2\n", 4);
    assert_false(checked_line_read(path, line, &error));
    assert_named(path);
    unlink(path);
    assert_false(checked_line_read(path, line, &error));
    assert_non_null(strstr(error.text, path));
}

static bool reads(const char *expected)
{
    uint8_t *bytes;
    size_t size;
    if (!checked_read(path, 100, &bytes, &size, &error)) {
        return false;
    }
    assert_string_equal((char *)bytes, expected);
    free(bytes);
    return true;
}

TEST_WITH(a_file_is_what_was_written_or_refused, enter, leave)
{
    static const char text[] = "{\"rate\":0.25}";
    char bytes[64], sum[256];
    assert_true(checked_write(path, text, strlen(text), &error));
    assert_true(reads(text));
    for (size_t bit = 0; bit < 8 * strlen(text); bit++) {
        memcpy(bytes, text, sizeof text);
        bytes[bit / 8] = (char)(bytes[bit / 8] ^ (1 << bit % 8));
        put(path, bytes, strlen(text));
        assert_false(reads(""));
        assert_named(path);
    }
    for (size_t left = 0; left < strlen(text); left++) {
        put(path, text, left);
        assert_false(reads(""));
        assert_named(path);
    }
    assert_true(checked_write(path, text, strlen(text), &error)); /* write it again */
    assert_true(reads(text));
    const size_t size = get(sum_path, sum);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        sum[bit / 8] = (char)(sum[bit / 8] ^ (1 << bit % 8));
        put(sum_path, sum, size);
        assert_false(reads(""));
        assert_named(sum_path);
        sum[bit / 8] = (char)(sum[bit / 8] ^ (1 << bit % 8));
    }
}

/* A power cut between the two: the old file is as good as the new one. */
TEST_WITH(one_that_is_replaced_is_the_old_or_the_new, enter, leave)
{
    put(path, "old", 3); /* written by hand, without a sum */
    assert_true(reads("old"));
    assert_true(checked_write(path, "new", 3, &error));
    assert_true(reads("new"));
    put(path, "old", 3);
    assert_true(reads("old"));
    put(path, "odd", 3);
    assert_false(reads("odd"));
    assert_true(checked_write(path, "newer", 5, &error));
    assert_true(reads("newer"));
    put(path, "odd", 3); /* the damaged file is not what may be there */
    assert_false(reads("odd"));
}

int main(void)
{
    return check_run(NULL, NULL);
}
