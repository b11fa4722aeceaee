/*
 * Where the config doesn't say, the data decides: the task by the targets, a column's kind by its texts, its scaling by
 * its figures. Text columns that name rows, and empty ones, are left out; what looks like a mistake is warned about.
 */
#include "worker/data/table/survey_schema.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>

#include "base/config/keys.h"
#include "base/log.h"
#include "base/text/json.h"
#include "worker/data/table/number.h"

enum {
    MOST_CLASSES = 20,  /* more whole numbers are a quantity, such as a count */
    FEW_CLASSES = 3,    /* so few are classes, however few rows there are, */
    ROWS_PER_CLASS = 3, /* and others only if each has this many rows on average */
};

static const double WIDENED = 0.1; /* of the range of training, on either side */

/* --- What a column is --- */

static bool is_class(const struct survey_column *column, int64_t rows)
{
    const int count = column->values.count;
    if (column->is_category || column->numbers.count == 0) {
        return true;
    }
    return column->is_integer && !column->has_too_many && count <= MOST_CLASSES &&
           (count <= FEW_CLASSES || (int64_t)count * ROWS_PER_CLASS <= rows);
}

static bool is_text(const struct survey_column *column)
{
    return column->is_category || column->texts > 0;
}

static bool is_flag(const struct survey_column *column)
{
    return !is_text(column) && column->is_integer && column->minimum >= 0 && column->maximum <= 1;
}

/* --- How it is scaled --- */

/* By median and quartiles, like scikit-learn's RobustScaler. */
static bool find_robust_scale(struct schema_column *to, const struct survey *survey, int column)
{
    static const double shares[] = {0.25, 0.5, 0.75};
    double quantiles[3];
    if (!sample_quantile(&survey->sample, column, shares, 3, quantiles)) {
        return false;
    }
    if (!isnan(quantiles[1])) {
        to->fill = to->center = quantiles[1];
        to->scale = quantiles[2] > quantiles[0] ? quantiles[2] - quantiles[0] : 1;
    }
    return true;
}

static void find_scale(struct schema_column *to, const struct survey_column *from, enum table_scaling scaling)
{
    const double count = (double)from->numbers.count;
    to->fill = from->numbers.count > 0 ? from->numbers.mean : 0;
    if (from->numbers.count == 0 || from->minimum == from->maximum || scaling == SCALING_NONE) {
        to->center = scaling == SCALING_NONE ? 0 : to->fill;
        return;
    }
    if (scaling == SCALING_MINMAX) {
        to->center = from->minimum;
        to->scale = from->maximum - from->minimum;
    } else {
        to->center = from->numbers.mean;
        to->scale = sqrt(from->numbers.squares / count);
    }
    if (to->scale < DBL_MIN) { /* squares of such small numbers are 0 */
        to->scale = from->maximum - from->minimum;
    }
}

/*
 * A number far beyond those of training, such as a mistyped one, would decide the answer alone. Of a column with only
 * one value, whose weights were never trained, nothing else counts.
 */
static void find_range(struct schema_column *to, const struct survey_column *from)
{
    const double margin = WIDENED * (from->maximum - from->minimum);
    if (from->numbers.count > 0 && isfinite(from->minimum - margin) && isfinite(from->maximum + margin)) {
        to->low = from->minimum - margin;
        to->high = from->maximum + margin;
    }
}

/* The quantiles of a sample lie within what all rows had. */
static bool find_edges(struct schema_column *to, const struct survey_column *from, const struct survey *survey,
                       int bins)
{
    double *edges = calloc((size_t)bins + 1, sizeof *edges);
    int count = 0;
    bool done = edges && sample_edges(&survey->sample, (int)(from - survey->columns), bins, edges, &count);
    if (done && count > 1) {
        edges[0] = from->minimum;
        edges[count - 1] = from->maximum;
        done = schema_set_edges(to, edges, count);
    }
    free(edges);
    return done;
}

/* --- Columns --- */

/* 999, -99 and the like. */
static bool is_of_nines(double number)
{
    const double size = fabs(number);
    int64_t nines = 99;
    if (size < 99 || size > 1e9 || trunc(size) < size) {
        return false;
    }
    while (nines < (int64_t)size) {
        nines = 10 * nines + 9;
    }
    return nines == (int64_t)size;
}

/* Numbers or dates far from all others, which people write for none. */
static void warn_of_stand_in(const struct survey_column *column, const char *name)
{
    const bool is_low =
        column->at_minimum > 1 && column->minimum < 0 && column->next_minimum >= 0 && is_of_nines(column->minimum);
    const bool is_high = column->at_maximum > 1 && column->maximum > 99 && is_of_nines(column->maximum) &&
                         2 * column->next_maximum < column->maximum;
    enum { FAR_YEAR = 2999 };
    if (column->calendar && column->calendar->maximum[DATE_YEAR] >= FAR_YEAR) {
        log_warning("%s: column %.64s: has dates up to the year %.0f; if such a date stands for none, name it as it is "
                    "written, such as --missing=9999-12-31",
                    name, column->name, column->calendar->maximum[DATE_YEAR]);
    } else if (!is_text(column) && !column->calendar && (is_low || is_high)) {
        const double number = is_low ? column->minimum : column->maximum;
        log_warning("%s: column %.64s: %lld of its numbers are %.0f, far from all others; if it stands for a missing "
                    "value: --missing=%.0f",
                    name, column->name, (long long)(is_low ? column->at_minimum : column->at_maximum), number, number);
    }
}

/* Columns that are useless, or too good. */
static void warn_of(const struct survey_column *column, const struct survey *survey, const char *name)
{
    enum { FEW_ROWS = 30 };
    const int64_t values = survey->rows - column->missing;
    const bool is_constant = is_text(column) ? column->values.count < 2 : column->minimum == column->maximum;
    if (is_constant && column->missing == 0) {
        log_warning("%s: column %.64s has only one value and teaches nothing", name, column->name);
    } else if (column->same != 0) {
        log_warning("%s: column %.64s equals the target %.64s in every row, which the model will copy; if it is not "
                    "known when predicting, leave it out (--ignore=%.64s)",
                    name, column->name, survey->columns[__builtin_ctzll(column->same)].name, column->name);
    } else if (is_text(column) && (!column->is_category || column->is_mixed) && column->doubt[0] == '\0' &&
               values >= FEW_ROWS && 2 * column->values.count > values) {
        log_warning(
            "%s: column %.64s is read as text, %d different ones in %lld rows, such as \"%.32s\": as categories "
            "they say little of other rows; if they are numbers, write each as one number alone "
            "(--categorical=%.64s or --ignore=%.64s also ends this warning)",
            name, column->name, column->values.count, (long long)values, dictionary_text(&column->values, 0),
            column->name, column->name);
    }
}

static void scale_part(struct schema_part *to, const struct survey_dates *dates, enum table_scaling scaling)
{
    const struct moments *moments = &dates->parts[to->part];
    const double minimum = dates->minimum[to->part], maximum = dates->maximum[to->part];
    to->fill = moments->mean;
    to->low = minimum;
    to->high = maximum;
    to->center = scaling == SCALING_MINMAX ? minimum : scaling == SCALING_NONE ? 0 : moments->mean;
    to->scale = scaling == SCALING_MINMAX ? maximum - minimum
                : scaling == SCALING_NONE ? 1
                                          : sqrt(moments->squares / (double)moments->count);
    if (scaling == SCALING_NONE && to->part == DATE_SECONDS) {
        to->center = minimum; /* seconds since 1970 are beyond the precision of an input */
    }
}

/* The parts that vary. */
static bool add_dates(struct schema *schema, const struct survey_column *column, const struct config_data *data,
                      const char *name)
{
    struct schema_column made = {.part_count = 0};
    for (int i = 0; i < DATE_PARTS; i++) {
        if (column->calendar->maximum[i] > column->calendar->minimum[i]) {
            struct schema_part *part = &made.parts[made.part_count++];
            part->part = (enum date_part)i;
            scale_part(part, column->calendar, data->scaling);
        }
    }
    if (made.part_count == 0) {
        log_warning("%s: column %.64s has only one date; it is left out", name, column->name);
        return true;
    }
    struct schema_column *added = schema_add(schema, column->name, SCHEMA_FEATURE, SCHEMA_DATE);
    if (!added) {
        return false;
    }
    added->may_miss = column->missing > 0;
    added->dates = column->dates;
    added->part_count = made.part_count;
    memcpy(added->parts, made.parts, sizeof added->parts);
    return true;
}

/* A word behind numbers, which are used without it, or zeros in front of them. */
static void log_spelling(const struct survey_column *column, const char *name)
{
    if (notation_has_word(&column->notation)) {
        log_info("%s: column %.64s: numbers with the unit %s", name, column->name, column->notation.unit);
    } else if (column->padded > 0 && !is_text(column) && column->use == USE_FEATURE) {
        log_info(
            "%s: column %.64s: some numbers have zeros in front; if they are codes, --categorical=%.64s makes each "
            "a category",
            name, column->name, column->name);
    }
}

static void warn_of_doubt(const struct survey_column *column, const char *name)
{
    if (column->doubt[0] != '\0') {
        log_warning("%s: column %.64s: %s", name, column->name, column->doubt);
    }
}

static bool add_feature(struct schema *schema, struct survey_column *column, const struct survey *survey,
                        const struct config_data *data, const char *name)
{
    log_spelling(column, name);
    warn_of_doubt(column, name);
    warn_of_stand_in(column, name);
    if (column->is_index) {
        log_warning("%s: column %.64s only identifies the rows; it is left out (--features or --categorical keeps it)",
                    name, column->name);
        return true;
    }
    if (column->missing == survey->rows) {
        log_warning("%s: column %.64s is empty; it is left out", name, column->name);
        return true;
    }
    if (survey_is_name(column, survey->rows)) {
        log_warning(
            "%s: column %.64s has a different text in nearly every row; it is left out (--categorical=%.64s keeps it)",
            name, column->name, column->name);
        return true;
    }
    if (column->dates != DATES_AUTO) {
        return add_dates(schema, column, data, name);
    }
    const bool is_category = is_text(column);
    warn_of(column, survey, name);
    struct schema_column *added =
        schema_add(schema, column->name, SCHEMA_FEATURE, is_category ? SCHEMA_CATEGORY : SCHEMA_NUMBER);
    if (!added) {
        return false;
    }
    added->may_miss = column->missing > 0;
    if (is_category) {
        added->categories = column->values;
        column->values = (struct dictionary){.count = 0};
        return dictionary_settle(&added->categories, data->category_min);
    }
    added->notation = column->notation;
    find_scale(added, column, data->scaling);
    if (schema->encoding != ENCODING_NONE && !find_edges(added, column, survey, data->bins)) {
        return false;
    }
    if (schema->task != TASK_INPUTS) { /* whose error on numbers far away is what people look for */
        find_range(added, column);
    }
    return data->scaling != SCALING_ROBUST || find_robust_scale(added, survey, (int)(column - survey->columns));
}

/* Whether two texts differ only by the case of letters and by blanks. */
static bool are_alike(const char *a, const char *b)
{
    for (;;) {
        while (*a == ' ' || (unsigned char)*a == 0xC2 || (unsigned char)*a == 0xA0) { /* no-break, too */
            a++;
        }
        while (*b == ' ' || (unsigned char)*b == 0xC2 || (unsigned char)*b == 0xA0) {
            b++;
        }
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b)) {
            return false;
        }
        if (*a == '\0') {
            return true;
        }
        a++;
        b++;
    }
}

/* Classes that may be one, or that are hardly any. */
static void warn_of_classes(const struct survey_column *column, int64_t rows, const char *name)
{
    enum { MOST_COMPARED = 256, FEW_ROWS = 30 };
    const struct dictionary *classes = &column->values;
    if (classes->count > MOST_CLASSES && 2 * (int64_t)classes->count > rows && rows >= FEW_ROWS) {
        log_warning("%s: the target %.64s has %d different texts in %lld rows, such as \"%.32s\", each learned as a "
                    "class; to learn a number or a time, write it as one number alone",
                    name, column->name, classes->count, (long long)rows, dictionary_text(classes, 0));
    }
    for (int i = 0; classes->count <= MOST_COMPARED && i < classes->count; i++) {
        for (int j = 0; j < i; j++) {
            if (are_alike(dictionary_text(classes, i), dictionary_text(classes, j))) {
                log_warning("%s: the target %.64s has classes that differ only by upper and lower case or blanks, such "
                            "as \"%.32s\" and \"%.32s\"; if they are one, write them alike",
                            name, column->name, dictionary_text(classes, j), dictionary_text(classes, i));
                return;
            }
        }
    }
}

static bool add_target(struct schema *schema, struct survey_column *column, int64_t rows, const char *name)
{
    const bool has_classes = schema->task == TASK_CLASS;
    if (has_classes && column->texts > 0) {
        warn_of_classes(column, rows, name);
    }
    log_spelling(column, name);
    warn_of_doubt(column, name);
    struct schema_column *added =
        schema_add(schema, column->name, SCHEMA_TARGET, has_classes ? SCHEMA_CATEGORY : SCHEMA_NUMBER);
    if (!added) {
        return false;
    }
    if (has_classes) {
        added->categories = column->values;
        column->values = (struct dictionary){.count = 0};
        return dictionary_settle(&added->categories, 1);
    }
    added->notation = column->notation;
    if (schema->task == TASK_NUMBERS) {
        find_scale(added, column, SCALING_STANDARD);
    }
    return true;
}

/* --- The task --- */

/* A summary of the targets. */
struct targets {
    const struct survey_column *first;
    int count, flags, texts;
};

static struct targets look_at_targets(const struct survey *survey)
{
    struct targets targets = {.count = 0};
    for (int i = 0; i < survey->count; i++) {
        const struct survey_column *column = &survey->columns[i];
        if (column->use == USE_TARGET) {
            targets.first = targets.first ? targets.first : column;
            targets.count++;
            targets.flags += is_flag(column);
            targets.texts += is_text(column);
        }
    }
    return targets;
}

/* The configured loss, or the one that suits the targets. */
static enum schema_task task_of(const struct targets *targets, int64_t rows, enum loss_kind loss)
{
    switch (loss) {
    case LOSS_SOFTMAX:
        return TASK_CLASS;
    case LOSS_SIGMOID:
        return TASK_FLAGS;
    case LOSS_MSE:
    case LOSS_MAE:
    case LOSS_HUBER:
    case LOSS_QUANTILE:
        return TASK_NUMBERS;
    case LOSS_AUTO:
        break;
    }
    if (targets->count == 1) {
        return is_class(targets->first, rows) ? TASK_CLASS : TASK_NUMBERS;
    }
    return targets->flags == targets->count ? TASK_FLAGS : TASK_NUMBERS;
}

static bool check_task(const struct targets *targets, enum schema_task task, const char *name, struct error *error)
{
    const struct survey_column *first = targets->first;
    if (task == TASK_CLASS && targets->count > 1) {
        return error_set(error, "data.target: loss softmax learns one target, and %d are named", targets->count);
    }
    if (task == TASK_CLASS && (first->has_too_many || first->values.count > CONFIG_MAX_WIDTH)) {
        return error_set(error, "%s: the target %.64s has more than %d classes; is it a number (--loss=mse)?", name,
                         first->name, CONFIG_MAX_WIDTH);
    }
    if (task == TASK_CLASS && first->values.count < 2) {
        return error_set(error, "%s: the target %.64s has %d value%s; there is nothing to learn with fewer than 2",
                         name, first->name, first->values.count, first->values.count == 1 ? "" : "s");
    }
    if (task == TASK_FLAGS && targets->flags < targets->count) {
        return error_set(error, "%s: loss sigmoid needs targets of 0 and 1, and not all are", name);
    }
    if (task == TASK_NUMBERS && targets->texts > 0) {
        return error_set(error, "%s: a target is text, and this loss (or several targets) needs numbers", name);
    }
    return true;
}

bool survey_has_classes(const struct survey *survey, const struct config *config)
{
    const struct targets targets = look_at_targets(survey);
    return targets.count > 0 && !survey_learns_inputs(&config->data) &&
           task_of(&targets, survey->rows, config->train.loss) == TASK_CLASS;
}

/* Numbers may be learned either way: the choice, and how to make the other. */
static void report_task(const struct targets *targets, enum schema_task task, enum loss_kind loss)
{
    const struct survey_column *target = targets->first;
    if (loss != LOSS_AUTO || targets->count > 1 || is_text(target) || target->numbers.count == 0) {
        return;
    }
    const bool has_unit = notation_has_word(&target->notation);
    if (target->minimum >= target->maximum) {
        log_warning("target %.64s: is %g in every row, so there is nothing to learn", target->name, target->minimum);
    }
    if (task == TASK_NUMBERS && (target->padded > 0 || (has_unit && target->is_integer))) {
        log_warning("target %.64s: its values are read as numbers%s%s and learned as a quantity (regression); if they "
                    "are codes, --categorical=%.64s learns each as a class, as it is written",
                    target->name, has_unit ? " with the unit " : ", some with zeros in front,",
                    has_unit ? target->notation.unit : "", target->name);
    } else if (task == TASK_CLASS) {
        log_info("target %.64s: its %d whole numbers are learned as classes; --loss=mse learns a number", target->name,
                 target->values.count);
    } else if (target->is_integer && !target->has_too_many) {
        log_info("target %.64s: its whole numbers, %d different ones, are learned as a quantity (regression); "
                 "--loss=softmax learns classes",
                 target->name, target->values.count);
    } else {
        log_info("target %.64s: is learned as a number (regression); --loss=softmax learns classes", target->name);
    }
}

/* For someone who sees the program for the first time: what there is to choose from. */
static bool ask_for_target(const struct survey *survey, const char *name, struct error *error)
{
    enum { MOST = 24 };
    char columns[320] = "";
    size_t used = 0;
    for (int i = 0; i < survey->count && i < MOST && used < sizeof columns; i++) {
        used += (size_t)snprintf(columns + used, sizeof columns - used, "%s%.64s", i > 0 ? ", " : "",
                                 survey->columns[i].name);
    }
    return error_set(error, "%s: is a table; name the column to learn, --target=COLUMN. It has %s%s", name, columns,
                     survey->count > MOST || used >= sizeof columns ? " ..." : "");
}

static bool choose_task(const struct survey *survey, const struct config *config, const char *name,
                        enum schema_task *task, struct error *error)
{
    const struct targets targets = look_at_targets(survey);
    const enum loss_kind loss = config->train.loss;
    if (survey_learns_inputs(&config->data)) {
        *task = TASK_INPUTS;
        return (loss != LOSS_SOFTMAX && loss != LOSS_SIGMOID) ||
               error_set(error, "data.target: loss %s cannot learn the inputs; leave it out, or use mse",
                         config_loss_name(loss));
    }
    if (targets.count == 0) {
        return ask_for_target(survey, name, error);
    }
    *task = task_of(&targets, survey->rows, loss);
    report_task(&targets, *task, loss);
    return check_task(&targets, *task, name, error);
}

/* --- The schema --- */

static bool add_weight(struct schema *schema, const struct survey_column *column)
{
    struct schema_column *added = schema_add(schema, column->name, SCHEMA_WEIGHT, SCHEMA_NUMBER);
    if (added) {
        added->notation = column->notation;
    }
    return added;
}

/* Adds the columns of one use. */
static bool add_columns(struct schema *schema, struct survey *survey, enum survey_use use, const struct config *config,
                        const char *name)
{
    for (int i = 0; i < survey->count; i++) {
        struct survey_column *column = &survey->columns[i];
        bool done = true;
        if (column->use == use) {
            done = use == USE_FEATURE  ? add_feature(schema, column, survey, &config->data, name)
                   : use == USE_TARGET ? add_target(schema, column, survey->rows, name)
                                       : add_weight(schema, column);
        }
        if (!done) {
            return false;
        }
    }
    return true;
}

/* Bins of all numbers beyond which a net on them takes more time than it is worth. */
enum { MOST_BINS = 4096 };

/*
 * Encoded numbers that nobody has asked for are left out where there are none, where they are what is learnt, and where
 * they make too many inputs.
 */
static bool finish(struct schema *schema, bool encoding_is_chosen, struct error *error)
{
    const bool may_drop = encoding_is_chosen && schema->encoding == ENCODING_BOTH;
    const bool is_done = (!may_drop || schema->task != TASK_INPUTS) && schema_finish(schema, error);
    int bins = 0;
    for (int i = 0; is_done && i < schema->piecewise; i++) {
        bins += schema->bins[i];
    }
    const bool has_few = bins > 0 && bins <= MOST_BINS;
    return !may_drop || (is_done && has_few) ? is_done : schema_take_raw(schema, error);
}

bool survey_schema(struct survey *survey, const struct config *config, const char *name, struct schema *schema,
                   struct error *error)
{
    *schema = (struct schema){.encoding = survey->encoding};
    bool done = choose_task(survey, config, name, &schema->task, error);
    if (done) {
        done = add_columns(schema, survey, USE_FEATURE, config, name) &&
               add_columns(schema, survey, USE_TARGET, config, name) &&
               add_columns(schema, survey, USE_WEIGHT, config, name);
        done = done && schema_set_missing(schema, &config->data.missing);
        done = done || error_set(error, "%s: out of memory for its columns", name);
        const bool is_chosen = config_was_chosen(config, "model", "ensemble");
        done = done && (finish(schema, is_chosen, error) || error_wrap(error, "%s", name));
    }
    if (!done) {
        schema_free(schema);
    }
    return done;
}

/* --- The figures as JSON --- */

/*
 * Means and deviations are merged like those of chunks (struct moments). Texts of others are checked whole, then added.
 */

static const double MOST_COUNT = 9007199254740992.0; /* 2^53 */

/* --- writing --- */

/* Printed so that it reads back as the same bits. */
static bool put_double(cJSON *object, const char *name, double number)
{
    char text[32];
    config_number_text(number, text);
    return cJSON_AddRawToObject(object, name, text);
}

static bool put_values(cJSON *object, const struct dictionary *values)
{
    cJSON *texts = cJSON_AddArrayToObject(object, "values"), *counts = cJSON_AddArrayToObject(object, "counts");
    bool done = texts && counts;
    for (int i = 0; done && i < values->count; i++) {
        done = cJSON_AddItemToArray(texts, cJSON_CreateString(dictionary_text(values, i))) &&
               cJSON_AddItemToArray(counts, cJSON_CreateNumber((double)values->entries[i].count));
    }
    return done;
}

/* The parts of dates: count, mean, squares, minimum and maximum of each. */
static bool put_dates(cJSON *object, const struct survey_dates *dates)
{
    cJSON *parts = dates ? cJSON_AddArrayToObject(object, "parts") : NULL;
    for (int i = 0; parts && i < DATE_PARTS; i++) {
        cJSON *part = cJSON_CreateObject();
        const struct moments *moments = &dates->parts[i];
        bool done = cJSON_AddNumberToObject(part, "numbers", (double)moments->count);
        if (moments->count > 0) {
            done = done && put_double(part, "mean", moments->mean) && put_double(part, "squares", moments->squares) &&
                   put_double(part, "minimum", dates->minimum[i]) && put_double(part, "maximum", dates->maximum[i]);
        }
        if (!cJSON_AddItemToArray(parts, part) || !done) {
            return false;
        }
    }
    return parts || !dates;
}

static cJSON *column_json(const struct survey_column *column)
{
    cJSON *object = cJSON_CreateObject();
    bool done = cJSON_AddStringToObject(object, "name", column->name) &&
                cJSON_AddBoolToObject(object, "is_category", column->is_category) &&
                cJSON_AddBoolToObject(object, "is_integer", column->is_integer) &&
                cJSON_AddBoolToObject(object, "has_too_many", column->has_too_many) &&
                cJSON_AddNumberToObject(object, "missing", (double)column->missing) &&
                cJSON_AddNumberToObject(object, "texts", (double)column->texts) &&
                cJSON_AddNumberToObject(object, "numbers", (double)column->numbers.count);
    if (column->numbers.count > 0) {
        done = done && put_double(object, "mean", column->numbers.mean) &&
               put_double(object, "squares", column->numbers.squares) &&
               put_double(object, "minimum", column->minimum) && put_double(object, "maximum", column->maximum);
    }
    char written[NOTATION_TEXT];
    notation_text(&column->notation, written);
    done = done && cJSON_AddStringToObject(object, "notation", written) &&
           cJSON_AddNumberToObject(object, "dates", column->dates) && put_dates(object, column->calendar) &&
           put_values(object, &column->values);
    if (!done) {
        cJSON_Delete(object);
        return NULL;
    }
    return object;
}

char *figures_text(const struct survey *survey)
{
    cJSON *root = cJSON_CreateObject();
    bool done = cJSON_AddNumberToObject(root, "rows", (double)survey->rows);
    cJSON *columns = done ? cJSON_AddArrayToObject(root, "columns") : NULL;
    for (int i = 0; columns && done && i < survey->count; i++) {
        done = survey->columns[i].use == USE_NOTHING || cJSON_AddItemToArray(columns, column_json(&survey->columns[i]));
    }
    char *text = columns && done ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    return text;
}

/* --- merging: twice over the text, first without changing anything --- */

struct merge {
    struct survey *survey;
    bool is_applied; /* the second time */
    bool is_short;   /* of memory */
    int64_t rows;    /* there */
    char *scratch;   /* room for any string of the text */
};

static bool is_true(struct json_value object, const char *name)
{
    return json_member(object, name).kind == JSON_TRUE;
}

static bool to_double(struct json_value value, double *number)
{
    return value.kind == JSON_NUMBER && number_parse(value.text, value.size, number) == NUMBER_FINITE;
}

static bool read_double(struct json_value object, const char *name, double *number)
{
    return to_double(json_member(object, name), number);
}

/* A count that can be added to earlier ones. */
static bool to_count(double number, int64_t before, int64_t *count)
{
    const bool fits = number >= 0 && number <= MOST_COUNT - (double)before && number == floor(number);
    *count = fits ? (int64_t)number : 0;
    return fits;
}

static bool read_count(struct json_value object, const char *name, int64_t before, int64_t *count)
{
    double number;
    return read_double(object, name, &number) && to_count(number, before, count);
}

static bool add_moments(const struct merge *merge, struct moments *to, double *least, double *most,
                        struct json_value object)
{
    struct moments moments = *to;
    int64_t count;
    double mean, squares, minimum, maximum;
    if (!read_count(object, "numbers", moments.count, &count)) {
        return false;
    }
    if (count == 0) {
        return true;
    }
    if (!read_double(object, "mean", &mean) || !read_double(object, "squares", &squares) || squares < 0 ||
        !read_double(object, "minimum", &minimum) || !read_double(object, "maximum", &maximum) || minimum > maximum) {
        return false;
    }
    const double n = (double)count, before = (double)moments.count, all = before + n;
    const double difference = mean - moments.mean;
    moments.squares += squares + difference * difference * before * n / all;
    moments.mean += difference * n / all;
    moments.count += count;
    if (merge->is_applied) {
        *to = moments;
        *least = fmin(*least, minimum);
        *most = fmax(*most, maximum);
    }
    return isfinite(moments.mean) && isfinite(moments.squares); /* numbers may be too far apart for these */
}

static bool add_numbers(const struct merge *merge, struct survey_column *column, struct json_value object)
{
    return add_moments(merge, &column->numbers, &column->minimum, &column->maximum, object);
}

static bool merge_dates(const struct merge *merge, struct survey_dates *dates, struct json_value object)
{
    const struct json_value parts = json_member(object, "parts");
    struct json_walk walk = json_walk(parts);
    struct json_value part;
    int i = 0;
    for (; parts.kind == JSON_ARRAY && json_next(&walk, &part); i++) {
        if (!dates || i == DATE_PARTS ||
            !add_moments(merge, &dates->parts[i], &dates->minimum[i], &dates->maximum[i], part)) {
            return false;
        }
    }
    return !dates || i == DATE_PARTS;
}

/* Numbers and dates are written alike on all machines. */
static bool check_writing(const struct survey_column *column, struct json_value object, struct error *error)
{
    char here[NOTATION_TEXT];
    int64_t dates;
    notation_text(&column->notation, here);
    if (!json_is(json_member(object, "notation"), here)) {
        return error_set(
            error,
            "column %.64s: its numbers are written otherwise on some workers than here (%.64s); write them "
            "in one way, or set --decimal",
            column->name, here);
    }
    return (read_count(object, "dates", 0, &dates) && dates == (int64_t)column->dates) ||
           error_set(error, "column %.64s: its dates are of another order on some workers, or no dates; set --dates",
                     column->name);
}

/* The same as counting each row's value. */
static bool add_value(struct merge *merge, struct survey_column *column, struct json_value text, int64_t times)
{
    const bool has_stopped = column->has_too_many && !column->is_collected;
    if (!merge->is_applied || has_stopped) {
        return true;
    }
    const size_t size = json_unescape(text, merge->scratch);
    merge->is_short = !survey_count(merge->survey, column, merge->scratch, size, times);
    return !merge->is_short;
}

static bool add_values(struct merge *merge, struct survey_column *column, struct json_value object)
{
    const struct json_value values = json_member(object, "values"), counts = json_member(object, "counts");
    struct json_walk walk = json_walk(values), beside = json_walk(counts);
    struct json_value text, count;
    int64_t all = 0;
    while (json_next(&walk, &text)) {
        double number;
        int64_t times;
        if (text.kind != JSON_STRING || !json_next(&beside, &count) || !to_double(count, &number) ||
            !to_count(number, 0, &times) || times < 1 || times > merge->rows - all ||
            !add_value(merge, column, text, times)) {
            return false;
        }
        all += times;
    }
    return values.kind == JSON_ARRAY;
}

static bool holds_text(bool is_category, int64_t texts)
{
    return is_category || texts > 0;
}

/* A column contains numbers or categories on all machines, or is empty. */
static bool kinds_agree(const struct survey_column *column, bool is_category, int64_t texts, int64_t numbers,
                        struct error *error)
{
    const bool has_any = column->is_category || column->texts + column->numbers.count > 0;
    if (!has_any || texts + numbers == 0 ||
        holds_text(column->is_category, column->texts) == holds_text(is_category, texts)) {
        return true;
    }
    return error_set(error,
                     "column %.64s has texts on some workers, and numbers alone on others; if these are categories, "
                     "name it with --categorical",
                     column->name);
}

static bool has_name(const struct merge *merge, const struct survey_column *column, struct json_value name,
                     struct error *error)
{
    const bool is_string = name.kind == JSON_STRING;
    const size_t size = is_string ? json_unescape(name, merge->scratch) : 0;
    merge->scratch[size] = '\0';
    return (is_string && strcmp(merge->scratch, column->name) == 0) ||
           error_set(error, "column %.64s is %.64s there; all workers' files have the same columns", column->name,
                     is_string ? merge->scratch : "nothing");
}

static bool add_column(struct merge *merge, struct survey_column *column, struct json_value object, struct error *error)
{
    const bool is_category = is_true(object, "is_category");
    int64_t missing, texts, numbers;
    if (!has_name(merge, column, json_member(object, "name"), error)) {
        return false;
    }
    if (!read_count(object, "missing", column->missing, &missing) ||
        !read_count(object, "texts", column->texts, &texts) ||
        !read_count(object, "numbers", column->numbers.count, &numbers)) {
        return error_set(error, "column %.64s: its figures are damaged, or too many", column->name);
    }
    if (!kinds_agree(column, is_category, texts, numbers, error) ||
        (texts + numbers > 0 && column->texts + column->numbers.count > 0 && !check_writing(column, object, error))) {
        return false;
    }
    if (merge->is_applied) {
        column->missing += missing;
        column->texts += texts;
        column->is_category |= is_category;
        column->has_too_many |= is_true(object, "has_too_many");
        column->is_integer &= is_true(object, "is_integer");
        column->same = 0; /* a column equal to the target in these rows need not be so in the others */
    }
    return (add_numbers(merge, column, object) && (numbers == 0 || merge_dates(merge, column->calendar, object)) &&
            add_values(merge, column, object)) ||
           error_set(error, "column %.64s: its figures are damaged, or too many for this machine", column->name);
}

static bool merge_columns(struct merge *merge, struct json_value columns, struct error *error)
{
    struct survey *survey = merge->survey;
    struct json_walk walk = json_walk(columns);
    struct json_value object;
    for (int i = 0; i < survey->count; i++) {
        if (survey->columns[i].use == USE_NOTHING) {
            continue;
        }
        if (!json_next(&walk, &object)) {
            return error_set(error, "column %.64s is missing there", survey->columns[i].name);
        }
        if (!add_column(merge, &survey->columns[i], object, error)) {
            return false;
        }
    }
    return !json_next(&walk, &object) || error_set(error, "there are more columns there");
}

enum figures_result figures_merge(struct survey *survey, const char *text, struct error *error)
{
    const size_t size = strlen(text);
    struct merge merge = {.survey = survey, .scratch = malloc(size + 1)};
    struct json_place place;
    if (!merge.scratch) {
        error_set(error, "out of memory for another worker's figures");
        return FIGURES_NO_MEMORY;
    }
    bool done = json_check_bytes(text, size, &place, error);
    const struct json_value root = done ? json_whole(text, size) : (struct json_value){.kind = JSON_NONE};
    done = (done && read_count(root, "rows", survey->rows, &merge.rows)) ||
           error_set(error, "its figures are damaged, or of too many rows");
    done = done && merge_columns(&merge, json_member(root, "columns"), error);
    merge.is_applied = done;
    done = done && merge_columns(&merge, json_member(root, "columns"), error);
    survey->rows += done ? merge.rows : 0;
    free(merge.scratch);
    if (merge.is_short) {
        error_set(error, "out of memory for another worker's figures");
    }
    return done ? FIGURES_MERGED : merge.is_short ? FIGURES_NO_MEMORY : FIGURES_REFUSED;
}
