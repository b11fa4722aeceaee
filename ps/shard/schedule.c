/* Which of two configs' live keys an update uses, by its global step. */
#include <stdlib.h>
#include <string.h>

#include "base/config/keys.h"
#include "base/memory.h"
#include "ps/shard/internal.h"
#include "ps/store/rounds.h"

/* The next one has long been in force. Locked. */
static void settle(struct schedule *schedule, int64_t now)
{
    if (schedule->is_set && now >= schedule->step) {
        schedule->now = schedule->next;
        schedule->is_set = false;
    }
}

void schedule_settle(struct schedule *schedule, int64_t global_step)
{
    pthread_mutex_lock(&schedule->lock);
    settle(schedule, global_step);
    pthread_mutex_unlock(&schedule->lock);
}

void shard_schedule(struct shard *shard, const struct config_train *train, int64_t epoch_steps, int64_t step)
{
    struct schedule *schedule = shard->schedule;
    int64_t now;
    shard_now(shard, NULL, &now);
    pthread_mutex_lock(&schedule->lock);
    settle(schedule, now);
    struct terms *next = &schedule->next;
    *next = schedule->now;
    config_take_live_train(&next->train, train);
    next->epoch_steps = epoch_steps > 0 ? epoch_steps : next->epoch_steps;
    schedule->step = step;
    schedule->is_set = true;
    pthread_mutex_unlock(&schedule->lock);
}

struct schedule *schedule_create(const struct config_train *train)
{
    struct schedule *schedule = must_zero(1, sizeof *schedule, "a shard's schedule");
    pthread_mutex_init(&schedule->lock, NULL);
    schedule->now.train = *train;
    return schedule;
}

void schedule_set_retries(struct schedule *schedule, int retries)
{
    pthread_mutex_lock(&schedule->lock);
    schedule->now.train.retries = retries;
    pthread_mutex_unlock(&schedule->lock);
}

int schedule_retries(struct schedule *schedule)
{
    pthread_mutex_lock(&schedule->lock);
    const int retries = schedule->now.train.retries;
    pthread_mutex_unlock(&schedule->lock);
    return retries;
}

void schedule_destroy(struct schedule *schedule)
{
    if (schedule) {
        pthread_mutex_destroy(&schedule->lock);
        free(schedule);
    }
}

bool schedule_begin(struct schedule *schedule, int64_t epoch_steps)
{
    pthread_mutex_lock(&schedule->lock);
    schedule->now.epoch_steps = epoch_steps;
    const struct config_train train = outer_train(&schedule->now.train);
    bool known = train.lr_decay == 1.0 || train.lr_decay_steps > 0 || epoch_steps > 0;
    pthread_mutex_unlock(&schedule->lock);
    return known;
}

void schedule_prepare(struct schedule *schedule, struct update updates[UPDATE_KINDS], int64_t global_step)
{
    pthread_mutex_lock(&schedule->lock);
    struct terms terms = schedule->is_set && global_step >= schedule->step ? schedule->next : schedule->now;
    pthread_mutex_unlock(&schedule->lock);
    struct config_train outer = outer_train(&terms.train), *train = &outer;
    if (train->lr_decay_steps == 0 && terms.epoch_steps > 0) {
        train->lr_decay_steps = terms.epoch_steps;
    } else if (train->lr_decay_steps == 0) {
        train->lr_decay = 1.0;
    }
    updates_prepare(updates, train, global_step);
}
