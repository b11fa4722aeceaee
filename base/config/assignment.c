/* The same four settings, whichever scheduler they come from. */
#include "base/config/assignment.h"

#include <stdio.h>
#include <stdlib.h>

void assignment_set(struct assignment *assignment, const char *job_name, int task_index)
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
