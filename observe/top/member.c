/* Three requests a second: the status, new history, new events. */
#include <stdio.h>
#include <stdlib.h>

#include "base/text/json.h"
#include "observe/top/read.h"
#include "observe/top/top.h"

struct top_member {
    struct client *client;
    cJSON *status, *history, *events; /* requested, and not filled in yet */
    double started_s, since_s;        /* when the member started; the newest known second of its history */
    int64_t event_id;
    bool begins; /* this is another process than before, or the first */
};

static void drop(struct top_member *member)
{
    cJSON_Delete(member->status);
    cJSON_Delete(member->history);
    cJSON_Delete(member->events);
    member->status = member->history = member->events = NULL;
}

static bool get(struct top_member *member, const char *path, cJSON **tree, struct error *error)
{
    struct json_place place;
    char *body;
    size_t size;
    if (!client_get(member->client, path, &body, &size, error)) {
        return false;
    }
    bool done = json_check(body, size, &place, error) || error_wrap(error, "%s", path);
    if (done) {
        *tree = json_build(body, size);
        done = *tree || error_set(error, "out of memory for %s", path);
    }
    free(body);
    return done;
}

static bool ask(void *context, struct error *error)
{
    struct top_member *member = context;
    char path[96];
    drop(member);
    if (!get(member, "/api/status", &member->status, error)) {
        return false;
    }
    const cJSON *started = cJSON_GetObjectItemCaseSensitive(member->status, "started");
    const double started_s = cJSON_IsNumber(started) ? started->valuedouble : 0;
    if (started_s != member->started_s) {
        member->started_s = started_s;
        member->since_s = 0;
        member->event_id = 0;
        member->begins = true;
    }
    snprintf(path, sizeof path, "/api/history?since=%.3f", member->since_s);
    if (!get(member, path, &member->history, error)) {
        return false;
    }
    snprintf(path, sizeof path, "/api/events?since=%lld", (long long)member->event_id);
    return get(member, path, &member->events, error);
}

static void fill(void *context, struct view_run *run)
{
    struct top_member *member = context;
    struct board *board = &run->board;
    if (member->begins) {
        board_forget(board);
        member->begins = false;
    }
    read_status(member->status, run);
    read_history(member->history, board);
    read_events(member->events, board, &member->event_id);
    const struct history_ring *recent = &board->history.recent;
    member->since_s = recent->count > 0 ? history_at(recent, recent->count - 1)->time_s : 0;
    drop(member);
}

struct top_member *top_member_create(struct client *client)
{
    struct top_member *member = calloc(1, sizeof *member);
    if (member) {
        member->client = client;
    }
    return member;
}

void top_member_destroy(struct top_member *member)
{
    if (member) {
        drop(member);
        free(member);
    }
}

struct top_source top_member_source(struct top_member *member, const char *name)
{
    return (struct top_source){.name = name, .ask = ask, .fill = fill, .context = member};
}
