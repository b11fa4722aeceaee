/*
 * The two formats differ in the names of counter families, in units and in the end marker. Names follow the conventions
 * of both: base units, and "_total" for counters.
 */
#include "observe/metrics.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/version.h"

struct writer {
    struct text_buffer *text;
    bool open;
};

/* --- Families and samples --- */

enum kind { GAUGE, COUNTER, HISTOGRAM, INFO };

/* name: without "_total" or "_info"; it ends in its unit, if it has one. */
static void declare(const struct writer *to, enum kind kind, const char *name, const char *unit, const char *help)
{
    static const char *const types[] = {"gauge", "counter", "histogram", "info"};
    const char *suffix = to->open || kind == GAUGE || kind == HISTOGRAM ? "" : kind == COUNTER ? "_total" : "_info";
    text_buffer_add(to->text, "# TYPE %s%s %s\n", name, suffix, kind == INFO && !to->open ? "gauge" : types[kind]);
    if (to->open && unit[0] != '\0') {
        text_buffer_add(to->text, "# UNIT %s %s\n", name, unit);
    }
    text_buffer_add(to->text, "# HELP %s%s %s\n", name, suffix, help);
}

static void add_value(const struct writer *to, double value)
{
    if (isnan(value)) {
        text_buffer_add(to->text, " NaN\n");
    } else if (isinf(value)) {
        text_buffer_add(to->text, value > 0 ? " +Inf\n" : " -Inf\n");
    } else {
        text_buffer_add(to->text, " %.15g\n", value);
    }
}

static void one(const struct writer *to, enum kind kind, const char *name, const char *unit, double value,
                const char *help)
{
    declare(to, kind, name, unit, help);
    text_buffer_add(to->text, "%s%s", name, kind == COUNTER ? "_total" : "");
    add_value(to, value);
}

/* The same for what may be unknown: then there is no such family. */
static void known(const struct writer *to, const char *name, const char *unit, double value, const char *help)
{
    if (!isnan(value)) {
        one(to, GAUGE, name, unit, value, help);
    }
}

/* A label's value: quotes, backslashes and ends of lines are escaped in both formats. */
static void add_label(const struct writer *to, const char *name, const char *value, char before)
{
    text_buffer_add(to->text, "%c%s=\"", before, name);
    for (; *value != '\0'; value++) {
        if (*value == '"' || *value == '\\') {
            text_buffer_add(to->text, "\\%c", *value);
        } else {
            text_buffer_add(to->text, "%c", *value == '\n' ? ' ' : *value);
        }
    }
    text_buffer_add(to->text, "\"");
}

/* --- The families --- */

/* task: -1: none. */
static void add_build(const struct writer *to, const char *role, int task_index)
{
    char task[16];
    snprintf(task, sizeof task, "%d", task_index);
    declare(to, INFO, "trainer_build", "", "Version and role of this process.");
    text_buffer_add(to->text, "trainer_build_info");
    add_label(to, "version", version_trainer(), '{');
    add_label(to, "role", role, ',');
    if (task_index >= 0) {
        add_label(to, "task", task, ',');
    }
    text_buffer_add(to->text, "} 1\n");
}

static void add_progress(const struct writer *to, const struct board *board, const struct board_numbers *numbers)
{
    one(to, GAUGE, "trainer_global_step", "", (double)numbers->global_step, "Global step of the model.");
    known(to, "trainer_last_step", "", numbers->last_step < 0 ? (double)NAN : (double)numbers->last_step,
          "Global step that training ends at.");
    one(to, GAUGE, "trainer_epoch", "", numbers->epoch, "Passes over the training set so far.");
    one(to, COUNTER, "trainer_steps", "", (double)numbers->steps, "Steps computed by this process.");
    one(to, GAUGE, "trainer_examples", "", (double)numbers->examples,
        "Examples that the model has been trained on since the beginning of the run.");
    one(to, GAUGE, "trainer_steps_per_second", "", board->steps_per_s,
        "Global steps per second, over the last ten seconds.");
    known(to, "trainer_loss", "", board->loss, "Mean training loss of the last second that had steps.");
    one(to, GAUGE, "trainer_learning_rate", "", numbers->learning_rate, "Learning rate of the last step.");
    one(to, GAUGE, "trainer_generation", "", numbers->generation,
        "Generation of a cluster's model; each restore begins a new one.");
    known(to, "trainer_config_version", "", numbers->config_version < 0 ? (double)NAN : (double)numbers->config_version,
          "Version of the config in force.");
}

static void add_step_times(const struct writer *to, const struct board_numbers *numbers)
{
    uint64_t below = 0;
    declare(to, HISTOGRAM, "trainer_step_seconds", "seconds",
            "Duration of this process's steps; steps computed in one call count with their mean.");
    for (int i = 0; i < BOARD_STEP_BUCKETS; i++) {
        below += numbers->step_times[i];
        if (i < BOARD_STEP_BUCKETS - 1) {
            text_buffer_add(to->text, "trainer_step_seconds_bucket{le=\"%g%s\"} %llu\n", board_step_bounds[i],
                            to->open && board_step_bounds[i] >= 1 ? ".0" : "", (unsigned long long)below);
        } else {
            text_buffer_add(to->text, "trainer_step_seconds_bucket{le=\"+Inf\"} %llu\n", (unsigned long long)below);
        }
    }
    text_buffer_add(to->text, "trainer_step_seconds_sum %.9g\n", numbers->step_s);
    text_buffer_add(to->text, "trainer_step_seconds_count %llu\n", (unsigned long long)below);
}

static void add_validations(const struct writer *to, const struct board_numbers *numbers)
{
    one(to, COUNTER, "trainer_validations", "", (double)numbers->validations, "Validations done.");
    if (numbers->metric_count > 0) {
        declare(to, GAUGE, "trainer_metric", "", "Results of the last validation, by metric.");
        for (int i = 0; i < numbers->metric_count; i++) {
            text_buffer_add(to->text, "trainer_metric");
            add_label(to, "name", numbers->metrics[i].name, '{');
            text_buffer_add(to->text, "}");
            add_value(to, numbers->metrics[i].value);
        }
    }
    if (numbers->best_step >= 0) {
        one(to, GAUGE, "trainer_best_step", "", (double)numbers->best_step, "Step of the best validation.");
        one(to, GAUGE, "trainer_best_metric", "", numbers->best_value, "Result of that validation by best_metric.");
    }
}

static void add_state(const struct writer *to, const struct board *board, const struct board_numbers *numbers)
{
    const bool waits = numbers->waiting_for[0] != '\0';
    const double waits_s = waits ? board->before.time_s - numbers->waiting_since_s : 0;
    declare(to, GAUGE, "trainer_state", "", "1 for the current state of this process, 0 for the others.");
    for (int state = BOARD_STARTING; state <= BOARD_FAILED; state++) {
        text_buffer_add(to->text, "trainer_state{state=\"%s\"} %d\n", board_state_name((enum board_state)state),
                        (int)numbers->state == state);
    }
    one(to, GAUGE, "trainer_waiting_seconds", "seconds", waits_s > 0 ? waits_s : 0,
        "How long this process has been waiting for others; 0: it is not waiting.");
    if (waits) {
        declare(to, GAUGE, "trainer_waiting", "", "1 while this process is waiting; the label says for whom.");
        text_buffer_add(to->text, "trainer_waiting");
        add_label(to, "for", numbers->waiting_for, '{');
        text_buffer_add(to->text, "} 1\n");
    }
    one(to, COUNTER, "trainer_waited_seconds", "seconds", numbers->waited_s + (waits_s > 0 ? waits_s : 0),
        "Time spent waiting for others.");
}

static void add_network(const struct writer *to, const struct board_numbers *numbers)
{
    one(to, COUNTER, "trainer_received_bytes", "bytes", (double)numbers->bytes_in, "Bytes received from members.");
    one(to, COUNTER, "trainer_sent_bytes", "bytes", (double)numbers->bytes_out, "Bytes sent to members.");
    one(to, COUNTER, "trainer_retries", "", (double)numbers->retries, "Requests that had to be retried.");
    one(to, COUNTER, "trainer_pushes_applied", "", (double)numbers->pushed, "Gradients that this ps has applied.");
    declare(to, COUNTER, "trainer_pushes_dropped", "", "Gradients that were not used: too late, or not finite.");
    text_buffer_add(to->text, "trainer_pushes_dropped_total{cause=\"stale\"}");
    add_value(to, (double)numbers->stale);
    text_buffer_add(to->text, "trainer_pushes_dropped_total{cause=\"not_finite\"}");
    add_value(to, (double)numbers->not_finite);
    if (numbers->buffer_size > 0) {
        one(to, GAUGE, "trainer_buffer_size", "", numbers->buffer_size, "Differences per step.");
        one(to, GAUGE, "trainer_buffer_fill", "", numbers->buffered, "Differences buffered for the next step.");
        known(to, "trainer_buffer_staleness", "", numbers->buffer_staleness,
              "Mean age, in steps, of the differences in the last step.");
    }
}

static void add_checkpoints(const struct writer *to, const struct board_numbers *numbers)
{
    one(to, COUNTER, "trainer_checkpoints", "", (double)numbers->saved, "Checkpoints written by this process.");
    one(to, COUNTER, "trainer_checkpoint_failures", "", (double)numbers->saves_failed,
        "Checkpoints that could not be written.");
    if (numbers->saved > 0) {
        one(to, GAUGE, "trainer_checkpoint_step", "", (double)numbers->saved_step, "Step of the last checkpoint.");
        one(to, GAUGE, "trainer_checkpoint_timestamp_seconds", "seconds", numbers->saved_time_s,
            "Time of the last checkpoint, in seconds since 1970.");
        one(to, GAUGE, "trainer_checkpoint_write_seconds", "seconds", numbers->saved_took_s,
            "Time taken to write the last checkpoint.");
    }
}

/* --- Members --- */

static int count_members(const struct board *board, const char *role, const char *state)
{
    int count = 0;
    for (int i = 0; i < board->member_count; i++) {
        count += strcmp(board->members[i].role, role) == 0 && strcmp(board->members[i].state, state) == 0;
    }
    return count;
}

static bool is_first_of_kind(const struct board *board, int index)
{
    for (int i = 0; i < index; i++) {
        if (strcmp(board->members[i].role, board->members[index].role) == 0 &&
            strcmp(board->members[i].state, board->members[index].state) == 0) {
            return false;
        }
    }
    return true;
}

static void add_of_member(const struct writer *to, const char *name, const struct board_member *member, double value)
{
    char task[16];
    snprintf(task, sizeof task, "%d", member->task);
    text_buffer_add(to->text, "%s", name);
    add_label(to, "role", member->role, '{');
    add_label(to, "task", task, ',');
    text_buffer_add(to->text, "}");
    add_value(to, value);
}

static void add_members(const struct writer *to, const struct board *board)
{
    int missing = 0;
    declare(to, GAUGE, "trainer_members", "", "Members by role and state, as seen by this process.");
    for (int i = 0; i < board->member_count; i++) {
        const struct board_member *member = &board->members[i];
        missing += member->is_missing;
        if (is_first_of_kind(board, i)) {
            text_buffer_add(to->text, "trainer_members");
            add_label(to, "role", member->role, '{');
            add_label(to, "state", member->state, ',');
            text_buffer_add(to->text, "}");
            add_value(to, count_members(board, member->role, member->state));
        }
    }
    one(to, GAUGE, "trainer_members_missing", "", missing, "Members that are absent or lost.");
    declare(to, GAUGE, "trainer_member_silence_seconds", "seconds",
            "Time since a member last answered: the age of its lease.");
    for (int i = 0; i < board->member_count; i++) {
        if (board->members[i].silent_ms >= 0) {
            add_of_member(to, "trainer_member_silence_seconds", &board->members[i],
                          (double)board->members[i].silent_ms / 1e3);
        }
    }
    declare(to, GAUGE, "trainer_member_staleness", "", "Steps between a worker's last pull and its push.");
    for (int i = 0; i < board->member_count; i++) {
        add_of_member(to, "trainer_member_staleness", &board->members[i], board->members[i].staleness);
    }
}

static void add_difference(const struct writer *to, const struct board *board, const char *name, const char *help,
                           size_t offset)
{
    declare(to, GAUGE, name, "", help);
    for (int i = 0; i < board->member_count; i++) {
        const char *rounds = (const char *)&board->members[i].rounds;
        const double value = *(const double *)(const void *)(rounds + offset);
        if (board->members[i].rounds.asked > 0 && !isnan(value)) {
            add_of_member(to, name, &board->members[i], value);
        }
    }
}

/* For workers that take part in rounds; without any, no such families. */
static void add_rounds(const struct writer *to, const struct board *board)
{
    static const struct {
        const char *name, *help;
        size_t offset;
    } counters[] = {
        {"trainer_worker_rounds_asked", "Rounds that a worker was selected for.", offsetof(struct board_rounds, asked)},
        {"trainer_worker_rounds_counted", "Rounds that a worker's difference was part of.",
         offsetof(struct board_rounds, counted)},
        {"trainer_worker_rounds_late", "Differences that arrived after their round was complete.",
         offsetof(struct board_rounds, late)},
        {"trainer_worker_rounds_missed", "Rounds that a worker was selected for but that were made without it.",
         offsetof(struct board_rounds, missed)},
    };
    bool any = false;
    for (int i = 0; i < board->member_count; i++) {
        any = any || board->members[i].rounds.asked > 0;
    }
    if (!any) {
        return;
    }
    add_difference(to, board, "trainer_worker_difference_cosine",
                   "Cosine similarity of a worker's last difference to its round's result.",
                   offsetof(struct board_rounds, cosine));
    add_difference(to, board, "trainer_worker_difference_norm", "Norm of a worker's last difference.",
                   offsetof(struct board_rounds, norm));
    for (size_t k = 0; k < sizeof counters / sizeof counters[0]; k++) {
        char name[64];
        snprintf(name, sizeof name, "%s_total", counters[k].name);
        declare(to, COUNTER, counters[k].name, "", counters[k].help);
        for (int i = 0; i < board->member_count; i++) {
            const struct board_rounds *rounds = &board->members[i].rounds;
            if (rounds->asked > 0) {
                add_of_member(to, name, &board->members[i],
                              (double)*(const int64_t *)(const void *)((const char *)rounds + counters[k].offset));
            }
        }
    }
}

/* For workers that validate on their own rows; without any, these families are absent. */
static void add_own(const struct writer *to, const struct board *board)
{
    static const struct {
        const char *name, *help;
    } families[] = {
        {"trainer_worker_validation_score", "Score on a worker's own rows, by train.best_metric."},
        {"trainer_worker_validation_examples", "Number of a worker's own rows that the model was validated on."},
        {"trainer_worker_validation_worst", "1 if the worker is in the tenth with the worst scores."}};
    bool any = false;
    for (int i = 0; i < board->member_count; i++) {
        any = any || board->members[i].own.examples > 0;
    }
    for (size_t k = 0; any && k < sizeof families / sizeof families[0]; k++) {
        declare(to, GAUGE, families[k].name, "", families[k].help);
        for (int i = 0; i < board->member_count; i++) {
            const struct board_own *own = &board->members[i].own;
            const double values[] = {own->score, (double)own->examples, own->is_worst};
            if (own->examples > 0 && !isnan(values[k])) {
                add_of_member(to, families[k].name, &board->members[i], values[k]);
            }
        }
    }
}

static void add_rollout(const struct writer *to, const struct board_rollout *rollout)
{
    one(to, GAUGE, "trainer_rollout_under_way", "", rollout->is_under_way, "1 while a rollout is in progress.");
    if (rollout->is_under_way) {
        one(to, GAUGE, "trainer_rollout_version", "", (double)rollout->version, "Version that is being rolled out.");
        declare(to, GAUGE, "trainer_rollout_phase", "", "1 for the current phase of the rollout.");
        text_buffer_add(to->text, "trainer_rollout_phase");
        add_label(to, "phase", rollout->phase, '{');
        text_buffer_add(to->text, "} 1\n");
    }
}

/* --- The process and its server --- */

static void add_process(const struct writer *to, const struct process_use *use, double started_s)
{
    one(to, COUNTER, "process_cpu_seconds", "seconds", use->cpu_s, "CPU time, user and system.");
    one(to, GAUGE, "process_resident_memory_bytes", "bytes", (double)use->resident_bytes, "Resident memory.");
    one(to, GAUGE, "process_virtual_memory_bytes", "bytes", (double)use->virtual_bytes, "Virtual memory.");
    one(to, GAUGE, "process_start_time_seconds", "seconds", started_s,
        "Start time of the process, in seconds since 1970.");
    known(to, "process_open_fds", "", use->descriptors < 0 ? (double)NAN : use->descriptors, "Open file descriptors.");
    known(to, "process_max_fds", "", use->most_descriptors < 0 ? (double)NAN : use->most_descriptors,
          "Limit of open file descriptors.");
    known(to, "process_threads", "", use->threads < 0 ? (double)NAN : use->threads, "Threads.");
    if (use->gpus > 0) {
        one(to, GAUGE, "trainer_gpus", "", use->gpus, "GPUs in use.");
        one(to, COUNTER, "trainer_gpu_busy_seconds", "seconds", use->gpu_s,
            "Time that GPUs were computing, summed over all GPUs.");
    }
}

static void add_server(const struct writer *to, const struct http_server *server)
{
    struct http_counts counts;
    http_server_counts(server, &counts);
    one(to, COUNTER, "trainer_http_requests", "", (double)counts.requests, "HTTP requests answered.");
    one(to, COUNTER, "trainer_http_refused", "", (double)counts.refused,
        "HTTP requests answered with status 400 or above.");
    one(to, COUNTER, "trainer_http_received_bytes", "bytes", (double)counts.bytes_in,
        "Bytes received in HTTP requests.");
    one(to, COUNTER, "trainer_http_sent_bytes", "bytes", (double)counts.bytes_out, "Bytes sent in HTTP responses.");
    one(to, GAUGE, "trainer_http_connections", "", counts.connections, "Open HTTP connections.");
    one(to, COUNTER, "trainer_http_evicted", "", (double)counts.evicted, "HTTP connections closed to make room.");
    one(to, GAUGE, "trainer_http_memory_bytes", "bytes", (double)counts.memory,
        "Memory of HTTP requests and responses in progress.");
    one(to, GAUGE, "trainer_http_streams", "", counts.streams, "Open event streams (live pages).");
}

void metrics_write(struct text_buffer *text, struct board *board, const struct http_server *server, bool open)
{
    const struct writer to = {text, open};
    struct board_numbers numbers;
    board_copy(board, &numbers);
    add_build(&to, board->role, board->task);
    add_progress(&to, board, &numbers);
    add_step_times(&to, &numbers);
    add_validations(&to, &numbers);
    add_state(&to, board, &numbers);
    add_network(&to, &numbers);
    add_checkpoints(&to, &numbers);
    add_members(&to, board);
    add_rounds(&to, board);
    add_own(&to, board);
    add_rollout(&to, &board->rollout);
    add_process(&to, &board->use, board->started_s);
    if (server) {
        add_server(&to, server);
    }
    if (open) {
        text_buffer_add(text, "# EOF\n");
    }
}

void metrics_write_process(struct text_buffer *text, const char *role, double started_s,
                           const struct http_server *server, bool open)
{
    const struct writer to = {text, open};
    struct process_use use;
    process_measure(&use);
    add_build(&to, role, -1);
    add_process(&to, &use, started_s);
    add_server(&to, server);
}
