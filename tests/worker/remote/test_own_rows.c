/*
 * How workers agree on what their rows mean, with the test's own ps: what the chief sends and others compare, what each
 * reports of its own rows, what the chief makes of all of them, and how long who waits for whom.
 */
#include "worker/remote/own_rows.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/process/signals.h"
#include "tests/net/loopback.h"
#include "tests/no_memory.h"
#include "tests/worker/remote/fake_member.h"
#include "tests/worker/remote/story.h"
#include "worker/data/table/survey_schema.h"
#include "worker/data/table/table.h"
#include "worker/remote/exchange/requests.h"

enum { WORKERS = 3, NO_ANSWER = -1, OTHER_ANSWER = -2, OTHER_REQUEST = -3, HALF_ANSWER = -4 };

static double stopped_s, ahead_s, per_pause_s; /* stopped_s: then, only pauses take time; 0: the clock runs */
static _Thread_local double read_s;            /* what the clock said last */
static int pauses, speaks_after, leaves_after, joins_after; /* after this many pauses; 0: never */

double __real_clock_monotonic_s(void);
double __wrap_clock_monotonic_s(void);
void __wrap_clock_pause(double until_s);
int __wrap_signals_pending(void);

/* --- The ps, which answers one request at a time --- */

static struct {
    struct fake_member member;
    const char *known;        /* from the chief; NULL: nothing yet */
    char *heard;              /* the last text of `describe` */
    char *figures[WORKERS];   /* of each worker */
    int told[WORKERS], fails; /* how the next request fails */
    bool breaks;              /* in the middle of this answer */
    char late_figures[2048];  /* of worker 2, from joins_after on */
} ps;

static struct hello_identity self;
static char folder[64];
static const char rows[] = "number,colour,class\n1,red,yes\n2,blue,no\n3,red,yes\n4,blue,no\n";
static const char other_rows[] = "number,colour,class\n11,green,yes\n12,green,no\n13,red,yes\n";

double __wrap_clock_monotonic_s(void)
{
    read_s = (stopped_s > 0 ? stopped_s : __real_clock_monotonic_s()) + ahead_s;
    return read_s;
}

/* However busy this machine is, what follows takes its pauses' time: from a whole second, so that sums are exact. */
static void stop_clock(void)
{
    stopped_s = ceil(__real_clock_monotonic_s());
}

void __wrap_clock_pause(double until_s)
{
    const double left_s = until_s - read_s;
    assert_true(left_s > 0.1 && left_s < 0.3);
    pauses++;
    ahead_s += per_pause_s;
    if (pauses == joins_after) {
        ps.figures[2] = ps.late_figures;
    }
}

int __wrap_signals_pending(void)
{
    return leaves_after > 0 && pauses >= leaves_after ? SIGTERM : 0;
}

static char *read_bulk(struct channel *channel)
{
    const size_t size = channel->bulk_left;
    struct error error;
    char *text = calloc(1, size + 1);
    if (!channel_read_bulk(channel, text, size, fake_member_soon(), &error)) {
        abort();
    }
    return text;
}

/* Begins to answer, and is gone. */
static bool say_half(struct channel *channel, enum message_type type, const void *message, const char *text)
{
    uint8_t head[1024];
    struct error error;
    const size_t size = message_size(channel->version, type, message);
    const struct frame frame = {.version = channel->version,
                                .type = (uint16_t)type,
                                .request = channel->frame.request,
                                .flags = FRAME_LAST,
                                .message_bytes = (uint32_t)size,
                                .bulk_bytes = (uint32_t)strlen(text)};
    assert_true(FRAME_HEADER + size <= sizeof head);
    frame_encode(&frame, head);
    message_encode(channel->version, type, message, head + FRAME_HEADER, size);
    const struct iovec parts[] = {{head, FRAME_HEADER + size}, {(char *)(uintptr_t)text, strlen(text) / 2}};
    assert_true(connection_write_more(channel->connection, parts, 2, fake_member_soon(), &error));
    assert_true(connection_flush(channel->connection, fake_member_soon(), &error));
    return false;
}

static bool say(struct channel *channel, enum message_type type, const void *message, const char *text)
{
    struct error error;
    if (ps.breaks) {
        ps.breaks = false;
        return say_half(channel, type, message, text);
    }
    struct iovec bulk = {(char *)(uintptr_t)text, text ? strlen(text) : 0};
    const struct outgoing frame = {
        .type = type, .request = channel->frame.request, .message = message, .bulk = &bulk, .bulk_parts = text ? 1 : 0};
    return channel_send_frame(channel, &frame, fake_member_soon(), &error);
}

static bool answer_describe(struct channel *channel)
{
    char digest[PREPROCESSING_DIGEST] = "", asked[PREPROCESSING_DIGEST];
    snprintf(asked, sizeof asked, "%s", channel->message.describe.digest);
    if (channel->bulk_left > 0) {
        free(ps.heard);
        ps.heard = read_bulk(channel);
    }
    if (ps.known) {
        preprocessing_digest(ps.known, digest);
    }
    const struct message_description description = {.digest = digest};
    return say(channel, MESSAGE_description, &description, strcmp(asked, digest) != 0 ? ps.known : NULL);
}

static bool answer_figures(struct channel *channel)
{
    const int worker = channel->message.figures.worker;
    const struct message_figures message = {.worker = worker};
    if (channel->bulk_left > 0) {
        free(ps.figures[worker]);
        ps.figures[worker] = read_bulk(channel);
        ps.told[worker]++;
        if (ps.told[worker] == speaks_after) {
            ps.known = ps.heard; /* the chief has sent it meanwhile */
        }
        return say(channel, MESSAGE_figures, &message, NULL);
    }
    if (worker < 0) {
        tell("forget %d\n", -1 - worker);
        return say(channel, MESSAGE_figures, &message, NULL);
    }
    tell("asked for %d\n", worker);
    return say(channel, MESSAGE_figures, &message, ps.figures[worker]);
}

static bool answer(struct fake_member *member, struct channel *channel)
{
    const int how = ps.fails;
    const struct message_pong pong = {1};
    ps.fails = 0;
    if (how > 0) {
        return fake_member_object(channel, (enum error_code)how);
    }
    if (how == NO_ANSWER) {
        return false;
    }
    ps.breaks = how == HALF_ANSWER;
    channel->frame.request += how == OTHER_REQUEST;
    return how == OTHER_ANSWER                       ? fake_member_say(channel, MESSAGE_pong, &pong)
           : channel->frame.type == MESSAGE_describe ? answer_describe(channel)
                                                     : answer_figures(channel);
}

/* --- A worker --- */

static struct bench {
    struct config config;
    struct model model;
    struct identity identity;
    struct traffic traffic;
    struct push_pull exchange;
} bench;

/* Worker `index` of that many, with these rows. */
static void begin(const char *index, int workers, const char *text)
{
    const char *path = loopback_file(folder, "train.csv");
    const char *const hosts[] = {"", "127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"};
    struct error error;
    FILE *file = fopen(path, "w");
    assert_true(file && fputs(text, file) >= 0 && fclose(file) == 0);
    memset(&bench, 0, sizeof bench);
    memset(&ps, 0, sizeof ps);
    stopped_s = ahead_s = per_pause_s = 0;
    pauses = speaks_after = leaves_after = joins_after = 0;
    fake_member_listen(&ps.member, MEMBER_PS, 0);
    const struct config_setting settings[] = {{"insecure", "true"},
                                              {"local", "false"},
                                              {"layers", "5,2"},
                                              {"ps_hosts", ps.member.host},
                                              {"worker_hosts", hosts[workers]},
                                              {"job_name", "worker"},
                                              {"task_index", index},
                                              {"data_dir", folder},
                                              {"target", "class"},
                                              {"data_sharding", "own"},
                                              {"category_min", "1"},
                                              {"lease_secs", "15"},
                                              {"validation_size", "0"},
                                              {"header", "yes"}};
    listen_in();
    if (!config_load(&bench.config, NULL, settings, sizeof settings / sizeof *settings, &error) ||
        !identity_create(&bench.identity, &bench.config, (struct member){MEMBER_WORKER, index[0] - '0'}, &error)) {
        fail_msg("%s", error.text);
    }
    self = bench.identity.hello;
    model_layout(&bench.model, &bench.config.model);
    const struct push_pull_options options = {
        .config = &bench.config, .model = &bench.model, .identity = &bench.identity, .traffic = &bench.traffic};
    assert_true(push_pull_create(&bench.exchange, &options, &error));
    fake_member_start(&ps.member, &self, answer);
    told();
}

static void end(void)
{
    stopped_s = 0;
    push_pull_destroy(&bench.exchange);
    fake_member_stop(&ps.member);
    free(ps.heard);
    for (int i = 0; i < WORKERS; i++) {
        free(ps.figures[i] == ps.late_figures ? NULL : ps.figures[i]);
    }
    identity_destroy(&bench.identity);
    config_free(&bench.config);
    heard();
}

/* Statistics of the rows, and what follows from them alone. */
static void survey_rows(const char *text, char **figures, struct schema *schema)
{
    struct survey survey;
    struct rows *read;
    struct row row;
    struct error error;
    bool again = false;
    bool good = rows_open_bytes(&read, "rows", text, strlen(text), &bench.config.data, NULL, &error) &&
                survey_begin(&survey, read, &bench.config, false, &error);
    while (good && rows_next(read, &row, &error) == CSV_ROW) {
        good = survey_add(&survey, read, &row, &error);
    }
    good = good && survey_settle(&survey, false, &again, &error);
    if (!good || again) {
        fail_msg("%s", error.text);
    }
    if (figures) {
        *figures = figures_text(&survey);
    }
    if (schema && !survey_schema(&survey, &bench.config, "the rows", schema, &error)) {
        fail_msg("%s", error.text);
    }
    rows_close(read);
    survey_free(&survey);
}

static int connections(void)
{
    return atomic_load(&ps.member.connections);
}

/* --- Comparing --- */

/* The chief sends it in full; others agree if their texts equal it. */
static void comparing(void **state)
{
    struct schema schema, other;
    const struct dataset dataset = {.schema = &schema}, pictures = {.schema = NULL};
    struct error error;
    bool differs;
    begin("1", 2, rows);
    assert_int_equal(preprocessing_publish(&bench.exchange, &pictures, &error), EXCHANGE_OK); /* pictures */
    assert_int_equal(connections(), 0);
    survey_rows(rows, NULL, &schema);
    survey_rows(other_rows, NULL, &other);
    assert_int_equal(preprocessing_agree(&bench.exchange, &dataset, &differs, &error), EXCHANGE_OK);
    assert_null(ps.heard); /* only a digest, and there is nothing to compare with yet */
    assert_int_equal(preprocessing_publish(&bench.exchange, &dataset, &error), EXCHANGE_OK);
    assert_string_equal(ps.heard, schema.text);
    ps.known = schema.text;
    assert_int_equal(preprocessing_agree(&bench.exchange, &dataset, &differs, &error), EXCHANGE_OK);
    assert_int_equal(preprocessing_publish(&bench.exchange, &dataset, &error), EXCHANGE_OK);
    ps.known = other.text;
    assert_int_equal(preprocessing_agree(&bench.exchange, &dataset, &differs, &error), EXCHANGE_FAILED);
    assert_true(differs);
    ps.fails = ERROR_NOT_ALLOWED; /* no difference */
    assert_int_equal(preprocessing_agree(&bench.exchange, &dataset, &differs, &error), EXCHANGE_FAILED);
    assert_false(differs);
    assert_int_equal(preprocessing_agree(&bench.exchange, &dataset, &differs, &error), EXCHANGE_FAILED);
    assert_non_null(strstr(error.text, "the preprocessing of worker 0 (there) differs"));
    assert_non_null(strstr(error.text, "column number"));
    bench.config.data.data_sharding = SHARDING_SHUFFLED; /* nobody else may define it for this one */
    for (int is_chief = 0; is_chief < 2; is_chief++) {
        assert_int_equal(is_chief ? preprocessing_publish(&bench.exchange, &dataset, &error)
                                  : preprocessing_agree(&bench.exchange, &dataset, &differs, &error),
                         EXCHANGE_FAILED);
        assert_non_null(strstr(error.text, "of this worker (here) differs"));
        assert_non_null(strstr(error.text, "column number"));
    }
    assert_int_equal(preprocessing_check(&bench.exchange, &dataset, &error), EXCHANGE_FAILED);
    assert_non_null(strstr(error.text, "of the running model (there)"));
    assert_non_null(strstr(error.text, "column number"));
    ps.known = schema.text;
    assert_int_equal(preprocessing_check(&bench.exchange, &dataset, &error), EXCHANGE_OK);
    ps.known = NULL; /* lost, and so it can't be compared */
    assert_int_equal(preprocessing_check(&bench.exchange, &dataset, &error), EXCHANGE_OK);
    assert_int_equal(preprocessing_check(&bench.exchange, &pictures, &error), EXCHANGE_OK);
    assert_string_equal(ps.heard, schema.text); /* it asked, and sent nothing */
    char *spaced = NULL;
    assert_true(asprintf(&spaced, "%s ", schema.text) > 0);
    ps.known = spaced;
    assert_int_equal(preprocessing_agree(&bench.exchange, &dataset, &differs, &error), EXCHANGE_FAILED);
    assert_non_null(strstr(error.text, "their texts differ"));
    ps.known = "{}"; /* invalid, and still an answer */
    assert_int_equal(preprocessing_agree(&bench.exchange, &dataset, &differs, &error), EXCHANGE_FAILED);
    assert_non_null(strstr(error.text, "the preprocessing of worker 0 (there)"));
    assert_null(strstr(error.text, "their texts differ"));
    assert_int_equal(connections(), 1);
    free(spaced);
    schema_free(&schema);
    schema_free(&other);
    end();
}

/* A connection that breaks in the middle of an answer costs a request, and nothing else. */
static void half_an_answer(void **state)
{
    struct schema schema;
    char *text;
    struct error error;
    begin("0", 2, rows);
    survey_rows(rows, &ps.figures[1], &schema);
    ps.fails = HALF_ANSWER;
    assert_int_equal(preprocessing_fetch_stats(&bench.exchange, 1, &text, &error), EXCHANGE_OK);
    assert_string_equal(text, ps.figures[1]);
    free(text);
    assert_int_equal(connections(), 2);
    ps.known = schema.text;
    ps.fails = HALF_ANSWER;
    assert_int_equal(preprocessing_fetch(&bench.exchange, &text, &error), EXCHANGE_OK);
    assert_string_equal(text, schema.text);
    free(text);
    assert_int_equal(connections(), 3);
    schema_free(&schema);
    end();
}

/* It is asked again where there was no memory for what was said: the outcome is the same. */
static void comparing_without_memory(void **state)
{
    struct schema schema, other;
    const struct dataset dataset = {.schema = &schema};
    struct error error;
    bool differs;
    begin("1", 2, rows);
    survey_rows(rows, NULL, &schema);
    survey_rows(other_rows, NULL, &other);
    ps.known = other.text;
    no_memory_look();
    assert_int_equal(preprocessing_agree(&bench.exchange, &dataset, &differs, &error), EXCHANGE_FAILED);
    const int places = no_memory_seen();
    assert_true(places > 1);
    for (int i = 0; i < places; i++) {
        differs = false;
        no_memory_at(i);
        assert_int_equal(preprocessing_agree(&bench.exchange, &dataset, &differs, &error), EXCHANGE_FAILED);
        no_memory_failed();
        assert_true(differs);
    }
    schema_free(&schema);
    schema_free(&other);
    end();
}

/* A worker whose folders have other names than the chief's is refused, and does not start again over it. */
static void classes(void **state)
{
    char names[] = "[\"cat\",\"dog\"]", others[] = "[\"dog\",\"fox\"]";
    const struct dataset dataset = {.class_names = names};
    struct error error;
    bool differs = true;
    begin("1", 2, rows);
    assert_int_equal(preprocessing_publish(&bench.exchange, &dataset, &error), EXCHANGE_OK);
    assert_string_equal(ps.heard, names);
    ps.known = names;
    assert_int_equal(preprocessing_agree(&bench.exchange, &dataset, &differs, &error), EXCHANGE_OK);
    assert_int_equal(preprocessing_check(&bench.exchange, &dataset, &error), EXCHANGE_OK);
    ps.known = others;
    assert_int_equal(preprocessing_agree(&bench.exchange, &dataset, &differs, &error), EXCHANGE_FAILED);
    assert_false(differs); /* restarting would not help */
    assert_non_null(
        strstr(error.text, "the model's classes are [\"dog\",\"fox\"], but the folders here are [\"cat\",\"dog\"]"));
    assert_int_equal(preprocessing_check(&bench.exchange, &dataset, &error), EXCHANGE_FAILED);
    assert_non_null(strstr(error.text, "folders of the same names"));
    end();
}

static enum exchange_result ask(int what, struct schema *schema, char **text, struct error *error)
{
    const struct dataset dataset = {.schema = schema};
    static char own[] = "figures";
    *text = NULL;
    return what == 0   ? preprocessing_publish(&bench.exchange, &dataset, error)
           : what == 1 ? preprocessing_fetch(&bench.exchange, text, error)
           : what == 2 ? preprocessing_send_stats(&bench.exchange, own, error)
                       : preprocessing_fetch_stats(&bench.exchange, 2, text, error);
}

/*
 * After a broken connection, an answer to another request, or a refusal for now, the request is repeated; a final
 * refusal is final.
 */
static void failures(void **state)
{
    const int ways[] = {NO_ANSWER, OTHER_ANSWER, OTHER_REQUEST};
    const char *const wanted[] = {NULL, "what the chief said", NULL, "figures of two"};
    struct schema schema;
    struct error error;
    char *text;
    begin("1", 3, rows);
    survey_rows(rows, NULL, &schema);
    ps.figures[2] = strdup("figures of two");
    for (int what = 0; what < 4; what++) {
        ps.known = what == 1 ? "what the chief said" : NULL;
        for (int i = 0; i < 3; i++) {
            const int before = connections();
            ps.fails = ways[i];
            assert_int_equal(ask(what, &schema, &text, &error), EXCHANGE_OK);
            assert_int_equal(connections(), before == 0 ? 2 : before + 1);
            assert_true(wanted[what] ? strcmp(text, wanted[what]) == 0 : !text);
            free(text);
        }
        ps.fails = ERROR_NOT_ALLOWED;
        assert_int_equal(ask(what, &schema, &text, &error), EXCHANGE_FAILED);
        assert_non_null(strstr(error.text, "ps 0 (127.0.0.1:"));
        assert_non_null(strstr(error.text, "as the test wants"));
        assert_null(text);
    }
    assert_int_equal(atomic_load(&bench.traffic.retries), 12);
    assert_string_equal(ps.figures[1], "figures"); /* its own index */
    assert_int_equal(ps.told[1], 4);               /* once by a request whose answer was invalid */
    schema_free(&schema);
    end();
}

/* Text too long for a message is not sent. */
static void too_much(void **state)
{
    const size_t most = message_max_bulk(MESSAGE_describe);
    struct schema schema = {.text = malloc(most + 2)};
    const struct dataset dataset = {.schema = &schema};
    struct error error;
    begin("1", 2, rows);
    memset(schema.text, 'x', most + 1);
    schema.text[most + 1] = '\0';
    assert_int_equal(preprocessing_publish(&bench.exchange, &dataset, &error), EXCHANGE_FAILED);
    assert_non_null(strstr(error.text, "raise data.category_min"));
    const struct dataset pictures = {.class_names = schema.text};
    assert_int_equal(preprocessing_publish(&bench.exchange, &pictures, &error), EXCHANGE_FAILED);
    assert_non_null(strstr(error.text, "shorten the folders' names"));
    assert_int_equal(preprocessing_send_stats(&bench.exchange, schema.text, &error), EXCHANGE_FAILED);
    assert_non_null(strstr(error.text, "exclude those with the most categories"));
    assert_int_equal(connections(), 0);
    schema.text[most] = '\0'; /* just fits */
    assert_int_equal(preprocessing_publish(&bench.exchange, &dataset, &error), EXCHANGE_OK);
    assert_int_equal(strlen(ps.heard), most);
    assert_int_equal(preprocessing_send_stats(&bench.exchange, schema.text, &error), EXCHANGE_OK);
    assert_int_equal(strlen(ps.figures[1]), most);
    free(schema.text);
    end();
}

/* Nobody has sent anything. */
static void nothing_yet(void **state)
{
    struct error error;
    char *text;
    begin("0", 3, rows);
    for (int what = 1; what < 4; what += 2) {
        assert_int_equal(ask(what, NULL, &text, &error), EXCHANGE_OK);
        assert_null(text);
    }
    assert_int_equal(connections(), 1);
    end();
}

/* --- Agreeing --- */

static bool agree(struct schema **schema, struct error *error)
{
    return own_rows_agree(schema, &bench.config, &bench.identity, &bench.traffic, error);
}

/* A worker adopts what the chief sends; until then it reports its rows, again if the ps may have forgotten. */
static void a_worker(void **state)
{
    struct schema chiefs, *schema;
    struct error error;
    begin("1", 3, rows);
    survey_rows(other_rows, NULL, &chiefs);
    ps.heard = strdup(chiefs.text);
    ps.known = ps.heard;
    assert_true(agree(&schema, &error)); /* there is a model already */
    assert_string_equal(schema->text, chiefs.text);
    assert_int_equal(ps.told[1], 0);
    assert_int_equal(pauses, 0);
    schema_free(schema);
    free(schema);
    ps.known = NULL;
    speaks_after = 3;
    per_pause_s = 1.0;
    stop_clock();
    assert_true(agree(&schema, &error));
    assert_string_equal(schema->text, chiefs.text);
    assert_int_equal(ps.told[1], 3);
    assert_int_equal(pauses, 11);                                  /* every five seconds; then it gets it */
    assert_non_null(strstr(ps.figures[1], "\"name\":\"colour\"")); /* of its own rows */
    assert_non_null(strstr(ps.figures[1], "\"blue\""));
    assert_int_equal(times(heard_so_far(), "waiting for worker 0 to send the preprocessing"), 1);
    schema_free(schema);
    free(schema);
    schema_free(&chiefs);
    end();
}

/* A worker that is told to stop does not wait; nor does it if the ps refuses. */
static void a_worker_that_leaves(void **state)
{
    struct schema *schema;
    struct error error;
    begin("1", 3, rows);
    leaves_after = 3;
    assert_false(agree(&schema, &error));
    assert_non_null(strstr(error.text, "asked to leave before the rows' preprocessing was known"));
    assert_int_equal(pauses, 3);
    assert_int_equal(ps.told[1], 1);
    leaves_after = 0;
    ps.fails = ERROR_NOT_ALLOWED;
    assert_false(agree(&schema, &error));
    assert_non_null(strstr(error.text, "as the test wants"));
    ps.known = "[]"; /* no schema */
    assert_false(agree(&schema, &error));
    end();
    begin("1", 3, "number,class\n1\n"); /* rows that can't be read */
    assert_false(agree(&schema, &error));
    assert_non_null(strstr(error.text, "train.csv"));
    assert_int_equal(ps.told[1], 0);
    per_pause_s = 1;
    assert_int_equal(own_rows_resend(&bench.exchange, &bench.config, &error), EXCHANGE_FAILED);
    assert_non_null(strstr(error.text, "train.csv"));
    end();
}

/* The chief merges all workers' statistics once it has them. */
static void the_chief(void **state)
{
    struct schema alone, *schema;
    struct error error;
    char *figures;
    begin("0", 3, rows);
    survey_rows(rows, NULL, &alone);
    survey_rows(other_rows, &ps.figures[1], NULL);
    survey_rows(other_rows, &figures, NULL);
    snprintf(ps.late_figures, sizeof ps.late_figures, "%s", figures);
    joins_after = 4;
    per_pause_s = 0.1;
    assert_true(agree(&schema, &error));
    assert_int_equal(pauses, 4);
    assert_string_equal(told(), "asked for 1\nasked for 2\nasked for 2\nasked for 2\nasked for 2\nasked for 2\n");
    assert_null(strstr(heard_so_far(), "not there"));
    const struct schema_column *colour = &schema->columns[1];
    assert_string_equal(colour->name, "colour");
    assert_int_equal(alone.columns[1].categories.count, 2);
    assert_int_equal(colour->categories.count, 3); /* green, too */
    assert_true(schema->columns[0].center > 7 && alone.columns[0].center < 3);
    schema_free(schema);
    free(schema);
    schema_free(&alone);
    free(figures);
    end();
}

/* It waits for the others for a lease, reports it, and continues without them; alone it does not wait at all. */
static void workers_that_do_not_come(void **state)
{
    struct schema *schema;
    struct error error;
    for (int missing = 1; missing <= 2; missing++) {
        begin("0", 3, rows);
        if (missing == 1) {
            survey_rows(other_rows, &ps.figures[1], NULL);
        }
        per_pause_s = 2.0;
        stop_clock();
        assert_true(agree(&schema, &error));
        assert_int_equal(pauses, 8);
        assert_non_null(strstr(heard_so_far(), missing == 1
                                                   ? "1 worker is absent: the preprocessing is computed from"
                                                   : "2 workers are absent: the preprocessing is computed from"));
        assert_int_equal(times(heard_so_far(), "waiting for other workers to send the statistics of their rows"), 1);
        assert_int_equal(schema->columns[1].categories.count, missing == 1 ? 3 : 2);
        schema_free(schema);
        free(schema);
        end();
    }
    begin("0", 1, rows);
    assert_true(agree(&schema, &error));
    assert_int_equal(pauses, 0);
    assert_string_equal(told(), "");
    schema_free(schema);
    free(schema);
    end();
}

/* A model exists without a checkpoint: the chief continues with its predecessor's preprocessing, whoever is present. */
static void a_chief_that_comes_back(void **state)
{
    struct schema first, *schema;
    struct error error;
    begin("0", 3, rows);
    survey_rows(other_rows, NULL, &first);
    survey_rows(rows, &ps.figures[1], NULL);
    ps.known = first.text;
    ps.fails = NO_ANSWER; /* it asks again */
    assert_true(agree(&schema, &error));
    assert_string_equal(schema->text, first.text);
    assert_null(ps.heard);
    assert_string_equal(told(), ""); /* nobody is asked for statistics */
    assert_int_equal(pauses, 0);
    schema_free(schema);
    free(schema);
    ps.fails = ERROR_NOT_ALLOWED;
    assert_false(agree(&schema, &error));
    assert_non_null(strstr(error.text, "as the test wants"));
    schema_free(&first);
    end();
}

/*
 * A worker joins again: a living chief soon sends its preprocessing; otherwise the worker reports its rows to ps 0
 * again.
 */
static void a_ps_that_lost_what_it_was_told(void **state)
{
    struct schema first;
    struct error error;
    begin("1", 3, rows);
    survey_rows(rows, NULL, &first);
    per_pause_s = 0.25;
    ps.known = first.text;
    assert_int_equal(own_rows_resend(&bench.exchange, &bench.config, &error), EXCHANGE_OK);
    assert_int_equal(pauses, 0);
    assert_int_equal(ps.told[1], 0);
    ps.known = NULL;
    bench.exchange.parts[0].incarnation = 12345; /* it is another process than it was */
    stop_clock();
    assert_int_equal(own_rows_resend(&bench.exchange, &bench.config, &error), EXCHANGE_OK);
    assert_int_equal(pauses, 20); /* a third of the lease */
    assert_int_equal(ps.told[1], 1);
    assert_non_null(strstr(heard_so_far(), "sending the statistics of the rows here to ps 0 again"));
    ps.fails = ERROR_NOT_ALLOWED;
    assert_int_equal(own_rows_resend(&bench.exchange, &bench.config, &error), EXCHANGE_FAILED);
    leaves_after = 1;
    assert_int_equal(own_rows_resend(&bench.exchange, &bench.config, &error), EXCHANGE_STOPPED);
    assert_int_equal(ps.told[1], 1);
    schema_free(&first);
    end();
}

/* What another worker sends, junk or rows of other columns, is left out and forgotten; it does not end the chief. */
static void rows_that_do_not_go_together(void **state)
{
    struct schema *schema, *alone;
    struct error error;
    begin("0", 1, rows);
    assert_true(agree(&alone, &error));
    end();
    begin("0", 3, rows);
    static const char junk[] =
        "{\"rows\":1,\"columns\":[{\"name\":\"number\",\"missing\":0,\"texts\":0,\"numbers\":0,"
        "\"values\":[],\"counts\":[]},{\"name\":\"colour\",\"missing\":0,\"texts\":1,\"numbers\":0,"
        "\"values\":[\"poison\"],\"counts\":[1]},{}]}";
    ps.figures[1] = strdup(junk);
    survey_rows("number,hue,class\n1,red,yes\n2,blue,no\n", &ps.figures[2], NULL);
    assert_true(agree(&schema, &error));
    assert_string_equal(schema->text, alone->text); /* no trace of what was valid in it */
    assert_non_null(strstr(heard_so_far(), "the rows of worker 1 do not fit those of the workers before it: "));
    assert_non_null(strstr(heard_so_far(), "the rows of worker 2 do not fit those of the workers before it: "));
    assert_string_equal(told(), "asked for 1\nasked for 2\nforget 1\nforget 2\n");
    schema_free(schema);
    free(schema);
    schema_free(alone);
    free(alone);
    ps.fails = ERROR_NOT_ALLOWED;
    assert_false(agree(&schema, &error));
    assert_non_null(strstr(error.text, "as the test wants"));
    free(ps.figures[2]);
    ps.figures[2] = NULL;
    leaves_after = 2;
    assert_false(agree(&schema, &error));
    assert_non_null(strstr(error.text, "asked to leave"));
    assert_int_equal(pauses, 2);
    end();
}

/* Each place that allocates fails once: what is agreed on is the same, or it is said why there is nothing. */
static void no_memory_to_agree(bool is_chief)
{
    struct schema chiefs, *schema;
    struct error error;
    char *wanted = NULL;
    int failures = 0;
    begin(is_chief ? "0" : "1", 2, rows);
    survey_rows(rows, is_chief ? &ps.figures[1] : NULL, &chiefs);
    ps.heard = is_chief ? NULL : strdup(chiefs.text);
    no_memory_look();
    for (int i = -1, places = 0; i < places; i++) {
        ps.known = NULL;
        speaks_after = ps.told[1] + 1;
        per_pause_s = 1;
        error.text[0] = '\0';
        if (i >= 0) {
            no_memory_at(i);
        }
        const bool done = agree(&schema, &error);
        if (i < 0) {
            places = no_memory_seen();
            assert_true(done);
        }
        no_memory_failed();
        if (done) {
            wanted = wanted ? wanted : strdup(schema->text);
            assert_string_equal(schema->text, wanted);
            schema_free(schema);
            free(schema);
        } else {
            assert_string_not_equal(error.text, "");
        }
        failures += !done;
    }
    assert_true(failures > 10);
    free(wanted);
    schema_free(&chiefs);
    end();
}

static void no_memory_to_agree_with(void **state)
{
    no_memory_to_agree(false);
    no_memory_to_agree(true);
}

static int make_folder(void **state)
{
    loopback_make_folder(folder);
    return 0;
}

static int remove_folder(void **state)
{
    loopback_remove_folder(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comparing),
        cmocka_unit_test(half_an_answer),
        cmocka_unit_test(comparing_without_memory),
        cmocka_unit_test(classes),
        cmocka_unit_test(failures),
        cmocka_unit_test(too_much),
        cmocka_unit_test(nothing_yet),
        cmocka_unit_test(a_worker),
        cmocka_unit_test(a_worker_that_leaves),
        cmocka_unit_test(the_chief),
        cmocka_unit_test(workers_that_do_not_come),
        cmocka_unit_test(a_chief_that_comes_back),
        cmocka_unit_test(a_ps_that_lost_what_it_was_told),
        cmocka_unit_test(rows_that_do_not_go_together),
        cmocka_unit_test(no_memory_to_agree_with),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
