/*
 * The decisions of a rollout, from scenarios (tests/scenario.h; decide.txt and others beside this file): a leader with
 * a clock, the reports of members, what host and operator do; then what it decides. MEMBERS are `ps 0`, `worker 3`,
 * `all` (the listed ones), `everyone` (also those that may join), joined by `and`, or `all but worker 2`.
 *
 *     fleet PS WORKERS [ROOM]  a new one, of which nothing was heard, with room for so many workers. At first: 2 3
 *     begin KIND [PLAN] [refused "text"]      KIND: live, local, job or program; PLAN: see take_plan
 *     resume STATE KIND [PLAN] a leader that was restarted finds that on its disk
 *     restart [PLAN]           it is killed, and its next process finds what was stored
 *     MEMBERS PHASE [in 2] [of 9] [unready] [other] [steps 7] [kind 1] ["why"]      a report: the version in force, the
 *                              version it is about, that another program runs, steps and architecture
 *     training [not] NAME [VALUE]...          what is known of training: see take_vitals
 *     tick; abort; continue    the last two may be `refused "text"`
 *     extend 30; transfer; told MEMBERS       the leader stood still; programs move; orders were sent
 *
 *     is STATE ["reason"]; done; refused ["reason"]; undone ["reason"]        where it is, or how it ended
 *     order MEMBERS ORDER; at-step 1200; reads "how it is described"; holds; trains; risky; safe
 *     count 5; restarting 2; off MEMBERS; on MEMBERS; here MEMBERS; gone MEMBERS; changed; unchanged
 *     catch-up 7 4 ORDER       for a member in version 4 while 7 is in force
 *
 * Or members that do at once what they are told, four times a second, until there is a state, so many members run the
 * target, or some seconds have passed:
 *
 *     play STATE; play run 5; play for 30; play paused; play resumed
 *     model MEMBERS [not] silent|fails|kind 1|in 2; model [not] idle|other; model speed OLD NEW
 *     run 12; most 1; since 5 30              in the target now, or at most while played; seconds since `mark`
 */
#include "tests/scenario.h"

#include <math.h>

#include "ps/rollout/decide.h"

enum { MOST = 2100, MODELS = 16, NAMES = 12 };
static const double TICK_S = 0.25;

/* What the model of a member has become. */
struct model {
    uint64_t version;
    bool runs, fails, failed, silent; /* failed: back in the old program */
    int architecture;
    double steps;
};

static struct {
    struct rollout rollout;
    struct rollout_vitals vitals;
    struct rollout_plan plan; /* the last */
    uint64_t changes;         /* as last seen */
    int listed, ps, workers, room;
    bool is_played, idle, other, saved;
    double speed[2], mark_s;
    int most;
    struct model models[MODELS];
} at;

struct members {
    int count;
    struct member who[MOST];
};

static const char *const phases[NAMES] = {"here",   "staged", "switched", "back", "restored",
                                          "failed", "late",   "tried",    "saved"},
                         *const orders[NAMES] = {"nothing", "stage", "switch",  "back",   "restore",
                                                 "try",     "save",  "restart", "return", "catch-up"},
                         *const kinds[NAMES] = {"live", "local", "job", "program"};

static void make_fleet(int ps, int workers, int room)
{
    rollout_destroy(&at.rollout);
    assert_true(rollout_create(&at.rollout, ps, workers, room));
    at.ps = ps;
    at.workers = workers;
    at.room = room;
    at.listed = ps + workers;
}

void scenario_enter(void)
{
    memset(&at, 0, sizeof at);
    at.vitals = (struct rollout_vitals){.global_step = 1000, .steps_per_s = 100, .loss = 0.5, .training = true};
    at.speed[0] = at.speed[1] = 100;
    for (int i = 0; i < MODELS; i++) {
        at.models[i].version = 1;
    }
    make_fleet(2, 3, 3);
}

void scenario_leave(void)
{
    rollout_destroy(&at.rollout);
}

/* --- Who --- */

static bool take_member(struct scenario_words *words, struct member *who)
{
    const bool is_ps = scenario_has(words, "ps");
    if (!is_ps && !scenario_has(words, "worker")) {
        return false;
    }
    *who = (struct member){is_ps ? MEMBER_PS : MEMBER_WORKER, (int)scenario_number(words)};
    return true;
}

/* count 0: the next word names no members. */
static void take_members(struct scenario_words *words, struct members *members)
{
    struct member who;
    const bool all = scenario_has(words, "all"), everyone = !all && scenario_has(words, "everyone");
    members->count = 0;
    for (int i = 0; i < at.rollout.count && (all || everyone); i++) {
        if (everyone || i < at.listed) {
            members->who[members->count++] = at.rollout.members[i].who;
        }
    }
    const bool but = (all || everyone) && scenario_has(words, "but");
    while (((!all && !everyone) || but) && take_member(words, &who)) {
        for (int i = 0; but && i < members->count; i++) {
            if (members->who[i].role == who.role && members->who[i].index == who.index) {
                members->who[i] = members->who[--members->count];
            }
        }
        if (!but) {
            members->who[members->count++] = who;
        }
        if (!scenario_has(words, "and")) {
            break;
        }
    }
}

static int place_of(struct scenario_words *words, struct member who)
{
    for (int i = 0; i < at.rollout.count; i++) {
        if (at.rollout.members[i].who.role == who.role && at.rollout.members[i].who.index == who.index) {
            return i;
        }
    }
    scenario_fail(words, "there is no such member");
}

/* By its name on disk, with "-" for a space. */
static enum rollout_state take_state(struct scenario_words *words)
{
    char name[32];
    enum rollout_state state = ROLLOUT_IDLE;
    snprintf(name, sizeof name, "%s", scenario_word(words));
    for (char *dash = strchr(name, '-'); dash; dash = strchr(name, '-')) {
        *dash = ' ';
    }
    if (!rollout_state_by_name(name, &state)) {
        scenario_fail(words, "\"%s\" is no state", name);
    }
    return state;
}

/* --- Plans --- */

/* "10%" or "3". */
static uint32_t take_amount(struct scenario_words *words)
{
    char *end;
    const uint32_t number = (uint32_t)strtoul(scenario_word(words), &end, 10);
    return number | (*end == '%' ? ROLLOUT_PERCENT : 0);
}

static struct rollout_demand take_demand(struct scenario_words *words)
{
    const int listed = (int)scenario_number(words);
    return (struct rollout_demand){.listed = listed, .least = (int)scenario_number(words)};
}

static void take_kind(struct scenario_words *words)
{
    const int kind = scenario_choice(words, kinds, NAMES, "kind of rollout");
    at.plan = (struct rollout_plan){.target = 2, .fallback = 1, .healthy_s = 5};
    at.plan.kind = kind == 3 ? ROLLOUT_LOCAL : (enum rollout_kind)kind;
    at.plan.brings_program = kind == 3;
}

static void take_plan(struct scenario_words *words)
{
    struct rollout_plan *plan = &at.plan;
    struct members off;
    for (bool more = true; more;) {
        if (scenario_has(words, "versions")) {
            plan->fallback = (uint64_t)scenario_number(words);
            plan->target = (uint64_t)scenario_number(words);
        } else if (scenario_has(words, "healthy")) {
            plan->healthy_s = scenario_number(words);
        } else if (scenario_has(words, "last")) {
            plan->last_step = (int64_t)scenario_number(words);
        } else if (scenario_has(words, "from")) {
            plan->from = take_demand(words);
        } else if (scenario_has(words, "to")) {
            plan->to = take_demand(words);
        } else if (scenario_has(words, "wave")) {
            plan->waves.items[plan->waves.count++] = take_amount(words);
        } else if (scenario_has(words, "budget")) {
            plan->waves.budget = take_amount(words);
        } else if (scenario_has(words, "speed")) {
            plan->waves.least_speed = (uint32_t)scenario_number(words);
        } else if (scenario_has(words, "off")) {
            take_members(words, &off);
            plan->absent = (struct rollout_absent){{0}};
            for (int i = 0; i < off.count; i++) {
                plan->absent.bits[off.who[i].index / 8] |= (uint8_t)(1 << off.who[i].index % 8);
            }
        } else if (scenario_has(words, "may-lose")) {
            plan->may_lose = true;
        } else if (scenario_has(words, "in-target")) {
            plan->leader_is_in_target = true;
        } else if (scenario_has(words, "waited")) {
            plan->waited = true;
        } else {
            more = false;
        }
    }
}

/* Where an operator's wish may be refused. */
static void expect_answer(struct scenario_words *words, bool done, const char *message)
{
    const bool refused = scenario_has(words, "refused");
    if (done == refused) {
        scenario_fail(words, done ? "it was not refused" : "it was refused: %s", message);
    }
    if (refused) {
        scenario_expect_text(words, "refused", message, scenario_word(words));
    }
}

static void begin(struct scenario_words *words)
{
    char message[ROLLOUT_MESSAGE] = "";
    take_kind(words);
    take_plan(words);
    const bool done = rollout_begin(&at.rollout, &at.plan, &at.vitals, scenario_now_s, message);
    expect_answer(words, done, message);
}

static void resume(struct scenario_words *words)
{
    const enum rollout_state state = take_state(words);
    take_kind(words);
    take_plan(words);
    const char *reason = scenario_text(words);
    rollout_resume(&at.rollout, state, &at.plan, 0.5, reason ? reason : "", scenario_now_s);
}

static void restart_leader(struct scenario_words *words)
{
    const enum rollout_state state = at.rollout.state;
    char reason[512];
    snprintf(reason, sizeof reason, "%s", at.rollout.reason);
    at.plan.waited = at.rollout.waited;
    at.plan.absent = at.rollout.absent;
    take_plan(words);
    make_fleet(at.ps, at.workers, at.room);
    rollout_resume(&at.rollout, state, &at.plan, 0.5, reason, scenario_now_s);
}

/* --- Reports --- */

static void report(struct scenario_words *words, const struct members *members)
{
    const int phase = scenario_choice(words, phases, NAMES, "phase");
    struct rollout_report said = {.phase = (enum rollout_phase)phase,
                                  .version = 1,
                                  .target = at.rollout.target,
                                  .ready = true,
                                  .steps = 1 + (int64_t)(100 * scenario_now_s),
                                  .message = phase == PHASE_FAILED ? "can't" : ""};
    bool other = false;
    for (bool more = true; more;) {
        if (scenario_has(words, "in")) {
            said.version = (uint64_t)scenario_number(words);
        } else if (scenario_has(words, "of")) {
            said.target = (uint64_t)scenario_number(words);
        } else if (scenario_has(words, "unready")) {
            said.ready = false;
        } else if (scenario_has(words, "other")) {
            other = true;
        } else if (scenario_has(words, "steps")) {
            said.steps = (int64_t)scenario_number(words);
        } else if (scenario_has(words, "kind")) {
            said.architecture = (int)scenario_number(words);
        } else {
            const char *text = scenario_text(words);
            said.message = text ? text : said.message;
            more = false;
        }
    }
    said.runs_target = said.version == 2 && !other;
    for (int i = 0; i < members->count; i++) {
        rollout_on_report(&at.rollout, members->who[i], &said, scenario_now_s);
    }
}

static void take_vitals(struct scenario_words *words)
{
    struct rollout_vitals *vitals = &at.vitals;
    while (!scenario_ends(words)) {
        const bool is = !scenario_has(words, "not");
        if (scenario_has(words, "loss")) {
            vitals->loss = scenario_number(words);
        } else if (scenario_has(words, "step")) {
            const char *step = scenario_word(words);
            vitals->global_step = (step[0] == '+' ? vitals->global_step : 0) + strtoll(step, NULL, 10);
        } else if (scenario_has(words, "speed")) {
            vitals->steps_per_s = scenario_number(words);
        } else if (scenario_has(words, "chance")) {
            vitals->chance_loss = scenario_number(words);
        } else if (scenario_has(words, "coming")) {
            vitals->may_come_s = scenario_number(words);
        } else if (scenario_has(words, "under-way")) {
            vitals->under_way = (int)scenario_number(words);
        } else if (scenario_has(words, "generation")) {
            vitals->generation = (uint32_t)scenario_number(words);
        } else if (scenario_has(words, "runs")) {
            vitals->training = is;
        } else if (scenario_has(words, "waits")) {
            vitals->waits = is;
        } else if (scenario_has(words, "unsure")) {
            vitals->unsure = is;
        } else if (scenario_has(words, "in-step")) {
            vitals->in_step = is;
        } else if (scenario_has(words, "over")) {
            vitals->over = is;
        } else {
            scenario_fail(words, "what is \"%s\" of training?", scenario_word(words));
        }
    }
}

/* --- Members that obey --- */

static void model_obeys(int i)
{
    struct model *model = &at.models[i];
    const struct member who = at.rollout.members[i].who;
    const enum rollout_order order = rollout_order(&at.rollout, who);
    rollout_delivered(&at.rollout, who);
    model->failed = model->failed || (order == ORDER_RESTART && model->fails);
    if (model->silent || model->failed) {
        return;
    }
    if (order == ORDER_RESTART || order == ORDER_RETURN) {
        const bool forward = order == ORDER_RESTART;
        model->steps = model->runs == forward ? model->steps : 0;
        model->version = forward ? 2 : 1;
        model->runs = forward;
    }
    at.saved = at.saved || order == ORDER_SAVE;
}

static void model_reports(int i)
{
    struct model *model = &at.models[i];
    const struct member who = at.rollout.members[i].who;
    const struct rollout_report said = {.phase = model->failed                       ? PHASE_FAILED
                                                 : rollout_is_chief(who) && at.saved ? PHASE_SAVED
                                                 : model->version == 2               ? PHASE_SWITCHED
                                                                                     : PHASE_STAGED,
                                        .version = model->version,
                                        .target = 2,
                                        .ready = true,
                                        .runs_target = model->runs && !at.other,
                                        .architecture = model->architecture,
                                        .steps = model->runs && at.idle ? 0 : 10 + (int64_t)model->steps,
                                        .message = model->failed ? "it failed" : ""};
    model->steps += TICK_S * at.speed[model->runs];
    if (!model->silent) {
        rollout_on_report(&at.rollout, who, &said, scenario_now_s);
    }
}

static int models_in_target(int first, int last)
{
    int there = 0;
    for (int i = first; i < last; i++) {
        there += at.models[i].version == 2;
    }
    return there;
}

/* A quarter of a second. Whatever is played, no ps restarts before all workers that take part have, and worker 0 has
   saved, nor ps 0 before the others. */
static void play_tick(struct scenario_words *words)
{
    scenario_now_s += TICK_S;
    at.vitals.global_step += 25;
    const bool forward = at.rollout.state == ROLLOUT_SWITCHING;
    for (int i = at.rollout.count - 1; i >= 0; i--) {
        model_reports(i);
        model_obeys(i);
    }
    rollout_tick(&at.rollout, &at.vitals, scenario_now_s);
    const int there = models_in_target(0, at.rollout.count), ps = models_in_target(0, at.ps);
    at.most = there > at.most ? there : at.most;
    if (forward && at.plan.brings_program && ps > 0 && (!at.saved || there - ps < waves_workers(&at.rollout))) {
        scenario_fail(words, "a ps restarted before the workers had, and the job was saved");
    }
    if (forward && at.plan.brings_program && at.models[0].version == 2 && ps < at.ps) {
        scenario_fail(words, "ps 0 was not the last ps to restart");
    }
}

static void play(struct scenario_words *words)
{
    const double from_s = scenario_now_s;
    enum { FOR, RUN, PAUSED, RESUMED, STATE } until = STATE;
    static const char *const names[] = {"for", "run", "paused", "resumed"};
    double number = 0;
    for (int i = FOR; i < STATE && until == STATE; i++) {
        until = scenario_has(words, names[i]) ? (int)i : STATE;
    }
    if (until == STATE) {
        number = take_state(words);
    } else if (until <= RUN) {
        number = scenario_number(words);
    }
    for (bool there = false; !there;) {
        play_tick(words);
        const double passed_s = scenario_now_s - from_s;
        there = until == FOR       ? passed_s >= number
                : until == RUN     ? models_in_target(0, at.rollout.count) >= (int)number
                : until == PAUSED  ? at.rollout.is_paused
                : until == RESUMED ? !at.rollout.is_paused
                                   : at.rollout.state == (enum rollout_state)number;
        if (!there && passed_s > 300) {
            scenario_fail(words, "it is still %s: %s", rollout_state_name(at.rollout.state), at.rollout.reason);
        }
    }
}

static void set_model(struct scenario_words *words)
{
    struct members members;
    take_members(words, &members);
    const bool is = !scenario_has(words, "not");
    if (members.count == 0 && scenario_has(words, "idle")) {
        at.idle = is;
    } else if (members.count == 0 && scenario_has(words, "other")) {
        at.other = is;
    } else if (members.count == 0 && scenario_has(words, "speed")) {
        at.speed[0] = scenario_number(words);
        at.speed[1] = scenario_number(words);
    } else if (members.count > 0) {
        static const char *const names[] = {"silent", "fails", "kind", "in"};
        const int what = scenario_choice(words, names, 4, "property of a member");
        const double number = what >= 2 ? scenario_number(words) : 0;
        for (int i = 0; i < members.count; i++) {
            struct model *model = &at.models[place_of(words, members.who[i])];
            model->silent = what == 0 ? is : model->silent;
            model->fails = what == 1 ? is : model->fails;
            model->architecture = what == 2 ? (int)number : model->architecture;
            model->version = what == 3 ? (uint64_t)number : model->version;
            model->runs = what == 3 ? number > 1 : model->runs;
        }
    } else {
        scenario_fail(words, "whose property?");
    }
}

/* --- Expectations --- */

static void expect_state(struct scenario_words *words, enum rollout_state state, enum rollout_outcome outcome)
{
    const char *reason = scenario_text(words);
    if (at.rollout.state != state ||
        (state == ROLLOUT_IDLE && outcome != OUTCOME_NONE && at.rollout.outcome != outcome)) {
        scenario_fail(words, "expected it to be %s, but it is %s, outcome %d: %s", rollout_state_name(state),
                      rollout_state_name(at.rollout.state), (int)at.rollout.outcome, at.rollout.reason);
    }
    if (reason) {
        scenario_expect_text(words, "reason", at.rollout.reason, reason);
    }
}

static void expect_order(struct scenario_words *words)
{
    struct members members;
    take_members(words, &members);
    const int wanted = scenario_choice(words, orders, NAMES, "order");
    for (int i = 0; i < members.count; i++) {
        const enum rollout_order order = rollout_order(&at.rollout, members.who[i]);
        if (order != (enum rollout_order)wanted) {
            scenario_fail(words, "%s %d: expected order %s, got %s", members.who[i].role == MEMBER_PS ? "ps" : "worker",
                          members.who[i].index, orders[wanted], orders[order]);
        }
    }
}

static void expect_members(struct scenario_words *words, bool (*is)(struct scenario_words *, struct member),
                           bool wanted)
{
    struct members members;
    take_members(words, &members);
    for (int i = 0; i < members.count; i++) {
        if (is(words, members.who[i]) != wanted) {
            scenario_fail(words, "member %d is not", members.who[i].index);
        }
    }
}

static bool is_off(struct scenario_words *words, struct member who)
{
    return rollout_is_absent(&at.rollout.absent, who);
}

static bool is_here(struct scenario_words *words, struct member who)
{
    return rollout_is_here(&at.rollout.members[place_of(words, who)], scenario_now_s);
}

static int count_told(enum rollout_order order)
{
    int told = 0;
    for (int i = 0; i < at.rollout.count; i++) {
        told += rollout_order(&at.rollout, at.rollout.members[i].who) == order;
    }
    return told;
}

static void expect_changes(struct scenario_words *words, bool wanted)
{
    if ((at.rollout.changes != at.changes) != wanted) {
        scenario_fail(words, wanted ? "expected a change to store" : "expected nothing to store");
    }
    at.changes = at.rollout.changes;
}

static void expect_catch_up(struct scenario_words *words)
{
    const uint64_t in_force = (uint64_t)scenario_number(words), version = (uint64_t)scenario_number(words);
    const int wanted = scenario_choice(words, orders, NAMES, "order");
    const enum rollout_order got = rollout_catch_up(&at.rollout, in_force, version);
    if (got != (enum rollout_order)wanted) {
        scenario_fail(words, "expected %s, got %s", orders[wanted], orders[got]);
    }
}

static void expect_text(struct scenario_words *words)
{
    char text[512];
    rollout_describe(&at.rollout, text, sizeof text);
    scenario_expect_text(words, "described", text, scenario_word(words));
}

/* False if the statement is none of these. */
static bool is_expectation(struct scenario_words *words)
{
    if (scenario_has(words, "is")) {
        const enum rollout_state state = take_state(words);
        expect_state(words, state, OUTCOME_NONE);
    } else if (scenario_has(words, "done")) {
        expect_state(words, ROLLOUT_IDLE, OUTCOME_DONE);
    } else if (scenario_has(words, "refused")) {
        expect_state(words, ROLLOUT_IDLE, OUTCOME_NOT_BEGUN);
    } else if (scenario_has(words, "undone")) {
        expect_state(words, ROLLOUT_IDLE, OUTCOME_WENT_BACK);
    } else if (scenario_has(words, "order")) {
        expect_order(words);
    } else if (scenario_has(words, "at-step")) {
        scenario_expect_number(words, "step", (double)rollout_order_step(&at.rollout), scenario_number(words));
    } else if (scenario_has(words, "reads")) {
        expect_text(words);
    } else if (scenario_has(words, "holds")) {
        scenario_expect_number(words, "the job is held", rollout_holds_job(&at.rollout), 1);
    } else if (scenario_has(words, "trains")) {
        scenario_expect_number(words, "the job is held", rollout_holds_job(&at.rollout), 0);
    } else if (scenario_has(words, "risky") || scenario_has(words, "safe")) {
        const bool wanted = strcmp(words->word[words->next - 1], "risky") == 0;
        scenario_expect_number(words, "risky", rollout_state_is_risky(at.rollout.state), wanted);
    } else if (scenario_has(words, "count")) {
        scenario_expect_number(words, "members", rollout_count_members(&at.rollout), scenario_number(words));
    } else if (scenario_has(words, "restarting")) {
        scenario_expect_number(words, "told to restart", count_told(ORDER_RESTART), scenario_number(words));
    } else if (scenario_has(words, "off")) {
        expect_members(words, is_off, true);
    } else if (scenario_has(words, "on")) {
        expect_members(words, is_off, false);
    } else if (scenario_has(words, "here")) {
        expect_members(words, is_here, true);
    } else if (scenario_has(words, "gone")) {
        expect_members(words, is_here, false);
    } else if (scenario_has(words, "changed")) {
        expect_changes(words, true);
    } else if (scenario_has(words, "unchanged")) {
        expect_changes(words, false);
    } else if (scenario_has(words, "catch-up")) {
        expect_catch_up(words);
    } else if (scenario_has(words, "run")) {
        scenario_expect_number(words, "in the target", models_in_target(0, at.rollout.count), scenario_number(words));
    } else if (scenario_has(words, "most")) {
        scenario_expect_number(words, "most in the target", at.most, scenario_number(words));
    } else if (scenario_has(words, "since")) {
        const double least_s = scenario_number(words), most_s = scenario_number(words);
        if (scenario_now_s - at.mark_s < least_s || scenario_now_s - at.mark_s > most_s) {
            scenario_fail(words, "expected %g to %g s, got %g", least_s, most_s, scenario_now_s - at.mark_s);
        }
    } else {
        return false;
    }
    return true;
}

static void happens(struct scenario_words *words)
{
    char message[ROLLOUT_MESSAGE] = "";
    struct members members;
    if (scenario_has(words, "tick")) {
        rollout_tick(&at.rollout, &at.vitals, scenario_now_s);
    } else if (scenario_has(words, "begin")) {
        begin(words);
    } else if (scenario_has(words, "resume")) {
        resume(words);
    } else if (scenario_has(words, "restart")) {
        restart_leader(words);
    } else if (scenario_has(words, "training")) {
        take_vitals(words);
    } else if (scenario_has(words, "abort")) {
        const bool done = rollout_abort(&at.rollout, scenario_now_s, message);
        expect_answer(words, done, message);
    } else if (scenario_has(words, "continue")) {
        const bool done = rollout_continue(&at.rollout, scenario_now_s, message);
        expect_answer(words, done, message);
    } else if (scenario_has(words, "extend")) {
        rollout_extend_deadlines(&at.rollout, scenario_number(words));
    } else if (scenario_has(words, "transfer")) {
        rollout_note_transfer(&at.rollout, scenario_now_s);
    } else if (scenario_has(words, "told")) {
        take_members(words, &members);
        for (int i = 0; i < members.count; i++) {
            rollout_delivered(&at.rollout, members.who[i]);
        }
    } else if (scenario_has(words, "fleet")) {
        const int ps = (int)scenario_number(words), workers = (int)scenario_number(words);
        make_fleet(ps, workers, scenario_ends(words) ? workers : (int)scenario_number(words));
    } else if (scenario_has(words, "play")) {
        play(words);
    } else if (scenario_has(words, "model")) {
        set_model(words);
    } else if (scenario_has(words, "mark")) {
        at.mark_s = scenario_now_s;
    } else {
        take_members(words, &members);
        if (members.count == 0) {
            scenario_fail(words, "what is \"%s\"?", scenario_word(words));
        }
        report(words, &members);
    }
}

void scenario_statement(struct scenario_words *words)
{
    if (!is_expectation(words)) {
        happens(words);
    }
}

int main(int argc, char **argv)
{
    static const char *const paths[] = {"tests/ps/rollout/decide.txt", "tests/ps/rollout/members.txt",
                                        "tests/ps/rollout/waves.txt"};
    return scenario_main(paths, sizeof paths / sizeof *paths, argc, argv);
}
