/* Proposals of operators, and their second thoughts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "ps/rollout/audit.h"
#include "ps/rollout/change.h"
#include "ps/server/desk/inside.h"
#include "ps/server/requests/requests.h"

const char desk_not_here[] = "rollouts are led by ps 0";

static struct rollout_demand demand_of(const struct config_cluster *cluster)
{
    return (struct rollout_demand){cluster->worker_hosts.count, cluster->min_workers};
}

/* All that speaks against a proposal; its kind, where it would end the job, whom that wants. Unlocked: it reads files. */
static bool check_proposal(struct desk *desk, const struct manifest *manifest, struct rollout_plan *plan,
                           struct error *error)
{
    const struct config *config = desk->server->config;
    const struct manifest_config *from = &manifest->fallback, *to = &manifest->target;
    const bool local = from->local_size != to->local_size || memcmp(from->local, to->local, to->local_size) != 0;
    struct config target, fallback = {.path = NULL};
    uint64_t version, highest;
    char digest[CONFIG_DIGEST_HEX + 1];
    agent_version(desk->agent, &version, digest);
    server_lock(desk->server);
    highest = desk->highest;
    server_unlock(desk->server);
    if (!manifest_fits(manifest, config->fleet.name, version, highest, error)) {
        return false;
    }
    if (strcmp(manifest->fallback.digest, digest) != 0) {
        return error_set(error, "the manifest was made for another config than the one that runs here");
    }
    if (!config_parse(&target, "manifest", (const uint8_t *)to->text, to->text_size, NULL, 0, error)) {
        return false;
    }
    bool can = config_parse(&fallback, "manifest", (const uint8_t *)from->text, from->text_size, NULL, 0, error) &&
               change_kind(&fallback, &target, local, &plan->kind, error);
    server_lock(desk->server);
    plan->last_step = job_last_step_under(&desk->server->job, &target);
    plan->from = demand_of(&desk->server->job.config.cluster);
    server_unlock(desk->server);
    plan->to = demand_of(&target.cluster);
    config_free(&fallback);
    config_free(&target);
    return can;
}

static bool begin(struct desk *desk, uint8_t *bytes, size_t size, const struct manifest *manifest,
                  const struct rollout_plan *plan, struct error *error)
{
    char sentence[256];
    server_lock(desk->server);
    struct rollout_vitals vitals = desk_vitals(desk);
    if (manifest->may_lose || vitals.waits) { /* then it may be that of a new model, which guesses */
        vitals.loss = fmax(vitals.loss, log(desk->server->config->model.layers[desk->server->model.layer_count]));
    }
    bool begun = rollout_begin(&desk->rollout, plan, &vitals, clock_monotonic_s(), sentence);
    if (begun) {
        job_keep_waiting(&desk->server->job, rollout_keeps_waiting(&desk->rollout));
        desk->highest = manifest->target.version;
        desk_take_manifest(desk, manifest, bytes, size);
    }
    server_unlock(desk->server);
    return begun || error_set(error, "%s", sentence);
}

/* What is stored last under a version's number is what is begun. */
static bool take_turn(struct desk *desk, struct error *error)
{
    server_lock(desk->server);
    const bool taken = desk->proposing;
    desk->proposing = true;
    server_unlock(desk->server);
    return !taken || error_set(error, "another proposal is being looked at: try again");
}

static void end_turn(struct desk *desk)
{
    server_lock(desk->server);
    desk->proposing = false;
    server_unlock(desk->server);
}

static bool store_and_begin(struct desk *desk, uint8_t *bytes, size_t size, const struct manifest *manifest,
                            struct rollout_plan *plan, struct error *error)
{
    if (!take_turn(desk, error)) {
        return false;
    }
    const bool done = check_proposal(desk, manifest, plan, error) &&
                      desk_store_manifest(desk, manifest->target.version, bytes, size, error) &&
                      begin(desk, bytes, size, manifest, plan, error);
    end_turn(desk);
    return done;
}

/* bytes are the desk's once this returns true. */
static bool propose(struct desk *desk, uint8_t *bytes, size_t size, double healthy_s, struct error *error)
{
    const struct config *config = desk->server->config;
    char path[VERSIONS_PATH];
    uint8_t key[OPERATOR_PUBLIC_KEY];
    struct manifest manifest = {.author = "unknown"};
    struct rollout_plan plan = {.healthy_s = healthy_s};
    if (config->path == NULL) {
        return error_set(error, "ps 0 runs without a config file: there is no place to keep versions beside");
    }
    if (!keeper_key_path(config, path, sizeof path, error) || !operator_key_read_public(path, key, error) ||
        !versions_open(&desk->versions, config->path, error)) {
        return false;
    }
    bool done =
        ((healthy_s >= 0 && healthy_s <= 86400) || error_set(error, "healthy_secs must be from 0 to 86400, a day")) &&
        manifest_decode(&manifest, bytes, size, key, error);
    plan.target = manifest.target.version;
    plan.fallback = manifest.fallback.version;
    done = done && store_and_begin(desk, bytes, size, &manifest, &plan, error);
    audit_write(&desk->versions, "ps 0", manifest.author, "propose", manifest.target.version,
                done ? "begun" : error->text);
    return done;
}

bool serve_propose(struct visitor *visitor, struct error *error)
{
    struct desk *desk = visitor->server->desk;
    struct channel *channel = &visitor->channel;
    const uint64_t request = channel->frame.request;
    const double healthy_s = channel->message.propose.healthy_s;
    const size_t size = channel->bulk_left;
    struct error why;
    uint8_t *bytes = malloc(size > 0 ? size : 1);
    if (bytes == NULL) {
        return error_set(error, "out of memory");
    }
    if (!channel_read_bulk(channel, bytes, size, serve_deadline(), error)) {
        free(bytes);
        return false;
    }
    bool done = desk->leads ? propose(desk, bytes, size, healthy_s, &why) : error_set(&why, desk_not_here);
    if (!done) {
        free(bytes);
        log_warning("a rollout is refused: %s", why.text);
        return serve_send_error(visitor, request, ERROR_NOT_ALLOWED, why.text, error);
    }
    struct message_done answer = {.global_step = -1};
    return serve_send(visitor, MESSAGE_done, request, &answer, error);
}

bool serve_abort_rollout(struct visitor *visitor, struct error *error)
{
    struct desk *desk = visitor->server->desk;
    const uint64_t request = visitor->channel.frame.request;
    char sentence[256];
    snprintf(sentence, sizeof sentence, "%s", desk_not_here);
    server_lock(visitor->server);
    bool done = desk->leads && rollout_abort(&desk->rollout, clock_monotonic_s(), sentence);
    const uint64_t target = desk->rollout.target;
    server_unlock(visitor->server);
    if (!done) {
        return serve_send_error(visitor, request, ERROR_NOT_ALLOWED, sentence, error);
    }
    audit_write(&desk->versions, "ps 0", visitor->channel.message.abort_rollout.who, "abort", target, "done");
    struct message_done answer = {.global_step = -1};
    return serve_send(visitor, MESSAGE_done, request, &answer, error);
}
