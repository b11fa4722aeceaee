/*
 * Programs that a machine keeps beside its config, to run in place of the installed one:
 *
 *     trainer.d/1a2b3c4d5e6f7081/trainer    whole and verified; the folder is named by the first half of its digest
 *     trainer.d/1a2b3c4d5e6f7081/part       the bytes received so far
 *     trainer.d/1a2b3c4d5e6f7081/lock       held by the process that receives it
 *     CONFIG.d/00000005.program             the digest of the program that version 5 of the config runs in; no such
 *                                           file: the installed one
 *
 * All processes of a machine that share the folder share the programs: one process receives a program for all. A digest
 * is the BLAKE2b-256 of the file, in hex.
 *
 * The installed program is never touched. A supervisor starts it, and before it reads the config it executes the
 * program of the version in force (program_launch). So even if the new program dies at once or hangs, each start begins
 * in a program that works, which counts the starts (base/process/restart.h) and falls back in time.
 */
#ifndef BASE_PROCESS_PROGRAM_H
#define BASE_PROCESS_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/checked.h"
#include "base/config/versions.h"
#include "base/error.h"
#include "base/simulation.h"

enum {
    PROGRAM_HASH = 32,       /* bytes */
    PROGRAM_DIGEST_HEX = 64, /* without the zero byte */
    PROGRAM_ID_HEX = 16,     /* leading digits of the digest, to distinguish builds */
    PROGRAM_ARCHITECTURE = 16,
    PROGRAM_MAX_BYTES = 256 << 20,
    PROGRAM_CHUNK = SMALLER(128 << 10, 1000), /* bytes sent at once */
};

/* --- One program --- */

/* "x86_64" or "aarch64". */
const char *program_own_architecture(void);

/* The running program's digest; "" if the program can't be read. Computed once; any thread. */
const char *program_own_digest(void);

/* The running program; the caller frees *bytes. */
bool program_own_bytes(uint8_t **bytes, size_t *size, struct error *error);

/*
 * Checks by the ELF headers that it is a complete program for Linux, and finds its architecture. The error says what it
 * is instead; it does not name the file.
 */
bool program_examine(const uint8_t *bytes, size_t size, char architecture[PROGRAM_ARCHITECTURE], struct error *error);

/* --- The programs that a machine keeps --- */

struct programs {
    char folder[VERSIONS_PATH]; /* trainer.d, beside the config */
};

bool programs_name(struct programs *programs, const char *config_path, struct error *error); /* creates nothing */
bool programs_path(const struct programs *programs, const char *digest, char path[VERSIONS_PATH], struct error *error);
bool programs_have(const struct programs *programs, const char *digest);

/* Can programs be executed where they are kept? On a file system mounted noexec they can't. */
bool programs_may_run(const struct programs *programs, struct error *error);

/* The same, after verifying its bytes. A corrupted program is set aside, so that it can be received again. */
bool programs_have_whole(const struct programs *programs, const char *digest);

/* Keeps a copy of the running program, if there is none yet, so that falling back to it needs no peer. */
bool programs_keep_own(const struct programs *programs, struct error *error);

/* Reads part of a program that is kept; *got is less than size at its end. */
bool programs_read(const struct programs *programs, const char *digest, uint64_t offset, void *bytes, size_t size,
                   size_t *got, struct error *error);

/* Removes all but these. What can't be removed stays. */
void programs_prune(const struct programs *programs, const char *const *digests, int count);

/* --- Receiving a program --- */

enum intake_state {
    INTAKE_WHOLE,  /* there is nothing to do */
    INTAKE_OPEN,   /* bytes may be added from offset `there` on */
    INTAKE_BUSY,   /* another process is receiving it */
    INTAKE_FAILED, /* for the reason in the error */
};

struct program_intake {
    struct programs programs;
    char digest[PROGRAM_DIGEST_HEX + 1];
    uint64_t size, there;
    int lock, part; /* -1: not open */
};

/* Checks first that the disk has room. Unless INTAKE_OPEN is returned, program_intake_close is optional. */
enum intake_state program_intake_open(struct program_intake *intake, const struct programs *programs,
                                      const char *digest, uint64_t size, struct error *error);
/*
 * Adds the bytes at offset `there`. With the last bytes the whole is verified (its digest, and that it is a program,
 * for whatever architecture) and moved into place, or else removed. After a failure the caller closes the intake.
 */
bool program_intake_add(struct program_intake *intake, const void *bytes, size_t size, struct error *error);
void program_intake_close(struct program_intake *intake); /* keeps the bytes received so far */

/* --- The program that a version of the config runs in --- */

/* digest "": the installed one. */
bool program_of_version(const char *config_path, uint64_t version, char digest[PROGRAM_DIGEST_HEX + 1],
                        struct error *error);
bool program_set_version(const char *config_path, uint64_t version, const char *digest, struct error *error);

/*
 * Makes the next restart of this process (restart_now) execute that version's program. on_probation: if that differs
 * from this program, the start is counted here, and the new process is killed unless it calls restart_arrived in time.
 * Fails if the program is missing or damaged.
 */
bool program_prepare(const char *config_path, uint64_t version, bool on_probation, struct error *error);

/* True if a signature that this machine trusts says that this version runs in the program with this digest. */
typedef bool program_vouches(const char *config_path, uint64_t version, const char *digest, struct error *error);

/*
 * At the start of a process, after probation_check and before the config is read: executes the program of the version
 * in force, or returns if this is it. The caller has checked whose the config is. If that program can't be executed,
 * falls back; likewise if the disk has lost or changed it, if another user may have (base/trust.h), or if nothing
 * vouches for it, none of which counts against the version.
 */
void program_launch(const char *config_path, program_vouches *vouches);

#endif
