/* The table below defines each column in one row: its place in the line, its text, and its sort key. */
#include "observe/top/members.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/count.h"

enum { CELL = 300, LEAST_LAST = 8 };

struct column {
    const char *title;
    int width; /* negative: left-aligned */
    void (*write)(const struct board_member *member, char text[CELL]);
    double (*rank)(const struct board_member *member); /* NULL: by the text */
};

/* --- Texts --- */

static void write_number(char text[CELL], const char *format, double value)
{
    if (isfinite(value)) {
        snprintf(text, CELL, format, value);
    } else {
        strcpy(text, "-");
    }
}

static void write_name(const struct board_member *member, char text[CELL])
{
    snprintf(text, CELL, "%s %d", member->role, member->task);
}

static void write_state(const struct board_member *member, char text[CELL])
{
    snprintf(text, CELL, "%s", member->state);
}

static void write_step(const struct board_member *member, char text[CELL])
{
    write_number(text, "%.0f", member->global_step < 0 ? (double)NAN : (double)member->global_step);
}

static void write_speed(const struct board_member *member, char text[CELL])
{
    write_number(text, member->steps_per_s < 1000 ? "%.1f" : "%.0f", member->steps_per_s);
}

static void write_loss(const struct board_member *member, char text[CELL])
{
    write_number(text, "%.3g", member->loss);
}

static void write_staleness(const struct board_member *member, char text[CELL])
{
    snprintf(text, CELL, "%d", member->staleness);
}

static void write_silence(const struct board_member *member, char text[CELL])
{
    const double seconds = (double)member->silent_ms / 1000;
    write_number(text, seconds < 10 ? "%.1fs" : "%.0fs", member->silent_ms < 0 ? (double)NAN : seconds);
}

static void write_cpu(const struct board_member *member, char text[CELL])
{
    write_number(text, "%.0f%%", member->cpu_percent);
}

static void write_gpu(const struct board_member *member, char text[CELL])
{
    write_number(text, "%.0f%%", member->gpu_percent);
}

static void write_memory(const struct board_member *member, char text[CELL])
{
    if (isfinite(member->memory_bytes)) {
        bytes_text(text, member->memory_bytes);
    } else {
        strcpy(text, "-");
    }
}

static void write_in(const struct board_member *member, char text[CELL])
{
    bytes_text(text, (double)member->bytes_in);
}

static void write_out(const struct board_member *member, char text[CELL])
{
    bytes_text(text, (double)member->bytes_out);
}

static void write_dropped(const struct board_member *member, char text[CELL])
{
    snprintf(text, CELL, "%llu", (unsigned long long)member->dropped);
}

/* Selected, and missed; "*" while it is selected. */
static void write_rounds(const struct board_member *member, char text[CELL])
{
    const struct board_rounds *rounds = &member->rounds;
    if (rounds->asked > 0) {
        snprintf(text, CELL, "%lld-%lld%s", (long long)rounds->asked, (long long)rounds->missed,
                 rounds->is_asked ? "*" : "");
    } else {
        strcpy(text, "-");
    }
}

static void write_host(const struct board_member *member, char text[CELL])
{
    snprintf(text, CELL, "%s", member->host[0] != '\0' ? member->host : member->address);
}

static void write_version(const struct board_member *member, char text[CELL])
{
    write_number(text, "%.0f",
                 member->has_version && member->config_version >= 0 ? (double)member->config_version : (double)NAN);
}

static void write_program(const struct board_member *member, char text[CELL])
{
    snprintf(text, CELL, "%s", member->program);
}

static void write_device(const struct board_member *member, char text[CELL])
{
    snprintf(text, CELL, "%s", member->device);
}

static void write_message(const struct board_member *member, char text[CELL])
{
    snprintf(text, CELL, "%s", member->message);
}

/* --- Ranks --- */

static double rank_name(const struct board_member *member)
{
    return (strcmp(member->role, "ps") == 0 ? 0 : 1e6) + member->task;
}

static double rank_step(const struct board_member *member)
{
    return (double)member->global_step;
}

static double rank_speed(const struct board_member *member)
{
    return member->steps_per_s;
}

static double rank_loss(const struct board_member *member)
{
    return member->loss;
}

static double rank_staleness(const struct board_member *member)
{
    return member->staleness;
}

static double rank_silence(const struct board_member *member)
{
    return (double)member->silent_ms;
}

static double rank_cpu(const struct board_member *member)
{
    return member->cpu_percent;
}

static double rank_memory(const struct board_member *member)
{
    return member->memory_bytes;
}

static double rank_gpu(const struct board_member *member)
{
    return member->gpu_percent;
}

static double rank_in(const struct board_member *member)
{
    return (double)member->bytes_in;
}

static double rank_out(const struct board_member *member)
{
    return (double)member->bytes_out;
}

static double rank_dropped(const struct board_member *member)
{
    return (double)member->dropped;
}

static double rank_rounds(const struct board_member *member)
{
    return (double)member->rounds.missed;
}

static double rank_version(const struct board_member *member)
{
    return (double)member->config_version;
}

/* As many as fit, in this order; the last one takes the remaining room. */
static const struct column columns[] = {
    {"MEMBER", -11, write_name, rank_name},    {"STATE", -10, write_state, NULL},
    {"STEP", 10, write_step, rank_step},       {"STEPS/S", 7, write_speed, rank_speed},
    {"LOSS", 8, write_loss, rank_loss},        {"STALE", 5, write_staleness, rank_staleness},
    {"HEARD", 5, write_silence, rank_silence}, {"HOST", -12, write_host, NULL},
    {"CPU", 5, write_cpu, rank_cpu},           {"MEM", 6, write_memory, rank_memory},
    {"GPU", 5, write_gpu, rank_gpu},           {"IN", 6, write_in, rank_in},
    {"OUT", 6, write_out, rank_out},           {"DROPPED", 7, write_dropped, rank_dropped},
    {"ROUNDS", 8, write_rounds, rank_rounds},  {"CONFIG", 6, write_version, rank_version},
    {"VERSION", -24, write_program, NULL},     {"DEVICE", -24, write_device, NULL},
    {"MESSAGE", -20, write_message, NULL},
};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

int members_next_column(int column, int by)
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

static int compare(const void *one, const void *other, void *context)
{
    const struct board_member *a = one, *b = other;
    const struct view *view = context;
    const struct column *column = &columns[view->sort];
    int order;
    if (column->rank) {
        order = compare_numbers(column->rank(a), column->rank(b));
    } else {
        char left[CELL], right[CELL];
        column->write(a, left);
        column->write(b, right);
        order = strcmp(left, right);
    }
    order = view->reversed ? -order : order;
    return order != 0 ? order : compare_numbers(rank_name(a), rank_name(b));
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
            columns[i].write(member, text);
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

void members_draw(struct screen *screen, int row, int rows, struct view *view, struct board *board)
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
