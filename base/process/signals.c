/* Handlers only record the signal; the loops that check for it do all the work. */
#include "base/process/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

static atomic_int first_signal;

int signals_exit_status(int number)
{
    return 128 + number;
}

static void on_signal(int number)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&first_signal, &none, number)) {
        _exit(signals_exit_status(number));
    }
}

/*
 * Shells start background jobs of a script with SIGINT ignored; a job must still be stoppable by it. Only SIGHUP is
 * left alone when ignored, because that is what nohup is for. Slurm can be told to send SIGUSR1 some time before it
 * ends a job.
 */
static const int caught[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};

enum { CAUGHT = sizeof caught / sizeof *caught };

static bool is_handled_by(int number, void (*handler)(int number))
{
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == handler;
}

void signals_catch(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < CAUGHT; i++) {
        if (caught[i] != SIGHUP || !is_handled_by(SIGHUP, SIG_IGN)) {
            sigaction(caught[i], &action, NULL);
        }
    }
    signal(SIGCHLD, SIG_DFL); /* some daemons ignore it, and then there would be no status of a child to wait for */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

pid_t signals_fork(void)
{
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before); /* none arrives before the handlers are gone */
    const pid_t child = fork();
    const int reason = errno;
    for (int i = 0; child == 0 && i < CAUGHT; i++) {
        if (is_handled_by(caught[i], on_signal)) {
            signal(caught[i], SIG_DFL);
        }
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = reason;
    return child;
}

int signals_pending(void)
{
    return atomic_load(&first_signal);
}

const char *signals_name(int number)
{
    switch (number) {
    case SIGINT:
        return "SIGINT";
    case SIGTERM:
        return "SIGTERM";
    case SIGHUP:
        return "SIGHUP";
    case SIGUSR1:
        return "SIGUSR1";
    default:
        return "a signal";
    }
}
