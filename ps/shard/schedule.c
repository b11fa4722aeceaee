/* Which of two configs' live keys an update uses, by its global step. */
#include <stdlib.h>
#include <string.h>

#include "ps/shard/inside.h"

/* What was next has long been in force. Locked. */
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

void shard_schedule(struct shard *shard, const struct config_train *train, int64_t step)
{
    struct schedule *schedule = shard->schedule;
    int64_t now;
    shard_now(shard, NULL, &now);
    pthread_mutex_lock(&schedule->lock);
    settle(schedule, now);
    struct config_train *next = &schedule->next;
    *next = schedule->now;
    next->learning_rate = train->learning_rate;
    next->lr_decay = train->lr_decay;
    next->lr_decay_steps = train->lr_decay_steps > 0 ? train->lr_decay_steps : schedule->epoch_steps;
    next->lr_staircase = train->lr_staircase;
    next->momentum = train->momentum;
    next->nesterov = train->nesterov;
    next->rho = train->rho;
    next->beta1 = train->beta1;
    next->beta2 = train->beta2;
    next->epsilon = train->epsilon;
    next->l2 = train->l2;
    if (next->lr_decay_steps <= 0) { /* before anybody said how long an epoch is, nothing is trained either */
        next->lr_decay = 1.0;
    }
    schedule->step = step;
    schedule->is_set = true;
    pthread_mutex_unlock(&schedule->lock);
}

struct schedule *schedule_create(const struct config_train *train)
{
    struct schedule *schedule = calloc(1, sizeof *schedule);
    if (schedule != NULL) {
        pthread_mutex_init(&schedule->lock, NULL);
        schedule->now = *train;
    }
    return schedule;
}

void schedule_destroy(struct schedule *schedule)
{
    if (schedule != NULL) {
        pthread_mutex_destroy(&schedule->lock);
        free(schedule);
    }
}

void schedule_begin(struct schedule *schedule, const struct config_train *train, int64_t epoch_steps)
{
    pthread_mutex_lock(&schedule->lock);
    schedule->now.lr_decay_steps = train->lr_decay_steps;
    schedule->epoch_steps = epoch_steps;
    pthread_mutex_unlock(&schedule->lock);
}

void schedule_prepare(struct schedule *schedule, struct update *update, int64_t global_step)
{
    pthread_mutex_lock(&schedule->lock);
    bool next = schedule->is_set && global_step >= schedule->step;
    update_prepare(update, next ? &schedule->next : &schedule->now, global_step);
    pthread_mutex_unlock(&schedule->lock);
}
