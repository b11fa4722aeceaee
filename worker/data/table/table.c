/*
 * Two passes over the same files, which must be the same both times: a row counts alike in both, or the error says that
 * the file has changed.
 */
#include "worker/data/table/table.h"

#include <assert.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/config/keys.h"
#include "base/file.h"
#include "base/log.h"
#include "worker/data/files.h"
#include "worker/data/names.h"
#include "worker/data/table/encode.h"
#include "worker/data/table/rows.h"
#include "worker/data/table/split.h"
#include "worker/data/table/weights.h"

enum { MOST_WARNINGS = 10 };

/* --- files --- */

static bool is_default(const struct config *config, const char *name)
{
    return !config->origins || config_origin_of(config, config_key_by_path("data", name))->source == SOURCE_DEFAULT;
}

static bool has_ending(const char *name)
{
    static const char *const patterns[] = {"*.csv", "*.tsv", "*.npy", "*.npz", "*.csv.gz", "*.tsv.gz", "*.npy.gz"};
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        if (fnmatch(patterns[i], name, 0) == 0) {
            return true;
        }
    }
    return false;
}

/* The pattern of the config if somebody set it; else all that begins with train or test. */
static bool list_files(struct names *names, const struct config *config, enum dataset_part part, struct error *error)
{
    const bool is_test = part == DATASET_TEST;
    const bool is_usual = is_default(config, is_test ? "test_files" : "train_files");
    const char *pattern = is_usual  ? (is_test ? "test*" : "train*")
                          : is_test ? config->data.test_files
                                    : config->data.train_files;
    if (!names_list(names, config->data.data_dir, pattern, error)) {
        return false;
    }
    int kept = 0;
    for (int i = 0; i < names->count; i++) {
        if (is_usual && !has_ending(names->items[i])) {
            free(names->items[i]);
        } else {
            names->items[kept++] = names->items[i];
        }
    }
    names->count = kept;
    return true;
}

bool table_files_exist(bool *exist, const struct config *config, enum dataset_part part, struct error *error)
{
    struct names names;
    const bool done = list_files(&names, config, part, error);
    *exist = false;
    for (int i = 0; done && i < names.count && !*exist; i++) {
        *exist = has_ending(names.items[i]);
    }
    names_free(&names);
    return done;
}

/* --- passes --- */

/* What a pass does with the files and their rows. begin: a file has been opened. */
struct table_pass {
    bool (*begin)(struct table_pass *pass, const struct rows *rows, struct error *error);
    /* *bad: the row has a fault, which the error says; it may be skipped. */
    bool (*take)(struct table_pass *pass, const struct rows *rows, const struct row *row, bool *bad,
                 struct error *error);
    const struct config *config;
    const char *folder; /* NULL: names are paths */
    const struct names *names;
    bool tells; /* of rows that it skips: the last pass does */
    int64_t bad;
};

/* Counts a row with a fault; false if it is one too many. */
static bool skip_row(struct table_pass *pass, struct error *error)
{
    if (pass->bad++ >= pass->config->data.max_bad_records) {
        return false;
    }
    if (pass->tells && pass->bad <= MOST_WARNINGS) {
        log_warning("%s; the row is skipped", error->text);
    }
    return true;
}

static bool read_rows(struct table_pass *pass, struct rows *rows, struct error *error)
{
    for (;;) {
        struct row row;
        const enum csv_status status = rows_next(rows, &row, error);
        if (status == CSV_END || status == CSV_FAILED) {
            return status == CSV_END;
        }
        bool bad = status == CSV_BAD;
        if (!bad && !pass->take(pass, rows, &row, &bad, error) && !bad) {
            return false;
        }
        if (bad && !skip_row(pass, error)) {
            return false;
        }
    }
}

static bool run_pass(struct table_pass *pass, struct error *error)
{
    pass->bad = 0;
    for (int i = 0; i < pass->names->count; i++) {
        char path[DATA_MAX_PATH];
        struct rows *rows = NULL;
        const char *name = pass->names->items[i];
        if (pass->folder && !file_join(path, sizeof path, pass->folder, name, error)) {
            return false;
        }
        const bool done = rows_open(&rows, pass->folder ? path : name, pass->config->data.header, error) &&
                          pass->begin(pass, rows, error) && read_rows(pass, rows, error);
        rows_close(rows);
        if (!done) {
            return false;
        }
    }
    return true;
}

/* --- the survey --- */

struct survey_pass {
    struct table_pass pass;
    struct survey *survey;
    struct split *split; /* NULL: all rows count */
    bool counts_all, has_begun;
};

/* All files must have the columns of the first. */
static bool same_columns(const struct survey *survey, const struct rows *rows, struct error *error)
{
    for (int i = 0; i < survey->count || i < rows_columns(rows); i++) {
        const char *there = i < survey->count ? survey->columns[i].name : "none";
        const char *here = i < rows_columns(rows) ? rows_column_name(rows, i) : "none";
        if (strcmp(there, here) != 0) {
            return error_set(error,
                             "%s: its column %d is %.64s, and %.64s in the files before it; all files of a table have "
                             "the same columns",
                             rows_name(rows), i + 1, here, there);
        }
    }
    return true;
}

static int find_group(const struct rows *rows, const struct config *config)
{
    return config->data.group[0] == '\0' ? -1 : rows_find_column(rows, config->data.group);
}

static bool begin_survey(struct table_pass *pass, const struct rows *rows, struct error *error)
{
    struct survey_pass *self = (struct survey_pass *)pass;
    if (self->has_begun) {
        return same_columns(self->survey, rows, error);
    }
    self->has_begun = true;
    if (self->split) {
        self->split->column = find_group(rows, pass->config);
    }
    return survey_begin(self->survey, rows, pass->config, self->counts_all, error);
}

static bool take_into_survey(struct table_pass *pass, const struct rows *rows, const struct row *row, bool *bad,
                             struct error *error)
{
    struct survey_pass *self = (struct survey_pass *)pass;
    if (!survey_accepts(self->survey, rows, row, error)) {
        *bad = true;
        return false;
    }
    if (self->split && !split_show(self->split, row, error)) {
        return false;
    }
    return (self->split && split_is_test(self->split, row)) || survey_add(self->survey, rows, row, error);
}

/* Passes over the files until the types are settled: at most twice. */
static bool survey_files(struct survey_pass *self, struct error *error)
{
    bool again = true;
    while (again) {
        if (self->split) {
            split_begin(self->split);
        }
        if (!run_pass(&self->pass, error) ||
            !survey_settle(self->survey, self->pass.config->data.max_bad_records > 0, &again, error)) {
            return false;
        }
    }
    return true;
}

bool table_survey(struct survey *survey, int *files, enum dataset_part part, const struct config *config,
                  struct error *error)
{
    struct names names;
    struct survey_pass self = {.pass = {.begin = begin_survey,
                                        .take = take_into_survey,
                                        .config = config,
                                        .folder = config->data.data_dir,
                                        .names = &names},
                               .survey = survey,
                               .counts_all = true};
    const bool done = list_files(&names, config, part, error) && survey_files(&self, error);
    *files = names.count;
    names_free(&names);
    return done;
}

/* --- encoding --- */

struct encode_pass {
    struct table_pass pass;
    struct encoder encoder;
    const struct schema *schema;
    struct split *split; /* NULL: all rows */
    bool wants_test;     /* of a split, the rows for the test alone */
    struct examples *examples;
    int held_out;            /* rows that are, at the beginning */
    int next_held_out, next; /* places of the next rows */
    int room;                /* rows that there is memory for; grows where `grows` */
    bool grows;
    uint64_t limit;
};

static bool begin_encoding(struct table_pass *pass, const struct rows *rows, struct error *error)
{
    struct encode_pass *self = (struct encode_pass *)pass;
    encoder_end(&self->encoder);
    if (self->split) {
        self->split->column = find_group(rows, pass->config);
    }
    return encoder_begin(&self->encoder, self->schema, rows, true, error);
}

static bool say_too_large(const struct rows *rows, const struct encode_pass *self, struct error *error)
{
    return error_set(error, "%s: its rows do not fit into %llu MiB (data.memory_mb); raise --memory_mb, or use fewer",
                     rows_name(rows), (unsigned long long)(self->limit >> 20));
}

/* Room for one more row. */
static bool make_room(struct encode_pass *self, const struct rows *rows, struct error *error)
{
    if (self->next < self->room) {
        return true;
    }
    if (!self->grows) {
        return error_set(error, "%s: has changed while it was read", rows_name(rows));
    }
    struct examples larger;
    const int room = self->room > (INT32_MAX - 1024) / 2 ? INT32_MAX : 2 * self->room + 1024;
    if ((uint64_t)room * encoder_row_bytes(self->schema) > self->limit) {
        return say_too_large(rows, self, error);
    }
    if (!encoder_allocate(&larger, self->schema, room, true, error)) {
        return false;
    }
    encoder_copy(&larger, self->examples, self->next);
    examples_free(self->examples);
    *self->examples = larger;
    self->room = room;
    return true;
}

static bool take_into_examples(struct table_pass *pass, const struct rows *rows, const struct row *row, bool *bad,
                               struct error *error)
{
    struct encode_pass *self = (struct encode_pass *)pass;
    const enum dataset_part part = self->split ? split_part(self->split, row) : DATASET_TRAIN;
    if ((part == DATASET_TEST) != self->wants_test) {
        return true;
    }
    const bool is_held_out = part == DATASET_VALIDATION;
    if (is_held_out ? self->next_held_out == self->held_out : !make_room(self, rows, error)) {
        return is_held_out ? error_set(error, "%s: has changed while it was read", rows_name(rows)) : false;
    }
    if (!encoder_add(&self->encoder, rows, row, self->examples, is_held_out ? self->next_held_out : self->next,
                     error)) {
        *bad = true;
        return false;
    }
    *(is_held_out ? &self->next_held_out : &self->next) += 1;
    return true;
}

static struct table_pass pass_of_encoding(const struct table_options *options, const char *folder,
                                          const struct names *names)
{
    return (struct table_pass){.begin = begin_encoding,
                               .take = take_into_examples,
                               .tells = true,
                               .config = options->config,
                               .folder = folder,
                               .names = names};
}

/* --- training --- */

static struct split make_split(const struct table_options *options, bool has_test_files)
{
    return (struct split){.column = -1,
                          .test_share = has_test_files ? 0 : options->config->data.test_share,
                          .most = options->held_out,
                          .is_at_most = options->is_at_most};
}

/* Both passes over the training files. */
static bool read_train(struct examples *examples, int *held_out, struct schema *schema, const struct names *names,
                       struct split *split, const struct table_options *options, struct error *error)
{
    const char *folder = options->config->data.data_dir;
    struct survey survey = {.count = 0};
    struct survey_pass surveying = {.pass = {.begin = begin_survey,
                                             .take = take_into_survey,
                                             .config = options->config,
                                             .folder = folder,
                                             .names = names},
                                    .survey = &survey,
                                    .split = split};
    bool done = survey_files(&surveying, error) && split_settle(split, error) &&
                survey_schema(&survey, options->config, folder, schema, error);
    survey_free(&survey);
    if (!done) {
        return false;
    }
    struct encode_pass encoding = {.pass = pass_of_encoding(options, folder, names),
                                   .schema = schema,
                                   .split = split,
                                   .examples = examples,
                                   .held_out = split->validation_rows,
                                   .next = split->validation_rows,
                                   .room = (int)split->rows,
                                   .limit = options->limit};
    if ((uint64_t)split->rows * encoder_row_bytes(schema) > options->limit || split->rows > INT32_MAX) {
        done = error_set(error,
                         "%s: its %lld rows of %d inputs do not fit into %llu MiB (data.memory_mb); raise --memory_mb, "
                         "or use fewer",
                         folder, (long long)split->rows, schema->inputs, (unsigned long long)(options->limit >> 20));
    }
    done = done && encoder_allocate(examples, schema, (int)split->rows, true, error) && run_pass(&encoding.pass, error);
    encoder_end(&encoding.encoder);
    if (done && (encoding.next != (int)split->rows || encoding.next_held_out != split->validation_rows)) {
        done = error_set(error, "%s: its files have changed while they were read", folder);
    }
    *held_out = split->validation_rows;
    return done && weights_settle(examples, *held_out, schema, options->config->train.class_weights, folder, error);
}

bool table_read_train(struct examples *examples, int *held_out, struct schema *schema,
                      const struct table_options *options, struct error *error)
{
    struct names names;
    bool has_test_files;
    struct examples read = {.count = 0};
    *schema = (struct schema){.count = 0};
    if (!list_files(&names, options->config, DATASET_TRAIN, error)) {
        return false;
    }
    bool done = table_files_exist(&has_test_files, options->config, DATASET_TEST, error);
    struct split split = make_split(options, has_test_files);
    done = done && read_train(&read, held_out, schema, &names, &split, options, error);
    split_free(&split);
    names_free(&names);
    if (!done) {
        examples_free(&read);
        schema_free(schema);
        return false;
    }
    *examples = read;
    return true;
}

/* --- test --- */

/* All rows of the files, or those that the split has for the test. */
static bool read_rest(struct examples *examples, const struct schema *schema, const char *folder,
                      const struct names *names, struct split *split, const struct table_options *options,
                      struct error *error)
{
    struct examples read;
    struct encode_pass encoding = {.pass = pass_of_encoding(options, folder, names),
                                   .schema = schema,
                                   .split = split,
                                   .wants_test = split,
                                   .examples = &read,
                                   .grows = true,
                                   .limit = options->limit};
    if (!encoder_allocate(&read, schema, 0, true, error)) {
        return false;
    }
    bool done = run_pass(&encoding.pass, error);
    encoder_end(&encoding.encoder);
    read.count = encoding.next;
    done =
        done && (read.count > 0 || error_set(error, "%s: has no rows to test with", folder ? folder : names->items[0]));
    if (!done || !weights_settle(&read, 0, schema, "", folder ? folder : names->items[0], error)) {
        examples_free(&read);
        return false;
    }
    *examples = read;
    return true;
}

bool table_read_test(struct examples *examples, const struct schema *schema, const struct table_options *options,
                     struct error *error)
{
    struct names names;
    const char *folder = options->config->data.data_dir;
    struct split split = make_split(options, false);
    if (!list_files(&names, options->config, DATASET_TEST, error)) {
        return false;
    }
    bool done = true, is_split = names.count == 0;
    if (is_split) {
        names_free(&names);
        done = list_files(&names, options->config, DATASET_TRAIN, error);
        split_begin(&split);
        if (done && names.count == 0) {
            done = error_set(error,
                             "%s: holds no files of rows; name their folder with --data_dir, or one file: "
                             "`trainer eval RUN FILE`",
                             folder);
        }
    }
    done = done && read_rest(examples, schema, folder, &names, is_split ? &split : NULL, options, error);
    names_free(&names);
    return done;
}

bool table_read_file(struct examples *examples, const struct schema *schema, const char *path,
                     const struct table_options *options, struct error *error)
{
    char *copy = strdup(path);
    const struct names names = {.items = &copy, .count = 1};
    const bool done = copy ? read_rest(examples, schema, NULL, &names, NULL, options, error)
                           : error_set(error, "%s: out of memory while reading it", path);
    free(copy);
    return done;
}
