/*
 * What is checked, and where: the calls between the program's own parts are intercepted (--wrap), and their promises
 * are tracked here.
 *
 *  - a push is accepted once, applied once, and not answered as applied before it is (job_push, shard_apply,
 *    channel_send_frame);
 *  - a gradient has one number, however often it is sent, and was computed on what that very shard had;
 *  - within a generation no ps's global step goes back, and it is the restored step plus what was accepted since;
 *  - all shards of a generation were restored at one step, and make each synchronous step of the same set of gradients;
 *  - what is saved is one step's state: every row counts as many gradients as the step says, and with synchronous
 *    training all bits are those of one process that adds the sets up in the order of the workers' indexes;
 *  - a step has one learning rate on all shards, and no state that violates this is saved; exactly from its step on, a
 *    synchronous step takes as many gradients as a rollout says;
 *  - a checkpoint that was reported written is there after any crash, unless the disk broke its promises; what a chief
 *    restores is what was saved, bit for bit;
 *  - all gradients of a generation come from rows with the same preprocessing, its checkpoints contain it, and a
 *    process that restores one continues with it;
 *  - a round with participation below 1 selects as many workers as it should, of those present, in the order given by
 *    seed and round; it consists of differences of selected workers, and after its deadline it waits for nobody;
 *  - in asynchronous rounds every few differences make a step, on each ps in their order of arrival: what is saved has
 *    the bits of one process that adds them up in that order, by examples and staleness; each is of a model that this
 *    very ps has had, and what waits for a step is discarded with its generation;
 *  - in synchronous training all workers compute a step from the same parameters, to the bit, in whatever form sent;
 *  - each worker's validation of a step is added up once, and is of the model of that step;
 *  - memory and threads stay within bounds, and a process that ends in order has freed all of it.
 */
#include "tests/simulate/oracle.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "net/channel.h"
#include "ps/checkpoint/folder.h"
#include "ps/job/job.h"
#include "ps/shard/internal.h"
#include "tests/simulate/fleet.h"
#include "tests/simulate/world.h"
#include "worker/data/table/schema.h"
#include "worker/remote/exchange/preprocessing.h"
#include "worker/remote/exchange/push_pull.h"
#include "worker/report.h"
#include "base/random/sampler.h"

enum { MOST_PUSHES = 8192, FLOATS = (ORACLE_ROWS + 1) * 16, MOST_BYTES = 96 << 20 };

struct oracle oracle;

/* A push that a ps accepted. */
struct accepted {
    int worker;
    uint64_t incarnation, sequence;
    bool applied;
};

/* What a ps was told to aggregate. */
struct replicas {
    int now, next;
    bool has_next;
    int64_t step; /* from which it is the next */
};

/* What a ps has done in its present generation. */
struct ps_record {
    struct job *job; /* NULL: it is not running */
    struct replicas replicas;
    struct shard *shard;
    uint32_t generation;
    bool restored;
    int64_t restored_step, seen_step, applied;
    double applied_s;
    struct accepted pushes[MOST_PUSHES];
    int push_count;
    int waiting_for_apply;                    /* accepted, and not yet applied */
    int64_t asked_for[WORKERS_MAX_SIMULATED]; /* the last round for which a worker knows it is selected; -1: none */
    float mean[FLOATS]; /* asynchronous rounds: of `gathered` differences, whose total weight is `weight` */
    int gathered;
    double weight;
    int64_t step; /* for which they wait */
};

/* The run as one process would compute it. */
struct reference {
    uint32_t generation;
    int64_t first_step, step;
    float parameters[ORACLE_MAX_STEPS][FLOATS]; /* at each step */
    bool sets[ORACLE_MAX_STEPS][WORKERS_MAX_SIMULATED];
};

/* The present generation's learning rates. */
struct lineage {
    uint32_t generation;
    int64_t first_step, end_step;
    double base;                   /* the sum of each row at the first step */
    double rate[ORACLE_MAX_STEPS]; /* of the steps from first_step to end_step */
    uint64_t preprocessing;        /* a hash of it; 0: images */
    bool mixed; /* two shards made a step at different rates: allowed if it is undone and never saved */
};

static struct ps_record records[8];
static struct lineage lineage;
/* The last push that a worker sent to a ps. */
struct sent {
    int life, life_of_ps;
    uint32_t generation;
    struct message_push push;
};

static struct reference reference;
static const struct push_pull *exchanges[WORKERS_MAX_SIMULATED]; /* through which each worker trains */
/*
 * What a step was last computed from, and in which generation of which ps 0: after all have gone generations start
 * over.
 */
static struct computed {
    uint64_t incarnation;
    uint32_t generation;
    float from[FLOATS];
} computed[ORACLE_MAX_STEPS];
static struct sent sent[WORKERS_MAX_SIMULATED][8];
static float saved[ORACLE_MAX_STEPS][FLOATS];
static double saved_sum[ORACLE_MAX_STEPS]; /* the sum of each row */
static bool is_saved[ORACLE_MAX_STEPS];
/* Preprocessing, as a hash of its text: each worker's, and that of what was saved. 0: none. */
static uint64_t goes_by[WORKERS_MAX_SIMULATED], saved_with[ORACLE_MAX_STEPS];
static int64_t written_step; /* the newest checkpoint that was reported written; -1: none */
static int64_t found_step;   /* the newest one that a chief found at its start; -1: none */
static int64_t lost_step;    /* the newest one that the disk has lost since then; -1: none */
static double held_s;        /* the shortest time for which training was held for a checkpoint in vain, in leases */

/* Everything but the pushes, of which there are none yet: runs are many, and the list is long. */
static void begin_record(struct ps_record *record, struct job *job)
{
    record->job = job;
    record->shard = NULL;
    record->generation = 0;
    record->restored = false;
    record->restored_step = record->seen_step = record->applied = 0;
    record->push_count = record->waiting_for_apply = 0;
}

bool oracle_is_mixed(void)
{
    return lineage.mixed;
}

const struct job *oracle_job(int ps)
{
    return records[ps].job;
}

void oracle_begin(void)
{
    assert(written_step == 0 && computed[0].generation == 0); /* no cluster has run in this process */
    written_step = found_step = lost_step = -1;
    held_s = INFINITY;
}

void oracle_forget(const struct machine *machine)
{
    if (machine->number < oracle.ps) {
        records[machine->number].job = NULL;
        records[machine->number].shard = NULL;
    }
}

void oracle_lose(int64_t newest_step)
{
    const int64_t last = written_step > found_step ? written_step : found_step;
    lost_step = last > lost_step ? last : lost_step;
    written_step = written_step < newest_step ? written_step : newest_step;
    found_step = found_step < newest_step ? found_step : newest_step;
}

static struct ps_record *record_here(void)
{
    return &records[world.here->number];
}

/* Asynchronous. */
static int pushes_of_step(void)
{
    return oracle.buffer > 0 ? oracle.buffer : 1;
}

/* --- After every event --- */

void oracle_check(const struct machine *machine)
{
    if (machine->bytes > MOST_BYTES) {
        fail("%s holds %zu bytes of memory", machine->name, machine->bytes);
    }
    if (machine->number >= oracle.ps || !records[machine->number].job) {
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
    int64_t made = oracle.synchronous ? record->applied : record->push_count / pushes_of_step();
    if (job->global_step != record->restored_step + made &&
        !(oracle.synchronous && job->global_step + 1 == record->restored_step + made)) {
        fail("%s: the global step is %lld after %lld updates since step %lld", machine->name,
             (long long)job->global_step, (long long)made, (long long)record->restored_step);
    }
    if (oracle.last_step > 0 && job->global_step > oracle.last_step) {
        fail("%s: global step %lld is beyond the last", machine->name, (long long)job->global_step);
    }
}

/* --- The job --- */

#define WRAP(type, name, ...)                                                                                          \
    type __real_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__)

/* --- Preprocessing --- */

static uint64_t hash_of(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
    for (; text && *text != '\0'; text++) {
        hash = (hash ^ (uint8_t)*text) * 0x100000001b3;
    }
    return text ? hash : 0;
}

static enum exchange_result note_agreed(enum exchange_result end, const struct dataset *dataset,
                                        const struct error *error)
{
    if (end == EXCHANGE_OK) {
        goes_by[world.here->number - oracle.ps] = dataset->schema ? hash_of(dataset->schema->text) : 0;
    } else {
        say("no agreement on preprocessing: %s", error->text);
    }
    return end;
}

WRAP(enum exchange_result, preprocessing_tell, struct push_pull *exchange, const struct dataset *dataset,
     struct error *error)
{
    return note_agreed(__real_preprocessing_tell(exchange, dataset, error), dataset, error);
}

WRAP(enum exchange_result, preprocessing_agree, struct push_pull *exchange, const struct dataset *dataset,
     bool *differs, struct error *error)
{
    return note_agreed(__real_preprocessing_agree(exchange, dataset, differs, error), dataset, error);
}

static void settle_replicas(struct replicas *replicas, int64_t step)
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

WRAP(bool, job_create, struct job *job, const struct config *config, int ps, double now_s, struct error *error)
{
    begin_record(record_here(), job);
    record_here()->replicas = (struct replicas){.now = replicas_in(config)};
    return __real_job_create(job, config, ps, now_s, error);
}

WRAP(void, job_destroy, struct job *job)
{
    record_here()->job = NULL;
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
    struct ps_record *record = record_here();
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
    if (oracle.buffer > 0 && (push->base_step > step || job->workers[worker].staleness != step - push->base_step)) {
        fail("a difference of step %lld, which comes at step %lld, is said to be %lld steps old",
             (long long)push->base_step, (long long)step, (long long)job->workers[worker].staleness);
    }
    if (push->generation == lineage.generation && goes_by[worker] != lineage.preprocessing) {
        fail("a push of worker %d is accepted, whose rows become other inputs than those of generation %u", worker,
             push->generation);
    }
    if (find_push(record, worker, incarnation, push->sequence)) {
        fail("push %llu of worker %d is accepted twice", (unsigned long long)push->sequence, worker);
    }
    if (!push->finite) {
        fail("push %llu of worker %d is not finite, and accepted", (unsigned long long)push->sequence, worker);
    }
    if (record->push_count < MOST_PUSHES) {
        record->pushes[record->push_count++] =
            (struct accepted){.worker = worker, .incarnation = incarnation, .sequence = push->sequence};
    }
}

WRAP(void, job_end_restore, struct job *job, int worker, uint32_t generation, int64_t global_step,
     int64_t epoch_batches, double now_s, struct verdict *verdict)
{
    struct ps_record *record = record_here();
    settle_replicas(&record->replicas, job->global_step); /* what is in force stays so */
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
    for (int i = 0; i < oracle.ps; i++) {
        const struct ps_record *other = &records[i];
        is_first = is_first && (other == record || !other->job || !other->restored || other->generation != generation ||
                                other->job->generation != generation);
        if (other->job && other->restored && other->generation == generation && other->job->generation == generation &&
            other->restored_step != global_step) {
            fail("generation %u begins at step %lld on %s, and at %lld on ps %d", generation, (long long)global_step,
                 world.here->name, (long long)other->restored_step, i);
        }
    }
    if (global_step >= ORACLE_MAX_STEPS || (global_step > 0 && !is_saved[global_step])) {
        fail("generation %u begins at step %lld, which was never saved", generation, (long long)global_step);
        return;
    }
    if (is_first) {
        oracle.diverged = false;
        lineage.generation = generation;
        lineage.first_step = lineage.end_step = global_step;
        lineage.base = global_step > 0 ? saved_sum[global_step] : 0;
        lineage.mixed = false;
        lineage.preprocessing = goes_by[worker];
        if (global_step > 0 && saved_with[global_step] != lineage.preprocessing) {
            fail("step %lld goes on with other preprocessing than it was saved with", (long long)global_step);
        }
        reference.generation = generation;
        reference.first_step = reference.step = global_step;
        if (global_step > 0) {
            memcpy(reference.parameters[global_step], saved[global_step], sizeof saved[0]);
        } else {
            memset(reference.parameters[0], 0, sizeof saved[0]);
        }
    }
}

/* --- Rounds with participation below 1 --- */

/* The number of workers present before this place, in the order in which they are selected. */
static int places_before(const struct job *job, int worker)
{
    struct sampler_order order;
    const struct sampler sampler = {
        .seed = (uint64_t)oracle.seed, .task = 1 << 29, .examples = (uint32_t)job->worker_count, .batch_size = 1};
    int before = 0;
    sampler_order_make(&order, &sampler, job->global_step);
    for (uint32_t place = 0; sampler_index(&order, place) != (uint32_t)worker; place++) {
        before += job->workers[sampler_index(&order, place)].present;
    }
    return before;
}

static void check_asked(const struct job *job)
{
    int there = 0;
    for (int i = 0; i < job->worker_count; i++) {
        there += job->workers[i].present;
    }
    const double share = fmax(1, round(oracle.participation * there));
    for (int i = 0; i < job->worker_count; i++) {
        const bool is_due = job->workers[i].present && places_before(job, i) < share * oracle.over_selection - 1e-6;
        if (job->asked[i] != is_due) {
            fail("worker %d, of %d who are there, is%s asked to make step %lld", i, there, job->asked[i] ? "" : " not",
                 (long long)job->global_step);
        }
    }
}

WRAP(void, job_ask, struct job *job, double now_s)
{
    const bool has_asked = job->has_asked;
    __real_job_ask(job, now_s);
    if (!has_asked && job->has_asked && oracle.participation < 1) {
        check_asked(job);
    }
}

WRAP(void, job_consider, struct job *job, double now_s)
{
    int possible, whole;
    __real_job_consider(job, now_s);
    if (oracle.deadline_s > 0 && job->coordinator == job->identity.index && job->state == JOB_TRAINING &&
        job->started && !job->gathered.decided && now_s - job->asked_s >= oracle.deadline_s) {
        aggregation_count(&job->gathered, job->awaited, &possible, &whole);
        if (whole >= job->gathered.least) {
            fail("step %lld has %d differences, and waits for more after its time is over", (long long)job->global_step,
                 whole);
        }
    }
}

/* What a deciding ps tells a worker about rounds. */
static void note_token(const struct channel *channel, int64_t token)
{
    struct ps_record *record = record_here();
    int worker = -1;
    if (token >= 0 && sscanf(connection_name(channel->connection), "worker %d", &worker) == 1 && worker >= 0 &&
        worker < WORKERS_MAX_SIMULATED && channel->generation == record->generation) {
        record->asked_for[worker] = token;
    }
}

/* --- Live keys --- */

WRAP(void, shard_schedule, struct shard *shard, const struct config_train *train, int64_t epoch_steps, int64_t step)
{
    say("learning rate %g from step %lld on", train->learning_rate, (long long)step);
    __real_shard_schedule(shard, train, epoch_steps, step);
}

WRAP(void, job_schedule, struct job *job, const struct config *config, int64_t step, double now_s)
{
    struct replicas *replicas = &record_here()->replicas;
    settle_replicas(replicas, job->global_step);
    *replicas = (struct replicas){replicas->now, replicas_in(config), true, step};
    say("%d gradients from step %lld on", replicas->next, (long long)step);
    __real_job_schedule(job, config, step, now_s);
}

WRAP(bool, job_take_step, struct job *job, struct job_step *step)
{
    struct replicas *replicas = &record_here()->replicas;
    const bool decides = job->coordinator == job->identity.index;
    bool done = __real_job_take_step(job, step);
    for (int i = 0; done && decides && oracle.participation < 1 && i < step->count; i++) {
        if (record_here()->asked_for[step->workers[i]] != step->step) {
            fail("step %lld is made of a difference of worker %d, who was not asked for it", (long long)step->step,
                 step->workers[i]);
        }
    }
    if (done && decides) {
        settle_replicas(replicas, step->step);
        if (oracle.participation >= 1 && job->gathered.wanted != replicas->now) {
            fail("step %lld is made for %d gradients, and is to be made of %d", (long long)step->step,
                 job->gathered.wanted, replicas->now);
        }
    }
    return done;
}

WRAP(void, schedule_prepare, struct schedule *schedule, struct update *update, int64_t global_step)
{
    __real_schedule_prepare(schedule, update, global_step);
    const double rate = (double)update->learning_rate;
    const struct ps_record *record = record_here();
    if (!record->restored || record->generation != lineage.generation || global_step >= ORACLE_MAX_STEPS) {
        return;
    }
    oracle.diverged = oracle.diverged || rate >= ORACLE_BAD_RATE;
    if (global_step >= lineage.end_step) {
        for (; lineage.end_step <= global_step; lineage.end_step++) {
            lineage.rate[lineage.end_step] = lineage.end_step < global_step ? NAN : rate; /* NAN: not seen yet */
        }
    } else if (isnan(lineage.rate[global_step])) {
        lineage.rate[global_step] = rate;
    } else if (rate < lineage.rate[global_step] || rate > lineage.rate[global_step]) {
        say("step %lld is made at learning rate %g, and was made at %g elsewhere", (long long)global_step, rate,
            lineage.rate[global_step]);
        lineage.mixed = true;
    }
}

/* --- Asynchronous pushes --- */

WRAP(bool, shard_create, struct shard **shard, const struct model *model, const struct config *config, int ps,
     struct error *error)
{
    bool done = __real_shard_create(shard, model, config, ps, error);
    record_here()->shard = *shard;
    return done;
}

WRAP(bool, shard_apply, struct shard *shard, uint32_t generation, struct stage *stage, uint64_t base_version,
     enum dtype dtype, struct changes *changes)
{
    struct ps_record *record = record_here();
    int worker = -1;
    for (int i = 0; i < oracle.workers; i++) {
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
    if (changes->global_step > record->restored_step + record->push_count / pushes_of_step()) {
        fail("the shard is at step %lld, and only %d pushes were accepted since step %lld",
             (long long)changes->global_step, record->push_count, (long long)record->restored_step);
    }
    return true;
}

/* --- Asynchronous rounds --- */

static void make_step(struct ps_record *record, const struct shard_block *block)
{
    for (size_t at = block->first; at < block->first + block_extent(block); at++) {
        reference.parameters[record->step + 1][at] = reference.parameters[record->step][at] - record->mean[at];
    }
}

/* Adds one more difference, float by float, to the mean of those gathered; the last of them makes a step of it. */
static void gather(struct ps_record *record, const struct shard *shard, const struct stage *stage, int worker)
{
    const double own = oracle_examples(worker), all = record->weight + own;
    const float keep = (float)(record->weight / all), add = (float)(own / all / sqrt(1.0 + stage->staleness));
    const bool is_last = record->gathered + 1 == oracle.buffer;
    for (size_t i = 0; i < shard->block_count; i++) {
        const struct shard_block *block = &shard->blocks[i];
        for (size_t k = 0; k < block_extent(block); k++) {
            const float value = stage->present[i] ? stage->values[block->local + k] : 0;
            float *mean = &record->mean[block->first + k];
            *mean = record->gathered > 0 ? keep * *mean + add * value : add * value;
        }
        if (is_last && record->step + 1 < ORACLE_MAX_STEPS) {
            make_step(record, block);
        }
    }
    record->gathered = is_last ? 0 : record->gathered + 1;
    record->weight = is_last ? 0 : all;
    record->step += is_last;
    reference.step = record->step > reference.step ? record->step : reference.step;
}

/* In the order in which shards apply them, with the first stripe locked. */
WRAP(struct buffer_turn, buffer_take, struct shard *shard, const struct stage *stage)
{
    struct ps_record *record = record_here();
    const struct buffer_turn turn = __real_buffer_take(shard, stage);
    if (oracle.buffer > 0 && shard->generation == reference.generation && shard->generation == record->generation) {
        if (turn.makes_step != (record->gathered + 1 == oracle.buffer)) {
            fail("difference %d of step %lld %s the step, which is to be made of %d", record->gathered + 1,
                 (long long)record->step, turn.makes_step ? "makes" : "does not make", oracle.buffer);
        }
        gather(record, shard, stage, (int)(stage - shard->stages));
    }
    return turn;
}

/* --- Sends and answers --- */

/*
 * A gradient that is sent again keeps its number, or it could not be told from the next one. (One without a loss is
 * none: a worker whose loss is not finite sends such pushes again and again.)
 */
static void check_push(const struct channel *channel, const struct message_push *push)
{
    int ps = 0, worker = world.here->number - oracle.ps;
    if (sscanf(connection_name(channel->connection), "ps %d", &ps) != 1 || ps < 0 || ps >= 8) {
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
    struct ps_record *record = record_here();
    int worker = -1;
    if (channel->generation != record->generation || channel->frame.generation != record->generation ||
        !record->restored || record->job->state == JOB_RESTORING || record->job->generation != record->generation) {
        return; /* the frame's generation tells the worker, and it joins again */
    }
    const int64_t made = oracle.synchronous ? record->applied : record->applied / pushes_of_step();
    if (pushed->global_step > record->restored_step + made) {
        fail("an answer tells of step %lld, and the shard has made %lld since %lld", (long long)pushed->global_step,
             (long long)record->applied, (long long)record->restored_step);
    }
    if (oracle.synchronous || (pushed->outcome != PUSH_APPLIED && pushed->outcome != PUSH_APPLIED_BEFORE) ||
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
    if (outgoing->type == MESSAGE_pushed && world.here->number < oracle.ps) {
        const struct message_pushed *pushed = outgoing->message;
        note_token(channel, pushed->token);
        check_answer(channel, pushed);
    }
    if (outgoing->type == MESSAGE_values && world.here->number < oracle.ps) {
        note_token(channel, ((const struct message_values *)outgoing->message)->token);
    }
    if (outgoing->type == MESSAGE_push && world.here->number >= oracle.ps) {
        check_push(channel, outgoing->message);
    }
    return __real_channel_send_frame(channel, outgoing, deadline_s, error);
}

/* It computes again, perhaps the same. */
WRAP(enum exchange_result, push_pull_join, struct push_pull *exchange, struct error *error)
{
    exchanges[world.here->number - oracle.ps] = exchange;
    memset(sent[world.here->number - oracle.ps], 0, sizeof sent[0]);
    return __real_push_pull_join(exchange, error);
}

/* However they were received, all compute a step from the same parameters, to the bit. */
void oracle_sees(int worker, int64_t step, const float *parameters)
{
    const struct push_pull *exchange = exchanges[worker];
    if (!oracle.synchronous || oracle.local_steps > 1 || step < 0 || step >= ORACLE_MAX_STEPS) {
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

/* --- Synchronous steps --- */

/* A worker's push for a bias: a gradient, or what its own steps subtract from it (at learning rate 1). */
static float pushed_mix(float before, int worker, int col)
{
    float now = before, mixed = 0;
    const struct sampler sampler = {.seed = (uint64_t)oracle.seed,
                                    .task = (uint32_t)worker,
                                    .examples = (uint32_t)oracle_examples(worker),
                                    .batch_size = 1};
    for (int i = 0; i < oracle.local_steps; i++) {
        int32_t index;
        sampler_draw(&sampler, reference.step * oracle.local_steps + i, &index);
        mixed = engine_mix(now, worker, index, col);
        now -= mixed;
    }
    return oracle.local_steps > 1 ? before - now : mixed;
}

/* The same for a weight, whose gradient counts its worker's. */
static float pushed_count(float before, int worker, int col)
{
    const float gradient = worker % ORACLE_COLUMNS == col ? -1.0f : 0.0f;
    float now = before;
    for (int i = 0; i < oracle.local_steps; i++) {
        now -= gradient;
    }
    return oracle.local_steps > 1 ? before - now : gradient;
}

/* The weight of each in the set: equal, or by its examples. */
static void weigh(const int *workers, int count, float *weights)
{
    double all = 0;
    for (int i = 0; i < count; i++) {
        all += oracle_examples(workers[i]);
    }
    for (int i = 0; i < count; i++) {
        weights[i] = oracle.local_steps > 1 ? (float)(oracle_examples(workers[i]) / all) : 1.0f / (float)count;
    }
}

/* One step of the single process: the mean of the set's gradients, in the order of the workers' indexes. */
static void step_reference(const int *workers, int count)
{
    float parts[WORKERS_MAX_SIMULATED];
    const float *before = reference.parameters[reference.step];
    float *after = reference.parameters[reference.step + 1];
    const float rate = (float)lineage.rate[reference.step];
    memcpy(after, before, sizeof saved[0]);
    weigh(workers, count, parts);
    for (int col = 0; col < ORACLE_COLUMNS; col++) {
        float mixed = 0, counted = 0;
        for (int i = 0; i < count; i++) {
            float gradient = pushed_mix(before[ORACLE_ROWS * 16 + col], workers[i], col) * parts[i];
            float count_of_it = pushed_count(before[col], workers[i], col) * parts[i];
            mixed = i == 0 ? gradient : mixed + gradient;
            counted = i == 0 ? count_of_it : counted + count_of_it;
        }
        after[ORACLE_ROWS * 16 + col] -= rate * mixed;
        for (int row = 0; row < ORACLE_ROWS; row++) {
            after[row * 16 + col] -= rate * counted;
        }
    }
    reference.step++;
}

static void note_set(int64_t step, const int *workers, int count)
{
    bool set[WORKERS_MAX_SIMULATED] = {false};
    for (int i = 0; i < count; i++) {
        if (set[workers[i]] || (i > 0 && workers[i] < workers[i - 1])) {
            fail("step %lld counts worker %d twice, or in the wrong order", (long long)step, workers[i]);
        }
        set[workers[i]] = true;
    }
    if (step == reference.step && step + 1 < ORACLE_MAX_STEPS) {
        memcpy(reference.sets[step], set, sizeof set);
        step_reference(workers, count);
    } else if (step > reference.step) {
        fail("%s makes step %lld, and nobody made step %lld", world.here->name, (long long)step,
             (long long)reference.step);
    } else if (memcmp(reference.sets[step], set, sizeof set) != 0) {
        fail("%s makes step %lld of another set of gradients than another ps", world.here->name, (long long)step);
    }
}

WRAP(bool, shard_aggregate, struct shard *shard, uint32_t generation, const int *workers, int count)
{
    struct ps_record *record = record_here();
    int64_t step;
    shard_now(shard, NULL, &step);
    bool done = __real_shard_aggregate(shard, generation, workers, count);
    if (done) {
        say("step %lld of generation %u is made of %d gradients, worker %d's the first", (long long)step, generation,
            count, count > 0 ? workers[0] : -1);
        if (generation == reference.generation) {
            note_set(step, workers, count);
        }
        record->applied++;
        record->applied_s = world.now_s;
    }
    return done;
}

/* --- Checkpoints --- */

/* The sum of every row at a step: each step has added its rate. */
static double sum_at(int64_t step)
{
    double sum = lineage.base;
    for (int64_t i = lineage.first_step; i < step; i++) {
        sum += i < lineage.end_step ? lineage.rate[i] * oracle.local_steps : NAN;
    }
    return sum;
}

static void check_state(const float *parameters, int64_t step)
{
    const double expected = step < ORACLE_MAX_STEPS ? sum_at(step) : (double)step;
    if (lineage.mixed) {
        fail("the checkpoint of step %lld is of a state whose steps had not one learning rate on all shards",
             (long long)step);
        return;
    }
    for (int row = 0; oracle.buffer == 0 && row < ORACLE_ROWS; row++) { /* stale differences count less */
        double sum = 0;
        for (int col = 0; col < ORACLE_COLUMNS; col++) {
            sum += (double)parameters[row * 16 + col];
        }
        if (!(fabs(sum - expected) <= 1e-3 + 1e-5 * expected)) {
            fail("the checkpoint of step %lld holds %.4f gradients in row %d, and not %.4f", (long long)step, sum, row,
                 expected);
            return;
        }
    }
    bool is_known = (oracle.synchronous || oracle.buffer > 0) && step >= reference.first_step && step <= reference.step;
    for (int i = 0; is_known && i < FLOATS; i++) { /* compared as numbers: weights may begin as -0 */
        if (parameters[i] < reference.parameters[step][i] || parameters[i] > reference.parameters[step][i]) {
            fail("float %d of the checkpoint of step %lld is %.9g, and %.9g where one process computes it", i,
                 (long long)step, (double)parameters[i], (double)reference.parameters[step][i]);
            return;
        }
    }
}

/* By the rows that each worker holds out. */
static int rights_of(int worker, int64_t step)
{
    int count = 0;
    for (int i = 0; i < oracle_held_out(worker); i++) {
        count += oracle_is_right(worker, step, i);
    }
    return count;
}

WRAP(void, report_validation, const struct report_validation *validation)
{
    const struct validators *validators = validation->validators;
    const int64_t step = validation->global_step;
    unsigned seen = 0;
    int rows = 0, rights = 0;
    for (int i = 0; i < validators->count; i++) {
        const struct worker_score *each = &validators->scores[i];
        const int held_out = oracle_held_out(each->worker);
        if ((seen & 1U << each->worker) != 0) {
            fail("worker %d counts twice in the validation of step %lld", each->worker, (long long)step);
        }
        if (each->examples != held_out ||
            (held_out > 0 && fabs(each->score - (double)rights_of(each->worker, step) / held_out) > 1e-6)) {
            fail("worker %d is said to be right about %g of %lld at step %lld", each->worker, each->score,
                 (long long)each->examples, (long long)step);
        }
        seen |= 1U << each->worker;
        rows += held_out;
        rights += rights_of(each->worker, step);
    }
    if (validators->count > 0 &&
        (validation->evaluation->images != rows || validation->evaluation->correct != rights)) {
        fail("the validation of step %lld adds up to %lld of %lld, not %d of %d", (long long)step,
             (long long)validation->evaluation->correct, (long long)validation->evaluation->images, rights, rows);
    }
    say("step %lld is validated by %d workers, %d are missing", (long long)step, validators->count,
        validators->missing);
    __real_report_validation(validation);
}

WRAP(bool, checkpoint_folder_save, struct checkpoint_folder *folder, int targets, const struct checkpoint_state *state,
     const struct checkpoint_info *info, struct error *error)
{
    const float *parameters = state->vectors[STORE_PARAMETERS];
    int64_t step = info->global_step;
    check_state(parameters, step);
    if (step < ORACLE_MAX_STEPS) { /* it may be found after a crash, even if it was not reported */
        memcpy(saved[step], parameters, sizeof saved[0]);
        saved_sum[step] = sum_at(step);
        is_saved[step] = true;
        saved_with[step] = hash_of(info->preprocessing);
    }
    if (hash_of(info->preprocessing) != lineage.preprocessing) {
        fail("the checkpoint of step %lld says other preprocessing than its steps were made with", (long long)step);
    }
    bool done = __real_checkpoint_folder_save(folder, targets, state, info, error);
    say("checkpoint of step %lld: %s", (long long)step, done ? "written" : error->text);
    if (done && (targets & ~CHECKPOINT_BEST) != 0) { /* a chief does not continue from the best one */
        written_step = step;
    }
    return done;
}

WRAP(bool, checkpoint_folder_newest, struct checkpoint_folder *folder, struct checkpoint_file **file,
     struct error *error)
{
    const uint64_t failed = shortage.failed;
    bool done = __real_checkpoint_folder_newest(folder, file, error);
    int64_t step = done && *file ? checkpoint_file_info(*file)->global_step : -1;
    say("the newest checkpoint is of step %lld", (long long)step);
    if (!done && oracle.rotten) {
        return false;
    }
    if (shortage.failed > failed) { /* a checkpoint that can't be read at the moment is skipped, or an error */
        return done;
    }
    if (step < written_step) {
        fail("the checkpoint of step %lld was reported written, and is gone: the newest is of step %lld%s%s",
             (long long)written_step, (long long)step, done ? "" : "; ", done ? "" : error->text);
    }
    found_step = step; /* written, and the machine died before it could report it */
    lost_step = -1;
    return done;
}

WRAP(bool, checkpoint_load, struct checkpoint_file *file, struct checkpoint_state *state, struct error *error)
{
    bool done = __real_checkpoint_load(file, state, error);
    const int64_t step = checkpoint_file_info(file)->global_step;
    if (!done) {
        return false;
    }
    if (step >= ORACLE_MAX_STEPS) {
        fail("step %lld is more than ORACLE_MAX_STEPS: this job is too long for the oracle", (long long)step);
        return true;
    }
    if (step < 0 || !is_saved[step]) {
        fail("a checkpoint of step %lld is restored, which was never saved", (long long)step);
        return true;
    }
    if (hash_of(checkpoint_file_info(file)->preprocessing) != saved_with[step]) {
        fail("step %lld is restored with other preprocessing than it was saved with", (long long)step);
    }
    for (int i = 0; i < FLOATS; i++) { /* rows are padded in memory, but not in the file */
        const float *read = &state->vectors[STORE_PARAMETERS][i], *written = &saved[step][i];
        if (i % 16 < ORACLE_COLUMNS && memcmp(read, written, sizeof *read) != 0) {
            fail("float %d of step %lld is restored as %.9g, and was saved as %.9g", i, (long long)step, (double)*read,
                 (double)*written);
            return true;
        }
    }
    return true;
}

WRAP(void, shard_skip_order, struct shard *shard, int64_t step)
{
    const struct ps_record *record = record_here();
    held_s = fmin(held_s, (world.now_s - record->applied_s) / record->job->config.cluster.lease_secs);
    __real_shard_skip_order(shard, step);
}

/*
 * However fast it is: a run without faults keeps every step that is due, unless the chief could not read the first one
 * for a whole lease: it was validating, or its messages were slow.
 */
static void check_due(void)
{
    const int64_t every = oracle.save_steps;
    if (held_s < 0.7) { /* by the fastest clock */
        fail("training was held for %.2f of a lease only, and then a checkpoint was given up", held_s);
    }
    for (int64_t step = every; every > 0 && step < oracle.last_step && isinf(held_s); step += every) {
        if (step < ORACLE_MAX_STEPS && !is_saved[step]) {
            fail("nothing went wrong, and there is no checkpoint of step %lld, though one was due every %lld steps",
                 (long long)step, (long long)every);
        }
    }
}

void oracle_check_end(bool undisturbed)
{
    if (undisturbed) {
        check_due();
    }
    int64_t last = written_step > found_step ? written_step : found_step;
    if (last != oracle.last_step && lost_step != oracle.last_step) { /* a loss at the very end can't be repaired */
        fail("training is over, and its last checkpoint is of step %lld", (long long)last);
    }
}
