/* A model is tried before it is swapped in: a damaged or diverged one would answer worse than the old one. */
#include "serve/model.h"

#include <assert.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/encoding/crc32c.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text/text.h"
#include "ps/checkpoint/folder.h"
#include "worker/data/table/encode.h"
#include "worker/data/table/schema.h"
#include "worker/evaluation/kept_rows.h"
#include "worker/export/background.h"
#include "worker/export/outcome.h"

bool served_init(struct served *served, const char *name, const char *source, struct error *error)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const size_t length = strlen(name);
    if (length == 0 || length >= sizeof served->name || strspn(name, allowed) != length || name[0] == '.') {
        return error_set(error, "%.80s: not a model's name; letters, digits, \"-\", \"_\" and \".\", at most %d", name,
                         SERVE_MOST_NAME - 1);
    }
    memcpy(served->name, name, length + 1);
    served->source = source;
    pthread_mutex_init(&served->mutex, NULL);
    return true;
}

/* --- versions --- */

static void version_free(struct version *version)
{
    for (int i = 0; version->engines && i < version->workers; i++) {
        if (version->engines[i]) {
            version->engines[i]->table->destroy(version->engines[i]);
        }
        if (version->wide_engines && version->wide_engines[i]) {
            version->wide_engines[i]->table->destroy(version->wide_engines[i]);
        }
    }
    free(version->engines);
    free(version->wide_engines);
    free(version->by_name);
    drift_end(&version->drift);
    shapley_free(&version->shapley);
    budget_return(version->budget, atomic_load(&version->bytes));
    trained_close(&version->trained);
    free(version);
}

void version_release(struct version *version)
{
    if (version && atomic_fetch_sub(&version->holders, 1) == 1) {
        version_free(version);
    }
}

struct version *served_hold(struct served *served)
{
    pthread_mutex_lock(&served->mutex);
    struct version *version = served->current;
    if (version) {
        atomic_fetch_add(&version->holders, 1);
    }
    pthread_mutex_unlock(&served->mutex);
    return version;
}

struct version *version_hold(struct version *version)
{
    atomic_fetch_add(&version->holders, 1);
    return version;
}

/* Frees versions that nobody holds any more. */
static void free_replaced(struct served *served)
{
    struct version **at = &served->replaced;
    while (*at) {
        struct version *version = *at;
        if (atomic_load(&version->holders) > 1) {
            at = &version->next;
        } else {
            *at = version->next;
            version_release(version);
        }
    }
}

void served_destroy(struct served *served)
{
    free_replaced(served);
    assert(!served->replaced);
    version_release(served->current);
    served->current = NULL;
    pthread_mutex_destroy(&served->mutex);
}

/* --- loading --- */

static struct examples shape_of(const struct version *version)
{
    return version->trained.schema ? encoder_shape(version->trained.schema)
                                   : (struct examples){.height = 1, .width = version_inputs(version)};
}

/* All outputs must be finite for a row of zeros (black, nothing known) and one of ones. */
static bool try_version(struct version *version, struct error *error)
{
    enum { ROWS = 2 };
    const int inputs = version_inputs(version), outputs = version_outputs(version);
    const struct examples like = shape_of(version);
    struct examples rows;
    float *values = malloc((size_t)ROWS * (size_t)outputs * sizeof *values);
    bool done = values && examples_create(&rows, &like, ROWS);
    if (!done) {
        free(values);
        return error_set(error, "%s: out of memory to try it", version->path);
    }
    if (rows.images) {
        memset(rows.images + inputs, 255, (size_t)inputs);
    }
    for (int i = 0; i < rows.numbers; i++) {
        rows.values[rows.numbers + i] = 1;
    }
    for (int i = 0; i < rows.piecewise; i++) {
        rows.positions[rows.piecewise + i] = (float)rows.bins[i];
    }
    struct engine *engine = version->engines[0];
    assert(engine);
    done = engine->table->forward(engine, false, &rows, 0, ROWS, values, error);
    for (int i = 0; done && i < ROWS * outputs; i++) {
        done = isfinite(values[i]) ||
               error_set(error, "%s: gives %g for output %d; it has diverged", version->path, (double)values[i], i);
    }
    examples_free(&rows);
    free(values);
    return done;
}

/* On the rows stored in the checkpoint it must give the answers that it gave where it was trained. */
static bool check_version(struct version *version, struct error *error)
{
    const struct trained *trained = &version->trained;
    const struct examples like = shape_of(version);
    return kept_rows_check(checkpoint_file_info(trained->file)->kept_rows, &trained->model, &like,
                           trained->config.train.precision, version->engines[0], &version->checked_rows, error) ||
           error_wrap(error, "%s", version->path);
}

static bool make_engine(struct version *version, const struct examples *like, struct engine **engine,
                        struct error *error)
{
    const size_t bytes = cpu_engine_most_bytes(&version->trained.model);
    if (!memory_is_free(bytes, version->spare)) {
        return error_set(error,
                         "%s: out of memory: up to %.1f MiB for one of %d engines, beside the %.1f MiB that requests "
                         "may take; use fewer --workers or a smaller --max_memory_mb",
                         version->path, (double)bytes / 0x1p20, version->workers, (double)version->spare / 0x1p20);
    }
    return trained_engine(&version->trained, like, engine, error) || error_wrap(error, "%s", version->path);
}

static bool make_engines(struct version *version, struct error *error)
{
    const size_t count = (size_t)version->workers;
    assert(count > 0);
    version->engines = calloc(count, sizeof(struct engine *));
    version->wide_engines = calloc(count, sizeof(struct engine *));
    if (!version->engines || !version->wide_engines) {
        return error_set(error, "%s: out of memory", version->path);
    }
    for (size_t i = 0; i < count; i++) {
        if (!make_engine(version, NULL, &version->engines[i], error)) {
            return false;
        }
    }
    return true;
}

static size_t parameter_bytes(const struct version *version)
{
    return version->trained.model.float_count * sizeof(float);
}

static bool take_memory(struct version *version, size_t bytes, struct error *error)
{
    if (!budget_reserve(version->budget, bytes)) {
        return error_set(
            error,
            "%s: needs %.1f MiB beside the %.1f MiB already loaded; raise --max_models_mb or use fewer --workers",
            version->path, (double)bytes / 0x1p20, (double)atomic_load(&version->budget->used) / 0x1p20);
    }
    atomic_fetch_add(&version->bytes, bytes);
    return true;
}

struct engine *version_wide_engine(struct version *version, int worker, struct error *error)
{
    const int inputs = version_inputs(version);
    const struct examples rows = {.inputs = inputs, .numbers = inputs};
    struct engine **engine = &version->wide_engines[worker];
    const bool done = *engine || (take_memory(version, parameter_bytes(version), error) &&
                                  make_engine(version, &rows, engine, error));
    return done ? *engine : NULL;
}

/* *rows: gets the reference's, of a table. */
static bool watch_drift(const struct served *served, struct version *version, struct examples *rows,
                        struct error *error)
{
    return drift_begin(&version->drift, &version->trained, error) &&
           (!served->reference || drift_refer(&version->drift, served->reference, version->engines[0], rows, error) ||
            error_wrap(error, "%s", version->path));
}

/* Compares with some of the reference's rows, or else with those stored in the checkpoint, if there are any. */
static bool prepare_to_explain(struct version *version, const struct examples *reference, struct error *error)
{
    const struct trained *trained = &version->trained;
    struct examples rows = {.count = 0};
    if (shapley_obstacle(trained)) {
        return true;
    }
    bool done = (reference->count > 0 ? background_part(&rows, reference, SHAPLEY_BACKGROUND, error)
                                      : background_kept(&rows, trained, error)) ||
                error_wrap(error, "%s", version->path);
    if (done && rows.count > 0) {
        done = take_memory(version, shapley_kept_bytes(trained, &rows), error) &&
               (shapley_make(&version->shapley, trained, &rows, SHAPLEY_SAMPLES, version->engines[0], error) ||
                error_wrap(error, "%s", version->path));
    }
    examples_free(&rows);
    return done;
}

static bool prepare_with_reference(const struct served *served, struct version *version, struct error *error)
{
    struct examples rows = {.count = 0};
    const bool done = watch_drift(served, version, &rows, error) && prepare_to_explain(version, &rows, error);
    examples_free(&rows);
    return done;
}

/* Prometheus, JSON and HTTP are UTF-8: a name that is not is refused here, once, instead of in each of them. */
static bool check_names(const struct version *version, struct error *error)
{
    const struct trained *trained = &version->trained;
    const struct schema *schema = trained->schema;
    char name[OUTCOME_NAME];
    const char *bad = NULL;
    for (int i = 0; !bad && schema && i < schema->count; i++) {
        bad = utf8_check(schema->columns[i].name, strlen(schema->columns[i].name)) ? NULL : schema->columns[i].name;
    }
    for (int i = 0; !bad && outcome_kind(trained) != OUTCOME_ERROR && i < outcome_count(trained); i++) {
        const char *class = outcome_name(trained, i, name);
        bad = utf8_check(class, strlen(class)) ? NULL : class;
    }
    if (bad) {
        char shown[128];
        return error_set(error,
                         "%s: the name %s is not UTF-8; convert the data (iconv -f latin1 -t utf-8) and train again",
                         version->path, printable(shown, sizeof shown, bad));
    }
    return true;
}

static int compare_columns(const void *a, const void *b, void *schema)
{
    const struct schema_column *columns = ((const struct schema *)schema)->columns;
    return strcmp(columns[*(const int *)a].name, columns[*(const int *)b].name);
}

bool version_sort_columns(struct version *version, struct error *error)
{
    const int columns = version->trained.schema ? schema_features(version->trained.schema) : 0;
    version->by_name = calloc((size_t)columns + 1, sizeof *version->by_name);
    if (!version->by_name) {
        return error_set(error, "%s: out of memory for the names of its columns", version->path);
    }
    for (int i = 0; i < columns; i++) {
        version->by_name[i] = i;
    }
    qsort_r(version->by_name, (size_t)columns, sizeof *version->by_name, compare_columns, version->trained.schema);
    return true;
}

int version_find_column(const struct version *version, const char *name, size_t size)
{
    int first = 0, behind = schema_features(version->trained.schema);
    while (first < behind) {
        const int middle = first + (behind - first) / 2, column = version->by_name[middle];
        const char *other = version->trained.schema->columns[column].name;
        const int order = strncmp(name, other, size);
        if (order == 0 && other[size] == '\0') {
            return column;
        }
        if (order > 0) {
            first = middle + 1;
        } else {
            behind = middle;
        }
    }
    return -1;
}

/* What must be there once it is known to be another checkpoint. */
static bool version_prepare(struct served *served, struct version *version, struct error *error)
{
    version->trained.config.train.num_threads = 1; /* workers run side by side, each with its own engine */
    version->trained.config.train.batch_size = 1;  /* training's buffers are not needed */
    version->trained.config.data.max_bad_records = 0;
    version->loaded_s = clock_wall_s();
    /* The parameters as read, and each worker's. */
    const size_t bytes = parameter_bytes(version) * (1 + (size_t)version->workers);
    return check_names(version, error) && version_sort_columns(version, error) && take_memory(version, bytes, error) &&
           make_engines(version, error) && try_version(version, error) && check_version(version, error) &&
           prepare_with_reference(served, version, error);
}

/* *loaded: NULL, too, if the checkpoint is the one in service. */
static bool version_load(struct served *served, struct version **loaded, struct error *error)
{
    struct version *version = calloc(1, sizeof *version);
    *loaded = NULL;
    if (!version) {
        return error_set(error, "%s: out of memory", served->source);
    }
    static atomic_uint_fast64_t ids;
    version->id = 1 + atomic_fetch_add(&ids, 1);
    version->workers = served->workers;
    version->budget = served->budget;
    version->spare = served->spare;
    atomic_init(&version->holders, 1);
    const bool is_newest = !served->takes_best && file_is_folder(served->source);
    bool done = trained_open(&version->trained, served->config, is_newest ? "newest" : served->source, served->source,
                             CHECKPOINT_BEST_WEIGHTS, error);
    served->was_found = done;
    bool is_other = done;
    if (done) {
        const struct checkpoint_file *file = version->trained.file;
        version->number = checkpoint_file_info(file)->global_step;
        snprintf(version->path, sizeof version->path, "%s", checkpoint_path(file));
        snprintf(version->digest, sizeof version->digest, "%s", checkpoint_digest(file));
        is_other = !served->current || strcmp(served->current->digest, version->digest) != 0;
        if (!is_other) { /* a copy, or the same file touched */
            snprintf(served->current->path, sizeof served->current->path, "%s", version->path);
        }
        done = !is_other || version_prepare(served, version, error);
    }
    if (!done || !is_other) {
        version_free(version);
        return done;
    }
    *loaded = version;
    return true;
}

/* --- Finding new checkpoints --- */

/* What distinguishes a file from another one, or from what it was before; never 0. */
static uint64_t state_of(const char *name, const struct stat *status)
{
    const uint64_t parts[] = {crc32c(name, strlen(name)),
                              status->st_dev,
                              status->st_ino,
                              (uint64_t)status->st_size,
                              (uint64_t)status->st_mtim.tv_sec,
                              (uint64_t)status->st_mtim.tv_nsec};
    return UINT64_C(1) << 32 | crc32c(parts, sizeof parts);
}

/* 0: no such file. */
static uint64_t state_of_file(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 ? state_of(path, &status) : 0;
}

/* Of all its checkpoints, whichever order they are listed in; 0: there are none. */
static uint64_t state_of_folder(const char *path)
{
    uint64_t sum = 0;
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        const char *end = strrchr(entry->d_name, '.');
        struct stat status;
        if (end && strcmp(end, ".safetensors") == 0 && fstatat(dirfd(directory), entry->d_name, &status, 0) == 0) {
            sum += state_of(entry->d_name, &status);
        }
    }
    if (directory) {
        closedir(directory);
    }
    return sum;
}

/* The files that decide what is served: of a folder with a best checkpoint, that and the one in service. */
static uint64_t look(const struct served *served)
{
    char best[CHECKPOINT_MAX_PATH];
    struct error ignored;
    const struct version *current = served->current; /* only this thread changes it */
    if (!file_is_folder(served->source)) {
        return state_of_file(served->source);
    }
    if (!served->takes_best || !file_join(best, sizeof best, served->source, CHECKPOINT_BEST_NAME, &ignored) ||
        !file_exists(best)) {
        return state_of_folder(served->source);
    }
    return state_of_file(best) + (current && strcmp(current->path, best) != 0 ? state_of_file(current->path) : 0);
}

static void swap(struct served *served, struct version *version)
{
    enum { ROUNDS = 100 };
    pthread_mutex_lock(&served->mutex);
    struct version *old = served->current;
    served->current = version;
    served->swaps += old ? 1 : 0;
    served->problem[0] = '\0';
    pthread_mutex_unlock(&served->mutex);
    if (old) {
        old->next = served->replaced;
        served->replaced = old;
    }
    /* Requests in progress will soon be done, and the next model may need the memory. */
    for (int round = 0; round < ROUNDS && old && atomic_load(&old->holders) > 1; round++) {
        clock_pause(clock_monotonic_s() + 0.001);
    }
    free_replaced(served);
}

static void note_problem(struct served *served, const struct error *error)
{
    pthread_mutex_lock(&served->mutex);
    snprintf(served->problem, sizeof served->problem, "%s", error->text);
    served->failures++;
    pthread_mutex_unlock(&served->mutex);
}

bool served_refresh(struct served *served, struct error *error)
{
    enum { LOOKED = 1 };
    free_replaced(served);
    const uint64_t files = look(served), state = files << 1 | LOOKED;
    if (state == served->seen || (served->current && files == 0)) {
        return true;
    }
    served->seen = state;
    struct version *version;
    if (!version_load(served, &version, error)) {
        note_problem(served, error);
        return false;
    }
    if (version) {
        swap(served, version);
    }
    return true;
}
