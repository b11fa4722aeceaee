/*
 * `trainer rollout` beyond a plain rollout: questions on a terminal, flags, other keys, programs, and how the command
 * behaves while ps 0 is away. The fleet is that of rollout_fleet.h.
 */
#include "tests/check.h"
#include "tests/worker/remote/operator/rollout_fleet.h"

#include <time.h>

#include "tests/worker/remote/operator/program_file.h"
#include "tests/one_operator.h"

/* Only yes means yes. */
TEST(a_question_on_a_terminal)
{
    static const struct {
        const char *typed;
        bool agrees;
    } cases[] = {{"y\n", true}, {"Yes\n", true}, {"n\n", false}, {"\n", false}, {"", false}, {"ay\n", false}};
    const char *text;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin();
        typed = cases[i].typed;
        assert_int_equal(run(fleet.next, 0, NULL, &text), cases[i].agrees ? COMMAND_DONE : COMMAND_FAILED);
        assert_int_equal(times(text, "Roll this out? [y/N] "), 1);
        assert_int_equal(times(text, "not rolled out\n"), !cases[i].agrees);
        assert_int_equal(ps.proposals, cases[i].agrees);
        end();
    }
    begin();
    typed = "";
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_DONE); /* --yes has answered */
    assert_null(strstr(text, "[y/N]"));
    end();
}

/* What rests on ps 0's word alone is shown, and confirmed whatever the flags. */
TEST(the_word_of_ps_0_on_a_terminal)
{
    const char *text;
    (void)state;
    for (int agrees = 0; agrees < 2; agrees++) {
        begin();
        char *other = text_of(3, ",\"learning_rate\":0.125");
        ps.news.job = other;
        typed = agrees ? "y\n" : "n\n";
        assert_int_equal(run(fleet.next, YES, NULL, &text), agrees ? COMMAND_DONE : COMMAND_FAILED);
        assert_int_equal(times(text, "warning: only ps 0 says that this version 3 is in force: "), 1);
        const char *shown = strstr(text, "from this machine's own config to what ps 0 says is in force:\n");
        assert_non_null(shown);
        assert_non_null(strstr(shown, "train.learning_rate"));
        assert_non_null(strstr(shown, "Sign this, trusting ps 0 alone? [y/N] "));
        assert_int_equal(ps.proposals, agrees);
        end();
        free(other);
    }
}

/* ps 0 may be away for a while, since it restarts in many rollouts; not for ever. */
TEST(ps_0_is_away)
{
    const char *text;
    (void)state;
    begin();
    ps.leaves = true;
    back_s = __wrap_clock_monotonic_s() + 50;
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_DONE);
    assert_true(atomic_load(&jumped_s) > 20);
    assert_null(strstr(text, "no answer"));
    assert_int_equal(times(text, "the end\n"), 1);
    end();
    begin();
    ps.leaves = true;
    const double begun_s = __wrap_clock_monotonic_s();
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    const double took_s = __wrap_clock_monotonic_s() - begun_s;
    assert_true(took_s >= 60 && atomic_load(&jumped_s) < 61);
    assert_int_equal(times(text, "no answer from ps 0 for 60 s: "), 1);
    assert_int_equal(times(text, "see `trainer rollout status`\n"), 1);
    end();
}

/* An operator who leaves leaves the rollout to the fleet. */
TEST(an_operator_who_leaves)
{
    const char *text;
    (void)state;
    begin();
    struct sigaction action;
    signal(SIGINT, SIG_DFL);
    ps.reports = 0; /* it does not end */
    interrupted_s = __wrap_clock_monotonic_s() + 5;
    assert_int_equal(run(fleet.next, YES, NULL, &text), 128 + SIGINT);
    assert_int_equal(times(text, "the rollout continues without this process; see `trainer rollout status`\n"), 1);
    assert_int_equal(sigaction(SIGINT, NULL, &action), 0);
    assert_true(action.sa_handler != SIG_DFL); /* it ends by itself */
    assert_int_equal(ps.proposals, 1);
    end();
}

/* A finished rollout of another version is not this one. */
TEST(another_rollout_ends)
{
    const char *text;
    (void)state;
    begin();
    ps.cuts = ps.forgets = true;
    ps.news.target = 3;
    ps.news.outcome = OUTCOME_DONE;
    ps.reports = 0;
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    assert_int_equal(times(text, "ps 0 knows nothing of version 4"), 1);
    end();
}

/* The new file is read with this command's flags, like the old one. */
TEST(flags_hold_for_both)
{
    const struct config_setting flag = {"batch_size", "12"};
    struct manifest manifest;
    struct config target;
    struct error error;
    const char *text;
    (void)state;
    begin();
    config_free(&fleet.here);
    assert_true(config_load(&fleet.here, fleet.path, &flag, 1, &error));
    free(fleet.job);
    ps.news.job = fleet.job = config_job_text(&fleet.here);
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_DONE);
    assert_null(strstr(text, "train.batch_size"));
    assert_true(manifest_decode(&manifest, ps.bytes, ps.size, only(fleet.public), &error));
    assert_true(config_parse(&target, "what was signed", (const uint8_t *)manifest.target.text,
                             manifest.target.text_size, NULL, 0, &error));
    assert_int_equal(target.train.batch_size, 12);
    assert_true(target.train.learning_rate == 0.25);
    config_free(&target);
    end();
}

/* With another key, and at a given time; without a given name the author is unknown. */
TEST(who_signs)
{
    struct manifest manifest;
    struct error error;
    const char *text;
    char elsewhere[160];
    (void)state;
    begin();
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", fleet.folder);
    assert_int_equal(rename(fleet.key, elsewhere), 0);
    unsetenv("USER");
    const uint64_t before_s = (uint64_t)time(NULL);
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    assert_int_equal(ps.proposals, 0);
    key_flag = elsewhere;
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_DONE);
    assert_true(manifest_decode(&manifest, ps.bytes, ps.size, only(fleet.public), &error));
    assert_int_equal(strncmp(manifest.author, "unknown@", strlen("unknown@")), 0);
    assert_true(manifest.author[strlen("unknown@")] != '\0');
    assert_true(manifest.signed_s >= before_s && manifest.signed_s <= (uint64_t)time(NULL));
    unlink(elsewhere);
    end();
}

/* Without a config file here the key has to be named, and what is said of this machine is so. */
TEST(no_config_file)
{
    const char *text;
    (void)state;
    begin();
    char *other = text_of(3, ",\"learning_rate\":0.125"), *kept = fleet.here.path;
    ps.news.job = other;
    fleet.here.path = NULL;
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "error: operator.key: "));
    key_flag = fleet.key;
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "it is not what the command line says here"));
    fleet.here.path = kept;
    assert_int_equal(ps.proposals, 0);
    free(other);
    end();
}

/* How it comes to the machines depends on what changes. */
TEST(a_restart_of_the_whole_job)
{
    const char *text;
    (void)state;
    begin();
    write_config(fleet.next, 4, ",\"optimizer\":\"adam\"");
    assert_int_equal(run(fleet.next, DRY, NULL, &text), COMMAND_DONE);
    assert_non_null(strstr(text, "version 4 would follow version 3, "
                                 "by a checkpoint and a restart of the whole job\n"));
    end();
}

/* A local key that came with the version in force still comes if the new file has it, whatever is here. */
TEST(keys_of_machines_that_stay)
{
    struct manifest manifest;
    struct error error;
    const char *text;
    (void)state;
    begin();
    write_config(fleet.path, 3, ",\"num_threads\":2");
    write_config(fleet.next, 4, ",\"num_threads\":2,\"learning_rate\":0.25");
    config_free(&fleet.here);
    assert_true(config_load(&fleet.here, fleet.path, NULL, 0, &error));
    ps.news.local = "{\"train\":{\"num_threads\":2}}";
    manifest = manifest_from(2, "", 3, fleet.job);
    manifest.target.local = ps.news.local;
    manifest.target.local_size = strlen(ps.news.local);
    show_signed(&manifest);
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_DONE);
    assert_null(strstr(text, "(local)")); /* nothing of it changes */
    assert_true(manifest_decode(&manifest, ps.bytes, ps.size, only(fleet.public), &error));
    assert_non_null(memmem(manifest.target.local, manifest.target.local_size, "num_threads", strlen("num_threads")));
    assert_int_equal(manifest.fallback.local_size, strlen(ps.news.local));
    end();
    begin(); /* a new one that is here already does not */
    write_config(fleet.path, 3, ",\"num_threads\":2");
    write_config(fleet.next, 4, ",\"num_threads\":2,\"learning_rate\":0.25");
    config_free(&fleet.here);
    assert_true(config_load(&fleet.here, fleet.path, NULL, 0, &error));
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_DONE);
    assert_true(manifest_decode(&manifest, ps.bytes, ps.size, only(fleet.public), &error));
    assert_int_equal(manifest.target.local_size, 0);
    end();
}

/* --- Programs --- */

/* A program alone comes with the fleet's present config, as a version above all that were proposed. */
TEST(a_program_alone)
{
    struct manifest manifest;
    struct error error;
    const char *text;
    char path[160];
    (void)state;
    begin();
    snprintf(path, sizeof path, "%s/program", fleet.folder);
    assert_true(program_file_write(path, EM_X86_64, 1, 3000));
    program = path;
    ps.news.highest = 6;
    assert_int_equal(run(NULL, YES, NULL, &text), COMMAND_DONE);
    assert_non_null(strstr(text, "version 7 would follow version 3, "));
    assert_int_equal(ps.offers, 1);
    assert_int_equal(ps.program_bytes, 3000);
    assert_true(manifest_decode(&manifest, ps.bytes, ps.size, only(fleet.public), &error));
    assert_int_equal(manifest.target.version, 7);
    assert_int_equal(manifest.fallback.version, 3);
    assert_int_equal(manifest.programs.count, 1);
    assert_string_equal(manifest.programs.items[0].architecture, "x86_64");
    assert_int_equal(run("status", YES, NULL, &text), COMMAND_MISUSED);
    assert_non_null(strstr(text, "rollout: --binary goes with a config or alone"));
    unlink(path);
    assert_int_equal(run(NULL, YES, NULL, &text), COMMAND_MISUSED);
    assert_non_null(strstr(text, "No such file"));
    assert_int_equal(ps.proposals, 1);
    end();
}

/* A version that brought a program can't be reverted by its config alone. */
TEST(a_revert_of_a_program)
{
    const char *text;
    (void)state;
    begin();
    char *before = text_of(2, ",\"learning_rate\":0.125");
    struct manifest manifest = manifest_from(2, before, 3, fleet.job);
    struct manifest_program *brought = &manifest.programs.items[0];
    manifest.programs.count = 1;
    manifest.programs.protocol = 1;
    *brought = (struct manifest_program){.architecture = "x86_64", .size = 3000};
    memset(brought->digest, 'a', PROGRAM_DIGEST_HEX);
    ps.news.earlier = before;
    show_signed(&manifest);
    assert_int_equal(run("revert", YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(
        strstr(text, "version 3 included a program: to revert it, roll out the previous one with --binary"));
    memset(brought->fallback, 'a', PROGRAM_DIGEST_HEX); /* it was there before: nothing was brought */
    show_signed(&manifest);
    assert_int_equal(run("revert", YES, NULL, &text), COMMAND_DONE);
    free(before);
    end();
}

/* --- Other verbs --- */

/* After a pause it continues on a signed message, too. */
TEST(a_rollout_that_is_resumed)
{
    struct manifest_abort word;
    struct error error;
    const char *text;
    (void)state;
    begin();
    char *next = text_of(4, ",\"learning_rate\":0.125");
    assert_int_equal(run("resume", 0, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "there is no rollout to resume: nothing is under way"));
    ps.news.state = ROLLOUT_WATCHING;
    ps.news.target = 4;
    show_manifest(3, fleet.job, 4, next);
    const uint64_t before_s = (uint64_t)time(NULL);
    assert_int_equal(run("resume", 0, NULL, &text), COMMAND_DONE);
    assert_non_null(strstr(text, "the rollout of version 4 is resumed; see `trainer rollout status`\n"));
    assert_true(manifest_abort_decode(&word, ps.bytes, ps.size, only(fleet.public), &error));
    assert_true(word.resumes);
    assert_true(word.signed_s >= before_s && word.signed_s <= (uint64_t)time(NULL));
    assert_int_equal(run("abort", 0, NULL, &text), COMMAND_DONE);
    assert_true(manifest_abort_decode(&word, ps.bytes, ps.size, only(fleet.public), &error));
    assert_false(word.resumes);
    unlink(fleet.key);
    ps.aborts = 0;
    assert_int_equal(run("abort", 0, NULL, &text), COMMAND_FAILED);
    assert_int_equal(ps.aborts, 0);
    free(next);
    end();
}

/* A manifest or config of another fleet does not count for this one. */
TEST(another_fleet)
{
    const char *text;
    (void)state;
    begin();
    char *next = text_of(4, ",\"learning_rate\":0.125"), *other = text_of(3, "");
    char *before = text_of(2, ",\"learning_rate\":0.125");
    struct manifest manifest = manifest_from(3, fleet.job, 4, next);
    strcpy(manifest.fleet, "letters");
    ps.news.state = ROLLOUT_WATCHING;
    ps.news.target = 4;
    show_signed(&manifest);
    assert_int_equal(run("abort", 0, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "ps 0 shows the manifest of version 4 of fleet \"letters\", and not of this one"));
    char *name = strstr(other, "digits");
    assert_non_null(name);
    name[2] = 't';
    name[4] = 'g';
    ps.news.job = other;
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "ps 0 sent the config of fleet \"ditigs\", but this is fleet \"digits\""));
    ps.news.job = fleet.job;
    manifest = manifest_from(2, before, 3, fleet.job); /* nor does it say what was before here */
    strcpy(manifest.fleet, "letters");
    ps.news.earlier = before;
    show_signed(&manifest);
    assert_int_equal(run("revert", YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "only ps 0 says what was in force before"));
    assert_int_equal(ps.proposals + ps.aborts, 0);
    free(next);
    free(other);
    free(before);
    end();
}

/*
 * A manifest tells the previous config only of the very version that it led to: number, keys of the job, and local
 * keys.
 */
TEST(a_manifest_of_something_else)
{
    static const char local[] = "{\"train\":{\"num_threads\":2}}";
    const char *text;
    (void)state;
    for (int i = 0; i < 4; i++) {
        begin();
        char *before = text_of(2, ",\"learning_rate\":0.125"), *other = text_of(3, ",\"learning_rate\":0.0625");
        struct manifest manifest = manifest_from(2, before, i == 1 ? 4 : 3, i == 2 ? other : fleet.job);
        if (i == 3) {
            manifest.target.local = local;
            manifest.target.local_size = strlen(local);
        }
        ps.news.earlier = before;
        ps.news.highest = 4;
        show_signed(&manifest);
        assert_int_equal(run("revert", YES, NULL, &text), i == 0 ? COMMAND_DONE : COMMAND_FAILED);
        assert_int_equal(times(text, "error: only ps 0 says what was in force before"), i > 0);
        free(before);
        free(other);
        end();
    }
}

/* An incomplete manifest counts as none, and nothing is done without it. */
TEST(a_manifest_that_breaks_off)
{
    static const char *const verbs[] = {"revert", "abort"};
    const char *text;
    (void)state;
    for (int i = 0; i < 2; i++) {
        begin();
        char *before = text_of(2, ",\"learning_rate\":0.125");
        ps.news.earlier = before;
        ps.news.state = i == 1 ? ROLLOUT_WATCHING : ROLLOUT_IDLE;
        ps.news.target = 3;
        show_manifest(2, before, 3, fleet.job);
        ps.is_torn = true;
        assert_int_equal(run(verbs[i], YES, NULL, &text), COMMAND_FAILED);
        assert_int_equal(times(text, "error: ps 0 ("), 1);
        assert_int_equal(ps.proposals + ps.aborts, 0);
        free(before);
        end();
    }
}

/* ps 0 is there, and silent. */
TEST(no_answer)
{
    static const char *const verbs[] = {"status", "abort", "revert"};
    const char *text;
    (void)state;
    begin();
    ps.mute = true;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(run(verbs[i], YES, NULL, &text), COMMAND_FAILED);
        assert_non_null(strstr(text, "error: "));
    }
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "ps 0 ("));
    assert_int_equal(ps.proposals + ps.aborts, 0);
    end();
}

/* The audit log can't be shown where nothing is kept, or if it can't be read. */
TEST(no_history)
{
    const char *text;
    char path[160];
    (void)state;
    for (int i = 0; i < 2; i++) {
        begin();
        snprintf(path, sizeof path, "%s/config.json.d", fleet.folder);
        assert_int_equal(mkdir(path, 0700), 0);
        snprintf(path, sizeof path, "%s/config.json.d/audit.log", fleet.folder);
        write_file(path, "newer\n");
        strcat(path, i == 0 ? ".1" : "");
        unlink(path);
        assert_int_equal(mkdir(path, 0700), 0); /* not a file */
        assert_int_equal(run("history", 0, NULL, &text), COMMAND_FAILED);
        assert_null(strstr(text, "newer"));
        rmdir(path);
        end();
    }
    begin();
    char *kept = fleet.here.path;
    fleet.here.path = NULL;
    assert_int_equal(run("history", 0, NULL, &text), COMMAND_FAILED);
    fleet.here.path = kept;
    assert_non_null(strstr(text, "there is no config file here, and the history is kept beside it\n"));
    end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
