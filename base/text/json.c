/*
 * A recursive-descent scanner checks the text; its limit on depth bounds the recursion. What reads values then relies
 * on that.
 */
#include "base/text/json.h"

#include <stdint.h>
#include <string.h>

#include "base/text/text.h"

struct scanner {
    const uint8_t *begin, *at, *end;
    int depth;
    bool is_data;         /* NaN and Infinity are numbers */
    const uint8_t *wrong; /* where the first error is; NULL: none so far */
    struct error *error;
};

static bool scan_value(struct scanner *scanner);

static bool fail(struct scanner *scanner, const uint8_t *where, const char *reason)
{
    scanner->wrong = where;
    return error_set(scanner->error, "%s", reason);
}

static struct json_place place_of(const uint8_t *begin, const uint8_t *at)
{
    struct json_place place = {1, 1};
    for (const uint8_t *p = begin; p < at; p++) {
        if (*p == '\n') {
            place.line++;
            place.column = 1;
        } else if ((*p & 0xC0) != 0x80) { /* continuation bytes belong to the preceding character */
            place.column++;
        }
    }
    return place;
}

static bool check_utf8(struct scanner *scanner)
{
    for (const uint8_t *p = scanner->begin; p < scanner->end;) {
        uint64_t word;
        if (scanner->end - p >= (ptrdiff_t)sizeof word) {
            memcpy(&word, p, sizeof word);
            if ((word & 0x8080808080808080) == 0) { /* eight ASCII characters */
                p += sizeof word;
                continue;
            }
        }
        size_t length = utf8_length(p, scanner->end);
        if (length == 0) {
            scanner->wrong = p;
            return error_set(scanner->error, "byte 0x%02X is not UTF-8; save the file as UTF-8", *p);
        }
        p += length;
    }
    return true;
}

static int peek(const struct scanner *scanner)
{
    return scanner->at < scanner->end ? *scanner->at : -1;
}

/* Skips white space; a comment gets its own error, because people try them. */
static bool skip_space(struct scanner *scanner)
{
    while (scanner->at < scanner->end &&
           (*scanner->at == ' ' || *scanner->at == '\n' || *scanner->at == '\t' || *scanner->at == '\r')) {
        scanner->at++;
    }
    if (peek(scanner) == '/' || peek(scanner) == '#') {
        return fail(scanner, scanner->at, "JSON has no comments; remove this one");
    }
    return true;
}

static int hex_digit(int c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The four digits of a \uXXXX at p; -1 if invalid. */
static int escaped_unit(const struct scanner *scanner, const uint8_t *p)
{
    if (scanner->end - p < 6 || p[0] != '\\' || p[1] != 'u') {
        return -1;
    }
    int unit = 0;
    for (int i = 2; i < 6; i++) {
        int digit = hex_digit(p[i]);
        if (digit < 0) {
            return -1;
        }
        unit = unit * 16 + digit;
    }
    return unit;
}

static bool scan_escape(struct scanner *scanner)
{
    const uint8_t *start = scanner->at;
    if (scanner->end - start >= 2 && start[1] != '\0' && strchr("\"\\/bfnrt", start[1])) {
        scanner->at += 2;
        return true;
    }
    int unit = escaped_unit(scanner, start);
    if (unit < 0) {
        return fail(scanner, start, "invalid escape; a backslash itself is written \\\\");
    }
    if (unit == 0) {
        return fail(scanner, start, "\\u0000 is not allowed in a string");
    }
    scanner->at += 6;
    if (unit < 0xD800 || unit > 0xDFFF) {
        return true;
    }
    int low = unit < 0xDC00 ? escaped_unit(scanner, scanner->at) : -1;
    if (low < 0xDC00 || low > 0xDFFF) {
        return fail(scanner, start, "half of a surrogate pair; write the character itself");
    }
    scanner->at += 6;
    return true;
}

static bool scan_string(struct scanner *scanner)
{
    const uint8_t *start = scanner->at++;
    for (;;) {
        int c = peek(scanner);
        if (c < 0 || c == '\n' || c == '\r') {
            return fail(scanner, start, "unterminated string; a closing \" is missing");
        }
        if (c < 0x20) {
            return fail(scanner, scanner->at, "a control character in a string; write it as \\t or \\u00XX");
        }
        if (c == '\\') {
            if (!scan_escape(scanner)) {
                return false;
            }
            continue;
        }
        scanner->at++;
        if (c == '"') {
            return true;
        }
    }
}

static int scan_digits(struct scanner *scanner)
{
    int count = 0;
    for (; peek(scanner) >= '0' && peek(scanner) <= '9'; scanner->at++) {
        count++;
    }
    return count;
}

static bool scan_word(struct scanner *scanner)
{
    static const char *const words[] = {"true", "false", "null", "NaN", "Infinity"};
    for (size_t i = 0; i < (scanner->is_data ? 5U : 3U); i++) {
        size_t length = strlen(words[i]);
        if ((size_t)(scanner->end - scanner->at) >= length && memcmp(scanner->at, words[i], length) == 0) {
            scanner->at += length;
            return true;
        }
    }
    int c = peek(scanner);
    if (c < 0) {
        return fail(scanner, scanner->at, "expected a value, got the end of the file");
    }
    if (c == '\'') {
        return fail(scanner, scanner->at, "strings need double quotes");
    }
    return fail(scanner, scanner->at, "expected a value: a string in double quotes, a number, true, false, [ or {");
}

static bool scan_number(struct scanner *scanner)
{
    const uint8_t *start = scanner->at;
    if (peek(scanner) == '-') {
        scanner->at++;
    }
    bool zero = peek(scanner) == '0';
    int digits = scan_digits(scanner);
    if (digits == 0 && scanner->is_data && peek(scanner) == 'I') {
        return scan_word(scanner);
    }
    bool good = digits == 1 || (digits > 1 && !zero);
    if (good && peek(scanner) == '.') {
        scanner->at++;
        good = scan_digits(scanner) > 0;
    }
    if (good && (peek(scanner) == 'e' || peek(scanner) == 'E')) {
        scanner->at++;
        if (peek(scanner) == '+' || peek(scanner) == '-') {
            scanner->at++;
        }
        good = scan_digits(scanner) > 0;
    }
    return good || fail(scanner, start, "invalid number; write it as 100, -0.5 or 1e-4");
}

/* An object's names so far, of which the first are compared with each later one. */
struct seen_names {
    uint32_t count;
    uint32_t hashes[JSON_COMPARED_NAMES], sizes[JSON_COMPARED_NAMES];
    const uint8_t *texts[JSON_COMPARED_NAMES];
};

static uint32_t hash_name(const uint8_t *text, size_t size)
{
    uint64_t hash = size, word;
    for (; size >= sizeof word; text += sizeof word, size -= sizeof word) {
        memcpy(&word, text, sizeof word);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, text, size);
    return (uint32_t)(((hash ^ word) * 0x9E3779B97F4A7C15) >> 32);
}

static bool add_name(struct scanner *scanner, struct seen_names *names, const uint8_t *text)
{
    const size_t size = (size_t)(scanner->at - text);
    const uint32_t hash = hash_name(text, size);
    for (uint32_t i = 0; i < names->count; i++) {
        if (names->hashes[i] == hash && names->sizes[i] == size && memcmp(names->texts[i], text, size) == 0) {
            scanner->wrong = text;
            return error_set(scanner->error, "duplicate name %.*s; remove one", (int)(size < 66 ? size : 66), text);
        }
    }
    if (names->count < JSON_COMPARED_NAMES) {
        names->hashes[names->count] = hash;
        names->sizes[names->count] = (uint32_t)size;
        names->texts[names->count++] = text;
    }
    return true;
}

static bool scan_name(struct scanner *scanner, struct seen_names *names)
{
    const uint8_t *const text = scanner->at;
    if (peek(scanner) != '"') {
        return fail(scanner, scanner->at,
                    peek(scanner) < 0 ? "the file ends inside an object; a closing } is missing"
                                      : "expected a name in double quotes");
    }
    if (!scan_string(scanner) || !add_name(scanner, names, text) || !skip_space(scanner)) {
        return false;
    }
    if (peek(scanner) != ':') {
        return fail(scanner, scanner->at, "expected a colon after the name");
    }
    scanner->at++;
    return skip_space(scanner);
}

/* After a child: a comma and one more, or the end. */
static bool scan_separator(struct scanner *scanner, char close, bool *more)
{
    if (!skip_space(scanner)) {
        return false;
    }
    const uint8_t *comma = scanner->at;
    *more = peek(scanner) == ',';
    if (!*more) {
        if (peek(scanner) == close) {
            return true;
        }
        if (peek(scanner) < 0) {
            return fail(scanner, scanner->at,
                        close == '}' ? "the file ends inside an object; a closing } is missing"
                                     : "the file ends inside an array; a closing ] is missing");
        }
        return fail(scanner, scanner->at, close == '}' ? "expected a comma or }" : "expected a comma or ]");
    }
    scanner->at++;
    if (!skip_space(scanner)) {
        return false;
    }
    if (peek(scanner) == '}' || peek(scanner) == ']') {
        return fail(scanner, comma, "trailing comma; remove it");
    }
    return true;
}

static bool is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

/* The end of a number without exponent that starts here; NULL if there is none, or in another form. */
static const uint8_t *pass_number(const uint8_t *at, const uint8_t *end)
{
    at += at < end && *at == '-';
    const uint8_t *first = at;
    while (at < end && is_digit(*at)) {
        at++;
    }
    if (at == first || (*first == '0' && at > first + 1)) {
        return NULL;
    }
    if (at < end && *at == '.') {
        first = ++at;
        while (at < end && is_digit(*at)) {
            at++;
        }
        return at > first ? at : NULL;
    }
    return at;
}

/* Skips numbers that are followed by a comma and another one, as arrays contain by the thousand. */
static void pass_numbers(struct scanner *scanner)
{
    const uint8_t *at = scanner->at, *const end = scanner->end;
    while ((at = pass_number(at, end)) && at < end && *at == ',') {
        at++;
        at += at < end && *at == ' ';
        if (at == end || !(is_digit(*at) || *at == '-')) {
            break;
        }
        scanner->at = at;
    }
}

static bool scan_children(struct scanner *scanner, char close)
{
    if (++scanner->depth > JSON_MAX_DEPTH) {
        return fail(scanner, scanner->at, "nested too deeply");
    }
    scanner->at++;
    if (!skip_space(scanner)) {
        return false;
    }
    struct seen_names names;
    names.count = 0;
    bool more = peek(scanner) != close;
    while (more) {
        if (close == '}' && !scan_name(scanner, &names)) {
            return false;
        }
        if (close == ']') {
            pass_numbers(scanner);
        }
        if (!scan_value(scanner) || !scan_separator(scanner, close, &more)) {
            return false;
        }
    }
    scanner->at++;
    scanner->depth--;
    return true;
}

static bool scan_value(struct scanner *scanner)
{
    int c = peek(scanner);
    if (c == '{' || c == '[') {
        return scan_children(scanner, c == '{' ? '}' : ']');
    }
    if (c == '"') {
        return scan_string(scanner);
    }
    if (c == '-' || (c >= '0' && c <= '9')) {
        return scan_number(scanner);
    }
    return scan_word(scanner);
}

/* Bytes of a leading byte order mark. */
static size_t mark_size(const char *text, size_t size)
{
    static const char mark[] = "\xEF\xBB\xBF";
    return size >= 3 && memcmp(text, mark, 3) == 0 ? 3 : 0;
}

static bool scan_document(struct scanner *scanner)
{
    if (!skip_space(scanner) || !scan_value(scanner) || !skip_space(scanner)) {
        return false;
    }
    return scanner->at == scanner->end || fail(scanner, scanner->at, "text after the end of the JSON value");
}

static bool check(const char *text, size_t size, bool is_utf8, bool is_data, struct json_place *place,
                  struct error *error)
{
    const uint8_t *begin = (const uint8_t *)text + mark_size(text, size), *end = (const uint8_t *)text + size;
    struct scanner scanner = {.begin = begin, .at = begin, .end = end, .is_data = is_data, .error = error};
    bool good = (!is_utf8 || check_utf8(&scanner)) && scan_document(&scanner);
    if (!good) {
        *place = place_of(begin, scanner.wrong);
    }
    return good;
}

bool json_check(const char *text, size_t size, struct json_place *place, struct error *error)
{
    return check(text, size, true, false, place, error);
}

bool json_check_data(const char *text, size_t size, struct json_place *place, struct error *error)
{
    return check(text, size, true, true, place, error);
}

bool json_check_bytes(const char *text, size_t size, struct json_place *place, struct error *error)
{
    return check(text, size, false, false, place, error);
}

/* cJSON passes over a mark only if more than one byte follows it. */
cJSON *json_build(const char *text, size_t size)
{
    const size_t skip = mark_size(text, size);
    return cJSON_ParseWithLength(text + skip, size - skip);
}

bool json_put(cJSON *object, const char *name, cJSON *value)
{
    const bool done = cJSON_AddItemToObject(object, name, value);
    if (!done) {
        cJSON_Delete(value);
    }
    return done;
}

bool json_append(cJSON *list, cJSON *value)
{
    const bool done = cJSON_AddItemToArray(list, value);
    if (!done) {
        cJSON_Delete(value);
    }
    return done;
}

/* --- Values in place --- */

/* The text is valid JSON, so brackets and quotes alone determine the end of a value. */

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
    text = skip_blanks(text + mark_size(text, size), end);
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

bool json_find(const char *text, size_t size, const int *path, int depth, bool name, struct json_place *place)
{
    struct json_value value = json_whole(text, size), member = {.kind = JSON_NONE};
    bool is_object = false;
    for (int i = 0; i < depth; i++) {
        is_object = value.kind == JSON_OBJECT;
        struct json_walk walk = json_walk(value);
        for (int k = 0; k <= path[i]; k++) {
            if (is_object ? !json_next_member(&walk, &member, &value) : !json_next(&walk, &value)) {
                return false;
            }
        }
    }
    const char *found = name && is_object ? member.text : value.text;
    *place = place_of((const uint8_t *)text + mark_size(text, size), (const uint8_t *)found);
    return true;
}
