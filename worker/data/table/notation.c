/*
 * A text is first rid of what stands around its digits (blanks, signs, brackets, a unit); what is left is split at its
 * separators, and either sign is tried as the decimal one. A text that only one of them suits is evidence.
 */
#include "worker/data/table/notation.h"

#include <stdio.h>
#include <string.h>

enum { MOST_TEXT = 64, MOST_RUNS = 16, POINT = 0, COMMA, BLANK, APOSTROPHE };

static const char group_signs[] = {'.', ',', ' ', '\''};

/* --- around the digits --- */

/* A text without its sign and unit, its blanks, apostrophes and minus signs in ASCII. */
struct bare {
    char text[MOST_TEXT + 1];
    size_t begin, end;
    bool negative, has_sign, has_brackets, has_word;
    char unit[NOTATION_UNIT];
};

/* What Unicode has for a few characters of ASCII. */
static const struct {
    const char *bytes;
    char plain;
} equals[] = {{"\u00A0", ' '}, {"\u202F", ' '}, {"\u2009", ' '}, {"\u2007", ' '}, {"\u2019", '\''}, {"\u02BC", '\''},
              {"\u2212", '-'}, {"\u2013", '-'}, {"\uFF0D", '-'}, {"\uFE63", '-'}, {"\uFF0B", '+'},  {"\uFF05", '%'},
              {"\t", ' '},     {"\uFEFF", ' '}, {"\u200B", ' '}, {"\u200D", ' '}, {"\u200E", ' '},  {"\u200F", ' '},
              {"\u2060", ' '}, {"\u202A", ' '}, {"\u202C", ' '}};

static bool to_ascii(struct bare *bare, const char *text, size_t size)
{
    size_t used = 0;
    for (size_t i = 0; i < size;) {
        size_t length = 1;
        char plain = text[i];
        for (size_t j = 0; j < sizeof equals / sizeof equals[0]; j++) {
            const size_t all = strlen(equals[j].bytes);
            if (all <= size - i && memcmp(text + i, equals[j].bytes, all) == 0) {
                length = all;
                plain = equals[j].plain;
            }
        }
        if (used == MOST_TEXT) {
            return false;
        }
        bare->text[used++] = plain;
        i += length;
    }
    bare->text[used] = '\0';
    bare->begin = 0;
    bare->end = used;
    return true;
}

/* Bytes of a currency's one character, 0: it is none. */
static size_t currency_sign(const char *at, size_t size)
{
    const unsigned char *bytes = (const unsigned char *)at;
    if (size >= 1 && *at == '$') {
        return 1;
    }
    if (size >= 2 && bytes[0] == 0xC2 && bytes[1] >= 0xA2 && bytes[1] <= 0xA5) {
        return 2; /* cent to yen */
    }
    const bool is_of_block = size >= 3 && bytes[0] == 0xE2 &&
                             ((bytes[1] == 0x82 && bytes[2] >= 0xA0) || (bytes[1] == 0x83 && bytes[2] < 0x90));
    const bool is_wide = size >= 3 && bytes[0] == 0xEF && bytes[1] == 0xBF && (bytes[2] == 0xA5 || bytes[2] == 0xA1);
    const bool is_baht = size >= 3 && bytes[0] == 0xE0 && bytes[1] == 0xB8 && bytes[2] == 0xBF;
    return is_of_block || is_wide || is_baht ? 3 : 0;
}

/* Bytes of the unit that begins at `at`; 0: none does. */
static size_t unit_size(const char *at, size_t size)
{
    static const char *const words[] = {"%",   "\u2030", "US$", "AU$",     "CA$",     "NZ$", "HK$", "NT$", "R$",
                                        "A$",  "C$",     "S$",  "USD",     "EUR",     "GBP", "JPY", "CNY", "INR",
                                        "CHF", "SEK",    "NOK", "DKK",     "PLN",     "CZK", "HUF", "RUB", "BRL",
                                        "AUD", "CAD",    "NZD", "MXN",     "ZAR",     "KRW", "TRY", "SGD", "HKD",
                                        "Fr.", "kr.",    "kr",  "z\u0142", "K\u010D", "Rs.", "Rs"};
    size_t best = currency_sign(at, size);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const size_t length = strlen(words[i]);
        if (length > best && length <= size && memcmp(at, words[i], length) == 0) {
            best = length;
        }
    }
    return best;
}

static bool take_sign(struct bare *bare, char c)
{
    if ((c != '-' && c != '+') || bare->has_sign) {
        return false;
    }
    bare->has_sign = true;
    bare->negative = c == '-';
    return true;
}

static bool take_unit(struct bare *bare, const char *at, size_t size)
{
    if (bare->unit[0] != '\0' || size >= NOTATION_UNIT) {
        return false;
    }
    memcpy(bare->unit, at, size);
    bare->unit[size] = '\0';
    return true;
}

/* One thing before the digits. */
static bool strip_front(struct bare *bare)
{
    const char *at = bare->text + bare->begin;
    const size_t left = bare->end - bare->begin, unit = unit_size(at, left);
    if (left > 0 && (*at == ' ' || take_sign(bare, *at))) {
        bare->begin++;
        return true;
    }
    if (left > 2 && *at == '(' && at[left - 1] == ')' && !bare->has_sign) {
        bare->has_brackets = bare->has_sign = bare->negative = true;
        bare->begin++;
        bare->end--;
        return true;
    }
    if (unit > 0 && unit < left && take_unit(bare, at, unit)) {
        bare->begin += unit;
        return true;
    }
    if (left > 3 && memcmp(at, "=\"", 2) == 0 && at[left - 1] == '"') { /* as a spreadsheet keeps a text */
        bare->begin += 2;
        bare->end--;
        return true;
    }
    if (left > 1 && *at == '\'' && bare->begin == 0) { /* the same */
        bare->begin++;
        return true;
    }
    return false;
}

/* One thing behind them. */
static bool strip_back(struct bare *bare)
{
    const size_t left = bare->end - bare->begin;
    const char *end = bare->text + bare->end;
    if (left > 0 && (end[-1] == ' ' || take_sign(bare, end[-1]))) {
        bare->end--;
        return true;
    }
    for (size_t size = NOTATION_UNIT - 1; size > 0; size--) {
        if (size < left && unit_size(end - size, size) == size && take_unit(bare, end - size, size)) {
            bare->end -= size;
            return true;
        }
    }
    return false;
}

static bool is_exponent(const char *at, const char *end)
{
    const char c = (char)(*at | 0x20);
    if (c != 'e' && c != 'd') {
        return false;
    }
    at++;
    at += at < end && (*at == '+' || *at == '-');
    if (at == end || end - at > 3) {
        return false;
    }
    for (; at < end; at++) {
        if ((unsigned)(*at - '0') >= 10) {
            return false;
        }
    }
    return true;
}

/* In kg, km/h, m2, \u00b0C; the last byte may be a power. */
static bool is_of_word(const char *at, const char *end)
{
    const bool is_letter = (unsigned)((*at | 0x20) - 'a') < 26 || (unsigned char)*at >= 0x80;
    return is_letter || *at == '/' || *at == '^' || (at + 1 == end && (*at == '2' || *at == '3'));
}

/* A word behind the digits, which is no exponent, nor stuck to one. */
static bool strip_word(struct bare *bare)
{
    const char *begin = bare->text + bare->begin, *end = bare->text + bare->end, *word = end;
    while (word > begin && is_of_word(word - 1, end)) {
        word--;
    }
    while (word < end && (*word == '/' || *word == '^' || (unsigned)(*word - '0') < 10)) {
        word++;
    }
    const bool is_power = end - word == 1 && (*word | 0x20) == 'e';
    const bool is_size = end - word > 1 && (*word | 0x20) == 'x' && (unsigned)(word[1] - '0') < 10; /* 10x3 */
    if (word == begin || word == end || is_power || is_size || is_exponent(word, end)) {
        return false;
    }
    for (const char *at = begin; word[-1] != ' ' && at < word; at++) {
        if ((unsigned)((*at | 0x20) - 'a') < 26) {
            return false;
        }
    }
    if (!take_unit(bare, word, (size_t)(end - word))) {
        return false;
    }
    bare->end = (size_t)(word - bare->text);
    bare->has_word = true;
    return true;
}

/* "$ -", as spreadsheets write an amount of nothing. */
static bool is_nothing(struct bare *bare, const char *text, size_t size)
{
    memset(bare, 0, sizeof *bare);
    if (size < 2 || size > MOST_TEXT || !memchr(text, '-', size) || !to_ascii(bare, text, size)) {
        return false;
    }
    while (bare->end > bare->begin && bare->text[bare->end - 1] == ' ') {
        bare->end--;
    }
    while (bare->end - bare->begin > 1 && strip_front(bare)) {
    }
    return bare->end - bare->begin == 1 && bare->text[bare->begin] == '-' && !bare->has_sign && bare->unit[0] != '\0';
}

static bool has_digit(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if ((unsigned)(text[i] - '0') < 10) {
            return true;
        }
    }
    return false;
}

/* False if it can't be a number, which for most texts is seen at once. */
static bool strip(struct bare *bare, const char *text, size_t size)
{
    memset(bare, 0, sizeof *bare);
    if (size == 0 || size > (size_t)2 * MOST_TEXT || !has_digit(text, size) || !to_ascii(bare, text, size)) {
        return false;
    }
    while (strip_back(bare)) {
    }
    while (strip_front(bare)) {
    }
    while (strip_back(bare)) {
    }
    if (bare->unit[0] == '\0' && strip_word(bare)) {
        while (bare->end > bare->begin && bare->text[bare->end - 1] == ' ') {
            bare->end--;
        }
    }
    return bare->begin < bare->end;
}

/* --- the digits --- */

/* Runs of digits, each but the first behind a separator, and an exponent. */
struct digits {
    int count; /* of runs */
    size_t begin[MOST_RUNS], size[MOST_RUNS];
    char before[MOST_RUNS]; /* the separator */
    size_t exponent, all;   /* where it begins, and the text ends */
};

static bool split(struct digits *digits, const struct bare *bare)
{
    size_t at = bare->begin;
    *digits = (struct digits){.count = 0};
    for (;;) {
        if (digits->count == MOST_RUNS) {
            return false;
        }
        const int run = digits->count++;
        digits->begin[run] = at;
        while (at < bare->end && (unsigned)(bare->text[at] - '0') < 10) {
            at++;
        }
        digits->size[run] = at - digits->begin[run];
        if (at == bare->end || is_exponent(bare->text + at, bare->text + bare->end)) {
            digits->exponent = at;
            digits->all = bare->end;
            return digits->count > 1 || digits->size[0] > 0;
        }
        const char sign = bare->text[at++];
        if (sign != '.' && sign != ',' && sign != ' ' && sign != '\'') {
            return false;
        }
        if (digits->count < MOST_RUNS) {
            digits->before[digits->count] = sign;
        }
    }
}

/* *group: the sign between groups if the digits can be read with this decimal sign; 0: none. False: they can't. */
static bool suits(const struct digits *digits, const struct bare *bare, char decimal, char *group)
{
    const int last = digits->count - 1;
    const bool has_fraction = last > 0 && digits->before[last] == decimal;
    const int whole = has_fraction ? last : digits->count; /* runs before the decimal sign */
    *group = '\0';
    if (digits->size[0] == 0) {
        return has_fraction && whole == 1 && digits->size[last] > 0;
    }
    const bool begins_with_zero = bare->text[digits->begin[0]] == '0';
    if (whole == 1) {
        return !bare->has_word || !begins_with_zero || digits->size[0] == 1; /* 0012A is a code */
    }
    *group = digits->before[1];
    bool good = *group != decimal && digits->size[0] <= 3 && !begins_with_zero && digits->size[whole - 1] == 3;
    for (int i = 1; i < whole; i++) {
        const bool is_two = digits->size[i] == 2 && *group == ',' && i < whole - 1; /* 12,34,567 in India */
        good = good && digits->before[i] == *group && (digits->size[i] == 3 || is_two);
    }
    return good;
}

static int group_index(char sign)
{
    for (int i = 0; i < 4; i++) {
        if (group_signs[i] == sign) {
            return i;
        }
    }
    return -1;
}

bool notation_look(struct notation_clues *clues, const char *text, size_t size)
{
    struct bare bare;
    struct digits digits;
    char by_point, by_comma;
    if (is_nothing(&bare, text, size)) {
        return true;
    }
    if (!strip(&bare, text, size) || !split(&digits, &bare)) {
        return false;
    }
    const bool point = suits(&digits, &bare, '.', &by_point), comma = suits(&digits, &bare, ',', &by_comma);
    if (!point && !comma) {
        return false;
    }
    if (bare.has_word) {
        clues->words++;
        if (clues->words == 1) {
            memcpy(clues->word, bare.unit, sizeof clues->word);
        }
        if (strcmp(clues->word, bare.unit) != 0) {
            clues->other_words++;
            return false;
        }
    }
    const char first = digits.count > 1 ? digits.before[1] : '\0',
               final = digits.count > 1 ? digits.before[digits.count - 1] : '\0';
    const bool has_either = first == '.' || first == ',' || final == '.' || final == ',';
    clues->points += point && !comma;
    clues->commas += comma && !point;
    clues->unsure_points += point && comma && has_either && final == '.';
    clues->unsure_commas += point && comma && has_either && final == ',';
    const char group = point && by_point ? by_point : comma ? by_comma : '\0';
    if (group != '\0') {
        clues->groups[group_index(group)]++;
    }
    if (bare.unit[0] != '\0' && !bare.has_word) {
        clues->units++;
        if (clues->unit[0] == '\0') {
            memcpy(clues->unit, bare.unit, sizeof clues->unit);
        }
    }
    return true;
}

static char choose_decimal(const struct notation_clues *clues, const struct notation_hints *hints, bool *is_unsure)
{
    *is_unsure = false;
    if (hints->decimal != DECIMAL_AUTO) {
        return hints->decimal == DECIMAL_COMMA ? ',' : '.';
    }
    if (clues->points + clues->commas > 0) {
        return clues->commas > clues->points ? ',' : '.';
    }
    if (clues->unsure_commas == 0) {
        *is_unsure = clues->unsure_points > 0 && !hints->has_fractions;
        return '.';
    }
    if (hints->has_fractions) {
        return '.';
    }
    if (hints->plain > 0 && hints->largest >= 1000) {
        return ','; /* 1234 beside 1,234 */
    }
    *is_unsure = hints->plain == 0 || hints->delimiter == ';';
    return hints->delimiter == ';' ? ',' : '.';
}

struct notation notation_choose(const struct notation_clues *clues, const struct notation_hints *hints, bool *is_unsure)
{
    struct notation notation = {.decimal = choose_decimal(clues, hints, is_unsure)};
    int64_t most = 0;
    for (int i = 0; i < 4; i++) {
        const bool may_be = group_signs[i] != notation.decimal;
        if (may_be && clues->groups[i] > most) {
            most = clues->groups[i];
            notation.group = group_signs[i];
        }
    }
    /* 1.234 is counted as a fraction until a comma is known to be the decimal sign. */
    if (notation.group == '\0') {
        notation.group = notation.decimal == ',' ? '.' : ',';
    }
    memcpy(notation.unit, clues->unit, sizeof notation.unit);
    return notation;
}

/* --- reading --- */

static enum number_kind read_odd(const struct notation *notation, const char *text, size_t size, double *value)
{
    struct bare bare;
    struct digits digits;
    char group, plain[MOST_TEXT + 8];
    size_t used = 0;
    if (is_nothing(&bare, text, size) && strcmp(bare.unit, notation->unit) == 0) {
        *value = 0;
        return NUMBER_FINITE;
    }
    if (!strip(&bare, text, size) || !split(&digits, &bare) || !suits(&digits, &bare, notation->decimal, &group) ||
        (group != '\0' && group != notation->group) ||
        (bare.unit[0] != '\0' && strcmp(bare.unit, notation->unit) != 0)) {
        return NUMBER_TEXT;
    }
    for (int i = 0; i < digits.count; i++) {
        if (i > 0 && digits.before[i] == notation->decimal) {
            plain[used++] = '.';
        }
        memcpy(plain + used, bare.text + digits.begin[i], digits.size[i]);
        used += digits.size[i];
    }
    for (size_t i = digits.exponent; i < digits.all; i++) {
        plain[used++] = i == digits.exponent ? 'e' : bare.text[i];
    }
    const enum number_kind kind = number_parse(plain, used, value);
    if (kind == NUMBER_FINITE && bare.negative) {
        *value = -*value;
    }
    return kind;
}

enum number_kind notation_read(const struct notation *notation, const char *text, size_t size, double *value)
{
    const bool is_usual = notation->decimal != ',' || !memchr(text, '.', size);
    const enum number_kind kind = is_usual ? number_parse(text, size, value) : NUMBER_TEXT;
    if (kind != NUMBER_TEXT) {
        return kind;
    }
    if (!is_usual && number_is_missing(text, size)) {
        return NUMBER_MISSING;
    }
    return notation_is_plain(notation) ? kind : read_odd(notation, text, size, value);
}

bool notation_has_word(const struct notation *notation)
{
    const size_t size = strlen(notation->unit);
    return size > 0 && unit_size(notation->unit, size) < size;
}

bool notation_is_valid(const struct notation *notation)
{
    return notation_is_plain(notation)
               ? notation->group == '\0' && notation->unit[0] == '\0'
               : (notation->decimal == '.' || notation->decimal == ',') && notation->group != notation->decimal &&
                     (notation->group == '\0' || group_index(notation->group) >= 0);
}

void notation_text(const struct notation *notation, char text[NOTATION_TEXT])
{
    static const char *const names[] = {"points", "commas", "blanks", "apostrophes"};
    if (notation_is_plain(notation)) {
        snprintf(text, NOTATION_TEXT, "plain");
        return;
    }
    snprintf(text, NOTATION_TEXT, "decimal %s, thousands by %s%s%s", notation->decimal == ',' ? "comma" : "point",
             notation->group ? names[group_index(notation->group)] : "none", notation->unit[0] ? ", with " : "",
             notation->unit);
}
