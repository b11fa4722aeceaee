/* Files of residuals. They are few and small, so each is read and written whole. */
#include "worker/remote/exchange/residual_files.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/encoding/crc32c.h"
#include "base/file.h"
#include "base/log.h"
#include "net/bytes.h"

enum {
    HEAD = 40,
    AT_VERSION = 8,
    AT_WORKER = 12,
    AT_STEP = 16,
    AT_COUNT = 24,
    AT_CRC = 32,
    VERSION = 1,
    MAX_NAME = 64
};

static const char magic[AT_VERSION + 1] = "TRNRLEFT";

static void put_head(uint8_t head[HEAD], const struct residual_files *files, int64_t step, const float *floats)
{
    memset(head, 0, HEAD);
    memcpy(head, magic, AT_VERSION);
    put_le32(head + AT_VERSION, VERSION);
    put_le32(head + AT_WORKER, (uint32_t)files->worker);
    put_le64(head + AT_STEP, (uint64_t)step);
    put_le64(head + AT_COUNT, files->count);
    put_le32(head + AT_CRC, crc32c(head, AT_CRC));
    put_le32(head + AT_CRC + 4, crc32c(floats, files->count * sizeof *floats));
}

static void name_of(const struct residual_files *files, int64_t step, char name[MAX_NAME])
{
    if (files->worker == RESIDUAL_FILES_SENT) {
        snprintf(name, MAX_NAME, "sent-model-%lld", (long long)step);
    } else if (files->worker == RESIDUAL_FILES_CLIENTS) {
        snprintf(name, MAX_NAME, "residual-clients-%lld", (long long)step);
    } else {
        snprintf(name, MAX_NAME, "residual-worker%d-%lld", files->worker, (long long)step);
    }
}

static bool path_of(const struct residual_files *files, int64_t step, char path[PATH_MAX], struct error *error)
{
    char name[MAX_NAME];
    name_of(files, step, name);
    return file_join(path, PATH_MAX, files->folder, name, error);
}

/* The step in the name of such a file; -1: it is not one. */
static int64_t step_of(const struct residual_files *files, const char *name)
{
    char canonical[MAX_NAME];
    const char *last = strrchr(name, '-');
    const int64_t step = last ? strtoll(last + 1, NULL, 10) : -1;
    name_of(files, step, canonical);
    return strcmp(name, canonical) == 0 ? step : -1;
}

static bool is_due(const struct residual_files *files, int64_t step)
{
    return files->every > 0 && step % files->every == 0;
}

enum which { ALL, DUE, OTHERS };
enum { MOST = RESIDUAL_FILES_DUE + RESIDUAL_FILES_OTHERS + 1 };

/* Steps of the newest files of that kind, the newest first; returns how many. */
static int list(const struct residual_files *files, enum which which, int64_t steps[MOST])
{
    DIR *directory = opendir(files->folder);
    int count = 0;
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        const int64_t step = step_of(files, entry->d_name);
        int at = count;
        if (step < 0 || (which != ALL && is_due(files, step) != (which == DUE))) {
            continue;
        }
        while (at > 0 && steps[at - 1] < step) {
            at--;
        }
        if (at < MOST) {
            count += count < MOST;
            memmove(steps + at + 1, steps + at, (size_t)(count - 1 - at) * sizeof *steps);
            steps[at] = step;
        }
    }
    if (directory) {
        closedir(directory);
    }
    return count;
}

/* Removes all but the newest `kept`; one that can't be removed stays. */
static void remove_oldest(const struct residual_files *files, enum which which, int kept)
{
    int64_t steps[MOST];
    const int count = list(files, which, steps);
    for (int i = kept; i < count; i++) {
        char path[PATH_MAX];
        struct error error;
        if (path_of(files, steps[i], path, &error)) {
            unlink(path);
        }
    }
}

bool residual_files_save(const struct residual_files *files, int64_t step, const float *floats, struct error *error)
{
    char path[PATH_MAX];
    uint8_t head[HEAD];
    put_head(head, files, step, floats);
    const struct file_part parts[] = {{head, HEAD}, {floats, files->count * sizeof *floats}};
    if (!file_make_folder(files->folder, error) || !path_of(files, step, path, error) ||
        !file_write_atomic(path, parts, 2, error)) {
        return false;
    }
    remove_oldest(files, DUE, RESIDUAL_FILES_DUE);
    remove_oldest(files, OTHERS, RESIDUAL_FILES_OTHERS);
    return true;
}

static bool read_one(const struct residual_files *files, int64_t step, float *floats, struct error *error)
{
    char path[PATH_MAX];
    uint8_t head[HEAD], *bytes;
    size_t size, wanted = HEAD + files->count * sizeof *floats;
    if (!path_of(files, step, path, error) || !file_read(path, wanted, &bytes, &size, error)) {
        return false;
    }
    bool fits = size == wanted;
    if (fits) {
        memcpy(floats, bytes + HEAD, wanted - HEAD);
        put_head(head, files, step, floats);
        fits = memcmp(head, bytes, HEAD) == 0;
    }
    free(bytes);
    return fits || error_set(error, "%s is damaged, or of another %s", path,
                             files->worker == RESIDUAL_FILES_CLIENTS ? "model or number of clients" : "model");
}

bool residual_files_load(const struct residual_files *files, int64_t step, float *floats, int64_t *found,
                         struct error *error)
{
    int64_t steps[MOST];
    *found = -1;
    file_remove_leftovers(files->folder);
    while (list(files, ALL, steps) > 0 && steps[0] > step) {
        char path[PATH_MAX];
        if (!path_of(files, steps[0], path, error)) {
            return false;
        }
        if (unlink(path) != 0) {
            return file_error(error, path, "cannot be removed", errno);
        }
    }
    const int count = list(files, ALL, steps);
    for (int i = 0; i < count && *found < 0; i++) {
        struct error why;
        if (read_one(files, steps[i], floats, &why)) {
            *found = steps[i];
        } else {
            log_warning("%s", why.text);
        }
    }
    return true;
}
