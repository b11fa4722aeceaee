/* Fields of fixed width, one after the other. */
#include "worker/data/table/timestamp.h"

#include <stdint.h>

#include "worker/data/table/csv.h"
#include "worker/data/table/number.h"

struct timestamp_text {
    const char *at, *end;
};

/* A number of exactly `digits` digits. */
static bool take_digits(struct timestamp_text *cursor, int digits, int *number)
{
    *number = 0;
    for (int i = 0; i < digits; i++, cursor->at++) {
        if (cursor->at >= cursor->end || *cursor->at < '0' || *cursor->at > '9') {
            return false;
        }
        *number = *number * 10 + (*cursor->at - '0');
    }
    return true;
}

static bool take_char(struct timestamp_text *cursor, char wanted)
{
    const bool is_there = cursor->at < cursor->end && *cursor->at == wanted;
    cursor->at += is_there;
    return is_there;
}

/* Days since 1970-01-01, of the Gregorian calendar, whose years begin in March here, so that leap days end them. */
static int64_t days_of(int year, int month, int day)
{
    const int64_t years = year - (month <= 2);
    const int64_t era = (years >= 0 ? years : years - 399) / 400, of_era = years - era * 400;
    const int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

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

static bool take_zone(struct timestamp_text *cursor, double *time)
{
    int hours, minutes = 0;
    if (cursor->at == cursor->end || take_char(cursor, 'Z')) {
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

static bool parse_date(struct timestamp_text *cursor, double *time)
{
    int year, month, day, hours, minutes;
    if (!take_digits(cursor, 4, &year) || !take_char(cursor, '-') || !take_digits(cursor, 2, &month) ||
        !take_char(cursor, '-') || !take_digits(cursor, 2, &day) || month < 1 || month > 12 || day < 1 || day > 31) {
        return false;
    }
    *time = (double)days_of(year, month, day) * 86400;
    if (cursor->at == cursor->end) {
        return true;
    }
    if ((!take_char(cursor, 'T') && !take_char(cursor, ' ')) || !take_digits(cursor, 2, &hours) ||
        !take_char(cursor, ':') || !take_digits(cursor, 2, &minutes) || hours > 24 || minutes > 59) {
        return false;
    }
    *time += hours * 3600 + minutes * 60;
    return take_seconds(cursor, time) && take_zone(cursor, time);
}

bool timestamp_parse(const char *text, size_t size, double *time)
{
    text = csv_trim(text, &size);
    struct timestamp_text cursor = {text, text + size};
    if (number_parse(text, size, time) == NUMBER_FINITE) {
        return true;
    }
    return parse_date(&cursor, time) && cursor.at == cursor.end;
}
