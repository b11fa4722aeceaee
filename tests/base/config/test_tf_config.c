/* TF_CONFIG as controllers write it, and the message for every error in it. */
#include "base/config/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define CLUSTER "{\"cluster\": {\"chief\": [\"a:1\"], \"worker\": [\"b:1\", \"c:1\"], \"ps\": [\"d:1\", \"e:1\"]}, "

static void means(const char *text, const char *job_name, const char *task_index, const char *ps_hosts,
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

static void refuses(const char *text, const char *message)
{
    struct assignment parsed;
    struct error error = {""};
    assert_false(tf_config_parse(&parsed, text, &error));
    assert_string_equal(error.text, message);
    assignment_free(&parsed);
}

static void every_member(void **state)
{
    (void)state;
    const char *ps = "d:1,e:1", *workers = "a:1,b:1,c:1";
    means(CLUSTER "\"task\": {\"type\": \"chief\", \"index\": 0}}", "worker", "0", ps, workers);
    means(CLUSTER "\"task\": {\"type\": \"worker\", \"index\": 1}}", "worker", "2", ps, workers);
    means(CLUSTER "\"task\": {\"type\": \"ps\", \"index\": 1}, \"environment\": \"cloud\"}", "ps", "1", ps, workers);
    means(CLUSTER "\"task\": {\"type\": \"evaluator\", \"index\": 0}}", "evaluator", "0", ps, workers);
    means("{\"cluster\": {\"worker\": [\"b:1\", \"c:1\"], \"ps\": [\"d:1\"], \"evaluator\": [\"x:1\"]}, "
          "\"task\": {\"type\": \"worker\", \"index\": 1}}",
          "worker", "1", "d:1", "b:1,c:1");
    means("{\"cluster\": {\"master\": [\"a:1\"], \"ps\": [\"d:1\"]}, \"task\": {\"type\": \"master\"}}", "worker", "0",
          "d:1", "a:1");
}

static void one_process_alone(void **state)
{
    (void)state;
    means("{\"cluster\": {\"chief\": [\"a:1\"]}, \"task\": {\"type\": \"chief\", \"index\": 0}}", "local", "0", "",
          "a:1");
    means("{\"cluster\": {\"worker\": [\"a:1\"]}, \"task\": {\"type\": \"worker\", \"index\": 0}}", "local", "0", "",
          "a:1");
}

static void nothing_said(void **state)
{
    (void)state;
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

static void mistakes(void **state)
{
    (void)state;
    refuses("{\"cluster\": [1,]}", "TF_CONFIG:1:15: trailing comma; remove it");
    refuses("[]", "TF_CONFIG: must be an object: {\"cluster\": {...}, \"task\": {...}}");
    refuses(
        "{\"sparseCluster\": {\"worker\": {\"0\": \"a:1\"}, \"ps\": [\"b:1\"]}, "
        "\"task\": {\"type\": \"worker\", \"index\": 0}}",
        "TF_CONFIG: \"sparseCluster\" (of an operator with enableDynamicWorker) names only some of the members; turn "
        "that off, so that \"cluster\" lists all of them");
    refuses("{\"ps_hosts\": [\"a:1\"], \"worker_hosts\": [\"b:1\"]}",
            "TF_CONFIG: \"ps_hosts\" is not understood; it holds \"cluster\" and \"task\"");
    refuses("{\"cluster\": {\"ps_hosts\": [\"a:1\"], \"worker\": [\"b:1\"]}}",
            "TF_CONFIG: cluster.\"ps_hosts\" is not understood; it holds the lists chief (or master), worker, ps and "
            "evaluator: {\"worker\": [\"host:port\"], \"ps\": [\"host:port\"]}");
    refuses("{\"task\": {\"type\": \"worker\", \"index\": 3}}",
            "TF_CONFIG: has a \"task\" but no \"cluster\"; list the members: {\"cluster\": {\"worker\": "
            "[\"host:port\"], \"ps\": [\"host:port\"]}, \"task\": {...}}");
    refuses("{\"cluster\": 7}", "TF_CONFIG: cluster must be an object of lists: {\"worker\": [...], \"ps\": [...]}");
    refuses("{\"cluster\": {\"worker\": {\"0\": \"a:1\"}}}", "TF_CONFIG: cluster.worker must be a list of addresses");
    refuses("{\"cluster\": {\"worker\": [1]}}", "TF_CONFIG: cluster.worker must hold \"host:port\" strings");
    refuses("{\"cluster\": {\"ps\": [\"a:1,b:1\"]}}", "TF_CONFIG: cluster.ps must hold \"host:port\" strings");
    refuses("{\"cluster\": {\"chief\": [\"a:1\", \"b:1\"]}}", "TF_CONFIG: cluster.chief must be one address");
    refuses("{\"cluster\": {\"chief\": [\"a:1\"], \"master\": [\"b:1\"]}}",
            "TF_CONFIG: cluster has both a chief and a master, which mean the same; remove one");
    refuses(CLUSTER "\"rpc_layer\": \"grpc\"}",
            "TF_CONFIG: task.type is missing; set it to this process's role in the cluster");
    refuses(CLUSTER "\"task\": {\"type\": \"boss\", \"index\": 0}}",
            "TF_CONFIG: task.type must be chief, master, worker, ps or evaluator, not \"boss\"");
    refuses(CLUSTER "\"task\": {\"type\": \"worker\", \"index\": 0.5}}",
            "TF_CONFIG: task.index must be an integer from 0 to 1023");
    refuses(CLUSTER "\"task\": {\"type\": \"chief\", \"index\": 1}}",
            "TF_CONFIG: task.index of the chief must be 0, not 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_member),
        cmocka_unit_test(one_process_alone),
        cmocka_unit_test(nothing_said),
        cmocka_unit_test(mistakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
