/*
 * The thread that polls ps 0. Members poll, instead of ps 0 notifying them, because a member may have a new address, be
 * just starting, or be in another version, and ps 0 must not wait for any of them; a lost poll is simply followed by
 * the next.
 */
#include "ps/rollout/participant.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/config/keys.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/restart.h"
#include "net/link.h"
#include "ps/rollout/revoked.h"

static const double CONNECT_S = 5.0, ANSWER_S = 10.0;
static const double BUSY_S = 0.05, LONGEST_BUSY_S = 0.25; /* between two reports, during a rollout */
/*
 * While a version is staged reports are this many times further apart than their answers take: a slow link is needed
 * for training.
 */
static const double REPORT_TIMES = 10.0, LONGEST_THIN_S = 1.0;
enum { MOST_LINES = 32 }; /* of a rollout's changes, for display */
/*
 * With more members than this each reports less often during a rollout, because ps 0 hears all; a ps does not, because
 * all wait for every ps to restart.
 */
static const int OFTEN = 20;
static const double LOG_AFTER_S = 30.0;
static const double REVOKED_AGAIN_S = 60;
static const double FETCH_S = 0.3; /* time for pieces of a program between two reports */

struct agent {
    struct agent_options options;
    struct rollout_participant participant;
    struct link link;
    struct traffic traffic;
    struct wake wake;
    double idle_s, busy_s; /* between two reports; during a rollout */
    double answered_in_s;  /* the last report */
    double fetch_s;        /* earliest time for the next: ps 0 limits the rate of programs */
    bool revoked_failed;   /* the last list of revoked keys was refused, or could not be kept */
    double revoked_s;      /* likewise for a list of revoked keys, after one that was refused */
    pthread_t thread;
    bool runs, arrived; /* arrived: it has reached ps 0 */
    atomic_bool end, rolling;
    pthread_mutex_t lock; /* of what follows, copies of the participant's */
    uint64_t version;
    char digest[CONFIG_DIGEST_HEX + 1];
    char others[2][CONFIG_DIGEST_HEX + 1]; /* of a rollout in which this member took part */
    int ps, workers;                       /* the larger numbers of members of that rollout; 0: there was none */
    char drift[CONFIG_DRIFT_TEXT];
    enum rollout_state state; /* as ps 0 last reported */
    uint64_t target;          /* the version described by the lines below; 0: none */
    char diff[MOST_LINES][BOARD_TEXT];
    int diff_count;
};

/* Over the network. */
static bool ask_leader(struct agent *agent, const struct message_report *report, struct agent_answer *answer,
                       struct error *error)
{
    uint8_t *manifest = NULL;
    if (link_try(&agent->link, error) != LINK_OPEN) {
        return false;
    }
    const double deadline_s = clock_monotonic_s() + ANSWER_S;
    struct channel *channel = &agent->link.channel;
    bool done = channel_call(channel, MESSAGE_report, report, MESSAGE_rollout, deadline_s, NULL, error);
    size_t size = done ? channel->bulk_left : 0;
    if (size > MANIFEST_MAX_BYTES) {
        done = error_set(error, "%s: its manifest is too large", connection_name(channel->connection));
    }
    if (done) {
        const struct message_rollout *reply = &channel->message.rollout;
        *answer = (struct agent_answer){.order = {.order = (enum rollout_order)reply->order,
                                                  .target = reply->target,
                                                  .in_force = reply->version,
                                                  .step = reply->step,
                                                  .manifest_size = size},
                                        .state = (enum rollout_state)reply->state,
                                        .revoked = reply->revoked,
                                        .has_model = channel->frame.generation > 0};
    }
    if (done && size > 0) {
        manifest = malloc(size);
        done = (manifest || error_set(error, "out of memory")) &&
               channel_read_bulk(channel, manifest, size, deadline_s, error);
    }
    if (!done) {
        free(manifest);
        link_lost(&agent->link, NULL);
        return false;
    }
    answer->order.manifest = manifest;
    return true;
}

/* The target's differences from the fallback, once both are staged here. */
static void describe_target(struct agent *agent)
{
    const struct rollout_participant *participant = &agent->participant;
    const struct config *to = &participant->configs[0], *from = &participant->configs[1];
    const bool is_known = participant->target != 0 && to->fleet.version == (int64_t)participant->target &&
                          from->cluster.ps_hosts.count > 0;
    if (participant->target == agent->target || (participant->target != 0 && !is_known)) {
        return;
    }
    agent->target = participant->target;
    agent->diff_count = 0;
    if (is_known) {
        struct config_diff diff;
        config_diff(&diff, from, to, SCOPE_JOB);
        for (int i = 0; i < diff.count && i < MOST_LINES; i++) {
            config_diff_line(&diff.changes[i], agent->diff[agent->diff_count++], BOARD_TEXT);
        }
        config_diff_free(&diff);
    }
}

static void publish(struct agent *agent, enum rollout_state state)
{
    pthread_mutex_lock(&agent->lock);
    agent->state = state;
    describe_target(agent);
    agent->version = agent->participant.version;
    memcpy(agent->digest, agent->participant.digest, sizeof agent->digest);
    memcpy(agent->others, agent->participant.digests, sizeof agent->others);
    memcpy(agent->drift, agent->participant.drift.text, sizeof agent->drift);
    agent->ps = agent->workers = 0;
    for (int i = 0; i < 2; i++) {
        const struct config_cluster *cluster = &agent->participant.configs[i].cluster;
        const int workers = config_worker_room(cluster);
        agent->ps = cluster->ps_hosts.count > agent->ps ? cluster->ps_hosts.count : agent->ps;
        agent->workers = workers > agent->workers ? workers : agent->workers;
    }
    pthread_mutex_unlock(&agent->lock);
}

/* From now on handshakes name the version in force. */
static void update_identity(struct agent *agent)
{
    const struct rollout_participant *participant = &agent->participant;
    const struct config *config =
        &participant->configs[participant->configs[0].fleet.version == (int64_t)participant->version ? 0 : 1];
    struct error error;
    char *job = config_job_text(config);
    if (!identity_change(agent->options.identity, participant->version, participant->digest, job, &error)) {
        log_warning("handshakes still name the version before: %s", error.text);
    }
    free(job);
}

/* Fetches a piece of it; false if that is enough for now, or ps 0 was not reached. */
static bool fetch_chunk(struct agent *agent, const char *digest, uint64_t offset, uint8_t *chunk)
{
    struct channel *channel = &agent->link.channel;
    const struct message_get_program wanted = {.digest = (char *)(uintptr_t)digest, .offset = offset};
    const double deadline_s = clock_monotonic_s() + ANSWER_S;
    struct error error;
    bool done = channel_call(channel, MESSAGE_get_program, &wanted, MESSAGE_program, deadline_s, NULL, &error);
    const bool waits = done && channel->message.program.wait_ms > 0;
    agent->fetch_s = waits ? clock_monotonic_s() + channel->message.program.wait_ms / 1000.0 : 0;
    const size_t size = done ? channel->bulk_left : 0;
    if (done && size > PROGRAM_CHUNK) {
        done = error_set(&error, "%s: sent %zu bytes of a program at once", connection_name(channel->connection), size);
    }
    done = done && channel_read_bulk(channel, chunk, size, deadline_s, &error);
    if (!done) {
        log_info("%s; the rest of the program is fetched later", error.text);
        link_lost(&agent->link, NULL);
        return false;
    }
    participant_take(&agent->participant, offset, chunk, size);
    return !waits && size > 0;
}

/* Fetches as much of a program that this machine lacks as fits between two reports. */
static void fetch(struct agent *agent)
{
    const double until_s = clock_monotonic_s() + FETCH_S;
    const char *digest;
    uint64_t offset;
    if (agent->options.ask || clock_monotonic_s() < agent->fetch_s ||
        !participant_wants(&agent->participant, &digest, &offset)) {
        return;
    }
    uint8_t *chunk = malloc(PROGRAM_CHUNK);
    while (chunk && participant_wants(&agent->participant, &digest, &offset) && clock_monotonic_s() < until_s &&
           !atomic_load(&agent->end) && fetch_chunk(agent, digest, offset, chunk)) {
    }
    free(chunk);
}

static bool receive_revoked(struct agent *agent, struct error *error)
{
    const struct agent_options *options = &agent->options;
    const struct credentials *credentials = options->identity->credentials;
    struct channel *channel = &agent->link.channel;
    const struct message_get_revoked wanted = {.number = revoked_number(credentials)};
    const double deadline_s = clock_monotonic_s() + ANSWER_S;
    bool done = channel_call(channel, MESSAGE_get_revoked, &wanted, MESSAGE_revoked, deadline_s, NULL, error);
    const size_t size = done ? channel->bulk_left : 0; /* at most REVOCATION_MAX_BYTES: net/message_table.h */
    uint8_t *bytes = done ? malloc(size + 1) : NULL;
    done = done && (bytes || error_set(error, "out of memory")) &&
           channel_read_bulk(channel, bytes, size, deadline_s, error);
    if (!done) {
        link_lost(&agent->link, NULL);
    }
    done = done && revoked_take(options->config, credentials, &options->who, REVOKED_BY_PS_0, bytes, size, error);
    free(bytes);
    return done;
}

/*
 * Fetches the list of revoked keys if ps 0 has a later one. One that is refused, or cannot be kept, is asked for again
 * after a while.
 */
static void fetch_revoked(struct agent *agent, uint64_t number)
{
    const struct credentials *credentials = agent->options.identity->credentials;
    struct error error;
    const uint64_t here = credentials ? revoked_number(credentials) : 0;
    const bool is_behind = number < here;
    if (agent->options.ask || !credentials || (number == here && !agent->revoked_failed) ||
        clock_monotonic_s() < agent->revoked_s) {
        return;
    }
    agent->revoked_failed = !is_behind && !receive_revoked(agent, &error);
    if (is_behind || agent->revoked_failed) {
        agent->revoked_s = clock_monotonic_s() + REVOKED_AGAIN_S;
    }
    if (is_behind) {
        log_warning("ps 0 has list %llu of revoked keys, and list %llu is here: it may accept keys that were revoked; "
                    "copy config.json.d/revoked to it and restart it, or: trainer revoke renew",
                    (unsigned long long)number, (unsigned long long)here);
    } else if (agent->revoked_failed) {
        log_warning("list %llu of revoked keys, which ps 0 has, is not in force here: %s", (unsigned long long)number,
                    error.text);
    }
}

/* Sends one report, and acts on the answer; false if ps 0 was not reached. */
static bool poll_once(struct agent *agent, bool *busy, struct error *error)
{
    const struct agent_options *options = &agent->options;
    struct rollout_report state;
    struct agent_answer answer = {.state = ROLLOUT_IDLE};
    participant_report(&agent->participant, &state);
    const struct message_report report = {.version = state.version,
                                          .target = state.target,
                                          .phase = (uint8_t)state.phase,
                                          .ready = state.ready,
                                          .loss = options->loss ? options->loss(options->context) : -1.0f,
                                          .digest = agent->participant.digest,
                                          .revoked = revoked_number(options->identity->credentials),
                                          .message = state.message};
    const double asked_s = clock_monotonic_s();
    if (!(options->ask ? options->ask(options->context, &report, &answer, error)
                       : ask_leader(agent, &report, &answer, error))) {
        return false;
    }
    agent->answered_in_s = clock_monotonic_s() - asked_s;
    if (!agent->arrived) {
        agent->arrived = true;
        restart_arrived();
    }
    if (options->heard) {
        options->heard(options->context, answer.order.in_force, answer.has_model);
    }
    *busy = answer.state != ROLLOUT_IDLE || answer.order.order != ORDER_NOTHING;
    atomic_store(&agent->rolling, rollout_state_is_risky(answer.state));
    const uint64_t before = agent->participant.version;
    answer.order.settled = answer.state == ROLLOUT_IDLE;
    participant_act(&agent->participant, &answer.order);
    if (agent->participant.version != before) { /* after a restart the new process identifies itself */
        update_identity(agent);
    }
    free((void *)(uintptr_t)answer.order.manifest);
    fetch_revoked(agent, answer.revoked);
    fetch(agent);
    publish(agent, answer.state);
    return true;
}

/* When the next report is due. One that did not reach ps 0 is repeated as soon as the link may be tried again. */
static double next_report_s(const struct agent *agent, bool reached, bool busy)
{
    const double now_s = clock_monotonic_s();
    if (!reached && !agent->options.ask) {
        return agent->link.next_try_s;
    }
    const double thin_s =
        agent->state == ROLLOUT_STAGING ? fmin(REPORT_TIMES * agent->answered_in_s, LONGEST_THIN_S) : 0;
    return now_s + (busy ? fmax(agent->busy_s, thin_s) : agent->idle_s);
}

static void *run(void *context)
{
    struct agent *agent = context;
    double reached_s = clock_monotonic_s();
    bool logged = false;
    while (!atomic_load(&agent->end)) {
        bool busy = false;
        struct error error;
        bool reached = poll_once(agent, &busy, &error);
        double now_s = clock_monotonic_s();
        reached_s = reached ? now_s : reached_s;
        if (!reached && !logged && now_s - reached_s >= LOG_AFTER_S) {
            log_warning("ps 0 has not been reached for %.0f s, so this member learns of no rollout: %s", LOG_AFTER_S,
                        error.text);
        }
        logged = !reached && now_s - reached_s >= LOG_AFTER_S;
        wake_wait(-1, 0, &agent->wake, next_report_s(agent, reached, busy));
    }
    return NULL;
}

/*
 * As a guest: whatever this member's config is, and however old, ps 0 gives it orders. Only reports are allowed on
 * such a connection.
 */
static bool create_link(struct agent *agent, struct error *error)
{
    const struct config_cluster *cluster = &agent->options.config->cluster;
    const struct link_options options = {.peer = {MEMBER_PS, 0},
                                         .self = identity_guest(agent->options.identity),
                                         .traffic = &agent->traffic,
                                         .wake = &agent->wake,
                                         .timeout_s = CONNECT_S,
                                         .return_after_s = pace_return_s(cluster),
                                         .return_within_s = 2 * pace_return_s(cluster),
                                         .quiet = true,
                                         .retries_refusals = true};
    return link_create(&agent->link, cluster->ps_hosts.items[0], &options, error);
}

bool agent_create(struct agent **out, const struct agent_options *options, struct error *error)
{
    struct agent *agent = must_zero(1, sizeof *agent, "rollouts");
    agent->options = *options;
    *out = agent; /* its thread asks the owner, who may look for it there */
    const int members = options->config->cluster.ps_hosts.count + options->config->cluster.worker_hosts.count;
    agent->idle_s = pace_report_s(&options->config->cluster);
    const bool hurries = members <= OFTEN || options->who.role == MEMBER_PS;
    agent->busy_s = hurries ? BUSY_S : fmin(LONGEST_BUSY_S, BUSY_S * members / OFTEN);
    agent->wake.fd = -1;
    pthread_mutex_init(&agent->lock, NULL);
    participant_create(&agent->participant, options->config, options->who, &options->host);
    bool done = wake_create(&agent->wake, error) && create_link(agent, error);
    if (done) {
        publish(agent, ROLLOUT_IDLE);
        atomic_store(&agent->rolling, agent->participant.prepared);
        agent->runs = pthread_create(&agent->thread, NULL, run, agent) == 0;
        done = agent->runs || error_set(error, "can't start the thread that takes part in rollouts");
    }
    if (!done) {
        agent_destroy(agent);
        *out = NULL;
    }
    return done;
}

void agent_destroy(struct agent *agent)
{
    if (!agent) {
        return;
    }
    atomic_store(&agent->end, true);
    if (agent->wake.fd >= 0) {
        wake_raise(&agent->wake);
    }
    if (agent->runs) {
        pthread_join(agent->thread, NULL);
    }
    link_destroy(&agent->link);
    wake_destroy(&agent->wake);
    participant_destroy(&agent->participant);
    pthread_mutex_destroy(&agent->lock);
    free(agent);
}

bool agent_is_rolling(struct agent *agent)
{
    return agent && atomic_load(&agent->rolling);
}

void agent_version(struct agent *agent, uint64_t *version, char digest[CONFIG_DIGEST_HEX + 1])
{
    pthread_mutex_lock(&agent->lock);
    *version = agent->version;
    memcpy(digest, agent->digest, sizeof agent->digest);
    pthread_mutex_unlock(&agent->lock);
}

bool agent_knows(struct agent *agent, const char *digest)
{
    pthread_mutex_lock(&agent->lock);
    bool known = strcmp(digest, agent->digest) == 0 || strcmp(digest, agent->others[0]) == 0 ||
                 strcmp(digest, agent->others[1]) == 0;
    pthread_mutex_unlock(&agent->lock);
    return known;
}

bool agent_has_member(struct agent *agent, struct member who)
{
    pthread_mutex_lock(&agent->lock);
    bool has = who.index < (who.role == MEMBER_PS ? agent->ps : agent->workers);
    pthread_mutex_unlock(&agent->lock);
    return has;
}

void agent_show(struct agent *agent, struct board_rollout *shown)
{
    pthread_mutex_lock(&agent->lock);
    const char *phase = rollout_state_name(agent->state);
    const bool is_under_way = agent->state != ROLLOUT_IDLE;
    if (is_under_way && (!shown->is_under_way || strcmp(shown->phase, phase) != 0)) {
        shown->since_s = clock_wall_s();
    }
    shown->is_under_way = is_under_way;
    shown->version = (int64_t)agent->target;
    snprintf(shown->phase, sizeof shown->phase, "%s", phase);
    shown->text[0] = '\0';
    if (is_under_way) {
        snprintf(shown->text, sizeof shown->text, "version %llu: %s", (unsigned long long)agent->target, phase);
    }
    if (board_begin_diff(shown, agent->diff_count) && agent->diff_count > 0) {
        shown->diff_count = agent->diff_count;
        memcpy(shown->diff, agent->diff, (size_t)agent->diff_count * sizeof *agent->diff);
    }
    pthread_mutex_unlock(&agent->lock);
}

void agent_drift(struct agent *agent, char text[CONFIG_DRIFT_TEXT])
{
    pthread_mutex_lock(&agent->lock);
    memcpy(text, agent->drift, sizeof agent->drift);
    pthread_mutex_unlock(&agent->lock);
}
