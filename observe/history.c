/*
 * Two rings of buckets. The coarse one is rebuilt in place when its buckets double in width; since buckets record when
 * they begin, gaps between two starts of a run cost nothing.
 *
 * The file: magic, version, counts, names, buckets, and the CRC-32C of all that, in this machine's byte order. Any
 * other file is not ours, and the history starts over.
 */
#include "observe/history.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/encoding/crc32c.h"
#include "base/file.h"

static const char magic[8] = "trnrhist";
enum { VERSION = 1 };

struct file_head {
    char magic[8];
    uint32_t version, series, recent, whole;
    double width_s;
    char names[HISTORY_SERIES][HISTORY_NAME];
};

bool history_create(struct history *history, struct error *error)
{
    *history = (struct history){.recent = {.room = HISTORY_RECENT}, .whole = {.room = HISTORY_WHOLE}, .width_s = 1};
    history->recent.buckets = calloc(HISTORY_RECENT, sizeof *history->recent.buckets);
    history->whole.buckets = calloc(HISTORY_WHOLE, sizeof *history->whole.buckets);
    if (!history->recent.buckets || !history->whole.buckets) {
        history_destroy(history);
        return error_set(error, "out of memory for the history of the run");
    }
    return true;
}

void history_destroy(struct history *history)
{
    free(history->recent.buckets);
    free(history->whole.buckets);
    *history = (struct history){.series = 0};
}

/* Names are stored in JSON unescaped, even those of a foreign file. */
static bool name_is_good(const char *name)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:";
    return name[strspn(name, plain)] == '\0';
}

int history_series(struct history *history, const char *name)
{
    for (int i = 0; i < history->series; i++) {
        if (strcmp(history->names[i], name) == 0) {
            return i;
        }
    }
    if (history->series == HISTORY_SERIES || strlen(name) >= HISTORY_NAME || !name_is_good(name)) {
        return -1;
    }
    strcpy(history->names[history->series], name);
    return history->series++;
}

static struct history_bucket *at(const struct history_ring *ring, int index)
{
    return &ring->buckets[(ring->first + index) % ring->room];
}

const struct history_bucket *history_at(const struct history_ring *ring, int index)
{
    return at(ring, index);
}

/* Appends a bucket; the oldest is dropped if necessary. */
static struct history_bucket *add_bucket(struct history_ring *ring)
{
    if (ring->count == ring->room) {
        ring->first = (ring->first + 1) % ring->room;
        ring->count--;
    }
    return at(ring, ring->count++);
}

/* Means, weighted by seconds; a value known for only one is kept as it is. */
static void merge(struct history_bucket *into, const struct history_bucket *from)
{
    const float a = (float)into->seconds, b = (float)from->seconds;
    for (int i = 0; i < HISTORY_SERIES; i++) {
        if (isnan(into->values[i])) {
            into->values[i] = from->values[i];
        } else if (!isnan(from->values[i])) {
            into->values[i] = (into->values[i] * a + from->values[i] * b) / (a + b);
        }
    }
    into->step = from->step;
    into->seconds += from->seconds;
}

static double start_of(const struct history *history, double time_s)
{
    return floor(time_s / history->width_s) * history->width_s;
}

/* Doubles the width until a bucket is free. */
static void widen(struct history *history)
{
    struct history_ring *ring = &history->whole;
    while (ring->count == ring->room) {
        int kept = 0;
        history->width_s *= 2;
        for (int i = 0; i < ring->count; i++) {
            const struct history_bucket bucket = *at(ring, i);
            struct history_bucket *last = kept > 0 ? at(ring, kept - 1) : NULL;
            if (last && last->time_s == start_of(history, bucket.time_s)) {
                merge(last, &bucket);
            } else {
                struct history_bucket *next = at(ring, kept++);
                *next = bucket;
                next->time_s = start_of(history, bucket.time_s);
            }
        }
        ring->count = kept;
    }
}

void history_add(struct history *history, double time_s, int64_t step, const float *values)
{
    struct history_bucket bucket = {.time_s = time_s, .step = step, .seconds = 1};
    struct history_ring *recent = &history->recent, *whole = &history->whole;
    for (int i = 0; i < HISTORY_SERIES; i++) {
        bucket.values[i] = i < history->series ? values[i] : NAN;
    }
    if (recent->count > 0 && bucket.time_s < at(recent, recent->count - 1)->time_s) {
        bucket.time_s = at(recent, recent->count - 1)->time_s;
    }
    *add_bucket(recent) = bucket;
    bucket.time_s = start_of(history, bucket.time_s);
    if (whole->count > 0 && at(whole, whole->count - 1)->time_s >= bucket.time_s) {
        merge(at(whole, whole->count - 1), &bucket);
        return;
    }
    widen(history);
    bucket.time_s = start_of(history, bucket.time_s);
    if (whole->count > 0 && at(whole, whole->count - 1)->time_s >= bucket.time_s) {
        merge(at(whole, whole->count - 1), &bucket);
    } else {
        *add_bucket(whole) = bucket;
    }
}

/* --- The file --- */

static uint8_t *put(uint8_t *to, const void *bytes, size_t size)
{
    memcpy(to, bytes, size);
    return to + size;
}

static size_t file_size(uint32_t recent, uint32_t whole)
{
    return sizeof(struct file_head) + (recent + whole) * sizeof(struct history_bucket) + sizeof(uint32_t);
}

bool history_save(const struct history *history, const char *path, struct error *error)
{
    struct file_head head = {.version = VERSION,
                             .series = (uint32_t)history->series,
                             .recent = (uint32_t)history->recent.count,
                             .whole = (uint32_t)history->whole.count,
                             .width_s = history->width_s};
    memcpy(head.magic, magic, sizeof magic);
    memcpy(head.names, history->names, sizeof head.names);
    const size_t size = file_size(head.recent, head.whole);
    uint8_t *bytes = malloc(size), *to = bytes;
    if (!bytes) {
        return error_set(error, "out of memory for %s", path);
    }
    to = put(to, &head, sizeof head);
    const struct history_ring *const rings[] = {&history->recent, &history->whole};
    for (int r = 0; r < 2; r++) {
        for (int i = 0; i < rings[r]->count; i++) {
            to = put(to, at(rings[r], i), sizeof(struct history_bucket));
        }
    }
    const uint32_t sum = crc32c(bytes, size - sizeof sum);
    put(to, &sum, sizeof sum);
    const bool done = file_write_atomic(path, &(struct file_part){bytes, size}, 1, error);
    free(bytes);
    return done;
}

static bool head_is_good(const struct file_head *head)
{
    bool good = memcmp(head->magic, magic, sizeof magic) == 0 && head->version == VERSION &&
                head->series <= HISTORY_SERIES && head->recent <= HISTORY_RECENT && head->whole <= HISTORY_WHOLE &&
                isfinite(head->width_s) && head->width_s >= 1;
    for (uint32_t i = 0; good && i < head->series; i++) {
        good = memchr(head->names[i], '\0', HISTORY_NAME) && name_is_good(head->names[i]);
    }
    return good;
}

/* In chronological order, without NaN. */
static bool take_buckets(struct history_ring *ring, const uint8_t *from, uint32_t count)
{
    double last_s = 0;
    ring->first = 0;
    ring->count = (int)count;
    for (uint32_t i = 0; i < count; i++) {
        struct history_bucket *bucket = &ring->buckets[i];
        memcpy(bucket, from + i * sizeof *bucket, sizeof *bucket);
        if (!(bucket->time_s >= last_s) || !isfinite(bucket->time_s)) {
            ring->count = 0;
            return false;
        }
        last_s = bucket->time_s;
    }
    return true;
}

static bool take(struct history *history, const uint8_t *bytes, size_t size)
{
    struct file_head head;
    uint32_t sum;
    if (size < sizeof head + sizeof sum) {
        return false;
    }
    memcpy(&head, bytes, sizeof head);
    memcpy(&sum, bytes + size - sizeof sum, sizeof sum);
    if (!head_is_good(&head) || size != file_size(head.recent, head.whole) || sum != crc32c(bytes, size - sizeof sum)) {
        return false;
    }
    const uint8_t *whole = bytes + sizeof head + head.recent * sizeof(struct history_bucket);
    if (!take_buckets(&history->recent, bytes + sizeof head, head.recent) ||
        !take_buckets(&history->whole, whole, head.whole)) {
        history->recent.count = history->whole.count = 0;
        return false;
    }
    memcpy(history->names, head.names, sizeof head.names);
    history->series = (int)head.series;
    history->width_s = head.width_s;
    return true;
}

bool history_load(struct history *history, const char *path, bool *damaged, struct error *error)
{
    uint8_t *bytes;
    size_t size;
    *damaged = false;
    if (!file_exists(path)) {
        return error_set(error, "%s: there is none", path);
    }
    if (!file_read(path, file_size(HISTORY_RECENT, HISTORY_WHOLE), &bytes, &size, error)) {
        *damaged = true;
        return false;
    }
    const bool good = take(history, bytes, size);
    free(bytes);
    *damaged = !good;
    return good || error_set(error, "%s: is damaged, or not a history file", path);
}
