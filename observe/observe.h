/*
 * What this process shows of itself over HTTP while it works (observe.http), and what its role writes down for that.
 *
 * There is one board for the process. Every call but observe_start and observe_stop may come from any thread, at any
 * time, and does nothing while nobody serves: a look at one flag. None fails, waits or changes what a role does.
 */
#ifndef OBSERVE_OBSERVE_H
#define OBSERVE_OBSERVE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "observe/api.h"
#include "observe/board.h"

extern atomic_bool observe_serves;

/*
 * Serves where observe.http says; does nothing where it is empty. fleet_key: the path of the member's own key, for TLS
 * where no certificate is given; NULL: there is none.
 */
bool observe_start(const struct config *config, const char *fleet_key, struct error *error);

/* Says how it ended, keeps the history and closes all connections. */
void observe_stop(bool failed);

static inline bool observe_is_on(void)
{
    return atomic_load_explicit(&observe_serves, memory_order_relaxed);
}

/* --- What a role says --- */

/* Pictures and columns from now on; what they name must live as long as the process. */
void observe_extras(const struct api_extras *extras);

void observe_state(enum board_state state);

/* Its main loop goes round: by the threads that matter, whenever it does; so does all else but traffic. */
void observe_alive(void);

/* What it waits for from now on: "waiting for worker 3 (c:2222), 12 s"; any other text: nothing any more. */
void observe_waiting(const char *what);

struct observe_start_of_run {
    const char *engine, *digest, *metric;
    bool metric_rises;
    const int *layers;
    int layer_count;
    int64_t global_step, last_step; /* last_step -1: none */
    int64_t config_version;
    double best_value; /* NaN: none */
    int64_t best_step;
    const char *restored_from; /* NULL: a new run */
};
void observe_run(const struct observe_start_of_run *run);

struct observe_steps {
    int64_t global_step, local_step;
    int64_t steps, examples;  /* that were done, here */
    double seconds, loss_sum; /* of these */
    double epoch, learning_rate;
    int64_t run_examples; /* of all of the run */
};
void observe_steps(const struct observe_steps *steps);

struct observe_validation {
    int64_t global_step;
    const struct board_metric *metrics;
    int metric_count;
    double best_value; /* NaN: none */
    int64_t best_step;
};
void observe_validation(const struct observe_validation *validation);

/* Where the run is, for one who only looks on; it works from now on. */
void observe_at(int64_t global_step);

void observe_saved(const char *path, int64_t step, double seconds);
void observe_save_failed(const char *why);

/* What has gone through the network so far. */
void observe_traffic(uint64_t bytes_in, uint64_t bytes_out, uint64_t retries);

/*
 * Who takes part, as this member knows it: asked each second, on the server's thread, to fill in board->members,
 * board->rollout and what else it knows. NULL: this process alone. Once it returns the last source is asked no more.
 */
void observe_source(void (*fill)(void *context, struct board *board), void *context);

#endif
