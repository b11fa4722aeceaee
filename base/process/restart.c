/* Restarts a process: in place, or as the child of a small parent. */
#include "base/process/restart.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/process/signals.h"

/* The running program, even if its file was replaced or its folder is another one now. */
static const char program[] = "/proc/self/exe";

/* --- In place --- */

static char *const *own_arguments;

/* What a restart executes instead of the running program. */
static struct {
    char path[4096]; /* "": nothing */
    char **environment;
    bool on_probation;
} other;

static const char executed[] = "TRAINER_EXECUTED"; /* by the process of this id */

/* The thread that executes the program, if it is not the one that requests it. */
static struct {
    atomic_bool is_there; /* set last */
    pthread_t thread;
    sem_t go;
    int parent_death_signal; /* a setting per thread, inherited by what it executes */
    atomic_bool at_once;     /* failures can no longer be reported to anyone */
    int reason;
} helper;

void restart_remember(char *const *argv)
{
    own_arguments = argv;
}

/* FNV-1a, with each text's zero byte. */
static uint64_t add_text(uint64_t hash, const char *text)
{
    for (size_t i = 0; i <= strlen(text); i++) {
        hash = (hash ^ (uint8_t)text[i]) * 0x100000001b3u;
    }
    return hash;
}

void restart_identity(char id[RESTART_ID])
{
    /* What distinguishes members with the same command line. */
    const char *const variables[] = {getenv("TF_CONFIG"), getenv("SLURM_PROCID")};
    uint64_t hash = 0xcbf29ce484222325u;
    for (char *const *argument = own_arguments; argument && *argument; argument++) {
        hash = argument == own_arguments ? hash : add_text(hash, *argument); /* not the name by which it was called */
    }
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        hash = variables[i] ? add_text(hash, variables[i]) : hash;
    }
    snprintf(id, RESTART_ID, "%016llx", (unsigned long long)hash);
}

/* Only what a signal handler may do. */
static void execute_other(void)
{
    signal(SIGALRM, SIG_DFL);
    alarm(other.on_probation ? RESTART_ARRIVE_S : 0); /* it survives execve */
    execve(other.path, own_arguments, other.environment);
    const int reason = errno;
    alarm(0);
    errno = reason;
}

/* Likewise. */
static void execute(void)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL); /* it would be inherited */
    if (other.path[0] != '\0') {
        execute_other();
    }
    execv(program, own_arguments);
}

/* Made here because execute must not allocate. Never freed: the process ends by executing with it. */
static char **mark_environment(void)
{
    static char mark[64];
    int count = 0, kept = 0;
    while (environ && environ[count]) {
        count++;
    }
    char **copy = calloc((size_t)count + 2, sizeof *copy);
    for (int i = 0; copy && i < count; i++) {
        if (strncmp(environ[i], executed, sizeof executed - 1) != 0) {
            copy[kept++] = environ[i];
        }
    }
    if (copy) {
        snprintf(mark, sizeof mark, "%s=%ld", executed, (long)getpid());
        copy[kept] = mark;
    }
    return copy;
}

bool restart_in(const char *path, bool on_probation, struct error *error)
{
    char **environment = mark_environment();
    if (!environment || strlen(path) >= sizeof other.path) {
        free(environment);
        return error_set(error, "%s: out of memory, or the path is too long", path);
    }
    other.environment = environment;
    other.on_probation = on_probation;
    snprintf(other.path, sizeof other.path, "%s", path);
    return true;
}

bool restart_at_once(const char *path, bool on_probation, struct error *error)
{
    if (!restart_in(path, on_probation, error)) {
        return false;
    }
    execute_other();
    const int reason = errno;
    other.path[0] = '\0';
    return error_set(error, "%s: can't be executed: %s", path, strerror(reason));
}

bool restart_was_executed(void)
{
    static enum { UNKNOWN, NO, YES } was;
    if (was == UNKNOWN) {
        const char *by = getenv(executed);
        was = by && strtol(by, NULL, 10) == (long)getpid() ? YES : NO;
        unsetenv(executed); /* it concerns this start only */
    }
    return was == YES;
}

void restart_arrived(void)
{
    alarm(0);
}

static void *execute_when_signalled(void *context)
{
    (void)context;
    while (sem_wait(&helper.go) != 0) {
    }
    prctl(PR_SET_PDEATHSIG, helper.parent_death_signal);
    execute();
    helper.reason = errno;
    if (atomic_load(&helper.at_once)) {
        _exit(RESTART_STATUS);
    }
    return NULL;
}

bool restart_spawn_helper(void)
{
    prctl(PR_GET_PDEATHSIG, &helper.parent_death_signal);
    bool done =
        sem_init(&helper.go, 0, 0) == 0 && pthread_create(&helper.thread, NULL, execute_when_signalled, NULL) == 0;
    atomic_store(&helper.is_there, done);
    return done;
}

static void on_alarm(int number)
{
    (void)number;
    if (atomic_load(&helper.is_there)) {
        atomic_store(&helper.at_once, true);
        sem_post(&helper.go);
        return;
    }
    execute();
    _exit(RESTART_STATUS);
}

void restart_within(unsigned seconds)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_NODEFER};
    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    alarm(seconds);
}

void restart_now(void)
{
    alarm(0);
    if (atomic_load(&helper.is_there)) {
        sem_post(&helper.go);
        pthread_join(helper.thread, NULL);
        errno = helper.reason;
    } else {
        execute();
    }
    log_error("%s: can't be executed again: %s", program, strerror(errno));
}

/* --- The parent --- */

enum { MOST_DEATHS = 10, FAILED = 1, MISUSED = 2 };

static const char variable[] = "TRAINER_SUPERVISOR";
static const double STARTED_S = 2; /* a child that lived this long started successfully */
static const double WITHIN_S = 60, FIRST_DELAY_S = 0.2, LONGEST_DELAY_S = 10;

bool supervise_is_child(void)
{
    const char *parent = getenv(variable);
    return parent && strtol(parent, NULL, 10) == (long)getppid();
}

static pid_t start(char *const *arguments)
{
    char text[32];
    const pid_t parent = getpid();
    snprintf(text, sizeof text, "%ld", (long)parent);
    fflush(stdout);
    pid_t child = signals_fork();
    if (child != 0) {
        return child;
    }
    /*
     * An orphaned child must be gone before the next parent starts. It gets its own process group: signals from a
     * terminal go to the parent, which passes them on once; a second one would end the child without its last
     * checkpoint.
     */
    setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) == 0 && getppid() == parent && setenv(variable, text, 1) == 0) {
        execv(program, arguments);
    }
    _exit(FAILED);
}

/* Waits for its end; passes on one signal that stops the parent. */
static int wait_for(pid_t child)
{
    int status = 0, passed_on = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        const int number = signals_pending();
        if (number != 0 && passed_on == 0) {
            passed_on = number;
            kill(child, number);
        }
        clock_pause(clock_monotonic_s() + 0.02);
    }
    return status;
}

static int exit_status(int status)
{
    return WIFSIGNALED(status) ? signals_exit_status(WTERMSIG(status)) : WEXITSTATUS(status);
}

/* Deaths within the last minute. */
struct deaths {
    double at_s[MOST_DEATHS];
    int count;
};

static int count_recent(struct deaths *deaths, double now_s)
{
    int recent = 0;
    deaths->at_s[deaths->count++ % MOST_DEATHS] = now_s;
    for (int i = 0; i < deaths->count && i < MOST_DEATHS; i++) {
        recent += now_s - deaths->at_s[i] < WITHIN_S;
    }
    return recent;
}

static void log_death(pid_t child, int status, double delay_s)
{
    if (WIFSIGNALED(status)) {
        log_warning("process %ld was killed by signal %d (%s); restarting it in %.1f s", (long)child, WTERMSIG(status),
                    strsignal(WTERMSIG(status)), delay_s);
    } else {
        log_warning("process %ld ended with status %d; restarting it in %.1f s", (long)child, WEXITSTATUS(status),
                    delay_s);
    }
}

int supervise(char *const *arguments)
{
    struct deaths deaths = {.count = 0};
    signals_catch();
    for (;;) {
        const double begun_s = clock_monotonic_s();
        pid_t child = start(arguments);
        if (child < 0) {
            log_error("can't start a process: %s", strerror(errno));
            return FAILED;
        }
        const int ended = wait_for(child), status = exit_status(ended);
        const bool never_ran = deaths.count == 0 && status == MISUSED && clock_monotonic_s() - begun_s < STARTED_S;
        if (status == 0 || never_ran || signals_pending() != 0) {
            return status;
        }
        int recent = count_recent(&deaths, clock_monotonic_s());
        if (recent >= MOST_DEATHS) {
            log_error("it failed %d times within %.0f s: giving up", recent, WITHIN_S);
            return status;
        }
        double delay_s = FIRST_DELAY_S;
        for (int i = 1; i < recent && delay_s < LONGEST_DELAY_S; i++) {
            delay_s *= 2;
        }
        log_death(child, ended, delay_s);
        signals_pause(clock_monotonic_s() + delay_s);
        if (signals_pending() != 0) {
            return signals_exit_status(signals_pending());
        }
    }
}
