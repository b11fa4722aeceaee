/* What the intruder tries is drawn each time; whatever of it ps 0 accepts is a failure of the run. */
#include "tests/simulate/intruder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/config.h"
#include "ps/rollout/manifest.h"
#include "tests/simulate/programs.h"
#include "tests/simulate/world.h"
#include "worker/remote/operator/rollout_client.h"

/* Not the wrapped one: fleet.c takes what is signed with the operator's key for the operator's own. */
bool __real_manifest_encode(struct manifest *manifest, const uint8_t secret_key[OPERATOR_SECRET_KEY], uint8_t **bytes,
                            size_t *size, struct error *error);

static struct intruder_means means;

void intruder_begin(const struct intruder_means *what)
{
    means = *what;
}

enum intrusion {
    INTRUSION_KEY,
    INTRUSION_FLEET,
    INTRUSION_MACHINE,
    INTRUSION_AGAIN,
    INTRUSION_TORN,
    INTRUSION_ABORT,
    INTRUSIONS
};

static const double WATCHES_S = 30, WATCHES_EVERY_S = 0.5; /* waits for a rollout to abort */

/*
 * A plausible manifest that was not signed by the operator, or not for this fleet; or one that the operator was tricked
 * into signing, with keys that belong to each machine.
 */
static bool forge(const struct message_rollout *told, enum intrusion how, uint8_t **bytes, size_t *size,
                  struct error *error)
{
    static const char profile[] = "{\"output\":{\"profile\":\"/etc/everything\"}}";
    struct config config;
    char *target = NULL;
    if (!config_parse(&config, "what ps 0 told", (const uint8_t *)told->job, strlen(told->job), NULL, 0, error)) {
        return false;
    }
    config.fleet.version = (int64_t)told->highest + 1;
    config.train.learning_rate *= 2;
    target = config_job_text(&config);
    config_free(&config);
    struct manifest manifest = {
        .author = "nobody",
        .target = {.version = told->highest + 1, .text = target, .text_size = target ? strlen(target) : 0},
        .fallback = {.version = told->version,
                     .text = told->job,
                     .text_size = strlen(told->job),
                     .local = told->local,
                     .local_size = strlen(told->local)}};
    manifest.target.local = how == INTRUSION_MACHINE ? profile : told->local;
    manifest.target.local_size = strlen(manifest.target.local);
    if (programs_roll() && how != INTRUSION_MACHINE) {
        programs_forge(&manifest.programs);
    }
    snprintf(manifest.fleet, sizeof manifest.fleet, "%s", how == INTRUSION_FLEET ? "south" : means.fleet);
    const uint8_t *key = how == INTRUSION_KEY ? means.own_key : means.operator_key;
    bool done = target && __real_manifest_encode(&manifest, key, bytes, size, error);
    free(target);
    return done;
}

static bool copy_last(uint8_t **bytes, size_t *size)
{
    *size = *means.manifest_size;
    *bytes = *size > 0 ? malloc(*size) : NULL;
    return *bytes && memcpy(*bytes, means.manifest, *size);
}

/* Aborts the next rollout, with everything right except the signature. */
static void intrude_by_abort(struct rollout_client *link)
{
    struct error error;
    uint8_t bytes[MANIFEST_ABORT_BYTES];
    const double until_s = world.now_s + WATCHES_S;
    const struct message_rollout *told = rollout_client_ask(link, &error);
    while (told && told->state == ROLLOUT_IDLE && world.now_s < until_s) {
        usleep((useconds_t)(WATCHES_EVERY_S * 1e6));
        told = rollout_client_ask(link, &error);
    }
    if (!told || told->state == ROLLOUT_IDLE) {
        return;
    }
    struct manifest_abort abort = {.author = "nobody", .target = told->target};
    snprintf(abort.fleet, sizeof abort.fleet, "%s", means.fleet);
    manifest_hash(means.manifest, *means.manifest_size, abort.hash);
    say("aborts version %llu", (unsigned long long)abort.target);
    const size_t size = manifest_abort_encode(&abort, means.own_key, bytes);
    if (rollout_client_abort(link, "nobody", bytes, size, &error)) {
        fail("ps 0 gives up version %llu, and it is not the operator who wants it", (unsigned long long)abort.target);
    }
    say("is answered: %s", error.text);
}

/* Nothing that no operator signed may fill a disk. */
static void intrude_by_program(struct rollout_client *link, const uint8_t *bytes, size_t size, enum intrusion how)
{
    struct manifest_programs forged;
    struct error error;
    uint64_t there;
    if (!programs_roll() || how == INTRUSION_AGAIN || how == INTRUSION_MACHINE) {
        return;
    }
    programs_forge(&forged);
    if (rollout_client_offer(link, forged.items[0].digest, bytes, size, &there, &error)) {
        fail("ps 0 takes in a program that the operator did not sign for this fleet: %d", (int)how);
    }
}

static void intrude_by_manifest(struct rollout_client *link, enum intrusion how)
{
    struct error error;
    uint8_t *bytes = NULL;
    size_t size = 0;
    const struct message_rollout *told = rollout_client_ask(link, &error);
    bool made = told && (how == INTRUSION_AGAIN || how == INTRUSION_TORN ? copy_last(&bytes, &size)
                                                                         : forge(told, how, &bytes, &size, &error));
    if (made && how == INTRUSION_TORN) {
        if (chance(2) == 0) {
            size = chance(size);
        } else {
            bytes[chance(size)] ^= (uint8_t)(1 + chance(255));
        }
    }
    if (made) {
        say("proposes manifest %d of %zu bytes", (int)how, size);
        intrude_by_program(link, bytes, size, how);
        if (rollout_client_propose(link, bytes, size, 1, &error) == PROPOSAL_TAKEN && how != INTRUSION_AGAIN) {
            fail("ps 0 begins what the operator did not sign for this fleet, or could not: %d", (int)how);
        }
        say("is answered: %s", error.text);
    }
    free(bytes);
}

int intruder_run(struct machine *machine)
{
    struct config config;
    struct error error = {""};
    struct rollout_client link;
    if (!config_load(&config, means.config_path, NULL, 0, &error)) {
        return 2;
    }
    const enum intrusion how = (enum intrusion)chance(INTRUSIONS);
    if (!rollout_client_open(&link, &config, &error)) {
        say("error: %s", error.text);
    } else if (how == INTRUSION_ABORT) {
        intrude_by_abort(&link);
    } else {
        intrude_by_manifest(&link, how);
    }
    rollout_client_close(&link);
    config_free(&config);
    return 0;
}
