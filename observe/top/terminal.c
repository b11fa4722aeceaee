/*
 * Plain ANSI and termios. Multi-byte keys are told from the Escape key by the bytes that follow at once; a slow line
 * may split them, so a sequence has a moment to arrive.
 */
#include "observe/top/terminal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

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
