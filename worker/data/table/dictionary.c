/*
 * Open addressing with linear probing; the texts are stored contiguously, so that a million of them need no million
 * allocations.
 */
#include "worker/data/table/dictionary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/table/number.h"
#include "worker/data/table/wide.h"

enum { FIRST_SLOTS = 32, MOST_INTEGER_DIGITS = 15 };

static const double MOST_EXACT = 9007199254740992.0; /* 2^53 */

uint64_t dictionary_hash(const void *bytes, size_t size)
{
    static const uint64_t odd = 0x9E3779B97F4A7C15u, other = 0xD6E8FEB86659FD93u;
    const char *at = bytes;
    uint64_t hash = size * odd, word;
    for (; size > 8; at += 8, size -= 8) {
        memcpy(&word, at, 8);
        hash = wide_mix(hash ^ word, odd);
    }
    word = 0;
    memcpy(&word, at, size);
    return wide_mix(wide_mix(hash ^ word, odd) ^ other, other);
}

void dictionary_hashes(const void *bytes, size_t size, int count, uint64_t *hashes)
{
    static const uint64_t odd = 0x9E3779B97F4A7C15u, other = 0xD6E8FEB86659FD93u;
    enum { ABREAST = 4 };
    const char *texts = bytes;
    int done = 0;
    for (; size > 0 && done + ABREAST <= count; done += ABREAST) {
        const char *at = texts + (size_t)done * size;
        const size_t whole = (size - 1) / 8 * 8;
        uint64_t hash[ABREAST], word;
        for (int i = 0; i < ABREAST; i++) {
            hash[i] = size * odd;
        }
        for (size_t offset = 0; offset < whole; offset += 8) {
            for (int i = 0; i < ABREAST; i++) {
                memcpy(&word, at + (size_t)i * size + offset, 8);
                hash[i] = wide_mix(hash[i] ^ word, odd);
            }
        }
        for (int i = 0; i < ABREAST; i++) {
            const char *rest = at + (size_t)i * size + whole;
            word = 0;
            if (size - whole == 8) {
                memcpy(&word, rest, 8); /* in one instruction */
            } else {
                memcpy(&word, rest, size - whole);
            }
            hashes[done + i] = wide_mix(wide_mix(hash[i] ^ word, odd) ^ other, other);
        }
    }
    for (; done < count; done++) {
        hashes[done] = dictionary_hash(texts + (size_t)done * size, size);
    }
}

static bool is_entry(const struct dictionary *dictionary, const struct dictionary_entry *entry, const char *text,
                     size_t size, uint32_t hash)
{
    return entry->hash == hash && entry->size == size && memcmp(dictionary->texts + entry->offset, text, size) == 0;
}

/* The slot of the text, or the free one where it would go. */
static uint32_t find_slot(const struct dictionary *dictionary, const char *text, size_t size, uint32_t hash)
{
    uint32_t slot = hash & (dictionary->slot_count - 1);
    while (dictionary->slots[slot] >= 0 &&
           !is_entry(dictionary, &dictionary->entries[dictionary->slots[slot]], text, size, hash)) {
        slot = (slot + 1) & (dictionary->slot_count - 1);
    }
    return slot;
}

/* Rebuilds the slots for the present entries. */
static bool fill_slots(struct dictionary *dictionary, uint32_t slot_count)
{
    int32_t *slots = malloc(slot_count * sizeof *slots);
    if (!slots) {
        return false;
    }
    memset(slots, 0xFF, slot_count * sizeof *slots);
    for (int i = 0; i < dictionary->count; i++) {
        uint32_t slot = dictionary->entries[i].hash & (slot_count - 1);
        while (slots[slot] >= 0) {
            slot = (slot + 1) & (slot_count - 1);
        }
        slots[slot] = i;
    }
    free(dictionary->slots);
    dictionary->slots = slots;
    dictionary->slot_count = slot_count;
    return true;
}

static bool make_room(struct dictionary *dictionary, size_t size)
{
    if (2 * ((uint32_t)dictionary->count + 1) > dictionary->slot_count &&
        !fill_slots(dictionary, dictionary->slot_count > 0 ? 2 * dictionary->slot_count : FIRST_SLOTS)) {
        return false;
    }
    if (dictionary->count == dictionary->capacity) {
        const int capacity = dictionary->capacity > 0 ? 2 * dictionary->capacity : FIRST_SLOTS / 2;
        struct dictionary_entry *entries = realloc(dictionary->entries, (size_t)capacity * sizeof *entries);
        if (!entries) {
            return false;
        }
        dictionary->entries = entries;
        dictionary->capacity = capacity;
    }
    if (size + 1 > dictionary->texts_capacity - dictionary->texts_used) {
        const size_t capacity = 2 * dictionary->texts_capacity + size + 64;
        char *texts = realloc(dictionary->texts, capacity);
        if (!texts) {
            return false;
        }
        dictionary->texts = texts;
        dictionary->texts_capacity = capacity;
    }
    return true;
}

int dictionary_add(struct dictionary *dictionary, const char *text, size_t size)
{
    const uint32_t hash = (uint32_t)dictionary_hash(text, size);
    if (dictionary->slot_count > 0) {
        const int number = dictionary->slots[find_slot(dictionary, text, size, hash)];
        if (number >= 0) {
            dictionary->entries[number].count++;
            return number;
        }
    }
    if (!make_room(dictionary, size)) {
        return -1;
    }
    const int number = dictionary->count++;
    dictionary->entries[number] =
        (struct dictionary_entry){.offset = dictionary->texts_used, .size = (uint32_t)size, .hash = hash, .count = 1};
    memcpy(dictionary->texts + dictionary->texts_used, text, size);
    dictionary->texts[dictionary->texts_used + size] = '\0';
    dictionary->texts_used += size + 1;
    dictionary->slots[find_slot(dictionary, text, size, hash)] = number;
    return number;
}

int dictionary_find(const struct dictionary *dictionary, const char *text, size_t size)
{
    return dictionary->slot_count == 0
               ? -1
               : dictionary->slots[find_slot(dictionary, text, size, (uint32_t)dictionary_hash(text, size))];
}

const char *dictionary_text(const struct dictionary *dictionary, int number)
{
    return dictionary->texts + dictionary->entries[number].offset;
}

/* --- sorting --- */

struct sorted {
    const char *text;
    double number; /* equal for all that are not numbers */
    struct dictionary_entry entry;
};

static int compare(const void *a, const void *b)
{
    const struct sorted *left = a, *right = b;
    if (left->number != right->number) {
        return left->number < right->number ? -1 : 1;
    }
    return strcmp(left->text, right->text);
}

/* Integers that a double represents exactly. */
static bool read_integer(const char *text, size_t size, double *number)
{
    return size <= MOST_INTEGER_DIGITS && number_parse(text, size, number) == NUMBER_FINITE &&
           fabs(*number) <= MOST_EXACT && *number == trunc(*number);
}

bool dictionary_settle(struct dictionary *dictionary, int64_t least)
{
    struct sorted *sorted = malloc(((size_t)dictionary->count + 1) * sizeof *sorted);
    if (!sorted) {
        return false;
    }
    int count = 0;
    bool are_integers = true;
    for (int i = 0; i < dictionary->count; i++) {
        if (dictionary->entries[i].count >= least) {
            struct sorted *next = &sorted[count++];
            *next = (struct sorted){.text = dictionary_text(dictionary, i), .entry = dictionary->entries[i]};
            are_integers = are_integers && read_integer(next->text, next->entry.size, &next->number);
        }
    }
    for (int i = 0; i < count && !are_integers; i++) {
        sorted[i].number = 0;
    }
    qsort(sorted, (size_t)count, sizeof *sorted, compare);
    for (int i = 0; i < count; i++) {
        dictionary->entries[i] = sorted[i].entry;
    }
    dictionary->count = count;
    free(sorted);
    return dictionary->slot_count == 0 || fill_slots(dictionary, dictionary->slot_count);
}

void dictionary_free(struct dictionary *dictionary)
{
    free(dictionary->entries);
    free(dictionary->texts);
    free(dictionary->slots);
    *dictionary = (struct dictionary){.count = 0};
}
