/* Checkpoints that replace one another while requests are in progress. */
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve/model.h"

static char folder[] = "/tmp/test_model.XXXXXX";
static char path[sizeof folder + 64];

/* kept_rows: NULL: none. Every answer of the model is 0. */
static void write_checkpoint(int64_t step, const char *kept_rows)
{
    const struct config_model config = {.layers = {4, 3, 2}, .layer_count = 3};
    const struct config_train train = {.optimizer = OPTIMIZER_SGD};
    const struct checkpoint_info info = {.global_step = step,
                                         .kept_rows = kept_rows,
                                         .config_digest =
                                             "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"};
    struct model model;
    struct checkpoint_state state;
    struct error error = {""};
    model_layout(&model, &config);
    checkpoint_state_create(&state, &model, &train);
    if (!checkpoint_write(path, &state, &info, &error)) {
        fail_msg("%s", error.text);
    }
    checkpoint_state_destroy(&state);
}

static void refresh(struct served *served)
{
    struct error error = {""};
    if (!served_refresh(served, &error)) {
        fail_msg("%s", error.text);
    }
}

/* A request releases a replaced version: its memory is freed at the next look at the folder, not by the request. */
TEST(test_no_request_frees_a_model)
{
    struct config config;
    struct served served = {.workers = 2};
    struct budget budget = {.most = 1 << 20};
    struct error error;
    config_defaults(&config);
    assert_true(served_init(&served, "model", path, &error));
    served.config = &config;
    served.budget = &budget;
    write_checkpoint(1, NULL);
    refresh(&served);
    struct version *first = served_hold(&served), *again = version_hold(first);
    const size_t one = atomic_load(&budget.used);
    assert_true(one > 0);
    for (int step = 2; step < 5; step++) { /* each one replaced while the first is held; the others are freed at once */
        write_checkpoint(step, NULL);
        refresh(&served);
        assert_int_equal(served.current->number, step);
        assert_int_equal(atomic_load(&budget.used), 2 * one);
    }
    assert_int_equal(first->number, 1);
    version_release(first);
    refresh(&served);
    assert_int_equal(atomic_load(&budget.used), 2 * one); /* there is another request */
    version_release(again);
    assert_int_equal(atomic_load(&budget.used), 2 * one);
    refresh(&served);
    assert_int_equal(atomic_load(&budget.used), one);
    served_destroy(&served);
    assert_int_equal(atomic_load(&budget.used), 0);
    config_free(&config);
}

/* A model whose answers differ from those where it was trained is never put into service. */
TEST(test_a_model_is_checked_on_the_rows_kept_with_it)
{
    static const char *const refused[] = {"[0.001,[[0,1,2,3],[],[0,0]],[[0,0,0,255],[],[0,0.5]]]",
                                          "[0.001,[[0,1,2],[],[0,0]]]"};
    struct config config;
    struct served served = {.workers = 1};
    struct budget budget = {.most = 1 << 20};
    struct error error;
    config_defaults(&config);
    assert_true(served_init(&served, "model", path, &error));
    served.config = &config;
    served.budget = &budget;
    write_checkpoint(1, "[0.001,[[0,1,2,3],[],[0,0]],[[0,0,0,255],[],[0.0005,0]]]");
    refresh(&served);
    assert_int_equal(served.current->checked_rows, 2);
    for (int i = 0; i < 2; i++) {
        write_checkpoint(2 + i, refused[i]);
        assert_false(served_refresh(&served, &error));
        assert_non_null(strstr(error.text, path));
        assert_non_null(strstr(error.text, i == 0 ? "stored row 1 gives 0 for output 1, but gave 0.5"
                                                  : "kept_rows: do not fit its model"));
        assert_non_null(strstr(served.problem, path));
        assert_int_equal(served.current->number, 1);
    }
    assert_int_equal(served.failures, 2);
    write_checkpoint(4, NULL); /* older files have none */
    refresh(&served);
    assert_int_equal(served.current->number, 4);
    assert_int_equal(served.current->checked_rows, 0);
    served_destroy(&served);
    config_free(&config);
}

static void write_text(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* A folder whose checkpoints can't be used is tried once for each change of its checkpoints, in place too. */
TEST(test_a_failure_is_not_repeated_until_something_changes)
{
    struct config config;
    struct served served = {.workers = 1};
    struct budget budget = {.most = 1 << 20};
    struct error error;
    config_defaults(&config);
    assert_true(served_init(&served, "model", folder, &error));
    served.config = &config;
    served.budget = &budget;
    unlink(path);
    for (int round = 0; round < 3; round++) { /* empty, damaged, damaged otherwise */
        assert_false(served_refresh(&served, &error));
        assert_true(served_refresh(&served, &error));
        assert_int_equal(served.failures, round + 1);
        write_text(round == 0 ? "x" : "damaged");
    }
    write_checkpoint(1, NULL);
    refresh(&served);
    assert_int_equal(served.current->number, 1);
    write_text("damaged"); /* and beside a model in service */
    assert_false(served_refresh(&served, &error));
    assert_true(served_refresh(&served, &error));
    assert_int_equal(served.failures, 4);
    assert_int_equal(served.current->number, 1);
    served_destroy(&served);
    config_free(&config);
}

static int set_up(void **unused)
{
    if (!mkdtemp(folder)) {
        return -1;
    }
    snprintf(path, sizeof path, "%s/model-0000000001.safetensors", folder);
    return 0;
}

static int tear_down(void **unused)
{
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    return check_run(set_up, tear_down);
}
