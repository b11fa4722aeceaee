/*
 * A log that can't be written is reported once, and then loses rows: predictions matter more. An unfinished file has a
 * name that begins with a dot, which readers skip, and is unpredictable; it is locked. One left by a killed
 * process is kept up to its last whole line.
 */
#include "serve/request_log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/random/philox.h"
#include "base/trust.h"
#include "serve/model.h"
#include "worker/data/image.h"
#include "worker/data/names.h"
#include "worker/data/table/schema.h"
#include "worker/export/outcome.h"

enum {
    MOST_PENDING = 8 << 20, /* bytes in memory */
    PARTS = 8,              /* minimum number of files that share the space on disk */
    MOST_PATH = 4096,
    ROWS_AT_ONCE = 256,
    BLOCK = 4096,    /* of a file system: a small image takes one */
    TEST_EVERY = 10, /* one image in this many is for the test: a folder of images needs some */
};

static const double MOST_AGE_S = 600; /* of the current file of rows */
static const char UNDER_WAY[] = ".under-way";

/* Rows of one request, or a picture. */
struct item {
    struct item *next;
    struct version *version; /* held */
    size_t size;
    int rows;
    int class; /* of an image, and the model's confidence */
    double probability;
    char bytes[]; /* lines, or pixels */
};

/* A complete file. */
struct kept {
    char *name; /* relative to the folder */
    size_t size;
};

struct request_log {
    struct request_log_options options;
    char folder[MOST_PATH]; /* the model's own */
    struct philox_key key;
    atomic_uint_fast64_t asked;
    pthread_mutex_t mutex; /* guards what follows: */
    struct item *first, *last;
    size_t pending;
    struct request_log_counts counts;
    /* The writing thread's own: */
    struct kept *files; /* [count], oldest first from `oldest` on */
    int count, room, oldest;
    size_t bytes; /* of them */
    int fd;       /* of the current file of rows; -1: none */
    char under_way[MOST_PATH];
    size_t fd_size;
    double fd_began_s;
    char *header; /* of that file */
    uint64_t number;
    bool has_failed; /* reported already */
};

/* --- Existing files --- */

static bool keep_file(struct request_log *log, const char *name, size_t size)
{
    if (log->count == log->room) {
        const int room = log->room > 0 ? 2 * log->room : 64;
        struct kept *files = realloc(log->files, (size_t)room * sizeof *files);
        if (!files) {
            return false;
        }
        log->files = files;
        log->room = room;
    }
    char *copy = strdup(name);
    if (copy) {
        log->files[log->count++] = (struct kept){copy, size};
        log->bytes += size;
    }
    return copy;
}

static size_t space_of(size_t size)
{
    return (size + BLOCK - 1) / BLOCK * BLOCK;
}

/* Files of a subfolder of our own; "" is our folder itself. */
static bool keep_files(struct request_log *log, const char *below, const char *pattern, struct error *error)
{
    struct names names = {0};
    char folder[MOST_PATH], name[MOST_PATH], path[MOST_PATH];
    bool done = below[0] == '\0' ? snprintf(folder, sizeof folder, "%s", log->folder) > 0
                                 : file_join(folder, sizeof folder, log->folder, below, error);
    done = done && names_list(&names, folder, pattern, error);
    for (int i = 0; done && i < names.count; i++) {
        struct stat status;
        done = below[0] == '\0' ? snprintf(name, sizeof name, "%s", names.items[i]) > 0
                                : file_join(name, sizeof name, below, names.items[i], error);
        if (done && file_join(path, sizeof path, log->folder, name, error) && stat(path, &status) == 0 &&
            S_ISREG(status.st_mode)) {
            if (status.st_size == 0) {
                unlink(path);
                continue;
            }
            done = keep_file(log, name, space_of((size_t)status.st_size)) || error_set(error, "out of memory");
        }
    }
    names_free(&names);
    return done;
}

/* Names start with the time, so that they order by age, whatever class they are of. */
static int by_age(const void *one, const void *other)
{
    const char *a = ((const struct kept *)one)->name, *b = ((const struct kept *)other)->name;
    const char *left = strrchr(a, '/'), *right = strrchr(b, '/');
    return strcmp(left ? left : a, right ? right : b);
}

static bool find_pictures(struct request_log *log, const char *part, struct error *error)
{
    struct names classes = {0};
    char pictures[MOST_PATH], below[MOST_PATH];
    bool done =
        file_join(pictures, sizeof pictures, log->folder, part, error) && names_list(&classes, pictures, "*", error);
    for (int i = 0; done && i < classes.count; i++) {
        done = file_join(below, sizeof below, part, classes.items[i], error) && keep_files(log, below, "*.png", error);
    }
    names_free(&classes);
    return done;
}

static bool find_files(struct request_log *log, struct error *error)
{
    const bool done = keep_files(log, "", "train-*.csv", error) && find_pictures(log, "train", error) &&
                      find_pictures(log, "test", error);
    if (done && log->count > 0) {
        qsort(log->files, (size_t)log->count, sizeof *log->files, by_age);
    }
    return done;
}

/* Deletes the oldest until there is room for that many bytes more. */
static void make_space(struct request_log *log, size_t more)
{
    while (log->oldest < log->count && log->bytes + more > log->options.most_bytes) {
        char path[MOST_PATH];
        struct error ignored;
        struct kept *file = &log->files[log->oldest++];
        if (file_join(path, sizeof path, log->folder, file->name, &ignored)) {
            unlink(path);
        }
        log->bytes -= file->size;
        free(file->name);
    }
    if (log->oldest > log->count / 2) {
        log->count -= log->oldest;
        memmove(log->files, log->files + log->oldest, (size_t)log->count * sizeof *log->files);
        log->oldest = 0;
    }
}

/* "1763895000123-000017": time, then sequence. */
static void stamp(struct request_log *log, char text[40])
{
    snprintf(text, 40, "%013lld-%06llu", (long long)(clock_wall_s() * 1e3),
             (unsigned long long)(log->number++ % 1000000));
}

/* --- files of rows --- */

static void say_failure(struct request_log *log, const char *path, int reason)
{
    struct error error;
    if (!log->has_failed) {
        file_error(&error, path, "cannot be written", reason);
        log_warning("%s; requests are not recorded", error.text);
    }
    log->has_failed = true;
}

/* Gives the current file its final name. */
static void finish_rows(struct request_log *log)
{
    char name[64], whole[MOST_PATH], text[40];
    struct error ignored;
    if (log->fd < 0) {
        return;
    }
    stamp(log, text);
    snprintf(name, sizeof name, "train-%s.csv", text);
    close(log->fd);
    log->fd = -1;
    if (file_join(whole, sizeof whole, log->folder, name, &ignored) && rename(log->under_way, whole) == 0) {
        keep_file(log, name, space_of(log->fd_size));
    } else {
        say_failure(log, log->under_way, errno);
    }
    log->fd_size = 0;
    free(log->header);
    log->header = NULL;
}

/* A new file below our folder that readers skip; -1: reported. */
static int create_hidden(struct request_log *log, const char *ending, char path[MOST_PATH])
{
    char name[64];
    struct error error;
    const uint64_t number = (uint64_t)randombytes_random() << 32 | randombytes_random();
    snprintf(name, sizeof name, "%s-%016" PRIx64 "%s", UNDER_WAY, number, ending);
    const int fd = file_join(path, MOST_PATH, log->folder, name, &error) ? file_create(path, 0640, &error) : -1;
    if (fd < 0) {
        say_failure(log, path, errno);
    }
    return fd;
}

/* Opens it if it is a killed process's: a file of one name that no process has locked. */
static int open_leftover(const char *path)
{
    struct stat status;
    const int fd = open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink != 1 ||
                    flock(fd, LOCK_EX | LOCK_NB) != 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Keeps whole lines, and drops a partial one. */
static void take_up_leftover(struct request_log *log, const char *path)
{
    struct error ignored;
    uint8_t *bytes = NULL;
    size_t size = 0, lines = 0;
    const int fd = open_leftover(path);
    if (fd < 0) {
        return;
    }
    if (file_read(path, log->options.most_bytes, &bytes, &size, &ignored)) {
        while (size > 0 && bytes[size - 1] != '\n') {
            size--;
        }
        for (size_t i = 0; i < size; i++) {
            lines += bytes[i] == '\n';
        }
    }
    free(bytes);
    if (lines < 2 || ftruncate(fd, (off_t)size) != 0) {
        unlink(path);
        close(fd);
        return;
    }
    log->fd = fd;
    log->fd_size = size;
    snprintf(log->under_way, sizeof log->under_way, "%s", path);
    finish_rows(log);
}

static void take_up_leftovers(struct request_log *log)
{
    DIR *directory = opendir(log->folder);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        char path[MOST_PATH];
        struct error ignored;
        const char *ending = strrchr(entry->d_name, '.');
        if (strncmp(entry->d_name, UNDER_WAY, sizeof UNDER_WAY - 1) != 0 ||
            !file_join(path, sizeof path, log->folder, entry->d_name, &ignored)) {
            continue;
        }
        if (strcmp(ending, ".csv") == 0) {
            take_up_leftover(log, path);
        } else {
            unlink(path);
        }
    }
    if (directory) {
        closedir(directory);
    }
}

/* The columns' names, in malloc'd memory. */
static char *make_header(const struct trained *trained)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    const struct schema *schema = trained->schema;
    for (int i = 0; out && i < schema->count; i++) {
        if (schema->columns[i].role == SCHEMA_FEATURE) {
            csv_put(out, "", schema->columns[i].name, strlen(schema->columns[i].name), ',');
            fputc(',', out);
        }
    }
    if (out) {
        outcome_put_names(trained, out, ',');
        fputc('\n', out);
        fclose(out);
    }
    return text;
}

static bool write_whole(struct request_log *log, const char *bytes, size_t size)
{
    const ssize_t written = write(log->fd, bytes, size);
    if (written == (ssize_t)size) {
        log->fd_size += size;
        return true;
    }
    say_failure(log, log->under_way, written < 0 ? errno : ENOSPC);
    if (ftruncate(log->fd, (off_t)log->fd_size) == 0) { /* better no line than half a line */
        lseek(log->fd, (off_t)log->fd_size, SEEK_SET);
    }
    return false;
}

/* Ensures that a file with this header is open. */
static bool begin_rows(struct request_log *log, char *header)
{
    if (log->fd >= 0 && strcmp(log->header, header) == 0) {
        free(header);
        return true;
    }
    finish_rows(log);
    log->fd = create_hidden(log, ".csv", log->under_way);
    if (log->fd < 0) {
        free(header);
        return false;
    }
    flock(log->fd, LOCK_EX | LOCK_NB); /* where the file system has no locks, others wait for none either */
    log->fd_size = 0;
    log->fd_began_s = clock_monotonic_s();
    log->header = header;
    return write_whole(log, header, strlen(header));
}

static bool write_rows(struct request_log *log, const struct item *item)
{
    char *header = make_header(&item->version->trained);
    if (!header) {
        return false;
    }
    make_space(log, log->fd_size + item->size);
    const bool done = begin_rows(log, header) && write_whole(log, item->bytes, item->size);
    if (log->fd_size > log->options.most_bytes / PARTS) {
        finish_rows(log);
    }
    return done;
}

/* --- pictures --- */

/* Does not wait for the disk: files that a power cut left empty are removed at the next start. */
static bool put_file(struct request_log *log, const char *path, const void *bytes, size_t size)
{
    char hidden[MOST_PATH];
    const int fd = create_hidden(log, ".png", hidden);
    if (fd < 0) {
        return false;
    }
    const ssize_t written = write(fd, bytes, size);
    const bool done = written == (ssize_t)size && rename(hidden, path) == 0;
    if (!done) {
        say_failure(log, path, written >= 0 && written < (ssize_t)size ? ENOSPC : errno);
        unlink(hidden);
    }
    close(fd);
    return done;
}

static bool write_picture(struct request_log *log, const struct item *item)
{
    char text[40], folder[64], name[MOST_PATH], path[MOST_PATH];
    struct error error;
    uint8_t *png;
    size_t size;
    const struct image_shape *shape = &item->version->trained.shape;
    const struct image image = {.width = shape->width,
                                .height = shape->height,
                                .channels = shape->channels,
                                .pixels = (uint8_t *)(uintptr_t)item->bytes};
    if (!image_encode_png(&image, &png, &size, &error)) {
        return false;
    }
    stamp(log, text);
    snprintf(folder, sizeof folder, "%s/%d", log->number % TEST_EVERY == 0 ? "test" : "train", item->class);
    snprintf(name, sizeof name, "%s/%s-p%.3f.png", folder, text, item->probability);
    make_space(log, space_of(size));
    const bool done = file_join(path, sizeof path, log->folder, folder, &error) && file_make_folder(path, &error) &&
                      file_join(path, sizeof path, log->folder, name, &error) && put_file(log, path, png, size) &&
                      keep_file(log, name, space_of(size));
    free(png);
    return done;
}

/* --- from the workers --- */

bool request_log_wants(struct request_log *log)
{
    const uint64_t asked = atomic_fetch_add(&log->asked, 1);
    const struct philox_block drawn = philox(log->key, RANDOM_SHUFFLE, (uint32_t)asked, (uint32_t)(asked >> 32), 0);
    return (double)philox_uniform(drawn.word[0]) < log->options.share;
}

/* item NULL: all of them are lost. False: it is lost, because the log is behind. */
static bool add_item(struct request_log *log, struct item *item, const void *bytes, size_t size,
                     const struct answers *answers)
{
    pthread_mutex_lock(&log->mutex);
    const bool fits = item && size <= MOST_PENDING - log->pending;
    if (fits) {
        item->next = NULL;
        item->size = size;
        memcpy(item->bytes, bytes, size);
        item->version = version_hold(answers->version);
        *(log->last ? &log->last->next : &log->first) = item;
        log->last = item;
        log->pending += size;
        log->counts.kept += (uint64_t)item->rows;
    } else {
        log->counts.lost += (uint64_t)(item ? item->rows : answers->count);
    }
    pthread_mutex_unlock(&log->mutex);
    if (!fits) {
        free(item);
    }
    return fits;
}

size_t request_log_row_bytes(const struct row *row)
{
    size_t bytes = 0;
    for (int i = 0; i < row->count; i++) {
        bytes += sizeof(uint32_t) + row->fields[i].size;
    }
    return bytes;
}

void request_log_row(struct text_buffer *rows, const struct encoder *encoder, const struct row *row)
{
    const struct schema *schema = encoder->schema;
    for (int i = 0; i < schema->count; i++) {
        char buffer[ROW_NUMBER_TEXT];
        if (schema->columns[i].role != SCHEMA_FEATURE) {
            continue;
        }
        size_t size = row->fields ? row->fields[encoder->sources[i]].size : 0;
        const char *text =
            row->fields ? row->fields[encoder->sources[i]].text : row_text(row, encoder->sources[i], buffer, &size);
        const uint32_t prefix = (uint32_t)size;
        text_buffer_add_bytes(rows, &prefix, sizeof prefix);
        text_buffer_add_bytes(rows, text, size);
    }
}

static const char *put_fields(FILE *out, const struct schema *schema, const char *at)
{
    for (int i = 0; i < schema->count; i++) {
        uint32_t size;
        if (schema->columns[i].role == SCHEMA_FEATURE) {
            memcpy(&size, at, sizeof size);
            at += sizeof size;
            csv_put(out, "", at, size, ',');
            fputc(',', out);
            at += size;
        }
    }
    return at;
}

/* Adds rows [first, first + count). *at: their fields; set behind them. False: they are lost. */
static bool add_part(struct request_log *log, const char **at, const struct answers *answers, struct outcome *outcome,
                     int first, int count)
{
    const struct trained *trained = &answers->version->trained;
    char *lines = NULL;
    size_t used = 0;
    FILE *out = open_memstream(&lines, &used);
    for (int i = first; out && i < first + count; i++) {
        *at = put_fields(out, trained->schema, *at);
        outcome_find(trained, answers->outputs, answers->wanted, i, outcome);
        outcome_put(trained, outcome, out, ',');
        fputc('\n', out);
    }
    const bool done = out && fclose(out) == 0 && lines;
    struct item *item = done ? malloc(sizeof *item + used) : NULL;
    if (item) {
        item->rows = count;
    }
    const struct answers part = {.version = answers->version, .count = count};
    const bool fits = add_item(log, item, lines, used, &part);
    free(lines);
    return fits;
}

void request_log_add_rows(struct request_log *log, const void *rows, size_t size, const struct answers *answers)
{
    struct outcome outcome = {0};
    const char *at = rows;
    int added = 0;
    bool fits = size > 0 && outcome_create(&outcome, &answers->version->trained);
    while (fits && added < answers->count) {
        const int left = answers->count - added, some = left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE;
        fits = add_part(log, &at, answers, &outcome, added, some);
        added += some;
    }
    outcome_free(&outcome);
    if (added < answers->count) {
        add_item(log, NULL, NULL, 0, &(struct answers){.count = answers->count - added});
    }
}

void request_log_add_pictures(struct request_log *log, const uint8_t *pixels, const struct answers *answers)
{
    const struct trained *trained = &answers->version->trained;
    const size_t inputs = (size_t)version_inputs(answers->version);
    struct outcome outcome = {0};
    const bool done = outcome_create(&outcome, trained);
    for (int i = 0; done && i < answers->count; i++) {
        struct item *item = malloc(sizeof *item + inputs);
        outcome_find(trained, answers->outputs, answers->wanted, i, &outcome);
        if (item) {
            item->rows = 1;
            item->class = outcome.best;
            item->probability = outcome.values[outcome.best];
        }
        add_item(log, item, pixels + (size_t)i * inputs, inputs,
                 &(struct answers){.version = answers->version, .count = 1});
    }
    outcome_free(&outcome);
}

struct request_log_counts request_log_counts(struct request_log *log)
{
    pthread_mutex_lock(&log->mutex);
    const struct request_log_counts counts = log->counts;
    pthread_mutex_unlock(&log->mutex);
    return counts;
}

/* --- the writing thread --- */

void request_log_write(struct request_log *log)
{
    pthread_mutex_lock(&log->mutex);
    struct item *item = log->first;
    log->first = log->last = NULL;
    log->pending = 0;
    pthread_mutex_unlock(&log->mutex);
    uint64_t lost = 0;
    while (item) {
        struct item *next = item->next;
        const bool done = version_is_of_pictures(item->version) ? write_picture(log, item) : write_rows(log, item);
        log->has_failed &= !done;
        lost += done ? 0 : (uint64_t)item->rows;
        version_release(item->version);
        free(item);
        item = next;
    }
    if (log->fd >= 0 && clock_monotonic_s() > log->fd_began_s + MOST_AGE_S) {
        finish_rows(log);
    }
    pthread_mutex_lock(&log->mutex);
    log->counts.kept -= lost;
    log->counts.lost += lost;
    pthread_mutex_unlock(&log->mutex);
}

bool request_log_open(struct request_log **opened, const struct request_log_options *options, const char *model,
                      struct error *error)
{
    struct request_log *log = calloc(1, sizeof *log);
    *opened = NULL;
    if (!log) {
        return error_set(error, "out of memory for a request log");
    }
    log->options = *options;
    log->fd = -1;
    log->key = philox_key((uint64_t)(clock_wall_s() * 1e6));
    pthread_mutex_init(&log->mutex, NULL);
    bool done = file_join(log->folder, sizeof log->folder, options->folder, model, error) &&
                file_make_folder(log->folder, error) && trust_folder(log->folder, error) && find_files(log, error);
    if (!done) {
        request_log_close(log);
        return false;
    }
    take_up_leftovers(log);
    *opened = log;
    return true;
}

void request_log_close(struct request_log *log)
{
    if (!log) {
        return;
    }
    request_log_write(log);
    finish_rows(log);
    for (int i = log->oldest; i < log->count; i++) {
        free(log->files[i].name);
    }
    free(log->files);
    pthread_mutex_destroy(&log->mutex);
    free(log);
}
