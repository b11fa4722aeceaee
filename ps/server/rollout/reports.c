/* Reports of members and questions of operators, and what they are answered. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "ps/server/rollout/internal.h"
#include "ps/server/requests/requests.h"

enum { MEMBERS_TEXT = 60 * 1024 };

/* Locked. */
static enum rollout_order order_for(struct rollout_coordinator *coordinator, struct member who, uint64_t version)
{
    struct rollout *rollout = &coordinator->rollout;
    uint64_t in_force;
    char digest[CONFIG_DIGEST_HEX + 1];
    if (coordinator->manifest == NULL || rollout->changes != coordinator->stored || who.role == MEMBER_OPERATOR) {
        return ORDER_NOTHING;
    }
    if (rollout->state == ROLLOUT_IDLE) {
        if (coordinator->agent == NULL) {
            return ORDER_NOTHING;
        }
        agent_version(coordinator->agent, &in_force, digest);
        return rollout_catch_up(rollout, in_force, version);
    }
    enum rollout_order order = rollout_order(rollout, who);
    rollout_told(rollout, who);
    if (version != rollout->fallback && version != rollout->target &&
        rollout_catch_up(rollout, rollout->fallback, version) != ORDER_NOTHING) { /* it can take part only then */
        return ORDER_CATCH_UP;
    }
    return order;
}

/* Does the manifest go with it? A member that catches up forgets what it had. */
static bool needs_manifest(const struct rollout_coordinator *coordinator, enum rollout_order order, uint64_t target)
{
    return order == ORDER_CATCH_UP || (order != ORDER_NOTHING && target != coordinator->rollout.target);
}

/* Takes a member's report. Locked. */
static void hear(struct rollout_coordinator *coordinator, struct member who, const struct message_report *report)
{
    struct server *server = coordinator->server;
    const struct rollout_report heard = {.phase = (enum rollout_phase)report->phase,
                                         .version = report->version,
                                         .target = report->target,
                                         .ready = report->ready != 0,
                                         .message = report->message};
    rollout_heard(&coordinator->rollout, who, &heard, clock_monotonic_s());
    if (who.role == MEMBER_WORKER && who.index < server->job.worker_count) {
        struct job_worker *worker = &server->job.workers[who.index];
        coordinator->losses[who.index] = report->loss;
        worker->fleet_version = report->version;
        snprintf(worker->digest, sizeof worker->digest, "%s", report->digest);
    }
}

bool rollout_coordinator_ask_self(void *context, const struct message_report *report, struct agent_answer *answer,
                                  struct error *error)
{
    struct rollout_coordinator *coordinator = context;
    const struct member identity = {MEMBER_PS, 0};
    uint8_t *manifest = NULL;
    server_lock(coordinator->server);
    hear(coordinator, identity, report);
    *answer = (struct agent_answer){.order = {.order = order_for(coordinator, identity, report->version),
                                              .target = coordinator->rollout.target,
                                              .step = rollout_order_step(&coordinator->rollout)},
                                    .state = coordinator->stored_state};
    if (needs_manifest(coordinator, answer->order.order, report->target)) {
        manifest = malloc(coordinator->manifest_size);
        if (manifest != NULL) {
            memcpy(manifest, coordinator->manifest, coordinator->manifest_size);
            answer->order.manifest = manifest;
            answer->order.manifest_size = coordinator->manifest_size;
        }
    }
    server_unlock(coordinator->server);
    (void)error;
    return true;
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
 * Reports come without a config, so that nobody was asked whether he is the one. While the worker of that number is here,
 * only its own process counts; another one that was started by mistake, say, is answered and not heard. Locked.
 */
static bool speaks_for(const struct session *session, struct member who)
{
    const struct job *job = &session->server->job;
    if (who.role != MEMBER_WORKER || who.index >= job->worker_count) {
        return true;
    }
    const struct job_worker *worker = &job->workers[who.index];
    return !worker->present || worker->incarnation == session->incarnation;
}

/* What an operator, or a member, is answered. Locked. */
static void compose(struct session *session, struct member who, const struct message_report *report,
                    struct message_rollout *told, char message[1024])
{
    struct rollout_coordinator *coordinator = session->server->coordinator;
    char digest[CONFIG_DIGEST_HEX + 1];
    if (who.role != MEMBER_OPERATOR && speaks_for(session, who)) {
        hear(coordinator, who, report);
    }
    rollout_describe(&coordinator->rollout, message, 1024);
    *told = (struct message_rollout){
        .order = (uint8_t)order_for(coordinator, who, report->version),
        .state = (uint8_t)(who.role == MEMBER_OPERATOR ? coordinator->rollout.state : coordinator->stored_state),
        .outcome = (uint8_t)coordinator->rollout.outcome,
        .target = coordinator->rollout.target,
        .step = rollout_order_step(&coordinator->rollout),
        .message = message};
    told->step = who.role == MEMBER_OPERATOR ? coordinator->rollout.step : told->step;
    agent_version(coordinator->agent, &told->version, digest);
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

static void find_texts(struct rollout_coordinator *coordinator, struct told_texts *texts)
{
    uint64_t version;
    char digest[CONFIG_DIGEST_HEX + 1];
    size_t size;
    struct error ignored;
    struct manifest manifest;
    *texts = (struct told_texts){.members = calloc(1, MEMBERS_TEXT)};
    agent_version(coordinator->agent, &version, digest);
    if (strcmp(digest, coordinator->server->identity.digest) == 0 ||
        !versions_read(&coordinator->versions, version, &texts->job, &size, &ignored)) {
        texts->job = strdup(coordinator->server->identity.job);
    }
    if (!coordinator->has_versions ||
        !versions_read_local(&coordinator->versions, version, &texts->local, &size, &ignored)) {
        texts->local = NULL;
    }
    server_lock(coordinator->server);
    if (coordinator->manifest != NULL && coordinator->rollout.state == ROLLOUT_IDLE &&
        version == coordinator->rollout.target &&
        manifest_decode_unsigned(&manifest, coordinator->manifest, coordinator->manifest_size, &ignored)) {
        texts->earlier = copy_text(manifest.fallback.text, manifest.fallback.text_size);
        texts->earlier_local = copy_text(manifest.fallback.local, manifest.fallback.local_size);
    }
    server_unlock(coordinator->server);
}

static void free_texts(struct told_texts *texts)
{
    free(texts->members);
    free(texts->job);
    free(texts->local);
    free(texts->earlier);
    free(texts->earlier_local);
}

static struct member who_reports(const struct session *session)
{
    return session->guest.role != MEMBER_NONE ? session->guest
           : session->worker >= 0             ? (struct member){MEMBER_WORKER, session->worker}
           : session->ps >= 0                 ? (struct member){MEMBER_PS, session->ps}
                                              : (struct member){MEMBER_OPERATOR, MEMBER_ANY_INDEX};
}

bool serve_report(struct session *session, struct error *error)
{
    struct server *server = session->server;
    struct rollout_coordinator *coordinator = server->coordinator;
    struct channel *channel = &session->channel;
    const struct message_report report = channel->message.report; /* its texts lie in the channel until it receives */
    const uint64_t request = channel->frame.request;
    const struct member who = who_reports(session);
    const bool is_operator = who.role == MEMBER_OPERATOR;
    struct message_rollout told;
    struct told_texts texts = {NULL};
    char message[1024];
    uint8_t *manifest = NULL;
    size_t size = 0;
    if (!coordinator->leads) {
        return serve_send_error(session, request, ERROR_NOT_ALLOWED, rollout_coordinator_not_here, error);
    }
    if (is_operator) {
        find_texts(coordinator, &texts);
    }
    server_lock(server);
    compose(session, who, &report, &told, message);
    if (texts.members != NULL) {
        list_members(&coordinator->rollout, texts.members, MEMBERS_TEXT);
    }
    if (!is_operator && needs_manifest(coordinator, (enum rollout_order)told.order, report.target)) {
        size = coordinator->manifest_size;
        manifest = malloc(size);
        if (manifest != NULL) {
            memcpy(manifest, coordinator->manifest, size);
        }
    }
    channel->generation = job_initialised(&server->job) ? server->job.generation : 0;
    told.highest = coordinator->highest > told.version ? coordinator->highest : told.version;
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
