/* The operator and the checks of fleet.h. The fate of a version is drawn before it is proposed (candidates.h). */
#include "tests/simulate/fleet.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "base/cli/commands.h"
#include "base/config/keys.h"
#include "base/config/versions.h"
#include "base/process/program.h"
#include "base/process/restart.h"
#include "net/handshake.h"
#include "net/operator_key.h"
#include "ps/job/job.h"
#include "ps/rollout/decide.h"
#include "ps/rollout/manifest.h"
#include "tests/simulate/candidates.h"
#include "tests/simulate/intruder.h"
#include "tests/simulate/programs.h"
#include "tests/simulate/records.h"
#include "tests/simulate/reference.h"
#include "tests/simulate/setup.h"
#include "tests/simulate/world.h"
#include "tests/simulate/wrap.h"

#define CONFIG "/etc/config.json"

enum { MOST_VERSIONS = 64, MOST_LIVES = 64, MOST_CANDIDATES = 3, MOST_INTRUSIONS = 2 };

static const double AT_REST_S = 5, LOOK_S = 0.05, OPERATOR_S = 400, PROGRAM_S = 1500;
static const double OFF_S = ROLLOUT_IDLE_TIMEOUT_S + 2; /* after this long a worker counts as off */

/* A version by its number: all begin with 1. */
struct content {
    struct config config; /* values only; owns nothing */
    enum fate fate;
    bool is_signed;
    bool waited;                  /* the job waited for workers when it was rolled out */
    bool off[WORLD_MAX_MACHINES]; /* workers not heard from for long, or behind: they hold up nobody */
    char digest[CONFIG_DIGEST_HEX + 1];
    uint64_t fallback;
    uint64_t job;       /* the version with which its job began: live and local changes keep it */
    bool proven;        /* a worker has made a step in its program */
    uint32_t gone_over; /* members that switched to its program before one had, a bit each */
};

/* A member's version, in memory and on disk. */
struct fleet_member {
    uint64_t version;    /* of its process */
    int loaded;          /* the life of its machine that loaded its config */
    uint64_t started_in; /* of its config at the start */
    uint64_t switching;  /* the last one that it began to switch to */
    bool has[MOST_VERSIONS];
    uint64_t came_from[MOST_VERSIONS]; /* the version before each; 0: it never was in it */
    struct {
        uint64_t incarnation, started_in;
    } lives[MOST_LIVES]; /* the latest */
    int life;
};

static struct fleet {
    bool rolls;
    struct config base; /* owned */
    uint8_t public_key[OPERATOR_PUBLIC_KEY], secret_key[OPERATOR_SECRET_KEY], other_key[OPERATOR_SECRET_KEY];
    struct content versions[MOST_VERSIONS];
    struct fleet_member members[WORLD_MAX_MACHINES];
    int member_count;
    struct machine *operator, * intruder, *colleague; /* the last one: for a paused rollout */
    const char *binary;                               /* programs that come with the candidate; NULL: none */
    double paused_s;                                  /* start of the pause; 0: not paused */
    bool aborts;                                      /* the action of the operator's machine */
    uint64_t next_version, highest_kept;
    int candidates, intrusions; /* still to come */
    double next_s, intrusion_s, abort_s, operator_until_s;
    bool drawn, wants_off;        /* are workers off when the next one comes? */
    struct machine *small;        /* a member without memory, for this candidate */
    const struct rollout *leader; /* ps 0's */
    int leader_life;
    double leader_s;          /* when its process started, by its own clock, like all that it notes */
    enum rollout_state state; /* last seen */
    uint64_t switched;        /* the last version to whose step a ps came */
    uint64_t switched_at_once;
    double since_s; /* when all became as it should be at the end */
    double disks_s; /* when to look at the disks again */
    int64_t since_step;
    uint8_t manifest[MANIFEST_MAX_BYTES]; /* the last one that the operator signed */
    size_t manifest_size;
} fleet;

bool fleet_rolls(void)
{
    return fleet.rolls;
}

void fleet_forget(void)
{
    fleet.rolls = false;
}

static struct content *content_of(uint64_t version)
{
    if (version == 0 || version >= MOST_VERSIONS) {
        fail("%s comes to version %llu, which nobody made", world.here ? world.here->name : "somebody",
             (unsigned long long)version);
        return &fleet.versions[1];
    }
    return &fleet.versions[version];
}

/* --- The machines at the start --- */

static bool is_for_all(const struct config_key *key, const void *context)
{
    return strcmp(key->name, "job_name") != 0 && strcmp(key->name, "task_index") != 0;
}

static int run_operator(struct machine *machine);
static int run_colleague(struct machine *machine);

static struct machine *add_guest(const char *name, int (*run)(struct machine *machine))
{
    struct machine *machine = &world.machines[world.machine_count];
    machine->number = world.machine_count++;
    machine->port = (uint16_t)(9000 + machine->number);
    machine->main = run;
    machine->disk = disk_new();
    snprintf(machine->name, sizeof machine->name, "%s", name);
    return machine;
}

static void put_key(struct machine *machine, const char *path, const char *head, const uint8_t *key, size_t size)
{
    char text[256], hex[2 * OPERATOR_SECRET_KEY + 1];
    sodium_bin2hex(hex, sizeof hex, key, size);
    int length = snprintf(text, sizeof text, "trainer operator %s key 1\n%s\n", head, hex);
    disk_put(machine->disk, path, text, (size_t)length);
}

/* Keys drawn from the run's seed, so that signatures are replayed, too. */
static void make_keys(void)
{
    uint8_t seed[crypto_sign_SEEDBYTES], unused[OPERATOR_PUBLIC_KEY];
    for (size_t i = 0; i < sizeof seed; i++) {
        seed[i] = (uint8_t)chance(256);
    }
    crypto_sign_seed_keypair(fleet.public_key, fleet.secret_key, seed);
    seed[0] ^= 1;
    crypto_sign_seed_keypair(unused, fleet.other_key, seed);
}

void fleet_begin(const struct config_setting *settings, int count)
{
    struct error error;
    config_free(&fleet.base);
    fleet = (struct fleet){.rolls = true, .member_count = world.machine_count, .next_version = 2};
    fleet.candidates = 1 + (int)chance(MOST_CANDIDATES);
    fleet.intrusions = chance(3) == 0 ? 1 + (int)chance(MOST_INTRUSIONS) : 0;
    fleet.abort_s = INFINITY;
    if (!config_parse(&fleet.base, "the fleet's config", (const uint8_t *)"{}", 2, settings, count, &error)) {
        fail("the run's own config is wrong: %s", error.text);
        return;
    }
    fleet.base.fleet.version = 1;
    free(fleet.base.fleet.name);
    fleet.base.fleet.name = strdup("north");
    struct content *first = &fleet.versions[1];
    *first = (struct content){.config = fleet.base, .is_signed = true, .job = 1};
    config_digest(&first->config, first->digest);
    make_keys();
    fleet.operator= add_guest("operator", run_operator);
    fleet.intruder = add_guest("intruder", intruder_run);
    fleet.colleague = programs_roll() ? add_guest("colleague", run_colleague) : NULL;
    char *text = config_keys_text(&fleet.base, is_for_all, NULL);
    intruder_begin(&(struct intruder_means){.config_path = CONFIG,
                                            .fleet = fleet.base.fleet.name,
                                            .own_key = fleet.other_key,
                                            .operator_key = fleet.secret_key,
                                            .manifest = fleet.manifest,
                                            .manifest_size = &fleet.manifest_size});
    for (int i = 0; i < world.machine_count; i++) {
        struct machine *machine = &world.machines[i];
        disk_put(machine->disk, "/etc", NULL, 0);
        disk_put(machine->disk, CONFIG, text, strlen(text));
        put_key(machine, "/etc/operator.pub", "public", fleet.public_key, sizeof fleet.public_key);
        fleet.members[i].has[1] = true;
    }
    free(text);
    put_key(fleet.operator, "/etc/operator.key", "secret", fleet.secret_key, sizeof fleet.secret_key);
    if (fleet.colleague) {
        put_key(fleet.colleague, "/etc/operator.key", "secret", fleet.secret_key, sizeof fleet.secret_key);
    }
}

/* --- Members --- */

/* Whatever a disk does: a process starts in the version that the machine last switched to, as signed. */
static void check_obeyed(const struct machine *machine, const struct config *config)
{
    const struct fleet_member *member = &fleet.members[machine->number];
    const uint64_t version = (uint64_t)config->fleet.version;
    char digest[CONFIG_DIGEST_HEX + 1];
    if (version != member->version && version != member->switching && member->version > 0) {
        fail("%s starts in version %llu, and was in %llu", machine->name, (unsigned long long)version,
             (unsigned long long)member->version);
    }
    config_digest(config, digest);
    if (strcmp(digest, content_of(version)->digest) != 0) {
        fail("%s starts in a config that is not version %llu", machine->name, (unsigned long long)version);
    }
}

/* ps/rollout/history.h has a struct lineage of its own. */
program_vouches lineage_vouches;

bool fleet_load(struct machine *machine, struct config *config, const struct config_setting *settings, int count,
                struct error *error)
{
    struct fleet_member *member = &fleet.members[machine->number];
    probation_check(CONFIG);
    program_launch(CONFIG, lineage_vouches);
    if (!config_load(config, CONFIG, settings, count, error)) {
        if (disk_is_rotten(machine->disk)) {
            return false;
        }
        fail("%s can't read its config any more: %s", machine->name, error->text);
        return false;
    }
    check_obeyed(machine, config);
    member->version = member->started_in = (uint64_t)config->fleet.version;
    member->loaded = machine->life;
    say("is in version %llu", (unsigned long long)member->version);
    if (programs_roll() && !programs_is_in(machine, member->version) && !disk_is_full(machine->disk)) {
        fail("%s is in version %llu, and in another program", machine->name, (unsigned long long)member->version);
    }
    return true;
}

bool fleet_dies_of(const struct config *config)
{
    return fleet.rolls && content_of((uint64_t)config->fleet.version)->fate == FATE_KILLS;
}

bool fleet_is_small(const struct machine *machine)
{
    return fleet.small == machine;
}

bool fleet_trial_fails(const char *path)
{
    char text[8192];
    const char *version = disk_get(world.here->disk, path, text, sizeof text) ? strstr(text, "\"version\":") : NULL;
    if (!version) {
        fail("the trial of worker 0 has no config");
        return true;
    }
    return content_of(strtoull(version + 10, NULL, 10))->fate == FATE_FAILS_ITS_TRIAL;
}

/* The leader's decisions. */
WRAP(bool, rollout_create, struct rollout *rollout, int ps, int workers, int room)
{
    if (fleet.rolls && world.here->number == 0) {
        fleet.leader = rollout;
        fleet.leader_life = world.here->life;
        fleet.leader_s = machine_clock_s(world.here);
        fleet.state = ROLLOUT_IDLE;
    }
    return __real_rollout_create(rollout, ps, workers, room);
}

static const struct rollout *leader(void)
{
    const struct machine *machine = &world.machines[0];
    return machine->runs && machine->life == fleet.leader_life ? fleet.leader : NULL;
}

WRAP(bool, rollout_begin, struct rollout *rollout, const struct rollout_plan *plan, const struct rollout_vitals *vitals,
     double now_s, char message[256])
{
    bool done = __real_rollout_begin(rollout, plan, vitals, now_s, message);
    struct content *content = content_of(plan->target);
    content->waited = vitals->waits;
    for (int i = 0; i < fleet.member_count; i++) {
        const double heard_s = rollout->members[i].heard_s;
        const bool is_behind = rollout->members[i].version != plan->fallback;
        content->off[i] = i > setup.ps && (heard_s < 0 || now_s - heard_s >= ROLLOUT_IDLE_TIMEOUT_S || is_behind);
    }
    if (done && plan->target <= fleet.highest_kept) {
        fail("a rollout of version %llu begins, and version %llu was here already", (unsigned long long)plan->target,
             (unsigned long long)fleet.highest_kept);
    }
    return done;
}

/* --- What members keep and accept --- */

WRAP(bool, versions_add, const struct versions *versions, uint64_t number, const char *text, size_t size,
     struct error *error)
{
    char digest[CONFIG_DIGEST_HEX + 1];
    uint8_t hash[CONFIG_DIGEST_HEX / 2];
    const struct content *content = content_of(number);
    crypto_generichash(hash, sizeof hash, (const uint8_t *)text, size, NULL, 0);
    sodium_bin2hex(digest, sizeof digest, hash, sizeof hash);
    if (!content->is_signed || strcmp(content->digest, digest) != 0) {
        fail("%s keeps version %llu, which the operator never signed", world.here->name, (unsigned long long)number);
    }
    bool done = __real_versions_add(versions, number, text, size, error);
    if (done && number < MOST_VERSIONS) {
        fleet.members[world.here->number].has[number] = true;
        fleet.highest_kept = number > fleet.highest_kept ? number : fleet.highest_kept;
    }
    return done;
}

/* An unlisted worker: nobody has to wait for it. */
static bool comes_and_goes(int i)
{
    return i >= setup.ps + setup.listed;
}

static uint64_t version_on_disk(const struct machine *machine)
{
    char text[64];
    return disk_get(machine->disk, CONFIG ".d/current", text, sizeof text) ? strtoull(text, NULL, 10) : 1;
}

/* A config alone stays in the program in which its fallback was proven. */
static bool is_proven(uint64_t version)
{
    const struct content *content = content_of(version);
    while (!content->proven && !content->waited && content->fallback > 0 &&
           !programs_differ(version, content->fallback)) {
        version = content->fallback;
        content = content_of(version);
    }
    return content->proven || content->waited;
}

/* At most one worker of each architecture tries a program in which nobody has made a step. */
static void check_canaries(uint64_t from, uint64_t version)
{
    struct content *content = content_of(version);
    const bool is_worker = world.here->number >= setup.ps;
    if (is_proven(version) || !programs_differ(version, from)) {
        return;
    }
    content->gone_over |= UINT32_C(1) << world.here->number;
    if (!is_worker || __builtin_popcount(content->gone_over) > programs_architectures()) {
        fail("%s goes over to the program of version %llu before a canary has made a step in it", world.here->name,
             (unsigned long long)version);
    }
}

WRAP(bool, versions_switch, const struct versions *versions, uint64_t number, struct error *error)
{
    const uint64_t from = version_on_disk(world.here);
    const struct content *content = content_of(number);
    if (!content->is_signed) {
        fail("%s takes version %llu, which the operator never signed", world.here->name, (unsigned long long)number);
    }
    struct fleet_member *member = &fleet.members[world.here->number];
    if (number < from && content_of(from)->fallback != number && member->came_from[from] != number) {
        fail("%s goes from version %llu back to %llu, which is neither its fallback nor what it came from",
             world.here->name, (unsigned long long)from, (unsigned long long)number);
    }
    for (int i = 0; number > from && i < fleet.member_count; i++) {
        const bool may_miss = comes_and_goes(i) || (content->waited && i > setup.ps) || content->off[i];
        if (programs_roll() && !may_miss && !programs_has(&world.machines[i], number)) {
            fail("%s takes version %llu, and %s does not have its program yet", world.here->name,
                 (unsigned long long)number, world.machines[i].name);
        }
        if (!fleet.members[i].has[number] && !may_miss) {
            fail("%s takes version %llu, and %s does not have it yet", world.here->name, (unsigned long long)number,
                 world.machines[i].name);
        }
    }
    member->switching = number;
    if (number > from && programs_roll()) {
        check_canaries(from, number);
    }
    if (number > from) {
        member->came_from[number] = from;
    }
    bool done = __real_versions_switch(versions, number, error);
    say("switches from version %llu to %llu%s%s", (unsigned long long)from, (unsigned long long)number,
        done ? "" : ": ", done ? "" : error->text);
    if (done) {
        member->version = number;
    }
    return done;
}

/* Its program was damaged: it goes on in a lower version, until the fleet brings both again. */
WRAP(bool, versions_step_back, const char *config_path, uint64_t number, uint64_t failed, uint64_t *lower,
     struct error *error)
{
    struct fleet_member *member = &fleet.members[world.here->number];
    const bool done = __real_versions_step_back(config_path, number, failed, lower, error);
    if (done) {
        say("steps back from version %llu to %llu", (unsigned long long)number, (unsigned long long)*lower);
        member->version = *lower > 0 ? *lower : 1;
    }
    return done;
}

WRAP(uint64_t, handshake_new_incarnation, void)
{
    uint64_t incarnation = __real_handshake_new_incarnation();
    struct fleet_member *member = &fleet.members[world.here->number];
    member->lives[member->life].incarnation = incarnation;
    member->lives[member->life].started_in = member->started_in;
    member->life = (member->life + 1) % MOST_LIVES;
    return incarnation;
}

void fleet_check_push(int worker, uint64_t incarnation)
{
    const struct fleet_member *ps = &fleet.members[world.here->number], *other = &fleet.members[setup.ps + worker];
    for (int i = 0; fleet.rolls && i < MOST_LIVES; i++) {
        const uint64_t version = other->lives[i].started_in;
        if (other->lives[i].incarnation == incarnation && content_of(ps->started_in)->job != content_of(version)->job) {
            fail("%s, started in version %llu, takes a push of worker %d, started in version %llu", world.here->name,
                 (unsigned long long)ps->started_in, worker, (unsigned long long)version);
        }
    }
}

/* --- The operator --- */

/* What the operator signs, with the program's own command. */
WRAP(bool, manifest_encode, struct manifest *manifest, const uint8_t secret_key[OPERATOR_SECRET_KEY], uint8_t **bytes,
     size_t *size, struct error *error)
{
    bool done = __real_manifest_encode(manifest, secret_key, bytes, size, error);
    if (!done || memcmp(secret_key, fleet.secret_key, OPERATOR_SECRET_KEY) != 0 ||
        strcmp(manifest->fleet, fleet.base.fleet.name) != 0) {
        return done;
    }
    const struct manifest_config *to = &manifest->target, *from = &manifest->fallback;
    struct content *content = content_of(to->version), *before = content_of(from->version);
    bool local = to->local_size != from->local_size || memcmp(to->local, from->local, to->local_size) != 0;
    const struct config *new = &content->config, *old = &before->config;
    bool live = new->train.learning_rate != old->train.learning_rate || /* NOLINT: as written */
                new->cluster.replicas_to_aggregate != old->cluster.replicas_to_aggregate ||
                new->cluster.max_staleness != old->cluster.max_staleness;
    bool job = new->train.optimizer != old->train.optimizer ||
               new->cluster.lease_secs != old->cluster.lease_secs; /* NOLINT: as written */
    content->is_signed = true;
    programs_signed(to->version, from->version, &manifest->programs);
    content->fallback = from->version;
    content->job = job || (live && local) ? to->version : before->job;
    snprintf(content->digest, sizeof content->digest, "%s", to->digest);
    memcpy(fleet.manifest, *bytes, *size);
    fleet.manifest_size = *size;
    say("version %llu is signed: rate %g, optimizer %d, replicas %d, fate %d; to go back to: version %llu",
        (unsigned long long)to->version, new->train.learning_rate, (int)new->train.optimizer,
        new->cluster.replicas_to_aggregate, (int)content->fate, (unsigned long long)from->version);
    return done;
}

static int run_operator(struct machine *machine)
{
    struct config config;
    struct error error;
    char file[] = "/etc/new.json", word[] = "abort";
    char *operands[] = {fleet.aborts ? word : file};
    if (!config_load(&config, CONFIG, NULL, 0, &error)) {
        say("error: %s", error.text);
        return 2;
    }
    struct command_call call = {.command = &command_rollout,
                                .config = &config,
                                .operands = operands,
                                .operand_count = 1,
                                .values = {NULL, "true", NULL, NULL, chance(2) == 0 ? "1" : "3"}};
    if (fleet.binary && !fleet.aborts) {
        static const char *const rates[] = {NULL, "0.02", "0.002"}, *const waves[] = {NULL, "1,100%", "1,50%,100%"};
        static const char *const budgets[] = {NULL, NULL, "1", "50%"}, *const speeds[] = {NULL, "0%", "80%"};
        call.values[5] = fleet.binary;
        call.values[6] = rates[chance(3)];
        call.values[7] = waves[chance(3)];
        call.values[8] = budgets[chance(4)];
        call.values[9] = speeds[chance(3)];
    }
    int status = command_rollout.run(&call);
    config_free(&config);
    return status;
}

/* Sees that a rollout is paused, and decides. */
static int run_colleague(struct machine *machine)
{
    struct config config;
    struct error error;
    char resume[] = "resume", abort[] = "abort";
    char *operands[] = {chance(3) == 0 ? abort : resume};
    if (!config_load(&config, CONFIG, NULL, 0, &error)) {
        return 2;
    }
    struct command_call call = {.command = &command_rollout,
                                .config = &config,
                                .operands = operands,
                                .operand_count = 1,
                                .values = {NULL, "true"}};
    say("wants to %s", operands[0]);
    int status = command_rollout.run(&call);
    config_free(&config);
    return status;
}

static void put_new(const struct config *config)
{
    char *text = config_keys_text(config, is_for_all, NULL);
    disk_put(fleet.operator->disk, "/etc/new.json", text, strlen(text));
    free(text);
}

static void start_operator(bool aborts)
{
    fleet.aborts = aborts;
    machine_start(fleet.operator);
    world.here = fleet.operator;
    say("%s", aborts ? "wants to abort" : "comes with a new version");
    world.here = NULL;
}

/* --- The run --- */

static bool is_idle(void)
{
    return leader() && leader()->state == ROLLOUT_IDLE;
}

static bool is_training(void)
{
    const struct job *job = records_job(0);
    return job && job->state == JOB_TRAINING;
}

/* An unlisted or absent worker is no reason to abort, unless it says why itself ("worker 3: ..."). */
static void check_reason(const struct rollout *rollout)
{
    const struct content *content = content_of(rollout->target);
    for (int i = 0; i < fleet.member_count; i++) {
        const char *name = world.machines[i].name;
        const size_t length = strlen(name);
        if ((comes_and_goes(i) || content->off[i]) && strncmp(rollout->reason, name, length) == 0 &&
            rollout->reason[length] == ' ') {
            fail("the rollout of version %llu is given up for %s, which %s: %s", (unsigned long long)rollout->target,
                 name, comes_and_goes(i) ? "may come and go" : "was off or behind when it began", rollout->reason);
        }
    }
}

/*
 * Nobody may be left behind when all have adopted a version, or gone back from it: every running member that had to be
 * waited for is in the version and ready. One that ps 0 has not heard from for long, since its own start, may be cut
 * off.
 */
static void check_members(const struct rollout *rollout)
{
    const struct content *content = content_of(rollout->target);
    const bool back = rollout->outcome == OUTCOME_WENT_BACK;
    const uint64_t version = back ? rollout->fallback : rollout->target;
    for (int i = 0; i < fleet.member_count; i++) {
        const struct rollout_member *member = &rollout->members[i];
        const double since_s = member->heard_s >= 0 ? member->heard_s : fleet.leader_s;
        const bool may_miss = comes_and_goes(i) || (i > setup.ps && (content->waited || content->off[i]));
        const double now_s = machine_clock_s(&world.machines[0]);
        if (may_miss || !world.machines[i].runs || now_s - since_s >= ROLLOUT_IDLE_TIMEOUT_S) {
            continue;
        }
        const bool has_begun = fleet.members[i].loaded == world.machines[i].life; /* or it is about to switch */
        if (programs_roll() && has_begun && member->version == version &&
            !programs_is_in(&world.machines[i], version)) {
            fail("the rollout of version %llu is over, and %s is in another program",
                 (unsigned long long)rollout->target, world.machines[i].name);
        }
        if (member->heard_s < 0 || member->version != version || !(member->ready || rollout->waits)) {
            fail("the rollout of version %llu is over, and %s is not ready in version %llu: it was %s in version %llu",
                 (unsigned long long)rollout->target, world.machines[i].name, (unsigned long long)version,
                 member->heard_s >= 0 ? "heard of" : "not heard of yet", (unsigned long long)member->version);
        }
    }
}

bool fleet_turned(void)
{
    const struct rollout *rollout = fleet.rolls ? leader() : NULL;
    bool turned = rollout && rollout->state != fleet.state;
    if (turned && rollout->state == ROLLOUT_IDLE && lineage.mixed) {
        fail("the rollout of version %llu is over, and a step had not one learning rate on all shards",
             (unsigned long long)rollout->target);
    }
    if (turned && (rollout->state == ROLLOUT_GOING_BACK ||
                   (rollout->state == ROLLOUT_IDLE && rollout->outcome == OUTCOME_NOT_BEGUN))) {
        check_reason(rollout);
    }
    /* After going back from a live change worker 0 restores, and only then the others join again. */
    const bool all_back = turned && rollout->outcome == OUTCOME_WENT_BACK && rollout->kind != ROLLOUT_LIVE;
    const bool all_done = turned && rollout->outcome == OUTCOME_DONE && is_training();
    if (turned && rollout->state == ROLLOUT_IDLE && (all_back || all_done)) {
        check_members(rollout);
    }
    fleet.state = rollout ? rollout->state : fleet.state;
    return turned;
}

bool fleet_switches(void)
{
    const struct rollout *rollout = fleet.rolls ? leader() : NULL;
    if (!rollout || rollout->state != ROLLOUT_SWITCHING || rollout->kind != ROLLOUT_LIVE || !is_training() ||
        rollout->target == fleet.switched || records_job(0)->global_step < rollout->step) {
        return false;
    }
    fleet.switched = rollout->target;
    return true;
}

bool fleet_switches_at_once(void)
{
    const struct rollout *rollout = fleet.rolls ? leader() : NULL;
    if (!rollout || rollout->state != ROLLOUT_SWITCHING || rollout->kind != ROLLOUT_LIVE || !rollout->at_once ||
        rollout->target == fleet.switched_at_once) {
        return false;
    }
    fleet.switched_at_once = rollout->target;
    return true;
}

static void begin_next(void)
{
    const uint64_t version = fleet.next_version++;
    const struct config *from = &fleet.versions[fleet.members[0].version].config; /* ps 0's */
    fleet.candidates--;
    fleet.drawn = false;
    const struct candidate candidate = programs_roll() && chance(4) != 0
                                           ? candidate_draw_program(from, version, fleet.operator->disk)
                                           : candidate_draw(from, version);
    fleet.versions[version] = (struct content){.config = candidate.config, .fate = candidate.fate};
    fleet.binary = candidate.binary;
    fleet.small = candidate.small;
    put_new(&candidate.config);
    start_operator(false);
    fleet.operator_until_s = world.now_s + (programs_roll() ? PROGRAM_S : OPERATOR_S);
    fleet.next_s = world.now_s + 1;
    fleet.abort_s = chance(8) == 0 ? world.now_s + 12 * chance_real() : INFINITY;
}

/* Decides about a rollout that waits for a decision. */
static void look_at_pause(void)
{
    const struct rollout *rollout = leader();
    const bool is_paused = rollout && rollout->state == ROLLOUT_SWITCHING && rollout->is_paused;
    if (!is_paused) {
        fleet.paused_s = 0;
    } else if (fleet.paused_s == 0) {
        fleet.paused_s = world.now_s + 40 * chance_real();
    } else if (world.now_s >= fleet.paused_s && !fleet.colleague->runs) {
        fleet.paused_s = 0;
        machine_start(fleet.colleague);
    }
}

static void note_proof(void)
{
    const struct rollout *rollout = leader();
    for (int i = 0; rollout && rollout->state != ROLLOUT_IDLE && rollout->brings_program && i < rollout->count; i++) {
        const struct rollout_member *member = &rollout->members[i];
        if (member->who.role == MEMBER_WORKER && member->runs_target && member->steps > 0) {
            content_of(rollout->target)->proven = true;
        }
    }
}

void fleet_step(void)
{
    if (!fleet.operator->runs && world.now_s >= fleet.abort_s) {
        fleet.abort_s = INFINITY;
        start_operator(true);
    } else if (fleet.candidates > 0 && !fleet.operator->runs && world.now_s >= fleet.next_s && is_idle() &&
               is_training()) {
        fleet.wants_off = !fleet.drawn && chance(3) == 0;
        fleet.drawn = true;
        if (fleet.wants_off) {
            fleet.next_s = world.now_s + OFF_S;
        } else {
            begin_next();
        }
    }
    if (fleet.intrusions > 0 && !fleet.intruder->runs && world.now_s >= fleet.intrusion_s && is_training()) {
        fleet.intrusions--;
        fleet.intrusion_s = world.now_s + 15 * chance_real();
        machine_start(fleet.intruder);
    }
    look_at_pause();
    note_proof();
    if (fleet.operator->runs && world.now_s >= fleet.operator_until_s) {
        fail("the operator still waits after %.0f s", programs_roll() ? PROGRAM_S : OPERATOR_S);
    }
}

bool fleet_wants_workers_off(void)
{
    const bool wants = fleet.wants_off;
    fleet.wants_off = false;
    return wants;
}

bool fleet_is_done(void)
{
    return fleet.candidates == 0 && !fleet.operator->runs && is_idle() && fleet.abort_s > world.now_s + 1e9;
}

/* It was not there to report that it can't run the others' version, or that it has no model. */
static bool is_left_out(int i, uint64_t version)
{
    return programs_roll() && (comes_and_goes(i) || content_of(version)->off[i]) &&
           !programs_works(&world.machines[i], version);
}

/* Do all but those that could not report it? */
static bool does_no_good(uint64_t version)
{
    bool bad = false;
    for (int i = 0; content_of(version)->fate == FATE_BAD_PROGRAM && i < fleet.member_count; i++) {
        bad = bad || (!programs_works(&world.machines[i], version) && !is_left_out(i, version));
    }
    return bad || (content_of(version)->fate != FATE_GOOD && content_of(version)->fate != FATE_BAD_PROGRAM);
}

/* Is this member where it should be at the end? */
static bool is_settled(int i, bool on_disk)
{
    const struct fleet_member *member = &fleet.members[i], *first = &fleet.members[0];
    if ((comes_and_goes(i) && !world.machines[i].runs) || is_left_out(i, first->version)) {
        return true;
    }
    return world.machines[i].runs && member->version == first->version &&
           (!programs_roll() || programs_is_in(&world.machines[i], member->version)) &&
           (!on_disk || version_on_disk(&world.machines[i]) == first->version);
}

/* After every event; disks take longer to check, so only now and then, and at the end. */
static bool all_settled(bool on_disk)
{
    bool all = fleet.candidates == 0 && !fleet.operator->runs && is_idle() && is_training();
    if (all && world.now_s >= fleet.disks_s) {
        on_disk = true;
        fleet.disks_s = world.now_s + LOOK_S;
    }
    for (int i = 0; i < fleet.member_count && all; i++) {
        all = is_settled(i, on_disk);
    }
    return all;
}

bool fleet_is_at_rest(void)
{
    if (!all_settled(false)) {
        fleet.since_s = 0;
        return false;
    }
    if (fleet.since_s == 0) {
        fleet.since_s = world.now_s;
        fleet.since_step = records_job(0)->global_step;
    }
    if (world.now_s < fleet.since_s + AT_REST_S || records_job(0)->global_step < fleet.since_step + 3 ||
        !all_settled(true)) {
        return false;
    }
    const struct rollout *rollout = leader();
    const uint64_t version = fleet.members[0].version;
    if (does_no_good(version)) {
        fail("the fleet ends on version %llu, which does no good", (unsigned long long)version);
    }
    if (rollout->outcome != OUTCOME_NONE &&
        version != (rollout->outcome == OUTCOME_DONE ? rollout->target : rollout->fallback)) {
        fail("the fleet ends on version %llu; that of version %llu came to %d", (unsigned long long)version,
             (unsigned long long)rollout->target, (int)rollout->outcome);
    }
    return true;
}

void fleet_blame(void)
{
    char text[400] = "";
    size_t used = 0;
    for (int i = 0; i < fleet.member_count && used < sizeof text - 40; i++) {
        const struct machine *machine = &world.machines[i];
        used += (size_t)snprintf(text + used, sizeof text - used, "; %s: %llu (disk: %llu)%s", machine->name,
                                 (unsigned long long)fleet.members[i].version,
                                 (unsigned long long)version_on_disk(machine), machine->runs ? "" : " gone");
    }
    fail("no rest: rollout %s%s%s", leader() ? rollout_state_name(leader()->state) : "without a leader",
         is_training() ? ", it trains" : ", no training", text);
}
