/*
 * Programs that a machine keeps beside its config, to run in place of the one that is installed:
 *
 *     trainer.d/1a2b3c4d5e6f7081/trainer    whole and verified; the folder is named by the first half of its digest
 *     trainer.d/1a2b3c4d5e6f7081/part       what has come of it so far
 *     trainer.d/1a2b3c4d5e6f7081/lock       held by the process that takes it in
 *     CONFIG.d/00000005.program             the digest of the one that version 5 of the config runs in; no such file:
 *                                           the installed one
 *
 * All processes of a machine that share the folder share the programs: one takes a program in, the others find it. A
 * digest is the BLAKE2b-256 of the file, in hex.
 *
 * The installed program is never touched. It is what a supervisor starts, and it goes over to the program of the
 * version in force before it reads the config (program_launch). So a program that dies at once, or never gets anywhere,
 * is met by one that works: that counts the starts (base/process/restart.h), and goes back in time.
 */
#ifndef BASE_PROCESS_PROGRAM_H
#define BASE_PROCESS_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config/versions.h"
#include "base/error.h"
#include "base/simulation.h"

enum {
    PROGRAM_HASH = 32,       /* bytes */
    PROGRAM_DIGEST_HEX = 64, /* without the zero byte */
    PROGRAM_ID_HEX = 16,     /* of the digest, to tell builds apart */
    PROGRAM_ARCHITECTURE = 16,
    PROGRAM_MAX_BYTES = 256 << 20,
    PROGRAM_CHUNK = SMALLER(128 << 10, 1000), /* bytes that travel at once */
};

/* --- One program --- */

/* "x86_64" or "aarch64". */
const char *program_own_architecture(void);

/* Of the program that runs; "" if it can't be read. Computed once; any thread. */
const char *program_own_digest(void);

/* The program that runs; the caller frees *bytes. */
bool program_own_bytes(uint8_t **bytes, size_t *size, struct error *error);

bool program_digest_file(const char *path, char digest[PROGRAM_DIGEST_HEX + 1], struct error *error);
void program_digest(const uint8_t *bytes, size_t size, char digest[PROGRAM_DIGEST_HEX + 1]);

/*
 * Is it a whole program for Linux, by its own headers, and for which architecture? The error says what else it is; it
 * does not name the file.
 */
bool program_examine(const uint8_t *bytes, size_t size, char architecture[PROGRAM_ARCHITECTURE], struct error *error);

/* --- Those that a machine keeps --- */

struct programs {
    char folder[VERSIONS_PATH]; /* trainer.d, beside the config */
};

bool programs_name(struct programs *programs, const char *config_path, struct error *error); /* makes nothing */
bool programs_path(const struct programs *programs, const char *digest, char path[VERSIONS_PATH], struct error *error);
bool programs_have(const struct programs *programs, const char *digest);

/* The same, by its bytes. One that the disk has changed is removed, so that it can be taken in again. */
bool programs_have_whole(const struct programs *programs, const char *digest);

/* Keeps the program that runs, unless it is there; so that going back to it needs nobody. */
bool programs_keep_own(const struct programs *programs, struct error *error);

/* Part of one that is there; *got is less than size at its end. */
bool programs_read(const struct programs *programs, const char *digest, uint64_t offset, void *bytes, size_t size,
                   size_t *got, struct error *error);

/* Removes all but these. What can't be removed stays. */
void programs_prune(const struct programs *programs, const char *const *digests, int count);

/* --- Taking one in --- */

enum intake_state {
    INTAKE_WHOLE,  /* there is nothing to do */
    INTAKE_OPEN,   /* bytes may be added from `there` on */
    INTAKE_BUSY,   /* another process takes it in */
    INTAKE_FAILED, /* for the reason in the error */
};

struct program_intake {
    struct programs programs;
    char digest[PROGRAM_DIGEST_HEX + 1];
    uint64_t size, there;
    int lock, part; /* -1: not open */
};

/* Looks first whether the disk has room. Not open: nothing is to be closed, though that is fine. */
enum intake_state program_intake_open(struct program_intake *intake, const struct programs *programs,
                                      const char *digest, uint64_t size, struct error *error);
/*
 * Adds what comes at `there`. With the last bytes the whole is verified (digest, and that it is a program for any
 * machine) and put in its place, or else removed. After a failure the intake is to be closed.
 */
bool program_intake_add(struct program_intake *intake, const void *bytes, size_t size, struct error *error);
void program_intake_close(struct program_intake *intake); /* what has come stays */

/* --- Which one a version of the config runs in --- */

/* digest "": the installed one. */
bool program_of_version(const char *config_path, uint64_t version, char digest[PROGRAM_DIGEST_HEX + 1],
                        struct error *error);
bool program_set_version(const char *config_path, uint64_t version, const char *digest, struct error *error);

/*
 * When this process restarts (restart_now), it is to be in that version's program. on_probation: if that is another one
 * than this, the start is counted here, and the new process is killed unless it calls restart_arrived in time. Fails if
 * the program is not there or damaged.
 */
bool program_prepare(const char *config_path, uint64_t version, bool on_probation, struct error *error);

/*
 * At the start of a process, after probation_check and before the config is read: goes over to the program of the
 * version in force, or returns in the right one. One that can't be executed is gone back from; so is one that the disk
 * has lost or changed, which is not the version's fault.
 */
void program_launch(const char *config_path);

#endif
