/* The thread by which a member takes part in rollouts: what it says when, and what becomes of the answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sodium.h>

#include "base/config/pace.h"
#include "base/file.h"
#include "base/log.h"
#include "ps/rollout/agent.h"
#include "tests/locks.h"
#include "tests/worker/remote/fake_member.h"
#include "tests/worker/remote/story.h"

static char folder[64], config_path[96];
static uint8_t public_key[OPERATOR_PUBLIC_KEY], secret_key[OPERATOR_SECRET_KEY];
static struct config config;
static struct identity identity;
static struct agent *agent;
static struct fake_member leader; /* ps 0 */

/* --- Time, which a test may turn --- */

static _Atomic(double) ahead_s;

double __wrap_clock_monotonic_s(void);
double __real_clock_monotonic_s(void);

double __wrap_clock_monotonic_s(void)
{
    return __real_clock_monotonic_s() + atomic_load(&ahead_s);
}

void __wrap_restart_arrived(void);
void __wrap_restart_arrived(void)
{
    tell("arrived\n");
}

/* --- What ps 0 says --- */

enum { REPORTS = 100 };

static struct {
    pthread_mutex_t lock;
    struct agent_answer says; /* its manifest stays the test's */
    bool fails;
    int answers_in_ms;
    int asked;
    double begun_s[REPORTS], ended_s[REPORTS];
    struct message_report report; /* the last; its texts: */
    char digest[CONFIG_DIGEST_HEX + 1], message[256];
    const uint8_t *program; /* that it hands on */
    size_t program_size;
    int chunks, lost_chunk; /* handed on; one that breaks the connection instead; 0: none */
    int slow_chunk;         /* likewise, that comes with the wish to wait */
    double slow_s, after_slow_s;
} leads = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void note_report(const struct message_report *report, struct agent_answer *answer, bool *fails)
{
    pthread_mutex_lock(&leads.lock);
    leads.report = *report;
    snprintf(leads.digest, sizeof leads.digest, "%s", report->digest);
    snprintf(leads.message, sizeof leads.message, "%s", report->message);
    if (leads.asked < REPORTS) {
        leads.begun_s[leads.asked] = clock_monotonic_s();
    }
    usleep((useconds_t)leads.answers_in_ms * 1000);
    if (leads.asked < REPORTS) {
        leads.ended_s[leads.asked] = clock_monotonic_s();
    }
    leads.asked++;
    *answer = leads.says;
    *fails = leads.fails;
    pthread_mutex_unlock(&leads.lock);
}

/* On ps 0 itself. */
static bool ask(void *context, const struct message_report *report, struct agent_answer *answer, struct error *error)
{
    bool fails;
    assert_ptr_equal(context, &leads);
    note_report(report, answer, &fails);
    if (fails) {
        return error_set(error, "as the test wants");
    }
    if (answer->order.manifest) {
        uint8_t *copy = malloc(answer->order.manifest_size);
        memcpy(copy, answer->order.manifest, answer->order.manifest_size);
        answer->order.manifest = copy;
    }
    return true;
}

static bool send_bulk(struct channel *channel, enum message_type type, const void *message, const void *bytes,
                      size_t size)
{
    struct error error;
    struct iovec bulk = {(void *)(uintptr_t)bytes, size};
    const struct outgoing frame = {
        .type = type, .request = channel->frame.request, .message = message, .bulk = &bulk, .bulk_parts = size > 0};
    return channel_send_frame(channel, &frame, fake_member_soon(), &error);
}

static bool hand_on(struct channel *channel)
{
    const uint64_t offset = channel->message.get_program.offset;
    struct message_program answer = {.offset = offset};
    const size_t left = leads.program_size - offset;
    size_t size = left < PROGRAM_CHUNK ? left : PROGRAM_CHUNK;
    leads.chunks++;
    if (leads.chunks == leads.lost_chunk) {
        return false;
    }
    if (leads.chunks == leads.slow_chunk) {
        answer.wait_ms = 700;
        leads.slow_s = clock_monotonic_s();
        size = 0;
    } else if (leads.chunks == leads.slow_chunk + 1) {
        leads.after_slow_s = clock_monotonic_s();
    }
    return send_bulk(channel, MESSAGE_program, &answer, leads.program + offset, size);
}

/* By network. */
static bool answer_frame(struct fake_member *member, struct channel *channel)
{
    struct agent_answer says;
    bool fails;
    (void)member;
    if (channel->frame.type == MESSAGE_get_program) {
        return hand_on(channel);
    }
    if (channel->frame.type != MESSAGE_report) {
        return false;
    }
    note_report(&channel->message.report, &says, &fails);
    if (fails) {
        return fake_member_object(channel, ERROR_NOT_ALLOWED);
    }
    channel->generation = says.has_model ? 3 : 0;
    const struct message_rollout told = {.order = (uint8_t)says.order.order,
                                         .state = (uint8_t)says.state,
                                         .version = says.order.in_force,
                                         .target = says.order.target,
                                         .step = says.order.step,
                                         .message = "",
                                         .members = "",
                                         .job = "",
                                         .local = ""};
    return send_bulk(channel, MESSAGE_rollout, &told, says.order.manifest, says.order.manifest_size);
}

static void lead(enum rollout_state state, struct participant_order order)
{
    pthread_mutex_lock(&leads.lock);
    order.in_force = 1;
    leads.says = (struct agent_answer){.order = order, .state = state, .has_model = true};
    pthread_mutex_unlock(&leads.lock);
}

static struct message_report last_report(void)
{
    pthread_mutex_lock(&leads.lock);
    const struct message_report report = leads.report;
    pthread_mutex_unlock(&leads.lock);
    return report;
}

static int reports(void)
{
    pthread_mutex_lock(&leads.lock);
    const int count = leads.asked;
    pthread_mutex_unlock(&leads.lock);
    return count;
}

/* The shortest time from one answer to the next report, of `count` that are to come. */
static double shortest_pause_s(int count)
{
    double shortest_s = 1000;
    const int from = reports() + 1;
    AWAIT(reports() > from + count);
    pthread_mutex_lock(&leads.lock);
    for (int i = from; i < from + count; i++) {
        const double pause_s = leads.begun_s[i] - leads.ended_s[i - 1];
        shortest_s = pause_s < shortest_s ? pause_s : shortest_s;
    }
    pthread_mutex_unlock(&leads.lock);
    return shortest_s;
}

/* --- The member --- */

static struct {
    atomic_llong now, switched_at;
    atomic_int settled, heard, left;
    atomic_bool has_model;
    atomic_ullong version; /* that ps 0 said */
} host;

static enum participant_switch switch_to(void *context, const struct config *now, int64_t step)
{
    (void)context;
    (void)now;
    atomic_store(&host.switched_at, step);
    return atomic_load(&host.now) < step ? SWITCH_PENDING : SWITCH_DONE;
}

static bool prepare(void *context, struct error *error)
{
    (void)context;
    (void)error;
    return true;
}

static void settle(void *context)
{
    (void)context;
    atomic_fetch_add(&host.settled, 1);
}

static void leave(void *context, bool for_good)
{
    (void)context;
    (void)for_good;
    atomic_fetch_add(&host.left, 1);
}

static float loss(void *context)
{
    assert_ptr_equal(context, &leads);
    return 0.25f;
}

static void hear(void *context, uint64_t version, bool has_model)
{
    assert_ptr_equal(context, &leads);
    atomic_store(&host.version, version);
    atomic_store(&host.has_model, has_model);
    atomic_fetch_add(&host.heard, 1);
}

static void write_text(const char *name, const char *text)
{
    char path[128];
    struct error error;
    const struct file_part part = {text, strlen(text)};
    assert_true(file_join(path, sizeof path, folder, name, &error));
    assert_true(file_write_atomic(path, &part, 1, &error));
}

/* Of a job with so many workers. */
static char *text_of(uint64_t version, double rate, int workers)
{
    static char text[8192];
    int size = snprintf(text, sizeof text,
                        "{\"fleet\":{\"name\":\"north\",\"version\":%llu},\"train\":{\"learning_rate\":%g},"
                        "\"security\":{\"insecure\":true},"
                        "\"cluster\":{\"ps_hosts\":[\"%s\"],\"worker_hosts\":[\"127.0.0.1:2\"",
                        (unsigned long long)version, rate, leader.host);
    for (int i = 1; i < workers; i++) {
        size += snprintf(text + size, sizeof text - (size_t)size, ",\"127.0.0.1:%d\"", 2 + i);
    }
    snprintf(text + size, sizeof text - (size_t)size, "]}}");
    return text;
}

static int set_up(void **state)
{
    char hex[2 * OPERATOR_PUBLIC_KEY + 1], key[200];
    (void)state;
    strcpy(folder, "/tmp/agent-XXXXXX");
    if (sodium_init() < 0 || crypto_sign_keypair(public_key, secret_key) != 0 || !mkdtemp(folder)) {
        return 1;
    }
    log_setup(LOG_TEXT, LOG_ERROR);
    snprintf(config_path, sizeof config_path, "%s/config.json", folder);
    sodium_bin2hex(hex, sizeof hex, public_key, sizeof public_key);
    snprintf(key, sizeof key, "trainer operator public key 1\n%s\n", hex);
    write_text("operator.pub", key);
    memset(&host, 0, sizeof host);
    told();
    pthread_mutex_init(&leads.lock, NULL);
    leads.fails = false;
    leads.answers_in_ms = leads.asked = leads.chunks = leads.lost_chunk = leads.slow_chunk = 0;
    leads.report = (struct message_report){.phase = PHASE_NONE};
    fake_member_listen(&leader, MEMBER_PS, 0);
    lead(ROLLOUT_IDLE, (struct participant_order){.order = ORDER_NOTHING});
    return 0;
}

static int tear_down(void **state)
{
    char command[128];
    (void)state;
    agent_destroy(agent);
    agent = NULL;
    fake_member_stop(&leader);
    identity_destroy(&identity);
    config_free(&config);
    memset(&identity, 0, sizeof identity);
    memset(&config, 0, sizeof config);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

/* The config of a job with so many workers, and who the member is. */
static void load(enum member_role role, int workers)
{
    struct error error;
    const struct config_setting flags[] = {{"job_name", role == MEMBER_PS ? "ps" : "worker"}, {"task_index", "0"}};
    write_text("config.json", text_of(1, 0.5, workers));
    if (!config_load(&config, config_path, flags, 2, &error) ||
        !identity_create(&identity, &config, (struct member){role, 0}, &error)) {
        fail_msg("%s", error.text);
    }
}

static struct agent_options options_of(enum member_role role)
{
    return (struct agent_options){
        .config = &config,
        .identity = &identity,
        .who = {role, 0},
        .host = {.prepare = prepare, .switch_to = switch_to, .settle = settle, .leave = leave, .context = &leads},
        .loss = loss,
        .heard = hear,
        .ask = ask,
        .context = &leads};
}

static void start(const struct agent_options *options)
{
    struct error error;
    if (!agent_create(&agent, options, &error)) {
        fail_msg("%s", error.text);
    }
}

/* By a call, as on ps 0. */
static void begin(enum member_role role, int workers)
{
    load(role, workers);
    const struct agent_options options = options_of(role);
    start(&options);
}

/* By network. */
static void begin_remote(void)
{
    load(MEMBER_WORKER, 2);
    struct agent_options options = options_of(MEMBER_WORKER);
    options.ask = NULL;
    fake_member_start(&leader, &identity.hello, answer_frame);
    start(&options);
}

static struct manifest_programs programs; /* that come with the next manifest */

/* Stage version 2: another rate, of as many workers. It lasts until the next. */
static struct participant_order order_to(double rate, int workers)
{
    static uint8_t *bytes;
    struct config before, after;
    size_t size;
    struct error error;
    char *text = text_of(1, 0.5, 2);
    assert_true(config_parse(&before, "before", (uint8_t *)text, strlen(text), NULL, 0, &error));
    text = text_of(2, rate, workers);
    assert_true(config_parse(&after, "after", (uint8_t *)text, strlen(text), NULL, 0, &error));
    char *before_text = config_job_text(&before), *after_text = config_job_text(&after);
    struct manifest manifest = {
        .fleet = "north",
        .author = "me@desk",
        .programs = programs,
        .target = {.version = 2, .text = after_text, .text_size = strlen(after_text), .local = ""},
        .fallback = {.version = 1, .text = before_text, .text_size = strlen(before_text), .local = ""}};
    free(bytes);
    assert_true(manifest_encode(&manifest, secret_key, &bytes, &size, &error));
    free(before_text);
    free(after_text);
    config_free(&before);
    config_free(&after);
    return (struct participant_order){.order = ORDER_STAGE, .target = 2, .manifest = bytes, .manifest_size = size};
}

static void digest_of(char *text, char digest[CONFIG_DIGEST_HEX + 1])
{
    struct config parsed;
    struct error error;
    assert_true(config_parse(&parsed, "test", (uint8_t *)text, strlen(text), NULL, 0, &error));
    assert_true(config_digest(&parsed, digest, &error));
    config_free(&parsed);
}

static uint64_t version_here(char digest[CONFIG_DIGEST_HEX + 1])
{
    uint64_t version;
    agent_version(agent, &version, digest);
    return version;
}

static struct board_rollout shown; /* what people see */

static const struct board_rollout *show(void)
{
    agent_show(agent, &shown);
    return &shown;
}

/* --- Tests --- */

static void a_member_says_how_it_is_and_hears_how_ps_0_is(void **state)
{
    char digest[CONFIG_DIGEST_HEX + 1];
    (void)state;
    begin(MEMBER_WORKER, 2);
    AWAIT(reports() >= 2);
    const struct message_report report = last_report();
    assert_int_equal(report.version, 1);
    assert_int_equal(report.target, 0);
    assert_int_equal(report.phase, PHASE_NONE);
    assert_true(report.ready && report.loss == 0.25f);
    assert_int_equal(version_here(digest), 1);
    assert_string_equal(leads.digest, digest);
    assert_true(atomic_load(&host.heard) >= 1 && atomic_load(&host.has_model));
    assert_int_equal(atomic_load(&host.version), 1);
    assert_int_equal(times(told(), "arrived"), 1);
    assert_false(agent_is_rolling(agent));
    assert_false(agent_is_rolling(NULL));
    assert_true(agent_knows(agent, digest));
    assert_false(agent_knows(agent, "0000"));
    assert_false(show()->is_under_way);
    assert_string_equal(shown.text, "");
}

/* Of a loss, and of who listens, there may be none. */
static void a_member_without_a_loss_says_so(void **state)
{
    (void)state;
    load(MEMBER_WORKER, 2);
    struct agent_options options = options_of(MEMBER_WORKER);
    options.loss = NULL;
    options.heard = NULL;
    start(&options);
    AWAIT(reports() >= 1);
    assert_true(last_report().loss == -1);
}

static void a_live_rollout_is_followed_and_shown(void **state)
{
    char before[CONFIG_DIGEST_HEX + 1], after[CONFIG_DIGEST_HEX + 1], digest[CONFIG_DIGEST_HEX + 1];
    (void)state;
    begin(MEMBER_WORKER, 2);
    version_here(before);
    digest_of(text_of(2, 0.25, 2), after);
    struct participant_order order = order_to(0.25, 2);
    lead(ROLLOUT_STAGING, order);
    AWAIT(last_report().phase == PHASE_STAGED);
    assert_int_equal(last_report().target, 2);
    AWAIT(agent_knows(agent, after));
    assert_true(agent_knows(agent, before));
    assert_false(agent_is_rolling(agent));
    assert_true(show()->is_under_way && shown.since_s > 0);
    assert_int_equal(shown.version, 2);
    assert_string_equal(shown.phase, "staging");
    assert_string_equal(shown.text, "version 2: staging");
    assert_int_equal(shown.diff_count, 1);
    assert_non_null(strstr(shown.diff[0], "train.learning_rate"));
    const double since_s = shown.since_s;
    assert_true(show()->since_s == since_s); /* of the phase, which is the same */
    atomic_store(&host.now, 99);
    order.order = ORDER_SWITCH;
    order.step = 100;
    lead(ROLLOUT_SWITCHING, order);
    AWAIT(atomic_load(&host.switched_at) == 100 && agent_is_rolling(agent));
    assert_int_equal(version_here(digest), 1);
    atomic_store(&host.now, 100);
    AWAIT(version_here(digest) == 2);
    assert_string_equal(digest, after);
    AWAIT(last_report().phase == PHASE_SWITCHED);
    assert_int_equal(identity_hello(&identity)->fleet_version, 2);
    assert_string_equal(identity_hello(&identity)->digest, after);
    assert_non_null(strstr(identity_hello(&identity)->job, "0.25"));
    assert_true(show()->since_s > since_s);
    assert_int_equal(atomic_load(&host.settled), 0);
    lead(ROLLOUT_IDLE, (struct participant_order){.order = ORDER_NOTHING});
    AWAIT(atomic_load(&host.settled) == 1);
    AWAIT(!show()->is_under_way);
    assert_false(agent_is_rolling(agent));
    assert_string_equal(shown.text, "");
    free(shown.diff);
    memset(&shown, 0, sizeof shown);
}

/* It was in force when the process began, and nobody has said yet that it is settled. */
static void what_is_not_settled_goes_on_after_a_restart(void **state)
{
    (void)state;
    begin(MEMBER_WORKER, 2);
    assert_false(agent_is_rolling(agent));
    lead(ROLLOUT_STAGING, order_to(0.25, 2));
    AWAIT(last_report().phase == PHASE_STAGED);
    agent_destroy(agent);
    leads.fails = true;
    const struct agent_options options = options_of(MEMBER_WORKER);
    start(&options);
    assert_true(agent_is_rolling(agent));
}

static void members_of_either_version_are_members(void **state)
{
    (void)state;
    begin(MEMBER_WORKER, 2);
    assert_false(agent_has_member(agent, (struct member){MEMBER_WORKER, 0})); /* of no rollout so far */
    lead(ROLLOUT_STAGING, order_to(0.5, 4));
    AWAIT(last_report().phase == PHASE_STAGED);
    AWAIT(agent_has_member(agent, (struct member){MEMBER_WORKER, 3}));
    assert_false(agent_has_member(agent, (struct member){MEMBER_WORKER, 4}));
    assert_true(agent_has_member(agent, (struct member){MEMBER_PS, 0}));
    assert_false(agent_has_member(agent, (struct member){MEMBER_PS, 1}));
}

static void an_edit_by_hand_is_told(void **state)
{
    char text[DRIFT_TEXT];
    (void)state;
    begin(MEMBER_WORKER, 2);
    AWAIT(reports() >= 1);
    agent_drift(agent, text);
    assert_string_equal(text, "");
    lead(ROLLOUT_STAGING, (struct participant_order){.order = ORDER_NOTHING});
    write_text("config.json", text_of(1, 0.75, 2));
    AWAIT((agent_drift(agent, text), text[0] != '\0'));
    assert_non_null(strstr(text, "edited by hand"));
}

/* --- How often it reports --- */

static void while_nothing_is_rolled_out_it_reports_seldom(void **state)
{
    (void)state;
    begin(MEMBER_WORKER, 2);
    const double idle_s = pace_report_s(&config.cluster);
    const double pause_s = shortest_pause_s(1);
    assert_true(pause_s > 0.9 * idle_s && pause_s < idle_s + 2);
    lead(ROLLOUT_WATCHING, (struct participant_order){.order = ORDER_NOTHING});
    assert_true(shortest_pause_s(5) < 0.5 * idle_s);
    lead(ROLLOUT_IDLE, order_to(0.25, 2)); /* an order is reason enough */
    assert_true(shortest_pause_s(5) < 0.5 * idle_s);
}

/* ps 0 hears all, and all wait for every ps. */
static void of_very_many_each_reports_less_often(void **state)
{
    (void)state;
    lead(ROLLOUT_WATCHING, (struct participant_order){.order = ORDER_NOTHING});
    begin(MEMBER_WORKER, 79);
    const double pause_s = shortest_pause_s(3);
    assert_true(pause_s >= 0.195 && pause_s < 0.4);
    tear_down(NULL);
    set_up(NULL);
    lead(ROLLOUT_WATCHING, (struct participant_order){.order = ORDER_NOTHING});
    begin(MEMBER_PS, 79);
    assert_true(shortest_pause_s(10) < 0.15);
    tear_down(NULL);
    set_up(NULL);
    lead(ROLLOUT_WATCHING, (struct participant_order){.order = ORDER_NOTHING});
    begin(MEMBER_WORKER, 300);
    assert_true(shortest_pause_s(3) < 0.5);
}

/* A thin link is there to train, while a version is staged. */
static void a_slow_link_is_spared(void **state)
{
    (void)state;
    leads.answers_in_ms = 40;
    lead(ROLLOUT_STAGING, (struct participant_order){.order = ORDER_NOTHING});
    begin(MEMBER_WORKER, 2);
    assert_true(shortest_pause_s(1) >= 0.39);
    lead(ROLLOUT_WATCHING, (struct participant_order){.order = ORDER_NOTHING});
    assert_true(shortest_pause_s(4) < 0.3);
    leads.answers_in_ms = 300;
    lead(ROLLOUT_STAGING, (struct participant_order){.order = ORDER_NOTHING});
    assert_true(shortest_pause_s(1) < 2);
}

/* --- By network --- */

static void it_comes_to_ps_0_as_a_guest(void **state)
{
    (void)state;
    begin_remote();
    AWAIT(atomic_load(&host.heard) >= 2);
    assert_true(atomic_load(&host.has_model));
    assert_int_equal(atomic_load(&host.version), 1);
    assert_string_equal(leader.peer.digest, "");
    assert_int_equal(leader.peer.member.role, MEMBER_WORKER);
    assert_int_equal(leader.peer.member.index, 0);
    pthread_mutex_lock(&leads.lock);
    leads.says.has_model = false;
    pthread_mutex_unlock(&leads.lock);
    AWAIT(!atomic_load(&host.has_model));
    assert_int_equal(atomic_load(&leader.connections), 1);
}

static void manifests_come_by_network_too(void **state)
{
    char digest[CONFIG_DIGEST_HEX + 1];
    (void)state;
    begin_remote();
    struct participant_order order = order_to(0.25, 2);
    lead(ROLLOUT_STAGING, order);
    AWAIT(last_report().phase == PHASE_STAGED);
    order.order = ORDER_SWITCH;
    order.step = 7;
    lead(ROLLOUT_SWITCHING, order);
    AWAIT(atomic_load(&host.switched_at) == 7);
    atomic_store(&host.now, 7);
    AWAIT(version_here(digest) == 2);
}

static void what_breaks_is_tried_again(void **state)
{
    static uint8_t large[MANIFEST_MAX_BYTES + 1];
    (void)state;
    begin_remote();
    AWAIT(atomic_load(&host.heard) >= 1);
    pthread_mutex_lock(&leads.lock);
    leads.fails = true;
    pthread_mutex_unlock(&leads.lock);
    AWAIT(atomic_load(&leader.connections) >= 2); /* a refusal is none for ever */
    pthread_mutex_lock(&leads.lock);
    leads.fails = false;
    pthread_mutex_unlock(&leads.lock);
    const int heard_before = atomic_load(&host.heard);
    AWAIT(atomic_load(&host.heard) > heard_before);
    const int connections = atomic_load(&leader.connections);
    lead(ROLLOUT_STAGING, (struct participant_order){
                              .order = ORDER_STAGE, .target = 2, .manifest = large, .manifest_size = sizeof large});
    AWAIT(atomic_load(&leader.connections) > connections);
    lead(ROLLOUT_STAGING, order_to(0.25, 2));
    AWAIT(last_report().phase == PHASE_STAGED);
    assert_int_equal(times(told(), "arrived"), 1);
}

/* A program that this machine lacks comes piece by piece, whatever happens on the way. */
static void a_program_is_fetched_between_reports(void **state)
{
    uint8_t *bytes;
    struct error error;
    (void)state;
    assert_true(program_own_bytes(&bytes, &leads.program_size, &error));
    bytes[leads.program_size / 2] ^= 1; /* another one */
    leads.program = bytes;
    leads.lost_chunk = 2;
    leads.slow_chunk = 5;
    programs = (struct manifest_programs){.count = 1, .protocol = 1};
    struct manifest_program *program = &programs.items[0];
    program->size = leads.program_size;
    snprintf(program->architecture, sizeof program->architecture, "%s", program_own_architecture());
    program_digest(bytes, leads.program_size, program->digest);
    begin_remote();
    lead(ROLLOUT_STAGING, order_to(0.5, 2));
    programs.count = 0;
    AWAIT(last_report().phase == PHASE_STAGED || last_report().phase == PHASE_FAILED);
    if (last_report().phase == PHASE_FAILED) {
        fail_msg("%s", leads.message);
    }
    const int pieces = (int)((leads.program_size + PROGRAM_CHUNK - 1) / PROGRAM_CHUNK);
    assert_int_equal(leads.chunks, pieces + 2);
    assert_int_equal(atomic_load(&leader.connections), 2);
    assert_true(leads.after_slow_s - leads.slow_s >= 0.69);
    struct programs kept;
    assert_true(programs_name(&kept, config_path, &error) && programs_have_whole(&kept, programs.items[0].digest));
    free(bytes);
}

/* --- Trouble --- */

static void whom_it_does_not_reach_for_long_is_told_once(void **state)
{
    (void)state;
    listen_in();
    log_setup(LOG_TEXT, LOG_WARNING);
    leads.fails = true;
    begin(MEMBER_WORKER, 2);
    AWAIT(reports() >= 2);
    assert_null(strstr(heard_so_far(), "was not reached"));
    atomic_store(&ahead_s, 31);
    AWAIT(strstr(heard_so_far(), "ps 0 was not reached for 30 s, so this member hears of no rollout: as the test"));
    const int before = reports();
    AWAIT(reports() >= before + 2);
    assert_int_equal(atomic_load(&host.heard), 0);
    atomic_store(&ahead_s, 0);
    assert_int_equal(times(heard(), "was not reached"), 1);
    assert_string_equal(told(), ""); /* it has not arrived */
}

static void what_can_not_begin_is_no_agent(void **state)
{
    struct error error;
    (void)state;
    load(MEMBER_WORKER, 2);
    const struct agent_options options = options_of(MEMBER_WORKER);
    char *kept = config.cluster.ps_hosts.items[0];
    config.cluster.ps_hosts.items[0] = (char *)(uintptr_t) "nowhere at all";
    assert_false(agent_create(&agent, &options, &error));
    assert_null(agent);
    config.cluster.ps_hosts.items[0] = kept;
    agent_destroy(NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_member_says_how_it_is_and_hears_how_ps_0_is),
        TEST(a_member_without_a_loss_says_so),
        TEST(a_live_rollout_is_followed_and_shown),
        TEST(what_is_not_settled_goes_on_after_a_restart),
        TEST(members_of_either_version_are_members),
        TEST(an_edit_by_hand_is_told),
        TEST(while_nothing_is_rolled_out_it_reports_seldom),
        TEST(of_very_many_each_reports_less_often),
        TEST(a_slow_link_is_spared),
        TEST(it_comes_to_ps_0_as_a_guest),
        TEST(manifests_come_by_network_too),
        TEST(what_breaks_is_tried_again),
        TEST(a_program_is_fetched_between_reports),
        TEST(whom_it_does_not_reach_for_long_is_told_once),
        TEST(what_can_not_begin_is_no_agent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
