/*
 * Runs the simulator over many seeds, in as many processes as there are processors, or replays one seed.
 *
 *   simulate --seeds=10000 [--first=1] [--seconds=30] [--jobs=2] [--marks=FILE] [--shortage | --rollout | --programs]
 *   simulate --seed=4711 [--events] [--shortage | --rollout | --programs]
 *   simulate --marks
 *
 * --rollout: configs are rolled out meanwhile. --programs: programs are. --marks: prints the marks in the program's
 * code (base/simulation.h); with a file, adds those that were reached. --shortage: instead of other faults, system
 * calls fail (see cluster.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/simulate/cluster.h"
#include "tests/simulate/marks.h"

/* Shared by the processes, in shared memory. */
struct run_tally {
    uint64_t next; /* seed */
    uint64_t seeds, events, faults;
    double seconds;
    uint64_t failed_seed; /* 0: none */
    unsigned char marks[MOST_MARKS];
    char why[512];
};

void __gcov_dump(void) __attribute__((weak)); /* defined only in `make simulate-coverage` */

static double real_seconds(void);

static enum trouble trouble = TROUBLE_FAULTS;

int __real_clock_gettime(clockid_t clock, struct timespec *now);

static double real_seconds(void)
{
    struct timespec now;
    __real_clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Each seed has its own process, so that it is replayed exactly, whatever ran before it. */
static void work_once(struct run_tally *tally, uint64_t seed)
{
    struct outcome outcome;
    cluster_run(seed, trouble, false, &outcome);
    marks_collect(tally->marks);
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

/* For a run of many seeds. */
static struct {
    uint64_t first, count;
    double seconds;
    int jobs;
    const char *marks; /* file to record them in; NULL: none */
} many = {.first = 1, .count = 1000, .seconds = 1e9};

static int run_many(const char *program)
{
    const uint64_t first = many.first, count = many.count;
    const double seconds = many.seconds;
    const int jobs = many.jobs;
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
    if (many.marks && !marks_note(many.marks, tally->marks)) {
        printf("simulate: can't write %s\n", many.marks);
        return 1;
    }
    if (tally->failed_seed != 0) {
        printf("simulate: seed %llu FAILED: %s\n  %s --seed=%llu --events%s\n", (unsigned long long)tally->failed_seed,
               tally->why, program, (unsigned long long)tally->failed_seed,
               trouble == TROUBLE_SHORTAGE   ? " --shortage"
               : trouble == TROUBLE_ROLLOUTS ? " --rollout"
               : trouble == TROUBLE_PROGRAMS ? " --programs"
                                             : "");
        return 1;
    }
    printf("simulate: %llu clusters, %llu %s, %llu events in %.1f s (%.0f events/s): all well\n",
           (unsigned long long)tally->seeds, (unsigned long long)tally->faults,
           trouble == TROUBLE_SHORTAGE ? "failed calls" : "faults", (unsigned long long)tally->events, took_s,
           (double)tally->events / took_s);
    return 0;
}

static bool take_option(const char *option, uint64_t *seed, bool *shows)
{
    const char *value = strchr(option, '=');
    value = value ? value + 1 : "";
    if (strncmp(option, "--seed=", 7) == 0) {
        *seed = strtoull(value, NULL, 10);
    } else if (strncmp(option, "--seeds=", 8) == 0) {
        many.count = strtoull(value, NULL, 10);
    } else if (strncmp(option, "--first=", 8) == 0) {
        many.first = strtoull(value, NULL, 10);
    } else if (strncmp(option, "--seconds=", 10) == 0) {
        many.seconds = strtod(value, NULL);
    } else if (strncmp(option, "--jobs=", 7) == 0) {
        many.jobs = atoi(value);
    } else if (strncmp(option, "--marks=", 8) == 0) {
        many.marks = value;
    } else if (strcmp(option, "--events") == 0) {
        *shows = true;
    } else if (strcmp(option, "--shortage") == 0) {
        trouble = TROUBLE_SHORTAGE;
    } else if (strcmp(option, "--rollout") == 0) {
        trouble = TROUBLE_ROLLOUTS;
    } else if (strcmp(option, "--programs") == 0) {
        trouble = TROUBLE_PROGRAMS;
    } else {
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    uint64_t seed = 0;
    bool shows = false;
    many.jobs = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (argc == 2 && strcmp(argv[1], "--marks") == 0) {
        marks_list();
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        if (!take_option(argv[i], &seed, &shows)) {
            fprintf(stderr,
                    "usage: %s [--shortage|--rollout|--programs] --seed=N [--events] | [--seeds=N] [--first=N] "
                    "[--seconds=S] "
                    "[--jobs=N] [--marks=FILE] | --marks\n",
                    argv[0]);
            return 2;
        }
    }
    many.jobs = many.jobs < 1 ? 1 : many.jobs > 64 ? 64 : many.jobs;
    setvbuf(stdout, NULL, _IOLBF, 0);
    return seed != 0 ? run_one(seed, shows) : run_many(argv[0]);
}
