/* Pushes and their answers are checked where they are sent; what a worker received, where it computes from it. */
#include "tests/simulate/exchanges.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "net/channel.h"
#include "ps/job/job.h"
#include "tests/simulate/records.h"
#include "tests/simulate/rounds.h"
#include "tests/simulate/setup.h"
#include "tests/simulate/world.h"
#include "tests/simulate/wrap.h"
#include "worker/remote/exchange/push_pull.h"

/* The last push that a worker sent to a ps. */
struct sent {
    int life, life_of_ps;
    uint32_t generation;
    struct message_push push;
};

static const struct push_pull *exchanges[WORKERS_MAX_SIMULATED]; /* through which each worker trains */
/*
 * What a step was last computed from, and in which generation of which ps 0: after all have gone generations start
 * over.
 */
static struct computed {
    uint64_t incarnation;
    uint32_t generation;
    float from[SETUP_FLOATS];
} computed[RECORDS_MAX_STEPS];
static struct sent sent[WORKERS_MAX_SIMULATED][PS_MAX_SIMULATED];

/*
 * A gradient that is sent again keeps its number, or it could not be told from the next one. (One without a loss is
 * none: a worker whose loss is not finite sends such pushes again and again.)
 */
static void check_push(const struct channel *channel, const struct message_push *push)
{
    int ps = 0, worker = world.here->number - setup.ps;
    if (sscanf(connection_name(channel->connection), "ps %d", &ps) != 1 || ps < 0 || ps >= PS_MAX_SIMULATED) {
        return;
    }
    struct sent *last = &sent[worker][ps];
    bool same = !isnan(push->loss) && last->life == world.here->life && last->life_of_ps == world.machines[ps].life &&
                last->generation == channel->generation && last->push.local_step == push->local_step &&
                last->push.base_step == push->base_step &&
                memcmp(&last->push.loss, &push->loss, sizeof push->loss) == 0;
    if (same && last->push.sequence != push->sequence) {
        fail("worker %d sends one gradient as push %llu and as %llu", worker, (unsigned long long)last->push.sequence,
             (unsigned long long)push->sequence);
    }
    *last = (struct sent){.life = world.here->life,
                          .life_of_ps = world.machines[ps].life,
                          .generation = channel->generation,
                          .push = *push};
}

static void check_answer(const struct channel *channel, const struct message_pushed *pushed)
{
    struct ps_record *record = records_here();
    int worker = -1;
    if (channel->generation != record->generation || channel->frame.generation != record->generation ||
        !record->restored || record->job->state == JOB_RESTORING || record->job->generation != record->generation) {
        return; /* the frame's generation tells the worker, and it joins again */
    }
    const int64_t made = setup.synchronous ? record->applied : record->applied / setup_pushes_of_step();
    if (pushed->global_step > record->restored_step + made) {
        fail("an answer tells of step %lld, and the shard has made %lld since %lld", (long long)pushed->global_step,
             (long long)record->applied, (long long)record->restored_step);
    }
    if (setup.synchronous || (pushed->outcome != PUSH_APPLIED && pushed->outcome != PUSH_APPLIED_BEFORE) ||
        sscanf(connection_name(channel->connection), "worker %d", &worker) != 1) {
        return;
    }
    uint64_t incarnation = record->job->workers[worker].incarnation;
    for (int i = 0; i < record->push_count; i++) {
        const struct accepted *push = &record->pushes[i];
        if (push->worker == worker && push->incarnation == incarnation && push->sequence == pushed->sequence &&
            !push->applied) {
            fail("push %llu of worker %d is answered before it is applied", (unsigned long long)pushed->sequence,
                 worker);
        }
    }
}

WRAP(bool, channel_send_frame, struct channel *channel, const struct outgoing *outgoing, double deadline_s,
     struct error *error)
{
    if (outgoing->type == MESSAGE_pushed && world.here->number < setup.ps) {
        const struct message_pushed *pushed = outgoing->message;
        rounds_note_token(channel, pushed->token);
        check_answer(channel, pushed);
    }
    if (outgoing->type == MESSAGE_values && world.here->number < setup.ps) {
        rounds_note_token(channel, ((const struct message_values *)outgoing->message)->token);
    }
    if (outgoing->type == MESSAGE_push && world.here->number >= setup.ps) {
        check_push(channel, outgoing->message);
    }
    return __real_channel_send_frame(channel, outgoing, deadline_s, error);
}

/* It computes again, perhaps the same. */
WRAP(enum exchange_result, push_pull_join, struct push_pull *exchange, struct error *error)
{
    exchanges[world.here->number - setup.ps] = exchange;
    memset(sent[world.here->number - setup.ps], 0, sizeof sent[0]);
    return __real_push_pull_join(exchange, error);
}

/* However they were received, all compute a step from the same parameters, to the bit. */
void exchanges_see(int worker, int64_t step, const float *parameters)
{
    const struct push_pull *exchange = exchanges[worker];
    if (!setup.synchronous || setup.local_steps > 1 || step < 0 || step >= RECORDS_MAX_STEPS) {
        return;
    }
    struct computed *now = &computed[step];
    const uint64_t incarnation = exchange->parts[0].link.incarnation;
    if (now->generation != exchange->generation || now->incarnation != incarnation) {
        now->generation = exchange->generation;
        now->incarnation = incarnation;
        memcpy(now->from, parameters, sizeof now->from);
    } else if (memcmp(now->from, parameters, sizeof now->from) != 0) {
        fail("worker %d computes step %lld from other parameters than another", worker, (long long)step);
    }
}
