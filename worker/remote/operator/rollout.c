/*
 * trainer rollout: a new config for a fleet that trains. It checks, shows what would change, signs and proposes; ps 0
 * leads from there, so this process may end at any moment.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config/versions.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process/signals.h"
#include "worker/remote/operator/candidate.h"
#include "worker/remote/operator/commands.h"
#include "worker/remote/operator/rollout_client.h"

enum { MAX_AUDIT = 64 << 20 };

static const double LOOK_S = 0.2, LOST_S = 60.0, HEALTHY_S = 10.0;
static const double ARRIVE_S = 10.0; /* after ps 0 answers again, what it was sent before may take so long to count */

/* --- Proposing and following ------------------------------------------------------------------------------------------- */

/* Until it is decided. ps 0 may be gone for a while: it is what goes back. arrive_s: so long it may not know of it yet. */
static int follow(struct rollout_client *link, uint64_t target, double arrive_s)
{
    char told[1024] = "";
    double heard_s = clock_monotonic_s(), first_s = -1;
    struct error error;
    signals_catch();
    while (signals_pending() == 0) {
        double now_s = clock_monotonic_s();
        const struct message_rollout *news = rollout_client_ask(link, &error);
        if (news != NULL) {
            heard_s = now_s;
            first_s = first_s < 0 ? now_s : first_s;
            if (strcmp(told, news->message) != 0) {
                snprintf(told, sizeof told, "%s", news->message);
                log_info("%s", told);
            }
            if (news->target == target && news->state == ROLLOUT_IDLE) {
                return news->outcome == OUTCOME_DONE ? COMMAND_DONE : COMMAND_FAILED;
            }
            if (news->target != target && news->state == ROLLOUT_IDLE && now_s - first_s >= arrive_s) {
                log_error("ps 0 knows nothing of version %" PRIu64 ": it never got it, or was started again before it "
                          "had told anybody of it, so roll it out again",
                          target);
                return COMMAND_FAILED;
            }
        } else if (now_s - heard_s >= LOST_S) {
            log_error("ps 0 was not heard of for %.0f s: %s; see `trainer rollout status`", LOST_S, error.text);
            return COMMAND_FAILED;
        }
        shard_link_pause(now_s + LOOK_S);
    }
    log_info("the fleet goes on without this process; see `trainer rollout status`");
    return signals_exit_status(signals_pending());
}

static bool confirm(const struct command_call *call, struct error *error)
{
    char answer[16] = "";
    if (command_switch(call, "yes")) {
        return true;
    }
    if (!isatty(STDIN_FILENO)) {
        return error_set(error, "nobody is there to say yes: add --yes, or --dry-run to see only what would change");
    }
    printf("Roll this out? [y/N] ");
    fflush(stdout);
    return (fgets(answer, sizeof answer, stdin) != NULL && (answer[0] == 'y' || answer[0] == 'Y')) ||
           error_set(error, "not rolled out");
}

static void key_path(const struct command_call *call, char path[PATH_MAX])
{
    const char *given = command_value(call, "key"), *config = call->config->path;
    const char *slash = config != NULL ? strrchr(config, '/') : NULL;
    snprintf(path, PATH_MAX, "%.*s%s", given == NULL && slash != NULL ? (int)(slash - config) + 1 : 0,
             config != NULL ? config : "", given != NULL ? given : "operator.key");
}

/* ps 0's texts are gone with its next answer. */
struct fleet_texts {
    char *job, *local, *earlier, *earlier_local;
    uint64_t highest;
};

static bool ask_texts(struct rollout_client *link, struct fleet_texts *texts, struct error *error)
{
    const struct message_rollout *news = rollout_client_ask(link, error);
    *texts = (struct fleet_texts){.job = NULL};
    if (news == NULL) {
        return false;
    }
    texts->job = strdup(news->job);
    texts->local = strdup(news->local);
    texts->earlier = strdup(news->earlier);
    texts->earlier_local = strdup(news->earlier_local);
    texts->highest = news->highest;
    return (texts->job != NULL && texts->local != NULL && texts->earlier != NULL && texts->earlier_local != NULL) ||
           error_set(error, "out of memory");
}

static void free_texts(struct fleet_texts *texts)
{
    free(texts->job);
    free(texts->local);
    free(texts->earlier);
    free(texts->earlier_local);
}

static const char *describe_kind(enum rollout_kind kind)
{
    static const char *const texts[] = {"while the job runs", "by machines that start anew one after the other",
                                        "by a checkpoint and a restart of the whole job"};
    return texts[kind];
}

/* ps 0 may have taken what it was too slow to answer: then it is followed like any other. */
static int propose_and_follow(struct rollout_client *link, const struct candidate *both, const uint8_t *bytes,
                              size_t size, double healthy_s, struct error *error)
{
    const uint64_t target = (uint64_t)both->new->fleet.version;
    double arrive_s = 0;
    switch (rollout_client_propose(link, bytes, size, healthy_s, error)) {
    case PROPOSAL_REFUSED:
        return COMMAND_FAILED;
    case PROPOSAL_UNANSWERED:
        log_warning("%s; asking ps 0 whether it has version %" PRIu64, error->text, target);
        arrive_s = ARRIVE_S;
        break;
    case PROPOSAL_TAKEN:
        break;
    }
    error->text[0] = '\0';
    return follow(link, target, arrive_s);
}

/* From what is known of both to the end of the rollout. */
static int decide_and_follow(const struct command_call *call, struct rollout_client *link, const struct candidate *both,
                             double healthy_s, struct error *error)
{
    char secret[PATH_MAX];
    uint8_t *bytes = NULL;
    size_t size;
    int status = COMMAND_FAILED;
    enum rollout_kind kind;
    if (!candidate_check(both->running, both->new, strcmp(both->local, both->new_local) != 0, &kind, error)) {
        return COMMAND_FAILED;
    }
    log_info("version %lld would follow version %lld, %s", (long long)both->new->fleet.version,
             (long long)both->running->fleet.version, describe_kind(kind));
    if (command_switch(call, "dry-run")) {
        log_info("nothing was changed");
        return COMMAND_DONE;
    }
    key_path(call, secret);
    if (confirm(call, error) && candidate_sign(secret, both, &bytes, &size, error)) {
        status = propose_and_follow(link, both, bytes, size, healthy_s, error);
    }
    free(bytes);
    return status;
}

static bool parse_text(struct config *config, const char *name, const char *text, struct error *error)
{
    return config_parse(config, name, (const uint8_t *)text, strlen(text), NULL, 0, error);
}

static int end(int status, const struct error *error)
{
    if (error->text[0] != '\0') {
        log_error("%s", error->text);
    }
    return status;
}

static int roll_out(const struct command_call *call, struct rollout_client *link, const struct config *new,
                    double healthy_s)
{
    struct config running = {.path = NULL}, before = {.path = NULL};
    struct error error = {""};
    struct fleet_texts texts;
    struct candidate_keys keys = {call->config, new, &before};
    char *local = NULL;
    int status = COMMAND_FAILED;
    if (ask_texts(link, &texts, &error) && parse_text(&running, "the fleet's config", texts.job, &error) &&
        parse_text(&before, "the fleet's local keys", texts.local[0] != '\0' ? texts.local : "{}", &error) &&
        candidate_local(&keys, &local, &error)) {
        const struct candidate both = {.running = &running,
                                       .new = new,
                                       .job = texts.job,
                                       .local = texts.local,
                                       .new_local = local,
                                       .may_lose = command_switch(call, "may_lose")};
        candidate_show_local(&keys, strcmp(local, texts.local) != 0);
        status = decide_and_follow(call, link, &both, healthy_s, &error);
    }
    free(local);
    free_texts(&texts);
    config_free(&before);
    config_free(&running);
    return end(status, &error);
}

/* What was in force before, as a new version. */
static int revert(const struct command_call *call, struct rollout_client *link, double healthy_s)
{
    struct config running = {.path = NULL}, earlier = {.path = NULL};
    struct error error = {""};
    struct fleet_texts texts;
    int status = COMMAND_FAILED;
    if (!ask_texts(link, &texts, &error) || !parse_text(&running, "the fleet's config", texts.job, &error)) {
        /* said below */
    } else if (texts.earlier[0] == '\0') {
        error_set(&error, "there is nothing to revert to: version %lld did not come by a rollout that ended well",
                  (long long)running.fleet.version);
    } else if (parse_text(&earlier, "the config before", texts.earlier, &error)) {
        log_info("version %lld would be what version %lld was", (long long)texts.highest + 1,
                 (long long)earlier.fleet.version);
        earlier.fleet.version = (int64_t)texts.highest + 1;
        const struct candidate both = {.running = &running,
                                       .new = &earlier,
                                       .job = texts.job,
                                       .local = texts.local,
                                       .new_local = texts.earlier_local,
                                       .may_lose = command_switch(call, "may_lose")};
        status = decide_and_follow(call, link, &both, healthy_s, &error);
    }
    free_texts(&texts);
    config_free(&earlier);
    config_free(&running);
    return end(status, &error);
}

/* --- The others -------------------------------------------------------------------------------------------------------- */

static int show_status(struct rollout_client *link)
{
    struct error error;
    const struct message_rollout *news = rollout_client_ask(link, &error);
    if (news == NULL) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    log_info("%s", news->message);
    for (const char *line = news->members; *line != '\0';) {
        int length = (int)strcspn(line, "\n");
        log_info("%.*s", length, line);
        line += length + (line[length] == '\n');
    }
    return COMMAND_DONE;
}

static int abort_it(struct rollout_client *link)
{
    char author[MANIFEST_MAX_NAME + 1];
    struct error error;
    candidate_author(author);
    if (!rollout_client_abort(link, author, &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    log_info("the rollout is given up; see `trainer rollout status`");
    return COMMAND_DONE;
}

/* This machine's audit log. */
static int show_history(const struct config *config)
{
    char path[VERSIONS_PATH];
    uint8_t *bytes;
    size_t size;
    struct error error;
    if (config->path == NULL) {
        log_error("there is no config file here, and histories are kept beside it");
        return COMMAND_FAILED;
    }
    snprintf(path, sizeof path, "%.4000s.d/audit.log", config->path);
    if (!file_exists(path)) {
        log_info("%s: nothing was rolled out to this machine", path);
        return COMMAND_DONE;
    }
    if (!file_read(path, MAX_AUDIT, &bytes, &size, &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    fwrite(bytes, 1, size, stdout);
    free(bytes);
    return COMMAND_DONE;
}

static int misuse(const char *what)
{
    log_error("rollout: %s; try: trainer help rollout", what);
    return COMMAND_MISUSED;
}

static bool read_seconds(const char *text, double *seconds)
{
    char *end;
    *seconds = HEALTHY_S;
    if (text != NULL) {
        *seconds = strtod(text, &end);
        return end != text && *end == '\0' && *seconds >= 0 && *seconds <= 86400;
    }
    return true;
}

static int run_rollout(const struct command_call *call)
{
    const char *what = call->operand_count > 0 ? call->operands[0] : NULL;
    struct config new = {.path = NULL};
    struct rollout_client link;
    struct error error;
    double healthy_s;
    if (what == NULL) {
        return misuse("which config? Name its file, or status, history, abort or revert");
    }
    if (!read_seconds(command_value(call, "healthy_secs"), &healthy_s)) {
        return misuse("--healthy_secs must be a number from 0 to 86400");
    }
    if (strcmp(what, "history") == 0) {
        return show_history(call->config);
    }
    if (call->config->cluster.ps_hosts.count == 0) {
        return misuse("which cluster? Its ps_hosts and worker_hosts stand in config.json, or in flags");
    }
    bool is_file = strcmp(what, "status") != 0 && strcmp(what, "abort") != 0 && strcmp(what, "revert") != 0;
    if (is_file && !candidate_load(&new, call->config, what, &error)) {
        log_error("%s", error.text);
        return COMMAND_MISUSED;
    }
    int status = COMMAND_FAILED;
    if (!rollout_client_open(&link, call->config, &error) || !rollout_client_reach(&link, &error)) {
        log_error("%s", error.text);
    } else {
        status = is_file                       ? roll_out(call, &link, &new, healthy_s)
                 : strcmp(what, "abort") == 0  ? abort_it(&link)
                 : strcmp(what, "revert") == 0 ? revert(call, &link, healthy_s)
                                               : show_status(&link);
    }
    rollout_client_close(&link);
    config_free(&new);
    return status;
}

static const struct command_flag flags[] = {
    {"dry-run", NULL, "check it and show what would change, and change nothing"},
    {"yes", NULL, "don't ask"},
    {"key", "FILE", "the operator's secret key (operator.key beside config.json)"},
    {"may_lose", NULL, "a checkpoint that does not fit the new layers is taken over as far as it does"},
    {"healthy_secs", "SECONDS", "all must be well for so long, or the fleet goes back (10)"},
    {NULL, NULL, NULL},
};

const struct command command_rollout = {
    .name = "rollout",
    .operands = "NEW.json|status|history|abort|revert",
    .max_operands = 1,
    .summary = "give a cluster that trains a new config, or go back if it does no good",
    .details = "NEW.json is a whole config.json with a higher fleet.version. What differs is shown, signed with "
               "the operator's key (`trainer keygen --operator=operator.key`; every machine has its "
               "operator.key.pub as operator.pub beside its config.json) and given to ps 0, which leads: all "
               "members verify and keep it, worker 0 writes a checkpoint, and all change over. Learning rates "
               "and what else belongs to one step (`trainer config schema` calls such keys live) change at one "
               "global step, while training goes on. Keys of single machines (num_threads, device, cpu_kernels, "
               "data_dir, log_format, progress, recovery_wait_secs) are taken up by workers that start anew one "
               "after the other, the last one first, and by a ps at its next start. Any other key of the job is "
               "tried by worker 0 on a copy of the checkpoint; then all members start anew and worker 0 "
               "restores: what fits of the checkpoint is kept. Hosts are added or taken away at the end of their "
               "lists. If then a loss is not finite or far worse, a member is lost, or steps stop, all go back "
               "to the old values and that checkpoint, by themselves. A worker that is off when it begins, other "
               "than worker 0, is waited for by nobody and catches up when it is back, unless the job, started "
               "anew, would wait for it (cluster.min_workers). Workers of an elastic cluster that are not listed "
               "take part while they are there. status: how far it is, member by member. abort: go back. "
               "revert: what was in force before, as a new version. history: this machine's audit log.",
    .flags = flags,
    .takes_config = true,
    .run = run_rollout,
};
