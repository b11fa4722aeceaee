#include "ps/rollout/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"

enum { MAX_RECORD = 1024 };

static bool name_file(const struct versions *versions, char path[VERSIONS_PATH], struct error *error)
{
    return file_join(path, VERSIONS_PATH, versions->folder, "rollout", error);
}

/* "5 4 5 2 10 0.31 watching\n": target, fallback, highest, kind, healthy_s, loss before, state; then why. */
bool record_store(const struct versions *versions, const struct record *record, struct error *error)
{
    char path[VERSIONS_PATH], text[MAX_RECORD];
    const struct rollout_plan *plan = &record->plan;
    int size = snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %d %.17g %.17g %s\n%s\n", plan->target,
                        plan->fallback, record->highest, (int)plan->kind, plan->healthy_s, record->loss_before,
                        rollout_state_name(record->state), record->reason);
    const struct file_part bytes = {text, (size_t)size};
    return name_file(versions, path, error) && file_write_atomic(path, &bytes, 1, error);
}

static bool read_file(const char *path, struct record *record, struct error *error)
{
    char name[MAX_RECORD] = "";
    uint8_t *bytes;
    size_t size;
    int kind = -1;
    struct rollout_plan *plan = &record->plan;
    record->reason[0] = '\0';
    if (!file_read(path, MAX_RECORD - 1, &bytes, &size, error)) {
        return false;
    }
    bool done = sscanf((char *)bytes, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %d %lg %lg %250[^\n]\n%511[^\n]",
                       &plan->target, &plan->fallback, &record->highest, &kind, &plan->healthy_s, &record->loss_before,
                       name, record->reason) >= 7 &&
                kind >= ROLLOUT_LIVE && kind <= ROLLOUT_JOB && rollout_state_by_name(name, &record->state);
    free(bytes);
    plan->kind = (enum rollout_kind)kind;
    return done || error_set(error, "%s: is damaged; remove it if no rollout was under way", path);
}

bool record_read(const struct versions *versions, bool *there, struct record *record, struct error *error)
{
    char path[VERSIONS_PATH];
    *there = false;
    if (!name_file(versions, path, error)) {
        return false;
    }
    *there = file_exists(path);
    return !*there || read_file(path, record, error);
}
