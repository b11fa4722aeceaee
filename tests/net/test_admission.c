/*
 * What unauthenticated peers may consume: a budget that refills with time, half of it for one address; a token works
 * once; and however many peers are rejected, there is one line a minute for each reason, and every peer is counted.
 */
#include "net/admission.h"
#include "tests/check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "tests/random.h"

static struct admission_source source_of(const char *text)
{
    struct endpoint endpoint = {.size = sizeof endpoint.address};
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, text, &four.sin_addr) == 1) {
        memcpy(&endpoint.address, &four, sizeof four);
    } else {
        assert_int_equal(inet_pton(AF_INET6, text, &six.sin6_addr), 1);
        memcpy(&endpoint.address, &six, sizeof six);
    }
    return admission_source(&endpoint);
}

static bool same(const char *a, const char *b)
{
    struct admission_source first = source_of(a), second = source_of(b);
    return memcmp(&first, &second, sizeof first) == 0;
}

TEST(sources)
{
    assert_true(same("10.0.0.1", "::ffff:10.0.0.1"));
    assert_false(same("10.0.0.1", "10.0.0.2"));
    assert_false(same("10.0.0.1", "::ffff:10.0.0.2"));
    assert_true(same("2001:db8:1:2::1", "2001:db8:1:2:ffff::9"));
    assert_false(same("2001:db8:1:2::1", "2001:db8:1:3::1"));
}

/* Handshakes of `cost_s` each, one after another for that long, whenever they are allowed: their processor time. */
static double take(struct admission *admission, const struct admission_source *sources, int count, double cost_s,
                   double from_s, double seconds)
{
    double taken_s = 0;
    for (int i = 0; i < (int)(seconds * 1000); i++) {
        const double now_s = from_s + i / 1000.0;
        const struct admission_source *source = &sources[i % count];
        if (admission_begin(admission, source, now_s)) {
            admission_end(admission, source, cost_s, now_s);
            taken_s += cost_s;
        }
    }
    return taken_s;
}

TEST(shares)
{
    struct admission *admission = malloc(sizeof *admission);
    const struct admission_source one = source_of("10.0.0.1"), other = source_of("10.0.0.2");
    struct admission_source many[1000];
    admission_start(admission, 100);
    /* The saved-up budget, then the rate; one address gets half of both. */
    assert_true(take(admission, &one, 1, 0.006, 100, 100) <= (ADMISSION_SAVED_S + 100 * ADMISSION_SHARE) / 2 + 0.01);
    assert_true(take(admission, &one, 1, 0.006, 200, 100) >= 100 * ADMISSION_SHARE / 2 - 0.02);
    /* Another address still finds its half. */
    assert_true(take(admission, &other, 1, 0.006, 300, 1) >= ADMISSION_SAVED_S / 2 - 0.01);
    /* Many addresses, more than are remembered, get no more than the whole budget. */
    for (int i = 0; i < 1000; i++) {
        many[i] = one;
        many[i].bytes[13] = (uint8_t)(i >> 8);
        many[i].bytes[14] = (uint8_t)i;
    }
    const double all_s = take(admission, many, 1000, 0.006, 400, 100);
    assert_true(all_s <= ADMISSION_SAVED_S + 100 * ADMISSION_SHARE + 0.01);
    assert_true(all_s >= 100 * ADMISSION_SHARE - 0.02);
    /* A handshake that costs more than was held for it is paid for later. */
    assert_true(take(admission, many, 1000, 0.5, 600, 100) <= ADMISSION_SAVED_S + 100 * ADMISSION_SHARE + 0.5);
    free(admission);
}

/* Cheap handshakes cost something too; those of members nothing. */
TEST(the_least_and_nothing)
{
    struct admission *admission = malloc(sizeof *admission);
    const struct admission_source one = source_of("10.0.0.1");
    admission_start(admission, 0);
    const double most = (ADMISSION_SAVED_S + 10 * ADMISSION_SHARE) / 2 / ADMISSION_LEAST_S + 1;
    assert_true(take(admission, &one, 1, 1e-6, 0, 10) / 1e-6 <= most);
    admission_start(admission, 100);
    for (int i = 0; i < 1000; i++) {
        assert_true(admission_begin(admission, &one, 100));
        admission_end(admission, &one, 0, 100);
    }
    free(admission);
}

/* Handshakes in progress count, although their cost is not known yet. */
TEST(what_is_under_way_counts)
{
    struct admission *admission = malloc(sizeof *admission);
    const struct admission_source one = source_of("10.0.0.1");
    int begun = 0;
    admission_start(admission, 0);
    while (begun < 1000 && admission_begin(admission, &one, 0)) {
        begun++;
    }
    assert_true(begun > 10 && begun <= ADMISSION_SAVED_S / 2 / ADMISSION_LEAST_S);
    free(admission);
}

static struct admission_source number(int i)
{
    struct admission_source source = source_of("10.0.0.1");
    source.bytes[13] = (uint8_t)(i >> 8);
    source.bytes[14] = (uint8_t)i;
    return source;
}

/* One that costs nothing. */
static void come(struct admission *admission, int i, double now_s)
{
    const struct admission_source source = number(i);
    assert_true(admission_begin(admission, &source, now_s));
    admission_end(admission, &source, 0, now_s);
}

/* How many handshakes this one may begin. */
static int use_up(struct admission *admission, int i, double now_s)
{
    const struct admission_source source = number(i);
    int begun = 0;
    while (begun < 1000 && admission_begin(admission, &source, now_s)) {
        begun++;
    }
    return begun;
}

/* When all places are taken, the address that came least recently is forgotten, and gets a full share again. */
TEST(who_is_forgotten)
{
    enum { GREEDY = 100 };
    struct admission *admission = malloc(sizeof *admission);
    for (int recent = 0; recent < 2; recent++) {
        double now_s = 1000;
        admission_start(admission, now_s);
        for (int i = 0; i < ADMISSION_ADDRESSES; i++) {
            if (i == GREEDY) {
                assert_in_range(use_up(admission, i, now_s), 40, 50);
            } else {
                come(admission, i, now_s);
            }
            now_s += 0.001;
        }
        for (int i = 0; i <= GREEDY - !recent; i++) { /* those before it again, and perhaps it, too */
            if (i < GREEDY) {
                come(admission, i, now_s);
            } else {
                assert_in_range(use_up(admission, i, now_s), 0, 5);
            }
            now_s += 0.001;
        }
        come(admission, ADMISSION_ADDRESSES, now_s);
        const int begun = use_up(admission, GREEDY, now_s);
        assert_true(recent ? begun <= 5 : begun >= 40);
        for (int i = 0; i < ADMISSION_ADDRESSES; i++) { /* what one that is forgotten had begun may still end */
            come(admission, 1000 + i, now_s + 1000 + i);
        }
        const struct admission_source greedy = number(GREEDY);
        admission_end(admission, &greedy, 0.1, now_s + 2000);
    }
    free(admission);
}

/* A clock that is a little behind takes nothing from anybody. */
TEST(time_does_not_go_back)
{
    struct admission *admission = malloc(sizeof *admission);
    admission_start(admission, 1000);
    come(admission, 1, 1000);
    come(admission, 1, 900);
    assert_in_range(use_up(admission, 1, 900), 40, 50);
    free(admission);
}

TEST(tokens_are_good_once)
{
    struct admission *admission = malloc(sizeof *admission);
    struct test_random random = test_random_begin("tokens_are_good_once");
    uint8_t tokens[200][HANDSHAKE_TOKEN_SIZE];
    int forgotten = 0;
    admission_start(admission, 0);
    for (int i = 0; i < 200; i++) {
        for (int k = 0; k < HANDSHAKE_TOKEN_SIZE; k++) {
            tokens[i][k] = (uint8_t)test_random_next(&random);
        }
        assert_true(admission_is_new(admission, tokens[i]));
        assert_false(admission_is_new(admission, tokens[i]));
    }
    for (int i = 0; i < 200; i++) {
        forgotten += admission_is_new(admission, tokens[i]);
    }
    assert_true(forgotten < 40);
    free(admission);
}

/* --- The log of rejections --- */

static bool reject(struct reject_log *log, enum reject_reason reason, int port, double now_s)
{
    struct error error;
    error_set(&error, "refused 10.0.0.1:%d: no key", port);
    return reject_log_add(log, reason, &error, now_s);
}

TEST(one_line_a_minute)
{
    struct reject_log log = {0};
    struct error line;
    int lines = 0;
    for (int i = 0; i < 6000; i++) { /* ten minutes, ten a second */
        lines += reject(&log, REJECT_TLS, i, 1000 + i / 10.0);
        while (reject_log_next(&log, 1000 + i / 10.0, false, &line)) {
            lines++;
        }
    }
    assert_int_equal(lines, 10);
    assert_true(reject_log_next(&log, 1600, true, &line));
    assert_false(reject_log_next(&log, 1600, true, &line));
}

TEST(what_lines_say)
{
    struct reject_log log = {0};
    struct error line;
    assert_true(reject(&log, REJECT_HELLO, 1, 100));
    assert_true(reject(&log, REJECT_TLS, 1, 100)); /* each reason separately */
    for (int i = 0; i < 20; i++) {
        assert_false(reject(&log, REJECT_TLS, i, 110));
    }
    assert_false(reject_log_next(&log, 159, false, &line));
    assert_true(reject_log_next(&log, 160, false, &line));
    assert_string_equal(line.text, "20 more connections in 60 s failed in the TLS handshake; the latest: "
                                   "refused 10.0.0.1:19: no key");
    assert_false(reject_log_next(&log, 300, false, &line));
    assert_true(reject(&log, REJECT_TLS, 3, 300)); /* after a quiet minute the next one is logged at once */
    assert_false(reject(&log, REJECT_TLS, 3, 301));
}

int main(void)
{
    return check_run(NULL, NULL);
}
