/* The difference between two configurations, key by key, and how to apply the part that may change live. */
#ifndef BASE_CONFIG_DIFF_H
#define BASE_CONFIG_DIFF_H

#include <stdbool.h>

#include "base/config.h"
#include "base/config/keys.h"

struct config_change {
    const struct config_key *key;
    char *before, *after; /* as written in flags */
};

struct config_diff {
    struct config_change *changes; /* [count], in the table's order */
    int count;
};

/*
 * The keys of one scope whose values differ. fleet.version is left out: it only says which of the two is newer. The
 * caller calls config_diff_free, which is also safe on a zeroed diff.
 */
void config_diff(struct config_diff *diff, const struct config *before, const struct config *after,
                 enum key_scope scope);
void config_diff_free(struct config_diff *diff);

/* One line: "train.learning_rate  0.5 -> 0.25  (live)". */
void config_diff_line(const struct config_change *change, char *text, size_t size);

/*
 * Copies the live keys of another config, and nothing else: they are plain values, so nothing is allocated or freed,
 * and readers of other keys are not disturbed. The second function does so for a train section alone.
 */
void config_take_live(struct config *config, const struct config *from);
void config_take_live_train(struct config_train *train, const struct config_train *from);

#endif
