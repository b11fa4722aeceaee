/* Requests besides push and pull, each repeated by shard_call until it is answered. */
#include "worker/remote/exchange/requests.h"

#include <sodium.h>

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/profile.h"
#include "worker/data/table/schema.h"
#include "worker/remote/exchange/push_pull.h"

enum { DIGEST_BYTES = (PREPROCESSING_DIGEST - 1) / 2 };

static double soon(void)
{
    return clock_monotonic_s() + LINK_ANSWER_S;
}

/* The chief's text, which the caller frees; NULL after an error. */
static char *read_text(struct channel *channel, struct error *error)
{
    const size_t size = channel->bulk_left;
    char *text = calloc(1, size + 1);
    if (!text) {
        error_set(error, "out of memory for the preprocessing of worker 0");
        return NULL;
    }
    if (!channel_read_bulk(channel, text, size, soon(), error)) {
        free(text);
        return NULL;
    }
    return text;
}

/* The text to agree on; NULL: none. */
static char *text_of(const struct dataset *dataset)
{
    return dataset->schema ? dataset->schema->text : dataset->class_names;
}

/* Describes the difference in the error; rows: and what it means for a table's rows. */
static enum exchange_result describe_difference(const char *text, const struct dataset *here, const char *rows,
                                                struct error *error)
{
    struct schema there;
    if (!here->schema) {
        error_set(error,
                  "the model's classes are %.200s, but the folders here are %.200s, so labels would mean something "
                  "else; give every worker folders of the same names, empty ones included",
                  text, here->class_names);
        return EXCHANGE_FAILED;
    }
    if (schema_parse(&there, text, error)) {
        if (schema_same(&there, here->schema, error)) {
            error_set(error, "their texts differ");
        }
        schema_free(&there);
    }
    error_wrap(error, "%s", rows);
    return EXCHANGE_FAILED;
}

/* Sends a message, with a text unless that is NULL, and reads the answer's message. */
static bool call(struct shard_part *part, enum message_type type, const void *message, char *text,
                 enum message_type wanted, uint16_t *code, struct error *error)
{
    struct iovec bulk = {text, text ? strlen(text) : 0};
    struct outgoing frame = {.type = type, .message = message, .bulk = &bulk, .bulk_parts = text ? 1 : 0};
    return link_call(&part->link, &frame, wanted, code, error);
}

/* A request to ps 0, whatever it refuses fails for good. */
static enum exchange_result call_first(struct push_pull *exchange, shard_request *request, void *context,
                                       struct error *error)
{
    uint16_t code;
    return shard_call(exchange, &exchange->parts[0], request, context, &code, error);
}

void preprocessing_digest(const char *text, char digest[PREPROCESSING_DIGEST])
{
    unsigned char hash[DIGEST_BYTES];
    crypto_generichash(hash, sizeof hash, (const unsigned char *)text, strlen(text), NULL, 0);
    sodium_bin2hex(digest, PREPROCESSING_DIGEST, hash, sizeof hash);
}

struct dataset_comparison {
    const struct dataset *dataset;
    bool is_chief, follows; /* follows: its rows are encoded by the chief's preprocessing */
    bool differs;
    struct error difference;
};

static bool compare(struct shard_part *part, void *context, uint16_t *code, struct error *error)
{
    struct dataset_comparison *comparison = context;
    struct channel *channel = &part->link.channel;
    char *here = text_of(comparison->dataset);
    char digest[PREPROCESSING_DIGEST];
    const struct message_describe describe = {.digest = digest};
    preprocessing_digest(here, digest);
    if (!call(part, MESSAGE_describe, &describe, comparison->is_chief ? here : NULL, MESSAGE_description, code,
              error)) {
        return false;
    }
    const char *known = channel->message.description.digest;
    if (known[0] == '\0' || strcmp(known, digest) == 0) {
        return true;
    }
    char *text = read_text(channel, error);
    if (!text) {
        return false;
    }
    comparison->differs = true;
    describe_difference(text, comparison->dataset,
                        comparison->follows
                            ? "the preprocessing of worker 0 (there) differs from that of the rows here"
                            : "the preprocessing of worker 0 (there) and of this worker (here) differs, as "
                              "their files do; give all workers the same files",
                        &comparison->difference);
    free(text);
    return true;
}

static enum exchange_result agree(struct push_pull *exchange, const struct dataset *dataset, bool is_chief,
                                  bool *differs, struct error *error)
{
    const char *text = text_of(dataset);
    *differs = false;
    if (!text) {
        return EXCHANGE_OK;
    }
    if (strlen(text) > message_max_bulk(MESSAGE_describe)) {
        error_set(error, "the %s %zu bytes, and a message holds %u: %s",
                  dataset->schema ? "preprocessing takes" : "names of the classes take", strlen(text),
                  message_max_bulk(MESSAGE_describe),
                  dataset->schema ? "raise data.category_min" : "shorten the folders' names");
        return EXCHANGE_FAILED;
    }
    struct dataset_comparison comparison = {.dataset = dataset,
                                            .is_chief = is_chief,
                                            .follows =
                                                !is_chief && exchange->config->data.data_sharding == SHARDING_OWN};
    const enum exchange_result end = call_first(exchange, compare, &comparison, error);
    if (end == EXCHANGE_OK && comparison.differs) {
        *error = comparison.difference;
        *differs = dataset->schema;
        return EXCHANGE_FAILED;
    }
    return end;
}

enum exchange_result preprocessing_publish(struct push_pull *exchange, const struct dataset *dataset,
                                           struct error *error)
{
    bool differs;
    return agree(exchange, dataset, true, &differs, error);
}

enum exchange_result preprocessing_agree(struct push_pull *exchange, const struct dataset *dataset, bool *differs,
                                         struct error *error)
{
    return agree(exchange, dataset, false, differs, error);
}

/* context: char **text, which stays NULL if the chief has sent nothing yet. */
static bool ask(struct shard_part *part, void *context, uint16_t *code, struct error *error)
{
    char **text = context;
    struct channel *channel = &part->link.channel;
    const struct message_describe nothing = {.digest = ""};
    if (!call(part, MESSAGE_describe, &nothing, NULL, MESSAGE_description, code, error)) {
        return false;
    }
    const bool has_text = channel->message.description.digest[0] != '\0';
    *text = has_text ? read_text(channel, error) : NULL;
    return *text || !has_text;
}

enum exchange_result preprocessing_fetch(struct push_pull *exchange, char **text, struct error *error)
{
    *text = NULL;
    return call_first(exchange, ask, text, error);
}

enum exchange_result preprocessing_check(struct push_pull *exchange, const struct dataset *dataset, struct error *error)
{
    const char *here = text_of(dataset);
    char *text = NULL;
    enum exchange_result end = here ? preprocessing_fetch(exchange, &text, error) : EXCHANGE_OK;
    if (end == EXCHANGE_OK && text && strcmp(text, here) != 0) {
        end = describe_difference(
            text, dataset,
            "the preprocessing of the running model (there) and of this worker's rows (here) differs; "
            "give worker 0 the files that the model began with, or end the job first",
            error);
    }
    free(text);
    return end;
}

/* --- Figures --- */

struct stats_request {
    int worker;
    char *own;   /* to send; NULL: none */
    char **text; /* the answer's; NULL: none */
};

static bool exchange_stats(struct shard_part *part, void *context, uint16_t *code, struct error *error)
{
    const struct stats_request *request = context;
    struct channel *channel = &part->link.channel;
    const struct message_figures message = {.worker = request->worker};
    if (!call(part, MESSAGE_figures, &message, request->own, MESSAGE_figures, code, error)) {
        return false;
    }
    const bool has_text = channel->bulk_left > 0;
    *request->text = has_text ? read_text(channel, error) : NULL;
    return *request->text || !has_text;
}

static enum exchange_result figures(struct push_pull *exchange, int worker, char *own, char **text, struct error *error)
{
    *text = NULL;
    if (own && strlen(own) > message_max_bulk(MESSAGE_figures)) {
        error_set(error,
                  "the statistics of the columns take %zu bytes, but a message holds %u: exclude those with the most "
                  "categories (--ignore)",
                  strlen(own), message_max_bulk(MESSAGE_figures));
        return EXCHANGE_FAILED;
    }
    struct stats_request request = {worker, own, text};
    return call_first(exchange, exchange_stats, &request, error);
}

enum exchange_result preprocessing_send_stats(struct push_pull *exchange, char *text, struct error *error)
{
    char *nothing;
    const enum exchange_result end = figures(exchange, exchange->config->cluster.task_index, text, &nothing, error);
    free(nothing);
    return end;
}

enum exchange_result preprocessing_forget_stats(struct push_pull *exchange, int worker, struct error *error)
{
    char *nothing;
    const enum exchange_result end = figures(exchange, -1 - worker, NULL, &nothing, error);
    free(nothing);
    return end;
}

enum exchange_result preprocessing_fetch_stats(struct push_pull *exchange, int worker, char **text, struct error *error)
{
    return figures(exchange, worker, NULL, text, error);
}

/* --- Validations on workers' own rows --- */

enum { ASK_MS = 500 /* how often to check for a signal */ };

/* To the ps that decides on steps. */
static enum exchange_result call_decider(struct push_pull *exchange, shard_request *request, void *context,
                                         struct error *error)
{
    uint16_t code;
    const enum exchange_result end = shard_call(exchange, push_pull_decider(exchange), request, context, &code, error);
    return code != 0 ? push_pull_by_code(code) : end;
}

struct report_request {
    struct message_validated message;
    struct iovec bulk;
};

static bool report_own(struct shard_part *part, void *context, uint16_t *code, struct error *error)
{
    const struct report_request *report = context;
    struct outgoing frame = {.type = MESSAGE_validated,
                             .message = &report->message,
                             .bulk = &report->bulk,
                             .bulk_parts = report->bulk.iov_len > 0 ? 1 : 0};
    return link_call(&part->link, &frame, MESSAGE_done, code, error);
}

enum exchange_result validations_report(struct push_pull *exchange, const struct own_validation *own, uint8_t *bytes,
                                        size_t size, struct error *error)
{
    struct report_request report = {.message = {.step = own->step,
                                                .examples = (uint64_t)own->examples,
                                                .score = (float)own->score,
                                                .rises = own->rises},
                                    .bulk = {bytes, size}};
    return call_decider(exchange, report_own, &report, error);
}

struct ask_request {
    struct message_validate message;
    const struct validations_receiver *receiver;
    int *missing;
};

static bool ask_others(struct shard_part *part, void *context, uint16_t *code, struct error *error)
{
    const struct ask_request *asked = context;
    const struct validations_receiver *receiver = asked->receiver;
    struct channel *channel = &part->link.channel;
    const uint64_t request = ++channel->next_request;
    const double until_s = clock_monotonic_s() + LINK_ANSWER_S;
    if (!channel_send(channel, MESSAGE_validate, request, &asked->message, until_s, error)) {
        return false;
    }
    receiver->begin(receiver->context);
    for (;;) {
        if (!link_receive_answer(&part->link, MESSAGE_validate, request, MESSAGE_validation, code, error)) {
            return false;
        }
        const struct message_validation one = channel->message.validation;
        if (channel->frame.flags & FRAME_LAST) {
            *asked->missing = one.missing > INT32_MAX ? INT32_MAX : (int)one.missing;
            return true;
        }
        const size_t size = channel->bulk_left;
        uint8_t *bytes = malloc(size + 1); /* if NULL the next frame is read past these: a retry would not help */
        if (bytes && !channel_read_bulk(channel, bytes, size, clock_monotonic_s() + LINK_ANSWER_S, error)) {
            free(bytes);
            return false;
        }
        receiver->take(receiver->context, one.worker, (int64_t)one.examples, (double)one.score, bytes,
                       bytes ? size : 0);
        free(bytes);
    }
}

enum exchange_result validations_gather(struct push_pull *exchange, const struct own_validation *own, double wait_s,
                                        const struct validations_receiver *receiver, int *missing, struct error *error)
{
    PROFILE("wait for validations");
    const double until_s = clock_monotonic_s() + wait_s;
    struct ask_request asked = {.message = {.step = own->step,
                                            .examples = (uint64_t)own->examples,
                                            .score = (float)own->score,
                                            .rises = own->rises},
                                .receiver = receiver,
                                .missing = missing};
    for (;;) {
        const bool is_last = clock_monotonic_s() >= until_s;
        asked.message.wait_ms = is_last ? 0 : ASK_MS;
        *missing = 0;
        const enum exchange_result end = call_decider(exchange, ask_others, &asked, error);
        if (end != EXCHANGE_OK || *missing == 0 || is_last) {
            return end;
        }
        if (push_pull_must_stop(exchange)) {
            return EXCHANGE_STOPPED;
        }
    }
}
