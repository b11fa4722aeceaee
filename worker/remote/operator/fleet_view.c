/*
 * How much of what ps 0 says must be taken on trust. Nothing of the config in force, if a manifest with the operator's
 * signature leads to it or goes back to it, or if it is this machine's own. Nothing of the previous config, if that
 * manifest names it as its fallback.
 */
#include "worker/remote/operator/fleet_view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/rollout/manifest.h"

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
    const bool same = text && strcmp(text, job) == 0;
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

static bool is_running(const struct manifest_config *config, const struct fleet_view *view)
{
    return config->version == (uint64_t)view->running.fleet.version &&
           is_text(config->text, config->text_size, view->job) &&
           is_text(config->local, config->local_size, view->local);
}

static bool is_own(const struct fleet_view *view, const struct config *here)
{
    char own[CONFIG_DIGEST_HEX + 1], theirs[CONFIG_DIGEST_HEX + 1];
    struct error ignored;
    return view->local[0] == '\0' && config_digest(here, own, &ignored) &&
           config_digest(&view->running, theirs, &ignored) && strcmp(own, theirs) == 0;
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
static bool is_portable(const struct fleet_view *view, struct error *error)
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
static bool judge(struct fleet_view *view, const struct config *here, const uint8_t key[OPERATOR_PUBLIC_KEY],
                  struct error *error)
{
    struct manifest manifest;
    struct error ignored;
    if (!parse_running(view, here, error)) {
        return false;
    }
    const bool is_signed = view->manifest && key &&
                           manifest_decode(&manifest, view->manifest, view->manifest_size, key, &ignored) &&
                           strcmp(manifest.fleet, here->fleet.name) == 0;
    const bool came_by_it = is_signed && is_running(&manifest.target, view);
    if (came_by_it) {
        view->programs = manifest.programs;
        view->brought_programs = manifest_brings_programs(&manifest);
    }
    if (!came_by_it && !(is_signed && is_running(&manifest.fallback, view)) && !is_own(view, here)) {
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
    return is_portable(view, error);
}

bool fleet_view_ask(struct fleet_view *view, struct rollout_client *client, const struct config *here,
                    const uint8_t key[OPERATOR_PUBLIC_KEY], struct error *error)
{
    *view = (struct fleet_view){.job = NULL};
    const struct message_rollout *news = rollout_client_ask(client, error);
    if (!news) {
        return false;
    }
    view->job = strdup(news->job);
    view->local = strdup(news->local);
    view->earlier = strdup(news->earlier);
    view->earlier_local = strdup(news->earlier_local);
    view->highest = news->highest;
    if (!view->job || !view->local || !view->earlier || !view->earlier_local) {
        return error_set(error, "out of memory");
    }
    return rollout_client_manifest(client, &view->manifest, &view->manifest_size, error) &&
           judge(view, here, key, error);
}
