/* What is different between two configurations, key by key, what it takes to go from one to the other, and a step there. */
#ifndef BASE_CONFIG_DIFF_H
#define BASE_CONFIG_DIFF_H

#include <stdbool.h>

#include "base/config.h"
#include "base/config/keys.h"
#include "base/error.h"

struct config_change {
    const struct config_key *key;
    char *before, *after; /* as flags would give them */
};

struct config_diff {
    struct config_change *changes; /* [count], in the table's order */
    int count;
};

/*
 * The keys of one scope whose effective values differ. fleet.version is left out: it says which of the two is newer. The
 * caller frees it with config_diff_free, which is also fine on one that is all zeros.
 */
bool config_diff(struct config_diff *diff, const struct config *before, const struct config *after,
                 enum key_scope scope, struct error *error);
void config_diff_free(struct config_diff *diff);

/* One line: "train.learning_rate  0.5 -> 0.25  (live)". */
void config_diff_line(const struct config_change *change, char *text, size_t size);

/*
 * Takes over the live keys of another config, and nothing else of it: plain values, so that nothing is owned or freed, and
 * whoever reads other keys meanwhile is not disturbed. The second is the first for a train section alone.
 */
void config_take_live(struct config *config, const struct config *from);
void config_take_live_train(struct config_train *train, const struct config_train *from);

#endif
