/*
 * Detects whether a new version kills this process. The count of starts is kept where the next start finds it before
 * the config is read: CONFIG.d/probation-ID, one for each process (restart_identity), "TARGET FALLBACK STARTS FAILED
 * #CHECKSUM\n". Four numbers and no JSON, which even a badly broken process can read. There are two copies: nothing
 * else rescues a process that hangs, so one corrupted file must not prevent that.
 */
#include "base/process/restart.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/config/versions.h"
#include "base/file.h"
#include "base/log.h"

enum { MAX_RECORD = 96, COPIES = 2 };

static bool name_file(const char *config_path, int copy, char path[VERSIONS_PATH], struct error *error)
{
    char id[RESTART_ID], name[RESTART_ID + 16];
    restart_identity(id);
    snprintf(name, sizeof name, "probation-%s%s", id, copy > 0 ? ".copy" : "");
    return versions_path(config_path, name, path, error);
}

static bool store(const char *config_path, const struct probation *probation, struct error *error)
{
    char path[VERSIONS_PATH], text[MAX_RECORD];
    snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64 " %d %d", probation->target, probation->fallback,
             probation->starts, probation->failed);
    bool done = true;
    for (int i = 0; i < COPIES && done; i++) {
        done = name_file(config_path, i, path, error) && checked_line_write(path, text, error);
    }
    return done;
}

bool probation_begin(const char *config_path, uint64_t target, uint64_t fallback, struct error *error)
{
    return store(config_path, &(struct probation){.target = target, .fallback = fallback}, error);
}

bool probation_count(const char *config_path, struct error *error)
{
    struct probation probation;
    if (!probation_read(config_path, &probation)) {
        return error_set(error, "%s.d: the count of starts is missing", config_path);
    }
    probation.starts++;
    return store(config_path, &probation, error);
}

/* An invalid record is ignored. */
static bool read_copy(const char *path, struct probation *probation, struct error *error)
{
    char line[CHECKED_LINE];
    int failed = 0;
    if (!checked_line_read(path, line, error)) {
        return false;
    }
    const bool done = sscanf(line, "%" SCNu64 " %" SCNu64 " %d %d", &probation->target, &probation->fallback,
                             &probation->starts, &failed) == 4 &&
                      probation->starts >= 0; /* otherwise it would take too long to go back */
    probation->failed = failed != 0;
    return done || error_set(error, "%s: is damaged: it is not a record of starts", path);
}

bool probation_read(const char *config_path, struct probation *probation)
{
    char path[VERSIONS_PATH];
    struct error damage = {""}, ignored;
    for (int i = 0; config_path && i < COPIES && name_file(config_path, i, path, &ignored); i++) {
        if (file_exists(path) && read_copy(path, probation, &damage)) {
            return true;
        }
    }
    if (damage.text[0] != '\0') {
        log_warning("%s; so it is unknown how often this process failed in a new version", damage.text);
    }
    return false;
}

/*
 * The floor follows, if another process on this machine has raised it: this is the machine's own decision, because it
 * crashes, and not that of ps 0.
 */
static bool lower_floor(const char *config_path, uint64_t version, struct error *error)
{
    uint64_t floor;
    return versions_floor(config_path, &floor, error) &&
           (floor <= version || versions_set_floor(config_path, version, error));
}

static bool switch_back(const char *config_path, const struct probation *probation)
{
    struct versions versions;
    struct error error;
    if (!versions_open(&versions, config_path, &error) || !lower_floor(config_path, probation->fallback, &error) ||
        !versions_switch(&versions, probation->fallback, &error)) {
        log_error("%s", error.text);
        return false;
    }
    return true;
}

static void go_back(const char *config_path, struct probation *probation)
{
    if (!switch_back(config_path, probation)) {
        return;
    }
    probation->failed = true;
    log_error("this process failed %d times in version %" PRIu64 " of the config: going back to version %" PRIu64,
              probation->starts, probation->target, probation->fallback);
}

void probation_fail(const char *config_path)
{
    struct probation probation;
    struct error error;
    if (!probation_read(config_path, &probation) || probation.failed) {
        return;
    }
    go_back(config_path, &probation);
    if (!store(config_path, &probation, &error)) {
        log_warning("%s", error.text);
    }
}

void probation_give_up(const char *config_path, const char *damage)
{
    struct probation probation;
    if (probation_read(config_path, &probation) && !probation.failed && switch_back(config_path, &probation)) {
        probation_end(config_path);
        log_warning("%s; going back to version %" PRIu64 " of the config, from where version %" PRIu64
                    " is taken again, whole",
                    damage, probation.fallback, probation.target);
    }
}

static bool is_sound(const char *config_path, uint64_t version, struct error *damage)
{
    struct versions versions;
    return versions_open(&versions, config_path, damage) && versions_verify(&versions, version, damage);
}

void probation_check(const char *config_path)
{
    struct probation probation;
    struct error error, damage;
    bool there;
    uint64_t current;
    if (restart_was_executed() || !probation_read(config_path, &probation) || probation.failed ||
        !versions_current(config_path, &there, &current, &error) || !there || current != probation.target) {
        return;
    }
    if (!is_sound(config_path, probation.target, &damage)) {
        if (is_sound(config_path, probation.fallback, &error)) { /* otherwise a person must intervene */
            probation_give_up(config_path, damage.text);
        }
        return;
    }
    if (probation.starts >= PROBATION_STARTS) {
        go_back(config_path, &probation);
    } else {
        probation.starts++;
    }
    if (!store(config_path, &probation, &error)) {
        log_warning("%s", error.text);
    }
}

void probation_end(const char *config_path)
{
    char path[VERSIONS_PATH];
    struct error ignored;
    for (int i = 0; config_path && i < COPIES && name_file(config_path, i, path, &ignored); i++) {
        if (file_exists(path)) {
            unlink(path);
        }
    }
}
