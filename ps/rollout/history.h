/*
 * A machine's record of rollouts, in the folder of versions beside its config (base/config/versions.h), CONFIG.d:
 *
 *     00000005.manifest   the rollout that brought version 5, as the operator signed it; never deleted
 *     last                the version of the last rollout that this machine took part in
 *     rollout.json        ps 0 only: the state of the rollout that it leads, or led last
 *     audit.log           who did what and when; only ever appended to
 *     audit.log.1         the previous one, once audit.log became too large
 *     audit.head          the hash of its last line
 *
 * Signatures are checked when manifests arrive, and again before a program that one of them names is executed.
 * Everything except the audit log is written atomically: a power cut leaves the old file or the new. Checksums
 * (base/checked.h) reveal corruption: beside manifests, and as the last member of rollout.json.
 */
#ifndef PS_ROLLOUT_HISTORY_H
#define PS_ROLLOUT_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/config/versions.h"
#include "base/error.h"
#include "net/operator_key.h"
#include "ps/rollout/decide.h"

/* --- The origin of this process's config --- */

struct lineage {
    uint64_t target, fallback;
    char digests[2][CONFIG_DIGEST_HEX + 1]; /* of both */
    enum rollout_kind kind;
    bool may_lose;
};

/*
 * The manifest that brought this version; version 0: that of the last rollout. The caller frees *bytes; NULL: there is
 * none. The error names a damaged file.
 */
bool lineage_load(const struct config *config, uint64_t version, uint8_t **bytes, size_t *size, struct error *error);

/* The last rollout. False: there was none, or its manifest can't be read. */
bool lineage_read(const struct config *config, struct lineage *lineage);

/* The rollout that brought this version here; false likewise. */
bool lineage_of(const struct config *config, uint64_t version, struct lineage *lineage);

/* True if this process is in one of the two versions of the last rollout, which may then not be settled yet. */
bool lineage_is_fresh(const struct config *config);

/* The path of the manifest that brought this version: CONFIG.d/00000005.manifest. */
bool lineage_path(const struct config *config, uint64_t version, char path[VERSIONS_PATH], struct error *error);

/*
 * True if a checkpoint written under this digest may be restored as far as it fits, even if not completely: if a chain
 * of rollouts leads from there to here (the next may come before there is a checkpoint of the last), or one from here
 * to there. *may_lose: the operator allowed one of them to lose parameters.
 */
bool lineage_adopts(const struct config *config, const char *digest, bool *may_lose);

/*
 * True if a manifest in CONFIG.d, signed by the operator (operator.pub, or operator.pub.previous beside it), says that
 * this version runs in the program with this digest. For the start of a process, before the config is read
 * (program_vouches).
 */
bool lineage_vouches(const char *config_path, uint64_t version, const char *digest, struct error *error);

/* Operators' keys that this machine trusts: those of operator.pub, and, if it is there, of operator.pub.previous. */
struct operators {
    struct operator_keys sets[2];
    int count;
};
bool operators_read(const char *config_path, struct operators *operators, struct error *error);

/* --- The leader's state across restarts --- */

struct record {
    enum rollout_state state;
    struct rollout_plan plan; /* but last_step, to and from */
    double loss_before;
    uint64_t highest;   /* ever proposed */
    uint64_t resumed_s; /* when the operator signed the last resume of it that was used; 0: none was */
    char reason[512];   /* why it goes back */
};

bool record_store(const struct versions *versions, const struct record *record, struct error *error);

/* *there: false if there is none. A damaged one is an error that names the file. */
bool record_read(const struct versions *versions, bool *there, struct record *record, struct error *error);

/* --- The audit log --- */

enum { AUDIT_MAX_BYTES = 4 << 20, AUDIT_HASH_HEX = 64 };

struct audit_entry {
    const char *member, *who, *what;
    uint64_t version;
    const char *outcome;
    uint64_t left_out; /* similar lines that were suppressed before it */
};

/*
 * One JSON object a line: {"when":"2024-05-01T12:00:00Z","member":"ps 0","who":"me@laptop","what":"stage","version":5,
 * "outcome":"done","prev":"..."}, and "left_out" if any were. "prev" is the BLAKE2b-256 of the line before, zeros in
 * the first one; audit.head holds that of the last. A line is on disk when this returns; one that can't be written is a
 * warning in the log. At AUDIT_MAX_BYTES a new file is started, so that a machine keeps at most two of that size.
 */
void audit_write(const struct versions *versions, const struct audit_entry *entry);

/*
 * If the process, or the machine, ended while it wrote the last line, a whole line in the chain takes its place, which
 * says so and quotes it: {"what":"mended","outcome":"...","prev":"..."}. So it does before the next line, anyway.
 */
void audit_mend(const char *config_path);

struct audit_state {
    size_t lines;
    size_t mended;                 /* of these, those that stand for an unfinished one */
    size_t unfinished;             /* bytes of a last line that is still to be mended; 0: none */
    char last[AUDIT_HASH_HEX + 1]; /* the hash of the last line, by which all before it are known */
};

/*
 * True if no line of this machine's log was changed, removed, added or moved since it was written; an unfinished one is
 * none. The error names the file and the line. Whoever can write to the folder can also make all hashes anew: only a
 * hash that was noted elsewhere tells.
 */
bool audit_verify(const struct versions *versions, struct audit_state *state, struct error *error);

/*
 * Limits the lines that unsigned requests may cause: a few at once, then one a minute. Starts as zeros; one thread at a
 * time.
 */
struct audit_meter {
    double since_s; /* start of the period of `lines` */
    int lines;
    uint64_t left_out;
};

/* True if one more may be written now; *left_out is then the number suppressed since the last. now_s: monotonic. */
bool audit_may_write(struct audit_meter *meter, double now_s, uint64_t *left_out);

#endif
