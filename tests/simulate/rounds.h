/* Of which workers' gradients, and of how many, a deciding ps makes a step; and until when it waits for them. */
#ifndef TESTS_SIMULATE_ROUNDS_H
#define TESTS_SIMULATE_ROUNDS_H

#include <stdint.h>

struct channel;
struct config;
struct ps_record;

/* This ps starts with this config; what it was told for steps up to this one is in force, and stays so. */
void rounds_begin(struct ps_record *record, const struct config *config);
void rounds_settle(struct ps_record *record, int64_t step);

/* What the running ps tells a worker: the round for which it is selected; negative: none. */
void rounds_note_token(const struct channel *channel, int64_t token);

#endif
