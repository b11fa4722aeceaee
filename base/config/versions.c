/* Versions of a config on disk. Their files never change; only the number in `current` does. */
#include "base/config/versions.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/file.h"
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

bool versions_current(const char *config_path, bool *there, uint64_t *number, struct error *error)
{
    char path[VERSIONS_PATH], line[CHECKED_LINE];
    struct error damage = {""};
    *there = false;
    *number = 0;
    if (!versions_path(config_path, "current", path, error)) {
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
        return error_set(error,
                         "%s: holds no version number%s%.200s; write the one to use into it, or remove it to use %s "
                         "alone",
                         path, sound ? "" : ", for ", damage.text, config_path);
    }
    *number = value;
    *there = true;
    return true;
}

bool versions_floor(const char *config_path, uint64_t *floor, struct error *error)
{
    char path[VERSIONS_PATH], line[CHECKED_LINE];
    struct error damage = {""};
    *floor = 0;
    if (!versions_path(config_path, "floor", path, error)) {
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
        return error_set(error,
                         "%s: holds no version number%s%.200s; write the version that the fleet runs into it, or "
                         "remove it if this machine may go back to any version that was signed",
                         path, sound ? "" : ", for ", damage.text);
    }
    *floor = value;
    return true;
}

bool versions_set_floor(const char *config_path, uint64_t floor, struct error *error)
{
    char path[VERSIONS_PATH], text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)floor);
    return versions_path(config_path, "floor", path, error) && checked_line_write(path, text, error);
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
