/*
 * A fleet of which `trainer rollout` sees only ps 0, which says what the test wants; and the command itself, with this
 * machine's config and an operator's key. Pauses take no time.
 */
#ifndef TESTS_WORKER_REMOTE_OPERATOR_ROLLOUT_FLEET_H
#define TESTS_WORKER_REMOTE_OPERATOR_ROLLOUT_FLEET_H

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
#include "tests/one_operator.h"
#include "tests/worker/remote/fake_member.h"
#include "tests/worker/remote/story.h"

static _Atomic(double) jumped_s;

double __real_clock_monotonic_s(void);
double __wrap_clock_monotonic_s(void);
void __wrap_clock_pause(double until_s);
int __wrap_signals_pending(void);
int __wrap_isatty(int fd);

double __wrap_clock_monotonic_s(void)
{
    return __real_clock_monotonic_s() + atomic_load(&jumped_s);
}

static double back_s;       /* when ps 0 returns; 0: it stays as it is */
static atomic_bool *absent; /* what changes then */

void __wrap_clock_pause(double until_s)
{
    const double left_s = until_s - __wrap_clock_monotonic_s();
    atomic_store(&jumped_s, atomic_load(&jumped_s) + (left_s > 0 ? left_s : 0));
    if (back_s > 0 && __wrap_clock_monotonic_s() >= back_s) {
        atomic_store(absent, false);
    }
}

static const char *program;  /* passed by --binary; NULL: none */
static const char *key_flag; /* --key; NULL: not given */
static double interrupted_s; /* from then on a signal is pending; 0: none */

int __wrap_signals_pending(void)
{
    return interrupted_s > 0 && __wrap_clock_monotonic_s() >= interrupted_s ? SIGINT : 0;
}

static const char *typed; /* on a terminal; NULL: there is none */

int __wrap_isatty(int fd)
{
    return fd == STDIN_FILENO && typed;
}

/* Secret keys that the command has read and not wiped. */
static struct {
    const uint8_t *keys[8];
    int count;
} in_memory;

bool __real_operator_key_read_secret(const char *path, uint8_t key[OPERATOR_SECRET_KEY], struct error *error);
bool __wrap_operator_key_read_secret(const char *path, uint8_t key[OPERATOR_SECRET_KEY], struct error *error);
void __real_sodium_memzero(void *memory, size_t size);
void __wrap_sodium_memzero(void *memory, size_t size);

bool __wrap_operator_key_read_secret(const char *path, uint8_t key[OPERATOR_SECRET_KEY], struct error *error)
{
    const bool done = __real_operator_key_read_secret(path, key, error);
    if (done) {
        assert_in_range(in_memory.count, 0, 7);
        in_memory.keys[in_memory.count++] = key;
    }
    return done;
}

void __wrap_sodium_memzero(void *memory, size_t size)
{
    for (int i = 0; i < in_memory.count && size >= OPERATOR_SECRET_KEY; i++) {
        if (in_memory.keys[i] == memory) {
            in_memory.keys[i] = in_memory.keys[--in_memory.count];
            break;
        }
    }
    __real_sodium_memzero(memory, size);
}

static const struct hello_identity self = {.program = "p", .cluster = "digits", .digest = "d", .job = "{}"};

/* ps 0's answers, and what it was sent. */
static struct {
    struct fake_member member;
    struct message_rollout news; /* its texts: below, or constants */
    uint8_t *manifest;           /* malloc'd; shown with the answer */
    size_t manifest_size;
    uint8_t then; /* enum outcome, some reports after a proposal; 0: still under way */
    int reports;  /* until then */
    bool refuses, cuts, forgets;
    bool other, misnumbers;            /* answers by another message, or to a request that was never made */
    bool is_torn;                      /* reports end in the middle of their manifest */
    bool mute;                         /* reports are not answered */
    bool leaves;                       /* after the first query following a proposal nobody listens any more */
    uint8_t bytes[MANIFEST_MAX_BYTES]; /* of what it last received */
    size_t size;
    double healthy_s;
    int proposals, aborts, offers;
    size_t program_bytes; /* of a program, received so far */
    char who[256];
} ps;

static struct fleet {
    char folder[64], path[128], next[128], key[128];
    uint8_t secret[OPERATOR_SECRET_KEY], public[OPERATOR_PUBLIC_KEY];
    struct config here;
    char *job;
} fleet;

static inline bool take_bulk(struct channel *channel)
{
    struct error error;
    ps.size = channel->bulk_left;
    return ps.size <= sizeof ps.bytes && channel_read_bulk(channel, ps.bytes, ps.size, fake_member_soon(), &error);
}

static inline bool answer_report(struct channel *channel)
{
    struct iovec bulk = {ps.manifest, ps.manifest_size};
    struct error error;
    if (ps.mute) {
        return false;
    }
    if (ps.proposals > 0 && ps.leaves) {
        ps.leaves = false;
        atomic_store(&ps.member.absent, true);
        return false;
    }
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
    return ps.is_torn ? fake_member_break_off(channel, MESSAGE_rollout, &ps.news, ps.manifest, ps.manifest_size)
                      : channel_send_frame(channel, &frame, fake_member_soon(), &error);
}

/* For a program, which it receives piece by piece. */
static inline bool answer_program(struct channel *channel)
{
    const bool offers = channel->frame.type == MESSAGE_offer_program;
    if (!take_bulk(channel)) {
        return false;
    }
    ps.offers += offers;
    ps.program_bytes += offers ? 0 : ps.size;
    const struct message_program there = {.offset = ps.program_bytes};
    return fake_member_say(channel, MESSAGE_program, &there);
}

static inline bool answer(struct fake_member *member, struct channel *channel)
{
    const struct message_done done = {-1};
    struct manifest manifest;
    struct error error;
    if (channel->frame.type == MESSAGE_report) {
        return answer_report(channel);
    }
    if (channel->frame.type == MESSAGE_offer_program || channel->frame.type == MESSAGE_put_program) {
        return answer_program(channel);
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
    if (proposes && !ps.forgets && manifest_decode(&manifest, ps.bytes, ps.size, only(fleet.public), &error)) {
        ps.news.target = manifest.target.version;
        ps.news.state = ROLLOUT_WATCHING;
        ps.news.message = "under way";
    }
    channel->frame.request += ps.misnumbers;
    return !ps.cuts && fake_member_say(channel, ps.other ? MESSAGE_pong : MESSAGE_done, &done);
}

static inline void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* A complete config of this fleet. extra: more of `train`, preceded by a comma. */
static inline void write_config(const char *path, int version, const char *extra)
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
static inline void begin(void)
{
    struct error error;
    atomic_store(&jumped_s, 0);
    interrupted_s = back_s = 0;
    absent = &ps.member.absent;
    typed = program = key_flag = NULL;
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
    if (!operator_key_create(fleet.key, NULL, &error) || !operator_key_read_secret(fleet.key, fleet.secret, &error) ||
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

static inline void end(void)
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

static inline void read_what_is_typed(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/typed", fleet.folder);
    write_file(path, typed);
    assert_non_null(freopen(path, "r", stdin));
    unlink(path);
}

static inline int run(const char *what, int flags, const char *healthy_s, const char **text)
{
    char *operands[] = {(char *)(uintptr_t)what};
    const struct command_call call = {.command = &command_rollout,
                                      .config = &fleet.here,
                                      .operands = operands,
                                      .operand_count = what ? 1 : 0,
                                      .values = {flags & DRY ? "true" : NULL, flags & YES ? "true" : NULL, key_flag,
                                                 flags & MAY_LOSE ? "true" : NULL, healthy_s, NULL, program}};
    if (typed) {
        read_what_is_typed();
    } else {
        assert_non_null(freopen("/dev/null", "r", stdin));
    }
    listen_in();
    in_memory.count = 0;
    const int status = command_rollout.run(&call);
    assert_int_equal(in_memory.count, 0);
    *text = heard();
    return status;
}

/* A manifest that leads from one version to another. */
static inline struct manifest manifest_from(uint64_t from, const char *from_text, uint64_t to, const char *to_text)
{
    return (struct manifest){
        .fleet = "digits",
        .author = "me",
        .target = {.version = to, .text = to_text, .text_size = strlen(to_text), .local = ""},
        .fallback = {.version = from, .text = from_text, .text_size = strlen(from_text), .local = ""}};
}

/* From now on ps 0 shows it, signed by the operator. */
static inline void show_signed(struct manifest *manifest)
{
    struct error error;
    free(ps.manifest);
    if (!manifest_encode(manifest, fleet.secret, &ps.manifest, &ps.manifest_size, &error)) {
        fail_msg("%s", error.text);
    }
}

static inline void show_manifest(uint64_t from, const char *from_text, uint64_t to, const char *to_text)
{
    struct manifest manifest = manifest_from(from, from_text, to, to_text);
    show_signed(&manifest);
}

/* The job's text of a version with another learning rate; the caller frees it. */
static inline char *text_of(int version, const char *extra)
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

#endif
