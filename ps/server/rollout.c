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
#include "base/memory.h"
#include "base/restart.h"
#include "ps/rollout/agent.h"
#include "ps/rollout/audit.h"
#include "ps/rollout/change.h"
#include "ps/server/serve.h"

enum { MEMBERS_TEXT = 60 * 1024, MAX_RECORD = 1024, LEAVE_S = 15 };

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
    enum rollout_state stored_state;        /* likewise; what members are told */
    bool has_versions;
    struct versions versions;
    double rated_s,
        fastest; /* steps per second lately, at their fastest: the step to switch at must not come too soon */
    int64_t rated_step;
    uint32_t rated_generation; /* a restore is no step */
    float *losses;             /* [job.worker_count] as in the message `report` */
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

static bool check(void *context, const struct config *then, struct error *error)
{
    const struct desk *desk = context;
    struct model model;
    uint64_t there;
    model_layout(&model, &then->model);
    size_t wanted = server_memory(&model, then, desk->server->index, then->cluster.worker_hosts.count);
    return !memory_for_this_process(&there) || wanted <= there ||
           error_set(error, "it would take %zu MiB of memory here, and there are %llu", wanted >> 20,
                     (unsigned long long)(there >> 20));
}

static void part(void *context, bool for_good)
{
    const struct desk *desk = context;
    restart_within(LEAVE_S);
    atomic_store(&desk->server->parting, for_good ? PARTING_FOR_GOOD : PARTING_TO_START_ANEW);
}

/* --- On the disk ------------------------------------------------------------------------------------------------------- */

/* What is to be known after a restart. */
struct record {
    enum rollout_state state;
    struct rollout_plan plan;
    double loss_before;
    uint64_t highest; /* ever proposed */
    char reason[512]; /* why it goes back */
};

/* "5 4 5 2 10 0.31 watching\n": target, fallback, highest, kind, healthy_s, loss before, state; then why. Unlocked. */
static bool store_record(const struct desk *desk, const struct record *record, struct error *error)
{
    char path[VERSIONS_PATH], text[MAX_RECORD];
    const struct rollout_plan *plan = &record->plan;
    int size = snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %d %.17g %.17g %s\n%s\n", plan->target,
                        plan->fallback, record->highest, (int)plan->kind, plan->healthy_s, record->loss_before,
                        rollout_state_name(record->state), record->reason);
    const struct file_part bytes = {text, (size_t)size};
    return file_join(path, sizeof path, desk->versions.folder, "rollout", error) &&
           file_write_atomic(path, &bytes, 1, error);
}

static bool read_record(const char *path, struct record *record, struct error *error)
{
    char name[MAX_RECORD] = "";
    uint8_t *bytes;
    size_t size;
    int kind = -1;
    struct rollout_plan *plan = &record->plan;
    record->reason[0] = '\0';
    if (!file_read(path, MAX_RECORD - 1, &bytes, &size, error)) {
        return false;
    }
    bool done = sscanf((char *)bytes, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %d %lg %lg %250[^\n]\n%511[^\n]",
                       &plan->target, &plan->fallback, &record->highest, &kind, &plan->healthy_s, &record->loss_before,
                       name, record->reason) >= 7 &&
                kind >= ROLLOUT_LIVE && kind <= ROLLOUT_JOB && rollout_state_by_name(name, &record->state);
    free(bytes);
    plan->kind = (enum rollout_kind)kind;
    return done || error_set(error, "%s: is damaged; remove it if no rollout was under way", path);
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

/* A rollout that an earlier process of this ps led, or leads, if it has just started anew for it. */
static bool resume(struct desk *desk, struct error *error)
{
    char record_path[VERSIONS_PATH], manifest_path[VERSIONS_PATH];
    const char *config_path = desk->server->config->path;
    uint8_t *bytes = NULL;
    size_t size;
    struct record record;
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
    bool done = read_record(record_path, &record, error) &&
                file_read(manifest_path, MANIFEST_MAX_BYTES, &bytes, &size, error) &&
                manifest_decode_unsigned(&manifest, bytes, size, error);
    if (done) {
        desk->highest = record.highest;
    }
    if (done && manifest.target.version == record.plan.target) {
        take_manifest(desk, &manifest, bytes, size);
        bytes = NULL;
        desk->stored_state = record.state;
        rollout_resume(&desk->rollout, record.state, &record.plan, record.loss_before, record.reason,
                       clock_monotonic_s());
        if (record.state != ROLLOUT_IDLE) {
            log_info("the rollout of version %" PRIu64 " was %s; now it is %s", record.plan.target,
                     rollout_state_name(record.state), rollout_state_name(desk->rollout.state));
        }
    }
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
    const uint32_t generation = desk->server->job.state == JOB_TRAINING ? desk->server->job.generation : 0;
    if (generation == 0 || desk->rated_generation != generation) {
        desk->rated_generation = generation;
        desk->rated_s = now_s;
        desk->rated_step = step;
    } else if (seconds >= RATE_S) {
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
    struct record record = {.state = rollout.state,
                            .plan = {.target = rollout.target,
                                     .fallback = rollout.fallback,
                                     .kind = rollout.kind,
                                     .healthy_s = rollout.healthy_s},
                            .loss_before = rollout.loss_before,
                            .highest = highest};
    snprintf(record.reason, sizeof record.reason, "%s", rollout.reason);
    if (!store_record(desk, &record, &error)) {
        log_warning("rollout: %s; it goes on once that can be written", error.text);
        return;
    }
    tell_change(desk, rollout.state, rollout.target, sentence);
    server_lock(server);
    desk->stored = changes;
    desk->stored_state = rollout.state;
    server_unlock(server);
}

/* Whoever was away catches up with what the others did. Locked. */
static enum rollout_order catch_up_order(const struct desk *desk, uint64_t version)
{
    const struct rollout *rollout = &desk->rollout;
    const bool live = rollout->kind == ROLLOUT_LIVE;
    uint64_t in_force;
    char digest[CONFIG_DIGEST_HEX + 1];
    agent_version(desk->agent, &in_force, digest);
    bool is_target = in_force == rollout->target, is_fallback = in_force == rollout->fallback;
    if (version == in_force || (!is_target && !is_fallback)) {
        return ORDER_NOTHING;
    }
    if (is_target && version < in_force) {
        return live && version == rollout->fallback ? ORDER_SWITCH : ORDER_CATCH_UP;
    }
    if (is_fallback && version == rollout->target) {
        return live ? ORDER_BACK : ORDER_CATCH_UP;
    }
    return is_fallback && version < in_force ? ORDER_CATCH_UP : ORDER_NOTHING;
}

/* Locked. */
static enum rollout_order order_for(struct desk *desk, struct member who, uint64_t version)
{
    struct rollout *rollout = &desk->rollout;
    if (desk->manifest == NULL || rollout->changes != desk->stored || who.role == MEMBER_OPERATOR) {
        return ORDER_NOTHING;
    }
    if (rollout->state == ROLLOUT_IDLE) {
        return desk->agent != NULL ? catch_up_order(desk, version) : ORDER_NOTHING;
    }
    enum rollout_order order = rollout_order(rollout, who);
    rollout_told(rollout, who);
    return order;
}

/* Does the manifest go with it? A member that catches up forgets what it had. */
static bool needs_manifest(const struct desk *desk, enum rollout_order order, uint64_t target)
{
    return order == ORDER_CATCH_UP || (order != ORDER_NOTHING && target != desk->rollout.target);
}

/* Takes a member's report. Locked. */
static void hear(struct desk *desk, struct member who, const struct message_report *report)
{
    struct server *server = desk->server;
    const struct rollout_report heard = {.phase = (enum rollout_phase)report->phase,
                                         .version = report->version,
                                         .target = report->target,
                                         .ready = report->ready != 0,
                                         .sentence = report->sentence};
    rollout_heard(&desk->rollout, who, &heard, clock_monotonic_s());
    if (who.role == MEMBER_WORKER && who.index < server->job.worker_count) {
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
                                    .state = desk->stored_state};
    if (needs_manifest(desk, answer->order.order, report->target)) {
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
    const struct agent_options options = {
        .config = server->config,
        .self = &server->self,
        .who = {MEMBER_PS, server->index},
        .host = {.context = desk, .check = check, .switch_to = switch_to, .leave = part, .stays = true},
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
    bool known = desk->manifest != NULL && desk->rollout.kind != ROLLOUT_JOB &&
                 (strcmp(digest, desk->digests[0]) == 0 || strcmp(digest, desk->digests[1]) == 0);
    server_unlock(desk->server);
    return known || agent_knows(desk->agent, digest);
}

void desk_version(struct desk *desk, uint64_t *version, char digest[CONFIG_DIGEST_HEX + 1])
{
    agent_version(desk->agent, version, digest);
}

void desk_drift(struct desk *desk, char *sentence, size_t size)
{
    char drift[DRIFT_TEXT];
    const size_t used = strlen(sentence);
    agent_drift(desk->agent, drift);
    if (drift[0] != '\0') {
        snprintf(sentence + used, size - used, "%s%.250s", used > 0 ? "; " : "", drift);
    }
}

/* --- Serving ----------------------------------------------------------------------------------------------------------- */

static const char not_here[] = "rollouts are led by ps 0";

/* All that speaks against a proposal, and its kind. Unlocked: it reads files. */
static bool check_proposal(struct desk *desk, const struct manifest *manifest, enum rollout_kind *kind,
                           struct error *error)
{
    const struct config *config = desk->server->config;
    const struct manifest_config *from = &manifest->fallback, *to = &manifest->target;
    const bool local = from->local_size != to->local_size || memcmp(from->local, to->local, to->local_size) != 0;
    struct config target, fallback = {.path = NULL};
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
    if (!config_parse(&target, "manifest", (const uint8_t *)to->text, to->text_size, NULL, 0, error)) {
        return false;
    }
    bool can = config_parse(&fallback, "manifest", (const uint8_t *)from->text, from->text_size, NULL, 0, error) &&
               change_kind(&fallback, &target, local, kind, error);
    config_free(&fallback);
    config_free(&target);
    return can;
}

static bool begin(struct desk *desk, uint8_t *bytes, size_t size, const struct manifest *manifest,
                  const struct rollout_plan *plan, struct error *error)
{
    char sentence[256];
    server_lock(desk->server);
    struct rollout_vitals vitals = take_vitals(desk);
    if (manifest->may_lose) { /* then it may be that of a new model, which guesses */
        vitals.loss = fmax(vitals.loss, log(desk->server->config->model.layers[desk->server->model.layer_count]));
    }
    bool begun = rollout_begin(&desk->rollout, plan, &vitals, clock_monotonic_s(), sentence);
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
    struct rollout_plan plan = {.healthy_s = healthy_s};
    if (config->path == NULL) {
        return error_set(error, "ps 0 runs without a config file: there is no place to keep versions beside");
    }
    if (!keeper_key_path(config, path, sizeof path, error) || !operator_key_read_public(path, key, error) ||
        !versions_open(&desk->versions, config->path, error)) {
        return false;
    }
    bool done =
        ((healthy_s >= 0 && healthy_s <= 86400) || error_set(error, "healthy_secs must be from 0 to 86400, a day")) &&
        manifest_decode(&manifest, bytes, size, key, error) && check_proposal(desk, &manifest, &plan.kind, error);
    plan.target = manifest.target.version;
    plan.fallback = manifest.fallback.version;
    done = done && store_manifest(desk, bytes, size, error) && begin(desk, bytes, size, &manifest, &plan, error);
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
    static const char *const phases[] = {"",           ", staged",     ", switched",          ", went back",
                                         ", restored", ", refused it", ", was told too late", ", tried it",
                                         ", saved"};
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
    *told = (struct message_rollout){
        .order = (uint8_t)order_for(desk, who, report->version),
        .state = (uint8_t)(who.role == MEMBER_OPERATOR ? desk->rollout.state : desk->stored_state),
        .outcome = (uint8_t)desk->rollout.outcome,
        .target = desk->rollout.target,
        .step = step_for(&desk->rollout),
        .sentence = sentence};
    told->step = who.role == MEMBER_OPERATOR ? desk->rollout.step : told->step;
    agent_version(desk->agent, &told->version, digest);
}

/* What operators are told besides: the config in force, as this process was started or as it was rolled out since, and the
 * one before. The texts are the receiver's to free; NULL: none, or no memory. */
struct told_texts {
    char *members, *job, *local, *earlier, *earlier_local;
};

static char *copy_text(const char *text, size_t size)
{
    char *copy = size > 0 ? malloc(size + 1) : NULL;
    if (copy != NULL) {
        memcpy(copy, text, size);
        copy[size] = '\0';
    }
    return copy;
}

static void find_texts(struct desk *desk, struct told_texts *texts)
{
    uint64_t version;
    char digest[CONFIG_DIGEST_HEX + 1];
    size_t size;
    struct error ignored;
    struct manifest manifest;
    *texts = (struct told_texts){.members = calloc(1, MEMBERS_TEXT)};
    agent_version(desk->agent, &version, digest);
    if (strcmp(digest, desk->server->self.digest) == 0 ||
        !versions_read(&desk->versions, version, &texts->job, &size, &ignored)) {
        texts->job = strdup(desk->server->self.job);
    }
    if (!desk->has_versions || !versions_read_local(&desk->versions, version, &texts->local, &size, &ignored)) {
        texts->local = NULL;
    }
    server_lock(desk->server);
    if (desk->manifest != NULL && desk->rollout.state == ROLLOUT_IDLE && version == desk->rollout.target &&
        manifest_decode_unsigned(&manifest, desk->manifest, desk->manifest_size, &ignored)) {
        texts->earlier = copy_text(manifest.fallback.text, manifest.fallback.text_size);
        texts->earlier_local = copy_text(manifest.fallback.local, manifest.fallback.local_size);
    }
    server_unlock(desk->server);
}

static void free_texts(struct told_texts *texts)
{
    free(texts->members);
    free(texts->job);
    free(texts->local);
    free(texts->earlier);
    free(texts->earlier_local);
}

static struct member who_reports(const struct visitor *visitor)
{
    return visitor->guest.role != MEMBER_NONE ? visitor->guest
           : visitor->worker >= 0             ? (struct member){MEMBER_WORKER, visitor->worker}
           : visitor->ps >= 0                 ? (struct member){MEMBER_PS, visitor->ps}
                                              : (struct member){MEMBER_OPERATOR, MEMBER_ANY_INDEX};
}

bool serve_report(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    struct desk *desk = server->desk;
    struct channel *channel = &visitor->channel;
    const struct message_report report = channel->message.report; /* its texts lie in the channel until it receives */
    const uint64_t request = channel->frame.request;
    const struct member who = who_reports(visitor);
    const bool is_operator = who.role == MEMBER_OPERATOR;
    struct message_rollout told;
    struct told_texts texts = {NULL};
    char sentence[1024];
    uint8_t *manifest = NULL;
    size_t size = 0;
    if (!desk->leads) {
        return serve_send_error(visitor, request, ERROR_NOT_ALLOWED, not_here, error);
    }
    if (is_operator) {
        find_texts(desk, &texts);
    }
    server_lock(server);
    compose(visitor, who, &report, &told, sentence);
    if (texts.members != NULL) {
        list_members(&desk->rollout, texts.members, MEMBERS_TEXT);
    }
    if (!is_operator && needs_manifest(desk, (enum rollout_order)told.order, report.target)) {
        size = desk->manifest_size;
        manifest = malloc(size);
        if (manifest != NULL) {
            memcpy(manifest, desk->manifest, size);
        }
    }
    told.highest = desk->highest > told.version ? desk->highest : told.version;
    server_unlock(server);
    told.members = texts.members;
    told.job = texts.job;
    told.local = texts.local;
    told.earlier = texts.earlier;
    told.earlier_local = texts.earlier_local;
    struct iovec bulk = {manifest, size};
    bool sent = channel_send(channel, MESSAGE_rollout, request, FRAME_LAST, &told, &bulk, manifest != NULL,
                             serve_deadline(), error);
    free(manifest);
    free_texts(&texts);
    return sent;
}
