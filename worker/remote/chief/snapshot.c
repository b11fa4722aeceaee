/* The state of all shards, of one step: as it is now, or of a step that they were told of before. */
#include "base/clock.h"
#include "base/log.h"
#include "base/profile.h"
#include "worker/remote/chief/internal.h"
#include "worker/remote/chief/transfer.h"

enum {
    SNAPSHOT_TRIES = 6,
    SNAPSHOT_WAIT_MS = 250,  /* for a step that is about to come, or has come to some shards */
    SNAPSHOT_TIMEOUT_S = 60, /* with connections that break */
};

static const double MOMENT_S = 0.02; /* until all shards have heard of a snapshot, if nothing keeps them */
static const double LOOK_S = 0.02;   /* between two looks whether an ordered step has come */
static const double AHEAD_S = 0.3;   /* an ordered step that is so near is waited for before its order is replaced... */
static const double STALL_S = 0.1;   /* ...unless there was no step for so long */

/* The next step to save after this one; -1: none before the last, which has a checkpoint of its own. */
static int64_t next_to_save(const struct chief *chief, int64_t step)
{
    int64_t left = supervisor_steps_to_save(&chief->supervisor, step);
    return left < chief->plan.last_step - step ? step + left : -1;
}

/* Checkpoints between the last one that was ordered and this one will not be. Locked. */
static void tell_of_skipped(struct chief *chief, int64_t step)
{
    int64_t every = chief->supervisor.save_steps;
    if (chief->ordered >= 0 && step > chief->ordered + every) {
        log_warning("no checkpoint of step %lld: it was past before that of step %lld had been fetched from the ps; a "
                    "larger --save_steps leaves time for each",
                    (long long)(chief->ordered + every), (long long)chief->ordered);
    }
    chief->ordered = step;
}

void chief_order_next(struct chief *chief)
{
    struct error error;
    struct snapshot_answer answer;
    int64_t step = atomic_load(&chief->global_step);
    chief->order.number = 0;
    if (!chief->has_folder || chief->holds || next_to_save(chief, step) < 0 ||
        transfer_newest_step(&chief->shards, &step, &error) != PUSH_PULL_DONE) {
        return;
    }
    struct order order = {.number = ++chief->snapshots, .step = next_to_save(chief, step)};
    if (order.step >= 0 &&
        transfer_snapshot(&chief->shards, order.number, order.step, 0, &answer, &error) == PUSH_PULL_DONE) {
        chief->order = order;
        tell_of_skipped(chief, order.step);
    }
}

/*
 * With several shards that are not at the same step just now, one a little ahead is agreed on, or the last one, where all
 * of them stop. The last try looks once more at what is there, for training may stand still.
 */
enum push_pull_end chief_take_now(struct chief *chief, unsigned which, bool stopped, int64_t *global_step,
                                  struct error *error)
{
    enum push_pull_end end = PUSH_PULL_AGAIN;
    PROFILE("take snapshot");
    int workers = chief->options.config->cluster.worker_hosts.count;
    const double deadline_s = clock_monotonic_s() + SNAPSHOT_TIMEOUT_S;
    int64_t seen = 0;        /* on some shard: this worker may be far behind the others' steps */
    chief->order.number = 0; /* replaced on the shards */
    for (int i = 0; i < SNAPSHOT_TRIES && end == PUSH_PULL_AGAIN; i++) {
        struct snapshot_answer answer;
        bool last = i + 1 == SNAPSHOT_TRIES;
        int64_t now = atomic_load(&chief->global_step), in_a_moment = (int64_t)(chief->steps_per_s * MOMENT_S);
        int64_t ahead = (now > seen ? now : seen) + (2 + workers + in_a_moment) * i;
        ahead = ahead < chief->plan.last_step ? ahead : chief->plan.last_step;
        bool exact = i > 0 && !last;
        uint64_t number = ++chief->snapshots;
        chief->shards.broken = false;
        end = transfer_snapshot(&chief->shards, number, exact ? ahead : -1, SNAPSHOT_WAIT_MS, &answer, error);
        seen = end == PUSH_PULL_DONE && answer.global_step > seen ? answer.global_step : seen;
        if (end == PUSH_PULL_DONE && (!answer.taken || (!answer.same && !(last && stopped)))) {
            end = PUSH_PULL_AGAIN;
        } else if (end == PUSH_PULL_DONE) {
            *global_step = answer.global_step;
            end = transfer_read(&chief->shards, number, which, &chief->state, error);
        }
        if (end == PUSH_PULL_AGAIN && chief->shards.broken && clock_monotonic_s() < deadline_s) {
            i--; /* a connection that broke says nothing about the snapshot */
        }
    }
    if (!stopped) {
        chief_order_next(chief);
    }
    return end;
}

bool chief_collect_order(struct chief *chief)
{
    PROFILE("take snapshot");
    struct error error;
    struct snapshot_answer answer;
    struct order order = chief->order;
    chief->order.number = 0;
    enum push_pull_end end =
        transfer_snapshot(&chief->shards, order.number, order.step, SNAPSHOT_WAIT_MS, &answer, &error);
    if (end == PUSH_PULL_DONE && !answer.taken) {
        return false;
    }
    if (end == PUSH_PULL_DONE &&
        transfer_read(&chief->shards, order.number, ~0u, &chief->state, &error) == PUSH_PULL_DONE) {
        chief_order_next(chief); /* before this one is written: the next may come meanwhile */
        chief_save_taken(chief, order.step);
    }
    return true;
}

void chief_settle_order(struct chief *chief)
{
    struct error error;
    double now_s = clock_monotonic_s(), moved_s = now_s;
    int64_t step, before = -1;
    while (chief->order.number != 0 && now_s - moved_s < STALL_S &&
           transfer_newest_step(&chief->shards, &step, &error) == PUSH_PULL_DONE) {
        if (step >= chief->order.step) {
            chief_collect_order(chief);
            return;
        }
        if ((double)(chief->order.step - step) > 2 + AHEAD_S * chief->steps_per_s) {
            return;
        }
        moved_s = step > before ? now_s : moved_s;
        before = step;
        shard_link_pause(now_s + LOOK_S);
        now_s = clock_monotonic_s();
    }
}
