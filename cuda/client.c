/* The GPU process as its client: requests with deadlines, and what they ask for. */
#include "cuda/client.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/memory.h"
#include "cuda/handover.h"
#include "cuda/launch.h"
#include "cuda/protocol.h"

/* --- Requests and answers --- */

/*
 * Sends one command at a time to the process that hosts the GPU (cuda/protocol.h), over a header in shared memory, and
 * ends that process. Every wait has a deadline. If the process ends, hangs or loses its device, the exchange is dead:
 * every further command fails with the same message.
 *
 * The file's content after the header, and the meaning of commands, are up to the functions below. One thread uses it.
 *
 * Waits spin briefly, then sleep on a futex and wake from time to time to see whether the process still lives: a child
 * that died cannot wake anybody.
 */

struct exchange {
    pid_t pid; /* 0: it has ended */
    int file;  /* shared memory; -1: none */
    struct protocol_header *header;
    uint32_t posted; /* commands */
    bool greeted, dead;
    struct error death; /* if dead */
};

/* What to wait for, in words, and for how long. */
struct wait {
    const char *what; /* "train" */
    double seconds;
    void (*grown)(void *context, size_t floats); /* called as header->ready grows; NULL: not wanted */
    void *context;
    size_t most; /* floats of the whole gradient */
    size_t seen; /* last value passed to grown */
};

enum {
    LOOK_NS = 50 * 1000 * 1000, /* between checks that the process is alive */
    SPIN_NS = 100 * 1000,       /* before sleeping: most steps of a worker finish within it */
    GROW_NS = 20 * 1000,        /* between checks of a gradient's progress, after spinning */
};

static const double START_S = 20; /* even on a loaded machine */

/* --- The end --- */

static bool die(struct exchange *exchange, const struct error *why)
{
    exchange->dead = true;
    exchange->death = *why;
    if (exchange->pid > 0) {
        launch_kill(exchange->pid);
        exchange->pid = 0;
    }
    return false;
}

/* Checks whether the process ended while `what` was awaited. */
static bool has_ended(struct exchange *exchange, const char *what)
{
    char how[96];
    struct error error;
    if (!launch_ended(exchange->pid, how, sizeof how)) {
        return false;
    }
    exchange->pid = 0;
    error_set(&error, "the GPU engine's process %s while asked to %s", how, what);
    die(exchange, &error);
    return true;
}

/* --- Waiting --- */

static void look_at_gradient(struct exchange *exchange, struct wait *wait)
{
    size_t ready = (size_t)atomic_load_explicit(&exchange->header->ready, memory_order_acquire);
    ready = ready < wait->most ? ready : wait->most;
    if (ready > wait->seen) {
        wait->seen = ready;
        wait->grown(wait->context, ready);
    }
}

/* Spins for the word, and for the gradient meanwhile. */
static bool spin(struct exchange *exchange, struct wait *wait, const struct protocol_word *word, uint32_t seen)
{
    if (!handover_may_spin(&exchange->header->client_cpu, &exchange->header->helper_cpu)) {
        return false;
    }
    if (!wait->grown) {
        return handover_spin(word, seen, SPIN_NS);
    }
    for (int64_t end = handover_now_ns() + SPIN_NS; handover_now_ns() < end;) {
        look_at_gradient(exchange, wait);
        if (handover_spin(word, seen, 0)) {
            return true;
        }
    }
    return false;
}

/* Waits until the word is no longer `seen`; false: the client is dead. */
static bool await(struct exchange *exchange, struct wait *wait, struct protocol_word *word, uint32_t seen)
{
    struct error error;
    if (spin(exchange, wait, word, seen)) {
        return true;
    }
    int64_t now = handover_now_ns(), deadline = now + (int64_t)(wait->seconds * 1e9), look = now + LOOK_NS;
    for (;;) {
        int64_t until = deadline < look ? deadline : look;
        int64_t most = wait->grown ? GROW_NS : until - now;
        if (handover_sleep(word, seen, most > 0 ? most : 0)) {
            return true;
        }
        if (wait->grown) {
            look_at_gradient(exchange, wait);
        }
        now = handover_now_ns();
        if (now >= look) {
            if (has_ended(exchange, wait->what)) {
                return false;
            }
            look = now + LOOK_NS;
        }
        if (now >= deadline) {
            error_set(&error, "the GPU engine did not %s within %.3g s (train.gpu_timeout_secs), and was stopped",
                      wait->what, wait->seconds);
            return die(exchange, &error);
        }
    }
}

/* --- Commands --- */

static bool greet(struct exchange *exchange)
{
    struct wait wait = {.what = "start", .seconds = START_S};
    if (!exchange->greeted && !await(exchange, &wait, &exchange->header->hello, 0)) {
        return false;
    }
    exchange->greeted = true;
    return true;
}

/* Only posts the command; a process that is still starting finds it later. */
static void exchange_post(struct exchange *exchange, const struct protocol_command *command)
{
    exchange->header->command = *command;
    handover_set(&exchange->header->posted, ++exchange->posted);
}

static bool exchange_finish(struct exchange *exchange, struct wait *wait, struct error *error)
{
    struct protocol_header *header = exchange->header;
    if (exchange->dead || !greet(exchange) || !await(exchange, wait, &header->completed, exchange->posted - 1)) {
        *error = exchange->death;
        return false;
    }
    if (header->reply.status == PROTOCOL_DONE) {
        return true;
    }
    header->reply.error.text[sizeof header->reply.error.text - 1] = '\0';
    *error = header->reply.error;
    return header->reply.status == PROTOCOL_LOST ? die(exchange, error) : false;
}

/* Runs a command: exchange_post, then exchange_finish. */
static bool exchange_carry_out(struct exchange *exchange, const struct protocol_command *command, struct wait *wait,
                               struct error *error)
{
    if (exchange->dead) {
        *error = exchange->death;
        return false;
    }
    exchange_post(exchange, command);
    return exchange_finish(exchange, wait, error);
}

/* --- Start and stop --- */

static bool create_memory(struct exchange *exchange, struct error *error)
{
    exchange->file = (int)syscall(SYS_memfd_create, "trainer-gpu-memory", MFD_CLOEXEC);
    if (exchange->file < 0 || ftruncate(exchange->file, (off_t)protocol_header_bytes()) != 0) {
        return error_set(error, "out of memory while sharing with the GPU engine: %s", strerror(errno));
    }
    void *memory = mmap(NULL, protocol_header_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, exchange->file, 0);
    if (memory == MAP_FAILED) {
        return error_set(error, "out of memory while sharing with the GPU engine: %s", strerror(errno));
    }
    exchange->header = memory;
    exchange->header->magic = PROTOCOL_MAGIC;
    exchange->header->layout = sizeof *exchange->header;
    exchange->header->parent = getpid();
    atomic_store(&exchange->header->client_cpu, -1);
    atomic_store(&exchange->header->helper_cpu, -1);
    return true;
}

/* Ends the process within `seconds`, at once if it is not idle. All zero but for file -1: nothing to do. */
static void exchange_stop(struct exchange *exchange, double seconds)
{
    if (exchange->pid > 0 && !exchange->dead && exchange->greeted &&
        atomic_load(&exchange->header->completed.value) == exchange->posted) {
        struct wait wait = {.what = "end", .seconds = seconds};
        struct error error;
        exchange_carry_out(exchange, &(struct protocol_command){.verb = PROTOCOL_QUIT}, &wait, &error);
    }
    if (exchange->pid > 0) {
        launch_kill(exchange->pid); /* it is exiting, or hangs */
    }
    if (exchange->header) {
        munmap(exchange->header, protocol_header_bytes());
    }
    if (exchange->file >= 0) {
        close(exchange->file);
    }
    *exchange = (struct exchange){.file = -1};
}

/* Starts the program in `bytes`, without waiting for it. Main thread only. Cleans up on failure. */
static bool exchange_start(struct exchange *exchange, const void *bytes, size_t size, struct error *error)
{
    *exchange = (struct exchange){.file = -1};
    struct launch_program program = {.name = "trainer-gpu", .bytes = bytes, .size = size};
    bool done = create_memory(exchange, error);
    program.fd = exchange->file;
    if (!done || !launch(&exchange->pid, &program, error)) {
        exchange->pid = 0;
        exchange_stop(exchange, 0);
        return false;
    }
    return true;
}

/* --- The client --- */

/*
 * Each command's deadline is SLACK times what such work took before, so that a hung GPU is noticed soon and a slow one
 * is not mistaken for it.
 */

/* Examples of a FORWARD, unless they take too much memory; more if the batch is larger. */
enum { FORWARD_EXAMPLES = 1000, FORWARD_BYTES = 32 << 20 };

static const double DRIVER_S =
    60; /* to load the driver and open a device: seconds each, unless another process keeps the driver loaded */
static const double SLACK = 10; /* times what a step has taken so far */

/* Duration of a unit of work (a step, an example): a maximum that decays. */
struct pace {
    double seconds;
};

struct gpu_client {
    struct exchange exchange;
    double timeout_s;
    uint8_t *transfer; /* after the header; NULL before gpu_client_open */
    size_t transfer_bytes;
    struct gpu_areas areas;
    struct device_shape shape;
    size_t float_count;
    char description[256];
    int precision;
    struct pace train, step, forward;
    bool has_device;
};

/* --- How long commands may take --- */

/* Deadline of a command whose duration grows with its units of work. */
static struct wait paced_wait(const struct gpu_client *client, const struct pace *pace, const char *what, double units)
{
    return (struct wait){.what = what, .seconds = client->timeout_s + SLACK * pace->seconds * units};
}

static void note_pace(struct pace *pace, double seconds, double units)
{
    double now = seconds / units;
    double faded = 0.9 * pace->seconds;
    pace->seconds = now > faded ? now : faded;
}

static bool carry_out_paced(struct gpu_client *client, const struct protocol_command *command, struct wait *wait,
                            struct pace *pace, double units, struct error *error)
{
    int64_t begin = handover_now_ns();
    gpu_use_begin();
    bool done = exchange_carry_out(&client->exchange, command, wait, error);
    gpu_use_end();
    if (done) {
        note_pace(pace, (double)(handover_now_ns() - begin) * 1e-9, units);
    }
    return done;
}

/* --- Start and stop --- */

bool gpu_client_is_built(void)
{
    size_t size;
    return payload_program(&size);
}

bool gpu_client_start_program(struct gpu_client **out, const void *bytes, size_t size, double timeout_s,
                              struct error *error)
{
    struct gpu_client *client = must_zero(1, sizeof *client, "the GPU engine");
    client->timeout_s = timeout_s;
    if (!exchange_start(&client->exchange, bytes, size, error)) {
        free(client);
        return false;
    }
    *out = client;
    return true;
}

bool gpu_client_start(struct gpu_client **client, double timeout_s, struct error *error)
{
    size_t size;
    const void *bytes = payload_program(&size);
    if (!bytes) {
        return error_set(error, "this build has no GPU engine");
    }
    return gpu_client_start_program(client, bytes, size, timeout_s, error);
}

void gpu_client_stop(struct gpu_client *client)
{
    static const double stop_s = 2;
    if (!client) {
        return;
    }
    exchange_stop(&client->exchange, client->timeout_s < stop_s ? client->timeout_s : stop_s);
    if (client->has_device) {
        gpu_use_return();
    }
    if (client->transfer) {
        munmap(client->transfer, client->transfer_bytes);
    }
    free(client);
}

bool gpu_client_list(struct gpu_client *client, struct gpu_list *list, struct error *error)
{
    struct wait wait = {.what = "load the driver", .seconds = DRIVER_S};
    if (!exchange_carry_out(&client->exchange, &(struct protocol_command){.verb = PROTOCOL_LIST}, &wait, error)) {
        return false;
    }
    const struct protocol_reply *reply = &client->exchange.header->reply;
    int count = reply->device_count;
    list->driver_version = reply->driver_version;
    list->count = count < 0 ? 0 : count > PROTOCOL_MAX_DEVICES ? PROTOCOL_MAX_DEVICES : count;
    memcpy(list->devices, reply->devices, (size_t)list->count * sizeof list->devices[0]);
    for (int i = 0; i < list->count; i++) {
        list->devices[i].name[sizeof list->devices[i].name - 1] = '\0';
        list->devices[i].uuid[sizeof list->devices[i].uuid - 1] = '\0';
    }
    return true;
}

/* --- Shared memory --- */

static bool has_vector(const struct device_shape *shape, int vector)
{
    int slots = optimizer_slots((enum optimizer_kind)shape->optimizer);
    switch (vector) {
    case STORE_PARAMETERS:
        return true;
    case STORE_SLOT0:
    case STORE_SLOT1:
        return vector - STORE_SLOT0 < slots;
    default:
        return shape->averages != 0;
    }
}

/* Carves a piece out of the transfer area; with base NULL it only counts. */
static void *take(uint8_t *base, size_t *used, size_t bytes)
{
    void *place = base ? base + *used : NULL;
    *used += (size_t)protocol_round_up(bytes);
    return place;
}

/* How many examples, and their outputs, the areas hold. */
static int examples_in_areas(const struct device_shape *shape)
{
    uint64_t bytes = (uint64_t)shape->widths[shape->layer_count] * sizeof(float);
    for (int i = 0; i < DEVICE_ARRAYS; i++) {
        bytes += device_example_bytes(shape, i);
    }
    uint64_t most = FORWARD_BYTES / bytes;
    int examples = most < FORWARD_EXAMPLES ? (int)most : FORWARD_EXAMPLES;
    return shape->batch_size > examples ? shape->batch_size : examples;
}

/* Returns the bytes that all areas need. */
static size_t lay_out(struct gpu_areas *areas, uint8_t *base, const struct device_shape *shape, size_t float_count)
{
    size_t used = 0;
    size_t floats = float_count * sizeof(float);
    for (int set = 0; set < GPU_VECTOR_SETS; set++) {
        for (int v = 0; v < STORE_VECTORS; v++) {
            areas->vectors[set][v] = has_vector(shape, v) ? take(base, &used, floats) : NULL;
        }
    }
    areas->most_examples = examples_in_areas(shape);
    size_t examples = (size_t)areas->most_examples;
    areas->gradient = take(base, &used, floats);
    for (int i = 0; i < DEVICE_ARRAYS; i++) {
        size_t bytes = (size_t)device_example_bytes(shape, i);
        areas->arrays[i] = bytes > 0 ? take(base, &used, examples * bytes) : NULL;
    }
    areas->outputs = take(base, &used, examples * (size_t)shape->widths[shape->layer_count] * sizeof(float));
    return used;
}

static uint64_t offset_of(const struct gpu_client *client, const void *place)
{
    return protocol_header_bytes() + (uint64_t)((const uint8_t *)place - client->transfer);
}

static bool map_transfer(struct gpu_client *client, struct error *error)
{
    client->transfer_bytes = lay_out(&client->areas, NULL, &client->shape, client->float_count);
    size_t header = protocol_header_bytes();
    void *memory = MAP_FAILED;
    if (ftruncate(client->exchange.file, (off_t)(header + client->transfer_bytes)) == 0) {
        memory = mmap(NULL, client->transfer_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, client->exchange.file,
                      (off_t)header);
    }
    if (memory == MAP_FAILED) {
        return error_set(error, "out of memory for %zu MiB to share with the GPU engine: %s",
                         client->transfer_bytes >> 20, strerror(errno));
    }
    client->transfer = memory;
    lay_out(&client->areas, client->transfer, &client->shape, client->float_count);
    return true;
}

bool gpu_client_open_begin(struct gpu_client *client, int ordinal, const struct device_shape *shape,
                           double memory_fraction, size_t float_count, struct error *error)
{
    assert(!client->transfer);
    client->shape = *shape;
    client->float_count = float_count;
    if (!map_transfer(client, error)) {
        return false;
    }
    exchange_post(&client->exchange, &(struct protocol_command){.verb = PROTOCOL_OPEN,
                                                                .ordinal = ordinal,
                                                                .shape = *shape,
                                                                .memory_fraction = memory_fraction,
                                                                .transfer_bytes = client->transfer_bytes});
    return true;
}

bool gpu_client_open_end(struct gpu_client *client, struct error *error)
{
    struct wait wait = {.what = "take the device", .seconds = DRIVER_S};
    if (!exchange_finish(&client->exchange, &wait, error)) {
        return false;
    }
    client->has_device = true;
    gpu_use_take();
    snprintf(client->description, sizeof client->description, "%.255s", client->exchange.header->reply.description);
    int32_t precision = client->exchange.header->reply.precision;
    client->precision = precision == PRECISION_TF32 || precision == PRECISION_BFLOAT16 ? precision : PRECISION_FLOAT32;
    return true;
}

const struct gpu_areas *gpu_client_areas(const struct gpu_client *client)
{
    return &client->areas;
}

const char *gpu_client_description(const struct gpu_client *client)
{
    return client->description;
}

int gpu_client_precision(const struct gpu_client *client)
{
    return client->precision;
}

/* --- Work --- */

bool gpu_client_data(struct gpu_client *client, const struct device_examples *examples, struct error *error)
{
    struct wait wait = {.what = "take the training data", .seconds = DRIVER_S};
    uint64_t at = protocol_header_bytes() + client->transfer_bytes;
    size_t bytes = 0, sizes[DEVICE_ARRAYS];
    struct protocol_command command = {.verb = PROTOCOL_DATA, .examples = examples->count};
    for (int i = 0; i < DEVICE_ARRAYS; i++) {
        sizes[i] = (size_t)examples->count * (size_t)device_example_bytes(&client->shape, i);
        command.arrays_at[i] = at + bytes;
        bytes += (size_t)protocol_round_up(sizes[i]);
    }
    command.file_bytes = at + bytes;
    if (client->exchange.dead) {
        *error = client->exchange.death;
        return false;
    }
    uint8_t *memory = MAP_FAILED;
    if (ftruncate(client->exchange.file, (off_t)(at + bytes)) == 0) {
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, client->exchange.file, (off_t)at);
    }
    if (memory == MAP_FAILED) {
        return error_set(error, "out of memory while handing %zu MiB of training data to the GPU engine: %s",
                         bytes >> 20, strerror(errno));
    }
    for (int i = 0; i < DEVICE_ARRAYS; i++) {
        if (sizes[i] > 0) {
            memcpy(memory + (command.arrays_at[i] - at), examples->arrays[i], sizes[i]);
        }
    }
    munmap(memory, bytes);
    bool done = exchange_carry_out(&client->exchange, &command, &wait, error);
    /* The device has its own copy by now. */
    if (ftruncate(client->exchange.file, (off_t)at) != 0 && done) {
        return error_set(error, "cannot release memory shared with the GPU engine: %s", strerror(errno));
    }
    return done;
}

static bool move(struct gpu_client *client, int32_t verb, const char *what, int set, enum store_vector vector,
                 size_t first, size_t count, struct error *error)
{
    const float *place = client->areas.vectors[set][vector];
    assert(place && first <= client->float_count && count <= client->float_count - first);
    struct protocol_command command = {.verb = verb,
                                       .vector = (int32_t)vector,
                                       .first = first,
                                       .count = count,
                                       .floats_at = offset_of(client, place + first)};
    struct wait wait = {.what = what, .seconds = client->timeout_s + (double)count * 1e-7};
    return exchange_carry_out(&client->exchange, &command, &wait, error);
}

bool gpu_client_write(struct gpu_client *client, int set, enum store_vector vector, size_t first, size_t count,
                      struct error *error)
{
    return move(client, PROTOCOL_WRITE, "take parameters", set, vector, first, count, error);
}

bool gpu_client_read(struct gpu_client *client, int set, enum store_vector vector, size_t first, size_t count,
                     struct error *error)
{
    return move(client, PROTOCOL_READ, "give parameters", set, vector, first, count, error);
}

struct update (*gpu_client_updates(struct gpu_client *client))[2]
{
    return client->exchange.header->updates;
}

bool gpu_client_train(struct gpu_client *client, int64_t first_step, int steps, struct device_outcome *outcome,
                      struct error *error)
{
    char what[96];
    assert(steps > 0 && steps <= PROTOCOL_UPDATES);
    snprintf(what, sizeof what, "train %d step%s from step %lld on", steps, steps == 1 ? "" : "s",
             (long long)first_step);
    struct protocol_command command = {.verb = PROTOCOL_TRAIN, .step = first_step, .steps = steps};
    struct wait wait = paced_wait(client, &client->train, what, steps);
    if (!carry_out_paced(client, &command, &wait, &client->train, steps, error)) {
        return false;
    }
    *outcome = client->exchange.header->reply.outcome;
    return true;
}

/* Sets where the areas' arrays are. */
static void name_arrays(const struct gpu_client *client, struct protocol_command *command)
{
    for (int i = 0; i < DEVICE_ARRAYS; i++) {
        command->arrays_at[i] = client->areas.arrays[i] ? offset_of(client, client->areas.arrays[i]) : 0;
    }
}

bool gpu_client_step(struct gpu_client *client, int examples, uint32_t task, int64_t step,
                     void (*grown)(void *context, size_t floats), void *context, struct device_outcome *outcome,
                     struct error *error)
{
    const struct gpu_areas *areas = &client->areas;
    assert(examples > 0 && examples <= areas->most_examples);
    struct protocol_command command = {.verb = PROTOCOL_STEP,
                                       .step = step,
                                       .task = task,
                                       .examples = examples,
                                       .count = client->float_count,
                                       .floats_at = offset_of(client, areas->gradient)};
    name_arrays(client, &command);
    struct wait wait = paced_wait(client, &client->step, "compute a gradient", 1);
    wait.grown = grown;
    wait.context = context;
    wait.most = client->float_count;
    atomic_store(&client->exchange.header->ready, 0);
    if (!carry_out_paced(client, &command, &wait, &client->step, 1, error)) {
        return false;
    }
    *outcome = client->exchange.header->reply.outcome;
    if (outcome->finite && wait.seen < client->float_count) {
        grown(context, client->float_count);
    }
    return true;
}

bool gpu_client_forward(struct gpu_client *client, bool averaged, int examples, struct error *error)
{
    const struct gpu_areas *areas = &client->areas;
    assert(examples > 0 && examples <= areas->most_examples);
    struct protocol_command command = {.verb = PROTOCOL_FORWARD,
                                       .averaged = averaged,
                                       .examples = examples,
                                       .floats_at = offset_of(client, areas->outputs)};
    name_arrays(client, &command);
    struct wait wait = paced_wait(client, &client->forward, "classify examples", examples);
    return carry_out_paced(client, &command, &wait, &client->forward, examples, error);
}
