/*
 * The life of a ps: start, the main thread's loop, the end.
 *
 * The main thread accepts, answers requests that need no waiting, and advances the job's time; any other busy
 * connection has a thread with a small stack. Memory and threads are bounded by the sessions' table, which is allocated
 * at start.
 */
#include "ps/server.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cli/command.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/notify.h"
#include "base/process/restart.h"
#include "base/process/signals.h"
#include "base/text/address.h"
#include "base/threads.h"
#include "net/link.h"
#include "ps/server/coordinator.h"
#include "ps/server/internal.h"
#include "ps/store/rounds.h"

enum {
    ACCEPT_MS = 100, /* how often the main thread checks */
    CLOSE_S = 2,     /* time for connections to end by themselves */
    REPORT_S = 2,    /* time to report an error to ps 0 */
};

/* Pushes per second, smoothed over a few seconds. */
struct rate {
    double at_s;
    int64_t pushes;
};

static void measure(struct server *server, struct rate *rate, double now_s)
{
    double seconds = now_s - rate->at_s;
    if (seconds >= 1.0) {
        double latest = (double)(server->pushes - rate->pushes) / seconds;
        server->steps_per_s += (float)((latest - (double)server->steps_per_s) * fmin(1.0, seconds / 3.0));
        *rate = (struct rate){now_s, server->pushes};
    }
}

/* Advances the job's time; true once the ps must leave. */
static bool tick(struct server *server, struct rate *rate)
{
    double now_s = clock_monotonic_s();
    bool more, over;
    do {
        server_lock(server);
        more = job_tick(&server->job, now_s);
        server_apply_step(server);
        over = job_may_exit(&server->job, now_s);
        measure(server, rate, now_s);
        server_unlock(server);
    } while (more);
    return over && !server->config->cluster.serve_forever;
}

/*
 * A signal asks it to stop. If all members are stopped at once, as schedulers do, a last checkpoint is
 * wanted, which worker 0 can't make without the ps: so they may stay until it has left (leave_secs).
 */
static bool may_leave(struct server *server, double *asked_s, double now_s)
{
    const double leave_secs = server->config->cluster.leave_secs;
    if (signals_pending() == 0) {
        return false;
    }
    server_lock(server);
    const bool chief = server->job.state == JOB_TRAINING && server->job.workers[0].connections > 0;
    server_unlock(server);
    if (*asked_s == 0.0 && chief && leave_secs > 0) {
        log_info("ps %d was asked to leave (%s) and waits up to %g s for worker 0 to leave first", server->index,
                 signals_name(signals_pending()), leave_secs);
    }
    *asked_s = *asked_s > 0.0 ? *asked_s : now_s;
    return !chief || now_s - *asked_s >= leave_secs;
}

/* Accepts connections until the job is over or a signal stops it. */
static void accept_all(struct server *server)
{
    struct rate rate = {clock_monotonic_s(), 0};
    double ticked_s = 0.0, asked_s = 0.0, warn_s = 0.0;
    bool over = false;
    while (!over && !may_leave(server, &asked_s, clock_monotonic_s()) &&
           atomic_load(&server->shutdown_mode) == SHUTDOWN_NONE) {
        listener_accept(server->listener, NULL, clock_monotonic_s() + ACCEPT_MS / 1000.0);
        notify_alive();
        if (server->observer) {
            server->observer->alive(server->observer->context);
        }
        double now_s = clock_monotonic_s();
        if (now_s - ticked_s >= ACCEPT_MS / 1000.0) {
            ticked_s = now_s;
            over = tick(server, &rate);
            coordinator_tick(server->coordinator);
            identity_warn_of_expiry(&server->identity, &warn_s);
        }
    }
}

/* --- Start and end --- */

static void create_lists(struct server *server)
{
    static const char what[] = "what is known of the workers";
    const size_t workers = (size_t)config_worker_room(&server->config->cluster);
    server->held_step = -1;
    server->stage_users = must_zero(workers, sizeof(struct session *), what);
    server->sessions_of = must_zero(workers, sizeof(struct session *), what);
    server->guests_of = must_zero(workers, sizeof(struct session *), what);
    server->finite = must_zero(workers, sizeof *server->finite, what);
    server->not_finite = must_zero(workers, sizeof *server->not_finite, what);
    server->figures = must_zero(workers, sizeof *server->figures, what);
    server->validations = must_zero(workers, sizeof *server->validations, what);
}

static void create_locks(struct server *server)
{
    pthread_mutex_init(&server->lock, NULL);
    pthread_mutex_init(&server->restoring, NULL);
    condition_create(&server->changed);
    condition_create(&server->stepped);
}

static void destroy(struct server *server)
{
    listener_destroy(server->listener);
    free(server->description);
    for (int i = 0; server->figures && i < config_worker_room(&server->config->cluster); i++) {
        free(server->figures[i].bytes);
    }
    free(server->figures);
    for (int i = 0; server->validations && i < config_worker_room(&server->config->cluster); i++) {
        free(server->validations[i].bytes);
    }
    free(server->validations);
    pthread_cond_destroy(&server->stepped);
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->restoring);
    pthread_mutex_destroy(&server->lock);
    job_destroy(&server->job);
    shard_destroy(server->shard);
    identity_destroy(&server->identity);
    free(server->not_finite);
    free(server->finite);
    free(server->stage_users);
    free(server->guests_of);
    free(server->sessions_of);
}

/* Rows and variables in words: "layer0/weights rows 0 to 391 of 784". */
static void describe_spans(const struct server *server, char *text, size_t size)
{
    const struct span *spans;
    int count = shard_spans(server->shard, &spans);
    size_t used = 0;
    snprintf(text, size, "nothing: there are more ps than rows");
    for (int i = 0; i < count; i++) {
        size_t end = spans[i].first + spans[i].count;
        for (int k = 0; k < server->model.variable_count && used < size; k++) {
            const struct variable *variable = &server->model.variables[k];
            size_t stride = (size_t)variable->stride;
            size_t variable_end = variable->offset + (size_t)variable->rows * stride;
            size_t from = spans[i].first > variable->offset ? spans[i].first : variable->offset;
            size_t to = end < variable_end ? end : variable_end;
            if (from >= to) {
                continue;
            }
            bool whole = from == variable->offset && to == variable_end;
            int written = whole ? snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", variable->name)
                                : snprintf(text + used, size - used, "%s%s rows %zu to %zu of %d", used > 0 ? ", " : "",
                                           variable->name, (from - variable->offset) / stride,
                                           (to - variable->offset) / stride - 1, variable->rows);
            used += (size_t)written;
        }
    }
}

static void announce(const struct server *server)
{
    const struct config_cluster *cluster = &server->config->cluster;
    char held[256];
    struct address bind;
    struct error error;
    describe_spans(server, held, sizeof held);
    address_parse_bind(cluster->bind, &bind, &error);
    log_info("ps %d of %d listens on port %u of %s, for %d worker%s; %s%s", server->index, cluster->ps_hosts.count,
             listener_port(server->listener), bind.host[0] != '\0' ? bind.host : "every address",
             cluster->worker_hosts.count, cluster->worker_hosts.count == 1 ? "" : "s",
             server->identity.credentials ? "TLS 1.3 with " : "INSECURE: plain text", server->identity.key_path);
    log_info("ps %d holds %s: %zu floats, %.1f MiB with %s's slots, a snapshot and every worker's push; the process "
             "takes about %.1f MiB once all workers are connected, and at most %d MiB more for what they report of "
             "their data",
             server->index, held, shard_floats(server->shard),
             (double)shard_memory(&server->model, server->config, server->index) / 1048576.0,
             config_optimizer_name(outer_train(&server->config->train).optimizer),
             (double)server_memory(&server->model, server->config, server->index, cluster->worker_hosts.count) /
                 1048576.0,
             SERVER_REPORTS >> 20);
    snprintf(held, sizeof held, "ps %d listens on port %u", server->index, listener_port(server->listener));
    notify_ready(held);
}

static bool start(struct server *server, const struct config *config, struct error *error)
{
    memset(server, 0, sizeof *server);
    server->launched = config;
    server->filled = *config;
    server->config = &server->filled;
    server->index = config->cluster.task_index;
    server->last_loss = NAN;
    create_locks(server);
    if (!identity_create(&server->identity, config, (struct member){MEMBER_PS, server->index}, error) ||
        !server_wait_for_layers(server, error)) {
        return false;
    }
    config = server->config;
    model_layout(&server->model, &config->model);
    create_lists(server);
    if (!shard_create(&server->shard, &server->model, config, server->index, error) ||
        !job_create(&server->job, config, server->index, clock_monotonic_s(), error)) {
        return false;
    }
    return server_listen(server, error);
}

/* Idle connections end at once, others when they are done, and the rest are cut after a while. */
static void close_sessions(struct server *server, const char *close_reason)
{
    server_lock(server);
    server->leaving = true;
    server->close_reason = close_reason;
    pthread_cond_broadcast(&server->stepped);
    server_unlock(server);
    listener_end(server->listener, CLOSE_S);
}

static int leave(struct server *server)
{
    char close_reason[128];
    int number = signals_pending();
    server_lock(server);
    enum job_state state = server->job.state;
    long long step = server->job.global_step;
    server_unlock(server);
    bool over = state == JOB_DONE || state == JOB_FAILED;
    const int shutdown_mode = number == 0 && !over ? atomic_load(&server->shutdown_mode) : SHUTDOWN_NONE;
    if (shutdown_mode == SHUTDOWN_RESTART) {
        snprintf(close_reason, sizeof close_reason, "ps %d restarts in another version of the config", server->index);
    } else if (shutdown_mode == SHUTDOWN_FINAL) {
        snprintf(close_reason, sizeof close_reason, "ps %d is no longer part of the job", server->index);
    } else if (number != 0 && !over) {
        snprintf(close_reason, sizeof close_reason, "ps %d was asked to leave (%s)", server->index,
                 signals_name(number));
    } else {
        snprintf(close_reason, sizeof close_reason, "the job is %s", state == JOB_FAILED ? "over: it failed" : "done");
    }
    if (shutdown_mode == SHUTDOWN_RESTART) {
        notify_restarting();
    } else {
        notify_stopping();
    }
    close_sessions(server, close_reason);
    log_info("ps %d leaves at global step %lld: %s", server->index, step, close_reason);
    if (shutdown_mode != SHUTDOWN_NONE) {
        return shutdown_mode == SHUTDOWN_RESTART ? RESTART_STATUS : COMMAND_DONE;
    }
    if (number != 0 && !over) {
        return signals_exit_status(number);
    }
    return state == JOB_FAILED ? COMMAND_FAILED : COMMAND_DONE;
}

static void serve_job(struct server *server)
{
    const struct server_observer *observer = server->observer;
    if (observer) {
        server_watch_fleet(server);
        observer->begin(observer->context, server);
    }
    accept_all(server);
    if (observer) {
        observer->end(observer->context);
        server_unwatch_fleet(server);
    }
}

/* Tells ps 0, whose log people read, which error ends this ps, if that can be done within seconds. */
static void report_failure(struct server *server, const char *reason)
{
    struct traffic traffic = {0};
    struct link link;
    struct error error;
    char message[256];
    const struct link_options options = {.peer = {MEMBER_PS, 0},
                                         .self = identity_hello_options(&server->identity),
                                         .traffic = &traffic,
                                         .timeout_s = REPORT_S,
                                         .quiet = true};
    if (server->index == 0 || server->identity.hello.incarnation == 0 ||
        !link_create(&link, server->config->cluster.ps_hosts.items[0], &options, &error)) {
        return;
    }
    snprintf(message, sizeof message, "%.255s", reason);
    const struct message_leave leave = {.message = message};
    if (link_try(&link, &error) == LINK_OPEN) {
        channel_call(&link.channel, MESSAGE_leave, &leave, MESSAGE_done, clock_monotonic_s() + REPORT_S, NULL, &error);
    }
    link_destroy(&link);
}

int server_run(const struct config *config, const struct server_observer *observer)
{
    struct server *server = must_alloc(sizeof *server, "a ps");
    struct error error;
    struct follower *follower = NULL;
    int status = COMMAND_FAILED;
    if (!config_check_role(config, &error)) {
        log_error("%s", error.text);
        free(server);
        return COMMAND_MISUSED;
    }
    signals_catch();
    if (start(server, config, &error) && coordinator_create(&server->coordinator, server, &error) &&
        follower_create(&follower, server, &error)) {
        announce(server);
        server->observer = observer;
        serve_job(server);
        status = leave(server);
        follower_destroy(follower);
    } else if (signals_pending() != 0) {
        notify_stopping();
        status = signals_exit_status(signals_pending());
    } else {
        log_error("ps %d: %s", config->cluster.task_index, error.text);
        report_failure(server, error.text);
    }
    coordinator_destroy(server->coordinator);
    destroy(server);
    free(server);
    return status;
}
