/*
 * What an updater knows about the checkpoints of its run: when one is due, what the next one contains, what became of
 * those written. Each updater writes them in its own way: in the background (worker/local_updater.c), or from the
 * shards' snapshots (worker/remote/chief.c).
 *
 * One thread at a time.
 */
#ifndef WORKER_CHECKPOINT_LEDGER_H
#define WORKER_CHECKPOINT_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/folder.h"
#include "ps/checkpoint/writer.h"
#include "worker/updater.h"

/* Its owner sets info.validation_score and info.best_score, and opens and closes the folder. */
struct checkpoint_ledger {
    struct supervisor supervisor;
    struct checkpoint_folder folder;
    struct checkpoint_info info;    /* what the next one says */
    char last[CHECKPOINT_MAX_PATH]; /* the newest good one to go on from; "": none yet */
    int64_t last_step;
    bool failed; /* some could not be written: logged, and the run must not end with status 0 */
};

/*
 * Training goes on from this checkpoint, which is the last good one, and says what the next one does, too. If the best
 * model that it tells of is no longer whole, the next validation finds another.
 */
void checkpoint_ledger_restored(struct checkpoint_ledger *ledger, const struct checkpoint_file *file);

/* The run goes on with other data: later checkpoints say since when, and scores on the old ones count no more. */
void checkpoint_ledger_new_data(struct checkpoint_ledger *ledger);

/* Writing begins, of the state at a step. targets: as checkpoint_folder_save. */
void checkpoint_ledger_begin(struct checkpoint_ledger *ledger, int targets, int64_t global_step);

/*
 * What became of it: noted, logged, and shown to who watches. failure: NULL if it was written. quiet: no text about
 * what was written, since a progress line stands there.
 */
void checkpoint_ledger_done(struct checkpoint_ledger *ledger, const struct checkpoint_report *saved,
                            const struct error *failure, bool quiet);

/*
 * At the end of a run, when its last checkpoint could not be written: makes room by deleting older ones. True: it is
 * worth another try, after which the run may end well.
 */
bool checkpoint_ledger_make_room(struct checkpoint_ledger *ledger, int64_t global_step);

/* As in struct updater_table. last_checkpoint is the ledger's. */
void checkpoint_ledger_record(const struct checkpoint_ledger *ledger, struct updater_record *record);

#endif
