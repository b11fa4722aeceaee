/* Requests on their own connection, before anything is created whose size depends on the answers. */
#include "worker/remote/own_rows.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/process/signals.h"
#include "worker/data/table/survey_schema.h"
#include "worker/data/table/table.h"
#include "worker/remote/chief.h"
#include "worker/remote/exchange/requests.h"

enum { FIGURES_MOST = 64 << 20 /* bytes; as in ps/server/data.c */ };

static const double ASK_EVERY_S = 0.2, SEND_EVERY_S = 5; /* a restarted ps has no statistics */

struct agreement {
    const struct config *config;
    struct push_pull exchange;
    struct survey survey; /* of this worker's rows */
};

/* False: the process is stopped, or retrying is pointless. */
static bool is_done(enum exchange_result end, struct error *error)
{
    return end == EXCHANGE_STOPPED ? error_set(error, "asked to leave before the rows' preprocessing was known")
                                   : end == EXCHANGE_OK;
}

static bool pause_asking(double *logged_s, const char *what, struct error *error)
{
    const double now_s = clock_monotonic_s();
    if (now_s - *logged_s >= LINK_LOGGED_EVERY_S) {
        *logged_s = now_s;
        log_info("waiting for %s", what);
    }
    clock_pause(now_s + ASK_EVERY_S);
    return signals_pending() == 0 || is_done(EXCHANGE_STOPPED, error);
}

/* --- Workers --- */

/* The statistics of the rows here, as text, which the caller frees; NULL after an error. */
static char *stats_here(struct survey *survey, const struct config *config, struct error *error)
{
    char *text = NULL;
    if (table_survey_train(survey, config, error) && !(text = figures_text(survey))) {
        error_set(error, "out of memory for what is in the columns");
    }
    return text;
}

static bool send_stats(struct agreement *agreement, char **figures, struct error *error)
{
    if (!*figures && !(*figures = stats_here(&agreement->survey, agreement->config, error))) {
        return false;
    }
    return is_done(preprocessing_send_stats(&agreement->exchange, *figures, error), error);
}

/* The chief's answer, once there is one; *text: NULL until then. */
static bool await_chief(struct agreement *agreement, char **text, struct error *error)
{
    char *figures = NULL;
    double logged_s = clock_monotonic_s(), sent_s = -SEND_EVERY_S;
    bool done = true;
    while (done && !*text) {
        done = is_done(preprocessing_fetch(&agreement->exchange, text, error), error);
        if (done && !*text && clock_monotonic_s() - sent_s >= SEND_EVERY_S) {
            done = send_stats(agreement, &figures, error);
            sent_s = clock_monotonic_s();
        }
        done = done && (*text || pause_asking(&logged_s, "worker 0 to send the preprocessing", error));
    }
    free(figures);
    return done;
}

enum exchange_result own_rows_resend(struct push_pull *exchange, const struct config *config, struct error *error)
{
    const double until_s = clock_monotonic_s() + config->cluster.lease_secs / 3;
    struct survey survey = {0};
    char *text = NULL;
    exchange->parts[0].incarnation = 0; /* it may be another process now */
    enum exchange_result end = preprocessing_fetch(exchange, &text, error);
    while (end == EXCHANGE_OK && !text && clock_monotonic_s() < until_s) {
        clock_pause(clock_monotonic_s() + ASK_EVERY_S);
        end = signals_pending() != 0 ? EXCHANGE_STOPPED : preprocessing_fetch(exchange, &text, error);
    }
    if (end == EXCHANGE_OK && !text) {
        log_info(
            "worker 0 may have to recompute the preprocessing: sending the statistics of the rows here to ps 0 again");
        text = stats_here(&survey, config, error);
        end = text ? preprocessing_send_stats(exchange, text, error) : EXCHANGE_FAILED;
    }
    survey_free(&survey);
    free(text);
    return end;
}

/* --- The chief --- */

/* Fetches what is still missing, as long as it is no more than a ps keeps; *missing: how many remain. */
static bool ask_all(struct agreement *agreement, char **figures, int *missing, struct error *error)
{
    size_t bytes = 0;
    *missing = 0;
    for (int i = 1; i < agreement->config->cluster.worker_hosts.count; i++) {
        if (!figures[i] && bytes < FIGURES_MOST &&
            !is_done(preprocessing_fetch_stats(&agreement->exchange, i, &figures[i], error), error)) {
            return false;
        }
        *missing += !figures[i];
        bytes += figures[i] ? strlen(figures[i]) : 0;
    }
    return true;
}

static bool gather(struct agreement *agreement, char **figures, struct error *error)
{
    const double until_s = clock_monotonic_s() + agreement->config->cluster.lease_secs;
    double logged_s = clock_monotonic_s();
    int missing;
    for (;;) {
        if (!ask_all(agreement, figures, &missing, error)) {
            return false;
        }
        if (missing == 0 || clock_monotonic_s() >= until_s) {
            break;
        }
        if (!pause_asking(&logged_s, "other workers to send the statistics of their rows", error)) {
            return false;
        }
    }
    if (missing > 0) {
        log_warning("%d worker%s absent: the preprocessing is computed from the others' rows", missing,
                    missing == 1 ? " is" : "s are");
    }
    return true;
}

/*
 * What another worker sends must not end this process, nor keep it from starting again: it is left out, and ps 0
 * forgets it. If that worker's rows really are different, it fails itself, where its files are.
 */
static bool leave_out(struct agreement *agreement, int worker, struct error *why, struct error *error)
{
    error_wrap(why, "the rows of worker %d do not fit those of the workers before it", worker);
    log_warning("%s: the preprocessing is computed without them; check that worker's files", why->text);
    return is_done(preprocessing_forget_stats(&agreement->exchange, worker, error), error);
}

static bool merge(struct agreement *agreement, char *const *figures, struct error *error)
{
    for (int i = 1; i < agreement->config->cluster.worker_hosts.count; i++) {
        struct error why;
        const enum figures_result result =
            figures[i] ? figures_merge(&agreement->survey, figures[i], &why) : FIGURES_MERGED;
        if (result == FIGURES_NO_MEMORY) {
            *error = why;
            return false;
        }
        if (result == FIGURES_REFUSED && !leave_out(agreement, i, &why, error)) {
            return false;
        }
    }
    return true;
}

/* Merges the statistics of all workers' rows. */
static bool make_schema(struct agreement *agreement, struct schema *schema, struct error *error)
{
    const struct config *config = agreement->config;
    const int workers = config->cluster.worker_hosts.count;
    char **figures = calloc((size_t)workers, sizeof *figures);
    bool done = figures || error_set(error, "out of memory for %d workers' figures", workers);
    done = done && table_survey_train(&agreement->survey, config, error) && gather(agreement, figures, error) &&
           merge(agreement, figures, error) &&
           survey_schema(&agreement->survey, config, "the workers' rows", schema, error);
    for (int i = 0; figures && i < workers; i++) {
        free(figures[i]);
    }
    free(figures);
    return done;
}

/* Earlier chiefs may have died before the first checkpoint: ps 0 knows what they sent. */
static bool fetch_text(struct agreement *agreement, char **text, struct error *error)
{
    return chief_preprocessing(text, agreement->config, error) &&
           (*text || is_done(preprocessing_fetch(&agreement->exchange, text, error), error));
}

/* --- Both --- */

static bool find(struct agreement *agreement, struct schema *schema, struct error *error)
{
    const bool is_chief = agreement->config->cluster.task_index == 0;
    char *text = NULL;
    if (!(is_chief ? fetch_text(agreement, &text, error) : await_chief(agreement, &text, error))) {
        return false;
    }
    const bool done = text ? schema_parse(schema, text, error) : make_schema(agreement, schema, error);
    free(text);
    return done;
}

bool own_rows_agree(struct schema **out, const struct config *config, const struct identity *identity,
                    struct traffic *traffic, struct error *error)
{
    struct agreement agreement = {.config = config};
    struct model model;
    struct schema *schema = calloc(1, sizeof *schema);
    model_layout(&model, &config->model);
    const struct push_pull_options options = {
        .config = config, .model = &model, .identity = identity, .traffic = traffic};
    bool done = schema || error_set(error, "out of memory for the columns");
    done = done && push_pull_create(&agreement.exchange, &options, error) && find(&agreement, schema, error);
    push_pull_destroy(&agreement.exchange);
    survey_free(&agreement.survey);
    if (!done) {
        free(schema);
        return false;
    }
    *out = schema;
    return true;
}
