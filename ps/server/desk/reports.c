/* Reports of members and questions of operators, and what they are answered. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "ps/server/desk/inside.h"
#include "ps/server/requests/requests.h"

enum { MEMBERS_TEXT = 60 * 1024 };

/* Locked. */
static enum rollout_order order_for(struct desk *desk, struct member who, uint64_t version)
{
    struct rollout *rollout = &desk->rollout;
    uint64_t in_force;
    char digest[CONFIG_DIGEST_HEX + 1];
    if (desk->manifest == NULL || rollout->changes != desk->stored || who.role == MEMBER_OPERATOR) {
        return ORDER_NOTHING;
    }
    if (rollout->state == ROLLOUT_IDLE) {
        if (desk->agent == NULL) {
            return ORDER_NOTHING;
        }
        agent_version(desk->agent, &in_force, digest);
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

bool desk_ask_self(void *context, const struct message_report *report, struct agent_answer *answer, struct error *error)
{
    struct desk *desk = context;
    const struct member self = {MEMBER_PS, 0};
    uint8_t *manifest = NULL;
    server_lock(desk->server);
    hear(desk, self, report);
    *answer = (struct agent_answer){.order = {.order = order_for(desk, self, report->version),
                                              .target = desk->rollout.target,
                                              .step = rollout_order_step(&desk->rollout)},
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
                                    member->sentence[0] != '\0' ? ": " : "", member->sentence);
        used += (size_t)length;
    }
}

/*
 * Reports come without a config, so that nobody was asked whether he is the one. While the worker of that number is here,
 * only its own process counts; another one that was started by mistake, say, is answered and not heard. Locked.
 */
static bool speaks_for(const struct visitor *visitor, struct member who)
{
    const struct job *job = &visitor->server->job;
    if (who.role != MEMBER_WORKER || who.index >= job->worker_count) {
        return true;
    }
    const struct job_worker *worker = &job->workers[who.index];
    return !worker->present || worker->incarnation == visitor->incarnation;
}

/* What an operator, or a member, is answered. Locked. */
static void compose(struct visitor *visitor, struct member who, const struct message_report *report,
                    struct message_rollout *told, char sentence[1024])
{
    struct desk *desk = visitor->server->desk;
    char digest[CONFIG_DIGEST_HEX + 1];
    if (who.role != MEMBER_OPERATOR && speaks_for(visitor, who)) {
        hear(desk, who, report);
    }
    rollout_describe(&desk->rollout, sentence, 1024);
    *told = (struct message_rollout){
        .order = (uint8_t)order_for(desk, who, report->version),
        .state = (uint8_t)(who.role == MEMBER_OPERATOR ? desk->rollout.state : desk->stored_state),
        .outcome = (uint8_t)desk->rollout.outcome,
        .target = desk->rollout.target,
        .step = rollout_order_step(&desk->rollout),
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
        return serve_send_error(visitor, request, ERROR_NOT_ALLOWED, desk_not_here, error);
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
    channel->generation = job_initialised(&server->job) ? server->job.generation : 0;
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
