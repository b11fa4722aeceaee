/* Slurm and TF_CONFIG become the same four flags. */
#include "base/config/scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>

#include "base/memory.h"
#include "base/text/address.h"
#include "base/text/json.h"
#include "base/text/text.h"

/* --- What a scheduler assigns --- */

/* The same four settings, whichever scheduler they come from. */

static void assignment_set(struct assignment *assignment, const char *job_name, int task_index)
{
    snprintf(assignment->index, sizeof assignment->index, "%d", task_index);
    assignment->settings[0] = (struct config_setting){"job_name", job_name};
    assignment->settings[1] = (struct config_setting){"task_index", assignment->index};
    assignment->settings[2] = (struct config_setting){"ps_hosts", assignment->ps_hosts};
    assignment->settings[3] = (struct config_setting){"worker_hosts", assignment->worker_hosts};
    assignment->count = ASSIGNMENT_SETTINGS;
}

void assignment_free(struct assignment *assignment)
{
    free(assignment->ps_hosts);
    free(assignment->worker_hosts);
    *assignment = (struct assignment){.count = 0};
}

/* --- Lists of hosts --- */

/* One recursion per bracket of a name: for each of its numbers, writes it and recurses for the rest of the name. */

enum { MAX_DIGITS = 9 };

/* A list being expanded. */
struct expansion {
    char host[HOSTLIST_MAX_HOST + 1];
    int left; /* hosts that may still come */
    hostlist_add *add;
    void *context;
    struct error *error;
};

/* One range of numbers between brackets: "3-5", "08-11", "7". */
struct number_range {
    long first, last;
    int width; /* of the numbers, leading zeros included */
};

static bool expand(struct expansion *expansion, size_t used, const char *rest, const char *end, int brackets);

static bool append(struct expansion *expansion, size_t *used, const char *text, size_t size)
{
    if (size > HOSTLIST_MAX_HOST - *used) {
        return error_set(expansion->error, "a host has more than %d characters", HOSTLIST_MAX_HOST);
    }
    memcpy(expansion->host + *used, text, size);
    *used += size;
    return true;
}

static bool finish(struct expansion *expansion, size_t used)
{
    if (used == 0) {
        return error_set(expansion->error, "an empty name; write names separated by single commas");
    }
    if (expansion->left-- == 0) {
        return error_set(expansion->error, "too many hosts");
    }
    expansion->host[used] = '\0';
    return expansion->add(expansion->context, expansion->host, expansion->error);
}

static bool read_number(const char **text, long *number, int *width)
{
    size_t digits = strspn(*text, "0123456789");
    if (digits == 0 || digits > MAX_DIGITS) {
        return false;
    }
    *number = strtol(*text, NULL, 10);
    *width = (int)digits;
    *text += digits;
    return true;
}

/* Parses one range, from after the bracket or a comma to the next delimiter. */
static bool read_range(const char **text, struct number_range *range)
{
    int width;
    if (!read_number(text, &range->first, &range->width)) {
        return false;
    }
    range->last = range->first;
    if (**text != '-') {
        return true;
    }
    ++*text;
    return read_number(text, &range->last, &width) && range->last >= range->first;
}

static bool expand_range(struct expansion *expansion, size_t used, const struct number_range *range, const char *rest,
                         const char *end, int brackets)
{
    for (long number = range->first; number <= range->last; number++) {
        char text[MAX_DIGITS + 2];
        size_t all = used;
        const int size = snprintf(text, sizeof text, "%0*ld", range->width, number);
        if (!append(expansion, &all, text, (size_t)size) || !expand(expansion, all, rest, end, brackets)) {
            return false;
        }
    }
    return true;
}

/* host[0..used) is written; `rest` up to `end` is what follows in this name. */
static bool expand(struct expansion *expansion, size_t used, const char *rest, const char *end, int brackets)
{
    const char *open = memchr(rest, '[', (size_t)(end - rest));
    const size_t plain = (size_t)((open ? open : end) - rest);
    if (memchr(rest, ']', plain)) {
        return error_set(expansion->error, "a ']' without its '['");
    }
    if (!append(expansion, &used, rest, plain)) {
        return false;
    }
    if (!open) {
        return finish(expansion, used);
    }
    const char *close = memchr(open, ']', (size_t)(end - open));
    if (!close || brackets == HOSTLIST_MAX_BRACKETS) {
        return error_set(expansion->error, close ? "more than %d brackets in a name" : "a '[' without its ']'",
                         HOSTLIST_MAX_BRACKETS);
    }
    const char *text = open + 1;
    do {
        struct number_range range;
        if (!read_range(&text, &range) || (*text != ',' && *text != ']')) {
            return error_set(expansion->error, "brackets hold numbers and ranges of them, as in n[1,3-5]");
        }
        if (!expand_range(expansion, used, &range, close + 1, end, brackets + 1)) {
            return false;
        }
    } while (*text++ == ',');
    return true;
}

/* Where the name ends: at a comma outside brackets, or at the end of the text. */
static const char *end_of_name(const char *text)
{
    bool inside = false;
    for (; *text != '\0' && (inside || *text != ','); text++) {
        inside = *text == '[' || (inside && *text != ']');
    }
    return text;
}

bool hostlist_expand(const char *text, int most, hostlist_add *add, void *context, struct error *error)
{
    struct expansion expansion = {.left = most, .add = add, .context = context, .error = error};
    for (;;) {
        const char *end = end_of_name(text);
        if (!expand(&expansion, 0, text, end, 0)) {
            return false;
        }
        if (*end == '\0') {
            return true;
        }
        text = end + 1;
    }
}

/* --- Slurm --- */

/*
 * Slurm gives a task its own number, node and number on that node, but about the others only how many run on each node.
 * So their places are known only if tasks are distributed in blocks (srun's default); each task checks that its own
 * place agrees.
 */

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
static bool read_count(const char **text, int least, int *number)
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
    return (read_count(&text, 0, number) && *text == '\0') || error_set(error, "%s: must be a number from 0", name);
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
        bool fine = read_count(&text, 1, &tasks);
        if (fine && strncmp(text, "(x", 2) == 0) {
            text += 2;
            fine = read_count(&text, 1, &times) && *text++ == ')';
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

/* --- TF_CONFIG --- */

/*
 * Translates TF_CONFIG into the equivalent flags, so that ranges and relations are checked in one place.
 */

/* The parts of the text that matter here. */
struct content {
    const cJSON *chief, *worker, *ps; /* lists of hosts; NULL if missing */
    const char *type;
    int index;
};

static bool find_hosts(const cJSON **hosts, const cJSON *cluster, const char *name, struct error *error)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(cluster, name);
    const cJSON *host;
    if (!list) {
        return true;
    }
    if (!cJSON_IsArray(list)) {
        return error_set(error, "cluster.%s must be a list of addresses", name);
    }
    cJSON_ArrayForEach(host, list)
    {
        if (!cJSON_IsString(host) || strchr(host->valuestring, ',')) {
            return error_set(error, "cluster.%s must hold \"host:port\" strings", name);
        }
    }
    *hosts = list->child ? list : NULL;
    return true;
}

/* A list by another name would leave each process alone with the whole job. */
static bool check_names(const cJSON *object, const char *where, const char *const *known, const char *wanted,
                        struct error *error)
{
    const cJSON *entry;
    cJSON_ArrayForEach(entry, object)
    {
        int i = 0;
        while (known[i] && strcmp(known[i], entry->string) != 0) {
            i++;
        }
        if (!known[i]) {
            char shown[64];
            return error_set(error, "%s\"%s\" is not understood; %s", where,
                             printable(shown, sizeof shown, entry->string), wanted);
        }
    }
    return true;
}

static bool find_cluster(struct content *content, const cJSON *cluster, struct error *error)
{
    static const char *const known[] = {"chief", "master", "worker", "ps", "evaluator", NULL};
    const cJSON *master = NULL;
    if (!cJSON_IsObject(cluster)) {
        return error_set(error, "cluster must be an object of lists: {\"worker\": [...], \"ps\": [...]}");
    }
    if (!check_names(cluster, "cluster.", known,
                     "it holds the lists chief (or master), worker, ps and evaluator: {\"worker\": [\"host:port\"], "
                     "\"ps\": [\"host:port\"]}",
                     error)) {
        return false;
    }
    if (!find_hosts(&content->chief, cluster, "chief", error) || !find_hosts(&master, cluster, "master", error) ||
        !find_hosts(&content->worker, cluster, "worker", error) || !find_hosts(&content->ps, cluster, "ps", error)) {
        return false;
    }
    if (content->chief && master) {
        return error_set(error, "cluster has both a chief and a master, which mean the same; remove one");
    }
    content->chief = content->chief ? content->chief : master;
    return !content->chief || !content->chief->child->next || error_set(error, "cluster.chief must be one address");
}

static bool find_task(struct content *content, const cJSON *task, struct error *error)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(task, "type");
    const cJSON *index = cJSON_GetObjectItemCaseSensitive(task, "index");
    if (!cJSON_IsString(type)) {
        return error_set(error, "task.type is missing; set it to this process's role in the cluster");
    }
    if (index && (!cJSON_IsNumber(index) || index->valuedouble < 0 || index->valuedouble >= CONFIG_MAX_HOSTS ||
                  index->valuedouble != index->valueint)) {
        return error_set(error, "task.index must be an integer from 0 to %d", CONFIG_MAX_HOSTS - 1);
    }
    content->type = type->valuestring;
    content->index = index ? index->valueint : 0;
    return true;
}

/* The addresses of two lists, separated by commas. */
static char *join(const cJSON *first, const cJSON *second)
{
    const cJSON *lists[] = {first, second}, *host;
    size_t size = 1, used = 0;
    for (int i = 0; i < 2; i++) {
        cJSON_ArrayForEach(host, lists[i])
        {
            size += strlen(host->valuestring) + 1;
        }
    }
    char *text = must_zero(size, 1, "the members' addresses");
    for (int i = 0; i < 2; i++) {
        cJSON_ArrayForEach(host, lists[i])
        {
            used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? "," : "", host->valuestring);
        }
    }
    return text;
}

/* job_name for the task's type, and the offset to add to its index; NULL for an unknown type. */
static const char *role_of(const struct content *content, int *shift)
{
    static const struct {
        const char *type, *job_name;
    } roles[] = {
        {"chief", "worker"}, {"master", "worker"}, {"worker", "worker"}, {"ps", "ps"}, {"evaluator", "evaluator"}};
    *shift = strcmp(content->type, "worker") == 0 && content->chief ? 1 : 0;
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (strcmp(content->type, roles[i].type) == 0) {
            return roles[i].job_name;
        }
    }
    return NULL;
}

static bool make_settings(struct assignment *assignment, const struct content *content, struct error *error)
{
    int shift, workers = cJSON_GetArraySize(content->worker) + (content->chief ? 1 : 0);
    const char *job_name = role_of(content, &shift);
    if (!job_name) {
        char shown[64];
        return error_set(error, "task.type must be chief, master, worker, ps or evaluator, not \"%s\"",
                         printable(shown, sizeof shown, content->type));
    }
    if (strcmp(job_name, "worker") == 0 && shift == 0 && content->chief && content->index != 0) {
        return error_set(error, "task.index of the chief must be 0, not %d", content->index);
    }
    if (strcmp(job_name, "worker") == 0 && !content->ps && workers <= 1) {
        job_name = "local";
    }
    assignment->ps_hosts = join(content->ps, NULL);
    assignment->worker_hosts = join(content->chief, content->worker);
    bool is_member = strcmp(job_name, "ps") == 0 || strcmp(job_name, "worker") == 0;
    assignment_set(assignment, job_name, is_member ? content->index + shift : 0);
    return true;
}

/* A process of its own, as Estimator's {"task": {"type": "worker", "index": 0}} means without a cluster. */
static bool is_alone(const cJSON *task)
{
    const cJSON *index = cJSON_GetObjectItemCaseSensitive(task, "index");
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(task, "type");
    return (!index || (cJSON_IsNumber(index) && index->valuedouble == 0)) &&
           !(cJSON_IsString(type) && strcmp(type->valuestring, "ps") == 0);
}

static bool read_root(struct assignment *assignment, const cJSON *root, struct error *error)
{
    static const char *const known[] = {"cluster",        "task",      "environment", "rpc_layer", "job",
                                        "session_config", "model_dir", "eval_only",   NULL};
    const cJSON *cluster = cJSON_GetObjectItemCaseSensitive(root, "cluster");
    const cJSON *task = cJSON_GetObjectItemCaseSensitive(root, "task");
    struct content content = {.chief = NULL};
    if (!cJSON_IsObject(root)) {
        return error_set(error, "must be an object: {\"cluster\": {...}, \"task\": {...}}");
    }
    if (cJSON_HasObjectItem(root, "sparseCluster")) {
        return error_set(error, "\"sparseCluster\" (of an operator with enableDynamicWorker) names only some of the "
                                "members; turn that off, so that \"cluster\" lists all of them");
    }
    if (!check_names(root, "", known, "it holds \"cluster\" and \"task\"", error)) {
        return false;
    }
    const bool is_empty = !cluster || (cJSON_IsObject(cluster) && !cluster->child);
    if (is_empty && !is_alone(task)) {
        return error_set(error, "has a \"task\" but no \"cluster\"; list the members: {\"cluster\": {\"worker\": "
                                "[\"host:port\"], \"ps\": [\"host:port\"]}, \"task\": {...}}");
    }
    if (is_empty) {
        return true;
    }
    return find_cluster(&content, cluster, error) && find_task(&content, task, error) &&
           make_settings(assignment, &content, error);
}

bool tf_config_parse(struct assignment *assignment, const char *text, struct error *error)
{
    struct json_place place;
    *assignment = (struct assignment){.count = 0};
    size_t size = text ? strlen(text) : 0;
    if (size == 0) {
        return true;
    }
    if (size > TF_CONFIG_MAX_TEXT) {
        return error_set(error, "TF_CONFIG: longer than %d bytes", TF_CONFIG_MAX_TEXT);
    }
    if (!json_check(text, size, &place, error)) {
        return error_wrap(error, "TF_CONFIG:%d:%d", place.line, place.column);
    }
    cJSON *root = must_have(json_build(text, size), 0, "TF_CONFIG");
    const bool done = read_root(assignment, root, error);
    cJSON_Delete(root);
    return done || error_wrap(error, "TF_CONFIG");
}
