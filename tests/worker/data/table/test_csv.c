/* CSV files as people and programs write them; numbers as strtod reads them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"

#include "tests/random.h"
#include "worker/data/stream.h"
#include "worker/data/table/csv.h"
#include "worker/data/table/number.h"

/* --- numbers --- */

static void expect_number(const char *text)
{
    double value = 0;
    const double wanted = strtod(text, NULL);
    if (number_parse(text, strlen(text), &value) != NUMBER_FINITE || memcmp(&value, &wanted, sizeof value) != 0) {
        fail_msg("%s reads as %.17g, not %.17g", text, value, wanted);
    }
}

TEST(test_numbers_are_strtods)
{
    static const char *const texts[] = {
        "0",
        "-0",
        "+1",
        "1.",
        ".5",
        "-.5e3",
        "1e22",
        "1e23",
        "8.5e22",
        "123456789012345678",
        "9007199254740993",
        "9007199254740992.5",
        "0.1",
        "0.30000000000000004",
        "2.2250738585072011e-308",
        "4.9e-324",
        "1e-400",
        "17976931348623157e292",
        "00000000000000000000000000001",
        "0.000000000000000000000000000000001",
        "1234567890123456789012345678901234567890",
        "9999999999999999999e8",
        "1e0000000000000000000000000001",
        "72057594037927933",
        "3.4028235677973366e38",
        "0e999999",
        "0."
        "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000001e60"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        expect_number(texts[i]);
    }
    struct test_random random = test_random_begin("test_numbers_are_strtods");
    for (int i = 0; i < 200000; i++) {
        char text[64];
        double value;
        const uint64_t bits = test_random_next(&random);
        memcpy(&value, &bits, sizeof value);
        if (i % 2 == 0) {
            snprintf(text, sizeof text, "%s%llu.%0*llue%d", i % 4 ? "-" : "", (unsigned long long)(bits >> 40),
                     1 + (int)(bits % 14), (unsigned long long)(bits % 100000), (int)(bits >> 8 & 63) - 32);
        } else {
            snprintf(text, sizeof text, "%.*g", 15 + i % 3, value);
        }
        if (value == value && value - value == 0) {
            expect_number(text);
        }
    }
}

/* Any digits with a point among them, in memory that ends where they end, at every offset within eight bytes. */
TEST(test_digits_are_strtods)
{
    struct test_random random = test_random_begin("test_digits_are_strtods");
    for (int i = 0; i < 200000; i++) {
        char text[48];
        double value = 0;
        int size = 0;
        const int digits = 1 + test_random_below(&random, 26), point = test_random_below(&random, digits + 8);
        if (test_random_below(&random, 2) == 0) {
            text[size++] = '-';
        }
        for (int digit = 0; digit < digits; digit++) {
            if (digit == point) {
                text[size++] = '.';
            }
            text[size++] = (char)('0' + (test_random_below(&random, 4) == 0 ? 0 : test_random_below(&random, 10)));
        }
        text[size] = '\0';
        char *exact = malloc((size_t)size);
        assert_non_null(exact);
        memcpy(exact, text, (size_t)size);
        const double wanted = strtod(text, NULL);
        const enum number_kind kind = number_parse(exact, (size_t)size, &value);
        free(exact);
        if (kind != NUMBER_FINITE || memcmp(&value, &wanted, sizeof value) != 0) {
            fail_msg("%s reads as %.17g, not %.17g", text, value, wanted);
        }
        text[test_random_below(&random, size)] = "z :/e,"[test_random_below(&random, 6)];
        char *end;
        const double other = strtod(text, &end);
        const bool is_number = *end == '\0' && end != text && other - other == 0;
        if (is_number && (number_parse(text, (size_t)size, &value) != NUMBER_FINITE || value != other)) {
            fail_msg("%s reads as %.17g, not %.17g", text, value, other);
        }
    }
}

TEST(test_what_is_no_number)
{
    static const struct {
        const char *text;
        enum number_kind kind;
    } cases[] = {
        {"", NUMBER_MISSING},       {"  ", NUMBER_MISSING}, {"NA", NUMBER_MISSING},   {"NaN", NUMBER_MISSING},
        {"null", NUMBER_MISSING},   {"?", NUMBER_MISSING},  {"inf", NUMBER_INFINITE}, {"-Inf", NUMBER_INFINITE},
        {"1e999", NUMBER_INFINITE}, {"1e", NUMBER_TEXT},    {"1e+", NUMBER_TEXT},     {"0x10", NUMBER_TEXT},
        {"1 2", NUMBER_TEXT},       {"--1", NUMBER_TEXT},   {"+", NUMBER_TEXT},       {".", NUMBER_TEXT},
        {"1.2.3", NUMBER_TEXT},     {"nano", NUMBER_TEXT},  {" 7 ", NUMBER_FINITE},   {"12,5", NUMBER_TEXT}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double value;
        if (number_parse(cases[i].text, strlen(cases[i].text), &value) != cases[i].kind) {
            fail_msg("\"%s\"", cases[i].text);
        }
    }
}

/* --- rows --- */

static bool open_bytes(struct csv_reader **reader, const void *bytes, size_t size, struct error *error)
{
    struct stream *stream;
    return stream_open_bytes(&stream, "f", bytes, size, error) && csv_open(reader, stream, error);
}

/* All rows as text: fields between |, rows between newlines, bad rows as "!" and their error. */
static char *read_all(const void *bytes, size_t size)
{
    struct csv_reader *reader;
    struct csv_row row;
    struct error error = {""};
    char *text = calloc(1, 4 * size + 65536), *at = text;
    assert_non_null(text);
    if (!open_bytes(&reader, bytes, size, &error)) {
        fail_msg("%s", error.text);
        return text;
    }
    for (enum csv_status status; (status = csv_next(reader, &row, &error)) != CSV_END;) {
        if (status != CSV_ROW) {
            at += sprintf(at, "!%s\n", error.text);
            if (status == CSV_FAILED) {
                break;
            }
            continue;
        }
        for (int i = 0; i < row.count; i++) {
            at += sprintf(at, "%s%.*s", i > 0 ? "|" : "", (int)row.fields[i].size, row.fields[i].text);
        }
        at += sprintf(at, "\n");
    }
    csv_close(reader);
    return text;
}

static void expect_rows(const char *csv, const char *wanted)
{
    char *text = read_all(csv, strlen(csv));
    if (strcmp(text, wanted) != 0) {
        fail_msg("%s\nreads as\n%s\nnot\n%s", csv, text, wanted);
    }
    free(text);
}

TEST(test_dialects)
{
    expect_rows("a,b\n1,2\n", "a|b\n1|2\n");
    expect_rows("a,b\r\n1,2\r\n", "a|b\n1|2\n");
    expect_rows("a,b\n1,2", "a|b\n1|2\n");
    expect_rows("a,b\n1,2\r", "a|b\n1|2\n");
    expect_rows("a;b\n1,5;2\n", "a|b\n1,5|2\n");
    expect_rows("a\tb c\n1\t2\n", "a|b c\n1|2\n");
    expect_rows("\xEF\xBB\xBF"
                "a|b\n1|2\n",
                "a|b\n1|2\n");
    expect_rows("a\n1\n\n2\n", "a\n1\n\n2\n");
    expect_rows("\n\na,b\n\n1,2\n\r\n", "a|b\n1|2\n");
    expect_rows("a,b\n,\n", "a|b\n|\n");
    expect_rows("", "");
    expect_rows("\n", "");
    expect_rows("a,b\n1,2\n   \n\t\n", "a|b\n1|2\n");
    expect_rows("a,b\n1,2,\n3,4, ,\n", "a|b\n1|2\n3|4\n");
    expect_rows("a  b\n1   2\n \n  3 4  \n", "a|b\n1|2\n3|4\n");
    expect_rows("a;b;c\n1,5;2,5;3,5\n4,5;5,5;6,5\n", "a|b|c\n1,5|2,5|3,5\n4,5|5,5|6,5\n");
    expect_rows("a b\n\"x y\" 2\n", "a|b\nx y|2\n");
}

TEST(test_other_encodings_are_refused)
{
    struct csv_reader *reader;
    struct error error;
    expect_rows("a,b\n1,\xC3\xA9\n1,x\xE9y\n3,4\n",
                "a|b\n1|\xC3\xA9\n!f:3:4: byte 0xe9 is not UTF-8, as text must be; if it is Latin-1: iconv -f latin1 "
                "-t utf-8 FILE\n3|4\n");
    assert_false(open_bytes(&reader,
                            "\xFF\xFE"
                            "a\0,\0",
                            6, &error));
    assert_string_equal(error.text, "f: is UTF-16, and text must be UTF-8: iconv -f utf-16 -t utf-8 FILE");
}

TEST(test_quotes)
{
    expect_rows("a,b\n\"x,y\",2\n", "a|b\nx,y|2\n");
    expect_rows("a,b\n\"x\ny\",2\n3,4\n", "a|b\nx\ny|2\n3|4\n");
    expect_rows("a,b\n\"x \"\"y\"\" z\",\"\"\"\"\n", "a|b\nx \"y\" z|\"\n");
    expect_rows("a,b\n\"\",\"\"\n", "a|b\n|\n");
    expect_rows("\"a\",\"b\"\r\n\"1\",\"2\"\r\n", "a|b\n1|2\n");
    expect_rows("a,b\n1,\"2\"", "a|b\n1|2\n");
    expect_rows("a,b\n1,5\" pipe\n", "a|b\n1|5\" pipe\n");
    expect_rows("a,b\n\"x\"y,2\n3,4\n", "a|b\n!f:2:4: has text behind a closing quote; double a quote that belongs to "
                                        "the field\n3|4\n");
    expect_rows("a,b\n1,\"2\n3,4\n", "a|b\n!f:2: ends inside a quoted field; close it, or was the file cut?\n");
}

TEST(test_bad_rows_are_named_and_left_behind)
{
    expect_rows(
        "a,b\n1,2\n3\n4,5,6\n7,8\n",
        "a|b\n1|2\n!f:3:2: has 1 fields where the first row has 2; add what is missing, or remove "
        "the row; --max_bad_records=N skips N such rows\n"
        "!f:4:5: has 3 fields where the first row has 2; put a field with a delimiter in it into quotes\n7|8\n");
    static const char zero[] = "a,b\n1,\0\n3,4\n";
    char *text = read_all(zero, sizeof zero - 1);
    assert_string_equal(text, "a|b\n!f:2:3: has a zero byte; is this a text file, in UTF-8? If it is UTF-16: "
                              "iconv -f utf-16 -t utf-8 FILE\n3|4\n");
    free(text);
}

TEST(test_a_line_without_end_is_refused)
{
    const size_t size = (size_t)CSV_MAX_LINE + (1 << 20);
    char *bytes = malloc(size);
    assert_non_null(bytes);
    memset(bytes, 'x', size);
    static const char begin[] = {'a', ',', 'b', '\n', '1', ',', '2', '\n'};
    memcpy(bytes, begin, sizeof begin);
    char *text = read_all(bytes, size);
    assert_non_null(strstr(text, "!f:3: has a line of more than 16 MiB"));
    free(text);
    free(bytes);
}

/* Rows of all lengths across the buffer's end, quoted or not, are read as they were written. */
TEST(test_rows_of_every_length)
{
    struct test_random random = test_random_begin("test_rows_of_every_length");
    const size_t most = 3 << 20;
    char *csv = malloc(most + 4096), *wanted = malloc(most + 4096);
    assert_non_null(csv);
    assert_non_null(wanted);
    size_t used = (size_t)sprintf(csv, "a,b,c\n"), made = (size_t)sprintf(wanted, "a|b|c\n");
    while (used < most) {
        for (int field = 0; field < 3; field++) {
            const int length = test_random_below(&random, 200);
            const bool quoted = test_random_below(&random, 4) == 0;
            csv[used] = '"';
            used += quoted;
            for (int i = 0; i < length; i++) {
                const char c = (char)('a' + test_random_below(&random, 26));
                csv[used++] = quoted && c < 'c' ? '\n' : c;
                wanted[made++] = csv[used - 1];
                if (quoted && c == 'd') {
                    csv[used - 1] = wanted[made - 1] = '"';
                    csv[used++] = '"';
                }
            }
            csv[used] = '"';
            used += quoted;
            csv[used++] = field < 2 ? ',' : '\n';
            wanted[made++] = field < 2 ? '|' : '\n';
        }
    }
    wanted[made] = '\0';
    char *text = read_all(csv, used);
    if (strcmp(text, wanted) != 0) {
        fail_msg("rows differ");
    }
    free(text);
    free(csv);
    free(wanted);
}

int main(void)
{
    return check_run(NULL, NULL);
}
