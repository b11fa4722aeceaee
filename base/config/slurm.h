/*
 * cluster=slurm: the tasks of one job step are the members of a cluster. The first `ps_count` tasks are the ps, the
 * others the workers; a task listens on base_port plus its number on its node. A single task trains alone.
 */
#ifndef BASE_CONFIG_SLURM_H
#define BASE_CONFIG_SLURM_H

#include <stdbool.h>

#include "base/config/assignment.h"
#include "base/error.h"

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

#endif
