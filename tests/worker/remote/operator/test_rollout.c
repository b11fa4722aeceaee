/*
 * `trainer rollout` and a ps 0 that says what the test wants: what is shown, what is signed and what is not, and when
 * the command takes the rollout for done, undone or lost. Pauses take no time.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/cli/commands.h"
#include "base/log.h"
#include "net/operator_key.h"
#include "ps/rollout/decide.h"
#include "ps/rollout/manifest.h"
#include "tests/worker/remote/fake_member.h"
#include "tests/worker/remote/story.h"

static _Atomic(double) jumped_s;

double __real_clock_monotonic_s(void);
double __wrap_clock_monotonic_s(void);
void __wrap_clock_pause(double until_s);

double __wrap_clock_monotonic_s(void)
{
    return __real_clock_monotonic_s() + atomic_load(&jumped_s);
}

void __wrap_clock_pause(double until_s)
{
    const double left_s = until_s - __wrap_clock_monotonic_s();
    atomic_store(&jumped_s, atomic_load(&jumped_s) + (left_s > 0 ? left_s : 0));
}

static const struct hello_identity self = {.program = "p", .cluster = "digits", .digest = "d", .job = "{}"};

/* What ps 0 says, and what it was told. */
static struct {
    struct fake_member member;
    struct message_rollout news; /* its texts: below, or constants */
    uint8_t *manifest;           /* malloc'd; shown with the answer */
    size_t manifest_size;
    uint8_t then; /* enum outcome, some reports after a proposal: 0: it stays under way */
    int reports;  /* until then */
    bool refuses, cuts, forgets, other;
    uint8_t bytes[MANIFEST_MAX_BYTES]; /* of what it was given last */
    size_t size;
    double healthy_s;
    int proposals, aborts;
    char who[256];
} ps;

static struct fleet {
    char folder[64], path[128], next[128], key[128];
    uint8_t secret[OPERATOR_SECRET_KEY], public[OPERATOR_PUBLIC_KEY];
    struct config here;
    char *job;
} fleet;

static bool take_bulk(struct channel *channel)
{
    struct error error;
    ps.size = channel->bulk_left;
    return ps.size <= sizeof ps.bytes && channel_read_bulk(channel, ps.bytes, ps.size, fake_member_soon(), &error);
}

static bool answer_report(struct channel *channel)
{
    struct iovec bulk = {ps.manifest, ps.manifest_size};
    struct error error;
    if (ps.proposals > 0 && ps.reports > 0 && --ps.reports == 0) {
        ps.news.state = ROLLOUT_IDLE;
        ps.news.outcome = ps.then;
        ps.news.message = "the end";
    }
    const struct outgoing frame = {.type = MESSAGE_rollout,
                                   .request = channel->frame.request,
                                   .message = &ps.news,
                                   .bulk = &bulk,
                                   .bulk_parts = ps.manifest ? 1 : 0};
    return channel_send_frame(channel, &frame, fake_member_soon(), &error);
}

static bool answer(struct fake_member *member, struct channel *channel)
{
    const struct message_done done = {-1};
    struct manifest manifest;
    struct error error;
    (void)member;
    if (channel->frame.type == MESSAGE_report) {
        return answer_report(channel);
    }
    const bool proposes = channel->frame.type == MESSAGE_propose;
    ps.healthy_s = proposes ? channel->message.propose.healthy_s : 0;
    snprintf(ps.who, sizeof ps.who, "%s", proposes ? "" : channel->message.abort_rollout.who);
    if (!take_bulk(channel)) {
        return false;
    }
    ps.proposals += proposes;
    ps.aborts += !proposes;
    if (ps.refuses) {
        return fake_member_object(channel, ERROR_NOT_ALLOWED);
    }
    if (proposes && !ps.forgets && manifest_decode(&manifest, ps.bytes, ps.size, fleet.public, &error)) {
        ps.news.target = manifest.target.version;
        ps.news.state = ROLLOUT_WATCHING;
        ps.news.message = "under way";
    }
    return !ps.cuts && fake_member_say(channel, ps.other ? MESSAGE_ping : MESSAGE_done, &done);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* A complete config of this fleet. extra: more of `train`, with a comma before it. */
static void write_config(const char *path, int version, const char *extra)
{
    char text[2048];
    snprintf(text, sizeof text,
             "{\"cluster\":{\"ps_hosts\":[\"%s\"],\"worker_hosts\":[\"127.0.0.1:1\"]},\"model\":{\"layers\":[6,3]},"
             "\"train\":{\"batch_size\":10%s},\"security\":{\"insecure\":true},"
             "\"fleet\":{\"name\":\"digits\",\"version\":%d}}",
             ps.member.host, extra, version);
    write_file(path, text);
}

/* Version 3 is in force, and here; version 4 has another learning rate. */
static void begin(void)
{
    struct error error;
    memset(&ps, 0, sizeof ps);
    memset(&fleet, 0, sizeof fleet);
    fake_member_listen(&ps.member, MEMBER_PS, 0);
    strcpy(fleet.folder, "/tmp/test_rollout.XXXXXX");
    assert_non_null(mkdtemp(fleet.folder));
    snprintf(fleet.path, sizeof fleet.path, "%s/config.json", fleet.folder);
    snprintf(fleet.next, sizeof fleet.next, "%s/next.json", fleet.folder);
    snprintf(fleet.key, sizeof fleet.key, "%s/operator.key", fleet.folder);
    write_config(fleet.path, 3, "");
    write_config(fleet.next, 4, ",\"learning_rate\":0.25");
    if (!operator_key_create(fleet.key, &error) || !operator_key_read_secret(fleet.key, fleet.secret, &error) ||
        !config_load(&fleet.here, fleet.path, NULL, 0, &error)) {
        fail_msg("%s", error.text);
    }
    char public[140];
    snprintf(public, sizeof public, "%s.pub", fleet.key);
    assert_true(operator_key_read_public(public, fleet.public, &error));
    fleet.job = config_job_text(&fleet.here);
    ps.news = (struct message_rollout){.state = ROLLOUT_IDLE,
                                       .version = 3,
                                       .highest = 3,
                                       .message = "nothing is under way",
                                       .members = "ps 0: well\nworker 0: well\n",
                                       .job = fleet.job,
                                       .local = "",
                                       .earlier = "",
                                       .earlier_local = ""};
    ps.then = OUTCOME_DONE;
    ps.reports = 3;
    fake_member_start(&ps.member, &self, answer);
}

static void end(void)
{
    static const char *const names[] = {"config.json",
                                        "next.json",
                                        "operator.key",
                                        "operator.key.pub",
                                        "config.json.d/audit.log",
                                        "config.json.d/audit.log.1"};
    fake_member_stop(&ps.member);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", fleet.folder, names[i]);
        unlink(path);
    }
    char versions[128];
    snprintf(versions, sizeof versions, "%s/config.json.d", fleet.folder);
    rmdir(versions);
    rmdir(fleet.folder);
    free(fleet.job);
    free(ps.manifest);
    config_free(&fleet.here);
}

enum { DRY = 1, YES = 2, MAY_LOSE = 4 };

/* Without a terminal. */
static int run(const char *what, int flags, const char *healthy_s, const char **text)
{
    char *operands[] = {(char *)(uintptr_t)what};
    const struct command_call call = {.command = &command_rollout,
                                      .config = &fleet.here,
                                      .operands = operands,
                                      .operand_count = what ? 1 : 0,
                                      .values = {flags & DRY ? "true" : NULL, flags & YES ? "true" : NULL, NULL,
                                                 flags & MAY_LOSE ? "true" : NULL, healthy_s}};
    assert_non_null(freopen("/dev/null", "r", stdin));
    listen_in();
    const int status = command_rollout.run(&call);
    *text = heard();
    return status;
}

/* A manifest that leads from one version to another, signed by the operator. */
static void show_manifest(uint64_t from, const char *from_text, uint64_t to, const char *to_text)
{
    struct manifest manifest = {
        .fleet = "digits",
        .author = "me",
        .target = {.version = to, .text = to_text, .text_size = strlen(to_text), .local = ""},
        .fallback = {.version = from, .text = from_text, .text_size = strlen(from_text), .local = ""}};
    struct error error;
    free(ps.manifest);
    if (!manifest_encode(&manifest, fleet.secret, &ps.manifest, &ps.manifest_size, &error)) {
        fail_msg("%s", error.text);
    }
}

/* The job's text of another version, and of another learning rate; the caller frees it. */
static char *text_of(int version, const char *extra)
{
    struct config config;
    struct error error;
    char path[128];
    snprintf(path, sizeof path, "%s/other.json", fleet.folder);
    write_config(path, version, extra);
    if (!config_load(&config, path, NULL, 0, &error)) {
        fail_msg("%s", error.text);
    }
    char *text = config_job_text(&config);
    config_free(&config);
    unlink(path);
    return text;
}

/* Shown, signed, proposed, and followed to its end. */
static void a_rollout(void **state)
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
        assert_non_null(strstr(text, "train.learning_rate"));
        assert_non_null(strstr(text, "version 4 would follow version 3, while the job runs\n"));
        assert_int_equal(times(text, "under way"), 1);
        assert_int_equal(times(text, "the end"), 1);
        assert_int_equal(ps.proposals, 1);
        assert_true(ps.healthy_s == (i == 1 ? 7.5 : 10));
        assert_true(manifest_decode(&manifest, ps.bytes, ps.size, fleet.public, &error));
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

/* What can't be rolled out, or is not meant to be, is not even signed. */
static void not_rolled_out(void **state)
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
    assert_int_equal(run(fleet.next, DRY, NULL, &text), COMMAND_DONE); /* one may look */
    assert_int_equal(ps.proposals, 0);
    end();
}

/* A machine's own keys come along where the new file sets them to something else. */
static void keys_of_machines(void **state)
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
    assert_true(manifest_decode(&manifest, ps.bytes, ps.size, fleet.public, &error));
    assert_true(manifest.target.local_size > 0 && manifest.fallback.local_size == 0);
    end();
    begin();
    ps.news.local = "{\"train\":{\"num_threads\":2}}";
    show_manifest(2, "", 3, fleet.job);
    assert_int_equal(run(fleet.next, DRY, NULL, &text), COMMAND_DONE);
    assert_non_null(strstr(text, "train.num_threads            2 -> each machine's own  (local)\n"));
    end();
}

/* ps 0 may refuse, answer nonsense, or break off: then it is asked whether it has it. */
static void answers_to_a_proposal(void **state)
{
    const char *text;
    (void)state;
    begin();
    ps.refuses = true;
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "ps 0 refuses it: as the test wants"));
    ps.refuses = false;
    ps.other = true;
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "ps 0 answered propose with ping"));
    end();
    begin();
    ps.cuts = true;
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_DONE);
    assert_int_equal(times(text, "; asking ps 0 whether it has version 4\n"), 1);
    assert_int_equal(atomic_load(&ps.member.connections), 2);
    end();
    for (int cut = 0; cut < 2; cut++) {
        begin();
        ps.cuts = cut;
        ps.forgets = true;
        ps.reports = 0;
        const double begun_s = __wrap_clock_monotonic_s();
        assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
        const double took_s = __wrap_clock_monotonic_s() - begun_s;
        assert_int_equal(times(text, "ps 0 knows nothing of version 4"), 1);
        assert_true(cut ? took_s >= 10 : took_s < 10);
        end();
    }
}

/* Where nobody listens there is no use to wait. */
static void ps_is_gone(void **state)
{
    const char *text;
    (void)state;
    begin();
    close(ps.member.listener);
    const double begun_s = __wrap_clock_monotonic_s();
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_FAILED);
    assert_true(__wrap_clock_monotonic_s() - begun_s < 5);
    assert_int_equal(run("status", 0, NULL, &text), COMMAND_FAILED);
    end();
}

/* What ps 0 says of the config in force is believed only if this machine's config or a signature says so, too. */
static void the_word_of_ps_0(void **state)
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
    show_manifest(2, before, 3, other); /* it came by this */
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_DONE);
    assert_null(strstr(text, "only ps 0 says"));
    ps.proposals = 0;
    ps.news.target = 0;
    ps.reports = 3;
    show_manifest(3, other, 9, before); /* or went back to it */
    assert_int_equal(run(fleet.next, YES, NULL, &text), COMMAND_DONE);
    ps.proposals = 0;
    fleet.secret[0] ^= 1; /* somebody else's */
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

/* Back to what a signed manifest says was before, as a new version; without one there is nothing to believe. */
static void a_revert(void **state)
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
    assert_true(manifest_decode(&manifest, ps.bytes, ps.size, fleet.public, &error));
    assert_int_equal(manifest.target.version, 7);
    assert_int_equal(manifest.fallback.version, 3);
    ps.proposals = 0;
    ps.news.highest = 3 + 1001; /* somebody hides what came since */
    ps.news.target = 0;
    assert_int_equal(run("revert", YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "and version 1004 was proposed"));
    ps.news.highest = 3 + 1000;
    ps.reports = 3;
    assert_int_equal(run("revert", YES, NULL, &text), COMMAND_DONE);
    fleet.here.fleet.version = 5; /* this machine knows more */
    assert_int_equal(run("revert", YES, NULL, &text), COMMAND_FAILED);
    assert_non_null(strstr(text, "but this machine has version 5"));
    free(before);
    end();
}

/* Only what this operator signed can be aborted, by a word that is signed, too. */
static void an_abort(void **state)
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
    assert_true(manifest_abort_decode(&abort, ps.bytes, ps.size, fleet.public, &error));
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

/* What a fleet does, member by member; and what was done on this machine. */
static void looking(void **state)
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

static void misused(void **state)
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
    assert_non_null(strstr(text, "rollout: which cluster?"));
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rollout),        cmocka_unit_test(not_rolled_out),
        cmocka_unit_test(keys_of_machines), cmocka_unit_test(answers_to_a_proposal),
        cmocka_unit_test(ps_is_gone),       cmocka_unit_test(the_word_of_ps_0),
        cmocka_unit_test(a_revert),         cmocka_unit_test(an_abort),
        cmocka_unit_test(looking),          cmocka_unit_test(misused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
