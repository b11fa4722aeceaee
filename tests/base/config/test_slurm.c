/* The tasks of a Slurm step as a cluster, and every error in its variables. */
#include "base/config/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* procid, nodeid, localid, nodelist, tasks per node */
#define TASK(...) (&(const struct slurm_task){__VA_ARGS__})

static void means(const struct slurm_task *task, int ps_count, const char *job_name, const char *task_index,
                  const char *ps_hosts, const char *worker_hosts)
{
    static const char *const flags[] = {"job_name", "task_index", "ps_hosts", "worker_hosts"};
    const char *const expected[] = {job_name, task_index, ps_hosts, worker_hosts};
    struct assignment assignment;
    struct error error = {""};
    bool done = slurm_parse(&assignment, task, ps_count, 7000, &error);
    assert_string_equal(done ? "" : error.text, "");
    assert_int_equal(assignment.count, ASSIGNMENT_SETTINGS);
    for (int i = 0; i < ASSIGNMENT_SETTINGS; i++) {
        assert_string_equal(assignment.settings[i].flag, flags[i]);
        assert_string_equal(assignment.settings[i].text, expected[i]);
    }
    assignment_free(&assignment);
}

static void refuses(const struct slurm_task *task, int ps_count, const char *message)
{
    struct assignment assignment;
    struct error error = {""};
    assert_false(slurm_parse(&assignment, task, ps_count, 7000, &error));
    assert_string_equal(error.text, message);
    assignment_free(&assignment);
}

static void a_task_on_each_node(void **state)
{
    (void)state;
    const char *workers = "n09:7000,n10:7000";
    means(TASK("0", "0", "0", "n[08-10]", "1(x3)"), 1, "ps", "0", "n08:7000", workers);
    means(TASK("1", "1", "0", "n[08-10]", "1(x3)"), 1, "worker", "0", "n08:7000", workers);
    means(TASK("2", "2", "0", "n[08-10]", "1(x3)"), 1, "worker", "1", "n08:7000", workers);
    means(TASK("2", "2", "0", "n[08-10]", "1(x3)"), 2, "worker", "0", "n08:7000,n09:7000", "n10:7000");
}

static void several_tasks_on_a_node(void **state)
{
    (void)state;
    const char *ps = "a:7000,a:7001", *workers = "b1:7000,b1:7001,b2:7000";
    means(TASK("1", "0", "1", "a,b[1-2]", "2(x2),1"), 2, "ps", "1", ps, workers);
    means(TASK("3", "1", "1", "a,b[1-2]", "2(x2),1"), 2, "worker", "1", ps, workers);
    means(TASK("4", "2", "0", "a,b[1-2]", "2(x2),1"), 2, "worker", "2", ps, workers);
    means(TASK("2", "0", "2", "a", "3"), 1, "worker", "1", "a:7000", "a:7001,a:7002");
}

static void one_task_trains_alone(void **state)
{
    (void)state;
    means(TASK("0", "0", "0", "a", "1"), 1, "local", "0", "", "a:7000");
    means(TASK("0", "0", "0", "a", "1"), 5, "local", "0", "", "a:7000");
}

static void mistakes(void **state)
{
    (void)state;
    const char *counts = "SLURM_STEP_TASKS_PER_NODE: must be counts of tasks, as in 2(x3),1";
    static const char *const wrong[] = {"", "0", "a", "1,", "1(x", "1(x0)", "1(x2", "1(y2)", "-1", "1;1", "1 "};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        refuses(TASK("0", "0", "0", "a", wrong[i]), 1, counts);
    }
    refuses(TASK(NULL, "0", "0", "a", "1"), 1,
            "SLURM_PROCID is not set: with cluster=slurm, start the members by srun");
    refuses(TASK("x", "0", "0", "a", "1"), 1, "SLURM_PROCID: must be a number from 0");
    refuses(
        TASK("0", "0", "0", NULL, "1"), 1,
        "SLURM_STEP_NODELIST or SLURM_STEP_TASKS_PER_NODE is not set: with cluster=slurm, start the members by srun");
    refuses(TASK("0", "0", "0", "a", "2"), 2, "the step has 2 tasks: too few for 2 ps and a worker");
    refuses(TASK("0", "0", "0", "a[1", "2"), 1, "SLURM_STEP_NODELIST: a '[' without its ']'");
    refuses(TASK("0", "0", "0", "a[1-3]", "1(x2)"), 1,
            "SLURM_STEP_NODELIST: names more nodes than the 2 of SLURM_STEP_TASKS_PER_NODE");
    refuses(TASK("0", "0", "0", "a", "1(x2)"), 1,
            "SLURM_STEP_NODELIST names 1 nodes, and SLURM_STEP_TASKS_PER_NODE counts the tasks of 2");
    refuses(TASK("0", "0", "0", "a", "2(x999999)"), 1, "SLURM_STEP_TASKS_PER_NODE: more than 2048 tasks");
    refuses(TASK("0", "0", "0", "a", "999999"), 1, "SLURM_STEP_TASKS_PER_NODE: more than 2048 tasks");
}

/* srun --distribution=cyclic: task 1 is the first of node 1, where a block would put it second on node 0. */
static void tasks_in_turn(void **state)
{
    (void)state;
    const char *message = "task 1 is not in a block with the others of its node: start the members by srun "
                          "--distribution=block";
    refuses(TASK("1", "1", "0", "a[1-2]", "2(x2)"), 1, message);
    refuses(TASK("1", "7", "0", "a[1-2]", "2(x2)"), 1, message);
    refuses(TASK("1", "0", "2", "a[1-2]", "2(x2)"), 1, message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_task_on_each_node),   cmocka_unit_test(several_tasks_on_a_node),
        cmocka_unit_test(one_task_trains_alone), cmocka_unit_test(mistakes),
        cmocka_unit_test(tasks_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
