/* The server's lock, the actions carried out on release, and how threads wait. */
#include "base/clock.h"
#include "base/condition.h"
#include "base/log.h"
#include "ps/server/internal.h"

void server_lock(struct server *server)
{
    pthread_mutex_lock(&server->lock);
}

static void for_worker(struct server *server, const struct job_action *action)
{
    for (struct session *one = server->sessions_of[action->worker]; one; one = one->next_of_worker) {
        const bool same = one->incarnation == action->incarnation;
        if (action->kind == JOB_CUT && !same) {
            listener_disconnect(&one->base);
        } else if (action->kind == JOB_PROBE && same) {
            one->ping_wanted = true;
            listener_wake(&one->base);
        }
    }
}

/* Carries out actions on workers' sessions, and returns the lines to log once the lock is released. */
static int take_actions(struct server *server, struct job_action lines[JOB_MAX_LINES + 1])
{
    struct job_action action;
    int count = 0;
    while (job_next_action(&server->job, &action)) {
        if (action.kind == JOB_LOG) {
            lines[count++] = action;
        } else {
            for_worker(server, &action);
        }
    }
    if (server->waiting > 0) {
        pthread_cond_broadcast(&server->changed);
    }
    server_rouse_held(server);
    return count;
}

void server_unlock(struct server *server)
{
    struct job_action lines[JOB_MAX_LINES + 1]; /* the last says how many were left out */
    int count = take_actions(server, lines);
    pthread_mutex_unlock(&server->lock);
    for (int i = 0; i < count; i++) {
        log_message(lines[i].level, "%s", lines[i].text);
    }
}

void server_wait(struct server *server)
{
    if (job_has_actions(&server->job)) {
        server_unlock(server);
        server_lock(server);
        return;
    }
    /* Starting to wait signals nobody: two waiters would wake each other for ever. */
    server->waiting++;
    condition_wait_for(&server->changed, &server->lock, SERVER_TICK_MS / 1000.0);
    server->waiting--;
}

bool server_keeps_step(struct server *server)
{
    struct job *job = &server->job;
    const int64_t step = job->global_step;
    if (job->state != JOB_TRAINING || !shard_must_wait(server->shard, step)) {
        server->held_step = -1;
        return false;
    }
    const double now_s = clock_monotonic_s();
    if (server->held_step != step) {
        server->held_step = step;
        server->held_since_s = now_s;
    }
    if (job->workers[0].present && job_is_current(job, 0, server->orders_of) &&
        now_s - server->held_since_s < server->config->cluster.lease_secs) {
        return true;
    }
    shard_skip_order(server->shard, step); /* the chief will ask for it and report it missing */
    server->held_step = -1;
    return false;
}

bool server_has_step(struct server *server)
{
    return !server->stepping && job_has_step(&server->job) && !server_keeps_step(server);
}
