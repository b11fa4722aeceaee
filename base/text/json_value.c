/* The text is valid JSON, so brackets and quotes alone determine the end of a value. */
#include "base/text/json_value.h"

#include <stdint.h>
#include <string.h>

static const char *skip_blanks(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) {
        at++;
    }
    return at;
}

/* The end of the string that starts here. */
static const char *skip_string(const char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++) {
        at += *at == '\\';
    }
    return at < end ? at + 1 : end;
}

static const char *skip_scalar(const char *at, const char *end)
{
    while (at < end && *at != ',' && *at != ']' && *at != '}' && *at > ' ') {
        at++;
    }
    return at;
}

/* Skips numbers and separators, eight bytes at a time: none is a quote, and none is above '?'. */
static const char *skip_numbers(const char *at, const char *end)
{
    uint64_t word;
    while (end - at >= (ptrdiff_t)sizeof word) {
        memcpy(&word, at, sizeof word);
        const uint64_t unquoted = word ^ 0x2222222222222222; /* quotes become zero bytes */
        if ((word & 0xC0C0C0C0C0C0C0C0) != 0 ||
            ((unquoted - 0x0101010101010101) & ~unquoted & 0x8080808080808080) != 0) {
            break;
        }
        at += sizeof word;
    }
    return at;
}

/* The end of the array or object that starts here. */
static const char *skip_container(const char *at, const char *end)
{
    int depth = 0;
    while (at < end) {
        at = skip_numbers(at, end);
        if (at == end) {
            break;
        }
        if (*at == '"') {
            at = skip_string(at, end);
            continue;
        }
        depth += (*at == '[' || *at == '{') - (*at == ']' || *at == '}');
        at++;
        if (depth == 0) {
            break;
        }
    }
    return at;
}

static enum json_kind kind_of(char first)
{
    switch (first) {
    case '{':
        return JSON_OBJECT;
    case '[':
        return JSON_ARRAY;
    case '"':
        return JSON_STRING;
    case 'n':
        return JSON_NULL;
    case 't':
        return JSON_TRUE;
    case 'f':
        return JSON_FALSE;
    default:
        return JSON_NUMBER;
    }
}

static struct json_value value_at(const char *at, const char *end)
{
    if (at >= end) {
        return (struct json_value){.kind = JSON_NONE};
    }
    struct json_value value = {.kind = kind_of(*at), .text = at};
    const char *behind = value.kind == JSON_STRING                               ? skip_string(at, end)
                         : value.kind == JSON_ARRAY || value.kind == JSON_OBJECT ? skip_container(at, end)
                                                                                 : skip_scalar(at, end);
    value.size = (size_t)(behind - at);
    return value;
}

struct json_value json_whole(const char *text, size_t size)
{
    const char *end = text + size;
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        text += 3;
    }
    text = skip_blanks(text, end);
    if (text < end && (*text == '[' || *text == '{')) { /* only blanks follow: no need to search for the end */
        while (end[-1] != ']' && end[-1] != '}') {
            end--;
        }
        return (struct json_value){.kind = kind_of(*text), .text = text, .size = (size_t)(end - text)};
    }
    return value_at(text, end);
}

const char *json_kind_name(enum json_kind kind)
{
    static const char *const names[] = {"nothing",  "null",   "false",    "true",
                                        "a number", "a text", "an array", "an object"};
    return names[kind];
}

struct json_walk json_walk(struct json_value container)
{
    if (container.kind != JSON_ARRAY && container.kind != JSON_OBJECT) {
        return (struct json_walk){NULL, NULL};
    }
    /* The text between the brackets. */
    const char *end = container.text + container.size - 1;
    return (struct json_walk){skip_blanks(container.text + 1, end), end};
}

/* Skips the separators between two values. */
static void step(struct json_walk *walk, char mark)
{
    walk->at = skip_blanks(walk->at, walk->end);
    if (walk->at < walk->end && *walk->at == mark) {
        walk->at = skip_blanks(walk->at + 1, walk->end);
    }
}

bool json_next(struct json_walk *walk, struct json_value *value)
{
    *value = value_at(walk->at, walk->end);
    if (value->kind == JSON_NONE) {
        return false;
    }
    walk->at = value->text + value->size;
    step(walk, ',');
    return true;
}

bool json_next_member(struct json_walk *walk, struct json_value *name, struct json_value *value)
{
    *name = value_at(walk->at, walk->end);
    if (name->kind == JSON_NONE) {
        return false;
    }
    walk->at = name->text + name->size;
    step(walk, ':');
    return json_next(walk, value);
}

size_t json_length(struct json_value container)
{
    struct json_walk walk = json_walk(container);
    struct json_value name, value;
    size_t count = 0;
    while (container.kind == JSON_OBJECT ? json_next_member(&walk, &name, &value) : json_next(&walk, &value)) {
        count++;
    }
    return count;
}

struct json_value json_member(struct json_value object, const char *name)
{
    struct json_walk walk = json_walk(object);
    struct json_value own, value;
    while (object.kind == JSON_OBJECT && json_next_member(&walk, &own, &value)) {
        if (json_is(own, name)) {
            return value;
        }
    }
    return (struct json_value){.kind = JSON_NONE};
}

/* --- strings --- */

static unsigned hex(const char *digits)
{
    unsigned number = 0;
    for (int i = 0; i < 4; i++) {
        const char digit = digits[i];
        number = number << 4 | (unsigned)(digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
    }
    return number;
}

static char *put_utf8(char *to, unsigned code)
{
    if (code < 0x80) {
        *to++ = (char)code;
    } else if (code < 0x800) {
        *to++ = (char)(0xc0 | code >> 6);
        *to++ = (char)(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        *to++ = (char)(0xe0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
        *to++ = (char)(0x80 | (code & 0x3f));
    } else {
        *to++ = (char)(0xf0 | code >> 18);
        *to++ = (char)(0x80 | (code >> 12 & 0x3f));
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
        *to++ = (char)(0x80 | (code & 0x3f));
    }
    return to;
}

/* Decodes an escape, from after its backslash; *at moves past it. */
static char *put_escape(char *to, const char **at)
{
    static const char letters[] = "bfnrt", meant[] = "\b\f\n\r\t";
    const char letter = *(*at)++;
    if (letter != 'u') {
        const char *known = strchr(letters, letter);
        *to++ = known ? meant[known - letters] : letter;
        return to;
    }
    unsigned code = hex(*at);
    *at += 4;
    if (code >= 0xd800 && code < 0xdc00) { /* the other half of the pair follows */
        code = 0x10000 + ((code - 0xd800) << 10) + (hex(*at + 2) - 0xdc00);
        *at += 6;
    }
    return put_utf8(to, code);
}

size_t json_unescape(struct json_value string, char *text)
{
    const char *at = string.text + 1, *end = string.text + string.size - 1;
    char *to = text;
    while (at < end) {
        if (*at != '\\') {
            *to++ = *at++;
            continue;
        }
        at++;
        to = put_escape(to, &at);
    }
    return (size_t)(to - text);
}

bool json_is(struct json_value string, const char *text)
{
    const size_t size = strlen(text);
    if (string.kind != JSON_STRING) {
        return false;
    }
    if (!memchr(string.text, '\\', string.size)) {
        return string.size == size + 2 && memcmp(string.text + 1, text, size) == 0;
    }
    char own[256]; /* our own names are short, and longer columns are not looked up */
    return string.size <= sizeof own && json_unescape(string, own) == size && memcmp(own, text, size) == 0;
}
