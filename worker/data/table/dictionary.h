/* Maps texts to numbers and back, and counts how often each was seen. */
#ifndef WORKER_DATA_TABLE_DICTIONARY_H
#define WORKER_DATA_TABLE_DICTIONARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dictionary_entry {
    size_t offset; /* in `texts`, where it ends with a zero byte */
    uint32_t size;
    uint32_t hash;
    int64_t count; /* how often it was added */
};

/* A zeroed dictionary is empty; dictionary_free releases it. */
struct dictionary {
    struct dictionary_entry *entries; /* [count] in order of arrival, or sorted */
    int count, capacity;
    char *texts;
    size_t texts_used, texts_capacity;
    int32_t *slots; /* [slot_count], a power of two: number of an entry, -1: free */
    uint32_t slot_count;
};

/* Adds the text, or counts it once more; returns its number, -1 if out of memory. */
int dictionary_add(struct dictionary *dictionary, const char *text, size_t size);

/* -1 if it is not there. */
int dictionary_find(const struct dictionary *dictionary, const char *text, size_t size);
const char *dictionary_text(const struct dictionary *dictionary, int number);

/*
 * Sorts by text: numerically if all are integers, else bytewise; keeps only texts that were added at least `least`
 * times. False if out of memory.
 */
bool dictionary_settle(struct dictionary *dictionary, int64_t least);
void dictionary_free(struct dictionary *dictionary);

/* A well-mixed hash of a few bytes. */
uint64_t dictionary_hash(const void *bytes, size_t size);

/* The same for `count` adjacent texts of one size, interleaved to hide the latency of the multiplications. */
void dictionary_hashes(const void *bytes, size_t size, int count, uint64_t *hashes);

#endif
