/* Handlers only record the signal; the loops that check for it do all the work. */
#include "base/process/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
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

static void catch_one(int number)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

void signals_catch(void)
{
    /* Shells start background jobs of a script with SIGINT ignored; a job must still be stoppable by it. Only SIGHUP
     * is left alone when ignored, because that is what nohup is for. */
    catch_one(SIGINT);
    catch_one(SIGTERM);
    catch_one(SIGUSR1); /* Slurm can be told to send it some time before it ends a job */
    struct sigaction hangup;
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) {
        catch_one(SIGHUP);
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

static void leave_to_system(int number)
{
    struct sigaction action;
    if (sigaction(number, NULL, &action) == 0 && action.sa_handler == on_signal) {
        signal(number, SIG_DFL);
    }
}

pid_t signals_fork(void)
{
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before); /* none arrives before the handlers are gone */
    const pid_t child = fork();
    const int reason = errno;
    if (child == 0) {
        leave_to_system(SIGINT);
        leave_to_system(SIGTERM);
        leave_to_system(SIGUSR1);
        leave_to_system(SIGHUP);
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
