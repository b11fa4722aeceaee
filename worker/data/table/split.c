/*
 * The rows with the smallest keys are held out. Only as many hashes are kept as may be held out; larger ones are
 * dropped along the way. The test's share is a range of hashes, so that a row's side is known when it is first seen.
 */
#include "worker/data/table/split.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "worker/data/fingerprint.h"
#include "worker/data/table/dictionary.h"
#include "worker/data/table/number.h"
#include "worker/data/table/timestamp.h"
#include "worker/data/table/wide.h"

static const uint64_t VALIDATION_MIX = 0xA0761D6478BD642Fu;

enum {
    SAMPLE_BYTES = 1 << 23,
    MOST_KINDS = 1 << 14,   /* different rows; of more, none can dominate the test */
    MOST_CLASSES = 1 << 12, /* whose last rows are kept */
    ROWS_OF_KIND = 4,       /* as many equal rows on average are common, */
    MOST_PERCENT = 5,       /* and so is a row that makes as much of the table */
    MOST_NAMED = 3,
};

/* --- counting --- */

static void tally_free(struct key_tally *tally)
{
    free(tally->slots);
    *tally = (struct key_tally){.count = 0};
}

/* The counts are 0 again, and the memory stays. */
static void tally_clear(struct key_tally *tally)
{
    for (int i = 0; i < tally->capacity; i++) {
        tally->slots[i].rows = 0;
    }
    tally->count = 0;
    tally->rows = tally->most = 0;
    tally->is_over = false;
}

static struct tally_entry *find_entry(const struct key_tally *tally, uint64_t hash)
{
    uint64_t slot = hash & (uint64_t)(tally->capacity - 1);
    while (tally->slots[slot].rows > 0 && tally->slots[slot].hash != hash) {
        slot = (slot + 1) & (uint64_t)(tally->capacity - 1);
    }
    return &tally->slots[slot];
}

static bool grow(struct key_tally *tally)
{
    struct key_tally larger = {.capacity = tally->capacity > 0 ? 2 * tally->capacity : 1024};
    larger.slots = calloc((size_t)larger.capacity, sizeof *larger.slots);
    for (int i = 0; larger.slots && i < tally->capacity; i++) {
        if (tally->slots[i].rows > 0) {
            *find_entry(&larger, tally->slots[i].hash) = tally->slots[i];
        }
    }
    if (larger.slots) {
        free(tally->slots);
        tally->slots = larger.slots;
        tally->capacity = larger.capacity;
    }
    return larger.slots;
}

/* Counts a hash; NULL if there are `most` others already, or no memory is left for it. */
static struct tally_entry *tally_add(struct key_tally *tally, uint64_t hash, int most)
{
    tally->rows++;
    if (2 * tally->count >= tally->capacity && !grow(tally)) {
        tally->is_over = true;
        return NULL;
    }
    struct tally_entry *entry = find_entry(tally, hash);
    if (entry->rows == 0) {
        if (tally->count == most) {
            tally->is_over = true;
            return NULL;
        }
        tally->count++;
        *entry = (struct tally_entry){.hash = hash, .smallest = UINT64_MAX};
    }
    entry->rows++;
    tally->most = entry->rows > tally->most ? entry->rows : tally->most;
    return entry;
}

static bool are_common(const struct key_tally *kinds)
{
    return kinds->count > 0 && kinds->most > 1 &&
           ((!kinds->is_over && kinds->rows >= ROWS_OF_KIND * (int64_t)kinds->count) ||
            kinds->most * 100 >= kinds->rows * MOST_PERCENT);
}

/* --- keys --- */

void split_begin(struct split *split)
{
    split->limit = UINT64_MAX;
    if (!split->is_by_time) {
        split->test_limit = (uint64_t)(split->test_share * 0x1p64);
        split->test_limit = split->test_limit < split->test_floor ? split->test_floor : split->test_limit;
    }
    split->rows = split->test_rows = split->key_count = 0;
    split->digest = 0;
    split->smallest = UINT64_MAX;
    tally_clear(&split->kinds);
    tally_clear(&split->classes);
}

void split_rewind(struct split *split)
{
    tally_clear(&split->kinds);
}

void split_free(struct split *split)
{
    free(split->keys);
    free(split->kept);
    free(split->kept_validation);
    tally_free(&split->kinds);
    tally_free(&split->classes);
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
    const bool may_be_classes = config->train.loss == LOSS_AUTO || config->train.loss == LOSS_SOFTMAX;
    split->column = name[0] == '\0' ? -1 : rows_find_column(rows, name);
    split->target = may_be_classes && data->target.count == 1 ? rows_find_column(rows, data->target.items[0]) : -1;
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

/* The first of equal rows has the key of its content, so that tables without equal rows are divided by that alone. */
static uint64_t key_of_occurrence(struct split *split, uint64_t hash)
{
    const struct tally_entry *entry = split->by_occurrence ? tally_add(&split->kinds, hash, MOST_KINDS) : NULL;
    const uint64_t occurrence[2] = {hash, entry ? (uint64_t)entry->rows : 1};
    return occurrence[1] > 1 ? dictionary_hash(occurrence, sizeof occurrence) : hash;
}

bool split_key(struct split *split, const struct rows *rows, const struct row *row, uint64_t *key, struct error *error)
{
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    double time;
    if (split->column < 0) {
        *key = key_of_occurrence(split, dictionary_hash(row->raw, row->raw_size));
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

void split_keys(struct split *split, const struct row *row, uint64_t keys[ROWS_MOST_PLAIN])
{
    dictionary_hashes(row->raw, row->raw_size, row->plain, keys);
    for (int i = 0; split->by_occurrence && i < row->plain; i++) {
        keys[i] = key_of_occurrence(split, keys[i]);
    }
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

/* Part 0, 1, ... of the rows that are not for the test. */
static bool is_of_fold(const struct split *split, uint64_t key)
{
    return split->folds == 0 || key % (uint64_t)split->folds == (uint64_t)split->fold - 1;
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

static bool is_kept(const uint64_t *kept, int count, uint64_t key)
{
    return count > 0 && bsearch(&key, kept, (size_t)count, sizeof *kept, by_value);
}

bool split_is_test(const struct split *split, uint64_t key)
{
    return split->test_share > 0 && key < split->test_limit && !is_kept(split->kept, split->kept_count, key);
}

/* --- classes --- */

/* Numbers are the same class however they are written. */
static uint64_t hash_of_class(const struct split *split, const struct row *row)
{
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    double number;
    if (row_plain_number(row, split->target, &number) == NUMBER_FINITE) {
        number = number == 0 ? 0 : number;
        return dictionary_hash(&number, sizeof number);
    }
    const char *text = row_text(row, split->target, buffer, &size);
    return dictionary_hash(text, size);
}

static void count_class(struct split *split, const struct row *row, uint64_t key)
{
    struct tally_entry *entry = tally_add(&split->classes, hash_of_class(split, row), MOST_CLASSES);
    if (!entry) {
        return;
    }
    if (entry->rows == 1) {
        char buffer[ROW_NUMBER_TEXT];
        size_t size;
        const char *text = row_text(row, split->target, buffer, &size);
        snprintf(entry->name, sizeof entry->name, "%.*s", (int)(size < sizeof entry->name ? size : sizeof entry->name),
                 text);
    }
    entry->smallest = key < entry->smallest ? key : entry->smallest;
    entry->largest = key > entry->largest ? key : entry->largest;
    if (!split_is_test(split, key)) {
        const uint64_t validation = validation_key(split, key);
        entry->largest_validation = validation > entry->largest_validation ? validation : entry->largest_validation;
    }
}

static bool keeps_classes(const struct split *split)
{
    return split->column < 0 && !split->is_fixed && split->has_classes && !split->classes.is_over;
}

/* The largest keys of the classes that would be held out as a whole, in order. */
static bool keep_classes(struct split *split, bool of_validation, uint64_t limit, uint64_t **kept, int *count,
                         struct error *error)
{
    free(*kept);
    *count = 0;
    *kept = malloc(((size_t)split->classes.count + 1) * sizeof **kept);
    if (!*kept) {
        return error_set(error, "out of memory for the rows of %d classes", split->classes.count);
    }
    for (int i = 0; i < split->classes.capacity; i++) {
        const struct tally_entry *entry = &split->classes.slots[i];
        const uint64_t largest = of_validation ? entry->largest_validation : entry->largest;
        if (entry->rows > 0 && largest < limit) {
            (*kept)[(*count)++] = largest;
        }
    }
    qsort(*kept, (size_t)*count, sizeof **kept, by_value);
    return true;
}

/* A key below which there is a row for the test that its class can spare; 0: there is none. */
static uint64_t find_floor(const struct split *split)
{
    uint64_t floor = UINT64_MAX;
    if (!keeps_classes(split)) {
        return split->rows + split->test_rows > 1 && split->smallest < UINT64_MAX ? split->smallest + 1 : 0;
    }
    for (int i = 0; i < split->classes.capacity; i++) {
        const struct tally_entry *entry = &split->classes.slots[i];
        if (entry->rows > 1 && entry->smallest < entry->largest && entry->smallest < floor) {
            floor = entry->smallest;
        }
    }
    return floor < UINT64_MAX ? floor + 1 : 0;
}

/* Once it is settled whether equal rows count one by one. */
static bool revise_test(struct split *split, bool *again, struct error *error)
{
    const uint64_t floor = find_floor(split);
    const bool is_empty = keeps_classes(split) ? floor > split->test_limit : split->test_rows == 0;
    if (is_empty) {
        split->test_floor = floor;
        *again = floor > 0;
    }
    const uint64_t limit = is_empty && floor > split->test_limit ? floor : split->test_limit;
    if (!keeps_classes(split)) {
        return true;
    }
    if (!keep_classes(split, false, limit, &split->kept, &split->kept_count, error)) {
        return false;
    }
    *again |= split->kept_count > 0;
    return true;
}

bool split_revise(struct split *split, bool has_classes, bool *again, struct error *error)
{
    *again = false;
    const bool is_revised = split->kept_count > 0 || split->test_floor > 0;
    split->has_classes = has_classes && split->target >= 0;
    if (split->is_fixed || split->is_by_time || is_revised) {
        return true;
    }
    if (split->column < 0 && !split->by_occurrence && are_common(&split->kinds)) {
        split->by_occurrence = *again = true;
        return true;
    }
    return split->test_share == 0 || revise_test(split, again, error);
}

void split_report(const struct split *split)
{
    char names[256] = "";
    int single = 0;
    for (int i = 0; keeps_classes(split) && i < split->classes.capacity; i++) {
        const struct tally_entry *entry = &split->classes.slots[i];
        const bool is_held_back =
            is_kept(split->kept, split->kept_count, entry->largest) ||
            is_kept(split->kept_validation, split->kept_validation_count, entry->largest_validation);
        if (entry->rows == 0 || (entry->rows > 1 && !is_held_back)) {
            continue;
        }
        const size_t used = strlen(names);
        if (single++ < MOST_NAMED) {
            snprintf(names + used, sizeof names - used, "%s\"%s\"", used > 0 ? ", " : "", entry->name);
        }
    }
    if (single == 1) {
        log_warning("class %s has too few rows to hold any out: its last row stays in training", names);
    } else if (single > 1) {
        log_warning("%d classes have too few rows to hold any out (%s%s): the last row of each stays in training",
                    single, names, single > MOST_NAMED ? ", ..." : "");
    }
}

/* --- rows --- */

/* If there are too many kinds, and none is common so far, counting them ends. */
static void count_kind(struct split *split, uint64_t hash)
{
    struct key_tally *kinds = &split->kinds;
    if (kinds->is_over && !kinds->slots) {
        return;
    }
    tally_add(kinds, hash, MOST_KINDS);
    if (kinds->is_over && !are_common(kinds)) {
        tally_free(kinds);
        kinds->is_over = true;
    }
}

bool split_show(struct split *split, const struct row *row, uint64_t shown, struct error *error)
{
    split->digest += split->column < 0 ? shown : fingerprint_of_row(row->raw, row->raw_size);
    split->smallest = shown < split->smallest ? shown : split->smallest;
    if (split->column < 0 && !split->is_fixed && !split->by_occurrence) {
        count_kind(split, shown);
    }
    if (split->column < 0 && split->target >= 0 && !split->classes.is_over) {
        count_class(split, row, shown);
    }
    if (split_is_test(split, shown)) {
        split->test_rows++;
        return true;
    }
    split->rows++;
    const uint64_t key = validation_key(split, shown);
    return split->most == 0 || key >= split->limit || !is_of_fold(split, key) || keep_key(split, key, error);
}

/* A group, or a time, of more rows than the usual share is held out as a whole, if it is not all of them. */
static void hold_out_first(struct split *split)
{
    int count = 0;
    while (count < split->key_count && split->keys[count] == split->keys[0]) {
        count++;
    }
    if (count <= split->most && count < split->rows) {
        split->validation_limit = split->keys[0] + 1;
        split->validation_rows = count;
    }
}

bool split_settle(struct split *split, struct error *error)
{
    const int64_t share = split->rows * split->percent / 100;
    const int64_t wanted = split->percent > 0 && share < split->most ? share : split->most;
    split->validation_limit = 0;
    split->validation_rows = 0;
    if (wanted == 0 || (split->key_count == 0 && split->folds == 0)) {
        return true;
    }
    drop_largest(split);
    split->validation_limit = wanted < split->key_count ? split->keys[wanted] : UINT64_MAX;
    if (keeps_classes(split) && !keep_classes(split, true, split->validation_limit, &split->kept_validation,
                                              &split->kept_validation_count, error)) {
        return false;
    }
    for (int i = 0; i < split->key_count && split->keys[i] < split->validation_limit; i++) {
        split->validation_rows += !is_kept(split->kept_validation, split->kept_validation_count, split->keys[i]);
    }
    if (split->validation_rows == 0 && split->column >= 0 && split->percent > 0) {
        hold_out_first(split);
    }
    if (split->validation_rows == 0 && split->folds > 0) {
        return error_set(error, "data.fold: no %s is in part %d of %d; use fewer parts",
                         split->column < 0 ? "row" : "group", split->fold, split->folds);
    }
    return split->validation_rows > 0 || split->column < 0 ||
           error_set(error, "data.%s has more than the %lld rows to hold out for validation; raise --validation_size",
                     split->is_by_time ? "time: the latest time" : "group: one group", (long long)wanted);
}

static bool is_validation(const struct split *split, uint64_t key)
{
    return key < split->validation_limit && is_of_fold(split, key) &&
           !is_kept(split->kept_validation, split->kept_validation_count, key);
}

enum dataset_part split_part(const struct split *split, uint64_t key)
{
    return split_is_test(split, key)                          ? DATASET_TEST
           : is_validation(split, validation_key(split, key)) ? DATASET_VALIDATION
                                                              : DATASET_TRAIN;
}
