/*
 * The program that hosts the GPU. It is linked against the system's libc, as NVIDIA's driver is, and embedded in the
 * static program, which starts it from memory with a descriptor of the shared memory (cuda/protocol.h) as its only
 * argument.
 *
 * One loop: wait for a command, check its offsets, execute it, complete it. A wrong number from the client is an error,
 * not a crash.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cuda/handover.h"
#include "cuda/protocol.h"

enum {
    SPIN_NS = 50 * 1000,          /* after a command: the next one usually follows at once */
    LOOK_NS = 1000 * 1000 * 1000, /* between checks that the client is alive, in addition to the kernel's signal */
};

/* A mapped part of the file. */
struct mapping {
    uint8_t *memory; /* NULL: none */
    uint64_t at, bytes;
};

struct helper_server {
    struct protocol_header *header;
    int file;
    struct mapping transfer; /* after the header */
    struct driver *driver;
    struct error no_driver; /* why it could not be loaded */
    struct device *device;
    struct device_shape shape;
};

/* --- Offsets in the file --- */

/* The client is our own, but a wrong number should be an error, not a crash. NULL: outside the mapping. */
static void *place(const struct mapping *mapping, uint64_t at, uint64_t count, uint64_t item_bytes)
{
    if (!mapping->memory || at < mapping->at || at - mapping->at > mapping->bytes || at % item_bytes != 0 ||
        count > (mapping->bytes - (at - mapping->at)) / item_bytes) {
        return NULL;
    }
    return mapping->memory + (at - mapping->at);
}

/* The first `arrays` arrays of a command's examples. False: it has none, or they are not within the mapping. */
static bool find_examples(const struct helper_server *server, const struct mapping *mapping,
                          const struct protocol_command *command, int arrays, struct device_examples *examples)
{
    *examples = (struct device_examples){.count = command->examples};
    for (int i = 0; command->examples > 0 && i < arrays; i++) {
        uint64_t bytes = (uint64_t)command->examples * device_example_bytes(&server->shape, i);
        uint64_t item = i == DEVICE_IMAGES ? 1 : sizeof(float);
        examples->arrays[i] = bytes > 0 ? place(mapping, command->arrays_at[i], bytes / item, item) : NULL;
        if (bytes > 0 && !examples->arrays[i]) {
            return false;
        }
    }
    return command->examples > 0;
}

static bool out_of_bounds(struct error *error)
{
    return error_set(error, "bug: a command to the GPU engine is out of bounds; please report this");
}

static bool needs_device(const struct helper_server *server, struct error *error)
{
    return server->device || error_set(error, "bug: no device is open; please report this");
}

/* --- Commands --- */

/* The result of loading the driver. */
static bool needs_driver(const struct helper_server *server, struct error *error)
{
    return server->driver || error_set(error, "%s", server->no_driver.text);
}

static bool list(struct helper_server *server, struct protocol_reply *reply)
{
    if (!needs_driver(server, &reply->error)) {
        return false;
    }
    int count = driver_device_count(server->driver);
    reply->driver_version = driver_version(server->driver);
    reply->device_count = count < PROTOCOL_MAX_DEVICES ? count : PROTOCOL_MAX_DEVICES;
    for (int i = 0; i < reply->device_count; i++) {
        if (!driver_device(server->driver, i, &reply->devices[i], &reply->error)) {
            return false;
        }
    }
    return true;
}

static bool map_transfer(struct helper_server *server, uint64_t bytes, struct error *error)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, server->file, (off_t)protocol_header_bytes());
    if (memory == MAP_FAILED) {
        return error_set(error, "the GPU engine cannot map %llu MiB: %s", (unsigned long long)bytes >> 20,
                         strerror(errno));
    }
    server->transfer = (struct mapping){.memory = memory, .at = protocol_header_bytes(), .bytes = bytes};
    return true;
}

/* The shape with its memory limit set from the fraction. */
static bool limit_memory(const struct helper_server *server, const struct protocol_command *command,
                         struct device_shape *shape, struct error *error)
{
    struct driver_device device;
    if (command->memory_fraction >= 1) {
        return true;
    }
    if (!driver_device(server->driver, command->ordinal, &device, error)) {
        return false;
    }
    shape->memory_limit = (uint64_t)((double)device.memory_bytes * command->memory_fraction);
    return true;
}

static bool open_device(struct helper_server *server, const struct protocol_command *command,
                        struct protocol_reply *reply)
{
    struct device_shape shape = command->shape;
    if (server->device || server->transfer.memory) {
        return out_of_bounds(&reply->error);
    }
    if (!needs_driver(server, &reply->error) || !map_transfer(server, command->transfer_bytes, &reply->error) ||
        !limit_memory(server, command, &shape, &reply->error) ||
        !device_open(&server->device, server->driver, command->ordinal, &shape, &reply->error)) {
        return false;
    }
    server->shape = shape;
    device_share(server->device, server->transfer.memory, server->transfer.bytes);
    reply->precision = device_precision(server->device);
    snprintf(reply->description, sizeof reply->description, "%s", device_describe(server->device));
    return true;
}

/* The training set follows the transfer area only during this command. */
static bool take_data(struct helper_server *server, const struct protocol_command *command, struct error *error)
{
    struct mapping data = {.at = server->transfer.at + server->transfer.bytes};
    struct device_examples examples;
    if (command->file_bytes <= data.at) {
        return out_of_bounds(error);
    }
    data.bytes = command->file_bytes - data.at;
    data.memory = mmap(NULL, data.bytes, PROT_READ, MAP_SHARED, server->file, (off_t)data.at);
    if (data.memory == MAP_FAILED) {
        return error_set(error, "the GPU engine cannot map %llu MiB of training data: %s",
                         (unsigned long long)data.bytes >> 20, strerror(errno));
    }
    bool done = find_examples(server, &data, command, DEVICE_ARRAYS, &examples)
                    ? device_data(server->device, &examples, error)
                    : out_of_bounds(error);
    munmap(data.memory, data.bytes);
    return done;
}

static bool move(struct helper_server *server, const struct protocol_command *command, struct error *error)
{
    float *floats = place(&server->transfer, command->floats_at, command->count, sizeof(float));
    if (!floats || command->vector < 0 || command->vector >= STORE_VECTORS) {
        return out_of_bounds(error);
    }
    enum store_vector vector = (enum store_vector)command->vector;
    return command->verb == PROTOCOL_WRITE
               ? device_write(server->device, vector, command->first, command->count, floats, error)
               : device_read(server->device, vector, command->first, command->count, floats, error);
}

static bool train(struct helper_server *server, const struct protocol_command *command, struct protocol_reply *reply)
{
    if (command->steps < 1 || command->steps > PROTOCOL_UPDATES) {
        return out_of_bounds(&reply->error);
    }
    return device_train(server->device, command->step, command->steps,
                        (const struct update(*)[2])server->header->updates, &reply->outcome, &reply->error);
}

static bool step(struct helper_server *server, const struct protocol_command *command, struct protocol_reply *reply)
{
    struct device_batch batch = {.task = command->task, .step = command->step};
    float *gradient = place(&server->transfer, command->floats_at, command->count, sizeof *gradient);
    if (!find_examples(server, &server->transfer, command, DEVICE_ARRAYS, &batch.examples) ||
        command->examples > server->shape.batch_size || !gradient) {
        return out_of_bounds(&reply->error);
    }
    return device_step(server->device, &batch, gradient, &server->header->ready, &reply->outcome, &reply->error);
}

static bool forward(struct helper_server *server, const struct protocol_command *command, struct error *error)
{
    struct device_examples examples;
    if (!find_examples(server, &server->transfer, command, DEVICE_INPUT_ARRAYS, &examples)) {
        return out_of_bounds(error);
    }
    uint64_t floats = (uint64_t)examples.count * (uint64_t)server->shape.widths[server->shape.layer_count];
    float *outputs = place(&server->transfer, command->floats_at, floats, sizeof *outputs);
    if (!outputs) {
        return out_of_bounds(error);
    }
    return device_forward(server->device, command->averaged != 0, &examples, outputs, error);
}

static bool carry_out(struct helper_server *server, const struct protocol_command *command,
                      struct protocol_reply *reply)
{
    switch ((enum protocol_verb)command->verb) {
    case PROTOCOL_LIST:
        return list(server, reply);
    case PROTOCOL_OPEN:
        return open_device(server, command, reply);
    case PROTOCOL_DATA:
        return needs_device(server, &reply->error) && take_data(server, command, &reply->error);
    case PROTOCOL_WRITE:
    case PROTOCOL_READ:
        return needs_device(server, &reply->error) && move(server, command, &reply->error);
    case PROTOCOL_TRAIN:
        return needs_device(server, &reply->error) && train(server, command, reply);
    case PROTOCOL_STEP:
        return needs_device(server, &reply->error) && step(server, command, reply);
    case PROTOCOL_FORWARD:
        return needs_device(server, &reply->error) && forward(server, command, &reply->error);
    case PROTOCOL_QUIT:
        device_close(server->device);
        driver_unload(server->driver);
        server->device = NULL;
        server->driver = NULL;
        return true;
    default:
        return out_of_bounds(&reply->error);
    }
}

/* --- The loop --- */

/* False: the client is gone. */
static bool await_command(struct helper_server *server, uint32_t seen)
{
    struct protocol_header *header = server->header;
    if (handover_may_spin(&header->helper_cpu, &header->client_cpu) && handover_spin(&header->posted, seen, SPIN_NS)) {
        return true;
    }
    while (!handover_sleep(&header->posted, seen, LOOK_NS)) {
        if (getppid() != (pid_t)header->parent) {
            return false;
        }
    }
    return true;
}

/* Until the client sends QUIT or dies. header: mapped from the start of `file`; commands may ask to map more of it. */
static void serve(struct protocol_header *header, int file)
{
    struct helper_server server = {.header = header, .file = file};
    handover_set(&header->hello, 1);
    /* Loading takes time that the client can use for other work. */
    if (!driver_load(&server.driver, NULL, &server.no_driver)) {
        server.driver = NULL;
    }
    for (uint32_t done = 0; await_command(&server, done);) {
        struct protocol_reply *reply = &header->reply;
        done = atomic_load(&header->posted.value);
        reply->status = PROTOCOL_FAILED;
        reply->error.text[0] = '\0';
        int32_t verb = header->command.verb;
        if (carry_out(&server, &header->command, reply)) {
            reply->status = PROTOCOL_DONE;
        } else if (server.device && device_lost(server.device)) {
            reply->status = PROTOCOL_LOST;
        }
        handover_may_spin(&header->helper_cpu,
                          &header->client_cpu); /* publishes this CPU for the client, which reads it next */
        handover_set(&header->completed, done);
        if (verb == PROTOCOL_QUIT) {
            return;
        }
    }
}

/* --- The program --- */

static struct protocol_header *map_header(int file)
{
    if (lseek(file, 0, SEEK_END) < (off_t)protocol_header_bytes()) {
        return NULL;
    }
    void *memory = mmap(NULL, protocol_header_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    struct protocol_header *header = memory;
    return memory != MAP_FAILED && header->magic == PROTOCOL_MAGIC && header->layout == sizeof *header ? header : NULL;
}

int main(int argc, char **argv)
{
    prctl(PR_SET_NAME, "trainer-gpu", 0, 0, 0);
    int file = argc == 2 ? atoi(argv[1]) : -1;
    struct protocol_header *header = file > 0 ? map_header(file) : NULL;
    if (!header) {
        fprintf(stderr, "trainer-gpu is part of trainer, which starts it automatically\n");
        return 2;
    }
    serve(header, file);
    return 0;
}
