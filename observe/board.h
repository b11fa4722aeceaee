/*
 * The observable state of a run: the numbers that its role records, events, members, and history. It knows only
 * numbers, nothing of gradients.
 *
 * Any thread may write numbers and events, under a lock held only while some hundred bytes are copied. Members and
 * history belong to the server's thread (board_tick, the API, metrics).
 */
#ifndef OBSERVE_BOARD_H
#define OBSERVE_BOARD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/board_member.h"
#include "base/config.h"
#include "base/error.h"
#include "base/process/usage.h"

/* --- History --- */

/*
 * The history of a run's numbers: each second of the last hour, and the whole run in at most HISTORY_WHOLE buckets,
 * whose width doubles whenever there would be more. Its size is fixed, however long a run takes; a file keeps it
 * between two starts.
 *
 * One thread at a time uses a history. Times are seconds since 1970; an unknown value is NaN.
 */

enum {
    HISTORY_RECENT = 3600,
    HISTORY_WHOLE = 2048,
    HISTORY_SERIES = 24,
    HISTORY_NAME = 40,
};

/* One bucket of time: its beginning, the global step at its end, and the mean of each series. */
struct history_bucket {
    double time_s;
    int64_t step;
    uint32_t seconds; /* seconds that it averages */
    float values[HISTORY_SERIES];
};

/* In order of time, circular from `first`. */
struct history_ring {
    struct history_bucket *buckets; /* [room] */
    int room, first, count;
};

struct history {
    char names[HISTORY_SERIES][HISTORY_NAME];
    int series;
    struct history_ring recent, whole;
    double width_s; /* of the buckets of `whole` */
};

void history_create(struct history *history);
void history_destroy(struct history *history); /* fine on zeros */

/*
 * The index of the series with that name, added if it is new; -1: there are too many, or the name holds anything but
 * letters, digits and _ - . / :
 */
int history_series(struct history *history, const char *name);

/* Adds one second. Time that goes back counts as standing still. values: [history->series] */
void history_add(struct history *history, double time_s, int64_t step, const float *values);

/* index: 0 is the oldest. */
const struct history_bucket *history_at(const struct history_ring *ring, int index);

/* Replaces the file. */
bool history_save(const struct history *history, const char *path, struct error *error);

/* False if there is no valid file: the history is then unchanged, and *damaged says whether there is a damaged one. */
bool history_load(struct history *history, const char *path, bool *damaged, struct error *error);

enum {
    BOARD_EVENTS = 1024,
    BOARD_METRICS = 12,
    BOARD_STEP_BUCKETS = 18, /* of the histogram of step times, the last unbounded */
    BOARD_VALIDATIONS = 64,  /* kept until the history takes them, each second */
};

enum board_state {
    BOARD_STARTING,
    BOARD_WAITING,
    BOARD_TRAINING,
    BOARD_VALIDATING,
    BOARD_SAVING,
    BOARD_DONE,
    BOARD_INTERRUPTED,
    BOARD_FAILED,
};
const char *board_state_name(enum board_state state);

/* The bounds of the histogram's buckets, in seconds; that of the last is infinite. */
extern const double board_step_bounds[BOARD_STEP_BUCKETS - 1];

struct board_metric {
    char name[24];
    double value;
};

enum { BOARD_METRIC_TEXT = 64 };

/* "accuracy 97.82%", "loss 0.0912". Returns text. */
const char *board_metric_text(const struct board_metric *metric, char text[BOARD_METRIC_TEXT]);

/* The changing numbers, copied as a whole. */
struct board_numbers {
    enum board_state state;
    char waiting_for[BOARD_TEXT]; /* "": nothing */
    double waiting_since_s;       /* clock_monotonic_s */
    double waited_s;              /* total of past waits */

    char engine[BOARD_TEXT], digest[65], metric[24];
    bool metric_rises;
    int layers[CONFIG_MAX_LAYERS], layer_count;
    int64_t config_version; /* -1: not known */
    int generation;

    int64_t global_step, local_step, last_step; /* last: -1: none */
    double epoch, learning_rate;
    int64_t examples;                  /* of the whole run, as far as this process knows */
    int64_t steps, loss_steps, pushed; /* since the process began */
    double step_s, loss_sum;
    uint64_t step_times[BOARD_STEP_BUCKETS];

    struct board_metric metrics[BOARD_METRICS]; /* of the last validation */
    int metric_count;
    int64_t best_step; /* -1: none */
    double best_value;
    uint64_t validations;
    struct board_metric test[BOARD_METRICS]; /* of the final test */
    int test_count;

    int64_t saved_step; /* -1: none */
    double saved_time_s, saved_took_s;
    char saved_path[256];
    uint64_t saved, saves_failed;
    int64_t best_saved_step; /* of the file that keeps the best model; -1: there is none */
    char best_saved_path[256];

    double certificate_until_s; /* clock_wall_s at which the member's certificate expires; 0: it has none */
    uint64_t stale, not_finite, retries, bytes_in, bytes_out; /* of the network, if there is one */

    int buffer_size, buffered; /* asynchronous rounds: differences per step, and those buffered; 0: none */
    double buffer_staleness;   /* mean over those of the last step; NaN: none yet */
};

/* Where a validation stands in the history. */
struct board_validation {
    double time_s;
    int64_t step;
    struct board_metric metrics[BOARD_METRICS];
    int metric_count;
};

struct board_event {
    int64_t id, step; /* step -1: none */
    double time_s;
    char kind[16], member[24]; /* member "": none */
    char text[BOARD_TEXT];
};

struct board {
    /* Set once. */
    char name[128], train_dir[512], role[12];
    int task;
    double started_s;
    char path[600]; /* of the history's file; "": none */

    _Atomic(double) alive_s; /* when the role last made progress, clock_monotonic_s; 0: not known */

    pthread_mutex_t mutex; /* guards these: */
    struct board_numbers numbers;
    struct board_event *events;         /* [BOARD_EVENTS], a ring */
    int64_t last_event;                 /* its id; 0: none */
    struct board_validation *validated; /* [BOARD_VALIDATIONS], that the history lacks yet */
    int validated_count;
    char *about; /* JSON, ends with a zero byte: command line and settings; NULL: not known */

    /* Private to the server's thread. */
    struct history history;
    struct board_member *members; /* [member_count] */
    struct board_seen {
        char role[12], state[16];
        int task;
        bool is_missing;
    } * seen; /* [seen_count]: the members at the last comparison; NULL: there was none */
    int seen_count;
    int member_count, member_room;
    struct board_rollout rollout;
    struct process_use use;
    double steps_per_s, examples_per_s, loss; /* of the last seconds; loss NaN: none yet */
    double cpu_percent, gpu_percent;          /* NaN: no GPU */
    struct board_sample {
        double time_s;
        int64_t step, examples, loss_steps;
        double loss_sum, cpu_s, gpu_s;
        uint64_t bytes_in, bytes_out;
    } before, *samples; /* [BOARD_RATE_S], a ring */
    int64_t ticks;
    int unsaved; /* seconds */
};

void board_create(struct board *board, const char *role, int task, const char *train_dir);
void board_destroy(struct board *board); /* fine on zeros */

/* Clears events and history, as if it were new. */
void board_forget(struct board *board);

/* Loads the history of an earlier start, and keeps it in that file from now on. */
void board_keep_history(struct board *board, const char *path);
void board_save_history(struct board *board); /* a failure is logged once */

/* Takes over `about`, which is malloc'd and ends with a zero byte. */
void board_set_about(struct board *board, char *about);

/* A point of the history; the last of too many in a second are left out. */
void board_validated(struct board *board, int64_t step, const struct board_metric *metrics, int count);

/* Between these two calls the caller owns the numbers. */
struct board_numbers *board_lock(struct board *board);
void board_unlock(struct board *board);

void board_copy(struct board *board, struct board_numbers *numbers);

/* member NULL: none. step -1: none. */
void board_event(struct board *board, const char *kind, const char *member, int64_t step, const char *text);

/* The same for an event of another time. */
void board_event_at(struct board *board, double time_s, const char *kind, const char *member, int64_t step,
                    const char *text);

/* The event with that id, or the first later one still kept. False: none. */
bool board_event_from(struct board *board, int64_t id, struct board_event *event);

int64_t board_last_event(struct board *board); /* its id; 0: none yet */

/* Called each second: measures rates, and adds a bucket to the history. */
void board_tick(struct board *board);

/* Allocates `count` zeroed members. False: out of memory. */
bool board_begin_members(struct board *board, int count);

/*
 * Adds an event for each member that joined or was lost since the last call, of which the first only remembers them.
 * states: also for changes of a state.
 */
void board_compare_members(struct board *board, bool states);

#endif
