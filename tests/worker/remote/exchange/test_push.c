/*
 * Several ps: how their shards reach one step, which workers are selected for a round, and what each answer, silence or
 * refusal of a push means.
 */
#include "tests/check.h"
#include "tests/worker/remote/exchange/several_ps.h"

/* --- Pushing --- */

/* Each ps gets its own part of the gradient; answers are combined: the worst counts, and the end only if all end. */
TEST(pushing)
{
    struct push_answer answer;
    struct error error;
    begin(3, "6,3", false, NULL);
    join();
    servers[0].staleness = 4;
    servers[1].staleness = 2;
    servers[1].step = 12;
    servers[0].value = 5;
    assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
    assert_true(was_told("ps 0: push 1 at version 20, step 10, token -1\n"));
    assert_true(was_told("ps 1: push 1 at version 21, step 10, token -1\n"));
    assert_int_equal(times(told(), "\n"), 2);
    assert_landed();
    assert_true(!answer.over && !answer.stale && !answer.not_finite);
    assert_int_equal(answer.staleness, 4);
    assert_int_equal(answer.global_step, 12);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(servers[i].push.local_step, 3);
        assert_int_equal(servers[i].push.examples, 50);
        assert_true(servers[i].push.loss == 0.5f);
    }
    for (int r = 0; r < 6; r++) {
        for (int c = 0; c < 3; c++) {
            assert_true(servers[0].gradient[r * bench.model.variables[0].stride + c] == (float)(r + 1));
        }
    }
    assert_true(servers[1].gradient[bench.model.variables[1].offset] == 101);
    servers[0].staleness = 1;
    const uint8_t outcomes[] = {PUSH_STALE, PUSH_NOT_FINITE, PUSH_NOT_WANTED};
    for (int i = 0; i < 3; i++) {
        for (int which = 0; which < 2; which++) {
            servers[which].outcome = outcomes[i];
            assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
            assert_int_equal(answer.stale, i == 0);
            assert_int_equal(answer.not_finite, i == 1);
            assert_int_equal(answer.over, false);
            assert_int_equal(answer.staleness, 2);
            servers[which].outcome = PUSH_APPLIED;
        }
    }
    servers[0].outcome = servers[1].outcome = PUSH_NOT_WANTED;
    assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
    assert_true(answer.over);
    servers[0].outcome = PUSH_APPLIED;
    assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
    assert_false(answer.over);
    end();
}

/*
 * A gradient that one ps must refuse is refused by all, which see only their parts: its loss tells them. The next one
 * is as good as ever.
 */
TEST(not_finite_for_one)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct push_answer answer;
    struct error error;
    begin(3, "6,3", false, NULL);
    join();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(push_with(bad[i], 10, &answer, &error), EXCHANGE_OK);
        assert_true(isnan(servers[0].push.loss) && isnan(servers[1].push.loss));
        assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
        assert_true(servers[0].push.loss == 0.5f && servers[1].push.loss == 0.5f);
    }
    end();
}

/* In step with others: shards that answer at an earlier step are asked until they have reached it, too. */
TEST(steps_in_common)
{
    const char *const settings[] = {"issync", "true", NULL};
    struct push_answer answer;
    struct error error;
    begin(3, "6,20,3", false, settings);
    join();
    servers[0].step = 12;
    servers[1].step = 11;
    servers[2].step = 10;
    servers[1].advances = servers[2].advances = true;
    assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
    assert_int_equal(answer.global_step, 12);
    assert_true(was_told("ps 1: push 1 at version 21, step 10, token 10\n"));
    const char *text = told();
    const char *last = strstr(text, "ps 2: pull since 23, after 11, waits\nps 1: pull since 22, after 11, waits\n");
    assert_non_null(last);
    assert_int_equal(times(text, "pull"), 2);
    assert_landed();
    assert_int_equal(bench.exchange.parts[2].global_step, 12);
    servers[0].advances = true;
    servers[1].step = 12;
    assert_int_equal(push_pull_await_step(&bench.exchange, 12, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: pull since 21, after 12, waits\nps 1: pull since 23, after 12, waits\n"
                                "ps 2: pull since 24, after 12, waits\n");
    assert_int_equal(bench.exchange.global_step, 13);
    servers[0].step = 20;
    servers[1].advances = false;
    atomic_store(&bench.needs_rejoin, true);
    assert_int_equal(push(13, &answer, &error), EXCHANGE_REJOIN);
    assert_string_equal(error.text, "the model is lost");
    assert_null(strstr(told(), "pull"));
    atomic_store(&bench.given_up, true);
    assert_int_equal(push(13, &answer, &error), EXCHANGE_STOPPED);
    assert_int_equal(answer.global_step, 20);
    servers[0].fails[MESSAGE_pull] = ERROR_OLD_GENERATION;
    assert_int_equal(push_pull_await_step(&bench.exchange, 20, &error), EXCHANGE_REJOIN);
    end();
}

/* Without common steps nobody waits for a shard that is behind. */
TEST(steps_of_their_own)
{
    struct push_answer answer;
    struct error error;
    begin(2, "6,20,3", false, NULL);
    servers[1].step = 30;
    join();
    assert_int_equal(push(30, &answer, &error), EXCHANGE_OK);
    assert_int_equal(times(told(), "pull"), 0);
    assert_int_equal(answer.global_step, 30);
    end();
}

/*
 * While an answer is delayed, pings are answered; the caller can give up, or learn that waiting is pointless, and
 * connections on which an answer may still come are closed.
 */
TEST(waiting_for_answers)
{
    struct push_answer answer;
    struct error error;
    begin(2, "6,20,3", false, NULL);
    join();
    servers[1].pings = 3;
    assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
    assert_int_equal(atomic_load(&servers[1].pings_answered), 3);
    assert_int_equal(atomic_load(&bench.traffic.retries), 0);
    servers[1].pings = 0;
    for (int i = 0; i < 2; i++) {
        servers[1].fails[MESSAGE_push] = SILENCE;
        atomic_store(i == 0 ? &bench.given_up : &bench.needs_rejoin, true);
        assert_int_equal(push(10, &answer, &error), i == 0 ? EXCHANGE_STOPPED : EXCHANGE_REJOIN);
        assert_false(link_is_open(&bench.exchange.parts[1].link));
        atomic_store(i == 0 ? &bench.given_up : &bench.needs_rejoin, false);
        servers[1].fails[MESSAGE_push] = 0;
        bench.exchange.parts[1].link.next_try_s = 0;
        join();
    }
    assert_true(link_is_open(&bench.exchange.parts[0].link));
    end();
}

static void *free_after_two(void *context)
{
    struct server *server = context;
    while (atomic_load(&server->pushes) < 2) {
        usleep(1000);
    }
    server->fails[MESSAGE_push] = 0;
    return NULL;
}

/* A ps that gives no sign of life must answer on another connection. */
TEST(silence)
{
    struct push_answer answer;
    struct error error;
    pthread_t thread;
    begin(2, "6,20,3", false, NULL);
    join();
    servers[1].fails[MESSAGE_push] = SILENCE;
    bench.exchange.parts[1].link.idle_timeout_s = 0.1;
    assert_int_equal(pthread_create(&thread, NULL, free_after_two, &servers[1]), 0);
    assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
    pthread_join(thread, NULL);
    assert_true(atomic_load(&servers[1].pushes) >= 2);
    assert_int_equal(servers[1].push.sequence, 1);
    assert_true(atomic_load(&servers[1].member.connections) >= 2);
    assert_int_equal(atomic_load(&servers[0].member.connections), 1);
    assert_int_equal(atomic_load(&servers[0].pushes), 1);
    assert_int_equal(times(heard_so_far(), "no sign of life for "), atomic_load(&servers[1].member.connections) - 1);
    assert_landed();
    end();
}

static void *pass_time(void *context)
{
    struct server *server = context;
    while (atomic_load(&server->pushes) < 2) {
        usleep(1000);
    }
    usleep(100000);
    atomic_store(&jumped_s, 12);
    const double until_s = story_s() + STORY_PATIENCE_S;
    while (!strstr(heard_so_far(), "waiting for ") && story_s() < until_s) {
        usleep(1000);
    }
    usleep(600000);
    atomic_store(&bench.given_up, true);
    return NULL;
}

/* A long wait is logged with whom it waits for, and with that ps's own message; once in ten seconds. */
TEST(long_waits_are_told)
{
    struct push_answer answer;
    struct error error;
    pthread_t thread;
    begin(2, "6,20,3", false, NULL);
    join();
    bench.exchange.parts[1].link.idle_timeout_s = 100;
    servers[1].fails[MESSAGE_push] = SILENCE;
    assert_int_equal(pthread_create(&thread, NULL, pass_time, &servers[1]), 0);
    atomic_store(&servers[1].pushes, 1);
    assert_int_equal(push(10, &answer, &error), EXCHANGE_STOPPED);
    pthread_join(thread, NULL);
    assert_int_equal(times(heard_so_far(), "waiting for "), 1);
    assert_non_null(strstr(heard_so_far(), "waiting for ps 1 (127.0.0.1:"));
    static const char words[] = " to answer push 1, ";
    const char *told_s = strstr(heard_so_far(), words);
    assert_non_null(told_s);
    assert_in_range(atoi(told_s + strlen(words)), 10, 12 + STORY_PATIENCE_S);
    end();
}

/* An answer to another request, or of another type, costs the connection, and the push is sent again. */
TEST(pushes_answered_wrongly)
{
    const int ways[] = {OTHER_REQUEST, BEYOND, OTHER_ANSWER, NO_ANSWER};
    struct push_answer answer;
    struct error error;
    begin(2, "6,20,3", false, NULL);
    join();
    for (int i = 0; i < 4; i++) {
        servers[1].fails[MESSAGE_push] = ways[i];
        assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
        assert_int_equal(atomic_load(&servers[1].member.connections), 2 + i);
        assert_int_equal(atomic_load(&servers[1].pushes), 2 * (i + 1));
        assert_int_equal(servers[1].push.sequence, i + 1);
        assert_int_equal(atomic_load(&servers[0].pushes), i + 1);
        assert_landed();
    }
    atomic_store(&servers[1].member.incarnation, 999); /* another process: it knows nothing of our parameters */
    servers[1].fails[MESSAGE_push] = NO_ANSWER;
    assert_int_equal(push(10, &answer, &error), EXCHANGE_REJOIN);
    assert_non_null(strstr(error.text, "is a new process now"));
    join();
    assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
    end();
}

/* --- Rounds with participation below 1 --- */

/* A worker that is not selected pulls a single float until it is; the deciding ps says who is. */
TEST(rounds)
{
    const char *const settings[] = {"issync", "true", "local_steps", "4", "participation", "0.5", NULL};
    struct push_pull *exchange = &bench.exchange;
    struct error error;
    begin(2, "6,20,3", false, settings);
    servers[0].token = 10;
    servers[1].token = 3;
    join();
    assert_true(push_pull_is_asked(exchange));
    servers[0].token = -1;
    servers[0].step = 11;
    assert_int_equal(push_pull_await_round(exchange, 10, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: pull of little since 0, after 10, waits\n");
    assert_int_equal(exchange->global_step, 11);
    assert_false(push_pull_is_asked(exchange));
    servers[0].token = 12; /* and then all of it is pulled, from both */
    servers[0].step = 12;
    servers[1].advances = servers[0].advances = true;
    servers[0].value = 55;
    assert_int_equal(push_pull_await_round(exchange, 11, &error), EXCHANGE_OK);
    assert_true(push_pull_is_asked(exchange));
    assert_string_equal(told(), "ps 0: pull of little since 0, after 11, waits\n"
                                "ps 0: pull since 20, after 11, waits\nps 1: pull since 21, after 11, waits\n");
    assert_landed();
    assert_int_equal(exchange->global_step, 12);
    end();
}

TEST(rounds_fail)
{
    const char *const settings[] = {"issync", "true", "local_steps", "4", "participation", "0.5", NULL};
    struct push_pull *exchange = &bench.exchange;
    struct error error;
    begin(2, "6,20,3", false, settings);
    join();
    assert_false(push_pull_is_asked(exchange));
    servers[0].fails[MESSAGE_pull] = ERROR_OLD_GENERATION;
    assert_int_equal(push_pull_await_round(exchange, 10, &error), EXCHANGE_REJOIN);
    servers[0].fails[MESSAGE_pull] = ERROR_NOT_ALLOWED;
    assert_int_equal(push_pull_await_round(exchange, 10, &error), EXCHANGE_FAILED);
    const int ways[] = {NO_ANSWER, OTHER_ANSWER, BEYOND, NONE, HALF};
    for (int i = 0; i < 5; i++) {
        assert_true(link_is_open(&exchange->parts[0].link));
        servers[0].fails[MESSAGE_pull] = ways[i];
        servers[0].token = 10;
        assert_int_equal(push_pull_await_round(exchange, 10, &error), EXCHANGE_OK); /* to be asked again */
        assert_false(link_is_open(&exchange->parts[0].link));
        assert_false(push_pull_is_asked(exchange));
        servers[0].token = -1;
        exchange->parts[0].link.next_try_s = 0;
        assert_int_equal(push_pull_await_round(exchange, 10, &error), EXCHANGE_OK);
    }
    servers[0].fails[MESSAGE_pull] = NO_ANSWER;
    atomic_store(&bench.given_up, true);
    assert_int_equal(push_pull_await_round(exchange, 10, &error), EXCHANGE_STOPPED);
    atomic_store(&bench.needs_rejoin, true);
    told();
    assert_int_equal(push_pull_await_round(exchange, 10, &error), EXCHANGE_REJOIN);
    assert_string_equal(told(), "");
    end();
}

/* A worker that waits to be selected does not wait for a silent ps, nor after it is told to stop. */
TEST(rounds_of_a_silent_ps)
{
    const char *const settings[] = {"issync", "true", "local_steps", "4", "participation", "0.5", NULL};
    struct push_pull *exchange = &bench.exchange;
    struct error error;
    for (int stops = 0; stops < 2; stops++) {
        begin(2, "6,20,3", false, settings);
        join();
        servers[0].fails[MESSAGE_pull] = SILENCE;
        exchange->parts[0].link.idle_timeout_s = stops ? 100 : 0.2;
        atomic_store(&bench.given_up, stops);
        const double begun_s = clock_monotonic_s();
        assert_int_equal(push_pull_await_round(exchange, 10, &error), stops ? EXCHANGE_STOPPED : EXCHANGE_OK);
        const double took_s = clock_monotonic_s() - begun_s;
        assert_true(stops ? took_s >= 0.9 && took_s < 50 : took_s >= 1.2);
        assert_false(link_is_open(&exchange->parts[0].link));
        assert_int_equal(times(heard_so_far(), "no answer from ps 0 (127.0.0.1:"), !stops);
        end();
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
