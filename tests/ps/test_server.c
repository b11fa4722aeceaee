/* A whole ps, over plain TCP: whom it admits, with how many connections each, and how long it stays. */
#include "tests/check.h"
#include "tests/ps/running.h"

static void refused(uint16_t reason, const char *why, enum member_role role, int index, const char *digest)
{
    struct error error;
    assert_int_equal(come(MOST - 1, role, index, 1, digest, &error), reason);
    if (!strstr(error.text, why)) {
        fail_msg("\"%s\" does not say \"%s\"", error.text, why);
    }
}

static void end_job(int client, enum job_state state)
{
    const struct message_end_job over = {.job_state = (uint8_t)state, .test_accuracy = NAN, .message = ""};
    ask_done(client, MESSAGE_end_job, &over);
}

/* --- Tests --- */

TEST(who_is_let_in)
{
    begin(nothing);
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    welcome(1, MEMBER_WORKER, 1, 1, NULL);
    welcome(2, MEMBER_OPERATOR, -1, 1, "");
    welcome(3, MEMBER_WORKER, 1, 1, ""); /* guests, who report */
    welcome(4, MEMBER_PS, 0, 1, "");
    refused(REFUSAL_MEMBER, "worker 2", MEMBER_WORKER, 2, NULL);
    refused(REFUSAL_MEMBER, "there is no worker 9: do all members have the same ps_hosts and worker_hosts?",
            MEMBER_WORKER, 9, "");
    refused(REFUSAL_MEMBER, "there is no ps 1: do all members", MEMBER_PS, 1, "");
    refused(REFUSAL_CONFIG, "", MEMBER_WORKER, 1, "0000000000000000000000000000000000000000000000000000000000000000");
    for (int i = 0; i < 5; i++) {
        assert_true(lives(i));
    }
    atomic_store(&asked_to_leave, SIGTERM);
    for (int i = 0; i < 5; i++) {
        goodbye(i, "ps 0 was asked to leave (SIGTERM)");
    }
    const char *log = end(signals_exit_status(SIGTERM));
    assert_non_null(strstr(log, "of 127.0.0.1, for 2 workers; INSECURE: plain text"));
    assert_non_null(strstr(log, "ps 0 leaves at global step 0: ps 0 was asked to leave (SIGTERM)"));
    assert_int_equal(times(told(), "stopping\n"), 1);
}

/* One connection too many costs a worker the one that was silent for longest, and costs nobody else any. */
TEST(links_that_died_make_room)
{
    begin(nothing);
    welcome(20, MEMBER_WORKER, 0, 1, NULL);
    for (int i = 0; i < SERVER_CONNECTIONS_PER_WORKER; i++) {
        welcome(i, MEMBER_WORKER, 1, 1, NULL);
    }
    for (int i = 0; i < SERVER_CONNECTIONS_PER_WORKER; i++) {
        assert_true(i == 2 || lives(i));
    }
    welcome(10, MEMBER_WORKER, 1, 1, NULL);
    assert_false(lives(2));
    for (int i = 0; i < SERVER_CONNECTIONS_PER_WORKER; i++) {
        assert_true(i == 2 || lives(i));
    }
    for (int i = 11; i < 11 + SERVER_CONNECTIONS_OF_GUEST; i++) {
        welcome(i, MEMBER_WORKER, 1, 1, "");
    }
    assert_true(lives(11));
    welcome(13, MEMBER_WORKER, 1, 2, ""); /* a guest's, of any process */
    assert_false(lives(12));
    assert_true(lives(10) && lives(11) && lives(13) && lives(20));
    atomic_store(&asked_to_leave, SIGINT);
    end(signals_exit_status(SIGINT));
}

/* Of the same number, they are somebody else all the same. */
TEST(a_ps_takes_no_place_of_a_worker)
{
    begin(nothing);
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    for (int i = 1; i <= SERVER_CONNECTIONS_OF_GUEST; i++) {
        welcome(i, MEMBER_WORKER, 0, 1, "");
    }
    for (int i = 10; i < 11 + SERVER_CONNECTIONS_OF_GUEST; i++) { /* one too many */
        welcome(i, MEMBER_PS, 0, 1, "");
    }
    assert_false(lives(10));
    assert_true(lives(0) && lives(1) && lives(2) && lives(11) && lives(12));
    atomic_store(&asked_to_leave, SIGTERM);
    end(signals_exit_status(SIGTERM));
}

/* Where it asks for decisions, where it reports, and where another one does: each has places of its own. */
TEST(the_connections_of_a_ps_are_of_two_kinds)
{
    ps.next = "127.0.0.1:1";
    begin((struct config_setting){"issync", "true"});
    for (int i = 0; i < SERVER_CONNECTIONS_OF_GUEST; i++) {
        welcome(i, MEMBER_PS, 1, 1, NULL);
    }
    for (int i = 10; i < 10 + SERVER_CONNECTIONS_OF_GUEST; i++) {
        welcome(i, MEMBER_PS, 1, 1, "");
    }
    for (int i = 20; i < 20 + SERVER_CONNECTIONS_OF_GUEST; i++) {
        welcome(i, MEMBER_PS, 0, 1, "");
    }
    assert_true(lives(0) && lives(1) && lives(10) && lives(11) && lives(20) && lives(21));
    atomic_store(&asked_to_leave, SIGTERM);
    end(signals_exit_status(SIGTERM));
    ps.next = NULL;
}

TEST(operators_are_bounded)
{
    begin(nothing);
    for (int i = 0; i < SERVER_OPERATORS; i++) {
        welcome(i, MEMBER_OPERATOR, -1, 1, "");
    }
    for (int i = 1; i < SERVER_OPERATORS; i++) {
        assert_true(lives(i));
    }
    /* Silence holds no place: another replaces the one that was silent for longest. */
    welcome(SERVER_OPERATORS, MEMBER_OPERATOR, -1, 1, "");
    for (int i = 1; i <= SERVER_OPERATORS; i++) {
        assert_true(lives(i));
    }
    assert_false(lives(0));
    struct error error;
    assert_int_equal(come(0, MEMBER_OPERATOR, -1, 1, "", &error), 0);
    assert_false(lives(1));
    atomic_store(&asked_to_leave, SIGTERM);
    end(signals_exit_status(SIGTERM));
}

/* A worker that hung up is replaced at once; a live one keeps its place. */
TEST(one_process_each)
{
    struct error error;
    begin(nothing);
    welcome(0, MEMBER_WORKER, 1, 1, NULL);
    welcome(1, MEMBER_WORKER, 1, 1, NULL);
    channel_close(&clients[0]);
    channel_close(&clients[1]);
    AWAIT(come(2, MEMBER_WORKER, 1, 2, NULL, &error) == 0);
    assert_true(lives(2));
    atomic_store(&asked_to_leave, SIGTERM);
    end(signals_exit_status(SIGTERM));
}

/* Done or failed, it leaves when all have left. */
TEST(a_job_that_is_over)
{
    static const enum job_state ends[] = {JOB_DONE, JOB_FAILED};
    for (int i = 0; i < 2; i++) {
        begin(nothing);
        welcome(0, MEMBER_WORKER, 0, 1, NULL);
        welcome(1, MEMBER_WORKER, 1, 1, NULL);
        restore(0);
        end_job(0, ends[i]);
        ask_done(0, MESSAGE_leave, &(struct message_leave){.message = ""});
        channel_close(&clients[0]);
        assert_true(lives(1)); /* it is waited for */
        ask_done(1, MESSAGE_leave, &(struct message_leave){.message = ""});
        channel_close(&clients[1]);
        const char *log = end(i == 0 ? 0 : 1);
        assert_non_null(strstr(log, i == 0 ? "leaves at global step 0: the job is done"
                                           : "leaves at global step 0: the job is over: it failed"));
    }
}

TEST(what_it_can_not_run)
{
    atomic_store(&asked_to_leave, 0);
    told();
    listen_in();
    load((struct config_setting){"task_index", "1"});
    assert_int_equal(server_run(&ps.config, NULL), 2);
    config_free(&ps.config);
    load((struct config_setting){"bind", "192.0.2.1"}); /* an address that no machine has */
    assert_int_equal(server_run(&ps.config, NULL), 1);
    config_free(&ps.config);
    const char *log = heard();
    assert_non_null(strstr(log, "task_index"));
    assert_non_null(strstr(log, "ps 0: can't listen on 192.0.2.1 port "));
    assert_string_equal(told(), "");
}

/* Whole variables by their names, and rows of others; or nothing. */
TEST(what_it_holds_is_announced)
{
    static const struct {
        const char *placement, *layers, *holds;
    } cases[] = {{"round_robin", "3,4,2", "ps 1 holds layer0/biases, layer1/biases: "},
                 {"ranges", "3,4,2", "ps 1 holds layer1/weights, layer1/biases: "},
                 {"ranges", "9,4", "ps 1 holds layer0/weights rows 5 to 8 of 9, layer0/biases: "}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct config_setting more[] = {
            {"placement", cases[i].placement}, {"layers", cases[i].layers}, {NULL, NULL}};
        listen_in();
        ps.first = "127.0.0.1:9";
        load_with(more);
        launch();
        atomic_store(&asked_to_leave, SIGTERM);
        const char *log = end(signals_exit_status(SIGTERM));
        ps.first = NULL;
        assert_non_null(strstr(log, "ps 1 of 2 listens on port "));
        if (!strstr(log, cases[i].holds)) {
            fail_msg("\"%s\" is not in:\n%s", cases[i].holds, log);
        }
    }
}

/* Each connection has its thread, and buffers that messages use only up to their length. */
TEST(memory_by_connections)
{
    struct model model;
    listen_in();
    load(nothing);
    model_layout(&model, &ps.config.model);
    const size_t none = server_memory(&model, &ps.config, 0, 0), one = server_memory(&model, &ps.config, 0, 1);
    assert_true(none >= 3 << 20);
    assert_int_equal(one - none, 64 * 1024 + 2 * model.float_count * sizeof(float));
    assert_int_equal(server_memory(&model, &ps.config, 0, 7) - none, 7 * (one - none));
    config_free(&ps.config);
    load((struct config_setting){"layers", "1000,1000,2"});
    model_layout(&model, &ps.config.model);
    assert_int_equal(server_memory(&model, &ps.config, 0, 1) - server_memory(&model, &ps.config, 0, 0),
                     64 * 1024 + 2 * (size_t)CONNECTION_BUFFER);
    config_free(&ps.config);
    heard();
}

int main(void)
{
    return check_run(NULL, NULL);
}
