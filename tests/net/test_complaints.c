/* However many peers are refused, there is one line a minute for each cause, and every peer is counted. */
#include "net/complaints.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

static struct complaints complaints;
static char line[COMPLAINTS_LINE];

static bool note(enum complaint cause, int address, double now_s)
{
    struct admission_source source = {{(uint8_t)address}};
    struct error error;
    char peer[ENDPOINT_TEXT];
    static int port;
    snprintf(peer, sizeof peer, "10.0.0.%d:%d", address, ++port);
    error_set(&error, "refused %s: no key", peer);
    return complaints_note(&complaints, cause, &source, peer, &error, now_s);
}

static void one_line_a_minute(void **state)
{
    (void)state;
    int lines = 0;
    memset(&complaints, 0, sizeof complaints);
    for (int i = 0; i < 6000; i++) { /* ten minutes, ten a second */
        lines += note(COMPLAINT_TLS, 1, 1000 + i / 10.0);
        while (complaints_next(&complaints, 1000 + i / 10.0, false, line)) {
            lines++;
        }
    }
    assert_int_equal(lines, 10);
    assert_true(complaints_next(&complaints, 1600, true, line));
    assert_false(complaints_next(&complaints, 1600, true, line));
}

static void what_lines_say(void **state)
{
    (void)state;
    memset(&complaints, 0, sizeof complaints);
    assert_true(note(COMPLAINT_HELLO, 9, 100));
    assert_true(note(COMPLAINT_TLS, 9, 100)); /* each cause separately */
    for (int i = 0; i < 20; i++) {
        assert_false(note(COMPLAINT_TLS, 1 + i % 6, 110));
    }
    assert_false(complaints_next(&complaints, 159, false, line));
    assert_true(complaints_next(&complaints, 160, false, line));
    /* Each address once, the newest first, and the newest text. */
    assert_non_null(strstr(line, "20 more connections in 60 s failed in TLS; the newest from 10.0.0.2:"));
    assert_non_null(strstr(line, ", 10.0.0.1:"));
    assert_non_null(strstr(line, ", 10.0.0.6:"));
    assert_non_null(strstr(line, ", 10.0.0.5:"));
    assert_null(strstr(line, "10.0.0.4:"));
    assert_non_null(strstr(line, ": refused 10.0.0.2:"));
    assert_false(complaints_next(&complaints, 300, false, line));
    assert_true(note(COMPLAINT_TLS, 3, 300)); /* after a quiet minute the next one is reported at once */
    assert_false(note(COMPLAINT_TLS, 3, 301));
}

/* A peer that returns again and again is named once, and does not crowd out the others. */
static void addresses_once_each(void **state)
{
    (void)state;
    memset(&complaints, 0, sizeof complaints);
    assert_true(note(COMPLAINT_TLS, 9, 100));
    for (int i = 0; i < 12; i++) {
        assert_false(note(COMPLAINT_TLS, i < 3 ? 1 + i : 3 + i % 2, 101));
    }
    assert_true(complaints_next(&complaints, 102, true, line));
    const char *at = line;
    static const char *const names[] = {"from 10.0.0.4:", ", 10.0.0.3:", ", 10.0.0.2:", ", 10.0.0.1:"};
    for (int i = 0; i < 4; i++) {
        at = strstr(at, names[i]);
        assert_non_null(at);
    }
}

static void long_texts_fit(void **state)
{
    (void)state;
    struct error error;
    char peer[ENDPOINT_TEXT];
    memset(&complaints, 0, sizeof complaints);
    memset(error.text, 'x', sizeof error.text - 1);
    error.text[sizeof error.text - 1] = '\0';
    memset(peer, 'y', sizeof peer - 1);
    peer[sizeof peer - 1] = '\0';
    for (int i = 0; i < 10; i++) {
        struct admission_source source = {{(uint8_t)i}};
        complaints_note(&complaints, COMPLAINT_SHARE, &source, peer, &error, 1);
    }
    assert_true(complaints_next(&complaints, 2, true, line));
    assert_true(strlen(line) < sizeof line);
}

/* Failures of this machine itself have no address: they count as one source. */
static void without_an_address(void **state)
{
    (void)state;
    memset(&complaints, 0, sizeof complaints);
    assert_true(note(COMPLAINT_ACCEPT, 0, 100));
    assert_false(note(COMPLAINT_ACCEPT, 0, 101));
    assert_false(note(COMPLAINT_ACCEPT, 0, 102));
    assert_false(note(COMPLAINT_ACCEPT, 1, 103));
    assert_true(complaints_next(&complaints, 104, true, line));
    assert_non_null(strstr(line, "3 more connections in 4 s could not be accepted; the newest from 10.0.0.1:"));
    assert_non_null(strstr(line, ", 10.0.0.0:"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_line_a_minute),   cmocka_unit_test(what_lines_say),
        cmocka_unit_test(addresses_once_each), cmocka_unit_test(long_texts_fit),
        cmocka_unit_test(without_an_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
