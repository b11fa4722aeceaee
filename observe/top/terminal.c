/* The screen's content, and the terminal that shows it. */
#include "observe/top/terminal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/text/text.h"

/* --- The screen --- */

/* Each run of changed characters is sent after a cursor move; styles are set where they change. */

enum { MOST_TEXT = 4096, CHEAP_GAP = 4, LEAST_CUT = 3 /* columns for a part of a text */ };

void screen_resize(struct screen *screen, int width, int height)
{
    width = width < 1 ? 1 : width > SCREEN_MOST_SIDE ? SCREEN_MOST_SIDE : width;
    height = height < 1 ? 1 : height > SCREEN_MOST_SIDE ? SCREEN_MOST_SIDE : height;
    const size_t count = (size_t)width * (size_t)height;
    screen_free(screen);
    screen->cells = must_zero(count, sizeof *screen->cells, "a screen");
    screen->shown = must_zero(count, sizeof *screen->shown, "a screen");
    screen->width = width;
    screen->height = height;
    screen->is_fresh = true;
    screen_clear(screen);
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

/* The next character as it is shown, and its columns; 0: it changes others, which this grid does not track. */
static int next_character(const struct screen *screen, const uint8_t **at, const uint8_t *stop, uint32_t *character)
{
    const size_t length = utf8_length(*at, stop);
    *character = length > 0 ? utf8_character(*at, length) : '?';
    *at += length > 0 ? length : 1;
    if (*character >= 0x80 && !screen->has_unicode) {
        *character = '?';
    }
    const int width = wcwidth((wchar_t)*character);
    return width > 0 ? width : 0;
}

/* Where a text ends that has more than `room` columns: after a word, unless that leaves less than half of them. */
static const uint8_t *cut(const struct screen *screen, const uint8_t *at, const uint8_t *stop, int room)
{
    const uint8_t *word = at, *end = at;
    uint32_t character = ' ';
    int used = 0, word_at = 0;
    while (at < stop) {
        const uint8_t *before = at;
        const bool was_space = character == ' ';
        const int width = next_character(screen, &at, stop, &character);
        if (character == ' ' && !was_space) {
            word = before;
            word_at = used;
        }
        if (used + width >= room) {
            return 2 * word_at >= room ? word : end;
        }
        used += width;
        end = at;
    }
    return stop;
}

static bool fits(const struct screen *screen, const uint8_t *at, const uint8_t *stop, int room)
{
    uint32_t character;
    int used = 0;
    while (at < stop && used <= room) {
        used += next_character(screen, &at, stop, &character);
    }
    return used <= room;
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
    const bool is_cut = !fits(screen, at, stop, end - column);
    if (is_cut && end - column < LEAST_CUT) {
        return end;
    }
    stop = is_cut ? cut(screen, at, stop, end - column) : stop;
    while (at < stop) {
        uint32_t character;
        const int width = next_character(screen, &at, stop, &character);
        if (width > 0) {
            screen_put_character(screen, row, column, style, character);
        }
        if (width == 2) {
            screen_put_character(screen, row, column + 1, style, 0);
        }
        column += width;
    }
    if (is_cut && column < end) {
        screen_put_character(screen, row, column++, style, screen->has_unicode ? 0x2026 : '~'); /* an ellipsis */
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

/* --- The terminal --- */

/*
 * Plain ANSI and termios. Multi-byte keys differ from the Escape key by the bytes that follow at once; a slow line may
 * split them, so a sequence has a moment to arrive.
 */

enum { SEQUENCE_MS = 50, MOST_SEQUENCE = 16 };

static struct {
    struct termios before;
    bool is_entered, catches;
    sigset_t open; /* the signals enabled during a wait: those enabled before */
    volatile sig_atomic_t was_resized;
} self;

static const char enter_text[] = "\x1b[?1049h\x1b[?25l\x1b[?7l"; /* another screen, no cursor, no wrapping */
static const char leave_text[] = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

static void on_resize(int number)
{
    (void)number;
    self.was_resized = 1;
}

/* Size changes and signals arrive only during waits: so none is missed between a check and the next wait. */
static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_resize};
    sigset_t held;
    sigemptyset(&action.sa_mask);
    sigaction(SIGWINCH, &action, NULL);
    sigemptyset(&held);
    sigaddset(&held, SIGWINCH);
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGTERM);
    sigaddset(&held, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &held, &self.open);
    sigdelset(&self.open, SIGWINCH); /* perf and others start their children with it blocked */
    self.catches = true;
}

bool terminal_enter(struct error *error)
{
    struct termios raw;
    if (tcgetattr(STDIN_FILENO, &self.before) != 0) {
        return error_set(error, "standard input is not a terminal: %s; --once prints one screen, without keys",
                         strerror(errno));
    }
    if (!self.catches) {
        catch_signals();
    }
    raw = self.before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | IEXTEN);
    raw.c_iflag &= ~(tcflag_t)(ICRNL | INLCR | IXON);
    raw.c_cc[VSUSP] = _POSIX_VDISABLE; /* the screen must be restored before we stop */
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    if (tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw) != 0) {
        return error_set(error, "can't read keys from this terminal: %s", strerror(errno));
    }
    self.is_entered = true;
    return terminal_write(enter_text, sizeof enter_text - 1) || error_set(error, "the terminal is gone");
}

void terminal_leave(void)
{
    if (self.is_entered) {
        self.is_entered = false;
        terminal_write(leave_text, sizeof leave_text - 1);
        tcsetattr(STDIN_FILENO, TCSADRAIN, &self.before);
    }
}

bool terminal_suspend(struct error *error)
{
    terminal_leave();
    kill(0, SIGTSTP);
    return terminal_enter(error);
}

static int from_environment(const char *name, int usual)
{
    const char *text = getenv(name);
    const int number = text ? atoi(text) : 0;
    return number > 0 ? number : usual;
}

void terminal_size(int *width, int *height)
{
    struct winsize size = {.ws_col = 0};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
        *width = size.ws_col;
        *height = size.ws_row;
    } else {
        *width = from_environment("COLUMNS", 80);
        *height = from_environment("LINES", 24);
    }
}

bool terminal_write(const char *bytes, size_t size)
{
    while (size > 0) {
        const ssize_t n = write(STDOUT_FILENO, bytes, size);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd wait = {.fd = STDOUT_FILENO, .events = POLLOUT};
            poll(&wait, 1, -1);
        } else if (n < 0 && errno != EINTR) {
            return false;
        } else if (n > 0) {
            bytes += n;
            size -= (size_t)n;
        }
    }
    return true;
}

/* --- Keys --- */

/* Does a byte arrive in time? */
static bool wait_for_byte(double seconds, const sigset_t *mask)
{
    struct pollfd wait = {.fd = STDIN_FILENO, .events = POLLIN};
    seconds = seconds < 0 ? 0 : seconds;
    const struct timespec time = {.tv_sec = (time_t)seconds,
                                  .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    return ppoll(&wait, 1, &time, mask) > 0;
}

static bool next_byte(char *byte)
{
    return wait_for_byte(SEQUENCE_MS * 1e-3, NULL) && read(STDIN_FILENO, byte, 1) == 1;
}

/* Reads what follows an Escape: "[A", "OA", "[5~". Unknown sequences are swallowed. */
static int key_of_sequence(void)
{
    static const struct {
        const char *text;
        int key;
    } known[] = {{"A", KEY_UP},  {"B", KEY_DOWN},  {"5~", KEY_PAGE_UP}, {"6~", KEY_PAGE_DOWN}, {"H", KEY_HOME},
                 {"F", KEY_END}, {"1~", KEY_HOME}, {"4~", KEY_END},     {"7~", KEY_HOME},      {"8~", KEY_END}};
    char text[MOST_SEQUENCE] = "", byte;
    size_t size = 0;
    if (!next_byte(&byte)) {
        return KEY_ESCAPE;
    }
    if (byte != '[' && byte != 'O') {
        return KEY_NONE;
    }
    while (size < sizeof text - 1 && next_byte(&byte)) {
        text[size++] = byte;
        if (byte >= '@' && byte <= '~') {
            break;
        }
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(text, known[i].text) == 0) {
            return known[i].key;
        }
    }
    return KEY_NONE;
}

bool terminal_key(double until_s, int *key)
{
    char byte;
    *key = KEY_NONE;
    if (wait_for_byte(until_s - clock_monotonic_s(), &self.open)) {
        const ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) {
            return false;
        }
        if (n == 1) {
            *key = byte == KEY_ESCAPE ? key_of_sequence()
                   : byte == '\n'     ? KEY_ENTER
                   : byte == '\b'     ? KEY_BACKSPACE
                                      : byte;
        }
    }
    if (*key == KEY_NONE && self.was_resized) {
        self.was_resized = 0;
        *key = KEY_RESIZED;
    }
    return true;
}
