/*
 * What workers are told of a shard, where it travels packed (ps/store/told.h): after each synchronous step the
 * differences from what they were told before, packed once for all of them, in a log of the last steps. The log takes
 * no more than the told model does: whoever knows a version that is no longer in it gets that as a whole.
 *
 * Guarded by the stripes' locks, of which a synchronous step holds all: who holds the first sees no step under way.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/copy.h"
#include "base/profile.h"
#include "ps/shard/internal.h"
#include "ps/store/int8.h"

enum { TOLD_VERSIONS = 256 /* in the log, at most */ };

struct told {
    enum dtype dtype;
    size_t chosen; /* of the largest: how many each step tells of */
    float *left;   /* [floats]: what is still to be told */
    uint8_t *log;  /* [capacity]: pieces, version after version, the oldest first */
    size_t capacity, used;
    struct told_version {
        uint64_t version; /* that these pieces lead to, from the one before it */
        size_t at;        /* in the log */
    } versions[TOLD_VERSIONS];
    int count;
    uint8_t piece[TOLD_HEAD + LARGEST_ROOM];
};
_Static_assert((int)LARGEST_PIECE == (int)PACKED_FLOATS && sizeof(float) * PACKED_FLOATS < LARGEST_ROOM,
               "a piece as int8 fits, too");

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
    told->dtype = told_gradient_dtype(cluster);
    told->chosen = (size_t)ceil(cluster->wire_top * (double)count_floats(shard));
    told->left = (float *)(void *)((char *)memory + shard_round_up(sizeof *told));
    told->log = (uint8_t *)told->left + bytes;
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
static void append(struct told *told, struct range range, size_t size)
{
    if (told->count == 0) {
        return;
    }
    const size_t bytes = TOLD_HEAD + size;
    while (told->count > 0 && told->used + bytes > told->capacity) {
        drop_oldest(told);
    }
    if (told->count > 0) {
        range_put(told->piece, 0, range);
        memcpy(told->piece + RANGE_BYTES, &(uint32_t){(uint32_t)size}, sizeof(uint32_t));
        memcpy(told->log + told->used, told->piece, bytes);
        told->used += bytes;
    }
}

/* --- One step --- */

static void subtract(float *restrict left, const float *restrict parameters, const float *restrict known, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        left[i] = parameters[i] - known[i];
    }
}

static bool is_zero(const float *values, size_t n)
{
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        any |= bits << 1;
    }
    return any == 0;
}

static void tell_piece(struct shard *shard, struct largest *chosen, size_t first, size_t local, size_t n)
{
    struct told *told = shard->told;
    const size_t size = told_tell(told->piece + TOLD_HEAD, told->left + local, shard->vectors[STORE_TOLD] + local, n,
                                  chosen, told->dtype);
    if (size > 0) {
        append(told, (struct range){first, (uint32_t)n}, size);
    }
}

/* Floats that did not change are left out where that saves a whole block, which costs more than another range. */
static void tell_int8(struct shard *shard, const struct span *span, size_t local)
{
    const float *left = shard->told->left + local;
    size_t begin = 0, at = 0;
    while (at < span->count) {
        const size_t n = span->count - at < INT8_BLOCK ? span->count - at : INT8_BLOCK;
        const bool rests = is_zero(left + at, n);
        if (at > begin && (rests || at - begin + n > PACKED_FLOATS)) {
            tell_piece(shard, NULL, span->first + begin, local + begin, at - begin);
            begin = at;
        }
        at += n;
        begin = rests ? at : begin;
    }
    if (at > begin) {
        tell_piece(shard, NULL, span->first + begin, local + begin, at - begin);
    }
}

static struct largest find_largest(const struct shard *shard)
{
    struct largest_search search;
    largest_begin(&search, shard->told->chosen);
    for (int pass = 0; pass < LARGEST_PASSES; pass++) {
        largest_look(&search, shard->told->left, shard->floats);
        largest_end_pass(&search);
    }
    return largest_found(&search);
}

static void tell_largest(struct shard *shard, const struct span *span, size_t local, struct largest *chosen)
{
    for (size_t at = 0; at < span->count; at += PACKED_FLOATS) {
        const size_t n = span->count - at < PACKED_FLOATS ? span->count - at : PACKED_FLOATS;
        tell_piece(shard, chosen, span->first + at, local + at, n);
    }
}

void shard_told_step(struct shard *shard, uint64_t version)
{
    PROFILE("tell");
    struct told *told = shard->told;
    struct largest chosen = {0};
    subtract(told->left, shard->vectors[STORE_PARAMETERS], shard->vectors[STORE_TOLD], shard->floats);
    begin_version(told, version);
    if (told->dtype != DTYPE_INT8) {
        chosen = find_largest(shard);
    }
    for (int i = 0; i < shard->span_count; i++) {
        if (told->dtype == DTYPE_INT8) {
            tell_int8(shard, &shard->spans[i], shard->span_locals[i]);
        } else {
            tell_largest(shard, &shard->spans[i], shard->span_locals[i], &chosen);
        }
    }
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
                                .dtype = told->dtype,
                                .values = stage->answer,
                                .value_count = told->used - from};
    return true;
}
