/*
 * Participation below 1 is compared with the order that seed and round give; the number of gradients with what the ps
 * was last told (replicas in records.h).
 */
#include "tests/simulate/rounds.h"

#include <math.h>
#include <stdio.h>

#include "base/config.h"
#include "base/random/sampler.h"
#include "net/channel.h"
#include "ps/job/job.h"
#include "ps/shard/internal.h"
#include "tests/simulate/records.h"
#include "tests/simulate/setup.h"
#include "tests/simulate/world.h"
#include "tests/simulate/wrap.h"

/* --- Rounds with participation below 1 --- */

/* A worker that can be selected: here, with its data loaded, and working. */
static bool is_there(const struct job_worker *worker)
{
    return worker->present && worker->ready && !worker->idle;
}

/* The number of workers there before this place, in the order in which they are selected. */
static int places_before(const struct job *job, int worker)
{
    struct sampler_order order;
    const struct sampler sampler = {
        .seed = (uint64_t)setup.seed, .task = 1 << 29, .examples = (uint32_t)job->worker_count, .batch_size = 1};
    int before = 0;
    sampler_order_make(&order, &sampler, job->global_step);
    for (uint32_t place = 0; sampler_index(&order, place) != (uint32_t)worker; place++) {
        before += is_there(&job->workers[sampler_index(&order, place)]);
    }
    return before;
}

static void check_asked(const struct job *job)
{
    int there = 0;
    for (int i = 0; i < job->worker_count; i++) {
        there += is_there(&job->workers[i]);
    }
    const double share = fmax(1, round(setup.participation * there));
    for (int i = 0; i < job->worker_count; i++) {
        const bool is_due = is_there(&job->workers[i]) && places_before(job, i) < share * setup.over_selection - 1e-6;
        if (job->asked[i] != is_due) {
            fail("worker %d, of %d who are there, is%s asked to make step %lld", i, there, job->asked[i] ? "" : " not",
                 (long long)job->global_step);
        }
    }
}

WRAP(void, job_select_workers, struct job *job, double now_s)
{
    const bool has_selected = job->has_selected;
    __real_job_select_workers(job, now_s);
    if (!has_selected && job->has_selected && setup.participation < 1) {
        check_asked(job);
    }
}

WRAP(void, job_try_decide, struct job *job, double now_s)
{
    int possible, whole;
    __real_job_try_decide(job, now_s);
    if (setup.deadline_s > 0 && job->coordinator == job->identity.index && job->state == JOB_TRAINING && job->started &&
        !job->gathered.decided && now_s - job->asked_s >= setup.deadline_s) {
        aggregation_count(&job->gathered, job->awaited, &possible, &whole);
        if (whole >= job->gathered.least) {
            fail("step %lld has %d differences, and waits for more after its time is over", (long long)job->global_step,
                 whole);
        }
    }
}

/* What a deciding ps tells a worker about rounds. */
void rounds_note_token(const struct channel *channel, int64_t token)
{
    struct ps_record *record = records_here();
    int worker = -1;
    if (token >= 0 && sscanf(connection_name(channel->connection), "worker %d", &worker) == 1 && worker >= 0 &&
        worker < WORKERS_MAX_SIMULATED && channel->generation == record->generation) {
        record->asked_for[worker] = token;
    }
}

/* --- Live keys --- */

static void settle(struct replicas *replicas, int64_t step)
{
    if (replicas->has_next && step >= replicas->step) {
        replicas->now = replicas->next;
        replicas->has_next = false;
    }
}

static int replicas_in(const struct config *config)
{
    const int wanted = config->cluster.replicas_to_aggregate;
    return wanted > 0 ? wanted : config_worker_room(&config->cluster); /* of all that are present */
}

void rounds_begin(struct ps_record *record, const struct config *config)
{
    record->replicas = (struct replicas){.now = replicas_in(config)};
}

void rounds_settle(struct ps_record *record, int64_t step)
{
    settle(&record->replicas, step);
}

WRAP(void, shard_schedule, struct shard *shard, const struct config_train *train, int64_t epoch_steps, int64_t step)
{
    say("learning rate %g from step %lld on", train->learning_rate, (long long)step);
    __real_shard_schedule(shard, train, epoch_steps, step);
}

WRAP(void, job_schedule, struct job *job, const struct config *config, int64_t step, double now_s)
{
    struct replicas *replicas = &records_here()->replicas;
    settle(replicas, job->global_step);
    *replicas = (struct replicas){replicas->now, replicas_in(config), true, step};
    say("%d gradients from step %lld on", replicas->next, (long long)step);
    __real_job_schedule(job, config, step, now_s);
}

WRAP(bool, job_take_step, struct job *job, struct job_step *step)
{
    struct replicas *replicas = &records_here()->replicas;
    const bool decides = job->coordinator == job->identity.index;
    bool done = __real_job_take_step(job, step);
    for (int i = 0; done && decides && setup.participation < 1 && i < step->count; i++) {
        if (records_here()->asked_for[step->workers[i]] != step->step) {
            fail("step %lld is made of a difference of worker %d, who was not asked for it", (long long)step->step,
                 step->workers[i]);
        }
    }
    if (done && decides) {
        settle(replicas, step->step);
        if (setup.participation >= 1 && job->gathered.wanted != replicas->now) {
            fail("step %lld is made for %d gradients, and is to be made of %d", (long long)step->step,
                 job->gathered.wanted, replicas->now);
        }
    }
    return done;
}
