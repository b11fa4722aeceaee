/*
 * Waits spin briefly, then sleep on a futex and wake from time to time to see whether the process still lives: a child
 * that died cannot wake anybody.
 */
#include "cuda/exchange.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda/handover.h"
#include "cuda/launch.h"

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

void exchange_post(struct exchange *exchange, const struct protocol_command *command)
{
    exchange->header->command = *command;
    handover_set(&exchange->header->posted, ++exchange->posted);
}

bool exchange_finish(struct exchange *exchange, struct wait *wait, struct error *error)
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

bool exchange_carry_out(struct exchange *exchange, const struct protocol_command *command, struct wait *wait,
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

bool exchange_start(struct exchange *exchange, const void *bytes, size_t size, struct error *error)
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

void exchange_stop(struct exchange *exchange, double seconds)
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
