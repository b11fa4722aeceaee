/*
 * Slurm tells a task its own number, node and number on that node, but about the others only how many run on each node.
 * So their places are known only if tasks are distributed in blocks (srun's default); each task checks that its own
 * place agrees.
 */
#include "base/config/slurm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text/address.h"
#include "base/text/hostlist.h"

enum { MAX_TASKS = 2 * CONFIG_MAX_HOSTS };

/* A step's tasks being assigned, node by node. */
struct layout {
    int counts[MAX_TASKS]; /* tasks on each node */
    int nodes, tasks;
    int node; /* the next node to name */
    int task; /* its first */
    int ps_count, base_port;
    char *lists[2]; /* ps, workers: addresses separated by commas */
    size_t sizes[2], used[2];
};

void slurm_task_here(struct slurm_task *task)
{
    *task = (struct slurm_task){.procid = getenv("SLURM_PROCID"),
                                .nodeid = getenv("SLURM_NODEID"),
                                .localid = getenv("SLURM_LOCALID"),
                                .nodelist = getenv("SLURM_STEP_NODELIST"),
                                .tasks_per_node = getenv("SLURM_STEP_TASKS_PER_NODE")};
}

/* A number at the start of the text, which then starts after it. */
static bool read_number(const char **text, int least, int *number)
{
    size_t digits = strspn(*text, "0123456789");
    if (digits == 0 || digits > 6) {
        return false;
    }
    *number = (int)strtol(*text, NULL, 10);
    *text += digits;
    return *number >= least;
}

static bool read_variable(const char *name, const char *text, int *number, struct error *error)
{
    if (!text) {
        return error_set(error, "%s is not set: with cluster=slurm, start the members by srun", name);
    }
    return (read_number(&text, 0, number) && *text == '\0') || error_set(error, "%s: must be a number from 0", name);
}

static bool add_node(struct layout *layout, int tasks, struct error *error)
{
    if (layout->nodes == MAX_TASKS || tasks > MAX_TASKS - layout->tasks) {
        return error_set(error, "more than %d tasks", MAX_TASKS);
    }
    layout->counts[layout->nodes++] = tasks;
    layout->tasks += tasks;
    return true;
}

/* "2(x3),1": two tasks on each of three nodes, and one on a fourth. */
static bool read_counts(struct layout *layout, const char *text, struct error *error)
{
    for (;;) {
        int tasks, times = 1;
        bool fine = read_number(&text, 1, &tasks);
        if (fine && strncmp(text, "(x", 2) == 0) {
            text += 2;
            fine = read_number(&text, 1, &times) && *text++ == ')';
        }
        if (!fine) {
            return error_set(error, "must be counts of tasks, as in 2(x3),1");
        }
        for (int i = 0; i < times; i++) {
            if (!add_node(layout, tasks, error)) {
                return false;
            }
        }
        if (*text == '\0') {
            return true;
        }
        if (*text++ != ',') {
            return error_set(error, "must be counts of tasks, as in 2(x3),1");
        }
    }
}

static bool add_address(struct layout *layout, int list, const char *host, int port, struct error *error)
{
    char address[ADDRESS_MAX_TEXT + 1];
    const int size = snprintf(address, sizeof address, "%s%s:%d", layout->used[list] > 0 ? "," : "", host, port);
    if (size < 0 || (size_t)size >= sizeof address || layout->used[list] + (size_t)size >= layout->sizes[list]) {
        return error_set(error, "the names are too long");
    }
    memcpy(layout->lists[list] + layout->used[list], address, (size_t)size + 1);
    layout->used[list] += (size_t)size;
    return true;
}

/* The tasks of the next node. */
static bool place(void *context, const char *host, struct error *error)
{
    struct layout *layout = context;
    if (layout->node == layout->nodes) {
        return error_set(error, "names more nodes than the %d of SLURM_STEP_TASKS_PER_NODE", layout->nodes);
    }
    const int count = layout->counts[layout->node++];
    for (int i = 0; i < count; i++, layout->task++) {
        if (!add_address(layout, layout->task >= layout->ps_count, host, layout->base_port + i, error)) {
            return false;
        }
    }
    return true;
}

static bool make_lists(struct layout *layout, const char *nodelist, struct error *error)
{
    for (int i = 0; i < 2; i++) {
        const int tasks = i == 0 ? layout->ps_count : layout->tasks - layout->ps_count;
        layout->sizes[i] = (size_t)tasks * ADDRESS_MAX_TEXT + 1;
        layout->lists[i] = must_zero(layout->sizes[i], 1, "the members' addresses");
    }
    if (!hostlist_expand(nodelist, MAX_TASKS, place, layout, error)) {
        return error_wrap(error, "SLURM_STEP_NODELIST");
    }
    return layout->node == layout->nodes ||
           error_set(error, "SLURM_STEP_NODELIST names %d nodes, and SLURM_STEP_TASKS_PER_NODE counts the tasks of %d",
                     layout->node, layout->nodes);
}

/* Is this task where it would be if the tasks were in blocks? */
static bool check_place(const struct layout *layout, int procid, int nodeid, int localid, struct error *error)
{
    int first = 0;
    for (int i = 0; i < nodeid && i < layout->nodes; i++) {
        first += layout->counts[i];
    }
    return (nodeid < layout->nodes && localid < layout->counts[nodeid] && procid == first + localid) ||
           error_set(error,
                     "task %d is not in a block with the others of its node: start the members by srun "
                     "--distribution=block",
                     procid);
}

static bool assign(struct assignment *assignment, struct layout *layout, const struct slurm_task *task,
                   struct error *error)
{
    int procid, nodeid, localid;
    if (!read_variable("SLURM_PROCID", task->procid, &procid, error) ||
        !read_variable("SLURM_NODEID", task->nodeid, &nodeid, error) ||
        !read_variable("SLURM_LOCALID", task->localid, &localid, error)) {
        return false;
    }
    if (!task->nodelist || !task->tasks_per_node) {
        return error_set(error,
                         "SLURM_STEP_NODELIST or SLURM_STEP_TASKS_PER_NODE is not set: with cluster=slurm, start "
                         "the members by srun");
    }
    if (!read_counts(layout, task->tasks_per_node, error)) {
        return error_wrap(error, "SLURM_STEP_TASKS_PER_NODE");
    }
    const bool is_alone = layout->tasks == 1;
    layout->ps_count = is_alone ? 0 : layout->ps_count;
    if (layout->tasks <= layout->ps_count) {
        return error_set(error, "the step has %d tasks: too few for %d ps and a worker", layout->tasks,
                         layout->ps_count);
    }
    if (!make_lists(layout, task->nodelist, error) || !check_place(layout, procid, nodeid, localid, error)) {
        return false;
    }
    const bool is_ps = procid < layout->ps_count;
    assignment->ps_hosts = layout->lists[0];
    assignment->worker_hosts = layout->lists[1];
    layout->lists[0] = layout->lists[1] = NULL;
    assignment_set(assignment,
                   is_alone ? "local"
                   : is_ps  ? "ps"
                            : "worker",
                   is_ps ? procid : procid - layout->ps_count);
    return true;
}

bool slurm_parse(struct assignment *assignment, const struct slurm_task *task, int ps_count, int base_port,
                 struct error *error)
{
    struct layout *layout = must_zero(1, sizeof *layout, "the members' addresses");
    *assignment = (struct assignment){.count = 0};
    layout->ps_count = ps_count;
    layout->base_port = base_port;
    const bool done = assign(assignment, layout, task, error);
    free(layout->lists[0]);
    free(layout->lists[1]);
    free(layout);
    return done;
}
