/*
 * Threads of the simulated processes are stacks that take turns; the seed decides which is next. The clock advances
 * only when all of them wait.
 */
#include "tests/simulate/world.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/process/signals.h"
#include "tests/simulate/agenda.h"

enum {
    STACK = 256 * 1024,
    MOST_EVENTS = 3000000, /* within COUNTED_S: more is a busy loop */
    COUNTED_S = 100,
};

struct world world;

/* --- Chance --- */

/* splitmix64 */
static uint64_t next_random(void)
{
    uint64_t z = world.random += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

uint64_t chance(uint64_t below)
{
    return next_random() % below;
}

double chance_real(void)
{
    return (double)(next_random() >> 11) * 0x1p-53;
}

/* --- Logging --- */

void say(const char *format, ...)
{
    if (!world.shows) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    printf("%11.6f  %-9s ", world.now_s, world.here ? world.here->name : "");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

void fail(const char *format, ...)
{
    if (world.failed) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(world.why, sizeof world.why, format, arguments);
    va_end(arguments);
    world.failed = true;
    say("FAILED: %s", world.why);
}

/* --- Threads --- */

struct thread {
    struct thread *next; /* of the same process */
    struct machine *machine;
    void *stack, *top;
    bool ready, done, woken, queued, detached;
    const void *waits_for;
    const struct pollfd *polled; /* what poll waits for */
    int polled_count;
    uint64_t wait; /* counts its waits: an alarm of an earlier one is ignored */
    void *(*start)(void *context);
    void *context, *result;
    uint64_t number;
    int error_number; /* errno is each thread's own */
};

static struct thread *running;
static struct thread *ready[8192];
static int ready_count;
static uint64_t threads_made;
static void *outside; /* stack pointer of the world's own thread */
static void *free_stacks[4096];
static int free_stack_count;

/* Saves what a call must preserve, and continues where the other stack left off. */
__attribute__((naked, noinline)) static void switch_stack(void **from __attribute__((unused)),
                                                          void *to __attribute__((unused)))
{
    __asm__("pushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n\t"
            "movq %rsp, (%rdi)\n\tmovq %rsi, %rsp\n\t"
            "popq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\tret");
}

static void make_ready(struct thread *thread)
{
    if (!thread->queued) {
        assert(ready_count < (int)(sizeof ready / sizeof ready[0]));
        thread->queued = true;
        ready[ready_count++] = thread;
    }
}

static void leave_thread(void)
{
    struct thread *identity = running;
    identity->error_number = errno;
    switch_stack(&identity->top, outside);
    errno = running->error_number;
}

static void thread_main(void)
{
    struct thread *identity = running;
    identity->result = identity->start(identity->context);
    identity->done = true;
    thread_wake(identity->machine, identity);
    leave_thread();
    abort();
}

static struct thread *thread_new(struct machine *machine, void *(*start)(void *context), void *context)
{
    struct thread *thread = world_alloc(sizeof *thread);
    if (free_stack_count > 0) {
        thread->stack = free_stacks[--free_stack_count];
    } else {
        thread->stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    *(uint64_t *)thread->stack = 0x5afe5afe5afe5afeull;
    void **top = (void **)((char *)thread->stack + STACK) - 3;
    *--top = (void *)(uintptr_t)thread_main; /* the first switch returns to it, with the stack as after a call */
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    thread->top = top;
    thread->machine = machine;
    thread->start = start;
    thread->context = context;
    thread->number = threads_made++;
    thread->next = machine->threads;
    machine->threads = thread;
    machine->thread_count++;
    make_ready(thread);
    return thread;
}

static void thread_free(struct thread *thread)
{
    if (*(uint64_t *)thread->stack != 0x5afe5afe5afe5afeull) {
        fail("a thread of %s used more than its stack", thread->machine->name);
    }
    if (thread->queued) {
        for (int i = 0; i < ready_count; i++) {
            if (ready[i] == thread) {
                ready[i] = ready[--ready_count];
                break;
            }
        }
    }
    if (free_stack_count < (int)(sizeof free_stacks / sizeof free_stacks[0])) {
        free_stacks[free_stack_count++] = thread->stack;
    } else {
        munmap(thread->stack, STACK);
    }
    thread->machine->thread_count--;
    free(thread);
}

static void thread_forget(struct thread *thread)
{
    for (struct thread **link = &thread->machine->threads; *link; link = &(*link)->next) {
        if (*link == thread) {
            *link = thread->next;
            break;
        }
    }
    thread_free(thread);
}

/* Alarms name a thread by number, because it may be gone when they ring. */
static struct thread *find_thread(struct machine *machine, uint64_t number)
{
    struct thread *thread = machine->threads;
    while (thread && thread->number != number) {
        thread = thread->next;
    }
    return thread;
}

static void ring(void *context, uint64_t argument)
{
    struct thread *thread = find_thread(context, argument >> 24);
    if (thread && thread->waits_for && (thread->wait & 0xffffff) == (argument & 0xffffff)) {
        thread->waits_for = NULL;
        make_ready(thread);
    }
}

/* An alarm that nobody waits for any more. */
static bool is_stale(const struct call *call)
{
    if (call->call != ring) {
        return false;
    }
    const struct thread *thread = find_thread(call->context, call->argument >> 24);
    return !thread || !thread->waits_for || (thread->wait & 0xffffff) != (call->argument & 0xffffff);
}

void world_at(double when_s, void (*call)(void *context, uint64_t argument), void *context, uint64_t argument)
{
    if (!agenda_add(&(struct call){.when_s = when_s, .call = call, .context = context, .argument = argument})) {
        fail("more than %d things are about to happen", AGENDA_MOST);
    }
}

bool thread_block(const void *what, double until_s)
{
    struct thread *identity = running;
    identity->waits_for = what;
    identity->woken = false;
    identity->wait++;
    if (until_s < 1e15) {
        world_at(until_s > world.now_s ? until_s : world.now_s, ring, identity->machine,
                 identity->number << 24 | (identity->wait & 0xffffff));
    }
    leave_thread();
    return identity->woken;
}

void thread_wake(struct machine *machine, const void *what)
{
    for (struct thread *thread = machine->threads; thread; thread = thread->next) {
        if (thread->waits_for == what) {
            thread->waits_for = NULL;
            thread->woken = true;
            make_ready(thread);
        }
    }
}

static const char poll_tag;

bool thread_block_poll(const struct pollfd *polled, int count, double until_s)
{
    running->polled = polled;
    running->polled_count = count;
    bool woken = thread_block(&poll_tag, until_s);
    running->polled_count = 0;
    return woken;
}

void thread_wake_poll(struct machine *machine, int fd)
{
    for (struct thread *thread = machine->threads; thread; thread = thread->next) {
        for (int i = 0; thread->waits_for == &poll_tag && i < thread->polled_count; i++) {
            if (thread->polled[i].fd == fd || network_watches(machine, thread->polled[i].fd, fd)) {
                thread->waits_for = NULL;
                thread->woken = true;
                make_ready(thread);
            }
        }
    }
}

/* Lets others run first. */
static void thread_yield(void)
{
    make_ready(running);
    leave_thread();
}

/* --- Machines --- */

/* Nothing of the process remains; its peers learn of it as from a kernel. */
static void clean_up(struct machine *machine)
{
    for (int i = 0; i < WORLD_MAX_FILES; i++) {
        if (machine->files[i]) {
            file_free(machine->files[i]);
        }
    }
    while (machine->threads) {
        struct thread *next = machine->threads->next;
        thread_free(machine->threads);
        machine->threads = next;
    }
    memory_forget(machine);
    machine->runs = false;
    machine->signal = 0;
}

void machine_kill(struct machine *machine)
{
    if (machine->runs) {
        clean_up(machine);
    }
}

static struct machine *leaver;

void machine_exit(int status)
{
    world.here->status = status;
    leaver = world.here;
    leave_thread();
    abort();
}

static void *run_main(void *context)
{
    struct machine *machine = context;
    int status = machine->main(machine);
    say("exits with status %d", status);
    machine_exit(status);
}

void machine_start(struct machine *machine)
{
    machine->runs = true;
    machine->life++;
    machine->status = -1;
    machine->complained = false;
    thread_new(machine, run_main, machine);
}

/* --- The loop --- */

void world_begin(uint64_t seed)
{
    bool shows = world.shows;
    memset(&world, 0, sizeof world);
    world.seed = seed;
    world.random = seed * 0x2545f4914f6cdd1dull + 1;
    world.shows = shows;
    world.now_s = 1000;
    agenda_begin(is_stale);
    ready_count = 0;
    threads_made = 0;
    network_begin();
}

void world_end(void)
{
    for (int i = 0; i < world.machine_count; i++) {
        machine_kill(&world.machines[i]);
    }
    network_end();
}

static void run(struct thread *thread)
{
    running = thread;
    world.here = thread->machine;
    switch_stack(&outside, thread->top);
    running = NULL;
    if (leaver) {
        clean_up(leaver);
        leaver = NULL;
    } else if (thread->done && thread->start == run_main) {
        abort();
    } else if (thread->done && thread->detached) {
        thread_forget(thread);
    }
    world.here = NULL;
}

static void thaw(void *context, uint64_t argument)
{
    struct thread *thread = find_thread(context, argument);
    if (thread) {
        make_ready(thread);
    }
}

bool world_step(double until_s)
{
    if (ready_count == 0) {
        struct call call;
        if (!agenda_take(until_s, &call)) {
            world.now_s = until_s > world.now_s ? until_s : world.now_s;
            return false;
        }
        world.now_s = call.when_s > world.now_s ? call.when_s : world.now_s;
        call.call(call.context, call.argument);
    } else {
        int i = (int)chance((uint64_t)ready_count);
        struct thread *thread = ready[i];
        ready[i] = ready[--ready_count];
        thread->queued = false;
        if (thread->machine->frozen_until_s > world.now_s) {
            world_at(thread->machine->frozen_until_s, thaw, thread->machine, thread->number);
        } else {
            world.now_s += 1e-6;
            run(thread);
        }
    }
    if (world.now_s >= world.counted_s + COUNTED_S) {
        world.counted_s = world.now_s;
        world.counted = world.events;
    }
    if (++world.events > world.counted + MOST_EVENTS) {
        fail("more than %d events in %d s: somebody is in a busy loop", MOST_EVENTS, COUNTED_S);
    }
    return true;
}

double machine_clock_s(const struct machine *machine)
{
    return world.now_s * (1 + machine->clock_drift) + machine->clock_ahead_s;
}

void machine_drift(struct machine *machine, double drift)
{
    machine->clock_ahead_s += world.now_s * (machine->clock_drift - drift);
    machine->clock_drift = drift;
}

double here_s(double seconds)
{
    return seconds / (1 + world.here->clock_drift);
}

/* --- Replacements of system calls: threads --- */

static void sleep_for(double seconds)
{
    static const char nothing;
    thread_block(&nothing, world.now_s + here_s(seconds));
}

/* The linker's --wrap redirects the program's calls here. */
#define WRAP(type, name, ...)                                                                                          \
    type __wrap_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__)

struct mutex {
    struct thread *owner;
};

WRAP(int, pthread_create, pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *context)
{
    int state = PTHREAD_CREATE_JOINABLE;
    if (falls_short(SHORT_THREAD)) {
        return EAGAIN;
    }
    if (attributes) {
        pthread_attr_getdetachstate(attributes, &state);
    }
    struct thread *new = thread_new(world.here, start, context);
    new->detached = state == PTHREAD_CREATE_DETACHED;
    memcpy(thread, &new, sizeof new); /* NOLINT: it is the pointer that is kept */
    return 0;
}

WRAP(int, pthread_join, pthread_t thread, void **result)
{
    struct thread *other = NULL;
    memcpy(&other, &thread, sizeof other); /* NOLINT: restores the pointer */
    while (!other->done) {
        thread_block(other, INFINITY);
    }
    if (result) {
        *result = other->result;
    }
    thread_forget(other);
    return 0;
}

WRAP(int, pthread_mutex_init, pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    memset(mutex, 0, sizeof *mutex); /* NOLINT: it is ours now */
    return 0;
}

WRAP(int, pthread_mutex_destroy, pthread_mutex_t *mutex)
{
    assert(!((struct mutex *)mutex)->owner);
    return 0;
}

WRAP(int, pthread_mutex_lock, pthread_mutex_t *mutex)
{
    struct mutex *lock = (struct mutex *)mutex;
    if (!running) {
        return 0;
    }
    if (chance(8) == 0) {
        thread_yield();
    }
    if (world.lag > 0 && chance(world.lag) == 0) {
        sleep_for(0.5 * chance_real());
    }
    while (lock->owner) {
        thread_block(mutex, INFINITY);
    }
    lock->owner = running;
    return 0;
}

WRAP(int, pthread_mutex_unlock, pthread_mutex_t *mutex)
{
    struct mutex *lock = (struct mutex *)mutex;
    if (running) {
        assert(lock->owner == running);
        lock->owner = NULL;
        thread_wake(world.here, mutex);
    }
    return 0;
}

WRAP(int, pthread_cond_init, pthread_cond_t *condition, const pthread_condattr_t *attributes)
{
    memset(condition, 0, sizeof *condition); /* NOLINT */
    return 0;
}

WRAP(int, pthread_cond_destroy, pthread_cond_t *condition)
{
    return 0;
}

static int wait_for(pthread_cond_t *condition, pthread_mutex_t *mutex, double until_s)
{
    struct mutex *lock = (struct mutex *)mutex;
    assert(lock->owner == running);
    lock->owner = NULL;
    thread_wake(world.here, mutex);
    bool woken = thread_block(condition, until_s);
    while (lock->owner) {
        thread_block(mutex, INFINITY);
    }
    lock->owner = running;
    return woken ? 0 : ETIMEDOUT;
}

WRAP(int, pthread_cond_wait, pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    return wait_for(condition, mutex, INFINITY);
}

WRAP(int, pthread_cond_timedwait, pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    return wait_for(condition, mutex,
                    ((double)until->tv_sec + (double)until->tv_nsec * 1e-9 - world.here->clock_ahead_s) /
                        (1 + world.here->clock_drift));
}

WRAP(int, pthread_cond_signal, pthread_cond_t *condition)
{
    thread_wake(world.here, condition);
    return 0;
}

WRAP(int, pthread_cond_broadcast, pthread_cond_t *condition)
{
    thread_wake(world.here, condition);
    return 0;
}

/* --- Time --- */

WRAP(int, clock_gettime, clockid_t clock, struct timespec *now)
{
    double seconds = world.here ? machine_clock_s(world.here) : world.now_s;
    if (clock == CLOCK_REALTIME) {
        seconds = 1.7e9 + world.now_s + (world.here ? world.here->wall_ahead_s : 0);
    }
    now->tv_sec = (time_t)floor(seconds);
    now->tv_nsec = (long)((seconds - floor(seconds)) * 1e9);
    return 0;
}

WRAP(int, nanosleep, const struct timespec *time, struct timespec *left)
{
    sleep_for((double)time->tv_sec + (double)time->tv_nsec * 1e-9);
    return 0;
}

WRAP(int, usleep, useconds_t time)
{
    sleep_for(time * 1e-6);
    return 0;
}

/* --- Signals and process ids --- */

void signals_catch(void)
{
}

int signals_pending(void)
{
    return world.here->signal;
}

const char *signals_name(int number)
{
    return "SIGTERM";
}

int signals_exit_status(int number)
{
    return 128 + number;
}

WRAP(pid_t, getpid, void)
{
    return world.here->life * 100 + world.here->number + 1;
}

/* --- Random numbers for the program --- */

WRAP(void, randombytes_buf, void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        ((uint8_t *)bytes)[i] = (uint8_t)chance(256);
    }
}

WRAP(uint32_t, randombytes_random, void)
{
    return (uint32_t)++world.names;
}

WRAP(uint32_t, randombytes_uniform, uint32_t below)
{
    return (uint32_t)chance(below);
}
