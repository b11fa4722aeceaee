/* Checkpoints are compared where a chief writes, finds and loads them, and once more at the end of the run. */
#include "tests/simulate/checkpoints.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "ps/checkpoint/folder.h"
#include "ps/job/job.h"
#include "ps/shard/internal.h"
#include "tests/simulate/engine.h"
#include "tests/simulate/inputs.h"
#include "tests/simulate/records.h"
#include "tests/simulate/reference.h"
#include "tests/simulate/setup.h"
#include "tests/simulate/world.h"
#include "tests/simulate/wrap.h"
#include "worker/report.h"

static struct saved saved[RECORDS_MAX_STEPS];
static bool is_saved[RECORDS_MAX_STEPS];
static int64_t written_step; /* the newest checkpoint that was reported written; -1: none */
static int64_t found_step;   /* the newest one that a chief found at its start; -1: none */
static int64_t lost_step;    /* the newest one that the disk has lost since then; -1: none */
static double held_s;        /* the shortest time for which training was held for a checkpoint in vain, in leases */

void checkpoints_begin(void)
{
    assert(written_step == 0); /* no cluster has run in this process */
    written_step = found_step = lost_step = -1;
    held_s = INFINITY;
}

const struct saved *checkpoints_saved(int64_t step)
{
    return is_saved[step] ? &saved[step] : NULL;
}

void checkpoints_lose(int64_t newest_step)
{
    const int64_t last = written_step > found_step ? written_step : found_step;
    lost_step = last > lost_step ? last : lost_step;
    written_step = written_step < newest_step ? written_step : newest_step;
    found_step = found_step < newest_step ? found_step : newest_step;
}

/* --- Validation --- */

/* By the rows that each worker holds out. */
static int rights_of(int worker, int64_t step)
{
    int count = 0;
    for (int i = 0; i < setup_held_out(worker); i++) {
        count += engine_is_right(worker, step, i);
    }
    return count;
}

WRAP(void, report_validation, const struct report_validation *validation)
{
    const struct validators *validators = validation->validators;
    const int64_t step = validation->global_step;
    unsigned seen = 0;
    int rows = 0, rights = 0;
    for (int i = 0; i < validators->count; i++) {
        const struct worker_score *each = &validators->scores[i];
        const int held_out = setup_held_out(each->worker);
        if ((seen & 1U << each->worker) != 0) {
            fail("worker %d counts twice in the validation of step %lld", each->worker, (long long)step);
        }
        if (each->examples != held_out ||
            (held_out > 0 && fabs(each->score - (double)rights_of(each->worker, step) / held_out) > 1e-6)) {
            fail("worker %d is said to be right about %g of %lld at step %lld", each->worker, each->score,
                 (long long)each->examples, (long long)step);
        }
        seen |= 1U << each->worker;
        rows += held_out;
        rights += rights_of(each->worker, step);
    }
    if (validators->count > 0 &&
        (validation->evaluation->images != rows || validation->evaluation->correct != rights)) {
        fail("the validation of step %lld adds up to %lld of %lld, not %d of %d", (long long)step,
             (long long)validation->evaluation->correct, (long long)validation->evaluation->images, rights, rows);
    }
    say("step %lld is validated by %d workers, %d are missing", (long long)step, validators->count,
        validators->missing);
    __real_report_validation(validation);
}

/* --- The chief's disk --- */

WRAP(bool, checkpoint_folder_save, struct checkpoint_folder *folder, int targets, const struct checkpoint_state *state,
     const struct checkpoint_info *info, struct error *error)
{
    const float *parameters = state->vectors[STORE_PARAMETERS];
    int64_t step = info->global_step;
    reference_check(parameters, step);
    if (step < RECORDS_MAX_STEPS) { /* it may be found after a crash, even if it was not reported */
        memcpy(saved[step].parameters, parameters, sizeof saved[step].parameters);
        saved[step].sum = reference_sum_at(step);
        saved[step].preprocessing = inputs_hash(info->preprocessing);
        is_saved[step] = true;
    }
    if (inputs_hash(info->preprocessing) != lineage.preprocessing) {
        fail("the checkpoint of step %lld says other preprocessing than its steps were made with", (long long)step);
    }
    bool done = __real_checkpoint_folder_save(folder, targets, state, info, error);
    say("checkpoint of step %lld: %s", (long long)step, done ? "written" : error->text);
    if (done && (targets & ~CHECKPOINT_BEST) != 0) { /* a chief does not continue from the best one */
        written_step = step;
    }
    return done;
}

WRAP(bool, checkpoint_folder_newest, struct checkpoint_folder *folder, struct checkpoint_file **file,
     struct error *error)
{
    const uint64_t failed = shortage.failed;
    bool done = __real_checkpoint_folder_newest(folder, file, error);
    int64_t step = done && *file ? checkpoint_file_info(*file)->global_step : -1;
    say("the newest checkpoint is of step %lld", (long long)step);
    if (!done && setup.rotten) {
        return false;
    }
    if (shortage.failed > failed) { /* a checkpoint that can't be read at the moment is skipped, or an error */
        return done;
    }
    if (step < written_step) {
        fail("the checkpoint of step %lld was reported written, and is gone: the newest is of step %lld%s%s",
             (long long)written_step, (long long)step, done ? "" : "; ", done ? "" : error->text);
    }
    found_step = step; /* written, and the machine died before it could report it */
    lost_step = -1;
    return done;
}

WRAP(bool, checkpoint_load, struct checkpoint_file *file, struct checkpoint_state *state, struct error *error)
{
    bool done = __real_checkpoint_load(file, state, error);
    const int64_t step = checkpoint_file_info(file)->global_step;
    if (!done) {
        return false;
    }
    if (step >= RECORDS_MAX_STEPS) {
        fail("step %lld is more than RECORDS_MAX_STEPS: this job is too long for the oracle", (long long)step);
        return true;
    }
    if (step < 0 || !is_saved[step]) {
        fail("a checkpoint of step %lld is restored, which was never saved", (long long)step);
        return true;
    }
    if (inputs_hash(checkpoint_file_info(file)->preprocessing) != saved[step].preprocessing) {
        fail("step %lld is restored with other preprocessing than it was saved with", (long long)step);
    }
    for (int i = 0; i < SETUP_FLOATS; i++) { /* rows are padded in memory, but not in the file */
        const float *read = &state->vectors[STORE_PARAMETERS][i], *written = &saved[step].parameters[i];
        if (i % 16 < SETUP_COLUMNS && memcmp(read, written, sizeof *read) != 0) {
            fail("float %d of step %lld is restored as %.9g, and was saved as %.9g", i, (long long)step, (double)*read,
                 (double)*written);
            return true;
        }
    }
    return true;
}

WRAP(void, shard_skip_order, struct shard *shard, int64_t step)
{
    const struct ps_record *record = records_here();
    held_s = fmin(held_s, (world.now_s - record->applied_s) / record->job->config.cluster.lease_secs);
    __real_shard_skip_order(shard, step);
}

/*
 * However fast it is: a run without faults keeps every step that is due, unless the chief could not read the first one
 * for a whole lease: it was validating, or its messages were slow.
 */
static void check_due(void)
{
    const int64_t every = setup.save_steps;
    if (held_s < 0.7) { /* by the fastest clock */
        fail("training was held for %.2f of a lease only, and then a checkpoint was given up", held_s);
    }
    for (int64_t step = every; every > 0 && step < setup.last_step && isinf(held_s); step += every) {
        if (step < RECORDS_MAX_STEPS && !is_saved[step]) {
            fail("nothing went wrong, and there is no checkpoint of step %lld, though one was due every %lld steps",
                 (long long)step, (long long)every);
        }
    }
}

void checkpoints_check_end(bool undisturbed)
{
    if (undisturbed) {
        check_due();
    }
    int64_t last = written_step > found_step ? written_step : found_step;
    if (last != setup.last_step && lost_step != setup.last_step) { /* a loss at the very end can't be repaired */
        fail("training is over, and its last checkpoint is of step %lld", (long long)last);
    }
}
