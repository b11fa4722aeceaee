/*
 * A ps's part in rollouts, its coordinator. Every ps has an agent (ps/rollout/agent.h), for which this is the host:
 * it says what a change means to a shard. ps 0 leads besides: it takes the operator's proposals, decides by
 * ps/rollout/decide.h, and answers the reports of members and the questions of operators.
 *
 * What ps 0 decided is on its disk before anybody is told: members hear of `stored_state`, and of no order at all
 * while the state in memory is ahead of the one on disk. Files are written without the server's lock, which all
 * requests need.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/restart.h"
#include "observe/board.h"
#include "ps/rollout/agent.h"
#include "ps/rollout/history.h"
#include "ps/rollout/manifest.h"
#include "ps/server/internal.h"
#include "ps/server/requests/requests.h"

enum { LEAVE_S = 15, MEMBERS_TEXT = 60 * 1024 };

static const double RATE_S = 0.2, FORGETTING = 0.99;
static const double STOOD_STILL_S = 2; /* between two ticks */

/* What another ps than ps 0 says. */
static const char not_here[] = "rollouts are led by ps 0";

struct rollout_coordinator {
    struct server *server;
    struct agent *agent;
    int64_t scheduled; /* step of the switch that the shard was told of; -1: none. The agent's thread's */

    /* Of ps 0; guarded by the server's lock */
    bool leads;
    struct rollout rollout;
    uint8_t *manifest; /* of the current rollout or the last one; NULL: none */
    size_t manifest_size;
    uint8_t hash[MANIFEST_HASH]; /* of the manifest */
    char author[MANIFEST_MAX_NAME + 1];
    struct audit_meter meter;               /* of what is refused */
    char digests[2][CONFIG_DIGEST_HEX + 1]; /* of its target and fallback */
    uint64_t highest;                       /* ever proposed */
    bool proposing;                         /* one is about to be stored and begun */
    uint64_t stored;                        /* rollout.changes that are on disk */
    enum rollout_state stored_state;        /* likewise; what members are told */
    bool has_versions;
    struct versions versions;
    double ticked_s;
    double rated_s, fastest; /* steps per second lately, at their fastest: a switch must not come too soon */
    int64_t rated_step;
    uint32_t rated_generation; /* a restore is no step */
    float *losses;             /* [job.worker_count] as in the message `report` */
};

/* --- What a change means to a ps --- */

static enum participant_switch switch_to(void *context, const struct config *config, int64_t step)
{
    struct rollout_coordinator *coordinator = context;
    struct server *server = coordinator->server;
    struct shard *shard = server->shard;
    int64_t now;
    if (shard_floats(shard) == 0) {
        step = 0; /* nobody pushes to a ps that holds nothing, so that no step ever comes there */
    }
    bool is_new = coordinator->scheduled != step || step == 0;
    server_lock(server);
    if (is_new) {
        coordinator->scheduled = step;
        job_schedule(&server->job, config, step, clock_monotonic_s());
        const int64_t epoch_steps = job_epoch_steps(&server->job, config, server->job.epoch_batches);
        pthread_cond_broadcast(&server->changed); /* those who wait may have waited enough */
        pthread_cond_broadcast(&server->stepped);
        shard_schedule(shard, &config->train, epoch_steps, step);
    }
    const bool waits = server->job.has_next;
    server_unlock(server);
    shard_now(shard, NULL, &now);
    if (now < step || waits) {
        return SWITCH_PENDING;
    }
    coordinator->scheduled = -1;
    return is_new && step > 0 ? SWITCH_LATE : SWITCH_DONE;
}

static bool check(void *context, const struct config *then, struct error *error)
{
    const struct rollout_coordinator *coordinator = context;
    struct model model;
    uint64_t there;
    model_layout(&model, &then->model);
    size_t wanted = server_memory(&model, then, coordinator->server->index, config_worker_room(&then->cluster));
    return !memory_for_this_process(&there) || wanted <= there ||
           error_set(error, "it would take %zu MiB of memory here, but there are %llu", wanted >> 20,
                     (unsigned long long)(there >> 20));
}

/* Is the model here? */
static bool is_ready(void *context)
{
    struct server *server = ((struct rollout_coordinator *)context)->server;
    server_lock(server);
    bool ready = job_initialised(&server->job);
    server_unlock(server);
    return ready;
}

static void leave(void *context, bool for_good)
{
    const struct rollout_coordinator *coordinator = context;
    restart_within(LEAVE_S);
    atomic_store(&coordinator->server->shutdown_mode, for_good ? SHUTDOWN_FINAL : SHUTDOWN_RESTART);
}

/* --- The manifest --- */

/*
 * By its version, so that one that is not begun after all does not take the place of the last: ps 0 needs that for
 * members that were away.
 */
static bool store_manifest(const struct rollout_coordinator *coordinator, uint64_t target, const uint8_t *bytes,
                           size_t size, struct error *error)
{
    char path[VERSIONS_PATH];
    return lineage_path(coordinator->server->config, target, path, error) && checked_write(path, bytes, size, error);
}

/* Owns the bytes from now on. Locked. */
static void take_manifest(struct rollout_coordinator *coordinator, const struct manifest *manifest, uint8_t *bytes,
                          size_t size)
{
    free(coordinator->manifest);
    coordinator->manifest = bytes;
    coordinator->manifest_size = size;
    manifest_hash(bytes, size, coordinator->hash);
    memcpy(coordinator->digests[0], manifest->target.digest, sizeof coordinator->digests[0]);
    memcpy(coordinator->digests[1], manifest->fallback.digest, sizeof coordinator->digests[1]);
    snprintf(coordinator->author, sizeof coordinator->author, "%s", manifest->author);
}

/* By `version`, 0 being the last. *bytes: NULL if there is nothing, or another rollout's manifest. */
static bool read_manifest(const struct rollout_coordinator *coordinator, uint64_t version, uint64_t target,
                          struct manifest *manifest, uint8_t **bytes, size_t *size, struct error *error)
{
    *bytes = NULL;
    uint8_t *read;
    if (!lineage_load(coordinator->server->config, version, &read, size, error)) {
        return false;
    }
    if (!read) {
        return true;
    }
    const bool done = manifest_decode_unsigned(manifest, read, *size, error);
    if (done && manifest->target.version == target) {
        *bytes = read;
    } else {
        free(read);
    }
    return done;
}

/* By its version; earlier programs kept only the last one. */
static bool find_manifest(const struct rollout_coordinator *coordinator, uint64_t target, struct manifest *manifest,
                          uint8_t **bytes, size_t *size, struct error *error)
{
    return read_manifest(coordinator, target, target, manifest, bytes, size, error) &&
           (*bytes || read_manifest(coordinator, 0, target, manifest, bytes, size, error));
}

/* A rollout that an earlier process of this ps led, or leads, if it has just restarted for it. */
static bool resume(struct rollout_coordinator *coordinator, struct error *error)
{
    const char *config_path = coordinator->server->config->path;
    uint8_t *bytes;
    size_t size;
    bool there;
    struct record record;
    struct manifest manifest;
    if (!config_path) {
        return true;
    }
    snprintf(coordinator->versions.folder, sizeof coordinator->versions.folder, "%.4000s.d", config_path);
    coordinator->has_versions = true;
    if (!record_read(&coordinator->versions, &there, &record, error)) {
        return false;
    }
    if (!there) {
        return true;
    }
    if (!find_manifest(coordinator, record.plan.target, &manifest, &bytes, &size, error)) {
        return false;
    }
    coordinator->highest = record.highest;
    if (!bytes) {
        return true;
    }
    take_manifest(coordinator, &manifest, bytes, size);
    coordinator->stored_state = record.state;
    rollout_resume(&coordinator->rollout, record.state, &record.plan, record.loss_before, record.reason,
                   clock_monotonic_s());
    if (record.state != ROLLOUT_IDLE) {
        log_info("the rollout of version %" PRIu64 " was %s; now it is %s", record.plan.target,
                 rollout_state_name(record.state), rollout_state_name(coordinator->rollout.state));
    }
    return true;
}

/* --- Leading --- */

/* Has a worker that is here told no loss yet, since it started or joined again? Locked. */
static bool waits_for_a_loss(const struct rollout_coordinator *coordinator)
{
    const struct job *job = &coordinator->server->job;
    for (int i = 0; i < job->worker_count; i++) {
        if (job->workers[i].present && coordinator->losses[i] < 0) {
            return true;
        }
    }
    return false;
}

/* What a model that has learnt nothing loses, where the config says enough to know. */
static double loss_of_a_guess(const struct server *server)
{
    const enum loss_kind loss = server->config->train.loss;
    const int outputs = server->config->model.layers[server->model.layer_count];
    const bool classes = loss == LOSS_SOFTMAX || (loss == LOSS_AUTO && outputs > 1);
    return classes ? log(outputs) : INFINITY;
}

/* The state of training. Locked. */
static struct rollout_vitals read_vitals(const struct rollout_coordinator *coordinator)
{
    const struct server *server = coordinator->server;
    const struct config_cluster *cluster = &server->config->cluster;
    double worst = 0;
    for (int i = 0; i < server->job.worker_count; i++) {
        const bool comes_and_goes = i >= cluster->worker_hosts.count;
        float loss = comes_and_goes && !server->job.workers[i].present ? -1.0f : coordinator->losses[i];
        worst = isnan(worst) || isnan(loss) ? NAN : loss > (float)worst ? (double)loss : worst;
    }
    return (struct rollout_vitals){.global_step = server->job.global_step,
                                   .steps_per_s = coordinator->fastest,
                                   .generation = server->job.generation,
                                   .under_way =
                                       cluster->issync ? 1 : job_present(&server->job) * (1 + cluster->pipeline_depth),
                                   .may_come_s = cluster->issync ? cluster->lease_secs : 0,
                                   .loss = worst,
                                   .guess = loss_of_a_guess(server),
                                   .unsure = waits_for_a_loss(coordinator),
                                   .training = server->job.state == JOB_TRAINING,
                                   .waits = server->job.state == JOB_TRAINING && !server->job.started,
                                   .over = server->job.state == JOB_DONE};
}

static void audit(const struct rollout_coordinator *coordinator, const char *who, const char *what, uint64_t version,
                  const char *outcome)
{
    audit_write(
        &coordinator->versions,
        &(struct audit_entry){.member = "ps 0", .who = who, .what = what, .version = version, .outcome = outcome});
}

/* What is refused costs its sender nothing, so not all of it is written down. */
static void note_refusal(struct rollout_coordinator *coordinator, const char *who, const char *what, uint64_t version,
                         const char *why)
{
    uint64_t left_out;
    server_lock(coordinator->server);
    const bool may = audit_may_write(&coordinator->meter, clock_monotonic_s(), &left_out);
    server_unlock(coordinator->server);
    if (!may) {
        return;
    }
    log_warning("a rollout's %s is refused: %s", what, why);
    if (coordinator->has_versions) {
        audit_write(
            &coordinator->versions,
            &(struct audit_entry){
                .member = "ps 0", .who = who, .what = what, .version = version, .outcome = why, .left_out = left_out});
    }
}

static void tell_change(const struct rollout_coordinator *coordinator, enum rollout_state state, uint64_t target,
                        const char *message)
{
    if (state == ROLLOUT_GOING_BACK) {
        log_warning("rollout: %s", message);
    } else {
        log_info("rollout: %s", message);
    }
    audit(coordinator, coordinator->author, rollout_state_name(state), target, message);
}

/* Steps per second. Locked. */
static void measure(struct rollout_coordinator *coordinator, double now_s)
{
    const int64_t step = coordinator->server->job.global_step;
    double seconds = now_s - coordinator->rated_s;
    const uint32_t generation =
        coordinator->server->job.state == JOB_TRAINING ? coordinator->server->job.generation : 0;
    if (generation == 0 || coordinator->rated_generation != generation) {
        coordinator->rated_generation = generation;
        coordinator->rated_s = now_s;
        coordinator->rated_step = step;
    } else if (seconds >= RATE_S) {
        double rate = step > coordinator->rated_step ? (double)(step - coordinator->rated_step) / seconds : 0;
        coordinator->fastest = fmax(rate, coordinator->fastest * FORGETTING);
        coordinator->rated_s = now_s;
        coordinator->rated_step = step;
    }
}

void rollout_coordinator_tick(struct rollout_coordinator *coordinator)
{
    struct server *server = coordinator->server;
    struct error error;
    char message[1024];
    if (!coordinator->leads || !coordinator->has_versions) { /* without a config file there are no rollouts */
        return;
    }
    server_lock(server);
    const double now_s = clock_monotonic_s();
    if (coordinator->ticked_s > 0 && now_s - coordinator->ticked_s >= STOOD_STILL_S) {
        rollout_stood_still(&coordinator->rollout, now_s - coordinator->ticked_s);
    }
    coordinator->ticked_s = now_s;
    measure(coordinator, now_s);
    const struct rollout_vitals vitals = read_vitals(coordinator);
    rollout_tick(&coordinator->rollout, &vitals, now_s);
    job_keep_waiting(&server->job, rollout_keeps_waiting(&coordinator->rollout));
    bool changed = coordinator->rollout.changes != coordinator->stored;
    const uint64_t changes = coordinator->rollout.changes, highest = coordinator->highest;
    const struct rollout rollout = coordinator->rollout;
    rollout_describe(&coordinator->rollout, message, sizeof message);
    server_unlock(server);
    if (!changed) {
        return;
    }
    struct record record = {.state = rollout.state,
                            .plan = {.target = rollout.target,
                                     .fallback = rollout.fallback,
                                     .kind = rollout.kind,
                                     .healthy_s = rollout.healthy_s,
                                     .waited = rollout.waited,
                                     .absent = rollout.absent},
                            .loss_before = rollout.loss_before,
                            .highest = highest};
    snprintf(record.reason, sizeof record.reason, "%s", rollout.reason);
    if (!record_store(&coordinator->versions, &record, &error)) {
        log_warning("rollout: %s; it continues once that can be written", error.text);
        return;
    }
    tell_change(coordinator, rollout.state, rollout.target, message);
    server_lock(server);
    coordinator->stored = changes;
    coordinator->stored_state = rollout.state;
    server_unlock(server);
}

/* --- Proposals --- */

static struct rollout_demand demand_of(const struct config_cluster *cluster)
{
    return (struct rollout_demand){cluster->worker_hosts.count, cluster->min_workers};
}

/* Everything that speaks against a proposal, and what is known of it besides. Unlocked: it reads files. */
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
    plan->may_lose = manifest->may_lose;
    config_free(&fallback);
    config_free(&target);
    return can;
}

static bool begin(struct rollout_coordinator *coordinator, uint8_t *bytes, size_t size, const struct manifest *manifest,
                  const struct rollout_plan *plan, struct error *error)
{
    char message[256];
    server_lock(coordinator->server);
    const struct rollout_vitals vitals = read_vitals(coordinator);
    bool begun = rollout_begin(&coordinator->rollout, plan, &vitals, clock_monotonic_s(), message);
    if (begun) {
        job_keep_waiting(&coordinator->server->job, rollout_keeps_waiting(&coordinator->rollout));
        coordinator->highest = manifest->target.version;
        take_manifest(coordinator, manifest, bytes, size);
    }
    server_unlock(coordinator->server);
    return begun || error_set(error, "%s", message);
}

/* One proposal at a time: what is stored last under a version's number must be what is begun. */
static bool take_turn(struct rollout_coordinator *coordinator, struct error *error)
{
    server_lock(coordinator->server);
    const bool taken = coordinator->proposing;
    coordinator->proposing = true;
    server_unlock(coordinator->server);
    return !taken || error_set(error, "another proposal is being checked: try again");
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
                      store_manifest(coordinator, manifest->target.version, bytes, size, error) &&
                      begin(coordinator, bytes, size, manifest, plan, error);
    end_turn(coordinator);
    return done;
}

/* The operator's key, and a place for versions. */
static bool find_means(const struct rollout_coordinator *coordinator, uint8_t key[OPERATOR_PUBLIC_KEY],
                       struct error *error)
{
    const struct config *config = coordinator->server->config;
    char path[VERSIONS_PATH];
    struct versions versions;
    if (!coordinator->leads) {
        return error_set(error, not_here);
    }
    if (!config->path) {
        return error_set(error, "ps 0 runs without a config file, so there is no place to keep versions");
    }
    return participant_key_path(config, path, sizeof path, error) && operator_key_read_public(path, key, error) &&
           versions_open(&versions, config->path, error);
}

/* Owns the bytes once this returns true. */
static bool propose(struct rollout_coordinator *coordinator, uint8_t *bytes, size_t size, double healthy_s,
                    struct error *error)
{
    uint8_t key[OPERATOR_PUBLIC_KEY];
    struct manifest manifest = {.author = "unknown"};
    struct rollout_plan plan = {.healthy_s = healthy_s};
    bool done =
        find_means(coordinator, key, error) &&
        ((healthy_s >= 0 && healthy_s <= 86400) || error_set(error, "healthy_secs must be from 0 to 86400, a day")) &&
        manifest_decode(&manifest, bytes, size, key, error) && manifest_spares_machines(&manifest, error);
    plan.target = manifest.target.version;
    plan.fallback = manifest.fallback.version;
    const char *who = manifest.author[0] != '\0' ? manifest.author : "unknown";
    if (done && store_and_begin(coordinator, bytes, size, &manifest, &plan, error)) {
        audit(coordinator, who, "propose", plan.target, "begun");
        return true;
    }
    note_refusal(coordinator, who, "propose", plan.target, error->text);
    return false;
}

/* The caller frees *bytes. */
static bool read_bulk(struct session *session, uint8_t **bytes, size_t *size, struct error *error)
{
    *size = session->channel->bulk_left;
    *bytes = malloc(*size > 0 ? *size : 1);
    if (!*bytes) {
        return error_set(error, "out of memory");
    }
    if (!channel_read_bulk(session->channel, *bytes, *size, serve_deadline(), error)) {
        free(*bytes);
        return false;
    }
    return true;
}

bool serve_propose(struct session *session, struct error *error)
{
    struct rollout_coordinator *coordinator = session->server->coordinator;
    const uint64_t request = session->channel->frame.request;
    const double healthy_s = session->channel->message.propose.healthy_s;
    struct error why;
    uint8_t *bytes;
    size_t size;
    if (!read_bulk(session, &bytes, &size, error)) {
        return false;
    }
    if (!propose(coordinator, bytes, size, healthy_s, &why)) {
        free(bytes);
        return serve_send_error(session, request, ERROR_NOT_ALLOWED, why.text, error);
    }
    return serve_send_done(session, request, -1, error);
}

/* Of the rollout that is under way, and no other: an abort that was heard once is good for nothing afterwards. */
static bool take_abort(struct rollout_coordinator *coordinator, const struct manifest_abort *abort, struct error *error)
{
    char message[256] = "there is no rollout to abort";
    server_lock(coordinator->server);
    const bool is_this = coordinator->manifest && abort->target == coordinator->rollout.target &&
                         memcmp(abort->hash, coordinator->hash, MANIFEST_HASH) == 0 &&
                         strcmp(abort->fleet, coordinator->server->config->fleet.name) == 0;
    const bool done = is_this && rollout_abort(&coordinator->rollout, clock_monotonic_s(), message);
    server_unlock(coordinator->server);
    return done || (is_this ? error_set(error, "%s", message)
                            : error_set(error,
                                        "the abort is for version %" PRIu64
                                        " of fleet \"%s\", and not for the rollout that is under way",
                                        abort->target, abort->fleet));
}

bool serve_abort_rollout(struct session *session, struct error *error)
{
    struct rollout_coordinator *coordinator = session->server->coordinator;
    const uint64_t request = session->channel->frame.request;
    uint8_t key[OPERATOR_PUBLIC_KEY], *bytes;
    size_t size;
    struct manifest_abort abort = {.author = ""};
    struct error why;
    if (!read_bulk(session, &bytes, &size, error)) {
        return false;
    }
    const bool done = find_means(coordinator, key, &why) && manifest_abort_decode(&abort, bytes, size, key, &why) &&
                      take_abort(coordinator, &abort, &why);
    free(bytes);
    const char *who = abort.author[0] != '\0' ? abort.author : "unknown";
    if (!done) {
        note_refusal(coordinator, who, "abort", abort.target, why.text);
        return serve_send_error(session, request, ERROR_NOT_ALLOWED, why.text, error);
    }
    audit(coordinator, who, "abort", abort.target, "done");
    return serve_send_done(session, request, -1, error);
}

/* --- Reports of members, questions of operators --- */

/* Locked. */
static enum rollout_order order_for(struct rollout_coordinator *coordinator, struct member who, uint64_t version)
{
    struct rollout *rollout = &coordinator->rollout;
    uint64_t in_force;
    char digest[CONFIG_DIGEST_HEX + 1];
    if (!coordinator->manifest || rollout->changes != coordinator->stored || who.role == MEMBER_OPERATOR) {
        return ORDER_NOTHING;
    }
    if (rollout->state == ROLLOUT_IDLE) {
        agent_version(coordinator->agent, &in_force, digest);
        return rollout_catch_up(rollout, in_force, version);
    }
    enum rollout_order order = rollout_order(rollout, who);
    rollout_told(rollout, who);
    if (version != rollout->fallback && version != rollout->target &&
        rollout_catch_up(rollout, rollout->fallback, version) != ORDER_NOTHING) { /* it can take part only then */
        return ORDER_CATCH_UP;
    }
    return order;
}

/* Does the manifest go with it? A member that catches up forgets what it had. */
static bool needs_manifest(const struct rollout_coordinator *coordinator, enum rollout_order order, uint64_t target)
{
    return order == ORDER_CATCH_UP || (order != ORDER_NOTHING && target != coordinator->rollout.target);
}

/* Takes a member's report. Locked. */
static void hear(struct rollout_coordinator *coordinator, struct member who, const struct message_report *report)
{
    struct server *server = coordinator->server;
    const struct rollout_report heard = {.phase = (enum rollout_phase)report->phase,
                                         .version = report->version,
                                         .target = report->target,
                                         .ready = report->ready != 0,
                                         .message = report->message};
    rollout_heard(&coordinator->rollout, who, &heard, clock_monotonic_s());
    if (who.role == MEMBER_WORKER && who.index < server->job.worker_count) {
        struct job_worker *worker = &server->job.workers[who.index];
        coordinator->losses[who.index] = report->loss;
        worker->fleet_version = report->version;
        snprintf(worker->digest, sizeof worker->digest, "%s", report->digest);
    }
}

/* Locked. */
static void copy_manifest(const struct rollout_coordinator *coordinator, uint8_t **bytes, size_t *size)
{
    *bytes = coordinator->manifest ? malloc(coordinator->manifest_size) : NULL;
    *size = *bytes ? coordinator->manifest_size : 0;
    if (*bytes) {
        memcpy(*bytes, coordinator->manifest, *size);
    }
}

/* agent_options.ask on ps 0: the agent there reports to itself. */
static bool ask_self(void *context, const struct message_report *report, struct agent_answer *answer,
                     struct error *error)
{
    struct rollout_coordinator *coordinator = context;
    const struct member identity = {MEMBER_PS, 0};
    uint8_t *manifest = NULL;
    server_lock(coordinator->server);
    hear(coordinator, identity, report);
    *answer = (struct agent_answer){.order = {.order = order_for(coordinator, identity, report->version),
                                              .target = coordinator->rollout.target,
                                              .step = rollout_order_step(&coordinator->rollout)},
                                    .state = coordinator->stored_state};
    if (needs_manifest(coordinator, answer->order.order, report->target)) {
        copy_manifest(coordinator, &manifest, &answer->order.manifest_size);
        answer->order.manifest = manifest;
    }
    server_unlock(coordinator->server);
    (void)error;
    return true;
}

/* "ps 0: version 4, switched\n" for each. Locked. */
static void list_members(const struct rollout *rollout, char *text, size_t size)
{
    static const char *const phases[] = {"",           ", staged",     ", switched",          ", went back",
                                         ", restored", ", refused it", ", was told too late", ", tried it",
                                         ", saved"};
    double now_s = clock_monotonic_s();
    size_t used = 0;
    for (int i = 0; i < rollout->count && used < size; i++) {
        const struct rollout_member *member = &rollout->members[i];
        char name[MEMBER_TEXT];
        if (!member->listed && !rollout_is_here(member, now_s)) {
            continue;
        }
        member_format(&member->who, ' ', name);
        int length = member->heard_s < 0
                         ? snprintf(text + used, size - used, "%s: not heard of\n", name)
                         : snprintf(text + used, size - used, "%s: version %" PRIu64 "%s, %.1f s ago%s%s\n", name,
                                    member->version, phases[member->phase], now_s - member->heard_s,
                                    member->message[0] != '\0' ? ": " : "", member->message);
        used += (size_t)length;
    }
}

/*
 * Reports come without a config, so that nobody has checked who sends them. While the worker of that number is here,
 * only its own process counts; another one, started by mistake, say, is answered and not heard. Locked.
 */
static bool speaks_for(const struct session *session, struct member who)
{
    const struct job *job = &session->server->job;
    if (who.role != MEMBER_WORKER || who.index >= job->worker_count) {
        return true;
    }
    const struct job_worker *worker = &job->workers[who.index];
    return (!worker->present && !worker->cut_off) || worker->incarnation == session->incarnation;
}

/* What an operator or a member is answered. Locked. */
static void compose(struct session *session, struct member who, const struct message_report *report,
                    struct message_rollout *told, char message[1024])
{
    struct rollout_coordinator *coordinator = session->server->coordinator;
    char digest[CONFIG_DIGEST_HEX + 1];
    if (who.role != MEMBER_OPERATOR && speaks_for(session, who)) {
        hear(coordinator, who, report);
    }
    rollout_describe(&coordinator->rollout, message, 1024);
    *told = (struct message_rollout){
        .order = (uint8_t)order_for(coordinator, who, report->version),
        .state = (uint8_t)(who.role == MEMBER_OPERATOR ? coordinator->rollout.state : coordinator->stored_state),
        .outcome = (uint8_t)coordinator->rollout.outcome,
        .target = coordinator->rollout.target,
        .step = rollout_order_step(&coordinator->rollout),
        .message = message};
    told->step = who.role == MEMBER_OPERATOR ? coordinator->rollout.step : told->step;
    agent_version(coordinator->agent, &told->version, digest);
}

/*
 * What operators are told besides: the config in force, as this process was started or as it was rolled out since,
 * the one before, and what an operator signed of it, for they should not believe the rest. The receiver frees it all;
 * NULL: none, or no memory.
 */
struct told_texts {
    char *members, *job, *local, *earlier, *earlier_local;
    uint8_t *manifest;
    size_t manifest_size;
};

static char *copy_text(const char *text, size_t size)
{
    char *copy = size > 0 ? malloc(size + 1) : NULL;
    if (copy) {
        memcpy(copy, text, size);
        copy[size] = '\0';
    }
    return copy;
}

/* That of the rollout under way, or that by which the version in force came, or one that goes back to it. */
static void find_manifest_of(struct rollout_coordinator *coordinator, uint64_t version, struct told_texts *texts)
{
    struct error ignored;
    server_lock(coordinator->server);
    const bool is_last = coordinator->rollout.state != ROLLOUT_IDLE || coordinator->rollout.target == version ||
                         !coordinator->has_versions;
    if (is_last) {
        copy_manifest(coordinator, &texts->manifest, &texts->manifest_size);
    }
    server_unlock(coordinator->server);
    if (is_last ||
        (lineage_load(coordinator->server->config, version, &texts->manifest, &texts->manifest_size, &ignored) &&
         texts->manifest)) {
        return;
    }
    server_lock(coordinator->server);
    copy_manifest(coordinator, &texts->manifest, &texts->manifest_size);
    server_unlock(coordinator->server);
}

static void find_texts(struct rollout_coordinator *coordinator, struct told_texts *texts)
{
    uint64_t version;
    char digest[CONFIG_DIGEST_HEX + 1];
    size_t size;
    struct error ignored;
    struct manifest manifest;
    *texts = (struct told_texts){.members = calloc(1, MEMBERS_TEXT)};
    agent_version(coordinator->agent, &version, digest);
    if (strcmp(digest, coordinator->server->identity.digest) == 0 ||
        !versions_read(&coordinator->versions, version, &texts->job, &size, &ignored)) {
        texts->job = strdup(coordinator->server->identity.job);
    }
    if (!coordinator->has_versions ||
        !versions_read_local(&coordinator->versions, version, &texts->local, &size, &ignored)) {
        texts->local = NULL;
    }
    find_manifest_of(coordinator, version, texts);
    server_lock(coordinator->server);
    if (coordinator->manifest && coordinator->rollout.state == ROLLOUT_IDLE && version == coordinator->rollout.target &&
        manifest_decode_unsigned(&manifest, coordinator->manifest, coordinator->manifest_size, &ignored)) {
        texts->earlier = copy_text(manifest.fallback.text, manifest.fallback.text_size);
        texts->earlier_local = copy_text(manifest.fallback.local, manifest.fallback.local_size);
    }
    server_unlock(coordinator->server);
}

static void free_texts(struct told_texts *texts)
{
    free(texts->members);
    free(texts->job);
    free(texts->local);
    free(texts->earlier);
    free(texts->earlier_local);
    free(texts->manifest);
}

static struct member who_reports(const struct session *session)
{
    return session->guest.role != MEMBER_NONE ? session->guest
           : session->worker >= 0             ? (struct member){MEMBER_WORKER, session->worker}
           : session->ps >= 0                 ? (struct member){MEMBER_PS, session->ps}
                                              : (struct member){MEMBER_OPERATOR, MEMBER_ANY_INDEX};
}

bool serve_report(struct session *session, struct error *error)
{
    struct server *server = session->server;
    struct rollout_coordinator *coordinator = server->coordinator;
    struct channel *channel = session->channel;
    const struct message_report report = channel->message.report; /* its texts lie in the channel until it receives */
    const uint64_t request = channel->frame.request;
    const struct member who = who_reports(session);
    const bool is_operator = who.role == MEMBER_OPERATOR;
    struct message_rollout told;
    struct told_texts texts = {NULL};
    char message[1024];
    if (!coordinator->leads) {
        return serve_send_error(session, request, ERROR_NOT_ALLOWED, not_here, error);
    }
    if (is_operator) {
        find_texts(coordinator, &texts);
    }
    server_lock(server);
    compose(session, who, &report, &told, message);
    if (texts.members) {
        list_members(&coordinator->rollout, texts.members, MEMBERS_TEXT);
    }
    if (!is_operator && needs_manifest(coordinator, (enum rollout_order)told.order, report.target)) {
        copy_manifest(coordinator, &texts.manifest, &texts.manifest_size);
    }
    channel->generation = job_initialised(&server->job) ? server->job.generation : 0;
    told.highest = coordinator->highest > told.version ? coordinator->highest : told.version;
    server_unlock(server);
    told.members = texts.members;
    told.job = texts.job;
    told.local = texts.local;
    told.earlier = texts.earlier;
    told.earlier_local = texts.earlier_local;
    struct iovec bulk = {texts.manifest, texts.manifest_size};
    const struct outgoing frame = {.type = MESSAGE_rollout,
                                   .request = request,
                                   .message = &told,
                                   .bulk = &bulk,
                                   .bulk_parts = texts.manifest ? 1 : 0};
    bool sent = channel_send_frame(channel, &frame, serve_deadline(), error);
    free_texts(&texts);
    return sent;
}

/* --- Life --- */

bool rollout_coordinator_create(struct rollout_coordinator **out, struct server *server, struct error *error)
{
    const int workers = server->config->cluster.worker_hosts.count, room = server->job.worker_count;
    struct rollout_coordinator *coordinator = calloc(1, sizeof *coordinator);
    if (!coordinator) {
        return error_set(error, "out of memory");
    }
    *out = coordinator;
    coordinator->server = server;
    coordinator->scheduled = -1;
    coordinator->leads = server->index == 0;
    coordinator->losses = calloc((size_t)room, sizeof *coordinator->losses);
    for (int i = 0; coordinator->losses && i < room; i++) {
        coordinator->losses[i] = -1.0f;
    }
    if (!coordinator->losses ||
        !rollout_create(&coordinator->rollout, server->config->cluster.ps_hosts.count, workers, room)) {
        return error_set(error, "out of memory");
    }
    const struct agent_options options = {.config = server->config,
                                          .identity = &server->identity,
                                          .who = {MEMBER_PS, server->index},
                                          .host = {.context = coordinator,
                                                   .check = check,
                                                   .switch_to = switch_to,
                                                   .ready = is_ready,
                                                   .leave = leave,
                                                   .stays = true},
                                          .ask = coordinator->leads ? ask_self : NULL,
                                          .context = coordinator};
    return (!coordinator->leads || resume(coordinator, error)) && agent_create(&coordinator->agent, &options, error);
}

void rollout_coordinator_destroy(struct rollout_coordinator *coordinator)
{
    if (coordinator) {
        agent_destroy(coordinator->agent);
        rollout_destroy(&coordinator->rollout);
        free(coordinator->manifest);
        free(coordinator->losses);
        free(coordinator);
    }
}

bool rollout_coordinator_knows(struct rollout_coordinator *coordinator, const char *digest)
{
    server_lock(coordinator->server);
    bool known = coordinator->manifest && coordinator->rollout.kind != ROLLOUT_JOB &&
                 (strcmp(digest, coordinator->digests[0]) == 0 || strcmp(digest, coordinator->digests[1]) == 0);
    server_unlock(coordinator->server);
    return known || agent_knows(coordinator->agent, digest);
}

bool rollout_coordinator_has(const struct rollout_coordinator *coordinator, struct member who)
{
    return change_has_member(coordinator->server->config, who) || agent_has_member(coordinator->agent, who);
}

void rollout_coordinator_version(struct rollout_coordinator *coordinator, uint64_t *version,
                                 char digest[CONFIG_DIGEST_HEX + 1])
{
    agent_version(coordinator->agent, version, digest);
}

void rollout_coordinator_show(const struct rollout_coordinator *coordinator, struct board_rollout *shown)
{
    const struct rollout *rollout = &coordinator->rollout;
    char message[1024];
    const bool under_way = coordinator->leads && rollout->state != ROLLOUT_IDLE;
    if (!under_way) {
        shown->is_under_way = false;
        shown->text[0] = '\0';
        return;
    }
    const char *phase = rollout_state_name(rollout->state);
    if (!shown->is_under_way || strcmp(shown->phase, phase) != 0) {
        shown->since_s = clock_wall_s();
    }
    rollout_describe(rollout, message, sizeof message);
    shown->is_under_way = true;
    shown->version = (int64_t)rollout->target;
    snprintf(shown->phase, sizeof shown->phase, "%s", phase);
    snprintf(shown->text, sizeof shown->text, "%.180s", message);
}

void rollout_coordinator_drift(struct rollout_coordinator *coordinator, char *message, size_t size)
{
    char drift[DRIFT_TEXT];
    const size_t used = strlen(message);
    agent_drift(coordinator->agent, drift);
    if (drift[0] != '\0') {
        snprintf(message + used, size - used, "%s%.250s", used > 0 ? "; " : "", drift);
    }
}
