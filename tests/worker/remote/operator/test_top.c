/*
 * `trainer top` on the ps of a cluster: their reports as the run that is shown, changes as events, and which of the two
 * sources a config selects. Drawing has its own tests.
 */
#include "observe/top/top.h"
#include "tests/check.h"

#include <math.h>
#include <sys/resource.h>

#include "base/cli/commands.h"
#include "base/clock.h"
#include "ps/status.h"
#include "tests/worker/remote/story.h"

enum { MEMBERS = 4 }; /* ps 0, ps 1, worker 0, worker 1 */

bool __wrap_status_query_create(struct status_query **query, const struct config *config, struct error *error);
const struct board_member *__wrap_status_query_ask(struct status_query *query, double timeout_s, int *count);
void __wrap_status_query_destroy(struct status_query *query);
bool __wrap_top_show(const struct top_source *source, const struct top_options *options, struct error *error);

static struct board_member members[MEMBERS];
static bool has_query = true;
static int queries; /* open ones */
static void (*look)(const struct top_source *source, const struct top_options *options);
static bool is_shown = true;

bool __wrap_status_query_create(struct status_query **query, const struct config *config, struct error *error)
{
    assert_int_equal(config->cluster.ps_hosts.count, 2);
    *query = has_query ? (struct status_query *)(void *)&members : NULL;
    queries += has_query;
    return has_query || error_set(error, "no query");
}

const struct board_member *__wrap_status_query_ask(struct status_query *query, double timeout_s, int *count)
{
    assert_ptr_equal(query, &members);
    assert_true(timeout_s >= 1 && timeout_s <= 5);
    *count = MEMBERS;
    return members;
}

void __wrap_status_query_destroy(struct status_query *query)
{
    queries -= query ? 1 : 0;
}

bool __wrap_top_show(const struct top_source *source, const struct top_options *options, struct error *error)
{
    assert_non_null(options->wake);
    if (look) {
        look(source, options);
    }
    return is_shown || error_set(error, "nothing can be shown");
}

static void set_members(void)
{
    memset(members, 0, sizeof members);
    for (int i = 0; i < MEMBERS; i++) {
        struct board_member *member = &members[i];
        snprintf(member->role, sizeof member->role, "%s", i < 2 ? "ps" : "worker");
        member->task = i % 2;
        snprintf(member->state, sizeof member->state, "%s", i < 2 ? "ready" : "training");
        snprintf(member->message, sizeof member->message, "says %d", i);
        member->global_step = 100 + i;
        member->generation = 3;
        member->steps_per_s = 10.0 + i;
        member->loss = i < 2 ? NAN : 0.5 * i; /* 1, 1.5 */
        member->bytes_in = 1000u << i;
        member->bytes_out = 1u << i;
    }
}

static const char named[] = "{\"fleet\":{\"name\":\"a fleet\"}}";
static const char *file = named; /* config.json */

/* The command, with these settings, once. */
static int run(const struct config_setting *settings, int count, const char **text)
{
    struct config config;
    struct error error;
    const struct command_call call = {.command = &command_top, .config = &config, .values = {NULL}};
    if (!config_parse(&config, "config.json", (const uint8_t *)file, strlen(file), settings, count, &error)) {
        fail_msg("%s", error.text);
    }
    listen_in();
    const int files = open_files();
    const int status = command_top.run(&call);
    assert_int_equal(open_files(), files);
    *text = heard();
    config_free(&config);
    assert_int_equal(queries, 0);
    return status;
}

static const struct config_setting plain[] = {
    {"insecure", "true"}, {"ps_hosts", "a:1,b:2"}, {"worker_hosts", "c:3,d:4"}, {"train_steps", "303"}};

static const struct history_bucket *newest(const struct board *board)
{
    return history_at(&board->history.recent, board->history.recent.count - 1);
}

static struct view_run shown;

static void ask(const struct top_source *source)
{
    struct error error;
    if (!source->ask(source->context, &error)) {
        fail_msg("%s", error.text);
    }
    source->fill(source->context, &shown);
}

/* --- Numbers --- */

static void look_at_numbers(const struct top_source *source, const struct top_options *options)
{
    struct board *board = &shown.board;
    assert_false(options->is_once || options->is_ascii);
    assert_string_equal(source->name, "a:1");
    const double begun_s = clock_wall_s();
    ask(source);
    assert_string_equal(board->name, "a fleet");
    assert_string_equal(board->role, "ps");
    assert_int_equal(board->member_count, MEMBERS);
    for (int i = 0; i < MEMBERS; i++) {
        assert_string_equal(board->members[i].message, members[i].message);
    }
    assert_int_equal(board->numbers.global_step, 103);
    assert_int_equal(board->numbers.last_step, 303);
    assert_int_equal(board->numbers.generation, 3);
    assert_int_equal(board->numbers.state, BOARD_TRAINING);
    assert_int_equal(board->numbers.bytes_in, 15000);
    assert_int_equal(board->numbers.bytes_out, 15);
    assert_true(board->loss == 1.25); /* the mean over workers */
    assert_true(board->steps_per_s == 10);
    assert_true(shown.eta_s == 20);
    assert_true(shown.time_s >= begun_s && shown.time_s <= clock_wall_s());
    assert_string_equal(shown.waiting_for, "");
    assert_int_equal(shown.missing, 0);
    assert_int_equal(board->history.recent.count, 1);
    const struct history_bucket *bucket = newest(board);
    assert_int_equal(bucket->step, 103);
    assert_true(bucket->values[history_series(&board->history, "loss")] == 1.25f);
    assert_true(bucket->values[history_series(&board->history, "steps_per_s")] == 10.0f);
    assert_true(isnan(bucket->values[history_series(&board->history, "another")]));

    members[2].is_missing = true; /* and its last report no longer counts */
    members[3].generation = 7;
    snprintf(members[0].message, sizeof members[0].message, "waiting for worker 0");
    members[0].steps_per_s = 0;
    ask(source);
    assert_int_equal(shown.missing, 1);
    assert_true(board->loss == 1.5);
    assert_int_equal(board->numbers.generation, 7);
    assert_int_equal(board->numbers.bytes_in, 15000);
    assert_string_equal(shown.waiting_for, "worker 0");
    assert_true(isnan(shown.eta_s));

    members[3].loss = NAN;
    members[0].loss = 9; /* from a ps it means nothing */
    members[0].steps_per_s = 5;
    members[3].generation = 2;
    members[1].global_step = 400; /* past the end */
    for (int i = 2; i < MEMBERS; i++) {
        snprintf(members[i].state, sizeof members[i].state, "waiting");
    }
    ask(source);
    assert_int_equal(shown.missing, 1); /* still */
    assert_true(isnan(board->loss));
    assert_int_equal(board->numbers.state, BOARD_WAITING);
    assert_int_equal(board->numbers.generation, 7);
    assert_int_equal(board->numbers.global_step, 400);
    assert_true(shown.eta_s == 0);
    members[1].global_step = 4; /* a restore goes back */
    ask(source);
    assert_int_equal(board->numbers.global_step, 103);
}

TEST(numbers)
{
    const char *text;
    set_members();
    memset(&shown, 0, sizeof shown);
    board_create(&shown.board, "", 0, "");
    look = look_at_numbers;
    assert_int_equal(run(plain, 4, &text), COMMAND_DONE);
    assert_string_equal(text, "");
    board_destroy(&shown.board);
}

static void look_at_no_name(const struct top_source *source, const struct top_options *options)
{
    ask(source);
    assert_string_equal(shown.board.name, "cluster");
    assert_int_equal(shown.board.numbers.last_step, -1);
    assert_true(isnan(shown.eta_s));
}

TEST(no_name_and_no_end)
{
    struct config_setting settings[4];
    const char *text;
    memcpy(settings, plain, sizeof settings);
    settings[3].text = "0";
    file = "{}";
    set_members();
    memset(&shown, 0, sizeof shown);
    board_create(&shown.board, "", 0, "");
    look = look_at_no_name;
    assert_int_equal(run(settings, 4, &text), COMMAND_DONE);
    file = named;
    board_destroy(&shown.board);
}

/* --- Events --- */

static void expect_event(int64_t id, const char *kind, const char *member, int64_t step, const char *text)
{
    struct board_event event;
    assert_true(board_event_from(&shown.board, id, &event));
    assert_int_equal(event.id, id);
    assert_string_equal(event.kind, kind);
    assert_string_equal(event.member, member);
    assert_int_equal(event.step, step);
    assert_string_equal(event.text, text);
}

static void set_state(int member, const char *name, bool is_missing)
{
    snprintf(members[member].state, sizeof members[member].state, "%s", name);
    members[member].is_missing = is_missing;
}

static void look_at_changes(const struct top_source *source, const struct top_options *options)
{
    struct error error;
    ask(source);
    ask(source); /* nothing happened */
    assert_int_equal(board_last_event(&shown.board), 0);
    set_state(3, "lost", true);
    ask(source);
    expect_event(1, "lost", "worker 1", 103, "worker 1 is lost");
    set_state(3, "training", false);
    set_state(1, "waiting", false);
    ask(source);
    expect_event(2, "state", "ps 1", 101, "ps 1 was ready and is waiting");
    expect_event(3, "joined", "worker 1", 103, "worker 1 is here");
    assert_int_equal(board_last_event(&shown.board), 3);
    members[0].is_missing = true; /* one ps that answers is enough */
    ask(source);
    members[1].is_missing = true;
    assert_false(source->ask(source->context, &error));
    assert_string_equal(error.text, "no ps answers: says 0");
}

TEST(changes)
{
    const char *text;
    set_members();
    memset(&shown, 0, sizeof shown);
    board_create(&shown.board, "", 0, "");
    look = look_at_changes;
    assert_int_equal(run(plain, 4, &text), COMMAND_DONE);
    board_destroy(&shown.board);
}

/* --- Which source --- */

static int looks;

static void look_at_a_member(const struct top_source *source, const struct top_options *options)
{
    looks++;
    assert_string_equal(source->name, "127.0.0.1:1");
}

TEST(sources)
{
    const struct config_setting nothing[] = {{"insecure", "true"}};
    const struct config_setting member[] = {
        {"insecure", "true"}, {"ps_hosts", "a:1,b:2"}, {"worker_hosts", "c:3"}, {"http", "127.0.0.1:1"}};
    struct config_setting without_token[] = {
        {"insecure", "true"}, {"http", "127.0.0.1:1"}, {"http_token_file", "/nowhere/token"}};
    const char *text;
    look = look_at_a_member;
    assert_int_equal(run(nothing, 1, &text), COMMAND_MISUSED);
    assert_non_null(strstr(text, "no run given"));
    assert_int_equal(looks, 0);
    assert_int_equal(run(member, 4, &text), COMMAND_DONE); /* even where there are ps */
    assert_int_equal(looks, 1);
    assert_int_equal(run(without_token, 3, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "/nowhere/token"));
    assert_int_equal(looks, 1);
    is_shown = false;
    assert_int_equal(run(member, 4, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "nothing can be shown"));
    look = NULL;
    assert_int_equal(run(plain, 4, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "nothing can be shown"));
    is_shown = true;
    has_query = false;
    assert_int_equal(run(plain, 4, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "no query"));
    has_query = true;
}

/* It does not begin without files. */
TEST(no_files)
{
    const struct config_setting member[] = {{"insecure", "true"}, {"http", "127.0.0.1:1"}};
    struct rlimit before;
    struct error error;
    set_members();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    listen_in();
    const struct rlimit none = {0, before.rlim_max};
    struct config config;
    const struct command_call call = {.command = &command_top, .config = &config, .values = {NULL}};
    assert_true(config_parse(&config, "config.json", (const uint8_t *)file, strlen(file), member, 2, &error));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const int status = command_top.run(&call);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    const char *text = heard();
    config_free(&config);
    assert_int_equal(status, COMMAND_FAILED);
    assert_int_equal(times(text, "Too many open files"), 1);
}

int main(void)
{
    return check_run(NULL, NULL);
}
