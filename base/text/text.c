/* Text from peers and files is checked, made printable and shown here. */
#include "base/text/text.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <wchar.h>

/* --- UTF-8 --- */

/* Texts from peers and files are UTF-8 or refused, since JSON, terminals and logs accept nothing else. */

size_t utf8_length(const uint8_t *at, const uint8_t *end)
{
    uint8_t first = *at;
    if (first < 0x80) {
        return 1;
    }
    size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || (size_t)(end - at) < length) {
        return 0;
    }
    uint8_t lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    uint8_t highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (at[1] < lowest || at[1] > highest) {
        return 0;
    }
    for (size_t i = 2; i < length; i++) {
        if ((at[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    return length;
}

uint32_t utf8_character(const uint8_t *at, size_t length)
{
    uint32_t character = length == 1 ? at[0] : at[0] & (0x7FU >> length);
    for (size_t i = 1; i < length; i++) {
        character = character << 6 | (at[i] & 0x3FU);
    }
    return character;
}

bool utf8_check(const void *bytes, size_t size)
{
    const uint8_t *at = bytes, *end = at + size;
    while (at < end) {
        size_t length = utf8_length(at, end);
        if (length == 0) {
            return false;
        }
        at += length;
    }
    return true;
}

void utf8_mend(void *bytes, size_t size)
{
    uint8_t *at = bytes;
    const uint8_t *end = at + size;
    while (at < end) {
        size_t length = utf8_length(at, end);
        if (length == 0) {
            *at = '?';
            length = 1;
        }
        at += length;
    }
}

size_t utf8_fit(const char *text, int columns, int *used)
{
    const uint8_t *begin = (const uint8_t *)text, *at = begin, *end = begin + strlen(text);
    *used = 0;
    while (at < end) {
        const size_t length = utf8_length(at, end);
        const int width = length > 0 ? wcwidth((wchar_t)utf8_character(at, length)) : 1;
        const int takes = width > 0 ? width : 0;
        if (*used + takes > columns) {
            break;
        }
        *used += takes;
        at += length > 0 ? length : 1;
    }
    return (size_t)(at - begin);
}

/* --- Printing --- */

/* One table of harmful characters, for lines and for JSON. */

enum { MOST_BYTES = 8 /* bytes of an escaped character, including snprintf's zero byte */ };

/* C1 controls; marks, embeddings, overrides and isolates of direction; separators of lines; a byte order mark. */
static bool is_harmful(uint32_t character)
{
    return (character >= 0x7F && character <= 0x9F) || character == 0x61C || character == 0x200E ||
           character == 0x200F || (character >= 0x2028 && character <= 0x202E) ||
           (character >= 0x2066 && character <= 0x2069) || character == 0xFEFF;
}

static bool is_space(uint8_t byte)
{
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

/* Is it a character that may be harmful? */
static void show_character(const uint8_t *at, size_t length, char shown[MOST_BYTES])
{
    const uint32_t character = utf8_character(at, length);
    if (is_harmful(character)) {
        snprintf(shown, MOST_BYTES, "\\u%04x", (unsigned)(character & 0xFFFF));
    } else {
        memcpy(shown, at, length);
        shown[length] = '\0';
    }
}

/* Writes one character, or one invalid byte, to `shown`; returns how many bytes of the text it takes. */
static size_t show(const uint8_t *at, const uint8_t *end, char shown[MOST_BYTES])
{
    size_t length = utf8_length(at, end);
    if (is_space(*at)) {
        memcpy(shown, " ", 2);
    } else if (length == 0 || *at < ' ' || *at == 0x7F) {
        snprintf(shown, MOST_BYTES, "\\x%02x", *at);
    } else {
        show_character(at, length, shown);
    }
    return length == 0 ? 1 : length;
}

const char *printable(char *to, size_t room, const char *text)
{
    const uint8_t *at = (const uint8_t *)text, *end = at + strlen(text);
    size_t used = 0;
    while (at < end) {
        char shown[MOST_BYTES];
        at += show(at, end, shown);
        size_t size = strlen(shown);
        if (used + size >= room) {
            break;
        }
        memcpy(to + used, shown, size);
        used += size;
    }
    to[used] = '\0';
    return to;
}

/* In JSON everything that is not ASCII is within strings, where an escape may replace it. */
static size_t show_in_json(const uint8_t *at, const uint8_t *end, char shown[MOST_BYTES])
{
    size_t length = utf8_length(at, end);
    if (length == 0) {
        snprintf(shown, MOST_BYTES, "\\ufffd");
    } else {
        show_character(at, length, shown);
    }
    return length == 0 ? 1 : length;
}

/* With NULL counts the bytes needed; otherwise writes them, and a zero byte. */
static size_t show_all_in_json(const char *json, char *to)
{
    const uint8_t *at = (const uint8_t *)json, *end = at + strlen(json);
    size_t used = 0;
    while (at < end) {
        char shown[MOST_BYTES];
        at += show_in_json(at, end, shown);
        size_t size = strlen(shown);
        if (to) {
            memcpy(to + used, shown, size + 1);
        }
        used += size;
    }
    return used;
}

char *printable_json(char *json)
{
    const size_t size = strlen(json), wanted = show_all_in_json(json, NULL);
    if (wanted == size) { /* escaping makes the text longer */
        return json;
    }
    char *shown = malloc(wanted + 1);
    if (shown) {
        show_all_in_json(json, shown);
    }
    free(json);
    return shown;
}

/* --- Counts --- */

/* Groups of three digits: the largest number has 26 characters, which fit easily. */

const char *count_text(char text[COUNT_TEXT], int64_t number)
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)number);
    int used = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0 && digits[i - 1] != '-') {
            text[used++] = ',';
        }
        text[used++] = digits[i];
    }
    text[used] = '\0';
    return text;
}

const char *bytes_text(char text[COUNT_TEXT], double bytes)
{
    static const char units[] = "BKMGTP";
    int unit = 0;
    while (bytes >= 1000 && unit < 5) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, COUNT_TEXT, unit == 0 || bytes >= 100 ? "%.0f%c" : "%.1f%c", bytes, units[unit]);
    return text;
}

/* --- The nearest name --- */

/* Nearest names by edit distance (optimal string alignment); three rows of the table suffice. */

enum { SUGGEST_MAX_WORD = 64, SUGGEST_FAR = 1000 };

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

int suggest_distance(const char *a, const char *b)
{
    size_t a_length = strlen(a), b_length = strlen(b);
    if (a_length > SUGGEST_MAX_WORD || b_length > SUGGEST_MAX_WORD) {
        return SUGGEST_FAR;
    }
    int rows[3][SUGGEST_MAX_WORD + 1];
    for (size_t j = 0; j <= b_length; j++) {
        rows[0][j] = (int)j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        int *row = rows[i % 3];
        const int *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= b_length; j++) {
            int replaced = above[j - 1] + (a[i - 1] != b[j - 1]);
            row[j] = smaller(replaced, 1 + smaller(above[j], row[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                row[j] = smaller(row[j], two_above[j - 2] + 1);
            }
        }
    }
    return rows[a_length % 3][b_length];
}

void suggest_offer(struct suggestion *suggestion, const char *name)
{
    /* Up to a third of the word may be wrong; beyond that a suggestion confuses more than it helps. */
    size_t length = strlen(suggestion->word);
    int limit = length < 3 ? (int)length - 1 : (int)(length / 3);
    int distance = strcasecmp(suggestion->word, name) == 0 ? 0 : suggest_distance(suggestion->word, name);
    if (distance <= limit && (!suggestion->best || distance < suggestion->distance)) {
        suggestion->best = name;
        suggestion->distance = distance;
    }
}
