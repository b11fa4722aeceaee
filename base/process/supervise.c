#include "base/process/supervise.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/process/signals.h"

enum { MOST_DEATHS = 10, FAILED = 1, MISUSED = 2 };

static const char variable[] = "TRAINER_SUPERVISOR";
static const double STARTED_S = 2; /* whoever lived so long was started rightly */
static const double WITHIN_S = 60, FIRST_DELAY_S = 0.2, LONGEST_DELAY_S = 10;

bool supervise_is_child(void)
{
    const char *parent = getenv(variable);
    return parent != NULL && strtol(parent, NULL, 10) == (long)getppid();
}

static pid_t start(char *const *arguments)
{
    char text[32];
    const pid_t parent = getpid();
    snprintf(text, sizeof text, "%ld", (long)parent);
    fflush(stdout);
    pid_t child = fork();
    if (child != 0) {
        return child;
    }
    /*
     * A child that is left alone must not be there when the next parent comes. A group of its own: what a terminal sends
     * goes to the parent, which passes it on, once; a second one would end the child without its last checkpoint.
     */
    setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) == 0 && getppid() == parent && setenv(variable, text, 1) == 0) {
        execv("/proc/self/exe", arguments);
    }
    _exit(FAILED);
}

static void pause_for(double seconds)
{
    const double until_s = clock_monotonic_s() + seconds;
    while (signals_pending() == 0 && clock_monotonic_s() < until_s) {
        const struct timespec slice = {.tv_nsec = 20 * 1000000L};
        nanosleep(&slice, NULL);
    }
}

/* Until it ends; a signal that asks the parent to leave goes to it once. */
static int wait_for(pid_t child)
{
    int status = 0, told = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        const struct timespec slice = {.tv_nsec = 20 * 1000000L};
        const int number = signals_pending();
        if (number != 0 && told == 0) {
            told = number;
            kill(child, number);
        }
        nanosleep(&slice, NULL);
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

static void tell(pid_t child, int status, double delay_s)
{
    if (WIFSIGNALED(status)) {
        log_warning("process %ld was killed by signal %d (%s); it is started again in %.1f s", (long)child,
                    WTERMSIG(status), strsignal(WTERMSIG(status)), delay_s);
    } else {
        log_warning("process %ld ended with status %d; it is started again in %.1f s", (long)child, WEXITSTATUS(status),
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
            log_error("no process can be started: %s", strerror(errno));
            return FAILED;
        }
        const int ended = wait_for(child), status = exit_status(ended);
        const bool never_ran = deaths.count == 0 && status == MISUSED && clock_monotonic_s() - begun_s < STARTED_S;
        if (status == 0 || never_ran || signals_pending() != 0) {
            return status;
        }
        int recent = count_recent(&deaths, clock_monotonic_s());
        if (recent >= MOST_DEATHS) {
            log_error("it ended badly %d times within %.0f s: it is given up", recent, WITHIN_S);
            return status;
        }
        double delay_s = FIRST_DELAY_S;
        for (int i = 1; i < recent && delay_s < LONGEST_DELAY_S; i++) {
            delay_s *= 2;
        }
        tell(child, ended, delay_s);
        pause_for(delay_s);
        if (signals_pending() != 0) {
            return signals_exit_status(signals_pending());
        }
    }
}
