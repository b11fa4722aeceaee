/*
 * The terminal's content, as a grid of characters that is redrawn each time; only changes are sent. Plain ANSI, which
 * all current terminals understand, so that no terminfo is needed.
 *
 * Untrusted texts may be put here as they are: what is not printable is escaped.
 */
#ifndef OBSERVE_TOP_TERMINAL_H
#define OBSERVE_TOP_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
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
void screen_resize(struct screen *screen, int width, int height);
void screen_free(struct screen *screen); /* fine on zeros */

void screen_clear(struct screen *screen);

/*
 * Puts text at a place; if it does not fit before column `end`, it is cut after a word and an ellipsis says so. Returns
 * the column after it. Parts outside the screen are dropped.
 */
int screen_put(struct screen *screen, int row, int column, int end, enum style style, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
void screen_put_character(struct screen *screen, int row, int column, enum style style, uint32_t character);

/* Writes the bytes that make the terminal show what was drawn. */
void screen_send(struct screen *screen, struct text_buffer *text);

/* Writes the lines for a pipe or a log, without trailing spaces and empty lines; in color if enabled. */
void screen_print(const struct screen *screen, struct text_buffer *text);

/* --- The terminal --- */

/*
 * The terminal on standard output and input: its size, its keys, and restoring it on exit, whatever ends the process.
 * One per process.
 */

/* Beyond the codes of characters. */
enum key {
    KEY_NONE = 0,
    KEY_TAB = '\t',
    KEY_ENTER = '\r',
    KEY_ESCAPE = 0x1b,
    KEY_BACKSPACE = 0x7f,
    KEY_REDRAW = 'L' - '@',
    KEY_SUSPEND = 'Z' - '@',
    KEY_UP = 0x100,
    KEY_DOWN,
    KEY_PAGE_UP,
    KEY_PAGE_DOWN,
    KEY_HOME,
    KEY_END,
    KEY_RESIZED, /* not a key, but reported as one */
};

/* Enters raw mode without echo, on the alternate screen; terminal_leave restores both. */
bool terminal_enter(struct error *error);
void terminal_leave(void); /* may be called at any time */

/* Leaves, stops the process as Ctrl-Z does, and enters again when it continues. */
bool terminal_suspend(struct error *error);

/* The size of standard output; if it is not a terminal, COLUMNS and LINES, or 80 x 24. */
void terminal_size(int *width, int *height);

/* The next key, or KEY_NONE after until_s (clock_monotonic_s) or a signal. False: the terminal is gone. */
bool terminal_key(double until_s, int *key);

/* Blocks until all is written. False: the terminal is gone. */
bool terminal_write(const char *bytes, size_t size);

#endif
