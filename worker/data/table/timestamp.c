/* Up to three numbers, or two and the name of a month, then a time of day and a zone. */
#include "worker/data/table/timestamp.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "worker/data/table/csv.h"
#include "worker/data/table/number.h"

enum { DAY_S = 86400, MOST_TEXT = 64, PIVOT = 69 /* two digits: 69 is 1969, 68 is 2068 */ };

const char *const date_part_names[] = {"year", "month", "day", "weekday", "hour", "seconds", NULL};

struct timestamp_text {
    const char *at, *end;
};

/* --- words --- */

static bool take_char(struct timestamp_text *cursor, char wanted)
{
    const bool is_there = cursor->at < cursor->end && *cursor->at == wanted;
    cursor->at += is_there;
    return is_there;
}

static void skip_blanks(struct timestamp_text *cursor)
{
    while (take_char(cursor, ' ')) {
    }
}

/* A number of `least` to `most` digits; *digits: how many. */
static bool take_number(struct timestamp_text *cursor, int least, int most, int *number, int *digits)
{
    int count = 0;
    *number = 0;
    for (; cursor->at < cursor->end && (unsigned)(*cursor->at - '0') < 10 && count < most; cursor->at++, count++) {
        *number = *number * 10 + (*cursor->at - '0');
    }
    *digits = count;
    return count >= least;
}

static bool take_digits(struct timestamp_text *cursor, int digits, int *number)
{
    int count;
    return take_number(cursor, digits, digits, number, &count);
}

/* The length of the word here, and whether it is `name` or its first letters. */
static size_t word_here(const struct timestamp_text *cursor)
{
    size_t size = 0;
    while (cursor->at + size < cursor->end && (unsigned)((cursor->at[size] | 0x20) - 'a') < 26) {
        size++;
    }
    return size;
}

static bool is_word(const char *text, size_t size, const char *name)
{
    for (size_t i = 0; i < size; i++) {
        if ((text[i] | 0x20) != (name[i] | 0x20)) { /* of Latin letters, those with accents too */
            return false;
        }
    }
    return true;
}

/* Which of the names stands here, in full or by its first three letters or more; -1: none does. */
static int take_name(struct timestamp_text *cursor, const char *const *names)
{
    const size_t size = word_here(cursor);
    for (int i = 0; size >= 3 && names[i]; i++) {
        if (size <= strlen(names[i]) && is_word(cursor->at, size, names[i])) {
            cursor->at += size;
            take_char(cursor, '.');
            return i;
        }
    }
    return -1;
}

/* Of a month, 0 to 11; -1: there is none. English, German, French, Spanish, Italian, Portuguese, Dutch. */
static int take_month(struct timestamp_text *cursor)
{
    static const char *const names[12][9] = {
        {"january", "januar", "janvier", "enero", "gennaio", "janeiro", "j\u00E4nner"},
        {"february", "februar", "f\u00E9vrier", "febrero", "febbraio", "fevereiro", "feber"},
        {"march", "m\u00E4rz", "marzo", "mars", "mar\u00E7o", "maart", "mrt", "mrz"},
        {"april", "avril", "abril", "aprile"},
        {"may", "mai", "mayo", "maggio", "maio", "mei"},
        {"june", "juni", "juin", "junio", "giugno", "junho"},
        {"july", "juli", "juillet", "julio", "luglio", "julho"},
        {"august", "ao\u00FBt", "agosto", "augustus"},
        {"september", "septembre", "septiembre", "settembre", "setembro"},
        {"october", "oktober", "octobre", "octubre", "ottobre", "outubro"},
        {"november", "novembre", "noviembre", "novembro"},
        {"december", "dezember", "d\u00E9cembre", "diciembre", "dicembre", "dezembro"},
    };
    size_t size = 0;
    while (cursor->at + size < cursor->end &&
           ((unsigned)((cursor->at[size] | 0x20) - 'a') < 26 || (unsigned char)cursor->at[size] >= 0x80)) {
        size++;
    }
    for (int i = 0; size >= 3 && i < 12; i++) {
        for (int j = 0; j < 9 && names[i][j]; j++) {
            if (size <= strlen(names[i][j]) && is_word(cursor->at, size, names[i][j])) {
                cursor->at += size;
                take_char(cursor, '.');
                return i;
            }
        }
    }
    return -1;
}

static void skip_weekday(struct timestamp_text *cursor)
{
    static const char *const names[] = {"monday", "tuesday",  "wednesday", "thursday",
                                        "friday", "saturday", "sunday",    NULL};
    if (take_name(cursor, names) >= 0) {
        take_char(cursor, ',');
        skip_blanks(cursor);
    }
}

/* --- time of day --- */

/* ":59.25" after hours and minutes; may be missing. */
static bool take_seconds(struct timestamp_text *cursor, double *time)
{
    int seconds;
    if (!take_char(cursor, ':')) {
        return true;
    }
    if (!take_digits(cursor, 2, &seconds) || seconds > 60) {
        return false;
    }
    *time += seconds;
    if (take_char(cursor, '.') || take_char(cursor, ',')) {
        double unit = 1;
        for (int digit; take_digits(cursor, 1, &digit);) {
            unit /= 10;
            *time += digit * unit;
        }
    }
    return true;
}

/* AM or PM, with or without points. */
static bool take_half(struct timestamp_text *cursor, int hours, double *time)
{
    struct timestamp_text there = *cursor;
    skip_blanks(&there);
    if (there.at == there.end || ((*there.at | 0x20) != 'a' && (*there.at | 0x20) != 'p')) {
        return true;
    }
    const bool is_after = (*there.at++ | 0x20) == 'p';
    take_char(&there, '.');
    if (there.at == there.end || (*there.at++ | 0x20) != 'm') {
        return true; /* PST, say */
    }
    if (hours < 1 || hours > 12) {
        return false;
    }
    take_char(&there, '.');
    *time += 3600 * ((is_after ? 12 : 0) - (hours == 12 ? 12 : 0));
    *cursor = there;
    return true;
}

/* Names that mean one zone to nearly everybody. */
static bool take_zone_name(struct timestamp_text *cursor, double *time)
{
    static const struct {
        const char *name;
        int hours;
    } zones[] = {{"utc", 0}, {"gmt", 0},  {"wet", 0},  {"cet", 1},  {"cest", 2}, {"eet", 2},  {"eest", 3}, {"msk", 3},
                 {"jst", 9}, {"est", -5}, {"edt", -4}, {"cdt", -5}, {"mst", -7}, {"mdt", -6}, {"pst", -8}, {"pdt", -7}};
    const size_t size = word_here(cursor);
    for (size_t i = 0; i < sizeof zones / sizeof zones[0]; i++) {
        if (size == strlen(zones[i].name) && is_word(cursor->at, size, zones[i].name)) {
            cursor->at += size;
            *time -= zones[i].hours * 3600;
            return true;
        }
    }
    return false;
}

static bool take_zone(struct timestamp_text *cursor, double *time)
{
    int hours, minutes = 0;
    skip_blanks(cursor);
    if (cursor->at == cursor->end || take_char(cursor, 'Z') || take_char(cursor, 'z')) {
        return true;
    }
    if (take_zone_name(cursor, time)) {
        return true;
    }
    const int sign = take_char(cursor, '-') ? -1 : 1;
    if ((sign > 0 && !take_char(cursor, '+')) || !take_digits(cursor, 2, &hours)) {
        return false;
    }
    take_char(cursor, ':');
    if (cursor->at < cursor->end && !take_digits(cursor, 2, &minutes)) {
        return false;
    }
    *time -= sign * (hours * 3600 + minutes * 60);
    return true;
}

/* Hours and minutes at least. */
static bool take_time(struct timestamp_text *cursor, double *time)
{
    int hours, minutes, digits;
    if (!take_number(cursor, 1, 2, &hours, &digits) || !take_char(cursor, ':') || !take_digits(cursor, 2, &minutes) ||
        hours > 24 || minutes > 59) {
        return false;
    }
    *time += hours * 3600 + minutes * 60;
    return take_seconds(cursor, time) && take_half(cursor, hours, time) && take_zone(cursor, time);
}

/* --- days --- */

/* Days since 1970-01-01, of the Gregorian calendar, whose years begin in March here, so that leap days end them. */
static int64_t days_of(int year, int month, int day)
{
    const int64_t years = year - (month <= 2);
    const int64_t era = (years >= 0 ? years : years - 399) / 400, of_era = years - era * 400;
    const int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

/* A date as written: three numbers, of which the month may be known by its name, and the order of those. */
struct date {
    int number[3], digits[3];
    unsigned orders; /* possible ones */
    char sign;       /* between numbers */
};

static bool is_day(int year, int month, int day)
{
    static const int days[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const bool leaps = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return month >= 1 && month <= 12 && day >= 1 && day <= days[month - 1] && (month != 2 || day < 29 || leaps);
}

/* False if the numbers are no date in this order. */
static bool arrange(const struct date *date, enum table_dates order, int64_t *days)
{
    static const int places[][3] = {
        [DATES_AUTO] = {0, 1, 2}, [DATES_DMY] = {2, 1, 0}, [DATES_MDY] = {2, 0, 1}, [DATES_YMD] = {0, 1, 2}};
    const int *place = places[order];
    int year = date->number[place[0]];
    const int month = date->number[place[1]], day = date->number[place[2]];
    if ((date->digits[place[0]] != 4 && date->digits[place[0]] != 2) || date->digits[place[1]] > 2 ||
        date->digits[place[2]] > 2) {
        return false;
    }
    year += date->digits[place[0]] == 2 ? (year < PIVOT ? 2000 : 1900) : 0;
    *days = days_of(year, month, day);
    return is_day(year, month, day);
}

/* 12 de marzo de 2024 */
static void skip_of(struct timestamp_text *cursor)
{
    if (word_here(cursor) == 2 && is_word(cursor->at, 2, "de")) {
        cursor->at += 2;
        skip_blanks(cursor);
    }
}

/* "12 Mar 2024", "12-Mar-24", "12. March 2024": behind the day. */
static bool take_month_and_year(struct timestamp_text *cursor, struct date *date)
{
    take_char(cursor, '.');
    const bool hyphens = take_char(cursor, '-') || take_char(cursor, '/');
    skip_blanks(cursor);
    skip_of(cursor);
    date->number[1] = take_month(cursor) + 1;
    if (date->number[1] == 0 || (hyphens && !take_char(cursor, '-') && !take_char(cursor, '/'))) {
        return false;
    }
    take_char(cursor, ',');
    skip_blanks(cursor);
    skip_of(cursor);
    date->digits[1] = 2;
    date->orders = ORDER_DMY;
    return take_number(cursor, 2, 4, &date->number[2], &date->digits[2]);
}

/* "00:00:00 2024", behind "Mar 12", as C writes it, perhaps with a zone before the year. */
static bool take_time_and_year(struct timestamp_text *cursor, struct date *date, double *time)
{
    struct timestamp_text there = *cursor, clock;
    const char *space;
    if (there.end - there.at < 5 || there.end[-5] != ' ') {
        return false;
    }
    space = there.end - 5;
    clock = (struct timestamp_text){there.at, space};
    there.at = space + 1;
    if (!take_time(&clock, time) || clock.at != clock.end || !take_digits(&there, 4, &date->number[2])) {
        *time = 0;
        return false;
    }
    date->digits[2] = 4;
    *cursor = there;
    return true;
}

/* "March 12, 2024", "March 2024": from the month on. */
static bool take_named(struct timestamp_text *cursor, struct date *date, double *time)
{
    date->number[0] = take_month(cursor) + 1;
    date->digits[0] = 2;
    date->orders = ORDER_MDY;
    if (!take_char(cursor, '-')) {
        skip_blanks(cursor);
        skip_of(cursor);
    }
    struct timestamp_text there = *cursor;
    if (date->number[0] > 0 && take_number(&there, 4, 4, &date->number[2], &date->digits[2]) && there.at == there.end) {
        date->number[1] = 1;
        date->digits[1] = 2;
        *cursor = there;
        return true;
    }
    if (date->number[0] == 0 || !take_number(cursor, 1, 2, &date->number[1], &date->digits[1])) {
        return false;
    }
    there = *cursor;
    skip_blanks(&there);
    if (take_time_and_year(&there, date, time)) {
        *cursor = there;
        return true;
    }
    const size_t letters = word_here(cursor); /* 12th */
    cursor->at += letters == 2 ? 2 : 0;
    take_char(cursor, ',');
    skip_blanks(cursor);
    return take_number(cursor, 4, 4, &date->number[2], &date->digits[2]);
}

/* Numbers between signs, or a day before a month's name. */
static bool take_numbers(struct timestamp_text *cursor, struct date *date)
{
    if (!take_number(cursor, 1, 4, &date->number[0], &date->digits[0]) || date->digits[0] == 3 ||
        cursor->at == cursor->end) {
        return false;
    }
    struct timestamp_text there = *cursor;
    if (date->digits[0] <= 2 && take_month_and_year(&there, date)) {
        *cursor = there;
        return true;
    }
    const char sign = *cursor->at++;
    if ((sign != '-' && sign != '/' && sign != '.') || !take_number(cursor, 1, 2, &date->number[1], &date->digits[1])) {
        return false;
    }
    if (date->digits[0] == 4 && sign == '-' && (cursor->at == cursor->end || *cursor->at == ' ')) {
        date->number[2] = 1; /* 2024-05 */
        date->digits[2] = 2;
        date->orders = ORDER_YMD;
        return date->digits[1] == 2;
    }
    date->orders = date->digits[0] == 4 ? ORDER_YMD : ORDER_ANY;
    date->sign = sign;
    return take_char(cursor, sign) && take_number(cursor, 1, 4, &date->number[2], &date->digits[2]);
}

/* "20240312T091500Z", of digits alone. */
static bool take_compact(struct timestamp_text *cursor, struct date *date, double *time)
{
    int hours, minutes, seconds = 0;
    if (cursor->end - cursor->at < 13 || (cursor->at[8] | 0x20) != 't' || !take_digits(cursor, 4, &date->number[0]) ||
        !take_digits(cursor, 2, &date->number[1]) || !take_digits(cursor, 2, &date->number[2])) {
        return false;
    }
    cursor->at++;
    if (!take_digits(cursor, 2, &hours) || !take_digits(cursor, 2, &minutes) || hours > 24 || minutes > 59) {
        return false;
    }
    if (cursor->at < cursor->end && (unsigned)(*cursor->at - '0') < 10 &&
        (!take_digits(cursor, 2, &seconds) || seconds > 60)) {
        return false;
    }
    date->digits[0] = 4;
    date->digits[1] = date->digits[2] = 2;
    date->orders = ORDER_YMD;
    *time = hours * 3600 + minutes * 60 + seconds;
    return take_zone(cursor, time) && cursor->at == cursor->end;
}

/* Reads a whole text. date->orders 0: it is a time alone, whose *time is all. */
static bool read_text(const char *text, size_t size, struct date *date, double *time)
{
    text = csv_trim(text, &size);
    if (size > 2 && text[0] == '[' && text[size - 1] == ']') { /* of a web server's log */
        text++;
        size -= 2;
    }
    struct timestamp_text cursor = {text, text + size};
    *date = (struct date){.orders = 0};
    *time = 0;
    if (size < 4 || size > MOST_TEXT) {
        return false;
    }
    struct timestamp_text there = cursor;
    if (take_time(&there, time) && there.at == there.end) {
        return true;
    }
    *time = 0;
    there = cursor;
    if (take_compact(&there, date, time)) {
        return true;
    }
    *date = (struct date){.orders = 0};
    *time = 0;
    skip_weekday(&cursor);
    if (cursor.at < cursor.end && (unsigned)(*cursor.at - '0') < 10 ? !take_numbers(&cursor, date)
                                                                    : !take_named(&cursor, date, time)) {
        return false;
    }
    if (cursor.at == cursor.end) {
        return true;
    }
    take_char(&cursor, ',');
    const bool has_sign =
        take_char(&cursor, 'T') || take_char(&cursor, 't') || take_char(&cursor, ' ') || take_char(&cursor, ':');
    skip_blanks(&cursor);
    return has_sign && take_time(&cursor, time) && cursor.at == cursor.end;
}

unsigned timestamp_orders(const char *text, size_t size)
{
    struct date date;
    double time;
    int64_t days;
    unsigned orders = 0;
    if (!read_text(text, size, &date, &time)) {
        return 0;
    }
    if (date.orders == 0) {
        return ORDER_ANY;
    }
    for (int order = DATES_DMY; order <= DATES_YMD; order++) {
        orders |= arrange(&date, (enum table_dates)order, &days) ? 1U << order : 0;
    }
    if (date.orders != ORDER_ANY) {
        return (orders & date.orders) != 0 ? ORDER_ANY : 0;
    }
    return orders & (date.sign == '.' ? ORDER_DMY : ORDER_DMY | ORDER_MDY); /* a year of two digits is last */
}

bool timestamp_read(const char *text, size_t size, enum table_dates order, double *time)
{
    struct date date;
    int64_t days = 0;
    if (!read_text(text, size, &date, time)) {
        return false;
    }
    for (int only = DATES_DMY; date.orders != 0 && only <= DATES_YMD; only++) {
        if (date.orders == 1U << only) {
            order = (enum table_dates)only;
        }
    }
    if (date.orders != 0 && !arrange(&date, order, &days)) {
        return false;
    }
    *time += (double)days * DAY_S;
    return true;
}

bool timestamp_parse(const char *text, size_t size, enum table_dates order, double *time)
{
    if (number_parse(text, size, time) == NUMBER_FINITE) {
        return true;
    }
    for (int only = DATES_DMY; order == DATES_AUTO && only <= DATES_YMD; only++) {
        order = timestamp_orders(text, size) == 1U << only ? (enum table_dates)only : order;
    }
    const bool is_evident = order != DATES_AUTO || timestamp_orders(text, size) == ORDER_ANY;
    return is_evident && timestamp_read(text, size, order == DATES_AUTO ? DATES_YMD : order, time);
}

void timestamp_parts(double time, double parts[DATE_PARTS])
{
    const double whole = floor(time / DAY_S);
    const int64_t days = (int64_t)whole + 719468, era = (days >= 0 ? days : days - 146096) / 146097;
    const int64_t of_era = days - era * 146097;
    const int64_t years = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    const int64_t of_year = of_era - (365 * years + years / 4 - years / 100), from_march = (5 * of_year + 2) / 153;
    const int64_t month = from_march < 10 ? from_march + 3 : from_march - 9;
    const int64_t day = of_year - (153 * from_march + 2) / 5 + 1;
    parts[DATE_YEAR] = (double)(years + era * 400 + (month <= 2));
    parts[DATE_MONTH] = (double)month;
    parts[DATE_DAY] = (double)day;
    parts[DATE_WEEKDAY] = (double)((((days - 719468) % 7) + 10) % 7); /* 1970-01-01 was a Thursday */
    parts[DATE_HOUR] = (time - whole * DAY_S) / 3600;
    parts[DATE_SECONDS] = time;
}
