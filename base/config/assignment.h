/*
 * What a scheduler's environment variables tell a process: its role and the other members' addresses, expressed as the
 * equivalent flags, so that ranges and relations are checked in one place.
 */
#ifndef BASE_CONFIG_ASSIGNMENT_H
#define BASE_CONFIG_ASSIGNMENT_H

#include "base/config.h"

enum { ASSIGNMENT_SETTINGS = 4 };

/* Zeroed: nothing is assigned. It owns the settings' texts; assignment_free frees them. */
struct assignment {
    struct config_setting settings[ASSIGNMENT_SETTINGS];
    int count;
    char *ps_hosts, *worker_hosts;
    char index[16];
};

/* Both lists are set already. job_name is a literal. */
void assignment_set(struct assignment *assignment, const char *job_name, int task_index);
void assignment_free(struct assignment *assignment);

#endif
