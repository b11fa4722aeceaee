/*
 * Runs the simulator over many seeds, in as many processes as there are processors, or one seed again.
 *
 *   simulate --seeds=10000 [--first=1] [--seconds=30] [--jobs=2] [--shortage | --rollout]
 *   simulate --seed=4711 [--events] [--shortage | --rollout]
 *
 * --rollout: configs are rolled out meanwhile.
 * --shortage: instead of other faults, calls of the system fail (see cluster.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/simulate/cluster.h"

/* What the processes tell one another; it lies in memory that they share. */
struct run_tally {
    uint64_t next; /* seed */
    uint64_t seeds, events, faults;
    double seconds;
    uint64_t failed_seed; /* 0: none */
    char why[512];
};

void __gcov_dump(void) __attribute__((weak)); /* there only in `make simulate-coverage` */

static double real_seconds(void);

static enum trouble trouble = TROUBLE_FAULTS;

int __real_clock_gettime(clockid_t clock, struct timespec *now);

static double real_seconds(void)
{
    struct timespec now;
    __real_clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Each seed has a process of its own, so that it is replayed exactly, whatever ran before it. */
static void work_once(struct run_tally *tally, uint64_t seed)
{
    struct outcome outcome;
    cluster_run(seed, trouble, false, &outcome);
    __atomic_fetch_add(&tally->seeds, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&tally->events, outcome.events, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&tally->faults, (uint64_t)outcome.faults, __ATOMIC_SEQ_CST);
    if (outcome.failed && tally->failed_seed == 0) {
        memcpy(tally->why, outcome.why, sizeof tally->why);
        tally->failed_seed = seed;
    }
}

static void work(struct run_tally *tally, uint64_t end, double until_s)
{
    for (;;) {
        uint64_t seed = __atomic_fetch_add(&tally->next, 1, __ATOMIC_SEQ_CST);
        int status = 0;
        if (seed >= end || tally->failed_seed != 0 || real_seconds() >= until_s) {
            return;
        }
        pid_t pid = fork();
        if (pid == 0) {
            work_once(tally, seed);
            if (__gcov_dump) {
                __gcov_dump();
            }
            _exit(0);
        }
        waitpid(pid, &status, 0);
        if (status != 0 && tally->failed_seed == 0) {
            snprintf(tally->why, sizeof tally->why,
                     WIFSIGNALED(status) ? "killed by signal %d" : "ended with status %d",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
            tally->failed_seed = seed;
        }
    }
}

static int run_one(uint64_t seed, bool shows)
{
    struct outcome outcome;
    cluster_run(seed, trouble, shows, &outcome);
    printf("seed %llu: %llu events, %d faults, %.1f simulated seconds: %s\n", (unsigned long long)seed,
           (unsigned long long)outcome.events, outcome.faults, outcome.seconds, outcome.failed ? outcome.why : "ok");
    return outcome.failed;
}

static int run_many(const char *program, uint64_t first, uint64_t count, double seconds, int jobs)
{
    struct run_tally *tally = mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double begin_s = real_seconds();
    tally->next = first;
    for (int i = 0; i < jobs; i++) {
        if (fork() == 0) {
            work(tally, first + count, begin_s + seconds);
            _exit(0);
        }
    }
    for (int i = 0; i < jobs; i++) {
        wait(NULL);
    }
    double took_s = real_seconds() - begin_s;
    if (tally->failed_seed != 0) {
        printf("simulate: seed %llu FAILED: %s\n  %s --seed=%llu --events%s\n", (unsigned long long)tally->failed_seed,
               tally->why, program, (unsigned long long)tally->failed_seed,
               trouble == TROUBLE_SHORTAGE   ? " --shortage"
               : trouble == TROUBLE_ROLLOUTS ? " --rollout"
                                             : "");
        return 1;
    }
    printf("simulate: %llu clusters, %llu %s, %llu events in %.1f s (%.0f events/s): all well\n",
           (unsigned long long)tally->seeds, (unsigned long long)tally->faults,
           trouble == TROUBLE_SHORTAGE ? "failed calls" : "faults", (unsigned long long)tally->events, took_s,
           (double)tally->events / took_s);
    return 0;
}

int main(int argc, char **argv)
{
    uint64_t seed = 0, first = 1, count = 1000;
    double seconds = 1e9;
    int jobs = (int)sysconf(_SC_NPROCESSORS_ONLN);
    bool shows = false;
    for (int i = 1; i < argc; i++) {
        const char *value = strchr(argv[i], '=');
        value = value ? value + 1 : "";
        if (strncmp(argv[i], "--seed=", 7) == 0) {
            seed = strtoull(value, NULL, 10);
        } else if (strncmp(argv[i], "--seeds=", 8) == 0) {
            count = strtoull(value, NULL, 10);
        } else if (strncmp(argv[i], "--first=", 8) == 0) {
            first = strtoull(value, NULL, 10);
        } else if (strncmp(argv[i], "--seconds=", 10) == 0) {
            seconds = strtod(value, NULL);
        } else if (strncmp(argv[i], "--jobs=", 7) == 0) {
            jobs = atoi(value);
        } else if (strcmp(argv[i], "--events") == 0) {
            shows = true;
        } else if (strcmp(argv[i], "--shortage") == 0) {
            trouble = TROUBLE_SHORTAGE;
        } else if (strcmp(argv[i], "--rollout") == 0) {
            trouble = TROUBLE_ROLLOUTS;
        } else {
            fprintf(stderr,
                    "usage: %s [--shortage|--rollout] --seed=N [--events] | [--seeds=N] [--first=N] [--seconds=S] "
                    "[--jobs=N]\n",
                    argv[0]);
            return 2;
        }
    }
    jobs = jobs < 1 ? 1 : jobs > 64 ? 64 : jobs;
    setvbuf(stdout, NULL, _IOLBF, 0);
    return seed != 0 ? run_one(seed, shows) : run_many(argv[0], first, count, seconds, jobs);
}
