/* The API over a real server and client: known values come as JSON, unknown ones as null, and the end is announced. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text/json.h"
#include "net/socket.h"
#include "observe/api.h"
#include "observe/top/top.h"
#include "tests/check.h"

struct world {
    struct board board;
    struct api_run run;
    struct api api;
    struct http_server *server;
    struct guard guard;
    struct wake wake;
    struct client *client;
};

static void tick(void *context)
{
    api_tick(context);
}

static int begin(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    struct error error;
    assert_non_null(world);
    board_create(&world->board, "local", 0, "/runs/digits");
    world->run = (struct api_run){.board = &world->board};
    world->api = (struct api){.runs = &world->run, .run_count = 1};
    const struct http_options options = {
        .host = "127.0.0.1", .routes = api_routes, .context = &world->api, .tick = tick, .most_bytes = 1 << 22};
    assert_true(http_server_start(&world->server, &options, &error));
    world->guard.address = (struct address){.host = "127.0.0.1", .port = http_server_port(world->server)};
    assert_true(wake_create(&world->wake, &error));
    world->client = client_create(&world->guard, &world->wake);
    assert_non_null(world->client);
    *state = world;
    return 0;
}

static int end(void **state)
{
    struct world *world = *state;
    client_destroy(world->client);
    http_server_stop(world->server);
    wake_destroy(&world->wake);
    board_destroy(&world->board);
    free(world);
    return 0;
}

/* The caller deletes it. */
static cJSON *ask(struct world *world, const char *path)
{
    struct error error;
    struct json_place place;
    char *body;
    size_t size;
    if (!client_get(world->client, path, &body, &size, &error) || !json_check(body, size, &place, &error)) {
        fail_msg("%s: %s", path, error.text);
    }
    cJSON *tree = json_build(body, size);
    free(body);
    assert_non_null(tree);
    return tree;
}

static void is_refused(struct world *world, const char *path, const char *why)
{
    struct error error;
    char *body;
    size_t size;
    assert_false(client_get(world->client, path, &body, &size, &error));
    if (!strstr(error.text, why)) {
        fail_msg("%s: \"%s\" lacks \"%s\"", path, error.text, why);
    }
}

static const cJSON *at(const cJSON *tree, const char *one, const char *other)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(tree, one), other);
    if (!value) {
        fail_msg("no %s.%s", one, other);
    }
    return value;
}

TEST_WITH(test_what_is_not_known_is_null, begin, end)
{
    struct world *world = *state;
    cJSON *tree = ask(world, "/api/status");
    assert_string_equal(at(tree, "run", "name")->valuestring, "digits");
    assert_string_equal(at(tree, "run", "state")->valuestring, "starting");
    assert_true(cJSON_IsNull(at(tree, "run", "waiting_for")) && cJSON_IsNull(at(tree, "run", "config_version")));
    assert_true(cJSON_IsNull(at(tree, "progress", "loss")) && cJSON_IsNull(at(tree, "progress", "best")));
    assert_true(cJSON_IsNull(at(tree, "progress", "eta_s")) && cJSON_IsNull(at(tree, "checkpoints", "last_step")));
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(tree, "rollout")));
    assert_int_equal(cJSON_GetArraySize(at(tree, "run", "extras")), 0);
    cJSON_Delete(tree);
}

static void fill(struct world *world)
{
    struct board_numbers *numbers = board_lock(&world->board);
    numbers->state = BOARD_TRAINING;
    numbers->global_step = 1200;
    numbers->last_step = 5000;
    numbers->metrics[0] = (struct board_metric){"accuracy", 0.5};
    numbers->metric_count = 1;
    strcpy(numbers->waiting_for, "worker 3 \"x\" \x1b \xff");
    board_unlock(&world->board);
    assert_true(board_begin_members(&world->board, 2));
    struct board_member *members = world->board.members;
    strcpy(members[0].role, "ps");
    strcpy(members[0].digest, "aa");
    strcpy(members[1].role, "worker");
    members[1].task = 7;
    members[1].is_missing = true;
    members[1].silent_ms = members[1].global_step = members[1].config_version = -1;
    members[1].loss = members[1].memory_bytes = (double)NAN;
    struct board_rollout *rollout = &world->board.rollout;
    rollout->is_under_way = true;
    rollout->version = 4;
    assert_true(board_begin_diff(rollout, 1));
    strcpy(rollout->diff[rollout->diff_count++], "train.batch_size: 50 -> 100");
}

TEST_WITH(test_what_is_known_is_told, begin, end)
{
    struct world *world = *state;
    fill(world); /* no request is in progress */
    cJSON *tree = ask(world, "/api/status");
    assert_non_null(strstr(at(tree, "run", "waiting_for")->valuestring, "worker 3 \"x\" \x1b ?, "));
    assert_true(at(tree, "progress", "last_step")->valuedouble == 5000);
    assert_true(cJSON_GetObjectItem(at(tree, "progress", "metrics"), "accuracy")->valuedouble == 0.5);
    assert_true(cJSON_GetObjectItem(tree, "missing")->valuedouble == 1);
    const cJSON *worker = cJSON_GetArrayItem(cJSON_GetObjectItem(tree, "members"), 1);
    assert_string_equal(cJSON_GetObjectItem(worker, "role")->valuestring, "worker");
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(worker, "missing")));
    static const char *const unknown[] = {"silent_ms", "global_step", "loss", "memory_bytes", "config_version"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        assert_true(cJSON_IsNull(cJSON_GetObjectItem(worker, unknown[i])));
    }
    const cJSON *line = cJSON_GetArrayItem(at(tree, "rollout", "diff"), 0);
    assert_string_equal(line->valuestring, "train.batch_size: 50 -> 100");
    cJSON_Delete(tree);
}

TEST_WITH(test_history_and_events_since, begin, end)
{
    struct world *world = *state;
    float values[HISTORY_SERIES] = {0.5F};
    for (int i = 0; i < 3; i++) {
        history_add(&world->board.history, 1000 + i, i, values);
        board_event(&world->board, "joined", "worker 1", i, "here");
    }
    cJSON *tree = ask(world, "/api/history?since=1000&series=loss");
    assert_int_equal(cJSON_GetArraySize(at(tree, "recent", "time")), 2);
    assert_int_equal(cJSON_GetArraySize(at(tree, "recent", "values")), 1);
    cJSON_Delete(tree);
    tree = ask(world, "/api/events?since=2");
    const cJSON *events = cJSON_GetObjectItem(tree, "events");
    assert_int_equal(cJSON_GetArraySize(events), 1);
    assert_true(cJSON_GetObjectItem(cJSON_GetArrayItem(events, 0), "id")->valuedouble == 3);
    cJSON_Delete(tree);
    is_refused(world, "/api/history?since=soon", "400");
    is_refused(world, "/api/events?since=1x", "400");
    is_refused(world, "/api/status?run=1", "404");
    is_refused(world, "/api/weights", "404");
    is_refused(world, "/api/nothing", "404");
}

static bool weights(void *context, char **json, size_t *size)
{
    const bool *has = context;
    *size = 2;
    return *has && (*json = strdup("{}"));
}

TEST_WITH(test_extras_are_listed_and_made_when_asked, begin, end)
{
    struct world *world = *state;
    bool has = true;
    world->run.extras = (struct api_extras){.make[EXTRA_WEIGHTS] = weights, .context = &has};
    cJSON *tree = ask(world, "/api/status");
    assert_int_equal(cJSON_GetArraySize(at(tree, "run", "extras")), 1);
    cJSON_Delete(tree);
    cJSON_Delete(ask(world, "/api/weights"));
    has = false;
    is_refused(world, "/api/weights", "404");
}

TEST_WITH(test_a_run_that_stands_still_is_not_healthy, begin, end)
{
    struct world *world = *state;
    struct error error;
    char *body;
    size_t size;
    atomic_store(&world->board.alive_s, clock_monotonic_s());
    assert_true(client_get(world->client, "/healthz", &body, &size, &error));
    assert_string_equal(body, "ok\n");
    free(body);
    struct board_numbers *numbers = board_lock(&world->board);
    numbers->state = BOARD_WAITING;
    strcpy(numbers->waiting_for, "worker 3 (c:2222)");
    board_unlock(&world->board);
    atomic_store(&world->board.alive_s, clock_monotonic_s() - API_STANDSTILL_S - 1);
    is_refused(world, "/healthz", "503: nothing has moved for 30");
    is_refused(world, "/healthz", " s: waiting for worker 3 (c:2222)");
    is_refused(world, "/readyz", "503: waiting for worker 3 (c:2222)");
}

/* Reads until the server closes the connection. */
static void read_all(int fd, char *text, size_t room)
{
    size_t size = 0;
    ssize_t n;
    do {
        assert_int_equal(wake_wait(fd, POLLIN, NULL, clock_monotonic_s() + 30), WAKE_READY);
        n = recv(fd, text + size, room - 1 - size, 0);
        size += n > 0 ? (size_t)n : 0;
    } while (n > 0);
    text[size] = '\0';
}

TEST_WITH(test_a_stream_hears_how_it_ended, begin, end)
{
    static const char request[] = "GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    static char text[1 << 16];
    struct world *world = *state;
    struct http_counts counts = {.streams = 0};
    struct error error;
    int fd;
    assert_true(socket_connect(&fd, &world->guard.address, NULL, clock_monotonic_s() + 30, &error));
    assert_int_equal(send(fd, request, sizeof request - 1, 0), sizeof request - 1);
    while (counts.streams == 0) {
        http_server_counts(world->server, &counts);
    }
    board_lock(&world->board)->state = BOARD_DONE;
    board_unlock(&world->board);
    board_event(&world->board, "done", NULL, -1, "over");
    atomic_store(&world->api.ends, true);
    http_server_drain(world->server, clock_monotonic_s() + 0.05);
    read_all(fd, text, sizeof text);
    close(fd);
    assert_non_null(strstr(text, "\"state\":\"done\""));
    assert_non_null(strstr(text, "\"text\":\"over\""));
    assert_string_equal(text + strlen(text) - 5, "0\r\n\r\n");
    http_server_counts(world->server, &counts);
    assert_int_equal(counts.streams, 0);
}

int main(void)
{
    return check_run(NULL, NULL);
}
