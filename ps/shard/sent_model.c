/*
 * What a shard sends to workers if it is packed (ps/store/sent_model.h): after each synchronous step the differences
 * from what they were sent before, packed once for all of them, in a log of the last steps. The log takes no more
 * memory than the sent model: a worker whose version is no longer in it gets the whole sent model.
 *
 * Guarded by the stripes' locks, all of which a synchronous step holds: a thread that holds the first sees no step in
 * progress.
 */
#include <string.h>

#include "base/copy.h"
#include "base/profile.h"
#include "ps/shard/internal.h"

enum { SENT_VERSIONS = 256 /* in the log, at most */ };

struct sent_log {
    struct sent_packer packer;
    uint8_t *log; /* [capacity]: pieces, version after version, the oldest first */
    size_t capacity, used;
    struct sent_version {
        uint64_t version; /* the version that these pieces lead to, from the one before it */
        size_t at;        /* offset in the log */
    } versions[SENT_VERSIONS];
    int count;
};

size_t shard_sent_memory(size_t floats)
{
    return shard_round_up(sizeof(struct sent_log)) + 2 * shard_round_up(floats * sizeof(float));
}

/* Not counting padding. */
static size_t count_floats(const struct shard *shard)
{
    size_t floats = 0;
    for (size_t i = 0; i < shard->block_count; i++) {
        floats += (size_t)shard->blocks[i].rows * shard->blocks[i].cols;
    }
    return floats;
}

void shard_sent_create(struct shard *shard, const struct config_cluster *cluster, void *memory)
{
    const size_t bytes = shard_round_up(shard->floats * sizeof(float));
    struct sent_log *sent = memory;
    float *left = (float *)(void *)((char *)memory + shard_round_up(sizeof *sent));
    sent_packer_begin(&sent->packer, cluster, count_floats(shard), left);
    sent->log = (uint8_t *)left + bytes;
    sent->capacity = shard->floats * sizeof(float);
    shard->sent_log = sent;
}

void shard_sent_forget(struct shard *shard)
{
    shard->sent_log->used = 0;
    shard->sent_log->count = 0;
}

/* --- The log --- */

static void drop_oldest(struct sent_log *sent)
{
    const size_t end = sent->count > 1 ? sent->versions[1].at : sent->used;
    memmove(sent->log, sent->log + end, sent->used - end);
    sent->used -= end;
    sent->count--;
    for (int i = 0; i < sent->count; i++) {
        sent->versions[i] = (struct sent_version){sent->versions[i + 1].version, sent->versions[i + 1].at - end};
    }
}

static void begin_version(struct sent_log *sent, uint64_t version)
{
    if (sent->count == SENT_VERSIONS) {
        drop_oldest(sent);
    }
    sent->versions[sent->count++] = (struct sent_version){version, sent->used};
}

/*
 * Appends a piece of the newest version. Older ones are dropped; if only this one is left, it is dropped too (count 0).
 */
static void append(void *context, struct range range, const uint8_t *piece, size_t size)
{
    struct sent_log *sent = context;
    if (sent->count == 0) {
        return;
    }
    const size_t bytes = SENT_HEAD + size;
    while (sent->count > 0 && sent->used + bytes > sent->capacity) {
        drop_oldest(sent);
    }
    if (sent->count > 0) {
        range_put(sent->log + sent->used, 0, range);
        memcpy(sent->log + sent->used + RANGE_BYTES, &(uint32_t){(uint32_t)size}, sizeof(uint32_t));
        memcpy(sent->log + sent->used + SENT_HEAD, piece, size);
        sent->used += bytes;
    }
}

/* --- One step --- */

void shard_sent_step(struct shard *shard, uint64_t version)
{
    PROFILE("tell");
    struct sent_log *sent = shard->sent_log;
    const struct sent_sink sink = {append, sent};
    begin_version(sent, version);
    sent_packer_pack(&sent->packer, shard->vectors[STORE_PARAMETERS], shard->vectors[STORE_SENT], shard->spans,
                     shard->span_count, &sink);
}

/* --- Answers --- */

struct sent_piece sent_piece_at(const uint8_t *bytes)
{
    const struct ranges ranges = {bytes, 1};
    struct sent_piece piece = {.range = range_get(&ranges, 0), .bytes = bytes + SENT_HEAD};
    memcpy(&piece.size, bytes + RANGE_BYTES, sizeof piece.size);
    return piece;
}

/* Where in the log the part starts that a worker with this version lacks; false: it is not all there. */
static bool find(const struct sent_log *sent, uint64_t since_version, uint64_t version, size_t *from)
{
    *from = sent->used;
    if (since_version == version) {
        return true;
    }
    for (int i = 0; i < sent->count; i++) {
        if (sent->versions[i].version == since_version + 1) {
            *from = sent->versions[i].at;
            return true;
        }
    }
    return false;
}

bool shard_sent_since(struct shard *shard, struct stage *stage, uint64_t since_version, struct changes *changes)
{
    const struct sent_log *sent = shard->sent_log;
    size_t from;
    if (!find(sent, since_version, shard->version, &from)) {
        return false;
    }
    copy_bytes(stage->answer, sent->log + from, sent->used - from);
    *changes = (struct changes){.version = shard->version,
                                .global_step = shard->global_step,
                                .dtype = sent->packer.dtype,
                                .values = stage->answer,
                                .value_count = sent->used - from};
    return true;
}
