#include "ps/rollout/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "base/file.h"

enum { MAX_RECORD = 1024, ABSENT_HEX = 2 * sizeof(struct rollout_absent) };

static const char WAITED[] = ", of a job that waited", ABSENT[] = ", without ";

static bool name_file(const struct versions *versions, char path[VERSIONS_PATH], struct error *error)
{
    return file_join(path, VERSIONS_PATH, versions->folder, "rollout", error);
}

/* As far as the last worker that is; two digits for 8 of them. "": nobody is. */
static void write_absent(const struct rollout_absent *absent, char text[ABSENT_HEX + 1])
{
    size_t used = sizeof absent->bits;
    while (used > 0 && absent->bits[used - 1] == 0) {
        used--;
    }
    sodium_bin2hex(text, ABSENT_HEX + 1, absent->bits, used);
}

/*
 * "5 4 5 2 10 0.31 switching, without 0400\n": target, fallback, highest, kind, healthy_s, loss before, state, what WAITED
 * says, and which workers are off, if any are: bit i % 8 of byte i / 8 is worker i's. Then a line that says why it goes back.
 */
bool record_store(const struct versions *versions, const struct record *record, struct error *error)
{
    char path[VERSIONS_PATH], text[MAX_RECORD], absent[ABSENT_HEX + 1];
    const struct rollout_plan *plan = &record->plan;
    write_absent(&plan->absent, absent);
    int size = snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %d %.17g %.17g %s%s%s%s\n%s\n",
                        plan->target, plan->fallback, record->highest, (int)plan->kind, plan->healthy_s,
                        record->loss_before, rollout_state_name(record->state), plan->waited ? WAITED : "",
                        absent[0] != '\0' ? ABSENT : "", absent, record->reason);
    const struct file_part bytes = {text, (size_t)size};
    return name_file(versions, path, error) && file_write_atomic(path, &bytes, 1, error);
}

/* Cuts off what follows this word, and it, too. NULL: it is not there. */
static char *cut_at(char *text, const char *word)
{
    char *at = strstr(text, word);
    if (at == NULL) {
        return NULL;
    }
    *at = '\0';
    return at + strlen(word);
}

/* The chief is never left out. */
static bool parse_absent(const char *text, struct rollout_absent *absent)
{
    const char *end;
    size_t used;
    return sodium_hex2bin(absent->bits, sizeof absent->bits, text, strlen(text), NULL, &used, &end) == 0 &&
           *end == '\0' && used > 0 && (absent->bits[0] & 1) == 0;
}

/* The first line. */
static bool parse_state(char *line, struct record *record)
{
    struct rollout_plan *plan = &record->plan;
    int kind = -1, length = 0;
    if (sscanf(line, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %d %lg %lg %n", &plan->target, &plan->fallback,
               &record->highest, &kind, &plan->healthy_s, &record->loss_before, &length) < 6 ||
        length == 0 || kind < ROLLOUT_LIVE || kind > ROLLOUT_JOB) {
        return false;
    }
    const char *absent = cut_at(line + length, ABSENT);
    plan->kind = (enum rollout_kind)kind;
    plan->waited = cut_at(line + length, WAITED) != NULL;
    return (absent == NULL || parse_absent(absent, &plan->absent)) &&
           rollout_state_by_name(line + length, &record->state);
}

static bool read_file(const char *path, struct record *record, struct error *error)
{
    uint8_t *bytes;
    size_t size;
    *record = (struct record){.state = ROLLOUT_IDLE};
    if (!file_read(path, MAX_RECORD - 1, &bytes, &size, error)) {
        return false;
    }
    char *line = (char *)bytes, *reason = cut_at(line, "\n");
    bool done = reason != NULL && parse_state(line, record);
    if (done) {
        snprintf(record->reason, sizeof record->reason, "%.*s", (int)strcspn(reason, "\n"), reason);
    }
    free(bytes);
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
