/*
 * Machines in order: the ps, then the workers, worker 0 being the chief. A process that is killed, or ends with an
 * error, is restarted by what stands for the operator's service manager. Unlisted workers come and go. Faults occur for
 * some seconds and then stop; from then on training must reach its end.
 */
#include "tests/simulate/cluster.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/process/restart.h"
#include "ps/job/job.h"
#include "ps/server.h"
#include "tests/simulate/fleet.h"
#include "tests/simulate/oracle.h"
#include "tests/simulate/programs.h"
#include "tests/simulate/world.h"
#include "worker/remote/worker.h"

enum { TABLE_COLOURS = 12 }; /* categories */
enum { MOST_SETTINGS = 40, FIRST_PORT = 2000, MOST_FAULTS = 12, MOST_UNLISTED = 2, MOST_VISITS = 3 };

static const double TIMEOUT_S = 400; /* for training to end once faults have stopped */
static const double LOOKUP_S = 10;   /* of a thread that may be delayed at each of its locks */
static const double GRACE_S = 20, LEAVE_S = 60, ROLL_OUT_S = 1000, MOST_LATE_S = 90;

static struct {
    struct config_setting settings[MOST_SETTINGS];
    char texts[MOST_SETTINGS][512];
    int setting_count;
    double calm_s; /* no faults from then on */
    double restart_s[WORLD_MAX_MACHINES];
    double depart_s[WORLD_MAX_MACHINES]; /* of the unlisted ones; 0: not known yet */
    int visits[WORLD_MAX_MACHINES];
    struct machine *gone; /* a worker that is lost for good, once it is lost; NULL: none will be */
    bool is_gone;
    bool may_rot; /* the chief's disk may break its promises, and does so once */
    int late;     /* listed workers that come so late that a job waiting for them is given other configs */
    int faults;
    bool disk_was_full, over, leaving; /* disk_was_full: or failed otherwise */
    bool clocks_differ;                /* and there is no other fault */
} run;

static void set(const char *key, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void set(const char *key, const char *format, ...)
{
    va_list arguments;
    char *text = run.texts[run.setting_count];
    va_start(arguments, format);
    vsnprintf(text, sizeof run.texts[0], format, arguments);
    va_end(arguments);
    run.settings[run.setting_count++] = (struct config_setting){key, text};
}

static bool is_ps(const struct machine *machine)
{
    return machine->number < oracle.ps;
}

static struct machine *chief(void)
{
    return &world.machines[oracle.ps];
}

/* --- Processes --- */

/* The thread of an abandoned lookup is never joined; it soon ends by itself, and leaves nothing behind. */
static void await_lookups(const struct machine *machine)
{
    const double until_s = world.now_s + LOOKUP_S;
    while (machine->thread_count > 1 && world.now_s < until_s) {
        thread_block(machine, world.now_s + 0.001);
    }
}

static int run_role(struct machine *machine)
{
    struct config config = {0};
    struct error error;
    char index[16];
    struct config_setting settings[MOST_SETTINGS + 2];
    memcpy(settings, run.settings, (size_t)run.setting_count * sizeof settings[0]);
    snprintf(index, sizeof index, "%d", is_ps(machine) ? machine->number : machine->number - oracle.ps);
    settings[run.setting_count] = (struct config_setting){"job_name", is_ps(machine) ? "ps" : "worker"};
    settings[run.setting_count + 1] = (struct config_setting){"task_index", index};
    const struct config_setting *own = &settings[run.setting_count];
    const int died = programs_live(machine);
    if (died != 0) {
        return died;
    }
    bool loaded = fleet_rolls() ? fleet_load(machine, &config, own, 2, &error)
                                : config_parse(&config, "simulation", NULL, 0, settings, run.setting_count + 2, &error);
    if (!loaded) {
        if (shortage.kind != SHORT_OF_MEMORY && !disk_is_rotten(machine->disk)) {
            fail("the run's own config is wrong: %s", error.text);
        }
        say("error: %s", error.text); /* as the program's main logs it */
        return 2;
    }
    if (fleet_dies_of(&config)) {
        config_free(&config);
        say("error: it can't run in this version");
        return 1;
    }
    int status = is_ps(machine) ? server_run(&config) : remote_worker_run(&config);
    config_free(&config);
    if (status != 0 && status != RESTART_STATUS && status < 128 && !machine->complained) {
        fail("%s ends with status %d and does not say why", machine->name, status);
    }
    await_lookups(machine);
    if (machine->bytes > 0 || machine->thread_count > 1) {
        fail("%s ends in order and leaves %zu bytes of memory and %d threads behind", machine->name, machine->bytes,
             machine->thread_count - 1);
    }
    return status;
}

static bool comes_and_goes(const struct machine *machine)
{
    return machine->number >= oracle.ps + oracle.listed && machine->main == run_role;
}

/* Leaves in order or silently; some for good, some for a while in which little or much may happen. */
static void let_go(struct machine *machine)
{
    double *when_s = &run.depart_s[machine->number];
    if (*when_s == 0) {
        *when_s = ++run.visits[machine->number] <= MOST_VISITS ? world.now_s + 60 * chance_real() : INFINITY;
    } else if (world.now_s >= *when_s && !run.leaving) {
        const double away_s = chance(4) == 0 ? 1e9 : 40 * chance_real();
        *when_s = 0;
        run.restart_s[machine->number] = world.now_s + away_s;
        world.here = machine;
        say("goes for %.0f s", away_s);
        if (chance(2) == 0) {
            machine_kill(machine);
        } else {
            machine->signal = 15;
        }
        world.here = NULL;
    }
}

/*
 * Listed ones except the chief: one, or each with some probability. Some return in the middle of what follows, some
 * long after.
 */
static void switch_workers_off(void)
{
    const int others = oracle.listed - 1, only = others > 0 && chance(2) == 0 ? 1 + (int)chance((uint64_t)others) : 0;
    for (int i = 1; i <= others; i++) {
        struct machine *machine = &world.machines[oracle.ps + i];
        const double away_s = 10 + (chance(2) == 0 ? 20 : 120) * chance_real();
        if (!machine->runs || (only > 0 ? i != only : chance(2) == 0)) {
            continue;
        }
        run.faults++;
        run.restart_s[machine->number] = world.now_s + away_s;
        world.here = machine;
        say("is switched off for %.0f s", away_s);
        machine_kill(machine);
        world.here = NULL;
    }
}

static void look_after(struct machine *machine)
{
    double *when_s = &run.restart_s[machine->number];
    if (machine->runs || run.leaving || machine->main != run_role || (run.is_gone && machine == run.gone)) {
        return;
    }
    if (comes_and_goes(machine) && machine->life > 0 && machine->status == 0 && machine->signal == 0 && !run.over) {
        fail("%s ends, though there is room for it", machine->name);
    }
    if (machine->status == RESTART_STATUS) {
        oracle_forget(machine);
        programs_started(machine, true);
        machine_start(machine);
        return;
    }
    if (machine == chief() && machine->status >= 0 && run.over &&
        (machine->status == 0 || (machine->status == 1 && run.disk_was_full))) {
        return;
    }
    if (*when_s == 0) {
        oracle_forget(machine);
        *when_s = world.now_s + 0.1 + 2 * chance_real();
    } else if (world.now_s >= *when_s) {
        *when_s = 0;
        programs_started(machine, false);
        machine_start(machine);
        world.here = machine;
        say("starts");
        world.here = NULL;
    }
}

/* What the ps are told at the end. */
void __real_job_end(struct job *job, int worker, const struct message_end_job *message, double now_s,
                    struct verdict *verdict);
void __wrap_job_end(struct job *job, int worker, const struct message_end_job *message, double now_s,
                    struct verdict *verdict);
void __wrap_job_end(struct job *job, int worker, const struct message_end_job *message, double now_s,
                    struct verdict *verdict)
{
    __real_job_end(job, worker, message, now_s, verdict);
    if (verdict->code == 0 && (message->job_state == JOB_DONE || shortage.kind == SHORT_OF_MEMORY)) {
        run.over = true; /* a chief without memory may give up, and reports it */
    } else if (verdict->code == 0) {
        fail("the chief calls the job failed: %s", message->message);
    }
}

/* --- The cluster --- */

static void add_machine(const char *role, int index)
{
    struct machine *machine = &world.machines[world.machine_count];
    machine->number = world.machine_count++;
    machine->port = (uint16_t)(FIRST_PORT + machine->number);
    machine->main = run_role;
    machine->disk = disk_new();
    snprintf(machine->name, sizeof machine->name, "%s %d", role, index);
}

static void list_hosts(const char *key, int first, int count)
{
    char list[512];
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        used += (size_t)snprintf(list + used, sizeof list - used, "%sh%d:%d", i > 0 ? "," : "", first + i,
                                 FIRST_PORT + first + i);
    }
    set(key, "%s", list);
}

/* Usually few machines: they cause as much trouble as many and cost less. */
static int draw_count(int most)
{
    int count = 1 + (int)chance(3);
    return chance(12) == 0 ? 1 + (int)chance((uint64_t)most) : count < most ? count : most;
}

/* Rounds with participation below 1, of those that come first, or of those that come in time. */
static void draw_rounds(void)
{
    oracle.local_steps = 2 + oracle.seed % 4;
    set("local_steps", "%d", oracle.local_steps);
    set("data_sharding", "own");
    set("validate_steps", "%d", oracle.seed % 4);
    if (chance(2) == 0) {
        oracle.participation = 0.1 + 0.8 * chance_real();
        oracle.over_selection = chance(2) == 0 ? 1 + 2 * chance_real() : 1;
        set("participation", "%.9g", oracle.participation);
        set("over_selection", "%.9g", oracle.over_selection);
    }
    if (chance(2) == 0) {
        oracle.deadline_s = 0.05 + 2 * chance_real();
        set("round_deadline_secs", "%.9g", oracle.deadline_s);
    }
}

/* Asynchronous rounds, with few enough steps that a slow worker can do them alone. */
static void draw_buffer(void)
{
    oracle.local_steps = 2 + oracle.seed % 2;
    oracle.buffer = 1 + oracle.seed / 3 % 3;
    set("local_steps", "%d", oracle.local_steps);
    set("buffer_size", "%d", oracle.buffer);
    set("data_sharding", "own");
}

static void draw_wire(void)
{
    oracle.bfloat16 = chance(4) == 0;
    oracle.int8 = oracle.bfloat16 && oracle.seed % 2 == 0;
    set("wire_dtype", "%s", oracle.int8 ? "int8" : oracle.bfloat16 ? "bfloat16" : "float32");
}

/*
 * Rows that need all kinds of preprocessing: a scale, missing values, categories. All machines have the same; or, if
 * rows stay where they are, the same columns and categories with other numbers, so that the combined preprocessing
 * shows whose rows were included.
 */
static void write_rows(struct disk *disk, const char *path, int worker, int count)
{
    char text[4096];
    size_t used = (size_t)snprintf(text, sizeof text, "size,load,colour,kind\n");
    for (int i = 0; i < count; i++) {
        char load[16] = "";
        if (i % 7 != 3) {
            snprintf(load, sizeof load, "%d", i * i % 11 + worker);
        }
        used += (size_t)snprintf(text + used, sizeof text - used, "%g,%s,c%d,%c\n", 0.5 * i + 3 * worker, load,
                                 (i + worker) % TABLE_COLOURS, 'a' + i % ORACLE_COLUMNS);
    }
    disk_put(disk, path, text, used);
}

/*
 * In some clusters, and more often where it matters whose rows were included. Numbers, indicator, categories and the
 * one for rare values are as many inputs as the model has.
 */
static void draw_table(void)
{
    enum { TEST_ROWS = 8 };
    _Static_assert(2 + 1 + TABLE_COLOURS + 1 == ORACLE_ROWS, "the inputs of write_rows");
    oracle.has_table = oracle.seed % (oracle.local_steps > 1 ? 2 : 4) == 1;
    if (!oracle.has_table) {
        return;
    }
    set("data_dir", "/data");
    set("target", "kind");
    set("memory_mb", "64"); /* rows fit even if a new config has none */
    set("category_min", "1");
    for (int i = 0; i < oracle.workers; i++) {
        struct disk *disk = world.machines[oracle.ps + i].disk;
        disk_put(disk, "/data", NULL, 0);
        write_rows(disk, "/data/train.csv", oracle.local_steps > 1 ? i : 0, oracle_examples(i));
        write_rows(disk, "/data/test.csv", 0, TEST_ROWS);
    }
}

static void draw_cluster(bool rolls)
{
    oracle = (struct oracle){.ps = draw_count(4),
                             .workers = draw_count(WORKERS_MAX_SIMULATED),
                             .synchronous = chance(2) == 0,
                             .last_step = 4 + (int64_t)chance(20),
                             .seed = 1 + (int)chance(1000),
                             .local_steps = 1,
                             .participation = 1,
                             .over_selection = 1,
                             .not_finite = chance(8) == 0 ? 0.1 : 0};
    double slowness_s = 0.01 + 0.1 * chance_real();
    oracle.listed = oracle.workers;
    if (chance(rolls ? 3 : 6) == 0 && oracle.listed <= WORKERS_MAX_SIMULATED - MOST_UNLISTED) {
        oracle.workers += 1 + (int)chance(MOST_UNLISTED);
        set("elastic", "true");
    }
    if (rolls) {
        oracle.last_step = 0;
        slowness_s = 0.1 * (1 + oracle.workers) * (1 + 2 * chance_real());
    }
    for (int i = 0; i < oracle.ps; i++) {
        add_machine("ps", i);
    }
    for (int i = 0; i < oracle.workers; i++) {
        add_machine("worker", i);
        oracle.slowness_s[i] = slowness_s * (chance(8) == 0 ? 10 : 1);
    }
    list_hosts("ps_hosts", 0, oracle.ps);
    list_hosts("worker_hosts", oracle.ps, oracle.listed);
    set("insecure", "true");
    set("issync", "%s", oracle.synchronous ? "true" : "false");
    set("layers", "%d,%d", ORACLE_ROWS, ORACLE_COLUMNS);
    set("initializer", "truncated_normal");
    set("init_stddev", "0");
    set("learning_rate", "1");
    set("batch_size", "1");
    set("validation_size", "0");
    set("train_steps", "%lld", rolls ? 100000LL : (long long)oracle.last_step);
    set("seed", "%d", oracle.seed);
    set("train_dir", "/run");
    set("log_steps", "0");
    set("save_summaries_steps", "0");
    set("progress", "false");
    set("save_model_secs", "%g", chance(3) == 0 ? 0 : 0.1 + 2 * chance_real());
    oracle.save_steps = (int64_t)chance(8);
    set("save_steps", "%lld", (long long)oracle.save_steps);
    const int kept = 1 + (int)chance(4);
    run.may_rot = !rolls && kept > 1;
    set("max_to_keep", "%d", kept);
    set("lease_secs", "%g", 0.5 + 2 * chance_real());
    set("recovery_wait_secs", "%g", 0.05 + chance_real());
    run.late = rolls && oracle.listed > 1 && chance(4) == 0 ? 1 + (int)chance((uint64_t)oracle.listed - 1) : 0;
    /* The others must be able to continue without the one that is lost for good. */
    run.gone = !rolls && oracle.listed > 1 && chance(3) == 0 ? &world.machines[oracle.ps + oracle.listed - 1] : NULL;
    const uint64_t there = (uint64_t)(oracle.listed - (run.gone ? 1 : 0));
    set("min_workers", "%d", run.late > 0 ? oracle.listed : 1 + (int)chance(there));
    set("momentum", "0");
    draw_wire();
    if (!rolls && !oracle.bfloat16 && oracle.seed % 3 == 0) {
        (oracle.synchronous ? draw_rounds : draw_buffer)();
    }
    if (oracle.participation < 1) {
        set("min_replicas", "%d", there > 1 && oracle.seed % 11 == 0 ? 2 : 1);
    } else if (oracle.synchronous && chance(3) == 0) {
        set("replicas_to_aggregate", "%d", 1 + (int)chance(there));
    } else if (!oracle.synchronous && chance(3) == 0) {
        set("max_staleness", "%d", 1 + (int)chance(4));
    } else if (!oracle.synchronous && oracle.buffer == 0 && chance(3) == 0) {
        set("pipeline_depth", "%d", 1 + (int)chance(3));
    }
}

/* --- Faults --- */

static void fill_disk(void *context, uint64_t full)
{
    disk_fill(((struct machine *)context)->disk, full != 0);
}

static void set_latency(void *context, uint64_t microseconds)
{
    (void)context;
    network_latency_s = (double)microseconds * 1e-6;
}

static double until_calm(double most_s)
{
    double until_s = world.now_s + most_s * chance_real();
    return until_s < run.calm_s ? until_s : run.calm_s;
}

static void kill_all(void *context, uint64_t count)
{
    (void)context;
    for (int i = 0; i < world.machine_count && i < (int)count; i++) {
        machine_kill(&world.machines[i]);
    }
}

static void kill_one(void *context, uint64_t number)
{
    (void)context;
    if (!run.over && !run.leaving && world.machines[number].runs) {
        run.faults++;
        world.here = &world.machines[number];
        say("is killed");
        machine_kill(&world.machines[number]);
        world.here = NULL;
    }
}

/* --- Disks that break their promises --- */

static bool is_checkpoint(const char *path)
{
    const size_t length = strlen(path);
    return strncmp(path, "/run/model-", 11) == 0 && length > 12 && strcmp(path + length - 12, ".safetensors") == 0;
}

static void expect_sound_ones(void)
{
    const char *last;
    disk_sound(chief()->disk, is_checkpoint, &last);
    oracle_lose(last ? strtoll(last + 11, NULL, 10) : -1);
}

static void lose_power(void *context, uint64_t argument)
{
    struct machine *machine = context;
    (void)argument;
    if (run.over || run.leaving) {
        return;
    }
    world.here = machine;
    say("loses power");
    network_silence(machine);
    machine_kill(machine);
    disk_lose_power(machine->disk);
    if (machine == chief() && !run.may_rot) {
        expect_sound_ones();
    }
    world.here = NULL;
}

static void repair(void *context, uint64_t argument)
{
    (void)argument;
    say("a disk is repaired");
    disk_heal(context);
    oracle.rotten = false;
}

/* Everything there; until the repair, no process that starts may start from nothing. */
static void rot_all(struct disk *disk)
{
    oracle.rotten = true;
    while (disk_rot(disk, is_checkpoint)) {
    }
    machine_kill(chief());
    world_at(world.now_s + 10 * chance_real(), repair, disk, 0);
}

/* Of things stored twice, one may rot: not this one. */
static bool is_spare(const char *path)
{
    const bool is_copy = strstr(path, ".copy");
    return strstr(path, "/probation-") && is_copy != (oracle.seed % 2 == 0);
}

static bool is_of_rollout(const char *path)
{
    return strncmp(path, "/etc/config.json.d/", 19) == 0 && !strstr(path, "/audit.log") && !strstr(path, ".tmp") &&
           !strstr(path, "/base") && !is_spare(path);
}

static bool is_number_in_force(const char *path)
{
    return strcmp(path, "/etc/config.json.d/current") == 0;
}

static bool is_version(const char *path)
{
    static const char some[] = "/etc/config.json.d/00000003.json";
    return is_of_rollout(path) && strlen(path) == strlen(some) && strcmp(path + strlen(some) - 5, ".json") == 0;
}

/* On ps 0 none does: the others get theirs from there, and it could ask nobody. */
static bool is_program(const char *path)
{
    const size_t length = strlen(path);
    return strncmp(path, "/etc/trainer.d/", 15) == 0 && strcmp(path + length - 8, "/trainer") == 0;
}

/* One file of a member's rollout records rots, and its next process meets it. */
static void rot_history(void *context, uint64_t argument)
{
    static bool (*const which[])(const char *path) = {is_number_in_force, is_version, is_of_rollout, is_of_rollout};
    struct machine *machine = &world.machines[chance((uint64_t)oracle.ps + (uint64_t)oracle.workers)];
    (void)context;
    (void)argument;
    const uint64_t kind = chance(sizeof which / sizeof *which);
    const bool of_program = programs_roll() && machine->number > 0 && chance(3) == 0;
    if (!run.leaving && world.now_s < run.calm_s && disk_rot(machine->disk, of_program ? is_program : which[kind])) {
        run.faults++;
        programs_excuse(machine);
        machine_kill(machine);
        world_at(world.now_s + 10 * chance_real(), repair, machine->disk, 0);
    }
}

/* One checkpoint rots, or is not where the disk says it is; another exists, and is found. Or all do. */
static void break_word(void)
{
    const char *last;
    struct disk *disk = chief()->disk;
    if (!run.may_rot || disk_sound(disk, is_checkpoint, &last) < 2) {
        return;
    }
    run.may_rot = false;
    world.here = chief();
    if (chance(3) == 0) {
        rot_all(disk);
    } else if (chance(2) == 0) {
        disk_rot(disk, is_checkpoint);
        expect_sound_ones();
    } else {
        say("the disk will lie");
        disk_lie(disk);
        world_at(until_calm(4), lose_power, chief(), 0);
    }
}

/* --- Random faults --- */

static void drift(void *context, uint64_t percent)
{
    machine_drift(context, (double)percent / 100 - 1);
}

/* Its clocks run between a quarter and four times as fast, for longer than any lease. */
static void drift_for_a_while(struct machine *machine)
{
    const double until_s = until_calm(20);
    machine_drift(machine, (chance(2) == 0 ? 0.25 + 0.75 * chance_real() : 1 + 3 * chance_real()) - 1);
    say("clocks run at %.2f of their pace until %.3f", 1 + machine->clock_drift, until_s);
    world_at(until_s, drift, machine, 100);
}

/*
 * Switched off, or cut off in one direction or both, from all or from one ps only, never to return: the others must do
 * without it.
 */
static void lose_for_good(struct machine *machine)
{
    static const char *const hows[] = {"is apart from", "sends nothing that comes to", "gets nothing from"};
    const uint64_t how = chance(4);
    struct machine *from = chance(2) == 0 ? &world.machines[chance((uint64_t)oracle.ps)] : NULL;
    run.is_gone = true;
    run.restart_s[machine->number] = INFINITY; /* whatever else happens to it */
    world.here = machine;
    if (how == 3) {
        say("is switched off, for good");
        machine_kill(machine);
    } else {
        say("%s %s, for good", hows[how], from ? from->name : "all");
        network_part(machine, from, (enum partition)how, INFINITY);
    }
}

/* Between the two (other NULL: between the one and all). */
static void fault_of_links(struct machine *one, struct machine *other)
{
    const char *name = other ? other->name : "all";
    const double until_s = until_calm(8);
    switch (chance(5)) {
    case 0:
        say("links to %s are cut", name);
        network_cut(one, other);
        break;
    case 1:
        say("links to %s are half-open", name);
        network_half_open(one, other);
        break;
    case 2:
        say("is apart from %s until %.3f", name, until_s);
        network_part(one, other, PART_BOTH, until_s);
        break;
    default:
        say("sends nothing that comes to %s until %.3f", name, until_s);
        network_part(one, other, PART_FROM, until_s);
        break;
    }
}

/* A random fault of one machine, perhaps on its links with the other one (NULL: with all). */
static void fault_by_chance(struct machine *one, struct machine *other)
{
    switch (chance(18)) {
    case 0:
    case 1:
        say("is killed");
        machine_kill(one);
        break;
    case 2:
        lose_power(one, 0);
        break;
    case 3:
        one->frozen_until_s = until_calm(6);
        say("is frozen until %.3f", one->frozen_until_s);
        break;
    case 4:
    case 5:
    case 6:
    case 13:
    case 14:
        fault_of_links(one, other);
        break;
    case 15:
        drift_for_a_while(one);
        break;
    case 16:
        break_word();
        break;
    case 17:
        if (run.gone && !run.is_gone) {
            lose_for_good(run.gone);
        }
        break;
    case 7:
        one->clock_ahead_s += 5 * chance_real();
        one->wall_ahead_s += 7200 * (chance_real() - 0.5);
        say("clocks jump, to %.3f s ahead", one->clock_ahead_s);
        break;
    case 8:
        one = fleet_rolls() ? one : chief();
        say("disk of %s is full", one->name);
        run.disk_was_full = true;
        disk_fill(one->disk, true);
        world_at(until_calm(4), fill_disk, one, 0);
        break;
    case 9:
        say("the network is slow");
        network_latency_s = 0.2 * chance_real();
        world_at(until_calm(4), set_latency, NULL, 2000);
        break;
    case 10:
        say("all are killed");
        kill_all(NULL, WORLD_MAX_MACHINES);
        break;
    case 11: /* the next process counts generations from 1 again, and the workers remember the others */
        say("all ps and the chief are killed");
        kill_all(NULL, (uint64_t)oracle.ps + 1);
        break;
    case 12: /* a process that wakes up sends a gradient of an old generation to the first ps before it learns better */
        one = &world.machines[oracle.ps + (int)chance((uint64_t)oracle.workers)];
        other = &world.machines[oracle.ps > 1 ? 1 + chance((uint64_t)oracle.ps - 1) : 0];
        world.here = one;
        one->frozen_until_s = until_calm(8);
        say("is frozen until %.3f, and %s is killed", one->frozen_until_s, other->name);
        machine_kill(other);
        break;
    }
}

static void inject_fault(void *context, uint64_t argument)
{
    struct machine *one = &world.machines[chance((uint64_t)world.machine_count)];
    struct machine *other = chance(3) == 0 ? NULL : &world.machines[chance((uint64_t)world.machine_count)];
    (void)context;
    (void)argument;
    if (run.over || run.leaving || world.now_s >= run.calm_s) {
        return;
    }
    run.faults++;
    world.here = one;
    fault_by_chance(one, other);
    world.here = NULL;
}

/* --- The run --- */

/* If clocks run at different rates and there is no other fault, leases have enough margin. */
static void check_leases(const struct machine *machine)
{
    const struct job *job = is_ps(machine) ? oracle_job(machine->number) : NULL;
    for (int i = 0; job && i < oracle.listed; i++) {
        if (job->workers[i].lost) {
            fail("worker %d is lost to %s, though nothing is wrong but that clocks differ", i, machine->name);
        }
    }
}

static void one_event(double until_s)
{
    world_step(until_s);
    for (int i = 0; i < world.machine_count; i++) {
        struct machine *machine = &world.machines[i];
        if (machine->runs) {
            oracle_check(machine);
            if (run.clocks_differ) {
                check_leases(machine);
            }
            if (comes_and_goes(machine)) {
                let_go(machine);
            }
        } else {
            oracle_forget(machine);
            look_after(machine);
        }
    }
}

static bool any_runs(void)
{
    bool runs = false;
    for (int i = 0; i < world.machine_count; i++) {
        runs = runs || world.machines[i].runs;
    }
    return runs;
}

/* All leave by themselves, or are told to. */
static void leave(double grace_s)
{
    double since_s = world.now_s;
    run.leaving = true;
    say("all are to leave");
    while (!world.failed && any_runs() && world.now_s < since_s + grace_s + LEAVE_S) {
        for (int i = 0; i < world.machine_count && world.now_s > since_s + grace_s; i++) {
            world.machines[i].signal = 15;
        }
        one_event(since_s + grace_s + LEAVE_S);
    }
    for (int i = 0; i < world.machine_count; i++) {
        if (world.machines[i].runs) {
            fail("%s does not leave", world.machines[i].name);
        }
    }
}

/*
 * One seed after another: every call of every kind, up to about as many as a machine makes in a run. Half of the time
 * it fails once, otherwise for a while, as on a machine that has run out of memory. In every other run all are killed
 * once, so that code after a restart is covered too.
 */
static void draw_shortage(uint64_t seed)
{
    static const unsigned most[SHORT_KINDS] = {
        [SHORT_OF_MEMORY] = 1000, [SHORT_READ] = 20,     [SHORT_WRITE] = 130, [SHORT_FSYNC] = 16,
        [SHORT_RENAME] = 8,       [SHORT_OPEN] = 20,     [SHORT_SOCKET] = 30, [SHORT_CONNECT] = 30,
        [SHORT_ACCEPT] = 16,      [SHORT_RECEIVE] = 200, [SHORT_SEND] = 200,  [SHORT_THREAD] = 30,
    };
    uint64_t sum = 0, at;
    for (int i = 0; i < SHORT_KINDS; i++) {
        sum += most[i];
    }
    for (at = seed % sum; at >= most[shortage.kind]; shortage.kind++) {
        at -= most[shortage.kind];
    }
    shortage.first = 1 + at;
    shortage.count = chance(2) == 0 ? 1 : 1 + chance(30);
    bool of_disk = shortage.kind == SHORT_READ || shortage.kind == SHORT_WRITE || shortage.kind == SHORT_FSYNC ||
                   shortage.kind == SHORT_RENAME || shortage.kind == SHORT_OPEN;
    shortage.machine = of_disk ? chief()->number : (int)chance((uint64_t)world.machine_count);
    run.disk_was_full = of_disk || shortage.kind == SHORT_OF_MEMORY;
    if (chance(2) == 0) {
        world_at(world.now_s + 1 + 3 * chance_real(), kill_all, NULL, WORLD_MAX_MACHINES);
    }
    say("of %s's calls of %s, %llu from number %llu on fail", world.machines[shortage.machine].name,
        shortage_name(shortage.kind), (unsigned long long)shortage.count, (unsigned long long)shortage.first);
}

static bool rolls(enum trouble trouble)
{
    return trouble == TROUBLE_ROLLOUTS || trouble == TROUBLE_PROGRAMS;
}

static void draw_faults(enum trouble trouble)
{
    double trouble_s = 6 * chance_real();
    world.lag = chance(2) == 0 ? 1000 + chance(4000) : 0;
    if (rolls(trouble)) { /* they come as it goes on */
        if (trouble == TROUBLE_PROGRAMS) {
            programs_begin();
        }
        fleet_begin(run.settings, run.setting_count);
        return;
    }
    run.calm_s = world.now_s + trouble_s + 1;
    if (chance(16) == 0) {
        run.clocks_differ = true;
        world.lag = 0;
        for (int i = 0; i < world.machine_count; i++) {
            machine_drift(&world.machines[i], 0.75 + 0.58 * chance_real() - 1);
        }
        return;
    }
    for (int i = (int)chance(MOST_FAULTS); i > 0; i--) {
        world_at(world.now_s + trouble_s * chance_real(), inject_fault, NULL, 0);
    }
}

static void finish(struct outcome *outcome)
{
    *outcome = (struct outcome){.failed = world.failed,
                                .events = world.events,
                                .seconds = world.now_s - 1000,
                                .faults = run.faults + (int)shortage.failed};
    memcpy(outcome->why, world.why, sizeof outcome->why);
    world_end();
    for (int i = 0; i < world.machine_count; i++) {
        disk_free(world.machines[i].disk);
    }
}

/*
 * The job waits for workers, so its members switch at once, each by itself. Now those workers come, and one ps learns
 * late that it must switch: nothing may be trained before that.
 */
static void begin_in_the_middle(void)
{
    struct machine *cut_off = &world.machines[1 + chance((uint64_t)oracle.ps - 1)];
    const double until_s = world.now_s + 1 + 4 * chance_real();
    world.here = cut_off;
    say("is apart from ps 0 until %.3f, and the late workers come", until_s);
    world.here = NULL;
    network_part(cut_off, &world.machines[0], PART_BOTH, until_s);
    for (int i = oracle.ps + oracle.listed - run.late; i < oracle.ps + oracle.listed; i++) {
        run.restart_s[i] = world.now_s + 0.05 * chance_real();
    }
}

/* Until every rollout has succeeded or failed, and all members are at rest. */
static void roll_out(void)
{
    const double begin_s = world.now_s;
    int left = (int)chance(MOST_FAULTS), rots = (int)chance(4);
    run.calm_s = INFINITY;
    while (!world.failed && !fleet_is_at_rest()) {
        one_event(world.now_s + 1);
        fleet_step();
        if (fleet_wants_workers_off()) {
            switch_workers_off();
        }
        const bool turned = fleet_turned();
        if (turned && left > 0 && chance(3) == 0) {
            left--;
            world_at(world.now_s + 1.5 * chance_real(), inject_fault, NULL, 0);
        }
        if (turned && rots > 0 && chance(4) == 0) {
            rots--;
            world_at(world.now_s + 1.5 * chance_real(), rot_history, NULL, 0);
        }
        if (fleet_switches_at_once() && run.late > 0 && oracle.ps > 1 && chance(2) == 0) {
            left--;
            begin_in_the_middle();
        }
        if (fleet_switches() && oracle.ps > 1 && left > 0 && chance(3) == 0) {
            left--;
            world_at(world.now_s + 0.05 * chance_real(), kill_one, NULL, 1 + chance((uint64_t)oracle.ps - 1));
        }
        if (run.calm_s > world.now_s && (fleet_is_done() || world.now_s >= begin_s + ROLL_OUT_S)) {
            left = rots = 0;
            run.calm_s = world.now_s;
        }
        if (world.now_s >= run.calm_s + TIMEOUT_S) {
            fleet_blame();
        }
    }
    leave(0);
}

void cluster_run(uint64_t seed, enum trouble trouble, bool shows, struct outcome *outcome)
{
    memset(&run, 0, sizeof run);
    memset(&shortage, 0, sizeof shortage);
    world.shows = shows;
    world_begin(seed);
    oracle_begin();
    draw_cluster(rolls(trouble));
    draw_table();
    fleet_forget();
    programs_forget();
    network_latency_s = 0.002;
    run.calm_s = world.now_s;
    if (trouble == TROUBLE_SHORTAGE) {
        draw_shortage(seed);
    } else {
        shortage.kind = -1;
        draw_faults(trouble);
    }
    for (int i = 0; i < world.machine_count; i++) {
        const bool is_late = i >= oracle.ps + oracle.listed - run.late && i < oracle.ps + oracle.workers;
        run.restart_s[i] = world.now_s + (is_late ? MOST_LATE_S : 1) * chance_real();
    }
    for (int i = 0; i < run.setting_count; i++) {
        say("%s = %s", run.settings[i].flag, run.settings[i].text);
    }
    if (rolls(trouble)) {
        roll_out();
        finish(outcome);
        return;
    }
    const double end_s = run.calm_s + TIMEOUT_S;
    while (!world.failed && world.now_s < end_s &&
           (chief()->runs || !run.over || chief()->status < 0 || (chief()->status != 0 && !run.disk_was_full))) {
        double until_s = end_s;
        for (int i = 0; i < world.machine_count; i++) {
            double when_s = run.restart_s[i];
            until_s = !world.machines[i].runs && when_s < until_s ? when_s : until_s;
        }
        one_event(until_s);
    }
    if (world.now_s >= end_s) {
        fail("training does not come to its end within %.0f s after the last fault", TIMEOUT_S);
    }
    if (!world.failed) {
        leave(GRACE_S);
        if (!run.disk_was_full) {
            oracle_check_end(run.faults == 0 && trouble != TROUBLE_SHORTAGE);
        }
    }
    finish(outcome);
}
