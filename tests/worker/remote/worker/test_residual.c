/* The residual of packed gradients: when it is saved, and what a process that joins loads again. */
#include <dirent.h>

#include "base/file.h"
#include "tests/check.h"
#include "tests/worker/remote/story.h"
#include "worker/remote/remote_worker.h"

enum { COUNT = 20, MOST_FILES = 16 };

static struct remote_worker worker;
static float now[COUNT], next[COUNT];
static struct outbox_residual residual;
static char folder[64];

static int begin(void **state)
{
    snprintf(folder, sizeof folder, "/tmp/test_residual-XXXXXX");
    memset(&worker, 0, sizeof worker);
    residual = (struct outbox_residual){now, next};
    worker.outbox.residual = &residual;
    worker.model.float_count = COUNT;
    worker.residual_files = (struct residual_files){.folder = folder, .worker = 1, .count = COUNT, .every = 10};
    worker.exchange.generation = 3;
    return mkdtemp(folder) ? 0 : 1;
}

static int end(void **state)
{
    struct error error;
    return file_remove_folder(folder, &error) ? 0 : 1;
}

static void fill(float value)
{
    for (int i = 0; i < COUNT; i++) {
        now[i] = value + (float)i;
        next[i] = -1;
    }
}

static void assert_filled(float value)
{
    for (int i = 0; i < COUNT; i++) {
        assert_true(now[i] == value + (float)i && next[i] == -1);
    }
}

static int files(void)
{
    struct dirent **entries;
    const int found = scandir(folder, &entries, NULL, NULL);
    int count = 0;
    for (int i = 0; i < found; i++) {
        count += entries[i]->d_name[0] != '.';
        free(entries[i]);
    }
    free(entries);
    return count;
}

static void recall(int64_t step)
{
    struct error error;
    worker.training.global_step = step;
    assert_true(worker_load_residual(&worker, &error));
}

/* Within a generation a process still has it; at the start of another it is that of the step, or nothing. */
TEST_WITH(recalled, begin, end)
{
    fill(100);
    worker_save_residual(&worker, 10);
    fill(200);
    recall(12); /* as after a restart */
    assert_filled(100);
    fill(300);
    recall(12); /* a lost connection, say */
    assert_filled(300);
    worker.exchange.generation = 4;
    listen_in();
    recall(15);
    assert_non_null(strstr(heard(), "continues at step 15 with the unsent parts of pushes at step 10\n"));
    assert_filled(100);
    worker.exchange.generation = 5;
    recall(5); /* before everything saved */
    for (int i = 0; i < COUNT; i++) {
        assert_true(now[i] == 0 && next[i] == -1);
    }
    assert_int_equal(files(), 0); /* of an abandoned run */
}

/* A worker that keeps none, or has no folder, starts with nothing. */
TEST_WITH(not_kept, begin, end)
{
    struct error error;
    worker.residual_files.folder = "";
    fill(100);
    worker_save_residual(&worker, 10);
    assert_int_equal(files(), 0);
    recall(10);
    assert_true(now[0] == 0 && now[COUNT - 1] == 0);
    worker.residual_files.folder = folder;
    worker.outbox.residual = NULL;
    worker.exchange.generation = 4;
    worker_save_residual(&worker, 10);
    assert_int_equal(files(), 0);
    assert_true(worker_load_residual(&worker, &error));
    assert_int_equal(worker.residual_of, 3); /* there was none of that generation */
}

/* A failure to write is a warning. */
TEST_WITH(warned, begin, end)
{
    worker.residual_files.folder = "/dev/null/none";
    listen_in();
    worker_save_residual(&worker, 10);
    assert_non_null(strstr(heard(), "the unsent parts of pushes are not saved: "));
    worker.residual_files.folder = folder;
}

/* At the steps of checkpoints, whichever is passed; after each round. */
TEST(when_it_is_due)
{
    static const struct {
        int64_t every, before, step;
        bool local, due;
    } cases[] = {{10, 9, 10, false, true},  {10, 10, 11, false, false}, {10, 5, 9, false, false},
                 {10, 8, 31, false, true},  {10, 1, 21, false, true},   {0, 9, 10, false, false},
                 {0, 9, 10, true, true},    {1, 5, 6, false, true},     {10, 11, 12, true, true},
                 {10, 25, 19, false, true}, {1, 5, 5, false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(begin(NULL), 0);
        worker.config.output.save_steps = cases[i].every;
        worker.local = cases[i].local ? (struct local_steps *)(void *)&worker : NULL;
        fill(7);
        worker_save_residual_if_due(&worker, cases[i].before, cases[i].step);
        assert_int_equal(files(), cases[i].due);
        if (cases[i].due) {
            fill(0);
            recall(cases[i].step);
            assert_filled(7);
        }
        assert_int_equal(end(NULL), 0);
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
