/*
 * From top to bottom: the run in two lines, problems, curves, members, events, keys. Each part takes the rows that it
 * can use; the smallest terminal shows the first lines.
 */
#include "observe/top/view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/text/count.h"
#include "observe/top/curve.h"
#include "observe/top/members.h"
#include "observe/top/terminal.h"

enum {
    CURVE_WIDTH = 26, /* at least */
    CURVE_ROWS = 6,   /* in print, and on pages with many */
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
    }
    column = screen_put(screen, row, column, width, PLAIN, "  %.4g steps/s", board->steps_per_s);
    if (isfinite(run->eta_s) && run->eta_s > 0) {
        column = screen_put(screen, row, column, width, PLAIN, "  %s left", duration(text, run->eta_s));
    }
    if (numbers->epoch > 0) {
        column = screen_put(screen, row, column, width, PLAIN, "  epoch %.4g", numbers->epoch);
    }
    screen_put(screen, row, column, width, FAINT, "  %.4g examples/s", board->examples_per_s);
}

static int draw_metric(struct screen *screen, int row, int column, const struct board_metric *metric, enum style style)
{
    return screen_put(screen, row, column, screen->width, style, "%s %.4g  ", metric->name, metric->value);
}

static void draw_figures(struct screen *screen, int row, const struct view_run *run)
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
        column = screen_put(screen, row, column, width, PLAIN, "(best %.4g at %s)  ", numbers->best_value,
                            count_text(step, numbers->best_step));
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

static bool has_values(const struct history_ring *ring, int series)
{
    for (int i = ring->count - 1; i >= 0; i--) {
        if (!isnan(history_at(ring, i)->values[series])) {
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
            bool fits = strncmp(history->names[i], ranks[rank], strlen(ranks[rank])) == 0 && has_values(ring, i);
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
    return strncmp(name, prefix, sizeof prefix - 1) == 0 ? name + sizeof prefix - 1 : name;
}

static void draw_curve(struct screen *screen, const struct curve_place *place, const struct history *history,
                       const struct history_ring *ring, int series, const struct curve_span *span)
{
    struct curve_range range;
    char text[48];
    const struct curve_place below = {place->row + 1, place->column, place->width, place->height - 1};
    const int end = place->column + place->width;
    const bool drawn = curve_draw(screen, &below, ring, series, span, &range);
    const char *title = series_title(history->names[series]);
    const int behind = screen_put(screen, place->row, place->column, end, BOLD, "%s", title);
    const int size = drawn ? snprintf(text, sizeof text, "%.4g..%.4g", range.low, range.high) : 0;
    if (drawn && behind + 1 + size <= end) {
        screen_put(screen, place->row, end - size, end, FAINT, "%s", text);
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
    const int lines = view->page == VIEW_CURVES ? (count + across - 1) / across : 1;
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

/* Members get the rows that they fill, up to a third or more if there is room; curves before events. */
static void divide(const struct view *view, const struct view_run *run, struct area all, struct area parts[3])
{
    const int members = run->board.member_count + 1, rows = all.rows;
    int curves = 0, listed = 0;
    switch (view->page) {
    case VIEW_ALL:
        listed = members < rows / 3 + 1 ? members : rows / 3 + 1;
        curves = (rows - listed) * 3 / 5;
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
        draw_figures(screen, row++, run);
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
