/*
 * What a machine remembers of rollouts, in the folder of versions beside its config (base/config/versions.h),
 * CONFIG.d:
 *
 *     manifest            the last rollout that this machine took part in, as the operator signed it
 *     00000005.manifest   the one by which version 5 came here; they stay
 *     rollout.json        ps 0 only: the state of the rollout that it leads, or led last
 *     audit.log           who did what and when; only ever appended to
 *     audit.log.1         the one before, when that became too large; then it is replaced
 *
 * Signatures were checked when manifests came. All but the audit log is written atomically: after a power cut there
 * is the old file or the new. Checksums (base/checked.h) tell of what the disk changed: beside manifests, and as the
 * last member of rollout.json; `manifest` must be that of its version, byte for byte.
 */
#ifndef PS_ROLLOUT_HISTORY_H
#define PS_ROLLOUT_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/config/versions.h"
#include "base/error.h"
#include "ps/rollout/decide.h"

/* --- Where the config of this process comes from --- */

struct lineage {
    uint64_t target, fallback;
    char digests[2][CONFIG_DIGEST_HEX + 1]; /* of both */
    enum rollout_kind kind;
    bool may_lose;
};

/*
 * The manifest by which this version came; version 0: that of the last rollout. The caller frees *bytes; NULL: there is
 * none. The error names a file that is damaged.
 */
bool lineage_load(const struct config *config, uint64_t version, uint8_t **bytes, size_t *size, struct error *error);

/* The last rollout. False: there was none, or its manifest can't be read. */
bool lineage_read(const struct config *config, struct lineage *lineage);

/* The rollout by which this version came here; false likewise. */
bool lineage_of(const struct config *config, uint64_t version, struct lineage *lineage);

/* Is this process in one of the two versions of the last rollout? Then that may not be settled yet. */
bool lineage_is_fresh(const struct config *config);

/* The manifest by which this version came: CONFIG.d/00000005.manifest. */
bool lineage_path(const struct config *config, uint64_t version, char path[VERSIONS_PATH], struct error *error);

/*
 * May a checkpoint that was written under this digest be restored as far as it fits, though it does not fit whole?
 * Yes if rollouts lead from there to here, one after another (the next may come before there is a checkpoint of the
 * last), or one from here to there. *may_lose: the operator allowed for one of them that something is lost.
 */
bool lineage_adopts(const struct config *config, const char *digest, bool *may_lose);

/* --- What the leader must know after a restart --- */

struct record {
    enum rollout_state state;
    struct rollout_plan plan; /* but last_step, to and from */
    double loss_before;
    uint64_t highest; /* ever proposed */
    char reason[512]; /* why it goes back */
};

bool record_store(const struct versions *versions, const struct record *record, struct error *error);

/*
 * *there: false if there is none. A damaged one is an error that names the file. Also reads what version 0.1 left,
 * lines of text in CONFIG.d/rollout, so that a fleet can be upgraded in the middle of a rollout.
 */
bool record_read(const struct versions *versions, bool *there, struct record *record, struct error *error);

/* --- The audit log --- */

enum { AUDIT_MAX_BYTES = 4 << 20 };

struct audit_entry {
    const char *member, *who, *what;
    uint64_t version;
    const char *outcome;
    uint64_t left_out; /* lines like this one that were not written before it */
};

/*
 * One JSON object a line: {"when":"2024-05-01T12:00:00Z","member":"ps 0","who":"me@laptop","what":"stage","version":5,
 * "outcome":"done"}, and "left_out" if any were. A line that can't be written is a warning in the log. With
 * AUDIT_MAX_BYTES a new file is begun, so that two of that size are the most that a machine keeps.
 */
void audit_write(const struct versions *versions, const struct audit_entry *entry);

/*
 * How many lines those may cause who need no signature for it: a few at once, then one a minute. Begins as zeros; one
 * thread at a time.
 */
struct audit_meter {
    double since_s; /* of the lines that count */
    int lines;
    uint64_t left_out;
};

/* May one more be written now? Then *left_out is how many were not since the last. now_s: monotonic. */
bool audit_may_write(struct audit_meter *meter, double now_s, uint64_t *left_out);

#endif
