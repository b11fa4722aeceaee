/*
 * `trainer cluster` with members that do what the test wants: this program starts itself as the members. What they
 * receive, what of their output is shown, which are told to stop in which order, and the outcome. Members wait for one
 * another, by marks in a folder, so that nothing depends on timing.
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/cli/commands.h"
#include "base/log.h"
#include "base/process/signals.h"
#include "base/progress.h"
#include "ps/status.h"
#include "tests/check.h"
#include "tests/worker/remote/story.h"
#include "worker/export/profile.h"

static char marks[] = "/tmp/test_cluster_marks.XXXXXX"; /* in members: the value of MARKS */
static double faster = 1;
static bool interrupts; /* after all members have started */

double __real_clock_monotonic_s(void);
double __wrap_clock_monotonic_s(void);
int __wrap_signals_pending(void);
int __wrap_threads_available(void);

/* Eight, divided among workers. */
int __wrap_threads_available(void)
{
    return 8;
}

double __wrap_clock_monotonic_s(void)
{
    return faster * __real_clock_monotonic_s();
}

/* --- The progress line, profiles, and failures --- */

static struct {
    bool has_terminal;
    int looks, unknown; /* number of looks that don't know the step yet */
    double looked_s[8];
    bool joins_profiles, cannot_write;
    int cannot_start, interrupted; /* member, counted from 1; 0: none */
    int started;
    int pipes, cannot_pipe; /* likewise of pipes */
    bool cannot_exec;
    int reads, read_errno; /* of members' output every third read fails so, unless 0 */
} terminal;

void __wrap_progress_begin(struct progress *progress, bool wanted);
void __wrap_progress_update(struct progress *progress, const struct progress_view *view);
void __wrap_progress_end(struct progress *progress);
const struct board_member *__wrap_status_query_ask(struct status_query *query, double timeout_s, int *count);
bool __real_trace_read(struct trace **traces, char *const *paths, int count, struct error *error);
bool __wrap_trace_read(struct trace **traces, char *const *paths, int count, struct error *error);
bool __wrap_trace_write(const struct trace *traces, int count, const char *path, struct error *error);
pid_t __real_fork(void);
pid_t __wrap_fork(void);
int __real_pipe2(int fds[2], int flags);
int __wrap_pipe2(int fds[2], int flags);
ssize_t __real_read(int fd, void *bytes, size_t size);
ssize_t __wrap_read(int fd, void *bytes, size_t size);
int __real_execv(const char *path, char *const *arguments);
int __wrap_execv(const char *path, char *const *arguments);

void __wrap_progress_begin(struct progress *progress, bool wanted)
{
    progress->active = wanted && terminal.has_terminal;
}

void __wrap_progress_update(struct progress *progress, const struct progress_view *view)
{
    assert_true(progress->active);
    tell("step %lld of %lld, %g/s, loss %g, validation %g\n", (long long)view->step, (long long)view->last_step,
         view->steps_per_s, view->loss, view->validation);
}

void __wrap_progress_end(struct progress *progress)
{
    tell(progress->active ? "the line ends\n" : "");
}

bool __wrap_trace_read(struct trace **traces, char *const *paths, int count, struct error *error)
{
    if (!terminal.joins_profiles) {
        return __real_trace_read(traces, paths, count, error);
    }
    for (int i = 0; i < count; i++) {
        tell("reads %s\n", paths[i]);
    }
    *traces = calloc((size_t)count, sizeof **traces);
    return true;
}

bool __wrap_trace_write(const struct trace *traces, int count, const char *path, struct error *error)
{
    assert_true(traces || count == 0);
    tell("writes %s of %d\n", path, count);
    return !terminal.cannot_write || error_set(error, "the disk is full");
}

pid_t __wrap_fork(void)
{
    if (++terminal.started == terminal.cannot_start) {
        errno = EAGAIN;
        return -1;
    }
    const pid_t child = __real_fork();
    if (child == 0 && terminal.started == terminal.interrupted) {
        raise(SIGINT);
    }
    return child;
}

int __wrap_pipe2(int fds[2], int flags)
{
    if (++terminal.pipes == terminal.cannot_pipe) {
        errno = EMFILE;
        return -1;
    }
    return __real_pipe2(fds, flags);
}

ssize_t __wrap_read(int fd, void *bytes, size_t size)
{
    struct stat status;
    if (terminal.read_errno != 0 && fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode) && ++terminal.reads % 3 == 1) {
        errno = terminal.read_errno;
        return -1;
    }
    return __real_read(fd, bytes, size);
}

int __wrap_execv(const char *path, char *const *arguments)
{
    return terminal.cannot_exec ? -1 : __real_execv(path, arguments);
}

/* Whoever sees the mark can read whose it is. */
static void mark(const char *name)
{
    char path[512], hidden[512];
    snprintf(path, sizeof path, "%s/%s", getenv("MARKS"), name);
    snprintf(hidden, sizeof hidden, "%s/.%s", getenv("MARKS"), name);
    FILE *file = fopen(hidden, "w");
    if (file) {
        fprintf(file, "%d", (int)getpid());
        fclose(file);
        rename(hidden, path);
    }
}

static bool is_marked(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", getenv("MARKS"), name);
    return access(path, F_OK) == 0;
}

/* The number of ready members. `clear` removes their marks. */
static int count_marks(bool clear)
{
    struct dirent **entries;
    const int found = scandir(getenv("MARKS"), &entries, NULL, NULL);
    int count = 0;
    for (int i = 0; i < found; i++) {
        char path[512];
        snprintf(path, sizeof path, "%.200s/%.250s", getenv("MARKS"), entries[i]->d_name);
        count += entries[i]->d_name[0] != '.';
        if (clear && entries[i]->d_name[0] != '.') {
            unlink(path);
        }
        free(entries[i]);
    }
    free(entries);
    return count;
}

/* One ps, then two workers. */
const struct board_member *__wrap_status_query_ask(struct status_query *query, double timeout_s, int *count)
{
    static struct board_member members[3];
    assert_non_null(query);
    assert_true(timeout_s > 0 && timeout_s <= 0.5); /* meanwhile no output is shown */
    *count = 3;
    if (terminal.has_terminal && count_marks(false) < 3) { /* not all members have started yet */
        members[0].global_step = -1;
        return members;
    }
    terminal.looked_s[terminal.looks % 8] = story_s();
    members[0].global_step = terminal.looks < terminal.unknown ? -1 : terminal.looks - terminal.unknown;
    members[0].steps_per_s = 2.5;
    members[1].loss = 0.25;
    terminal.looks++;
    return members;
}

int __wrap_signals_pending(void)
{
    if (terminal.interrupted > 0) {
        return SIGINT;
    }
    const bool has_looked = !terminal.has_terminal || terminal.looks >= 4;
    return interrupts && has_looked && count_marks(false) >= 3 ? SIGINT : 0;
}

/* --- A member --- */

static volatile sig_atomic_t told_to_leave; /* so often */

static void take_signal(int number)
{
    told_to_leave += number == SIGTERM;
}

static void await_marks(void)
{
    while (!told_to_leave && count_marks(false) < atoi(getenv("MEMBERS"))) {
        usleep(2000);
    }
}

/* Until it is told to stop, or all is over, and reports which. */
static int wait_for_word(void)
{
    while (!told_to_leave && !is_marked("over")) {
        usleep(1000);
    }
    for (int i = 0; i < 120 && told_to_leave == 1 && strcmp(getenv("MEMBER_DOES"), "wait") == 0; i++) {
        usleep(1000); /* it might be told again */
    }
    printf(told_to_leave > 1 ? "is told again\n" : "leaves\n");
    return 0;
}

static int be_chief(const char *does, int argc, char **argv)
{
    await_marks();
    if (strcmp(does, "arguments") == 0) {
        for (int i = 1; i < argc; i++) {
            printf("%s\n", argv[i]);
        }
        int signal_of_death = 0;
        prctl(PR_GET_PDEATHSIG, &signal_of_death);
        printf("--group=%s\n--dies_by=%d\n", getpgrp() == getpid() ? "own" : "its parent's", signal_of_death);
    } else if (strcmp(does, "talk") == 0) {
        printf("one\ntwo \x1b[1m\n\nthree");
        fprintf(stderr, "no end");
    } else if (strcmp(does, "long") == 0) {
        for (int i = 0; i < 9000; i++) {
            putchar('a' + i / 8191);
        }
    } else if (strcmp(does, "events") == 0) {
        printf("{\"event\":\"done\",\"x\":0}\n");
        printf("{\"event\":\"done\",\"x\":1}\n{\"event\":\"step\",\"x\":2}\nno event\n[1]\n{\"x\":3}\n");
        fprintf(stderr, "{\"event\":\"step\",\"x\":4}\n");
    } else if (strcmp(does, "fail") == 0) {
        return 5;
    } else if (strcmp(does, "chief dies") == 0) {
        raise(SIGKILL);
    } else if (strcmp(does, "worker dies") == 0) {
        char path[512];
        int pid = 0;
        snprintf(path, sizeof path, "%s/--task_index=1--job_name=worker", getenv("MARKS"));
        FILE *file = fopen(path, "r");
        if (!file || fscanf(file, "%d", &pid) != 1) {
            return 9;
        }
        fclose(file);
        while (kill(pid, 0) == 0 || errno != ESRCH) { /* until its death has been noticed */
            usleep(2000);
        }
    } else if (strcmp(does, "ps dies") == 0 || strcmp(does, "ps ends") == 0 || strcmp(does, "wait") == 0) {
        return wait_for_word();
    }
    return 0;
}

static int be_member(int argc, char **argv)
{
    const char *does = getenv("MEMBER_DOES");
    const bool is_ps = strcmp(argv[1], "--job_name=ps") == 0, is_first = strcmp(argv[2], "--task_index=0") == 0;
    char own[128];
    signal(SIGTERM, strcmp(does, "stubborn") == 0 && (is_ps || !is_first) ? SIG_IGN : take_signal);
    snprintf(own, sizeof own, "%s%s", argv[2], argv[1]);
    if (strcmp(does, "stubborn") == 0 && (is_ps || !is_first)) {
        printf("stays\n");
        fflush(NULL);
        mark(own);
        for (;;) {
            pause();
        }
    }
    mark(own);
    if (is_ps) {
        if (strcmp(does, "ps dies") == 0 && !is_first) {
            await_marks();
            raise(SIGKILL);
        }
        if (strcmp(does, "ps ends") == 0) {
            await_marks();
            return 3;
        }
        return wait_for_word();
    }
    if (!is_first) {
        return strcmp(does, "worker dies") == 0 ? 3 : strcmp(does, "wait") == 0 ? wait_for_word() : 0;
    }
    const int status = be_chief(does, argc, argv);
    fflush(NULL);
    if (strcmp(does, "stubborn") != 0 && !told_to_leave) {
        mark("over");
    }
    return status;
}

/* --- The command --- */

static const char config_file[] = "config.json"; /* in the folder where tests run */
static struct config config;

/* counts: of ps and of workers, as given; NULL: not given. */
static int run(const char *does, const char *ps, const char *workers, const struct config_setting *settings, int count,
               const char **text)
{
    const struct command_call call = {.command = &command_cluster, .config = &config, .values = {ps, workers}};
    const struct config_setting plain = {"insecure", "true"};
    struct error error;
    char members[16];
    snprintf(members, sizeof members, "%d", (ps ? atoi(ps) : 1) + (workers ? atoi(workers) : 2));
    setenv("MEMBER_DOES", does, 1);
    setenv("MEMBERS", members, 1);
    setenv("MARKS", marks, 1);
    count_marks(true);
    if (!config_load(&config, NULL, settings ? settings : &plain, settings ? count : 1, &error)) {
        fail_msg("%s", error.text);
    }
    listen_in();
    const int files = open_files();
    const int status = command_cluster.run(&call);
    assert_int_equal(open_files(), files);
    *text = heard();
    config_free(&config);
    return status;
}

/* The value after its name in the member's arguments; within the story's text. */
static const char *value_of(const char *text, const char *name)
{
    static char value[2][256];
    static int which;
    char wanted[64];
    snprintf(wanted, sizeof wanted, "worker 0  | --%s=", name);
    const char *at = strstr(text, wanted);
    if (!at || times(text, wanted) != 1) {
        return NULL;
    }
    which = !which;
    snprintf(value[which], sizeof value[which], "%.*s", (int)strcspn(at + strlen(wanted), "\n"), at + strlen(wanted));
    return value[which];
}

/* Training flags as given, addresses chosen by the system, a key, and each member's role. */
static void what_members_are_given(void **state)
{
    const struct config_setting settings[] = {{"batch_size", "50"}, {"num_threads", "3"}, {"insecure", "true"},
                                              {"log_steps", "7"},   {"bind", "10.0.0.1"}, {"progress", "true"}};
    char folder[] = "/tmp/test_cluster.XXXXXX";
    const char *text;
    assert_non_null(mkdtemp(folder));
    setenv("TMPDIR", folder, 1);
    assert_int_equal(run("arguments", "2", "3", settings, 6, &text), COMMAND_DONE);
    unsetenv("TMPDIR");
    assert_int_equal(rmdir(folder), 0); /* nothing is left in it */
    assert_string_equal(value_of(text, "job_name"), "worker");
    assert_string_equal(value_of(text, "task_index"), "0");
    assert_string_equal(value_of(text, "batch_size"), "50");
    assert_string_equal(value_of(text, "log_steps"), "7");
    assert_string_equal(value_of(text, "insecure"), "true");
    assert_string_equal(value_of(text, "num_threads"), "3");
    assert_string_equal(value_of(text, "bind"), "127.0.0.1");
    assert_string_equal(value_of(text, "progress"), "false");
    assert_string_equal(value_of(text, "log_format"), "text");
    assert_null(value_of(text, "learning_rate"));
    assert_null(value_of(text, "profile"));
    assert_string_equal(value_of(text, "config"), config_file);
    assert_string_equal(value_of(text, "group"), "own"); /* members don't get the terminal's signals */
    assert_int_equal(atoi(value_of(text, "dies_by")), SIGTERM);
    assert_int_equal(strncmp(value_of(text, "fleet_key"), folder, strlen(folder)), 0);
    int ports[5];
    assert_int_equal(sscanf(value_of(text, "ps_hosts"), "127.0.0.1:%d,127.0.0.1:%d", &ports[0], &ports[1]), 2);
    assert_int_equal(sscanf(value_of(text, "worker_hosts"), "127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", &ports[2],
                            &ports[3], &ports[4]),
                     3);
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < i; k++) {
            assert_int_not_equal(ports[i], ports[k]);
        }
    }
    assert_int_equal(times(text, "ps 0      | leaves"), 1);
    assert_int_equal(times(text, "ps 1      | leaves"), 1);
}

/* One ps and two workers by default; threads are divided. */
static void how_many(void **state)
{
    static const char *const wrong[] = {"0", "129", "", "2x", "-1"};
    const char *text;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(run("talk", wrong[i], NULL, NULL, 0, &text), COMMAND_MISUSED);
        assert_non_null(strstr(text, "--ps must be an integer from 1 to 128, not"));
        assert_int_equal(run("talk", NULL, wrong[i], NULL, 0, &text), COMMAND_MISUSED);
        assert_non_null(strstr(text, "--workers must be an integer from 1 to 128, not"));
    }
    assert_int_equal(run("arguments", NULL, NULL, NULL, 0, &text), COMMAND_DONE);
    int ports[2];
    assert_int_equal(sscanf(value_of(text, "worker_hosts"), "127.0.0.1:%d,127.0.0.1:%d", &ports[0], &ports[1]), 2);
    assert_null(strchr(value_of(text, "ps_hosts"), ','));
    assert_string_equal(value_of(text, "num_threads"), "4");
    assert_int_equal(run("arguments", "1", "9", NULL, 0, &text), COMMAND_DONE); /* at least one each */
    assert_string_equal(value_of(text, "num_threads"), "1");
    memset(&terminal, 0, sizeof terminal);
    terminal.cannot_start = 1;
    assert_int_equal(run("talk", "128", "128", NULL, 0, &text), COMMAND_FAILED); /* as many as there may be */
    assert_int_equal(times(text, "ps 0 can't be started"), 1);
    memset(&terminal, 0, sizeof terminal);
}

/* Lines prefixed with their member's name, even an incomplete last one; longer lines in pieces. */
static void what_is_shown(void **state)
{
    const char *text;
    assert_int_equal(run("talk", NULL, NULL, NULL, 0, &text), COMMAND_DONE);
    assert_int_equal(times(text, "worker 0  | one\n"), 1);
    assert_int_equal(times(text, "worker 0  | two "), 1);
    assert_int_equal(times(text, "worker 0  | \n"), 1);
    assert_int_equal(times(text, "worker 0  | three\n"), 1);
    assert_int_equal(times(text, "warning: worker 0  | no end\n"), 1);
    assert_int_equal(times(text, "worker 1  | "), 0); /* which says nothing: that is no line */
    assert_int_equal(times(text, "died"), 0);
    assert_null(strchr(text, '\x1b'));
    assert_int_equal(run("long", NULL, NULL, NULL, 0, &text), COMMAND_DONE);
    assert_int_equal(times(text, "worker 0  | aaa"), 1);
    assert_int_equal(times(text, "worker 0  | bbb"), 1);
    static const int errors[] = {EINTR, EAGAIN};
    for (int i = 0; i < 2; i++) { /* reads that come to nothing are no end */
        terminal.read_errno = errors[i];
        assert_int_equal(run("talk", NULL, NULL, NULL, 0, &text), COMMAND_DONE);
        memset(&terminal, 0, sizeof terminal);
        assert_int_equal(times(text, "worker 0  | "), 5);
        assert_int_equal(times(text, "worker 0  | three\n"), 1);
    }
}

/* For programs: events with their member's name, the end as the last of them, and everything else on standard error. */
static void events(void **state)
{
    const struct config_setting settings[] = {{"insecure", "true"}, {"progress", "true"}};
    const char *text;
    terminal.has_terminal = true; /* which is no reason to draw on it */
    told();
    log_setup(LOG_JSON, LOG_INFO);
    const int status = run("events", NULL, NULL, settings, 2, &text);
    log_setup(LOG_TEXT, LOG_INFO);
    memset(&terminal, 0, sizeof terminal);
    assert_string_equal(told(), "");
    assert_int_equal(status, COMMAND_DONE);
    assert_true(strstr(text, "\"x\":2") < strstr(text, "| no event\n")); /* as they came */
    assert_int_equal(times(text, "\"event\":\"done\""), 1);
    assert_int_equal(times(text, "{\"event\":\"step\",\"x\":2,\"member\":\"worker 0\"}\n"), 1);
    assert_int_equal(times(text, "{\"x\":3,\"member\":\"worker 0\"}\n"), 1);
    assert_int_equal(times(text, "worker 0  | no event\n"), 1);
    assert_int_equal(times(text, "worker 0  | [1]\n"), 1);
    assert_int_equal(times(text, "worker 0  | {\"event\":\"step\",\"x\":4}\n"), 1);
    const char *last = strstr(text, "{\"event\":\"done\",\"x\":1,\"member\":\"worker 0\"}\n");
    assert_non_null(last);
    assert_string_equal(strchr(last, '\n'), "\n");
}

/* Without a worker the others continue; without the chief or a ps they stop, workers first. */
static void deaths(void **state)
{
    const char *text;
    assert_int_equal(run("worker dies", NULL, NULL, NULL, 0, &text), COMMAND_DONE);
    assert_int_equal(times(text, "warning: worker 1 (process "), 1);
    assert_int_equal(times(text, ") died: it ended with status 3; the others continue\n"), 1);
    const double begun_s = story_s();
    faster = 0.05;
    assert_int_equal(run("fail", NULL, NULL, NULL, 0, &text), 5);
    assert_true(faster * (story_s() - begun_s) < 3); /* the others are told at once */
    faster = 1;
    assert_int_equal(times(text, ") died: it ended with status 5; the cluster stops\n"), 1);
    assert_int_equal(run("chief dies", NULL, NULL, NULL, 0, &text), COMMAND_FAILED);
    assert_int_equal(times(text, ") died: killed by signal 9 (Killed); the cluster stops\n"), 1);
    assert_int_equal(run("ps ends", NULL, NULL, NULL, 0, &text), COMMAND_FAILED);
    assert_int_equal(times(text, ") died: it ended with status 3; the cluster stops\n"), 1);
    assert_int_equal(times(text, "worker 0  | leaves"), 1); /* it is waited for without any ps */
    assert_int_equal(run("ps dies", "2", NULL, NULL, 0, &text), COMMAND_FAILED);
    assert_int_equal(times(text, ") died: killed by signal 9 (Killed); the cluster stops\n"), 1);
    const char *chief = strstr(text, "worker 0  | leaves"), *ps = strstr(text, "ps 0      | leaves");
    assert_true(chief && ps && chief < ps);
}

/* Ctrl-C is passed on in order. */
static void interrupted(void **state)
{
    const char *text;
    struct sigaction action;
    signal(SIGINT, SIG_DFL);
    interrupts = true;
    faster = 0.05;
    const double begun_s = story_s();
    const int status = run("wait", NULL, NULL, NULL, 0, &text);
    assert_true(faster * (story_s() - begun_s) < 3);
    faster = 1;
    interrupts = false;
    assert_int_equal(status, 128 + SIGINT);
    assert_int_equal(times(text, "| leaves"), 3);
    assert_int_equal(sigaction(SIGINT, NULL, &action), 0);
    assert_true(action.sa_handler != SIG_DFL); /* it takes no harm by itself */
    assert_true(strstr(text, "worker 0  | leaves") < strstr(text, "ps 0      | leaves"));
    assert_true(strstr(text, "worker 1  | leaves") < strstr(text, "ps 0      | leaves"));
}

/*
 * A member that does not stop is killed in the end: six seconds to stop alone, twenty once told, and six more for a ps.
 */
static void stubborn_members(void **state)
{
    const char *text;
    const double begun_s = story_s();
    faster = 20;
    const int status = run("stubborn", NULL, NULL, NULL, 0, &text);
    const double took_s = faster * (story_s() - begun_s);
    faster = 1;
    assert_int_equal(status, COMMAND_DONE);
    assert_int_equal(times(text, "| stays"), 2);
    assert_int_equal(times(text, "died"), 0); /* over: not worth reporting */
    assert_true(took_s >= 32);
}

/* The members' profiles are merged; without any the run has failed. */
static void profiles(void **state)
{
    const struct config_setting settings[] = {{"insecure", "true"}, {"profile", "/tmp/test_cluster.profile"}};
    const char *text;
    assert_int_equal(run("arguments", NULL, NULL, settings, 2, &text), COMMAND_FAILED);
    assert_string_equal(value_of(text, "profile"), "/tmp/test_cluster.profile.worker-0");
    assert_non_null(strstr(text, "the profiles of the members are in /tmp/test_cluster.profile.*"));
    assert_int_equal(run("fail", NULL, NULL, settings, 2, &text), 5);
}

/* Merges the profiles that members wrote. */
static void profiles_are_joined(void **state)
{
    const struct config_setting settings[] = {{"insecure", "true"}, {"profile", "/tmp/test_cluster.profile"}};
    const char *text;
    for (int fails = 0; fails < 2; fails++) {
        terminal.joins_profiles = true;
        terminal.cannot_write = fails;
        told();
        assert_int_equal(run("talk", NULL, NULL, settings, 2, &text), fails ? COMMAND_FAILED : COMMAND_DONE);
        terminal.joins_profiles = terminal.cannot_write = false;
        assert_string_equal(told(), "reads /tmp/test_cluster.profile.ps-0\nreads /tmp/test_cluster.profile.worker-0\n"
                                    "reads /tmp/test_cluster.profile.worker-1\n"
                                    "writes /tmp/test_cluster.profile of 3\n");
        assert_int_equal(times(text, "/tmp/test_cluster.profile is the profile of all members; "), !fails);
        assert_int_equal(times(text, "the disk is full; the profiles of the members are in "), fails);
    }
}

/*
 * On a terminal a line shows the job's progress, several times a second, once it is known; members log no steps then.
 */
static void progress_line(void **state)
{
    struct config_setting settings[] = {
        {"insecure", "true"}, {"progress", "true"}, {"log_steps", "7"}, {"epochs", "1"}, {"train_steps", "0"}};
    const char *text;
    for (int bounded = 0; bounded < 2; bounded++) {
        settings[4].text = bounded ? "1" : "0";
        memset(&terminal, 0, sizeof terminal);
        terminal.has_terminal = true;
        terminal.unknown = 2;
        interrupts = true;
        told();
        const int status = run("wait", NULL, NULL, settings, 5, &text);
        interrupts = false;
        assert_int_equal(status, 128 + SIGINT);
        assert_int_equal(terminal.looks, 4); /* none once it is stopping */
        for (int i = 1; i < 4; i++) {
            assert_true(terminal.looked_s[i] - terminal.looked_s[i - 1] >= 0.2);
        }
        char wanted[256];
        const long long last = bounded ? 1 : INT64_MAX;
        snprintf(wanted, sizeof wanted,
                 "step 0 of %lld, 2.5/s, loss 0.25, validation -1\n"
                 "step 1 of %lld, 2.5/s, loss 0.25, validation -1\nthe line ends\n",
                 last, last);
        assert_string_equal(told(), wanted);
    }
    assert_int_equal(run("arguments", NULL, NULL, settings, 5, &text), COMMAND_DONE);
    assert_string_equal(value_of(text, "log_steps"), "0");
    assert_string_equal(value_of(text, "progress"), "false");
    assert_string_equal(value_of(text, "train_steps"), "1");
    memset(&terminal, 0, sizeof terminal);
}

/* Ctrl-C so early that it also reaches members, of which one has no process group of its own yet. */
static void an_early_interrupt(void **state)
{
    const char *text;
    for (int which = 1; which <= 3; which++) {
        memset(&terminal, 0, sizeof terminal);
        terminal.interrupted = which;
        assert_int_equal(run("wait", NULL, NULL, NULL, 0, &text), 128 + SIGINT);
        assert_int_equal(times(text, "died"), 0);
    }
    memset(&terminal, 0, sizeof terminal);
}

/* If a member can't be started, the others are told to stop. */
static void a_member_that_can_not_be_started(void **state)
{
    const char *text;
    for (int which = 1; which <= 3; which++) {
        memset(&terminal, 0, sizeof terminal);
        terminal.cannot_start = which;
        interrupts = false;
        assert_int_equal(run("wait", NULL, NULL, NULL, 0, &text), COMMAND_FAILED);
        assert_int_equal(terminal.started, which);
        char wanted[64];
        snprintf(wanted, sizeof wanted, "%s can't be started: ",
                 which == 1   ? "ps 0"
                 : which == 2 ? "worker 0"
                              : "worker 1");
        assert_int_equal(times(text, wanted), 1);
    }
    memset(&terminal, 0, sizeof terminal);
}

/* Nor without pipes for what it says; and a program that can't be run ends like one that fails. */
static void a_member_that_can_not_be_run(void **state)
{
    const char *text;
    for (int which = 1; which <= 4; which++) {
        memset(&terminal, 0, sizeof terminal);
        terminal.cannot_pipe = which;
        assert_int_equal(run("wait", NULL, NULL, NULL, 0, &text), COMMAND_FAILED);
        assert_int_equal(terminal.started, (which - 1) / 2);
        assert_int_equal(times(text, which <= 2 ? "ps 0 can't be started: Too many open files\n"
                                                : "worker 0 can't be started: Too many open files\n"),
                         1);
    }
    memset(&terminal, 0, sizeof terminal);
    terminal.cannot_exec = true;
    assert_int_not_equal(run("wait", NULL, NULL, NULL, 0, &text), COMMAND_DONE);
    assert_non_null(strstr(text, ") died: it ended with status 127; the cluster stops\n"));
    memset(&terminal, 0, sizeof terminal);
}

/* It can't begin where this process may open but a few files more. */
static void no_files(void **state)
{
    const struct command_call call = {.command = &command_cluster, .config = &config};
    const struct config_setting plain = {"insecure", "true"};
    struct rlimit before;
    struct error error;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    assert_true(config_load(&config, NULL, &plain, 1, &error));
    for (rlim_t more = 0; more < 7; more++) {
        listen_in();
        const int files = open_files();
        const struct rlimit few = {(rlim_t)files + more, before.rlim_max};
        memset(&terminal, 0, sizeof terminal);
        terminal.cannot_start = 1;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        const int status = command_cluster.run(&call);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_int_equal(open_files(), files);
        const char *text = heard();
        assert_int_equal(status, COMMAND_FAILED);
        if (terminal.started == 0 && !strstr(text, "Too many open files")) {
            fail_msg("with %d files more: %s", (int)more, text);
        }
    }
    config_free(&config);
    memset(&terminal, 0, sizeof terminal);
}

/* With keys of its own, or without; a folder for them is where temporary files are. */
static void keys_of_a_cluster(void **state)
{
    const struct config_setting settings[] = {{"batch_size", "50"}};
    const char *text;
    setenv("TMPDIR", "", 1);
    assert_int_equal(run("arguments", NULL, NULL, settings, 1, &text), COMMAND_DONE);
    assert_null(value_of(text, "insecure"));
    assert_null(strstr(text, "isolated network"));
    const char *key = value_of(text, "fleet_key");
    assert_int_equal(strncmp(key, "/tmp/trainer-", strlen("/tmp/trainer-")), 0);
    assert_int_not_equal(access(key, F_OK), 0);
    unsetenv("TMPDIR");
    assert_int_equal(run("talk", NULL, NULL, NULL, 0, &text), COMMAND_DONE);
    assert_int_equal(times(text, "isolated network"), 1);
}

/* Where no key can be made nothing is started. */
static void no_folder(void **state)
{
    const char *text;
    setenv("TMPDIR", "/nowhere", 1);
    assert_int_equal(run("talk", NULL, NULL, NULL, 0, &text), COMMAND_FAILED);
    unsetenv("TMPDIR");
    assert_non_null(strstr(text, "TMPDIR names another folder for the cluster's key"));
    assert_int_equal(times(text, "|"), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_members_are_given),
        cmocka_unit_test(how_many),
        cmocka_unit_test(what_is_shown),
        cmocka_unit_test(events),
        cmocka_unit_test(deaths),
        cmocka_unit_test(interrupted),
        cmocka_unit_test(stubborn_members),
        cmocka_unit_test(profiles),
        cmocka_unit_test(profiles_are_joined),
        cmocka_unit_test(progress_line),
        cmocka_unit_test(an_early_interrupt),
        cmocka_unit_test(a_member_that_can_not_be_started),
        cmocka_unit_test(a_member_that_can_not_be_run),
        cmocka_unit_test(no_files),
        cmocka_unit_test(keys_of_a_cluster),
        cmocka_unit_test(no_folder),
    };
    if (argc > 2 && strncmp(argv[1], "--job_name=", strlen("--job_name=")) == 0) {
        return be_member(argc, argv);
    }
    if (!mkdtemp(marks)) {
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    setenv("MARKS", marks, 1);
    count_marks(true);
    rmdir(marks);
    return failed;
}
