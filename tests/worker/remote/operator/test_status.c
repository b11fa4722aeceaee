/* `trainer status` of a cluster that says what the test wants: whose report counts, what is shown, what is missing. */
#include "ps/status.h"

#include <math.h>

#include "tests/check.h"

#include "base/cli/commands.h"
#include "base/log.h"
#include "tests/worker/remote/fake_member.h"
#include "tests/worker/remote/story.h"

enum { SERVERS = 2, MOST = 9 };

static const struct hello_identity self = {
    .program = "a program", .cluster = "", .digest = "d", .job = "{}", .lease_ms = 10000};

/* Each ps's reports, in order. */
static struct server {
    struct fake_member member;
    struct message_status says[MOST];
    int count;
    struct message_rounds rounds[2]; /* sent after all others */
    int round_count;
    int asked;
    bool asks_for_all;    /* the last request asked for all */
    int gone_after;       /* cut before this frame of the answer, counted from 1; 0: never */
    int silent;           /* requests that are not answered */
    enum message_type by; /* another answer; 0: the right one */
    int without_digest;   /* this many answers have no digest */
} servers[SERVERS];

static struct config config;

static bool answer(struct fake_member *member, struct channel *channel)
{
    struct server *server = &servers[member->member.index];
    struct error error;
    server->asked++;
    server->asks_for_all = channel->frame.type == MESSAGE_get_status && channel->message.get_status.members == 2;
    const uint64_t request = channel->frame.request;
    if (server->silent > 0) {
        server->silent--;
        return true;
    }
    for (int i = 0; i < server->count; i++) {
        struct message_status status = server->says[i];
        const struct message_pong pong = {1};
        if (server->without_digest > 0) {
            status.digest = "";
        }
        const bool other = server->by != 0 && i + 1 == server->count;
        const struct outgoing frame = {.type = other ? server->by : MESSAGE_status,
                                       .request = request,
                                       .message = other ? (const void *)&pong : &status,
                                       .more = i + 1 < server->count + server->round_count};
        if (server->gone_after == i + 1 || !channel_send_frame(channel, &frame, fake_member_soon(), &error)) {
            connection_flush(channel->connection, fake_member_soon(), &error);
            return false;
        }
    }
    for (int i = 0; i < server->round_count; i++) {
        const struct outgoing frame = {.type = MESSAGE_rounds,
                                       .request = request,
                                       .message = &server->rounds[i],
                                       .more = i + 1 < server->round_count};
        if (!channel_send_frame(channel, &frame, fake_member_soon(), &error)) {
            return false;
        }
    }
    server->without_digest--;
    return true;
}

static struct message_status ps_status(int index)
{
    return (struct message_status){.role = MEMBER_PS,
                                   .index = index,
                                   .state = STATE_READY,
                                   .silent_ms = 0,
                                   .generation = 3,
                                   .global_step = 12345 + index,
                                   .local_step = 77,
                                   .steps_per_s = 50.25f,
                                   .loss = NAN,
                                   .retries = 1,
                                   .bytes_in = 999,
                                   .bytes_out = 1000,
                                   .fleet_version = 4,
                                   .digest = "0123456789abcdef0123",
                                   .program = "trainer 1.0",
                                   .host = "box",
                                   .device = "CPU",
                                   .message = "",
                                   .memory_bytes = 1 << 20,
                                   .cpu_percent = 50,
                                   .gpu_percent = NAN};
}

static struct message_status worker_status(int index, uint32_t silent_ms)
{
    struct message_status status = ps_status(index);
    status.role = MEMBER_WORKER;
    status.state = STATE_TRAINING;
    status.silent_ms = silent_ms;
    status.global_step = 12000 + (int64_t)silent_ms;
    status.loss = 0.5f;
    status.staleness = 2;
    status.dropped = 3;
    status.bytes_in = 1536;
    status.bytes_out = 5ULL << 40;
    return status;
}

/* Both ps know two workers; ps 0 last heard worker 0, ps 1 worker 1. */
static void begin(void)
{
    struct error error;
    char ps_hosts[80];
    memset(servers, 0, sizeof servers);
    for (int i = 0; i < SERVERS; i++) {
        struct server *server = &servers[i];
        fake_member_listen(&server->member, MEMBER_PS, i);
        server->says[0] = ps_status(i);
        server->says[1] = worker_status(0, i == 0 ? 10 : 20);
        server->says[2] = worker_status(1, i == 0 ? 20 : 10);
        server->says[2].fleet_version = i == 0 ? 5 : 6; /* ps 0 knows better, fresher or not */
        server->says[2].digest = i == 0 ? "five" : "six";
        server->count = 3;
    }
    snprintf(ps_hosts, sizeof ps_hosts, "%s,%s", servers[0].member.host, servers[1].member.host);
    const struct config_setting settings[] = {
        {"insecure", "true"}, {"ps_hosts", ps_hosts}, {"worker_hosts", "10.0.0.1:1,10.0.0.2:2"}};
    listen_in();
    if (!config_load(&config, NULL, settings, 3, &error)) {
        fail_msg("%s", error.text);
    }
}

static void begin_all(void)
{
    begin();
    for (int i = 0; i < SERVERS; i++) {
        fake_member_start(&servers[i].member, &self, answer);
    }
}

static void end(void)
{
    for (int i = 0; i < SERVERS; i++) {
        fake_member_stop(&servers[i].member);
    }
    config_free(&config);
}

/* Its exit status; *text: its output. Addresses become ps0:1 and ps1:1. */
static int run(bool json, const char **text)
{
    static char plain[256 * 1024];
    const struct command_call call = {.command = &command_status, .config = &config, .values = {json ? "true" : NULL}};
    const int status = command_status.run(&call);
    log_setup(LOG_TEXT, LOG_INFO);
    snprintf(plain, sizeof plain, "%s", heard());
    for (int i = 0; i < SERVERS; i++) {
        char name[32];
        snprintf(name, sizeof name, "%-*s", (int)strlen(servers[i].member.host), i == 0 ? "ps0:1" : "ps1:1");
        for (char *at; (at = strstr(plain, servers[i].member.host));) {
            memcpy(at, name, strlen(name));
        }
    }
    char *warning = strstr(plain, "only on an isolated network\n");
    *text = warning ? warning + strlen("only on an isolated network\n") : plain;
    return status;
}

/* Each ps reports about itself; for workers the freshest report counts, but ps 0's on versions. */
TEST(a_table)
{
    const char *text;
    (void)state;
    begin_all();
    servers[0].says[2].message = "waits\nfor \x1b[31mps 1";
    servers[1].says[2].message = "waits for\tps 1";
    assert_int_equal(run(false, &text), COMMAND_DONE);
    assert_string_equal(text,
                        "MEMBER      STATE            STEP  STEPS/S STALE DROPPED RETRIES      IN     OUT ADDRESS"
                        "                HOST             DEVICE\n"
                        "ps 0        ready          12,345     50.2     0       0       1    999B    1.0K ps0:1"
                        "                  box              CPU\n"
                        "ps 1        ready          12,346     50.2     0       0       1    999B    1.0K ps1:1"
                        "                  box              CPU\n"
                        "worker 0    training       12,010     50.2     2       3       1    1.5K    5.0T 10.0.0.1:1"
                        "             box              CPU\n"
                        "worker 1    training       12,010     50.2     2       3       1    1.5K    5.0T 10.0.0.2:2"
                        "             box              CPU\n"
                        "            waits for ps 1\n"
                        "trainer 1.0, config version 4, digest 0123456789abcdef: ps 0 and all like it\n"
                        "trainer 1.0, config version 5, digest five: worker 1 and all like it\n");
    for (int i = 0; i < SERVERS; i++) {
        assert_int_equal(servers[i].asked, 1);
        assert_true(servers[i].asks_for_all);
        assert_int_equal(servers[i].member.peer.member.role, MEMBER_OPERATOR);
        assert_string_equal(servers[i].member.peer.digest, ""); /* it may ask, whatever config is here */
    }
    end();
}

/* Below a worker: its rounds, and its results on its own rows, as far as there are any. */
TEST(rounds_and_own_rows)
{
    const char *text;
    (void)state;
    begin_all();
    servers[0].round_count = 2;
    servers[0].rounds[0] = (struct message_rounds){.worker = 0,
                                                   .is_asked = 1,
                                                   .asked = 9,
                                                   .counted = 6,
                                                   .late = 1,
                                                   .missed = 2,
                                                   .cosine = 0.25f,
                                                   .validated = 60,
                                                   .validated_step = 12000,
                                                   .score = 0.5f,
                                                   .is_worst = 1};
    servers[0].rounds[1] = (struct message_rounds){
        .worker = 1, .asked = 1, .cosine = NAN, .norm = NAN, .validated = 1, .validated_step = 7, .score = NAN};
    assert_int_equal(run(false, &text), COMMAND_DONE);
    assert_non_null(strstr(text, "worker 0    training "));
    assert_non_null(strstr(text, "\n            rounds: asked 9, counted 6, late 1, missed 2; cosine 0.250; asked now\n"
                                 "            own rows: score 0.5000 of 60 at step 12,000; of the worst tenth\n"
                                 "worker 1    training "));
    assert_non_null(strstr(text, "\n            rounds: asked 1, counted 0, late 0, missed 0\n"
                                 "            own rows: 1 at step 7\n"
                                 "trainer 1.0, "));
    servers[0].rounds[0].asked = 0;
    servers[0].rounds[1].validated = 0;
    listen_in();
    assert_int_equal(run(false, &text), COMMAND_DONE);
    assert_int_equal(times(text, "rounds: "), 1);
    assert_int_equal(times(text, "own rows: "), 1);
    end();
}

/* A step of 0 is shown; without a step there is a dash. Differing programs and configs are listed, each once. */
TEST(steps_and_versions)
{
    const char *text;
    (void)state;
    begin_all();
    for (int i = 0; i < SERVERS; i++) {
        servers[i].says[0].global_step = i == 0 ? 0 : -1;
        servers[i].says[1].program = "trainer 2.0";
        servers[i].says[2].digest = servers[i].says[0].digest;
        servers[i].says[2].fleet_version = 9;
    }
    assert_int_equal(run(false, &text), COMMAND_DONE);
    assert_non_null(strstr(text, "ps 0        ready               0     50.2 "));
    assert_non_null(strstr(text, "ps 1        ready               -     50.2 "));
    assert_non_null(strstr(text, "\ntrainer 1.0, config version 4, digest 0123456789abcdef: ps 0 and all like it\n"
                                 "trainer 2.0, config version 4, digest 0123456789abcdef: worker 0 and all like it\n"
                                 "trainer 1.0, config version 9, digest 0123456789abcdef: worker 1 and all like it\n"));
    assert_null(strstr(text, "missing"));
    end();
}

#define MEMBER_JSON(role, task, address, state, missing, silent, step, loss, staleness, dropped, in, out)              \
    "{\"role\":\"" role "\",\"task\":" task ",\"address\":\"" address "\",\"host\":\"box\",\"state\":\"" state         \
    "\",\"missing\":" missing ",\"silent_ms\":" silent ",\"generation\":3,\"global_step\":" step                       \
    ",\"local_step\":77,\"steps_per_s\":50.25,\"loss\":" loss ",\"staleness\":" staleness ",\"dropped\":" dropped      \
    ",\"retries\":1,\"bytes_in\":" in ",\"bytes_out\":" out ",\"device\":\"CPU\",\"program\":\"trainer 1.0\","         \
    "\"config_version\":null,\"config_digest\":\"\",\"message\":\"\",\"memory_bytes\":1048576,"                        \
    "\"cpu_percent\":50,\"gpu_percent\":null,\"link\":\"\"}"

/* The same for programs, with --json or by the config. */
TEST(as_json)
{
    const char *text;
    (void)state;
    for (int by_config = 0; by_config < 2; by_config++) {
        begin_all();
        servers[0].count = servers[1].count = 2;
        servers[0].without_digest = servers[1].without_digest = 9;
        servers[0].says[1].state = STATE_LOST;
        config.output.log_format = by_config ? LOG_JSON : LOG_TEXT;
        log_setup(by_config ? LOG_JSON : LOG_TEXT, LOG_INFO);
        assert_int_equal(run(!by_config, &text), COMMAND_FAILED);
        const char *begin = strstr(text, "{\"event\":\"status\"");
        assert_non_null(begin);
        assert_string_equal(
            begin,
            "{\"event\":\"status\",\"missing\":2,\"members\":[" MEMBER_JSON(
                "ps", "0", "ps0:1          ", "ready", "false", "0", "12345", "null", "0", "0", "999",
                "1000") "," MEMBER_JSON("ps", "1", "ps1:1          ", "ready", "false", "0", "12346", "null", "0", "0",
                                        "999",
                                        "1000") "," MEMBER_JSON("worker", "0", "10.0.0.1:1", "lost", "true", "10",
                                                                "12010", "0.5", "2", "3", "1536",
                                                                "5497558138880") ","
                                                                                 "{\"role\":\"worker\",\"task\":1,"
                                                                                 "\"address\":\"10.0.0.2:2\",\"host\":"
                                                                                 "\"\",\"state\":\"absent\","
                                                                                 "\"missing\":true,\"silent_ms\":null,"
                                                                                 "\"generation\":0,\"global_step\":"
                                                                                 "null,\"local_step\":null,"
                                                                                 "\"steps_per_s\":0,\"loss\":null,"
                                                                                 "\"staleness\":0,\"dropped\":0,"
                                                                                 "\"retries\":0,\"bytes_in\":0,\"bytes_"
                                                                                 "out\":0,"
                                                                                 "\"device\":\"\",\"program\":\"\","
                                                                                 "\"config_version\":null,\"config_"
                                                                                 "digest\":\"\",\"message\":\"\","
                                                                                 "\"memory_bytes\":null,"
                                                                                 "\"cpu_percent\":null,"
                                                                                 "\"gpu_percent\":null,\"link\":\"\"}]}"
                                                                                 "\n");
        end();
    }
}

/* Byte counts as people read them. */
TEST(counts_of_bytes)
{
    const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0B"},
                 {999, "999B"},
                 {1000, "1.0K"},
                 {1536, "1.5K"},
                 {102300, "99.9K"},
                 {102400, "100K"},
                 {1023999, "1000K"},
                 {1024000, "1.0M"},
                 {5ULL << 30, "5.0G"},
                 {7ULL << 50, "7.0P"},
                 {UINT64_MAX, "16384P"}};
    (void)state;
    begin_all();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text;
        char wanted[64];
        servers[0].says[0].bytes_in = cases[i].bytes;
        assert_int_equal(run(false, &text), COMMAND_DONE);
        snprintf(wanted, sizeof wanted, " %7s    1.0K ps0:1", cases[i].text);
        assert_non_null(strstr(text, wanted));
        listen_in();
    }
    heard();
    end();
}

/* A ps that is absent, refuses, or breaks off is missing; the other's reports of the workers are shown. */
TEST(a_ps_is_missing)
{
    const char *text;
    (void)state;
    for (int i = 0; i < 4; i++) {
        begin();
        fake_member_start(&servers[0].member, &self, answer);
        const char *wanted = "";
        if (i == 0) {
            close(servers[1].member.listener);
            servers[1].member.listener = -1;
            wanted = "onnection refused";
        } else {
            atomic_store(&servers[1].member.refusal, i == 1 ? REFUSAL_MEMBER : 0);
            servers[1].gone_after = i == 2 ? 2 : 0;
            servers[1].by = i == 3 ? MESSAGE_pong : 0;
            fake_member_start(&servers[1].member, &self, answer);
            wanted = i == 1 ? "as the test wants" : i == 2 ? "closed" : "answered get_status with pong";
        }
        assert_int_equal(run(false, &text), COMMAND_FAILED);
        assert_non_null(strstr(text, "ps 1        absent "));
        assert_non_null(strstr(text, wanted));
        assert_non_null(strstr(text, "worker 1    training "));
        assert_non_null(strstr(text, "\n1 of 4 members missing\n"));
        assert_int_equal(servers[0].asked, i < 2 ? 2 : 1); /* a second query tells more about those that were silent */
        assert_int_equal(atomic_load(&servers[0].member.connections), 1);
        end();
    }
}

/* A worker that has just joined has no version yet: a second query a little later. One that is gone reports nothing. */
TEST(a_second_look)
{
    const char *text;
    (void)state;
    begin_all();
    servers[0].without_digest = servers[1].without_digest = 1;
    const double begun_s = clock_monotonic_s();
    assert_int_equal(run(false, &text), COMMAND_DONE);
    assert_true(clock_monotonic_s() - begun_s >= 0.2);
    assert_null(strstr(text, "config version -"));
    assert_int_equal(servers[0].asked, 2);
    end();
    begin_all();
    servers[0].says[2] = servers[1].says[2] = (struct message_status){.role = MEMBER_WORKER,
                                                                      .index = 1,
                                                                      .state = STATE_ABSENT,
                                                                      .silent_ms = UINT32_MAX,
                                                                      .global_step = -1,
                                                                      .local_step = -1,
                                                                      .loss = NAN,
                                                                      .digest = "",
                                                                      .program = "",
                                                                      .host = "",
                                                                      .device = "",
                                                                      .message = ""};
    assert_int_equal(run(false, &text), COMMAND_FAILED);
    assert_int_equal(servers[0].asked, 1);
    assert_non_null(strstr(text, "worker 1    absent              -"));
    assert_int_equal(times(text, "and all like it"), 1);
    end();
}

/*
 * Unlisted workers are shown once they join, however many this machine's config allows; reports of impossible ones are
 * ignored.
 */
TEST(workers_that_are_not_listed)
{
    const char *text;
    (void)state;
    begin_all();
    servers[0].says[3] = worker_status(5, 10);
    servers[0].says[4] = worker_status(CONFIG_MAX_WORKERS, 10);
    servers[0].says[5] = ps_status(2);
    servers[0].says[6] = worker_status(-1, 10);
    servers[0].says[7] = worker_status(3, 10);
    servers[0].says[7].role = MEMBER_OPERATOR;
    servers[0].says[8] = worker_status(5000, 10);
    servers[0].count = 9;
    assert_int_equal(run(false, &text), COMMAND_DONE);
    assert_int_equal(times(text, "not listed"), 2);
    assert_non_null(strstr(text, "\nworker 5    training "));
    assert_non_null(strstr(text, "\nworker 5000 training "));
    end();
}

/* A silent ps costs the time allowed for it; the connection is not used again, and the next query is fresh. */
TEST(a_ps_is_silent)
{
    struct status_query *query;
    struct error error;
    int count;
    (void)state;
    begin_all();
    servers[0].silent = 1;
    assert_true(status_query_create(&query, &config, &error));
    const double begun_s = clock_monotonic_s();
    const struct board_member *entries = status_query_ask(query, 10, &count); /* enough for the other */
    const double took_s = clock_monotonic_s() - begun_s;
    heard();
    assert_true(took_s >= 10);
    assert_int_equal(count, 4);
    assert_true(entries[0].is_missing);
    assert_string_equal(entries[0].state, "absent");
    assert_false(entries[1].is_missing);
    assert_string_equal(entries[3].digest, "six"); /* from ps 1, because ps 0 is silent */
    entries = status_query_ask(query, 60, &count);
    assert_false(entries[0].is_missing);
    assert_string_equal(entries[0].message, "");
    assert_string_equal(entries[3].digest, "five");
    assert_int_equal(entries[3].config_version, 5);
    assert_int_equal(atomic_load(&servers[0].member.connections), 2);
    assert_int_equal(atomic_load(&servers[1].member.connections), 1);
    status_query_destroy(query);
    end();
}

TEST(no_cluster)
{
    const struct command_call call = {.command = &command_status, .config = &config, .values = {NULL}};
    struct error error;
    (void)state;
    assert_true(config_load(&config, NULL, NULL, 0, &error));
    listen_in();
    assert_int_equal(command_status.run(&call), COMMAND_MISUSED);
    assert_non_null(strstr(heard(), "no cluster given"));
    config_free(&config);
}

int main(void)
{
    return check_run(NULL, NULL);
}
