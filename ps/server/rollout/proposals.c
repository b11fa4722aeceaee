/* Proposals of operators, and their second thoughts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "ps/rollout/audit.h"
#include "ps/rollout/change.h"
#include "ps/server/rollout/internal.h"
#include "ps/server/requests/requests.h"

const char rollout_coordinator_not_here[] = "rollouts are led by ps 0";

static struct rollout_demand demand_of(const struct config_cluster *cluster)
{
    return (struct rollout_demand){cluster->worker_hosts.count, cluster->min_workers};
}

/* All that speaks against a proposal; its kind, where it would end the job, whom that wants. Unlocked: it reads files. */
static bool check_proposal(struct rollout_coordinator *coordinator, const struct manifest *manifest,
                           struct rollout_plan *plan, struct error *error)
{
    const struct config *config = coordinator->server->config;
    const struct manifest_config *from = &manifest->fallback, *to = &manifest->target;
    const bool local = from->local_size != to->local_size || memcmp(from->local, to->local, to->local_size) != 0;
    struct config target, fallback = {.path = NULL};
    uint64_t version, highest;
    char digest[CONFIG_DIGEST_HEX + 1];
    agent_version(coordinator->agent, &version, digest);
    server_lock(coordinator->server);
    highest = coordinator->highest;
    server_unlock(coordinator->server);
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
    server_lock(coordinator->server);
    plan->last_step = job_last_step_under(&coordinator->server->job, &target);
    plan->from = demand_of(&coordinator->server->job.config.cluster);
    server_unlock(coordinator->server);
    plan->to = demand_of(&target.cluster);
    config_free(&fallback);
    config_free(&target);
    return can;
}

static bool begin(struct rollout_coordinator *coordinator, uint8_t *bytes, size_t size, const struct manifest *manifest,
                  const struct rollout_plan *plan, struct error *error)
{
    char message[256];
    server_lock(coordinator->server);
    struct rollout_vitals vitals = rollout_coordinator_vitals(coordinator);
    if (manifest->may_lose || vitals.waits) { /* then it may be that of a new model, which guesses */
        vitals.loss =
            fmax(vitals.loss, log(coordinator->server->config->model.layers[coordinator->server->model.layer_count]));
    }
    bool begun = rollout_begin(&coordinator->rollout, plan, &vitals, clock_monotonic_s(), message);
    if (begun) {
        job_keep_waiting(&coordinator->server->job, rollout_keeps_waiting(&coordinator->rollout));
        coordinator->highest = manifest->target.version;
        rollout_coordinator_take_manifest(coordinator, manifest, bytes, size);
    }
    server_unlock(coordinator->server);
    return begun || error_set(error, "%s", message);
}

/* What is stored last under a version's number is what is begun. */
static bool take_turn(struct rollout_coordinator *coordinator, struct error *error)
{
    server_lock(coordinator->server);
    const bool taken = coordinator->proposing;
    coordinator->proposing = true;
    server_unlock(coordinator->server);
    return !taken || error_set(error, "another proposal is being looked at: try again");
}

static void end_turn(struct rollout_coordinator *coordinator)
{
    server_lock(coordinator->server);
    coordinator->proposing = false;
    server_unlock(coordinator->server);
}

static bool store_and_begin(struct rollout_coordinator *coordinator, uint8_t *bytes, size_t size,
                            const struct manifest *manifest, struct rollout_plan *plan, struct error *error)
{
    if (!take_turn(coordinator, error)) {
        return false;
    }
    const bool done = check_proposal(coordinator, manifest, plan, error) &&
                      rollout_coordinator_store_manifest(coordinator, manifest->target.version, bytes, size, error) &&
                      begin(coordinator, bytes, size, manifest, plan, error);
    end_turn(coordinator);
    return done;
}

/* bytes are the coordinator's once this returns true. */
static bool propose(struct rollout_coordinator *coordinator, uint8_t *bytes, size_t size, double healthy_s,
                    struct error *error)
{
    const struct config *config = coordinator->server->config;
    char path[VERSIONS_PATH];
    uint8_t key[OPERATOR_PUBLIC_KEY];
    struct manifest manifest = {.author = "unknown"};
    struct rollout_plan plan = {.healthy_s = healthy_s};
    if (config->path == NULL) {
        return error_set(error, "ps 0 runs without a config file: there is no place to keep versions beside");
    }
    if (!participant_key_path(config, path, sizeof path, error) || !operator_key_read_public(path, key, error) ||
        !versions_open(&coordinator->versions, config->path, error)) {
        return false;
    }
    bool done =
        ((healthy_s >= 0 && healthy_s <= 86400) || error_set(error, "healthy_secs must be from 0 to 86400, a day")) &&
        manifest_decode(&manifest, bytes, size, key, error);
    plan.target = manifest.target.version;
    plan.fallback = manifest.fallback.version;
    done = done && store_and_begin(coordinator, bytes, size, &manifest, &plan, error);
    audit_write(&coordinator->versions, "ps 0", manifest.author, "propose", manifest.target.version,
                done ? "begun" : error->text);
    return done;
}

bool serve_propose(struct session *session, struct error *error)
{
    struct rollout_coordinator *coordinator = session->server->coordinator;
    struct channel *channel = &session->channel;
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
    bool done = coordinator->leads ? propose(coordinator, bytes, size, healthy_s, &why)
                                   : error_set(&why, rollout_coordinator_not_here);
    if (!done) {
        free(bytes);
        log_warning("a rollout is refused: %s", why.text);
        return serve_send_error(session, request, ERROR_NOT_ALLOWED, why.text, error);
    }
    struct message_done answer = {.global_step = -1};
    return serve_send(session, MESSAGE_done, request, &answer, error);
}

bool serve_abort_rollout(struct session *session, struct error *error)
{
    struct rollout_coordinator *coordinator = session->server->coordinator;
    const uint64_t request = session->channel.frame.request;
    char message[256];
    snprintf(message, sizeof message, "%s", rollout_coordinator_not_here);
    server_lock(session->server);
    bool done = coordinator->leads && rollout_abort(&coordinator->rollout, clock_monotonic_s(), message);
    const uint64_t target = coordinator->rollout.target;
    server_unlock(session->server);
    if (!done) {
        return serve_send_error(session, request, ERROR_NOT_ALLOWED, message, error);
    }
    audit_write(&coordinator->versions, "ps 0", session->channel.message.abort_rollout.who, "abort", target, "done");
    struct message_done answer = {.global_step = -1};
    return serve_send(session, MESSAGE_done, request, &answer, error);
}
