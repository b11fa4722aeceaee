/* What schedulers say of a job. */
#include "base/config/scheduler.h"
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/random.h"

/* --- Lists of hosts --- */

/* Hostlists as Slurm writes them, each compared with the output of `scontrol show hostnames`; and hostile ones. */

enum { MOST = 2048 };

struct found {
    char text[1 << 16];
    size_t used;
    int hosts;
};

static bool add(void *context, const char *host, struct error *error)
{
    struct found *found = context;
    assert_in_range(strlen(host), 1, HOSTLIST_MAX_HOST);
    found->used += (size_t)snprintf(found->text + found->used, sizeof found->text - found->used, "%s%s",
                                    found->used > 0 ? " " : "", host);
    found->used = found->used < sizeof found->text ? found->used : sizeof found->text - 1;
    found->hosts++;
    return true;
}

static void hosts_means(const char *text, const char *hosts)
{
    struct found *found = calloc(1, sizeof *found);
    struct error error = {""};
    bool done = hostlist_expand(text, MOST, add, found, &error);
    assert_string_equal(done ? "" : error.text, "");
    assert_string_equal(found->text, hosts);
    free(found);
}

static void hosts_refuses(const char *text, const char *message)
{
    struct found *found = calloc(1, sizeof *found);
    struct error error = {""};
    assert_false(hostlist_expand(text, MOST, add, found, &error));
    assert_string_equal(error.text, message);
    free(found);
}

TEST(lists)
{
    hosts_means("n1", "n1");
    hosts_means("login,n[1,3-5],x", "login n1 n3 n4 n5 x");
    hosts_means("n[08-11]", "n08 n09 n10 n11");
    hosts_means("n[8-11]", "n8 n9 n10 n11");
    hosts_means("n[099-101],n007", "n099 n100 n101 n007");
    hosts_means("rack[0-1]n[1-2]", "rack0n1 rack0n2 rack1n1 rack1n2");
    hosts_means("n[3,1-2][0-1]", "n30 n31 n10 n11 n20 n21");
    hosts_means("n[3,3]", "n3 n3");
    /* Later releases of Slurm accept more than 22.05. */
    hosts_means("rack[0-1]-n[1-2].example", "rack0-n1.example rack0-n2.example rack1-n1.example rack1-n2.example");
    hosts_means("[1-2]a,b", "1a 2a b");
}

TEST(hosts_mistakes)
{
    static const char *const numbers[] = {"n[]",    "n[a]",  "n[1-]",  "n[-1]",
                                          "n[2-1]", "n[1,]", "n[1;2]", "n[1234567890]"};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        hosts_refuses(numbers[i], "brackets hold numbers and ranges of them, as in n[1,3-5]");
    }
    hosts_refuses("", "an empty name; write names separated by single commas");
    hosts_refuses("a,,b", "an empty name; write names separated by single commas");
    hosts_refuses("a,", "an empty name; write names separated by single commas");
    hosts_refuses("n[1", "a '[' without its ']'");
    hosts_refuses("n]1", "a ']' without its '['");
    hosts_refuses("n[1]]", "a ']' without its '['");
    hosts_refuses("n[[1]]", "brackets hold numbers and ranges of them, as in n[1,3-5]");
    hosts_refuses("n[1][1][1][1][1]", "more than 4 brackets in a name");
    hosts_refuses("n[0-999999999]", "too many hosts");
    hosts_refuses("n[0-9999][0-9999][0-9999][0-9999]", "too many hosts");
}

TEST(as_many_as_allowed)
{
    struct found *found = calloc(1, sizeof *found);
    struct error error;
    assert_true(hostlist_expand("n[1-2048]", MOST, add, found, &error));
    assert_int_equal(found->hosts, MOST);
    assert_false(hostlist_expand("n[1-2048],x", MOST, add, found, &error));
    free(found);
    char name[HOSTLIST_MAX_HOST + 2];
    memset(name, 'n', sizeof name);
    name[HOSTLIST_MAX_HOST] = '\0';
    hosts_means(name, name);
    name[HOSTLIST_MAX_HOST] = 'n';
    name[HOSTLIST_MAX_HOST + 1] = '\0';
    hosts_refuses(name, "a host has more than 253 characters");
}

/* Any text of the language's characters: the work is bounded, and every refusal has a message. */
TEST(hostile)
{
    struct test_random random = test_random_begin("hostile");
    for (int i = 0; i < 20000; i++) {
        static const char letters[] = "[]-,,0123456789an.";
        char text[64];
        size_t size = (size_t)test_random_below(&random, sizeof text);
        for (size_t k = 0; k < size; k++) {
            text[k] = letters[test_random_below(&random, sizeof letters - 1)];
        }
        text[size] = '\0';
        struct found *found = calloc(1, sizeof *found);
        struct error error = {""};
        if (hostlist_expand(text, MOST, add, found, &error)) {
            assert_in_range(found->hosts, 1, MOST);
        } else {
            assert_true(error.text[0] != '\0');
        }
        free(found);
    }
}

/* --- Slurm --- */

/* The tasks of a Slurm step as a cluster, and every error in its variables. */

/* procid, nodeid, localid, nodelist, tasks per node */
#define TASK(...) (&(const struct slurm_task){__VA_ARGS__})

static void slurm_means(const struct slurm_task *task, int ps_count, const char *job_name, const char *task_index,
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

static void slurm_refuses(const struct slurm_task *task, int ps_count, const char *message)
{
    struct assignment assignment;
    struct error error = {""};
    assert_false(slurm_parse(&assignment, task, ps_count, 7000, &error));
    assert_string_equal(error.text, message);
    assignment_free(&assignment);
}

TEST(a_task_on_each_node)
{
    const char *workers = "n09:7000,n10:7000";
    slurm_means(TASK("0", "0", "0", "n[08-10]", "1(x3)"), 1, "ps", "0", "n08:7000", workers);
    slurm_means(TASK("1", "1", "0", "n[08-10]", "1(x3)"), 1, "worker", "0", "n08:7000", workers);
    slurm_means(TASK("2", "2", "0", "n[08-10]", "1(x3)"), 1, "worker", "1", "n08:7000", workers);
    slurm_means(TASK("2", "2", "0", "n[08-10]", "1(x3)"), 2, "worker", "0", "n08:7000,n09:7000", "n10:7000");
}

TEST(several_tasks_on_a_node)
{
    const char *ps = "a:7000,a:7001", *workers = "b1:7000,b1:7001,b2:7000";
    slurm_means(TASK("1", "0", "1", "a,b[1-2]", "2(x2),1"), 2, "ps", "1", ps, workers);
    slurm_means(TASK("3", "1", "1", "a,b[1-2]", "2(x2),1"), 2, "worker", "1", ps, workers);
    slurm_means(TASK("4", "2", "0", "a,b[1-2]", "2(x2),1"), 2, "worker", "2", ps, workers);
    slurm_means(TASK("2", "0", "2", "a", "3"), 1, "worker", "1", "a:7000", "a:7001,a:7002");
}

TEST(one_task_trains_alone)
{
    slurm_means(TASK("0", "0", "0", "a", "1"), 1, "local", "0", "", "a:7000");
    slurm_means(TASK("0", "0", "0", "a", "1"), 5, "local", "0", "", "a:7000");
}

TEST(slurm_mistakes)
{
    const char *counts = "SLURM_STEP_TASKS_PER_NODE: must be counts of tasks, as in 2(x3),1";
    static const char *const wrong[] = {"", "0", "a", "1,", "1(x", "1(x0)", "1(x2", "1(y2)", "-1", "1;1", "1 "};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        slurm_refuses(TASK("0", "0", "0", "a", wrong[i]), 1, counts);
    }
    slurm_refuses(TASK(NULL, "0", "0", "a", "1"), 1,
                  "SLURM_PROCID is not set: with cluster=slurm, start the members by srun");
    slurm_refuses(TASK("x", "0", "0", "a", "1"), 1, "SLURM_PROCID: must be a number from 0");
    slurm_refuses(
        TASK("0", "0", "0", NULL, "1"), 1,
        "SLURM_STEP_NODELIST or SLURM_STEP_TASKS_PER_NODE is not set: with cluster=slurm, start the members by srun");
    slurm_refuses(TASK("0", "0", "0", "a", "2"), 2, "the step has 2 tasks: too few for 2 ps and a worker");
    slurm_refuses(TASK("0", "0", "0", "a[1", "2"), 1, "SLURM_STEP_NODELIST: a '[' without its ']'");
    slurm_refuses(TASK("0", "0", "0", "a[1-3]", "1(x2)"), 1,
                  "SLURM_STEP_NODELIST: names more nodes than the 2 of SLURM_STEP_TASKS_PER_NODE");
    slurm_refuses(TASK("0", "0", "0", "a", "1(x2)"), 1,
                  "SLURM_STEP_NODELIST names 1 nodes, and SLURM_STEP_TASKS_PER_NODE counts the tasks of 2");
    slurm_refuses(TASK("0", "0", "0", "a", "2(x999999)"), 1, "SLURM_STEP_TASKS_PER_NODE: more than 2048 tasks");
    slurm_refuses(TASK("0", "0", "0", "a", "999999"), 1, "SLURM_STEP_TASKS_PER_NODE: more than 2048 tasks");
}

/* srun --distribution=cyclic: task 1 is the first of node 1, where a block would put it second on node 0. */
TEST(tasks_in_turn)
{
    const char *message = "task 1 is not in a block with the others of its node: start the members by srun "
                          "--distribution=block";
    slurm_refuses(TASK("1", "1", "0", "a[1-2]", "2(x2)"), 1, message);
    slurm_refuses(TASK("1", "7", "0", "a[1-2]", "2(x2)"), 1, message);
    slurm_refuses(TASK("1", "0", "2", "a[1-2]", "2(x2)"), 1, message);
}

/* --- TF_CONFIG --- */

/* TF_CONFIG as controllers write it, and the message for every error in it. */

#define CLUSTER "{\"cluster\": {\"chief\": [\"a:1\"], \"worker\": [\"b:1\", \"c:1\"], \"ps\": [\"d:1\", \"e:1\"]}, "

static void tf_means(const char *text, const char *job_name, const char *task_index, const char *ps_hosts,
                     const char *worker_hosts)
{
    static const char *const flags[] = {"job_name", "task_index", "ps_hosts", "worker_hosts"};
    const char *const expected[] = {job_name, task_index, ps_hosts, worker_hosts};
    struct assignment parsed;
    struct error error = {""};
    bool done = tf_config_parse(&parsed, text, &error);
    assert_string_equal(done ? "" : error.text, "");
    assert_int_equal(parsed.count, 4);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(parsed.settings[i].flag, flags[i]);
        assert_string_equal(parsed.settings[i].text, expected[i]);
    }
    assignment_free(&parsed);
}

static void tf_refuses(const char *text, const char *message)
{
    struct assignment parsed;
    struct error error = {""};
    assert_false(tf_config_parse(&parsed, text, &error));
    assert_string_equal(error.text, message);
    assignment_free(&parsed);
}

TEST(every_member)
{
    const char *ps = "d:1,e:1", *workers = "a:1,b:1,c:1";
    tf_means(CLUSTER "\"task\": {\"type\": \"chief\", \"index\": 0}}", "worker", "0", ps, workers);
    tf_means(CLUSTER "\"task\": {\"type\": \"worker\", \"index\": 1}}", "worker", "2", ps, workers);
    tf_means(CLUSTER "\"task\": {\"type\": \"ps\", \"index\": 1}, \"environment\": \"cloud\"}", "ps", "1", ps, workers);
    tf_means(CLUSTER "\"task\": {\"type\": \"evaluator\", \"index\": 0}}", "evaluator", "0", ps, workers);
    tf_means("{\"cluster\": {\"worker\": [\"b:1\", \"c:1\"], \"ps\": [\"d:1\"], \"evaluator\": [\"x:1\"]}, "
             "\"task\": {\"type\": \"worker\", \"index\": 1}}",
             "worker", "1", "d:1", "b:1,c:1");
    tf_means("{\"cluster\": {\"master\": [\"a:1\"], \"ps\": [\"d:1\"]}, \"task\": {\"type\": \"master\"}}", "worker",
             "0", "d:1", "a:1");
}

TEST(one_process_alone)
{
    tf_means("{\"cluster\": {\"chief\": [\"a:1\"]}, \"task\": {\"type\": \"chief\", \"index\": 0}}", "local", "0", "",
             "a:1");
    tf_means("{\"cluster\": {\"worker\": [\"a:1\"]}, \"task\": {\"type\": \"worker\", \"index\": 0}}", "local", "0", "",
             "a:1");
}

TEST(nothing_said)
{
    static const char *const texts[] = {NULL, "", "{}", "{\"cluster\": {}}",
                                        "{\"task\": {\"type\": \"worker\", \"index\": 0}}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct assignment parsed;
        struct error error;
        assert_true(tf_config_parse(&parsed, texts[i], &error));
        assert_int_equal(parsed.count, 0);
        assignment_free(&parsed);
    }
}

TEST(tf_mistakes)
{
    tf_refuses("{\"cluster\": [1,]}", "TF_CONFIG:1:15: trailing comma; remove it");
    tf_refuses("[]", "TF_CONFIG: must be an object: {\"cluster\": {...}, \"task\": {...}}");
    tf_refuses(
        "{\"sparseCluster\": {\"worker\": {\"0\": \"a:1\"}, \"ps\": [\"b:1\"]}, "
        "\"task\": {\"type\": \"worker\", \"index\": 0}}",
        "TF_CONFIG: \"sparseCluster\" (of an operator with enableDynamicWorker) names only some of the members; turn "
        "that off, so that \"cluster\" lists all of them");
    tf_refuses("{\"ps_hosts\": [\"a:1\"], \"worker_hosts\": [\"b:1\"]}",
               "TF_CONFIG: \"ps_hosts\" is not understood; it holds \"cluster\" and \"task\"");
    tf_refuses(
        "{\"cluster\": {\"ps_hosts\": [\"a:1\"], \"worker\": [\"b:1\"]}}",
        "TF_CONFIG: cluster.\"ps_hosts\" is not understood; it holds the lists chief (or master), worker, ps and "
        "evaluator: {\"worker\": [\"host:port\"], \"ps\": [\"host:port\"]}");
    tf_refuses("{\"task\": {\"type\": \"worker\", \"index\": 3}}",
               "TF_CONFIG: has a \"task\" but no \"cluster\"; list the members: {\"cluster\": {\"worker\": "
               "[\"host:port\"], \"ps\": [\"host:port\"]}, \"task\": {...}}");
    tf_refuses("{\"cluster\": 7}", "TF_CONFIG: cluster must be an object of lists: {\"worker\": [...], \"ps\": [...]}");
    tf_refuses("{\"cluster\": {\"worker\": {\"0\": \"a:1\"}}}",
               "TF_CONFIG: cluster.worker must be a list of addresses");
    tf_refuses("{\"cluster\": {\"worker\": [1]}}", "TF_CONFIG: cluster.worker must hold \"host:port\" strings");
    tf_refuses("{\"cluster\": {\"ps\": [\"a:1,b:1\"]}}", "TF_CONFIG: cluster.ps must hold \"host:port\" strings");
    tf_refuses("{\"cluster\": {\"chief\": [\"a:1\", \"b:1\"]}}", "TF_CONFIG: cluster.chief must be one address");
    tf_refuses("{\"cluster\": {\"chief\": [\"a:1\"], \"master\": [\"b:1\"]}}",
               "TF_CONFIG: cluster has both a chief and a master, which mean the same; remove one");
    tf_refuses(CLUSTER "\"rpc_layer\": \"grpc\"}",
               "TF_CONFIG: task.type is missing; set it to this process's role in the cluster");
    tf_refuses(CLUSTER "\"task\": {\"type\": \"boss\", \"index\": 0}}",
               "TF_CONFIG: task.type must be chief, master, worker, ps or evaluator, not \"boss\"");
    tf_refuses(CLUSTER "\"task\": {\"type\": \"worker\", \"index\": 0.5}}",
               "TF_CONFIG: task.index must be an integer from 0 to 1023");
    tf_refuses(CLUSTER "\"task\": {\"type\": \"chief\", \"index\": 1}}",
               "TF_CONFIG: task.index of the chief must be 0, not 1");
}

int main(void)
{
    return check_run(NULL, NULL);
}
