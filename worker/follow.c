/*
 * Rounds. Each trains on the files that have arrived since the last one, starting from the model in service, in its own
 * folder (train_dir/round). The result is promoted, that is, saved as train_dir's newest and best checkpoint, if it is
 * better than the model in service on the same held-out rows: those of test files, or the share of all files that no
 * round ever trains on (worker/data/table/split.h).
 *
 * train_dir/followed.json lists the files that have been used up and those of the current round. It is written before a
 * round trains and after it is judged, so that a process that dies in between continues with the same files: training
 * resumes from the round's own checkpoints, and judging twice changes nothing.
 */
#include "worker/follow.h"

#include <cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checked.h"
#include "base/cli/command.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/signals.h"
#include "base/text/json.h"
#include "ps/checkpoint/folder.h"
#include "worker/clients/clients.h"
#include "worker/data/dataset.h"
#include "worker/data/names.h"
#include "worker/data/table/table.h"
#include "worker/evaluation/metrics.h"
#include "worker/export/eval.h"
#include "worker/export/trained.h"
#include "worker/local_run.h"

enum { LEDGER_LIMIT = 64 << 20 };

static const double LOOK_EVERY_S = 1;
static const double SETTLED_S = 2; /* a file modified more recently may still be growing */

struct follow {
    const struct config *config;
    struct checkpoint_folder folder; /* train_dir */
    char ledger[CHECKPOINT_MAX_PATH], best[CHECKPOINT_MAX_PATH], round_dir[CHECKPOINT_MAX_PATH];
    int64_t round, steps; /* rounds begun, and steps of those before this one */
    struct names done;    /* files used up */
    struct names refused; /* files that can't be used */
    struct names now;     /* files of the current round; none: between two rounds */
};

/* --- The ledger --- */

static cJSON *array_of(const struct names *names)
{
    cJSON *array = cJSON_CreateArray();
    for (int i = 0; array && i < names->count; i++) {
        json_append(array, cJSON_CreateString(names->items[i]));
    }
    return array;
}

static bool write_ledger(const struct follow *follow, struct error *error)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "round", (double)follow->round);
    cJSON_AddNumberToObject(root, "steps", (double)follow->steps);
    json_put(root, "now", array_of(&follow->now));
    json_put(root, "done", array_of(&follow->done));
    json_put(root, "refused", array_of(&follow->refused));
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    const bool done = text ? checked_write(follow->ledger, text, strlen(text), error)
                           : error_set(error, "%s: out of memory for the names of files", follow->ledger);
    cJSON_free(text);
    return done;
}

static bool read_names(struct names *names, const cJSON *array)
{
    const cJSON *item;
    bool done = cJSON_IsArray(array);
    cJSON_ArrayForEach(item, array)
    {
        done = done && cJSON_IsString(item) && names_add(names, item->valuestring);
    }
    return done;
}

static bool is_count(const cJSON *number)
{
    return cJSON_IsNumber(number) && number->valuedouble >= 0 && number->valuedouble < 1e15;
}

static bool parse_ledger(struct follow *follow, const char *text, size_t size)
{
    cJSON *root = cJSON_ParseWithLength(text, size);
    const cJSON *round = cJSON_GetObjectItemCaseSensitive(root, "round");
    const cJSON *steps = cJSON_GetObjectItemCaseSensitive(root, "steps");
    const bool done = is_count(round) && is_count(steps) &&
                      read_names(&follow->now, cJSON_GetObjectItemCaseSensitive(root, "now")) &&
                      read_names(&follow->done, cJSON_GetObjectItemCaseSensitive(root, "done")) &&
                      read_names(&follow->refused, cJSON_GetObjectItemCaseSensitive(root, "refused"));
    if (done) {
        follow->round = (int64_t)round->valuedouble;
        follow->steps = (int64_t)steps->valuedouble;
    }
    cJSON_Delete(root);
    return done;
}

static bool read_ledger(struct follow *follow, struct error *error)
{
    uint8_t *text = NULL;
    size_t size = 0;
    if (!file_exists(follow->ledger)) {
        return true;
    }
    if (!checked_read(follow->ledger, LEDGER_LIMIT, &text, &size, error)) {
        return false;
    }
    const bool done = parse_ledger(follow, (const char *)text, size);
    free(text);
    return done || error_set(error,
                             "%s: is no list of files that were followed; restore it, or remove it to train on all "
                             "files of data_dir again",
                             follow->ledger);
}

/* --- Files --- */

static bool is_settled(const struct follow *follow, const char *name)
{
    char path[DATA_MAX_PATH];
    struct stat status;
    struct error error;
    return file_join(path, sizeof path, follow->config->data.data_dir, name, &error) && stat(path, &status) == 0 &&
           fabs(clock_wall_s() - (double)status.st_mtim.tv_sec - 1e-9 * (double)status.st_mtim.tv_nsec) >= SETTLED_S;
}

/* Drops names that are no longer there, so that the list is not longer than the folder. */
static void forget_removed(struct names *known, const struct names *there)
{
    int kept = 0;
    for (int i = 0; i < known->count; i++) {
        if (names_have(there, known->items[i])) {
            known->items[kept++] = known->items[i];
        } else {
            free(known->items[i]);
        }
    }
    known->count = kept;
}

/* The next round's files: all new ones that are no longer being written. */
static bool find_new(struct follow *follow, struct error *error)
{
    struct names there;
    bool done = table_list_train(&there, follow->config, error);
    if (done) {
        forget_removed(&follow->done, &there);
        forget_removed(&follow->refused, &there);
    }
    for (int i = 0; done && i < there.count; i++) {
        const char *name = there.items[i];
        if (!names_have(&follow->done, name) && !names_have(&follow->refused, name) && is_settled(follow, name)) {
            done = names_add(&follow->now, name) || error_set(error, "out of memory for the names of files");
        }
    }
    names_free(&there);
    return done;
}

/* Waits until there are files; false also for a signal. */
static bool wait_for_files(struct follow *follow, struct error *error)
{
    bool has_logged = false;
    while (signals_pending() == 0) {
        if (!find_new(follow, error)) {
            return false;
        }
        if (follow->now.count > 0) {
            return true;
        }
        if (!has_logged) {
            log_info("waiting for new files in %s", follow->config->data.data_dir);
            has_logged = true;
        }
        signals_pause(clock_monotonic_s() + LOOK_EVERY_S);
    }
    return false;
}

/* --- A round --- */

/* Names for a round; all are borrowed. */
struct round {
    struct string_list files;  /* that it trains on */
    struct string_list so_far; /* and all earlier ones that still exist */
    struct config config;
};

static bool list_so_far(struct string_list *list, const struct follow *follow, struct error *error)
{
    const int count = follow->done.count + follow->now.count;
    list->items = must_zero((size_t)count, sizeof *list->items, "the names of files");
    for (int i = 0; i < count; i++) {
        char *name = i < follow->done.count ? follow->done.items[i] : follow->now.items[i - follow->done.count];
        char path[DATA_MAX_PATH];
        if (file_join(path, sizeof path, follow->config->data.data_dir, name, error) && file_exists(path)) {
            list->items[list->count++] = name;
        }
    }
    return true;
}

static bool open_round(struct round *round, struct follow *follow, struct error *error)
{
    struct config *config = &round->config;
    *round =
        (struct round){.files = {.items = follow->now.items, .count = follow->now.count}, .config = *follow->config};
    config->data.round_files = &round->files;
    config->data.tested_files = &round->so_far;
    config->output.train_dir = follow->round_dir;
    config->output.save_summaries_steps = 0;
    config->data.new_data = true; /* its files may have grown since it began */
    if (file_exists(follow->best)) {
        config->train.warm_start = follow->best;
        config->data.validation_size = CONFIG_AUTO; /* a size that suits the first files may exceed that of a new one */
    }
    return list_so_far(&round->so_far, follow, error);
}

static bool is_better(const struct eval_score *candidate, const struct eval_score *served)
{
    return metric_rises(candidate->metric) ? candidate->score > served->score : candidate->score < served->score;
}

/* Steps continue from round to round, so that a later model has a higher one. */
static bool promote(struct follow *follow, const char *path, int64_t *step, struct error *error)
{
    struct trained trained = {.file = NULL};
    struct checkpoint_state state = {.memory = NULL};
    bool done = trained_open(&trained, follow->config, path, "", CHECKPOINT_RAW, error);
    if (done) {
        checkpoint_state_create(&state, &trained.model, &follow->config->train);
        done = checkpoint_load(trained.file, &state, error);
    }
    if (done) {
        struct checkpoint_info info = *checkpoint_file_info(trained.file);
        info.global_step += follow->steps;
        info.best_step += follow->steps;
        *step = info.global_step;
        done = checkpoint_folder_save(&follow->folder, CHECKPOINT_MODEL | CHECKPOINT_BEST, &state, &info, error);
    }
    checkpoint_state_destroy(&state);
    trained_close(&trained);
    return done;
}

/* served: NULL: there was none. step: of the promoted model; 0: it was not promoted. */
static void log_round(const struct follow *follow, const struct eval_score *candidate, const struct eval_score *served,
                      int64_t step)
{
    const char *metric = config_metric_name(candidate->metric);
    cJSON *fields = NULL;
    char than[64] = "the first model";
    if (log_format() == LOG_JSON) {
        fields = cJSON_CreateObject();
        cJSON_AddNumberToObject(fields, "round", (double)follow->round);
        cJSON_AddNumberToObject(fields, "files", follow->now.count);
        cJSON_AddNumberToObject(fields, "held_out_rows", (double)candidate->rows);
        cJSON_AddStringToObject(fields, "metric", metric);
        cJSON_AddNumberToObject(fields, "score", candidate->score);
        if (served) {
            cJSON_AddNumberToObject(fields, "served_score", served->score);
        }
        cJSON_AddBoolToObject(fields, "promoted", step > 0);
        if (step > 0) {
            cJSON_AddNumberToObject(fields, "global_step", (double)step);
        }
    }
    if (served) {
        snprintf(than, sizeof than, "%.4f of the model in service", served->score);
    }
    log_event("round", fields, "round %lld, %d new files: %s %.4f on %lld held-out rows, %s: %s",
              (long long)follow->round, follow->now.count, metric, candidate->score, (long long)candidate->rows, than,
              step > 0 ? "promoted" : "not promoted");
}

/* The round's result: its best model, or its last one if none is better; and its number of steps. */
static bool find_candidate(const struct follow *follow, char path[CHECKPOINT_MAX_PATH], int64_t *steps,
                           struct error *error)
{
    struct checkpoint_file *newest = NULL;
    if (!trained_find(&newest, "newest", follow->round_dir, error)) {
        return false;
    }
    *steps = checkpoint_file_info(newest)->global_step;
    snprintf(path, CHECKPOINT_MAX_PATH, "%s", checkpoint_path(newest));
    checkpoint_close(newest);
    char best[CHECKPOINT_MAX_PATH];
    if (!file_join(best, sizeof best, follow->round_dir, CHECKPOINT_BEST_NAME, error)) {
        return false;
    }
    if (file_exists(best)) {
        memcpy(path, best, sizeof best);
    }
    return true;
}

/* Compares the round's model with the one in service, and promotes it if it is better. */
static bool judge(struct follow *follow, const struct round *round, int64_t *steps, struct error *error)
{
    char path[CHECKPOINT_MAX_PATH];
    struct eval_score candidate, served;
    int64_t step = 0;
    const bool is_first = !file_exists(follow->best);
    bool done = find_candidate(follow, path, steps, error) && eval_score(&round->config, path, &candidate, error) &&
                (is_first || eval_score(&round->config, follow->best, &served, error));
    if (done && isfinite(candidate.score) && (is_first || is_better(&candidate, &served))) {
        done = promote(follow, path, &step, error);
    }
    if (done) {
        log_round(follow, &candidate, is_first ? NULL : &served, step);
    }
    return done;
}

/* No later round will use this one's files: they are used up, or refused. */
static bool end_round(struct follow *follow, struct names *known, int64_t steps, struct error *error)
{
    for (int i = 0; i < follow->now.count; i++) {
        if (!names_add(known, follow->now.items[i])) {
            return error_set(error, "out of memory for the names of files");
        }
    }
    names_free(&follow->now);
    follow->steps += steps;
    return write_ledger(follow, error) && file_remove_folder(follow->round_dir, error);
}

/* Of several files only the first is tried next, so that one that can't be used does not take others with it. */
static bool refuse(struct follow *follow, struct error *error)
{
    if (follow->now.count > 1) {
        while (follow->now.count > 1) {
            free(follow->now.items[--follow->now.count]);
        }
        return file_remove_folder(follow->round_dir, error) && write_ledger(follow, error);
    }
    log_error("%s/%s is not used; correct it, and give it another name", follow->config->data.data_dir,
              follow->now.items[0]);
    return end_round(follow, &follow->refused, 0, error);
}

/* The consequences of the end of a round's training. False: an error, so there is no next one. */
static bool settle(struct follow *follow, const struct round *round, int status, const struct local_outcome *outcome,
                   struct error *error)
{
    int64_t steps = 0;
    if (status == COMMAND_DONE) {
        return judge(follow, round, &steps, error) && end_round(follow, &follow->done, steps, error);
    }
    if (outcome->has_diverged) {
        log_warning("round %lld diverged: its files are not used, the model in service stays",
                    (long long)follow->round);
        return end_round(follow, &follow->refused, 0, error);
    }
    return outcome->has_read
               ? error_set(error, "round %lld failed; run the same command again to continue", (long long)follow->round)
               : refuse(follow, error);
}

/* False: it was the last, because of a signal or an error. */
static bool run_round(struct follow *follow, struct error *error)
{
    const struct clients_options clients = {.count = 1};
    struct local_outcome outcome;
    struct round round;
    bool goes_on = false;
    if (open_round(&round, follow, error)) {
        const int status = local_run(&round.config, &clients, &outcome);
        goes_on = signals_pending() == 0 && settle(follow, &round, status, &outcome, error);
    }
    free(round.so_far.items);
    return goes_on;
}

/* --- All of it --- */

static bool check(const struct config *config, struct error *error)
{
    if (config->cluster.job_name != JOB_LOCAL) {
        return error_set(error, "--follow: one process follows a folder, not a cluster; omit --job_name");
    }
    if (config_has_rounds(&config->train)) {
        return error_set(error, "--follow trains in one process: omit --local_steps and --local_epochs");
    }
    if (config->output.train_dir[0] == '\0') {
        return error_set(error, "--follow needs --train_dir, where the model in service is kept");
    }
    if (config->train.epochs == 0) {
        return error_set(error, "--follow needs --epochs, how often a round goes through the rows of its files");
    }
    if (config->data.data_source != DATA_TABLE && config->data.target.count == 0) {
        return error_set(error, "--follow is for tables: name the column to learn with --target");
    }
    return true;
}

static bool open_follow(struct follow *follow, struct error *error)
{
    const struct config_output *output = &follow->config->output;
    return check(follow->config, error) && dataset_check_folder(follow->config, error) &&
           checkpoint_folder_open(&follow->folder, output->train_dir, output, error) &&
           file_join(follow->ledger, sizeof follow->ledger, output->train_dir, "followed.json", error) &&
           file_join(follow->best, sizeof follow->best, output->train_dir, CHECKPOINT_BEST_NAME, error) &&
           file_join(follow->round_dir, sizeof follow->round_dir, output->train_dir, "round", error) &&
           read_ledger(follow, error) && (follow->now.count > 0 || file_remove_folder(follow->round_dir, error));
}

/* The next round: an unfinished one, or new files. */
static bool next_round(struct follow *follow, struct error *error)
{
    if (follow->now.count == 0) {
        if (!wait_for_files(follow, error)) {
            return false;
        }
        follow->round++;
        if (!write_ledger(follow, error)) {
            return false;
        }
    }
    return run_round(follow, error);
}

int follow_run(const struct config *config)
{
    struct follow follow = {.config = config, .folder = {.lock = -1}};
    struct error error = {.text = ""};
    int status = COMMAND_FAILED;
    signals_catch();
    bool goes_on = open_follow(&follow, &error);
    while (goes_on) {
        goes_on = next_round(&follow, &error);
    }
    if (signals_pending() != 0) {
        status = signals_exit_status(signals_pending());
    } else {
        log_error("%s", error.text);
    }
    names_free(&follow.done);
    names_free(&follow.refused);
    names_free(&follow.now);
    if (follow.folder.lock >= 0) {
        checkpoint_folder_close(&follow.folder);
    }
    return status;
}
