/* Digests are compared; the chief's text is sent only if they differ, to say in which column. */
#include "worker/remote/exchange/preprocessing.h"

#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "base/clock.h"
#include "worker/data/table/schema.h"
#include "worker/remote/exchange/internal.h"

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
static enum exchange_result say_difference(const char *text, const struct dataset *here, const char *rows,
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

/*
 * Sends a message, with a text unless that is NULL, and reads the answer's message. False: the connection broke;
 * otherwise *end is EXCHANGE_OK if the answer is of type `wanted`.
 */
static bool call(struct shard_part *part, enum message_type type, const void *message, char *text,
                 enum message_type wanted, enum exchange_result *end, struct error *error)
{
    struct iovec bulk = {text, text ? strlen(text) : 0};
    struct outgoing frame = {.type = type, .message = message, .bulk = &bulk, .bulk_parts = text ? 1 : 0};
    uint16_t code;
    const bool done = link_call(&part->link, &frame, wanted, &code, error);
    *end = code != 0 ? EXCHANGE_FAILED : EXCHANGE_OK;
    return done || code != 0;
}

void preprocessing_digest(const char *text, char digest[PREPROCESSING_DIGEST])
{
    unsigned char hash[DIGEST_BYTES];
    crypto_generichash(hash, sizeof hash, (const unsigned char *)text, strlen(text), NULL, 0);
    sodium_bin2hex(digest, PREPROCESSING_DIGEST, hash, sizeof hash);
}

/* One attempt. False if the connection broke; otherwise *end is the result. */
static bool compare(struct push_pull *exchange, const struct dataset *dataset, bool is_chief, bool *differs,
                    enum exchange_result *end, struct error *error)
{
    char *here = text_of(dataset);
    struct shard_part *part = &exchange->parts[0];
    struct channel *channel = &part->link.channel;
    const bool follows = !is_chief && exchange->config->data.data_sharding == SHARDING_OWN;
    char digest[PREPROCESSING_DIGEST];
    const struct message_describe describe = {.digest = digest};
    preprocessing_digest(here, digest);
    if (!call(part, MESSAGE_describe, &describe, is_chief ? here : NULL, MESSAGE_description, end, error) ||
        *end != EXCHANGE_OK) {
        return *end == EXCHANGE_FAILED;
    }
    const char *known = channel->message.description.digest;
    if (known[0] == '\0' || strcmp(known, digest) == 0) {
        return true;
    }
    char *text = read_text(channel, error);
    if (!text) {
        return false;
    }
    *end = say_difference(text, dataset,
                          follows ? "the preprocessing of worker 0 (there) differs from that of the rows here"
                                  : "the preprocessing of worker 0 (there) and of this worker (here) differs, as their "
                                    "files do; give all workers the same files",
                          error);
    *differs = dataset->schema;
    free(text);
    return true;
}

static enum exchange_result agree(struct push_pull *exchange, const struct dataset *dataset, bool is_chief,
                                  bool *differs, struct error *error)
{
    struct shard_part *part = &exchange->parts[0];
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
    for (;;) {
        enum exchange_result end = push_pull_open_link(exchange, part, error);
        if (end != EXCHANGE_OK || compare(exchange, dataset, is_chief, differs, &end, error)) {
            return end;
        }
        link_lost(&part->link, error->text);
    }
}

enum exchange_result preprocessing_tell(struct push_pull *exchange, const struct dataset *dataset, struct error *error)
{
    bool differs;
    return agree(exchange, dataset, true, &differs, error);
}

enum exchange_result preprocessing_agree(struct push_pull *exchange, const struct dataset *dataset, bool *differs,
                                         struct error *error)
{
    return agree(exchange, dataset, false, differs, error);
}

/* One attempt; *text stays NULL if the chief has sent nothing yet. False: the connection broke. */
static bool ask(struct shard_part *part, char **text, enum exchange_result *end, struct error *error)
{
    struct channel *channel = &part->link.channel;
    const struct message_describe nothing = {.digest = ""};
    if (!call(part, MESSAGE_describe, &nothing, NULL, MESSAGE_description, end, error)) {
        return false;
    }
    if (*end == EXCHANGE_OK && channel->message.description.digest[0] != '\0') {
        *text = read_text(channel, error);
    }
    return *end != EXCHANGE_OK || channel->message.description.digest[0] == '\0' || *text;
}

enum exchange_result preprocessing_ask(struct push_pull *exchange, char **text, struct error *error)
{
    struct shard_part *part = &exchange->parts[0];
    *text = NULL;
    for (;;) {
        enum exchange_result end = push_pull_open_link(exchange, part, error);
        if (end != EXCHANGE_OK || ask(part, text, &end, error)) {
            return end;
        }
        link_lost(&part->link, error->text);
    }
}

enum exchange_result preprocessing_check(struct push_pull *exchange, const struct dataset *dataset, struct error *error)
{
    const char *here = text_of(dataset);
    char *text = NULL;
    enum exchange_result end = here ? preprocessing_ask(exchange, &text, error) : EXCHANGE_OK;
    if (end == EXCHANGE_OK && text && strcmp(text, here) != 0) {
        end = say_difference(text, dataset,
                             "the preprocessing of the running model (there) and of this worker's rows (here) differs; "
                             "give worker 0 the files that the model began with, or end the job first",
                             error);
    }
    free(text);
    return end;
}

/* --- Figures --- */

/* A request and its answer; *text: the answer's bulk; NULL: none. False: the connection broke. */
static bool exchange_figures(struct shard_part *part, int worker, char *own, char **text, enum exchange_result *end,
                             struct error *error)
{
    struct channel *channel = &part->link.channel;
    const struct message_figures message = {.worker = worker};
    if (!call(part, MESSAGE_figures, &message, own, MESSAGE_figures, end, error) || *end != EXCHANGE_OK) {
        return *end == EXCHANGE_FAILED;
    }
    const bool has_text = channel->bulk_left > 0;
    *text = has_text ? read_text(channel, error) : NULL;
    return *text || !has_text;
}

static enum exchange_result figures(struct push_pull *exchange, int worker, char *own, char **text, struct error *error)
{
    struct shard_part *part = &exchange->parts[0];
    *text = NULL;
    if (own && strlen(own) > message_max_bulk(MESSAGE_figures)) {
        error_set(error,
                  "the statistics of the columns take %zu bytes, but a message holds %u: exclude those with the most "
                  "categories (--ignore)",
                  strlen(own), message_max_bulk(MESSAGE_figures));
        return EXCHANGE_FAILED;
    }
    for (;;) {
        enum exchange_result end = push_pull_open_link(exchange, part, error);
        if (end != EXCHANGE_OK || exchange_figures(part, worker, own, text, &end, error)) {
            return end;
        }
        link_lost(&part->link, error->text);
    }
}

enum exchange_result preprocessing_tell_figures(struct push_pull *exchange, char *text, struct error *error)
{
    char *nothing;
    const enum exchange_result end = figures(exchange, exchange->config->cluster.task_index, text, &nothing, error);
    free(nothing);
    return end;
}

enum exchange_result preprocessing_ask_figures(struct push_pull *exchange, int worker, char **text, struct error *error)
{
    return figures(exchange, worker, NULL, text, error);
}
