/* trainer dashboard: finished runs side by side, on the page that a run serves itself. */
#include <stdlib.h>

#include "base/cli/commands.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process/signals.h"
#include "net/endpoint.h"
#include "observe/api.h"
#include "observe/guard.h"
#include "observe/http/server.h"
#include "ps/identity.h"
#include "worker/dashboard/first_layer.h"
#include "worker/dashboard/past_run.h"

enum { MOST_RUNS = 64, MOST_BYTES = 48 * 1024 * 1024 /* of requests and answers in progress */ };

static void tick(void *context)
{
    api_tick(context);
}

static bool serve_until_stopped(const struct guard *guard, struct api *api, struct error *error)
{
    struct http_server *server = NULL;
    struct http_options options = {.routes = api_routes, .context = api, .tick = tick, .most_bytes = MOST_BYTES};
    struct address address = guard->address;
    char text[ENDPOINT_TEXT];
    guard_apply(guard, &options);
    if (!http_server_start(&server, &options, error)) {
        return false;
    }
    api->server = server;
    address.port = http_server_port(server);
    endpoint_format_address(&address, text);
    log_info("watch at %s://%s/", guard->keys ? "https" : "http", text);
    while (signals_pending() == 0) {
        clock_pause(clock_monotonic_s() + 3600);
    }
    http_server_stop(server);
    return true;
}

static bool show(const struct config *config, struct api_run *runs, int count, struct error *error)
{
    static char default_address[] = "127.0.0.1:6006";
    struct config_observe observe = config->observe; /* its strings stay the config's */
    struct api api = {.runs = runs, .run_count = count};
    struct guard guard = {.token = NULL};
    char key[4096];
    if (observe.http[0] == '\0') {
        observe.http = default_address;
    }
    signals_catch();
    const bool done = identity_key_path(config, key, sizeof key, error) &&
                      guard_prepare(&guard, &observe, key, error) && serve_until_stopped(&guard, &api, error);
    guard_free(&guard);
    return done;
}

static int run_dashboard(const struct command_call *call)
{
    struct error error;
    int opened = 0, status = COMMAND_FAILED;
    if (call->operand_count == 0) {
        log_error("dashboard needs a train_dir of a run, or of several to compare");
        return COMMAND_MISUSED;
    }
    struct board *boards = calloc((size_t)call->operand_count, sizeof *boards);
    struct api_run *runs = calloc((size_t)call->operand_count, sizeof *runs);
    bool done = (boards && runs) || error_set(&error, "out of memory");
    for (; done && opened < call->operand_count; opened += done) {
        done = past_run_read(&boards[opened], call->operands[opened], &error);
        runs[opened] = (struct api_run){.board = &boards[opened]};
        if (done && first_layer_is_known(call->operands[opened])) {
            runs[opened].extras = (struct api_extras){.weights = first_layer_json, .context = call->operands[opened]};
        } else if (done && first_layer_has_columns(call->operands[opened])) {
            runs[opened].extras =
                (struct api_extras){.columns = first_layer_columns, .context = call->operands[opened]};
        }
    }
    if (done && show(call->config, runs, opened, &error)) {
        status = COMMAND_DONE;
    } else {
        log_error("%s", error.text);
    }
    for (int i = 0; i < opened; i++) {
        board_destroy(&boards[i]);
    }
    free(boards);
    free(runs);
    return status;
}

const struct command command_dashboard = {
    .name = "dashboard",
    .operands = "TRAIN_DIR...",
    .max_operands = MOST_RUNS,
    .summary = "show finished runs, side by side, on a page for browsers",
    .details = "Reads each train_dir once: its history.bin, or else its event files, and its newest checkpoint. Serves "
               "at --http, by default http://127.0.0.1:6006/, until it is interrupted. It changes nothing.",
    .takes_config = true,
    .run = run_dashboard,
};
