/* Validations on workers' own rows: who is waited for, who did worst, and how much is stored. */
#include "tests/check.h"
#include "tests/ps/server/asking.h"

static struct serving_session *workers[SERVING_WORKERS];

/* All workers took part in step 0. */
static void begin(void)
{
    begin_synchronous(1);
    workers[0] = chief;
    for (int i = 1; i < SERVING_WORKERS; i++) {
        workers[i] = come(i);
        workers[i]->client.generation = 1;
        serving.server.job.workers[i].taken_step = 0;
    }
}

/* bulk 0: none. */
static void tells(int worker, int64_t step, float score, int rises, float bulk)
{
    const struct message_validated told = {.step = step, .examples = 20, .score = score, .rises = (uint8_t)rises};
    struct serving_session *one = workers[worker];
    one->client.next_request++;
    send_part(one, MESSAGE_validated, &told, FRAME_LAST, &bulk, bulk > 0);
    assert_true(serving_serve(one));
    assert_int_equal(receive(one), MESSAGE_done);
    assert_int_equal(one->client.message.done.global_step, serving.server.job.global_step);
}

/*
 * Of step 1: a digit for each worker that has reported, with its bulk's size if there is any; and how many are missing.
 */
static const char *hears(float own, int rises, uint32_t wait_ms)
{
    static char text[100];
    const struct message_validate question = {
        .step = 1, .examples = 10, .score = own, .rises = (uint8_t)rises, .wait_ms = wait_ms};
    struct error error;
    text[0] = '\0';
    send_request(chief, MESSAGE_validate, &question);
    assert_true(serving_serve(chief));
    for (;;) {
        float bulk = 0;
        assert_int_equal(receive(chief), MESSAGE_validation);
        const struct message_validation one = chief->client.message.validation;
        const bool is_last = chief->client.frame.flags & FRAME_LAST;
        assert_int_equal(is_last, one.worker < 0);
        if (chief->client.bulk_left > 0) {
            assert_int_equal(chief->client.bulk_left, sizeof bulk);
            assert_true(channel_read_bulk(&chief->client, &bulk, sizeof bulk, serving.now_s, &error));
        }
        if (is_last) {
            snprintf(text + strlen(text), sizeof text - strlen(text), "missing %u", one.missing);
            return text;
        }
        assert_int_equal(one.examples, 20);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%d:%g ", one.worker, (double)bulk);
    }
}

/* Who is marked, a digit for each. */
static const char *worst(void)
{
    static char text[SERVING_WORKERS + 1];
    int count = 0;
    for (int i = 0; i < SERVING_WORKERS; i++) {
        if (serving.server.validations[i].is_worst) {
            text[count++] = (char)('0' + i);
        }
    }
    text[count] = '\0';
    return text;
}

static void the_others_tell(void)
{
    serving.meanwhile = NULL;
    for (int i = 1; i < SERVING_WORKERS; i++) {
        tells(i, 1, 0.25f, 1, (float)i);
    }
}

TEST(the_chief_waits_until_all_have_told)
{
    begin();
    const double began_s = serving.now_s;
    assert_string_equal(hears(0.5f, 1, 2000), "missing 3"); /* and none of the existing ones */
    assert_true(serving.now_s >= began_s + 2 && serving.now_s < began_s + 3);
    tells(2, 1, 0.25f, 1, 2);
    assert_string_equal(hears(0.5f, 1, 0), "2:2 missing 2");
    assert_string_equal(hears(0.5f, 1, 250), "missing 2");
    serving.meanwhile = the_others_tell;
    assert_string_equal(hears(0.5f, 1, 60000), "1:1 2:2 3:3 missing 0");
    assert_true(serving.now_s < began_s + 5);
    serving_end();
}

static void the_job_ends(void)
{
    serving.meanwhile = NULL;
    serving.server.job.state = JOB_DONE;
}

static void the_ps_leaves(void)
{
    serving.server.leaving = true;
}

TEST(the_chief_waits_for_nobody_who_will_not_tell)
{
    const struct message_validate question = {.step = 1, .examples = 10, .wait_ms = 60000};
    begin();
    serving.server.job.workers[1].present = false; /* it is lost */
    serving.server.job.workers[2].taken_step = 5;  /* it has another model */
    serving.server.job.workers[3].present = false;
    const double began_s = serving.now_s;
    assert_string_equal(hears(0.5f, 1, 60000), "missing 0");
    assert_true(serving.now_s == began_s);
    serving.server.job.workers[3].present = true;
    serving.meanwhile = the_job_ends;
    assert_string_equal(hears(0.5f, 1, 60000), "missing 1");
    assert_true(serving.now_s < began_s + 2);
    serving.server.job.state = JOB_TRAINING;
    serving.meanwhile = the_ps_leaves;
    send_request(chief, MESSAGE_validate, &question);
    assert_false(serving_serve(chief));
    assert_true(serving.now_s < began_s + 4);
    serving.meanwhile = NULL;
    serving_end();
}

/* Nothing was asked of a restored model yet, however far the one before it had come. */
TEST(a_restored_model_is_asked_about_anew)
{
    begin();
    assert_string_equal(hears(0.5f, 1, 0), "missing 3");
    serving.server.validations[0].step = 9;
    restore(2, 0);
    assert_string_equal(hears(0.5f, 1, 0), "missing 0");
    assert_int_equal(serving.server.validated_before, -1);
    serving_end();
}

/* Its connection is over, and not only this answer. */
TEST(a_chief_that_hears_nothing_is_gone)
{
    const struct message_validate question = {.step = 1, .examples = 10};
    begin();
    tells(2, 1, 0.25f, 1, 0);
    struct validation *kept = &serving.server.validations[2];
    serving.server.validation_bytes = kept->size = 1 << 20; /* more than a connection's buffer */
    free(kept->bytes);
    kept->bytes = calloc(1, kept->size);
    send_request(chief, MESSAGE_validate, &question);
    assert_int_equal(shutdown(chief->client.connection->fd, SHUT_RD), 0);
    assert_false(serving_serve(chief));
    serving_end();
}

TEST(the_worst_are_marked)
{
    static const struct {
        float scores[SERVING_WORKERS];
        int rises;
        const char *worst;
    } cases[] = {
        {{0.5f, 0.75f, 0.25f, 0.5f}, 1, "2"}, {{0.5f, 0.75f, 0.25f, 0.5f}, 0, "1"}, {{0.5f, 0.75f, NAN, 0.25f}, 1, "2"},
        {{0.5f, 0.75f, 0.25f, NAN}, 0, "3"},  {{0.25f, 0.5f, 0.5f, 0.25f}, 1, "0"}, /* the first of equals */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin();
        for (int k = 1; k < SERVING_WORKERS; k++) {
            tells(k, 1, cases[i].scores[k], cases[i].rises, 0);
        }
        assert_string_equal(worst(), ""); /* before the chief has asked */
        assert_string_equal(hears(cases[i].scores[0], cases[i].rises, 0), "1:0 2:0 3:0 missing 0");
        assert_string_equal(worst(), cases[i].worst);
        serving_end();
    }
    begin();
    hears(0.5f, 1, 0);
    assert_string_equal(worst(), ""); /* a single one is no worse than others */
    tells(1, 2, 0.1f, 1, 0);          /* of another model */
    hears(0.5f, 1, 0);
    assert_string_equal(worst(), "");
    serving_end();
}

/* How many of that many workers are marked; they are those that did worst. */
static int marked_of(int count)
{
    struct config *config = serving_config();
    const struct message_validate question = {.step = 1, .examples = 10, .score = 0, .rises = 1};
    int marked = 0;
    config->cluster.elastic = true;
    config->cluster.elastic_workers = 32;
    serving_begin(0);
    come(0);
    restore(1, 0);
    for (int i = 1; i < count; i++) {
        serving.server.validations[i] =
            (struct validation){.generation = 1, .step = 1, .examples = 20, .score = (float)i, .rises = true};
    }
    send_request(chief, MESSAGE_validate, &question);
    assert_true(serving_serve(chief));
    do {
        assert_int_equal(receive(chief), MESSAGE_validation);
    } while (!(chief->client.frame.flags & FRAME_LAST));
    while (serving.server.validations[marked].is_worst) {
        marked++;
    }
    for (int i = marked; i < count; i++) {
        assert_false(serving.server.validations[i].is_worst);
    }
    serving_end();
    return marked;
}

/* Rounded up. */
TEST(a_tenth_is_marked)
{
    assert_int_equal(marked_of(2), 1);
    assert_int_equal(marked_of(10), 1);
    assert_int_equal(marked_of(11), 2);
    assert_int_equal(marked_of(20), 2);
    assert_int_equal(marked_of(21), 3);
}

TEST(what_is_too_much_is_not_kept)
{
    begin();
    tells(1, 1, 0.25f, 1, 7);
    assert_int_equal(serving.server.validation_bytes, sizeof(float));
    serving.server.validation_bytes = 64 << 20; /* as if the others had sent a lot */
    tells(1, 1, 0.25f, 1, 8);                   /* replaces its former one */
    assert_int_equal(serving.server.validation_bytes, 64 << 20);
    tells(2, 1, 0.25f, 1, 9);
    assert_int_equal(serving.server.validation_bytes, 64 << 20);
    assert_string_equal(hears(0.5f, 1, 0), "1:8 2:0 missing 1"); /* its score counts anyway */
    tells(1, 1, 0.25f, 1, 0);
    assert_int_equal(serving.server.validation_bytes, (64 << 20) - sizeof(float));
    serving_end();
}

TEST(what_is_out_of_date_does_not_count)
{
    begin();
    workers[1]->client.generation = 7;
    tells(1, 1, 0.25f, 1, 1);
    workers[2]->session.incarnation++; /* another process has taken its place */
    tells(2, 1, 0.25f, 1, 2);
    assert_string_equal(hears(0.5f, 1, 0), "missing 3");
    assert_int_equal(serving.server.validation_bytes, 0);
    serving_end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
