/*
 * The decisions of a ps about its job, from scenarios (tests/scenario.h; job.txt and steps.txt beside this file): who
 * joins, pushes, falls silent, is duplicated and leaves; then verdicts, answers and what is logged. The clock begins at
 * 100 s. A statement concerns all ps of the job where that makes sense, else the first; `ps1` before it names one.
 *
 *     job WORKERS [KEY...]     a new one; KEYs: see take_keys
 *     restore GENERATION STEP  worker 0 writes the model; an epoch has 600 batches
 *     schedule STEP [KEY...]   the config with these keys from that step on; without any: that of `job`
 *     pass 5; wait 5; tick     time passes with two ticks a second, or without any
 *     worker 1 joins|greets [as 9] [retry|refused CODE ["text"]]      `joins`: its data are loaded, too
 *     worker 1 loads|is-gone|leaves|heard|held|released|pongs|pongs-late|asks|beats STATE [as 9] ["text"]
 *     worker 1 pushes [as 9] [number 3] [in 2] [from 7] OUTCOME       asynchronous; in: the generation
 *     worker 1 offers STEP [as 9] [number 3] [in 2] [inf] [taken|dropped]       synchronous: stage and staged
 *     worker 1 stages|staged STEP ...; worker 1 gets STEP OUTCOME; worker 1 waits STEP
 *     worker 0 begins|checks|ends|writes|snapshots|orders|pulls|finishes ...   the chief's requests, see request
 *     applies 3                the step that is decided has so many gradients; 0: there is none
 *     takes 4; gives-up; completes                          likewise, in two parts
 *     report; reports K GENERATION STEP N...; decides GENERATION STEP N... [wrong]      between ps 1 and ps 0
 *
 * A request may be `denied CODE ["text"]`, an OUTCOME be one of the pushes'. Expectations are listed in expect.
 */
#include "tests/scenario.h"

#include <math.h>

#include "ps/job/job.h"

enum { MOST_PS = 3, MOST_WORKERS = 40, NAMES = 12 };

static char host_names[][8] = {"b:2222", "c:2222", "d:2222", "e:2222"}, ps_names[][8] = {"p:2222", "q:2222", "r:2222"};

static struct {
    struct config config;
    char *workers[MOST_WORKERS], *servers[MOST_PS];
    struct job jobs[MOST_PS];
    int count, only; /* jobs that there are, and the one that the statement concerns; -1: all */
    char log[16384];
    int probes, cuts;
    uint64_t spared; /* by the last cut */
    uint64_t numbers[MOST_WORKERS];
    struct job_step step;
} at;

static const char *const codes[NAMES] = {[ERROR_BAD_REQUEST] = "bad-request",
                                         [ERROR_NOT_ALLOWED] = "not-allowed",
                                         [ERROR_NOT_READY] = "not-ready",
                                         [ERROR_OLD_GENERATION] = "old-generation",
                                         [ERROR_JOB_OVER] = "job-over"},
                         *const outcomes[NAMES] = {"applied", "before", "kept", "stale", "not-finite", "not-wanted"},
                         *const states[NAMES] = {"absent", "starting", "ready", "training", "waiting",
                                                 "saving", "done",     "lost",  "failed"},
                         *const job_states[NAMES] = {"waiting", "training", "restoring", "done", "failed"};

/* --- The host --- */

/* Lines are collected, other actions counted. */
static void play(void)
{
    struct job_action action;
    for (int i = 0; i < at.count; i++) {
        while (job_next_action(&at.jobs[i], &action)) {
            const size_t used = strlen(at.log);
            if (action.kind == JOB_LOG) {
                snprintf(at.log + used, sizeof at.log - used, "%s\n", action.text);
            }
            at.probes += action.kind == JOB_PROBE;
            at.cuts += action.kind == JOB_CUT;
            at.spared = action.kind == JOB_CUT ? action.incarnation : at.spared;
        }
    }
}

static void destroy_jobs(void)
{
    for (int i = 0; i < at.count; i++) {
        job_destroy(&at.jobs[i]);
    }
    at.count = 0;
}

void scenario_enter(void)
{
    memset(&at, 0, sizeof at);
    scenario_now_s = 100;
    for (int i = 0; i < MOST_WORKERS; i++) {
        at.workers[i] = host_names[i % 4];
    }
    for (int i = 0; i < MOST_PS; i++) {
        at.servers[i] = ps_names[i];
    }
}

void scenario_leave(void)
{
    destroy_jobs();
}

static struct job *the_job(void)
{
    return &at.jobs[at.only > 0 ? at.only : 0];
}

static void tick(void)
{
    for (int i = 0; i < at.count; i++) {
        while (job_tick(&at.jobs[i], scenario_now_s)) {
            play();
        }
    }
    play();
}

static void pass(double seconds)
{
    for (const double end_s = scenario_now_s + seconds; scenario_now_s < end_s;) {
        scenario_now_s = fmin(scenario_now_s + 0.5, end_s);
        tick();
    }
}

/* --- Jobs and their configs --- */

/* Keys of the config: those that are whole numbers, and others. */
static void take_keys(struct scenario_words *words, struct config *config, int *ps_count, int *identity)
{
    struct config_cluster *cluster = &config->cluster;
    struct config_train *train = &config->train;
    while (!scenario_ends(words)) {
        if (scenario_has(words, "sync")) {
            cluster->issync = true;
        } else if (scenario_has(words, "round-robin")) {
            cluster->placement = PLACEMENT_ROUND_ROBIN;
        } else if (scenario_has(words, "wanted")) {
            cluster->replicas_to_aggregate = (int)scenario_number(words);
        } else if (scenario_has(words, "least")) {
            cluster->min_replicas = (int)scenario_number(words);
        } else if (scenario_has(words, "min")) {
            cluster->min_workers = (int)scenario_number(words);
        } else if (scenario_has(words, "staleness")) {
            cluster->max_staleness = (int)scenario_number(words);
        } else if (scenario_has(words, "elastic")) {
            cluster->elastic = true;
            cluster->elastic_workers = (int)scenario_number(words);
        } else if (scenario_has(words, "buffer")) {
            train->buffer_size = (int)scenario_number(words);
        } else if (scenario_has(words, "batch")) {
            train->batch_size = (int)scenario_number(words);
        } else if (scenario_has(words, "epochs")) {
            train->epochs = scenario_number(words);
        } else if (scenario_has(words, "last")) {
            train->train_steps = (int64_t)scenario_number(words);
        } else if (ps_count && scenario_has(words, "ps")) {
            *ps_count = (int)scenario_number(words);
        } else if (identity && scenario_has(words, "as")) {
            *identity = (int)scenario_number(words);
        } else {
            scenario_fail(words, "\"%s\" is no key", scenario_word(words));
        }
    }
}

static void make_job(struct scenario_words *words)
{
    struct error error;
    int ps_count = 1, identity = -1;
    destroy_jobs();
    memset(at.numbers, 0, sizeof at.numbers);
    at.config = (struct config){.cluster = {.ps_hosts = {.items = at.servers},
                                            .worker_hosts = {.items = at.workers},
                                            .min_workers = 1,
                                            .min_replicas = 1,
                                            .lease_secs = 10},
                                .model = {.layer_count = 2, .layers = {6, 3}}};
    at.config.cluster.worker_hosts.count = (int)scenario_number(words);
    take_keys(words, &at.config, &ps_count, &identity);
    at.config.cluster.ps_hosts.count = ps_count;
    at.count = identity >= 0 ? 1 : ps_count;
    for (int i = 0; i < at.count; i++) {
        assert_true(job_create(&at.jobs[i], &at.config, identity >= 0 ? identity : i, scenario_now_s, &error));
    }
}

/* Whether a request went well, or is denied with this code and text. */
static void expect_verdict(struct scenario_words *words, const struct verdict *verdict)
{
    const bool denied = scenario_has(words, "denied");
    const int code = denied ? scenario_choice(words, codes, NAMES, "code") : 0;
    const char *text = denied ? scenario_text(words) : NULL;
    if (verdict->code != code) {
        scenario_fail(words, "expected code %d, got %d: %s", code, (int)verdict->code,
                      verdict->code != 0 ? verdict->message : "");
    }
    if (text) {
        scenario_expect_text(words, "denied", verdict->message, text);
    }
}

static void restore(struct scenario_words *words)
{
    struct verdict verdict;
    const uint32_t generation = (uint32_t)scenario_number(words);
    const int64_t step = (int64_t)scenario_number(words);
    for (int i = 0; i < at.count; i++) {
        memset(&verdict, 0xff, sizeof verdict);
        job_begin_restore(&at.jobs[i], 0, generation, "initialised", scenario_now_s, &verdict);
        expect_verdict(words, &verdict);
        job_end_restore(&at.jobs[i], 0, generation, step, 600, scenario_now_s, &verdict);
        expect_verdict(words, &verdict);
    }
}

static void schedule(struct scenario_words *words)
{
    struct config next = at.config;
    const int64_t step = (int64_t)scenario_number(words);
    take_keys(words, &next, NULL, NULL);
    job_schedule(the_job(), &next, step, scenario_now_s);
}

/* --- Workers --- */

/* What a statement says of a push or a process. */
struct options {
    uint64_t incarnation, number;
    uint32_t generation;
    int64_t base;
    bool finite;
};

static struct options take_options(struct scenario_words *words, int worker, bool pushes)
{
    const struct job *job = the_job();
    struct options options = {.incarnation = worker < job->worker_count ? job->workers[worker].incarnation : 1,
                              .generation = job->generation,
                              .base = job->global_step,
                              .finite = true};
    bool has_number = false;
    for (bool more = true; more;) {
        if (scenario_has(words, "as")) {
            options.incarnation = (uint64_t)scenario_number(words);
        } else if (scenario_has(words, "in")) {
            options.generation = (uint32_t)scenario_number(words);
        } else if (scenario_has(words, "from")) {
            options.base = (int64_t)scenario_number(words);
        } else if (scenario_has(words, "inf")) {
            options.finite = false;
        } else if (scenario_has(words, "number")) {
            options.number = (uint64_t)scenario_number(words);
            has_number = true;
        } else {
            more = false;
        }
    }
    if (!has_number) {
        options.number = pushes ? ++at.numbers[worker] : worker < MOST_WORKERS ? at.numbers[worker] : 1;
    }
    if (pushes) {
        at.numbers[worker % MOST_WORKERS] = options.number;
    }
    return options;
}

static void greet(struct scenario_words *words, int worker, bool loads)
{
    static const char *const refusals[NAMES] = {
        [REFUSAL_MEMBER] = "member", [REFUSAL_DUPLICATE] = "duplicate", [REFUSAL_REPLACED] = "replaced"};
    struct peer who = {.member = {MEMBER_WORKER, worker}, .incarnation = (uint64_t)worker + 1, .program = "trainer"};
    char address[32];
    who.incarnation = scenario_has(words, "as") ? (uint64_t)scenario_number(words) : who.incarnation;
    snprintf(address, sizeof address, "10.0.0.%d:%d", worker, (int)who.incarnation);
    const bool retry = scenario_has(words, "retry"), refused = scenario_has(words, "refused");
    const int wanted = retry ? JOB_RETRY : refused ? scenario_choice(words, refusals, NAMES, "refusal") : 0;
    const char *text = scenario_text(words);
    for (int i = 0; i < at.count; i++) {
        struct error message = {""};
        if (at.only >= 0 && at.only != i) {
            continue;
        }
        if (worker < at.jobs[i].worker_count && at.jobs[i].workers[worker].incarnation != who.incarnation) {
            at.numbers[worker] = 0; /* another process counts from 1 */
        }
        const uint16_t got = job_hello(&at.jobs[i], &who, address, scenario_now_s, &message);
        if (got != wanted) {
            scenario_fail(words, "expected refusal %d, got %d: %s", wanted, (int)got, message.text);
        }
        if (text) {
            scenario_expect_text(words, "refused", message.text, text);
        }
        if (loads) {
            job_note_ready(&at.jobs[i], worker, who.incarnation, scenario_now_s);
        }
    }
}

static struct job_push push_of(const struct options *options, int64_t token)
{
    return (struct job_push){.generation = options->generation,
                             .sequence = options->number,
                             .base_step = options->base,
                             .token = token,
                             .finite = options->finite};
}

static void expect_outcome(struct scenario_words *words, const struct verdict *verdict)
{
    if (verdict->code != 0 || (!scenario_ends(words) && strcmp(words->word[words->next], "denied") == 0)) {
        expect_verdict(words, verdict);
        return;
    }
    const int wanted = scenario_choice(words, outcomes, NAMES, "outcome");
    if ((int)verdict->outcome != wanted) {
        scenario_fail(words, "expected %s, got %s", outcomes[wanted], outcomes[verdict->outcome]);
    }
}

static void push(struct scenario_words *words, int worker)
{
    struct verdict verdict;
    const struct options options = take_options(words, worker, true);
    const struct job_push push = push_of(&options, 0);
    memset(&verdict, 0xff, sizeof verdict);
    job_push(the_job(), worker, options.incarnation, &push, scenario_now_s, &verdict);
    play();
    expect_outcome(words, &verdict);
}

/* Synchronous: the first frame of a push, its last, or both. */
static void offer(struct scenario_words *words, int worker, bool first, bool last)
{
    struct verdict verdict;
    bool receive = true;
    const int64_t step = (int64_t)scenario_number(words);
    const struct options options = take_options(words, worker, first && at.only <= 0);
    const struct job_push push = push_of(&options, step);
    verdict.code = 0;
    if (first) {
        memset(&verdict, 0xff, sizeof verdict);
        job_stage(the_job(), worker, options.incarnation, &push, scenario_now_s, &verdict, &receive);
    }
    const bool taken = scenario_has(words, "taken"), dropped = !taken && scenario_has(words, "dropped");
    if ((taken && !receive) || (dropped && receive && first)) {
        scenario_fail(words, "expected it to be %s", taken ? "received" : "dropped");
    }
    if (last && verdict.code == 0) {
        memset(&verdict, 0xff, sizeof verdict);
        job_staged(the_job(), worker, options.incarnation, &push, receive && !dropped, scenario_now_s, &verdict);
    }
    play();
    expect_verdict(words, &verdict);
}

static void get(struct scenario_words *words, int worker, bool settled)
{
    struct verdict verdict;
    const int64_t step = (int64_t)scenario_number(words);
    const struct options options = take_options(words, worker, false);
    const struct job_push push = push_of(&options, step);
    memset(&verdict, 0xff, sizeof verdict);
    if (job_settled(the_job(), worker, options.incarnation, &push, &verdict) != settled) {
        scenario_fail(words, settled ? "it waits" : "it does not wait");
    }
    if (settled) {
        expect_outcome(words, &verdict);
    }
}

static void beat(struct scenario_words *words, int worker)
{
    struct message_heartbeat heartbeat = {.loss = 1, .host = "h", .device = "cpu"};
    heartbeat.state = (uint8_t)scenario_choice(words, states, NAMES, "state");
    const struct options options = take_options(words, worker, false);
    const char *text = scenario_text(words);
    heartbeat.message = text ? (char *)(uintptr_t)text : "";
    job_heartbeat(the_job(), worker, options.incarnation, &heartbeat, scenario_now_s);
}

/* --- What the chief asks for --- */

static bool request(struct scenario_words *words, int worker)
{
    struct job *job = the_job();
    struct verdict verdict;
    memset(&verdict, 0xff, sizeof verdict);
    if (scenario_has(words, "begins")) {
        const uint32_t generation = (uint32_t)scenario_number(words);
        const char *source = scenario_text(words);
        job_begin_restore(job, worker, generation, source ? source : "test", scenario_now_s, &verdict);
    } else if (scenario_has(words, "checks") || scenario_has(words, "ends")) {
        const bool ends = strcmp(words->word[words->next - 1], "ends") == 0;
        const uint32_t generation = (uint32_t)scenario_number(words);
        const int64_t step = (int64_t)scenario_number(words), batches = (int64_t)scenario_number(words);
        if (ends) {
            job_end_restore(job, worker, generation, step, batches, scenario_now_s, &verdict);
        } else {
            job_check_restored(job, worker, generation, step, batches, &verdict);
        }
    } else if (scenario_has(words, "writes")) {
        job_write(job, worker, (uint32_t)scenario_number(words), &verdict);
    } else if (scenario_has(words, "snapshots")) {
        job_snapshot(job, worker, (uint32_t)scenario_number(words), false, &verdict);
    } else if (scenario_has(words, "orders")) {
        job_snapshot(job, worker, (uint32_t)scenario_number(words), true, &verdict);
    } else if (scenario_has(words, "pulls")) {
        job_pull(job, worker, job->workers[worker].incarnation, (uint32_t)scenario_number(words), scenario_now_s,
                 &verdict);
    } else if (scenario_has(words, "finishes")) {
        struct message_end_job over = {.job_state = (uint8_t)scenario_choice(words, job_states, NAMES, "state")};
        over.global_step = (int64_t)scenario_number(words);
        const char *text = scenario_text(words);
        over.message = text ? (char *)(uintptr_t)text : "";
        job_end(job, worker, &over, scenario_now_s, &verdict);
    } else {
        return false;
    }
    play();
    expect_verdict(words, &verdict);
    return true;
}

static void touch(int worker)
{
    for (int i = 0; i < at.count; i++) {
        job_touch(&at.jobs[i], worker, at.jobs[i].workers[worker].incarnation, scenario_now_s);
    }
}

static void live(struct scenario_words *words, int worker)
{
    struct job *job = the_job();
    enum { LOADS, GONE, LEAVES, HEARD, HELD, RELEASED, PONGS, LATE };
    static const char *const names[NAMES] = {"loads", "is-gone",  "leaves", "heard",
                                             "held",  "released", "pongs",  "pongs-late"};
    const int what = scenario_choice(words, names, NAMES, "thing that a worker does");
    const struct options options = take_options(words, worker, false);
    const char *text = scenario_text(words);
    const uint64_t nonce = job_probe_nonce(job, worker), who = options.incarnation;
    if (what == LOADS) {
        job_note_ready(job, worker, who, scenario_now_s);
    } else if (what == GONE) {
        job_disconnected(job, worker, who, scenario_now_s);
    } else if (what == LEAVES) {
        job_leave(job, worker, who, text ? text : "", scenario_now_s);
    } else if (what == HEARD) {
        for (int i = 0; i < at.count; i++) {
            if (at.only < 0 || at.only == i) {
                job_touch(&at.jobs[i], worker, who, scenario_now_s);
            }
        }
    } else if (what == HELD || what == RELEASED) {
        job_hold(job, worker, who, what == HELD ? 1 : -1, scenario_now_s);
    } else {
        job_pong(job, worker, who, what == PONGS ? nonce : nonce - 1);
    }
}

static void take_worker(struct scenario_words *words)
{
    const int worker = (int)scenario_number(words);
    if (scenario_has(words, "joins")) {
        greet(words, worker, true);
    } else if (scenario_has(words, "greets")) {
        greet(words, worker, false);
    } else if (scenario_has(words, "pushes")) {
        push(words, worker);
    } else if (scenario_has(words, "offers")) {
        offer(words, worker, true, true);
    } else if (scenario_has(words, "stages")) {
        offer(words, worker, true, false);
    } else if (scenario_has(words, "staged")) {
        offer(words, worker, false, true);
    } else if (scenario_has(words, "gets")) {
        get(words, worker, true);
    } else if (scenario_has(words, "waits")) {
        get(words, worker, false);
    } else if (scenario_has(words, "beats")) {
        beat(words, worker);
    } else if (!request(words, worker)) {
        live(words, worker);
    }
    play();
}

/* `workers 0 to 2 offers 7`: each of them. */
static void take_workers(struct scenario_words *words)
{
    const int first = (int)scenario_number(words);
    const int last = scenario_has(words, "to") ? (int)scenario_number(words) : first;
    const int begin = words->next;
    static char number[16];
    char *const before = words->word[begin - 1];
    for (int i = first; i <= last; i++) {
        snprintf(number, sizeof number, "%d", i);
        words->word[begin - 1] = number;
        words->next = begin - 1;
        take_worker(words);
    }
    words->word[begin - 1] = before;
}

/* --- Steps, and what ps say to each other --- */

static void apply(struct scenario_words *words)
{
    struct job *job = the_job();
    const int wanted = (int)scenario_number(words);
    const bool is = job_take_step(job, &at.step);
    const int got = is ? at.step.count : 0;
    if (is) {
        assert_false(job_take_step(job, &(struct job_step){0})); /* one does it */
        job_step_applied(job, &at.step, true, scenario_now_s);
        play();
    }
    scenario_expect_number(words, "gradients of the step", got, wanted);
}

static void take_set(struct scenario_words *words, bool set[MOST_WORKERS])
{
    double number;
    memset(set, 0, MOST_WORKERS * sizeof *set);
    while (!scenario_ends(words) && scenario_is_number(words->word[words->next], &number) && isfinite(number)) {
        set[(int)scenario_number(words)] = true;
    }
}

/* What ps 1 has, told to ps 0. */
static void report(struct scenario_words *words)
{
    bool finite[MOST_WORKERS] = {false}, infinite[MOST_WORKERS] = {false};
    struct verdict verdict;
    for (int i = 0; i < at.jobs[1].worker_count; i++) {
        const enum aggregation_part part = aggregation_get(&at.jobs[1].gathered, 0, i);
        finite[i] = part == PART_HERE;
        infinite[i] = part == PART_NOT_FINITE;
    }
    job_report(&at.jobs[0], 1, at.jobs[1].generation, at.jobs[1].global_step, finite, infinite, scenario_now_s,
               &verdict);
    expect_verdict(words, &verdict);
}

static void report_as(struct scenario_words *words)
{
    bool finite[MOST_WORKERS], infinite[MOST_WORKERS] = {false};
    struct verdict verdict;
    const int ps = (int)scenario_number(words);
    const uint32_t generation = (uint32_t)scenario_number(words);
    const int64_t step = (int64_t)scenario_number(words);
    take_set(words, finite);
    if (scenario_has(words, "inf")) {
        take_set(words, infinite);
    }
    job_report(the_job(), ps, generation, step, finite, infinite, scenario_now_s, &verdict);
    expect_verdict(words, &verdict);
}

static void decide(struct scenario_words *words)
{
    bool taken[MOST_WORKERS];
    const uint32_t generation = (uint32_t)scenario_number(words);
    const int64_t step = (int64_t)scenario_number(words);
    take_set(words, taken);
    const bool wrong = scenario_has(words, "wrong");
    if (job_apply_decision(the_job(), generation, step, taken) == wrong) {
        scenario_fail(words, wrong ? "it was taken" : "it was not taken");
    }
}

/* --- Expectations --- */

static void expect_log(struct scenario_words *words, bool wanted)
{
    const char *text = scenario_word(words);
    play();
    if (!strstr(at.log, text) == wanted) {
        scenario_fail(words, "%stold: \"%s\", but:\n%s", wanted ? "not " : "", text, at.log);
    }
    if (wanted) {
        at.log[0] = '\0';
    }
}

static void expect_worker(struct scenario_words *words)
{
    static const char *const names[NAMES] = {"applied", "stale", "not-finite", "staleness", "step", "asked", "missed"};
    scenario_has(words, "worker");
    const int index = (int)scenario_number(words);
    const int what = scenario_choice(words, names, NAMES, "count");
    const struct job_worker *worker = &the_job()->workers[index];
    const int64_t counts[] = {worker->applied,     worker->stale, worker->not_finite, worker->staleness,
                              worker->global_step, worker->asked, worker->missed};
    scenario_expect_number(words, names[what], (double)counts[what], scenario_number(words));
}

/* What a ps answers, steps on, and would do under another config. */
static bool expect_of_steps(struct scenario_words *words)
{
    struct job *job = the_job();
    if (scenario_has(words, "answers")) {
        scenario_expect_number(words, "may answer", job_may_answer(job, (int)scenario_number(words)), 1);
    } else if (scenario_has(words, "holds-back")) {
        scenario_expect_number(words, "may answer", job_may_answer(job, (int)scenario_number(words)), 0);
    } else if (scenario_has(words, "may-exit")) {
        scenario_expect_number(words, "may exit", job_may_exit(job, scenario_now_s), 1);
    } else if (scenario_has(words, "stays")) {
        scenario_expect_number(words, "may exit", job_may_exit(job, scenario_now_s), 0);
    } else if (scenario_has(words, "probes")) {
        scenario_expect_number(words, "probes", at.probes, scenario_number(words));
    } else if (scenario_has(words, "cuts")) {
        scenario_expect_number(words, "cuts", at.cuts, scenario_number(words));
        scenario_expect_number(words, "spared", (double)at.spared, scenario_number(words));
    } else if (scenario_has(words, "follows")) {
        scenario_expect_number(words, "follows", job_is_follower(job), 1);
    } else if (scenario_has(words, "follows-not")) {
        scenario_expect_number(words, "follows", job_is_follower(job), 0);
    } else if (scenario_has(words, "about-to-step")) {
        scenario_expect_number(words, "about to step", job_is_about_to_step(job), scenario_number(words));
    } else if (scenario_has(words, "decided")) {
        scenario_expect_number(words, "decided", job_has_step(job), 1);
    } else if (scenario_has(words, "undecided")) {
        scenario_expect_number(words, "decided", job_has_step(job), 0);
    } else if (scenario_has(words, "last-under")) {
        struct config next = at.config;
        const int64_t wanted = (int64_t)scenario_number(words);
        take_keys(words, &next, NULL, NULL);
        scenario_expect_number(words, "last step", (double)job_last_step_under(job, &next), (double)wanted);
    } else if (scenario_has(words, "epoch")) {
        struct config next = at.config;
        const int64_t batches = (int64_t)scenario_number(words), wanted = (int64_t)scenario_number(words);
        take_keys(words, &next, NULL, NULL);
        scenario_expect_number(words, "steps", (double)job_epoch_steps(job, &next, batches), (double)wanted);
    } else {
        return false;
    }
    return true;
}

static bool expect(struct scenario_words *words)
{
    struct job *job = the_job();
    char message[JOB_MESSAGE] = "";
    if (scenario_has(words, "told")) {
        expect_log(words, true);
    } else if (scenario_has(words, "untold")) {
        expect_log(words, false);
    } else if (scenario_has(words, "silent")) {
        play();
        scenario_expect_text(words, "log", at.log, "");
    } else if (scenario_has(words, "reads")) {
        job_describe(job, scenario_now_s, message);
        scenario_expect_text(words, "described", message, scenario_word(words));
    } else if (scenario_has(words, "waits")) { /* "": for nothing, or not for long */
        const bool waits = job_describe_wait(job, scenario_now_s, message);
        scenario_expect_number(words, "it waits", waits, message[0] != '\0');
        scenario_expect_text(words, "wait", message, scenario_word(words));
    } else if (scenario_has(words, "ready")) {
        const bool ready = job_ready(job, scenario_now_s, message);
        scenario_expect_text(words, "awaited", ready ? "" : message, "");
    } else if (scenario_has(words, "unready")) {
        scenario_expect_number(words, "ready", job_ready(job, scenario_now_s, message), 0);
        scenario_expect_text(words, "awaited", message, scenario_word(words));
    } else if (scenario_has(words, "present")) {
        scenario_expect_number(words, "present", job_present(job), scenario_number(words));
    } else if (scenario_has(words, "state")) {
        const int worker = (int)scenario_number(words);
        scenario_expect_number(words, "state", job_worker_state(job, worker),
                               scenario_choice(words, states, NAMES, "state"));
    } else if (scenario_has(words, "is")) {
        scenario_expect_number(words, "job's state", job->state, scenario_choice(words, job_states, NAMES, "state"));
    } else if (scenario_has(words, "step")) {
        scenario_expect_number(words, "step", (double)job->global_step, scenario_number(words));
    } else if (scenario_has(words, "last")) {
        scenario_expect_number(words, "last step", (double)job->last_step, scenario_number(words));
    } else if (scenario_has(words, "counts")) {
        expect_worker(words);
    } else if (scenario_has(words, "dropped")) {
        scenario_expect_number(words, "dropped", (double)job_dropped(job), scenario_number(words));
        scenario_expect_number(words, "not finite", (double)job_not_finite(job), scenario_number(words));
    } else {
        return expect_of_steps(words);
    }
    return true;
}

static void happens(struct scenario_words *words)
{
    struct job *job = the_job();
    if (scenario_has(words, "job")) {
        make_job(words);
    } else if (scenario_has(words, "restore")) {
        restore(words);
    } else if (scenario_has(words, "schedule")) {
        schedule(words);
    } else if (scenario_has(words, "keeps")) {
        job_hold_start(job, true);
    } else if (scenario_has(words, "lets-go")) {
        job_hold_start(job, false);
    } else if (scenario_has(words, "pass")) {
        pass(scenario_number(words));
    } else if (scenario_has(words, "wait")) {
        scenario_now_s += scenario_number(words);
    } else if (scenario_has(words, "beating")) { /* so many workers, for so long: no lease ends */
        const int workers = (int)scenario_number(words);
        for (int left_s = (int)scenario_number(words); left_s > 0; left_s--) {
            pass(1);
            for (int i = 0; i < workers; i++) {
                touch(i);
            }
        }
    } else if (scenario_has(words, "tick")) {
        tick();
    } else if (scenario_has(words, "forget")) {
        play();
        at.log[0] = '\0';
    } else if (scenario_has(words, "applies")) {
        apply(words);
    } else if (scenario_has(words, "takes")) {
        const bool is = job_take_step(job, &at.step);
        scenario_expect_number(words, "gradients", is ? at.step.count : 0, scenario_number(words));
    } else if (scenario_has(words, "completes")) {
        job_step_applied(job, &at.step, true, scenario_now_s);
    } else if (scenario_has(words, "gives-up")) {
        job_step_applied(job, &at.step, false, scenario_now_s);
    } else if (scenario_has(words, "report")) {
        report(words);
    } else if (scenario_has(words, "reports")) {
        report_as(words);
    } else if (scenario_has(words, "decides")) {
        decide(words);
    } else if (scenario_has(words, "workers")) {
        take_workers(words);
    } else if (scenario_has(words, "worker")) {
        take_worker(words);
    } else {
        scenario_fail(words, "what is \"%s\"?", scenario_word(words));
    }
    play();
}

void scenario_statement(struct scenario_words *words)
{
    at.only = scenario_has(words, "ps0") ? 0 : scenario_has(words, "ps1") ? 1 : scenario_has(words, "ps2") ? 2 : -1;
    if (!expect(words)) {
        happens(words);
    }
}

int main(int argc, char **argv)
{
    static const char *const paths[] = {"tests/ps/job/job.txt", "tests/ps/job/steps.txt"};
    return scenario_main(paths, sizeof paths / sizeof *paths, argc, argv);
}
