/*
 * A member's side of a rollout, in two parts.
 *
 * Staging checks all that could make a version fail here before anyone switches, since a refusal costs nothing then:
 * the signature, what flags and the local file make of the config, disk, memory, host names.
 *
 * Acting: orders come with polls, so the same one arrives many times. Each is carried out once, or continued, and its
 * outcome is on disk before it is reported.
 */
#include "ps/rollout/participant.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process/restart.h"
#include "ps/rollout/history.h"
#include "ps/rollout/target_config.h"
#include "ps/rollout/way_back.h"

enum { TRIES = 100 /* after a refusal, one order in this many is tried again: the cause may be gone */ };

/* After this long it follows the fleet once more into a version that it died in: something else may have killed it. */
static const double FAILED_S = 60.0;

static void write_audit(const struct rollout_participant *participant, const char *what, uint64_t version,
                        const char *outcome, uint64_t left_out)
{
    char name[MEMBER_TEXT];
    member_format(&participant->who, ' ', name);
    audit_write(&participant->versions, &(struct audit_entry){.member = name,
                                                              .who = participant->author,
                                                              .what = what,
                                                              .version = version,
                                                              .outcome = outcome,
                                                              .left_out = left_out});
}

static void audit(const struct rollout_participant *participant, const char *what, const char *outcome)
{
    write_audit(participant, what, participant->target, outcome, 0);
}

/* For what ps 0 may send any number of times, signed or not. False: there was too much of it to log. */
static bool audit_manifest(struct rollout_participant *participant, const char *what, uint64_t version,
                           const char *outcome)
{
    uint64_t left_out;
    if (!audit_may_write(&participant->meter, clock_monotonic_s(), &left_out)) {
        return false;
    }
    if (participant->versions.folder[0] != '\0') {
        write_audit(participant, what, version, outcome, left_out);
    }
    return true;
}

static void fail(struct rollout_participant *participant, const char *why)
{
    participant->phase = PHASE_FAILED;
    snprintf(participant->message, sizeof participant->message, "%.255s", why);
}

bool participant_key_path(const struct config *config, char *path, size_t size, struct error *error)
{
    const char *slash = strrchr(config->path, '/');
    int folder = slash ? (int)(slash - config->path) + 1 : 0;
    return (size_t)snprintf(path, size, "%.*soperator.pub", folder, config->path) < size ||
           error_set(error, "%s: the path is too long", config->path);
}

/* --- Staging --- */

/* Finds the operator's key and a folder for versions; without them this member can't take part. */
static bool find_means(struct rollout_participant *participant, struct error *error)
{
    char path[VERSIONS_PATH];
    if (!participant->config->path) {
        return error_set(error, "it runs without a config file, so there is no place to keep versions");
    }
    if (!participant_key_path(participant->config, path, sizeof path, error) ||
        !operator_key_read_public(path, participant->public_key, error)) {
        return false;
    }
    if (!versions_open(&participant->versions, participant->config->path, error)) {
        return false;
    }
    file_remove_leftovers(participant->versions.folder);
    config_drift_keep(&participant->drift);
    return true;
}

/*
 * Decodes the order's manifest: the operator must have signed it, and it must not set what only a machine's owner may.
 */
static bool take_signed(struct rollout_participant *participant, const struct participant_order *order,
                        struct manifest *manifest, struct error *error)
{
    if (!find_means(participant, error) ||
        !manifest_decode(manifest, order->manifest, order->manifest_size, participant->public_key, error)) {
        return false;
    }
    snprintf(participant->author, sizeof participant->author, "%s", manifest->author);
    return manifest_spares_machines(manifest, error);
}

/* Keeps for the next process the last manifest, and the one by which each version came. */
static bool store_manifest(const struct rollout_participant *participant, const struct participant_order *order,
                           uint64_t target, struct error *error)
{
    char path[VERSIONS_PATH];
    return lineage_path(participant->config, target, path, error) &&
           checked_write(path, order->manifest, order->manifest_size, error) &&
           file_join(path, sizeof path, participant->versions.folder, "manifest", error) &&
           file_keep(path, order->manifest, order->manifest_size, error);
}

static bool add_version(const struct rollout_participant *participant, const struct manifest_config *config,
                        struct error *error)
{
    return versions_add_local(&participant->versions, config->version, config->local, config->local_size, error) &&
           versions_add(&participant->versions, config->version, config->text, config->text_size, error);
}

/* A member whose config is neither version does not run the fleet's. */
static bool check_digest(const struct rollout_participant *participant, const struct manifest *manifest,
                         struct error *error)
{
    const struct manifest_config *same =
        participant->version == manifest->target.version ? &manifest->target : &manifest->fallback;
    return strcmp(participant->digest, same->digest) == 0 ||
           error_set(error, "what runs here is not version %llu of the manifest: the configs differ",
                     (unsigned long long)same->version);
}

static bool check_machine(struct rollout_participant *participant, const struct manifest_config *target,
                          struct error *error)
{
    const struct config *before = &participant->configs[1], *after = &participant->configs[0];
    if (!change_is_free(participant->config, after, error) ||
        !target_config_apply(participant->config, target, &participant->then, error) ||
        !target_config_has_disk(&participant->versions, error) ||
        !target_config_resolves(&before->cluster, &after->cluster, error)) {
        return false;
    }
    if (!change_has_member(&participant->then, participant->who)) {
        return true;
    }
    return config_check_role(&participant->then, error) &&
           (!participant->host.check || participant->host.check(participant->host.context, &participant->then, error));
}

static bool store_all(struct rollout_participant *participant, const struct participant_order *order,
                      const struct manifest *manifest, struct error *error)
{
    return add_version(participant, &manifest->fallback, error) && add_version(participant, &manifest->target, error) &&
           store_manifest(participant, order, manifest->target.version, error);
}

/* --- The target's program --- */

/* Marks a catch-up as tried, so that it is retried, but not at every order. */
static void fail_program(struct rollout_participant *participant, const char *why)
{
    target_program_stop(&participant->program);
    participant->tried = ORDER_CATCH_UP;
    fail(participant, why);
    audit(participant, "fetch the program", why);
}

/* True once it is on this machine. */
static bool look_for_program(struct rollout_participant *participant)
{
    struct error error;
    const enum intake_state state = target_program_look(&participant->program, &error);
    if (state == INTAKE_FAILED) {
        fail_program(participant, error.text);
    }
    return state == INTAKE_WHOLE;
}

bool participant_wants(const struct rollout_participant *participant, const char **digest, uint64_t *offset)
{
    return target_program_wants(&participant->program, digest, offset);
}

void participant_take(struct rollout_participant *participant, uint64_t offset, const void *bytes, size_t size)
{
    struct target_program *program = &participant->program;
    struct error error;
    if (!program->is_open || offset != program->intake.there || size == 0) {
        return;
    }
    const enum intake_state state = target_program_add(program, bytes, size, &error);
    if (state == INTAKE_OPEN) {
        snprintf(participant->message, sizeof participant->message, "%llu of %llu KiB of the program are here",
                 (unsigned long long)(program->intake.there >> 10), (unsigned long long)(program->size >> 10));
    } else if (state == INTAKE_WHOLE) { /* the next order will find it */
        participant->message[0] = '\0';
        audit(participant, "fetch the program", "done");
    } else {
        fail_program(participant, error.text);
    }
}

/* True if this program reads both configs as they were signed, and runs one of them. */
static bool understand(struct rollout_participant *participant, const struct manifest *manifest, struct error *error)
{
    participant->misreads =
        !check_digest(participant, manifest, error) ||
        !target_config_parse(&manifest->target, "target", &participant->configs[0], error) ||
        !target_config_parse(&manifest->fallback, "fallback", &participant->configs[1], error) ||
        !manifest_kind(manifest, &participant->configs[1], &participant->configs[0], &participant->kind, error);
    return !participant->misreads;
}

/* Verifies the order's manifest, stores both versions and prepares. The previous manifest has been forgotten. */
static bool stage_manifest(struct rollout_participant *participant, const struct participant_order *order,
                           struct error *error)
{
    struct manifest manifest;
    if (!take_signed(participant, order, &manifest, error)) {
        return false;
    }
    const struct manifest_config *from = &manifest.fallback, *to = &manifest.target;
    const bool is_behind = participant->version != to->version;
    participant->may_lose = manifest.may_lose;
    if (!is_behind) { /* it was signed for the running version, so its fallback holds even if the rest is refused */
        participant->fallback = from->version;
    }
    bool done =
        (!is_behind || manifest_fits(&manifest, participant->config->fleet.name, participant->version, 0, error)) &&
        understand(participant, &manifest, error) && (!is_behind || check_machine(participant, to, error)) &&
        store_all(participant, order, &manifest, error) &&
        target_program_stage(&participant->program, participant->config->path, participant->version, &manifest, false,
                             error);
    if (done) {
        const bool mixes = participant->kind != ROLLOUT_JOB;
        snprintf(participant->digests[0], sizeof participant->digests[0], "%s", mixes ? to->digest : "");
        snprintf(participant->digests[1], sizeof participant->digests[1], "%s", mixes ? from->digest : "");
    }
    if (done && participant->version == from->version) { /* so that one is settled, even if this process never heard */
        way_back_end(participant->config->path, participant->version);
    }
    if (done && order->order == ORDER_STAGE && is_behind && participant->host.save) {
        done = participant->host.save(participant->host.context, error);
        participant->prepared = done;
    }
    return done;
}

/*
 * Allows a version it crashed in again: a ps that stays behind blocks the fleet, for which that version evidently
 * works.
 */
static bool may_follow(struct rollout_participant *participant, uint64_t version, struct error *error)
{
    const double now_s = clock_monotonic_s();
    if (!way_back_was_taken(participant->config->path, version, error)) {
        return true;
    }
    participant->failed_s = participant->failed_s > 0 ? participant->failed_s : now_s;
    return now_s - participant->failed_s >= FAILED_S;
}

/* Has the next process start in that version; if it keeps crashing there, it goes back to this one. */
static bool prepare_next(const struct rollout_participant *participant, uint64_t version, bool is_back,
                         struct error *error)
{
    const char *path = participant->config->path;
    if (is_back) {
        way_back_go(path, version);
        return true;
    }
    return way_back_keep(participant->config, &participant->versions, participant->version, error) &&
           way_back_begin(path, version, participant->version, error);
}

/* For a member that was away: verifies the manifest, stores the version in force and switches to it. */
static bool stage_catch_up(struct rollout_participant *participant, const struct participant_order *order,
                           struct error *error)
{
    struct manifest manifest;
    struct target_program *program = &participant->program;
    const char *path = participant->config->path;
    if (!take_signed(participant, order, &manifest, error)) {
        return false;
    }
    const bool is_back = order->in_force == manifest.fallback.version;
    const struct manifest_config *now = is_back ? &manifest.fallback : &manifest.target;
    if (strcmp(manifest.fleet, participant->config->fleet.name) != 0 || now->version != order->in_force) {
        return error_set(error, "the manifest is for fleet \"%s\" and version %llu, not for \"%s\" and version %llu",
                         manifest.fleet, (unsigned long long)now->version, participant->config->fleet.name,
                         (unsigned long long)order->in_force);
    }
    if (now->version <= participant->version &&
        !(is_back && way_back_leads_to(participant->config, participant->version, &manifest))) {
        return error_set(error, "the manifest is old: version %llu, but version %llu is here",
                         (unsigned long long)now->version, (unsigned long long)participant->version);
    }
    return (is_back || may_follow(participant, now->version, error)) &&
           target_config_parse(now, is_back ? "fallback" : "target", &participant->configs[0], error) &&
           target_config_apply(participant->config, now, &participant->then, error) &&
           store_all(participant, order, &manifest, error) &&
           (is_back ? target_program_find_former(program, path, participant->version, &manifest, error)
                    : target_program_stage(program, path, participant->version, &manifest, true, error)) &&
           (!program->is_due || error_set(error, "its program is not here yet")) &&
           prepare_next(participant, now->version, is_back, error) &&
           versions_switch(&participant->versions, now->version, error);
}

/* --- Startup and shutdown --- */

/*
 * What the last rollout left on disk. If it is not settled yet, it may still go back, to the newest checkpoint there
 * is.
 */
static void recall(struct rollout_participant *participant)
{
    struct lineage lineage;
    if (!lineage_read(participant->config, &lineage)) {
        return;
    }
    if (lineage.kind != ROLLOUT_JOB) {
        memcpy(participant->digests, lineage.digests, sizeof participant->digests);
    }
    participant->prepared = lineage.target == participant->version || lineage.fallback == participant->version;
}

bool participant_create(struct rollout_participant *participant, const struct config *config, struct member who,
                        const struct participant_host *host, struct error *error)
{
    *participant = (struct rollout_participant){
        .config = config, .host = *host, .who = who, .version = (uint64_t)config->fleet.version};
    recall(participant);
    config_drift_begin(&participant->drift, config);
    return config_digest(config, participant->digest, error);
}

static void forget(struct rollout_participant *participant)
{
    target_program_stop(&participant->program);
    config_free(&participant->configs[0]);
    config_free(&participant->configs[1]);
    config_free(&participant->then);
    participant->target = participant->fallback = 0;
    participant->misreads = false;
    participant->tried = ORDER_NOTHING;
    participant->phase = PHASE_NONE;
    participant->message[0] = '\0';
}

void participant_destroy(struct rollout_participant *participant)
{
    forget(participant);
}

/* --- Acting --- */

static void take_manifest(struct rollout_participant *participant, const struct participant_order *order)
{
    struct error error;
    forget(participant);
    snprintf(participant->author, sizeof participant->author, "unknown");
    bool done = stage_manifest(participant, order, &error);
    participant->target = order->target;
    participant->phase = participant->program.is_due ? PHASE_NONE : PHASE_STAGED;
    if (done) {
        participant->fallback = (uint64_t)participant->configs[1].fleet.version;
    } else {
        target_program_stop(&participant->program);
        config_free(&participant->configs[0]);
        config_free(&participant->configs[1]);
        fail(participant, error.text);
    }
    if (audit_manifest(participant, "stage", participant->target, done ? "done" : error.text) && !done) {
        log_warning("version %llu of the config is refused: %s", (unsigned long long)order->target, error.text);
    }
}

/* which: 0 the target, 1 the fallback. False: it failed. */
static bool enter_version(struct rollout_participant *participant, int which)
{
    struct error error;
    const uint64_t number = (uint64_t)participant->configs[which].fleet.version;
    if (!versions_switch(&participant->versions, number, &error)) {
        fail(participant, error.text);
        return false;
    }
    participant->version = number;
    memcpy(participant->digest, participant->digests[which], sizeof participant->digest);
    audit(participant, which == 0 ? "switch" : "go back", "done");
    return true;
}

/* Switches live; the host may need several orders for it. */
static void change_over(struct rollout_participant *participant, int which, int64_t step)
{
    enum participant_switch result =
        participant->host.switch_to(participant->host.context, &participant->configs[which], step);
    if (result == SWITCH_PENDING) {
        return;
    }
    if (result == SWITCH_LATE) {
        participant->phase = PHASE_LATE;
        snprintf(participant->message, sizeof participant->message, "step %lld had passed when it learnt of it",
                 (long long)step);
        return;
    }
    if (enter_version(participant, which)) {
        participant->phase = which == 0 ? PHASE_SWITCHED : PHASE_BACK;
        participant->message[0] = '\0';
        log_info("version %llu of the config is in force%s", (unsigned long long)participant->version,
                 which == 0 ? "" : ": went back");
    }
}

/* Local keys take effect at the next start, so only the version changes now. */
static void note_version(struct rollout_participant *participant, int which)
{
    if (enter_version(participant, which)) {
        log_info("version %llu of the config is in force; its local keys take effect at the next start",
                 (unsigned long long)participant->version);
    }
}

static void restart(struct rollout_participant *participant, int which)
{
    struct error error;
    const char *path = participant->config->path;
    uint64_t number = (uint64_t)participant->configs[which].fleet.version;
    if (which == 0 && !change_has_member(&participant->configs[0], participant->who)) {
        return; /* not in the target: it exits once that is settled */
    }
    if (which == 0 && way_back_was_taken(path, number, &error)) {
        fail(participant, error.text);
        return;
    }
    if (participant->kind == ROLLOUT_LOCAL && participant->host.stays && !participant->program.is_new) {
        note_version(participant, which);
        return;
    }
    if (which == 1) {
        way_back_go(path, number);
    }
    if ((which == 0 && !way_back_begin(path, number, participant->fallback, &error)) ||
        !versions_switch(&participant->versions, number, &error)) {
        fail(participant, error.text);
        return;
    }
    audit(participant, which == 0 ? "start again" : "go back", "begun");
    log_info("restarting in version %llu of the config", (unsigned long long)number);
    participant->leaving = true;
    participant->host.leave(participant->host.context, false);
}

/* Worker 0: a trial or a checkpoint, each once per rollout. */
static void do_once(struct rollout_participant *participant, enum rollout_order order)
{
    struct error error = {"only worker 0 can do that"};
    const struct participant_host *host = &participant->host;
    bool done = false;
    if (participant->tried >= order) {
        return;
    }
    participant->tried = order;
    if (order == ORDER_TRY && host->try_out) {
        done = host->try_out(host->context, &participant->then, participant->may_lose, &error);
    } else if (order == ORDER_SAVE && host->save) {
        done = host->save(host->context, &error);
    }
    audit(participant, order == ORDER_TRY ? "try" : "save", done ? "done" : error.text);
    if (done) {
        participant->phase = order == ORDER_TRY ? PHASE_TRIED : PHASE_SAVED;
    } else {
        fail(participant, error.text);
    }
}

static void catch_up(struct rollout_participant *participant, const struct participant_order *order)
{
    struct error error;
    char before[sizeof participant->message] = "";
    const bool again = participant->tried == ORDER_CATCH_UP;
    if (participant->program.is_due && !look_for_program(participant)) {
        return;
    }
    if (!order->manifest || (again && ++participant->refusals % TRIES != 0)) {
        return;
    }
    if (again) {
        snprintf(before, sizeof before, "%s", participant->message);
    }
    forget(participant);
    bool done = stage_catch_up(participant, order, &error);
    if (participant->program.is_due) { /* it is staged again once the program is here */
        return;
    }
    participant->tried = ORDER_CATCH_UP;
    if (!done && strncmp(error.text, before, sizeof before - 1) == 0) { /* logged before */
        fail(participant, error.text);
        return;
    }
    bool stays_out = done && !change_has_member(&participant->configs[0], participant->who);
    const bool may_log = audit_manifest(participant, "catch up", order->in_force, done ? "begun" : error.text);
    if (!done) {
        fail(participant, error.text);
        if (may_log) {
            log_error("this member has version %llu of the config, the fleet is at version %llu, and it can't follow: "
                      "%s",
                      (unsigned long long)participant->version, (unsigned long long)order->in_force, error.text);
        }
        return;
    }
    log_info("the fleet is at version %llu of the config: this process %s", (unsigned long long)order->in_force,
             stays_out ? "is no longer in it and exits" : "restarts in it");
    participant->leaving = true;
    participant->host.leave(participant->host.context, stays_out);
}

static void settle(struct rollout_participant *participant)
{
    if (participant->prepared && participant->host.settle) {
        participant->host.settle(participant->host.context);
    }
    participant->prepared = false;
    probation_end(participant->config->path);
}

static bool goes_back(enum rollout_order order)
{
    return order == ORDER_BACK || order == ORDER_RESTORE || order == ORDER_RETURN;
}

static void restore(struct rollout_participant *participant)
{
    struct error error;
    if (!participant->host.restore) {
        return;
    }
    bool done = participant->host.restore(participant->host.context, &error);
    participant->phase = done ? PHASE_RESTORED : PHASE_BACK;
    snprintf(participant->message, sizeof participant->message, "%.255s", done ? "" : error.text);
    audit(participant, "restore", done ? "done" : error.text);
}

static void go_back(struct rollout_participant *participant, const struct participant_order *order)
{
    if (order->order == ORDER_RETURN) {
        if (participant->version != participant->fallback) {
            restart(participant, 1);
        } else {
            participant->phase = PHASE_BACK;
        }
    } else if (participant->phase != PHASE_BACK && participant->phase != PHASE_RESTORED) {
        change_over(participant, 1, 0);
    } else if (order->order == ORDER_RESTORE && participant->phase == PHASE_BACK) {
        restore(participant);
    }
}

/*
 * Leaves a target that this process runs but refuses: its program may read the configs differently from the previous
 * one, which still works, so it restarts in that. If it goes by itself, it is on probation and records that as failed,
 * or it would follow the fleet again. A full disk may prevent all this: it keeps trying, but not at every order.
 */
static void leave_target(struct rollout_participant *participant, bool by_itself)
{
    struct error error;
    uint64_t version;
    if (participant->refusals++ % TRIES != 0) {
        return;
    }
    const bool found = way_back_find(participant->config, &participant->versions, participant->version,
                                     participant->fallback, &version);
    if (found && by_itself) {
        probation_fail(participant->config->path);
    }
    if (!found || !versions_switch(&participant->versions, version, &error)) {
        participant->target = 0; /* the manifest comes with the next order: its reason may be gone */
        return;
    }
    way_back_go(participant->config->path, version);
    audit(participant, "go back", "begun");
    log_warning("%s: restarting in version %llu of the config", participant->message, (unsigned long long)version);
    participant->leaving = true;
    participant->host.leave(participant->host.context, false);
}

/*
 * The target was refused here, so there is nothing to undo but the model, unless this process runs it already. A canary
 * that misreads the configs has reported so by the next order, and goes back without being told. If the fleet switches
 * without this member, the manifest is staged again now and then: the cause may be gone.
 */
static void act_without(struct rollout_participant *participant, const struct participant_order *order)
{
    const bool is_in_target = participant->version == participant->target;
    const bool by_itself = !goes_back(order->order) && participant->misreads &&
                           way_back_is_open(participant->config->path, participant->version);
    if (is_in_target && (goes_back(order->order) || by_itself)) {
        leave_target(participant, by_itself);
    } else if (!goes_back(order->order)) {
        participant->phase = PHASE_FAILED;
        if (order->order == ORDER_SWITCH && !is_in_target && ++participant->refusals % TRIES == 0) {
            participant->target = 0;
        }
    } else {
        participant->phase = participant->phase == PHASE_RESTORED ? PHASE_RESTORED : PHASE_BACK;
        if (order->order == ORDER_RESTORE && participant->phase == PHASE_BACK) {
            restore(participant);
        }
    }
}

void participant_act(struct rollout_participant *participant, const struct participant_order *order)
{
    config_drift_look(&participant->drift);
    if (participant->leaving) {
        return;
    }
    if (order->order == ORDER_NOTHING) {
        if (order->settled) {
            settle(participant);
        }
        return;
    }
    if (order->order == ORDER_CATCH_UP) {
        catch_up(participant, order);
        return;
    }
    if (order->target != participant->target) {
        if (order->manifest) {
            take_manifest(participant, order);
        }
        return;
    }
    bool has_both = participant->configs[1].path;
    if (!has_both) {
        act_without(participant, order);
        return;
    }
    if (participant->program.is_due && !goes_back(order->order)) {
        if (look_for_program(participant)) {
            participant->phase = PHASE_STAGED;
        }
        return;
    }
    switch (order->order) {
    case ORDER_SWITCH:
        if (participant->phase == PHASE_STAGED) {
            change_over(participant, 0, order->step);
        }
        break;
    case ORDER_TRY:
    case ORDER_SAVE:
        do_once(participant, order->order);
        break;
    case ORDER_RESTART:
        if (participant->version == participant->target) {
            participant->phase = PHASE_SWITCHED;
        } else {
            restart(participant, 0);
        }
        break;
    case ORDER_BACK:
    case ORDER_RESTORE:
    case ORDER_RETURN:
        go_back(participant, order);
        break;
    case ORDER_NOTHING:
    case ORDER_STAGE:
    case ORDER_CATCH_UP:
        break;
    }
}

void participant_report(const struct rollout_participant *participant, struct rollout_report *report)
{
    const struct participant_host *host = &participant->host;
    *report = (struct rollout_report){.phase = participant->phase,
                                      .version = participant->version,
                                      .target = participant->target,
                                      .ready = !participant->leaving && (!host->ready || host->ready(host->context)),
                                      .message = participant->message};
}
