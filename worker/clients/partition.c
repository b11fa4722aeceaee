/* Which client has which examples, and which of them it holds out. */
#include "worker/clients/partition.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random/sampler.h"
#include "worker/data/dataset.h"

/* --- Dividing --- */

/* Assigns an owner to each example; then sorts the examples by owner. */

/* Used in place of a task's number (a worker's or client's): far beyond all of these. */
enum { SHUFFLE_EXAMPLES = 1 << 30, DEAL_SHARDS, DRAW_PROPORTIONS };

struct dealing {
    const struct examples *examples;
    uint64_t seed;
    int clients;
    int32_t *owners;   /* [examples] */
    int32_t *shuffled; /* [examples] */
};

static struct sampler_order random_order(const struct dealing *dealing, uint32_t purpose, int count)
{
    struct sampler_order order;
    sampler_order_make(
        &order, &(struct sampler){.seed = dealing->seed, .task = purpose, .examples = (uint32_t)count, .batch_size = 1},
        0);
    return order;
}

/* As data_sharding disjoint cuts them: worker w's end where (w + 1) x count / workers does. */
static void deal_in_order(struct dealing *dealing, bool shuffled)
{
    const int count = dealing->examples->count;
    for (int client = 0; client < dealing->clients; client++) {
        const int end = (int)((int64_t)count * (client + 1) / dealing->clients);
        for (int i = (int)((int64_t)count * client / dealing->clients); i < end; i++) {
            dealing->owners[shuffled ? dealing->shuffled[i] : i] = client;
        }
    }
}

/* Shuffled examples by label: each class starts at *first[class]. */
static void sort_by_label(const struct dealing *dealing, int32_t *sorted, int32_t *first)
{
    const struct examples *examples = dealing->examples;
    for (int i = 0; i < examples->count; i++) {
        first[examples->labels[i] + 1]++;
    }
    for (int i = 0; i < examples->classes; i++) {
        first[i + 1] += first[i];
    }
    for (int i = 0; i < examples->count; i++) {
        sorted[first[examples->labels[dealing->shuffled[i]]]++] = dealing->shuffled[i];
    }
    memmove(first + 1, first, (size_t)examples->classes * sizeof *first);
    first[0] = 0;
}

static void deal_shards(struct dealing *dealing, const int32_t *sorted, int shards_each)
{
    const int shards = shards_each * dealing->clients;
    const struct sampler_order order = random_order(dealing, DEAL_SHARDS, shards);
    for (int shard = 0; shard < shards; shard++) {
        const int client = (int)sampler_index(&order, (uint32_t)shard) / shards_each;
        const int end = (int)((int64_t)dealing->examples->count * (shard + 1) / shards);
        for (int i = (int)((int64_t)dealing->examples->count * shard / shards); i < end; i++) {
            dealing->owners[sorted[i]] = client;
        }
    }
}

struct variates {
    struct philox_key key;
    uint32_t client, class, next;
};

/* In (0, 1). */
static double uniform(struct variates *variates)
{
    const struct philox_block block = philox(variates->key, variates->client, variates->class, variates->next++,
                                             (uint32_t)DRAW_PROPORTIONS ^ (uint32_t)RANDOM_SHUFFLE << 28);
    const uint64_t bits = (uint64_t)block.word[0] << 21 ^ block.word[1];
    return ((double)(bits & ((UINT64_C(1) << 52) - 1)) + 0.5) * 0x1p-52;
}

static double normal(struct variates *variates)
{
    const double radius = sqrt(-2.0 * log(uniform(variates)));
    return radius * cos(2.0 * acos(-1.0) * uniform(variates));
}

/*
 * The logarithm of a gamma variate, because one with a small shape may be too small for a double: Marsaglia and Tsang,
 * "A simple method for generating gamma variables", 2000, with their boost for shapes below 1.
 */
static double log_gamma_variate(struct variates *variates, double shape)
{
    const double boost = shape < 1.0 ? log(uniform(variates)) / shape : 0.0;
    const double d = (shape < 1.0 ? shape + 1.0 : shape) - 1.0 / 3.0, c = 1.0 / sqrt(9.0 * d);
    for (;;) {
        const double x = normal(variates), v = (1.0 + c * x) * (1.0 + c * x) * (1.0 + c * x);
        if (v > 0.0 && log(uniform(variates)) < 0.5 * x * x + d - d * v + d * log(v)) {
            return log(d * v) + boost;
        }
    }
}

/* A class's shares, from the clients' logarithms. */
static double normalise(double *shares, int clients)
{
    double most = shares[0], sum = 0;
    for (int i = 1; i < clients; i++) {
        most = fmax(most, shares[i]);
    }
    for (int i = 0; i < clients; i++) {
        shares[i] = exp(shares[i] - most);
        sum += shares[i];
    }
    return sum;
}

static void deal_by_dirichlet(struct dealing *dealing, const int32_t *sorted, const int32_t *first, double alpha)
{
    double *shares = must_zero((size_t)dealing->clients, sizeof *shares, "the clients' examples");
    for (int class = 0; class < dealing->examples->classes; class ++) {
        for (int client = 0; client < dealing->clients; client++) {
            struct variates variates = {philox_key(dealing->seed), (uint32_t)client, (uint32_t) class, 0};
            shares[client] = log_gamma_variate(&variates, alpha);
        }
        const double sum = normalise(shares, dealing->clients);
        const int count = first[class + 1] - first[class];
        double reached = 0;
        for (int client = 0, at = 0; client < dealing->clients; client++) {
            reached += shares[client];
            const int end = client + 1 < dealing->clients ? (int)fmin(count, reached / sum * count + 0.5) : count;
            for (; at < end; at++) {
                dealing->owners[sorted[first[class] + at]] = client;
            }
        }
    }
    free(shares);
}

/* A client without any gets one from a client with the most. */
static void leave_nobody_empty(struct dealing *dealing, int32_t *counts)
{
    for (int client = 0; client < dealing->clients; client++) {
        int richest = 0;
        for (int i = 0; counts[client] == 0 && i < dealing->clients; i++) {
            richest = counts[i] > counts[richest] ? i : richest;
        }
        for (int i = 0; counts[client] == 0; i++) {
            if (dealing->owners[i] == richest) {
                dealing->owners[i] = client;
                counts[client]++;
                counts[richest]--;
            }
        }
    }
}

/* Sorts by owner; each one's are in the order of the files. */
static void gather(struct partition *partition, struct dealing *dealing)
{
    const int count = dealing->examples->count;
    memset(partition->first, 0, ((size_t)partition->clients + 1) * sizeof *partition->first);
    for (int i = 0; i < count; i++) {
        partition->first[dealing->owners[i]]++;
    }
    leave_nobody_empty(dealing, partition->first);
    int32_t at = 0;
    for (int client = 0; client <= partition->clients; client++) {
        const int32_t own = partition->first[client];
        partition->first[client] = at;
        at += own;
    }
    for (int i = 0; i < count; i++) {
        partition->order[partition->first[dealing->owners[i]]++] = i;
    }
    memmove(partition->first + 1, partition->first, (size_t)partition->clients * sizeof *partition->first);
    partition->first[0] = 0;
}

/* By label, according to the kind. sorted, first: room for the examples, and for the classes plus one. */
static void deal_by_label(struct dealing *dealing, int shards_each, double alpha, int32_t *sorted, int32_t *first)
{
    sort_by_label(dealing, sorted, first);
    if (shards_each > 0) {
        deal_shards(dealing, sorted, shards_each);
    } else {
        deal_by_dirichlet(dealing, sorted, first, alpha);
    }
}

static bool is_number(const char *text, double most, double *number)
{
    char *end;
    *number = strtod(text, &end);
    return end != text && *end == '\0' && *number > 0 && *number <= most;
}

static bool deal(struct dealing *dealing, const char *kind, struct error *error)
{
    const struct examples *examples = dealing->examples;
    const struct sampler_order order = random_order(dealing, SHUFFLE_EXAMPLES, examples->count);
    double number = 0;
    for (int i = 0; i < examples->count; i++) {
        dealing->shuffled[i] = (int32_t)sampler_index(&order, (uint32_t)i);
    }
    const bool is_iid = kind && strcmp(kind, "iid") == 0;
    if (!kind || is_iid || strcmp(kind, "order") == 0) {
        deal_in_order(dealing, is_iid);
        return true;
    }
    const bool shards = strncmp(kind, "shards:", 7) == 0;
    const bool whole = shards && is_number(kind + 7, 1000, &number) && number == floor(number);
    if (!whole && !(strncmp(kind, "dirichlet:", 10) == 0 && is_number(kind + 10, 1e6, &number))) {
        return error_set(error, "--partition must be iid, order, shards:N or dirichlet:A, such as shards:2, not %s",
                         kind);
    }
    if (!examples->labels) {
        return error_set(error, "--partition=%s goes by classes, and these examples have none; use iid", kind);
    }
    if (shards && number * dealing->clients > examples->count) {
        return error_set(error, "--partition=%s: %d examples are too few for %.0f shards", kind, examples->count,
                         number * dealing->clients);
    }
    int32_t *sorted = must_zero((size_t)examples->count, sizeof *sorted, "the clients' examples");
    int32_t *first = must_zero((size_t)examples->classes + 1, sizeof *first, "the clients' examples");
    deal_by_label(dealing, shards ? (int)number : 0, number, sorted, first);
    free(sorted);
    free(first);
    return true;
}

bool partition_create(struct partition *partition, const char *kind, int clients, const struct examples *examples,
                      const struct config *config, struct error *error)
{
    *partition = (struct partition){.clients = clients, .examples = examples->count};
    if (clients > examples->count) {
        return error_set(error, "%d clients are more than the %d training examples", clients, examples->count);
    }
    if (!kind && config->data.data_sharding != SHARDING_DISJOINT) {
        return true;
    }
    struct dealing dealing = {.examples = examples, .seed = (uint64_t)config->train.seed, .clients = clients};
    static const char what[] = "the clients' examples";
    const size_t count = (size_t)examples->count;
    dealing.owners = must_zero(count, sizeof *dealing.owners, what);
    dealing.shuffled = must_zero(count, sizeof *dealing.shuffled, what);
    partition->order = must_zero(count, sizeof *partition->order, what);
    partition->first = must_zero((size_t)clients + 1, sizeof *partition->first, what);
    const bool done = deal(&dealing, kind, error);
    if (done) {
        gather(partition, &dealing);
    } else {
        partition_destroy(partition);
    }
    free(dealing.owners);
    free(dealing.shuffled);
    return done;
}

void partition_destroy(struct partition *partition)
{
    free(partition->order);
    free(partition->first);
    *partition = (struct partition){0};
}

/* --- Rows held out --- */

/* Taking rows out of the partition's order leaves gaps, which the next client's rows close. */

/* The number that each client holds out, one after another; false: some client would have none left. */
static bool count(struct held_out *held_out, const struct partition *partition, const struct config *config,
                  struct error *error)
{
    for (int client = 0; client < partition->clients; client++) {
        const int own = partition_count(partition, client), out = dataset_held_out(config, own);
        if (out >= own) {
            return error_set(error,
                             "client %d has %d examples, and data.validation_size=%d would leave it none to train on; "
                             "lower --validation_size",
                             client, own, out);
        }
        held_out->first[client + 1] = held_out->first[client] + out;
    }
    return true;
}

static void move(struct held_out *held_out, struct partition *partition, const struct examples *examples)
{
    int32_t to = 0, from = 0;
    for (int client = 0; client < partition->clients; client++) {
        const int32_t end = partition->first[client + 1];
        for (int32_t at = held_out->first[client]; at < held_out->first[client + 1]; at++) {
            examples_copy(&held_out->examples, at, examples, partition->order[from++], 1);
        }
        partition->first[client] = to;
        memmove(partition->order + to, partition->order + from, (size_t)(end - from) * sizeof *partition->order);
        to += end - from;
        from = end;
    }
    partition->first[partition->clients] = to;
}

bool held_out_create(struct held_out *held_out, struct partition *partition, const struct examples *examples,
                     const struct config *config, struct error *error)
{
    *held_out = (struct held_out){.first = must_zero((size_t)partition->clients + 1, sizeof *held_out->first,
                                                     "the clients' validation examples")};
    if (!count(held_out, partition, config, error)) {
        held_out_destroy(held_out);
        return false;
    }
    if (!examples_create(&held_out->examples, examples, held_out->first[partition->clients])) {
        held_out_destroy(held_out);
        return error_set(error, "out of memory for the clients' validation examples");
    }
    move(held_out, partition, examples);
    return true;
}

void held_out_destroy(struct held_out *held_out)
{
    examples_free(&held_out->examples);
    free(held_out->first);
    *held_out = (struct held_out){0};
}

struct examples held_out_of(const struct held_out *held_out, int client)
{
    const int32_t first = held_out->first[client];
    return examples_part(&held_out->examples, first, held_out->first[client + 1] - first);
}

int held_out_most(const struct held_out *held_out, int clients)
{
    int most = 0;
    for (int client = 0; client < clients; client++) {
        const int own = held_out->first[client + 1] - held_out->first[client];
        most = own > most ? own : most;
    }
    return most;
}
