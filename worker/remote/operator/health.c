/*
 * trainer health: a probe for places from which nothing else can query a member's HTTP server, such as an image without
 * a shell.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/cli/commands.h"
#include "base/log.h"
#include "observe/top/client.h"
#include "ps/identity.h"

static bool ask(const struct config *config, const char *path, struct error *error)
{
    struct guard guard = {.token = NULL};
    struct client *client = NULL;
    char key[4096], *body = NULL;
    size_t size;
    bool done = identity_key_path(config, key, sizeof key, error) && guard_visit(&guard, &config->observe, key, error);
    if (done) {
        client = client_create(&guard, NULL);
        done = client ? client_get(client, path, &body, &size, error) : error_set(error, "out of memory");
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
        log_error("health of what? Give the member's address as --http=HOST:PORT, or as observe.http in config.json");
        return COMMAND_MISUSED;
    }
    const bool is_ready = command_switch(call, "ready");
    if (!ask(call->config, is_ready ? "/readyz" : "/healthz", &error)) {
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
    .run = run,
};
