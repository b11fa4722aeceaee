/* Text that grows by doubling, and JSON written into it value by value. */
#include "base/text/json_writer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/text.h"

enum { FIRST_ROOM = 1024 };

static bool make_room(struct text_buffer *text, size_t more)
{
    if (text->failed) {
        return false;
    }
    size_t room = text->room == 0 ? FIRST_ROOM : text->room;
    while (room < text->size + more) {
        room *= 2;
    }
    if (room != text->room) {
        const size_t growth = room - text->room;
        if (!budget_charge(text->account, growth, NULL)) {
            text->failed = true;
            return false;
        }
        char *bytes = realloc(text->bytes, room);
        if (!bytes) {
            budget_release(text->account, growth);
            text->failed = true;
            return false;
        }
        text->bytes = bytes;
        text->room = room;
    }
    return true;
}

void text_buffer_add_bytes(struct text_buffer *text, const void *bytes, size_t size)
{
    if (make_room(text, size)) {
        memcpy(text->bytes + text->size, bytes, size);
        text->size += size;
    }
}

void text_buffer_add(struct text_buffer *text, const char *format, ...)
{
    char some[512];
    va_list arguments;
    va_start(arguments, format);
    const int size = vsnprintf(some, sizeof some, format, arguments);
    va_end(arguments);
    if (size < (int)sizeof some) {
        text_buffer_add_bytes(text, some, (size_t)size);
    } else if (make_room(text, (size_t)size + 1)) {
        va_start(arguments, format);
        vsnprintf(text->bytes + text->size, (size_t)size + 1, format, arguments);
        va_end(arguments);
        text->size += (size_t)size;
    }
}

char *text_buffer_take(struct text_buffer *text, size_t *size)
{
    char *bytes = text->bytes;
    *size = text->size;
    if (text->failed) {
        text_buffer_free(text);
        bytes = NULL;
        *size = 0;
    }
    *text = (struct text_buffer){.account = text->account};
    return bytes;
}

void text_buffer_free(struct text_buffer *text)
{
    free(text->bytes);
    budget_release(text->account, text->room);
    *text = (struct text_buffer){.account = text->account};
}

/* --- JSON --- */

static void begin_value(struct text_buffer *text, const char *name)
{
    if (text->follows) {
        text_buffer_add_bytes(text, ",", 1);
    }
    text->follows = true;
    if (name) {
        text_buffer_add_bytes(text, "\"", 1);
        text_buffer_add_bytes(text, name, strlen(name));
        text_buffer_add_bytes(text, "\":", 2);
    }
}

void json_write_open(struct text_buffer *text, const char *name, char bracket)
{
    begin_value(text, name);
    text_buffer_add_bytes(text, &bracket, 1);
    text->follows = false;
}

void json_write_close(struct text_buffer *text, char bracket)
{
    text_buffer_add_bytes(text, &bracket, 1);
    text->follows = true;
}

/* In quotes, with escapes. */
static void add_string(struct text_buffer *text, const char *value)
{
    const uint8_t *at = (const uint8_t *)value, *end = at + strlen(value);
    text_buffer_add_bytes(text, "\"", 1);
    while (at < end) {
        const size_t length = utf8_length(at, end);
        if (length == 0) {
            text_buffer_add_bytes(text, "?", 1);
        } else if (*at < ' ' || *at == 0x7f) {
            text_buffer_add(text, "\\u%04x", *at);
        } else if (*at == '"' || *at == '\\') {
            text_buffer_add_bytes(text, "\\", 1);
            text_buffer_add_bytes(text, at, 1);
        } else {
            text_buffer_add_bytes(text, at, length);
        }
        at += length == 0 ? 1 : length;
    }
    text_buffer_add_bytes(text, "\"", 1);
}

void json_write_name(struct text_buffer *text, const char *name)
{
    begin_value(text, NULL);
    add_string(text, name);
    text_buffer_add_bytes(text, ":", 1);
    text->follows = false;
}

void json_write_string(struct text_buffer *text, const char *name, const char *value)
{
    if (!value) {
        json_write_null(text, name);
        return;
    }
    begin_value(text, name);
    add_string(text, value);
}

void json_write_integer(struct text_buffer *text, const char *name, int64_t value)
{
    begin_value(text, name);
    text_buffer_add(text, "%lld", (long long)value);
}

void json_write_number(struct text_buffer *text, const char *name, double value)
{
    if (!isfinite(value)) {
        json_write_null(text, name);
        return;
    }
    begin_value(text, name);
    text_buffer_add(text, "%.9g", value);
}

void json_write_time(struct text_buffer *text, const char *name, double value)
{
    if (!isfinite(value) || value == 0) {
        json_write_null(text, name);
        return;
    }
    begin_value(text, name);
    text_buffer_add(text, "%.3f", value);
}

void json_write_bool(struct text_buffer *text, const char *name, bool value)
{
    begin_value(text, name);
    text_buffer_add(text, value ? "true" : "false");
}

void json_write_null(struct text_buffer *text, const char *name)
{
    begin_value(text, name);
    text_buffer_add_bytes(text, "null", 4);
}
