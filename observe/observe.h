/*
 * Observation of this process over HTTP (observe.http), and the calls by which its role reports its state.
 *
 * There is one board per process. Every call except observe_start and observe_stop may come from any thread, at any
 * time, and costs only a check of one flag while observation is off. None fails, blocks or changes what a role does.
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
 * Serves at observe.http; does nothing if that is empty. fleet_key: the path of the member's own key, for TLS if no
 * certificate is given; NULL: none.
 */
bool observe_start(const struct config *config, const char *fleet_key, struct error *error);

/* Reports how the run ended (done, interrupted or failed), saves the history and closes all connections. */
void observe_stop(enum board_state end);

static inline bool observe_is_on(void)
{
    return atomic_load_explicit(&observe_serves, memory_order_relaxed);
}

/* --- Reports by a role --- */

/* Takes over the command line and settings as JSON for /api/about, malloc'd and with a zero byte at its end. */
void observe_about(char *json);

/* Sets the source of pictures and columns; what it points to must live as long as the process. */
void observe_extras(const struct api_extras *extras);

void observe_state(enum board_state state);

/* A sign of life from the main loop. All other calls except observe_traffic count as one, too. */
void observe_alive(void);

/* Sets what it waits for: "waiting for worker 3 (c:2222), 12 s"; any other text: nothing. */
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
    int64_t steps, examples;  /* done by this process */
    double seconds, loss_sum; /* of these */
    double epoch, learning_rate;
    int64_t run_examples; /* of the whole run */
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

/* The final test. */
void observe_test(int64_t global_step, const struct board_metric *metrics, int count);

/* Sets the run's step, for a process that only observes it; counts as working from now on. */
void observe_at(int64_t global_step);

void observe_saved(const char *path, int64_t step, double seconds);
void observe_best_saved(const char *path, int64_t step);
void observe_save_failed(const char *why);

/* Why the run fails. */
void observe_failure(const char *why);

/* Sets the network totals so far. */
void observe_traffic(uint64_t bytes_in, uint64_t bytes_out, uint64_t retries);

/* The time, in seconds since 1970, at which the certificate in this member's key expires; 0: it has none. */
void observe_certificate(double until_s);

/*
 * Sets the source of members: called each second, on the server's thread, to fill in board->members, board->rollout and
 * what else it knows. NULL: this process alone. After it returns the previous source is not called any more.
 */
void observe_source(void (*fill)(void *context, struct board *board), void *context);

#endif
