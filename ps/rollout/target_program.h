/*
 * The program that a rollout's target runs in, on this machine. Records on disk which program each of the two versions
 * runs in, keeps the running one to go back to, receives the new one unless it is here, and removes programs that no
 * version needs any more. Part of a participant (participant.h), which decides when to restart in it; one thread at a
 * time.
 */
#ifndef PS_ROLLOUT_TARGET_PROGRAM_H
#define PS_ROLLOUT_TARGET_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/process/program.h"
#include "ps/rollout/manifest.h"

struct target_program { /* zeros: the target has none */
    bool is_new;        /* it is another program than the fallback's */
    bool is_due;        /* it is not on this machine yet */
    struct programs programs;
    char digest[PROGRAM_DIGEST_HEX + 1];
    uint64_t size;
    bool is_open; /* this process receives it; else another one of this machine does, or none yet */
    struct program_intake intake;
};

/*
 * Finds the manifest's program for this machine, and records it; sets is_due if it must be received. version: the one
 * that this process is in. follows: the fleet is in the target already, so a machine is not refused for running the
 * installed program because its copy of the former one is damaged.
 */
bool target_program_stage(struct target_program *program, const char *config_path, uint64_t version,
                          const struct manifest *manifest, bool follows, struct error *error);

/*
 * For going back to the manifest's fallback without having staged it: records the fallback's program, which must be on
 * this machine. True also if the manifest does not say which, or if this process is in a version above.
 */
bool target_program_find_former(struct target_program *program, const char *config_path, uint64_t version,
                                const struct manifest *manifest, struct error *error);

/* INTAKE_WHOLE once it is here. If no process on this machine is receiving it, this one begins to. */
enum intake_state target_program_look(struct target_program *program, struct error *error);

/* The offset of the bytes that this process needs next; false: none. */
bool target_program_wants(const struct target_program *program, const char **digest, uint64_t *offset);

/* Adds the bytes at that offset. INTAKE_WHOLE: they were the last, and target_program_look will find it. */
enum intake_state target_program_add(struct target_program *program, const void *bytes, size_t size,
                                     struct error *error);

/* Receives no more of it; what has been received is kept. */
void target_program_stop(struct target_program *program);

#endif
