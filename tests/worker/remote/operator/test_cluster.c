/*
 * `trainer cluster` with members that do what the test wants: this program starts itself, and is a member then. What
 * they are given, what of their output is shown, who is told to leave in which order, and what the outcome is. Members
 * wait for one another, by marks in a folder, so that nothing depends on who is started when.
 */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/cli/commands.h"
#include "base/log.h"
#include "base/process/signals.h"
#include "tests/worker/remote/story.h"

static char marks[] = "/tmp/test_cluster_marks.XXXXXX"; /* in members: what MARKS says */
static double faster = 1;
static bool interrupts; /* once all members are there */

double __real_clock_monotonic_s(void);
double __wrap_clock_monotonic_s(void);
int __wrap_signals_pending(void);

double __wrap_clock_monotonic_s(void)
{
    return faster * __real_clock_monotonic_s();
}

static void mark(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", getenv("MARKS"), name);
    FILE *file = fopen(path, "w");
    if (file) {
        fprintf(file, "%d", (int)getpid());
        fclose(file);
    }
}

static bool is_marked(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", getenv("MARKS"), name);
    return access(path, F_OK) == 0;
}

/* How many members are ready. With `clear` their marks go. */
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

int __wrap_signals_pending(void)
{
    return interrupts && count_marks(false) >= 3 ? SIGINT : 0;
}

/* --- A member --- */

static volatile sig_atomic_t told_to_leave;

static void take_signal(int number)
{
    told_to_leave = number;
}

static void await_marks(void)
{
    while (count_marks(false) < atoi(getenv("MEMBERS"))) {
        usleep(2000);
    }
}

/* Until it is told, or all is over, and says so. */
static int wait_for_word(void)
{
    while (!told_to_leave && !is_marked("over")) {
        usleep(1000);
    }
    printf("leaves\n");
    return 0;
}

static int be_chief(const char *does, int argc, char **argv)
{
    await_marks();
    if (strcmp(does, "arguments") == 0) {
        for (int i = 1; i < argc; i++) {
            printf("%s\n", argv[i]);
        }
    } else if (strcmp(does, "talk") == 0) {
        printf("one\ntwo \x1b[1m\n\nthree");
        fprintf(stderr, "no end");
    } else if (strcmp(does, "long") == 0) {
        for (int i = 0; i < 9000; i++) {
            putchar('a' + i / 8191);
        }
    } else if (strcmp(does, "events") == 0) {
        printf("{\"event\":\"done\",\"x\":1}\n{\"event\":\"step\",\"x\":2}\nno event\n[1]\n{\"x\":3}\n");
        fprintf(stderr, "{\"event\":\"step\",\"x\":4}\n");
    } else if (strcmp(does, "fail") == 0) {
        return 5;
    } else if (strcmp(does, "worker dies") == 0) {
        char path[512];
        int pid = 0;
        snprintf(path, sizeof path, "%s/--task_index=1--job_name=worker", getenv("MARKS"));
        FILE *file = fopen(path, "r");
        if (!file || fscanf(file, "%d", &pid) != 1) {
            return 9;
        }
        fclose(file);
        while (kill(pid, 0) == 0 || errno != ESRCH) { /* until its death has been seen */
            usleep(2000);
        }
    } else if (strcmp(does, "ps dies") == 0 || strcmp(does, "wait") == 0) {
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
    mark(own);
    if (strcmp(does, "stubborn") == 0 && (is_ps || !is_first)) {
        printf("stays\n");
        fflush(NULL);
        for (;;) {
            pause();
        }
    }
    if (is_ps) {
        if (strcmp(does, "ps dies") == 0 && !is_first) {
            await_marks();
            raise(SIGKILL);
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

static const char config_file[] = "config.json"; /* of the folder that tests run in */
static struct config config;

/* counts: of ps and of workers, as they are given; NULL: not given. */
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
    const int status = command_cluster.run(&call);
    *text = heard();
    config_free(&config);
    return status;
}

/* Behind its name in the member's list of arguments; the story's text. */
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

/* Training flags as they were given, addresses that the system chose, a key, and what each member is. */
static void what_members_are_given(void **state)
{
    const struct config_setting settings[] = {{"batch_size", "50"}, {"num_threads", "3"}, {"insecure", "true"},
                                              {"log_steps", "7"},   {"bind", "10.0.0.1"}, {"progress", "true"}};
    char folder[] = "/tmp/test_cluster.XXXXXX";
    const char *text;
    (void)state;
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

/* One ps and two workers unless somebody says otherwise; threads are shared. */
static void how_many(void **state)
{
    static const char *const wrong[] = {"0", "129", "", "2x", "-1"};
    const char *text;
    (void)state;
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
    assert_true(atoi(value_of(text, "num_threads")) >= 1);
}

/* Lines with their member's name, the last one even without its end; what is longer than a line in pieces. */
static void what_is_shown(void **state)
{
    const char *text;
    (void)state;
    assert_int_equal(run("talk", NULL, NULL, NULL, 0, &text), COMMAND_DONE);
    assert_int_equal(times(text, "worker 0  | one\n"), 1);
    assert_int_equal(times(text, "worker 0  | two "), 1);
    assert_int_equal(times(text, "worker 0  | \n"), 1);
    assert_int_equal(times(text, "worker 0  | three\n"), 1);
    assert_int_equal(times(text, "warning: worker 0  | no end\n"), 1);
    assert_null(strchr(text, '\x1b'));
    assert_int_equal(run("long", NULL, NULL, NULL, 0, &text), COMMAND_DONE);
    assert_int_equal(times(text, "worker 0  | aaa"), 1);
    assert_int_equal(times(text, "worker 0  | bbb"), 1);
}

/* For programs: events with their member's name, the end as the last of them, and all else on standard error. */
static void events(void **state)
{
    const char *text;
    (void)state;
    log_setup(LOG_JSON, LOG_INFO);
    const int status = run("events", NULL, NULL, NULL, 0, &text);
    log_setup(LOG_TEXT, LOG_INFO);
    assert_int_equal(status, COMMAND_DONE);
    assert_int_equal(times(text, "{\"event\":\"step\",\"x\":2,\"member\":\"worker 0\"}\n"), 1);
    assert_int_equal(times(text, "{\"x\":3,\"member\":\"worker 0\"}\n"), 1);
    assert_int_equal(times(text, "worker 0  | no event\n"), 1);
    assert_int_equal(times(text, "worker 0  | [1]\n"), 1);
    assert_int_equal(times(text, "worker 0  | {\"event\":\"step\",\"x\":4}\n"), 1);
    const char *last = strstr(text, "{\"event\":\"done\",\"x\":1,\"member\":\"worker 0\"}\n");
    assert_non_null(last);
    assert_string_equal(strchr(last, '\n'), "\n");
}

/* Without a worker the others go on; without the chief or a ps they stop, workers first. */
static void deaths(void **state)
{
    const char *text;
    (void)state;
    assert_int_equal(run("worker dies", NULL, NULL, NULL, 0, &text), COMMAND_DONE);
    assert_int_equal(times(text, "warning: worker 1 (process "), 1);
    assert_int_equal(times(text, ") died: it ended with status 3; the others go on\n"), 1);
    assert_int_equal(run("fail", NULL, NULL, NULL, 0, &text), 5);
    assert_int_equal(times(text, ") died: it ended with status 5; the cluster stops\n"), 1);
    assert_int_equal(run("ps dies", "2", NULL, NULL, 0, &text), COMMAND_FAILED);
    assert_int_equal(times(text, ") died: killed by signal 9 (Killed); the cluster stops\n"), 1);
    const char *chief = strstr(text, "worker 0  | leaves"), *ps = strstr(text, "ps 0      | leaves");
    assert_true(chief && ps && chief < ps);
}

/* Ctrl-C is passed on in order. */
static void interrupted(void **state)
{
    const char *text;
    (void)state;
    interrupts = true;
    const int status = run("wait", NULL, NULL, NULL, 0, &text);
    interrupts = false;
    assert_int_equal(status, 128 + SIGINT);
    assert_int_equal(times(text, "| leaves"), 3);
    assert_true(strstr(text, "worker 0  | leaves") < strstr(text, "ps 0      | leaves"));
    assert_true(strstr(text, "worker 1  | leaves") < strstr(text, "ps 0      | leaves"));
}

/* Who does not leave is killed in the end: six seconds to leave alone, twenty once told, and six more for a ps. */
static void stubborn_members(void **state)
{
    const char *text;
    (void)state;
    const double begun_s = story_s();
    faster = 20;
    const int status = run("stubborn", NULL, NULL, NULL, 0, &text);
    const double took_s = faster * (story_s() - begun_s);
    faster = 1;
    assert_int_equal(status, COMMAND_DONE);
    assert_int_equal(times(text, "| stays"), 2);
    assert_int_equal(times(text, "died"), 0); /* it is over: nobody wants to know */
    assert_true(took_s >= 32);
}

/* Profiles of all members are joined; where there are none the run has failed. */
static void profiles(void **state)
{
    const struct config_setting settings[] = {{"insecure", "true"}, {"profile", "/tmp/test_cluster.profile"}};
    const char *text;
    (void)state;
    assert_int_equal(run("arguments", NULL, NULL, settings, 2, &text), COMMAND_FAILED);
    assert_string_equal(value_of(text, "profile"), "/tmp/test_cluster.profile.worker-0");
    assert_non_null(strstr(text, "the profiles of the members are in /tmp/test_cluster.profile.*"));
    assert_int_equal(run("fail", NULL, NULL, settings, 2, &text), 5);
}

/* Where no key can be made nothing is started. */
static void no_folder(void **state)
{
    const char *text;
    (void)state;
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
