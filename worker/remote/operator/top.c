/*
 * trainer top: queries a member's HTTP server if observe.http names one; otherwise the ps, like `trainer status`. The
 * ps know only members' current values, so curves start when top does.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cli/commands.h"
#include "base/clock.h"
#include "base/log.h"
#include "observe/top/top.h"
#include "ps/identity.h"
#include "ps/status.h"

static const double TIMEOUT_S = 2;

/* --- The ps as source --- */

struct fleet {
    struct status_query *query;
    const struct config *config;
    const struct board_member *members;
    int count;
    double asked_s; /* clock_wall_s */
};

static bool is_ps(const struct board_member *member)
{
    return strcmp(member->role, "ps") == 0;
}

static bool ask(void *context, struct error *error)
{
    struct fleet *fleet = context;
    fleet->members = status_query_ask(fleet->query, TIMEOUT_S, &fleet->count);
    fleet->asked_s = clock_wall_s();
    for (int i = 0; i < fleet->count; i++) {
        if (is_ps(&fleet->members[i]) && !fleet->members[i].is_missing) {
            return true;
        }
    }
    return error_set(error, "no ps answers: %s", fleet->members[0].message);
}

/* Members that joined, left, or changed state, as events. */
static void tell_changes(struct board *board, const struct fleet *fleet)
{
    for (int i = 0; i < fleet->count; i++) {
        const struct board_member *now = &fleet->members[i];
        for (int k = 0; k < board->member_count; k++) {
            const struct board_member *before = &board->members[k];
            const bool is_same = before->task == now->task && strcmp(before->role, now->role) == 0;
            if (is_same && strcmp(before->state, now->state) != 0) {
                char name[24], text[BOARD_TEXT];
                snprintf(name, sizeof name, "%s %d", now->role, now->task);
                snprintf(text, sizeof text, "%s was %s and is %s", name, before->state, now->state);
                board_event(board,
                            now->is_missing      ? "lost"
                            : before->is_missing ? "joined"
                                                 : "state",
                            name, now->global_step, text);
            }
        }
    }
}

static void take_numbers(struct view_run *run, const struct fleet *fleet)
{
    struct board *board = &run->board;
    struct board_numbers *numbers = board_lock(board);
    double loss_sum = 0;
    int losses = 0;
    bool trains = false;
    run->missing = 0;
    numbers->bytes_in = numbers->bytes_out = 0;
    numbers->global_step = 0;
    for (int i = 0; i < fleet->count; i++) {
        const struct board_member *member = &fleet->members[i];
        run->missing += member->is_missing;
        numbers->bytes_in += member->bytes_in;
        numbers->bytes_out += member->bytes_out;
        if (member->global_step > numbers->global_step) {
            numbers->global_step = member->global_step;
        }
        if (!is_ps(member) && !member->is_missing && isfinite(member->loss)) {
            loss_sum += member->loss;
            losses++;
        }
        trains = trains || strcmp(member->state, "training") == 0;
        numbers->generation = (int)member->generation > numbers->generation ? member->generation : numbers->generation;
    }
    numbers->last_step = fleet->config->train.train_steps > 0 ? fleet->config->train.train_steps : -1;
    numbers->state = trains ? BOARD_TRAINING : BOARD_WAITING;
    board_unlock(board);
    board->loss = losses > 0 ? loss_sum / losses : (double)NAN;
}

/* ps 0's message says what it waits for. */
static void fill(void *context, struct view_run *run)
{
    static const char waits[] = "waiting for ";
    const struct fleet *fleet = context;
    struct board *board = &run->board;
    float values[HISTORY_SERIES];
    tell_changes(board, fleet);
    if (!board_begin_members(board, fleet->count)) {
        return;
    }
    memcpy(board->members, fleet->members, (size_t)fleet->count * sizeof *board->members);
    snprintf(board->name, sizeof board->name, "%s",
             fleet->config->fleet.name[0] != '\0' ? fleet->config->fleet.name : "cluster");
    snprintf(board->role, sizeof board->role, "ps");
    take_numbers(run, fleet);
    const char *message = fleet->members[0].message;
    const bool is_waiting = strncmp(message, waits, sizeof waits - 1) == 0;
    snprintf(run->waiting_for, sizeof run->waiting_for, "%.190s", is_waiting ? message + sizeof waits - 1 : "");
    const struct board_numbers *numbers = &board->numbers;
    board->steps_per_s = fleet->members[0].steps_per_s;
    run->eta_s = numbers->last_step > 0 && board->steps_per_s > 0
                     ? fmax(0, (double)(numbers->last_step - numbers->global_step)) / board->steps_per_s
                     : (double)NAN;
    run->time_s = fleet->asked_s;
    for (int i = 0; i < HISTORY_SERIES; i++) {
        values[i] = NAN;
    }
    values[history_series(&board->history, "loss")] = (float)board->loss;
    values[history_series(&board->history, "steps_per_s")] = (float)board->steps_per_s;
    history_add(&board->history, run->time_s, numbers->global_step, values);
}

/* --- The command --- */

static bool show_fleet(const struct config *config, const struct top_options *options, struct error *error)
{
    struct fleet fleet = {.config = config};
    const struct top_source source = {
        .name = config->cluster.ps_hosts.items[0], .ask = ask, .fill = fill, .context = &fleet};
    const bool done = status_query_create(&fleet.query, config, error) && top_show(&source, options, error);
    status_query_destroy(fleet.query);
    return done;
}

static bool show_member(const struct config *config, const struct top_options *options, struct error *error)
{
    struct guard guard = {.token = NULL};
    char key[4096];
    if (!identity_key_path(config, key, sizeof key, error) || !guard_visit(&guard, &config->observe, key, error)) {
        guard_free(&guard);
        return false;
    }
    struct client *client = client_create(&guard, options->wake);
    struct top_member *member = client ? top_member_create(client) : NULL;
    const struct top_source source = top_member_source(member, config->observe.http);
    const bool done = member ? top_show(&source, options, error) : error_set(error, "out of memory");
    top_member_destroy(member);
    client_destroy(client);
    guard_free(&guard);
    return done;
}

static int run_top(const struct command_call *call)
{
    const struct config *config = call->config;
    struct error error;
    struct wake wake;
    const bool has_http = config->observe.http[0] != '\0';
    if (!has_http && config->cluster.ps_hosts.count == 0) {
        log_error("top of what? Give a member's address as --http=HOST:PORT, or the cluster's ps_hosts and "
                  "worker_hosts, in config.json or as flags");
        return COMMAND_MISUSED;
    }
    if (!wake_create(&wake, &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    const struct top_options options = {
        .is_once = command_switch(call, "once"), .is_ascii = command_switch(call, "ascii"), .wake = &wake};
    const bool done = has_http ? show_member(config, &options, &error) : show_fleet(config, &options, &error);
    wake_destroy(&wake);
    if (!done) {
        log_error("%s", error.text);
    }
    return done ? COMMAND_DONE : COMMAND_FAILED;
}

static const struct command_flag top_flags[] = {
    {"once", NULL, "print one screen and exit, for scripts"},
    {"ascii", NULL, "draw in ASCII, for terminals without braille"},
    {NULL, NULL, NULL},
};

const struct command command_top = {
    .name = "top",
    .summary = "watch a run in the terminal: curves, members, events",
    .details = "Queries the member at --http (with --http_token_file, and --http_cert or the fleet key, if it requires "
               "them); without --http, every ps in ps_hosts, using the members' shared key. ? shows the keys, q quits. "
               "NO_COLOR, TERM and the locale are honoured.",
    .flags = top_flags,
    .takes_config = true,
    .run = run_top,
};
