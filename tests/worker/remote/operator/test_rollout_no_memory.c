/*
 * `trainer rollout` where memory runs short: each place that allocates fails once. The command then says why and ends
 * as failed, or does without; nothing is left behind. The fleet is that of rollout_fleet.h.
 */
#include "tests/no_memory.h"
#include "tests/worker/remote/operator/rollout_fleet.h"

#include "tests/worker/remote/operator/program_file.h"

static char *before; /* the job's text of the version before */

/* A fleet of which all verbs but abort and resume have something to do; these if a rollout is under way. */
static void show(bool under_way)
{
    ps.news.earlier = before;
    ps.news.local = "{\"train\":{\"num_threads\":2}}";
    ps.news.earlier_local = "";
    ps.news.state = under_way ? ROLLOUT_WATCHING : ROLLOUT_IDLE;
    ps.news.target = under_way ? 4 : 0;
    ps.news.message = "nothing is under way";
    ps.proposals = ps.aborts = ps.offers = 0;
    ps.program_bytes = 0;
    ps.reports = 1;
}

static void sign(bool under_way)
{
    struct manifest manifest = manifest_from(under_way ? 3 : 2, under_way ? fleet.job : before, under_way ? 4 : 3,
                                             under_way ? before : fleet.job);
    manifest.target.local = under_way ? "" : "{\"train\":{\"num_threads\":2}}";
    manifest.target.local_size = strlen(manifest.target.local);
    show_signed(&manifest);
}

static void fail_everywhere(const char *what, int flags, bool under_way)
{
    const char *text;
    int status, failures = 0;
    show(under_way);
    no_memory_look();
    status = run(what, flags, NULL, &text);
    const int places = no_memory_seen();
    if (status != COMMAND_DONE) {
        fail_msg("%s", text);
    }
    for (int i = 0; i < places; i++) {
        show(under_way);
        no_memory_at(i);
        status = run(what, flags, NULL, &text);
        const bool failed = no_memory_failed();
        if (failed && status != COMMAND_DONE && !strstr(text, "error: ")) {
            fail_msg("%s, place %d: status %d, and it says: %s", what, i, status, text);
        }
        assert_true(status == COMMAND_DONE || ps.aborts == 0);
        failures += status != COMMAND_DONE;
    }
    assert_true(failures > places / 2);
}

static void verbs(void **state)
{
    const struct config_setting flag = {"batch_size", "12"};
    struct error error;
    char path[160];
    (void)state;
    begin();
    config_free(&fleet.here); /* flags hold for both configs */
    assert_true(config_load(&fleet.here, fleet.path, &flag, 1, &error));
    free(fleet.job);
    ps.news.job = fleet.job = config_job_text(&fleet.here);
    before = text_of(2, ",\"learning_rate\":0.125");
    write_config(fleet.next, 4, ",\"num_threads\":3,\"learning_rate\":0.25");
    snprintf(path, sizeof path, "%s/program", fleet.folder);
    assert_true(program_file_write(path, EM_X86_64, 1, 3000));
    sign(false);
    fail_everywhere(fleet.next, YES, false);
    fail_everywhere("revert", YES, false);
    program = path;
    fail_everywhere(NULL, YES, false);
    program = NULL;
    sign(true);
    fail_everywhere("abort", YES, true);
    unlink(path);
    free(before);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(verbs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
