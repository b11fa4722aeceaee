/* The ledger of checkpoints: what is recorded of those written and of those that failed, and who reads it. */
#include <math.h>
/* cmocka needs the four headers above first. */
#include "tests/check.h"
#include "tests/worker/remote/story.h"
#include "worker/checkpoints.h"
#include "worker/updater.h"

static struct checkpoint_ledger fresh(void)
{
    return (struct checkpoint_ledger){.folder = {.path = "/runs", .lock = -1},
                                      .info = {.validation_score = NAN, .best_score = NAN}};
}

static const char *save(struct checkpoint_ledger *ledger, int targets, int64_t step, const char *failure, bool quiet)
{
    struct error error;
    const struct checkpoint_report saved = {.info = {.global_step = step}, .targets = targets, .seconds = 0.5};
    error_set(&error, "%s", failure ? failure : "");
    listen_in();
    checkpoint_ledger_begin(ledger, targets, step);
    checkpoint_ledger_done(ledger, &saved, failure ? &error : NULL, quiet);
    return heard();
}

TEST(nothing_yet)
{
    struct checkpoint_ledger ledger = fresh();
    struct updater_record record;
    checkpoint_ledger_record(&ledger, &record);
    assert_true(isnan(record.best_score) && isnan(record.threshold));
    assert_false(record.checkpoint_failed);
    assert_null(record.last_checkpoint);
    assert_int_equal(record.last_checkpoint_step, -1);
}

TEST(what_was_written)
{
    struct checkpoint_ledger ledger = fresh();
    struct updater_record record;
    const char *text = save(&ledger, CHECKPOINT_MODEL | CHECKPOINT_BEST, 30, NULL, false);
    assert_non_null(strstr(text, "checkpoint at step 30: /runs/model-0000000030.safetensors"));
    assert_non_null(strstr(text, "checkpoint at step 30, the best so far: /runs/best.safetensors"));
    assert_false(supervisor_is_unsaved(&ledger.supervisor, 30));
    save(&ledger, CHECKPOINT_BEST, 31, NULL, false); /* nothing continues from that one */
    ledger.info.best_score = 0.5;
    ledger.info.best_step = 31;
    ledger.info.threshold = 0.25;
    checkpoint_ledger_record(&ledger, &record);
    assert_string_equal(record.last_checkpoint, "/runs/model-0000000030.safetensors");
    assert_int_equal(record.last_checkpoint_step, 30);
    assert_true(record.best_score == 0.5 && isnan(record.threshold));
    assert_int_equal(record.best_step, 31);
    ledger.info.has_threshold = true;
    checkpoint_ledger_record(&ledger, &record);
    assert_true(record.threshold == 0.25);
    assert_string_equal(save(&ledger, CHECKPOINT_MODEL, 40, NULL, true), "");
}

TEST(what_was_not)
{
    struct checkpoint_ledger ledger = fresh();
    struct updater_record record;
    save(&ledger, CHECKPOINT_MODEL, 30, NULL, true);
    const char *text = save(&ledger, CHECKPOINT_MODEL, 40, "the disk is full", false);
    assert_non_null(strstr(text, "the disk is full; training continues, and this run will end with status 1"));
    assert_true(supervisor_is_unsaved(&ledger.supervisor, 40));
    save(&ledger, CHECKPOINT_BEST, 40, "the disk is full", false); /* says nothing about the step */
    checkpoint_ledger_record(&ledger, &record);
    assert_true(record.checkpoint_failed);
    assert_string_equal(record.last_checkpoint, "/runs/model-0000000030.safetensors");
    assert_int_equal(record.last_checkpoint_step, 30);
    save(&ledger, CHECKPOINT_MODEL, 50, NULL, true);
    checkpoint_ledger_record(&ledger, &record);
    assert_true(record.checkpoint_failed); /* once is enough */
    assert_int_equal(record.last_checkpoint_step, 50);
}

int main(void)
{
    return check_run(NULL, NULL);
}
