/*
 * `trainer rollout` with a ps 0 that says what the test wants: what is shown, what is signed and what is not, and when
 * the command considers the rollout done, undone or lost. Pauses take no time.
 */
#include "tests/check.h"
#include "tests/worker/remote/operator/rollout_fleet.h"
#include "tests/one_operator.h"

/* Shown, signed, proposed, and followed to its end. */
TEST(a_rollout)
{
    static const struct {
        uint8_t outcome;
        int status;
    } ends[] = {{OUTCOME_DONE, COMMAND_DONE}, {OUTCOME_WENT_BACK, COMMAND_FAILED}, {OUTCOME_NONE, COMMAND_FAILED}};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct manifest manifest;
        struct error error;
        const char *text;
        begin();
        setenv("USER", "ada", 1);
        ps.then = ends[i].outcome;
        assert_int_equal(run(fleet.next, YES | (i == 1 ? MAY_LOSE : 0), i == 1 ? "7.5" : NULL, &text), ends[i].status);
        const char *change = strstr(text, "train.learning_rate");
        assert_non_null(change);
        assert_int_equal(times(text, "train.learning_rate"), 1);
        assert_non_null(memmem(change, strcspn(change, "\n"), " -> 0.25", strlen(" -> 0.25")));
        assert_non_null(strstr(text, "version 4 would follow version 3, while the job runs\n"));
        assert_int_equal(times(text, "under way"), 1);
        assert_int_equal(times(text, "the end"), 1);
        assert_int_equal(ps.proposals, 1);
        assert_true(ps.healthy_s == (i == 1 ? 7.5 : 10));
        assert_true(manifest_decode(&manifest, ps.bytes, ps.size, only(fleet.public), &error));
        assert_string_equal(manifest.fleet, "digits");
        assert_int_equal(strncmp(manifest.author, "ada@", 4), 0);
        assert_int_equal(manifest.may_lose, i == 1);
        assert_int_equal(manifest.target.version, 4);
        assert_int_equal(manifest.fallback.version, 3);
        assert_int_equal(manifest.fallback.text_size, strlen(fleet.job));
        assert_memory_equal(manifest.fallback.text, fleet.job, strlen(fleet.job));
        assert_int_equal(manifest.target.local_size, 0);
        end();
    }
}

/* What can't be rolled out, or must not be, is not even signed. */
TEST(not_rolled_out)
{
    const char *text;
    (void)state;
    begin();
    assert_int_equal(run(fleet.next, DRY, NULL, &text), COMMAND_DONE);
    assert_non_null(strstr(text, "train.learning_rate"));
    assert_non_null(strstr(text, "nothing was changed\n"));
    assert_int_equal(run(fleet.next, 0, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "no terminal to ask on: add --yes"));
    assert_int_equal(run(fleet.path, YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "nothing differs from what the fleet runs"));
    write_config(fleet.next, 3, ",\"learning_rate\":0.25");
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "fleet.version is 3, but the fleet runs version 3: give it a higher one"));
    write_config(fleet.next, 4, "},\"output\":{\"train_dir\":\"/x\"");
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "belongs to each machine and can't be rolled out: leave it out"));
    assert_int_equal(run("/nowhere.json", YES, NULL, &text), COMMAND_MISUSED);
    write_config(fleet.next, 4, ",\"learning_rate\":0.25");
    unlink(fleet.key);
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "operator.key"));
    assert_int_equal(run(fleet.next, DRY, NULL, &text), COMMAND_DONE); /* --dry-run is allowed */
    assert_int_equal(ps.proposals, 0);
    end();
}

/* Local keys come along if the new file changes them. */
TEST(keys_of_machines)
{
    struct manifest manifest;
    struct error error;
    const char *text;
    (void)state;
    begin();
    write_config(fleet.next, 4, ",\"num_threads\":2");
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_DONE);
    assert_non_null(strstr(text, "train.num_threads            each machine's own -> 2  (local)\n"));
    assert_non_null(strstr(text, "version 4 would follow version 3, by restarting machines one after the other\n"));
    assert_true(manifest_decode(&manifest, ps.bytes, ps.size, only(fleet.public), &error));
    assert_true(manifest.target.local_size > 0 && manifest.fallback.local_size == 0);
    end();
    begin();
    ps.news.local = "{\"train\":{\"num_threads\":2}}";
    show_manifest(2, "", 3, fleet.job);
    assert_int_equal(run(fleet.next, DRY, NULL, &text), COMMAND_DONE);
    assert_non_null(strstr(text, "train.num_threads            2 -> each machine's own  (local)\n"));
    end();
}

/* ps 0 may refuse, answer nonsense, or break off: then it is asked whether it has accepted. */
TEST(answers_to_a_proposal)
{
    const char *text;
    (void)state;
    begin();
    ps.refuses = true;
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "ps 0 refuses it: as the test wants"));
    end();
    const char *const nonsense[] = {"", "answered propose with pong", "answer to a request that was not made"};
    for (int i = 0; i < 3; i++) {
        begin();
        ps.cuts = i == 0;
        ps.other = i == 1;
        ps.misnumbers = i == 2;
        assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_DONE);
        assert_non_null(strstr(text, nonsense[i]));
        assert_int_equal(times(text, "; asking ps 0 whether it has version 4\n"), 1);
        assert_int_equal(times(text, "error: "), 0); /* it had accepted */
        assert_int_equal(atomic_load(&ps.member.connections), 2);
        end();
    }
    for (int cut = 0; cut < 2; cut++) {
        begin();
        ps.cuts = cut;
        ps.forgets = true;
        ps.reports = 0;
        const double begun_s = clock_monotonic_s();
        assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
        assert_int_equal(times(text, "ps 0 knows nothing of version 4"), 1);
        assert_true(cut ? clock_monotonic_s() - begun_s > 10 : atomic_load(&jumped_s) == 0); /* if accepted, at once */
        end();
    }
}

/* If nobody listens it is pointless to wait. */
TEST(ps_is_gone)
{
    const char *text;
    (void)state;
    begin();
    close(ps.member.listener);
    const double begun_s = __wrap_clock_monotonic_s();
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    assert_true(__wrap_clock_monotonic_s() - begun_s < 30);
    assert_int_equal(run("status", 0, NULL, &text), COMMAND_FAILED);
    end();
}

/* ps 0's config in force is trusted only if this machine's config or a signature confirms it. */
TEST(the_word_of_ps_0)
{
    const char *text;
    (void)state;
    begin();
    char *other = text_of(3, ",\"learning_rate\":0.125"), *before = text_of(2, "");
    ps.news.job = other;
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "only ps 0 says that this version 3 is in force: "));
    assert_non_null(strstr(text, "--yes is not enough"));
    assert_int_equal(run(fleet.next, DRY, NULL, &text), COMMAND_DONE);
    assert_non_null(strstr(text, "only ps 0 says that this version 3 is in force: "));
    show_manifest(2, before, 3, other); /* this manifest brought it */
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_DONE);
    assert_null(strstr(text, "only ps 0 says"));
    ps.proposals = 0;
    ps.news.target = 0;
    ps.reports = 3;
    show_manifest(3, other, 9, before); /* or went back to it */
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_DONE);
    ps.proposals = 0;
    fleet.secret[0] ^= 1; /* by another signer */
    ps.manifest[ps.manifest_size - 1] ^= 1;
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    ps.news.job = "{\"fleet\":{\"name\":\"digits\",\"version\":3}}";
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "differently"));
    ps.news.job = fleet.job;
    ps.news.local = "{\"output\":{\"train_dir\":\"/x\"}}";
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "ps 0 is not to be trusted"));
    assert_int_equal(ps.proposals, 0);
    free(other);
    free(before);
    end();
}

/*
 * Reverts to what a signed manifest names as the previous config, as a new version; without one nothing can be trusted.
 */
TEST(a_revert)
{
    struct manifest manifest;
    struct error error;
    const char *text;
    (void)state;
    begin();
    char *before = text_of(2, ",\"learning_rate\":0.125");
    assert_int_equal(run("revert", YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "there is nothing to revert to: version 3 is not the result of a successful rollout"));
    ps.news.earlier = before;
    ps.news.highest = 6;
    assert_int_equal(run("revert", YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "only ps 0 says what was in force before"));
    ps.news.earlier = "{}"; /* it is not asked */
    show_manifest(2, before, 3, fleet.job);
    assert_int_equal(run("revert", YES, NULL, &text), COMMAND_DONE);
    assert_non_null(strstr(text, "version 7 would be what version 2 was\n"));
    assert_true(manifest_decode(&manifest, ps.bytes, ps.size, only(fleet.public), &error));
    assert_int_equal(manifest.target.version, 7);
    assert_int_equal(manifest.fallback.version, 3);
    ps.proposals = 0;
    ps.news.highest = 3 + 1001; /* later versions are being hidden */
    ps.news.target = 0;
    assert_int_equal(run("revert", YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "and version 1004 was proposed"));
    ps.news.highest = 3 + 1000;
    ps.reports = 3;
    assert_int_equal(run("revert", YES, NULL, &text), COMMAND_DONE);
    fleet.here.fleet.version = 5; /* this machine knows a later one */
    assert_int_equal(run("revert", YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "but this machine has version 5"));
    free(before);
    end();
}

/* Only what this operator signed can be aborted, by a signed message. */
TEST(an_abort)
{
    struct manifest_abort abort;
    struct error error;
    const char *text;
    uint8_t hash[MANIFEST_HASH];
    (void)state;
    begin();
    char *next = text_of(4, ",\"learning_rate\":0.125");
    assert_int_equal(run("abort", 0, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "there is no rollout to abort: nothing is under way"));
    ps.news.state = ROLLOUT_WATCHING;
    ps.news.target = 4;
    assert_int_equal(run("abort", 0, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "ps 0 shows no manifest of it"));
    show_manifest(3, fleet.job, 4, next);
    assert_int_equal(run("abort", 0, NULL, &text), COMMAND_DONE);
    assert_non_null(strstr(text, "the rollout of version 4 is aborted"));
    assert_true(manifest_abort_decode(&abort, ps.bytes, ps.size, only(fleet.public), &error));
    manifest_hash(ps.manifest, ps.manifest_size, hash);
    assert_memory_equal(abort.hash, hash, sizeof hash);
    assert_int_equal(abort.target, 4);
    assert_string_equal(abort.fleet, "digits");
    assert_string_equal(abort.author, ps.who);
    assert_int_equal(ps.aborts, 1);
    ps.refuses = true;
    assert_int_equal(run("abort", 0, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "ps 0 refuses it: as the test wants"));
    ps.aborts = 0;
    ps.news.target = 5;
    assert_int_equal(run("abort", 0, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "ps 0 shows the manifest of version 4 of fleet \"digits\", and not of this one"));
    ps.news.target = 4;
    ps.manifest[20] ^= 1;
    assert_int_equal(run("abort", 0, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "what ps 0 shows: the manifest"));
    assert_int_equal(ps.aborts, 0);
    free(next);
    end();
}

/* The fleet's state, member by member; and what was done on this machine. */
TEST(looking)
{
    const char *text;
    char path[128];
    (void)state;
    begin();
    assert_int_equal(run("status", 0, NULL, &text), COMMAND_DONE);
    assert_non_null(strstr(text, "nothing is under way\nps 0: well\nworker 0: well\n"));
    assert_int_equal(run("history", 0, NULL, &text), COMMAND_DONE);
    assert_non_null(strstr(text, "config.json.d/audit.log: nothing was rolled out to this machine\n"));
    snprintf(path, sizeof path, "%s/config.json.d", fleet.folder);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/config.json.d/audit.log", fleet.folder);
    write_file(path, "newer\n");
    assert_int_equal(run("history", 0, NULL, &text), COMMAND_DONE);
    assert_string_equal(text, "newer\n");
    strcat(path, ".1");
    write_file(path, "older\n");
    assert_int_equal(run("history", 0, NULL, &text), COMMAND_DONE);
    assert_string_equal(text, "older\nnewer\n");
    end();
}

TEST(misused)
{
    static const char *const seconds[] = {"x", "", "-1", "86401", "5x"};
    const char *text;
    (void)state;
    begin();
    assert_int_equal(run(NULL, 0, NULL, &text), COMMAND_MISUSED);
    assert_non_null(strstr(text, "rollout: name"));
    for (int i = 0; i < 5; i++) {
        assert_int_equal(run(fleet.next, DRY, seconds[i], &text), COMMAND_MISUSED);
        assert_non_null(strstr(text, "--healthy_secs must be a number from 0 to 86400"));
    }
    assert_int_equal(run(fleet.next, DRY, "0", &text), COMMAND_DONE);
    assert_int_equal(run(fleet.next, DRY, "86400", &text), COMMAND_DONE);
    const int count = fleet.here.cluster.ps_hosts.count;
    fleet.here.cluster.ps_hosts.count = 0;
    assert_int_equal(run("status", 0, NULL, &text), COMMAND_MISUSED);
    fleet.here.cluster.ps_hosts.count = count;
    assert_non_null(strstr(text, "rollout: no cluster given"));
    end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
