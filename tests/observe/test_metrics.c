/* Which metrics there are, when and under which names; and what a process uses of its machine. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "observe/board.h"
#include "observe/metrics.h"
#include "base/process/usage.h"
#include "tests/check.h"
#include "tests/system.h"

static struct board board;
static double now_s = 1000, gpu_s;
static int gpus;

/* The clocks are the test's. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME) {
        return SYSTEM(clock_gettime)(clock, now);
    }
    const double seconds = clock == CLOCK_REALTIME ? 1e9 + now_s : now_s;
    *now = (struct timespec){(time_t)seconds, lround((seconds - floor(seconds)) * 1e9)};
    return 0;
}

static double seconds_of_gpus(int *count)
{
    *count = gpus;
    return gpu_s;
}

static int begin(void **state)
{
    gpus = 0;
    board_create(&board, "ps", 0, "/runs/digits");
    return 0;
}

static int end(void **state)
{
    process_watch_gpus(NULL);
    board_destroy(&board);
    return 0;
}

/* The text is freed by the next call. */
static const char *written(bool open)
{
    static struct text_buffer text;
    text_buffer_free(&text);
    text = (struct text_buffer){.bytes = NULL};
    metrics_write(&text, &board, NULL, open);
    assert_false(text.failed);
    text_buffer_add(&text, "%c", '\0');
    return text.bytes;
}

static void has(const char *text, const char *line)
{
    const char *at = strstr(text, line);
    if (!at || (at != text && at[-1] != '\n') || at[strlen(line)] != '\n') {
        fail_msg("no line \"%s\" in:\n%s", line, text);
    }
}

TEST_WITH(test_who_is_waited_for, begin, end)
{
    assert_null(strstr(written(true), "trainer_waiting{"));
    struct board_numbers *numbers = board_lock(&board);
    snprintf(numbers->waiting_for, sizeof numbers->waiting_for, "worker 3 (\"c\":2222)");
    numbers->waiting_since_s = now_s - 12;
    numbers->waited_s = 30;
    board_unlock(&board);
    board_tick(&board);
    const char *text = written(true);
    has(text, "trainer_waiting{for=\"worker 3 (\\\"c\\\":2222)\"} 1");
    has(text, "trainer_waiting_seconds 12");
    has(text, "trainer_waited_seconds_total 42");
}

/* How its gradients come is known of a worker only. */
TEST_WITH(test_links, begin, end)
{
    assert_true(board_begin_members(&board, 2));
    strcpy(board.members[0].role, "ps");
    strcpy(board.members[1].role, "worker");
    board.members[1].task = 3;
    strcpy(board.members[1].link, "shared memory");
    const char *text = written(true);
    has(text, "trainer_member_link{role=\"worker\",task=\"3\",link=\"shared memory\"} 1");
    assert_null(strstr(text, "trainer_member_link{role=\"ps\""));
}

TEST_WITH(test_pushes_by_what_became_of_them, begin, end)
{
    struct board_numbers *numbers = board_lock(&board);
    numbers->pushed = 40;
    numbers->stale = 3;
    numbers->not_finite = 1;
    board_unlock(&board);
    const char *text = written(false);
    has(text, "trainer_pushes_applied_total 40");
    has(text, "trainer_pushes_dropped_total{cause=\"stale\"} 3");
    has(text, "trainer_pushes_dropped_total{cause=\"not_finite\"} 1");
}

TEST_WITH(test_a_rollout_and_checkpoints, begin, end)
{
    assert_null(strstr(written(true), "trainer_rollout_phase"));
    assert_null(strstr(written(true), "trainer_checkpoint_step"));
    struct board_numbers *numbers = board_lock(&board);
    numbers->saved = 2;
    numbers->saves_failed = 1;
    numbers->saved_step = 500;
    numbers->saved_time_s = 1e9;
    numbers->saved_took_s = 0.25;
    board_unlock(&board);
    board.rollout = (struct board_rollout){.is_under_way = true, .version = 7, .phase = "watching"};
    const char *text = written(true);
    has(text, "trainer_rollout_version 7");
    has(text, "trainer_rollout_phase{phase=\"watching\"} 1");
    has(text, "trainer_checkpoints_total 2");
    has(text, "trainer_checkpoint_failures_total 1");
    has(text, "trainer_checkpoint_step 500");
    has(text, "trainer_checkpoint_timestamp_seconds 1000000000");
    has(text, "trainer_checkpoint_write_seconds 0.25");
}

TEST_WITH(test_gpus, begin, end)
{
    board_tick(&board);
    assert_null(strstr(written(true), "trainer_gpu"));
    assert_true(isnan(board.gpu_percent));
    process_watch_gpus(seconds_of_gpus);
    gpus = 2;
    gpu_s = 10;
    now_s += 1;
    board_tick(&board);
    gpu_s = 11.5; /* for the two seconds that both had */
    now_s += 1;
    board_tick(&board);
    assert_true(board.gpu_percent == 75);
    const char *text = written(true);
    has(text, "trainer_gpus 2");
    has(text, "trainer_gpu_busy_seconds_total 11.5");
    has(text, "# UNIT trainer_gpu_busy_seconds seconds");
}

/* Measured once a second, however often it is queried. */
TEST_WITH(test_the_load_that_members_tell, begin, end)
{
    struct process_load load;
    process_watch_gpus(seconds_of_gpus);
    gpus = 1;
    gpu_s = 20;
    process_load(&load);
    assert_true(load.memory_bytes > 1 << 20);
    assert_true(isnan(load.cpu_percent) && isnan(load.gpu_percent));
    gpu_s = 20.25;
    now_s += 0.5;
    process_load(&load);
    assert_true(isnan(load.gpu_percent));
    now_s += 0.5;
    process_load(&load);
    assert_true(load.cpu_percent >= 0 && load.gpu_percent == 25.0F);
    gpus = 0; /* lost */
    now_s += 1;
    process_load(&load);
    assert_true(load.cpu_percent >= 0 && isnan(load.gpu_percent));
}

int main(void)
{
    return check_run(NULL, NULL);
}
