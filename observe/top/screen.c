/* Each run of changed characters is sent after a cursor move; styles are set where they change. */
#include "observe/top/screen.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "base/text/printable.h"
#include "base/text/utf8.h"

enum { MOST_TEXT = 4096, CHEAP_GAP = 4 };

bool screen_resize(struct screen *screen, int width, int height, struct error *error)
{
    width = width < 1 ? 1 : width > SCREEN_MOST_SIDE ? SCREEN_MOST_SIDE : width;
    height = height < 1 ? 1 : height > SCREEN_MOST_SIDE ? SCREEN_MOST_SIDE : height;
    const size_t count = (size_t)width * (size_t)height;
    screen_free(screen);
    screen->cells = calloc(count, sizeof *screen->cells);
    screen->shown = calloc(count, sizeof *screen->shown);
    if (!screen->cells || !screen->shown) {
        screen_free(screen);
        return error_set(error, "out of memory for a screen of %d x %d", width, height);
    }
    screen->width = width;
    screen->height = height;
    screen->is_fresh = true;
    screen_clear(screen);
    return true;
}

void screen_free(struct screen *screen)
{
    free(screen->cells);
    free(screen->shown);
    screen->cells = screen->shown = NULL;
    screen->width = screen->height = 0;
}

void screen_clear(struct screen *screen)
{
    for (int i = 0; i < screen->width * screen->height; i++) {
        screen->cells[i] = (struct cell){.character = ' ', .style = PLAIN};
    }
}

void screen_put_character(struct screen *screen, int row, int column, enum style style, uint32_t character)
{
    if (row >= 0 && row < screen->height && column >= 0 && column < screen->width) {
        screen->cells[row * screen->width + column] = (struct cell){.character = character, .style = style};
    }
}

int screen_put(struct screen *screen, int row, int column, int end, enum style style, const char *format, ...)
{
    char text[MOST_TEXT], safe[MOST_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printable(safe, sizeof safe, text);
    end = end < screen->width ? end : screen->width;
    const uint8_t *at = (const uint8_t *)safe, *stop = at + strlen(safe);
    while (at < stop) {
        const size_t length = utf8_length(at, stop);
        const uint32_t character = length > 0 ? utf8_character(at, length) : '?';
        const bool is_shown = character < 0x80 || screen->has_unicode;
        const int width = is_shown ? wcwidth((wchar_t)character) : 1;
        at += length > 0 ? length : 1;
        if (width <= 0) {
            continue; /* it changes the appearance of others, which this grid does not track */
        }
        if (column + width > end) {
            break;
        }
        screen_put_character(screen, row, column, style, is_shown ? character : '?');
        if (width == 2) {
            screen_put_character(screen, row, column + 1, style, 0);
        }
        column += width;
    }
    return column;
}

/* --- To the terminal --- */

static void add_character(struct text_buffer *text, uint32_t c)
{
    if (c < 0x80) {
        text_buffer_add(text, "%c", (int)c);
    } else if (c < 0x800) {
        text_buffer_add(text, "%c%c", (int)(0xc0 | c >> 6), (int)(0x80 | (c & 0x3f)));
    } else if (c < 0x10000) {
        text_buffer_add(text, "%c%c%c", (int)(0xe0 | c >> 12), (int)(0x80 | (c >> 6 & 0x3f)), (int)(0x80 | (c & 0x3f)));
    } else {
        text_buffer_add(text, "%c%c%c%c", (int)(0xf0 | c >> 18), (int)(0x80 | (c >> 12 & 0x3f)),
                        (int)(0x80 | (c >> 6 & 0x3f)), (int)(0x80 | (c & 0x3f)));
    }
}

static void add_style(struct text_buffer *text, const struct screen *screen, enum style style)
{
    static const char *const codes[] = {[PLAIN] = "",    [FAINT] = ";2",  [BOLD] = ";1",    [REVERSE] = ";7",
                                        [RED] = ";1;31", [GREEN] = ";32", [YELLOW] = ";33", [CYAN] = ";36"};
    const bool is_color = style >= RED;
    const char *code = !is_color || screen->has_colors ? codes[style] : style == RED ? codes[BOLD] : "";
    text_buffer_add(text, "\x1b[0%sm", code);
}

static bool same(const struct cell *a, const struct cell *b)
{
    return a->character == b->character && a->style == b->style;
}

static void send_cell(struct text_buffer *text, const struct screen *screen, const struct cell *cell, enum style *style)
{
    if (cell->character == 0) {
        return; /* drawn with its left half */
    }
    if (cell->style != *style) {
        add_style(text, screen, cell->style);
        *style = cell->style;
    }
    add_character(text, cell->character);
}

void screen_send(struct screen *screen, struct text_buffer *text)
{
    enum style style = PLAIN;
    if (screen->is_fresh) {
        text_buffer_add(text, "\x1b[0m\x1b[2J");
        for (int i = 0; i < screen->width * screen->height; i++) {
            screen->shown[i] = (struct cell){.character = ' ', .style = PLAIN};
        }
        screen->is_fresh = false;
    }
    for (int row = 0; row < screen->height; row++) {
        int at = -1; /* column of the terminal's cursor, if it is in this row */
        for (int column = 0; column < screen->width; column++) {
            const int i = row * screen->width + column;
            if (same(&screen->cells[i], &screen->shown[i])) {
                continue;
            }
            if (at < 0 || column - at > CHEAP_GAP) {
                text_buffer_add(text, "\x1b[%d;%dH", row + 1, column + 1);
                at = column;
            }
            for (; at <= column; at++) { /* also unchanged cells, if that is shorter than moving the cursor */
                send_cell(text, screen, &screen->cells[row * screen->width + at], &style);
            }
            screen->shown[i] = screen->cells[i];
        }
    }
    if (style != PLAIN) {
        text_buffer_add(text, "\x1b[0m");
    }
}

static int length_of_row(const struct screen *screen, int row)
{
    int length = screen->width;
    while (length > 0 && screen->cells[row * screen->width + length - 1].character == ' ') {
        length--;
    }
    return length;
}

void screen_print(const struct screen *screen, struct text_buffer *text)
{
    int rows = screen->height;
    while (rows > 0 && length_of_row(screen, rows - 1) == 0) {
        rows--;
    }
    for (int row = 0; row < rows; row++) {
        enum style style = PLAIN;
        const int length = length_of_row(screen, row);
        for (int column = 0; column < length; column++) {
            const struct cell *cell = &screen->cells[row * screen->width + column];
            if (cell->style != style && screen->has_colors) {
                add_style(text, screen, cell->style);
            }
            style = cell->style;
            if (cell->character != 0) {
                add_character(text, cell->character);
            }
        }
        text_buffer_add(text, style != PLAIN && screen->has_colors ? "\x1b[0m\n" : "\n");
    }
}
