/* A member of a rollout with the program's agent; the test plays ps 0, the host and the clock. */
#ifndef TESTS_PS_ROLLOUT_AGENCY_H
#define TESTS_PS_ROLLOUT_AGENCY_H

#include "tests/ps/rollout/machine.h"

#include "base/config.h"
#include "base/log.h"
#include "ps/rollout/participant.h"
#include "tests/own_clock.h"
#include "tests/worker/remote/fake_member.h"
#include "tests/worker/remote/story.h"

static struct identity identity;
static struct agent *agent;
static struct fake_member leader; /* ps 0 */

/* --- Time, under the test's control --- */

static _Atomic(double) ahead_s;

double own_clock_s(void)
{
    return system_clock_s() + atomic_load(&ahead_s);
}

/* A restart that was to be over by then has arrived. */
unsigned alarm(unsigned seconds)
{
    tell(seconds == 0 ? "arrived\n" : "alarm\n");
    return 0;
}

/* --- ps 0's answers --- */

enum { REPORTS = 10000 };

static struct {
    pthread_mutex_t lock;
    struct agent_answer says; /* its manifest remains the test's */
    bool fails;
    int answers_in_ms;
    int asked;
    double begun_s[REPORTS], ended_s[REPORTS];
    struct message_report report; /* the last report; its texts: */
    char digest[CONFIG_DIGEST_HEX + 1], message[256];
    const uint8_t *program; /* that it sends */
    size_t program_size;
    int chunks, lost_chunk; /* chunks sent; the chunk that breaks the connection instead; 0: none */
    int slow_chunk;         /* likewise; the chunk that comes with a request to wait */
    double slow_s, after_slow_s;
} leads = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline void note_report(const struct message_report *report, struct agent_answer *answer, bool *fails)
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
static inline bool ask(void *context, const struct message_report *report, struct agent_answer *answer,
                       struct error *error)
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

static inline bool send_bulk(struct channel *channel, enum message_type type, const void *message, const void *bytes,
                             size_t size)
{
    struct error error;
    struct iovec bulk = {(void *)(uintptr_t)bytes, size};
    const struct outgoing frame = {
        .type = type, .request = channel->frame.request, .message = message, .bulk = &bulk, .bulk_parts = size > 0};
    return channel_send_frame(channel, &frame, fake_member_soon(), &error);
}

static inline bool hand_on(struct channel *channel)
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

/* Over the network. */
static inline bool answer_frame(struct fake_member *member, struct channel *channel)
{
    struct agent_answer says;
    bool fails;
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
    channel->generation = says.has_model ? 1 : 0;
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

static inline void lead(enum rollout_state state, struct participant_order order)
{
    pthread_mutex_lock(&leads.lock);
    order.in_force = 1;
    leads.says = (struct agent_answer){.order = order, .state = state, .has_model = true};
    pthread_mutex_unlock(&leads.lock);
}

static inline struct message_report last_report(void)
{
    pthread_mutex_lock(&leads.lock);
    const struct message_report report = leads.report;
    pthread_mutex_unlock(&leads.lock);
    return report;
}

static inline int reports(void)
{
    pthread_mutex_lock(&leads.lock);
    const int count = leads.asked;
    pthread_mutex_unlock(&leads.lock);
    return count;
}

/* The shortest time from an answer to the next report, over the next `count`. */
static inline double shortest_pause_s(int count)
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
    atomic_ullong version; /* reported by ps 0 */
} host;

static inline enum participant_switch switch_to(void *context, const struct config *now, int64_t step)
{
    atomic_store(&host.switched_at, step);
    return atomic_load(&host.now) < step ? SWITCH_PENDING : SWITCH_DONE;
}

static inline bool save(void *context, struct error *error)
{
    return true;
}

static inline void settle(void *context)
{
    atomic_fetch_add(&host.settled, 1);
}

static inline void leave(void *context, bool for_good)
{
    atomic_fetch_add(&host.left, 1);
}

static inline float loss(void *context)
{
    assert_ptr_equal(context, &leads);
    return 0.25f;
}

static inline void hear(void *context, uint64_t version, bool has_model)
{
    assert_ptr_equal(context, &leads);
    atomic_store(&host.version, version);
    atomic_store(&host.has_model, has_model);
    atomic_fetch_add(&host.heard, 1);
}

/* Of a job with so many workers. */
static inline char *text_of(uint64_t version, double rate, int workers)
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

static inline int set_up(void **state)
{
    if (!make_machine()) {
        return 1;
    }
    log_setup(LOG_TEXT, LOG_ERROR);
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

static inline int tear_down(void **state)
{
    agent_destroy(agent);
    agent = NULL;
    fake_member_stop(&leader);
    identity_destroy(&identity);
    memset(&identity, 0, sizeof identity);
    return remove_machine();
}

/* The config of a job with this many workers, and the member's identity. */
static inline void load(enum member_role role, int workers)
{
    struct error error;
    const struct config_setting flags[] = {{"job_name", role == MEMBER_PS ? "ps" : "worker"}, {"task_index", "0"}};
    write_text("config.json", text_of(1, 0.5, workers));
    if (!config_load(&config, config_path, flags, 2, &error) ||
        !identity_create(&identity, &config, (struct member){role, 0}, &error)) {
        fail_msg("%s", error.text);
    }
}

static inline struct agent_options options_of(enum member_role role)
{
    return (struct agent_options){
        .config = &config,
        .identity = &identity,
        .who = {role, 0},
        .host = {.save = save, .switch_to = switch_to, .settle = settle, .leave = leave, .context = &leads},
        .loss = loss,
        .heard = hear,
        .ask = ask,
        .context = &leads};
}

static inline void start(const struct agent_options *options)
{
    struct error error;
    if (!agent_create(&agent, options, &error)) {
        fail_msg("%s", error.text);
    }
}

/* By a function call, as on ps 0. */
static inline void begin(enum member_role role, int workers)
{
    load(role, workers);
    const struct agent_options options = options_of(role);
    start(&options);
}

/* Over the network. */
static inline void begin_remote(void)
{
    load(MEMBER_WORKER, 2);
    struct agent_options options = options_of(MEMBER_WORKER);
    options.ask = NULL;
    fake_member_start(&leader, &identity.hello, answer_frame);
    start(&options);
}

/* Stage version 2: another rate, the same number of workers. Valid until the next call but one. */
static inline struct participant_order order_to(double rate, int workers)
{
    const struct manifest_config before = signed_config(text_of(1, 0.5, 2), 1, "");
    const struct manifest_config after = signed_config(text_of(2, rate, workers), 2, "");
    return order_signed(ORDER_STAGE, &before, &after, secret_key);
}

static inline void digest_of(char *text, char digest[CONFIG_DIGEST_HEX + 1])
{
    struct config parsed;
    struct error error;
    assert_true(config_parse(&parsed, "test", (uint8_t *)text, strlen(text), NULL, 0, &error));
    config_digest(&parsed, digest);
    config_free(&parsed);
}

static inline uint64_t version_here(char digest[CONFIG_DIGEST_HEX + 1])
{
    uint64_t version;
    agent_version(agent, &version, digest);
    return version;
}

static struct board_rollout shown; /* what the dashboards show */

static inline const struct board_rollout *show(void)
{
    agent_show(agent, &shown);
    return &shown;
}

#endif
