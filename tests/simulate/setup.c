/* Machines in order: the ps, then the workers, worker 0 being the chief. A config is a list of flags. */
#include "tests/simulate/setup.h"

#include <stdarg.h>
#include <stdio.h>

#include "tests/simulate/world.h"

enum { TABLE_COLOURS = 12 }; /* categories */
enum { FIRST_PORT = 2000, MOST_UNLISTED = 2 };

struct setup setup;

static struct config_setting settings[SETUP_MOST_SETTINGS];
static char texts[SETUP_MOST_SETTINGS][512];
static int setting_count;

const struct config_setting *setup_settings(int *count)
{
    *count = setting_count;
    return settings;
}

static void set(const char *key, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void set(const char *key, const char *format, ...)
{
    va_list arguments;
    char *text = texts[setting_count];
    va_start(arguments, format);
    vsnprintf(text, sizeof texts[0], format, arguments);
    va_end(arguments);
    settings[setting_count++] = (struct config_setting){key, text};
}

bool setup_is_ps(const struct machine *machine)
{
    return machine->number < setup.ps;
}

struct machine *setup_chief(void)
{
    return &world.machines[setup.ps];
}

static void add_machine(const char *role, int index, int (*run)(struct machine *machine))
{
    struct machine *machine = &world.machines[world.machine_count];
    machine->number = world.machine_count++;
    machine->port = (uint16_t)(FIRST_PORT + machine->number);
    machine->main = run;
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
    setup.local_steps = 2 + setup.seed % 4;
    set("local_steps", "%d", setup.local_steps);
    set("data_sharding", "own");
    set("validate_steps", "%d", setup.seed % 4);
    if (chance(2) == 0) {
        setup.participation = 0.1 + 0.8 * chance_real();
        setup.over_selection = chance(2) == 0 ? 1 + 2 * chance_real() : 1;
        set("participation", "%.9g", setup.participation);
        set("over_selection", "%.9g", setup.over_selection);
    }
    if (chance(2) == 0) {
        setup.deadline_s = 0.05 + 2 * chance_real();
        set("round_deadline_secs", "%.9g", setup.deadline_s);
    }
}

/* Asynchronous rounds, with few enough steps that a slow worker can do them alone. */
static void draw_buffer(void)
{
    setup.local_steps = 2 + setup.seed % 2;
    setup.buffer = 1 + setup.seed / 3 % 3;
    set("local_steps", "%d", setup.local_steps);
    set("buffer_size", "%d", setup.buffer);
    set("data_sharding", "own");
}

static void draw_wire(void)
{
    setup.bfloat16 = chance(4) == 0;
    setup.int8 = setup.bfloat16 && setup.seed % 2 == 0;
    set("wire_dtype", "%s", setup.int8 ? "int8" : setup.bfloat16 ? "bfloat16" : "float32");
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
                                 (i + worker) % TABLE_COLOURS, 'a' + i % SETUP_COLUMNS);
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
    _Static_assert(2 + 1 + TABLE_COLOURS + 1 == SETUP_ROWS, "the inputs of write_rows");
    setup.has_table = setup.seed % (setup.local_steps > 1 ? 2 : 4) == 1;
    if (!setup.has_table) {
        set("data_source", "synthetic"); /* engine.c makes the images */
        return;
    }
    set("data_dir", "/data");
    set("target", "kind");
    set("memory_mb", "64"); /* rows fit even if a new config has none */
    set("category_min", "1");
    for (int i = 0; i < setup.workers; i++) {
        struct disk *disk = world.machines[setup.ps + i].disk;
        disk_put(disk, "/data", NULL, 0);
        write_rows(disk, "/data/train.csv", setup.local_steps > 1 ? i : 0, setup_examples(i));
        write_rows(disk, "/data/test.csv", 0, TEST_ROWS);
    }
}

/* Gradients are counted: each adds itself to the parameters. */
static void set_update(void)
{
    set("optimizer", "sgd");
    set("learning_rate", "1");
}

static void draw_cluster(bool rolls, int (*run)(struct machine *machine))
{
    setup = (struct setup){.ps = draw_count(4),
                           .workers = draw_count(WORKERS_MAX_SIMULATED),
                           .synchronous = chance(2) == 0,
                           .last_step = 4 + (int64_t)chance(20),
                           .seed = 1 + (int)chance(1000),
                           .local_steps = 1,
                           .participation = 1,
                           .over_selection = 1,
                           .not_finite = chance(8) == 0 ? 0.1 : 0};
    double slowness_s = 0.01 + 0.1 * chance_real();
    setup.listed = setup.workers;
    if (chance(rolls ? 3 : 6) == 0 && setup.listed <= WORKERS_MAX_SIMULATED - MOST_UNLISTED) {
        setup.workers += 1 + (int)chance(MOST_UNLISTED);
        set("elastic", "true");
    }
    if (rolls) {
        setup.last_step = 0;
        slowness_s = 0.1 * (1 + setup.workers) * (1 + 2 * chance_real());
    }
    for (int i = 0; i < setup.ps; i++) {
        add_machine("ps", i, run);
    }
    for (int i = 0; i < setup.workers; i++) {
        add_machine("worker", i, run);
        setup.slowness_s[i] = slowness_s * (chance(8) == 0 ? 10 : 1);
    }
    list_hosts("ps_hosts", 0, setup.ps);
    list_hosts("worker_hosts", setup.ps, setup.listed);
    set("insecure", "true");
    set("issync", "%s", setup.synchronous ? "true" : "false");
    set("layers", "%d,%d", SETUP_ROWS, SETUP_COLUMNS);
    set("initializer", "truncated_normal");
    set("init_stddev", "0");
    set_update();
    set("batch_size", "1");
    set("validation_size", "0");
    set("train_steps", "%lld", rolls ? 100000LL : (long long)setup.last_step);
    set("seed", "%d", setup.seed);
    set("train_dir", "/run");
    set("log_steps", "0");
    set("save_summaries_steps", "0");
    set("progress", "false");
    set("save_model_secs", "%g", chance(3) == 0 ? 0 : 0.1 + 2 * chance_real());
    setup.save_steps = (int64_t)chance(8);
    set("save_steps", "%lld", (long long)setup.save_steps);
    const int kept = 1 + (int)chance(4);
    setup.may_rot = !rolls && kept > 1;
    set("max_to_keep", "%d", kept);
    set("lease_secs", "%g", 0.5 + 2 * chance_real());
    set("recovery_wait_secs", "%g", 0.05 + chance_real());
    setup.late = rolls && setup.listed > 1 && chance(4) == 0 ? 1 + (int)chance((uint64_t)setup.listed - 1) : 0;
    /* The others must be able to continue without the one that is lost for good. */
    setup.gone = !rolls && setup.listed > 1 && chance(3) == 0 ? &world.machines[setup.ps + setup.listed - 1] : NULL;
    const uint64_t there = (uint64_t)(setup.listed - (setup.gone ? 1 : 0));
    set("min_workers", "%d", setup.late > 0 ? setup.listed : 1 + (int)chance(there));
    set("momentum", "0");
    draw_wire();
    if (!rolls && !setup.bfloat16 && setup.seed % 3 == 0) {
        (setup.synchronous ? draw_rounds : draw_buffer)();
    }
    if (setup.participation < 1) {
        set("min_replicas", "%d", there > 1 && setup.seed % 11 == 0 ? 2 : 1);
    } else if (setup.synchronous && chance(3) == 0) {
        set("replicas_to_aggregate", "%d", 1 + (int)chance(there));
    } else if (!setup.synchronous && chance(3) == 0) {
        set("max_staleness", "%d", 1 + (int)chance(4));
    } else if (!setup.synchronous && setup.buffer == 0 && chance(3) == 0) {
        set("pipeline_depth", "%d", 1 + (int)chance(3));
    }
}

void setup_draw(bool rolls, int (*run)(struct machine *machine))
{
    setting_count = 0;
    draw_cluster(rolls, run);
    draw_table();
}
