/*
 * A member's side of a rollout. Two parts:
 *
 * Staging: everything that may speak against a version is found out before anybody changes over, since a refusal costs
 * nothing then: the signature, what flags and the file here make of the config, disk, memory, names of hosts. Acting:
 * orders are those of a poll, so the same one comes many times; each is carried out once, or goes on, and what is done
 * is kept on disk first.
 */
#include "ps/rollout/participant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process/restart.h"
#include "base/text/address.h"
#include "net/resolver.h"
#include "ps/rollout/history.h"

enum {
    SPARE_DISK = 1 << 20, /* bytes for versions and logs */
    TRIES = 100           /* orders that pass before what was refused is tried again: its reason may be gone */
};

static const double RESOLVE_S = 5.0;

/* After which it follows the fleet once more into a version that it died in: it may have been killed by others. */
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

/* Of what ps 0 may send any number of times, signed or not; false: there was too much of it to be logged. */
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

/* The operator's key, and a place for versions; or why this member can't take part. */
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

/* The order's manifest, if the operator signed it and it leaves to this machine what is its own. */
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

/* The last manifest, and by which one each version came, for the next process. */
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

/* A member that is in neither version has another config than the fleet. */
static bool check_digest(const struct rollout_participant *participant, const struct manifest *manifest,
                         struct error *error)
{
    const struct manifest_config *same =
        participant->version == manifest->target.version ? &manifest->target : &manifest->fallback;
    return strcmp(participant->digest, same->digest) == 0 ||
           error_set(error, "what runs here is not version %llu of the manifest: the configs differ",
                     (unsigned long long)same->version);
}

static bool parse_one(const struct manifest_config *from, const char *name, struct config *config, struct error *error)
{
    char digest[CONFIG_DIGEST_HEX + 1];
    if (!config_parse(config, name, (const uint8_t *)from->text, from->text_size, NULL, 0, error) ||
        !config_digest(config, digest, error)) {
        return false;
    }
    return (strcmp(digest, from->digest) == 0 && config->fleet.version == (int64_t)from->version) ||
           error_set(error,
                     "this program reads the manifest's %s differently from the one that signed it: are both the same "
                     "version?",
                     name);
}

/* Hosts that are new, or moved, must have addresses: half a fleet that waits for a misspelt name is no fleet. */
static bool resolve_new(const struct string_list *before, const struct string_list *after, struct error *error)
{
    const double deadline_s = clock_monotonic_s() + RESOLVE_S;
    bool done = true;
    for (int i = 0; i < after->count && done; i++) {
        struct address address;
        struct endpoints endpoints;
        if (i < before->count && strcmp(before->items[i], after->items[i]) == 0) {
            continue;
        }
        done = address_parse(after->items[i], &address, error) &&
               resolver_find(&address, NULL, deadline_s, &endpoints, error);
    }
    return done;
}

static bool check_disk(const struct rollout_participant *participant, struct error *error)
{
    struct statvfs disk;
    if (statvfs(participant->versions.folder, &disk) == 0 && (uint64_t)disk.f_bavail * disk.f_frsize < SPARE_DISK) {
        return error_set(error, "%s: less than %d KiB are left on that disk", participant->versions.folder,
                         SPARE_DISK >> 10);
    }
    return true;
}

/* Would the file, which counts if its version is not lower, or a flag make something else of the version? */
static bool check_file(struct rollout_participant *participant, const struct manifest_config *target,
                       struct error *error)
{
    struct config_texts texts = {
        .job = target->text, .job_size = target->text_size, .local = target->local, .local_size = target->local_size};
    char digest[CONFIG_DIGEST_HEX + 1];
    int64_t file_version = config_drift_file_version(participant->config);
    const bool is_it = file_version == (int64_t)target->version;
    if (is_it) { /* nothing of the version's counts then */
        texts = (struct config_texts){.job = NULL};
    }
    bool parsed = config_in_version(&participant->then, participant->config, &texts, error) &&
                  config_digest(&participant->then, digest, error);
    if (file_version > (int64_t)target->version || (is_it && parsed && strcmp(digest, target->digest) != 0)) {
        return error_set(error,
                         "%s here has fleet.version %lld, so it would override version %llu: was it edited by hand?",
                         participant->config->path, (long long)file_version, (unsigned long long)target->version);
    }
    return parsed &&
           (strcmp(digest, target->digest) == 0 ||
            error_set(error, "flags or the environment of this process change it: see `trainer config show`"));
}

static bool check_machine(struct rollout_participant *participant, const struct manifest_config *target,
                          struct error *error)
{
    const struct config_cluster *before = &participant->configs[1].cluster, *after = &participant->configs[0].cluster;
    if (!change_is_free(participant->config, &participant->configs[0], error) ||
        !check_file(participant, target, error) || !check_disk(participant, error) ||
        !resolve_new(&before->ps_hosts, &after->ps_hosts, error) ||
        !resolve_new(&before->worker_hosts, &after->worker_hosts, error)) {
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

/* --- The program that comes with it --- */

/* A catch-up is tried again, but not all the time. */
static void fail_program(struct rollout_participant *participant, const char *why)
{
    target_program_stop(&participant->program);
    participant->tried = ORDER_CATCH_UP;
    fail(participant, why);
    audit(participant, "fetch the program", why);
}

/* Is it here by now, if there is any? */
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
    } else if (state == INTAKE_WHOLE) { /* the next order finds it */
        participant->message[0] = '\0';
        audit(participant, "fetch the program", "done");
    } else {
        fail_program(participant, error.text);
    }
}

/* Does this program make of both configs what was signed, and of its own what the fleet does? */
static bool understand(struct rollout_participant *participant, const struct manifest *manifest, struct error *error)
{
    participant->misreads =
        !check_digest(participant, manifest, error) ||
        !parse_one(&manifest->target, "target", &participant->configs[0], error) ||
        !parse_one(&manifest->fallback, "fallback", &participant->configs[1], error) ||
        !manifest_kind(manifest, &participant->configs[1], &participant->configs[0], &participant->kind, error);
    return !participant->misreads;
}

static bool is_on_probation(const struct rollout_participant *participant)
{
    struct probation probation;
    return probation_read(participant->config->path, &probation) && !probation.failed &&
           probation.target == participant->version;
}

/* What it would go back to is no longer kept: deaths from now on have other causes. */
static void end_own_probation(const struct rollout_participant *participant)
{
    if (is_on_probation(participant)) {
        probation_end(participant->config->path);
    }
}

/* Verifies the order's manifest, keeps both versions, and prepares. The participant has forgotten the last one. */
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
    if (!is_behind) { /* what was signed for this very version tells where it goes back to, whatever else is wrong */
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
    if (done && participant->version == from->version) { /* which was settled, though this process may not have heard */
        end_own_probation(participant);
    }
    if (done && order->order == ORDER_STAGE && is_behind && participant->host.save) {
        done = participant->host.save(participant->host.context, error);
        participant->prepared = done;
    }
    return done;
}

/* Down only where this manifest says so, or the one by which the version here came: that was signed, too. */
static bool goes_back_to(const struct rollout_participant *participant, const struct manifest *manifest,
                         const struct manifest_config *now)
{
    struct lineage own;
    return participant->version == manifest->target.version ||
           (lineage_of(participant->config, participant->version, &own) && own.fallback == now->version &&
            strcmp(own.digests[1], now->digest) == 0);
}

/* Did this process die in that version, and was it brought back? */
static bool has_failed(const struct rollout_participant *participant, uint64_t version, struct error *error)
{
    struct probation probation;
    if (!probation_read(participant->config->path, &probation) || !probation.failed || probation.target != version) {
        return false;
    }
    error_set(error, "it failed %d times when started in version %llu", PROBATION_STARTS, (unsigned long long)version);
    return true;
}

/* What runs here may have come with config.json alone, or be older than what the manifest goes back to. */
static bool keep_own_version(const struct rollout_participant *participant, struct error *error)
{
    struct error ignored;
    if (versions_verify(&participant->versions, participant->version, &ignored)) {
        return true;
    }
    char *text = config_job_text(participant->config);
    const bool done = text ? versions_add(&participant->versions, participant->version, text, strlen(text), error)
                           : error_set(error, "out of memory");
    free(text);
    return done;
}

/* A ps that stays behind holds all up, and a version that the fleet is in is good enough to be tried again. */
static bool may_follow(struct rollout_participant *participant, uint64_t version, struct error *error)
{
    const double now_s = clock_monotonic_s();
    if (!has_failed(participant, version, error)) {
        return true;
    }
    participant->failed_s = participant->failed_s > 0 ? participant->failed_s : now_s;
    return now_s - participant->failed_s >= FAILED_S;
}

/*
 * Whoever is on the way back gets there, or the fleet would wait for ever: without the former program in this one,
 * until a supervisor starts the one that is installed.
 */
static void prepare_back(const struct rollout_participant *participant, uint64_t version)
{
    struct error error;
    if (!program_prepare(participant->config->path, version, false, &error)) {
        log_warning("%s; version %llu of the config continues in the current program", error.text,
                    (unsigned long long)version);
    }
}

/* The next process is in that version; one that it kills goes back to this one. */
static bool prepare_next(const struct rollout_participant *participant, uint64_t version, bool is_back,
                         struct error *error)
{
    const char *path = participant->config->path;
    if (is_back) {
        prepare_back(participant, version);
        return true;
    }
    return keep_own_version(participant, error) && probation_begin(path, version, participant->version, error) &&
           program_prepare(path, version, true, error);
}

/* Verifies it for a member that was away, keeps the version that is in force, and switches to it. */
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
    if (now->version <= participant->version && !(is_back && goes_back_to(participant, &manifest, now))) {
        return error_set(error, "the manifest is old: version %llu, but version %llu is here",
                         (unsigned long long)now->version, (unsigned long long)participant->version);
    }
    return (is_back || may_follow(participant, now->version, error)) &&
           parse_one(now, is_back ? "fallback" : "target", &participant->configs[0], error) &&
           check_file(participant, now, error) && store_all(participant, order, &manifest, error) &&
           (is_back ? target_program_find_former(program, path, participant->version, &manifest, error)
                    : target_program_stage(program, path, participant->version, &manifest, true, error)) &&
           (!program->is_due || error_set(error, "its program is not here yet")) &&
           prepare_next(participant, now->version, is_back, error) &&
           versions_switch(&participant->versions, now->version, error);
}

/* --- Life --- */

/* What the last rollout left here. It may not be settled yet, and go back to the newest checkpoint there is. */
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

/* Live. */
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

/* Local keys count from the next start on: nothing but the version changes now. */
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
        return; /* it has no place in the target, and ends once that is settled */
    }
    if (which == 0 && has_failed(participant, number, &error)) {
        fail(participant, error.text);
        return;
    }
    if (participant->kind == ROLLOUT_LOCAL && participant->host.stays && !participant->program.is_new) {
        note_version(participant, which);
        return;
    }
    if (which == 1) {
        prepare_back(participant, number);
    }
    if ((which == 0 && (!probation_begin(path, number, participant->fallback, &error) ||
                        !program_prepare(path, number, true, &error))) ||
        !versions_switch(&participant->versions, number, &error)) {
        fail(participant, error.text);
        return;
    }
    audit(participant, which == 0 ? "start again" : "go back", "begun");
    log_info("restarting in version %llu of the config", (unsigned long long)number);
    participant->leaving = true;
    participant->host.leave(participant->host.context, false);
}

/* Worker 0: a trial, or a checkpoint; once for each rollout. */
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
    if (!look_for_program(participant)) {
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
    if (participant->program.is_due) { /* and then all of this again */
        return;
    }
    participant->tried = ORDER_CATCH_UP;
    if (!done && strncmp(error.text, before, sizeof before - 1) == 0) { /* as it said before */
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

/* What the operator signed says where to; after a refusal of the signature, what was signed when this version came. */
static bool find_way_back(struct rollout_participant *participant, uint64_t *version)
{
    struct lineage own;
    struct error ignored;
    *version = participant->fallback;
    if (*version == 0 && lineage_of(participant->config, participant->version, &own)) {
        *version = own.fallback;
    }
    return *version > 0 && versions_open(&participant->versions, participant->config->path, &ignored) &&
           versions_verify(&participant->versions, *version, &ignored);
}

/*
 * Out of a target that this process is in and that it refuses, as it comes back: its program may make something else of
 * the configs than the one before it did. That one can go on, so back by a restart. By itself, the member is on
 * probation, which has to say that this failed: or it would follow again. A full disk may be in the way: then it tries
 * again, for ever, but not all the time.
 */
static void leave_target(struct rollout_participant *participant, bool by_itself)
{
    struct error error;
    uint64_t version;
    if (participant->refusals++ % TRIES != 0) {
        return;
    }
    const bool found = find_way_back(participant, &version);
    if (found && by_itself) {
        probation_fail(participant->config->path);
    }
    if (!found || !versions_switch(&participant->versions, version, &error)) {
        participant->target = 0; /* the manifest comes with the next order: its reason may be gone */
        return;
    }
    prepare_back(participant, version);
    audit(participant, "go back", "begun");
    log_warning("%s: restarting in version %llu of the config", participant->message, (unsigned long long)version);
    participant->leaving = true;
    participant->host.leave(participant->host.context, false);
}

/*
 * The target was refused here, so that there is nothing to undo but the model, unless this process is in it already. A
 * canary that misreads the configs has said so when the next order comes, and needs none to go back. Where the fleet
 * switches without this member, its reason may be gone one day: then the manifest is staged again.
 */
static void act_without(struct rollout_participant *participant, const struct participant_order *order)
{
    const bool is_in_target = participant->version == participant->target;
    const bool by_itself = !goes_back(order->order) && participant->misreads && is_on_probation(participant);
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
