/* Numbers as spreadsheets and loggers write them. */
#include <string.h>

#include "tests/check.h"

#include "worker/data/table/notation.h"

enum { MOST = 6 };

struct sample {
    const char *texts[MOST]; /* no plain numbers */
    struct notation_hints hints;
    struct notation wanted;
    bool is_unsure;
    double values[MOST];
};

static void check(const struct sample *sample)
{
    struct notation_clues clues = {.points = 0};
    bool is_unsure;
    for (int i = 0; i < MOST && sample->texts[i]; i++) {
        if (!notation_look(&clues, sample->texts[i], strlen(sample->texts[i]))) {
            fail_msg("%s is no number", sample->texts[i]);
        }
    }
    const struct notation notation = notation_choose(&clues, &sample->hints, &is_unsure);
    assert_int_equal(notation.decimal, sample->wanted.decimal);
    assert_string_equal(notation.unit, sample->wanted.unit);
    assert_true(notation_is_valid(&notation));
    if (is_unsure != sample->is_unsure) {
        fail_msg("%s is %ssure", sample->texts[0], is_unsure ? "un" : "");
    }
    for (int i = 0; i < MOST && sample->texts[i]; i++) {
        double value = 0;
        const enum number_kind kind = notation_read(&notation, sample->texts[i], strlen(sample->texts[i]), &value);
        if (kind != NUMBER_FINITE || value != sample->values[i]) {
            fail_msg("%s reads as %g, not %g", sample->texts[i], value, sample->values[i]);
        }
    }
}

TEST(columns_have_a_notation)
{
    static const struct sample samples[] = {
        {{"1,234.5", "12,345,678"}, {0}, {.decimal = '.'}, false, {1234.5, 12345678}},
        {{"1.234,5", "12.345.678"}, {0}, {.decimal = ','}, false, {1234.5, 12345678}},
        {{"1,5", "2,75", "1,234"}, {0}, {.decimal = ','}, false, {1.5, 2.75, 1.234}},
        {{"1,454"}, {.plain = 1, .largest = 987}, {.decimal = '.'}, false, {1454}},
        {{"1,454"}, {.plain = 1, .largest = 1987}, {.decimal = ','}, false, {1.454}},
        {{"1,454"}, {.plain = 1, .largest = 9, .has_fractions = true}, {.decimal = '.'}, false, {1454}},
        {{"1,454", "2,987"}, {0}, {.decimal = '.'}, true, {1454, 2987}},
        {{"1,454", "2,987"}, {.delimiter = ';'}, {.decimal = ','}, true, {1.454, 2.987}},
        {{"1,454"}, {.decimal = DECIMAL_COMMA}, {.decimal = ','}, false, {1.454}},
        {{"0,123", "4,567"}, {0}, {.decimal = ','}, false, {0.123, 4.567}},
        {{"1 234", "12\u00A0345", "1\u202F234,5", "2\u2009345"},
         {0},
         {.decimal = ','},
         false,
         {1234, 12345, 1234.5, 2345}},
        {{"1'234.5", "1\u2019234"}, {0}, {.decimal = '.'}, false, {1234.5, 1234}},
        {{"12,34,567", "1,23,456"}, {0}, {.decimal = '.'}, false, {1234567, 123456}},
        {{"$5", "-$5.25", "$-5", "($5.50)", "5-", "5 $"},
         {0},
         {.decimal = '.', .unit = "$"},
         false,
         {5, -5.25, -5, -5.5, -5, 5}},
        {{"5\u20AC", "\u20AC 1.234,50"}, {0}, {.decimal = ',', .unit = "\u20AC"}, false, {5, 1234.5}},
        {{"EUR 5", "7 EUR"}, {0}, {.decimal = '.', .unit = "EUR"}, false, {5, 7}},
        {{"65.6%", "7 %", "8\uFF05"}, {0}, {.decimal = '.', .unit = "%"}, false, {65.6, 7, 8}},
        {{"0.17D+02", "1.5d3", "-2D-1"}, {0}, {.decimal = '.'}, false, {17, 1500, -0.2}},
        {{"\u22121.5", "1.5\u00A0", "1.5+", "(12.50)"}, {0}, {.decimal = '.'}, false, {-1.5, 1.5, 1.5, -12.5}},
    };
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
        check(&samples[i]);
    }
}

TEST(other_texts_are_no_numbers)
{
    static const char *const texts[] = {
        "",      "-",           "$",        "%",    "abc",       "A5",           "1.2.3", "12:30", "2024-05-01",
        "1,2,3", "1 23",        "1,23,45",  "5 2k", "(5",        "--5",          "-(5)",  "1e",    "1d5d",
        "$5$",   "192.168.1.1", "12 345 6", "1'23", "0,123,456", "1234,567,890", "+5-"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct notation_clues clues = {.points = 0};
        if (notation_look(&clues, texts[i], strlen(texts[i]))) {
            fail_msg("%s is a number", texts[i]);
        }
    }
}

TEST(words_behind_numbers_are_units)
{
    static const struct {
        const char *text, *unit;
        double value;
    } cases[] = {{"5 kg", "kg", 5},       {"5kg", "kg", 5},     {"-1.5 \u00B0C", "\u00B0C", -1.5},
                 {"80 km/h", "km/h", 80}, {"12 m2", "m2", 12},  {"12 m^2", "m^2", 12},
                 {"1e3 Hz", "Hz", 1000},  {"3\u00A0d", "d", 3}, {"1,234.5 kg", "kg", 1234.5}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct notation_clues clues = {.points = 0};
        double value;
        bool is_unsure;
        assert_true(notation_look(&clues, cases[i].text, strlen(cases[i].text)));
        assert_int_equal(clues.words, 1);
        assert_string_equal(clues.word, cases[i].unit);
        struct notation notation = notation_choose(&clues, &(struct notation_hints){.delimiter = ';'}, &is_unsure);
        memcpy(notation.unit, clues.word, sizeof notation.unit);
        assert_true(notation_has_word(&notation));
        assert_int_equal(notation_read(&notation, cases[i].text, strlen(cases[i].text), &value), NUMBER_FINITE);
        assert_true(fabs(value - cases[i].value) < 1e-9);
        assert_int_equal(notation_read(&notation, "7", 1, &value), NUMBER_FINITE);
        assert_int_equal(notation_read(&notation, "7 lb", 4, &value), NUMBER_TEXT);
        assert_false(notation_look(&clues, "7 lb", 4));
        assert_int_equal(clues.other_words, 1);
    }
}

TEST(codes_have_no_unit)
{
    static const char *const codes[] = {"0012A", "00 kg", "10x3", "12X40", "1A2B", "5e"};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        struct notation_clues clues = {.points = 0};
        struct notation notation = {.decimal = '.', .unit = ""};
        double value;
        bool is_unsure;
        if (notation_look(&clues, codes[i], strlen(codes[i]))) {
            notation = notation_choose(&clues, &(struct notation_hints){.delimiter = ';'}, &is_unsure);
            memcpy(notation.unit, clues.word, sizeof notation.unit);
        }
        assert_int_equal(notation_read(&notation, codes[i], strlen(codes[i]), &value), NUMBER_TEXT);
    }
}

/* A value in another notation than its column's is none. */
TEST(one_notation_a_column)
{
    const struct notation german = {.decimal = ',', .group = '.', .unit = "\u20AC"};
    static const char *const others[] = {"1,234.5", "1.5", "$5", "1'234", "5%"};
    double value;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_int_equal(notation_read(&german, others[i], strlen(others[i]), &value), NUMBER_TEXT);
    }
    assert_int_equal(notation_read(&german, "1.234", 5, &value), NUMBER_FINITE);
    assert_true(value == 1234);
    assert_int_equal(notation_read(&german, "NA", 2, &value), NUMBER_MISSING);
    assert_int_equal(notation_read(&german, "n.a.", 4, &value), NUMBER_TEXT);
    assert_true(number_is_mark("n.a.", 4) && number_is_mark("#DIV/0!", 7) && number_is_mark(" - ", 3));
    assert_false(number_is_mark("-1", 2) || number_is_mark("low", 3));
}

int main(void)
{
    return check_run(NULL, NULL);
}
