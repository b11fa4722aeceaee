/* The programs of a rollout as an operator specifies them: files, transfer rate, and waves. */
#ifndef WORKER_REMOTE_OPERATOR_ROLLOUT_H
#define WORKER_REMOTE_OPERATOR_ROLLOUT_H

#include "ps/rollout/manifest.h"
#include "worker/remote/operator/rollout_client.h"

struct rollout_programs {
    struct manifest_programs programs;     /* for the manifest; count 0: none */
    uint8_t *bytes[MANIFEST_MAX_PROGRAMS]; /* of each; NULL: the fleet has it */
};

/* As the operator gave them; NULL: the default. */
struct rollout_flags {
    const char *rate;        /* MB a second */
    const char *waves;       /* "1,10%,50%,100%" */
    const char *budget;      /* "3" or "5%" */
    const char *least_speed; /* "50%" */
};

/*
 * Reads the files, separated by commas (NULL: none), each a complete trainer for another architecture. Call
 * rollout_programs_free after a failure, too.
 */
bool rollout_programs_read(struct rollout_programs *programs, const char *files, const struct rollout_flags *flags,
                           struct error *error);
void rollout_programs_free(struct rollout_programs *programs);

/*
 * Programs that the fleet runs become the fallback, and stay where no other comes. in_force: of the manifest in force.
 */
void rollout_programs_follow(struct rollout_programs *programs, const struct manifest_programs *in_force);

/* Prints one line for each new program. */
void rollout_programs_show(const struct rollout_programs *programs);

/* Sends ps 0 the programs that it lacks. manifest: as signed. */
bool rollout_programs_bring(const struct rollout_programs *programs, struct rollout_client *client,
                            const uint8_t *manifest, size_t manifest_size, struct error *error);

#endif
