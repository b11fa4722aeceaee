/*
 * The terminal's content, as a grid of characters that is redrawn each time; only changes are sent. Plain ANSI, which
 * all current terminals understand, so that no terminfo is needed.
 *
 * Untrusted texts may be put here as they are: what is not printable is escaped.
 */
#ifndef OBSERVE_TOP_SCREEN_H
#define OBSERVE_TOP_SCREEN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text/json_writer.h"

enum { SCREEN_MOST_SIDE = 1000 };

enum style { PLAIN, FAINT, BOLD, REVERSE, RED, GREEN, YELLOW, CYAN };

struct cell {
    uint32_t character; /* 0: the right half of the one before */
    enum style style;
};

struct screen {
    int width, height;
    struct cell *cells, *shown; /* [height, width]: as drawn, and as the terminal shows it */
    bool is_fresh;              /* nothing is shown yet */
    bool has_colors, has_unicode;
};

/* Sets the size, and forgets what was shown. Sides are limited to 1..SCREEN_MOST_SIDE. */
bool screen_resize(struct screen *screen, int width, int height, struct error *error);
void screen_free(struct screen *screen); /* fine on zeros */

void screen_clear(struct screen *screen);

/*
 * Puts text at a place, cut off before column `end`; returns the column after it. Parts outside the screen are dropped.
 */
int screen_put(struct screen *screen, int row, int column, int end, enum style style, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
void screen_put_character(struct screen *screen, int row, int column, enum style style, uint32_t character);

/* Writes the bytes that make the terminal show what was drawn. */
void screen_send(struct screen *screen, struct text_buffer *text);

/* Writes the lines for a pipe or a log, without trailing spaces and empty lines; in color if enabled. */
void screen_print(const struct screen *screen, struct text_buffer *text);

#endif
