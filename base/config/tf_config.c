/*
 * Translates TF_CONFIG into the equivalent flags, so that ranges and relations are checked in one place.
 */
#include "base/config/tf_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>

#include "base/memory.h"
#include "base/text/json.h"
#include "base/text/printable.h"

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
