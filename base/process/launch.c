/*
 * Which program a process should run, and how it gets there. The digest is verified again before each start: the disk
 * may have changed the file, and once another program runs it is too late to check.
 */
#include "base/process/program.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process/restart.h"
#include "base/trust.h"

enum { MAX_FILE = 1 << 20 /* bytes of config.json */ };

static bool name_version(const char *config_path, uint64_t version, char path[VERSIONS_PATH], struct error *error)
{
    char name[48];
    snprintf(name, sizeof name, "%08" PRIu64 ".program", version);
    return versions_path(config_path, name, path, error);
}

bool program_of_version(const char *config_path, uint64_t version, char digest[PROGRAM_DIGEST_HEX + 1],
                        struct error *error)
{
    char path[VERSIONS_PATH], line[CHECKED_LINE];
    digest[0] = '\0';
    if (!name_version(config_path, version, path, error)) {
        return false;
    }
    if (!file_exists(path)) {
        return true;
    }
    if (!checked_line_read(path, line, error)) {
        return false;
    }
    snprintf(digest, PROGRAM_DIGEST_HEX + 1, "%.64s", line);
    return true;
}

bool program_set_version(const char *config_path, uint64_t version, const char *digest, struct error *error)
{
    char path[VERSIONS_PATH];
    return name_version(config_path, version, path, error) && checked_line_write(path, digest, error);
}

/*
 * The program of that version, which nobody else can have put there, verified. *path "": it is the installed one, or
 * this one. *is_lost: its file is damaged or missing. vouches: may be NULL.
 */
static bool find_program(const char *config_path, uint64_t version, program_vouches *vouches, char path[VERSIONS_PATH],
                         bool *is_lost, struct error *error)
{
    struct programs programs;
    char digest[PROGRAM_DIGEST_HEX + 1];
    path[0] = '\0';
    *is_lost = false;
    if (!program_of_version(config_path, version, digest, error)) {
        return false;
    }
    if (digest[0] == '\0' || strcmp(digest, program_own_digest()) == 0) {
        return true;
    }
    if ((vouches && !vouches(config_path, version, digest, error)) || !programs_name(&programs, config_path, error) ||
        !programs_path(&programs, digest, path, error) || (file_exists(path) && !trust_file(path, error))) {
        return false;
    }
    *is_lost = !programs_have_whole(&programs, digest);
    return !*is_lost ? trust_file(path, error) /* it may have appeared only now */
                     : error_set(error, "%s: is damaged, or not there", path);
}

bool program_prepare(const char *config_path, uint64_t version, bool on_probation, struct error *error)
{
    char path[VERSIONS_PATH];
    bool is_lost;
    return find_program(config_path, version, NULL, path, &is_lost, error) && /* its manifest was verified on arrival */
           (path[0] == '\0' ||
            ((!on_probation || probation_count(config_path, error)) && restart_in(path, on_probation, error)));
}

/* The file's fleet.version, which takes precedence over what was rolled out unless it is lower. */
static uint64_t read_file_version(const char *config_path)
{
    uint8_t *bytes;
    size_t size;
    struct error ignored;
    if (!file_read(config_path, MAX_FILE, &bytes, &size, &ignored)) {
        return 0;
    }
    cJSON *root = cJSON_ParseWithLength((const char *)bytes, size);
    free(bytes);
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(root, "fleet"), "version");
    const uint64_t number = cJSON_IsNumber(version) && version->valuedouble > 0 ? (uint64_t)version->valuedouble : 0;
    cJSON_Delete(root);
    return number;
}

/*
 * Without the program, this process would report a version that it does not run, and nobody would bring the program
 * again. So it goes back to a lower version, and the fleet brings this one.
 */
static bool step_back(const char *config_path, uint64_t version, const struct error *why)
{
    struct probation probation;
    struct error error;
    uint64_t lower;
    const bool has_failed = probation_read(config_path, &probation) && probation.failed;
    if (!versions_step_back(config_path, version, has_failed ? probation.target : 0, &lower, &error)) {
        log_error("%s", error.text);
        return false;
    }
    log_warning("%s: going back to version %" PRIu64 " of the config, until the fleet brings the program of version "
                "%" PRIu64 " again",
                why->text, lower > 0 ? lower : read_file_version(config_path), version);
    return true;
}

/* True: this process went back from that version. */
static bool launch(const char *config_path, uint64_t version, program_vouches *vouches)
{
    char path[VERSIONS_PATH];
    struct error error;
    struct probation probation;
    const bool on_probation =
        probation_read(config_path, &probation) && !probation.failed && probation.target == version;
    bool is_lost;
    const bool found = find_program(config_path, version, vouches, path, &is_lost, &error);
    if (found && (path[0] == '\0' || restart_at_once(path, on_probation, &error))) {
        return false;
    }
    if (is_lost && !on_probation && !versions_lead(config_path) && step_back(config_path, version, &error)) {
        return true;
    }
    log_error("the program of version %" PRIu64 " does not start, so this one continues: %s", version, error.text);
    if (on_probation && found) {
        probation_fail(config_path);
    } else if (on_probation) {
        probation_give_up(config_path, error.text);
    }
    return on_probation;
}

void program_launch(const char *config_path, program_vouches *vouches)
{
    uint64_t version, before = 0;
    struct error ignored;
    bool there, again = !restart_was_executed();
    while (again) {
        again = versions_current(config_path, &there, &version, &ignored) && there && version != before &&
                version > read_file_version(config_path) &&
                versions_check_start(config_path, true, version, &ignored) && launch(config_path, version, vouches);
        before = version;
    }
}
