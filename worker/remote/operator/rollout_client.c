/* Requests about rollouts to ps 0, and the fleet's state as it reports it. */
#include "worker/remote/operator/rollout_client.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/message.h"
#include "ps/rollout/manifest.h"

/* --- Requests --- */

/* The operator's connection to ps 0: queries, proposes and aborts a rollout. */

static const double TIMEOUT_S = 5.0;
static const double REACH_S = 20.0; /* over several attempts, while ps 0 is busy */

bool rollout_client_open(struct rollout_client *client, const struct config *config, struct error *error)
{
    memset(client, 0, sizeof *client);
    if (!identity_create(&client->identity, config, (struct member){MEMBER_OPERATOR, MEMBER_ANY_INDEX}, error)) {
        return false;
    }
    client->identity.hello.digest = "";
    client->identity.hello.job = "";
    if (!shard_link_create(&client->link, config, 0, &client->identity, &client->traffic, error)) {
        return false;
    }
    client->link.quiet = true;
    client->link.timeout_s = TIMEOUT_S;
    /* While ps 0 writes what it received to a slow disk it is silent, whatever the fleet's lease. */
    client->link.idle_timeout_s = fmax(client->link.idle_timeout_s, LINK_ANSWER_S);
    return true;
}

void rollout_client_close(struct rollout_client *client)
{
    link_destroy(&client->link);
    identity_destroy(&client->identity);
}

bool rollout_client_reach(struct rollout_client *client, struct error *error)
{
    const double until_s = clock_monotonic_s() + REACH_S;
    for (;;) {
        const double begun_s = clock_monotonic_s();
        client->link.next_try_s = 0;
        enum link_try result = link_try(&client->link, error);
        const double now_s = clock_monotonic_s();
        if (result == LINK_OPEN) {
            return true;
        }
        if (result == LINK_REFUSED || now_s - begun_s < TIMEOUT_S || now_s >= until_s) {
            return false; /* nobody listens there: that is known at once and won't change */
        }
        log_info("waiting for %s, up to %.0f s: %s", client->link.name, REACH_S, error->text);
    }
}

const struct message_rollout *rollout_client_ask(struct rollout_client *client, struct error *error)
{
    struct channel *channel = &client->link.channel;
    const struct message_report report = {.loss = -1.0f};
    if (!link_is_open(&client->link)) {
        client->link.next_try_s = 0;
        if (link_try(&client->link, error) != LINK_OPEN) {
            return NULL;
        }
    }
    if (!channel_call(channel, MESSAGE_report, &report, MESSAGE_rollout, clock_monotonic_s() + TIMEOUT_S, NULL,
                      error)) {
        link_close(&client->link);
        return NULL;
    }
    return &channel->message.rollout;
}

bool rollout_client_manifest(struct rollout_client *client, uint8_t **bytes, size_t *size, struct error *error)
{
    struct channel *channel = &client->link.channel;
    *size = channel->bulk_left;
    *bytes = NULL;
    if (*size == 0) {
        return true;
    }
    if (*size > MANIFEST_MAX_BYTES || !(*bytes = malloc(*size))) {
        return error_set(error, "ps 0 sent a manifest of %zu bytes, which is too large", *size);
    }
    if (!channel_read_bulk(channel, *bytes, *size, clock_monotonic_s() + TIMEOUT_S, error)) {
        free(*bytes);
        *bytes = NULL;
        link_close(&client->link);
        return false;
    }
    return true;
}

/*
 * *refused: ps 0 says why it refuses. If there is no valid answer the connection is closed: then it is unknown whether
 * ps 0 accepted.
 */
static bool call_with_bulk(struct rollout_client *client, const struct outgoing *request, const uint8_t *bytes,
                           size_t size, enum message_type answer, bool *refused, struct error *error)
{
    struct link *link = &client->link;
    const struct iovec bulk = {(void *)(uintptr_t)bytes, size};
    struct outgoing frame = *request;
    uint16_t code;
    frame.bulk = &bulk;
    frame.bulk_parts = 1;
    const bool done = link_call(link, &frame, answer, &code, error);
    *refused = code != 0;
    if (*refused) {
        error_set(error, "ps 0 refuses it: %s", link->channel.message.error.message);
    } else if (!done) {
        link_close(link);
    }
    return done;
}

enum proposal rollout_client_propose(struct rollout_client *client, const uint8_t *bytes, size_t size, double healthy_s,
                                     struct error *error)
{
    const struct message_propose proposal = {.healthy_s = healthy_s};
    const struct outgoing request = {.type = MESSAGE_propose, .message = &proposal};
    bool refused;
    return call_with_bulk(client, &request, bytes, size, MESSAGE_done, &refused, error) ? PROPOSAL_TAKEN
           : refused                                                                    ? PROPOSAL_REFUSED
                                                                                        : PROPOSAL_UNANSWERED;
}

/* For a request whose answer says how much is there. */
static bool call_for_position(struct rollout_client *client, const struct outgoing *request, const uint8_t *bytes,
                              size_t size, uint64_t *there, struct error *error)
{
    bool refused;
    if (!call_with_bulk(client, request, bytes, size, MESSAGE_program, &refused, error)) {
        return false;
    }
    *there = client->link.channel.message.program.offset;
    return true;
}

bool rollout_client_offer(struct rollout_client *client, const char *digest, const uint8_t *manifest, size_t size,
                          uint64_t *there, struct error *error)
{
    const struct message_offer_program offer = {.digest = (char *)(uintptr_t)digest};
    const struct outgoing request = {.type = MESSAGE_offer_program, .message = &offer};
    return call_for_position(client, &request, manifest, size, there, error);
}

bool rollout_client_put(struct rollout_client *client, const char *digest, uint64_t offset, const uint8_t *bytes,
                        size_t size, uint64_t *there, struct error *error)
{
    const struct message_put_program piece = {.digest = (char *)(uintptr_t)digest, .offset = offset};
    const struct outgoing request = {.type = MESSAGE_put_program, .message = &piece};
    return call_for_position(client, &request, bytes, size, there, error);
}

bool rollout_client_abort(struct rollout_client *client, const char *who, const uint8_t *bytes, size_t size,
                          struct error *error)
{
    const struct message_abort_rollout message = {.who = who};
    const struct outgoing request = {.type = MESSAGE_abort_rollout, .message = &message};
    bool refused;
    return call_with_bulk(client, &request, bytes, size, MESSAGE_done, &refused, error);
}

/* --- The fleet --- */

/*
 * How much of what ps 0 says must be taken on trust. Nothing of the config in force, if a manifest with the operator's
 * signature leads to it or goes back to it, or if it is this machine's own. Nothing of the previous config, if that
 * manifest names it as its fallback.
 */

enum { MOST_LEAP = 1000 }; /* versions that may plausibly have been proposed since the one in force */

void fleet_view_free(struct fleet_view *view)
{
    config_free(&view->running);
    free(view->job);
    free(view->local);
    free(view->earlier);
    free(view->earlier_local);
    free(view->manifest);
    *view = (struct fleet_view){.job = NULL};
}

/* Is it a config of this fleet, exactly as this program writes it? That text is what gets signed. */
static bool parse_running(struct fleet_view *view, const struct config *here, struct error *error)
{
    const char *job = view->job;
    if (!config_parse(&view->running, "the fleet's config", (const uint8_t *)job, strlen(job), NULL, 0, error)) {
        return false;
    }
    char *text = config_job_text(&view->running);
    const bool same = strcmp(text, job) == 0;
    free(text);
    if (!same) {
        return error_set(error, "this program reads the config that ps 0 sent differently: are both the same version?");
    }
    return strcmp(view->running.fleet.name, here->fleet.name) == 0 ||
           error_set(error, "ps 0 sent the config of fleet \"%s\", but this is fleet \"%s\"", view->running.fleet.name,
                     here->fleet.name);
}

static bool is_text(const char *text, size_t size, const char *other)
{
    return strlen(other) == size && memcmp(text, other, size) == 0;
}

bool fleet_view_is_running(const struct fleet_view *view, const struct manifest_config *config)
{
    return config->version == (uint64_t)view->running.fleet.version &&
           is_text(config->text, config->text_size, view->job) &&
           is_text(config->local, config->local_size, view->local);
}

static bool is_own(const struct fleet_view *view, const struct config *here)
{
    char own[CONFIG_DIGEST_HEX + 1], theirs[CONFIG_DIGEST_HEX + 1];
    config_digest(here, own);
    config_digest(&view->running, theirs);
    return view->local[0] == '\0' && strcmp(own, theirs) == 0;
}

/* Replaces what ps 0 says of the previous version by what a signed manifest says. */
static bool take_earlier(struct fleet_view *view, const struct manifest_config *before, struct error *error)
{
    free(view->earlier);
    free(view->earlier_local);
    view->earlier = manifest_copy_text(before->text, before->text_size);
    view->earlier_local = manifest_copy_text(before->local, before->local_size);
    return (view->earlier && view->earlier_local) || error_set(error, "out of memory");
}

/* Signed or not: a machine's paths, addresses and keys must never come from another machine. */
static bool spares_machines(const struct fleet_view *view, struct error *error)
{
    const struct manifest both = {
        .target = {.local = view->local, .local_size = strlen(view->local)},
        .fallback = {.local = view->earlier_local, .local_size = strlen(view->earlier_local)}};
    return manifest_is_portable(&both, error) || error_wrap(error, "ps 0 is not to be trusted");
}

/* Even a signature does not prove that nothing came after it. */
static void doubt_age(struct fleet_view *view, const struct config *here)
{
    const uint64_t version = (uint64_t)view->running.fleet.version;
    if (view->running.fleet.version < here->fleet.version) {
        snprintf(view->earlier_doubt, FLEET_VIEW_DOUBT,
                 "ps 0 says that version %" PRIu64 " is in force, but this machine has version %lld", version,
                 (long long)here->fleet.version);
    } else if (view->highest > version + MOST_LEAP) {
        snprintf(view->earlier_doubt, FLEET_VIEW_DOUBT,
                 "ps 0 says that version %" PRIu64 " is in force, and version %" PRIu64 " was proposed", version,
                 view->highest);
    }
}

/* Reduces ps 0's answer, texts and manifest, to what can be trusted. */
static bool judge(struct fleet_view *view, const struct config *here, const struct operator_keys *keys,
                  struct error *error)
{
    struct manifest manifest;
    struct error ignored;
    if (!parse_running(view, here, error)) {
        return false;
    }
    const bool is_signed = view->manifest && keys &&
                           manifest_decode(&manifest, view->manifest, view->manifest_size, keys, &ignored) &&
                           strcmp(manifest.fleet, here->fleet.name) == 0;
    const bool came_by_it = is_signed && fleet_view_is_running(view, &manifest.target);
    if (came_by_it) {
        view->programs = manifest.programs;
        view->brought_programs = manifest_brings_programs(&manifest);
    }
    if (!came_by_it && !(is_signed && fleet_view_is_running(view, &manifest.fallback)) && !is_own(view, here)) {
        snprintf(view->doubt, FLEET_VIEW_DOUBT,
                 "only ps 0 says that this version %lld is in force: it is not what %.100s says here, and no manifest "
                 "with your signature leads to it",
                 (long long)view->running.fleet.version, here->path ? here->path : "the command line");
    }
    if (!came_by_it) {
        snprintf(view->earlier_doubt, FLEET_VIEW_DOUBT,
                 "only ps 0 says what was in force before: it has no manifest with your signature by which version "
                 "%lld came",
                 (long long)view->running.fleet.version);
    } else if (!take_earlier(view, &manifest.fallback, error)) {
        return false;
    } else {
        doubt_age(view, here);
    }
    return spares_machines(view, error);
}

bool fleet_view_ask(struct fleet_view *view, struct rollout_client *client, const struct config *here,
                    const struct operator_keys *keys, struct error *error)
{
    *view = (struct fleet_view){.job = NULL};
    const struct message_rollout *answer = rollout_client_ask(client, error);
    if (!answer) {
        return false;
    }
    view->job = strdup(answer->job);
    view->local = strdup(answer->local);
    view->earlier = strdup(answer->earlier);
    view->earlier_local = strdup(answer->earlier_local);
    view->highest = answer->highest;
    if (!view->job || !view->local || !view->earlier || !view->earlier_local) {
        return error_set(error, "out of memory");
    }
    return rollout_client_manifest(client, &view->manifest, &view->manifest_size, error) &&
           judge(view, here, keys, error);
}
