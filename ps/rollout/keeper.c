#include "ps/rollout/keeper.h"

#include <stdio.h>
#include <string.h>

#include "base/config/probation.h"
#include "base/log.h"
#include "ps/rollout/audit.h"
#include "ps/rollout/change.h"
#include "ps/rollout/lineage.h"
#include "ps/rollout/stage.h"

enum { TRIES = 100 /* orders that pass before what was refused is tried again: its reason may be gone */ };

static void audit_of(const struct keeper *keeper, const char *what, uint64_t version, const char *outcome)
{
    char name[MEMBER_TEXT];
    member_format(&keeper->who, ' ', name);
    audit_write(&keeper->versions, name, keeper->author, what, version, outcome);
}

static void audit(const struct keeper *keeper, const char *what, const char *outcome)
{
    audit_of(keeper, what, keeper->target, outcome);
}

bool keeper_key_path(const struct config *config, char *path, size_t size, struct error *error)
{
    const char *slash = strrchr(config->path, '/');
    int folder = slash != NULL ? (int)(slash - config->path) + 1 : 0;
    return (size_t)snprintf(path, size, "%.*soperator.pub", folder, config->path) < size ||
           error_set(error, "%s: the path is too long", config->path);
}

/* What the last rollout left here. A version that came by it may not be settled yet. */
static void recall(struct keeper *keeper)
{
    struct lineage lineage;
    if (!lineage_read(keeper->config, &lineage)) {
        return;
    }
    if (lineage.kind != ROLLOUT_JOB) {
        memcpy(keeper->digests, lineage.digests, sizeof keeper->digests);
    }
    keeper->prepared = lineage.target == keeper->version;
}

bool keeper_create(struct keeper *keeper, const struct config *config, struct member who,
                   const struct keeper_host *host, struct error *error)
{
    *keeper = (struct keeper){.config = config, .host = *host, .who = who, .version = (uint64_t)config->fleet.version};
    recall(keeper);
    drift_begin(&keeper->drift, config);
    return config_digest(config, keeper->digest, error);
}

static void forget(struct keeper *keeper)
{
    config_free(&keeper->configs[0]);
    config_free(&keeper->configs[1]);
    config_free(&keeper->then);
    keeper->target = 0;
    keeper->tried = ORDER_NOTHING;
    keeper->phase = PHASE_NONE;
    keeper->sentence[0] = '\0';
}

void keeper_destroy(struct keeper *keeper)
{
    forget(keeper);
}

static void fail(struct keeper *keeper, const char *why)
{
    keeper->phase = PHASE_FAILED;
    snprintf(keeper->sentence, sizeof keeper->sentence, "%.255s", why);
}

static void take_manifest(struct keeper *keeper, const struct keeper_order *order)
{
    struct error error;
    forget(keeper);
    snprintf(keeper->author, sizeof keeper->author, "unknown");
    bool done = stage_manifest(keeper, order, &error);
    keeper->target = order->target;
    keeper->phase = PHASE_STAGED;
    if (done) {
        keeper->fallback = (uint64_t)keeper->configs[1].fleet.version;
    } else {
        config_free(&keeper->configs[0]);
        config_free(&keeper->configs[1]);
        fail(keeper, error.text);
        log_warning("version %llu of the config is refused: %s", (unsigned long long)order->target, error.text);
    }
    if (keeper->versions.folder[0] != '\0') {
        audit(keeper, "stage", done ? "done" : error.text);
    }
}

/* Live. which: 0 the target, 1 the fallback. */
static void change_over(struct keeper *keeper, int which, int64_t step)
{
    struct error error;
    uint64_t number = (uint64_t)keeper->configs[which].fleet.version;
    enum keeper_switch result = keeper->host.switch_to(keeper->host.context, &keeper->configs[which], step);
    if (result == SWITCH_PENDING) {
        return;
    }
    if (result == SWITCH_LATE) {
        keeper->phase = PHASE_LATE;
        snprintf(keeper->sentence, sizeof keeper->sentence, "step %lld was over when it was told of it",
                 (long long)step);
        return;
    }
    if (!versions_switch(&keeper->versions, number, &error)) {
        fail(keeper, error.text);
        return;
    }
    keeper->version = number;
    memcpy(keeper->digest, keeper->digests[which], sizeof keeper->digest);
    keeper->phase = which == 0 ? PHASE_SWITCHED : PHASE_BACK;
    keeper->sentence[0] = '\0';
    audit(keeper, which == 0 ? "switch" : "go back", "done");
    log_info("version %llu of the config is in force%s", (unsigned long long)number, which == 0 ? "" : ": went back");
}

/* Local keys that are taken up by the next start: nothing but the version changes now. */
static void note_version(struct keeper *keeper, int which)
{
    struct error error;
    uint64_t number = (uint64_t)keeper->configs[which].fleet.version;
    if (!versions_switch(&keeper->versions, number, &error)) {
        fail(keeper, error.text);
        return;
    }
    keeper->version = number;
    memcpy(keeper->digest, keeper->digests[which], sizeof keeper->digest);
    audit(keeper, which == 0 ? "switch" : "go back", "done");
    log_info("version %llu of the config is in force; its local keys count from the next start on",
             (unsigned long long)number);
}

/* Did this process die in that version, and was it brought back? */
static bool has_failed(const struct keeper *keeper, uint64_t version)
{
    struct probation probation;
    return probation_read(keeper->config->path, &probation) && probation.failed && probation.target == version;
}

static void start_anew(struct keeper *keeper, int which)
{
    struct error error;
    const char *path = keeper->config->path;
    uint64_t number = (uint64_t)keeper->configs[which].fleet.version;
    if (which == 0 && !change_has_member(&keeper->configs[0], keeper->who)) {
        return; /* it is not a part of the target, and ends once that is settled */
    }
    if (which == 0 && has_failed(keeper, number)) {
        snprintf(error.text, sizeof error.text, "it ended badly %d times when it was started in version %llu",
                 PROBATION_STARTS, (unsigned long long)number);
        fail(keeper, error.text);
        return;
    }
    if (keeper->kind == ROLLOUT_LOCAL && keeper->host.stays) {
        note_version(keeper, which);
        return;
    }
    if ((which == 0 && !probation_begin(path, number, keeper->fallback, &error)) ||
        !versions_switch(&keeper->versions, number, &error)) {
        fail(keeper, error.text);
        return;
    }
    audit(keeper, which == 0 ? "start anew" : "go back", "begun");
    log_info("this process starts anew in version %llu of the config", (unsigned long long)number);
    keeper->leaving = true;
    keeper->host.leave(keeper->host.context, false);
}

/* Worker 0's: a trial, or a checkpoint; once for each rollout. */
static void do_once(struct keeper *keeper, enum rollout_order order)
{
    struct error error = {"only worker 0 can do that"};
    const struct keeper_host *host = &keeper->host;
    bool done = false;
    if (keeper->tried >= order) {
        return;
    }
    keeper->tried = order;
    if (order == ORDER_TRY && host->try_out != NULL) {
        done = host->try_out(host->context, &keeper->then, keeper->may_lose, &error);
    } else if (order == ORDER_SAVE && host->save != NULL) {
        done = host->save(host->context, &error);
    }
    audit(keeper, order == ORDER_TRY ? "try" : "save", done ? "done" : error.text);
    if (done) {
        keeper->phase = order == ORDER_TRY ? PHASE_TRIED : PHASE_SAVED;
    } else {
        fail(keeper, error.text);
    }
}

static void catch_up(struct keeper *keeper, const struct keeper_order *order)
{
    struct error error;
    char before[sizeof keeper->sentence] = "";
    const bool again = keeper->tried == ORDER_CATCH_UP;
    if (order->manifest == NULL || (again && ++keeper->refusals % TRIES != 0)) {
        return;
    }
    if (again) {
        snprintf(before, sizeof before, "%s", keeper->sentence);
    }
    forget(keeper);
    bool done = stage_catch_up(keeper, order, &error);
    keeper->tried = ORDER_CATCH_UP;
    if (!done && strncmp(error.text, before, sizeof before - 1) == 0) { /* as was said before */
        fail(keeper, error.text);
        return;
    }
    bool stays_out = done && !change_has_member(&keeper->configs[0], keeper->who);
    audit_of(keeper, "catch up", order->in_force, done ? "begun" : error.text);
    if (!done) {
        log_error("this member has version %llu of the config, the fleet is at version %llu, and it can't follow: %s",
                  (unsigned long long)keeper->version, (unsigned long long)order->in_force, error.text);
        fail(keeper, error.text);
        return;
    }
    log_info("the fleet is at version %llu of the config: this process %s", (unsigned long long)order->in_force,
             stays_out ? "is no part of it any more and ends" : "starts anew in it");
    keeper->leaving = true;
    keeper->host.leave(keeper->host.context, stays_out);
}

static void settle(struct keeper *keeper)
{
    if (keeper->prepared && keeper->host.settle != NULL) {
        keeper->host.settle(keeper->host.context);
    }
    keeper->prepared = false;
    probation_end(keeper->config->path);
}

static bool goes_back(enum rollout_order order)
{
    return order == ORDER_BACK || order == ORDER_RESTORE || order == ORDER_RETURN;
}

static void restore(struct keeper *keeper)
{
    struct error error;
    if (keeper->host.restore == NULL) {
        return;
    }
    bool done = keeper->host.restore(keeper->host.context, &error);
    keeper->phase = done ? PHASE_RESTORED : PHASE_BACK;
    snprintf(keeper->sentence, sizeof keeper->sentence, "%.255s", done ? "" : error.text);
    audit(keeper, "restore", done ? "done" : error.text);
}

static void go_back(struct keeper *keeper, const struct keeper_order *order)
{
    if (order->order == ORDER_RETURN) {
        if (keeper->version != keeper->fallback) {
            start_anew(keeper, 1);
        } else {
            keeper->phase = PHASE_BACK;
        }
    } else if (keeper->phase != PHASE_BACK && keeper->phase != PHASE_RESTORED) {
        change_over(keeper, 1, 0);
    } else if (order->order == ORDER_RESTORE && keeper->phase == PHASE_BACK) {
        restore(keeper);
    }
}

/*
 * The target was refused here, so that there is nothing to undo but the model; unless this process is in the target
 * already, and was refused as it came back (by a full disk, say): then it is to try again, for ever, but not all the time.
 */
static void act_without(struct keeper *keeper, const struct keeper_order *order)
{
    if (!goes_back(order->order)) {
        keeper->phase = PHASE_FAILED;
    } else if (keeper->version == keeper->target) {
        keeper->target = ++keeper->refusals % TRIES == 0 ? 0 : keeper->target; /* it comes with the next order */
    } else {
        keeper->phase = keeper->phase == PHASE_RESTORED ? PHASE_RESTORED : PHASE_BACK;
        if (order->order == ORDER_RESTORE && keeper->phase == PHASE_BACK) {
            restore(keeper);
        }
    }
}

void keeper_act(struct keeper *keeper, const struct keeper_order *order)
{
    drift_look(&keeper->drift);
    if (keeper->leaving) {
        return;
    }
    if (order->order == ORDER_NOTHING) {
        if (order->settled) {
            settle(keeper);
        }
        return;
    }
    if (order->order == ORDER_CATCH_UP) {
        catch_up(keeper, order);
        return;
    }
    if (order->target != keeper->target) {
        if (order->manifest != NULL) {
            take_manifest(keeper, order);
        }
        return;
    }
    bool has_both = keeper->configs[1].path != NULL;
    if (!has_both) {
        act_without(keeper, order);
        return;
    }
    switch (order->order) {
    case ORDER_SWITCH:
        if (keeper->phase == PHASE_STAGED) {
            change_over(keeper, 0, order->step);
        }
        break;
    case ORDER_TRY:
    case ORDER_SAVE:
        do_once(keeper, order->order);
        break;
    case ORDER_RESTART:
        if (keeper->version == keeper->target) {
            keeper->phase = PHASE_SWITCHED;
        } else {
            start_anew(keeper, 0);
        }
        break;
    case ORDER_BACK:
    case ORDER_RESTORE:
    case ORDER_RETURN:
        go_back(keeper, order);
        break;
    case ORDER_NOTHING:
    case ORDER_STAGE:
    case ORDER_CATCH_UP:
        break;
    }
}

void keeper_report(const struct keeper *keeper, struct rollout_report *report)
{
    const struct keeper_host *host = &keeper->host;
    *report = (struct rollout_report){.phase = keeper->phase,
                                      .version = keeper->version,
                                      .target = keeper->target,
                                      .ready = !keeper->leaving && (host->ready == NULL || host->ready(host->context)),
                                      .sentence = keeper->sentence};
}
