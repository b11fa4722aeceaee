/* History: seconds, the whole run in buckets that widen, and a file that may be damaged. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "observe/board.h"
#include "tests/check.h"

static const double BEGIN = 1790000000;

static void fill(struct history *history, int seconds)
{
    float values[HISTORY_SERIES] = {0};
    for (int i = 0; i < seconds; i++) {
        values[0] = (float)i;
        values[1] = i % 2 == 0 ? (float)NAN : 1;
        history_add(history, BEGIN + i, 10 * i, values);
    }
}

static void create(struct history *history)
{
    history_create(history);
    assert_int_equal(history_series(history, "loss"), 0);
    assert_int_equal(history_series(history, "rate"), 1);
    assert_int_equal(history_series(history, "loss"), 0);
}

TEST(test_the_last_hour_is_kept_second_by_second)
{
    struct history history;
    create(&history);
    fill(&history, HISTORY_RECENT + 100);
    assert_int_equal(history.recent.count, HISTORY_RECENT);
    const struct history_bucket *first = history_at(&history.recent, 0);
    assert_true(first->time_s == BEGIN + 100 && first->values[0] == 100 && first->step == 1000);
    assert_true(history_at(&history.recent, HISTORY_RECENT - 1)->time_s == BEGIN + HISTORY_RECENT + 99);
    history_destroy(&history);
}

TEST(test_the_whole_run_is_kept_in_buckets_that_widen)
{
    struct history history;
    const int seconds = 5 * HISTORY_WHOLE;
    int counted = 0;
    create(&history);
    fill(&history, seconds);
    assert_true(history.whole.count <= HISTORY_WHOLE && history.whole.count > HISTORY_WHOLE / 2);
    assert_true(history.width_s == 8);
    for (int i = 0; i < history.whole.count; i++) {
        const struct history_bucket *bucket = history_at(&history.whole, i);
        const int n = (int)bucket->seconds;
        assert_true(i == 0 || bucket->time_s > history_at(&history.whole, i - 1)->time_s);
        assert_true(fabsf(bucket->values[0] - (float)(2 * counted + n - 1) / 2) < 1e-2F); /* the mean of its values */
        assert_true(bucket->values[1] == 1);
        counted += n;
        assert_int_equal(bucket->step, 10 * (counted - 1));
    }
    assert_int_equal(counted, seconds);
    history_destroy(&history);
}

TEST(test_gaps_and_clocks_that_go_back)
{
    struct history history;
    float values[HISTORY_SERIES] = {0};
    create(&history);
    fill(&history, 3);
    history_add(&history, BEGIN + 1e8, 40, values); /* three years later */
    history_add(&history, BEGIN, 50, values);
    assert_int_equal(history.recent.count, 5);
    assert_true(history_at(&history.recent, 4)->time_s == BEGIN + 1e8);
    assert_int_equal(history.whole.count, 4);
    assert_int_equal(history_at(&history.whole, 3)->step, 50);
    history_destroy(&history);
}

TEST(test_names_beyond_the_room_for_them)
{
    struct history history;
    char name[16];
    create(&history);
    for (int i = 2; i < HISTORY_SERIES; i++) {
        snprintf(name, sizeof name, "s%d", i);
        assert_int_equal(history_series(&history, name), i);
    }
    assert_int_equal(history_series(&history, "another"), -1);
    history_destroy(&history);
}

static void save(const struct history *history, char path[64])
{
    struct error error;
    snprintf(path, 64, "/tmp/history-%d.bin", (int)getpid());
    assert_true(history_save(history, path, &error));
}

/* Names are stored in JSON unescaped. */
TEST(test_names_are_plain)
{
    struct history history, again;
    struct error error;
    char path[64];
    bool damaged;
    create(&history);
    assert_int_equal(history_series(&history, "metric:roc_auc"), 2);
    assert_int_equal(history_series(&history, "a\"b"), -1);
    assert_int_equal(history_series(&history, "a\nb"), -1);
    strcpy(history.names[1], "a\":\"b"); /* as in a foreign file */
    fill(&history, 5);
    save(&history, path);
    history_create(&again);
    assert_false(history_load(&again, path, &damaged, &error));
    assert_true(damaged);
    unlink(path);
    history_destroy(&history);
    history_destroy(&again);
}

TEST(test_the_file_brings_all_of_it_back)
{
    struct history history, again;
    struct error error;
    char path[64];
    bool damaged;
    create(&history);
    fill(&history, HISTORY_RECENT + 500);
    save(&history, path);
    history_create(&again);
    assert_true(history_load(&again, path, &damaged, &error));
    assert_int_equal(again.series, 2);
    assert_true(again.width_s == history.width_s);
    assert_int_equal(again.whole.count, history.whole.count);
    assert_int_equal(again.recent.count, history.recent.count);
    for (int i = 0; i < again.recent.count; i++) {
        assert_memory_equal(history_at(&again.recent, i), history_at(&history.recent, i),
                            sizeof(struct history_bucket));
    }
    unlink(path);
    assert_false(history_load(&again, path, &damaged, &error));
    assert_false(damaged);
    history_destroy(&history);
    history_destroy(&again);
}

TEST(test_no_damage_goes_unseen)
{
    struct history history, again;
    struct error error;
    struct stat status;
    char path[64];
    bool damaged;
    create(&history);
    fill(&history, 5);
    save(&history, path);
    assert_int_equal(stat(path, &status), 0);
    history_create(&again);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    for (off_t at = 0; at < status.st_size; at += 7) {
        uint8_t byte;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        assert_false(history_load(&again, path, &damaged, &error));
        assert_true(damaged);
        assert_int_equal(again.recent.count, 0);
        byte ^= 0x10;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    for (off_t size = status.st_size - 1; size >= 0; size -= 11) {
        assert_int_equal(ftruncate(fd, size), 0);
        assert_false(history_load(&again, path, &damaged, &error));
    }
    close(fd);
    unlink(path);
    history_destroy(&history);
    history_destroy(&again);
}

int main(void)
{
    return check_run(NULL, NULL);
}
