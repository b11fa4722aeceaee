/*
 * The members of a cluster and its rollout as dashboards and commands show them: plain values, which roles fill in.
 */
#ifndef BASE_BOARD_MEMBER_H
#define BASE_BOARD_MEMBER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum { BOARD_TEXT = 192 /* room for a line */ };

/*
 * The fields of a member, each with its name in JSON (docs/operations.md): of these tables the structs are made, what
 * writes them (observe/api.c), and what reads them (observe/top/top.c). A WHOLE below 0 and a NUMBER that is NaN are
 * not known: null in JSON.
 */
#define BOARD_MEMBER_FIELDS(TEXT, FLAG, SMALL, WHOLE, COUNT, NUMBER)                                                   \
    TEXT(role, 12, "role")                                                                                             \
    SMALL(task, "task")                                                                                                \
    TEXT(address, 264, "address")                                                                                      \
    TEXT(host, 256, "host")                                                                                            \
    TEXT(state, 16, "state")                                                                                           \
    FLAG(is_missing, "missing")                                                                                        \
    WHOLE(silent_ms, "silent_ms")                                                                                      \
    SMALL(generation, "generation")                                                                                    \
    WHOLE(global_step, "global_step")                                                                                  \
    WHOLE(local_step, "local_step")                                                                                    \
    NUMBER(steps_per_s, "steps_per_s")                                                                                 \
    NUMBER(loss, "loss")                                                                                               \
    SMALL(staleness, "staleness")                                                                                      \
    COUNT(dropped, "dropped")                                                                                          \
    COUNT(retries, "retries")                                                                                          \
    COUNT(bytes_in, "bytes_in")                                                                                        \
    COUNT(bytes_out, "bytes_out")                                                                                      \
    TEXT(device, 129, "device")                                                                                        \
    TEXT(program, 65, "program")                                                                                       \
    WHOLE(config_version, "config_version")                                                                            \
    TEXT(digest, 65, "config_digest")                                                                                  \
    TEXT(message, 256, "message")                                                                                      \
    NUMBER(memory_bytes, "memory_bytes")                                                                               \
    NUMBER(cpu_percent, "cpu_percent")                                                                                 \
    NUMBER(gpu_percent, "gpu_percent")                                                                                 \
    TEXT(link, 16, "link") /* of a worker: how its gradients come; empty: not known */

/* A worker's record in rounds; asked 0: there are none, or it was never asked. cosine, norm: of its last difference. */
#define BOARD_ROUNDS_FIELDS(TEXT, FLAG, SMALL, WHOLE, COUNT, NUMBER)                                                   \
    FLAG(is_asked, "is_asked") /* for the current round */                                                             \
    WHOLE(asked, "asked")                                                                                              \
    WHOLE(counted, "counted")                                                                                          \
    WHOLE(late, "late")                                                                                                \
    WHOLE(missed, "missed")                                                                                            \
    NUMBER(cosine, "cosine") /* to the mean */                                                                         \
    NUMBER(norm, "norm")

/* The score, by train.best_metric, on a worker's own rows of the model that it validated last; examples 0: none. */
#define BOARD_OWN_FIELDS(TEXT, FLAG, SMALL, WHOLE, COUNT, NUMBER)                                                      \
    WHOLE(examples, "examples")                                                                                        \
    WHOLE(step, "step")                                                                                                \
    NUMBER(score, "score")                                                                                             \
    FLAG(is_worst, "is_worst") /* of the tenth of the workers with the worst scores */

#define BOARD_TEXT_FIELD(field, size, name) char field[size];
#define BOARD_FLAG_FIELD(field, name)       bool field;
#define BOARD_SMALL_FIELD(field, name)      int field;
#define BOARD_WHOLE_FIELD(field, name)      int64_t field;
#define BOARD_COUNT_FIELD(field, name)      uint64_t field;
#define BOARD_NUMBER_FIELD(field, name)     double field;
#define BOARD_FIELDS(TABLE)                                                                                            \
    TABLE(BOARD_TEXT_FIELD, BOARD_FLAG_FIELD, BOARD_SMALL_FIELD, BOARD_WHOLE_FIELD, BOARD_COUNT_FIELD,                 \
          BOARD_NUMBER_FIELD)

struct board_rounds {
    BOARD_FIELDS(BOARD_ROUNDS_FIELDS)
};

struct board_own {
    BOARD_FIELDS(BOARD_OWN_FIELDS)
};

struct board_member {
    BOARD_FIELDS(BOARD_MEMBER_FIELDS)
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
