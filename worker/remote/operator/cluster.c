/*
 * trainer cluster: parameter servers and workers as processes of this machine, shown as one program.
 *
 * Each member is this program again (/proc/self/exe), in the role it would have on its own machine. It gets the
 * training flags as given, loopback addresses with ports chosen by the system, and the path of a key made for this run.
 * Its output comes through pipes and is shown line by line, prefixed with its name.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cli/commands.h"
#include "base/clock.h"
#include "base/config/keys.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/signals.h"
#include "base/progress.h"
#include "base/text/text.h"
#include "base/threads.h"
#include "base/trust.h"
#include "net/credentials.h"
#include "net/socket.h"
#include "ps/status.h"
#include "worker/export/profile.h"

enum {
    MOST_MEMBERS = 256,
    LINE_BYTES = 8192, /* longer lines are cut into pieces */
    POLL_MS = 50,
    HOST_BYTES = sizeof "127.0.0.1:65535,", /* with what separates it from the next one, or ends the list */
};

static const double LOOK_S = 0.2; /* between two status queries for the progress line */
static const double STATUS_TIMEOUT_S = 0.5;
static const double LEAVE_S = 20.0; /* for members to stop after the signal */
static const double END_S = 6.0;    /* for members to stop by themselves at the end of the job */

/* One output stream of a member, cut into lines. */
struct log_stream {
    int fd; /* -1: closed */
    char line[LINE_BYTES];
    size_t size;
};

struct process {
    struct member member;
    char name[MEMBER_TEXT];
    pid_t pid; /* 0: exited */
    struct log_stream out, err;
};

struct cluster {
    const struct config *config;
    struct process *processes; /* ps first */
    int ps_count, count;
    char folder[256]; /* of the key */
    char key[300];
    char *ps_hosts, *worker_hosts;
    char **flags; /* for all members */
    int flag_count;
    char *done_line; /* the chief's, held back to be printed last */
    struct config query_config;
    struct status_query *query;
    struct progress progress;
    double looked_s;
    bool leaving;     /* the job is over */
    double leaving_s; /* when to stop the remaining members */
    bool workers_notified, ps_notified;
    int result;
};

/* --- Members' command lines --- */

static const char *const own_flags[] = {"cluster", "job_name", "task_index", "ps_hosts",    "worker_hosts",
                                        "bind",    "progress", "log_format", "num_threads", "fleet_key",
                                        "profile", "http",     NULL};

static bool is_own(const char *name)
{
    for (int i = 0; own_flags[i]; i++) {
        if (strcmp(name, own_flags[i]) == 0) {
            return true;
        }
    }
    return false;
}

static void add_flag(struct cluster *cluster, const char *name, const char *value)
{
    static const char what[] = "the members' flags";
    char *flag;
    const bool done = asprintf(&flag, "--%s=%s", name, value) >= 0;
    cluster->flags = must_grow(cluster->flags, (size_t)cluster->flag_count + 1, sizeof *cluster->flags, what);
    cluster->flags[cluster->flag_count++] = must_have(done ? flag : NULL, 0, what);
}

/* Every training flag as given; the settings of the file each member reads for itself. */
static void pass_flags(struct cluster *cluster)
{
    const struct config *config = cluster->config;
    for (const struct config_key *key = config_keys; key->section; key++) {
        bool hides_steps = cluster->progress.active && strcmp(key->name, "log_steps") == 0;
        if (config_origin_of(config, key)->source == SOURCE_FLAG && !is_own(key->name) && !hides_steps) {
            char *text = config_key_text(key, config);
            add_flag(cluster, key->name, text);
            free(text);
        }
    }
}

static void make_flags(struct cluster *cluster)
{
    const struct config *config = cluster->config;
    char threads[16];
    int workers = cluster->count - cluster->ps_count;
    int each = config->train.num_threads > 0 ? config->train.num_threads : threads_available() / workers;
    snprintf(threads, sizeof threads, "%d", each < 1 ? 1 : each);
    if (config->path) {
        add_flag(cluster, "config", config->path);
    }
    if (trust_given()) {
        add_flag(cluster, "trust_folder", trust_given());
    }
    pass_flags(cluster);
    add_flag(cluster, "ps_hosts", cluster->ps_hosts);
    add_flag(cluster, "worker_hosts", cluster->worker_hosts);
    add_flag(cluster, "bind", "127.0.0.1");
    add_flag(cluster, "fleet_key", cluster->key);
    add_flag(cluster, "num_threads", threads);
    add_flag(cluster, "progress", "false");
    if (cluster->progress.active) {
        add_flag(cluster, "log_steps", "0");
    }
    add_flag(cluster, "log_format", log_format() == LOG_JSON ? "json" : "text");
}

/* --- Before members start --- */

/* Ports that were free a moment ago: all are bound at once, so that they differ, and then released. */
static bool choose_ports(struct cluster *cluster, struct error *error)
{
    int fds[MOST_MEMBERS], held = 0;
    size_t size = (size_t)cluster->count * HOST_BYTES, used[2] = {0, 0};
    bool done = true;
    cluster->ps_hosts = must_zero(1, size, "the members' addresses");
    cluster->worker_hosts = must_zero(1, size, "the members' addresses");
    for (; done && held < cluster->count; held++) {
        bool is_ps = held < cluster->ps_count;
        char *list = is_ps ? cluster->ps_hosts : cluster->worker_hosts;
        size_t *at = &used[!is_ps];
        if (!socket_listen(&fds[held], "127.0.0.1", 0, error)) {
            done = false;
            break;
        }
        *at += (size_t)snprintf(list + *at, size - *at, "%s127.0.0.1:%d", *at > 0 ? "," : "", socket_port(fds[held]));
    }
    for (int i = 0; i < held; i++) {
        close(fds[i]);
    }
    return done;
}

static bool make_key(struct cluster *cluster, struct error *error)
{
    const char *parent = getenv("TMPDIR");
    snprintf(cluster->folder, sizeof cluster->folder, "%.200s/trainer-XXXXXX", parent && parent[0] ? parent : "/tmp");
    if (!mkdtemp(cluster->folder)) {
        error_set(error, "%s: %s; TMPDIR names another folder for the cluster's key", cluster->folder, strerror(errno));
        cluster->folder[0] = '\0';
        return false;
    }
    snprintf(cluster->key, sizeof cluster->key, "%s/fleet.key", cluster->folder);
    return credentials_create_fleet_key(cluster->key, error);
}

/* The operator's config for this cluster. */
static bool make_query(struct cluster *cluster, struct error *error)
{
    const struct config_setting settings[] = {{"ps_hosts", cluster->ps_hosts},
                                              {"worker_hosts", cluster->worker_hosts},
                                              {"fleet_key", cluster->key},
                                              {"insecure", cluster->config->security.insecure ? "true" : "false"}};
    return config_parse(&cluster->query_config, "the cluster", NULL, 0, settings, 4, error) &&
           status_query_create(&cluster->query, &cluster->query_config, error);
}

/* --- Processes --- */

/* The path of a member's own profile, malloc'd. */
static char *profile_path(const struct cluster *cluster, const struct process *process)
{
    char name[MEMBER_TEXT], *path;
    member_format(&process->member, '-', name);
    return must_have(asprintf(&path, "%s.%s", cluster->config->output.profile, name) >= 0 ? path : NULL, 0,
                     "the name of a profile");
}

/* Only one process can listen on an address: the chief, which knows the most. */
static bool is_chief(const struct member *member)
{
    return member->role == MEMBER_WORKER && member->index == 0;
}

/* In the new process: never returns. */
static void exec_member(const struct cluster *cluster, const struct process *process, const int *out, const int *err)
{
    char role[32], index[32];
    char **argv = calloc((size_t)cluster->flag_count + 6, sizeof *argv);
    char *profile = profile_path(cluster, process), *flag;
    static char name[] = "trainer";
    setpgid(0, 0);                    /* the parent passes Ctrl-C on, in order */
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* members die with the parent */
    if (argv && dup2(out[1], STDOUT_FILENO) >= 0 && dup2(err[1], STDERR_FILENO) >= 0) {
        int n = 0;
        snprintf(role, sizeof role, "--job_name=%s", process->member.role == MEMBER_PS ? "ps" : "worker");
        snprintf(index, sizeof index, "--task_index=%d", process->member.index);
        argv[n++] = name;
        argv[n++] = role;
        argv[n++] = index;
        for (int i = 0; i < cluster->flag_count; i++) {
            argv[n++] = cluster->flags[i];
        }
        if (cluster->config->output.profile[0] != '\0' && profile && asprintf(&flag, "--profile=%s", profile) >= 0) {
            argv[n++] = flag;
        }
        if (cluster->config->observe.http[0] != '\0' &&
            asprintf(&flag, "--http=%s", is_chief(&process->member) ? cluster->config->observe.http : "") >= 0) {
            argv[n++] = flag;
        }
        execv("/proc/self/exe", argv);
    }
    _exit(127);
}

static bool start(struct cluster *cluster, struct process *process, struct error *error)
{
    int out[2] = {-1, -1}, err[2] = {-1, -1};
    bool piped = pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0;
    pid_t pid = piped ? signals_fork() : -1;
    if (pid == 0) {
        exec_member(cluster, process, out, err);
    }
    if (pid > 0) {
        process->pid = pid;
        process->out.fd = out[0];
        process->err.fd = err[0];
        close(out[1]);
        close(err[1]);
        return true;
    }
    error_set(error, "%s can't be started: %s", process->name, strerror(errno));
    for (int i = 0; i < 2; i++) { /* -1 is no file, and left alone */
        close(out[i]);
        close(err[i]);
    }
    return false;
}

static void signal_all(struct cluster *cluster, enum member_role role, int number)
{
    for (int i = 0; i < cluster->count; i++) {
        if (cluster->processes[i].pid > 0 && cluster->processes[i].member.role == role) {
            kill(cluster->processes[i].pid, number);
        }
    }
}

/* The job is over: members that have not exited after that many seconds are stopped. */
static void leave(struct cluster *cluster, int result, double timeout_s)
{
    if (!cluster->leaving) {
        cluster->leaving = true;
        cluster->leaving_s = clock_monotonic_s() + timeout_s;
        cluster->result = result;
    }
}

static bool any_left(const struct cluster *cluster, enum member_role role)
{
    for (int i = 0; i < cluster->count; i++) {
        if (cluster->processes[i].pid > 0 && cluster->processes[i].member.role == role) {
            return true;
        }
    }
    return false;
}

/* Stops workers first, so that the chief can still save what the ps hold. */
static void escalate_shutdown(struct cluster *cluster)
{
    double late_s = clock_monotonic_s() - cluster->leaving_s;
    if (!cluster->leaving || late_s < 0) {
        return;
    }
    if (!cluster->workers_notified) {
        cluster->workers_notified = true;
        signal_all(cluster, MEMBER_WORKER, SIGTERM);
    }
    if (!cluster->ps_notified && (late_s >= LEAVE_S || !any_left(cluster, MEMBER_WORKER))) {
        cluster->ps_notified = true;
        signal_all(cluster, MEMBER_PS, SIGTERM);
    }
    if (late_s >= LEAVE_S) {
        signal_all(cluster, MEMBER_WORKER, SIGKILL);
    }
    if (late_s >= LEAVE_S + END_S) {
        signal_all(cluster, MEMBER_PS, SIGKILL);
    }
}

static void describe_status(int status, char *text, size_t size)
{
    if (WIFSIGNALED(status)) {
        snprintf(text, size, "killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else {
        snprintf(text, size, "it ended with status %d", WEXITSTATUS(status));
    }
}

/* A member has exited: decides what that means for the others. */
static void take_death(struct cluster *cluster, struct process *process, int status)
{
    char how[96];
    const bool chief = is_chief(&process->member);
    bool failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    pid_t pid = process->pid;
    process->pid = 0;
    if (chief && !failed) {
        leave(cluster, COMMAND_DONE, END_S); /* the others will stop as well */
        return;
    }
    if (cluster->leaving || !failed) {
        return;
    }
    describe_status(status, how, sizeof how);
    if (chief || process->member.role == MEMBER_PS) {
        log_error("%s (process %d) died: %s; the cluster stops", process->name, (int)pid, how);
        leave(cluster, chief && WIFEXITED(status) ? WEXITSTATUS(status) : COMMAND_FAILED, 0);
    } else {
        log_warning("%s (process %d) died: %s; the others continue", process->name, (int)pid, how);
    }
}

static void reap(struct cluster *cluster)
{
    for (int i = 0; i < cluster->count; i++) {
        struct process *process = &cluster->processes[i];
        int status;
        if (process->pid > 0 && process->out.fd < 0 && process->err.fd < 0 &&
            waitpid(process->pid, &status, WNOHANG) == process->pid) {
            take_death(cluster, process, status);
        }
    }
}

/* --- Members' output --- */

static bool is_done_event(const cJSON *object)
{
    const cJSON *event = cJSON_GetObjectItemCaseSensitive(object, "event");
    return cJSON_IsString(event) && strcmp(event->valuestring, "done") == 0;
}

/* A member's event: the same object with the member's name added. */
static bool show_event(struct cluster *cluster, const struct process *process, const char *line)
{
    cJSON *object = cJSON_Parse(line);
    if (!cJSON_IsObject(object)) {
        cJSON_Delete(object);
        return false;
    }
    cJSON_AddStringToObject(object, "member", process->name);
    char *text = cJSON_PrintUnformatted(object);
    text = text ? printable_json(text) : NULL;
    if (text && is_done_event(object)) {
        free(cluster->done_line);
        cluster->done_line = text;
        text = NULL;
    } else if (text) {
        printf("%s\n", text);
        fflush(stdout);
    }
    free(text);
    cJSON_Delete(object);
    return true;
}

static void show_line(struct cluster *cluster, const struct process *process, const struct log_stream *stream,
                      const char *line)
{
    char shown[LINE_BYTES];
    bool is_error = stream == &process->err;
    if (log_format() == LOG_JSON) {
        if (is_error || !show_event(cluster, process, line)) {
            fprintf(stderr, "%-9s | %s\n", process->name, printable(shown, sizeof shown, line));
        }
    } else if (is_error) {
        log_warning("%-9s | %s", process->name, line);
    } else {
        log_info("%-9s | %s", process->name, line);
    }
}

static void take_output(struct cluster *cluster, const struct process *process, struct log_stream *stream)
{
    ssize_t got = read(stream->fd, stream->line + stream->size, sizeof stream->line - 1 - stream->size);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
        return;
    }
    stream->size += got > 0 ? (size_t)got : 0;
    stream->line[stream->size] = '\0';
    char *line = stream->line, *end;
    while ((end = memchr(line, '\n', stream->size - (size_t)(line - stream->line)))) {
        *end = '\0';
        show_line(cluster, process, stream, line);
        line = end + 1;
    }
    size_t left = stream->size - (size_t)(line - stream->line);
    bool full = left == sizeof stream->line - 1;
    if (left > 0 && (got <= 0 || full)) {
        show_line(cluster, process, stream, line);
        left = 0;
    }
    memmove(stream->line, line, left);
    stream->size = left;
    if (got <= 0) {
        close(stream->fd);
        stream->fd = -1;
    }
}

static void listen_to_all(struct cluster *cluster)
{
    struct pollfd polled[2 * MOST_MEMBERS];
    for (int i = 0; i < cluster->count; i++) {
        polled[2 * i] = (struct pollfd){.fd = cluster->processes[i].out.fd, .events = POLLIN};
        polled[2 * i + 1] = (struct pollfd){.fd = cluster->processes[i].err.fd, .events = POLLIN};
    }
    if (poll(polled, 2 * (nfds_t)cluster->count, POLL_MS) <= 0) {
        return;
    }
    for (int i = 0; i < cluster->count; i++) {
        if (polled[2 * i].revents) {
            take_output(cluster, &cluster->processes[i], &cluster->processes[i].out);
        }
        if (polled[2 * i + 1].revents) {
            take_output(cluster, &cluster->processes[i], &cluster->processes[i].err);
        }
    }
}

/* --- The progress line --- */

static void look(struct cluster *cluster)
{
    int count;
    int64_t last = cluster->config->train.train_steps;
    double now_s = clock_monotonic_s();
    if (!cluster->progress.active || cluster->leaving || now_s - cluster->looked_s < LOOK_S) {
        return;
    }
    const struct board_member *entries = status_query_ask(cluster->query, STATUS_TIMEOUT_S, &count);
    cluster->looked_s = clock_monotonic_s();
    if (entries[0].global_step >= 0) {
        progress_update(&cluster->progress, &(struct progress_view){.step = entries[0].global_step,
                                                                    .last_step = last > 0 ? last : INT64_MAX,
                                                                    .steps_per_s = entries[0].steps_per_s,
                                                                    .loss = entries[cluster->ps_count].loss,
                                                                    .validation = -1});
    }
}

/* --- The run --- */

static bool open_cluster(struct cluster *cluster, struct error *error)
{
    cluster->processes = must_zero((size_t)cluster->count, sizeof *cluster->processes, "the members' processes");
    for (int i = 0; i < cluster->count; i++) {
        struct process *process = &cluster->processes[i];
        bool is_ps = i < cluster->ps_count;
        process->member = (struct member){is_ps ? MEMBER_PS : MEMBER_WORKER, is_ps ? i : i - cluster->ps_count};
        process->out.fd = process->err.fd = -1;
        member_format(&process->member, ' ', process->name);
    }
    if (!make_key(cluster, error) || !choose_ports(cluster, error)) {
        return false;
    }
    make_flags(cluster);
    if (!make_query(cluster, error)) {
        return false;
    }
    for (int i = 0; i < cluster->count; i++) {
        if (!start(cluster, &cluster->processes[i], error)) {
            return false;
        }
    }
    return true;
}

static void watch(struct cluster *cluster)
{
    while (any_left(cluster, MEMBER_PS) || any_left(cluster, MEMBER_WORKER)) {
        listen_to_all(cluster);
        /* Before members are looked for: Ctrl-C also ends those that have no process group of their own yet. */
        if (signals_pending() != 0 && !cluster->leaving) {
            leave(cluster, signals_exit_status(signals_pending()), 0);
        }
        reap(cluster);
        escalate_shutdown(cluster);
        look(cluster);
    }
}

/* Merges the profiles of all members. */
static void join_profiles(struct cluster *cluster)
{
    struct error error;
    struct trace *traces = NULL;
    const char *out = cluster->config->output.profile;
    char *paths[MOST_MEMBERS];
    for (int i = 0; i < cluster->count; i++) {
        paths[i] = profile_path(cluster, &cluster->processes[i]);
    }
    if (trace_read(&traces, paths, cluster->count, &error) && trace_write(traces, cluster->count, out, &error)) {
        log_info("%s is the profile of all members; `trainer profile %s.*` shows where their time went", out, out);
    } else {
        log_error("%s; the profiles of the members are in %s.*", error.text, out);
        cluster->result = cluster->result == COMMAND_DONE ? COMMAND_FAILED : cluster->result;
    }
    trace_free(traces, cluster->count);
    for (int i = 0; i < cluster->count; i++) {
        free(paths[i]);
    }
}

static void close_cluster(struct cluster *cluster)
{
    status_query_destroy(cluster->query);
    config_free(&cluster->query_config);
    if (cluster->folder[0] != '\0') {
        unlink(cluster->key);
        rmdir(cluster->folder);
    }
    for (int i = 0; i < cluster->flag_count; i++) {
        free(cluster->flags[i]);
    }
    free(cluster->flags);
    free(cluster->ps_hosts);
    free(cluster->worker_hosts);
    free(cluster->done_line);
    free(cluster->processes);
}

/* A number of members, from the command's own flags. */
static bool read_count(const struct command_call *call, const char *name, int otherwise, int *count)
{
    const char *text = command_value(call, name);
    char *end;
    *count = otherwise;
    if (text) {
        long number = strtol(text, &end, 10);
        if (*text == '\0' || *end != '\0' || number < 1 || number > MOST_MEMBERS / 2) {
            log_error("--%s must be an integer from 1 to %d, not %s", name, MOST_MEMBERS / 2, text);
            return false;
        }
        *count = (int)number;
    }
    return true;
}

static int run_cluster(const struct command_call *call)
{
    struct cluster cluster = {.config = call->config, .result = COMMAND_FAILED};
    struct error error;
    int workers;
    if (!read_count(call, "ps", 1, &cluster.ps_count) || !read_count(call, "workers", 2, &workers)) {
        return COMMAND_MISUSED;
    }
    cluster.count = cluster.ps_count + workers;
    signals_catch();
    progress_begin(&cluster.progress, call->config->output.progress && log_format() == LOG_TEXT);
    if (!open_cluster(&cluster, &error)) {
        log_error("%s", error.text);
        leave(&cluster, COMMAND_FAILED, 0);
    }
    watch(&cluster);
    progress_end(&cluster.progress);
    if (call->config->output.profile[0] != '\0') {
        join_profiles(&cluster);
    }
    if (cluster.done_line) {
        printf("%s\n", cluster.done_line);
    }
    int result = cluster.result;
    close_cluster(&cluster);
    return result;
}

static const struct command_flag cluster_flags[] = {
    {"ps", "N", "number of parameter servers (1)"},
    {"workers", "N", "number of workers; the first is the chief (2)"},
    {NULL, NULL, NULL},
};

const struct command command_cluster = {
    .name = "cluster",
    .summary = "train with parameter servers and workers as processes on this machine",
    .details = "Starts a cluster of real processes on loopback, with a temporary key, and merges their output: each "
               "line carries the name of the member that wrote it. Training flags are passed on to every member; the "
               "workers share the CPUs unless num_threads is set. Ctrl-C stops the whole cluster.",
    .flags = cluster_flags,
    .takes_config = true,
    .run = run_cluster,
};
