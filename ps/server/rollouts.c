/*
 * Requests about rollouts, which only ps 0 answers: an operator's proposals and queries, the reports of members, and
 * programs on their way from an operator through ps 0 to every machine.
 *
 * A proposal is checked in full before it counts, and its manifest is on disk before it begins. An operator may send
 * only programs that a manifest with the operator's signature names, so that nobody else can fill the disk; members get
 * what the current rollout carries, all together no faster than its manifest allows.
 */
#include "ps/server/requests.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "ps/rollout/revoked.h"
#include "ps/server/coordinator.h"

enum { MOST_WAIT_MS = 60000, LEAST_PIECE = 4 << 10 };

enum { MEMBERS_TEXT = 60 * 1024 };

/* The answer of any ps but ps 0. */
static const char not_here[] = "rollouts are led by ps 0";

/* --- Proposals --- */

static struct rollout_demand demand_of(const struct config_cluster *cluster)
{
    return (struct rollout_demand){cluster->worker_hosts.count, cluster->min_workers};
}

/* Programs to be distributed must be here before any member learns of them. */
static bool has_programs(const struct rollout_coordinator *coordinator, const struct manifest *manifest,
                         struct error *error)
{
    for (int i = 0; i < manifest->programs.count; i++) {
        const struct manifest_program *program = &manifest->programs.items[i];
        if (!programs_have(&coordinator->programs, program->digest)) {
            return error_set(error, "the program for %s (%.16s) is missing: it must be sent before the proposal",
                             program->architecture, program->digest);
        }
    }
    return true;
}

/* Checks everything about a proposal, and collects the facts it needs. Reads files, so unlocked. */
static bool check_proposal(struct rollout_coordinator *coordinator, const struct manifest *manifest,
                           struct rollout_plan *plan, struct error *error)
{
    const struct config *config = coordinator->server->launched;
    const struct manifest_config *from = &manifest->fallback, *to = &manifest->target;
    struct config target, fallback = {.path = NULL};
    uint64_t version, highest;
    char digest[CONFIG_DIGEST_HEX + 1];
    agent_version(coordinator->agent, &version, digest);
    server_lock(coordinator->server);
    highest = coordinator->highest;
    server_unlock(coordinator->server);
    if (!manifest_fits(manifest, config->fleet.name, version, highest, error)) {
        return false;
    }
    if (strcmp(manifest->fallback.digest, digest) != 0) {
        return error_set(error, "the manifest was made for another config than the one in force here");
    }
    if (!config_parse(&target, "manifest", (const uint8_t *)to->text, to->text_size, NULL, 0, error)) {
        return false;
    }
    bool can = config_parse(&fallback, "manifest", (const uint8_t *)from->text, from->text_size, NULL, 0, error) &&
               manifest_kind(manifest, &fallback, &target, &plan->kind, error);
    server_lock(coordinator->server);
    plan->last_step = job_last_step_under(&coordinator->server->job, &target);
    plan->from = demand_of(&coordinator->server->job.config.cluster);
    server_unlock(coordinator->server);
    plan->to = demand_of(&target.cluster);
    plan->may_lose = manifest->may_lose;
    plan->brings_program = manifest_brings_programs(manifest);
    plan->waves = manifest->programs.waves;
    config_free(&fallback);
    config_free(&target);
    return can && has_programs(coordinator, manifest, error);
}

static bool begin(struct rollout_coordinator *coordinator, uint8_t *bytes, size_t size, const struct manifest *manifest,
                  const struct rollout_plan *plan, struct error *error)
{
    char message[256];
    struct former_manifest former;
    coordinator_find_former(coordinator, manifest->fallback.version, &former);
    server_lock(coordinator->server);
    const struct rollout_vitals vitals = coordinator_vitals(coordinator);
    bool begun = rollout_begin(&coordinator->rollout, plan, &vitals, clock_monotonic_s(), message);
    if (begun) {
        job_hold_start(&coordinator->server->job, rollout_holds_job(&coordinator->rollout));
        coordinator->highest = manifest->target.version;
        coordinator->resumed_s = 0;
        coordinator_take_manifest(coordinator, manifest, bytes, size, &former);
    }
    server_unlock(coordinator->server);
    if (!begun) {
        free(former.bytes);
    }
    return begun || error_set(error, "%s", message);
}

/* One proposal at a time: the one stored last under a version's number must be the one that begins. */
static bool begin_check(struct rollout_coordinator *coordinator, struct error *error)
{
    server_lock(coordinator->server);
    const bool taken = coordinator->proposing;
    coordinator->proposing = true;
    server_unlock(coordinator->server);
    return !taken || error_set(error, "another proposal is being checked: try again");
}

static void end_check(struct rollout_coordinator *coordinator)
{
    server_lock(coordinator->server);
    coordinator->proposing = false;
    server_unlock(coordinator->server);
}

static bool store_and_begin(struct rollout_coordinator *coordinator, uint8_t *bytes, size_t size,
                            const struct manifest *manifest, struct rollout_plan *plan, struct error *error)
{
    if (!begin_check(coordinator, error)) {
        return false;
    }
    const bool done = check_proposal(coordinator, manifest, plan, error) &&
                      coordinator_store_manifest(coordinator, manifest->target.version, bytes, size, error) &&
                      begin(coordinator, bytes, size, manifest, plan, error);
    end_check(coordinator);
    return done;
}

/* Requires the operators' keys, and a place for versions. */
static bool find_keys(const struct rollout_coordinator *coordinator, struct operator_keys *keys, struct error *error)
{
    const struct config *config = coordinator->server->launched;
    char path[VERSIONS_PATH];
    struct versions versions;
    if (!coordinator->leads) {
        return error_set(error, not_here);
    }
    if (!config->path) {
        return error_set(error, "ps 0 runs without a config file, so there is no place to keep versions");
    }
    return participant_key_path(config, path, sizeof path, error) && operator_keys_read(path, keys, error) &&
           versions_open(&versions, config->path, error);
}

/*
 * The checks that a manifest must pass here: signed, for this fleet, and this machine can keep versions. keys: set to
 * those that count. Unlocked.
 */
static bool accepts(const struct rollout_coordinator *coordinator, const uint8_t *bytes, size_t size,
                    struct operator_keys *keys, struct manifest *manifest, struct error *error)
{
    return find_keys(coordinator, keys, error) && manifest_decode(manifest, bytes, size, keys, error) &&
           manifest_is_portable(manifest, error) && manifest_is_current(manifest, false, clock_wall_s(), error);
}

/* It has a signature that counts now: those who have none make way first (listen.c). */
static void note_signature(struct session *session)
{
    server_lock(session->server);
    session->has_signed = true;
    server_unlock(session->server);
}

/* For the audit log: where several must sign, with the ids of their keys. */
static void describe_begin(const struct operator_keys *keys, const uint8_t *bytes, size_t size,
                           char text[OPERATOR_SIGNERS + 32])
{
    char signers[OPERATOR_SIGNERS];
    const size_t body = size - (size_t)keys->threshold * MANIFEST_SIGNATURE;
    operator_keys_signers(keys, bytes, body, bytes + body, keys->threshold, signers);
    snprintf(text, OPERATOR_SIGNERS + 32, "begun%s%s", keys->threshold > 1 ? ", signed by " : "",
             keys->threshold > 1 ? signers : "");
}

/* Takes ownership of the bytes if this returns true. */
static bool propose(struct rollout_coordinator *coordinator, uint8_t *bytes, size_t size, double healthy_s,
                    struct error *error)
{
    struct manifest manifest = {.author = "unknown"};
    struct rollout_plan plan = {.healthy_s = healthy_s};
    struct operator_keys keys;
    char outcome[OPERATOR_SIGNERS + 32];
    const bool done =
        ((healthy_s >= 0 && healthy_s <= 86400) || error_set(error, "healthy_secs must be from 0 to 86400, a day")) &&
        accepts(coordinator, bytes, size, &keys, &manifest, error);
    plan.target = manifest.target.version;
    plan.fallback = manifest.fallback.version;
    const char *who = manifest.author[0] != '\0' ? manifest.author : "unknown";
    if (done) {
        describe_begin(&keys, bytes, size, outcome);
    }
    if (done && store_and_begin(coordinator, bytes, size, &manifest, &plan, error)) {
        coordinator_audit(coordinator, who, "propose", plan.target, outcome);
        return true;
    }
    coordinator_log_refusal(coordinator, who, "propose", plan.target, error->text);
    return false;
}

bool serve_propose(struct session *session, struct error *error)
{
    struct rollout_coordinator *coordinator = session->server->coordinator;
    const uint64_t request = session->channel->frame.request;
    const double healthy_s = session->channel->message.propose.healthy_s;
    struct error why;
    uint8_t *bytes;
    size_t size;
    if (!serve_read_bulk(session, &bytes, &size, error)) {
        return false;
    }
    if (!propose(coordinator, bytes, size, healthy_s, &why)) {
        free(bytes);
        return serve_send_error(session, request, ERROR_NOT_ALLOWED, why.text, error);
    }
    note_signature(session);
    return serve_send_done(session, request, -1, error);
}

/* An operator's actions on a rollout. */
static const char *name_of(const struct manifest_abort *abort)
{
    return abort->resumes ? "resume" : "abort";
}

/* A rollout may pause more than once, and what was signed for one pause must not end the next. Locked. */
static bool take_resume(struct rollout_coordinator *coordinator, const struct manifest_abort *resume, double now_s,
                        char message[256])
{
    if (coordinator->resumed_s > 0 && resume->signed_s <= coordinator->resumed_s) {
        snprintf(message, 256,
                 "this resume was used already, or was signed before one that was; if the clocks of "
                 "operators' machines differ, sign it on the one whose clock is ahead");
        return false;
    }
    if (!rollout_continue(&coordinator->rollout, now_s, message)) {
        return false;
    }
    coordinator->resumed_s = resume->signed_s;
    return true;
}

/* For the rollout under way only: an abort that was used once is worthless afterwards. */
static bool take_abort(struct rollout_coordinator *coordinator, const struct manifest_abort *abort, struct error *error)
{
    char message[256] = "there is no rollout under way";
    server_lock(coordinator->server);
    const bool is_this = coordinator->manifest && abort->target == coordinator->rollout.target &&
                         memcmp(abort->hash, coordinator->hash, MANIFEST_HASH) == 0 &&
                         strcmp(abort->fleet, coordinator->server->config->fleet.name) == 0;
    const double now_s = clock_monotonic_s();
    const bool done = is_this && (abort->resumes ? take_resume(coordinator, abort, now_s, message)
                                                 : rollout_abort(&coordinator->rollout, now_s, message));
    server_unlock(coordinator->server);
    return done ||
           (is_this
                ? error_set(error, "%s", message)
                : error_set(error, "the %s is for version %" PRIu64 " of fleet \"%s\", not for the rollout in progress",
                            name_of(abort), abort->target, abort->fleet));
}

bool serve_abort_rollout(struct session *session, struct error *error)
{
    struct rollout_coordinator *coordinator = session->server->coordinator;
    const uint64_t request = session->channel->frame.request;
    struct operator_keys keys;
    uint8_t *bytes;
    size_t size;
    struct manifest_abort abort = {.author = ""};
    struct error why;
    if (!serve_read_bulk(session, &bytes, &size, error)) {
        return false;
    }
    const bool done = find_keys(coordinator, &keys, &why) && manifest_abort_decode(&abort, bytes, size, &keys, &why) &&
                      take_abort(coordinator, &abort, &why);
    free(bytes);
    const char *who = abort.author[0] != '\0' ? abort.author : "unknown";
    if (!done) {
        coordinator_log_refusal(coordinator, who, name_of(&abort), abort.target, why.text);
        return serve_send_error(session, request, ERROR_NOT_ALLOWED, why.text, error);
    }
    coordinator_audit(coordinator, who, name_of(&abort), abort.target, "done");
    note_signature(session);
    return serve_send_done(session, request, -1, error);
}

/* --- Reports of members, queries of operators --- */

/* "ps 0: version 4, switched\n" for each. Locked. */
static void list_members(const struct rollout *rollout, char *text, size_t size)
{
    static const char *const phases[] = {
        "",           ", staged", ", switched", ", went back", ", restored", ", refused it", ", was informed too late",
        ", tried it", ", saved"};
    double now_s = clock_monotonic_s();
    size_t used = 0;
    for (int i = 0; i < rollout->count && used < size; i++) {
        const struct rollout_member *member = &rollout->members[i];
        char name[MEMBER_TEXT];
        if (!member->listed && !rollout_is_here(member, now_s)) {
            continue;
        }
        member_format(&member->who, ' ', name);
        int length = member->heard_s < 0
                         ? snprintf(text + used, size - used, "%s: not heard of\n", name)
                         : snprintf(text + used, size - used, "%s: version %" PRIu64 "%s, %.1f s ago%s%s\n", name,
                                    member->version, phases[member->phase], now_s - member->heard_s,
                                    member->message[0] != '\0' ? ": " : "", member->message);
        used += (size_t)length;
    }
}

/*
 * Reports come without a config, so nothing has checked the sender's. While the worker with that index is connected,
 * only its own process counts; another one, started by mistake, say, is answered but ignored. Locked.
 */
static bool is_current_sender(const struct session *session, struct member who)
{
    const struct job *job = &session->server->job;
    if (who.role != MEMBER_WORKER || who.index >= job->worker_count) {
        return true;
    }
    const struct job_worker *worker = &job->workers[who.index];
    return (!worker->present && !worker->cut_off) || worker->incarnation == session->incarnation;
}

/* The answer to an operator or a member. Locked. */
static void compose(struct session *session, struct member who, const struct message_report *report,
                    struct message_rollout *answer, char message[1024])
{
    struct rollout_coordinator *coordinator = session->server->coordinator;
    if (who.role != MEMBER_OPERATOR && is_current_sender(session, who)) {
        coordinator_on_report(coordinator, who, session->program, report);
    }
    rollout_describe(&coordinator->rollout, message, 1024);
    *answer = (struct message_rollout){
        .order = (uint8_t)coordinator_order_for(coordinator, who, report->version),
        .state = (uint8_t)(who.role == MEMBER_OPERATOR ? coordinator->rollout.state : coordinator->stored_state),
        .outcome = (uint8_t)coordinator->rollout.outcome,
        .target = coordinator->rollout.target,
        .step = rollout_order_step(&coordinator->rollout),
        .message = message};
    answer->step = who.role == MEMBER_OPERATOR ? coordinator->rollout.step : answer->step;
    answer->version = coordinator_in_force(coordinator, (enum rollout_order)answer->order);
}

/*
 * What operators get besides: the config in force, as at process start or as rolled out since; the previous one; and
 * the manifest that an operator signed for it, because they should not trust the rest. The receiver frees it all; NULL:
 * none, or no memory.
 */
struct rollout_texts {
    char *members, *job, *local, *earlier, *earlier_local;
    uint8_t *manifest;
    size_t manifest_size;
};

/* NULL also for an empty one, which is not sent. */
static char *copy_text(const char *text, size_t size)
{
    return size > 0 ? manifest_copy_text(text, size) : NULL;
}

/* The manifest of the rollout under way, or that which brought the version in force or goes back to it. */
static void find_manifest_of(struct rollout_coordinator *coordinator, uint64_t version, struct rollout_texts *texts)
{
    struct error ignored;
    server_lock(coordinator->server);
    const bool is_last = coordinator->rollout.state != ROLLOUT_IDLE || coordinator->rollout.target == version ||
                         !coordinator->has_versions;
    if (is_last) {
        coordinator_copy_manifest(coordinator, &texts->manifest, &texts->manifest_size);
    }
    server_unlock(coordinator->server);
    if (is_last ||
        (lineage_load(coordinator->server->launched, version, &texts->manifest, &texts->manifest_size, &ignored) &&
         texts->manifest)) {
        return;
    }
    server_lock(coordinator->server);
    coordinator_copy_manifest(coordinator, &texts->manifest, &texts->manifest_size);
    server_unlock(coordinator->server);
}

static void find_texts(struct rollout_coordinator *coordinator, struct rollout_texts *texts)
{
    uint64_t version;
    char digest[CONFIG_DIGEST_HEX + 1];
    size_t size;
    struct error ignored;
    struct manifest manifest;
    *texts = (struct rollout_texts){.members = calloc(1, MEMBERS_TEXT)};
    agent_version(coordinator->agent, &version, digest);
    if (strcmp(digest, coordinator->server->identity.digest) == 0 ||
        !versions_read(&coordinator->versions, version, &texts->job, &size, &ignored)) {
        texts->job = strdup(coordinator->server->identity.job);
    }
    if (!coordinator->has_versions ||
        !versions_read_local(&coordinator->versions, version, &texts->local, &size, &ignored)) {
        texts->local = NULL;
    }
    find_manifest_of(coordinator, version, texts);
    server_lock(coordinator->server);
    if (coordinator->manifest && coordinator->rollout.state == ROLLOUT_IDLE && version == coordinator->rollout.target &&
        manifest_decode_unsigned(&manifest, coordinator->manifest, coordinator->manifest_size, &ignored)) {
        texts->earlier = copy_text(manifest.fallback.text, manifest.fallback.text_size);
        texts->earlier_local = copy_text(manifest.fallback.local, manifest.fallback.local_size);
    }
    server_unlock(coordinator->server);
}

static void free_texts(struct rollout_texts *texts)
{
    free(texts->members);
    free(texts->job);
    free(texts->local);
    free(texts->earlier);
    free(texts->earlier_local);
    free(texts->manifest);
}

bool serve_report(struct session *session, struct error *error)
{
    struct server *server = session->server;
    struct rollout_coordinator *coordinator = server->coordinator;
    struct channel *channel = session->channel;
    const struct message_report report = channel->message.report; /* its texts stay in the channel for now */
    const uint64_t request = channel->frame.request;
    const struct member who = session->who;
    const bool is_operator = who.role == MEMBER_OPERATOR;
    struct message_rollout answer;
    struct rollout_texts texts = {NULL};
    char message[1024];
    if (!coordinator->leads) {
        return serve_send_error(session, request, ERROR_NOT_ALLOWED, not_here, error);
    }
    if (is_operator) {
        find_texts(coordinator, &texts);
    }
    server_lock(server);
    compose(session, who, &report, &answer, message);
    if (texts.members) {
        list_members(&coordinator->rollout, texts.members, MEMBERS_TEXT);
    }
    if (!is_operator && coordinator_needs_manifest(coordinator, (enum rollout_order)answer.order, report.target)) {
        coordinator_copy_manifest_for(coordinator, (enum rollout_order)answer.order, report.version, &texts.manifest,
                                      &texts.manifest_size);
    }
    channel->generation = job_initialised(&server->job) ? server->job.generation : 0;
    answer.highest = coordinator->highest > answer.version ? coordinator->highest : answer.version;
    server_unlock(server);
    answer.revoked = revoked_number(server->identity.credentials);
    answer.members = texts.members;
    answer.job = texts.job;
    answer.local = texts.local;
    answer.earlier = texts.earlier;
    answer.earlier_local = texts.earlier_local;
    struct iovec bulk = {texts.manifest, texts.manifest_size};
    const struct outgoing frame = {.type = MESSAGE_rollout,
                                   .request = request,
                                   .message = &answer,
                                   .bulk = &bulk,
                                   .bulk_parts = texts.manifest ? 1 : 0};
    bool sent = channel_send_frame(channel, &frame, serve_deadline(), error);
    free_texts(&texts);
    return sent;
}

/* --- Revoked keys --- */

bool serve_revoke(struct session *session, struct error *error)
{
    struct server *server = session->server;
    struct rollout_coordinator *coordinator = server->coordinator;
    const struct member self = {MEMBER_PS, server->index};
    const uint64_t request = session->channel->frame.request, number = session->channel->message.revoke.number;
    struct error why;
    uint8_t *bytes;
    size_t size;
    if (!serve_read_bulk(session, &bytes, &size, error)) {
        return false;
    }
    const bool done = coordinator->leads ? revoked_take(server->launched, server->identity.credentials, &self,
                                                        REVOKED_BY_OPERATOR, bytes, size, &why)
                                         : error_set(&why, not_here);
    free(bytes);
    if (!done) {
        coordinator_log_refusal(coordinator, "unknown", "revoke", number, why.text);
        return serve_send_error(session, request, ERROR_NOT_ALLOWED, why.text, error);
    }
    note_signature(session);
    return serve_send_done(session, request, -1, error);
}

bool serve_get_revoked(struct session *session, struct error *error)
{
    const struct server *server = session->server;
    const uint64_t request = session->channel->frame.request;
    uint8_t *bytes;
    size_t size;
    struct error why;
    if (!revoked_read(server->launched, &bytes, &size, &why)) {
        return serve_send_error(session, request, ERROR_INTERNAL, why.text, error);
    }
    const struct message_revoked answer = {.number = revoked_number(server->identity.credentials)};
    struct iovec bulk = {bytes, size};
    const struct outgoing frame = {
        .type = MESSAGE_revoked, .request = request, .message = &answer, .bulk = &bulk, .bulk_parts = bytes ? 1 : 0};
    const bool sent = channel_send_frame(session->channel, &frame, serve_deadline(), error);
    free(bytes);
    return sent;
}

/* --- Programs from an operator --- */

/*
 * Adds a piece; with size 0 only looks. *there: how much is here afterwards. A piece at another offset than the next is
 * dropped, and the answer says which is next. Unlocked.
 */
static bool add_piece(struct rollout_coordinator *coordinator, const struct manifest_program *program, uint64_t offset,
                      const uint8_t *bytes, size_t size, uint64_t *there, struct error *error)
{
    struct program_intake intake;
    pthread_mutex_lock(&coordinator->upload_lock);
    const enum intake_state state =
        program_intake_open(&intake, &coordinator->programs, program->digest, program->size, error);
    bool done = state == INTAKE_OPEN || state == INTAKE_WHOLE;
    if (state == INTAKE_OPEN && size > 0 && offset == intake.there) {
        done = program_intake_add(&intake, bytes, size, error);
    }
    *there = state == INTAKE_WHOLE ? program->size : intake.there;
    program_intake_close(&intake);
    pthread_mutex_unlock(&coordinator->upload_lock);
    return state == INTAKE_BUSY ? error_set(error, "a member on the machine of ps 0 is receiving it: try again") : done;
}

/* The manifest must be one that could be proposed now. */
static bool take_offer(struct rollout_coordinator *coordinator, const uint8_t *bytes, size_t size, const char *digest,
                       struct manifest_program *offered, struct error *error)
{
    struct manifest manifest;
    struct operator_keys keys;
    uint64_t version, highest;
    char ignored[CONFIG_DIGEST_HEX + 1];
    if (!accepts(coordinator, bytes, size, &keys, &manifest, error)) {
        return false;
    }
    agent_version(coordinator->agent, &version, ignored);
    server_lock(coordinator->server);
    highest = coordinator->highest;
    server_unlock(coordinator->server);
    if (!manifest_fits(&manifest, coordinator->server->config->fleet.name, version, highest, error)) {
        return false;
    }
    const struct manifest_program *program = manifest_program_by_digest(&manifest.programs, digest);
    if (!program) {
        return error_set(error, "the manifest names no program %.16s", digest);
    }
    *offered = *program;
    return true;
}

static bool send_position(struct session *session, uint64_t request, uint64_t there, struct error *error)
{
    const struct message_program answer = {.offset = there};
    return serve_send(session, MESSAGE_program, request, &answer, error);
}

bool serve_offer_program(struct session *session, struct error *error)
{
    struct rollout_coordinator *coordinator = session->server->coordinator;
    const uint64_t request = session->channel->frame.request;
    char digest[PROGRAM_DIGEST_HEX + 1];
    struct manifest_program offered;
    struct error why;
    uint8_t *bytes;
    size_t size;
    uint64_t there;
    snprintf(digest, sizeof digest, "%s", session->channel->message.offer_program.digest);
    if (!serve_read_bulk(session, &bytes, &size, error)) {
        return false;
    }
    const bool done = take_offer(coordinator, bytes, size, digest, &offered, &why) &&
                      add_piece(coordinator, &offered, 0, NULL, 0, &there, &why);
    free(bytes);
    if (!done) {
        coordinator_log_refusal(coordinator, "unknown", "program", 0, why.text);
        return serve_send_error(session, request, ERROR_NOT_ALLOWED, why.text, error);
    }
    server_lock(session->server);
    coordinator->offered = offered;
    session->has_signed = true;
    server_unlock(session->server);
    return send_position(session, request, there, error);
}

bool serve_put_program(struct session *session, struct error *error)
{
    struct rollout_coordinator *coordinator = session->server->coordinator;
    const struct channel *channel = session->channel;
    const uint64_t request = channel->frame.request, offset = channel->message.put_program.offset;
    struct manifest_program offered;
    struct error why;
    uint8_t *bytes;
    size_t size;
    uint64_t there = 0;
    server_lock(session->server);
    offered = coordinator->offered;
    server_unlock(session->server);
    const bool is_it = offered.digest[0] != '\0' && strcmp(offered.digest, channel->message.put_program.digest) == 0;
    if (!serve_read_bulk(session, &bytes, &size, error)) {
        return false;
    }
    const bool done = is_it ? add_piece(coordinator, &offered, offset, bytes, size, &there, &why)
                            : error_set(&why, "that program was not offered, or another one has been since");
    free(bytes);
    return done ? send_position(session, request, there, error)
                : serve_send_error(session, request, ERROR_NOT_ALLOWED, why.text, error);
}

/* --- Programs to members --- */

/* At most a second's worth: training on the same slow link must not wait long for one piece. */
static size_t piece_at(uint32_t rate_kib)
{
    const double most = rate_kib > 0 ? fmax(1024.0 * rate_kib, LEAST_PIECE) : PROGRAM_CHUNK;
    return (size_t)fmin(most, PROGRAM_CHUNK);
}

/* May a piece be sent now? If not, *wait_ms says how long to wait. Locked. */
static bool may_hand_on(struct rollout_coordinator *coordinator, size_t size, uint32_t *wait_ms)
{
    const double rate = 1024.0 * coordinator->carried.rate_kib, now_s = clock_monotonic_s();
    *wait_ms = 0;
    if (rate <= 0) {
        return true;
    }
    const double most = fmax(rate / 4, 1); /* at most a quarter of a second's budget is saved up */
    coordinator->budget = fmin(coordinator->budget + rate * (now_s - coordinator->budget_s), most);
    coordinator->budget_s = now_s;
    if (coordinator->budget < 0) {
        *wait_ms = (uint32_t)fmin(1 + 1000 * -coordinator->budget / rate, MOST_WAIT_MS);
        return false;
    }
    coordinator->budget -= (double)size;
    return true;
}

bool serve_get_program(struct session *session, struct error *error)
{
    struct rollout_coordinator *coordinator = session->server->coordinator;
    const struct message_get_program *wanted = &session->channel->message.get_program;
    const uint64_t request = session->channel->frame.request;
    struct message_program answer = {.offset = wanted->offset};
    char digest[PROGRAM_DIGEST_HEX + 1];
    struct error why;
    size_t size = 0;
    snprintf(digest, sizeof digest, "%s", wanted->digest);
    server_lock(session->server);
    const struct manifest_program *program = coordinator_program(coordinator, digest);
    const bool known = program && answer.offset < program->size;
    const size_t piece = piece_at(coordinator->carried.rate_kib);
    const bool may = known && may_hand_on(coordinator, piece, &answer.wait_ms);
    if (may) {
        rollout_note_transfer(&coordinator->rollout, clock_monotonic_s());
    }
    server_unlock(session->server);
    if (!known) {
        return serve_send_error(session, request, ERROR_NOT_ALLOWED, "no such program is rolled out", error);
    }
    uint8_t *bytes = may ? malloc(piece) : NULL;
    if (may && (!bytes || !programs_read(&coordinator->programs, digest, answer.offset, bytes, piece, &size, &why))) {
        const bool sent = serve_send_error(session, request, ERROR_INTERNAL, bytes ? why.text : "out of memory", error);
        free(bytes);
        return sent;
    }
    struct iovec bulk = {bytes, size};
    const struct outgoing frame = {
        .type = MESSAGE_program, .request = request, .message = &answer, .bulk = &bulk, .bulk_parts = size > 0 ? 1 : 0};
    const bool sent = channel_send_frame(session->channel, &frame, serve_deadline(), error);
    free(bytes);
    return sent;
}
