/* A rollout in words, for the log, the operator and the record on disk. */
#include "ps/rollout/decide.h"

#include <stdio.h>
#include <string.h>

static const char *const state_names[] = {"idle",       "staging",   "switching", "watching",
                                          "going back", "restoring", "trying",    "saving"};
enum { STATES = sizeof state_names / sizeof *state_names };

enum { ABSENT_TEXT = 128 };

const char *rollout_state_name(enum rollout_state state)
{
    return (size_t)state < STATES ? state_names[state] : "unknown";
}

bool rollout_state_by_name(const char *name, enum rollout_state *state)
{
    for (int i = 0; i < STATES; i++) {
        if (strcmp(name, state_names[i]) == 0) {
            *state = (enum rollout_state)i;
            return true;
        }
    }
    return false;
}

/* How many are where they should be; name: the first one that is not, or "nobody". */
static int count_in(const struct rollout *rollout, char name[MEMBER_TEXT])
{
    int there = 0;
    snprintf(name, MEMBER_TEXT, "nobody");
    for (int i = rollout->count - 1; i >= 0; i--) {
        const struct rollout_member *member = &rollout->members[i];
        if (!rollout_is_in(rollout, member)) {
            member_format(&member->who, ' ', name);
        } else if (member->takes_part) {
            there++;
        }
    }
    return there;
}

static void describe_last(const struct rollout *rollout, char *text, size_t size)
{
    unsigned long long target = rollout->target, fallback = rollout->fallback;
    switch (rollout->outcome) {
    case OUTCOME_NONE:
        snprintf(text, size, "no rollout since this ps started");
        break;
    case OUTCOME_DONE:
        if (rollout->kind == ROLLOUT_LIVE) {
            snprintf(text, size, "version %llu is in force, since step %lld", target, (long long)rollout->step);
        } else {
            snprintf(text, size, "version %llu is in force", target);
        }
        break;
    case OUTCOME_NOT_BEGUN:
        snprintf(text, size, "version %llu was not rolled out, version %llu stays in force: %s", target, fallback,
                 rollout->reason);
        break;
    case OUTCOME_WENT_BACK:
        snprintf(text, size, "went back from version %llu to version %llu: %s", target, fallback, rollout->reason);
        break;
    }
}

static const char *describe_wave(const struct rollout *rollout)
{
    return rollout->ps_turn == PS_RESTARTS         ? "every ps last"
           : rollout->ps_turn == PS_WAITS_FOR_SAVE ? "worker 0 saves the job before every ps does"
           : rollout->is_first_wave                ? "the canary first"
                                                   : "the canary is well";
}

static void describe_switching(const struct rollout *rollout, int there, const char *name, char *text, size_t size)
{
    unsigned long long target = rollout->target;
    switch (rollout->kind) {
    case ROLLOUT_LIVE:
        snprintf(text, size, "switching to version %llu at step %lld: %d of %d members done, waiting for %s", target,
                 (long long)rollout->step, there, rollout_count_members(rollout), name);
        break;
    case ROLLOUT_LOCAL:
        if (rollout->is_paused) {
            snprintf(text, size,
                     "version %llu is paused, %d of %d members run it: %s; `trainer rollout resume` continues without, "
                     "`trainer rollout abort` rolls back",
                     target, there, rollout_count_members(rollout), rollout->pause);
            break;
        }
        snprintf(text, size, "restarting in version %llu in waves, %s: %d of %d members done", target,
                 describe_wave(rollout), there, rollout_count_members(rollout));
        break;
    case ROLLOUT_JOB:
        snprintf(text, size, "all restart in version %llu: %d of %d members done, waiting for %s", target, there,
                 rollout_count_members(rollout), name);
        break;
    }
}

static void describe_state(const struct rollout *rollout, char *text, size_t size)
{
    unsigned long long target = rollout->target, fallback = rollout->fallback;
    char name[MEMBER_TEXT];
    const int there = count_in(rollout, name);
    switch (rollout->state) {
    case ROLLOUT_IDLE:
        describe_last(rollout, text, size);
        break;
    case ROLLOUT_STAGING:
        snprintf(text, size, "staging version %llu: %d of %d members have it, waiting for %s", target, there,
                 rollout_count_members(rollout), name);
        break;
    case ROLLOUT_TRYING:
        snprintf(text, size, "worker 0 tries version %llu on a copy of the checkpoint", target);
        break;
    case ROLLOUT_SAVING:
        snprintf(text, size, "worker 0 saves the job before the restart in version %llu", target);
        break;
    case ROLLOUT_SWITCHING:
        describe_switching(rollout, there, name, text, size);
        break;
    case ROLLOUT_WATCHING:
        snprintf(text, size, "watching version %llu for %g s%s", target, rollout->healthy_s,
                 rollout->waits ? ", once enough workers are present" : "");
        break;
    case ROLLOUT_GOING_BACK:
        snprintf(text, size, "going back to version %llu: %d of %d members done, waiting for %s; %s", fallback, there,
                 rollout_count_members(rollout), name, rollout->reason);
        break;
    case ROLLOUT_RESTORING:
        snprintf(text, size, "worker 0 restores the checkpoint from before version %llu; %s", target, rollout->reason);
        break;
    }
}

/* "; without worker 2, worker 5 and 3 more, which are off", or "". */
static void describe_absent(const struct rollout *rollout, char text[ABSENT_TEXT])
{
    enum { NAMED = 3 };
    char names[NAMED][MEMBER_TEXT];
    int count = 0, behind = 0;
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *member = &rollout->members[i];
        if (member->listed && !member->takes_part && rollout_is_absent(&rollout->absent, member->who)) {
            if (count < NAMED) {
                member_format(&member->who, ' ', names[count]);
            }
            count++;
            behind += member->heard_s >= 0 && member->version != rollout->fallback;
        }
    }
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < count && i < NAMED; i++) {
        const char *before = i == 0 ? "; without " : i == count - 1 ? " and " : ", ";
        used += (size_t)snprintf(text + used, ABSENT_TEXT - used, "%s%s", before, names[i]);
    }
    if (count > NAMED) {
        used += (size_t)snprintf(text + used, ABSENT_TEXT - used, " and %d more", count - NAMED);
    }
    if (count > 0) {
        const char *how = behind == 0 ? "off" : behind == count ? "behind" : "off or behind";
        snprintf(text + used, ABSENT_TEXT - used, ", which %s %s", count == 1 ? "is" : "are", how);
    }
}

void rollout_describe(const struct rollout *rollout, char *text, size_t size)
{
    char absent[ABSENT_TEXT];
    describe_state(rollout, text, size);
    if (rollout->state != ROLLOUT_IDLE) {
        const size_t used = strlen(text);
        describe_absent(rollout, absent);
        snprintf(text + used, size - used, "%s", absent);
    }
}
