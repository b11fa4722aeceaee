/*
 * The rows with the smallest keys are held out. Only as many hashes are kept as may be held out; larger ones are
 * dropped along the way. The test's share is a range of hashes, so that a row's side is known when it is first seen.
 */
#include "worker/data/table/split.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/fingerprint.h"
#include "worker/data/table/dictionary.h"
#include "worker/data/table/timestamp.h"
#include "worker/data/table/wide.h"

static const uint64_t VALIDATION_MIX = 0xA0761D6478BD642Fu;

enum { SAMPLE_BYTES = 1 << 23 };

void split_begin(struct split *split)
{
    split->limit = UINT64_MAX;
    if (!split->is_by_time) {
        split->test_limit = (uint64_t)(split->test_share * 0x1p64);
    }
    split->rows = split->test_rows = split->key_count = 0;
    split->digest = 0;
}

void split_free(struct split *split)
{
    free(split->keys);
    sample_free(&split->times);
    *split = (struct split){.column = -1};
}

bool split_find_column(struct split *split, const struct rows *rows, const struct config *config, struct error *error)
{
    const struct config_data *data = &config->data;
    split->is_by_time = data->time[0] != '\0';
    split->dates = data->dates;
    if (split->is_by_time && data->group[0] != '\0') {
        return error_set(error, "data.time and data.group are two ways to hold out rows; remove one of them");
    }
    const char *name = split->is_by_time ? data->time : data->group;
    split->column = name[0] == '\0' ? -1 : rows_find_column(rows, name);
    return name[0] == '\0' || split->column >= 0 ||
           error_set(error, "data.%s: %s has no column %.64s", split->is_by_time ? "time" : "group", rows_name(rows),
                     name);
}

/* Keys in the order of all finite numbers; then the latest come first. */
static uint64_t key_of_time(double time)
{
    static const uint64_t sign = (uint64_t)1 << 63;
    uint64_t bits;
    const double number = time == 0 ? 0 : time; /* -0 and 0 are the same time */
    memcpy(&bits, &number, sizeof bits);
    return ~(bits & sign ? ~bits : bits | sign);
}

static double time_of_key(uint64_t key)
{
    static const uint64_t sign = (uint64_t)1 << 63;
    const uint64_t ordered = ~key, bits = ordered & sign ? ordered & ~sign : ~ordered;
    double time;
    memcpy(&time, &bits, sizeof time);
    return time;
}

bool split_key(const struct split *split, const struct rows *rows, const struct row *row, uint64_t *key,
               struct error *error)
{
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    double time;
    if (split->column < 0) {
        *key = dictionary_hash(row->raw, row->raw_size);
        return true;
    }
    const char *text = row_text(row, split->column, buffer, &size);
    if (!split->is_by_time) {
        *key = dictionary_hash(text, size);
        return true;
    }
    if (!timestamp_parse(text, size, split->dates, &time)) {
        error_set(error,
                  "column %.64s: \"%.*s\" is no time; it needs a number, or a date (whose order "
                  "--dates sets, if it is not year, month, day)",
                  rows_column_name(rows, split->column), (int)(size < 32 ? size : 32), text);
        return row_wrap(rows, row, split->column, error);
    }
    *key = key_of_time(time);
    return true;
}

bool split_sample(struct split *split, uint64_t key, struct error *error)
{
    if (split->times.capacity == 0 && !sample_create(&split->times, 1, SAMPLE_BYTES)) {
        return error_set(error, "out of memory for the times of the rows");
    }
    double *time = sample_add(&split->times);
    if (time) {
        *time = time_of_key(key);
    }
    return true;
}

void split_keys(const struct row *row, uint64_t keys[ROWS_MOST_PLAIN])
{
    dictionary_hashes(row->raw, row->raw_size, row->plain, keys);
}

/* Rows later than the time that all but the share are not later than. */
bool split_settle_test(struct split *split, struct error *error)
{
    const double share = 1 - split->test_share;
    double time = 0;
    if (split->times.count > 0 && !sample_quantile(&split->times, 0, &share, 1, &time)) {
        return error_set(error, "out of memory for the times of the rows");
    }
    split->test_limit = split->times.count > 0 ? key_of_time(time) : 0;
    sample_free(&split->times);
    return true;
}

/* Another hash, so that the rows held out for validation are independent of those for the test; by time the same. */
static uint64_t validation_key(const struct split *split, uint64_t key)
{
    return split->is_by_time ? key : wide_mix(key ^ VALIDATION_MIX, VALIDATION_MIX);
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

bool split_is_test(const struct split *split, uint64_t key)
{
    return split->test_share > 0 && key < split->test_limit;
}

bool split_show(struct split *split, const struct row *row, uint64_t shown, struct error *error)
{
    split->digest += split->column < 0 ? shown : fingerprint_of_row(row->raw, row->raw_size);
    if (split_is_test(split, shown)) {
        split->test_rows++;
        return true;
    }
    split->rows++;
    const uint64_t key = validation_key(split, shown);
    return split->most == 0 || key >= split->limit || keep_key(split, key, error);
}

bool split_settle(struct split *split, struct error *error)
{
    const int64_t share = split->rows * split->percent / 100;
    const int64_t wanted = split->percent > 0 && share < split->most ? share : split->most;
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
           error_set(error, "data.%s has more than the %lld rows to hold out for validation; raise --validation_size",
                     split->is_by_time ? "time: the latest time" : "group: one group", (long long)wanted);
}

enum dataset_part split_part(const struct split *split, uint64_t key)
{
    return split_is_test(split, key)                              ? DATASET_TEST
           : validation_key(split, key) < split->validation_limit ? DATASET_VALIDATION
                                                                  : DATASET_TRAIN;
}
