#include "ps/rollout/participant.h"

#include <stdio.h>
#include <string.h>

#include "base/process/probation.h"
#include "base/log.h"
#include "ps/rollout/audit.h"
#include "ps/rollout/change.h"
#include "ps/rollout/lineage.h"
#include "ps/rollout/stage.h"

enum { TRIES = 100 /* orders that pass before what was refused is tried again: its reason may be gone */ };

static void audit_of(const struct rollout_participant *participant, const char *what, uint64_t version,
                     const char *outcome)
{
    char name[MEMBER_TEXT];
    member_format(&participant->who, ' ', name);
    audit_write(&participant->versions, name, participant->author, what, version, outcome);
}

static void audit(const struct rollout_participant *participant, const char *what, const char *outcome)
{
    audit_of(participant, what, participant->target, outcome);
}

bool participant_key_path(const struct config *config, char *path, size_t size, struct error *error)
{
    const char *slash = strrchr(config->path, '/');
    int folder = slash != NULL ? (int)(slash - config->path) + 1 : 0;
    return (size_t)snprintf(path, size, "%.*soperator.pub", folder, config->path) < size ||
           error_set(error, "%s: the path is too long", config->path);
}

/* What the last rollout left here. A version that came by it may not be settled yet. */
static void recall(struct rollout_participant *participant)
{
    struct lineage lineage;
    if (!lineage_read(participant->config, &lineage)) {
        return;
    }
    if (lineage.kind != ROLLOUT_JOB) {
        memcpy(participant->digests, lineage.digests, sizeof participant->digests);
    }
    participant->prepared = lineage.target == participant->version;
}

bool participant_create(struct rollout_participant *participant, const struct config *config, struct member who,
                        const struct participant_host *host, struct error *error)
{
    *participant = (struct rollout_participant){
        .config = config, .host = *host, .who = who, .version = (uint64_t)config->fleet.version};
    recall(participant);
    drift_begin(&participant->drift, config);
    return config_digest(config, participant->digest, error);
}

static void forget(struct rollout_participant *participant)
{
    config_free(&participant->configs[0]);
    config_free(&participant->configs[1]);
    config_free(&participant->then);
    participant->target = 0;
    participant->tried = ORDER_NOTHING;
    participant->phase = PHASE_NONE;
    participant->message[0] = '\0';
}

void participant_destroy(struct rollout_participant *participant)
{
    forget(participant);
}

static void fail(struct rollout_participant *participant, const char *why)
{
    participant->phase = PHASE_FAILED;
    snprintf(participant->message, sizeof participant->message, "%.255s", why);
}

static void take_manifest(struct rollout_participant *participant, const struct participant_order *order)
{
    struct error error;
    forget(participant);
    snprintf(participant->author, sizeof participant->author, "unknown");
    bool done = stage_manifest(participant, order, &error);
    participant->target = order->target;
    participant->phase = PHASE_STAGED;
    if (done) {
        participant->fallback = (uint64_t)participant->configs[1].fleet.version;
    } else {
        config_free(&participant->configs[0]);
        config_free(&participant->configs[1]);
        fail(participant, error.text);
        log_warning("version %llu of the config is refused: %s", (unsigned long long)order->target, error.text);
    }
    if (participant->versions.folder[0] != '\0') {
        audit(participant, "stage", done ? "done" : error.text);
    }
}

/* Live. which: 0 the target, 1 the fallback. */
static void change_over(struct rollout_participant *participant, int which, int64_t step)
{
    struct error error;
    uint64_t number = (uint64_t)participant->configs[which].fleet.version;
    enum participant_switch result =
        participant->host.switch_to(participant->host.context, &participant->configs[which], step);
    if (result == SWITCH_PENDING) {
        return;
    }
    if (result == SWITCH_LATE) {
        participant->phase = PHASE_LATE;
        snprintf(participant->message, sizeof participant->message, "step %lld was over when it was told of it",
                 (long long)step);
        return;
    }
    if (!versions_switch(&participant->versions, number, &error)) {
        fail(participant, error.text);
        return;
    }
    participant->version = number;
    memcpy(participant->digest, participant->digests[which], sizeof participant->digest);
    participant->phase = which == 0 ? PHASE_SWITCHED : PHASE_BACK;
    participant->message[0] = '\0';
    audit(participant, which == 0 ? "switch" : "go back", "done");
    log_info("version %llu of the config is in force%s", (unsigned long long)number, which == 0 ? "" : ": went back");
}

/* Local keys that are taken up by the next start: nothing but the version changes now. */
static void note_version(struct rollout_participant *participant, int which)
{
    struct error error;
    uint64_t number = (uint64_t)participant->configs[which].fleet.version;
    if (!versions_switch(&participant->versions, number, &error)) {
        fail(participant, error.text);
        return;
    }
    participant->version = number;
    memcpy(participant->digest, participant->digests[which], sizeof participant->digest);
    audit(participant, which == 0 ? "switch" : "go back", "done");
    log_info("version %llu of the config is in force; its local keys count from the next start on",
             (unsigned long long)number);
}

/* Did this process die in that version, and was it brought back? */
static bool has_failed(const struct rollout_participant *participant, uint64_t version)
{
    struct probation probation;
    return probation_read(participant->config->path, &probation) && probation.failed && probation.target == version;
}

static void start_anew(struct rollout_participant *participant, int which)
{
    struct error error;
    const char *path = participant->config->path;
    uint64_t number = (uint64_t)participant->configs[which].fleet.version;
    if (which == 0 && !change_has_member(&participant->configs[0], participant->who)) {
        return; /* it is not a part of the target, and ends once that is settled */
    }
    if (which == 0 && has_failed(participant, number)) {
        snprintf(error.text, sizeof error.text, "it ended badly %d times when it was started in version %llu",
                 PROBATION_STARTS, (unsigned long long)number);
        fail(participant, error.text);
        return;
    }
    if (participant->kind == ROLLOUT_LOCAL && participant->host.stays) {
        note_version(participant, which);
        return;
    }
    if ((which == 0 && !probation_begin(path, number, participant->fallback, &error)) ||
        !versions_switch(&participant->versions, number, &error)) {
        fail(participant, error.text);
        return;
    }
    audit(participant, which == 0 ? "start anew" : "go back", "begun");
    log_info("this process starts anew in version %llu of the config", (unsigned long long)number);
    participant->leaving = true;
    participant->host.leave(participant->host.context, false);
}

/* Worker 0's: a trial, or a checkpoint; once for each rollout. */
static void do_once(struct rollout_participant *participant, enum rollout_order order)
{
    struct error error = {"only worker 0 can do that"};
    const struct participant_host *host = &participant->host;
    bool done = false;
    if (participant->tried >= order) {
        return;
    }
    participant->tried = order;
    if (order == ORDER_TRY && host->try_out != NULL) {
        done = host->try_out(host->context, &participant->then, participant->may_lose, &error);
    } else if (order == ORDER_SAVE && host->save != NULL) {
        done = host->save(host->context, &error);
    }
    audit(participant, order == ORDER_TRY ? "try" : "save", done ? "done" : error.text);
    if (done) {
        participant->phase = order == ORDER_TRY ? PHASE_TRIED : PHASE_SAVED;
    } else {
        fail(participant, error.text);
    }
}

static void catch_up(struct rollout_participant *participant, const struct participant_order *order)
{
    struct error error;
    char before[sizeof participant->message] = "";
    const bool again = participant->tried == ORDER_CATCH_UP;
    if (order->manifest == NULL || (again && ++participant->refusals % TRIES != 0)) {
        return;
    }
    if (again) {
        snprintf(before, sizeof before, "%s", participant->message);
    }
    forget(participant);
    bool done = stage_catch_up(participant, order, &error);
    participant->tried = ORDER_CATCH_UP;
    if (!done && strncmp(error.text, before, sizeof before - 1) == 0) { /* as was said before */
        fail(participant, error.text);
        return;
    }
    bool stays_out = done && !change_has_member(&participant->configs[0], participant->who);
    audit_of(participant, "catch up", order->in_force, done ? "begun" : error.text);
    if (!done) {
        log_error("this member has version %llu of the config, the fleet is at version %llu, and it can't follow: %s",
                  (unsigned long long)participant->version, (unsigned long long)order->in_force, error.text);
        fail(participant, error.text);
        return;
    }
    log_info("the fleet is at version %llu of the config: this process %s", (unsigned long long)order->in_force,
             stays_out ? "is no part of it any more and ends" : "starts anew in it");
    participant->leaving = true;
    participant->host.leave(participant->host.context, stays_out);
}

static void settle(struct rollout_participant *participant)
{
    if (participant->prepared && participant->host.settle != NULL) {
        participant->host.settle(participant->host.context);
    }
    participant->prepared = false;
    probation_end(participant->config->path);
}

static bool goes_back(enum rollout_order order)
{
    return order == ORDER_BACK || order == ORDER_RESTORE || order == ORDER_RETURN;
}

static void restore(struct rollout_participant *participant)
{
    struct error error;
    if (participant->host.restore == NULL) {
        return;
    }
    bool done = participant->host.restore(participant->host.context, &error);
    participant->phase = done ? PHASE_RESTORED : PHASE_BACK;
    snprintf(participant->message, sizeof participant->message, "%.255s", done ? "" : error.text);
    audit(participant, "restore", done ? "done" : error.text);
}

static void go_back(struct rollout_participant *participant, const struct participant_order *order)
{
    if (order->order == ORDER_RETURN) {
        if (participant->version != participant->fallback) {
            start_anew(participant, 1);
        } else {
            participant->phase = PHASE_BACK;
        }
    } else if (participant->phase != PHASE_BACK && participant->phase != PHASE_RESTORED) {
        change_over(participant, 1, 0);
    } else if (order->order == ORDER_RESTORE && participant->phase == PHASE_BACK) {
        restore(participant);
    }
}

/*
 * The target was refused here, so that there is nothing to undo but the model; unless this process is in the target
 * already, and was refused as it came back (by a full disk, say): then it is to try again, for ever, but not all the time.
 */
static void act_without(struct rollout_participant *participant, const struct participant_order *order)
{
    if (!goes_back(order->order)) {
        participant->phase = PHASE_FAILED;
    } else if (participant->version == participant->target) {
        participant->target =
            ++participant->refusals % TRIES == 0 ? 0 : participant->target; /* it comes with the next order */
    } else {
        participant->phase = participant->phase == PHASE_RESTORED ? PHASE_RESTORED : PHASE_BACK;
        if (order->order == ORDER_RESTORE && participant->phase == PHASE_BACK) {
            restore(participant);
        }
    }
}

void participant_act(struct rollout_participant *participant, const struct participant_order *order)
{
    drift_look(&participant->drift);
    if (participant->leaving) {
        return;
    }
    if (order->order == ORDER_NOTHING) {
        if (order->settled) {
            settle(participant);
        }
        return;
    }
    if (order->order == ORDER_CATCH_UP) {
        catch_up(participant, order);
        return;
    }
    if (order->target != participant->target) {
        if (order->manifest != NULL) {
            take_manifest(participant, order);
        }
        return;
    }
    bool has_both = participant->configs[1].path != NULL;
    if (!has_both) {
        act_without(participant, order);
        return;
    }
    switch (order->order) {
    case ORDER_SWITCH:
        if (participant->phase == PHASE_STAGED) {
            change_over(participant, 0, order->step);
        }
        break;
    case ORDER_TRY:
    case ORDER_SAVE:
        do_once(participant, order->order);
        break;
    case ORDER_RESTART:
        if (participant->version == participant->target) {
            participant->phase = PHASE_SWITCHED;
        } else {
            start_anew(participant, 0);
        }
        break;
    case ORDER_BACK:
    case ORDER_RESTORE:
    case ORDER_RETURN:
        go_back(participant, order);
        break;
    case ORDER_NOTHING:
    case ORDER_STAGE:
    case ORDER_CATCH_UP:
        break;
    }
}

void participant_report(const struct rollout_participant *participant, struct rollout_report *report)
{
    const struct participant_host *host = &participant->host;
    *report =
        (struct rollout_report){.phase = participant->phase,
                                .version = participant->version,
                                .target = participant->target,
                                .ready = !participant->leaving && (host->ready == NULL || host->ready(host->context)),
                                .message = participant->message};
}
