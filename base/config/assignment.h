/*
 * What a scheduler tells a process through the environment: who it is and where the others are, as the flags that would
 * say the same, so that ranges and relations are checked in one place.
 */
#ifndef BASE_CONFIG_ASSIGNMENT_H
#define BASE_CONFIG_ASSIGNMENT_H

#include "base/config.h"

enum { ASSIGNMENT_SETTINGS = 4 };

/* Zeroed: nothing is assigned. The settings' texts are its own; assignment_free frees them. */
struct assignment {
    struct config_setting settings[ASSIGNMENT_SETTINGS];
    int count;
    char *ps_hosts, *worker_hosts;
    char index[16];
};

/* job_name is a literal. Without one of the lists: out of memory. */
bool assignment_set(struct assignment *assignment, const char *job_name, int task_index, struct error *error);
void assignment_free(struct assignment *assignment);

#endif
