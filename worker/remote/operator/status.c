/* trainer status, health and top: commands that only look at a cluster. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cli/commands.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text/text.h"
#include "net/member.h"
#include "observe/api.h"
#include "observe/top/terminal.h"
#include "observe/top/top.h"
#include "ps/identity.h"
#include "ps/status.h"

/* --- status --- */

/* trainer status: the state of a running cluster's members, as a table or as JSON. */

static const double TIMEOUT_S = 2.0, RETRY_AFTER_S = 0.2;

/* --- As JSON --- */

static int missing(const struct board_member *entries, int count)
{
    int number = 0;
    for (int i = 0; i < count; i++) {
        number += entries[i].is_missing;
    }
    return number;
}

static void show_json(const struct board_member *entries, int count)
{
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddNumberToObject(fields, "missing", missing(entries, count));
    struct text_buffer members = {.bytes = NULL};
    size_t size;
    json_write_open(&members, NULL, '[');
    for (int i = 0; i < count; i++) {
        member_write(&members, &entries[i]);
    }
    json_write_close(&members, ']');
    text_buffer_add(&members, "%c", 0);
    char *json = text_buffer_take(&members, &size);
    if (json) {
        cJSON_AddRawToObject(fields, "members", json);
    }
    free(json);
    log_event("status", fields, NULL);
}

/* --- As a table --- */

static void name_of(const struct board_member *entry, char name[MEMBER_TEXT])
{
    snprintf(name, MEMBER_TEXT, "%s %d", entry->role, entry->task);
}

static void show_rounds(const struct board_rounds *rounds)
{
    printf("            rounds: asked %lld, counted %lld, late %lld, missed %lld", (long long)rounds->asked,
           (long long)rounds->counted, (long long)rounds->late, (long long)rounds->missed);
    if (isfinite(rounds->cosine)) {
        printf("; cosine %.3f", rounds->cosine);
    }
    printf("%s\n", rounds->is_asked ? "; asked now" : "");
}

static void show_own(const struct board_own *own)
{
    char step[COUNT_TEXT];
    count_text(step, own->step);
    printf("            own rows: ");
    if (isfinite(own->score)) {
        printf("score %.4f of ", own->score);
    }
    printf("%lld at step %s%s\n", (long long)own->examples, step, own->is_worst ? "; of the worst tenth" : "");
}

/* What a row shows, from left to right. */
enum {
    CELL_MEMBER,
    CELL_STATE,
    CELL_STEP,
    CELL_SPEED,
    CELL_STALE,
    CELL_DROPPED,
    CELL_RETRIES,
    CELL_IN,
    CELL_OUT,
    CELL_ADDRESS,
    CELL_HOST,
    CELL_DEVICE,
    CELLS
};
enum { CELL_TEXT = 256 };

static const struct {
    const char *title;
    int width; /* negative: left-aligned */
    int rank;  /* where there is no room for all, those with the lowest are shown */
} cells[CELLS] = {
    [CELL_MEMBER] = {"MEMBER", -11, 0},    [CELL_STATE] = {"STATE", -9, 1}, [CELL_STEP] = {"STEP", 11, 2},
    [CELL_SPEED] = {"STEPS/S", 8, 3},      [CELL_STALE] = {"STALE", 5, 5},  [CELL_DROPPED] = {"DROPPED", 7, 8},
    [CELL_RETRIES] = {"RETRIES", 7, 9},    [CELL_IN] = {"IN", 7, 6},        [CELL_OUT] = {"OUT", 7, 7},
    [CELL_ADDRESS] = {"ADDRESS", -22, 10}, [CELL_HOST] = {"HOST", -16, 4},  [CELL_DEVICE] = {"DEVICE", -24, 11},
};

/* A terminal's rows are as wide as it is; a pipe gets all. */
static int row_width(void)
{
    int width = INT_MAX, height;
    if (isatty(STDOUT_FILENO)) {
        terminal_size(&width, &height);
    }
    return width;
}

/* Those that fit. Of the last one there may be a part. */
static void choose_cells(int width, bool chosen[CELLS])
{
    int used = -1;
    memset(chosen, 0, CELLS * sizeof *chosen);
    for (int rank = 0; rank < CELLS; rank++) {
        for (int i = 0; i < CELLS; i++) {
            if (cells[i].rank == rank && (rank == 0 || abs(cells[i].width) + 1 <= width - used)) {
                used += abs(cells[i].width) + 1;
                chosen[i] = true;
            }
        }
    }
}

static void show_row(char texts[CELLS][CELL_TEXT])
{
    const int width = row_width();
    bool chosen[CELLS];
    int at = 0, pad = 0;
    choose_cells(width, chosen);
    for (int i = 0; i < CELLS; i++) {
        if (chosen[i]) {
            const bool is_last = i == CELL_DEVICE;
            const int wide = abs(cells[i].width), room = is_last ? width - at : wide;
            int used;
            const int size = (int)utf8_fit(texts[i], room, &used);
            const int before = cells[i].width > 0 ? wide - used : 0;
            printf("%*s%.*s", pad + before, "", size, texts[i]);
            pad = (cells[i].width < 0 ? wide - used : 0) + 1;
            at += wide + 1;
        }
    }
    putchar('\n');
}

static void show_entry(const struct board_member *entry)
{
    char texts[CELLS][CELL_TEXT], step[COUNT_TEXT] = "-", number[COUNT_TEXT], message[1024];
    if (entry->global_step >= 0) {
        count_text(step, entry->global_step);
    }
    name_of(entry, texts[CELL_MEMBER]);
    printable(texts[CELL_STATE], CELL_TEXT, entry->state);
    snprintf(texts[CELL_STEP], CELL_TEXT, "%s", step);
    snprintf(texts[CELL_SPEED], CELL_TEXT, "%.1f", entry->steps_per_s);
    snprintf(texts[CELL_STALE], CELL_TEXT, "%d", entry->staleness);
    snprintf(texts[CELL_DROPPED], CELL_TEXT, "%llu", (unsigned long long)entry->dropped);
    snprintf(texts[CELL_RETRIES], CELL_TEXT, "%llu", (unsigned long long)entry->retries);
    snprintf(texts[CELL_IN], CELL_TEXT, "%s", bytes_text(number, (double)entry->bytes_in));
    snprintf(texts[CELL_OUT], CELL_TEXT, "%s", bytes_text(number, (double)entry->bytes_out));
    printable(texts[CELL_ADDRESS], CELL_TEXT, entry->address);
    printable(texts[CELL_HOST], CELL_TEXT, entry->host);
    printable(texts[CELL_DEVICE], CELL_TEXT, entry->device);
    show_row(texts);
    if (entry->rounds.asked > 0) {
        show_rounds(&entry->rounds);
    }
    if (entry->own.examples > 0) {
        show_own(&entry->own);
    }
    if (entry->message[0] != '\0') {
        printf("            %s\n", printable(message, sizeof message, entry->message));
    }
}

/* Once for all members with the same program and config. */
static void show_versions(const struct board_member *entries, int count)
{
    for (int i = 0; i < count; i++) {
        char name[MEMBER_TEXT];
        bool shown = entries[i].program[0] == '\0';
        for (int k = 0; k < i && !shown; k++) {
            shown = strcmp(entries[k].program, entries[i].program) == 0 &&
                    strcmp(entries[k].digest, entries[i].digest) == 0 &&
                    entries[k].config_version == entries[i].config_version;
        }
        if (!shown) {
            name_of(&entries[i], name);
            char version[24] = "-", program[256], digest[17];
            if (entries[i].config_version >= 0) {
                snprintf(version, sizeof version, "%llu", (unsigned long long)entries[i].config_version);
            }
            printf("%s, config version %s, digest %s: %s and all like it\n",
                   printable(program, sizeof program, entries[i].program), version,
                   printable(digest, sizeof digest, entries[i].config_version >= 0 ? entries[i].digest : "-"), name);
        }
    }
}

static void show_table(const struct board_member *entries, int count)
{
    int absent = missing(entries, count);
    char titles[CELLS][CELL_TEXT];
    for (int i = 0; i < CELLS; i++) {
        snprintf(titles[i], CELL_TEXT, "%s", cells[i].title);
    }
    show_row(titles);
    for (int i = 0; i < count; i++) {
        show_entry(&entries[i]);
    }
    show_versions(entries, count);
    if (absent > 0) {
        printf("%d of %d members missing\n", absent, count);
    }
}

/* --- The command --- */

/* A ps did not answer in time, or a member has just joined. A second query is cheap and usually returns more. */
static bool is_incomplete(const struct board_member *entries, int count)
{
    bool incomplete = false;
    for (int i = 0; i < count; i++) {
        const bool may_be_gone = entries[i].is_missing && strcmp(entries[i].role, "worker") == 0;
        incomplete = incomplete || (!may_be_gone && entries[i].config_version < 0);
    }
    return incomplete;
}

static int run_status(const struct command_call *call)
{
    struct error error;
    struct status_query *query;
    int count;
    bool json = command_switch(call, "json");
    if (json) {
        log_setup(LOG_JSON, LOG_INFO);
    }
    if (call->config->cluster.ps_hosts.count == 0) {
        log_error(
            "no cluster given: set ps_hosts and worker_hosts in config.json, or as --ps_hosts and --worker_hosts; "
            "a run of one process is shown by: trainer top --http=HOST:PORT");
        return COMMAND_MISUSED;
    }
    if (!status_query_create(&query, call->config, &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    const struct board_member *entries = status_query_ask(query, TIMEOUT_S, &count);
    if (is_incomplete(entries, count)) {
        const double until_s = clock_monotonic_s() + RETRY_AFTER_S;
        while (clock_monotonic_s() < until_s) {
            clock_pause(until_s);
        }
        entries = status_query_ask(query, TIMEOUT_S, &count);
    }
    if (json || call->config->output.log_format == LOG_JSON) {
        show_json(entries, count);
    } else {
        show_table(entries, count);
    }
    int status = missing(entries, count) > 0 ? COMMAND_FAILED : COMMAND_DONE;
    status_query_destroy(query);
    return status;
}

static const struct command_flag status_flags[] = {
    {"json", NULL, "one JSON object instead of a table"},
    {NULL, NULL, NULL},
};

const struct command command_status = {
    .name = "status",
    .summary = "show the state of a running cluster's members",
    .details = "Queries every ps in ps_hosts, using the members' shared key. STEP is the global step a member has "
               "seen; STALE is the number of steps between a worker's last pull and its push. The exit status is 1 if "
               "any member is missing.",
    .flags = status_flags,
    .takes_config = true,
    .confine = CONFINE_CLIENT,
    .run = run_status,
};

/* --- health --- */

/*
 * trainer health: a probe for places from which nothing else can query a member's HTTP server, such as an image without
 * a shell.
 */

static bool ask_health(const struct config *config, const char *path, struct error *error)
{
    struct guard guard = {.token = NULL};
    struct client *client = NULL;
    char key[4096], *body = NULL;
    size_t size;
    bool done = identity_key_path(config, key, sizeof key, error) && guard_visit(&guard, &config->observe, key, error);
    if (done) {
        client = client_create(&guard, NULL);
        done = client_get(client, path, &body, &size, error);
    }
    free(body);
    client_destroy(client);
    guard_free(&guard);
    return done;
}

static int run(const struct command_call *call)
{
    struct error error;
    if (call->config->observe.http[0] == '\0') {
        log_error("no member given: set its address as --http=HOST:PORT, or as observe.http in config.json");
        return COMMAND_MISUSED;
    }
    const bool is_ready = command_switch(call, "ready");
    if (!ask_health(call->config, is_ready ? "/readyz" : "/healthz", &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    puts(is_ready ? "ready" : "healthy");
    return COMMAND_DONE;
}

static const struct command_flag flags[] = {
    {"ready", NULL, "check that it trains or serves, not only that it runs"},
    {NULL, NULL, NULL},
};

const struct command command_health = {
    .name = "health",
    .summary = "check the health of the member at observe.http, as a container's probe does",
    .details = "Queries /healthz, or with --ready /readyz, at --http=HOST:PORT, with the same keys and flags as the "
               "member. The exit status is 1 if it does not answer or is not healthy.",
    .flags = flags,
    .takes_config = true,
    .confine = CONFINE_CLIENT,
    .run = run,
};

/* --- top --- */

/*
 * trainer top: queries a member's HTTP server if observe.http names one; otherwise the ps, like `trainer status`. The
 * ps know only members' current values, so curves start when top does.
 */

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

static bool ask_members(void *context, struct error *error)
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
static void fill_run(void *context, struct view_run *run)
{
    static const char waits[] = "waiting for ";
    const struct fleet *fleet = context;
    struct board *board = &run->board;
    float values[HISTORY_SERIES];
    if (!board_begin_members(board, fleet->count)) {
        return;
    }
    memcpy(board->members, fleet->members, (size_t)fleet->count * sizeof *board->members);
    board_compare_members(board, true);
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
        .name = config->cluster.ps_hosts.items[0], .ask = ask_members, .fill = fill_run, .context = &fleet};
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
    struct top_member *member = top_member_create(client);
    const struct top_source source = top_member_source(member, config->observe.http);
    const bool done = top_show(&source, options, error);
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
        log_error("no run given: set a member's address as --http=HOST:PORT, or the cluster's ps_hosts and "
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
    .confine = CONFINE_CLIENT,
    .run = run_top,
};
