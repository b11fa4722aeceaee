/* trainer rollout: proposes, watches and ends rollouts. */
#include "worker/remote/operator/rollout_client.h"

#include <inttypes.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cli/commands.h"
#include "base/clock.h"
#include "base/config/keys.h"
#include "base/config/versions.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/signals.h"
#include "net/message.h"
#include "ps/rollout/decide.h"
#include "ps/rollout/history.h"
#include "ps/rollout/manifest.h"

/* --- Programs --- */

/*
 * An operator's choices about programs. Of a file only headers and markers are checked: its architecture, whether it is
 * complete, and its protocol. It is never run here.
 */

static const double RATE_MB = 20, MOST_RATE_MB = 100000;

enum { LEAST_SPEED = 50 }; /* percent */

/*
 * In every trainer, for the operator who rolls it out: found by searching for the text, at any place and in any
 * architecture.
 */
static const struct {
    char text[24];
    uint16_t lowest, highest;
} mark __attribute__((used)) = {"trainer speaks protocol", PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX};

/* --- Reading --- */

static bool find_protocol(const uint8_t *bytes, size_t size, uint32_t *lowest)
{
    const uint8_t *at = memmem(bytes, size, mark.text, sizeof mark.text);
    if (!at || size - (size_t)(at - bytes) < sizeof mark) {
        return false;
    }
    at += sizeof mark.text;
    *lowest = (uint32_t)(at[0] | at[1] << 8);
    return true;
}

static bool examine(struct rollout_programs *programs, const uint8_t *bytes, size_t size, struct error *error)
{
    struct manifest_programs *all = &programs->programs;
    struct manifest_program program = {.size = size};
    uint32_t protocol = 0;
    if (!program_examine(bytes, size, program.architecture, error)) {
        return false;
    }
    if (!find_protocol(bytes, size, &protocol)) {
        return error_set(error, "is not a trainer, or is too old to be rolled out");
    }
    if (manifest_program_for(all, program.architecture)) {
        return error_set(error, "is a second program for %s: give one for each architecture", program.architecture);
    }
    checked_digest(bytes, size, program.digest);
    all->protocol = protocol > all->protocol ? protocol : all->protocol;
    all->items[all->count] = program;
    return true;
}

static bool read_one(struct rollout_programs *programs, const char *path, struct error *error)
{
    struct manifest_programs *all = &programs->programs;
    size_t size;
    if (all->count == MANIFEST_MAX_PROGRAMS) {
        return error_set(error, "%s: %d programs are the most that can be rolled out at once", path,
                         MANIFEST_MAX_PROGRAMS);
    }
    uint8_t **bytes = &programs->bytes[all->count];
    if (!file_read(path, PROGRAM_MAX_BYTES, bytes, &size, error)) {
        *bytes = NULL;
        return false;
    }
    if (!examine(programs, *bytes, size, error)) {
        free(*bytes);
        *bytes = NULL;
        return error_wrap(error, "%s", path);
    }
    all->count++;
    return true;
}

static bool read_files(struct rollout_programs *programs, const char *files, struct error *error)
{
    bool done = true;
    for (const char *at = files; done && *at != '\0';) {
        char path[PATH_MAX];
        const size_t length = strcspn(at, ",");
        done = length > 0 && length < sizeof path;
        if (!done) {
            return error_set(error, "--binary: expected the paths of programs, separated by commas");
        }
        memcpy(path, at, length);
        path[length] = '\0';
        done = read_one(programs, path, error);
        at += length + (at[length] == ',');
    }
    return done && (programs->programs.count > 0 || error_set(error, "--binary: names no program"));
}

static bool read_rate(const char *text, uint32_t *rate_kib, struct error *error)
{
    char *end = NULL;
    const double rate = text ? strtod(text, &end) : RATE_MB;
    if (text && (end == text || *end != '\0' || !(rate > 0 && rate <= MOST_RATE_MB))) {
        return error_set(error, "--rate_mb must be a number above 0, in MB per second");
    }
    *rate_kib = (uint32_t)(rate * 1e6 / 1024) + 1;
    return true;
}

/* Each wave must be larger than the one before it, as far as that can be compared. */
static bool read_waves(const char *text, struct rollout_waves *waves, struct error *error)
{
    static const char message[] = "--waves must be up to 8 numbers of workers, or shares of them, such as "
                                  "1,10%,50%,100%";
    for (const char *at = text; at && *at != '\0';) {
        char *end;
        const long number = strtol(at, &end, 10);
        const bool percent = *end == '%';
        const char *next = end + percent;
        if (end == at || number < 1 || number > (percent ? 100 : 1000000) || waves->count == ROLLOUT_MAX_WAVES ||
            (*next != ',' && *next != '\0')) {
            return error_set(error, "%s", message);
        }
        waves->items[waves->count++] = (uint32_t)number | (percent ? ROLLOUT_PERCENT : 0);
        at = next + (*next == ',');
    }
    return true;
}

/* A number of workers, or a percentage of them. */
static bool read_budget(const char *text, uint32_t *budget, struct error *error)
{
    char *end = NULL;
    const long number = text ? strtol(text, &end, 10) : 0;
    const bool percent = text && *end == '%';
    if (text && (end == text || end[percent] != '\0' || number < 1 || number > (percent ? 100 : 1000000))) {
        return error_set(error,
                         "--budget must be how many workers may be down at once, or a share of them, such as 5%%");
    }
    *budget = (uint32_t)number | (percent ? ROLLOUT_PERCENT : 0);
    return true;
}

static bool read_least_speed(const char *text, uint32_t *percent, struct error *error)
{
    char *end = NULL;
    const long number = text ? strtol(text, &end, 10) : LEAST_SPEED;
    if (text && (end == text || strcmp(end, "%") != 0 || number < 0 || number > 100)) {
        return error_set(error,
                         "--least_speed must be a share such as 50%% of a worker's earlier speed; 0%%: no limit");
    }
    *percent = (uint32_t)number;
    return true;
}

bool rollout_programs_read(struct rollout_programs *programs, const char *files, const struct rollout_flags *flags,
                           struct error *error)
{
    *programs = (struct rollout_programs){.programs = {.count = 0}};
    struct rollout_waves *waves = &programs->programs.waves;
    if (!files) {
        return (!flags->rate && !flags->waves && !flags->budget && !flags->least_speed) ||
               error_set(error, "--rate_mb, --waves, --budget and --least_speed go with --binary");
    }
    return read_rate(flags->rate, &programs->programs.rate_kib, error) &&
           read_waves(flags->waves ? flags->waves : "1,10%,50%,100%", waves, error) &&
           read_budget(flags->budget, &waves->budget, error) &&
           read_least_speed(flags->least_speed, &waves->least_speed, error) && read_files(programs, files, error);
}

void rollout_programs_free(struct rollout_programs *programs)
{
    for (int i = 0; i < MANIFEST_MAX_PROGRAMS; i++) {
        free(programs->bytes[i]);
    }
    *programs = (struct rollout_programs){.programs = {.count = 0}};
}

void rollout_programs_follow(struct rollout_programs *programs, const struct manifest_programs *in_force)
{
    struct manifest_programs *all = &programs->programs;
    if (all->count == 0) {
        all->rate_kib = in_force->rate_kib;
        all->waves = in_force->waves;
    }
    all->protocol = in_force->protocol > all->protocol ? in_force->protocol : all->protocol;
    for (int i = 0; i < in_force->count; i++) {
        const struct manifest_program *there = &in_force->items[i];
        int same = 0;
        while (same < all->count && strcmp(all->items[same].architecture, there->architecture) != 0) {
            same++;
        }
        if (same == MANIFEST_MAX_PROGRAMS) {
            continue;
        }
        if (same == all->count) {
            all->items[all->count++] = *there;
        }
        memcpy(all->items[same].fallback, there->digest, sizeof there->digest);
    }
}

void rollout_programs_show(const struct rollout_programs *programs)
{
    for (int i = 0; i < programs->programs.count; i++) {
        const struct manifest_program *program = &programs->programs.items[i];
        char before[PROGRAM_ID_HEX + 1];
        snprintf(before, sizeof before, "%.16s", program->fallback);
        if (programs->bytes[i] || strcmp(program->digest, program->fallback) != 0) {
            log_info("program for %-16s %.18s -> %.16s  (%llu KiB)", program->architecture,
                     program->fallback[0] == '\0' ? "each machine's own" : before, program->digest,
                     (unsigned long long)(program->size >> 10));
        }
    }
}

/* --- Sending --- */

/* Continues from what ps 0 has; after a restart that may be less than it said. */
static bool bring(struct rollout_client *client, const struct manifest_program *program, const uint8_t *bytes,
                  uint64_t there, struct error *error)
{
    while (there < program->size) {
        const uint64_t left = program->size - there, before = there;
        const size_t size = left < PROGRAM_CHUNK ? (size_t)left : PROGRAM_CHUNK;
        if (!rollout_client_put(client, program->digest, there, bytes + there, size, &there, error)) {
            return false;
        }
        if (there <= before || there > program->size) {
            return error_set(error, "ps 0 has %llu bytes of the program after it was sent those up to %llu",
                             (unsigned long long)there, (unsigned long long)(before + size));
        }
    }
    return true;
}

bool rollout_programs_bring(const struct rollout_programs *programs, struct rollout_client *client,
                            const uint8_t *manifest, size_t manifest_size, struct error *error)
{
    bool done = true;
    for (int i = 0; i < programs->programs.count && done; i++) {
        const struct manifest_program *program = &programs->programs.items[i];
        uint64_t there;
        if (programs->bytes[i]) {
            done = rollout_client_offer(client, program->digest, manifest, manifest_size, &there, error) &&
                   bring(client, program, programs->bytes[i], there, error);
        }
    }
    return done;
}

/* --- The command --- */

/*
 * trainer rollout: a new config for a training fleet. This command reads the candidate, shows what would change, signs
 * it and proposes it. From there ps 0 leads and this process only follows its reports, so it may end at any moment.
 */

enum { MAX_AUDIT = 64 << 20, MAX_SETTINGS = 128 };

static const double LOOK_S = 0.2, LOST_S = 60.0, HEALTHY_S = 10.0;
static const double VALID_S = 7 * 86400.0; /* of a signed rollout, by default */
static const double ARRIVE_S = 10.0; /* after ps 0 answers again, how long earlier messages may take to have effect */

/* --- The candidate: read, compare with what the fleet runs, sign --- */

/*
 * Local keys that come with the new version: those that the new file sets to something other than the config file here,
 * and those that came with the version in force and are still in the new file. Keys that identify a machine, or name
 * its paths, can't come this way.
 */
struct candidate_keys {
    const struct config *here, *new, *before; /* before: including what came with the version in force */
};

/* What the fleet runs, and what it should run. */
struct candidate {
    const struct config *running, *new;
    const char *job, *local; /* as they run */
    const char *new_local;
    const char *doubt; /* why part of it rests on ps 0's word; "": nothing does */
    bool may_lose;
    double valid_s; /* how long the signature may begin a rollout; 0: for ever */
    const struct rollout_programs *programs;
};

/* The file at path, with the same flags as this command. */
static bool candidate_load(struct config *new, const struct config *here, const char *path, struct error *error)
{
    struct config_setting settings[MAX_SETTINGS];
    char *texts[MAX_SETTINGS];
    int count = 0;
    for (const struct config_key *key = config_keys; key->section && count < MAX_SETTINGS; key++) {
        if (config_origin_of(here, key)->source == SOURCE_FLAG) {
            texts[count] = config_key_text(key, here);
            settings[count] = (struct config_setting){key->name, texts[count]};
            count++;
        }
    }
    const bool done = config_load(new, path, settings, count, error);
    for (int i = 0; i < count; i++) {
        free(texts[i]);
    }
    return done;
}

static bool differs(const struct config_key *key, const struct config *one, const struct config *other)
{
    char *a = config_key_text(key, one), *b = config_key_text(key, other);
    const bool differ = strcmp(a, b) != 0;
    free(a);
    free(b);
    return differ;
}

static bool comes_along(const struct config_key *key, const void *context)
{
    const struct candidate_keys *keys = context;
    return key->scope == SCOPE_MACHINE && config_origin_of(keys->new, key)->source == SOURCE_FILE &&
           (config_origin_of(keys->before, key)->source == SOURCE_FILE || differs(key, keys->here, keys->new));
}

/* *text: "" if there are none; the caller frees it. */
static bool candidate_local(const struct candidate_keys *keys, char **text, struct error *error)
{
    bool any = false;
    for (const struct config_key *key = config_keys; key->section; key++) {
        char path[CONFIG_PATH_SIZE];
        if (!comes_along(key, keys)) {
            continue;
        }
        any = true;
        if (!change_goes_to_machines(key)) {
            config_key_path(key, path);
            return error_set(error, "%s: %s belongs to each machine and can't be rolled out: leave it out",
                             keys->new->path, path);
        }
    }
    *text = any ? config_keys_text(keys->new, comes_along, keys) : must_copy("");
    return true;
}

static bool parse_text(struct config *config, const char *name, const char *text, struct error *error)
{
    return config_parse(config, name, (const uint8_t *)text, strlen(text), NULL, 0, error);
}

static bool parse_local(struct config *config, const char *text, struct error *error)
{
    return parse_text(config, "the keys of machines", text[0] != '\0' ? text : "{}", error);
}

static void show_local_keys(const struct config *before, const struct config *after)
{
    for (const struct config_key *key = config_keys; key->section; key++) {
        char path[CONFIG_PATH_SIZE];
        const bool came = config_origin_of(before, key)->source == SOURCE_FILE;
        const bool comes = config_origin_of(after, key)->source == SOURCE_FILE;
        char *from = came ? config_key_text(key, before) : NULL;
        char *to = comes ? config_key_text(key, after) : NULL;
        if ((came || comes) && (!from || !to || strcmp(from, to) != 0)) {
            config_key_path(key, path);
            log_info("%-28s %s -> %s  (local)", path, from ? from : "each machine's own",
                     to ? to : "each machine's own");
        }
        free(from);
        free(to);
    }
}

/* The local keys of one version and of the other. */
static bool candidate_show_local(const char *local, const char *new_local, struct error *error)
{
    struct config before = {.path = NULL}, after = {.path = NULL};
    const bool done = parse_local(&before, local, error) && parse_local(&after, new_local, error);
    if (done) {
        show_local_keys(&before, &after);
    }
    config_free(&after);
    config_free(&before);
    return done;
}

/* Returns how many keys differ. */
static int show_diff(const struct config *from, const struct config *to)
{
    struct config_diff diff;
    config_diff(&diff, from, to, SCOPE_JOB);
    const int count = diff.count;
    for (int i = 0; i < diff.count; i++) {
        char line[1024];
        config_diff_line(&diff.changes[i], line, sizeof line);
        log_info("%s", line);
    }
    config_diff_free(&diff);
    return count;
}

/* Shows the changes, and refuses those that can't be rolled out. */
static bool candidate_check(const struct candidate *both, enum rollout_kind *kind, struct error *error)
{
    const struct config *running = both->running, *new = both->new;
    const struct manifest manifest = {
        .target = {.local = both->new_local, .local_size = strlen(both->new_local)},
        .fallback = {.local = both->local, .local_size = strlen(both->local)},
        .programs = both->programs->programs,
    };
    const bool local_differs = strcmp(both->local, both->new_local) != 0;
    const int count = show_diff(running, new);
    if (!candidate_show_local(both->local, both->new_local, error)) {
        return false;
    }
    rollout_programs_show(both->programs);
    if (count == 0 && !local_differs && !manifest_brings_programs(&manifest)) {
        return error_set(error, "%s: nothing differs from what the fleet runs", new->path);
    }
    if (new->fleet.version <= running->fleet.version) {
        return error_set(error, "%s: fleet.version is %lld, but the fleet runs version %lld: give it a higher one",
                         new->path, (long long)new->fleet.version, (long long)running->fleet.version);
    }
    return manifest_kind(&manifest, running, new, kind, error);
}

/* user@host */
static void candidate_author(char author[MANIFEST_MAX_NAME + 1])
{
    char host[128] = "";
    const char *user = getenv("USER");
    gethostname(host, sizeof host - 1);
    snprintf(author, MANIFEST_MAX_NAME + 1, "%.100s@%s", user ? user : "unknown", host);
}

/* Builds the manifest; the caller frees *bytes. */
static bool candidate_sign(const char *key_path, const struct candidate *both, uint8_t **bytes, size_t *size,
                           struct error *error)
{
    char *target = config_job_text(both->new);
    const uint64_t now_s = (uint64_t)time(NULL);
    struct manifest manifest = {.signed_s = now_s,
                                .expires_s = both->valid_s > 0 ? now_s + (uint64_t)both->valid_s : 0,
                                .may_lose = both->may_lose,
                                .programs = both->programs->programs,
                                .target = {.version = (uint64_t)both->new->fleet.version,
                                           .text = target,
                                           .text_size = strlen(target),
                                           .local = both->new_local,
                                           .local_size = strlen(both->new_local)},
                                .fallback = {.version = (uint64_t)both->running->fleet.version,
                                             .text = both->job,
                                             .text_size = strlen(both->job),
                                             .local = both->local,
                                             .local_size = strlen(both->local)}};
    snprintf(manifest.fleet, sizeof manifest.fleet, "%s", both->new->fleet.name);
    candidate_author(manifest.author);
    uint8_t *key = secret_memory(OPERATOR_SECRET_KEY, error);
    bool done = key && manifest_is_portable(&manifest, error) && operator_key_read_secret(key_path, key, error) &&
                manifest_encode(&manifest, key, bytes, size, error);
    secret_free(key, OPERATOR_SECRET_KEY);
    free(target);
    return done;
}

/* --- Proposing and following --- */

/*
 * Follows until the outcome is known. ps 0 may be gone for a while: many rollouts restart it. arrive_s: how long it may
 * take to learn of the rollout.
 */
static int follow(struct rollout_client *client, uint64_t target, double arrive_s)
{
    char logged[1024] = "";
    double answered_s = clock_monotonic_s(), first_s = -1;
    struct error error;
    signals_catch();
    while (signals_pending() == 0) {
        double now_s = clock_monotonic_s();
        const struct message_rollout *answer = rollout_client_ask(client, &error);
        if (answer) {
            answered_s = now_s;
            first_s = first_s < 0 ? now_s : first_s;
            if (strcmp(logged, answer->message) != 0) {
                snprintf(logged, sizeof logged, "%s", answer->message);
                log_info("%s", logged);
            }
            if (answer->target == target && answer->state == ROLLOUT_IDLE) {
                return answer->outcome == OUTCOME_DONE ? COMMAND_DONE : COMMAND_FAILED;
            }
            if (answer->target != target && answer->state == ROLLOUT_IDLE && now_s - first_s >= arrive_s) {
                log_error("ps 0 knows nothing of version %" PRIu64
                          ": it never received it, or restarted before announcing it; roll it out again",
                          target);
                return COMMAND_FAILED;
            }
        } else if (now_s - answered_s >= LOST_S) {
            log_error("no answer from ps 0 for %.0f s: %s; see `trainer rollout status`", LOST_S, error.text);
            return COMMAND_FAILED;
        }
        clock_pause(now_s + LOOK_S);
    }
    log_info("the rollout continues without this process; see `trainer rollout status`");
    return signals_exit_status(signals_pending());
}

static bool ask_yes(const char *question)
{
    char answer[16] = "";
    printf("%s [y/N] ", question);
    fflush(stdout);
    return fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

/* The flag --yes confirms what the operator has written, but not what a machine claims. */
static bool confirm(const struct command_call *call, const struct candidate *both, struct error *error)
{
    const bool doubtful = both->doubt[0] != '\0';
    if (!doubtful && command_switch(call, "yes")) {
        return true;
    }
    if (!isatty(STDIN_FILENO)) {
        return doubtful
                   ? error_set(error,
                               "%s; confirm the differences on a terminal, or have the config that the fleet runs as "
                               "config.json here: --yes is not enough",
                               both->doubt)
                   : error_set(error, "no terminal to ask on: add --yes, or --dry-run to see only what would change");
    }
    if (doubtful) {
        log_warning("%s", both->doubt);
        log_info("from this machine's own config to what ps 0 says is in force:");
        show_diff(call->config, both->running);
    }
    return ask_yes(doubtful ? "Sign this, trusting ps 0 alone?" : "Roll this out?") ||
           error_set(error, "not rolled out");
}

static void beside_config(const struct command_call *call, const char *name, char path[PATH_MAX])
{
    const char *config = call->config->path, *slash = config ? strrchr(config, '/') : NULL;
    snprintf(path, PATH_MAX, "%.*s%s", slash ? (int)(slash - config) + 1 : 0, config ? config : "", name);
}

static void key_path(const struct command_call *call, char path[PATH_MAX])
{
    const char *given = command_value(call, "key");
    if (given) {
        snprintf(path, PATH_MAX, "%s", given);
    } else {
        beside_config(call, "operator.key", path);
    }
}

/* Whose signatures count: those of the key that will sign, with others if operator.pub here names it among them. */
static bool read_operators(const struct command_call *call, struct operator_keys *keys, struct error *error)
{
    char path[PATH_MAX];
    uint8_t own[OPERATOR_PUBLIC_KEY];
    key_path(call, path);
    if (!operator_key_read_own_public(path, own, error)) {
        return false;
    }
    beside_config(call, "operator.pub", path);
    *keys = operator_keys_of(own);
    if (!file_exists(path)) {
        return true;
    }
    if (!operator_keys_read(path, keys, error)) {
        return false;
    }
    if (!operator_keys_have(keys, own)) {
        *keys = operator_keys_of(own);
    }
    return true;
}

/* Without a key nothing can be signed, but --dry-run works. */
static bool look_at_fleet(const struct command_call *call, struct rollout_client *client, struct fleet_view *view,
                          struct error *error)
{
    struct operator_keys keys;
    const bool has_key = read_operators(call, &keys, error);
    *view = (struct fleet_view){.job = NULL};
    return (has_key || command_switch(call, "dry-run")) &&
           fleet_view_ask(view, client, call->config, has_key ? &keys : NULL, error);
}

static const char *describe_kind(enum rollout_kind kind)
{
    static const char *const texts[] = {"while the job runs", "by restarting machines one after the other",
                                        "by a checkpoint and a restart of the whole job"};
    return texts[kind];
}

/* If ps 0 answered too late, it may still have accepted the proposal: then follow it like any other. */
static int propose_and_follow(struct rollout_client *client, uint64_t target, const uint8_t *bytes, size_t size,
                              double healthy_s, struct error *error)
{
    double arrive_s = 0;
    switch (rollout_client_propose(client, bytes, size, healthy_s, error)) {
    case PROPOSAL_REFUSED:
        return COMMAND_FAILED;
    case PROPOSAL_UNANSWERED:
        log_warning("%s; asking ps 0 whether it has version %" PRIu64, error->text, target);
        arrive_s = ARRIVE_S;
        break;
    case PROPOSAL_TAKEN:
        break;
    }
    error->text[0] = '\0';
    return follow(client, target, arrive_s);
}

/* "12h", "7d", or "never". */
static bool read_validity(const char *text, double *valid_s)
{
    char *end;
    *valid_s = VALID_S;
    if (!text || strcmp(text, "never") == 0) {
        *valid_s = text ? 0 : VALID_S;
        return true;
    }
    const double number = strtod(text, &end);
    *valid_s = number * (*end == 'd' ? 86400 : *end == 'h' ? 3600 : 60);
    return end != text && (*end == 'd' || *end == 'h' || *end == 'm') && end[1] == '\0' && *valid_s >= 60 &&
           *valid_s <= 3650 * 86400.0;
}

/* --- Several signatures --- */

static const char BY_FILE[] = "manifest"; /* the flag */

/* Signed alone, it would be refused. */
static bool check_threshold(const struct command_call *call, struct error *error)
{
    struct operator_keys keys;
    return command_value(call, BY_FILE) || !read_operators(call, &keys, error) || keys.threshold == 1 ||
           error_set(error,
                     "operator.pub asks for the signatures of %d operators: add --manifest=FILE, to which the others "
                     "add theirs with `trainer rollout sign --manifest=FILE`",
                     keys.threshold);
}

static bool write_manifest(const struct command_call *call, const uint8_t *bytes, size_t size, int signatures,
                           struct error *error)
{
    const char *path = command_value(call, BY_FILE);
    struct operator_keys keys;
    if (!read_operators(call, &keys, error) || !file_write_atomic(path, &(struct file_part){bytes, size}, 1, error)) {
        return false;
    }
    log_info("%s has %d of %d signatures; next: trainer rollout %s --manifest=%s", path, signatures, keys.threshold,
             signatures < keys.threshold ? "sign" : "propose", path);
    return true;
}

/* The caller frees *bytes. */
static bool read_manifest(const struct command_call *call, struct manifest *manifest, uint8_t **bytes, size_t *size,
                          struct error *error)
{
    const char *path = command_value(call, BY_FILE);
    *bytes = NULL;
    return (file_read(path, MANIFEST_MAX_BYTES, bytes, size, error) &&
            (manifest_decode_unsigned(manifest, *bytes, *size, error) || error_wrap(error, "%s", path)) &&
            (strcmp(manifest->fleet, call->config->fleet.name) == 0 ||
             error_set(error, "%s: is for fleet \"%s\", but this is fleet \"%s\"", path, manifest->fleet,
                       call->config->fleet.name))) ||
           (free(*bytes), *bytes = NULL, false);
}

/* Shows what is to be signed as if it were this operator's own, and asks. */
static bool agree(const struct command_call *call, const struct manifest *manifest, const struct fleet_view *view,
                  struct error *error)
{
    const struct manifest_config *target = &manifest->target;
    const struct rollout_programs programs = {.programs = manifest->programs};
    struct config new = {.path = NULL};
    enum rollout_kind kind;
    char *text = manifest_copy_text(target->text, target->text_size);
    char *local = manifest_copy_text(target->local, target->local_size);
    bool done =
        text && local ? parse_text(&new, "the manifest's target", text, error) : error_set(error, "out of memory");
    const struct candidate both = {.running = &view->running,
                                   .new = &new,
                                   .programs = &programs,
                                   .job = view->job,
                                   .local = view->local,
                                   .new_local = local,
                                   .doubt = view->doubt};
    if (done && !fleet_view_is_running(view, &manifest->fallback)) {
        done = error_set(error, "the manifest goes back to another version %" PRIu64 " than what the fleet runs",
                         manifest->fallback.version);
    }
    if (done) {
        log_info("%s signed this, from version %" PRIu64 " to version %" PRIu64 "%s:", manifest->author,
                 manifest->fallback.version, target->version,
                 manifest->may_lose ? ", which may lose parts of the checkpoint" : "");
    }
    done = done && manifest_is_portable(manifest, error) &&
           manifest_is_current(manifest, false, clock_wall_s(), error) && candidate_check(&both, &kind, error) &&
           confirm(call, &both, error);
    config_free(&new);
    free(local);
    free(text);
    return done;
}

static bool add_signature(const struct command_call *call, struct rollout_client *client, struct error *error)
{
    struct manifest manifest;
    struct operator_keys keys;
    struct fleet_view view = {.job = NULL};
    char path[PATH_MAX];
    uint8_t *secret = NULL, *bytes;
    size_t size;
    if (!read_manifest(call, &manifest, &bytes, &size, error)) {
        return false;
    }
    key_path(call, path);
    bool done = read_operators(call, &keys, error) && look_at_fleet(call, client, &view, error) &&
                agree(call, &manifest, &view, error) && (secret = secret_memory(OPERATOR_SECRET_KEY, error)) &&
                operator_key_read_secret(path, secret, error);
    if (done) {
        done = manifest_add_signature(&manifest, &keys, secret, &bytes, &size, error) &&
               write_manifest(call, bytes, size, manifest.signatures + 1, error);
    }
    secret_free(secret, OPERATOR_SECRET_KEY);
    fleet_view_free(&view);
    free(bytes);
    return done;
}

static int sign_file(const struct command_call *call, struct rollout_client *client)
{
    struct error error;
    if (!add_signature(call, client, &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    return COMMAND_DONE;
}

/* Needs no key. The programs that it names are given again, by --binary. */
static int propose_file(const struct command_call *call, struct rollout_client *client,
                        const struct rollout_programs *programs, double healthy_s)
{
    struct manifest manifest;
    struct operator_keys keys;
    struct error error = {""};
    char path[PATH_MAX];
    uint8_t *bytes = NULL;
    size_t size;
    int status = COMMAND_FAILED;
    beside_config(call, "operator.pub", path);
    if (operator_keys_read(path, &keys, &error) && read_manifest(call, &manifest, &bytes, &size, &error) &&
        manifest_decode(&manifest, bytes, size, &keys, &error) && rollout_client_ask(client, &error) &&
        rollout_programs_bring(programs, client, bytes, size, &error)) {
        status = propose_and_follow(client, manifest.target.version, bytes, size, healthy_s, &error);
    }
    free(bytes);
    if (error.text[0] != '\0') {
        log_error("%s", error.text);
    }
    return status;
}

/* From the comparison to the end of the rollout. */
static int decide_and_follow(const struct command_call *call, struct rollout_client *client,
                             const struct candidate *both, double healthy_s, struct error *error)
{
    char secret[PATH_MAX];
    uint8_t *bytes = NULL;
    size_t size;
    int status = COMMAND_FAILED;
    enum rollout_kind kind;
    if (!candidate_check(both, &kind, error)) {
        return COMMAND_FAILED;
    }
    log_info("version %lld would follow version %lld, %s", (long long)both->new->fleet.version,
             (long long)both->running->fleet.version, describe_kind(kind));
    if (command_switch(call, "dry-run")) {
        if (both->doubt[0] != '\0') {
            log_warning("%s", both->doubt);
        }
        log_info("nothing was changed");
        return COMMAND_DONE;
    }
    key_path(call, secret);
    if (!check_threshold(call, error) || !confirm(call, both, error) ||
        !candidate_sign(secret, both, &bytes, &size, error)) {
        /* reported by the caller */
    } else if (command_value(call, BY_FILE)) {
        status = write_manifest(call, bytes, size, 1, error) ? COMMAND_DONE : COMMAND_FAILED;
    } else {
        status = rollout_programs_bring(both->programs, client, bytes, size, error)
                     ? propose_and_follow(client, (uint64_t)both->new->fleet.version, bytes, size, healthy_s, error)
                     : COMMAND_FAILED;
    }
    free(bytes);
    return status;
}

static int end(int status, const struct error *error)
{
    if (error->text[0] != '\0') {
        log_error("%s", error->text);
    }
    return status;
}

/* Rolls out again what the fleet runs, as a new version. */
static bool repeat_running(const struct fleet_view *view, struct config *new, char **local, struct error *error)
{
    if (!parse_text(new, "the fleet's config", view->job, error)) {
        return false;
    }
    new->fleet.version = (int64_t)view->highest + 1;
    *local = strdup(view->local);
    return *local || error_set(error, "out of memory");
}

/* new: all zeros for programs only. */
static int roll_out(const struct command_call *call, struct rollout_client *client, struct config *new,
                    struct rollout_programs *programs, double healthy_s)
{
    struct config before = {.path = NULL};
    struct error error = {""};
    struct fleet_view view = {.job = NULL};
    struct candidate_keys keys = {call->config, new, &before};
    char *local = NULL;
    int status = COMMAND_FAILED;
    if (look_at_fleet(call, client, &view, &error) && parse_local(&before, view.local, &error) &&
        (new->path ? candidate_local(&keys, &local, &error) : repeat_running(&view, new, &local, &error))) {
        rollout_programs_follow(programs, &view.programs);
        struct candidate both = {.running = &view.running,
                                 .new = new,
                                 .programs = programs,
                                 .job = view.job,
                                 .local = view.local,
                                 .new_local = local,
                                 .doubt = view.doubt,
                                 .may_lose = command_switch(call, "may_lose")};
        (void)read_validity(command_value(call, "expires"), &both.valid_s); /* checked before */
        error.text[0] = '\0';
        status = decide_and_follow(call, client, &both, healthy_s, &error);
    }
    free(local);
    fleet_view_free(&view);
    config_free(&before);
    return end(status, &error);
}

/* Rolls out the previous config as a new version. */
static int revert(const struct command_call *call, struct rollout_client *client, struct rollout_programs *programs,
                  double healthy_s)
{
    struct config earlier = {.path = NULL};
    struct error error = {""};
    struct fleet_view view;
    int status = COMMAND_FAILED;
    if (!look_at_fleet(call, client, &view, &error)) {
        /* reported below */
    } else if (view.earlier[0] == '\0') {
        error_set(&error, "there is nothing to revert to: version %lld is not the result of a successful rollout",
                  (long long)view.running.fleet.version);
    } else if (view.brought_programs) {
        error_set(&error, "version %lld included a program: to revert it, roll out the previous one with --binary",
                  (long long)view.running.fleet.version);
    } else if (parse_text(&earlier, "the config before", view.earlier, &error)) {
        log_info("version %lld would be what version %lld was", (long long)view.highest + 1,
                 (long long)earlier.fleet.version);
        earlier.fleet.version = (int64_t)view.highest + 1;
        rollout_programs_follow(programs, &view.programs);
        struct candidate both = {.running = &view.running,
                                 .programs = programs,
                                 .new = &earlier,
                                 .job = view.job,
                                 .local = view.local,
                                 .new_local = view.earlier_local,
                                 .doubt = view.doubt[0] != '\0' ? view.doubt : view.earlier_doubt,
                                 .may_lose = command_switch(call, "may_lose")};
        (void)read_validity(command_value(call, "expires"), &both.valid_s); /* checked before */
        error.text[0] = '\0';
        status = decide_and_follow(call, client, &both, healthy_s, &error);
    }
    fleet_view_free(&view);
    config_free(&earlier);
    return end(status, &error);
}

/* --- The other verbs --- */

static int show_status(struct rollout_client *client)
{
    struct error error;
    const struct message_rollout *answer = rollout_client_ask(client, &error);
    if (!answer) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    log_info("%s", answer->message);
    for (const char *line = answer->members; *line != '\0';) {
        int length = (int)strcspn(line, "\n");
        log_info("%.*s", length, line);
        line += length + (line[length] == '\n');
    }
    return COMMAND_DONE;
}

/* Checks that the rollout that ps 0 shows was signed with this operator's key. */
static bool name_rollout(const struct command_call *call, struct rollout_client *client,
                         const struct message_rollout *answer, struct manifest_abort *abort, struct error *error)
{
    struct operator_keys keys;
    uint8_t *bytes;
    size_t size;
    struct manifest manifest;
    if (answer->state == ROLLOUT_IDLE) {
        return error_set(error, "there is no rollout to %s: %s", abort->resumes ? "resume" : "abort", answer->message);
    }
    const uint64_t target = answer->target;
    if (!read_operators(call, &keys, error) || !rollout_client_manifest(client, &bytes, &size, error)) {
        return false;
    }
    if (!bytes) {
        return error_set(error, "ps 0 shows no manifest of it: is its program older? Then use that program");
    }
    bool done = manifest_decode(&manifest, bytes, size, &keys, error) || error_wrap(error, "what ps 0 shows");
    if (done && (manifest.target.version != target || strcmp(manifest.fleet, call->config->fleet.name) != 0)) {
        done = error_set(error, "ps 0 shows the manifest of version %" PRIu64 " of fleet \"%s\", and not of this one",
                         manifest.target.version, manifest.fleet);
    }
    abort->signed_s = (uint64_t)time(NULL);
    abort->target = target;
    snprintf(abort->fleet, sizeof abort->fleet, "%s", call->config->fleet.name);
    candidate_author(abort->author);
    manifest_hash(bytes, size, abort->hash);
    free(bytes);
    return done;
}

/* Aborts the rollout, or lets it continue. */
static int send_word(const struct command_call *call, struct rollout_client *client, bool resumes)
{
    char path[PATH_MAX];
    uint8_t bytes[MANIFEST_ABORT_BYTES];
    struct manifest_abort abort = {.resumes = resumes};
    struct error error;
    const struct message_rollout *answer = rollout_client_ask(client, &error);
    key_path(call, path);
    uint8_t *secret = answer ? secret_memory(OPERATOR_SECRET_KEY, &error) : NULL;
    bool done =
        secret && name_rollout(call, client, answer, &abort, &error) && operator_key_read_secret(path, secret, &error);
    const size_t size = done ? manifest_abort_encode(&abort, secret, bytes) : 0;
    secret_free(secret, OPERATOR_SECRET_KEY);
    if (done) {
        done = rollout_client_abort(client, abort.author, bytes, size, &error);
    }
    if (!done) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    log_info("the rollout of version %" PRIu64 " %s; see `trainer rollout status`", abort.target,
             resumes ? "is resumed" : "is aborted");
    return COMMAND_DONE;
}

/* One file of this machine's audit log. */
static bool show_log(const char *path, struct error *error)
{
    uint8_t *bytes;
    size_t size;
    if (!file_read(path, MAX_AUDIT, &bytes, &size, error)) {
        return false;
    }
    fwrite(bytes, 1, size, stdout);
    free(bytes);
    return true;
}

static int verify_history(const char *config_path)
{
    struct audit_state state;
    struct versions versions;
    struct error error;
    if (!versions_path(config_path, NULL, versions.folder, &error) || !audit_verify(&versions, &state, &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    if (state.mended > 0) {
        log_info("%zu of the lines stand for others that were not written to their end, by a power cut say",
                 state.mended);
    }
    if (state.unfinished > 0) {
        log_info(
            "the last line was not written to its end, by a power cut say: %zu bytes of it are there, and the next "
            "member that starts here replaces them by a line that says so",
            state.unfinished);
    }
    log_info("%s.d/audit.log: %zu lines, each of which follows the one before it; noted elsewhere, the last one's hash "
             "proves them all: %s",
             config_path, state.lines, state.last);
    return COMMAND_DONE;
}

static int show_history(const struct config *config, bool verifies)
{
    char path[VERSIONS_PATH], former[VERSIONS_PATH], head[VERSIONS_PATH];
    struct error error;
    if (!config->path) {
        log_error("there is no config file here, and the history is kept beside it");
        return COMMAND_FAILED;
    }
    const bool named = versions_path(config->path, "audit.log", path, &error) &&
                       versions_path(config->path, "audit.log.1", former, &error) &&
                       versions_path(config->path, "audit.head", head, &error);
    /* What is left of a chain whose newest part is missing does not verify. */
    const bool is_part = verifies && named && (file_exists(former) || file_exists(head));
    if (named && !file_exists(path) && !is_part) {
        log_info("%s: nothing was rolled out to this machine", path);
        return COMMAND_DONE;
    }
    if (named && verifies) {
        return verify_history(config->path);
    }
    if (!named || (file_exists(former) && !show_log(former, &error)) || !show_log(path, &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    return COMMAND_DONE;
}

/* --- The command --- */

static int misuse(const char *what)
{
    log_error("rollout: %s; try: trainer help rollout", what);
    return COMMAND_MISUSED;
}

static bool read_seconds(const char *text, double *seconds)
{
    char *end;
    *seconds = HEALTHY_S;
    if (text) {
        *seconds = strtod(text, &end);
        return end != text && *end == '\0' && *seconds >= 0 && *seconds <= 86400;
    }
    return true;
}

static int reach_and_run(const struct command_call *call, const char *what, struct config *new,
                         struct rollout_programs *programs, double healthy_s)
{
    struct rollout_client client;
    struct error error;
    int status = COMMAND_FAILED;
    if (!rollout_client_open(&client, call->config, &error) || !rollout_client_reach(&client, &error)) {
        log_error("%s", error.text);
    } else if (what && (strcmp(what, "abort") == 0 || strcmp(what, "resume") == 0)) {
        status = send_word(call, &client, strcmp(what, "resume") == 0);
    } else if (what && strcmp(what, "revert") == 0) {
        status = revert(call, &client, programs, healthy_s);
    } else if (what && strcmp(what, "status") == 0) {
        status = show_status(&client);
    } else if (what && strcmp(what, "sign") == 0) {
        status = sign_file(call, &client);
    } else if (what && strcmp(what, "propose") == 0) {
        status = propose_file(call, &client, programs, healthy_s);
    } else {
        status = roll_out(call, &client, new, programs, healthy_s);
    }
    rollout_client_close(&client);
    return status;
}

static bool is_verb(const char *what)
{
    static const char *const verbs[] = {"status", "abort", "resume", "revert", "sign", "propose"};
    bool found = false;
    for (size_t i = 0; what && i < sizeof verbs / sizeof verbs[0]; i++) {
        found = found || strcmp(what, verbs[i]) == 0;
    }
    return found;
}

static int run_rollout(const struct command_call *call)
{
    const char *what = call->operand_count > 0 ? call->operands[0] : NULL, *files = command_value(call, "binary");
    struct config new = {.path = NULL};
    struct rollout_programs programs = {.programs = {.count = 0}};
    struct error error;
    double healthy_s, valid_s;
    if (!what && !files) {
        return misuse("name the file of a config, a program with --binary, or status, history, abort, resume, revert, "
                      "sign or propose");
    }
    if (!read_seconds(command_value(call, "healthy_secs"), &healthy_s)) {
        return misuse("--healthy_secs must be a number from 0 to 86400");
    }
    if (!read_validity(command_value(call, "expires"), &valid_s)) {
        return misuse("--expires must be a time such as 12h or 7d, or never");
    }
    if (what && strcmp(what, "history") == 0) {
        return show_history(call->config, command_switch(call, "verify"));
    }
    if (call->config->cluster.ps_hosts.count == 0) {
        return misuse("no cluster given: set ps_hosts and worker_hosts in config.json, or as flags");
    }
    const bool signs = what && strcmp(what, "sign") == 0, proposes = what && strcmp(what, "propose") == 0;
    if (is_verb(what) && !proposes && files) {
        return misuse("--binary goes with a config or alone");
    }
    if ((signs || proposes) && !command_value(call, BY_FILE)) {
        return misuse("name the file of the manifest, with --manifest=FILE");
    }
    int status = COMMAND_MISUSED;
    const struct rollout_flags given = {.rate = command_value(call, "rate_mb"),
                                        .waves = command_value(call, "waves"),
                                        .budget = command_value(call, "budget"),
                                        .least_speed = command_value(call, "least_speed")};
    const bool is_sound = is_verb(what) || !what || candidate_load(&new, call->config, what, &error);
    if (is_sound && rollout_programs_read(&programs, files, &given, &error)) {
        status = reach_and_run(call, what, &new, &programs, healthy_s);
    } else {
        log_error("%s", error.text);
    }
    rollout_programs_free(&programs);
    config_free(&new);
    return status;
}

static const struct command_flag flags[] = {
    {"dry-run", NULL, "check the config and show what would change, without changing anything"},
    {"yes", NULL, "do not ask for confirmation"},
    {"key", "FILE", "the operator's secret key (operator.key beside config.json)"},
    {"may_lose", NULL, "if the checkpoint does not fit the new layers, keep what does and drop the rest"},
    {"healthy_secs", "SECONDS", "the fleet must stay healthy for this long, or it rolls back (10)"},
    {"expires", "TIME", "no rollout begins by this signature after so long: 12h, 7d, or never (7d)"},
    {"binary", "FILES", "programs to roll out, separated by commas: one for each architecture in the fleet"},
    {"rate_mb", "MB", "distribute programs at this many MB per second in total (20)"},
    {"waves", "WAVES", "workers that restart in a new program, wave by wave (1,10%,50%,100%)"},
    {"budget", "COUNT",
     "how many workers, or what share (5%), may be down at once; a failure then pauses the rollout (none)"},
    {"least_speed", "SHARE", "a canary that makes less than this share of its earlier steps/s is too slow (50%)"},
    {"manifest", "FILE", "where several operators sign: write it there, or `sign` or `propose` what is there"},
    {"verify", NULL, "with history: check that no line was changed, removed or moved"},
    {NULL, NULL, NULL},
};

const struct command command_rollout = {
    .name = "rollout",
    .operands = "[NEW.json|VERB]",
    .max_operands = 1,
    .summary = "change the config of a running cluster, and roll back if it fails",
    .details =
        "NEW.json is a complete config.json with a higher fleet.version. The command shows the differences, signs them "
        "with the operator's key (`trainer keygen --operator=operator.key`; every machine has operator.key.pub as "
        "operator.pub beside its config.json) and sends them to ps 0, which coordinates: all members verify and store "
        "the version, worker 0 writes a checkpoint, and all switch.\n\nLive keys such as learning rates (`trainer "
        "config "
        "schema` marks them) change at the same global step while training continues. Machine keys (num_threads, "
        "device, cpu_kernels, data_dir, log_format, progress, recovery_wait_secs) take effect as workers restart one "
        "by one, the last one first; a ps takes them at its next start.\n\nFor any other key, worker 0 first tries the "
        "new config on a copy of the checkpoint; then all members restart and worker 0 restores the parts of the "
        "checkpoint that still fit. Hosts may only be added or removed at the end of their lists.\n\nIf afterwards the "
        "loss is not finite or far worse, a member is lost, or steps stop, the fleet rolls back to the old values and "
        "that checkpoint by itself.\n\nA worker other than worker 0 that is down when the rollout begins does not "
        "block "
        "it, and catches up when it returns, unless the restarted job would wait for it (cluster.min_workers). "
        "Unlisted workers of an elastic cluster take part while they are present.\n\n--binary gives all machines "
        "another "
        "program, alone or with a config that changes keys of machines: ps 0 distributes it, each machine verifies it "
        "and keeps it in trainer.d beside its config, workers restart in it wave by wave, the last one first, and "
        "every ps after them. On the first error all members roll back; with --budget, an error of a worker other than "
        "a canary or worker 0 pauses the rollout instead. Members that are started by systemd or --supervise return to "
        "the old program by themselves if the new one crashes or hangs.\n\nWhat ps 0 reports as the config in force, "
        "and "
        "as the one before it, is trusted if a manifest with this operator's signature, or this machine's config, "
        "confirms it; if not, --yes is not enough, and you are asked on a terminal.\n"
        "trainer rollout status\nProgress, member by member.\n"
        "trainer rollout abort\nRoll back; this, too, is signed.\n"
        "trainer rollout resume\nContinue after a pause, without the workers that failed.\n"
        "trainer rollout revert\nRestore the previous config as a new version.\n"
        "trainer rollout sign --manifest=FILE\nAdd a second operator's signature to what the first one wrote there by "
        "--manifest, after showing it.\n"
        "trainer rollout propose --manifest=FILE\nRoll out what enough operators have signed.\n"
        "trainer rollout history\nThis machine's audit log; with --verify, whether it is whole.",
    .flags = flags,
    .takes_config = true,
    .confine = CONFINE_CLIENT,
    .run = run_rollout,
};
