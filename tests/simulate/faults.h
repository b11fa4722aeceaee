/* What goes wrong with machines, links, clocks and disks. */
#ifndef TESTS_SIMULATE_FAULTS_H
#define TESTS_SIMULATE_FAULTS_H

#include <stdint.h>

extern struct faults {
    double calm_s; /* none from then on */
    int count;     /* so far */
} faults;

/* Some listed ones except the chief, for a while. */
void faults_switch_workers_off(void);

/*
 * For world_at: a random fault; one file of a member's rollout records rots; so many machines are killed, from ps 0 on,
 * or the one with that number.
 */
void faults_inject(void *context, uint64_t argument);
void faults_rot_history(void *context, uint64_t argument);
void faults_kill_all(void *context, uint64_t count);
void faults_kill_one(void *context, uint64_t number);

#endif
