/* What ps promise about pushes and generations; and bounds of memory. */
#include "tests/simulate/oracle.h"

#include "ps/job/job.h"
#include "ps/shard/internal.h"
#include "tests/simulate/checkpoints.h"
#include "tests/simulate/fleet.h"
#include "tests/simulate/inputs.h"
#include "tests/simulate/records.h"
#include "tests/simulate/reference.h"
#include "tests/simulate/rounds.h"
#include "tests/simulate/setup.h"
#include "tests/simulate/world.h"
#include "tests/simulate/wrap.h"

enum { MOST_BYTES = 96 << 20 };

/* --- After every event --- */

void oracle_check(const struct machine *machine)
{
    if (machine->bytes > MOST_BYTES) {
        fail("%s holds %zu bytes of memory", machine->name, machine->bytes);
    }
    if (machine->number >= setup.ps || !records[machine->number].job) {
        return;
    }
    struct ps_record *record = &records[machine->number];
    const struct job *job = record->job;
    if (job->generation != record->generation || !record->restored) {
        return;
    }
    if (job->state == JOB_RESTORING) {
        return;
    }
    if (job->global_step < record->seen_step) {
        fail("%s: the global step goes back from %lld to %lld in generation %u", machine->name,
             (long long)record->seen_step, (long long)job->global_step, job->generation);
    }
    record->seen_step = job->global_step;
    int64_t made = setup.synchronous ? record->applied : record->push_count / setup_pushes_of_step();
    if (job->global_step != record->restored_step + made &&
        !(setup.synchronous && job->global_step + 1 == record->restored_step + made)) {
        fail("%s: the global step is %lld after %lld updates since step %lld", machine->name,
             (long long)job->global_step, (long long)made, (long long)record->restored_step);
    }
    if (setup.last_step > 0 && job->global_step > setup.last_step) {
        fail("%s: global step %lld is beyond the last", machine->name, (long long)job->global_step);
    }
}

/* --- Jobs and their pushes --- */

WRAP(bool, job_create, struct job *job, const struct config *config, int ps, double now_s, struct error *error)
{
    records_begin(job);
    rounds_begin(records_here(), config);
    return __real_job_create(job, config, ps, now_s, error);
}

WRAP(void, job_destroy, struct job *job)
{
    records_here()->job = NULL;
    __real_job_destroy(job);
}

static struct accepted *find_push(struct ps_record *record, int worker, uint64_t incarnation, uint64_t sequence)
{
    for (int i = 0; i < record->push_count; i++) {
        struct accepted *push = &record->pushes[i];
        if (push->worker == worker && push->incarnation == incarnation && push->sequence == sequence) {
            return push;
        }
    }
    return NULL;
}

WRAP(void, job_push, struct job *job, int worker, uint64_t incarnation, const struct job_push *push, double now_s,
     struct verdict *verdict)
{
    struct ps_record *record = records_here();
    const int64_t step = job->global_step;
    __real_job_push(job, worker, incarnation, push, now_s, verdict);
    say("push %llu of worker %d, generation %u: code %u, outcome %d, global step %lld",
        (unsigned long long)push->sequence, worker, push->generation, verdict->code, verdict->outcome,
        (long long)job->global_step);
    if (verdict->code != 0 || verdict->outcome != PUSH_APPLIED) {
        return;
    }
    if (push->generation != record->generation || !record->restored) {
        fail("a push of generation %u is accepted in generation %u", push->generation, record->generation);
    }
    fleet_check_push(worker, incarnation);
    if (setup.buffer > 0 && (push->base_step > step || job->workers[worker].staleness != step - push->base_step)) {
        fail("a difference of step %lld, which comes at step %lld, is said to be %lld steps old",
             (long long)push->base_step, (long long)step, (long long)job->workers[worker].staleness);
    }
    if (push->generation == lineage.generation && inputs_of(worker) != lineage.preprocessing) {
        fail("a push of worker %d is accepted, whose rows become other inputs than those of generation %u", worker,
             push->generation);
    }
    if (find_push(record, worker, incarnation, push->sequence)) {
        fail("push %llu of worker %d is accepted twice", (unsigned long long)push->sequence, worker);
    }
    if (!push->finite) {
        fail("push %llu of worker %d is not finite, and accepted", (unsigned long long)push->sequence, worker);
    }
    if (record->push_count < RECORDS_MOST_PUSHES) {
        record->pushes[record->push_count++] =
            (struct accepted){.worker = worker, .incarnation = incarnation, .sequence = push->sequence};
    }
}

/* --- Generations --- */

WRAP(void, job_end_restore, struct job *job, int worker, uint32_t generation, int64_t global_step,
     int64_t epoch_batches, double now_s, struct verdict *verdict)
{
    struct ps_record *record = records_here();
    rounds_settle(record, job->global_step); /* what is in force stays so */
    __real_job_end_restore(job, worker, generation, global_step, epoch_batches, now_s, verdict);
    if (verdict->code != 0) {
        return;
    }
    say("generation %u begins at step %lld", generation, (long long)global_step);
    record->generation = generation;
    record->restored = true;
    record->restored_step = record->seen_step = global_step;
    record->applied = 0;
    record->push_count = 0;
    record->gathered = 0;
    record->weight = 0;
    record->step = global_step;
    for (int i = 0; i < WORKERS_MAX_SIMULATED; i++) {
        record->asked_for[i] = -1;
    }
    bool is_first = true; /* after all were killed, generations start from zero */
    for (int i = 0; i < setup.ps; i++) {
        const struct ps_record *other = &records[i];
        is_first = is_first && (other == record || !other->job || !other->restored || other->generation != generation ||
                                other->job->generation != generation);
        if (other->job && other->restored && other->generation == generation && other->job->generation == generation &&
            other->restored_step != global_step) {
            fail("generation %u begins at step %lld on %s, and at %lld on ps %d", generation, (long long)global_step,
                 world.here->name, (long long)other->restored_step, i);
        }
    }
    const bool is_known = global_step > 0 && global_step < RECORDS_MAX_STEPS;
    const struct saved *saved = is_known ? checkpoints_saved(global_step) : NULL;
    if (global_step >= RECORDS_MAX_STEPS || (global_step > 0 && !saved)) {
        fail("generation %u begins at step %lld, which was never saved", generation, (long long)global_step);
        return;
    }
    if (is_first) {
        setup.diverged = false;
        reference_begin(generation, global_step, saved, inputs_of(worker));
        if (saved && saved->preprocessing != lineage.preprocessing) {
            fail("step %lld goes on with other preprocessing than it was saved with", (long long)global_step);
        }
    }
}

/* --- Asynchronous pushes --- */

WRAP(bool, shard_apply, struct shard *shard, uint32_t generation, struct stage *stage, uint64_t base_version,
     enum dtype dtype, struct changes *changes)
{
    struct ps_record *record = records_here();
    int worker = -1;
    for (int i = 0; i < setup.workers; i++) {
        worker = shard_stage(shard, i) == stage ? i : worker;
    }
    bool done = __real_shard_apply(shard, generation, stage, base_version, dtype, changes);
    if (!done) {
        return false;
    }
    if (base_version > changes->version) {
        fail("a gradient of worker %d was computed on version %llu, and the shard has version %llu", worker,
             (unsigned long long)base_version, (unsigned long long)changes->version);
    }
    record->applied++;
    record->applied_s = world.now_s;
    struct accepted *push = NULL;
    for (int i = 0; i < record->push_count; i++) {
        if (record->pushes[i].worker == worker && !record->pushes[i].applied) {
            push = &record->pushes[i];
        }
    }
    if (!push) {
        fail("a gradient of worker %d is applied that was not accepted, or was applied before", worker);
    } else {
        push->applied = true;
    }
    if (changes->global_step > record->restored_step + record->push_count / setup_pushes_of_step()) {
        fail("the shard is at step %lld, and only %d pushes were accepted since step %lld",
             (long long)changes->global_step, record->push_count, (long long)record->restored_step);
    }
    return true;
}
