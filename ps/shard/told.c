/*
 * What workers are told of a shard, where it travels packed (ps/store/told.h): after each synchronous step the
 * differences from what they were told before, packed once for all of them, in a log of the last steps. The log takes
 * no more than the told model does: whoever knows a version that is no longer in it gets that as a whole.
 *
 * Guarded by the stripes' locks, of which a synchronous step holds all: who holds the first sees no step under way.
 */
#include <string.h>

#include "base/copy.h"
#include "base/profile.h"
#include "ps/shard/internal.h"

enum { TOLD_VERSIONS = 256 /* in the log, at most */ };

struct told {
    struct teller teller;
    uint8_t *log; /* [capacity]: pieces, version after version, the oldest first */
    size_t capacity, used;
    struct told_version {
        uint64_t version; /* that these pieces lead to, from the one before it */
        size_t at;        /* in the log */
    } versions[TOLD_VERSIONS];
    int count;
};

size_t shard_told_memory(size_t floats)
{
    return shard_round_up(sizeof(struct told)) + 2 * shard_round_up(floats * sizeof(float));
}

/* Padding is none of them. */
static size_t count_floats(const struct shard *shard)
{
    size_t floats = 0;
    for (size_t i = 0; i < shard->block_count; i++) {
        floats += (size_t)shard->blocks[i].rows * shard->blocks[i].cols;
    }
    return floats;
}

void shard_told_create(struct shard *shard, const struct config_cluster *cluster, void *memory)
{
    const size_t bytes = shard_round_up(shard->floats * sizeof(float));
    struct told *told = memory;
    float *left = (float *)(void *)((char *)memory + shard_round_up(sizeof *told));
    teller_begin(&told->teller, cluster, count_floats(shard), left);
    told->log = (uint8_t *)left + bytes;
    told->capacity = shard->floats * sizeof(float);
    shard->told = told;
}

void shard_told_forget(struct shard *shard)
{
    shard->told->used = 0;
    shard->told->count = 0;
}

/* --- The log --- */

static void drop_oldest(struct told *told)
{
    const size_t end = told->count > 1 ? told->versions[1].at : told->used;
    memmove(told->log, told->log + end, told->used - end);
    told->used -= end;
    told->count--;
    for (int i = 0; i < told->count; i++) {
        told->versions[i] = (struct told_version){told->versions[i + 1].version, told->versions[i + 1].at - end};
    }
}

static void begin_version(struct told *told, uint64_t version)
{
    if (told->count == TOLD_VERSIONS) {
        drop_oldest(told);
    }
    told->versions[told->count++] = (struct told_version){version, told->used};
}

/* A piece of the newest version. Older ones give way; if nothing is left but this one, so does it (count 0). */
static void append(void *context, struct range range, const uint8_t *piece, size_t size)
{
    struct told *told = context;
    if (told->count == 0) {
        return;
    }
    const size_t bytes = TOLD_HEAD + size;
    while (told->count > 0 && told->used + bytes > told->capacity) {
        drop_oldest(told);
    }
    if (told->count > 0) {
        range_put(told->log + told->used, 0, range);
        memcpy(told->log + told->used + RANGE_BYTES, &(uint32_t){(uint32_t)size}, sizeof(uint32_t));
        memcpy(told->log + told->used + TOLD_HEAD, piece, size);
        told->used += bytes;
    }
}

/* --- One step --- */

void shard_told_step(struct shard *shard, uint64_t version)
{
    PROFILE("tell");
    struct told *told = shard->told;
    const struct told_sink sink = {append, told};
    begin_version(told, version);
    teller_tell(&told->teller, shard->vectors[STORE_PARAMETERS], shard->vectors[STORE_TOLD], shard->spans,
                shard->span_count, &sink);
}

/* --- Answers --- */

struct told_piece told_piece_at(const uint8_t *bytes)
{
    const struct ranges ranges = {bytes, 1};
    struct told_piece piece = {.range = range_get(&ranges, 0), .bytes = bytes + TOLD_HEAD};
    memcpy(&piece.size, bytes + RANGE_BYTES, sizeof piece.size);
    return piece;
}

/* Where in the log that begins which somebody with this version lacks; false: it is not all there. */
static bool find(const struct told *told, uint64_t since_version, uint64_t version, size_t *from)
{
    *from = told->used;
    if (since_version == version) {
        return true;
    }
    for (int i = 0; i < told->count; i++) {
        if (told->versions[i].version == since_version + 1) {
            *from = told->versions[i].at;
            return true;
        }
    }
    return false;
}

bool shard_told_since(struct shard *shard, struct stage *stage, uint64_t since_version, struct changes *changes)
{
    const struct told *told = shard->told;
    size_t from;
    if (!find(told, since_version, shard->version, &from)) {
        return false;
    }
    copy_bytes(stage->answer, told->log + from, told->used - from);
    *changes = (struct changes){.version = shard->version,
                                .global_step = shard->global_step,
                                .dtype = told->teller.dtype,
                                .values = stage->answer,
                                .value_count = told->used - from};
    return true;
}
