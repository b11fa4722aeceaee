/*
 * The terminal that standard output and input are: its size, its keys, and back to how it was when we leave, whatever
 * ends us. One per process.
 */
#ifndef OBSERVE_TOP_TERMINAL_H
#define OBSERVE_TOP_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* Above those of characters. */
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
    KEY_RESIZED, /* no key, but as good as one */
};

/* Characters come one by one and are not shown, on a screen of their own, which terminal_leave takes away again. */
bool terminal_enter(struct error *error);
void terminal_leave(void); /* may be called at any time */

/* Leaves, stops the process as Ctrl-Z does elsewhere, and enters again once it goes on. */
bool terminal_suspend(struct error *error);

/* Of standard output; what is no terminal says COLUMNS and LINES, or is 80 x 24. */
void terminal_size(int *width, int *height);

/* The next key, waiting until then at most (clock_monotonic_s). False: the terminal is gone. Signals end a wait. */
bool terminal_key(double until_s, int *key);

/* Waits until the terminal has taken all. False: it is gone. */
bool terminal_write(const char *bytes, size_t size);

#endif
