/*
 * ps 0 as the coordinator of rollouts, for tests: the requests, the decisions and the files are the program's; this
 * file plays ps 0's agent, which would report from its own thread, and operators and members.
 */
#ifndef TESTS_PS_SERVER_LEADING_H
#define TESTS_PS_SERVER_LEADING_H

#include <sodium.h>
#include <sys/resource.h>

#define SERVING_ROLLOUTS
#include "tests/check.h"
#include "tests/ps/server/serving.h"

#include "base/checked.h"
#include "base/file.h"
#include "base/process/restart.h"
#include "ps/server.h"
#include "ps/server/coordinator.h"

enum { OPERATOR = 5, OTHER = 6, WORKERS = 3 };

static char folder[64];
static uint8_t public_key[OPERATOR_PUBLIC_KEY], secret_key[OPERATOR_SECRET_KEY], strange_key[OPERATOR_SECRET_KEY];
static struct rollout_coordinator *coordinator;
static uint64_t pushes; /* sent by worker 0 */

/* --- The agent --- */

static struct {
    struct agent_options options;
    uint64_t version; /* in force on ps 0 */
    char digest[CONFIG_DIGEST_HEX + 1];
    const char *drift, *known;
    struct board_rollout shown;
} agent;
static int agents; /* number of agents */

bool agent_create(struct agent **out, const struct agent_options *options, struct error *error)
{
    agent.options = *options;
    agents++;
    *out = (struct agent *)(void *)&agent;
    return true;
}

void agent_destroy(struct agent *ours)
{
    agents -= ours ? 1 : 0;
}

void agent_version(struct agent *ours, uint64_t *version, char digest[CONFIG_DIGEST_HEX + 1])
{
    *version = agent.version;
    strcpy(digest, agent.digest);
}

bool agent_has_member(struct agent *ours, struct member who)
{
    return who.role == MEMBER_WORKER && who.index == WORKERS; /* added by a rollout */
}

void agent_show(struct agent *ours, struct board_rollout *shown)
{
    shown->is_under_way = true;
    shown->version = 77;
    snprintf(shown->phase, sizeof shown->phase, "staging");
    snprintf(shown->text, sizeof shown->text, "as the agent says");
}

void agent_drift(struct agent *ours, char text[CONFIG_DRIFT_TEXT])
{
    snprintf(text, CONFIG_DRIFT_TEXT, "%s", agent.drift ? agent.drift : "");
}

bool agent_knows(struct agent *ours, const char *digest)
{
    return agent.known && strcmp(agent.known, digest) == 0;
}

/* What this machine has. */
static struct {
    uint64_t there;
    bool is_known;
} memory;

/* The sanitizers ask, too, before they are ready. */
__attribute__((no_sanitize("address", "undefined"))) int getrlimit(__rlimit_resource_t resource, struct rlimit *limit)
{
    if (resource != RLIMIT_AS || !memory.is_known) {
        return prlimit(0, resource, NULL, limit);
    }
    limit->rlim_cur = memory.there;
    return 0;
}

/* How often all threads were woken that wait for a change, and for a step: there are none in a test. */
static struct {
    int changed, stepped;
} woken;

int pthread_cond_broadcast(pthread_cond_t *condition)
{
    woken.changed += condition == &serving.server.changed;
    woken.stepped += condition == &serving.server.stepped;
    return 0;
}

static unsigned restart_s;

unsigned alarm(unsigned seconds)
{
    restart_s = seconds;
    return 0;
}

/* --- Files --- */

static inline const char *path_of(const char *name)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static inline void write_text(const char *name, const char *text)
{
    struct error error;
    const struct file_part part = {text, strlen(text)};
    assert_true(file_write_atomic(path_of(name), &part, 1, &error));
}

static inline bool there_is(const char *name)
{
    return access(path_of(name), F_OK) == 0;
}

/* The lines of the audit log. */
static inline const char *audit(void)
{
    static char text[1 << 16];
    FILE *file = fopen(path_of("config.json.d/audit.log"), "r");
    size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[size] = '\0';
    if (file) {
        fclose(file);
    }
    return text;
}

static inline void audited(const char *what)
{
    if (!strstr(audit(), what)) {
        fail_msg("the audit log says nothing of %s:\n%s", what, audit());
    }
}

/* --- Configs --- */

/* A job's config. extra: more keys of "cluster". */
static inline char *text_of(uint64_t version, double rate, const char *extra)
{
    static char text[2048];
    snprintf(text, sizeof text,
             "{\"fleet\":{\"name\":\"north\",\"version\":%llu},\"train\":{\"learning_rate\":%g,\"optimizer\":\"sgd\"},"
             "\"model\":{\"layers\":[6,40,3]},\"security\":{\"insecure\":true},"
             "\"cluster\":{\"ps_hosts\":[\"127.0.0.1:1\",\"127.0.0.1:5\"],\"lease_secs\":10,\"min_workers\":1,"
             "\"worker_hosts\":[\"127.0.0.1:2\",\"127.0.0.1:3\",\"127.0.0.1:4\"]%s}}",
             (unsigned long long)version, rate, extra);
    return text;
}

/* Its canonical text; the caller frees it. */
static inline char *job_of(uint64_t version, double rate, const char *extra)
{
    struct config config;
    struct error error;
    char *text = text_of(version, rate, extra);
    if (!config_parse(&config, "test", (uint8_t *)text, strlen(text), NULL, 0, &error)) {
        fail_msg("%s", error.text);
    }
    char *job = config_job_text(&config);
    config_free(&config);
    return job;
}

static inline void digest_of(uint64_t version, double rate, const char *extra, char digest[CONFIG_DIGEST_HEX + 1])
{
    struct config config;
    struct error error;
    char *text = text_of(version, rate, extra);
    assert_true(config_parse(&config, "test", (uint8_t *)text, strlen(text), NULL, 0, &error));
    config_digest(&config, digest);
    config_free(&config);
}

/* From now on ps 0 is in this version. */
static inline void is_in(uint64_t version, double rate)
{
    agent.version = version;
    digest_of(version, rate, "", agent.digest);
}

/* --- The ps --- */

static inline struct serving_session *come(int place, enum member_role role, int index, bool guest)
{
    const struct member who = {role, index};
    assert_int_equal(serving_admit(&serving.sessions[place], &who, 100 + (uint64_t)place, guest), 0);
    return &serving.sessions[place];
}

/* Starts to coordinate; so does a restarted ps. False: it can't. */
static inline bool lead(struct error *error)
{
    coordinator_destroy(coordinator);
    const bool done = coordinator_create(&coordinator, &serving.server, error);
    serving.server.coordinator = coordinator;
    return done;
}

/* The ps of that index; config NULL: without a file. */
static inline void begin(int index, const char *config)
{
    static char digest[CONFIG_DIGEST_HEX + 1];
    struct error error;
    char number[4];
    snprintf(number, sizeof number, "%d", index);
    const struct config_setting flags[] = {{"job_name", "ps"}, {"task_index", number}};
    memset(&agent, 0, sizeof agent);
    serving_config();
    if (config) {
        write_text("config.json", config);
    }
    char *text = text_of(1, 0.5, "");
    if (!(config ? config_load(&serving.config, path_of("config.json"), flags, 2, &error)
                 : config_parse(&serving.config, "test", (uint8_t *)text, strlen(text), flags, 2, &error))) {
        fail_msg("%s", error.text);
    }
    if (!config) {
        free(serving.config.path);
        serving.config.path = NULL;
    }
    serving_begin(index);
    config_digest(&serving.config, digest);
    strcpy(serving.server.identity.digest, digest);
    strcpy(serving.server.identity.program, "trainer 1");
    serving.server.identity.job = config_job_text(&serving.config);
    strcpy(agent.digest, digest);
    agent.version = 1;
    restart_s = 0;
    memset(&memory, 0, sizeof memory);
    pushes = 0;
    coordinator = NULL;
    if (!lead(&error)) {
        fail_msg("%s", error.text);
    }
}

static inline void end(void)
{
    coordinator_destroy(coordinator);
    coordinator = NULL;
    assert_int_equal(agents, 0);
    free(serving.server.identity.job);
    serving_end();
    config_free(&serving.config);
}

static inline int enter(void **state)
{
    char hex[2 * OPERATOR_PUBLIC_KEY + 1], key[200];
    uint8_t other[OPERATOR_PUBLIC_KEY];
    strcpy(folder, "/tmp/rollouts-XXXXXX");
    if (sodium_init() < 0 || crypto_sign_keypair(public_key, secret_key) != 0 ||
        crypto_sign_keypair(other, strange_key) != 0 || !mkdtemp(folder)) {
        return 1;
    }
    sodium_bin2hex(hex, sizeof hex, public_key, sizeof public_key);
    snprintf(key, sizeof key, "trainer operator public key 1\n%s\n", hex);
    write_text("operator.pub", key);
    return 0;
}

static inline int leave(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

/* --- Requests --- */

static inline void send_bulk(struct serving_session *one, enum message_type type, const void *message,
                             const void *bytes, size_t size)
{
    struct error error;
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    const struct outgoing frame = {
        .type = type, .request = ++one->client.next_request, .message = message, .bulk = &part, .bulk_parts = size > 0};
    assert_true(channel_send_frame(&one->client, &frame, serving.now_s, &error));
    assert_true(connection_flush(one->client.connection, serving.now_s, &error));
}

/* The type of the answer. */
static inline uint16_t ask(struct serving_session *one, enum message_type type, const void *message, const void *bytes,
                           size_t size)
{
    struct error error;
    send_bulk(one, type, message, bytes, size);
    assert_true(serving_serve(one));
    do {
        if (!channel_receive(&one->client, serving.now_s, &error)) {
            fail_msg("no answer: %s", error.text);
        }
    } while (one->client.frame.type == MESSAGE_ping);
    assert_int_equal(one->client.frame.request, one->client.next_request);
    return one->client.frame.type;
}

static inline void refuses(struct serving_session *one, const char *why)
{
    assert_int_equal(one->client.frame.type, MESSAGE_error);
    assert_int_equal(one->client.message.error.code, ERROR_NOT_ALLOWED);
    if (!strstr(one->client.message.error.message, why)) {
        fail_msg("\"%s\" does not say \"%s\"", one->client.message.error.message, why);
    }
}

/* The bulk of the last frame received; valid until the next. */
static inline size_t bulk_of(struct serving_session *one, const uint8_t **bytes)
{
    static uint8_t bulk[1 << 18];
    struct error error;
    const size_t size = one->client.bulk_left;
    assert_true(size <= sizeof bulk);
    assert_true(channel_read_bulk(&one->client, bulk, size, serving.now_s, &error));
    *bytes = bulk;
    return size;
}

static inline struct serving_session *operator_comes(void)
{
    struct serving_session *one = come(OPERATOR, MEMBER_OPERATOR, MEMBER_ANY_INDEX, true);
    one->session.is_guest = false;
    return one;
}

/* --- Training --- */

static inline void restore(int64_t step)
{
    struct serving_session *chief = &serving.sessions[0];
    const struct message_begin_restore begin_it = {.source = "test"};
    const struct message_end_restore end_it = {.global_step = step};
    const struct span *spans;
    const int count = shard_spans(serving.server.shard, &spans);
    chief->client.generation = serving.server.job.generation + 1;
    assert_int_equal(ask(chief, MESSAGE_begin_restore, &begin_it, NULL, 0), MESSAGE_done);
    for (int i = 0; i < count; i++) {
        uint8_t bytes[RANGE_BYTES];
        float *zeros = calloc(spans[i].count, sizeof *zeros);
        range_put(bytes, 0, (struct range){spans[i].first, (uint32_t)spans[i].count});
        const struct message_write write = {.vector = STORE_PARAMETERS, .ranges = {bytes, 1}};
        assert_int_equal(ask(chief, MESSAGE_write, &write, zeros, spans[i].count * sizeof *zeros), MESSAGE_done);
        free(zeros);
    }
    assert_int_equal(ask(chief, MESSAGE_end_restore, &end_it, NULL, 0), MESSAGE_done);
}

static inline void train(int steps)
{
    struct serving_session *chief = &serving.sessions[0];
    static float zero;
    uint8_t bytes[RANGE_BYTES];
    range_put(bytes, 0, (struct range){0, 1});
    chief->client.generation = serving.server.job.generation;
    for (int i = 0; i < steps; i++) {
        const struct message_push push = {
            .sequence = ++pushes, .base_step = serving.server.job.global_step, .ranges = {bytes, 1}};
        assert_int_equal(ask(chief, MESSAGE_push, &push, &zero, sizeof zero), MESSAGE_pushed);
        assert_int_equal(chief->client.message.pushed.outcome, PUSH_APPLIED);
    }
}

/* --- Members --- */

/* Each member's report, except that of ps 0, which comes last. */
static struct fake {
    uint64_t version, target;
    enum rollout_phase phase;
    float loss;
    const char *message;
} fakes[WORKERS + 2];

enum { PS_1 = WORKERS, PS_0 = WORKERS + 1 };

static struct message_rollout told; /* the answer to the last report */
static enum rollout_order order;

static inline struct message_report report_of(int i)
{
    return (struct message_report){.version = fakes[i].version,
                                   .target = fakes[i].target,
                                   .phase = (uint8_t)fakes[i].phase,
                                   .ready = true,
                                   .loss = fakes[i].loss,
                                   .digest = (char *)(uintptr_t) "d16e57",
                                   .message = (char *)(uintptr_t)(fakes[i].message ? fakes[i].message : "")};
}

/* The size of the manifest in the answer. */
static inline size_t report(int i)
{
    const struct message_report says = report_of(i);
    if (i == PS_0) {
        struct agent_answer answer;
        struct error error;
        assert_true(agent.options.ask(agent.options.context, &says, &answer, &error));
        order = answer.order.order;
        told = (struct message_rollout){
            .state = (uint8_t)answer.state, .target = answer.order.target, .step = answer.order.step};
        free((void *)(uintptr_t)answer.order.manifest);
        return answer.order.manifest_size;
    }
    struct serving_session *one = &serving.sessions[i];
    assert_int_equal(ask(one, MESSAGE_report, &says, NULL, 0), MESSAGE_rollout);
    told = one->client.message.rollout;
    order = (enum rollout_order)told.order;
    return one->client.bulk_left;
}

static inline const uint8_t *manifest_told(int i, size_t *size)
{
    const uint8_t *bytes;
    *size = bulk_of(&serving.sessions[i], &bytes);
    return bytes;
}

/* All have connected, in version 1, and the job trains: worker 0 also has a training connection. */
static inline void all_come(void)
{
    come(0, MEMBER_WORKER, 0, false);
    come(1, MEMBER_WORKER, 1, true);
    come(2, MEMBER_WORKER, 2, true);
    come(PS_1, MEMBER_PS, 1, true);
    restore(100);
    for (int i = 0; i < WORKERS + 2; i++) {
        fakes[i] = (struct fake){.version = agent.version, .loss = i < WORKERS ? 0.5f : -1.0f};
    }
    train(2);
    for (int i = 0; i < WORKERS + 2; i++) {
        report(i);
    }
}

/* Version 1, with all members and an operator. */
static inline void begin_with_all(void)
{
    begin(0, text_of(1, 0.5, ""));
    operator_comes();
    all_come();
}

/* Time passes, all report, and ps 0 ticks. */
static inline void pass(double seconds)
{
    serving.now_s += seconds;
    for (int i = 0; i < WORKERS + 2; i++) {
        report(i);
    }
    coordinator_tick(coordinator);
}

static inline void everybody(enum rollout_phase phase, uint64_t target, uint64_t version)
{
    for (int i = 0; i < WORKERS + 2; i++) {
        fakes[i].phase = phase;
        fakes[i].target = target;
        fakes[i].version = version;
    }
}

/* The answer to an operator. */
static inline const struct message_rollout *status(void)
{
    struct serving_session *one = &serving.sessions[OPERATOR];
    const struct message_report question = {
        .loss = -1, .digest = (char *)(uintptr_t) "", .message = (char *)(uintptr_t) ""};
    assert_int_equal(ask(one, MESSAGE_report, &question, NULL, 0), MESSAGE_rollout);
    return &one->client.message.rollout;
}

static inline bool is_told(const char *text, const char *what)
{
    if (!strstr(text, what)) {
        print_error("\"%s\" does not say \"%s\"\n", text, what);
    }
    return strstr(text, what);
}

/* --- Manifests --- */

static struct manifest_programs programs;
static const char *local_keys = "", *author = "me@desk", *fleet = "north";
static const char *her = "she@desk"; /* who aborts */
static bool may_lose;
static uint8_t *proposal;
static size_t proposal_size;

/* From one version to another, whose texts it frees, signed by that key. */
static inline void sign_texts(uint64_t from, char *before, uint64_t to, char *after, const uint8_t *key)
{
    struct error error;
    struct manifest manifest = {.programs = programs,
                                .may_lose = may_lose,
                                .target = {.version = to,
                                           .text = after,
                                           .text_size = strlen(after),
                                           .local = local_keys,
                                           .local_size = strlen(local_keys)},
                                .fallback = {.version = from, .text = before, .text_size = strlen(before)}};
    strcpy(manifest.fleet, fleet);
    strcpy(manifest.author, author);
    free(proposal);
    if (!manifest_encode(&manifest, key, &proposal, &proposal_size, &error)) {
        fail_msg("%s", error.text);
    }
    free(before);
    free(after);
}

static inline void sign(uint64_t from, double from_rate, uint64_t to, double rate, const char *extra,
                        const uint8_t *key)
{
    sign_texts(from, job_of(from, from_rate, ""), to, job_of(to, rate, extra), key);
}

/* The text with its first `from` replaced; frees the text. */
static inline char *edited(char *text, const char *from, const char *to)
{
    char *made, *at = strstr(text, from);
    assert_non_null(at);
    assert_true(asprintf(&made, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0);
    free(text);
    return made;
}

static inline void propose_for(double healthy_s)
{
    const struct message_propose message = {.healthy_s = healthy_s};
    ask(&serving.sessions[OPERATOR], MESSAGE_propose, &message, proposal, proposal_size);
}

static inline void refused(const char *why)
{
    propose_for(3);
    refuses(&serving.sessions[OPERATOR], why);
}

static inline void accepted(void)
{
    propose_for(3);
    struct serving_session *one = &serving.sessions[OPERATOR];
    if (one->client.frame.type == MESSAGE_error) {
        fail_msg("%s", one->client.message.error.message);
    }
    assert_int_equal(one->client.frame.type, MESSAGE_done);
}

static uint64_t word_s; /* when that was signed */

/* The operator's signed abort or resume of the rollout of `proposal`. */
static inline void word(bool resumes, uint64_t target, const char *of_fleet, uint8_t hash_xor, const uint8_t *key)
{
    uint8_t bytes[MANIFEST_ABORT_BYTES];
    struct manifest_abort abort = {.resumes = resumes, .signed_s = word_s, .target = target};
    strcpy(abort.fleet, of_fleet);
    strcpy(abort.author, her);
    manifest_hash(proposal, proposal_size, abort.hash);
    abort.hash[31] ^= hash_xor;
    const size_t size = manifest_abort_encode(&abort, key, bytes);
    const struct message_abort_rollout message = {.who = (char *)(uintptr_t) "she"};
    ask(&serving.sessions[OPERATOR], MESSAGE_abort_rollout, &message, bytes, size);
}

#endif
