/* What the leader of rollouts saves for its next process. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/checked.h"
#include "base/file.h"
#include "ps/rollout/history.h"
#include "tests/random.h"
#include "tests/worker/remote/story.h"

static struct versions versions;
static char path[VERSIONS_PATH];
static struct error error;

static int enter(void **state)
{
    snprintf(versions.folder, sizeof versions.folder, "/tmp/record.XXXXXX");
    return !mkdtemp(versions.folder) || !file_join(path, sizeof path, versions.folder, "rollout.json", &error);
}

static int leave(void **state)
{
    char head[VERSIONS_PATH];
    unlink(path);
    if (file_join(head, sizeof head, versions.folder, "audit.head", &error)) {
        unlink(head);
    }
    return rmdir(versions.folder);
}

static void put(const char *file, const char *text, size_t size)
{
    const struct file_part part = {text, size};
    assert_true(file_write_atomic(file, &part, 1, &error));
}

static void assert_same(const struct record *record)
{
    struct record read;
    bool there;
    if (!record_read(&versions, &there, &read, &error)) {
        fail_msg("%s", error.text);
    }
    assert_true(there);
    assert_int_equal(read.state, record->state);
    assert_int_equal(read.plan.target, record->plan.target);
    assert_int_equal(read.plan.fallback, record->plan.fallback);
    assert_int_equal(read.plan.kind, record->plan.kind);
    assert_int_equal(read.plan.waited, record->plan.waited);
    assert_true(read.plan.healthy_s == record->plan.healthy_s); /* NOLINT: bits */
    assert_true(read.loss_before == record->loss_before ||      /* NOLINT: bits */
                (isnan(read.loss_before) && isnan(record->loss_before)));
    assert_int_equal(read.highest, record->highest);
    assert_int_equal(read.resumed_s, record->resumed_s);
    assert_string_equal(read.reason, record->reason);
    assert_memory_equal(&read.plan.absent, &record->plan.absent, sizeof read.plan.absent);
}

static void assert_kept(const struct record *record)
{
    assert_true(record_store(&versions, record, &error));
    assert_same(record);
}

static void it_is_read_as_it_was_stored(void **state)
{
    bool there = true;
    struct record record = {
        .state = ROLLOUT_SWITCHING,
        .plan = {.target = 5, .fallback = 4, .kind = ROLLOUT_JOB, .healthy_s = 10, .absent = {{4, 128}}},
        .loss_before = 0.3,
        .highest = 6,
        .resumed_s = 1700000000};
    assert_true(record_read(&versions, &there, &record, &error));
    assert_false(there);
    assert_kept(&record);
    record.plan.waited = true;
    record.plan.fallback = 0; /* a config without a number */
    assert_kept(&record);
    snprintf(record.reason, sizeof record.reason,
             "worker 3: \"/a\\b\": \t\x01 can't, without 01, of a job that waited");
    assert_kept(&record);
    record.plan.absent = (struct rollout_absent){{0}};
    record.loss_before = NAN;
    assert_kept(&record);
    snprintf(record.reason, sizeof record.reason, "cut in the middle of a character: \xc3");
    assert_kept(&record);
}

/* The maximum of everything, in as many characters as that takes. */
static void all_may_be_off(void **state)
{
    struct record record = {.state = ROLLOUT_GOING_BACK,
                            .plan = {.target = 1ull << 53,
                                     .fallback = (1ull << 53) - 1,
                                     .kind = ROLLOUT_JOB,
                                     .healthy_s = 86399.000000000015,
                                     .waited = true},
                            .loss_before = -1.2345678901234567e-300,
                            .highest = 1ull << 53};
    memset(record.plan.absent.bits, 0xff, sizeof record.plan.absent.bits);
    record.plan.absent.bits[0] = 0xfe;
    memset(record.reason, '\x01', sizeof record.reason - 1);
    assert_kept(&record);
    struct test_random random = test_random_begin("all_may_be_off");
    for (int run = 0; run < 50; run++) {
        const int most = 1 + test_random_below(&random, ROLLOUT_MAX_LISTED / 8);
        record.plan.absent = (struct rollout_absent){{0}};
        for (int i = 1; i < most; i++) {
            record.plan.absent.bits[i] = (uint8_t)test_random_below(&random, 256);
        }
        record.reason[test_random_below(&random, 511)] = (char)('a' + test_random_below(&random, 26));
        assert_kept(&record);
    }
}

/* Where a folder's name leaves no room for a file's, there is no record to be sure of. */
static void a_name_may_be_too_long(void **state)
{
    const struct record record = {.state = ROLLOUT_STAGING};
    struct record read;
    struct versions deep;
    bool there;
    memset(deep.folder, 'a', sizeof deep.folder);
    for (size_t left = 2; left < sizeof "/rollout.json"; left++) {
        deep.folder[sizeof deep.folder - left] = '\0';
        there = true;
        assert_false(record_read(&deep, &there, &read, &error));
        assert_false(there);
        assert_false(record_store(&deep, &record, &error));
    }
}

static void assert_damaged(const char *file, const char *text, size_t size)
{
    struct record record;
    bool there;
    char whole[VERSIONS_PATH + 80];
    snprintf(whole, sizeof whole, "%s: is damaged; remove it if no rollout was under way", file);
    put(file, text, size);
    assert_false(record_read(&versions, &there, &record, &error));
    assert_string_equal(error.text, whole);
}

/* Ends an object that lacks its closing brace with the checksum that belongs to it. */
static size_t with_sum(char text[1024], const char *object, size_t size)
{
    return (size_t)snprintf(text, 1024, "%.*s,\n\t\"checksum\":\t\"%08x\"\n}\n", (int)size, object,
                            checked_sum(path, object, size));
}

/* Every value missing, or of another type, or out of range; and the whole cut at every byte. */
static void a_damaged_json_is_refused_by_name(void **state)
{
    static const char good[] =
        "{\"state\":\"switching\",\"kind\":\"job\",\"target\":5,\"fallback\":4,\"highest\":6,\"resumed_s\":8,"
        "\"healthy_s\":10,\"loss_before\":0.5,\"job_waited\":false,\"absent_workers\":[2],"
        "\"reason\":\"\"";
    static const char *const others[][2] = {
        {"\"switching\"", "\"sailing\""},
        {"\"switching\"", "2"},
        {"\"job\"", "\"jobs\""},
        {"\"job\"", "2"},
        {"5,", "-5,"},
        {"5,", "5.5,"},
        {"5,", "1e300,"},
        {"5,", "\"5\","},
        {"4,", "null,"},
        {"6,", "true,"},
        {"8,", "-8,"},
        {"10,", "null,"},
        {"0.5", "\"0.5\""},
        {"false", "0"},
        {"[2]", "[0]"},
        {"[2]", "[1024]"},
        {"[2]", "[\"2\"]"},
        {"[2]", "2"},
        {":\"\"", ":null"},
        {":\"\"", ":\"\"} {"},
        {"\"target\"", "\"Target\""},
        {"\"reason\"", "\"why\""},
    };
    char object[512], text[1024];
    put(path, text, with_sum(text, good, sizeof good - 1));
    assert_same(
        &(struct record){.state = ROLLOUT_SWITCHING,
                         .plan = {.target = 5, .fallback = 4, .kind = ROLLOUT_JOB, .healthy_s = 10, .absent = {{4}}},
                         .loss_before = 0.5,
                         .highest = 6,
                         .resumed_s = 8});
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const char *at = strstr(good, others[i][0]);
        assert_non_null(at);
        int size = snprintf(object, sizeof object, "%.*s%s%s", (int)(at - good), good, others[i][1],
                            at + strlen(others[i][0]));
        assert_damaged(path, text, with_sum(text, object, (size_t)size));
    }
    for (size_t size = 0; size < sizeof good - 1; size++) {
        assert_damaged(path, text, with_sum(text, good, size));
        assert_damaged(path, good, size);
    }
    snprintf(object, sizeof object, "%s}", good);
    assert_damaged(path, object, strlen(object)); /* without a checksum */
}

/* Unsigned requests get a few lines, and then one a minute. */
/* Each bit of what is stored, each truncation, and each sector that was never written. */
static void whatever_rots_is_noticed(void **state)
{
    struct record record = {.state = ROLLOUT_WATCHING,
                            .plan = {.target = 5, .fallback = 4, .kind = ROLLOUT_LOCAL, .healthy_s = 10},
                            .loss_before = 0.3,
                            .highest = 7,
                            .reason = "it \"diverges\""};
    uint8_t *good, *bytes;
    size_t size;
    assert_kept(&record);
    assert_true(file_read(path, 4096, &good, &size, &error));
    bytes = malloc(size);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        memcpy(bytes, good, size);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_damaged(path, (const char *)bytes, size);
    }
    for (size_t at = 0; at < size; at++) {
        memcpy(bytes, good, size);
        memset(bytes + at, 0, size - at < 64 ? size - at : 64);
        assert_damaged(path, (const char *)bytes, size);
        assert_damaged(path, (const char *)good, at);
    }
    free(bytes);
    free(good);
}

static void the_meter_lets_few_through(void **state)
{
    struct audit_meter meter = {.lines = 0};
    uint64_t left_out = 7, written = 0, all = 0;
    double now_s = 1e6;
    for (int i = 0; i < 300; i++) {
        written += audit_may_write(&meter, now_s, &left_out);
    }
    assert_true(written == 10 && left_out == 0);
    assert_false(audit_may_write(&meter, now_s + 59, &left_out));
    assert_true(audit_may_write(&meter, now_s + 61, &left_out));
    assert_int_equal(left_out, 291);
    assert_false(audit_may_write(&meter, now_s + 62, &left_out));
    for (int s = 121; s <= 3601; s++) { /* every second for an hour */
        const bool may = audit_may_write(&meter, now_s + s, &left_out);
        written += may;
        all += 1 + (may ? left_out : 0);
    }
    assert_in_range(written, 68, 70);
    now_s += 3601 + 3600; /* after an hour of silence a few at once again */
    for (written = 0; audit_may_write(&meter, now_s, &left_out); written++) {
    }
    assert_int_equal(written, 10);
}

static long size_of(const char *name)
{
    char whole[VERSIONS_PATH];
    struct stat status;
    assert_true(file_join(whole, sizeof whole, versions.folder, name, &error));
    return stat(whole, &status) == 0 ? (long)status.st_size : -1;
}

/*
 * Starts processes that write concurrently. Each writes one line, then waits until all have: while one is about to
 * start a new file, the others may still write to the old one.
 */
static void write_side_by_side(const struct audit_entry *entry, int writers, int lines)
{
    int written[2], go[2];
    char byte;
    assert_true(pipe(written) == 0 && pipe(go) == 0);
    for (int i = 0; i < writers; i++) {
        if (fork() == 0) {
            close(go[1]);
            audit_write(&versions, entry);
            close(written[1]);
            const bool all_wrote = read(go[0], &byte, 1) == 0;
            for (int k = 1; k < lines && all_wrote; k++) {
                audit_write(&versions, entry);
            }
            _exit(0);
        }
    }
    close(written[1]);
    const ssize_t got = read(written[0], &byte, 1); /* ends once all have closed it */
    close(written[0]);
    close(go[0]);
    close(go[1]);
    assert_int_equal(got, 0);
}

/* There are never more than two files; here several processes write at once. */
static void the_audit_log_is_bounded(void **state)
{
    char name[600], log[VERSIONS_PATH], victim[VERSIONS_PATH];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    const struct audit_entry entry = {"ps 0", name, "propose", 5, "begun", 0};
    assert_true(file_join(log, sizeof log, versions.folder, "audit.log", &error) &&
                file_join(victim, sizeof victim, versions.folder, "audit.log.1", &error));
    listen_in();
    audit_write(&versions, &entry);
    const long line = size_of("audit.log");
    assert_in_range(line, 650, 900);
    assert_int_equal(truncate(log, AUDIT_MAX_BYTES - 1), 0);
    audit_write(&versions, &entry);                                 /* the last one that fits */
    assert_int_equal(size_of("audit.log"), AUDIT_MAX_BYTES + line); /* it ends the torn line first */
    assert_int_equal(size_of("audit.log.1"), -1);
    enum { WRITERS = 4, LINES = 5 };
    write_side_by_side(&entry, WRITERS, LINES);
    for (int i = 0; i < WRITERS; i++) {
        assert_true(wait(NULL) > 0);
    }
    const long first = size_of("audit.log.1"), second = size_of("audit.log"); /* no line is lost */
    assert_int_equal(first + second, AUDIT_MAX_BYTES + line + WRITERS * LINES * line);
    assert_true(second >= line && first < AUDIT_MAX_BYTES + WRITERS * line);
    assert_string_equal(heard_so_far(), "");
    /* If a link is in its place, it is not written through. */
    unlink(log);
    assert_int_equal(symlink(victim, log), 0);
    audit_write(&versions, &entry);
    assert_int_equal(size_of("audit.log.1"), first);
    assert_int_equal(times(heard(), "can't append to the audit log: "), 1);
    unlink(log);
    unlink(victim);
}

/* Writes this text as the log, and says what is wrong with it. */
static const char *verified(const char *log, const char *text)
{
    static struct error why;
    struct audit_state verified_state;
    put(log, text, strlen(text));
    return audit_verify(&versions, &verified_state, &why) ? "" : why.text;
}

static void the_audit_log_is_a_chain(void **state)
{
    enum { LINES = 5, AFTER = LINES };
    char log[VERSIONS_PATH], head[VERSIONS_PATH], changed[8192], at_line[32];
    char lines[LINES][1024];
    uint8_t *bytes;
    size_t size;
    struct audit_state whole;
    assert_true(file_join(log, sizeof log, versions.folder, "audit.log", &error) &&
                file_join(head, sizeof head, versions.folder, "audit.head", &error));
    for (int i = 0; i < LINES; i++) {
        const struct audit_entry entry = {"ps 0", "me@desk", "propose", (uint64_t)i + 1, "a \"word\"\n", 0};
        audit_write(&versions, &entry);
    }
    assert_true(audit_verify(&versions, &whole, &error));
    assert_int_equal(whole.lines, LINES);
    assert_int_equal(whole.mended, 0);
    assert_true(file_read(log, 8192, &bytes, &size, &error));
    const char *at = (const char *)bytes;
    for (int i = 0; i < LINES; i++) {
        const int length = (int)strcspn(at, "\n") + 1;
        snprintf(lines[i], sizeof lines[i], "%.*s", length, at);
        at += length;
    }
    const char *const all = (const char *)bytes;

    /* An edit of any byte shows at that line or the next one; in the last line, by audit.head. */
    for (size_t i = 0; i < size; i++) {
        memcpy(changed, all, size + 1);
        changed[i] = changed[i] == '~' ? '!' : '~';
        assert_string_not_equal(verified(log, changed), "");
    }
    memcpy(changed, all, size + 1);
    memcpy(strstr(changed, "\"version\":3"), "\"version\":7", strlen("\"version\":7"));
    snprintf(at_line, sizeof at_line, "audit.log:%d: ", 4);
    assert_non_null(strstr(verified(log, changed), at_line));

    /* One is deleted, two are swapped, one is there twice, the first ones are gone. */
    static const struct {
        int order[LINES + 1], breaks_at;
    } orders[] = {{{0, 1, 3, 4, -1}, 3}, {{0, 2, 1, 3, 4, -1}, 2}, {{0, 1, 1, 2, 3, 4}, 3}, {{2, 3, 4, -1}, 1}};
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        changed[0] = '\0';
        for (int k = 0; k <= LINES && orders[i].order[k] >= 0; k++) {
            strcat(changed, lines[orders[i].order[k]]);
        }
        snprintf(at_line, sizeof at_line, "audit.log:%d: ", orders[i].breaks_at);
        assert_non_null(strstr(verified(log, changed), at_line));
    }

    /* Cut anywhere: a torn line, or audit.head names another. */
    for (size_t i = 0; i < size; i++) {
        snprintf(changed, sizeof changed, "%.*s", (int)i, all);
        assert_string_not_equal(verified(log, changed), "");
    }
    assert_string_equal(verified(log, all), "");
    assert_int_equal(truncate(log, (off_t)size - 1), 0); /* by a power cut: what comes next is a line of its own */
    audit_write(&versions, &(struct audit_entry){"ps 0", "me@desk", "abort", 9, "done", 0});
    free(bytes);
    assert_true(file_read(log, 8192, &bytes, &size, &error));
    assert_int_equal(times((const char *)bytes, "\n"), LINES + 1);
    assert_true(audit_verify(&versions, &whole, &error)); /* nothing but the end of the line was lost */
    unlink(head);
    assert_false(audit_verify(&versions, &whole, &error));
    free(bytes);
    unlink(log);
}

/* It continues in the next file. */
static void the_chain_spans_files(void **state)
{
    char log[VERSIONS_PATH], former_log[VERSIONS_PATH], head[VERSIONS_PATH], aside[VERSIONS_PATH], name[1000];
    struct audit_state whole;
    assert_true(file_join(log, sizeof log, versions.folder, "audit.log", &error) &&
                file_join(head, sizeof head, versions.folder, "audit.head", &error) &&
                file_join(aside, sizeof aside, versions.folder, "aside", &error) &&
                file_join(former_log, sizeof former_log, versions.folder, "audit.log.1", &error));
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    const struct audit_entry entry = {"ps 0", name, "propose", 5, "begun", 0};
    int written = 0;
    while (size_of("audit.log.1") < 0) {
        audit_write(&versions, &entry);
        written++;
    }
    assert_true(audit_verify(&versions, &whole, &error));
    assert_int_equal(whole.lines, written);
    assert_int_equal(rename(log, former_log), 0); /* and the process dies before the new file's first line */
    audit_write(&versions, &entry);
    assert_true(audit_verify(&versions, &whole, &error));
    assert_int_equal(whole.lines, 2);
    assert_int_equal(rename(former_log, aside), 0);
    assert_false(audit_verify(&versions, &whole, &error));
    assert_non_null(strstr(error.text, "audit.log:1: "));
    assert_int_equal(rename(aside, former_log), 0);
    assert_int_equal(truncate(log, 0), 0); /* which no crash does */
    audit_write(&versions, &entry);
    assert_false(audit_verify(&versions, &whole, &error));
    assert_non_null(strstr(error.text, "audit.log:1: "));
    unlink(former_log);
    unlink(log);
    unlink(head);
}

/* A power cut anywhere in a line needs nobody; and neither does one in the line that mends it. */
static void an_unfinished_line_is_mended(void **state)
{
    char log[VERSIONS_PATH], head[VERSIONS_PATH], config_path[VERSIONS_PATH + 8], folder[VERSIONS_PATH], text[8192];
    char(*entries)[1024] = calloc(3, sizeof *entries), heads[3][CHECKED_LINE];
    struct audit_state found;
    uint8_t *bytes;
    size_t size, lengths[3] = {0};
    memcpy(folder, versions.folder, sizeof folder);
    snprintf(config_path, sizeof config_path, "%.*s/config.json", VERSIONS_PATH - 32, folder);
    assert_true(versions_open(&versions, config_path, &error) &&
                file_join(log, sizeof log, versions.folder, "audit.log", &error) &&
                file_join(head, sizeof head, versions.folder, "audit.head", &error));
    for (int i = 0; i < 3; i++) {
        audit_write(&versions, &(struct audit_entry){"ps 0", "me@desk", "propose", (uint64_t)i + 1, "\"begun\"", 0});
        assert_true(file_read(log, 8192, &bytes, &size, &error) && checked_line_read(head, heads[i], &error));
        snprintf(entries[i], sizeof entries[i], "%s", (const char *)bytes + lengths[0] + lengths[1]);
        lengths[i] = strlen(entries[i]);
        free(bytes);
    }
    listen_in();
    for (size_t cut = 1; cut < lengths[2]; cut += 9) { /* of the third line, before audit.head names it */
        for (int behind = 0; behind < 2; behind++) {   /* or even the second */
            snprintf(text, sizeof text, "%s%s%.*s", entries[0], entries[1], (int)cut, entries[2]);
            put(log, text, strlen(text));
            assert_true(checked_line_write(head, heads[1 - behind], &error));
            if (!audit_verify(&versions, &found, &error)) {
                fail_msg("%s", error.text);
            }
            assert_true(found.lines == 2 && found.mended == 0 && found.unfinished == cut);
            audit_mend(config_path);
            assert_true(audit_verify(&versions, &found, &error));
            assert_true(found.lines == 3 && found.mended == 1 && found.unfinished == 0);
            audit_mend(config_path); /* once */
            audit_write(&versions, &(struct audit_entry){"ps 0", "me@desk", "abort", 9, "done", 0});
            assert_true(audit_verify(&versions, &found, &error));
            assert_true(found.lines == 4 && found.mended == 1);
        }
    }
    assert_true(file_read(log, 8192, &bytes, &size, &error));
    assert_non_null(
        strstr((const char *)bytes, "\n{\"what\":\"mended\",\"outcome\":\"the process ended while it wrote"));
    assert_non_null(strstr((const char *)bytes, ": {'when':'"));
    free(bytes);
    assert_true(times(heard(), "its last line was unfinished") >= 2);

    /* A whole line that was cut, or is gone, is no unfinished one: audit.head names it. */
    for (size_t cut = 0; cut < lengths[2]; cut += 4) {
        snprintf(text, sizeof text, "%s%s%.*s", entries[0], entries[1], (int)cut, entries[2]);
        put(log, text, strlen(text));
        assert_true(checked_line_write(head, heads[2], &error));
        audit_mend(config_path);
        assert_int_equal(size_of("audit.log"), strlen(text));
        assert_false(audit_verify(&versions, &found, &error));
    }
    /* The first line of all. */
    unlink(head);
    put(log, entries[0], lengths[0] / 2);
    audit_mend(config_path);
    assert_true(audit_verify(&versions, &found, &error));
    assert_true(found.lines == 1 && found.mended == 1);
    unlink(log);
    unlink(head);
    rmdir(versions.folder);
    memcpy(versions.folder, folder, sizeof folder);
    free(entries);
}

/* Where a process was started without standard input, the log is the first file that it opens. */
static void the_audit_log_may_be_file_0(void **state)
{
    char log[VERSIONS_PATH], former_log[VERSIONS_PATH];
    const struct audit_entry entry = {"ps 0", "me@desk", "propose", 5, "begun", 0};
    assert_true(file_join(log, sizeof log, versions.folder, "audit.log", &error) &&
                file_join(former_log, sizeof former_log, versions.folder, "audit.log.1", &error));
    const int input = dup(0);
    assert_true(input > 0);
    close(0);
    audit_write(&versions, &entry);
    const int open_after_one = fcntl(0, F_GETFD);
    const long line = size_of("audit.log");
    const int cut = truncate(log, AUDIT_MAX_BYTES);
    close(0);
    audit_write(&versions, &entry); /* begins a new log */
    const int open_after_both = fcntl(0, F_GETFD);
    dup2(input, 0);
    close(input);
    assert_true(line > 0 && cut == 0);
    assert_int_equal(open_after_one, -1);
    assert_int_equal(open_after_both, -1);
    assert_int_equal(size_of("audit.log.1"), AUDIT_MAX_BYTES);
    assert_int_equal(size_of("audit.log"), line);
    unlink(log);
    unlink(former_log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_meter_lets_few_through),
        cmocka_unit_test_setup_teardown(the_audit_log_is_bounded, enter, leave),
        cmocka_unit_test_setup_teardown(an_unfinished_line_is_mended, enter, leave),
        cmocka_unit_test_setup_teardown(the_audit_log_may_be_file_0, enter, leave),
        cmocka_unit_test_setup_teardown(the_audit_log_is_a_chain, enter, leave),
        cmocka_unit_test_setup_teardown(the_chain_spans_files, enter, leave),
        cmocka_unit_test_setup_teardown(it_is_read_as_it_was_stored, enter, leave),
        cmocka_unit_test_setup_teardown(all_may_be_off, enter, leave),
        cmocka_unit_test_setup_teardown(a_name_may_be_too_long, enter, leave),
        cmocka_unit_test_setup_teardown(a_damaged_json_is_refused_by_name, enter, leave),
        cmocka_unit_test_setup_teardown(whatever_rots_is_noticed, enter, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
