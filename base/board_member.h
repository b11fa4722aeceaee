/*
 * The members of a cluster and its rollout as dashboards and commands show them: plain values, which roles fill in.
 */
#ifndef BASE_BOARD_MEMBER_H
#define BASE_BOARD_MEMBER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum { BOARD_TEXT = 192 /* room for a line */ };

/* A worker's record in rounds; asked 0: there are none, or it was never asked. */
struct board_rounds {
    bool is_asked; /* for the current round */
    int64_t asked, counted, late, missed;
    double cosine, norm; /* of its last difference, to the mean; NaN: not known */
};

/* The score on a worker's own rows of the model that it validated last; examples 0: it reported nothing. */
struct board_own {
    int64_t examples, step;
    double score;  /* by train.best_metric; NaN: not defined */
    bool is_worst; /* of the tenth of the workers with the worst scores */
};

struct board_member {
    char role[12];
    int task;
    char address[264], host[256], state[16], device[129], program[65], digest[65], message[256];
    bool is_missing, has_version; /* has_version: its config version is known */
    int64_t silent_ms;            /* -1: not known, as for steps */
    int64_t global_step, local_step, config_version;
    int generation, staleness;
    double steps_per_s, loss; /* NaN: not known */
    uint64_t dropped, retries, bytes_in, bytes_out;
    double memory_bytes, cpu_percent, gpu_percent; /* NaN: not known */
    struct board_rounds rounds;
    struct board_own own;
};

/* A rollout in progress. */
struct board_rollout {
    bool is_under_way;
    int64_t version;
    double since_s;
    char phase[24], text[BOARD_TEXT];
    char (*diff)[BOARD_TEXT];
    int diff_count, diff_room;
};

/* Allocates `lines` lines of diff, none used yet. False: out of memory. */
static inline bool board_begin_diff(struct board_rollout *rollout, int lines)
{
    rollout->diff_count = 0;
    if (lines > rollout->diff_room) {
        char(*diff)[BOARD_TEXT] = realloc(rollout->diff, (size_t)lines * sizeof *diff);
        if (!diff) {
            return false;
        }
        rollout->diff = diff;
        rollout->diff_room = lines;
    }
    return true;
}

#endif
