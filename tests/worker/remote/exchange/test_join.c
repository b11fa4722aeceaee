/* Several ps: which is asked for what and in which order, when shards fit together, and what is pulled from them. */
#include "tests/check.h"
#include "tests/worker/remote/exchange/several_ps.h"

/* --- Joining --- */

/* All have a model of one generation, and then all of it is pulled; ps without parameters are sent no requests. */
TEST(joining)
{
    struct error error;
    begin(3, "6,3", false, NULL);
    servers[1].step = 12;
    servers[2].step = 99;
    assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: get_model\nps 1: get_model\nps 2: get_model\n"
                                "ps 0: pull since 0, after -1\nps 1: pull since 0, after -1\n");
    assert_landed();
    assert_int_equal(bench.exchange.generation, 4);
    assert_int_equal(bench.exchange.global_step, 12);
    servers[0].value = 7;
    servers[1].step = 3;
    servers[0].step = 4;
    assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK); /* after a restore, say */
    assert_int_equal(bench.exchange.global_step, 4);
    assert_landed();
    servers[0].value = 8;
    told();
    assert_int_equal(push_pull_refresh(&bench.exchange, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: pull since 0, after -1\nps 1: pull since 0, after -1\n");
    assert_landed();
    end();
}

/* A ps that is not ready is asked again, and those after it are not asked meanwhile; people learn what it waits for. */
TEST(unready)
{
    const uint8_t states[] = {MODEL_ABSENT, MODEL_BEING_WRITTEN, MODEL_READY};
    struct error error;
    for (int i = 0; i < 3; i++) {
        begin(2, "6,20,3", false, NULL);
        servers[0].unready = 2;
        servers[1].unready = 1;
        servers[0].unready_state = servers[1].unready_state = states[i];
        servers[0].message = servers[1].message = "waiting for better days";
        assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
        assert_string_equal(told(), "ps 0: get_model\nps 0: get_model\nps 0: get_model\nps 1: get_model\n"
                                    "ps 0: get_model\nps 1: get_model\n"
                                    "ps 0: pull since 0, after -1\nps 1: pull since 0, after -1\n");
        assert_int_equal(times(heard_so_far(), ": waiting for better days\n"), 1); /* not each time */
        assert_landed();
        servers[1].unready = 1;
        bench.exchange.parts[1].link.quiet = true;
        atomic_store(&jumped_s, 11);
        join();
        assert_int_equal(times(heard_so_far(), ": waiting for better days\n"), 1);
        servers[0].unready = 2;
        join();
        assert_int_equal(times(heard_so_far(), ": waiting for better days\n"), 2); /* ten seconds later */
        end();
    }
}

static void *pass_five_seconds(void *context)
{
    const bool is_chief = *(const int *)context;
    AWAIT(was_told("get_model"));
    const double until_s = story_s() + (is_chief ? 4 : 0.3);
    while (story_s() < until_s && !(is_chief && was_told("ps 1: get_model\nps 0: get_model\n"))) {
        usleep(1000);
    }
    tell("five seconds later\n");
    atomic_store(&jumped_s, atomic_load(&jumped_s) + 5);
    return NULL;
}

/* With very many workers none has a ps wait for it: each asks again later. The chief does not wait that long. */
TEST(unready_for_very_many)
{
    struct error error;
    pthread_t thread;
    for (int is_chief = 0; is_chief < 2; is_chief++) {
        begin(2, "6,20,3", false, NULL);
        const int hosts = bench.config.cluster.worker_hosts.count;
        bench.config.cluster.worker_hosts.count = 1000;
        bench.config.cluster.task_index = is_chief ? 0 : 1;
        servers[1].unready = 1;
        assert_int_equal(pthread_create(&thread, NULL, pass_five_seconds, &is_chief), 0);
        assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
        pthread_join(thread, NULL);
        const char *text = told();
        const char *again = strstr(strstr(text, "ps 1: get_model\n"), "ps 0: get_model\n");
        assert_non_null(again);
        assert_int_equal(again > strstr(text, "five seconds later\n"), !is_chief);
        assert_int_equal(servers[1].wait_ms, is_chief ? 500 : 0);
        bench.config.cluster.worker_hosts.count = hosts;
        end();
    }
}

/* Shards of different generations do not fit together: they are asked again until they do. */
TEST(generations)
{
    struct error error;
    begin(3, "6,20,3", false, NULL);
    servers[0].generation = servers[2].generation = 5;
    servers[1].later_generation = 5;
    assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: get_model\nps 1: get_model\nps 0: get_model\nps 1: get_model\nps 2: get_model\n"
                                "ps 0: pull since 0, after -1\nps 1: pull since 0, after -1\n"
                                "ps 2: pull since 0, after -1\n");
    assert_int_equal(bench.exchange.generation, 5);
    assert_landed();
    end();
}

/* A caller that would have to write the model itself does not wait for it. */
TEST(who_writes_the_model)
{
    struct error error;
    begin(2, "6,20,3", true, NULL);
    servers[1].unready = 1;
    servers[1].message = "a model";
    assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_REJOIN);
    assert_string_equal(told(), "ps 0: get_model\nps 1: get_model\n");
    servers[1].generation = 5;
    assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_REJOIN);
    assert_string_equal(told(), "ps 0: get_model\nps 1: get_model\n");
    servers[1].generation = 4;
    servers[1].unready = 1;
    servers[1].unready_state = MODEL_READY; /* for others to wait for */
    assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
    assert_landed();
    servers[1].fails[MESSAGE_get_model] = NO_ANSWER; /* says nothing about a model */
    assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
    end();
}

/* A ps that holds other parts of the model has another program, or other data. */
TEST(other_parts)
{
    struct error error;
    for (int i = 0; i < 5; i++) {
        begin(2, "6,20,3", false, NULL);
        servers[1].float_count = i == 0;
        servers[1].first = i == 1;
        servers[1].count = i == 2;
        servers[1].ranges = i == 3 ? 1 : i == 4 ? -1 : 0;
        assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_FAILED);
        assert_non_null(strstr(error.text, "ps 1 (127.0.0.1:"));
        assert_non_null(strstr(error.text, "holds other parts of the model than it should"));
        assert_null(strstr(error.text, "worker 0's data")); /* layers are given */
        assert_null(strstr(told(), "pull"));
        end();
    }
}

/* How joining treats errors: some are temporary, some final, and the caller may give up. */
TEST(joining_fails)
{
    const int passing[] = {ERROR_NOT_READY, ERROR_OLD_GENERATION, ERROR_JOB_OVER, NO_ANSWER, OTHER_ANSWER};
    const int types[] = {MESSAGE_get_model, MESSAGE_pull};
    struct error error;
    for (int t = 0; t < 2; t++) {
        begin(2, "6,20,3", false, NULL);
        for (int i = 0; i < 5; i++) {
            servers[1].fails[types[t]] = passing[i];
            assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
            assert_landed();
        }
        assert_int_equal(atomic_load(&servers[1].member.connections), 3);
        assert_int_equal(atomic_load(&bench.traffic.retries), 2);
        servers[1].fails[types[t]] = ERROR_NOT_ALLOWED;
        assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_FAILED);
        assert_non_null(strstr(error.text, "as the test wants"));
        atomic_store(&bench.given_up, true); /* what is ready is taken anyway */
        assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
        servers[1].unready = 1000;
        assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_STOPPED);
        end();
    }
    begin(2, "6,20,3", false, NULL);
    atomic_store(&servers[1].member.refusal, REFUSAL_MEMBER);
    assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_FAILED);
    assert_non_null(strstr(error.text, "as the test wants"));
    end();
}

/* An answer that is not this pull's, or names what the ps does not hold, ends the connection. */
TEST(pulls_answered_wrongly)
{
    const int ways[] = {OTHER_REQUEST, BEYOND, OTHER_ANSWER};
    const char *const texts[] = {"answer to a request that was not made", "are not all its own",
                                 "answered pull with pong"};
    struct error error;
    begin(2, "6,20,3", false, NULL);
    join();
    for (int i = 0; i < 3; i++) {
        servers[1].fails[MESSAGE_pull] = ways[i];
        servers[1].value++;
        assert_int_equal(push_pull_refresh(&bench.exchange, &error), EXCHANGE_OK);
        assert_int_equal(atomic_load(&servers[1].member.connections), 2 + i);
        assert_non_null(strstr(heard_so_far(), texts[i]));
        assert_landed();
    }
    end();
}

/* It waits for a step that others make, including the very first one. */
TEST(the_first_step)
{
    const char *const settings[] = {"issync", "true", NULL};
    struct error error;
    begin(2, "6,20,3", false, settings);
    servers[0].step = servers[1].step = 0;
    servers[0].advances = servers[1].advances = true;
    join();
    assert_int_equal(push_pull_await_step(&bench.exchange, 0, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: pull since 20, after 0, waits\nps 1: pull since 21, after 0, waits\n");
    assert_int_equal(bench.exchange.global_step, 1);
    end();
}

/*
 * With packed answers, a full answer is the sent model. The worker still has it when it pulls again, after the engine
 * was used for something else: then it requests only the changes since.
 */
TEST(what_was_told_is_known)
{
    const char *const settings[] = {"issync", "true", "wire_dtype", "int8", NULL};
    struct error error;
    begin(2, "6,20,3", false, settings);
    join();
    assert_landed();
    memset(bench.engine.parameters, 0, bench.model.float_count * sizeof(float));
    servers[0].knows = servers[1].knows = true;
    assert_int_equal(push_pull_refresh(&bench.exchange, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: pull since 20, after -1\nps 1: pull since 21, after -1\n");
    assert_landed();
    servers[1].fails[MESSAGE_pull] = BEYOND; /* an error costs the connection, and everything is sent again */
    servers[1].knows = false;
    servers[1].value = 7;
    assert_int_equal(push_pull_refresh(&bench.exchange, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: pull since 20, after -1\nps 1: pull since 21, after -1\n"
                                "ps 1: pull since 0, after -1\n");
    assert_non_null(strstr(heard_so_far(), "are not all its own"));
    assert_landed();
    bench.engine.engine.table = &engine_that_fails;
    assert_int_equal(push_pull_refresh(&bench.exchange, &error), EXCHANGE_FAILED);
    assert_string_equal(error.text, "the engine fails");
    end();
}

/* Answers truncated in the middle of a float, to pulls and to pushes, wherever floats land and however packed. */
TEST(answers_that_break_off)
{
    static const char *const plain[] = {"issync", "true", NULL};
    static const char *const packed[] = {"issync", "true", "wire_dtype", "int8", NULL};
    static const struct engine_table *const tables[] = {&fake_engine_near, &fake_engine_far};
    struct push_answer answer;
    struct error error;
    for (int i = 0; i < 4; i++) {
        begin(2, "6,20,3", false, i < 2 ? plain : packed);
        bench.engine.engine.table = tables[i % 2];
        join();
        assert_landed();
        servers[1].fails[MESSAGE_pull] = TORN;
        servers[1].value = 5;
        assert_int_equal(push_pull_refresh(&bench.exchange, &error), EXCHANGE_OK);
        assert_landed();
        assert_int_equal(atomic_load(&servers[1].member.connections), 2);
        if (i < 2) { /* these servers don't accept packed pushes */
            servers[1].fails[MESSAGE_push] = TORN;
            servers[1].value = 6;
            assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
            assert_landed();
            assert_int_equal(atomic_load(&servers[1].pushes), 2);
            assert_int_equal(servers[1].push.sequence, 1);
            assert_int_equal(atomic_load(&servers[1].member.connections), 3);
        }
        assert_int_equal(atomic_load(&servers[0].member.connections), 1);
        end();
    }
}

/* Data that nobody requested, or more than there can be, costs the connection, and is pulled again. */
TEST(answers_as_nobody_asked)
{
    static const char *const plain[] = {"issync", "true", NULL};
    static const char *const halves[] = {"wire_dtype", "bfloat16", NULL};
    static const struct {
        const char *const *settings;
        enum dtype dtype;
        size_t bytes;
        const char *said;
    } cases[] = {{plain, DTYPE_DIFFERENCES, 100, "sent parameters packed in a way that was not requested"},
                 {plain, DTYPE_INT8, 52, "sent parameters packed in a way that was not requested"},
                 {halves, DTYPE_DIFFERENCES, 65537, "65537 bytes of packed parameters, more than there can be"},
                 {halves, DTYPE_DIFFERENCES, 65536, "bytes more than packed parameters take"}};
    struct error error;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(2, "6,20,3", false, cases[i].settings);
        join();
        servers[1].odd.dtype = cases[i].dtype;
        servers[1].odd.bytes = cases[i].bytes;
        servers[1].value = 9;
        assert_int_equal(push_pull_refresh(&bench.exchange, &error), EXCHANGE_OK);
        if (times(heard_so_far(), cases[i].said) != 1) {
            fail_msg("not \"%s\" but %s", cases[i].said, heard());
        }
        assert_landed();
        end();
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
