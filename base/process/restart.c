#include "base/process/restart.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/log.h"

/* The program that runs, even where its file was replaced or its folder is another one now. */
static const char program[] = "/proc/self/exe";

static char *const *arguments;

/* Who executes the program, if it is not the thread that wants it. */
static struct {
    atomic_bool is_there; /* set last */
    pthread_t thread;
    sem_t go;
    int parent_death_signal; /* a thread's own, and what it executes inherits it */
    atomic_bool at_once;     /* nobody is there to hear of it if it can't be done */
    int reason;
} stand_by;

void restart_remember(char *const *argv)
{
    arguments = argv;
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
    const char *environment = getenv("TF_CONFIG");
    uint64_t hash = 0xcbf29ce484222325u;
    for (char *const *argument = arguments; argument != NULL && *argument != NULL; argument++) {
        hash = argument == arguments ? hash : add_text(hash, *argument); /* not by which name it was called */
    }
    hash = environment != NULL ? add_text(hash, environment) : hash;
    snprintf(id, RESTART_ID, "%016llx", (unsigned long long)hash);
}

/* Only what a signal handler may do. */
static void execute(void)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL); /* it would be inherited */
    execv(program, arguments);
}

static void *execute_when_told(void *context)
{
    (void)context;
    while (sem_wait(&stand_by.go) != 0) {
    }
    prctl(PR_SET_PDEATHSIG, stand_by.parent_death_signal);
    execute();
    stand_by.reason = errno;
    if (atomic_load(&stand_by.at_once)) {
        _exit(RESTART_STATUS);
    }
    return NULL;
}

bool restart_stand_by(void)
{
    prctl(PR_GET_PDEATHSIG, &stand_by.parent_death_signal);
    bool done =
        sem_init(&stand_by.go, 0, 0) == 0 && pthread_create(&stand_by.thread, NULL, execute_when_told, NULL) == 0;
    atomic_store(&stand_by.is_there, done);
    return done;
}

static void on_alarm(int number)
{
    (void)number;
    if (atomic_load(&stand_by.is_there)) {
        atomic_store(&stand_by.at_once, true);
        sem_post(&stand_by.go);
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
    if (atomic_load(&stand_by.is_there)) {
        sem_post(&stand_by.go);
        pthread_join(stand_by.thread, NULL);
        errno = stand_by.reason;
    } else {
        execute();
    }
    log_error("%s: can't be executed again: %s", program, strerror(errno));
}
