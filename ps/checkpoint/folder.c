/*
 * The folder is its own index: names contain the step, modification times the age. So there is no list that could
 * disagree with the files after a crash.
 */
#include "ps/checkpoint/folder.h"

#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/profile.h"
#include "base/simulation.h"

/* --- When to save, and what to keep --- */

void supervisor_begin(struct supervisor *supervisor, const struct config_output *config, int64_t step, double now_s)
{
    *supervisor = (struct supervisor){
        .save_steps = config->save_steps,
        .save_secs = config->save_model_secs,
        .last_save_s = now_s,
        .last_save_step = step,
    };
}

void supervisor_retime(struct supervisor *supervisor, const struct config_output *config)
{
    supervisor->save_steps = config->save_steps;
    supervisor->save_secs = config->save_model_secs;
}

/* Has a multiple of save_steps been reached since the last checkpoint? */
static bool due_by_steps(const struct supervisor *supervisor, int64_t step)
{
    return supervisor->save_steps > 0 &&
           step / supervisor->save_steps > supervisor->last_save_step / supervisor->save_steps;
}

static bool due_by_time(const struct supervisor *supervisor, double now_s)
{
    return supervisor->save_secs > 0.0 && now_s - supervisor->last_save_s >= supervisor->save_secs;
}

bool supervisor_is_time_to_save(const struct supervisor *supervisor, int64_t step, double now_s)
{
    return !supervisor->saving && supervisor_is_unsaved(supervisor, step) && due_by_time(supervisor, now_s);
}

bool supervisor_should_save(const struct supervisor *supervisor, int64_t step, double now_s)
{
    return supervisor_is_time_to_save(supervisor, step, now_s) ||
           (!supervisor->saving && supervisor_is_unsaved(supervisor, step) && due_by_steps(supervisor, step));
}

bool supervisor_is_unsaved(const struct supervisor *supervisor, int64_t step)
{
    return supervisor->failed || step != supervisor->last_save_step;
}

void supervisor_save_began(struct supervisor *supervisor, int64_t step, double now_s)
{
    assert(!supervisor->saving);
    supervisor->saving = true;
    supervisor->failed = false;
    supervisor->last_save_step = step;
    supervisor->last_save_s = now_s;
}

void supervisor_save_ended(struct supervisor *supervisor, bool written)
{
    assert(supervisor->saving);
    supervisor->saving = false;
    supervisor->failed = !written;
}

int64_t supervisor_steps_to_save(const struct supervisor *supervisor, int64_t step)
{
    return supervisor->save_steps > 0 ? supervisor->save_steps - step % supervisor->save_steps : INT64_MAX;
}

void supervisor_retain(struct kept_checkpoint *checkpoints, int count, const struct config_output *config)
{
    double period_s = config->keep_every_n_hours * 3600.0;
    double newest_period = -INFINITY; /* one of which a checkpoint is kept permanently */
    for (int i = 0; i < count; i++) {
        double period = period_s > 0.0 ? floor(checkpoints[i].written_s / period_s) : -INFINITY;
        checkpoints[i].keep = config->max_to_keep == 0 || count - i <= config->max_to_keep || period > newest_period;
        newest_period = fmax(newest_period, period);
    }
}

/* --- names --- */

static const char name_prefix[] = "model-";
static const char name_suffix[] = ".safetensors";
static const char temporary_suffix[] = ".tmp";
enum { STEP_DIGITS = 10, MAX_NAME = 64 };

static void checkpoint_name(char name[MAX_NAME], int64_t step)
{
    snprintf(name, MAX_NAME, "%s%0*" PRId64 "%s", name_prefix, STEP_DIGITS, step, name_suffix);
}

/* The step in a checkpoint's name; -1 for other names. */
static int64_t step_of_name(const char *name)
{
    size_t prefix = strlen(name_prefix);
    if (strncmp(name, name_prefix, prefix) != 0 || !isdigit((unsigned char)name[prefix])) {
        return -1;
    }
    char canonical[MAX_NAME];
    long long step = strtoll(name + prefix, NULL, 10);
    checkpoint_name(canonical, step);
    return strcmp(name, canonical) == 0 ? step : -1;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), wanted = strlen(end);
    return length >= wanted && strcmp(text + length - wanted, end) == 0;
}

/* --- listing --- */

struct listing {
    struct kept_checkpoint *items; /* ascending by step */
    int count, capacity;
};

static int by_step(const void *a, const void *b)
{
    int64_t left = ((const struct kept_checkpoint *)a)->step, right = ((const struct kept_checkpoint *)b)->step;
    return (left > right) - (left < right);
}

static void add_item(struct listing *listing, int64_t step, double written_s)
{
    if (listing->count == listing->capacity) {
        listing->capacity = listing->capacity == 0 ? 64 : 2 * listing->capacity;
        listing->items = must_grow(listing->items, (size_t)listing->capacity, sizeof *listing->items, "checkpoints");
    }
    listing->items[listing->count++] = (struct kept_checkpoint){.step = step, .written_s = written_s};
}

/* The caller frees listing->items, whatever is returned. */
static bool list_checkpoints(const char *path, struct listing *listing, struct error *error)
{
    *listing = (struct listing){0};
    DIR *directory = opendir(path);
    if (!directory) {
        return file_error(error, path, "cannot be listed", errno);
    }
    for (struct dirent *entry; (entry = readdir(directory));) {
        int64_t step = step_of_name(entry->d_name);
        struct stat status;
        if (step < 0 || fstatat(dirfd(directory), entry->d_name, &status, 0) != 0) {
            continue; /* not a checkpoint, or deleted since */
        }
        double written_s = (double)status.st_mtim.tv_sec + 1e-9 * (double)status.st_mtim.tv_nsec;
        add_item(listing, step, written_s);
    }
    closedir(directory);
    if (listing->count > 0) {
        qsort(listing->items, (size_t)listing->count, sizeof *listing->items, by_step);
    }
    return true;
}

/* --- opening --- */

/* Only ours: "model-....safetensors.<random>.tmp" and "best.safetensors.<random>.tmp". */
static bool is_leftover(const char *name)
{
    return ends_with(name, temporary_suffix) && strstr(name, ".safetensors.") &&
           (strncmp(name, name_prefix, strlen(name_prefix)) == 0 ||
            strncmp(name, CHECKPOINT_BEST_NAME, strlen(CHECKPOINT_BEST_NAME)) == 0);
}

static void remove_leftovers(const char *path)
{
    DIR *directory = opendir(path);
    if (!directory) {
        return;
    }
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (is_leftover(entry->d_name) && unlinkat(dirfd(directory), entry->d_name, 0) != 0) {
            log_warning("%s/%s: a temporary file left by a killed process cannot be removed: %s", path, entry->d_name,
                        strerror(errno));
        }
    }
    closedir(directory);
}

bool checkpoint_folder_open(struct checkpoint_folder *folder, const char *path, const struct config_output *config,
                            struct error *error)
{
    char lock_path[CHECKPOINT_MAX_PATH], purpose[CHECKPOINT_MAX_PATH];
    folder->lock = -1;
    folder->config = config;
    /* Leaves room for the names of the files in it. */
    if (strlen(path) + 2 * MAX_NAME > sizeof folder->path) {
        return error_set(error, "train_dir: the path is too long: %.200s...", path);
    }
    memcpy(folder->path, path, strlen(path) + 1);
    snprintf(purpose, sizeof purpose, "train_dir %.3000s", path);
    if (!file_make_folder(path, error) || !file_join(lock_path, sizeof lock_path, path, "trainer.lock", error) ||
        !file_lock(lock_path, purpose, &folder->lock, error)) {
        folder->lock = -1;
        return false;
    }
    remove_leftovers(path);
    return true;
}

void checkpoint_folder_close(struct checkpoint_folder *folder)
{
    if (folder->lock >= 0) {
        close(folder->lock);
    }
    folder->lock = -1;
}

/* --- finding --- */

static void set_aside(const char *path)
{
    MARK("a damaged checkpoint is set aside");
    file_set_aside(path, NULL);
}

/*
 * Sets aside damaged files before a good one. If everything left is damaged they keep their names, or the next start
 * would find no checkpoint and start from nothing. listing: the files after the good one only; keep: not damaged.
 */
static void set_damaged_aside(const char *path, const struct listing *listing)
{
    struct error ignored;
    for (int i = listing->count - 1; i >= 0; i--) {
        char name[MAX_NAME], whole[CHECKPOINT_MAX_PATH];
        checkpoint_name(name, listing->items[i].step);
        if (!listing->items[i].keep && file_join(whole, sizeof whole, path, name, &ignored)) {
            set_aside(whole);
        }
    }
}

static bool find_newest(const char *path, bool may_rename, struct checkpoint_file **file, struct error *error)
{
    *file = NULL;
    struct listing listing;
    bool done = list_checkpoints(path, &listing, error);
    int refused = 0, i = listing.count;
    while (done && !*file && --i >= 0) {
        char name[MAX_NAME], whole[CHECKPOINT_MAX_PATH];
        checkpoint_name(name, listing.items[i].step);
        if (!file_join(whole, sizeof whole, path, name, error)) {
            done = false;
            break;
        }
        enum checkpoint_status status = checkpoint_open(file, whole, error);
        listing.items[i].keep = status != CHECKPOINT_DAMAGED;
        if (status == CHECKPOINT_OPENED || !file_exists(whole)) {
            continue; /* a reader may see one vanish: by then the writer has a newer one */
        }
        refused++;
        log_warning("%s%s", error->text, i > 0 ? "; trying the previous checkpoint" : "");
    }
    if (*file && may_rename) {
        set_damaged_aside(path, &(struct listing){.items = listing.items + i, .count = listing.count - i});
    }
    free(listing.items);
    if (done && !*file && refused > 0) {
        return error_set(
            error, "%s: none of its %d checkpoints can be used: repair or remove them, or choose another train_dir",
            path, refused);
    }
    return done;
}

bool checkpoint_folder_newest(struct checkpoint_folder *folder, struct checkpoint_file **file, struct error *error)
{
    return find_newest(folder->path, true, file, error);
}

bool checkpoint_folder_has_best(const struct checkpoint_folder *folder)
{
    char path[CHECKPOINT_MAX_PATH];
    struct checkpoint_file *file;
    struct error error;
    checkpoint_folder_name(folder, CHECKPOINT_BEST, 0, path);
    if (!file_exists(path)) {
        log_warning("%s: is missing, so the best model so far is lost", path);
        return false;
    }
    switch (checkpoint_open(&file, path, &error)) {
    case CHECKPOINT_OPENED:
        checkpoint_close(file);
        return true;
    case CHECKPOINT_DAMAGED:
        log_warning("%s; so the best model so far is lost", error.text);
        set_aside(path);
        return false;
    default: /* it can't be read now, which says nothing about it */
        return true;
    }
}

bool checkpoint_folder_find(const char *path, struct checkpoint_file **file, struct error *error)
{
    return find_newest(path, false, file, error);
}

/* --- saving --- */

static void delete (const struct checkpoint_folder *folder, int64_t step)
{
    char name[MAX_NAME], whole[CHECKPOINT_MAX_PATH];
    struct error error;
    checkpoint_name(name, step);
    if (file_join(whole, sizeof whole, folder->path, name, &error) && unlink(whole) != 0) {
        log_warning("%s: an old checkpoint cannot be deleted: %s", whole, strerror(errno));
    }
}

static void delete_old(const struct checkpoint_folder *folder, int64_t saved_step)
{
    struct listing listing;
    struct error error;
    if (!list_checkpoints(folder->path, &listing, &error)) {
        log_warning("old checkpoints are not deleted: %s", error.text);
    } else {
        supervisor_retain(listing.items, listing.count, folder->config);
    }
    for (int i = 0; i < listing.count; i++) {
        /* Keeps the one just written, even if another run left files of later steps. */
        if (!listing.items[i].keep && listing.items[i].step != saved_step) {
            delete (folder, listing.items[i].step);
        }
    }
    free(listing.items);
}

/* Is there room for a file of that size? */
static bool has_room(const struct checkpoint_folder *folder, uint64_t bytes)
{
    struct statvfs disk;
    return statvfs(folder->path, &disk) != 0 || (uint64_t)disk.f_bavail * disk.f_frsize > bytes + bytes / 8;
}

bool checkpoint_folder_make_room(const struct checkpoint_folder *folder, int64_t step)
{
    struct listing listing;
    struct error error;
    uint64_t bytes = 0;
    int deleted = 0;
    if (!list_checkpoints(folder->path, &listing, &error)) {
        return false;
    }
    for (int i = 0; i + 1 < listing.count && listing.items[i].step < step; i++) {
        char path[CHECKPOINT_MAX_PATH];
        struct stat status;
        checkpoint_folder_name(folder, CHECKPOINT_MODEL, listing.items[i].step, path);
        bytes = stat(path, &status) == 0 && (uint64_t)status.st_size > bytes ? (uint64_t)status.st_size : bytes;
        if (has_room(folder, bytes)) {
            break;
        }
        log_warning("%s: deleted, to make room for the last checkpoint", path);
        delete (folder, listing.items[i].step);
        deleted++;
    }
    free(listing.items);
    return deleted > 0;
}

void checkpoint_folder_go_back(const struct checkpoint_folder *folder, int64_t step, int64_t saved)
{
    struct listing listing;
    struct error error;
    if (!list_checkpoints(folder->path, &listing, &error)) {
        log_warning("checkpoints of later steps are not deleted: %s", error.text);
    }
    for (int i = 0; i < listing.count; i++) {
        if (listing.items[i].step > step && listing.items[i].step != saved) {
            delete (folder, listing.items[i].step);
        }
    }
    free(listing.items);
}

/* A second name for the file just written costs nothing; where links do not work it is written again. */
static bool save_best(const char *best, const char *model, const struct checkpoint_state *state,
                      const struct checkpoint_info *info, struct error *error)
{
    char temporary[CHECKPOINT_MAX_PATH + 32];
    if (model && file_temporary_name(temporary, sizeof temporary, best, error) && link(model, temporary) == 0) {
        /* Renaming onto another name of the same file does nothing and leaves both. */
        bool renamed = rename(temporary, best) == 0;
        unlink(temporary);
        if (renamed) {
            return true;
        }
    }
    return checkpoint_write(best, state, info, error);
}

void checkpoint_folder_name(const struct checkpoint_folder *folder, enum checkpoint_target target, int64_t step,
                            char path[CHECKPOINT_MAX_PATH])
{
    char name[MAX_NAME];
    struct error error;
    checkpoint_name(name, step);
    if (!file_join(path, CHECKPOINT_MAX_PATH, folder->path, target == CHECKPOINT_BEST ? CHECKPOINT_BEST_NAME : name,
                   &error)) {
        path[0] = '\0';
    }
}

bool checkpoint_folder_save(struct checkpoint_folder *folder, int targets, const struct checkpoint_state *state,
                            const struct checkpoint_info *info, struct error *error)
{
    PROFILE("write checkpoint");
    char name[MAX_NAME], model[CHECKPOINT_MAX_PATH], best[CHECKPOINT_MAX_PATH];
    checkpoint_name(name, info->global_step);
    if (!file_join(model, sizeof model, folder->path, name, error) ||
        !file_join(best, sizeof best, folder->path, CHECKPOINT_BEST_NAME, error)) {
        return false;
    }
    if ((targets & CHECKPOINT_MODEL) && !checkpoint_write(model, state, info, error)) {
        return error_wrap(error, "the checkpoint of step %" PRId64 " was not written; the older ones are kept",
                          info->global_step);
    }
    if ((targets & CHECKPOINT_BEST) &&
        !save_best(best, targets & CHECKPOINT_MODEL ? model : NULL, state, info, error)) {
        return error_wrap(error, "the best checkpoint, of step %" PRId64 ", was not written", info->global_step);
    }
    if (targets & CHECKPOINT_MODEL) {
        delete_old(folder, info->global_step);
    }
    return true;
}
