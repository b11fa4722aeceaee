#include "base/restart.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

/* The program that runs, even where its file was replaced or its folder is another one now. */
static const char program[] = "/proc/self/exe";

static char *const *arguments;

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

static void on_alarm(int number)
{
    (void)number;
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
    execute();
    log_error("%s: can't be executed again: %s", program, strerror(errno));
}
