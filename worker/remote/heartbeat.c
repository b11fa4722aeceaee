/*
 * One thread polls all parameter servers. A ps that is gone must not delay heartbeats to the others, so at most one
 * reconnect is tried between two rounds, with a short timeout.
 */
#include "worker/remote/heartbeat.h"

#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/notify.h"
#include "base/process/usage.h"
#include "observe/observe.h"
#include "ps/store/model.h"

static const double FAST_BEAT_S = 0.02;
static const double CONNECT_S = 2.0, LEAST_CONNECT_S = 0.5; /* meanwhile the others wait */
static const double AGAIN_S = 2.0;                          /* enough for the link to a ps that has just come up */

/* A ps's report with its last lease. */
struct ps_state {
    bool holds; /* some of the parameters */
    bool known;
    uint8_t job_state;
    uint32_t generation;
    double answered_s;
    uint64_t incarnation; /* of the ps; 0: not known yet */
    double changed_s;     /* when another process had taken its place; 0: never */
    double asked_s;       /* when the unanswered request was sent; 0: none */
};

struct heartbeat {
    const struct config *config;
    const struct identity *identity;
    struct link *links; /* [count]; used only by the thread */
    int count;
    struct wake wake;
    pthread_t thread;
    bool runs;
    char host[256], device[129];
    double reached_s; /* since when ps have answered without a gap of a lease; used only by the thread */
    int silent_ps;    /* one that has not answered for a lease, though others have; -1: none; used only by the thread */
    struct traffic *traffic;
    atomic_bool over, fenced, polls_fast, end;
    pthread_mutex_t mutex; /* guards what follows */
    struct vitals vitals;
    char message[256];
    struct job_status job;
    struct ps_state *ps; /* [count]; asked_s is the thread's alone */
};

static double interval_s(struct heartbeat *heartbeat)
{
    return atomic_load(&heartbeat->polls_fast) ? FAST_BEAT_S : pace_beat_s(&heartbeat->config->cluster);
}

/* A ps answers at once; if it doesn't, the connection is dead, even if TCP still looks open. */
static double idle_timeout_s(const struct heartbeat *heartbeat)
{
    return fmax(heartbeat->config->cluster.lease_secs / 2, 1.0);
}

/* When any ps answered last; 0: never. */
static double last_answer_s(const struct heartbeat *heartbeat)
{
    double newest_s = 0;
    for (int i = 0; i < heartbeat->count; i++) {
        newest_s = fmax(newest_s, heartbeat->ps[i].answered_s);
    }
    return newest_s;
}

/* How long a ps has been silent while others answered; if none answers, silence says nothing about this one. */
static double silent_for_s(const struct heartbeat *heartbeat, int ps)
{
    return last_answer_s(heartbeat) - fmax(heartbeat->ps[ps].answered_s, heartbeat->reached_s);
}

/* Joining needs all ps; training only those with parameters. */
static bool is_needed(struct heartbeat *heartbeat, int ps)
{
    pthread_mutex_lock(&heartbeat->mutex);
    bool joins = heartbeat->vitals.state == STATE_STARTING;
    pthread_mutex_unlock(&heartbeat->mutex);
    return joins || heartbeat->ps[ps].holds;
}

/*
 * A push counts only when all ps have it. So while one can't be reached, the others are informed, or they would all
 * wait for this worker.
 */
static void look_for_silent_ps(struct heartbeat *heartbeat)
{
    const double longest_s = heartbeat->config->cluster.lease_secs + AGAIN_S;
    const int before = heartbeat->silent_ps;
    int silent = -1;
    for (int i = 0; i < heartbeat->count && heartbeat->reached_s > 0; i++) {
        const bool named = silent >= 0 && i != before; /* keep naming the same one */
        if (!named && silent_for_s(heartbeat, i) > longest_s && is_needed(heartbeat, i)) {
            silent = i;
        }
    }
    heartbeat->silent_ps = silent;
    if (silent >= 0 && before < 0) {
        log_warning("%s is unreachable for %.0f s, though others answer; training paused until it answers",
                    heartbeat->links[silent].name, silent_for_s(heartbeat, silent));
    } else if (silent < 0 && before >= 0) {
        log_info("%s is reachable again; resuming", heartbeat->links[before].name);
    }
}

/* Notes an answer of any ps; reached_s stays unless there was none for a lease. */
static void note_reached(struct heartbeat *heartbeat, double now_s)
{
    const double newest_s = last_answer_s(heartbeat);
    if (newest_s == 0 || now_s - newest_s > heartbeat->config->cluster.lease_secs) {
        heartbeat->reached_s = now_s;
    }
}

static bool send_beat(struct heartbeat *heartbeat, struct link *link, struct error *error)
{
    char message[256];
    const int silent = heartbeat->silent_ps;
    pthread_mutex_lock(&heartbeat->mutex);
    struct vitals vitals = heartbeat->vitals;
    snprintf(message, sizeof message, "%s", heartbeat->message);
    pthread_mutex_unlock(&heartbeat->mutex);
    if (silent >= 0 && vitals.state != STATE_FAILED) {
        vitals.state = STATE_LOST;
        snprintf(message, sizeof message, "has not reached %.200s for %.0f s", heartbeat->links[silent].name,
                 silent_for_s(heartbeat, silent));
    }
    struct process_load load;
    process_load(&load);
    struct message_heartbeat beat = {.state = (uint8_t)vitals.state,
                                     .global_step = vitals.global_step,
                                     .local_step = vitals.local_step,
                                     .steps_per_s = vitals.steps_per_s,
                                     .loss = vitals.loss,
                                     .staleness = vitals.staleness,
                                     .retries = atomic_load(&heartbeat->traffic->retries),
                                     .bytes_in = atomic_load(&heartbeat->traffic->bytes_in),
                                     .bytes_out = atomic_load(&heartbeat->traffic->bytes_out),
                                     .host = heartbeat->host,
                                     .device = heartbeat->device,
                                     .message = message,
                                     .memory_bytes = load.memory_bytes,
                                     .cpu_percent = load.cpu_percent,
                                     .gpu_percent = load.gpu_percent};
    observe_traffic(beat.bytes_in, beat.bytes_out, beat.retries);
    struct ps_state *ps = &heartbeat->ps[link->member.index];
    ps->asked_s = ps->asked_s > 0 ? ps->asked_s : clock_monotonic_s();
    return channel_send(&link->channel, MESSAGE_heartbeat, ++link->channel.next_request, &beat,
                        clock_monotonic_s() + LINK_ANSWER_S, error);
}

/* The first ps that knows of the end reports it. */
static void take_lease(struct heartbeat *heartbeat, const struct link *link, const struct message_lease *lease)
{
    pthread_mutex_lock(&heartbeat->mutex);
    struct job_status *job = &heartbeat->job;
    struct ps_state *ps = &heartbeat->ps[link->member.index];
    const double now_s = clock_monotonic_s();
    note_reached(heartbeat, now_s);
    *ps = (struct ps_state){.holds = ps->holds,
                            .known = true,
                            .answered_s = now_s,
                            .incarnation = ps->incarnation,
                            .changed_s = ps->changed_s,
                            .job_state = lease->job_state,
                            .generation = link->channel.frame.generation};
    job->known = true;
    if (!job->over && (lease->job_state == JOB_DONE || lease->job_state == JOB_FAILED)) {
        job->over = true;
        job->failed = lease->job_state == JOB_FAILED;
        job->test_accuracy = lease->test_accuracy;
        snprintf(job->message, sizeof job->message, "%s", lease->message);
        atomic_store(&heartbeat->over, true);
    }
    pthread_mutex_unlock(&heartbeat->mutex);
}

static void take_refusal(struct heartbeat *heartbeat, const struct error *error)
{
    pthread_mutex_lock(&heartbeat->mutex);
    heartbeat->job.refused = true;
    snprintf(heartbeat->job.message, sizeof heartbeat->job.message, "%.255s", error->text);
    atomic_store(&heartbeat->fenced, true);
    atomic_store(&heartbeat->over, true);
    pthread_mutex_unlock(&heartbeat->mutex);
}

/*
 * A ps sees no data: worker 0 sends it the layers, first on every connection, because it may have restarted. Other
 * workers compare theirs.
 */
static bool send_layers(struct heartbeat *heartbeat, struct link *link, struct error *error)
{
    char units[MODEL_UNITS_TEXT];
    model_units_text(&heartbeat->config->model, units);
    return heartbeat->config->model.hidden_count == CONFIG_AUTO ||
           channel_send(&link->channel, MESSAGE_layers, ++link->channel.next_request,
                        &(struct message_layers){.units = units}, clock_monotonic_s() + LINK_ANSWER_S, error);
}

static void take_layers(struct heartbeat *heartbeat, const struct link *link)
{
    char units[MODEL_UNITS_TEXT];
    struct error error;
    model_units_text(&heartbeat->config->model, units);
    if (strcmp(units, link->channel.message.layers.units) != 0) {
        error_set(&error, "%s has layers %.128s from worker 0's data, but the data here need %s", link->name,
                  link->channel.message.layers.units, units);
        take_refusal(heartbeat, &error);
    }
}

/* Handles everything that has arrived on this link. */
static bool take_frames(struct heartbeat *heartbeat, struct link *link, struct error *error)
{
    for (;;) {
        bool ready;
        if (!connection_wait(link->channel.connection, 0, &ready, error)) {
            return false;
        }
        if (!ready) {
            return true;
        }
        if (!channel_receive(&link->channel, clock_monotonic_s() + LINK_ANSWER_S, error)) {
            return false;
        }
        if (link->channel.frame.type == MESSAGE_ping) {
            struct message_pong pong = {link->channel.message.ping.nonce};
            if (!channel_send(&link->channel, MESSAGE_pong, link->channel.frame.request, &pong,
                              clock_monotonic_s() + LINK_ANSWER_S, error)) {
                return false;
            }
        } else if (link->channel.frame.type == MESSAGE_lease) {
            take_lease(heartbeat, link, &link->channel.message.lease);
        } else if (link->channel.frame.type == MESSAGE_layers) {
            take_layers(heartbeat, link);
        }
    }
}

/* Waits until something arrives on a link, or for the given time; closed links are skipped. */
static void wait_for_frames(struct heartbeat *heartbeat, struct pollfd *polled, double until_s)
{
    double left_s = until_s - clock_monotonic_s();
    polled[heartbeat->count] = (struct pollfd){.fd = heartbeat->wake.fd, .events = POLLIN};
    for (int i = 0; i < heartbeat->count; i++) {
        bool open = link_is_open(&heartbeat->links[i]);
        polled[i] =
            (struct pollfd){.fd = open ? connection_fd(heartbeat->links[i].channel.connection) : -1, .events = POLLIN};
    }
    if (left_s > 0) {
        poll(polled, (nfds_t)heartbeat->count + 1, (int)ceil(left_s * 1e3));
    }
}

/* If all ps and the chief were lost, generations start over: only the incarnation shows it, not the generation. */
static void note_incarnation(struct heartbeat *heartbeat, const struct link *link)
{
    struct ps_state *ps = &heartbeat->ps[link->member.index];
    pthread_mutex_lock(&heartbeat->mutex);
    if (ps->incarnation != 0 && ps->incarnation != link->incarnation) {
        ps->changed_s = clock_monotonic_s();
    }
    ps->incarnation = link->incarnation;
    ps->asked_s = 0;
    pthread_mutex_unlock(&heartbeat->mutex);
}

/* Visits a link that is not open, for one beat. */
static void visit(struct heartbeat *heartbeat, struct link *link, bool beat)
{
    struct error error;
    if (!link_is_open(link)) {
        enum link_try tried = link_try(link, &error);
        if (tried == LINK_REFUSED) {
            take_refusal(heartbeat, &error);
            link->next_try_s = INFINITY;
        }
        if (tried != LINK_OPEN) {
            return;
        }
        note_incarnation(heartbeat, link);
        if (!send_layers(heartbeat, link, &error)) {
            link_lost(link, error.text);
            return;
        }
    }
    if (!take_frames(heartbeat, link, &error)) {
        link_lost(link, error.text);
        return;
    }
    double asked_s = heartbeat->ps[link->member.index].asked_s;
    if (asked_s > 0 && clock_monotonic_s() - asked_s > idle_timeout_s(heartbeat)) {
        link_timed_out(link, "a heartbeat was not answered");
        return;
    }
    if (beat && !send_beat(heartbeat, link, &error)) {
        link_lost(link, error.text);
        return;
    }
    link_count(link);
}

static void send_leave(struct heartbeat *heartbeat)
{
    char message[256];
    struct error error;
    snprintf(message, sizeof message, "%s", heartbeat->message);
    struct message_leave leave = {.message = message};
    for (int i = 0; i < heartbeat->count; i++) {
        struct link *link = &heartbeat->links[i];
        const bool failed = heartbeat->vitals.state == STATE_FAILED;
        if (link_is_open(link) && (!failed || send_beat(heartbeat, link, &error))) {
            channel_call(&link->channel, MESSAGE_leave, &leave, MESSAGE_done, clock_monotonic_s() + 1, NULL, &error);
        }
        link_close(link);
    }
}

void heartbeat_report_failure(const struct config *config, const struct identity *identity, const char *reason)
{
    struct traffic traffic = {0};
    struct link link;
    struct error error;
    char host[256] = "", device[] = "", message[256];
    if (!shard_link_create(&link, config, 0, identity, &traffic, &error)) {
        return;
    }
    link.quiet = true;
    link.timeout_s = fmin(link.timeout_s, CONNECT_S);
    gethostname(host, sizeof host - 1);
    snprintf(message, sizeof message, "%.255s", reason);
    const struct message_heartbeat beat = {.state = STATE_FAILED,
                                           .global_step = -1,
                                           .loss = NAN,
                                           .host = host,
                                           .device = device,
                                           .message = message,
                                           .cpu_percent = NAN,
                                           .gpu_percent = NAN};
    const struct message_leave leave = {.message = message};
    const double deadline_s = clock_monotonic_s() + CONNECT_S;
    if (link_try(&link, &error) == LINK_OPEN &&
        channel_call(&link.channel, MESSAGE_heartbeat, &beat, MESSAGE_lease, deadline_s, NULL, &error)) {
        channel_call(&link.channel, MESSAGE_leave, &leave, MESSAGE_done, deadline_s, NULL, &error);
    }
    link_destroy(&link);
}

/* Beats on all open links; then tries one closed link, which may take a while, and leases must not expire meanwhile. */
static void visit_all(struct heartbeat *heartbeat, bool beat)
{
    struct link *next = NULL;
    for (int i = 0; i < heartbeat->count && !atomic_load(&heartbeat->end); i++) {
        struct link *link = &heartbeat->links[i];
        if (link_is_open(link)) {
            visit(heartbeat, link, beat);
        } else if (!next || link->next_try_s < next->next_try_s) {
            next = link;
        }
    }
    if (next && !atomic_load(&heartbeat->end)) {
        visit(heartbeat, next, true);
    }
}

static void *beat_on(void *context)
{
    struct heartbeat *heartbeat = context;
    struct pollfd *polled = must_zero((size_t)heartbeat->count + 1, sizeof *polled, "heartbeats");
    double next_s = 0, warn_s = 0;
    while (!atomic_load(&heartbeat->end)) {
        bool beat = clock_monotonic_s() >= next_s;
        notify_alive();
        identity_warn_of_expiry(heartbeat->identity, &warn_s);
        look_for_silent_ps(heartbeat);
        visit_all(heartbeat, beat);
        double now_s = clock_monotonic_s();
        next_s = beat ? now_s + interval_s(heartbeat) : next_s;
        double until_s = next_s;
        for (int i = 0; i < heartbeat->count; i++) {
            if (!link_is_open(&heartbeat->links[i])) {
                until_s = fmin(until_s, heartbeat->links[i].next_try_s);
            }
        }
        wait_for_frames(heartbeat, polled, fmax(until_s, now_s + 0.001));
        if (atomic_load(&heartbeat->polls_fast) && next_s > clock_monotonic_s() + FAST_BEAT_S) {
            next_s = 0;
        }
        wake_lower(&heartbeat->wake);
    }
    free(polled);
    send_leave(heartbeat);
    return NULL;
}

/* With a small model, or few variables, some ps have no parameters. */
static void note_holders(struct heartbeat *heartbeat)
{
    struct span spans[PLACEMENT_MAX_SPANS];
    struct model model;
    model_layout(&model, &heartbeat->config->model);
    for (int i = 0; i < heartbeat->count; i++) {
        heartbeat->ps[i].holds =
            placement_spans(&model, heartbeat->config->cluster.placement, heartbeat->count, i, spans) > 0;
    }
}

bool heartbeat_create(struct heartbeat **heartbeat, const struct config *config, const struct identity *identity,
                      struct traffic *traffic, const char *device, struct error *error)
{
    int count = config->cluster.ps_hosts.count;
    struct heartbeat *new = must_zero(1, sizeof *new, "heartbeats");
    if (!wake_create(&new->wake, error)) {
        free(new);
        return false;
    }
    struct link *links = must_zero((size_t)count, sizeof *links, "heartbeats");
    struct ps_state *ps = must_zero((size_t)count, sizeof *ps, "heartbeats");
    pthread_mutex_init(&new->mutex, NULL);
    new->config = config;
    new->identity = identity;
    new->links = links;
    new->ps = ps;
    new->count = count;
    new->traffic = traffic;
    new->vitals = (struct vitals){.state = STATE_STARTING, .global_step = -1, .loss = NAN};
    new->job.test_accuracy = NAN;
    new->silent_ps = -1;
    note_holders(new);
    gethostname(new->host, sizeof new->host - 1);
    snprintf(new->device, sizeof new->device, "%s", device);
    bool done = true;
    for (int i = 0; i < count && done; i++) {
        done = shard_link_create(&links[i], config, i, identity, traffic, error);
        links[i].quiet = true;
        links[i].options.return_after_s = pace_return_s(&config->cluster);
        links[i].options.return_within_s = 2 * links[i].options.return_after_s;
        /* A ps may know this worker from another link, and await its beats, while this link still fails to connect. */
        links[i].options.longest_delay_s = fmin(links[i].options.longest_delay_s, config->cluster.lease_secs / 3);
        links[i].timeout_s = fmin(CONNECT_S, fmax(config->cluster.lease_secs / 3, LEAST_CONNECT_S));
        links[i].idle_timeout_s = idle_timeout_s(new);
    }
    if (done) {
        new->runs = pthread_create(&new->thread, NULL, beat_on, new) == 0;
        done = new->runs || error_set(error, "no thread for heartbeats: too many processes on this machine?");
    }
    if (!done) {
        heartbeat_destroy(new, "");
        return false;
    }
    *heartbeat = new;
    return true;
}

void heartbeat_destroy(struct heartbeat *heartbeat, const char *message)
{
    if (!heartbeat) {
        return;
    }
    heartbeat_set_message(heartbeat, message);
    atomic_store(&heartbeat->end, true);
    wake_raise(&heartbeat->wake);
    if (heartbeat->runs) {
        pthread_join(heartbeat->thread, NULL);
    }
    for (int i = 0; i < heartbeat->count; i++) {
        link_destroy(&heartbeat->links[i]);
    }
    free(heartbeat->links);
    free(heartbeat->ps);
    wake_destroy(&heartbeat->wake);
    pthread_mutex_destroy(&heartbeat->mutex);
    free(heartbeat);
}

void heartbeat_set_vitals(struct heartbeat *heartbeat, const struct vitals *vitals)
{
    pthread_mutex_lock(&heartbeat->mutex);
    heartbeat->vitals = *vitals;
    pthread_mutex_unlock(&heartbeat->mutex);
}

void heartbeat_set_message(struct heartbeat *heartbeat, const char *message)
{
    pthread_mutex_lock(&heartbeat->mutex);
    snprintf(heartbeat->message, sizeof heartbeat->message, "%s", message);
    pthread_mutex_unlock(&heartbeat->mutex);
    observe_waiting(message);
}

void heartbeat_wake(struct heartbeat *heartbeat)
{
    if (!atomic_exchange(&heartbeat->polls_fast, true)) {
        wake_raise(&heartbeat->wake);
    }
}

bool heartbeat_needs_rejoin(struct heartbeat *heartbeat, uint32_t generation, double since_s, char why[256])
{
    bool needs_rejoin = false;
    pthread_mutex_lock(&heartbeat->mutex);
    for (int i = 0; i < heartbeat->count && !needs_rejoin; i++) {
        const struct ps_state *ps = &heartbeat->ps[i];
        needs_rejoin = ps->known && ps->answered_s > since_s && ps->job_state < JOB_DONE &&
                       (ps->job_state != JOB_TRAINING || generation_is_later(ps->generation, generation) ||
                        ps->changed_s > since_s);
        if (needs_rejoin && generation_is_later(ps->generation, generation)) {
            snprintf(why, 256, "%.200s has generation %u of the model", heartbeat->links[i].name, ps->generation);
        } else if (needs_rejoin && ps->changed_s > since_s) {
            snprintf(why, 256, "%.200s is another process now", heartbeat->links[i].name);
        } else if (needs_rejoin) {
            snprintf(why, 256, "%.200s has no model", heartbeat->links[i].name);
        }
    }
    pthread_mutex_unlock(&heartbeat->mutex);
    return needs_rejoin;
}

void heartbeat_job_status(struct heartbeat *heartbeat, struct job_status *job)
{
    pthread_mutex_lock(&heartbeat->mutex);
    *job = heartbeat->job;
    pthread_mutex_unlock(&heartbeat->mutex);
}

bool heartbeat_is_over(struct heartbeat *heartbeat)
{
    return atomic_load_explicit(&heartbeat->over, memory_order_relaxed);
}

bool heartbeat_is_fenced(struct heartbeat *heartbeat)
{
    return atomic_load_explicit(&heartbeat->fenced, memory_order_relaxed);
}
