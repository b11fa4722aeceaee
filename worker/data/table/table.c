/*
 * Two passes over the same files, which must not change in between: if the rows differ, the error says that the file
 * has changed.
 */
#include "worker/data/table/table.h"

#include <assert.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config/keys.h"
#include "base/file.h"
#include "base/log.h"
#include "worker/data/fingerprint.h"
#include "worker/data/names.h"
#include "worker/data/table/encode.h"
#include "worker/data/table/rows.h"
#include "worker/data/table/split.h"
#include "worker/data/table/spool.h"
#include "worker/data/table/survey_schema.h"
#include "worker/data/table/weights.h"

enum { MOST_WARNINGS = 10 };

/* --- files --- */

/* Whether set explicitly or not: a config file may list all keys. */
static bool is_default(const struct config *config, const char *name)
{
    return config_key_is_default(config_key_by_path("data", name), config);
}

static bool has_ending(const char *name)
{
    static const char *const patterns[] = {"*.csv",       "*.tsv",         "*.npy",       "*.npz",
                                           "*.csv.gz",    "*.tsv.gz",      "*.npy.gz",    "*.tfrecord",
                                           "*.tfrecords", "*.tfrecord.gz", "*.tfrecord-*"};
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        if (fnmatch(patterns[i], name, FNM_CASEFOLD) == 0) {
            return true;
        }
    }
    return false;
}

/* Tables of one's own are called anything: these are the parts' names, in any case. */
static bool is_test_name(const char *name)
{
    return fnmatch("test*", name, FNM_CASEFOLD) == 0;
}

static bool is_train_name(const char *name)
{
    return fnmatch("train*", name, FNM_CASEFOLD) == 0;
}

static bool is_no_test_name(const char *name)
{
    return !is_test_name(name);
}

static int count_tables(const struct names *names, bool (*test)(const char *name))
{
    int count = 0;
    for (int i = 0; i < names->count; i++) {
        count += has_ending(names->items[i]) && test(names->items[i]);
    }
    return count;
}

static void keep_tables(struct names *names, bool (*test)(const char *name))
{
    int kept = 0;
    for (int i = 0; i < names->count; i++) {
        if (has_ending(names->items[i]) && test(names->items[i])) {
            names->items[kept++] = names->items[i];
        } else {
            free(names->items[i]);
        }
    }
    names->count = kept;
}

static const char *part_key(enum dataset_part part)
{
    return part == DATASET_TEST ? "test_files" : "train_files";
}

static bool copy_names(struct names *names, const struct string_list *list, struct error *error)
{
    bool done = true;
    *names = (struct names){.count = 0};
    for (int i = 0; done && i < list->count; i++) {
        done = names_add(names, list->items[i]);
    }
    return done || error_set(error, "out of memory for the names of %d files", list->count);
}

/* Has the first of the files a target? One that can't be read is reported where it is needed. */
static bool have_target(const struct names *names, const struct config_data *data)
{
    char path[DATA_MAX_PATH];
    struct rows *rows = NULL;
    struct error ignored;
    if (names->count == 0 || data->target.count == 0 || survey_learns_inputs(data) ||
        !file_join(path, sizeof path, data->data_dir, names->items[0], &ignored) ||
        !rows_open(&rows, path, data, &ignored)) {
        return true;
    }
    bool has_target = false;
    for (int i = 0; i < data->target.count; i++) {
        has_target |= rows_find_column(rows, data->target.items[i]) >= 0;
    }
    rows_close(rows);
    return has_target;
}

/*
 * The configured pattern if one was set. Otherwise to test with: the tables whose names begin with test, unless they
 * lack the target, as rows to be predicted do; to train on: those whose names begin with train, or if there are none,
 * all others than the former.
 */
static bool list_files(struct names *names, const struct config *config, enum dataset_part part, struct error *error)
{
    const bool is_test = part == DATASET_TEST;
    if (config->data.round_files && !is_test) {
        return copy_names(names, config->data.round_files, error);
    }
    const bool is_usual = is_default(config, part_key(part));
    const char *pattern = is_usual ? "*" : is_test ? config->data.test_files : config->data.train_files;
    if (!names_list(names, config->data.data_dir, pattern, error)) {
        return false;
    }
    if (is_usual) {
        keep_tables(names, is_test                                  ? is_test_name
                           : count_tables(names, is_train_name) > 0 ? is_train_name
                                                                    : is_no_test_name);
    }
    if (is_usual && is_test && !have_target(names, &config->data)) {
        names_free(names);
    }
    return true;
}

/* Where nobody has named them: which files are for training, or which are for nothing, such as val.csv. */
static void say_files(const struct names *names, const struct config *config)
{
    struct names all = {.count = 0};
    struct error ignored;
    char listed[96] = "";
    int others = 0;
    if (!is_default(config, "train_files") || config->data.round_files) {
        return;
    }
    if (count_tables(names, is_train_name) == 0) {
        log_info("no file is called train*: training on %s%s", names->count == 1 ? names->items[0] : "all tables of ",
                 names->count == 1 ? "" : config->data.data_dir);
        return;
    }
    const bool has_test =
        !is_default(config, "test_files") || !list_files(&all, config, DATASET_TEST, &ignored) || all.count > 0;
    names_free(&all);
    const bool is_listed = names_list(&all, config->data.data_dir, "*", &ignored);
    for (int i = 0; is_listed && i < all.count; i++) {
        const char *name = all.items[i];
        const bool is_used = is_train_name(name) || (is_test_name(name) && is_default(config, "test_files"));
        if (has_ending(name) && !is_used) {
            const size_t used = strlen(listed);
            snprintf(listed + used, sizeof listed - used, "%s%.40s", used > 0 ? ", " : "", name);
            others++;
        }
    }
    if (!has_test && count_tables(&all, is_test_name) > 0) {
        log_warning("%s: the files test* have no column %.64s, so they are rows to predict rather than to test with: a "
                    "share of train* is held out instead (--test_share)",
                    config->data.data_dir, config->data.target.items[0]);
    }
    names_free(&all);
    if (others > 0 && is_default(config, "test_files")) {
        log_info("%s: %d other table%s not used (%s); the rows to validate with are held out of train* "
                 "(--validation_size), and --train_files and --test_files name other files",
                 config->data.data_dir, others, others == 1 ? " is" : "s are", listed);
    }
}

bool table_list_train(struct names *names, const struct config *config, struct error *error)
{
    return list_files(names, config, DATASET_TRAIN, error);
}

/* Files that are named may have any ending, where a target says that they are tables. */
bool table_files_exist(bool *exist, const struct config *config, enum dataset_part part, struct error *error)
{
    struct names names;
    const bool is_named = config->data.target.count > 0 && !is_default(config, part_key(part));
    const bool done = list_files(&names, config, part, error);
    *exist = false;
    for (int i = 0; done && i < names.count && !*exist; i++) {
        *exist = is_named || has_ending(names.items[i]);
    }
    names_free(&names);
    return done;
}

/* --- passes --- */

/* The actions of a pass on the files and their rows. begin: a file has been opened. */
struct table_pass {
    bool (*begin)(struct table_pass *pass, const struct rows *rows, struct error *error);
    /* *bad: the row has an error; it may be skipped. */
    bool (*take)(struct table_pass *pass, const struct rows *rows, const struct row *row, bool *bad,
                 struct error *error);
    /*
     * NULL, or the same for plain rows from this one on. *taken: how many it took; if not all, the last of them is bad,
     * or it fails.
     */
    bool (*take_plain)(struct table_pass *pass, const struct rows *rows, const struct row *row, int *taken, bool *bad,
                       struct error *error);
    void (*end)(struct table_pass *pass, const struct rows *rows); /* NULL, or after a file */
    const struct config *config;
    const char *folder; /* NULL: names are paths */
    const struct names *names;
    bool reports_bad; /* logs the rows that it skips: the last pass does */
    int64_t bad;
};

/* Counts a bad row; false if it is one too many. */
static bool skip_row(struct table_pass *pass, struct error *error)
{
    if (pass->bad++ >= pass->config->data.max_bad_records) {
        return false;
    }
    if (pass->reports_bad && pass->bad <= MOST_WARNINGS) {
        log_warning("%s; the row is skipped", error->text);
    }
    return true;
}

/* The row, and those after it that are taken with it. */
static bool take_rows(struct table_pass *pass, struct rows *rows, const struct row *row, bool *bad, struct error *error)
{
    if (!pass->take_plain || row->plain == 0 || pass->config->data.missing.count > 0) {
        return pass->take(pass, rows, row, bad, error);
    }
    int taken = 1;
    const bool done = pass->take_plain(pass, rows, row, &taken, bad, error);
    rows_skip(rows, taken - 1);
    return done;
}

/* A spreadsheet's rows below the last one: fields, but nothing in them. */
static bool is_blank(const struct row *row)
{
    for (int i = 0; row->fields && i < row->count; i++) {
        size_t size = row->fields[i].size;
        csv_trim(row->fields[i].text, &size);
        if (size > 0) {
            return false;
        }
    }
    return row->fields && row->count > 1;
}

/* What was left out of a file, once it has been read. */
static void log_note(struct table_pass *pass, const struct rows *rows)
{
    (void)pass;
    char note[ROWS_NOTE];
    rows_note(rows, note);
    if (note[0] != '\0') {
        log_warning("%s: %s", rows_name(rows), note);
    }
}

static bool read_rows(struct table_pass *pass, struct rows *rows, struct error *error)
{
    for (;;) {
        struct row row;
        const enum csv_status status = rows_next(rows, &row, error);
        if (status == CSV_END && pass->end) {
            pass->end(pass, rows);
        }
        if (status == CSV_END || status == CSV_FAILED) {
            return status == CSV_END;
        }
        bool bad = status == CSV_BAD;
        if (!bad && is_blank(&row)) {
            continue;
        }
        if (!bad && !take_rows(pass, rows, &row, &bad, error) && !bad) {
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
        const bool done = rows_open(&rows, pass->folder ? path : name, &pass->config->data, error) &&
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

static bool begin_survey(struct table_pass *pass, const struct rows *rows, struct error *error)
{
    struct survey_pass *self = (struct survey_pass *)pass;
    if (self->has_begun && self->survey->rows > 0) {
        survey_next_file(self->survey);
    }
    if (self->has_begun) {
        return same_columns(self->survey, rows, error);
    }
    self->has_begun = true;
    return (!self->split || split_find_column(self->split, rows, pass->config, error)) &&
           survey_begin(self->survey, rows, pass->config, self->counts_all, error);
}

static void keep_note(struct table_pass *pass, const struct rows *rows)
{
    struct survey *survey = ((struct survey_pass *)pass)->survey;
    if (survey->note[0] == '\0') {
        rows_note(rows, survey->note);
    }
}

static bool take_into_survey(struct table_pass *pass, const struct rows *rows, const struct row *row, bool *bad,
                             struct error *error)
{
    struct survey_pass *self = (struct survey_pass *)pass;
    uint64_t key = 0;
    *bad = !survey_accepts(self->survey, rows, row, error) ||
           (self->split && !split_key(self->split, rows, row, &key, error));
    if (*bad || (self->split && !split_show(self->split, row, key, error))) {
        return false;
    }
    return (self->split && split_is_test(self->split, key)) || survey_add(self->survey, rows, row, error);
}

/* Plain rows have no error that a survey detects. */
static bool take_plain_into_survey(struct table_pass *pass, const struct rows *rows, const struct row *row, int *taken,
                                   bool *bad, struct error *error)
{
    struct survey_pass *self = (struct survey_pass *)pass;
    struct split *split = self->split;
    uint64_t keys[ROWS_MOST_PLAIN];
    int places[ROWS_MOST_PLAIN], count = 0;
    if (split && split->column >= 0) {
        return take_into_survey(pass, rows, row, bad, error);
    }
    *taken = row->plain;
    if (split) {
        split_keys(split, row, keys);
    }
    for (int i = 0; i < row->plain; i++) {
        const struct row one = row_behind(row, i);
        if (split && !split_show(split, &one, keys[i], error)) {
            return false;
        }
        if (!split || !split_is_test(split, keys[i])) {
            places[count++] = i;
        }
    }
    return survey_add_plain(self->survey, rows, row, places, count, error);
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
                                        .take_plain = take_plain_into_survey,
                                        .end = keep_note,
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

/* --- rows' times --- */

struct time_pass {
    struct table_pass pass;
    struct split *split;
};

static bool begin_times(struct table_pass *pass, const struct rows *rows, struct error *error)
{
    return split_find_column(((struct time_pass *)pass)->split, rows, pass->config, error);
}

static bool take_time(struct table_pass *pass, const struct rows *rows, const struct row *row, bool *bad,
                      struct error *error)
{
    struct split *split = ((struct time_pass *)pass)->split;
    uint64_t key;
    *bad = !split_key(split, rows, row, &key, error);
    return !*bad && split_sample(split, key, error);
}

/* If rows are held out by time: a pass over only the times, to find the latest. */
static bool sample_times(struct split *split, const struct names *names, const struct config *config,
                         struct error *error)
{
    struct time_pass self = {.pass = {.begin = begin_times,
                                      .take = take_time,
                                      .config = config,
                                      .folder = config->data.data_dir,
                                      .names = names},
                             .split = split};
    return config->data.time[0] == '\0' || split->test_share == 0 ||
           (run_pass(&self.pass, error) && split_settle_test(split, error));
}

/* --- encoding --- */

struct encode_pass {
    struct table_pass pass;
    struct encoder encoder;
    const struct schema *schema;
    struct split *split; /* NULL: all rows are for the test */
    uint64_t limit;      /* bytes that a set may take */
    /* Rows to train on; NULL: not wanted. Those held out come first, then as many others as fit. */
    struct examples *train;
    int held_out, next_held_out;
    int64_t next;        /* of the others, seen so far */
    struct spool *spool; /* takes the others; NULL: all fit */
    struct examples one; /* for the spool, and to look at */
    struct weights *weights;
    /* Rows to test with; NULL: not wanted. Room grows. */
    struct examples *test;
    int room;
    int64_t unseen;       /* of them that are left out, as training has none of their class */
    char unseen_name[64]; /* of the first */
};

static bool begin_encoding(struct table_pass *pass, const struct rows *rows, struct error *error)
{
    struct encode_pass *self = (struct encode_pass *)pass;
    encoder_end(&self->encoder);
    return (!self->split || split_find_column(self->split, rows, pass->config, error)) &&
           encoder_begin(&self->encoder, self->schema, rows, true, error);
}

/* Makes room for one more test row. */
static bool make_room(struct encode_pass *self, const struct rows *rows, struct error *error)
{
    struct examples *test = self->test;
    if (test->count < self->room) {
        return true;
    }
    struct examples larger;
    const int room = self->room > (INT32_MAX - 1024) / 2 ? INT32_MAX : 2 * self->room + 1024;
    if ((uint64_t)room * examples_bytes(test) > self->limit) {
        return error_set(error,
                         "%s: the rows to test with do not fit into %llu MiB (data.memory_mb); raise --memory_mb, or "
                         "use fewer%s",
                         rows_name(rows), (unsigned long long)(self->limit >> 20),
                         self->split ? " (--test_share)" : "");
    }
    if (!examples_create(&larger, test, room)) {
        return error_set(error, "out of memory for %d rows of %d inputs", room, test->inputs);
    }
    examples_copy(&larger, 0, test, 0, test->count);
    larger.count = test->count;
    examples_free(test);
    *test = larger;
    self->room = room;
    return true;
}

static bool say_changed(const struct rows *rows, struct error *error)
{
    return error_set(error, "%s: has changed while it was read", rows_name(rows));
}

static bool has_rows(const struct examples *test, const char *name, struct error *error)
{
    return test->count > 0 ||
           error_set(
               error,
               "%s: has no rows to test with (without files test*, data.test_share holds some out): add rows, name "
               "--test_files, or set --test_share=0",
               name);
}

static bool take_for_test(struct encode_pass *self, const struct rows *rows, const struct row *row, bool *bad,
                          struct error *error)
{
    if (!self->test) {
        return true;
    }
    if (self->split && !encoder_knows_class(&self->encoder, row, self->unseen_name, sizeof self->unseen_name)) {
        self->unseen++; /* the program chose the row, so it is no fault of the file */
        return true;
    }
    if (!make_room(self, rows, error)) {
        return false;
    }
    *bad = !encoder_add(&self->encoder, rows, row, self->test, self->test->count, error);
    self->test->count += !*bad;
    return !*bad;
}

/* One more than there should be: the survey has not counted it as it is bad, or it is new. */
static bool take_unexpected(struct encode_pass *self, const struct rows *rows, const struct row *row, bool *bad,
                            struct error *error)
{
    *bad = !encoder_add(&self->encoder, rows, row, &self->one, 0, error);
    return !*bad && say_changed(rows, error);
}

static bool take_held_out(struct encode_pass *self, const struct rows *rows, const struct row *row, bool *bad,
                          struct error *error)
{
    if (self->next_held_out == self->held_out) {
        return take_unexpected(self, rows, row, bad, error);
    }
    *bad = !encoder_add(&self->encoder, rows, row, self->train, self->next_held_out, error);
    self->next_held_out += !*bad;
    return !*bad;
}

/* A row after those that stay in memory. */
static bool take_into_spool(struct encode_pass *self, const struct rows *rows, const struct row *row, bool *bad,
                            struct error *error)
{
    *bad = !encoder_add(&self->encoder, rows, row, &self->one, 0, error);
    if (*bad || !spool_add(self->spool, &self->one, 0, error)) {
        return false;
    }
    if (self->held_out + self->next < self->train->count) {
        examples_copy(self->train, self->held_out + (int)self->next, &self->one, 0, 1);
    }
    weights_count(self->weights, &self->one, 0);
    self->next++;
    return true;
}

static bool take_for_training(struct encode_pass *self, const struct rows *rows, const struct row *row, bool *bad,
                              struct error *error)
{
    if (self->spool) {
        return take_into_spool(self, rows, row, bad, error);
    }
    const int64_t index = self->held_out + self->next;
    if (index >= self->train->count) {
        return take_unexpected(self, rows, row, bad, error);
    }
    *bad = !encoder_add(&self->encoder, rows, row, self->train, (int)index, error);
    if (!*bad) {
        weights_count(self->weights, self->train, (int)index);
        self->next++;
    }
    return !*bad;
}

static bool take_into_part(struct encode_pass *self, enum dataset_part part, const struct rows *rows,
                           const struct row *row, bool *bad, struct error *error)
{
    if (part == DATASET_TEST) {
        return take_for_test(self, rows, row, bad, error);
    }
    if (!self->train) {
        return true;
    }
    return part == DATASET_VALIDATION ? take_held_out(self, rows, row, bad, error)
                                      : take_for_training(self, rows, row, bad, error);
}

static bool take_into_examples(struct table_pass *pass, const struct rows *rows, const struct row *row, bool *bad,
                               struct error *error)
{
    struct encode_pass *self = (struct encode_pass *)pass;
    uint64_t key = 0;
    *bad = self->split && !split_key(self->split, rows, row, &key, error);
    return !*bad &&
           take_into_part(self, self->split ? split_part(self->split, key) : DATASET_TEST, rows, row, bad, error);
}

static bool take_plain_into_examples(struct table_pass *pass, const struct rows *rows, const struct row *row,
                                     int *taken, bool *bad, struct error *error)
{
    struct encode_pass *self = (struct encode_pass *)pass;
    uint64_t keys[ROWS_MOST_PLAIN];
    if (self->split && self->split->column >= 0) {
        return take_into_examples(pass, rows, row, bad, error);
    }
    if (self->split) {
        split_keys(self->split, row, keys);
    }
    for (*taken = 1; *taken <= row->plain; ++*taken) {
        const int i = *taken - 1;
        const struct row one = row_behind(row, i);
        const enum dataset_part part = self->split ? split_part(self->split, keys[i]) : DATASET_TEST;
        if (!take_into_part(self, part, rows, &one, bad, error)) {
            return false;
        }
    }
    *taken = row->plain;
    return true;
}

static struct table_pass pass_of_encoding(const struct config *config, const char *folder, const struct names *names)
{
    return (struct table_pass){.begin = begin_encoding,
                               .take = take_into_examples,
                               .take_plain = take_plain_into_examples,
                               .end = log_note,
                               .reports_bad = true,
                               .config = config,
                               .folder = folder,
                               .names = names};
}

static void report_unseen(const struct encode_pass *self)
{
    if (self->unseen > 0) {
        log_warning("%lld of the rows held out for the test %s of a class that training has no row of (\"%s\"%s); "
                    "they are left out of the test",
                    (long long)self->unseen, self->unseen == 1 ? "is" : "are", self->unseen_name,
                    self->unseen == 1 ? "" : ", ...");
    }
}

/* Weights of test rows are their own, and 1 on average. name: of the data. */
static bool weigh_test(struct examples *test, const struct schema *schema, const char *name, struct error *error)
{
    struct weights weights;
    bool done = weights_begin(&weights, schema, "", error);
    for (int row = 0; done && row < test->count; row++) {
        weights_count(&weights, test, row);
    }
    done = done && weights_settle(&weights, name, error);
    if (done) {
        weights_apply(&weights, test, 0);
    }
    weights_free(&weights);
    return done;
}

/* --- training --- */

/* The first pass or two: what the columns contain, and which rows are held out. The caller calls survey_free. */
static bool survey_rows(struct survey *survey, struct split *split, const struct names *names,
                        const struct config *config, struct error *error)
{
    struct survey_pass surveying = {.pass = {.begin = begin_survey,
                                             .take = take_into_survey,
                                             .take_plain = take_plain_into_survey,
                                             .config = config,
                                             .folder = config->data.data_dir,
                                             .names = names},
                                    .survey = survey,
                                    .split = split};
    bool again = sample_times(split, names, config, error);
    bool done = again;
    while (again && done) {
        done =
            survey_files(&surveying, error) && split_revise(split, survey_has_classes(survey, config), &again, error);
        if (done && again) {
            survey_forget(survey);
        }
    }
    return done && split_settle(split, error);
}

/* Examples as the schema makes them, for training. */
static struct examples training_shape(const struct schema *schema, const struct config *config)
{
    struct examples like = encoder_shape(schema);
    like.is_weighted |= config->train.class_weights[0] != '\0';
    return like;
}

/* Do so many rows stay in the files? */
static bool is_too_large(const struct schema *schema, int64_t rows, uint64_t limit, const struct config *config)
{
    const struct examples like = training_shape(schema, config);
    return (uint64_t)rows * examples_bytes(&like) > limit;
}

/* Several nets need all rows in memory; where nobody has asked for them, and rows don't fit, there is one. */
static bool survey_train(struct schema *schema, struct split *split, uint64_t limit, const struct names *names,
                         const struct config *config, struct error *error)
{
    struct survey survey = {.count = 0};
    bool done = survey_rows(&survey, split, names, config, error) &&
                survey_schema(&survey, config, config->data.data_dir, schema, error);
    survey_free(&survey);
    const bool is_chosen = config_was_chosen(config, "model", "ensemble");
    if (done && is_chosen && schema->encoding == ENCODING_BOTH && is_too_large(schema, split->rows, limit, config)) {
        done = schema_take_raw(schema, error);
    }
    return done;
}

/* With a given schema only the rows to hold out must be found, and the bad ones. */
struct known_pass {
    struct table_pass pass;
    struct encoder encoder;
    const struct schema *schema;
    struct split *split;
    struct examples one;
    bool only_tests; /* faults of other rows don't matter: these only have no part in the choice */
};

static bool begin_known(struct table_pass *pass, const struct rows *rows, struct error *error)
{
    struct known_pass *self = (struct known_pass *)pass;
    encoder_end(&self->encoder);
    return split_find_column(self->split, rows, pass->config, error) &&
           encoder_begin(&self->encoder, self->schema, rows, true, error);
}

static bool take_known(struct table_pass *pass, const struct rows *rows, const struct row *row, bool *bad,
                       struct error *error)
{
    struct known_pass *self = (struct known_pass *)pass;
    uint64_t key;
    *bad = !split_key(self->split, rows, row, &key, error);
    if (*bad) {
        return false;
    }
    if (!split_is_test(self->split, key) && !encoder_add(&self->encoder, rows, row, &self->one, 0, error)) {
        *bad = !self->only_tests;
        return !*bad;
    }
    return split_show(self->split, row, key, error);
}

/* Which rows of a known schema are held out. */
static bool split_known(const struct schema *schema, struct split *split, const struct names *names,
                        const struct config *config, bool only_tests, struct error *error)
{
    const struct examples like = encoder_shape(schema);
    struct known_pass self = {.pass = {.begin = begin_known,
                                       .take = take_known,
                                       .config = config,
                                       .folder = config->data.data_dir,
                                       .names = names},
                              .schema = schema,
                              .split = split,
                              .only_tests = only_tests};
    if (!examples_create(&self.one, &like, 1)) {
        return error_set(error, "out of memory for a row of %d inputs", like.inputs);
    }
    bool done = sample_times(split, names, config, error), again = true;
    while (done && again) {
        split_begin(split);
        done = run_pass(&self.pass, error) && split_revise(split, schema->task == TASK_CLASS, &again, error);
    }
    done = done && split_settle(split, error);
    encoder_end(&self.encoder);
    examples_free(&self.one);
    return done;
}

static bool split_train(struct schema *schema, struct split *split, const struct names *names,
                        const struct config *config, struct error *error)
{
    return split_known(schema, split, names, config, false, error);
}

/* Where rows go that do not fit into memory. */
static bool choose_cache(char folder[DATA_MAX_PATH], const struct config *config, struct error *error)
{
    const bool keeps_checkpoints = config->cluster.job_name == JOB_LOCAL || config->cluster.task_index == 0;
    const char *temporary = getenv("TMPDIR");
    const char *chosen = config->data.cache_dir[0] != '\0'                          ? config->data.cache_dir
                         : keeps_checkpoints && config->output.train_dir[0] != '\0' ? config->output.train_dir
                         : temporary && temporary[0] != '\0'                        ? temporary
                                                                                    : "/var/tmp";
    return snprintf(folder, DATA_MAX_PATH, "%s", chosen) < DATA_MAX_PATH
               ? file_make_folder(folder, error)
               : error_set(error, "data.cache_dir: its name is too long");
}

/* Memory for the rows that stay there, and a spool for the others. */
static bool make_sets(struct encode_pass *self, const struct overflow *overflow, const struct config *config,
                      struct error *error)
{
    const struct split *split = self->split;
    const struct examples like = training_shape(self->schema, config);
    char folder[DATA_MAX_PATH];
    if (split->rows > INT32_MAX) {
        return error_set(error, "%s: has more than %d rows", config->data.data_dir, INT32_MAX);
    }
    const bool streams = is_too_large(self->schema, split->rows, overflow->limit, config);
    const int64_t sample = (int64_t)self->held_out + overflow->keep - overflow->held_out;
    const int kept = (int)(streams && sample < split->rows ? sample : split->rows);
    if (!examples_create(self->train, &like, kept) || !examples_create(&self->one, &like, 1)) {
        return error_set(error, "out of memory for %d rows of %d inputs", kept, like.inputs);
    }
    return !streams || (choose_cache(folder, config, error) && spool_create(&self->spool, folder, &like, error));
}

/* The last pass, and its consequences. */
static bool encode_train(struct encode_pass *self, struct overflow *overflow, const struct config *config,
                         struct error *error)
{
    const char *folder = config->data.data_dir;
    split_rewind(self->split);
    if (!weights_begin(self->weights, self->schema, config->train.class_weights, error) ||
        !make_sets(self, overflow, config, error) || !run_pass(&self->pass, error)) {
        return false;
    }
    if (self->held_out + self->next != self->split->rows || self->next_held_out != self->held_out) {
        return error_set(error, "%s: its files have changed while they were read", folder);
    }
    if (!weights_settle(self->weights, folder, error)) {
        return false;
    }
    weights_apply(self->weights, self->train, self->held_out);
    split_report(self->split);
    report_unseen(self);
    overflow->keep = self->train->count;
    overflow->held_out = self->held_out;
    overflow->percent = 0;
    struct spool *spool = self->spool;
    self->spool = NULL;
    return (!spool || spool_finish(spool, overflow, self->weights, error)) &&
           (!self->test || self->split->test_share == 0 || has_rows(self->test, folder, error)) &&
           (!self->test || self->test->count == 0 || weigh_test(self->test, self->schema, folder, error));
}

static struct split make_split(const struct config *config, bool has_test_files)
{
    int fold, folds;
    struct error ignored;
    config_parse_fold(config->data.fold, &fold, &folds, &ignored); /* checked with the config */
    return (struct split){.column = -1,
                          .fold = fold,
                          .folds = folds,
                          .target = -1,
                          .is_fixed = config->data.round_files || config->data.tested_files,
                          .test_share = has_test_files ? 0 : config->data.test_share};
}

bool table_read_train(struct examples *examples, struct examples *test, struct schema *schema,
                      struct fingerprint *fingerprint, struct overflow *overflow, const struct config *config,
                      struct error *error)
{
    struct names names;
    bool has_test_files;
    struct weights weights = {.classes = 0};
    struct examples read = {.count = 0}, read_test = {.count = 0};
    const bool is_known = schema->count > 0;
    if (!list_files(&names, config, DATASET_TRAIN, error)) {
        names_free(&names);
        schema_free(schema);
        return false;
    }
    say_files(&names, config);
    bool done = table_files_exist(&has_test_files, config, DATASET_TEST, error);
    struct split split = make_split(config, has_test_files);
    split.most = split.folds > 0 ? INT_MAX - 1 : overflow->held_out;
    split.percent = split.folds > 0 ? 0 : overflow->percent;
    done = done && (is_known ? split_train(schema, &split, &names, config, error)
                             : survey_train(schema, &split, overflow->limit, &names, config, error));
    struct encode_pass encoding = {.pass = pass_of_encoding(config, config->data.data_dir, &names),
                                   .schema = schema,
                                   .split = &split,
                                   .limit = overflow->limit,
                                   .train = &read,
                                   .held_out = split.validation_rows,
                                   .weights = &weights,
                                   .test = test && !has_test_files && !config->data.tested_files ? &read_test : NULL};
    read_test = encoder_shape(schema);
    done = done && encode_train(&encoding, overflow, config, error);
    *fingerprint = (struct fingerprint){
        .count = split.rows + split.test_rows, .held_out = split.validation_rows, .whole = split.digest};
    encoder_end(&encoding.encoder);
    examples_free(&encoding.one);
    spool_destroy(encoding.spool);
    weights_free(&weights);
    split_free(&split);
    names_free(&names);
    if (!done) {
        examples_free(&read);
        examples_free(&read_test);
        schema_free(schema);
        return false;
    }
    *examples = read;
    if (test) {
        *test = read_test;
    }
    return true;
}

bool table_survey_train(struct survey *survey, const struct config *config, struct error *error)
{
    struct names names;
    bool has_test_files;
    *survey = (struct survey){.count = 0};
    if (!list_files(&names, config, DATASET_TRAIN, error)) {
        names_free(&names);
        return false;
    }
    say_files(&names, config);
    bool done = table_files_exist(&has_test_files, config, DATASET_TEST, error);
    struct split split = make_split(config, has_test_files);
    done = done && survey_rows(survey, &split, &names, config, error);
    split_free(&split);
    names_free(&names);
    return done;
}

/* --- test --- */

/* All rows of the files, or those that the split holds out. */
static bool read_test_rows(struct examples *examples, const struct schema *schema, const char *folder,
                           const struct names *names, struct split *split, const struct table_options *options,
                           struct error *error)
{
    struct examples read = encoder_shape(schema);
    const char *name = folder ? folder : names->items[0];
    struct encode_pass encoding = {.pass = pass_of_encoding(options->config, folder, names),
                                   .schema = schema,
                                   .split = split,
                                   .test = &read,
                                   .limit = options->limit};
    bool done = run_pass(&encoding.pass, error);
    encoder_end(&encoding.encoder);
    report_unseen(&encoding);
    done = done && has_rows(&read, name, error) && weigh_test(&read, schema, name, error);
    if (!done) {
        examples_free(&read);
        return false;
    }
    *examples = read;
    return true;
}

/* The files from which test rows are split off. */
static bool list_held_out(struct names *names, const struct config *config, struct error *error)
{
    const struct string_list *tested = config->data.tested_files;
    return tested ? copy_names(names, tested, error) : list_files(names, config, DATASET_TRAIN, error);
}

bool table_read_test(struct examples *examples, const struct schema *schema, const struct table_options *options,
                     struct error *error)
{
    struct names names;
    const char *folder = options->config->data.data_dir;
    struct split split = make_split(options->config, false);
    if (!list_files(&names, options->config, DATASET_TEST, error)) {
        names_free(&names);
        return false;
    }
    bool done = true, is_split = names.count == 0;
    if (is_split) {
        names_free(&names);
        done = list_held_out(&names, options->config, error);
        if (done && names.count == 0) {
            done = error_set(error, "%s: %s; name their folder with --data_dir, or one file after the run", folder,
                             file_exists(folder) ? "holds no files of rows" : "there is no such folder of rows");
        }
        done = done && split_known(schema, &split, &names, options->config, true, error);
        split_rewind(&split);
    }
    done = done && read_test_rows(examples, schema, folder, &names, is_split ? &split : NULL, options, error);
    names_free(&names);
    split_free(&split);
    return done;
}

bool table_read_file(struct examples *examples, const struct schema *schema, const char *path,
                     const struct table_options *options, struct error *error)
{
    char *copy = strdup(path);
    const struct names names = {.items = &copy, .count = 1};
    const bool done = copy ? read_test_rows(examples, schema, NULL, &names, NULL, options, error)
                           : error_set(error, "%s: out of memory while reading it", path);
    free(copy);
    return done;
}
