/*
 * The line is built from pieces, most important first; those that do not fit are left out, and the bar takes the
 * remaining room. Plain ASCII: consoles of edge boxes may lack UTF-8.
 */
#include "base/progress.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

enum {
    FALLBACK_COLUMNS = 80,
    MIN_BAR = 10,
    MAX_BAR = 40,
};

static const double REDRAW_S = 0.1;

void progress_format_duration(char *text, size_t size, double seconds)
{
    if (!(seconds >= 0)) {
        seconds = 0;
    }
    if (seconds > 99 * 86400.0) {
        snprintf(text, size, ">99d");
        return;
    }
    int whole = (int)(seconds + 0.5);
    int days = whole / 86400, hours = whole / 3600 % 24, minutes = whole / 60 % 60;
    if (days > 0) {
        snprintf(text, size, "%dd %02d:%02d", days, hours, minutes);
    } else if (hours > 0) {
        snprintf(text, size, "%d:%02d:%02d", hours, minutes, whole % 60);
    } else {
        snprintf(text, size, "%d:%02d", minutes, whole % 60);
    }
}

/* Appends "  piece" if the line then still has at most `limit` characters. */
static void append_piece(char *text, size_t *used, size_t limit, const char *piece)
{
    size_t gap = *used > 0 ? 2 : 0, length = strlen(piece);
    if (*used + gap + length > limit) {
        return;
    }
    memset(text + *used, ' ', gap);
    memcpy(text + *used + gap, piece, length + 1);
    *used += gap + length;
}

static void format_bar(char *bar, size_t cells, double fraction)
{
    size_t filled = (size_t)(fraction * (double)cells);
    bar[0] = '[';
    for (size_t i = 0; i < cells; i++) {
        bar[1 + i] = i < filled ? '=' : i == filled ? '>' : ' ';
    }
    bar[cells + 1] = ']';
    bar[cells + 2] = '\0';
}

/* The pieces next to the bar, most important first, as many as fit into `limit` characters. */
static size_t format_pieces(char *text, size_t limit, const struct progress_view *view, bool bounded)
{
    const char *unit = view->unit ? view->unit : "step";
    char piece[80], duration[24];
    size_t used = 0;
    text[0] = '\0';
    if (bounded && view->steps_per_s > 0) {
        progress_format_duration(duration, sizeof duration, (double)(view->last_step - view->step) / view->steps_per_s);
        snprintf(piece, sizeof piece, "ETA %s", duration);
        append_piece(text, &used, limit, piece);
    }
    if (!bounded) {
        snprintf(piece, sizeof piece, "%.16s %lld", unit, (long long)view->step);
        append_piece(text, &used, limit, piece);
    }
    if (!isnan(view->loss)) {
        snprintf(piece, sizeof piece, "loss %.4f", view->loss);
        append_piece(text, &used, limit, piece);
    }
    if (view->validation >= 0) {
        snprintf(piece, sizeof piece, "valid. %.2f%%", 100 * view->validation);
        append_piece(text, &used, limit, piece);
    }
    if (view->steps_per_s > 0) {
        snprintf(piece, sizeof piece, view->steps_per_s < 10 ? "%.2f %.16ss/s" : "%.0f %.16ss/s", view->steps_per_s,
                 unit);
        append_piece(text, &used, limit, piece);
    }
    if (bounded) {
        snprintf(piece, sizeof piece, "%.16s %lld/%lld", unit, (long long)view->step, (long long)view->last_step);
        append_piece(text, &used, limit, piece);
    }
    return used;
}

void progress_format(char *text, size_t size, int columns, const struct progress_view *view)
{
    enum { PERCENT = 6, BAR_EXTRA = 4 }; /* "100%  "; the brackets and the space after them */
    char pieces[PROGRESS_MAX_TEXT];
    size_t limit = columns > 1 ? (size_t)columns - 1 : 0;
    limit = limit < size - 1 ? limit : size - 1;
    bool bounded = view->last_step != INT64_MAX && view->last_step > 0;
    if (!bounded || limit <= PERCENT) {
        format_pieces(pieces, limit, view, bounded);
        snprintf(text, size, "%s", pieces);
        return;
    }
    limit -= PERCENT;
    bool has_bar = limit >= 2 * MIN_BAR + BAR_EXTRA;
    size_t reserved = has_bar ? MIN_BAR + BAR_EXTRA : 0;
    size_t used = format_pieces(pieces, limit - reserved, view, bounded);
    double fraction = fmin((double)view->step / (double)view->last_step, 1.0);
    char bar[MAX_BAR + 3] = "";
    if (has_bar) {
        size_t cells = limit - used - BAR_EXTRA;
        format_bar(bar, cells < MAX_BAR ? cells : MAX_BAR, fraction);
    }
    snprintf(text, size, "%3.0f%%  %s%s%s", floor(100 * fraction), bar, has_bar ? "  " : "", pieces);
}

static void terminal_write(const char *text, size_t length)
{
    while (length > 0) {
        ssize_t n = write(STDOUT_FILENO, text, length);
        if (n <= 0) {
            return; /* losing the terminal must not stop the run */
        }
        text += n;
        length -= (size_t)n;
    }
}

static int terminal_columns(void)
{
    struct winsize window;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) {
        return window.ws_col;
    }
    return FALLBACK_COLUMNS;
}

static void draw_text(struct progress *progress)
{
    char line[PROGRESS_MAX_TEXT + 16];
    int length = snprintf(line, sizeof line, "\r%s\x1b[K", progress->text);
    terminal_write(line, (size_t)length);
}

static void erase(void *context)
{
    struct progress *progress = context;
    pthread_mutex_lock(&progress->mutex);
    terminal_write("\r\x1b[K", 4);
}

static void draw(void *context)
{
    struct progress *progress = context;
    draw_text(progress);
    pthread_mutex_unlock(&progress->mutex);
}

void progress_begin(struct progress *progress, bool wanted)
{
    const char *terminal = getenv("TERM");
    *progress =
        (struct progress){.active = wanted && isatty(STDOUT_FILENO) && terminal && strcmp(terminal, "dumb") != 0};
    if (progress->active) {
        pthread_mutex_init(&progress->mutex, NULL);
        log_set_status_line(erase, draw, progress);
    }
}

void progress_update(struct progress *progress, const struct progress_view *view)
{
    double now_s = clock_monotonic_s();
    if (!progress->active || now_s - progress->drawn_s < REDRAW_S) {
        return;
    }
    progress->drawn_s = now_s;
    pthread_mutex_lock(&progress->mutex);
    progress_format(progress->text, sizeof progress->text, terminal_columns(), view);
    draw_text(progress);
    pthread_mutex_unlock(&progress->mutex);
}

void progress_end(struct progress *progress)
{
    if (!progress->active) {
        return;
    }
    progress->active = false;
    log_set_status_line(NULL, NULL, NULL);
    terminal_write("\r\x1b[K", 4);
    pthread_mutex_destroy(&progress->mutex);
}
