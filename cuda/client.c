#include "cuda/client.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda/handover.h"
#include "cuda/launch.h"
#include "cuda/payload.h"

enum {
    LOOK_NS = 50 * 1000 * 1000, /* between two looks whether the process still lives */
    SPIN_NS = 100 * 1000,       /* before sleeping: most steps of a worker are over by then */
    GROW_NS = 20 * 1000,        /* between two looks how far a gradient is, once spinning did not help */
    FORWARD_IMAGES = 1000,      /* in one command; more if the batch is larger */
};

static const double START_S = 20; /* a loaded machine included */
static const double DRIVER_S =
    60;                         /* loading it and taking a device: seconds each where no one else keeps the driver up */
static const double SLACK = 10; /* times what a step took so far */

/* What a unit of work (a step, an image) took so far, the slowest counting longest. */
struct pace {
    double seconds;
};

struct gpu_client {
    pid_t pid; /* 0: it is over */
    int file;
    double timeout_s;
    struct protocol_header *header;
    uint8_t *transfer; /* behind the header; NULL before gpu_client_open */
    size_t transfer_bytes;
    struct gpu_areas areas;
    struct device_shape shape;
    size_t float_count;
    uint32_t posted; /* commands */
    bool greeted, dead;
    struct error death; /* if dead */
    char description[256];
    struct pace train, step, forward;
};

/* ---- The end of a client ---- */

static bool die(struct gpu_client *client, const struct error *why)
{
    client->dead = true;
    client->death = *why;
    if (client->pid > 0) {
        launch_kill(client->pid);
        client->pid = 0;
    }
    return false;
}

/* Has the process ended while `what` was awaited? */
static bool has_ended(struct gpu_client *client, const char *what)
{
    char how[96];
    struct error error;
    if (!launch_ended(client->pid, how, sizeof how)) {
        return false;
    }
    client->pid = 0;
    error_set(&error, "the GPU engine's process %s while it was to %s", how, what);
    die(client, &error);
    return true;
}

bool gpu_client_is_dead(const struct gpu_client *client)
{
    return client->dead;
}

/* ---- Waiting ---- */

/* What is awaited: in words, and until when. */
struct wait {
    const char *what; /* "train" */
    double seconds;
    void (*grown)(void *context, size_t floats);
    void *context;
    size_t seen; /* what grown was told last */
};

static void look_at_gradient(struct gpu_client *client, struct wait *wait)
{
    size_t ready = (size_t)atomic_load_explicit(&client->header->ready, memory_order_acquire);
    ready = ready < client->float_count ? ready : client->float_count;
    if (ready > wait->seen) {
        wait->seen = ready;
        wait->grown(wait->context, ready);
    }
}

/* Spins for the word, and for the gradient meanwhile. */
static bool spin(struct gpu_client *client, struct wait *wait, const struct protocol_word *word, uint32_t seen)
{
    if (!handover_may_spin(&client->header->client_cpu, &client->header->helper_cpu)) {
        return false;
    }
    if (!wait->grown) {
        return handover_spin(word, seen, SPIN_NS);
    }
    for (int64_t end = handover_now_ns() + SPIN_NS; handover_now_ns() < end;) {
        look_at_gradient(client, wait);
        if (handover_spin(word, seen, 0)) {
            return true;
        }
    }
    return false;
}

/* Waits until the word is no longer `seen`; false: the client is dead. */
static bool await(struct gpu_client *client, struct wait *wait, struct protocol_word *word, uint32_t seen)
{
    struct error error;
    if (spin(client, wait, word, seen)) {
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
            look_at_gradient(client, wait);
        }
        now = handover_now_ns();
        if (now >= look) {
            if (has_ended(client, wait->what)) {
                return false;
            }
            look = now + LOOK_NS;
        }
        if (now >= deadline) {
            error_set(&error, "the GPU engine did not %s within %.3g s (train.gpu_timeout_secs), and was stopped",
                      wait->what, wait->seconds);
            return die(client, &error);
        }
    }
}

/* ---- Commands ---- */

static bool greet(struct gpu_client *client)
{
    struct wait wait = {.what = "start", .seconds = START_S};
    if (!client->greeted && !await(client, &wait, &client->header->hello, 0)) {
        return false;
    }
    client->greeted = true;
    return true;
}

/* A process that does not run yet finds it when it does. */
static void post(struct gpu_client *client, const struct protocol_command *command)
{
    client->header->command = *command;
    handover_set(&client->header->posted, ++client->posted);
}

/* Waits until what was posted is done. */
static bool finish(struct gpu_client *client, struct wait *wait, struct error *error)
{
    struct protocol_header *header = client->header;
    if (client->dead || !greet(client) || !await(client, wait, &header->completed, client->posted - 1)) {
        *error = client->death;
        return false;
    }
    if (header->reply.status == PROTOCOL_DONE) {
        return true;
    }
    header->reply.error.text[sizeof header->reply.error.text - 1] = '\0';
    *error = header->reply.error;
    return header->reply.status == PROTOCOL_LOST ? die(client, error) : false;
}

/* Has it carried out, within the wait. */
static bool carry_out(struct gpu_client *client, const struct protocol_command *command, struct wait *wait,
                      struct error *error)
{
    if (client->dead) {
        *error = client->death;
        return false;
    }
    post(client, command);
    return finish(client, wait, error);
}

/* Of a command that takes longer the more units of work it has. */
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
    bool done = carry_out(client, command, wait, error);
    if (done) {
        note_pace(pace, (double)(handover_now_ns() - begin) * 1e-9, units);
    }
    return done;
}

/* ---- Start and stop ---- */

bool gpu_client_is_built(void)
{
    size_t size;
    return payload_program(&size) != NULL;
}

static bool create_memory(struct gpu_client *client, struct error *error)
{
    client->file = (int)syscall(SYS_memfd_create, "trainer-gpu-memory", MFD_CLOEXEC);
    if (client->file < 0 || ftruncate(client->file, (off_t)protocol_header_bytes()) != 0) {
        return error_set(error, "no memory to share with the GPU engine: %s", strerror(errno));
    }
    void *memory = mmap(NULL, protocol_header_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, client->file, 0);
    if (memory == MAP_FAILED) {
        return error_set(error, "no memory to share with the GPU engine: %s", strerror(errno));
    }
    client->header = memory;
    client->header->magic = PROTOCOL_MAGIC;
    client->header->layout = sizeof *client->header;
    client->header->parent = getpid();
    atomic_store(&client->header->client_cpu, -1);
    atomic_store(&client->header->helper_cpu, -1);
    return true;
}

bool gpu_client_start_program(struct gpu_client **out, const void *bytes, size_t size, double timeout_s,
                              struct error *error)
{
    struct gpu_client *client = calloc(1, sizeof *client);
    if (!client) {
        return error_set(error, "no memory for the GPU engine");
    }
    client->file = -1;
    client->timeout_s = timeout_s;
    struct launch_program program = {.name = "trainer-gpu", .bytes = bytes, .size = size};
    if (!create_memory(client, error)) {
        gpu_client_stop(client);
        return false;
    }
    program.fd = client->file;
    if (!launch(&client->pid, &program, error)) {
        client->pid = 0;
        gpu_client_stop(client);
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
    if (!client) {
        return;
    }
    if (client->pid > 0 && !client->dead && client->greeted &&
        atomic_load(&client->header->completed.value) == client->posted) {
        struct wait wait = {.what = "end", .seconds = client->timeout_s < 2 ? client->timeout_s : 2};
        struct error error;
        carry_out(client, &(struct protocol_command){.verb = PROTOCOL_QUIT}, &wait, &error);
    }
    if (client->pid > 0) {
        launch_kill(client->pid); /* it is ending, or hangs */
    }
    if (client->transfer) {
        munmap(client->transfer, client->transfer_bytes);
    }
    if (client->header) {
        munmap(client->header, protocol_header_bytes());
    }
    if (client->file >= 0) {
        close(client->file);
    }
    free(client);
}

bool gpu_client_list(struct gpu_client *client, struct gpu_list *list, struct error *error)
{
    struct wait wait = {.what = "load the driver", .seconds = DRIVER_S};
    if (!carry_out(client, &(struct protocol_command){.verb = PROTOCOL_LIST}, &wait, error)) {
        return false;
    }
    const struct protocol_reply *reply = &client->header->reply;
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

/* ---- The memory in common ---- */

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

/* Gives a piece of the transfer area; with base NULL it only counts. */
static void *take(uint8_t *base, size_t *used, size_t bytes)
{
    void *place = base ? base + *used : NULL;
    *used += (size_t)protocol_round_up(bytes);
    return place;
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
    areas->batch_images = shape->batch_size > FORWARD_IMAGES ? shape->batch_size : FORWARD_IMAGES;
    size_t images = (size_t)areas->batch_images;
    areas->gradient = take(base, &used, floats);
    areas->images = take(base, &used, images * (size_t)shape->widths[0]);
    areas->labels = take(base, &used, images * sizeof(int32_t));
    areas->logits = take(base, &used, images * (size_t)shape->widths[shape->layer_count] * sizeof(float));
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
    if (ftruncate(client->file, (off_t)(header + client->transfer_bytes)) == 0) {
        memory = mmap(NULL, client->transfer_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, client->file, (off_t)header);
    }
    if (memory == MAP_FAILED) {
        return error_set(error, "no memory for %zu MiB to share with the GPU engine: %s", client->transfer_bytes >> 20,
                         strerror(errno));
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
    post(client, &(struct protocol_command){.verb = PROTOCOL_OPEN,
                                            .ordinal = ordinal,
                                            .shape = *shape,
                                            .memory_fraction = memory_fraction,
                                            .transfer_bytes = client->transfer_bytes});
    return true;
}

bool gpu_client_open_end(struct gpu_client *client, struct error *error)
{
    struct wait wait = {.what = "take the device", .seconds = DRIVER_S};
    if (!finish(client, &wait, error)) {
        return false;
    }
    snprintf(client->description, sizeof client->description, "%.255s", client->header->reply.description);
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

/* ---- Work ---- */

bool gpu_client_data(struct gpu_client *client, const uint8_t *images, const int32_t *labels, int count,
                     struct error *error)
{
    struct wait wait = {.what = "take the training data", .seconds = DRIVER_S};
    uint64_t at = protocol_header_bytes() + client->transfer_bytes;
    size_t image_bytes = (size_t)count * (size_t)client->shape.widths[0], label_bytes = (size_t)count * sizeof *labels;
    size_t room = (size_t)protocol_round_up(image_bytes), bytes = room + label_bytes;
    struct protocol_command command = {
        .verb = PROTOCOL_DATA, .images = count, .images_at = at, .labels_at = at + room, .file_bytes = at + bytes};
    if (client->dead) {
        *error = client->death;
        return false;
    }
    uint8_t *memory = MAP_FAILED;
    if (ftruncate(client->file, (off_t)(at + bytes)) == 0) {
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, client->file, (off_t)at);
    }
    if (memory == MAP_FAILED) {
        return error_set(error, "no memory to hand %zu MiB of training data to the GPU engine: %s", bytes >> 20,
                         strerror(errno));
    }
    memcpy(memory, images, image_bytes);
    memcpy(memory + room, labels, label_bytes);
    munmap(memory, bytes);
    bool done = carry_out(client, &command, &wait, error);
    /* The device has its own by now. */
    if (ftruncate(client->file, (off_t)at) != 0 && done) {
        return error_set(error, "memory of the GPU engine can't be given back: %s", strerror(errno));
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
    return carry_out(client, &command, &wait, error);
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
    return client->header->updates;
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
    *outcome = client->header->reply.outcome;
    return true;
}

bool gpu_client_step(struct gpu_client *client, int images, uint32_t task, int64_t step,
                     void (*grown)(void *context, size_t floats), void *context, struct device_outcome *outcome,
                     struct error *error)
{
    const struct gpu_areas *areas = &client->areas;
    assert(images > 0 && images <= areas->batch_images);
    struct protocol_command command = {.verb = PROTOCOL_STEP,
                                       .step = step,
                                       .task = task,
                                       .images = images,
                                       .count = client->float_count,
                                       .images_at = offset_of(client, areas->images),
                                       .labels_at = offset_of(client, areas->labels),
                                       .floats_at = offset_of(client, areas->gradient)};
    struct wait wait = paced_wait(client, &client->step, "compute a gradient", 1);
    wait.grown = grown;
    wait.context = context;
    atomic_store(&client->header->ready, 0);
    if (!carry_out_paced(client, &command, &wait, &client->step, 1, error)) {
        return false;
    }
    *outcome = client->header->reply.outcome;
    if (outcome->finite && wait.seen < client->float_count) {
        grown(context, client->float_count);
    }
    return true;
}

bool gpu_client_forward(struct gpu_client *client, bool averaged, int images, struct error *error)
{
    const struct gpu_areas *areas = &client->areas;
    assert(images > 0 && images <= areas->batch_images);
    struct protocol_command command = {.verb = PROTOCOL_FORWARD,
                                       .averaged = averaged,
                                       .images = images,
                                       .images_at = offset_of(client, areas->images),
                                       .floats_at = offset_of(client, areas->logits)};
    struct wait wait = paced_wait(client, &client->forward, "classify images", images);
    return carry_out_paced(client, &command, &wait, &client->forward, images, error);
}
