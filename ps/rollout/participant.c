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

#include <cJSON.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/config/keys.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process/program.h"
#include "base/process/restart.h"
#include "base/text/address.h"
#include "base/trust.h"
#include "net/message.h"
#include "net/socket.h"

enum { TRIES = 100 /* after a refusal, one order in this many is tried again: the cause may be gone */ };

/* After this long it follows the fleet once more into a version that it died in: something else may have killed it. */
static const double FAILED_S = 60.0;

/* --- Drift: the file's JSON content is compared, and read again only when the file was touched --- */

enum { MAX_FILE = 1 << 20 /* bytes of config.json */ };

static cJSON *read_json(const char *path)
{
    uint8_t *bytes;
    size_t size;
    struct error ignored;
    if (!path || !file_read(path, MAX_FILE, &bytes, &size, &ignored)) {
        return NULL;
    }
    cJSON *root = cJSON_ParseWithLength((const char *)bytes, size);
    free(bytes);
    return root;
}

/* White space does not count. A file that is not JSON has the digest "". */
static void digest_file(const char *path, char digest[CONFIG_DRIFT_HEX + 1])
{
    uint8_t hash[CONFIG_DRIFT_HEX / 2];
    cJSON *root = read_json(path);
    char *text = root ? cJSON_PrintUnformatted(root) : NULL;
    digest[0] = '\0';
    if (text) {
        crypto_generichash(hash, sizeof hash, (const uint8_t *)text, strlen(text), NULL, 0);
        sodium_bin2hex(digest, CONFIG_DRIFT_HEX + 1, hash, sizeof hash);
    }
    cJSON_free(text);
    cJSON_Delete(root);
}

/* fleet.version of the file as it is now; 0 if it says nothing or can't be read. */
static int64_t config_drift_file_version(const struct config *config)
{
    cJSON *root = read_json(config->path);
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(root, "fleet"), "version");
    int64_t number = cJSON_IsNumber(version) ? (int64_t)version->valuedouble : 0;
    cJSON_Delete(root);
    return number;
}

/* Is a rolled-out version in force here, and not the file? */
static bool is_in_version(const struct config *config)
{
    const struct config_key *key = config_key_by_path("fleet", "version");
    return config_origin_of(config, key)->source == SOURCE_VERSION;
}

static bool read_base(struct config_drift *drift)
{
    char path[VERSIONS_PATH];
    uint8_t *text;
    size_t size;
    struct error ignored;
    if (!versions_path(drift->config->path, "base", path, &ignored) || !file_exists(path) ||
        !trust_file(path, &ignored) || !file_read(path, CONFIG_DRIFT_HEX, &text, &size, &ignored)) {
        return false;
    }
    snprintf(drift->base, sizeof drift->base, "%s", (const char *)text);
    free(text);
    return size == CONFIG_DRIFT_HEX;
}

/* Writes CONFIG.d/base if there is a folder of versions: the next process must know it, too. */
static void config_drift_keep(const struct config_drift *drift)
{
    char path[VERSIONS_PATH], folder[VERSIONS_PATH];
    struct error ignored;
    if (drift->base[0] != '\0' && versions_path(drift->config->path, "base", path, &ignored) &&
        versions_path(drift->config->path, NULL, folder, &ignored) && file_exists(folder)) {
        (void)file_keep(path, drift->base, CONFIG_DRIFT_HEX, &ignored); /* others report a full disk */
    }
}

/* Looks at the file again if it was touched; cheap. */
static void config_drift_check(struct config_drift *drift)
{
    struct stat now;
    char digest[CONFIG_DRIFT_HEX + 1];
    const char *path = drift->config->path;
    if (!path || stat(path, &now) != 0 ||
        (now.st_mtim.tv_sec == drift->seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == drift->seen.st_mtim.tv_nsec &&
         now.st_size == drift->seen.st_size && now.st_ino == drift->seen.st_ino)) {
        return;
    }
    drift->seen = now;
    digest_file(path, digest);
    bool differs = strcmp(digest, drift->base) != 0;
    snprintf(drift->text, sizeof drift->text, "%s%.128s%s", differs ? "drift: " : "", differs ? path : "",
             differs ? " was edited by hand and is not in force: roll it out or undo the edit" : "");
}

/* Without a config file there is none. */
static void config_drift_begin(struct config_drift *drift, const struct config *config)
{
    *drift = (struct config_drift){.config = config};
    if (!config->path) {
        return;
    }
    if (!is_in_version(config) || !read_base(drift)) {
        digest_file(config->path, drift->base);
        config_drift_keep(drift);
    }
    config_drift_check(drift);
}

/* --- What only this machine knows about a config: its file, flags and environment, its disk, its resolver --- */

enum { SPARE_DISK = 1 << 20 /* bytes for versions and logs */ };

static const double RESOLVE_S = 5.0;

/*
 * Parses a signed config. Fails if this program reads it differently from the one that signed it. name: "target" or
 * "fallback", for the error. The caller frees *config, also after a failure.
 */
static bool target_config_parse(const struct manifest_config *from, const char *name, struct config *config,
                                struct error *error)
{
    char digest[CONFIG_DIGEST_HEX + 1];
    if (!config_parse(config, name, (const uint8_t *)from->text, from->text_size, NULL, 0, error)) {
        return false;
    }
    config_digest(config, digest);
    return (strcmp(digest, from->digest) == 0 && config->fleet.version == (int64_t)from->version) ||
           error_set(error,
                     "this program reads the manifest's %s differently from the one that signed it: are both the same "
                     "version?",
                     name);
}

/*
 * *then: the config that a process started like this one, in `own`, would have in the target. Fails if that differs
 * from what was signed: a flag or the environment changes it, or the local file, which takes precedence unless its
 * version is lower. The caller frees *then, also after a failure.
 */
static bool target_config_apply(const struct config *own, const struct manifest_config *target, struct config *then,
                                struct error *error)
{
    struct config_texts texts = {
        .job = target->text, .job_size = target->text_size, .local = target->local, .local_size = target->local_size};
    char digest[CONFIG_DIGEST_HEX + 1];
    int64_t file_version = config_drift_file_version(own);
    const bool is_it = file_version == (int64_t)target->version;
    if (is_it) { /* then the file alone counts */
        texts = (struct config_texts){.job = NULL};
    }
    const bool parsed = config_in_version(then, own, &texts, error);
    if (parsed) {
        config_digest(then, digest);
    }
    if (file_version > (int64_t)target->version || (is_it && parsed && strcmp(digest, target->digest) != 0)) {
        return error_set(error,
                         "%s here has fleet.version %lld, so it would override version %llu: was it edited by hand?",
                         own->path, (long long)file_version, (unsigned long long)target->version);
    }
    return parsed &&
           (strcmp(digest, target->digest) == 0 ||
            error_set(error, "flags or the environment of this process change it: see `trainer config show`"));
}

/* True if there is room for versions and logs. */
static bool target_config_has_disk(const struct versions *versions, struct error *error)
{
    struct statvfs disk;
    if (statvfs(versions->folder, &disk) == 0 && (uint64_t)disk.f_bavail * disk.f_frsize < SPARE_DISK) {
        return error_set(error, "%s: less than %d KiB are left on that disk", versions->folder, SPARE_DISK >> 10);
    }
    return true;
}

/* Hosts that are new or moved must resolve: a misspelt name would leave half the fleet waiting. May take seconds. */
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

/* --- The target's program: which one each version runs in is on disk before any member restarts --- */

/* A target without a program runs in its fallback's. */
static bool keep_program(const char *path, const struct manifest *manifest, struct error *error)
{
    char digest[PROGRAM_DIGEST_HEX + 1];
    return program_of_version(path, manifest->fallback.version, digest, error) &&
           (digest[0] == '\0' || program_set_version(path, manifest->target.version, digest, error));
}

/* Can this machine, which runs the fallback, switch to that program and back? */
static bool may_change_program(const struct manifest *manifest, const struct manifest_program *coming, bool follows,
                               struct error *error)
{
    const char *own = program_own_digest();
    if (manifest->programs.protocol > PROTOCOL_VERSION_MAX) {
        return error_set(error,
                         "the new program speaks protocol versions from %u on, and this one up to %d: they could not "
                         "train together; roll out one between them first",
                         manifest->programs.protocol, PROTOCOL_VERSION_MAX);
    }
    return follows || coming->fallback[0] == '\0' || strcmp(coming->fallback, own) == 0 ||
           error_set(error, "this machine runs another program (%.16s) than the one to go back to (%.16s)", own,
                     coming->fallback);
}

/* is_behind: this process is in the fallback, so the program to go back to is the running one. */
static bool record_programs(const struct target_program *program, const char *path, bool is_behind,
                            const struct manifest *manifest, const struct manifest_program *coming, bool follows,
                            struct error *error)
{
    const char *former = coming->fallback;
    if (is_behind && program->is_new) {
        if (!may_change_program(manifest, coming, follows, error) || !programs_keep_own(&program->programs, error)) {
            return false;
        }
        former = program_own_digest();
    }
    return (former[0] == '\0' || program_set_version(path, manifest->fallback.version, former, error)) &&
           program_set_version(path, manifest->target.version, coming->digest, error);
}

static void prune_programs(const struct target_program *program, const char *path, const struct manifest *manifest)
{
    char before[PROGRAM_DIGEST_HEX + 1];
    const char *keep[2 * MANIFEST_MAX_PROGRAMS + 2] = {program_own_digest(), before};
    struct error ignored;
    int count = 2;
    if (!program_of_version(path, manifest->fallback.version, before, &ignored)) {
        return; /* the file is damaged: keep whatever it may have named */
    }
    for (int i = 0; i < manifest->programs.count; i++) {
        keep[count++] = manifest->programs.items[i].digest;
        if (manifest->programs.items[i].fallback[0] != '\0') {
            keep[count++] = manifest->programs.items[i].fallback;
        }
    }
    programs_prune(&program->programs, keep, count);
}

/*
 * Finds the manifest's program for this machine, and records it; sets is_due if it must be received. version: the one
 * that this process is in. follows: the fleet is in the target already, so a machine is not refused for running the
 * installed program because its copy of the former one is damaged.
 */
static bool target_program_stage(struct target_program *program, const char *config_path, uint64_t version,
                                 const struct manifest *manifest, bool follows, struct error *error)
{
    const struct manifest_program *coming = manifest_program_for(&manifest->programs, program_own_architecture());
    const bool is_behind = version == manifest->fallback.version;
    program->is_new = manifest_brings_programs(manifest);
    if (manifest->programs.count == 0) {
        return keep_program(config_path, manifest, error);
    }
    if (!coming) {
        return error_set(
            error, "it includes no program for this machine's architecture, %s: roll out one for each architecture",
            program_own_architecture());
    }
    if (!programs_name(&program->programs, config_path, error) ||
        (program->is_new && !programs_may_run(&program->programs, error)) ||
        !record_programs(program, config_path, is_behind, manifest, coming, follows, error)) {
        return false;
    }
    prune_programs(program, config_path, manifest);
    snprintf(program->digest, sizeof program->digest, "%s", coming->digest);
    program->size = coming->size;
    program->is_due = !programs_have_whole(&program->programs, coming->digest);
    return true;
}

/*
 * For going back to the manifest's fallback without having staged it: records the fallback's program, which must be on
 * this machine. True also if the manifest does not say which, or if this process is in a version above.
 */
static bool target_program_find_former(struct target_program *program, const char *config_path, uint64_t version,
                                       const struct manifest *manifest, struct error *error)
{
    const uint64_t former = manifest->fallback.version;
    const struct manifest_program *coming = manifest_program_for(&manifest->programs, program_own_architecture());
    if (!coming || coming->fallback[0] == '\0' || version > former) {
        return true;
    }
    if (!programs_name(&program->programs, config_path, error)) {
        return false;
    }
    return strcmp(coming->fallback, program_own_digest()) == 0 ||
                   programs_have_whole(&program->programs, coming->fallback)
               ? program_set_version(config_path, former, coming->fallback, error)
               : error_set(error, "the program of version %llu (%.16s) is not on this machine",
                           (unsigned long long)former, coming->fallback);
}

/* INTAKE_WHOLE once it is here. If no process on this machine is receiving it, this one begins to. */
static enum intake_state target_program_check(struct target_program *program, struct error *error)
{
    if (!program->is_due || program->is_open) {
        return program->is_due ? INTAKE_OPEN : INTAKE_WHOLE;
    }
    const enum intake_state state =
        program_intake_open(&program->intake, &program->programs, program->digest, program->size, error);
    program->is_due = state != INTAKE_WHOLE;
    program->is_open = state == INTAKE_OPEN;
    return state;
}

/* Receives no more of it; what has been received is kept. */
static void target_program_stop(struct target_program *program)
{
    if (program->is_open) {
        program_intake_close(&program->intake);
    }
    program->is_open = program->is_due = false;
}

/* Adds the bytes at that offset. INTAKE_WHOLE: they were the last, and target_program_check will find it. */
static enum intake_state target_program_add(struct target_program *program, const void *bytes, size_t size,
                                            struct error *error)
{
    if (!program_intake_add(&program->intake, bytes, size, error)) {
        target_program_stop(program);
        return INTAKE_FAILED;
    }
    if (program->intake.there < program->size) {
        return INTAKE_OPEN;
    }
    program_intake_close(&program->intake);
    program->is_open = false; /* still due, until target_program_check finds it */
    return INTAKE_WHOLE;
}

/* --- The way back --- */

/*
 * A member's way back from a version: the next process starts on probation (base/process/restart.h), and which lower
 * version it may return to is what the operator signed. versions: the folder of the config; version: what this process
 * runs, unless it says otherwise. One thread at a time.
 */

/* Stores the running version, which may have come with config.json alone, or be older than the manifest's fallback. */
static bool store_running_version(const struct config *config, const struct versions *versions, uint64_t version,
                                  struct error *error)
{
    struct error ignored;
    if (versions_verify(versions, version, &ignored)) {
        return true;
    }
    char *text = config_job_text(config);
    const bool done = versions_add(versions, version, text, strlen(text), error);
    free(text);
    return done;
}

/*
 * Has the next process start in this version's program, on probation: if it keeps crashing, it starts in the fallback
 * again. Both versions are stored.
 */
static bool begin_probation(const char *config_path, uint64_t version, uint64_t fallback, struct error *error)
{
    return probation_begin(config_path, version, fallback, error) && program_prepare(config_path, version, true, error);
}

/*
 * Has the next process start in the program of this version, to which it goes back. That must not fail, or the fleet
 * would wait forever: if the program is missing, the current one runs the version until a supervisor starts the
 * installed one.
 */
static void activate_fallback(const char *config_path, uint64_t version)
{
    struct error error;
    if (!program_prepare(config_path, version, false, &error)) {
        log_warning("%s; version %llu of the config continues in the current program", error.text,
                    (unsigned long long)version);
    }
}

/* True, with an error, if this member crashed in that version and was taken back. */
static bool has_failed(const char *config_path, uint64_t version, struct error *error)
{
    struct probation probation;
    if (!probation_read(config_path, &probation) || !probation.failed || probation.target != version) {
        return false;
    }
    error_set(error, "it failed %d times when started in version %llu", PROBATION_STARTS, (unsigned long long)version);
    return true;
}

/* True if this process is on probation. */
static bool is_on_probation(const char *config_path, uint64_t version)
{
    struct probation probation;
    return probation_read(config_path, &probation) && !probation.failed && probation.target == version;
}

/* Ends that: the version it would go back to is no longer kept, and crashes from now on have other causes. */
static void end_probation(const char *config_path, uint64_t version)
{
    if (is_on_probation(config_path, version)) {
        probation_end(config_path);
    }
}

/*
 * True if the operator signed that a member in this version may go down to the manifest's fallback, in this manifest or
 * in the one that brought the version.
 */
static bool may_fall_back(const struct config *config, uint64_t version, const struct manifest *manifest)
{
    struct lineage own;
    return version == manifest->target.version ||
           (lineage_of(config, version, &own) && own.fallback == manifest->fallback.version &&
            strcmp(own.digests[1], manifest->fallback.digest) == 0);
}

/*
 * *to: the fallback, or, if that is 0 because the manifest was refused, the fallback in the manifest that brought the
 * running version. False if there is none, or if its files are missing or damaged. Opens the versions.
 */
static bool find_fallback(const struct config *config, struct versions *versions, uint64_t version, uint64_t fallback,
                          uint64_t *to)
{
    struct lineage own;
    struct error ignored;
    *to = fallback;
    if (*to == 0 && lineage_of(config, version, &own)) {
        *to = own.fallback;
    }
    return *to > 0 && versions_open(versions, config->path, &ignored) && versions_verify(versions, *to, &ignored);
}

/* --- Records --- */

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
static bool find_key(struct rollout_participant *participant, struct error *error)
{
    char path[VERSIONS_PATH];
    if (!participant->config->path) {
        return error_set(error, "it runs without a config file, so there is no place to keep versions");
    }
    if (!participant_key_path(participant->config, path, sizeof path, error) ||
        !operator_keys_read(path, &participant->operators, error)) {
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
    if (!find_key(participant, error) ||
        !manifest_decode(manifest, order->manifest, order->manifest_size, &participant->operators, error)) {
        return false;
    }
    snprintf(participant->author, sizeof participant->author, "%s", manifest->author);
    return manifest_is_portable(manifest, error);
}

/* Keeps for the next process the manifest by which each version came, and which was the last. */
static bool store_manifest(const struct rollout_participant *participant, const struct participant_order *order,
                           uint64_t target, struct error *error)
{
    char path[VERSIONS_PATH];
    return lineage_path(participant->config, target, path, error) &&
           checked_write(path, order->manifest, order->manifest_size, error) &&
           versions_set_last(participant->config->path, target, error);
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
        !resolve_new(&before->cluster.ps_hosts, &after->cluster.ps_hosts, error) ||
        !resolve_new(&before->cluster.worker_hosts, &after->cluster.worker_hosts, error)) {
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
static bool check_program(struct rollout_participant *participant)
{
    struct error error;
    const enum intake_state state = target_program_check(&participant->program, &error);
    if (state == INTAKE_FAILED) {
        fail_program(participant, error.text);
    }
    return state == INTAKE_WHOLE;
}

bool participant_wants(const struct rollout_participant *participant, const char **digest, uint64_t *offset)
{
    *digest = participant->program.digest;
    *offset = participant->program.intake.there;
    return participant->program.is_open;
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
static bool parse_configs(struct rollout_participant *participant, const struct manifest *manifest, struct error *error)
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
        (!is_behind || (manifest_fits(&manifest, participant->config->fleet.name, participant->version, 0, error) &&
                        manifest_is_current(&manifest, order->order != ORDER_STAGE, clock_wall_s(), error))) &&
        parse_configs(participant, &manifest, error) && (!is_behind || check_machine(participant, to, error)) &&
        store_all(participant, order, &manifest, error) &&
        target_program_stage(&participant->program, participant->config->path, participant->version, &manifest, false,
                             error);
    if (done) {
        const bool mixes = participant->kind != ROLLOUT_JOB;
        snprintf(participant->digests[0], sizeof participant->digests[0], "%s", mixes ? to->digest : "");
        snprintf(participant->digests[1], sizeof participant->digests[1], "%s", mixes ? from->digest : "");
    }
    if (done && participant->version == from->version) { /* so that one is settled, even if this process never heard */
        end_probation(participant->config->path, participant->version);
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
    if (!has_failed(participant->config->path, version, error)) {
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
        activate_fallback(path, version);
        return true;
    }
    return store_running_version(participant->config, &participant->versions, participant->version, error) &&
           begin_probation(path, version, participant->version, error);
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
        !(is_back && may_fall_back(participant->config, participant->version, &manifest))) {
        return error_set(error, "the manifest is old: version %llu, but version %llu is here",
                         (unsigned long long)now->version, (unsigned long long)participant->version);
    }
    return versions_check_floor(path, now->version, error) &&
           (is_back || may_follow(participant, now->version, error)) &&
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
static void load_state(struct rollout_participant *participant)
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

void participant_create(struct rollout_participant *participant, const struct config *config, struct member who,
                        const struct participant_host *host)
{
    *participant = (struct rollout_participant){
        .config = config, .host = *host, .who = who, .version = (uint64_t)config->fleet.version};
    load_state(participant);
    if (config->path) {
        audit_mend(config->path);
    }
    config_drift_begin(&participant->drift, config);
    config_digest(config, participant->digest);
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
    struct error error;
    if (!versions_check_floor(participant->config->path, (uint64_t)participant->configs[which].fleet.version, &error)) {
        fail(participant, error.text);
        return;
    }
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
static void record_version(struct rollout_participant *participant, int which)
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
    if ((which == 0 && has_failed(path, number, &error)) || !versions_check_floor(path, number, &error)) {
        fail(participant, error.text);
        return;
    }
    if (participant->kind == ROLLOUT_LOCAL && participant->host.stays && !participant->program.is_new) {
        record_version(participant, which);
        return;
    }
    if (which == 1) {
        activate_fallback(path, number);
    }
    if ((which == 0 && !begin_probation(path, number, participant->fallback, &error)) ||
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
    if (participant->program.is_due && !check_program(participant)) {
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

/*
 * No rollout is in progress, and this member runs what the fleet does: it does not go below that any more. Whoever has
 * the fleet key may pretend to be ps 0, and replay manifests that the operator signed long ago.
 */
static void raise_floor(struct rollout_participant *participant)
{
    const struct config *config = participant->config;
    struct error error;
    uint64_t floor;
    char path[VERSIONS_PATH];
    if (!config->path || participant->floor >= participant->version ||
        !participant_key_path(config, path, sizeof path, &error) || !file_exists(path)) {
        return; /* without the operator's key it accepts no manifest either */
    }
    const bool is_known = versions_floor(config->path, &floor, &error);
    const bool done =
        is_known && (floor >= participant->version || (versions_open(&participant->versions, config->path, &error) &&
                                                       versions_set_floor(config->path, participant->version, &error)));
    if (done) {
        participant->floor = floor >= participant->version ? floor : participant->version;
    } else if (!participant->floor_failed) {
        log_warning("%s; until then this member may be taken back to an earlier version by whoever holds the fleet key",
                    error.text);
    }
    participant->floor_failed = !done;
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
    const bool found = find_fallback(participant->config, &participant->versions, participant->version,
                                     participant->fallback, &version) &&
                       versions_check_floor(participant->config->path, version, &error);
    if (found && by_itself) {
        probation_fail(participant->config->path);
    }
    if (!found || !versions_switch(&participant->versions, version, &error)) {
        participant->target = 0; /* the manifest comes with the next order: its reason may be gone */
        return;
    }
    activate_fallback(participant->config->path, version);
    audit(participant, "go back", "begun");
    log_warning("%s: restarting in version %llu of the config", participant->message, (unsigned long long)version);
    participant->leaving = true;
    participant->host.leave(participant->host.context, false);
}

/*
 * The target was refused here, so there is nothing to undo but the model, unless this process runs it already. A canary
 * that misreads the configs has reported so by the next order, and goes back without an order. If the fleet switches
 * without this member, the manifest is staged again now and then: the cause may be gone.
 */
static void act_without(struct rollout_participant *participant, const struct participant_order *order)
{
    const bool is_in_target = participant->version == participant->target;
    const bool by_itself = !goes_back(order->order) && participant->misreads &&
                           is_on_probation(participant->config->path, participant->version);
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
    config_drift_check(&participant->drift);
    if (participant->leaving) {
        return;
    }
    if (order->order == ORDER_NOTHING) {
        if (order->settled) {
            settle(participant);
        }
        if (order->settled && order->in_force == participant->version) {
            raise_floor(participant);
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
        if (check_program(participant)) {
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
