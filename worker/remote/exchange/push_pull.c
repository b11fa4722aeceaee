/* Links to all shards, and the way of their answers into the engine. */
#include "worker/remote/exchange/push_pull.h"

#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/config/pace.h"
#include "base/process/signals.h"
#include "ps/store/codec.h"
#include "worker/remote/exchange/internal.h"

enum { LANDING_BYTES = 64 * 1024 /* small enough for the innermost caches */ };
_Static_assert((int)LANDING_BYTES >= (int)SENT_FRAME_BYTES, "a frame of packed answers lands as a whole");

static const double CHIEF_DELAY_S = 0.1; /* the longest delay between two attempts */

bool push_pull_create(struct push_pull *exchange, const struct push_pull_options *options, struct error *error)
{
    const struct config_cluster *cluster = &options->config->cluster;
    *exchange = (struct push_pull){.config = options->config,
                                   .model = options->model,
                                   .engine = options->engine,
                                   .given_up = options->given_up,
                                   .needs_rejoin = options->needs_rejoin,
                                   .writes_model = options->writes_model,
                                   .context = options->context,
                                   .count = cluster->ps_hosts.count};
    exchange->parts = calloc((size_t)exchange->count, sizeof *exchange->parts);
    exchange->ranges = malloc(PUSH_FRAME_RANGES * RANGE_BYTES);
    exchange->bulk = calloc(PUSH_FRAME_RANGES, sizeof *exchange->bulk);
    exchange->landing = malloc(LANDING_BYTES);
    exchange->widened = malloc(LANDING_BYTES / sizeof(uint16_t) * sizeof(float));
    /* If both are set, a ps of an earlier program uses the first; untouched pages take no memory. */
    bool halves = cluster->wire_dtype != WIRE_FLOAT32, tells = sent_model_is_kept(cluster);
    exchange->known = halves ? calloc(options->model->float_count, sizeof *exchange->known) : NULL;
    exchange->sent_model = tells ? calloc(options->model->float_count, sizeof *exchange->sent_model) : NULL;
    exchange->sent_dtype = sent_model_gradient_dtype(cluster);
    exchange->polled = calloc((size_t)exchange->count, sizeof *exchange->polled);
    if (!exchange->polled || !exchange->parts || !exchange->ranges || !exchange->bulk || !exchange->landing ||
        !exchange->widened || (halves && !exchange->known) || (tells && !exchange->sent_model)) {
        push_pull_destroy(exchange);
        return error_set(error, "out of memory for connections to %d parameter servers", cluster->ps_hosts.count);
    }
    for (int i = 0; i < exchange->count; i++) {
        struct shard_part *part = &exchange->parts[i];
        part->span_count = placement_spans(options->model, cluster->placement, exchange->count, i, part->spans);
        if (!shard_link_create(&part->link, options->config, i, options->identity, options->traffic, error)) {
            push_pull_destroy(exchange);
            return false;
        }
        part->link.quiet = options->quiet;
        if (cluster->task_index > 0) {
            part->link.options.return_within_s = pace_return_s(cluster);
        } else { /* only it can write the model to a restarted ps, and all others wait for that */
            part->link.options.longest_delay_s = fmin(part->link.options.longest_delay_s, CHIEF_DELAY_S);
        }
    }
    return true;
}

void push_pull_destroy(struct push_pull *exchange)
{
    for (int i = 0; exchange->parts && i < exchange->count; i++) {
        link_destroy(&exchange->parts[i].link);
    }
    free(exchange->parts);
    free(exchange->polled);
    free(exchange->ranges);
    free(exchange->bulk);
    free(exchange->landing);
    free(exchange->widened);
    free(exchange->known);
    free(exchange->sent_model);
    memset(exchange, 0, sizeof *exchange);
}

bool push_pull_must_stop(const struct push_pull *exchange)
{
    return signals_pending() != 0 || (exchange->given_up && exchange->given_up(exchange->context));
}

bool push_pull_must_rejoin(const struct push_pull *exchange, struct error *error)
{
    char why[256];
    return exchange->needs_rejoin &&
           exchange->needs_rejoin(exchange->context, exchange->generation, exchange->joined_s, why) &&
           !error_set(error, "%s", why);
}

enum exchange_result push_pull_open_link(struct push_pull *exchange, struct shard_part *part, struct error *error)
{
    switch (link_open(&part->link, exchange->given_up, exchange->context, error)) {
    case LINK_OPEN:
        if (part->incarnation != 0 && part->link.incarnation != part->incarnation) {
            error_set(error, "%s is a new process now, without our parameters", part->link.name);
            return EXCHANGE_REJOIN;
        }
        return EXCHANGE_OK;
    case LINK_REFUSED:
        return EXCHANGE_FAILED;
    case LINK_LATER:
        break;
    }
    return EXCHANGE_STOPPED;
}

enum exchange_result push_pull_by_code(uint16_t code)
{
    switch (code) {
    case ERROR_NOT_READY:
    case ERROR_OLD_GENERATION:
    case ERROR_JOB_OVER: /* the heartbeats report this too, with how it ended */
        return EXCHANGE_REJOIN;
    default:
        return EXCHANGE_FAILED;
    }
}

void push_pull_note_step(struct push_pull *exchange, int64_t step)
{
    exchange->global_step = step > exchange->global_step ? step : exchange->global_step;
}

/* --- Into the engine --- */

/* Where the engine's floats lie; NULL: they must be passed to a function. */
static float *place(struct push_pull *exchange, enum store_vector vector, size_t first)
{
    if (vector == STORE_PARAMETERS && exchange->mirror) {
        return exchange->mirror + first;
    }
    float *parameters = vector == STORE_PARAMETERS ? engine_parameters_in_place(exchange->engine) : NULL;
    return parameters ? parameters + first : NULL;
}

/* Stores `count` floats at `first`, as received. */
static bool put(struct push_pull *exchange, enum store_vector vector, enum dtype dtype, size_t first, size_t count,
                const uint8_t *bytes, struct error *error)
{
    float *there = place(exchange, vector, first);
    if (dtype == DTYPE_BFLOAT16 && there) {
        bfloat16_to_floats(there, (const uint16_t *)(const void *)bytes, count);
        return true;
    }
    const float *values = (const float *)(const void *)bytes;
    if (there) {
        memcpy(there, values, count * sizeof *values);
        return true;
    }
    if (dtype == DTYPE_BFLOAT16) {
        bfloat16_to_floats(exchange->widened, (const uint16_t *)(const void *)bytes, count);
        values = exchange->widened;
    }
    return exchange->engine->table->write(exchange->engine, vector, first, count, values, error);
}

/* Each ps may only change what it holds. */
static bool check_range(const struct shard_part *part, struct range range, struct error *error)
{
    for (int i = 0; i < part->span_count; i++) {
        const struct span *span = &part->spans[i];
        if (range.first >= span->first && range.first - span->first < span->count &&
            range.count <= span->count - (range.first - span->first)) {
            return true;
        }
    }
    return error_set(error, "%s: floats %llu to %llu are not all its own", part->link.name,
                     (unsigned long long)range.first, (unsigned long long)range.first + range.count - 1);
}

enum dtype push_pull_dtype(const struct push_pull *exchange, const struct shard_part *part)
{
    return exchange->sent_model && part->link.channel.version >= PROTOCOL_SENT_MODEL ? exchange->sent_dtype
           : exchange->known                                                         ? DTYPE_DIFFERENCES
                                                                                     : DTYPE_FLOAT32;
}

/* Reads the whole bulk of a small frame; `what` is in it. */
static bool land_bulk(struct push_pull *exchange, struct shard_part *part, const char *what, size_t *size,
                      struct error *error)
{
    struct channel *channel = &part->link.channel;
    *size = channel->bulk_left;
    if (*size > LANDING_BYTES) {
        return error_set(error, "%s: %zu bytes of %s, more than there can be", part->link.name, *size, what);
    }
    return channel_read_bulk(channel, exchange->landing, *size, clock_monotonic_s() + LINK_ANSWER_S, error);
}

/* Reads a frame of differences. */
static bool land_differences(struct push_pull *exchange, struct shard_part *part, const struct ranges *ranges,
                             struct error *error)
{
    const uint8_t *told = exchange->landing;
    const char *name = part->link.name;
    size_t left;
    if (!exchange->known) {
        return error_set(error, "%s: sent differences that were not requested", name);
    }
    part->has_sent_model = false;
    if (!land_bulk(exchange, part, "differences", &left, error)) {
        return false;
    }
    for (uint32_t i = 0; i < ranges->count; i++) {
        struct range range = range_get(ranges, i);
        size_t first = (size_t)range.first;
        if (!check_range(part, range, error)) {
            return false;
        }
        size_t bytes = bfloat16_apply_delta(exchange->known + first, told, left, range.count);
        if (bytes == 0) {
            return error_set(error, "%s: differences of floats %zu and on make no sense", name, first);
        }
        told += bytes;
        left -= bytes;
        if (!put(exchange, STORE_PARAMETERS, DTYPE_BFLOAT16, first, range.count,
                 (const uint8_t *)(exchange->known + first), error)) {
            return false;
        }
    }
    return left == 0 || error_set(error, "%s: %zu bytes more of differences than of floats", name, left);
}

/* Reads a frame of changes that bring the sent model up to a later version; until the last one it has no version. */
static bool land_pieces(struct push_pull *exchange, struct shard_part *part, enum dtype dtype,
                        const struct ranges *ranges, struct error *error)
{
    const uint8_t *bytes = exchange->landing;
    const char *name = part->link.name;
    size_t left;
    if (!exchange->sent_model || dtype != exchange->sent_dtype) {
        return error_set(error, "%s: sent parameters packed in a way that was not requested", name);
    }
    part->version = 0;
    part->has_sent_model = true;
    if (!land_bulk(exchange, part, "packed parameters", &left, error)) {
        return false;
    }
    for (uint32_t i = 0; i < ranges->count; i++) {
        const struct range range = range_get(ranges, i);
        const size_t first = (size_t)range.first;
        if (!check_range(part, range, error)) {
            return false;
        }
        const size_t took = sent_model_apply(exchange->sent_model + first, bytes, left, range.count, dtype);
        if (took == 0) {
            return error_set(error, "%s: packed parameters %zu and on make no sense", name, first);
        }
        bytes += took;
        left -= took;
        if (!put(exchange, STORE_PARAMETERS, DTYPE_FLOAT32, first, range.count,
                 (const uint8_t *)(const void *)(exchange->sent_model + first), error)) {
            return false;
        }
    }
    return left == 0 || error_set(error, "%s: %zu bytes more than packed parameters take", name, left);
}

/* Reads a frame of the sent model itself, which becomes our parameters. */
static bool land_whole(struct push_pull *exchange, struct shard_part *part, const struct ranges *ranges,
                       struct error *error)
{
    const double deadline_s = clock_monotonic_s() + LINK_ANSWER_S;
    part->version = 0;
    part->has_sent_model = true;
    for (uint32_t i = 0; i < ranges->count; i++) {
        const struct range range = range_get(ranges, i);
        if (!check_range(part, range, error)) {
            return false;
        }
        float *sent = exchange->sent_model + range.first;
        if (!channel_read_bulk(&part->link.channel, sent, range.count * sizeof *sent, deadline_s, error) ||
            !put(exchange, STORE_PARAMETERS, DTYPE_FLOAT32, (size_t)range.first, range.count,
                 (const uint8_t *)(const void *)sent, error)) {
            return false;
        }
    }
    return true;
}

bool push_pull_load_sent_model(struct push_pull *exchange, const struct shard_part *part, struct error *error)
{
    for (int i = 0; i < part->span_count; i++) {
        const struct span *span = &part->spans[i];
        const void *sent = exchange->sent_model + span->first;
        if (!put(exchange, STORE_PARAMETERS, DTYPE_FLOAT32, span->first, span->count, sent, error)) {
            return false;
        }
    }
    return true;
}

bool push_pull_land(struct push_pull *exchange, struct shard_part *part, enum store_vector vector, enum dtype dtype,
                    const struct ranges *ranges, struct error *error)
{
    struct channel *channel = &part->link.channel;
    double deadline_s = clock_monotonic_s() + LINK_ANSWER_S;
    if (dtype == DTYPE_DIFFERENCES) {
        return land_differences(exchange, part, ranges, error);
    }
    if (dtype_is_packed(dtype)) {
        return land_pieces(exchange, part, dtype, ranges, error);
    }
    if (dtype == DTYPE_FLOAT32 && vector == STORE_PARAMETERS && exchange->sent_model) {
        return land_whole(exchange, part, ranges, error);
    }
    size_t size = dtype_size(dtype), at = 0, there = 0;
    for (uint32_t i = 0; i < ranges->count; i++) {
        struct range range = range_get(ranges, i);
        size_t first = (size_t)range.first, count = range.count;
        if (!check_range(part, range, error)) {
            return false;
        }
        float *straight = dtype == DTYPE_FLOAT32 ? place(exchange, vector, first) : NULL;
        if (straight) {
            if (!channel_read_bulk(channel, straight, count * size, deadline_s, error)) {
                return false;
            }
            continue;
        }
        while (count > 0) {
            if (at == there) {
                at = 0;
                there = channel->bulk_left < LANDING_BYTES ? channel->bulk_left : LANDING_BYTES;
                if (!channel_read_bulk(channel, exchange->landing, there, deadline_s, error)) {
                    return false;
                }
            }
            size_t now = (there - at) / size < count ? (there - at) / size : count;
            if (!put(exchange, vector, dtype, first, now, exchange->landing + at, error)) {
                return false;
            }
            at += now * size;
            first += now;
            count -= now;
        }
    }
    return true;
}
