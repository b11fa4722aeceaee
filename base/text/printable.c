/* One table of harmful characters, for lines and for JSON. */
#include "base/text/printable.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/utf8.h"

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
