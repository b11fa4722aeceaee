/*
 * An operator's choices about programs. Of a file only headers and markers are checked: its architecture, whether it is
 * complete, and its protocol. It is never run here.
 */
#include "worker/remote/operator/rollout_programs.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "net/message.h"

static const double RATE_MB = 20, MOST_RATE_MB = 100000;

enum { LEAST_SPEED = 50 }; /* percent */

/*
 * In every trainer, for the operator who rolls it out: found by searching for the text, at any place and in any
 * architecture.
 */
static const struct {
    char text[24];
    uint16_t lowest, highest;
} mark __attribute__((used)) = {"trainer speaks protocol", PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX};

/* --- Reading --- */

static bool find_protocol(const uint8_t *bytes, size_t size, uint32_t *lowest)
{
    const uint8_t *at = memmem(bytes, size, mark.text, sizeof mark.text);
    if (!at || size - (size_t)(at - bytes) < sizeof mark) {
        return false;
    }
    at += sizeof mark.text;
    *lowest = (uint32_t)(at[0] | at[1] << 8);
    return true;
}

static bool examine(struct rollout_programs *programs, const uint8_t *bytes, size_t size, struct error *error)
{
    struct manifest_programs *all = &programs->programs;
    struct manifest_program program = {.size = size};
    uint32_t protocol = 0;
    if (!program_examine(bytes, size, program.architecture, error)) {
        return false;
    }
    if (!find_protocol(bytes, size, &protocol)) {
        return error_set(error, "is not a trainer, or is too old to be rolled out");
    }
    if (manifest_program_for(all, program.architecture)) {
        return error_set(error, "is a second program for %s: give one for each architecture", program.architecture);
    }
    program_digest(bytes, size, program.digest);
    all->protocol = protocol > all->protocol ? protocol : all->protocol;
    all->items[all->count] = program;
    return true;
}

static bool read_one(struct rollout_programs *programs, const char *path, struct error *error)
{
    struct manifest_programs *all = &programs->programs;
    size_t size;
    if (all->count == MANIFEST_MAX_PROGRAMS) {
        return error_set(error, "%s: %d programs are the most that can be rolled out at once", path,
                         MANIFEST_MAX_PROGRAMS);
    }
    uint8_t **bytes = &programs->bytes[all->count];
    if (!file_read(path, PROGRAM_MAX_BYTES, bytes, &size, error)) {
        *bytes = NULL;
        return false;
    }
    if (!examine(programs, *bytes, size, error)) {
        free(*bytes);
        *bytes = NULL;
        return error_wrap(error, "%s", path);
    }
    all->count++;
    return true;
}

static bool read_files(struct rollout_programs *programs, const char *files, struct error *error)
{
    bool done = true;
    for (const char *at = files; done && *at != '\0';) {
        char path[PATH_MAX];
        const size_t length = strcspn(at, ",");
        done = length > 0 && length < sizeof path;
        if (!done) {
            return error_set(error, "--binary: expected the paths of programs, separated by commas");
        }
        memcpy(path, at, length);
        path[length] = '\0';
        done = read_one(programs, path, error);
        at += length + (at[length] == ',');
    }
    return done && (programs->programs.count > 0 || error_set(error, "--binary: names no program"));
}

static bool read_rate(const char *text, uint32_t *rate_kib, struct error *error)
{
    char *end = NULL;
    const double rate = text ? strtod(text, &end) : RATE_MB;
    if (text && (end == text || *end != '\0' || !(rate > 0 && rate <= MOST_RATE_MB))) {
        return error_set(error, "--rate_mb must be a number above 0, in MB per second");
    }
    *rate_kib = (uint32_t)(rate * 1e6 / 1024) + 1;
    return true;
}

/* Each wave must be larger than the one before it, as far as that can be compared. */
static bool read_waves(const char *text, struct rollout_waves *waves, struct error *error)
{
    static const char message[] = "--waves must be up to 8 numbers of workers, or shares of them, such as "
                                  "1,10%,50%,100%";
    for (const char *at = text; at && *at != '\0';) {
        char *end;
        const long number = strtol(at, &end, 10);
        const bool percent = *end == '%';
        const char *next = end + percent;
        if (end == at || number < 1 || number > (percent ? 100 : 1000000) || waves->count == ROLLOUT_MAX_WAVES ||
            (*next != ',' && *next != '\0')) {
            return error_set(error, "%s", message);
        }
        waves->items[waves->count++] = (uint32_t)number | (percent ? ROLLOUT_PERCENT : 0);
        at = next + (*next == ',');
    }
    return true;
}

/* A number of workers, or a percentage of them. */
static bool read_budget(const char *text, uint32_t *budget, struct error *error)
{
    char *end = NULL;
    const long number = text ? strtol(text, &end, 10) : 0;
    const bool percent = text && *end == '%';
    if (text && (end == text || end[percent] != '\0' || number < 1 || number > (percent ? 100 : 1000000))) {
        return error_set(error,
                         "--budget must be how many workers may be down at once, or a share of them, such as 5%%");
    }
    *budget = (uint32_t)number | (percent ? ROLLOUT_PERCENT : 0);
    return true;
}

static bool read_least_speed(const char *text, uint32_t *percent, struct error *error)
{
    char *end = NULL;
    const long number = text ? strtol(text, &end, 10) : LEAST_SPEED;
    if (text && (end == text || strcmp(end, "%") != 0 || number < 0 || number > 100)) {
        return error_set(error,
                         "--least_speed must be a share such as 50%% of a worker's earlier speed; 0%%: no limit");
    }
    *percent = (uint32_t)number;
    return true;
}

bool rollout_programs_read(struct rollout_programs *programs, const char *files, const struct rollout_flags *flags,
                           struct error *error)
{
    *programs = (struct rollout_programs){.programs = {.count = 0}};
    struct rollout_waves *waves = &programs->programs.waves;
    if (!files) {
        return (!flags->rate && !flags->waves && !flags->budget && !flags->least_speed) ||
               error_set(error, "--rate_mb, --waves, --budget and --least_speed go with --binary");
    }
    return read_rate(flags->rate, &programs->programs.rate_kib, error) &&
           read_waves(flags->waves ? flags->waves : "1,10%,50%,100%", waves, error) &&
           read_budget(flags->budget, &waves->budget, error) &&
           read_least_speed(flags->least_speed, &waves->least_speed, error) && read_files(programs, files, error);
}

void rollout_programs_free(struct rollout_programs *programs)
{
    for (int i = 0; i < MANIFEST_MAX_PROGRAMS; i++) {
        free(programs->bytes[i]);
    }
    *programs = (struct rollout_programs){.programs = {.count = 0}};
}

void rollout_programs_follow(struct rollout_programs *programs, const struct manifest_programs *in_force)
{
    struct manifest_programs *all = &programs->programs;
    if (all->count == 0) {
        all->rate_kib = in_force->rate_kib;
        all->waves = in_force->waves;
    }
    all->protocol = in_force->protocol > all->protocol ? in_force->protocol : all->protocol;
    for (int i = 0; i < in_force->count; i++) {
        const struct manifest_program *there = &in_force->items[i];
        int same = 0;
        while (same < all->count && strcmp(all->items[same].architecture, there->architecture) != 0) {
            same++;
        }
        if (same == MANIFEST_MAX_PROGRAMS) {
            continue;
        }
        if (same == all->count) {
            all->items[all->count++] = *there;
        }
        memcpy(all->items[same].fallback, there->digest, sizeof there->digest);
    }
}

void rollout_programs_show(const struct rollout_programs *programs)
{
    for (int i = 0; i < programs->programs.count; i++) {
        const struct manifest_program *program = &programs->programs.items[i];
        char before[PROGRAM_ID_HEX + 1];
        snprintf(before, sizeof before, "%.16s", program->fallback);
        if (programs->bytes[i]) {
            log_info("program for %-16s %.18s -> %.16s  (%llu KiB)", program->architecture,
                     program->fallback[0] == '\0' ? "each machine's own" : before, program->digest,
                     (unsigned long long)(program->size >> 10));
        }
    }
}

/* --- Sending --- */

/* Continues from what ps 0 has; after a restart that may be less than it said. */
static bool bring(struct rollout_client *client, const struct manifest_program *program, const uint8_t *bytes,
                  uint64_t there, struct error *error)
{
    while (there < program->size) {
        const uint64_t left = program->size - there, before = there;
        const size_t size = left < PROGRAM_CHUNK ? (size_t)left : PROGRAM_CHUNK;
        if (!rollout_client_put(client, program->digest, there, bytes + there, size, &there, error)) {
            return false;
        }
        if (there <= before || there > program->size) {
            return error_set(error, "ps 0 has %llu bytes of the program after it was sent those up to %llu",
                             (unsigned long long)there, (unsigned long long)(before + size));
        }
    }
    return true;
}

bool rollout_programs_bring(const struct rollout_programs *programs, struct rollout_client *client,
                            const uint8_t *manifest, size_t manifest_size, struct error *error)
{
    bool done = true;
    for (int i = 0; i < programs->programs.count && done; i++) {
        const struct manifest_program *program = &programs->programs.items[i];
        uint64_t there;
        if (programs->bytes[i]) {
            done = rollout_client_offer(client, program->digest, manifest, manifest_size, &there, error) &&
                   bring(client, program, programs->bytes[i], there, error);
        }
    }
    return done;
}
