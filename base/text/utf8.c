/* Texts from peers and files are UTF-8 or refused, since JSON, terminals and logs accept nothing else. */
#include "base/text/utf8.h"

#include <string.h>
#include <wchar.h>

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
