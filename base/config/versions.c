/* Versions of a config on disk. Their files never change; only the number in `current` does. */
#include "base/config/versions.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/log.h"
#include "base/trust.h"

bool versions_path(const char *config_path, const char *name, char path[VERSIONS_PATH], struct error *error)
{
    return (size_t)snprintf(path, VERSIONS_PATH, "%s.d%s%s", config_path, name ? "/" : "", name ? name : "") <
               VERSIONS_PATH ||
           error_set(error, "%s: the path is too long", config_path);
}

static bool name_kind(const struct versions *versions, uint64_t number, const char *kind, char path[VERSIONS_PATH],
                      struct error *error)
{
    char name[48];
    if (number > VERSIONS_MAX_NUMBER) {
        return error_set(error, "fleet.version: %llu is above %d, the highest that can be kept",
                         (unsigned long long)number, VERSIONS_MAX_NUMBER);
    }
    snprintf(name, sizeof name, "%08llu%s.json", (unsigned long long)number, kind);
    return file_join(path, VERSIONS_PATH, versions->folder, name, error);
}

static bool name_file(const struct versions *versions, uint64_t number, char path[VERSIONS_PATH], struct error *error)
{
    return name_kind(versions, number, "", path, error);
}

bool versions_open(struct versions *versions, const char *config_path, struct error *error)
{
    return versions_path(config_path, NULL, versions->folder, error) && file_make_folder(versions->folder, error);
}

bool versions_read(const struct versions *versions, uint64_t number, char **text, size_t *size, struct error *error)
{
    char path[VERSIONS_PATH];
    uint8_t *bytes;
    if (!name_file(versions, number, path, error) || !checked_read(path, VERSIONS_MAX_TEXT, &bytes, size, error)) {
        return false;
    }
    *text = (char *)bytes;
    return true;
}

/* Writes a file that never changes once it exists. A damaged one is rewritten. */
static bool add(const char *path, uint64_t number, const char *text, size_t size, struct error *error)
{
    if (size > VERSIONS_MAX_TEXT) {
        return error_set(error, "%s: %zu bytes are too many for a config", path, size);
    }
    uint8_t *there;
    size_t there_size;
    struct error damage;
    if (file_exists(path) && checked_read(path, VERSIONS_MAX_TEXT, &there, &there_size, &damage)) {
        bool same = there_size == size && memcmp(there, text, size) == 0;
        free(there);
        if (!same) {
            return error_set(
                error,
                "%s: version %llu already exists with other content, and versions never change: give the new "
                "config a higher fleet.version",
                path, (unsigned long long)number);
        }
    }
    return checked_write(path, text, size, error);
}

bool versions_add(const struct versions *versions, uint64_t number, const char *text, size_t size, struct error *error)
{
    char path[VERSIONS_PATH];
    return name_file(versions, number, path, error) && add(path, number, text, size, error);
}

bool versions_add_local(const struct versions *versions, uint64_t number, const char *text, size_t size,
                        struct error *error)
{
    char path[VERSIONS_PATH];
    if (!name_kind(versions, number, ".local", path, error)) {
        return false;
    }
    return size == 0 && !file_exists(path) ? true : add(path, number, text ? text : "", size, error);
}

bool versions_read_local(const struct versions *versions, uint64_t number, char **text, size_t *size,
                         struct error *error)
{
    char path[VERSIONS_PATH];
    uint8_t *bytes = NULL;
    *size = 0;
    *text = NULL;
    if (!name_kind(versions, number, ".local", path, error) ||
        (file_exists(path) && !checked_read(path, VERSIONS_MAX_TEXT, &bytes, size, error))) {
        return false;
    }
    *text = (char *)bytes;
    return true;
}

bool versions_verify(const struct versions *versions, uint64_t number, struct error *error)
{
    char *job = NULL, *local = NULL;
    size_t size;
    const bool sound = versions_read(versions, number, &job, &size, error) &&
                       versions_read_local(versions, number, &local, &size, error);
    free(job);
    free(local);
    return sound;
}

bool versions_switch(const struct versions *versions, uint64_t number, struct error *error)
{
    char path[VERSIONS_PATH], text[32];
    if (!name_file(versions, number, path, error)) {
        return false;
    }
    if (!file_exists(path)) {
        return error_set(error, "%s: does not exist, so it can't be switched to", path);
    }
    snprintf(text, sizeof text, "%llu", (unsigned long long)number);
    return file_join(path, sizeof path, versions->folder, "current", error) && checked_line_write(path, text, error);
}

/* One of the folder's records of a version. *there: false if there is none. advice: what to do about a damaged one. */
static bool read_number(const char *config_path, const char *name, bool *there, uint64_t *number, const char *advice,
                        struct error *error)
{
    char path[VERSIONS_PATH], line[CHECKED_LINE];
    struct error damage = {""};
    *there = false;
    *number = 0;
    if (!versions_path(config_path, name, path, error)) {
        return false;
    }
    if (!file_exists(path)) {
        return true;
    }
    if (!trust_file(path, error)) {
        return false;
    }
    char *end = line;
    const bool sound = checked_line_read(path, line, &damage);
    const unsigned long long value = sound ? strtoull(line, &end, 10) : 0;
    if (!sound || line[0] < '0' || line[0] > '9' || value > VERSIONS_MAX_NUMBER || *end != '\0') {
        return error_set(error, "%s: holds no version number%s%.200s; %s", path, sound ? "" : ", for ", damage.text,
                         advice);
    }
    *number = value;
    *there = true;
    return true;
}

bool versions_current(const char *config_path, bool *there, uint64_t *number, struct error *error)
{
    char advice[VERSIONS_PATH + 64];
    snprintf(advice, sizeof advice, "write the one to use into it, or remove it to use %s alone", config_path);
    return read_number(config_path, "current", there, number, advice, error);
}

bool versions_floor(const char *config_path, uint64_t *floor, struct error *error)
{
    bool there;
    return read_number(config_path, "floor", &there, floor,
                       "write the version that the fleet runs into it, or remove it if this machine may go back to any "
                       "version that was signed",
                       error);
}

static bool write_number(const char *config_path, const char *name, uint64_t number, struct error *error)
{
    char path[VERSIONS_PATH], text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)number);
    return versions_path(config_path, name, path, error) && checked_line_write(path, text, error);
}

bool versions_set_floor(const char *config_path, uint64_t floor, struct error *error)
{
    return write_number(config_path, "floor", floor, error);
}

bool versions_last(const char *config_path, uint64_t *last, struct error *error)
{
    bool there;
    return read_number(config_path, "last", &there, last, "ps 0 will send that version's manifest again", error);
}

bool versions_set_last(const char *config_path, uint64_t last, struct error *error)
{
    return write_number(config_path, "last", last, error);
}

bool versions_lower_floor(const char *config_path, uint64_t version, struct error *error)
{
    uint64_t floor;
    return versions_floor(config_path, &floor, error) &&
           (floor <= version || versions_set_floor(config_path, version, error));
}

bool versions_check_floor(const char *config_path, uint64_t number, struct error *error)
{
    uint64_t floor;
    return versions_floor(config_path, &floor, error) &&
           (number >= floor ||
            error_set(error,
                      "version %llu of the config is below version %llu, on which the fleet had settled; roll it out "
                      "again under a higher fleet.version, or, to go back on this machine alone, remove %s.d/floor",
                      (unsigned long long)number, (unsigned long long)floor, config_path));
}

/* --- Damage --- */

/* Is this the version that this machine went back to, since its files of a later one were damaged? */
static bool is_healed(const char *config_path, uint64_t number)
{
    bool there;
    uint64_t healed;
    struct error ignored;
    return read_number(config_path, "healed", &there, &healed, "remove it", &ignored) && there && healed == number;
}

bool versions_check_start(const char *config_path, bool there, uint64_t number, struct error *error)
{
    return versions_check_floor(config_path, number, error) || is_healed(config_path, there ? number : 0);
}

/* As versions_verify, and the record of the program that the version runs in (base/process/program.h). */
static bool is_whole(const struct versions *versions, uint64_t number, struct error *error)
{
    char name[48], path[VERSIONS_PATH], line[CHECKED_LINE];
    snprintf(name, sizeof name, "%08llu.program", (unsigned long long)number);
    return versions_verify(versions, number, error) && file_join(path, sizeof path, versions->folder, name, error) &&
           (!file_exists(path) || checked_line_read(path, line, error));
}

/* Whichever of the version's files is damaged; a file and its checksum belong together. */
static void set_version_aside(const struct versions *versions, uint64_t number)
{
    static const char *const kinds[] = {".json", ".local.json", ".program"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        char name[48], path[VERSIONS_PATH], sum_path[VERSIONS_PATH], line[CHECKED_LINE];
        uint8_t *bytes = NULL;
        size_t size;
        struct error damage;
        snprintf(name, sizeof name, "%08llu%s", (unsigned long long)number, kinds[i]);
        if (!file_join(path, sizeof path, versions->folder, name, &damage) || !file_exists(path) ||
            (i == 2 ? checked_line_read(path, line, &damage)
                    : checked_read(path, VERSIONS_MAX_TEXT, &bytes, &size, &damage))) {
            free(bytes);
            continue;
        }
        file_set_aside(path, damage.text);
        if ((size_t)snprintf(sum_path, sizeof sum_path, "%s.sum", path) < sizeof sum_path) {
            unlink(sum_path);
        }
    }
}

/* The newest whole version below `below`; 0: none. */
static uint64_t newest_whole(const struct versions *versions, uint64_t below, uint64_t failed)
{
    uint64_t newest = 0;
    DIR *directory = opendir(versions->folder);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        char *end;
        struct error ignored;
        const uint64_t number = strtoull(entry->d_name, &end, 10);
        if (end == entry->d_name + 8 && strcmp(end, ".json") == 0 && number > newest && number < below &&
            number != failed && is_whole(versions, number, &ignored)) {
            newest = number;
        }
    }
    if (directory) {
        closedir(directory);
    }
    return newest;
}

bool versions_lead(const char *config_path)
{
    char path[VERSIONS_PATH];
    struct error ignored;
    return versions_path(config_path, "rollout.json", path, &ignored) && file_exists(path);
}

bool versions_step_back(const char *config_path, uint64_t number, uint64_t failed, uint64_t *lower, struct error *error)
{
    struct versions versions;
    char path[VERSIONS_PATH];
    if (!versions_open(&versions, config_path, error)) {
        return false;
    }
    *lower = newest_whole(&versions, number, failed);
    if (!write_number(config_path, "healed", *lower, error)) {
        return false;
    }
    if (*lower > 0) {
        return versions_switch(&versions, *lower, error);
    }
    return versions_path(config_path, "current", path, error) &&
           (unlink(path) == 0 || errno == ENOENT || file_error(error, path, "cannot be removed", errno));
}

void versions_heal(const char *config_path, uint64_t failed)
{
    struct versions versions;
    char path[VERSIONS_PATH];
    struct error error, damage;
    bool there;
    uint64_t number, lower;
    if (!versions_path(config_path, "current", path, &error) || !file_exists(path) ||
        !versions_open(&versions, config_path, &error) || !trust_file(path, &error)) {
        return;
    }
    const bool is_known = versions_current(config_path, &there, &number, &damage);
    if (is_known && (is_whole(&versions, number, &damage) || versions_lead(config_path) ||
                     !versions_check_floor(config_path, number, &damage))) {
        return;
    }
    if (is_known) {
        set_version_aside(&versions, number);
    } else {
        file_set_aside(path, damage.text);
    }
    if (!versions_step_back(config_path, is_known ? number : UINT64_MAX, failed, &lower, &error)) {
        log_error("%s", error.text);
    } else if (lower > 0) {
        log_warning("version %llu of the config comes into force here; the fleet brings the one that it is at",
                    (unsigned long long)lower);
    } else {
        log_warning("%s alone comes into force here; the fleet brings the version that it is at", config_path);
    }
}
