/* The checkpoints of a run, as an updater knows them, and its best model so far. */
#ifndef WORKER_CHECKPOINTS_H
#define WORKER_CHECKPOINTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/folder.h"
#include "ps/checkpoint/writer.h"
#include "worker/engine.h"

struct updater_record;

/* --- What is known of them --- */

/*
 * What an updater knows about the checkpoints of its run: when one is due, what the next one contains, what became of
 * those written. Each updater writes them in its own way: in the background (worker/local_run.c), or from the
 * shards' snapshots (worker/remote/chief.c).
 *
 * One thread at a time.
 */

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
 * model that it names is no longer whole, the next validation finds another.
 */
void checkpoint_ledger_restored(struct checkpoint_ledger *ledger, const struct checkpoint_file *file);

/* A learning rate that was set anew is used as it is: divergences at another one say nothing about it. */
void checkpoint_ledger_note_rate(struct checkpoint_ledger *ledger, const struct config_train *train);

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

/* --- The best model --- */

/*
 * The best model of a run so far, for the final test, and for going back to after a divergence. Before the first
 * validation of local training it is the model that training began with. A copy lies in memory, unless the model is
 * large and train_dir has it.
 *
 * The training thread's.
 */

struct good_model {
    struct config_train train;     /* by which the state is kept; owns nothing */
    struct checkpoint_state state; /* memory NULL: it is on disk only */
    struct checkpoint_info record; /* as it was then. Its texts are not valid */
    int64_t global_step;           /* its step */
    bool is_there, is_best;        /* is_best: by a validation */
};

/* True if the model may well lie in memory once more. */
bool good_model_is_small(const struct model *model, const struct config_train *train);

/*
 * Allocates the memory. whole: with the optimizer's slots, so that training can go on from it; otherwise only what a
 * test needs. model is borrowed.
 */
void good_model_create(struct good_model *good, const struct model *model, const struct config_train *train,
                       bool whole);
void good_model_destroy(struct good_model *good); /* also fine on zeros */

/* Copies what is in the engine, or only notes that it is the best. */
bool good_model_keep(struct good_model *good, struct engine *engine, const struct checkpoint_info *record,
                     int64_t global_step, bool is_best, struct error *error);

/*
 * The best model of the run that has this record, from the checkpoint that an earlier process kept of it in train_dir.
 * Nothing changes if that is another one, or can't be read.
 */
void good_model_load(struct good_model *good, const struct checkpoint_info *record, const char *train_dir);

/* Copies it into a state with the same vectors. */
void good_model_copy(const struct good_model *good, struct checkpoint_state *state);

/* Puts it into the engine, from memory. */
bool good_model_put(const struct good_model *good, struct engine *engine, struct error *error);

#endif
