/*
 * A ps's part in rollouts, its coordinator. Every ps has an agent (ps/rollout/participant.h), for which this is the
 * host: it knows what a change means to a shard. ps 0 also leads: it decides by ps/rollout/decide.h what each member
 * does next. Operators' proposals and queries, and members' reports, arrive through rollouts.c.
 *
 * What ps 0 decides is on its disk before any member learns of it: members see `stored_state`, and get no order at all
 * while the state in memory is ahead of the one on disk. Files are written without the server's lock, which all
 * requests need.
 */
#include "ps/server/coordinator.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/restart.h"
#include "ps/rollout/participant.h"
#include "ps/rollout/history.h"
#include "ps/rollout/manifest.h"

enum { LEAVE_S = 15 };

static const double RATE_S = 0.2, FORGETTING = 0.99;
static const double STOOD_STILL_S = 2; /* between two ticks */
static const double REPAIR_S = 5;      /* between two looks for the repair of a damaged file */

/* --- What a change means to a ps --- */

static enum participant_switch switch_to(void *context, const struct config *config, int64_t step)
{
    struct rollout_coordinator *coordinator = context;
    struct server *server = coordinator->server;
    struct shard *shard = server->shard;
    int64_t now;
    if (shard_floats(shard) == 0) {
        step = 0; /* nobody pushes to a ps without parameters, so its step never advances */
    }
    bool is_new = coordinator->scheduled != step || step == 0;
    server_lock(server);
    if (is_new) {
        coordinator->scheduled = step;
        job_schedule(&server->job, config, step, clock_monotonic_s());
        const int64_t epoch_steps = job_epoch_steps(&server->job, config, server->job.epoch_batches);
        pthread_cond_broadcast(&server->changed); /* the waits may be over */
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
    const struct config_model fitted = model_with_ends(&then->model, &coordinator->server->config->model);
    struct model model;
    uint64_t there;
    model_layout(&model, &fitted);
    size_t wanted = server_memory(&model, then, coordinator->server->index, config_worker_room(&then->cluster));
    return !memory_for_this_process(&there) || wanted <= there ||
           error_set(error, "it would need %zu MiB of memory here, but there are %llu", wanted >> 20,
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

bool coordinator_store_manifest(const struct rollout_coordinator *coordinator, uint64_t target, const uint8_t *bytes,
                                size_t size, struct error *error)
{
    char path[VERSIONS_PATH];
    return lineage_path(coordinator->server->launched, target, path, error) && checked_write(path, bytes, size, error);
}

void coordinator_take_manifest(struct rollout_coordinator *coordinator, const struct manifest *manifest, uint8_t *bytes,
                               size_t size, const struct former_manifest *former)
{
    free(coordinator->manifest);
    free(coordinator->former.bytes);
    coordinator->former = *former;
    coordinator->manifest = bytes;
    coordinator->manifest_size = size;
    manifest_hash(bytes, size, coordinator->hash);
    memcpy(coordinator->digests[0], manifest->target.digest, sizeof coordinator->digests[0]);
    memcpy(coordinator->digests[1], manifest->fallback.digest, sizeof coordinator->digests[1]);
    coordinator->carried = manifest->programs;
    snprintf(coordinator->author, sizeof coordinator->author, "%s", manifest->author);
}

/* *bytes: NULL if there is none. */
static bool read_manifest(const struct rollout_coordinator *coordinator, uint64_t target, struct manifest *manifest,
                          uint8_t **bytes, size_t *size, struct error *error)
{
    *bytes = NULL;
    uint8_t *read;
    if (!lineage_load(coordinator->server->launched, target, &read, size, error)) {
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

static bool read_former(const struct rollout_coordinator *coordinator, uint64_t fallback,
                        struct former_manifest *former, struct error *error)
{
    struct manifest manifest;
    *former = (struct former_manifest){.bytes = NULL};
    former->is_damaged = !read_manifest(coordinator, fallback, &manifest, &former->bytes, &former->size, error);
    if (former->bytes) {
        former->programs = manifest.programs;
    }
    return !former->is_damaged;
}

void coordinator_find_former(const struct rollout_coordinator *coordinator, uint64_t fallback,
                             struct former_manifest *former)
{
    struct error error;
    if (!read_former(coordinator, fallback, former, &error)) {
        log_warning("%s", error.text); /* a member that far behind waits for the repair */
    }
}

/* Without the lock: a disk may be slow. */
static void retry_damaged(struct rollout_coordinator *coordinator, uint64_t fallback)
{
    struct former_manifest former;
    struct error error;
    if (!read_former(coordinator, fallback, &former, &error) || !former.bytes) {
        return;
    }
    server_lock(coordinator->server);
    const bool is_the_same = coordinator->rollout.fallback == fallback && coordinator->former.is_damaged;
    if (is_the_same) {
        coordinator->former = former;
    }
    server_unlock(coordinator->server);
    if (is_the_same) {
        log_info("the manifest of version %" PRIu64 " is whole again: members that are behind it get it", fallback);
    } else {
        free(former.bytes);
    }
}

/* Continues a rollout that an earlier process of this ps led, perhaps the one that restarted it. */
static bool resume(struct rollout_coordinator *coordinator, struct error *error)
{
    const char *config_path = coordinator->server->launched->path;
    uint8_t *bytes;
    size_t size;
    bool there;
    struct record record;
    struct manifest manifest;
    if (!config_path) {
        return true;
    }
    if (!versions_path(config_path, NULL, coordinator->versions.folder, error)) {
        return false;
    }
    coordinator->has_versions = true;
    if (!programs_name(&coordinator->programs, config_path, error) ||
        !record_read(&coordinator->versions, &there, &record, error)) {
        return false;
    }
    if (!there) {
        return true;
    }
    if (!read_manifest(coordinator, record.plan.target, &manifest, &bytes, &size, error)) {
        return false;
    }
    coordinator->highest = record.highest;
    coordinator->resumed_s = record.resumed_s;
    if (!bytes) {
        return true;
    }
    struct former_manifest former;
    coordinator_find_former(coordinator, manifest.fallback.version, &former);
    coordinator_take_manifest(coordinator, &manifest, bytes, size, &former);
    coordinator->stored_state = record.state;
    record.plan.brings_program = manifest_brings_programs(&manifest);
    record.plan.waves = manifest.programs.waves;
    record.plan.leader_is_in_target = (uint64_t)coordinator->server->config->fleet.version == record.plan.target;
    rollout_resume(&coordinator->rollout, record.state, &record.plan, record.loss_before, record.reason,
                   clock_monotonic_s());
    if (record.state != ROLLOUT_IDLE) {
        log_info("the rollout of version %" PRIu64 " was %s; now it is %s", record.plan.target,
                 rollout_state_name(record.state), rollout_state_name(coordinator->rollout.state));
    }
    return true;
}

/* --- Leading --- */

/* Has a connected worker reported no loss yet, since it started or joined again? Locked. */
static bool is_loss_pending(const struct rollout_coordinator *coordinator)
{
    const struct job *job = &coordinator->server->job;
    for (int i = 0; i < job->worker_count; i++) {
        if (job->workers[i].present && coordinator->losses[i] < 0) {
            return true;
        }
    }
    return false;
}

/* The loss of an untrained model, where the config determines it. */
static double chance_loss(const struct server *server)
{
    const enum loss_kind loss = server->config->train.loss;
    const int outputs = server->config->model.layers[server->model.layer_count];
    const bool classes = loss == LOSS_SOFTMAX || (loss == LOSS_AUTO && outputs > 1);
    return classes ? log(outputs) : INFINITY;
}

struct rollout_vitals coordinator_vitals(const struct rollout_coordinator *coordinator)
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
                                   .chance_loss = chance_loss(server),
                                   .unsure = is_loss_pending(coordinator),
                                   .in_step = cluster->issync || cluster->max_staleness > 0,
                                   .training = server->job.state == JOB_TRAINING,
                                   .waits = server->job.state == JOB_TRAINING && !server->job.started,
                                   .over = server->job.state == JOB_DONE};
}

void coordinator_audit(const struct rollout_coordinator *coordinator, const char *who, const char *what,
                       uint64_t version, const char *outcome)
{
    audit_write(
        &coordinator->versions,
        &(struct audit_entry){.member = "ps 0", .who = who, .what = what, .version = version, .outcome = outcome});
}

void coordinator_log_refusal(struct rollout_coordinator *coordinator, const char *who, const char *what,
                             uint64_t version, const char *why)
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

static void log_change(const struct rollout_coordinator *coordinator, enum rollout_state state, uint64_t target,
                       const char *message)
{
    if (state == ROLLOUT_GOING_BACK) {
        log_warning("rollout: %s", message);
    } else {
        log_info("rollout: %s", message);
    }
    coordinator_audit(coordinator, coordinator->author, rollout_state_name(state), target, message);
}

/* Measures steps per second. Locked. */
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

void coordinator_tick(struct rollout_coordinator *coordinator)
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
        rollout_extend_deadlines(&coordinator->rollout, now_s - coordinator->ticked_s);
    }
    coordinator->ticked_s = now_s;
    measure(coordinator, now_s);
    const struct rollout_vitals vitals = coordinator_vitals(coordinator);
    rollout_tick(&coordinator->rollout, &vitals, now_s);
    job_hold_start(&server->job, rollout_holds_job(&coordinator->rollout));
    bool changed = coordinator->rollout.changes != coordinator->stored;
    const uint64_t changes = coordinator->rollout.changes, highest = coordinator->highest;
    const uint64_t resumed_s = coordinator->resumed_s;
    const struct rollout rollout = coordinator->rollout;
    rollout_describe(&coordinator->rollout, message, sizeof message);
    const bool looks = !changed && coordinator->former.is_damaged && now_s - coordinator->looked_s >= REPAIR_S;
    coordinator->looked_s = looks ? now_s : coordinator->looked_s;
    server_unlock(server);
    if (looks) {
        retry_damaged(coordinator, rollout.fallback);
    }
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
                            .highest = highest,
                            .resumed_s = resumed_s};
    snprintf(record.reason, sizeof record.reason, "%s", rollout.reason);
    if (!record_store(&coordinator->versions, &record, &error)) {
        log_warning("rollout: %s; it continues once that can be written", error.text);
        return;
    }
    log_change(coordinator, rollout.state, rollout.target, message);
    server_lock(server);
    coordinator->stored = changes;
    coordinator->stored_state = rollout.state;
    server_unlock(server);
}

/* --- Reports of members --- */

uint64_t coordinator_in_force(const struct rollout_coordinator *coordinator, enum rollout_order order)
{
    const struct rollout *rollout = &coordinator->rollout;
    const bool may_go_back = rollout->state != ROLLOUT_IDLE && rollout->kind != ROLLOUT_LIVE;
    uint64_t in_force;
    char digest[CONFIG_DIGEST_HEX + 1];
    agent_version(coordinator->agent, &in_force, digest);
    return order == ORDER_CATCH_UP && may_go_back ? rollout->fallback : in_force;
}

enum rollout_order coordinator_order_for(struct rollout_coordinator *coordinator, struct member who, uint64_t version)
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
    rollout_delivered(rollout, who);
    if (version != rollout->fallback && version != rollout->target &&
        rollout_catch_up(rollout, rollout->fallback, version) != ORDER_NOTHING) { /* it can take part only afterwards */
        return ORDER_CATCH_UP;
    }
    return order;
}

bool coordinator_needs_manifest(const struct rollout_coordinator *coordinator, enum rollout_order order,
                                uint64_t target)
{
    return order == ORDER_CATCH_UP || (order != ORDER_NOTHING && target != coordinator->rollout.target);
}

/* Is the program that the member's handshake named one of those that the rollout brings? */
static bool runs_carried(const struct rollout_coordinator *coordinator, const char *program)
{
    const char *build = strstr(program, IDENTITY_BUILD);
    bool found = false;
    for (int i = 0; build && i < coordinator->carried.count; i++) {
        found = found ||
                strncmp(build + sizeof IDENTITY_BUILD - 1, coordinator->carried.items[i].digest, PROGRAM_ID_HEX) == 0;
    }
    return found;
}

/* Equal for members of the same architecture; 0: its program is too old to report it. */
static int architecture_of(const struct rollout_coordinator *coordinator, const char *program)
{
    const char *build = strstr(program, IDENTITY_BUILD);
    const char *name = build ? strchr(build + sizeof IDENTITY_BUILD - 1, ' ') : NULL;
    int found = 0;
    for (int i = 0; name && i < coordinator->carried.count; i++) {
        found = strcmp(name + 1, coordinator->carried.items[i].architecture) == 0 ? i + 1 : found;
    }
    return found;
}

_Static_assert((int)MANIFEST_MAX_PROGRAMS < (int)ROLLOUT_ARCHITECTURES, "each architecture has a number");

/* Steps that its present process made, as far as ps 0 knows. */
static int64_t steps_of(const struct job_worker *worker)
{
    const int64_t pushes = (int64_t)worker->sequence;
    return pushes > worker->local_step ? pushes : worker->local_step;
}

void coordinator_on_report(struct rollout_coordinator *coordinator, struct member who, const char *program,
                           const struct message_report *report)
{
    struct server *server = coordinator->server;
    const bool is_worker = who.role == MEMBER_WORKER && who.index < server->job.worker_count;
    const struct rollout_report heard = {.phase = (enum rollout_phase)report->phase,
                                         .version = report->version,
                                         .target = report->target,
                                         .ready = report->ready != 0,
                                         .runs_target = runs_carried(coordinator, program),
                                         .architecture = architecture_of(coordinator, program),
                                         .steps = is_worker ? steps_of(&server->job.workers[who.index]) : 0,
                                         .message = report->message};
    rollout_on_report(&coordinator->rollout, who, &heard, clock_monotonic_s());
    if (is_worker) {
        struct job_worker *worker = &server->job.workers[who.index];
        coordinator->losses[who.index] = report->loss;
        worker->fleet_version = report->version;
        snprintf(worker->digest, sizeof worker->digest, "%s", report->digest);
    }
}

void coordinator_copy_manifest(const struct rollout_coordinator *coordinator, uint8_t **bytes, size_t *size)
{
    *bytes = coordinator->manifest ? malloc(coordinator->manifest_size) : NULL;
    *size = *bytes ? coordinator->manifest_size : 0;
    if (*bytes) {
        memcpy(*bytes, coordinator->manifest, *size);
    }
}

void coordinator_copy_manifest_for(const struct rollout_coordinator *coordinator, enum rollout_order order,
                                   uint64_t version, uint8_t **bytes, size_t *size)
{
    const struct former_manifest *former = &coordinator->former;
    const uint64_t in_force = coordinator_in_force(coordinator, order);
    const bool is_behind = version < in_force && in_force == coordinator->rollout.fallback;
    if (order == ORDER_CATCH_UP && is_behind && former->is_damaged) { /* only it says what that version runs */
        *bytes = NULL;
        *size = 0;
        return;
    }
    if (order != ORDER_CATCH_UP || !is_behind || !former->bytes) {
        coordinator_copy_manifest(coordinator, bytes, size);
        return;
    }
    *bytes = malloc(former->size);
    *size = *bytes ? former->size : 0;
    if (*bytes) {
        memcpy(*bytes, former->bytes, *size);
    }
}

const struct manifest_program *coordinator_program(const struct rollout_coordinator *coordinator, const char *digest)
{
    const struct manifest_program *carried = manifest_program_by_digest(&coordinator->carried, digest);
    return carried ? carried : manifest_program_by_digest(&coordinator->former.programs, digest);
}

/* agent_options.ask on ps 0: its own agent reports without a connection. */
static bool ask_self(void *context, const struct message_report *report, struct agent_answer *answer,
                     struct error *error)
{
    struct rollout_coordinator *coordinator = context;
    const struct member identity = {MEMBER_PS, 0};
    uint8_t *manifest = NULL;
    server_lock(coordinator->server);
    coordinator_on_report(coordinator, identity, coordinator->server->identity.program, report);
    *answer = (struct agent_answer){.order = {.order = coordinator_order_for(coordinator, identity, report->version),
                                              .target = coordinator->rollout.target,
                                              .step = rollout_order_step(&coordinator->rollout)},
                                    .state = coordinator->stored_state};
    answer->order.in_force = coordinator_in_force(coordinator, answer->order.order);
    if (coordinator_needs_manifest(coordinator, answer->order.order, report->target)) {
        coordinator_copy_manifest(coordinator, &manifest, &answer->order.manifest_size);
        answer->order.manifest = manifest;
    }
    server_unlock(coordinator->server);
    (void)error;
    return true;
}

/* --- Create and destroy --- */

bool coordinator_create(struct rollout_coordinator **out, struct server *server, struct error *error)
{
    const int workers = server->config->cluster.worker_hosts.count, room = server->job.worker_count;
    struct rollout_coordinator *coordinator = must_zero(1, sizeof *coordinator, "rollouts");
    *out = coordinator;
    coordinator->server = server;
    pthread_mutex_init(&coordinator->upload_lock, NULL);
    coordinator->scheduled = -1;
    coordinator->leads = server->index == 0;
    coordinator->losses = must_zero((size_t)room, sizeof *coordinator->losses, "rollouts");
    for (int i = 0; i < room; i++) {
        coordinator->losses[i] = -1.0f;
    }
    if (!rollout_create(&coordinator->rollout, server->config->cluster.ps_hosts.count, workers, room)) {
        return error_set(error, "out of memory");
    }
    const struct agent_options options = {.config = server->launched,
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

void coordinator_destroy(struct rollout_coordinator *coordinator)
{
    if (coordinator) {
        agent_destroy(coordinator->agent);
        rollout_destroy(&coordinator->rollout);
        pthread_mutex_destroy(&coordinator->upload_lock);
        free(coordinator->manifest);
        free(coordinator->former.bytes);
        free(coordinator->losses);
        free(coordinator);
    }
}

bool coordinator_knows_digest(struct rollout_coordinator *coordinator, const char *digest)
{
    server_lock(coordinator->server);
    bool known = coordinator->manifest && coordinator->rollout.kind != ROLLOUT_JOB &&
                 (strcmp(digest, coordinator->digests[0]) == 0 || strcmp(digest, coordinator->digests[1]) == 0);
    server_unlock(coordinator->server);
    return known || agent_knows(coordinator->agent, digest);
}

bool coordinator_has_member(const struct rollout_coordinator *coordinator, struct member who)
{
    return change_has_member(coordinator->server->config, who) || agent_has_member(coordinator->agent, who);
}

void coordinator_version(struct rollout_coordinator *coordinator, uint64_t *version, char digest[CONFIG_DIGEST_HEX + 1])
{
    agent_version(coordinator->agent, version, digest);
}

void coordinator_show(const struct rollout_coordinator *coordinator, struct board_rollout *shown)
{
    const struct rollout *rollout = &coordinator->rollout;
    char message[1024];
    const struct board_rollout before = *shown;
    agent_show(coordinator->agent, shown);
    if (!coordinator->leads) {
        return;
    }
    const bool under_way = rollout->state != ROLLOUT_IDLE;
    if (!under_way) {
        shown->is_under_way = false;
        shown->text[0] = '\0';
        return;
    }
    const char *phase = rollout_state_name(rollout->state);
    shown->since_s = before.is_under_way && strcmp(before.phase, phase) == 0 ? before.since_s : clock_wall_s();
    rollout_describe(rollout, message, sizeof message);
    shown->is_under_way = true;
    shown->version = (int64_t)rollout->target;
    snprintf(shown->phase, sizeof shown->phase, "%s", phase);
    snprintf(shown->text, sizeof shown->text, "%.180s", message);
}

void coordinator_drift(struct rollout_coordinator *coordinator, char *message, size_t size)
{
    char drift[CONFIG_DRIFT_TEXT];
    const size_t used = strlen(message);
    agent_drift(coordinator->agent, drift);
    if (drift[0] != '\0') {
        snprintf(message + used, size - used, "%s%.250s", used > 0 ? "; " : "", drift);
    }
}
