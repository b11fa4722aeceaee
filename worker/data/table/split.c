/*
 * The smallest keys are held out. Of hashes as many are kept as may be held out, and by and by the others are dropped;
 * the share for the test is a range of hashes, so that a row's side is known when it is first seen.
 */
#include "worker/data/table/split.h"

#include <stdlib.h>

#include "worker/data/table/dictionary.h"
#include "worker/data/table/wide.h"

static const uint64_t VALIDATION_MIX = 0xA0761D6478BD642Fu;

void split_begin(struct split *split)
{
    split->limit = UINT64_MAX;
    split->test_limit = (uint64_t)(split->test_share * 0x1p64);
    split->rows = split->test_rows = split->key_count = 0;
}

void split_free(struct split *split)
{
    free(split->keys);
    *split = (struct split){.column = -1};
}

static uint64_t hash_of(const struct split *split, const struct row *row)
{
    if (split->column < 0) {
        return dictionary_hash(row->raw, row->raw_size);
    }
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    const char *text = row_text(row, split->column, buffer, &size);
    return dictionary_hash(text, size);
}

/* Another one, so that the rows held out for validation are no part of those for the test. */
static uint64_t mixed(uint64_t hash)
{
    return wide_mix(hash ^ VALIDATION_MIX, VALIDATION_MIX);
}

static int by_value(const void *a, const void *b)
{
    const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

/* Drops all but the `most` + 1 smallest. */
static void drop_largest(struct split *split)
{
    qsort(split->keys, (size_t)split->key_count, sizeof *split->keys, by_value);
    if (split->key_count > (int64_t)split->most + 1) {
        split->key_count = (int64_t)split->most + 1;
        split->limit = split->keys[split->most];
    }
}

static bool keep_key(struct split *split, uint64_t key, struct error *error)
{
    if (split->key_count == split->key_capacity) {
        const int64_t capacity = split->key_capacity > 0 ? 2 * split->key_capacity : 1024;
        if (split->key_capacity >= 2 * ((int64_t)split->most + 1)) {
            drop_largest(split);
        } else {
            uint64_t *keys = realloc(split->keys, (size_t)capacity * sizeof *keys);
            if (!keys) {
                return error_set(error, "out of memory while choosing the rows to hold out");
            }
            split->keys = keys;
            split->key_capacity = capacity;
        }
    }
    split->keys[split->key_count++] = key;
    return true;
}

bool split_is_test(const struct split *split, const struct row *row)
{
    return split->test_share > 0 && hash_of(split, row) < split->test_limit;
}

bool split_show(struct split *split, const struct row *row, struct error *error)
{
    const uint64_t hash = hash_of(split, row);
    if (split->test_share > 0 && hash < split->test_limit) {
        split->test_rows++;
        return true;
    }
    split->rows++;
    const uint64_t key = mixed(hash);
    return split->most == 0 || key >= split->limit || keep_key(split, key, error);
}

bool split_settle(struct split *split, struct error *error)
{
    const int64_t tenth = split->rows / 10;
    const int64_t wanted = split->is_at_most && tenth < split->most ? tenth : split->most;
    split->validation_limit = 0;
    split->validation_rows = 0;
    if (wanted == 0 || split->key_count == 0) {
        return true;
    }
    drop_largest(split);
    split->validation_limit = wanted < split->key_count ? split->keys[wanted] : UINT64_MAX;
    while (split->validation_rows < split->key_count && split->keys[split->validation_rows] < split->validation_limit) {
        split->validation_rows++;
    }
    return split->validation_rows > 0 || split->column < 0 ||
           error_set(error,
                     "data.group: one group has more than the %lld rows to hold out for validation; raise "
                     "--validation_size",
                     (long long)wanted);
}

enum dataset_part split_part(const struct split *split, const struct row *row)
{
    const uint64_t hash = hash_of(split, row);
    if (split->test_share > 0 && hash < split->test_limit) {
        return DATASET_TEST;
    }
    return mixed(hash) < split->validation_limit ? DATASET_VALIDATION : DATASET_TRAIN;
}
