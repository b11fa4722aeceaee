#include "worker/remote/push_pull.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/profile.h"
#include "base/signals.h"
#include "ps/bfloat16.h"

enum {
    FRAME_RANGES = 4096,       /* of a push's frame, at most */
    FRAME_BYTES = 4 << 20,     /* of its bulk, about */
    LANDING_BYTES = 64 * 1024, /* stays in the innermost caches on its way */
    STEP_WAIT_MS = 1000,       /* for a step that others make */
    MODEL_WAIT_MS = 500,       /* a signal is looked for so often */
};

static const double SLICE_S = 0.25;

/* ---- Beginning and end ---- */

bool push_pull_create(struct push_pull *exchange, const struct push_pull_options *options, struct error *error)
{
    const struct config_cluster *cluster = &options->config->cluster;
    *exchange = (struct push_pull){.config = options->config,
                                   .model = options->model,
                                   .engine = options->engine,
                                   .given_up = options->given_up,
                                   .is_unwell = options->is_unwell,
                                   .writes_model = options->writes_model,
                                   .context = options->context,
                                   .count = cluster->ps_hosts.count};
    exchange->parts = calloc((size_t)exchange->count, sizeof *exchange->parts);
    exchange->ranges = malloc(FRAME_RANGES * RANGE_BYTES);
    exchange->bulk = calloc(FRAME_RANGES, sizeof *exchange->bulk);
    exchange->landing = malloc(LANDING_BYTES);
    exchange->widened = malloc(LANDING_BYTES / sizeof(uint16_t) * sizeof(float));
    exchange->polled = calloc((size_t)exchange->count, sizeof *exchange->polled);
    if (!exchange->polled || !exchange->parts || !exchange->ranges || !exchange->bulk || !exchange->landing ||
        !exchange->widened) {
        push_pull_destroy(exchange);
        return error_set(error, "not enough memory for connections to %d parameter servers", cluster->ps_hosts.count);
    }
    for (int i = 0; i < exchange->count; i++) {
        struct shard_part *part = &exchange->parts[i];
        part->span_count = placement_spans(options->model, cluster->placement, exchange->count, i, part->spans);
        if (!shard_link_create(&part->link, options->config, i, options->self, options->traffic, NULL, error)) {
            push_pull_destroy(exchange);
            return false;
        }
        part->link.quiet = options->quiet;
    }
    return true;
}

void push_pull_destroy(struct push_pull *exchange)
{
    for (int i = 0; exchange->parts && i < exchange->count; i++) {
        shard_link_destroy(&exchange->parts[i].link);
    }
    free(exchange->parts);
    free(exchange->polled);
    free(exchange->ranges);
    free(exchange->bulk);
    free(exchange->landing);
    free(exchange->widened);
    memset(exchange, 0, sizeof *exchange);
}

static bool must_stop(const struct push_pull *exchange)
{
    return signals_pending() != 0 || (exchange->given_up && exchange->given_up(exchange->context));
}

static enum push_pull_end open_link(struct push_pull *exchange, struct shard_part *part, struct error *error)
{
    switch (shard_link_open(&part->link, exchange->given_up, exchange->context, error)) {
    case LINK_OPEN:
        if (part->incarnation != 0 && part->link.incarnation != part->incarnation) {
            error_set(error, "%s is another process now, and knows nothing of our parameters", part->link.name);
            return PUSH_PULL_AGAIN;
        }
        return PUSH_PULL_DONE;
    case LINK_REFUSED:
        return PUSH_PULL_REFUSED;
    case LINK_LATER:
        break;
    }
    return PUSH_PULL_STOPPED;
}

/* ---- Into the engine ---- */

/* Where the engine's floats lie; NULL: they have to be handed over. */
static float *place(struct push_pull *exchange, enum store_vector vector, size_t first)
{
    if (vector == STORE_PARAMETERS && exchange->mirror) {
        return exchange->mirror + first;
    }
    const struct engine_table *table = exchange->engine->table;
    return vector == STORE_PARAMETERS && table->parameters ? table->parameters(exchange->engine) + first : NULL;
}

/* `count` floats at `first`, as they came. */
static bool put(struct push_pull *exchange, enum store_vector vector, enum dtype dtype, size_t first, size_t count,
                const uint8_t *bytes, struct error *error)
{
    float *there = place(exchange, vector, first);
    if (dtype == DTYPE_BFLOAT16 && there) {
        bfloat16_to_floats(there, (const uint16_t *)(const void *)bytes, count);
        return true;
    }
    const float *values = (const float *)(const void *)bytes;
    if (dtype == DTYPE_BFLOAT16) {
        bfloat16_to_floats(exchange->widened, (const uint16_t *)(const void *)bytes, count);
        values = exchange->widened;
    }
    return exchange->engine->table->write(exchange->engine, vector, first, count, values, error);
}

bool push_pull_land(struct push_pull *exchange, struct channel *channel, enum store_vector vector, enum dtype dtype,
                    const struct ranges *ranges, struct error *error)
{
    double deadline_s = clock_monotonic_s() + LINK_ANSWER_S;
    size_t size = dtype_size(dtype), at = 0, there = 0;
    for (uint32_t i = 0; i < ranges->count; i++) {
        struct range range = range_get(ranges, i);
        size_t first = (size_t)range.first, count = range.count;
        if (range.first > exchange->model->float_count || count > exchange->model->float_count - first) {
            return error_set(error, "%s: floats %llu and on are beyond the model's %zu",
                             connection_name(channel->connection), (unsigned long long)range.first,
                             exchange->model->float_count);
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

/* ---- Joining ---- */

static void tell(struct push_pull *exchange, const struct shard_part *part, const char *sentence)
{
    double now_s = clock_monotonic_s();
    if (!part->link.quiet && sentence[0] != '\0' && now_s - exchange->told_s >= LINK_TOLD_EVERY_S) {
        exchange->told_s = now_s;
        log_info("%s: %s", part->link.name, sentence);
    }
}

/* An error that a ps answered with: what it means for us. */
static enum push_pull_end by_code(uint16_t code)
{
    switch (code) {
    case ERROR_NOT_READY:
    case ERROR_OLD_GENERATION:
    case ERROR_JOB_OVER: /* the heartbeats will say so too, and how it ended */
        return PUSH_PULL_AGAIN;
    default:
        return PUSH_PULL_REFUSED;
    }
}

/* The ps and we must mean the same floats. */
static bool check_model(const struct push_pull *exchange, const struct shard_part *part,
                        const struct message_model *model, struct error *error)
{
    bool same = model->float_count == exchange->model->float_count && model->ranges.count == (uint32_t)part->span_count;
    for (int i = 0; same && i < part->span_count; i++) {
        struct range range = range_get(&model->ranges, (uint32_t)i);
        same = range.first == part->spans[i].first && range.count == part->spans[i].count;
    }
    return same ||
           error_set(error, "%s holds other parts of the model than it should: is its program of the same version?",
                     part->link.name);
}

/* Asks once; *ready: it can be trained on, in *generation. */
static enum push_pull_end ask_model(struct push_pull *exchange, struct shard_part *part, bool *ready,
                                    uint32_t *generation, struct error *error)
{
    uint16_t code;
    struct channel *channel = &part->link.channel;
    struct message_get_model request = {.wait_ms = MODEL_WAIT_MS};
    *ready = false;
    if (!channel_call(channel, MESSAGE_get_model, &request, MESSAGE_model,
                      clock_monotonic_s() + MODEL_WAIT_MS / 1e3 + LINK_ANSWER_S, &code, error)) {
        if (code == 0) {
            shard_link_lost(&part->link, error->text);
            return PUSH_PULL_DONE;
        }
        return by_code(code);
    }
    const struct message_model *model = &channel->message.model;
    if (!check_model(exchange, part, model, error)) {
        return PUSH_PULL_REFUSED;
    }
    *ready = model->state == 2 && model->sentence[0] == '\0';
    *generation = channel->frame.generation;
    if (exchange->writes_model && model->state != 2) {
        return PUSH_PULL_AGAIN;
    }
    tell(exchange, part, model->sentence);
    return PUSH_PULL_DONE;
}

/* Every shard ready, and of one generation? */
static enum push_pull_end ask_models(struct push_pull *exchange, bool *ready, struct error *error)
{
    uint32_t first = 0;
    *ready = true;
    for (int i = 0; i < exchange->count && *ready; i++) {
        struct shard_part *part = &exchange->parts[i];
        uint32_t generation = 0;
        part->incarnation = 0; /* whoever it is now */
        enum push_pull_end end = open_link(exchange, part, error);
        end = end == PUSH_PULL_DONE ? ask_model(exchange, part, ready, &generation, error) : end;
        if (end != PUSH_PULL_DONE) {
            return end;
        }
        first = i == 0 ? generation : first;
        part->incarnation = part->link.incarnation;
        *ready = *ready && generation == first;
        if (exchange->writes_model && shard_link_is_open(&part->link) && generation != first) {
            return PUSH_PULL_AGAIN;
        }
    }
    exchange->generation = first;
    return PUSH_PULL_DONE;
}

/* All frames of one answer to a pull. */
static bool receive_values(struct push_pull *exchange, struct shard_part *part, uint64_t request, uint16_t *code,
                           struct error *error)
{
    struct channel *channel = &part->link.channel;
    *code = 0;
    do {
        if (!shard_link_receive(&part->link, error)) {
            return false;
        }
        const struct message_values *values = &channel->message.values;
        if (channel->frame.request != request) {
            return error_set(error, "%s: answer to a request that was not made", part->link.name);
        }
        if (channel->frame.type == MESSAGE_error) {
            *code = channel->message.error.code;
            return error_set(error, "%s: %s", part->link.name, channel->message.error.sentence);
        }
        if (channel->frame.type != MESSAGE_values) {
            return error_set(error, "%s: answered pull by %s", part->link.name, message_name(channel->frame.type));
        }
        if (!push_pull_land(exchange, channel, STORE_PARAMETERS, (enum dtype)values->dtype, &values->ranges, error)) {
            return false;
        }
        part->version = values->version;
        part->global_step = values->global_step;
    } while (!(channel->frame.flags & FRAME_LAST));
    return true;
}

/* after_step: waits a while for a later step; -1: takes what is there. since: only what changed after that version. */
static enum push_pull_end pull_part(struct push_pull *exchange, struct shard_part *part, uint64_t since,
                                    int64_t after_step, struct error *error)
{
    PROFILE(after_step >= 0 ? "wait for a step" : "pull");
    uint16_t code = 0;
    for (;;) {
        enum push_pull_end end = open_link(exchange, part, error);
        if (end != PUSH_PULL_DONE) {
            return end;
        }
        struct channel *channel = &part->link.channel;
        struct message_pull pull = {.dtype = exchange->config->cluster.wire_dtype == WIRE_BFLOAT16 ? DTYPE_BFLOAT16
                                                                                                   : DTYPE_FLOAT32,
                                    .since_version = since,
                                    .after_step = after_step,
                                    .wait_ms = after_step >= 0 ? STEP_WAIT_MS : 0};
        uint64_t request = ++channel->next_request;
        channel->generation = exchange->generation;
        if (channel_send(channel, MESSAGE_pull, request, FRAME_LAST, &pull, NULL, 0,
                         clock_monotonic_s() + LINK_ANSWER_S, error) &&
            receive_values(exchange, part, request, &code, error)) {
            return PUSH_PULL_DONE;
        }
        if (code != 0) {
            return by_code(code);
        }
        shard_link_lost(&part->link, error->text);
    }
}

static void note_step(struct push_pull *exchange, int64_t step)
{
    exchange->global_step = step > exchange->global_step ? step : exchange->global_step;
}

/* The shard that is furthest behind; NULL: all that hold something are at the same step. */
static struct shard_part *laggard(struct push_pull *exchange)
{
    struct shard_part *least = NULL;
    for (int i = 0; i < exchange->count; i++) {
        struct shard_part *part = &exchange->parts[i];
        if (part->span_count > 0 && part->global_step < exchange->global_step &&
            (!least || part->global_step < least->global_step)) {
            least = part;
        }
    }
    return least;
}

/* Shards answer at steps of their own when others are faster: what is behind is pulled until all are at one step. */
static enum push_pull_end align(struct push_pull *exchange, struct error *error)
{
    struct shard_part *part;
    enum push_pull_end end = PUSH_PULL_DONE;
    while (exchange->config->cluster.issync && end == PUSH_PULL_DONE && (part = laggard(exchange)) != NULL) {
        end = must_stop(exchange) ? PUSH_PULL_STOPPED
                                  : pull_part(exchange, part, part->version, exchange->global_step - 1, error);
        note_step(exchange, part->global_step);
    }
    return end;
}

enum push_pull_end push_pull_await_step(struct push_pull *exchange, int64_t step, struct error *error)
{
    struct shard_part *part = exchange->parts;
    while (part->span_count == 0) { /* some shard holds something */
        part++;
    }
    enum push_pull_end end = pull_part(exchange, part, part->version, step, error);
    note_step(exchange, part->global_step);
    return end == PUSH_PULL_DONE ? align(exchange, error) : end;
}

enum push_pull_end push_pull_refresh(struct push_pull *exchange, struct error *error)
{
    for (int i = 0; i < exchange->count; i++) {
        struct shard_part *part = &exchange->parts[i];
        enum push_pull_end end = part->span_count > 0 ? pull_part(exchange, part, 0, -1, error) : PUSH_PULL_DONE;
        if (end != PUSH_PULL_DONE) {
            return end;
        }
        note_step(exchange, part->global_step);
    }
    return align(exchange, error);
}

enum push_pull_end push_pull_join(struct push_pull *exchange, struct error *error)
{
    PROFILE("join");
    for (;;) {
        bool ready;
        enum push_pull_end end = ask_models(exchange, &ready, error);
        if (end == PUSH_PULL_DONE && ready) {
            exchange->global_step = 0;
            exchange->joined_s = clock_monotonic_s();
            end = push_pull_refresh(exchange, error);
            if (end == PUSH_PULL_DONE) {
                return end;
            }
        }
        if (end == PUSH_PULL_STOPPED || end == PUSH_PULL_REFUSED) {
            return end;
        }
        if (must_stop(exchange)) {
            return PUSH_PULL_STOPPED;
        }
        if (end == PUSH_PULL_AGAIN) {
            shard_link_pause(clock_monotonic_s() + SLICE_S);
        }
        if (end == PUSH_PULL_AGAIN && exchange->writes_model) {
            return end;
        }
    }
}

/* ---- Pushing ---- */

/* A frame of a push that fills up. */
struct push_frame {
    uint32_t ranges;
    size_t bytes;
};

static bool send_frame(struct push_pull *exchange, struct shard_part *part, struct message_push *push,
                       struct push_frame *frame, bool last, struct error *error)
{
    push->ranges = (struct ranges){exchange->ranges, frame->ranges};
    bool sent = channel_send(&part->link.channel, MESSAGE_push, part->request, last ? FRAME_LAST : 0, push,
                             exchange->bulk, (int)frame->ranges, clock_monotonic_s() + LINK_ANSWER_S, error);
    *frame = (struct push_frame){0};
    return sent;
}

static bool send_push(struct push_pull *exchange, struct shard_part *part, const struct outbox *outbox,
                      const struct push_note *note, struct error *error)
{
    PROFILE_PEER("send push", PROFILE_PS + (int)(part - exchange->parts), (int64_t)part->sequence);
    struct message_push push = {.sequence = part->sequence,
                                .base_version = part->version,
                                .base_step = note->base_step,
                                .token = exchange->config->cluster.issync ? note->base_step : -1,
                                .local_step = note->local_step,
                                .examples = note->examples,
                                .loss = note->loss,
                                .answer_dtype = (uint8_t)outbox->dtype,
                                .dtype = (uint8_t)outbox->dtype};
    struct outbox_cursor cursor = outbox_open(outbox, part->spans, part->span_count);
    struct push_frame frame = {0};
    struct range range;
    const void *floats;
    part->link.channel.generation = exchange->generation;
    part->request = ++part->link.channel.next_request;
    while (outbox_next(&cursor, &range, &floats)) {
        if ((frame.ranges == FRAME_RANGES || frame.bytes >= FRAME_BYTES) &&
            !send_frame(exchange, part, &push, &frame, false, error)) {
            return false;
        }
        union {
            const void *from;
            void *to;
        } bytes = {.from = floats}; /* iovec can't say that it is only read */
        size_t size = range.count * dtype_size(outbox->dtype);
        range_put(exchange->ranges, frame.ranges, range);
        exchange->bulk[frame.ranges++] = (struct iovec){bytes.to, size};
        frame.bytes += size;
    }
    return send_frame(exchange, part, &push, &frame, true, error);
}

/* The push has to be sent again; what the others answer may wait for this very one, so at once. */
static void lose_answer(struct shard_part *part, const char *why)
{
    part->sent = false;
    shard_link_lost(&part->link, why);
}

/* Looks once at all that owe us an answer. *part: one with something to read; NULL: none, or one was lost (*lost). */
static void look_for_answer(struct push_pull *exchange, struct shard_part **found, bool *lost)
{
    *found = NULL;
    *lost = false;
    for (int i = 0; i < exchange->count && !*found && !*lost; i++) {
        struct shard_part *part = &exchange->parts[i];
        struct error error;
        bool ready = false;
        if (!part->pending || !part->sent) {
            continue;
        }
        if (!connection_wait(part->link.channel.connection, 0, &ready, &error)) {
            lose_answer(part, error.text);
            *lost = true;
        } else if (ready) {
            *found = part;
        }
    }
}

/* Waits a while for anything on a link that owes us an answer; false: nothing came. */
static bool wait_for_any(struct push_pull *exchange)
{
    for (int i = 0; i < exchange->count; i++) {
        const struct shard_part *part = &exchange->parts[i];
        int fd = part->pending && part->sent ? connection_fd(part->link.channel.connection) : -1;
        exchange->polled[i] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    return poll(exchange->polled, (nfds_t)exchange->count, (int)(SLICE_S * 1e3)) != 0;
}

static void tell_awaited(struct push_pull *exchange)
{
    double now_s = clock_monotonic_s();
    if (now_s - exchange->pushed_s < LINK_TOLD_EVERY_S || now_s - exchange->told_s < LINK_TOLD_EVERY_S) {
        return;
    }
    exchange->told_s = now_s;
    for (int i = 0; i < exchange->count; i++) {
        const struct shard_part *part = &exchange->parts[i];
        if (part->pending && part->sent) {
            log_info("waiting for %s to answer push %llu, %.0f s%s%s", part->link.name,
                     (unsigned long long)part->sequence, now_s - exchange->pushed_s,
                     exchange->awaited[0] != '\0' ? ": it is " : "", exchange->awaited);
            return;
        }
    }
}

/*
 * A ps that holds an answer back sends a ping now and then, and what is under way to it moves: where neither is seen for
 * the link's patience, the connection is dead. All that are go at once. True if there were any.
 */
static bool give_up_silent(struct push_pull *exchange)
{
    double now_s = clock_monotonic_s();
    bool any = false;
    for (int i = 0; i < exchange->count; i++) {
        struct shard_part *part = &exchange->parts[i];
        if (!part->pending || !part->sent) {
            continue;
        }
        size_t unsent = connection_unsent(part->link.channel.connection);
        if (unsent != part->unsent) {
            part->unsent = unsent;
            part->moved_s = now_s;
        }
        if (now_s - part->moved_s >= part->link.silence_s) {
            struct error error;
            error_set(&error, "%s: no sign of life for %.0f s, and a push is not answered", part->link.name,
                      now_s - part->moved_s);
            part->sent = false;
            shard_link_silent(&part->link, error.text);
            any = true;
        }
    }
    return any;
}

/*
 * Waits for the first byte of some answer, which may take as long as slower workers do. *part: whose; NULL: something
 * has to be sent again first.
 */
static enum push_pull_end await_answer(struct push_pull *exchange, struct shard_part **part, struct error *error)
{
    PROFILE("wait for an answer");
    double looked_s = clock_monotonic_s();
    char why[256];
    for (;;) {
        bool lost;
        look_for_answer(exchange, part, &lost);
        if (*part || lost) {
            return PUSH_PULL_DONE;
        }
        if (wait_for_any(exchange) && clock_monotonic_s() - looked_s < SLICE_S) {
            continue;
        }
        looked_s = clock_monotonic_s();
        if (must_stop(exchange)) {
            return PUSH_PULL_STOPPED;
        }
        if (exchange->is_unwell &&
            exchange->is_unwell(exchange->context, exchange->generation, exchange->joined_s, why)) {
            error_set(error, "%s", why);
            return PUSH_PULL_AGAIN;
        }
        if (give_up_silent(exchange)) {
            return PUSH_PULL_DONE;
        }
        tell_awaited(exchange);
    }
}

/* As `pushed` says. */
enum { OUTCOME_STALE = 3, OUTCOME_NOT_FINITE = 4, OUTCOME_NOT_WANTED = 5 };

static void note_answer(struct push_pull *exchange, struct shard_part *part, const struct message_pushed *pushed,
                        struct push_answer *answer)
{
    part->version = pushed->version;
    part->global_step = pushed->global_step;
    part->over = pushed->outcome == OUTCOME_NOT_WANTED;
    answer->not_finite = answer->not_finite || pushed->outcome == OUTCOME_NOT_FINITE;
    answer->stale = answer->stale || pushed->outcome == OUTCOME_STALE;
    answer->staleness = pushed->staleness > answer->staleness ? pushed->staleness : answer->staleness;
    note_step(exchange, pushed->global_step);
}

/* *code: of an error that it answered with. True with part->pending: it was only a sign of life. */
static bool receive_answer(struct push_pull *exchange, struct shard_part *part, struct push_answer *answer,
                           uint16_t *code, struct error *error)
{
    PROFILE_PEER("receive answer", PROFILE_PS + (int)(part - exchange->parts), (int64_t)part->sequence);
    struct channel *channel = &part->link.channel;
    for (;;) {
        bool pinged;
        if (!shard_link_receive_any(&part->link, &pinged, error)) {
            return false;
        }
        if (pinged) {
            part->moved_s = clock_monotonic_s();
            return true;
        }
        if (channel->frame.request != part->request) {
            return error_set(error, "%s: answer to a request that was not made", part->link.name);
        }
        if (channel->frame.type == MESSAGE_error) {
            *code = channel->message.error.code;
            return error_set(error, "%s: %s", part->link.name, channel->message.error.sentence);
        }
        if (channel->frame.type != MESSAGE_pushed) {
            return error_set(error, "%s: answered push by %s", part->link.name, message_name(channel->frame.type));
        }
        struct message_pushed pushed = channel->message.pushed;
        if (!push_pull_land(exchange, channel, STORE_PARAMETERS, (enum dtype)pushed.dtype, &pushed.ranges, error)) {
            return false;
        }
        if (channel->frame.flags & FRAME_LAST) {
            note_answer(exchange, part, &pushed, answer);
            part->pending = false;
            return true;
        }
    }
}

static bool is_pending(const struct push_pull *exchange)
{
    bool pending = false;
    for (int i = 0; i < exchange->count; i++) {
        pending = pending || exchange->parts[i].pending;
    }
    return pending;
}

/* Sends to those that have not got it; a link that breaks is tried again. */
static enum push_pull_end send_pushes(struct push_pull *exchange, const struct outbox *outbox,
                                      const struct push_note *note, struct error *error)
{
    for (int i = 0; i < exchange->count; i++) {
        struct shard_part *part = &exchange->parts[i];
        while (part->pending && !part->sent) {
            enum push_pull_end end = open_link(exchange, part, error);
            if (end != PUSH_PULL_DONE) {
                return end;
            }
            part->sent = send_push(exchange, part, outbox, note, error);
            part->moved_s = clock_monotonic_s();
            if (!part->sent) {
                shard_link_lost(&part->link, error->text);
            }
        }
    }
    return PUSH_PULL_DONE;
}

/* Reads one answer, in whatever order they come. */
static enum push_pull_end take_answer(struct push_pull *exchange, struct push_answer *answer, struct error *error)
{
    struct shard_part *part;
    uint16_t code = 0;
    enum push_pull_end end = await_answer(exchange, &part, error);
    if (end != PUSH_PULL_DONE || !part) {
        return end;
    }
    if (receive_answer(exchange, part, answer, &code, error)) {
        shard_link_count(&part->link);
    } else if (code == ERROR_TOO_LATE) {
        part->sent = false; /* slower workers are still being waited for: the same push again */
        snprintf(exchange->awaited, sizeof exchange->awaited, "%.255s", part->link.channel.message.error.sentence);
    } else if (code != 0) {
        return by_code(code);
    } else {
        lose_answer(part, error->text);
    }
    return PUSH_PULL_DONE;
}

enum push_pull_end push_pull_exchange(struct push_pull *exchange, const struct outbox *outbox,
                                      const struct push_note *note, struct push_answer *answer, struct error *error)
{
    enum push_pull_end end = PUSH_PULL_DONE;
    *answer = (struct push_answer){.over = true};
    exchange->pushed_s = clock_monotonic_s();
    exchange->awaited[0] = '\0';
    for (int i = 0; i < exchange->count; i++) {
        struct shard_part *part = &exchange->parts[i];
        part->pending = part->span_count > 0;
        part->sent = false;
        part->sequence += part->pending;
    }
    while (end == PUSH_PULL_DONE && is_pending(exchange)) {
        end = send_pushes(exchange, outbox, note, error);
        end = end == PUSH_PULL_DONE ? take_answer(exchange, answer, error) : end;
    }
    if (end != PUSH_PULL_DONE) {
        /* Answers may still be on their way on these; a fresh connection knows nothing of them. */
        for (int i = 0; i < exchange->count; i++) {
            if (exchange->parts[i].pending) {
                shard_link_close(&exchange->parts[i].link);
            }
        }
        return end;
    }
    for (int i = 0; i < exchange->count; i++) {
        answer->over = answer->over && (exchange->parts[i].span_count == 0 || exchange->parts[i].over);
    }
    end = answer->over ? PUSH_PULL_DONE : align(exchange, error);
    answer->global_step = exchange->global_step;
    return end;
}
