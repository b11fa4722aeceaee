/* A process's place in its job as a scheduler names it in the environment: Slurm, or TF_CONFIG. */
#ifndef BASE_CONFIG_SCHEDULER_H
#define BASE_CONFIG_SCHEDULER_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"

/* --- What a scheduler assigns --- */

/*
 * What a scheduler's environment variables define: a process's role and the other members' addresses, expressed as the
 * equivalent flags, so that ranges and relations are checked in one place.
 */

enum { ASSIGNMENT_SETTINGS = 4 };

/* Zeroed: nothing is assigned. It owns the settings' texts; assignment_free frees them. */
struct assignment {
    struct config_setting settings[ASSIGNMENT_SETTINGS];
    int count;
    char *ps_hosts, *worker_hosts;
    char index[16];
};

/* Both lists are set already. job_name is a literal. */
void assignment_free(struct assignment *assignment);

/* --- Lists of hosts --- */

/*
 * Slurm's hostlist expressions: "login,n[1,3-5],rack[0-1]-n[08-11]". Numbers keep the leading zeros of the range's
 * start; with several brackets, the last one varies fastest.
 */

enum {
    HOSTLIST_MAX_HOST = 253,
    HOSTLIST_MAX_BRACKETS = 4, /* in one name */
};

/*
 * Calls `add` for each host in order; the host's text is valid only during the call. Fails if there are more than
 * `most` hosts, or if `add` fails, so that the running time is bounded by `most` and the length of the text.
 */
typedef bool hostlist_add(void *context, const char *host, struct error *error);
bool hostlist_expand(const char *text, int most, hostlist_add *add, void *context, struct error *error);

/* --- Slurm --- */

/*
 * cluster=slurm: the tasks of one job step are the members of a cluster. The first `ps_count` tasks are the ps, the
 * others the workers; a task listens on base_port plus its number on its node. A single task trains alone.
 */

/* Environment variables of a task, as srun sets them; NULL if missing. */
struct slurm_task {
    const char *procid, *nodeid, *localid;
    const char *nodelist;       /* SLURM_STEP_NODELIST: a hostlist expression */
    const char *tasks_per_node; /* SLURM_STEP_TASKS_PER_NODE: "2(x3),1" */
};

/* Those of this process. */
void slurm_task_here(struct slurm_task *task);

/* A pure function of its arguments. The caller calls assignment_free, also after a failure. */
bool slurm_parse(struct assignment *assignment, const struct slurm_task *task, int ps_count, int base_port,
                 struct error *error);

/* --- TF_CONFIG --- */

/*
 * TF_CONFIG, the environment variable by which TensorFlow's Estimators know their cluster; controllers such as
 * Kubeflow's TFJob set it:
 *
 *     {"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}, "task": {"type": "worker", "index": 0}}
 *
 * It is translated to job_name, task_index, ps_hosts and worker_hosts. The chief (or master) becomes worker 0, and the
 * workers come after it. An evaluator follows train_dir. A single process without a ps trains locally. Everything else
 * (environment, rpc_layer, hosts of evaluators) is ignored.
 */

enum { TF_CONFIG_MAX_TEXT = 1 << 16 };

/*
 * A pure function of the text. NULL, "" and "{}" mean no cluster: nothing is assigned. The caller calls
 * assignment_free, also after a failure.
 */
bool tf_config_parse(struct assignment *assignment, const char *text, struct error *error);

#endif
