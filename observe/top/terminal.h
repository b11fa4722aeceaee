/*
 * The terminal on standard output and input: its size, its keys, and restoring it on exit, whatever ends the process.
 * One per process.
 */
#ifndef OBSERVE_TOP_TERMINAL_H
#define OBSERVE_TOP_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

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
