/* What is drawn: curves, the table of members, and the page around them. */
#include "observe/top/top.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/text/text.h"
#include "observe/board.h"
#include "observe/top/terminal.h"

/* --- Curves --- */

/*
 * A curve in a rectangle of characters: braille dots, two by four per character, or ASCII.
 *
 * Each column of dots shows the mean of its time span, and extends up or down to the previous one.
 */

struct curve_span {
    double from_s, to_s; /* seconds since 1970 */
};

/* The range of the curve's values. */
struct curve_range {
    double low, high;
};

struct curve_place {
    int row, column, width, height;
};

enum { MOST_DOTS = 2 * SCREEN_MOST_SIDE };

/* Means by column of dots; NaN: nothing was measured then. */
static void take_means(const struct history_ring *ring, int series, const struct curve_span *span, int count,
                       double *means)
{
    int numbers[MOST_DOTS];
    for (int i = 0; i < count; i++) {
        means[i] = 0;
        numbers[i] = 0;
    }
    for (int i = 0; i < ring->count; i++) {
        const struct history_bucket *bucket = history_at(ring, i);
        const double place = (bucket->time_s - span->from_s) / (span->to_s - span->from_s) * count;
        const float value = bucket->values[series];
        if (isfinite(value) && place >= 0 && place <= count) {
            const int at = place < count ? (int)place : count - 1;
            means[at] += (double)value;
            numbers[at]++;
        }
    }
    for (int i = 0; i < count; i++) {
        means[i] = numbers[i] > 0 ? means[i] / numbers[i] : (double)NAN;
    }
}

/* If a second is wider than a column, a straight line connects them. */
static void bridge(double *means, int count)
{
    int before = -1;
    for (int i = 0; i < count; i++) {
        if (isnan(means[i])) {
            continue;
        }
        for (int k = before + 1; before >= 0 && k < i; k++) {
            means[k] = means[before] + (means[i] - means[before]) * (k - before) / (i - before);
        }
        before = i;
    }
}

static bool find_range(const double *means, int count, struct curve_range *range)
{
    *range = (struct curve_range){.low = INFINITY, .high = -INFINITY};
    for (int i = 0; i < count; i++) {
        if (!isnan(means[i])) {
            range->low = fmin(range->low, means[i]);
            range->high = fmax(range->high, means[i]);
        }
    }
    return range->low <= range->high;
}

/* Rows of dots from the bottom; -1: none. */
static int height_of(double mean, const struct curve_range *range, int dots)
{
    if (isnan(mean)) {
        return -1;
    }
    const double part = range->high > range->low ? (mean - range->low) / (range->high - range->low) : 0.5;
    return (int)lround(part * (dots - 1));
}

/* A dot in a character of braille: its bits count down the left half, then the right one, and the bottom row last. */
static uint32_t braille_dot(int x, int from_top)
{
    static const uint32_t bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    return bits[from_top % 4][x % 2];
}

static void add_dot(struct screen *screen, int row, int column, uint32_t bit)
{
    if (row >= 0 && row < screen->height && column >= 0 && column < screen->width) {
        const uint32_t before = screen->cells[row * screen->width + column].character;
        screen_put_character(screen, row, column, CYAN, (before >= 0x2800 ? before : 0x2800) | bit);
    }
}

static void draw_braille(struct screen *screen, const struct curve_place *place, const double *means, int count,
                         const struct curve_range *range)
{
    const int dots = 4 * place->height;
    int before = -1;
    for (int x = 0; x < count; x++) {
        const int here = height_of(means[x], range, dots);
        if (here < 0) {
            continue;
        }
        const int step = before < 0 || before == here ? 0 : here > before ? 1 : -1;
        for (int y = before < 0 || step == 0 ? here : before + step;; y += step) {
            const int from_top = dots - 1 - y;
            add_dot(screen, place->row + from_top / 4, place->column + x / 2, braille_dot(x, from_top));
            if (y == here) {
                break;
            }
        }
        before = here;
    }
}

/* One mark a column, at one of three heights within its row. */
static void draw_ascii(struct screen *screen, const struct curve_place *place, const double *means, int count,
                       const struct curve_range *range)
{
    static const char marks[] = {'.', '-', '\''};
    for (int x = 0; x < count; x++) {
        const int here = height_of(means[x], range, 3 * place->height);
        if (here >= 0) {
            screen_put_character(screen, place->row + place->height - 1 - here / 3, place->column + x, CYAN,
                                 (uint32_t)marks[here % 3]);
        }
    }
}

/* Draws the series' means over equal parts of the span, and sets the range. False: there is nothing to draw. */
static bool curve_draw(struct screen *screen, const struct curve_place *place, const struct history_ring *ring,
                       int series, const struct curve_span *span, struct curve_range *range)
{
    double means[MOST_DOTS];
    const int count = screen->has_unicode ? 2 * place->width : place->width;
    if (count < 1 || place->height < 1 || count > MOST_DOTS || span->to_s <= span->from_s) {
        return false;
    }
    take_means(ring, series, span, count, means);
    bridge(means, count);
    if (!find_range(means, count, range)) {
        return false;
    }
    if (screen->has_unicode) {
        draw_braille(screen, place, means, count, range);
    } else {
        draw_ascii(screen, place, means, count, range);
    }
    return true;
}

/* --- Members --- */

/*
 * The table of members: as many columns as fit, sorted by one, filtered by a text, scrolled.
 *
 * The table below defines each column in one row: its place in the line, and the field of a member that it shows and is
 * sorted by.
 */

enum { CELL = 300, LEAST_LAST = 8 };

enum field_type { FIELD_TEXT, FIELD_SMALL, FIELD_WHOLE, FIELD_COUNT, FIELD_NUMBER };

struct column {
    const char *title;
    int width; /* negative: left-aligned */
    enum field_type type;
    size_t field;                                                 /* its offset in the member */
    const char *format;                                           /* of a number; NULL: as bytes */
    void (*write)(const struct board_member *member, char *text); /* NULL: as type and format say; text: [CELL] */
};

/* --- Cells --- */

static const void *field_of(const struct board_member *member, const struct column *column)
{
    return (const char *)member + column->field;
}

static double number_of(const struct board_member *member, const struct column *column)
{
    const void *field = field_of(member, column);
    return column->type == FIELD_SMALL   ? *(const int *)field
           : column->type == FIELD_WHOLE ? (double)*(const int64_t *)field
           : column->type == FIELD_COUNT ? (double)*(const uint64_t *)field
                                         : *(const double *)field;
}

static void write_number(char text[CELL], const char *format, double value)
{
    if (!isfinite(value)) {
        strcpy(text, "-");
    } else if (format) {
        snprintf(text, CELL, format, value);
    } else {
        bytes_text(text, value);
    }
}

static void write_cell(const struct board_member *member, const struct column *column, char text[CELL])
{
    if (column->write) {
        column->write(member, text);
    } else if (column->type == FIELD_TEXT) {
        snprintf(text, CELL, "%s", (const char *)field_of(member, column));
    } else {
        const double value = number_of(member, column);
        write_number(text, column->format, column->type == FIELD_WHOLE && value < 0 ? (double)NAN : value);
    }
}

static void write_name(const struct board_member *member, char *text)
{
    snprintf(text, CELL, "%s %d", member->role, member->task);
}

static void write_speed(const struct board_member *member, char *text)
{
    write_number(text, member->steps_per_s < 1000 ? "%.1f" : "%.0f", member->steps_per_s);
}

static void write_silence(const struct board_member *member, char *text)
{
    const double seconds = (double)member->silent_ms / 1000;
    write_number(text, seconds < 10 ? "%.1fs" : "%.0fs", member->silent_ms < 0 ? (double)NAN : seconds);
}

/* Selected, and missed; "*" while it is selected. */
static void write_rounds(const struct board_member *member, char *text)
{
    const struct board_rounds *rounds = &member->rounds;
    if (rounds->asked > 0) {
        snprintf(text, CELL, "%lld-%lld%s", (long long)rounds->asked, (long long)rounds->missed,
                 rounds->is_asked ? "*" : "");
    } else {
        strcpy(text, "-");
    }
}

static void write_host(const struct board_member *member, char *text)
{
    snprintf(text, CELL, "%s", member->host[0] != '\0' ? member->host : member->address);
}

static void write_link(const struct board_member *member, char *text)
{
    snprintf(text, CELL, "%s", member->link[0] != '\0' ? member->link : "-");
}

#define TEXT(field)           FIELD_TEXT, offsetof(struct board_member, field), NULL
#define SMALL(field)          FIELD_SMALL, offsetof(struct board_member, field), "%.0f"
#define WHOLE(field)          FIELD_WHOLE, offsetof(struct board_member, field), "%.0f"
#define COUNT(field, format)  FIELD_COUNT, offsetof(struct board_member, field), format
#define NUMBER(field, format) FIELD_NUMBER, offsetof(struct board_member, field), format

/* As many as fit, in this order; the last one takes the remaining room. */
static const struct column columns[] = {
    {"MEMBER", -11, TEXT(role), write_name},
    {"STATE", -10, TEXT(state), NULL},
    {"STEP", 10, WHOLE(global_step), NULL},
    {"STEPS/S", 7, NUMBER(steps_per_s, NULL), write_speed},
    {"LOSS", 8, NUMBER(loss, "%.3g"), NULL},
    {"STALE", 5, SMALL(staleness), NULL},
    {"HEARD", 5, WHOLE(silent_ms), write_silence},
    {"HOST", -12, TEXT(host), write_host},
    {"CPU", 5, NUMBER(cpu_percent, "%.0f%%"), NULL},
    {"MEM", 6, NUMBER(memory_bytes, NULL), NULL},
    {"GPU", 5, NUMBER(gpu_percent, "%.0f%%"), NULL},
    {"IN", 6, COUNT(bytes_in, NULL), NULL},
    {"OUT", 6, COUNT(bytes_out, NULL), NULL},
    {"DROPPED", 7, COUNT(dropped, "%.0f"), NULL},
    {"ROUNDS", 8, WHOLE(rounds.missed), write_rounds},
    {"CONFIG", 6, WHOLE(config_version), NULL},
    {"VERSION", -24, TEXT(program), NULL},
    {"DEVICE", -24, TEXT(device), NULL},
    {"LINK", -13, TEXT(link), write_link},
    {"MESSAGE", -20, TEXT(message), NULL},
};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

/* The next column to sort by; by: 1 or -1. */
static int members_next_column(int column, int by)
{
    return (column + by + COLUMNS) % COLUMNS;
}

/* --- Selection and order --- */

static bool contains(const char *text, const char *part)
{
    return strcasestr(text, part);
}

static bool is_wanted(const struct board_member *member, const char *filter)
{
    char name[CELL];
    write_name(member, name);
    return filter[0] == '\0' || contains(name, filter) || contains(member->host, filter) ||
           contains(member->address, filter) || contains(member->state, filter) || contains(member->device, filter) ||
           contains(member->message, filter);
}

static int compare_numbers(double a, double b)
{
    if (isnan(a) || isnan(b)) {
        return isnan(a) - isnan(b); /* unknown values come last */
    }
    return (a > b) - (a < b);
}

/* ps before workers, by their indexes. */
static int compare_names(const struct board_member *a, const struct board_member *b)
{
    const int roles = (strcmp(b->role, "ps") == 0) - (strcmp(a->role, "ps") == 0);
    return roles != 0 ? roles : compare_numbers(a->task, b->task);
}

static int compare(const void *one, const void *other, void *context)
{
    const struct board_member *a = one, *b = other;
    const struct view *view = context;
    const struct column *column = &columns[view->sort];
    int order;
    if (column->write == write_name) {
        order = compare_names(a, b);
    } else if (column->type == FIELD_TEXT) {
        char left[CELL], right[CELL];
        write_cell(a, column, left);
        write_cell(b, column, right);
        order = strcmp(left, right);
    } else {
        order = compare_numbers(number_of(a, column), number_of(b, column));
    }
    order = view->reversed ? -order : order;
    return order != 0 ? order : compare_names(a, b);
}

/* --- Drawing --- */

static int columns_that_fit(int width, int *last_width)
{
    int count = 0, used = 0;
    while (count < COLUMNS) {
        const int needs = abs(columns[count].width) + (count > 0);
        const bool is_text = columns[count].width < 0;
        const int least = is_text && abs(columns[count].width) > LEAST_LAST ? LEAST_LAST + (count > 0) : needs;
        if (used + needs > width) {
            if (count > 1 && used + least <= width) { /* as the last column it may be narrow */
                *last_width = width - used - 1;
                return count + 1;
            }
            break;
        }
        used += needs;
        count++;
    }
    count = count == 0 ? 1 : count;
    *last_width =
        columns[count - 1].width < 0 ? abs(columns[count - 1].width) + width - used : abs(columns[count - 1].width);
    return count;
}

static enum style style_of_member(const struct board_member *member)
{
    const char *state = member->state;
    return member->is_missing || strcmp(state, "failed") == 0                ? RED
           : strcmp(state, "waiting") == 0 || strcmp(state, "starting") == 0 ? YELLOW
                                                                             : PLAIN;
}

static void draw_cell(struct screen *screen, int row, int column, int width, bool at_right, enum style style,
                      const char *text)
{
    const int size = (int)strlen(text);
    const int from = at_right && size < width ? column + width - size : column;
    screen_put(screen, row, from, column + width, style, "%s", text);
}

/* member NULL: the titles. */
static void draw_row(struct screen *screen, int row, const struct view *view, const struct board_member *member)
{
    int last_width, at = 0;
    const int count = columns_that_fit(screen->width, &last_width);
    for (int i = 0; i < count; i++) {
        const int width = i == count - 1 ? last_width : abs(columns[i].width);
        char text[CELL];
        enum style style = FAINT;
        if (member) {
            write_cell(member, &columns[i], text);
            style = style_of_member(member);
        } else {
            const bool marked = i == view->sort && !view->is_once;
            snprintf(text, sizeof text, "%s", columns[i].title);
            style = marked ? REVERSE : FAINT;
        }
        draw_cell(screen, row, at, width, columns[i].width > 0, style, text);
        at += width + 1;
    }
}

/* Sorts the board's members; limits view->scroll to the rows that exist. */
static void members_draw(struct screen *screen, int row, int rows, struct view *view, struct board *board)
{
    int wanted = 0;
    if (rows < 1) {
        return;
    }
    if (board->member_count > 0) {
        qsort_r(board->members, (size_t)board->member_count, sizeof *board->members, compare, view);
    }
    for (int i = 0; i < board->member_count; i++) {
        wanted += is_wanted(&board->members[i], view->filter);
    }
    const int most = wanted > rows - 1 ? wanted - (rows - 1) : 0;
    if (view->page != VIEW_EVENTS) {
        view->scroll = view->scroll > most ? most : view->scroll;
    }
    draw_row(screen, row, view, NULL);
    int at = -view->scroll;
    for (int i = 0; i < board->member_count && at < rows - 1; i++) {
        if (is_wanted(&board->members[i], view->filter)) {
            if (at >= 0) {
                draw_row(screen, row + 1 + at, view, &board->members[i]);
            }
            at++;
        }
    }
}

/* --- Pages --- */

/*
 * From top to bottom: the run in two lines, problems, curves, members, events, keys. Each part takes the rows that it
 * can use; the smallest terminal shows the first lines.
 */

enum {
    CURVE_WIDTH = 26, /* at least */
    CURVE_ROWS = 6,   /* in print, and on pages with many */
    TICK_WIDTH = 9,   /* left of a curve, with the tick */
    ONCE_EVENTS = 10,
    LEAST_ROWS = 3, /* minimum of a part; with less it is left out */
    MOST_DIFF = 4,  /* lines of a rollout's differences */
};

struct area {
    int row, rows;
};

/* --- Texts --- */

/* "12 s", "3 min 5 s", "2 h 10 min", "3 d 4 h". */
static const char *duration(char text[32], double seconds)
{
    static const struct {
        double size;
        const char *large, *small;
    } units[] = {{86400, "d", "h"}, {3600, "h", "min"}, {60, "min", "s"}};
    static const double smaller[] = {3600, 60, 1};
    if (!(seconds < 1e9)) {
        return strcpy(text, "?");
    }
    for (int i = 0; i < 3; i++) {
        if (seconds >= units[i].size) {
            const double large = floor(seconds / units[i].size);
            snprintf(text, 32, "%.0f %s %.0f %s", large, units[i].large,
                     floor((seconds - large * units[i].size) / smaller[i]), units[i].small);
            return text;
        }
    }
    snprintf(text, 32, "%.0f s", fmax(0, floor(seconds)));
    return text;
}

static const char *time_of_day(char text[16], double time_s)
{
    const time_t seconds = (time_t)time_s;
    struct tm parts;
    if (!(time_s > 0 && time_s < 1e11) || !localtime_r(&seconds, &parts) ||
        strftime(text, 16, "%H:%M:%S", &parts) == 0) {
        strcpy(text, "--:--:--");
    }
    return text;
}

static enum style style_of_state(enum board_state state)
{
    switch (state) {
    case BOARD_TRAINING:
    case BOARD_VALIDATING:
    case BOARD_SAVING:
        return GREEN;
    case BOARD_FAILED:
        return RED;
    case BOARD_STARTING:
    case BOARD_WAITING:
    case BOARD_INTERRUPTED:
        return YELLOW;
    case BOARD_DONE:
        return BOLD;
    }
    return PLAIN;
}

/* --- The run --- */

static void draw_title(struct screen *screen, const struct view *view, const struct view_run *run)
{
    const struct board *board = &run->board;
    char clock[16], right[300];
    const int width = screen->width;
    int column = screen_put(screen, 0, 0, width, BOLD, "trainer top");
    if (run->time_s > 0) {
        column = screen_put(screen, 0, column + 2, width, CYAN, "%s", board->name);
        column = screen_put(screen, 0, column + 2, width, PLAIN, "%s %d", board->role, board->task);
        column = screen_put(screen, 0, column + 2, width, style_of_state(board->numbers.state), "%s",
                            board_state_name(board->numbers.state));
    }
    const int size = snprintf(right, sizeof right, "%s  %s", view->source, time_of_day(clock, run->time_s));
    if (column + 2 + size <= width) {
        screen_put(screen, 0, width - size, width, PLAIN, "%s", right);
    }
}

/* Returns the column after it. */
static int draw_bar(struct screen *screen, int row, int column, double share)
{
    const int width = screen->width >= 120 ? 30 : screen->width >= 90 ? 15 : 0;
    const int done = (int)(fmin(1, fmax(0, share)) * width);
    for (int i = 0; i < width; i++) {
        const uint32_t full = screen->has_unicode ? 0x2588 : '#', left = screen->has_unicode ? 0x2591 : '-';
        screen_put_character(screen, row, column + 2 + i, i < done ? CYAN : FAINT, i < done ? full : left);
    }
    return width > 0 ? column + 2 + width : column;
}

static void draw_progress(struct screen *screen, int row, const struct view_run *run)
{
    const struct board *board = &run->board;
    const struct board_numbers *numbers = &board->numbers;
    char step[COUNT_TEXT], last[COUNT_TEXT], text[32];
    const int width = screen->width;
    int column = screen_put(screen, row, 0, width, BOLD, "step %s", count_text(step, numbers->global_step));
    if (numbers->last_step > 0) {
        column = screen_put(screen, row, column, width, PLAIN, " of %s (%.1f%%)", count_text(last, numbers->last_step),
                            100.0 * (double)numbers->global_step / (double)numbers->last_step);
        column = draw_bar(screen, row, column, (double)numbers->global_step / (double)numbers->last_step);
    }
    column = screen_put(screen, row, column, width, PLAIN, "  %.4g steps/s", board->steps_per_s);
    if (isfinite(run->eta_s) && run->eta_s > 0) {
        column = screen_put(screen, row, column, width, PLAIN, "  %s left", duration(text, run->eta_s));
    }
    if (numbers->epoch > 0) {
        column = screen_put(screen, row, column, width, PLAIN, "  epoch %.4g", numbers->epoch);
    }
    if (isfinite(board->examples_per_s) && board->examples_per_s > 0) {
        screen_put(screen, row, column, width, FAINT, "  %s examples/s",
                   count_text(step, (int64_t)fmin(board->examples_per_s, 1e15)));
    }
}

static int draw_metric(struct screen *screen, int row, int column, const struct board_metric *metric, enum style style)
{
    char text[BOARD_METRIC_TEXT];
    return screen_put(screen, row, column, screen->width, style, "%s  ", board_metric_text(metric, text));
}

static void draw_numbers(struct screen *screen, int row, const struct view_run *run)
{
    const struct board_numbers *numbers = &run->board.numbers;
    char text[32], step[COUNT_TEXT];
    const int width = screen->width;
    int column = 0;
    if (isfinite(run->board.loss)) {
        column = screen_put(screen, row, column, width, BOLD, "loss %.4g  ", run->board.loss);
    }
    if (numbers->metric_count > 0) {
        column = draw_metric(screen, row, column, &numbers->metrics[0], BOLD);
    }
    if (numbers->metric_count > 0 && numbers->best_step >= 0) {
        struct board_metric best = numbers->metrics[0];
        char value[BOARD_METRIC_TEXT];
        best.value = numbers->best_value;
        column =
            screen_put(screen, row, column, width, PLAIN, "(best %s at %s)  ",
                       board_metric_text(&best, value) + strlen(best.name) + 1, count_text(step, numbers->best_step));
    }
    if (isfinite(numbers->learning_rate) && numbers->learning_rate > 0) {
        column = screen_put(screen, row, column, width, PLAIN, "rate %.4g  ", numbers->learning_rate);
    }
    if (numbers->saved_step >= 0) {
        column = screen_put(screen, row, column, width, PLAIN, "checkpoint at %s, %s ago  ",
                            count_text(step, numbers->saved_step), duration(text, run->time_s - numbers->saved_time_s));
    }
    for (int i = 1; i < numbers->metric_count; i++) {
        column = draw_metric(screen, row, column, &numbers->metrics[i], PLAIN);
    }
    screen_put(screen, row, column, width, FAINT, "%s", numbers->engine);
}

static int draw_rollout(struct screen *screen, int row, const struct board_rollout *rollout)
{
    const int width = screen->width;
    screen_put(screen, row++, 0, width, YELLOW, "rollout of version %lld, %s: %s", (long long)rollout->version,
               rollout->phase, rollout->text);
    for (int i = 0; i < rollout->diff_count && i < MOST_DIFF; i++) {
        const int more = i == MOST_DIFF - 1 ? rollout->diff_count - MOST_DIFF : 0;
        const int column = screen_put(screen, row, 2, width, PLAIN, "%s", rollout->diff[i]);
        if (more > 0) {
            screen_put(screen, row, column, width, FAINT, " and %d more", more);
        }
        row++;
    }
    return row;
}

/* Warnings; returns the row below. */
static int draw_warnings(struct screen *screen, int row, const struct view *view, const struct view_run *run)
{
    char text[32];
    const int width = screen->width;
    if (view->trouble[0] != '\0') {
        const char *ago = view->silent_s > 0 ? duration(text, view->silent_s) : "";
        screen_put(screen, row++, 0, width, RED, "%s%s%s", ago, ago[0] != '\0' ? " old: " : "", view->trouble);
    }
    if (run->waiting_for[0] != '\0') {
        screen_put(screen, row++, 0, width, YELLOW, "waiting for %s", run->waiting_for);
    }
    if (run->missing > 0) {
        screen_put(screen, row++, 0, width, RED, "%d of %d members missing", run->missing, run->board.member_count);
    }
    if (run->board.rollout.is_under_way) {
        row = draw_rollout(screen, row, &run->board.rollout);
    }
    for (int i = 0; i < run->drift_shown; i++) {
        screen_put(screen, row++, 0, width, YELLOW, "drift: %s", run->drift[i]);
    }
    if (run->drift_count > run->drift_shown) {
        screen_put(screen, row++, 0, width, YELLOW, "drift: and %d more", run->drift_count - run->drift_shown);
    }
    return row;
}

/* --- Curves --- */

/* Traffic that is always 0, of a run alone, is none; and the log loss is the validation's loss under another name. */
static bool has_values(const struct history *history, const struct history_ring *ring, int series)
{
    const char *name = history->names[series];
    const bool is_traffic = strncmp(name, "bytes_", 6) == 0;
    if (strcmp(name, "metric:log_loss") == 0) {
        return false;
    }
    for (int i = ring->count - 1; i >= 0; i--) {
        const float value = history_at(ring, i)->values[series];
        if (!isnan(value) && !(is_traffic && value == 0)) {
            return true;
        }
    }
    return false;
}

/* The series' indexes, most important first. */
static int order_series(const struct history *history, const struct history_ring *ring, int order[HISTORY_SERIES])
{
    static const char *const ranks[] = {"loss", "metric:", "steps_per_s", "learning_rate", ""};
    int count = 0;
    for (int rank = 0; rank < (int)(sizeof ranks / sizeof ranks[0]); rank++) {
        for (int i = 0; i < history->series; i++) {
            bool fits =
                strncmp(history->names[i], ranks[rank], strlen(ranks[rank])) == 0 && has_values(history, ring, i);
            for (int k = 0; k < count; k++) {
                fits = fits && order[k] != i;
            }
            if (fits) {
                order[count++] = i;
            }
        }
    }
    return count;
}

static struct curve_span span_of(const struct view *view, const struct view_run *run, const struct history_ring *ring)
{
    static const double lengths_s[] = {[VIEW_MINUTES] = 300, [VIEW_HOUR] = 3600, [VIEW_WHOLE] = INFINITY};
    const double first_s = history_at(ring, 0)->time_s, last_s = history_at(ring, ring->count - 1)->time_s;
    const double to_s = fmax(run->time_s, last_s);
    /* At least long enough that a second is a dot wide. */
    return (struct curve_span){.from_s = fmin(fmax(to_s - lengths_s[view->span], first_s), to_s - 10), .to_s = to_s};
}

static const char *series_title(const char *name)
{
    static const char prefix[] = "metric:";
    return strcmp(name, "metric:loss") == 0                ? "validation loss"
           : strncmp(name, prefix, sizeof prefix - 1) == 0 ? name + sizeof prefix - 1
                                                           : name;
}

static const char *value_text(char text[COUNT_TEXT], const char *title, double value)
{
    if (strstr(title, "accuracy")) {
        snprintf(text, COUNT_TEXT, "%.2f%%", 100 * value);
    } else if (strncmp(title, "bytes", 5) == 0 || strncmp(title, "memory", 6) == 0) {
        bytes_text(text, value);
    } else {
        snprintf(text, COUNT_TEXT, "%.4g", value);
    }
    return text;
}

/* The values at the top and the bottom row, and halfway. */
static void draw_ticks(struct screen *screen, const struct curve_place *curve, const char *title,
                       const struct curve_range *range)
{
    char text[COUNT_TEXT];
    const int count = range->high == range->low ? 1 : curve->height >= 5 ? 3 : 2;
    for (int i = 0; i < count; i++) {
        const int down = count == 1 ? curve->height / 2 : (curve->height - 1) * i / (count - 1);
        const double part = count == 1 ? 0 : (double)down / (curve->height - 1);
        value_text(text, title, range->high - part * (range->high - range->low));
        const int size = (int)strlen(text), from = curve->column - TICK_WIDTH;
        screen_put(screen, curve->row + down, size < TICK_WIDTH - 1 ? curve->column - 1 - size : from,
                   curve->column - 1, FAINT, "%s", text);
        screen_put_character(screen, curve->row + down, curve->column - 1, FAINT, screen->has_unicode ? 0x2524 : '|');
    }
}

/* From when to when. */
static void draw_span(struct screen *screen, int row, int column, int end, const struct curve_span *span)
{
    char text[32];
    const int behind = screen_put(screen, row, column, end, FAINT, "%s ago", duration(text, span->to_s - span->from_s));
    if (behind + 4 <= end) {
        screen_put(screen, row, end - 3, end, FAINT, "now");
    }
}

static void draw_curve(struct screen *screen, const struct curve_place *place, const struct history *history,
                       const struct history_ring *ring, int series, const struct curve_span *span)
{
    struct curve_range range;
    const char *title = series_title(history->names[series]);
    const int end = place->column + place->width;
    const int left = place->width >= 2 * TICK_WIDTH ? TICK_WIDTH : 0, below = place->height >= 5 ? 1 : 0;
    const struct curve_place curve = {place->row + 1, place->column + left, place->width - left,
                                      place->height - 1 - below};
    const bool drawn = curve_draw(screen, &curve, ring, series, span, &range);
    screen_put(screen, place->row, place->column, end, BOLD, "%s", title);
    if (drawn && left > 0) {
        draw_ticks(screen, &curve, title, &range);
    }
    if (drawn && below > 0) {
        draw_span(screen, place->row + place->height - 1, curve.column, end, span);
    }
}

static void draw_curves(struct screen *screen, const struct area *area, const struct view *view,
                        const struct view_run *run)
{
    const struct history *history = &run->board.history;
    const struct history_ring *ring = view->span == VIEW_WHOLE ? &history->whole : &history->recent;
    int order[HISTORY_SERIES];
    const int count = ring->count > 0 ? order_series(history, ring, order) : 0;
    if (count == 0 || area->rows < LEAST_ROWS) {
        return;
    }
    const struct curve_span span = span_of(view, run, ring);
    int across = screen->width / CURVE_WIDTH;
    across = across < 1 ? 1 : across > count ? count : across;
    const int all = (count + across - 1) / across, roomy = area->rows / (2 * CURVE_ROWS);
    const int lines = view->page == VIEW_CURVES ? all : view->is_once || roomy < 2 ? 1 : all < roomy ? all : roomy;
    int rows = area->rows / lines;
    rows = rows < CURVE_ROWS ? (area->rows < CURVE_ROWS ? area->rows : CURVE_ROWS) : rows;
    for (int i = 0; i < count && i < lines * across; i++) {
        const int from = screen->width * (i % across) / across, to = screen->width * (i % across + 1) / across;
        const struct curve_place place = {area->row + i / across * rows, from, to - from - (to < screen->width ? 2 : 0),
                                          rows};
        if (place.row + rows <= area->row + area->rows) {
            draw_curve(screen, &place, history, ring, order[i], &span);
        }
    }
}

/* --- Events --- */

static enum style style_of_event(const char *kind)
{
    const bool is_bad = strcmp(kind, "lost") == 0 || strcmp(kind, "error") == 0;
    const bool is_odd = strcmp(kind, "waiting") == 0 || strcmp(kind, "restored") == 0 || strcmp(kind, "rollout") == 0;
    return is_bad ? RED : is_odd ? YELLOW : PLAIN;
}

/* The newest first. */
static void draw_events(struct screen *screen, const struct area *area, struct view *view, struct view_run *run)
{
    struct board_event event;
    const int64_t last = run->board.last_event, kept = last < BOARD_EVENTS ? last : BOARD_EVENTS;
    if (area->rows < 2) {
        return;
    }
    const int most = kept > area->rows - 1 ? (int)kept - (area->rows - 1) : 0;
    if (view->page == VIEW_EVENTS) {
        view->scroll = view->scroll > most ? most : view->scroll;
    }
    const int64_t first = last - (view->page == VIEW_EVENTS ? view->scroll : 0);
    screen_put(screen, area->row, 0, screen->width, FAINT, "EVENTS %lld", (long long)last);
    for (int i = 0; i < area->rows - 1 && first - i > last - kept; i++) {
        char clock[16], step[COUNT_TEXT] = "";
        board_event_from(&run->board, first - i, &event);
        const int row = area->row + 1 + i;
        if (event.step >= 0) {
            count_text(step, event.step);
        }
        const enum style style = style_of_event(event.kind);
        screen_put(screen, row, 0, screen->width, FAINT, "%s", time_of_day(clock, event.time_s));
        screen_put(screen, row, 9, 20, style, "%s", event.kind);
        screen_put(screen, row, 21, 32, PLAIN, "%11s", step);
        screen_put(screen, row, 34, screen->width, style, "%s", event.text);
    }
}

/* --- Help, keys --- */

static void draw_help(struct screen *screen, int row)
{
    static const char *const lines[] = {
        "q         quit",
        "p, space  pause",
        "tab       all, curves, members, events; also 1 to 4",
        "t         curves of five minutes, of the last hour, of the whole run",
        "s, S      sort members by the next column, the previous one",
        "r         reverse the order",
        "/         show members with a text in name, host, state, device or message",
        "esc       no filter; close this",
        "arrows, j, k, page up, page down, home, end   scroll",
        "Ctrl-L    draw all again        Ctrl-Z    suspend",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        screen_put(screen, row + (int)i, 2, screen->width, PLAIN, "%s", lines[i]);
    }
}

static void draw_keys(struct screen *screen, const struct view *view)
{
    static const char *const spans[] = {[VIEW_MINUTES] = "5 min", [VIEW_HOUR] = "hour", [VIEW_WHOLE] = "whole run"};
    const int row = screen->height - 1, width = screen->width;
    int column = 0;
    if (view->is_typing) {
        column = screen_put(screen, row, 0, width, BOLD, "filter: %s", view->filter);
        screen_put(screen, row, column, width, REVERSE, " ");
        return;
    }
    if (view->paused) {
        column = screen_put(screen, row, 0, width, REVERSE, "PAUSED") + 2;
    }
    screen_put(screen, row, column, width, FAINT,
               "q quit  p pause  tab page  t %s  s sort  r reverse  / filter  ? help", spans[view->span]);
}

/* --- All of it --- */

/*
 * Members get the rows that they fill, up to a third; events two fifths of the others, if they fill them; curves
 * the rest.
 */
static void divide(const struct view *view, const struct view_run *run, struct area all, struct area parts[3])
{
    const int members = run->board.member_count + 1, rows = all.rows;
    int curves = 0, listed = 0, happened = 0;
    switch (view->page) {
    case VIEW_ALL:
        listed = members < rows / 3 + 1 ? members : rows / 3 + 1;
        happened = (rows - listed) * 2 / 5;
        happened = run->board.last_event + 1 < happened ? (int)run->board.last_event + 1 : happened;
        curves = rows - listed - happened;
        break;
    case VIEW_CURVES:
        curves = rows;
        break;
    case VIEW_MEMBERS:
        listed = rows;
        break;
    case VIEW_EVENTS:
    case VIEW_PAGES:
        break;
    }
    if (view->is_once) {
        curves = CURVE_ROWS;
        listed = members;
    }
    curves = curves < LEAST_ROWS ? 0 : curves;
    parts[0] = (struct area){all.row, curves};
    parts[1] = (struct area){all.row + curves, listed};
    parts[2] = (struct area){all.row + curves + listed, rows - curves - listed};
    if (view->is_once && parts[2].rows > ONCE_EVENTS + 1) {
        parts[2].rows = ONCE_EVENTS + 1;
    }
}

void view_draw(struct screen *screen, struct view *view, struct view_run *run)
{
    struct area parts[3];
    int row = 1;
    screen_clear(screen);
    draw_title(screen, view, run);
    if (run->time_s > 0) {
        draw_progress(screen, row++, run);
        draw_numbers(screen, row++, run);
    }
    row = draw_warnings(screen, row, view, run);
    const struct area all = {.row = row, .rows = screen->height - row - (view->is_once ? 0 : 1)};
    if (view->helps) {
        draw_help(screen, row);
    } else if (run->time_s > 0 && all.rows > 0) {
        divide(view, run, all, parts);
        draw_curves(screen, &parts[0], view, run);
        members_draw(screen, parts[1].row, parts[1].rows, view, &run->board);
        draw_events(screen, &parts[2], view, run);
    }
    if (!view->is_once && screen->height > 1) {
        for (int column = 0; column < screen->width; column++) {
            screen_put_character(screen, screen->height - 1, column, PLAIN, ' ');
        }
        draw_keys(screen, view);
    }
}

int view_rows_once(const struct view_run *run)
{
    const int rows = 3 + 3 + VIEW_DRIFT + 2 + MOST_DIFF + CURVE_ROWS + run->board.member_count + 1 + ONCE_EVENTS + 1;
    return rows;
}

/* --- Keys --- */

static void type(struct view *view, int key)
{
    const size_t size = strlen(view->filter);
    if (key == KEY_ENTER) {
        view->is_typing = false;
    } else if (key == KEY_ESCAPE) {
        view->is_typing = false;
        view->filter[0] = '\0';
    } else if (key == KEY_BACKSPACE && size > 0) {
        view->filter[size - 1] = '\0';
    } else if (key >= ' ' && key < KEY_BACKSPACE && size + 1 < sizeof view->filter) {
        view->filter[size] = (char)key;
        view->filter[size + 1] = '\0';
    }
    view->scroll = 0;
}

static void scroll(struct view *view, int rows)
{
    view->scroll = view->scroll + rows < 0 ? 0 : view->scroll + rows; /* the other bound is known when it is drawn */
}

static void go_to(struct view *view, enum view_page page)
{
    view->page = page;
    view->scroll = 0;
}

static bool press_scroll(struct view *view, int key)
{
    enum { PAGE = 10, FAR = 1000000 };
    static const struct {
        int key, rows;
    } keys[] = {{KEY_UP, -1},         {'k', -1},        {KEY_DOWN, 1},  {'j', 1},
                {KEY_PAGE_UP, -PAGE}, {KEY_HOME, -FAR}, {KEY_END, FAR}, {KEY_PAGE_DOWN, PAGE}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (keys[i].key == key) {
            scroll(view, keys[i].rows);
            return true;
        }
    }
    return false;
}

static bool press_letter(struct view *view, int key)
{
    switch (key) {
    case 'p':
    case ' ':
        view->paused = !view->paused;
        return true;
    case 's':
        view->sort = members_next_column(view->sort, 1);
        return true;
    case 'S':
        view->sort = members_next_column(view->sort, -1);
        return true;
    case 'r':
        view->reversed = !view->reversed;
        return true;
    case 't':
        view->span = (enum view_span)((view->span + 1) % VIEW_SPANS);
        return true;
    case '/':
        view->is_typing = true;
        view->filter[0] = '\0';
        return true;
    case '?':
    case 'h':
        view->helps = !view->helps;
        return true;
    default:
        return false;
    }
}

bool view_press(struct view *view, int key)
{
    if (view->is_typing) {
        type(view, key);
        return true;
    }
    if (key == KEY_TAB) {
        go_to(view, (enum view_page)((view->page + 1) % VIEW_PAGES));
        return true;
    }
    if (key >= '1' && key < '1' + VIEW_PAGES) {
        go_to(view, (enum view_page)(key - '1'));
        return true;
    }
    if (key == KEY_ESCAPE) {
        view->helps = false;
        view->filter[0] = '\0';
        return true;
    }
    return press_scroll(view, key) || press_letter(view, key);
}
