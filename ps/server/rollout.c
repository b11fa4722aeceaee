/*
 * Rollouts at a ps. Every ps has an agent (ps/rollout/agent.h); ps 0 leads: it takes proposals, decides by
 * ps/rollout/decide.h, and answers reports. What it decided is on its disk before anybody is told.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "ps/rollout/agent.h"
#include "ps/rollout/audit.h"
#include "ps/server/serve.h"

enum { MEMBERS_TEXT = 60 * 1024, MAX_RECORD = 256 };

static const double RATE_S = 0.2, FORGETTING = 0.99;

struct desk {
    struct server *server;
    struct agent *agent;
    int64_t scheduled; /* step of the switch that the shard was told of; -1: none. The agent's thread's */

    /* --- Of ps 0; guarded by the server's lock --- */
    bool leads;
    struct rollout rollout;
    uint8_t *manifest; /* of the rollout at hand or the last one; NULL: none */
    size_t manifest_size;
    char author[MANIFEST_MAX_NAME + 1];
    char digests[2][CONFIG_DIGEST_HEX + 1]; /* of its target and fallback */
    uint64_t highest;                       /* ever proposed */
    uint64_t stored;                        /* rollout.changes that are on the disk */
    bool has_versions;
    struct versions versions;
    double rated_s,
        fastest; /* steps per second lately, at their fastest: the step to switch at must not come too soon */
    int64_t rated_step;
    float *losses; /* [job.worker_count] as in the message `report` */
};

/* --- What a change is to a ps ------------------------------------------------------------------------------------------- */

static enum keeper_switch switch_to(void *context, const struct config *config, int64_t step)
{
    struct desk *desk = context;
    struct shard *shard = desk->server->shard;
    int64_t now;
    bool is_new = desk->scheduled != step || step == 0;
    if (is_new) {
        desk->scheduled = step;
        shard_schedule(shard, &config->train, step);
    }
    shard_now(shard, NULL, &now);
    if (now < step) {
        return SWITCH_PENDING;
    }
    desk->scheduled = -1;
    return is_new && step > 0 ? SWITCH_LATE : SWITCH_DONE;
}

/* --- On the disk ------------------------------------------------------------------------------------------------------- */

/* "watching 5 4 5\n": state, target, fallback, the highest version ever proposed. Unlocked. */
static bool store_record(const struct desk *desk, enum rollout_state state, uint64_t target, uint64_t fallback,
                         uint64_t highest, struct error *error)
{
    char path[VERSIONS_PATH], text[MAX_RECORD];
    int size = snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %s\n", target, fallback, highest,
                        rollout_state_name(state));
    const struct file_part part = {text, (size_t)size};
    return file_join(path, sizeof path, desk->versions.folder, "rollout", error) &&
           file_write_atomic(path, &part, 1, error);
}

static bool store_manifest(const struct desk *desk, const uint8_t *bytes, size_t size, struct error *error)
{
    char path[VERSIONS_PATH];
    const struct file_part part = {bytes, size};
    return file_join(path, sizeof path, desk->versions.folder, "manifest", error) &&
           file_write_atomic(path, &part, 1, error);
}

static void take_manifest(struct desk *desk, const struct manifest *manifest, uint8_t *bytes, size_t size)
{
    free(desk->manifest);
    desk->manifest = bytes;
    desk->manifest_size = size;
    memcpy(desk->digests[0], manifest->target.digest, sizeof desk->digests[0]);
    memcpy(desk->digests[1], manifest->fallback.digest, sizeof desk->digests[1]);
    snprintf(desk->author, sizeof desk->author, "%s", manifest->author);
}

/* A rollout that an earlier process of this ps led. */
static bool resume(struct desk *desk, struct error *error)
{
    char record_path[VERSIONS_PATH], manifest_path[VERSIONS_PATH], name[MAX_RECORD] = "";
    const char *config_path = desk->server->config->path;
    uint8_t *record = NULL, *bytes = NULL;
    size_t size;
    uint64_t target, fallback;
    enum rollout_state state;
    struct manifest manifest;
    if (config_path == NULL) {
        return true;
    }
    snprintf(desk->versions.folder, sizeof desk->versions.folder, "%.4000s.d", config_path);
    desk->has_versions = true;
    if (!file_join(record_path, sizeof record_path, desk->versions.folder, "rollout", error) ||
        !file_join(manifest_path, sizeof manifest_path, desk->versions.folder, "manifest", error)) {
        return false;
    }
    if (!file_exists(record_path)) {
        return true;
    }
    bool done = file_read(record_path, MAX_RECORD - 1, &record, &size, error) &&
                file_read(manifest_path, MANIFEST_MAX_BYTES, &bytes, &size, error) &&
                manifest_decode_unsigned(&manifest, bytes, size, error);
    if (done) {
        done = sscanf((char *)record, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %250[^\n]", &target, &fallback,
                      &desk->highest, name) == 4 &&
               rollout_state_by_name(name, &state);
        done = done || error_set(error, "%s: is damaged; remove it if no rollout was under way", record_path);
    }
    if (done && manifest.target.version == target) {
        take_manifest(desk, &manifest, bytes, size);
        bytes = NULL;
        rollout_resume(&desk->rollout, state, target, fallback, clock_monotonic_s());
        if (state != ROLLOUT_IDLE) {
            log_warning("the rollout of version %" PRIu64 " was cut off while it was %s; now it is %s", target, name,
                        rollout_state_name(desk->rollout.state));
        }
    }
    free(record);
    free(bytes);
    return done;
}

/* --- Leading ----------------------------------------------------------------------------------------------------------- */

/* Locked. */
static struct rollout_vitals take_vitals(const struct desk *desk)
{
    const struct server *server = desk->server;
    double worst = 0;
    for (int i = 0; i < server->job.worker_count; i++) {
        float loss = desk->losses[i];
        worst = isnan(worst) || isnan(loss) ? NAN : loss > (float)worst ? (double)loss : worst;
    }
    return (struct rollout_vitals){.global_step = server->job.global_step,
                                   .steps_per_s = desk->fastest,
                                   .loss = worst,
                                   .training = server->job.state == JOB_TRAINING,
                                   .over = server->job.state == JOB_DONE};
}

static void tell_change(const struct desk *desk, enum rollout_state state, uint64_t target, const char *sentence)
{
    if (state == ROLLOUT_GOING_BACK) {
        log_warning("rollout: %s", sentence);
    } else {
        log_info("rollout: %s", sentence);
    }
    audit_write(&desk->versions, "ps 0", desk->author, rollout_state_name(state), target, sentence);
}

/* Locked. */
static void measure(struct desk *desk, double now_s)
{
    const int64_t step = desk->server->job.global_step;
    double seconds = now_s - desk->rated_s;
    if (seconds >= RATE_S) {
        double rate = step > desk->rated_step ? (double)(step - desk->rated_step) / seconds : 0;
        desk->fastest = fmax(rate, desk->fastest * FORGETTING);
        desk->rated_s = now_s;
        desk->rated_step = step;
    }
}

void desk_tick(struct desk *desk)
{
    struct server *server = desk->server;
    struct error error;
    char sentence[1024];
    if (!desk->leads || !desk->has_versions) { /* without a config file there are no rollouts */
        return;
    }
    server_lock(server);
    measure(desk, clock_monotonic_s());
    const struct rollout_vitals vitals = take_vitals(desk);
    rollout_tick(&desk->rollout, &vitals, clock_monotonic_s());
    bool changed = desk->rollout.changes != desk->stored;
    const uint64_t changes = desk->rollout.changes, highest = desk->highest;
    const struct rollout rollout = desk->rollout;
    rollout_describe(&desk->rollout, sentence, sizeof sentence);
    server_unlock(server);
    if (!changed) {
        return;
    }
    if (!store_record(desk, rollout.state, rollout.target, rollout.fallback, highest, &error)) {
        log_warning("rollout: %s; it goes on once that can be written", error.text);
        return;
    }
    tell_change(desk, rollout.state, rollout.target, sentence);
    server_lock(server);
    desk->stored = changes;
    server_unlock(server);
}

/* Whoever was away catches up with what the others did. Locked. */
static enum rollout_order order_for(const struct desk *desk, struct member who, uint64_t version)
{
    const struct rollout *rollout = &desk->rollout;
    enum rollout_order order = rollout_order(rollout, who);
    uint64_t in_force;
    char digest[CONFIG_DIGEST_HEX + 1];
    if (desk->manifest == NULL || rollout->changes != desk->stored) {
        return ORDER_NOTHING;
    }
    if (rollout->state == ROLLOUT_IDLE && desk->agent != NULL && who.role != MEMBER_OPERATOR) {
        agent_version(desk->agent, &in_force, digest);
        bool behind = version == rollout->fallback && in_force == rollout->target;
        bool ahead = version == rollout->target && in_force == rollout->fallback;
        order = behind ? ORDER_SWITCH : ahead ? ORDER_BACK : ORDER_NOTHING;
    }
    return order;
}

/* Takes a member's report. Locked. */
static void hear(struct desk *desk, struct member who, const struct message_report *report)
{
    struct server *server = desk->server;
    const struct rollout_report heard = {.phase = (enum rollout_phase)report->phase,
                                         .version = report->version,
                                         .target = report->target,
                                         .sentence = report->sentence};
    rollout_heard(&desk->rollout, who, &heard, clock_monotonic_s());
    if (who.role == MEMBER_WORKER) {
        struct job_worker *worker = &server->job.workers[who.index];
        desk->losses[who.index] = report->loss;
        worker->fleet_version = report->version;
        snprintf(worker->digest, sizeof worker->digest, "%s", report->digest);
    }
}

static int64_t step_for(const struct rollout *rollout)
{
    return rollout->state == ROLLOUT_SWITCHING ? rollout->step : 0;
}

/* The agent of ps 0 reports to itself. */
static bool ask_self(void *context, const struct message_report *report, struct agent_answer *answer,
                     struct error *error)
{
    struct desk *desk = context;
    const struct member self = {MEMBER_PS, 0};
    uint8_t *manifest = NULL;
    server_lock(desk->server);
    hear(desk, self, report);
    *answer = (struct agent_answer){.order = {.order = order_for(desk, self, report->version),
                                              .target = desk->rollout.target,
                                              .step = step_for(&desk->rollout)},
                                    .state = desk->rollout.state};
    if (answer->order.order != ORDER_NOTHING && report->target != desk->rollout.target) {
        manifest = malloc(desk->manifest_size);
        if (manifest != NULL) {
            memcpy(manifest, desk->manifest, desk->manifest_size);
            answer->order.manifest = manifest;
            answer->order.manifest_size = desk->manifest_size;
        }
    }
    server_unlock(desk->server);
    (void)error;
    return true;
}

/* --- Life -------------------------------------------------------------------------------------------------------------- */

bool desk_create(struct desk **out, struct server *server, struct error *error)
{
    const int workers = server->config->cluster.worker_hosts.count, room = server->job.worker_count;
    struct desk *desk = calloc(1, sizeof *desk);
    if (desk == NULL) {
        return error_set(error, "out of memory");
    }
    *out = desk;
    desk->server = server;
    desk->scheduled = -1;
    desk->leads = server->index == 0;
    desk->losses = calloc((size_t)room, sizeof *desk->losses);
    for (int i = 0; desk->losses != NULL && i < room; i++) {
        desk->losses[i] = -1.0f;
    }
    if (desk->losses == NULL || !rollout_create(&desk->rollout, server->config->cluster.ps_hosts.count, workers)) {
        return error_set(error, "out of memory");
    }
    const struct agent_options options = {.config = server->config,
                                          .self = &server->self,
                                          .who = {MEMBER_PS, server->index},
                                          .host = {.context = desk, .switch_to = switch_to},
                                          .ask = desk->leads ? ask_self : NULL,
                                          .context = desk};
    return (!desk->leads || resume(desk, error)) && agent_create(&desk->agent, &options, error);
}

void desk_destroy(struct desk *desk)
{
    if (desk != NULL) {
        agent_destroy(desk->agent);
        rollout_destroy(&desk->rollout);
        free(desk->manifest);
        free(desk->losses);
        free(desk);
    }
}

bool desk_knows(struct desk *desk, const char *digest)
{
    server_lock(desk->server);
    bool known =
        desk->manifest != NULL && (strcmp(digest, desk->digests[0]) == 0 || strcmp(digest, desk->digests[1]) == 0);
    server_unlock(desk->server);
    return known || agent_knows(desk->agent, digest);
}

void desk_version(struct desk *desk, uint64_t *version, char digest[CONFIG_DIGEST_HEX + 1])
{
    agent_version(desk->agent, version, digest);
}

/* --- Serving ----------------------------------------------------------------------------------------------------------- */

static const char not_here[] = "rollouts are led by ps 0";

/* All that speaks against a proposal. Unlocked: it reads files. */
static bool check_proposal(struct desk *desk, const struct manifest *manifest, struct error *error)
{
    const struct config *config = desk->server->config;
    struct config target;
    uint64_t version, highest;
    char digest[CONFIG_DIGEST_HEX + 1];
    if (config->cluster.elastic) {
        return error_set(error,
                         "cluster.elastic: members that are not listed can't be waited for, so nothing is rolled "
                         "out to an elastic cluster yet");
    }
    agent_version(desk->agent, &version, digest);
    server_lock(desk->server);
    highest = desk->highest;
    server_unlock(desk->server);
    if (!manifest_fits(manifest, config->fleet.name, version, highest, error)) {
        return false;
    }
    if (strcmp(manifest->fallback.digest, digest) != 0) {
        return error_set(error, "the manifest was made for another config than the one that runs here");
    }
    if (!config_parse(&target, "manifest", (const uint8_t *)manifest->target.text, manifest->target.text_size, NULL, 0,
                      error)) {
        return false;
    }
    bool can = keeper_can_change(config, &target, error);
    config_free(&target);
    return can;
}

static bool begin(struct desk *desk, uint8_t *bytes, size_t size, const struct manifest *manifest, double healthy_s,
                  struct error *error)
{
    char sentence[256];
    server_lock(desk->server);
    const struct rollout_vitals vitals = take_vitals(desk);
    bool begun = rollout_begin(&desk->rollout, manifest->target.version, manifest->fallback.version, healthy_s, &vitals,
                               clock_monotonic_s(), sentence);
    if (begun) {
        desk->highest = manifest->target.version;
        take_manifest(desk, manifest, bytes, size);
    }
    server_unlock(desk->server);
    return begun || error_set(error, "%s", sentence);
}

/* bytes are the desk's once this returns true. */
static bool propose(struct desk *desk, uint8_t *bytes, size_t size, double healthy_s, struct error *error)
{
    const struct config *config = desk->server->config;
    char path[VERSIONS_PATH];
    uint8_t key[OPERATOR_PUBLIC_KEY];
    struct manifest manifest = {.author = "unknown"};
    if (config->path == NULL) {
        return error_set(error, "ps 0 runs without a config file: there is no place to keep versions beside");
    }
    if (!keeper_key_path(config, path, sizeof path, error) || !operator_key_read_public(path, key, error) ||
        !versions_open(&desk->versions, config->path, error)) {
        return false;
    }
    bool done =
        ((healthy_s >= 0 && healthy_s <= 86400) || error_set(error, "healthy_secs must be from 0 to 86400, a day")) &&
        manifest_decode(&manifest, bytes, size, key, error) && check_proposal(desk, &manifest, error) &&
        store_manifest(desk, bytes, size, error) && begin(desk, bytes, size, &manifest, healthy_s, error);
    audit_write(&desk->versions, "ps 0", manifest.author, "propose", manifest.target.version,
                done ? "begun" : error->text);
    return done;
}

bool serve_propose(struct visitor *visitor, struct error *error)
{
    struct desk *desk = visitor->server->desk;
    struct channel *channel = &visitor->channel;
    const uint64_t request = channel->frame.request;
    const double healthy_s = channel->message.propose.healthy_s;
    const size_t size = channel->bulk_left;
    struct error why;
    uint8_t *bytes = malloc(size > 0 ? size : 1);
    if (bytes == NULL) {
        return error_set(error, "out of memory");
    }
    if (!channel_read_bulk(channel, bytes, size, serve_deadline(), error)) {
        free(bytes);
        return false;
    }
    bool done = desk->leads ? propose(desk, bytes, size, healthy_s, &why) : error_set(&why, not_here);
    if (!done) {
        free(bytes);
        log_warning("a rollout is refused: %s", why.text);
        return serve_send_error(visitor, request, ERROR_NOT_ALLOWED, why.text, error);
    }
    struct message_done answer = {.global_step = -1};
    return serve_send(visitor, MESSAGE_done, request, &answer, error);
}

bool serve_abort_rollout(struct visitor *visitor, struct error *error)
{
    struct desk *desk = visitor->server->desk;
    const uint64_t request = visitor->channel.frame.request;
    char sentence[256];
    snprintf(sentence, sizeof sentence, "%s", not_here);
    server_lock(visitor->server);
    bool done = desk->leads && rollout_abort(&desk->rollout, clock_monotonic_s(), sentence);
    const uint64_t target = desk->rollout.target;
    server_unlock(visitor->server);
    if (!done) {
        return serve_send_error(visitor, request, ERROR_NOT_ALLOWED, sentence, error);
    }
    audit_write(&desk->versions, "ps 0", visitor->channel.message.abort_rollout.who, "abort", target, "done");
    struct message_done answer = {.global_step = -1};
    return serve_send(visitor, MESSAGE_done, request, &answer, error);
}

/* "ps 0: version 4, switched\n" for each. Locked. */
static void list_members(const struct rollout *rollout, char *text, size_t size)
{
    static const char *const phases[] = {"",           ", staged",     ", switched",         ", went back",
                                         ", restored", ", refused it", ", was told too late"};
    double now_s = clock_monotonic_s();
    size_t used = 0;
    for (int i = 0; i < rollout->count && used < size; i++) {
        const struct rollout_member *member = &rollout->members[i];
        char name[MEMBER_TEXT];
        member_format(&member->who, ' ', name);
        int length = member->heard_s < 0
                         ? snprintf(text + used, size - used, "%s: not heard of\n", name)
                         : snprintf(text + used, size - used, "%s: version %" PRIu64 "%s, %.1f s ago%s%s\n", name,
                                    member->version, phases[member->phase], now_s - member->heard_s,
                                    member->sentence[0] != '\0' ? ": " : "", member->sentence);
        used += (size_t)length;
    }
}

/* What an operator, or a member, is answered. Locked. */
static void compose(struct visitor *visitor, struct member who, const struct message_report *report,
                    struct message_rollout *told, char sentence[1024])
{
    struct desk *desk = visitor->server->desk;
    char digest[CONFIG_DIGEST_HEX + 1];
    if (who.role != MEMBER_OPERATOR) {
        hear(desk, who, report);
    }
    rollout_describe(&desk->rollout, sentence, 1024);
    *told = (struct message_rollout){.order = (uint8_t)order_for(desk, who, report->version),
                                     .state = (uint8_t)desk->rollout.state,
                                     .outcome = (uint8_t)desk->rollout.outcome,
                                     .target = desk->rollout.target,
                                     .step = step_for(&desk->rollout),
                                     .sentence = sentence};
    told->step = who.role == MEMBER_OPERATOR ? desk->rollout.step : told->step;
    agent_version(desk->agent, &told->version, digest);
}

/* The job's config in force: as this process was started, or as it was rolled out since. NULL without memory. */
static char *job_in_force(struct desk *desk)
{
    uint64_t version;
    char digest[CONFIG_DIGEST_HEX + 1], *text;
    size_t size;
    struct error error;
    agent_version(desk->agent, &version, digest);
    if (strcmp(digest, desk->server->self.digest) != 0 &&
        versions_read(&desk->versions, version, &text, &size, &error)) {
        return text;
    }
    return strdup(desk->server->self.job);
}

bool serve_report(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    struct desk *desk = server->desk;
    struct channel *channel = &visitor->channel;
    const struct message_report report = channel->message.report; /* its texts lie in the channel until it receives */
    const uint64_t request = channel->frame.request;
    struct member who = visitor->worker >= 0 ? (struct member){MEMBER_WORKER, visitor->worker}
                        : visitor->ps >= 0   ? (struct member){MEMBER_PS, visitor->ps}
                                             : (struct member){MEMBER_OPERATOR, MEMBER_ANY_INDEX};
    const bool is_operator = who.role == MEMBER_OPERATOR;
    struct message_rollout told;
    char sentence[1024];
    uint8_t *manifest = NULL;
    size_t size = 0;
    if (!desk->leads) {
        return serve_send_error(visitor, request, ERROR_NOT_ALLOWED, not_here, error);
    }
    char *members = is_operator ? calloc(1, MEMBERS_TEXT) : NULL;
    char *job = is_operator ? job_in_force(desk) : NULL;
    server_lock(server);
    compose(visitor, who, &report, &told, sentence);
    if (members != NULL) {
        list_members(&desk->rollout, members, MEMBERS_TEXT);
    }
    if (told.order != ORDER_NOTHING && !is_operator && report.target != told.target) {
        size = desk->manifest_size;
        manifest = malloc(size);
        if (manifest != NULL) {
            memcpy(manifest, desk->manifest, size);
        }
    }
    server_unlock(server);
    told.members = members;
    told.job = job;
    struct iovec bulk = {manifest, size};
    bool sent = channel_send(channel, MESSAGE_rollout, request, FRAME_LAST, &told, &bulk, manifest != NULL,
                             serve_deadline(), error);
    free(manifest);
    free(members);
    free(job);
    return sent;
}
