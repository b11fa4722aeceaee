/*
 * An intruder in a simulated fleet (fleet.h): proposes what nobody signed, what was signed for another fleet, what the
 * operator was tricked into signing, and old and torn manifests; offers programs; and aborts others' rollouts. The run
 * fails if ps 0 accepts any of that.
 */
#ifndef TESTS_SIMULATE_INTRUDER_H
#define TESTS_SIMULATE_INTRUDER_H

#include <stddef.h>
#include <stdint.h>

struct machine;

/* What the intruder has to work with; all borrowed. */
struct intruder_means {
    const char *config_path;     /* on its machine's disk */
    const char *fleet;           /* the fleet's name */
    const uint8_t *own_key;      /* a secret key that no member trusts */
    const uint8_t *operator_key; /* signs what the operator was tricked into */
    const uint8_t *manifest;     /* the last one that the operator signed */
    const size_t *manifest_size; /* 0: none so far */
};

/* At the beginning of a run. */
void intruder_begin(const struct intruder_means *means);

/* The intruder's process: one attempt. Returns its exit status. */
int intruder_run(struct machine *machine);

#endif
