/* A worker and its shards: how it comes in, what it takes of what they answer, and what makes it stop. */
#include "base/clock.h"
#include "base/log.h"
#include "base/process/signals.h"
#include "worker/remote/worker/internal.h"

void worker_stop(struct remote_worker *worker, enum end_reason end)
{
    if (worker->end == END_NOT_YET) {
        worker->end = end;
    }
}

bool worker_take_end(struct remote_worker *worker, enum push_pull_end end)
{
    struct job_news news;
    switch (end) {
    case PUSH_PULL_DONE:
        return true;
    case PUSH_PULL_REFUSED:
        worker_stop(worker, END_FAILED);
        return false;
    case PUSH_PULL_AGAIN:
    case PUSH_PULL_STOPPED:
        break;
    }
    if (live_config_end(worker->live) != LIVE_STAYS) {
        worker_stop(worker, END_PARTS);
    }
    heartbeat_news(worker->heartbeat, &news);
    if (news.refused) {
        error_set(&worker->error, "%s", news.message);
        worker_stop(worker, END_FAILED);
    }
    worker_stop(worker, signals_pending() != 0 ? END_INTERRUPTED : END_BY_OTHERS);
    return false;
}

void worker_tell_vitals(struct remote_worker *worker, enum member_state state)
{
    char message[256] = "";
    double now_s = clock_monotonic_s(), seconds = now_s - worker->since_vitals.begun_s;
    int64_t steps = worker->local_step - worker->since_vitals.local_steps;
    heartbeat_tell(worker->heartbeat,
                   &(struct vitals){.state = state,
                                    .global_step = worker->global_step,
                                    .local_step = worker->local_step,
                                    .steps_per_s = seconds > 0 ? (float)((double)steps / seconds) : 0,
                                    .loss = (float)worker->last_loss,
                                    .staleness = worker->staleness});
    if (state == STATE_TRAINING) {
        live_config_drift(worker->live, message);
        heartbeat_say(worker->heartbeat, message);
    }
    worker->since_vitals = (struct remote_tally){.begun_s = now_s, .local_steps = worker->local_step};
}

struct remote_tally worker_begin_tally(const struct remote_worker *worker)
{
    return (struct remote_tally){
        .begun_s = clock_monotonic_s(), .local_steps = worker->local_step, .global_step = worker->global_step};
}

void worker_take_answer(struct remote_worker *worker, const struct push_answer *answer)
{
    worker->global_step = answer->global_step;
    worker->staleness = answer->staleness;
    worker->dropped += answer->stale || answer->not_finite;
    if (answer->over) {
        worker_stop(worker, END_LAST_STEP);
    } else if (answer->not_finite) {
        log_warning("a gradient was refused at global step %lld: it is not finite", (long long)worker->global_step);
    }
}

enum push_pull_end worker_settle(struct remote_worker *worker)
{
    struct push_answer answer;
    int answers = 0;
    enum push_pull_end end =
        worker->pipeline ? pipeline_drain(worker->pipeline, &answer, &answers, &worker->error) : PUSH_PULL_DONE;
    if (answers > 0) {
        worker_take_answer(worker, &answer);
    }
    return end;
}

enum push_pull_end worker_refresh(struct remote_worker *worker)
{
    enum push_pull_end end = worker_settle(worker);
    end = end == PUSH_PULL_DONE ? push_pull_refresh(&worker->exchange, &worker->error) : end;
    if (end == PUSH_PULL_DONE && worker->pipeline && !pipeline_load(worker->pipeline, &worker->error)) {
        end = PUSH_PULL_REFUSED;
    }
    return end;
}

bool worker_join(struct remote_worker *worker, struct chief_start *start)
{
    heartbeat_say(worker->heartbeat, "waiting for the model");
    live_config_note_joined(worker->live, false);
    worker_settle(worker); /* whatever its end: what was under way belongs to a model that is gone */
    enum push_pull_end end;
    do { /* a ps may be lost again before all have what the chief wrote */
        if (worker->chief && !worker_take_end(worker, chief_begin(worker->chief, start, &worker->error))) {
            return false;
        }
        end = push_pull_join(&worker->exchange, &worker->error);
    } while (end == PUSH_PULL_AGAIN && signals_pending() == 0);
    if (!worker_take_end(worker, end)) {
        return false;
    }
    if (worker->pipeline && !pipeline_load(worker->pipeline, &worker->error)) {
        worker_stop(worker, END_FAILED);
        return false;
    }
    heartbeat_say(worker->heartbeat, "");
    worker->joined = true;
    live_config_note_joined(worker->live, true);
    worker->global_step = worker->exchange.global_step;
    worker->since_report = worker_begin_tally(worker);
    /* Workers share the steps, so a worker that comes late or comes back goes on about where it would stand. */
    worker->first_draw = worker->global_step / worker->config.cluster.worker_hosts.count - worker->local_step;
    worker_tell_vitals(worker, STATE_TRAINING);
    return true;
}
