/*
 * Simulates a very large fleet: the decisions of two ps (ps/job/job.h) for FLEET_MEMBERS workers, of whom each round
 * selects a hundred. Meanwhile parts of the fleet are cut off from one ps or both, members die and return, the ps lose
 * one another, and each ps is lost once in mid-round. A difference counts once or not at all, on both ps alike, and
 * rounds continue.
 *
 *     FLEET_MEMBERS=10000 TEST_SEED=1 build/san/tests/ps/job/test_fleet
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ps/job/job.h"
#include "ps/job/plan.h"
#include "tests/check.h"
#include "tests/random.h"

enum { SERVERS = 2, MEMBERS = 2000 /* by default */, ROUNDS = 60, SAVED_EVERY = 5, BEAT_TICKS = 30 };

static const double TICK_S = 0.1, LEASE_S = 10, DEADLINE_S = 5, SLOW_S = 30, MOST_S = 2000;

static char *workers[] = {(char[]){"w:1"}}, *servers[] = {(char[]){"p:1"}, (char[]){"q:1"}};

struct fleet_member {
    uint64_t incarnation, sequence;
    double dead_until_s, cut_off_until_s[SERVERS];
    bool is_in[SERVERS]; /* has said hello to this ps, since it started */
    /* Of the round for which it is selected: */
    int64_t token; /* -1: none */
    uint32_t generation;
    double done_s;
    bool staged[SERVERS], settled[SERVERS];
    enum push_outcome outcome[SERVERS];
};

struct fleet {
    struct test_random random;
    struct config config;
    struct job ps[SERVERS];
    bool up[SERVERS], was_lost[SERVERS];
    double up_s[SERVERS], parted_until_s; /* the ps from each other */
    uint64_t reported;
    int64_t applied[SERVERS]; /* differences in the steps that each ps has made since it started */
    double now_s;
    uint32_t generation;
    int64_t saved;
    int count, ticks;
    int64_t told_applied, told_stale;
    struct fleet_member *members;     /* [count] */
    bool (*sets)[CONFIG_MAX_WORKERS]; /* [ROUNDS]: whose differences made each step */
    bool finite[CONFIG_MAX_WORKERS], none[CONFIG_MAX_WORKERS];
    struct job_step step;
};

static bool happens(struct fleet *fleet, int once_in)
{
    return test_random_below(&fleet->random, once_in) == 0;
}

static double up_to(struct fleet *fleet, double most)
{
    return most * (double)(test_random_float(&fleet->random) + 1) / 2;
}

static bool reaches(const struct fleet *fleet, int i, int k)
{
    const struct fleet_member *member = &fleet->members[i];
    return fleet->up[k] && fleet->now_s >= member->cut_off_until_s[k];
}

static void start_ps(struct fleet *fleet, int k)
{
    struct error error;
    assert_true(job_create(&fleet->ps[k], &fleet->config, k, fleet->now_s, &error));
    fleet->up[k] = true;
    fleet->applied[k] = 0;
}

static void lose_ps(struct fleet *fleet, int k)
{
    job_destroy(&fleet->ps[k]);
    fleet->up[k] = false;
    fleet->was_lost[k] = true;
    fleet->up_s[k] = fleet->now_s + up_to(fleet, 8);
    for (int i = 0; i < fleet->count; i++) {
        fleet->members[i].is_in[k] = fleet->members[i].staged[k] = false;
    }
}

/* --- Trouble --- */

/* Part of the fleet loses one ps or both; worker 0 is spared, or nothing would continue. */
static void part(struct fleet *fleet)
{
    const int size = 1 + test_random_below(&fleet->random, fleet->count / 3),
              which = test_random_below(&fleet->random, 3);
    const int first = 1 + test_random_below(&fleet->random, fleet->count - 1);
    const double until_s = fleet->now_s + up_to(fleet, 2.5 * LEASE_S);
    for (int i = first; i < first + size && i < fleet->count; i++) {
        for (int k = 0; k < SERVERS; k++) {
            if (which == 2 || which == k) {
                fleet->members[i].cut_off_until_s[k] = until_s;
            }
        }
    }
}

static void die(struct fleet *fleet, int i)
{
    struct fleet_member *member = &fleet->members[i];
    const bool in_silence = happens(fleet, 2);
    for (int k = 0; k < SERVERS; k++) {
        if (member->is_in[k] && !in_silence) {
            job_disconnected(&fleet->ps[k], i, member->incarnation, fleet->now_s);
        }
        member->is_in[k] = false;
    }
    member->dead_until_s = fleet->now_s + up_to(fleet, 2 * LEASE_S);
    member->incarnation += (uint64_t)fleet->count;
    member->sequence = 0;
    member->token = -1;
}

/* Some of its round's differences have arrived, but not all. */
static bool is_in_mid_round(const struct fleet *fleet, int k)
{
    int here = 0;
    for (int i = 0; i < fleet->count && fleet->up[k]; i++) {
        here += aggregation_get(&fleet->ps[k].gathered, 0, i) == PART_HERE;
    }
    return here > 0 && !fleet->ps[k].gathered.decided;
}

static void make_trouble(struct fleet *fleet)
{
    if (happens(fleet, 100)) {
        part(fleet);
    }
    if (happens(fleet, 150)) {
        fleet->parted_until_s = fleet->now_s + up_to(fleet, LEASE_S);
    }
    for (int tries = 0; tries < 1 + fleet->count / 1000; tries++) {
        const int i = 1 + test_random_below(&fleet->random, fleet->count - 1);
        if (happens(fleet, 10) && fleet->now_s >= fleet->members[i].dead_until_s) {
            die(fleet, i);
        }
    }
    for (int k = 0; k < SERVERS; k++) {
        const bool is_due = !fleet->was_lost[k] && fleet->up[k] && fleet->ps[k].global_step >= ROUNDS / 3 * (k + 1);
        if (is_due && is_in_mid_round(fleet, k)) {
            lose_ps(fleet, k);
        } else if (!fleet->up[k] && fleet->now_s >= fleet->up_s[k]) {
            start_ps(fleet, k);
        }
    }
}

/* --- Members --- */

static void say_hello(struct fleet *fleet, int i, int k)
{
    struct fleet_member *member = &fleet->members[i];
    const struct peer who = {.member = {MEMBER_WORKER, i}, .incarnation = member->incarnation, .program = "trainer"};
    struct error message;
    if (!member->is_in[k] && reaches(fleet, i, k)) {
        const uint16_t refusal = job_hello(&fleet->ps[k], &who, "10.0.0.1:1", fleet->now_s, &message);
        assert_true(refusal == 0 || refusal == JOB_RETRY);
        member->is_in[k] = refusal == 0;
        job_note_ready(&fleet->ps[k], i, member->incarnation, fleet->now_s);
    }
}

static void beat(struct fleet *fleet, int i)
{
    struct message_heartbeat heartbeat = {.state = STATE_TRAINING, .host = "h", .device = "d", .message = ""};
    const bool reaches_all = reaches(fleet, i, 0) && reaches(fleet, i, 1);
    if (!reaches_all) {
        heartbeat.state = STATE_LOST;
        heartbeat.message = "cannot reach a ps";
    }
    for (int k = 0; k < SERVERS; k++) {
        if (fleet->members[i].is_in[k] && reaches(fleet, i, k)) {
            job_heartbeat(&fleet->ps[k], i, fleet->members[i].incarnation, &heartbeat, fleet->now_s);
        }
    }
}

/* Is it selected? Then it has the model of that round from both ps. */
static void look_for_work(struct fleet *fleet, int i)
{
    struct fleet_member *member = &fleet->members[i];
    struct job *decider = &fleet->ps[0];
    const int64_t token = job_token(decider, i, decider->global_step);
    struct verdict verdict;
    if (token < 0 || fleet->ps[1].generation != decider->generation || fleet->ps[1].global_step != token) {
        return;
    }
    for (int k = 0; k < SERVERS; k++) {
        job_pull(&fleet->ps[k], i, member->incarnation, decider->generation, fleet->now_s, &verdict);
        if (verdict.code != 0) {
            assert_true(verdict.code == ERROR_NOT_READY || verdict.code == ERROR_OLD_GENERATION);
            return;
        }
    }
    member->token = token;
    member->generation = decider->generation;
    member->sequence++;
    member->done_s = fleet->now_s + up_to(fleet, happens(fleet, 20) ? SLOW_S : 1);
    memset(member->staged, 0, sizeof member->staged);
    memset(member->settled, 0, sizeof member->settled);
}

/* Sends to one ps, perhaps again. False: the difference belongs to a lost model. */
static bool push(struct fleet *fleet, int i, int k)
{
    struct fleet_member *member = &fleet->members[i];
    const struct job_push push = {.generation = member->generation,
                                  .sequence = member->sequence,
                                  .base_step = member->token,
                                  .token = member->token,
                                  .finite = true};
    struct verdict verdict;
    bool receive;
    if (!member->staged[k] || happens(fleet, 4)) {
        job_stage(&fleet->ps[k], i, member->incarnation, &push, fleet->now_s, &verdict, &receive);
        if (verdict.code == 0) {
            job_staged(&fleet->ps[k], i, member->incarnation, &push, receive, fleet->now_s, &verdict);
        }
        if (verdict.code != 0) {
            assert_true(verdict.code == ERROR_NOT_READY || verdict.code == ERROR_OLD_GENERATION);
            return verdict.code == ERROR_NOT_READY;
        }
        member->staged[k] = true;
    }
    if (!member->settled[k] && job_settled(&fleet->ps[k], i, member->incarnation, &push, &verdict)) {
        if (verdict.code != 0) {
            assert_int_equal(verdict.code, ERROR_OLD_GENERATION);
            return false;
        }
        member->settled[k] = true;
        member->outcome[k] = verdict.outcome;
    }
    return true;
}

/* If both ps agree about its difference, that is the result. */
static void conclude(struct fleet *fleet, int i)
{
    struct fleet_member *member = &fleet->members[i];
    const bool counts = member->outcome[0] == PUSH_APPLIED;
    assert_int_equal(member->outcome[0], member->outcome[1]);
    assert_true(counts || member->outcome[0] == PUSH_STALE || member->outcome[0] == PUSH_NOT_WANTED);
    assert_true(member->token == ROUNDS || counts == fleet->sets[member->token][i]);
    fleet->told_applied += counts;
    fleet->told_stale += !counts;
    member->token = -1;
}

static void work(struct fleet *fleet, int i)
{
    struct fleet_member *member = &fleet->members[i];
    for (int k = 0; k < SERVERS && member->token >= 0; k++) {
        if (member->is_in[k] && reaches(fleet, i, k) && !push(fleet, i, k)) {
            member->token = -1;
        }
    }
    if (member->token >= 0 && member->settled[0] && member->settled[1]) {
        conclude(fleet, i);
    }
}

static void live(struct fleet *fleet, int i)
{
    struct fleet_member *member = &fleet->members[i];
    if (fleet->now_s < member->dead_until_s) {
        return;
    }
    for (int k = 0; k < SERVERS; k++) {
        say_hello(fleet, i, k);
    }
    if ((fleet->ticks + i) % BEAT_TICKS == 0) {
        beat(fleet, i);
    }
    if (member->token >= 0 && fleet->now_s >= member->done_s) {
        work(fleet, i);
    } else if (member->token < 0 && member->is_in[0] && member->is_in[1] && reaches(fleet, i, 0) &&
               reaches(fleet, i, 1)) {
        look_for_work(fleet, i);
    }
}

/* --- The ps --- */

/* Worker 0 writes the model again if a ps has none: from the last checkpoint, to both. */
static void restore_if_lost(struct fleet *fleet)
{
    struct verdict verdict;
    const struct fleet_member *chief = &fleet->members[0];
    if (!chief->is_in[0] || !chief->is_in[1] ||
        (fleet->ps[0].state == JOB_TRAINING && fleet->ps[1].state == JOB_TRAINING)) {
        return;
    }
    fleet->generation++;
    memset(fleet->sets + fleet->saved, 0, (size_t)(ROUNDS - fleet->saved) * sizeof *fleet->sets);
    for (int k = 0; k < SERVERS; k++) {
        job_begin_restore(&fleet->ps[k], 0, fleet->generation, "a checkpoint", fleet->now_s, &verdict);
        assert_int_equal(verdict.code, 0);
        job_end_restore(&fleet->ps[k], 0, fleet->generation, fleet->saved, 600, fleet->now_s, &verdict);
        assert_int_equal(verdict.code, 0);
    }
}

static bool may_talk(const struct fleet *fleet)
{
    return fleet->up[0] && fleet->up[1] && fleet->now_s >= fleet->parted_until_s &&
           fleet->ps[0].generation == fleet->ps[1].generation;
}

static void report(struct fleet *fleet)
{
    const struct job *follower = &fleet->ps[1];
    struct verdict verdict;
    if (!may_talk(fleet) || follower->state != JOB_TRAINING) {
        return;
    }
    for (int i = 0; i < fleet->count; i++) {
        fleet->finite[i] = aggregation_get(&follower->gathered, 0, i) == PART_HERE;
    }
    job_report(&fleet->ps[0], 1, follower->generation, follower->global_step, fleet->finite, fleet->none, fleet->now_s,
               &verdict);
    assert_int_equal(verdict.code, 0);
}

static void make_step(struct fleet *fleet, int k)
{
    const struct job_step *step = &fleet->step;
    struct job *job = &fleet->ps[k];
    if (!fleet->up[k] || !job_take_step(job, &fleet->step)) {
        return;
    }
    bool *set = fleet->sets[step->step];
    if (k == 0) { /* all of it is on both ps, and of this round */
        assert_true(step->count > 0);
        memset(set, 0, sizeof *fleet->sets);
        for (int n = 0; n < step->count; n++) {
            const int i = step->workers[n];
            assert_true(job->asked[i] && aggregation_get(&job->gathered, 0, i) == PART_HERE &&
                        aggregation_get(&job->gathered, 1, i) == PART_HERE);
            set[i] = true;
        }
    }
    int counted = 0;
    for (int i = 0; i < fleet->count; i++) {
        counted += set[i];
    }
    assert_int_equal(step->count, counted);
    for (int n = 0; n < step->count; n++) {
        assert_true(set[step->workers[n]]);
    }
    fleet->applied[k] += step->count;
    job_step_applied(job, step, true, fleet->now_s);
}

static void decide(struct fleet *fleet)
{
    make_step(fleet, 0);
    const struct job *decider = &fleet->ps[0];
    struct job *follower = &fleet->ps[1];
    if (may_talk(fleet) && decider->last_set_step >= 0 && decider->last_set_step == follower->global_step) {
        for (int i = 0; i < fleet->count; i++) {
            fleet->finite[i] = decider->last_set[i];
        }
        assert_true(job_apply_decision(follower, decider->generation, decider->last_set_step, fleet->finite));
        make_step(fleet, 1);
    }
    if (fleet->up[0] && fleet->up[1] && decider->generation == follower->generation) {
        const int64_t both =
            decider->global_step < follower->global_step ? decider->global_step : follower->global_step;
        fleet->saved = both - both % SAVED_EVERY;
    }
}

static void tick(struct fleet *fleet)
{
    struct job_action action;
    fleet->now_s += TICK_S;
    fleet->ticks++;
    make_trouble(fleet);
    for (int i = 0; i < fleet->count; i++) {
        live(fleet, i);
    }
    restore_if_lost(fleet);
    report(fleet);
    decide(fleet);
    for (int k = 0; k < SERVERS; k++) {
        for (bool more = fleet->up[k]; more;) {
            more = job_tick(&fleet->ps[k], fleet->now_s);
            while (job_next_action(&fleet->ps[k], &action)) { /* a probed process is dead here, and does not answer */
            }
        }
    }
}

static void begin(struct fleet *fleet)
{
    const char *given = getenv("FLEET_MEMBERS");
    fleet->count = given ? atoi(given) : MEMBERS;
    assert_in_range(fleet->count, 10, CONFIG_MAX_WORKERS);
    fleet->config.cluster = (struct config_cluster){.ps_hosts = {.items = servers, .count = SERVERS},
                                                    .worker_hosts = {.items = workers, .count = 1},
                                                    .elastic = true,
                                                    .elastic_workers = fleet->count - 1,
                                                    .issync = true,
                                                    .min_replicas = 1,
                                                    .min_workers = fleet->count / 2,
                                                    .lease_secs = LEASE_S};
    fleet->config.train = (struct config_train){.local_steps = 4,
                                                .seed = test_random_below(&fleet->random, 1000),
                                                .participation = fleet->count < 1000 ? 0.1 : 100.0 / fleet->count,
                                                .over_selection = 1.3,
                                                .round_deadline_secs = DEADLINE_S,
                                                .train_steps = ROUNDS};
    fleet->config.model.layers[0] = 6;
    fleet->config.model.layers[1] = 3;
    fleet->config.model.layer_count = 2;
    fleet->now_s = 100;
    fleet->members = calloc((size_t)fleet->count, sizeof *fleet->members);
    fleet->sets = calloc(ROUNDS, sizeof *fleet->sets);
    for (int i = 0; i < fleet->count; i++) {
        fleet->members[i].incarnation = (uint64_t)i + 1;
        fleet->members[i].token = -1;
    }
    for (int k = 0; k < SERVERS; k++) {
        start_ps(fleet, k);
    }
}

TEST(test_each_difference_counts_once_or_not_at_all)
{
    struct fleet *fleet = calloc(1, sizeof *fleet);
    fleet->random = test_random_begin("fleet");
    begin(fleet);
    while (!fleet->up[0] || !fleet->up[1] || fleet->ps[0].global_step < ROUNDS || fleet->ps[1].global_step < ROUNDS) {
        assert_true(fleet->now_s < MOST_S);
        tick(fleet);
    }
    for (int k = 0; k < SERVERS; k++) {
        int64_t applied = 0;
        for (int i = 0; i < fleet->count; i++) {
            applied += fleet->ps[k].workers[i].applied;
        }
        assert_int_equal(applied, fleet->applied[k]);
        assert_true(fleet->was_lost[k]);
        job_destroy(&fleet->ps[k]);
    }
    assert_true(fleet->told_applied > 0 && fleet->told_stale > 0 && fleet->generation >= 3);
    print_message("%d members, %d rounds in %.0f s: %lld differences counted, %lld came late\n", fleet->count, ROUNDS,
                  fleet->now_s - 100, (long long)fleet->told_applied, (long long)fleet->told_stale);
    free(fleet->members);
    free(fleet->sets);
    free(fleet);
}

int main(void)
{
    return check_run(NULL, NULL);
}
