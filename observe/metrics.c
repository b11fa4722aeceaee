/*
 * The two formats differ in the names of counter families, in units and in the end marker. Names follow the conventions
 * of both: base units, and "_total" for counters.
 */
#include "observe/metrics.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/version.h"

/* --- The formats --- */

void metrics_family(const struct metrics *to, enum metric_kind kind, const char *name, const char *unit,
                    const char *help)
{
    static const char *const types[] = {"gauge", "counter", "histogram", "info"};
    const bool is_info = kind == METRIC_INFO;
    const char *suffix = to->open ? "" : kind == METRIC_COUNTER ? "_total" : is_info ? "_info" : "";
    text_buffer_add(to->text, "# TYPE %s%s %s\n", name, suffix, is_info && !to->open ? "gauge" : types[kind]);
    if (to->open && unit[0] != '\0') {
        text_buffer_add(to->text, "# UNIT %s %s\n", name, unit);
    }
    text_buffer_add(to->text, "# HELP %s%s %s\n", name, suffix, help);
}

static void add_value(const struct metrics *to, double value)
{
    if (isnan(value)) {
        text_buffer_add(to->text, " NaN\n");
    } else if (isinf(value)) {
        text_buffer_add(to->text, value > 0 ? " +Inf\n" : " -Inf\n");
    } else {
        text_buffer_add(to->text, " %.15g\n", value);
    }
}

/* Quotes, backslashes and ends of lines are escaped in both formats. */
static void add_label(const struct metrics *to, const char *name, const char *value, char before)
{
    text_buffer_add(to->text, "%c%s=\"", before, name);
    for (; *value != '\0'; value++) {
        const char escaped[] = {'\\', *value == '\n' ? 'n' : *value};
        const bool needs = *value == '"' || *value == '\\' || *value == '\n';
        text_buffer_add_bytes(to->text, needs ? escaped : value, needs ? 2 : 1);
    }
    text_buffer_add(to->text, "\"");
}

void metrics_sample(const struct metrics *to, enum metric_kind kind, const char *name, double value, ...)
{
    va_list labels;
    bool has_labels = false;
    text_buffer_add(to->text, "%s%s", name, kind == METRIC_COUNTER ? "_total" : kind == METRIC_INFO ? "_info" : "");
    va_start(labels, value);
    for (const char *label; (label = va_arg(labels, const char *));) {
        add_label(to, label, va_arg(labels, const char *), has_labels ? ',' : '{');
        has_labels = true;
    }
    va_end(labels);
    text_buffer_add(to->text, has_labels ? "}" : "");
    add_value(to, value);
}

void metrics_one(const struct metrics *to, enum metric_kind kind, const char *name, const char *unit, double value,
                 const char *help)
{
    metrics_family(to, kind, name, unit, help);
    metrics_sample(to, kind, name, value, NULL);
}

void metrics_histogram(const struct metrics *to, const char *name, const char *label, const char *value,
                       const double *bounds, const uint64_t *counts, int count, double sum)
{
    char part[96];
    uint64_t below = 0;
    for (int i = 0; i < count; i++) {
        char bound[32] = "+Inf";
        below += counts[i];
        if (i < count - 1) { /* OpenMetrics wants a point in each */
            snprintf(bound, sizeof bound, "%g%s", bounds[i],
                     to->open && bounds[i] == floor(bounds[i]) && bounds[i] < 1e6 ? ".0" : "");
        }
        snprintf(part, sizeof part, "%s_bucket", name);
        metrics_sample(to, METRIC_HISTOGRAM, part, (double)below, label ? label : "le", label ? value : bound,
                       label ? "le" : NULL, bound, NULL);
    }
    snprintf(part, sizeof part, "%s_sum", name);
    metrics_sample(to, METRIC_HISTOGRAM, part, sum, label, value, NULL);
    snprintf(part, sizeof part, "%s_count", name);
    metrics_sample(to, METRIC_HISTOGRAM, part, (double)below, label, value, NULL);
}

/* For what may be unknown: then there is no such family. */
static void known(const struct metrics *to, const char *name, const char *unit, double value, const char *help)
{
    if (!isnan(value)) {
        metrics_one(to, METRIC_GAUGE, name, unit, value, help);
    }
}

/* --- The families --- */

/* task: -1: none. */
static void add_build(const struct metrics *to, const char *role, int task_index)
{
    char task[16];
    snprintf(task, sizeof task, "%d", task_index);
    metrics_family(to, METRIC_INFO, "trainer_build", "", "Version and role of this process.");
    metrics_sample(to, METRIC_INFO, "trainer_build", 1, "version", version_trainer(), "role", role,
                   task_index >= 0 ? "task" : NULL, task, NULL);
}

static void add_progress(const struct metrics *to, const struct board *board, const struct board_numbers *numbers)
{
    metrics_one(to, METRIC_GAUGE, "trainer_global_step", "", (double)numbers->global_step, "Global step of the model.");
    known(to, "trainer_last_step", "", numbers->last_step < 0 ? (double)NAN : (double)numbers->last_step,
          "Global step that training ends at.");
    metrics_one(to, METRIC_GAUGE, "trainer_epoch", "", numbers->epoch, "Passes over the training set so far.");
    metrics_one(to, METRIC_COUNTER, "trainer_steps", "", (double)numbers->steps, "Steps computed by this process.");
    metrics_one(to, METRIC_GAUGE, "trainer_examples", "", (double)numbers->examples,
                "Examples that the model has been trained on since the beginning of the run.");
    metrics_one(to, METRIC_GAUGE, "trainer_steps_per_second", "", board->steps_per_s,
                "Global steps per second, over the last ten seconds.");
    known(to, "trainer_loss", "", board->loss, "Mean training loss of the last second that had steps.");
    metrics_one(to, METRIC_GAUGE, "trainer_learning_rate", "", numbers->learning_rate,
                "Learning rate of the last step.");
    if (numbers->certificate_until_s > 0) {
        metrics_one(to, METRIC_GAUGE, "trainer_certificate_left_seconds", "seconds",
                    numbers->certificate_until_s - clock_wall_s(), "Time until this member's certificate expires.");
    }
    metrics_one(to, METRIC_GAUGE, "trainer_generation", "", numbers->generation,
                "Generation of a cluster's model; each restore begins a new one.");
    known(to, "trainer_config_version", "", numbers->config_version < 0 ? (double)NAN : (double)numbers->config_version,
          "Version of the config in force.");
}

static void add_step_times(const struct metrics *to, const struct board_numbers *numbers)
{
    metrics_family(to, METRIC_HISTOGRAM, "trainer_step_seconds", "seconds",
                   "Duration of this process's steps; steps computed in one call count with their mean.");
    metrics_histogram(to, "trainer_step_seconds", NULL, NULL, board_step_bounds, numbers->step_times,
                      BOARD_STEP_BUCKETS, numbers->step_s);
}

static void add_validations(const struct metrics *to, const struct board_numbers *numbers)
{
    metrics_one(to, METRIC_COUNTER, "trainer_validations", "", (double)numbers->validations, "Validations done.");
    if (numbers->metric_count > 0) {
        metrics_family(to, METRIC_GAUGE, "trainer_metric", "", "Results of the last validation, by metric.");
        for (int i = 0; i < numbers->metric_count; i++) {
            metrics_sample(to, METRIC_GAUGE, "trainer_metric", numbers->metrics[i].value, "name",
                           numbers->metrics[i].name, NULL);
        }
    }
    if (numbers->best_step >= 0) {
        metrics_one(to, METRIC_GAUGE, "trainer_best_step", "", (double)numbers->best_step,
                    "Step of the best validation.");
        metrics_one(to, METRIC_GAUGE, "trainer_best_metric", "", numbers->best_value,
                    "Result of that validation by best_metric.");
    }
}

static void add_state(const struct metrics *to, const struct board *board, const struct board_numbers *numbers)
{
    const bool waits = numbers->waiting_for[0] != '\0';
    const double waits_s = waits ? board->before.time_s - numbers->waiting_since_s : 0;
    metrics_family(to, METRIC_GAUGE, "trainer_state", "", "1 for the current state of this process, 0 for the others.");
    for (int state = BOARD_STARTING; state <= BOARD_FAILED; state++) {
        metrics_sample(to, METRIC_GAUGE, "trainer_state", (int)numbers->state == state, "state",
                       board_state_name((enum board_state)state), NULL);
    }
    metrics_one(to, METRIC_GAUGE, "trainer_waiting_seconds", "seconds", waits_s > 0 ? waits_s : 0,
                "How long this process has been waiting for others; 0: it is not waiting.");
    if (waits) {
        metrics_family(to, METRIC_GAUGE, "trainer_waiting", "",
                       "1 while this process is waiting; the label says for whom.");
        metrics_sample(to, METRIC_GAUGE, "trainer_waiting", 1, "for", numbers->waiting_for, NULL);
    }
    metrics_one(to, METRIC_COUNTER, "trainer_waited_seconds", "seconds",
                numbers->waited_s + (waits_s > 0 ? waits_s : 0), "Time spent waiting for others.");
}

static void add_network(const struct metrics *to, const struct board_numbers *numbers)
{
    metrics_one(to, METRIC_COUNTER, "trainer_received_bytes", "bytes", (double)numbers->bytes_in,
                "Bytes received from members.");
    metrics_one(to, METRIC_COUNTER, "trainer_sent_bytes", "bytes", (double)numbers->bytes_out,
                "Bytes sent to members.");
    metrics_one(to, METRIC_COUNTER, "trainer_retries", "", (double)numbers->retries,
                "Requests that had to be retried.");
    metrics_one(to, METRIC_COUNTER, "trainer_pushes_applied", "", (double)numbers->pushed,
                "Gradients that this ps has applied.");
    metrics_family(to, METRIC_COUNTER, "trainer_pushes_dropped", "",
                   "Gradients that were not used: too late, or not finite.");
    metrics_sample(to, METRIC_COUNTER, "trainer_pushes_dropped", (double)numbers->stale, "cause", "stale", NULL);
    metrics_sample(to, METRIC_COUNTER, "trainer_pushes_dropped", (double)numbers->not_finite, "cause", "not_finite",
                   NULL);
    if (numbers->buffer_size > 0) {
        metrics_one(to, METRIC_GAUGE, "trainer_buffer_size", "", numbers->buffer_size, "Differences per step.");
        metrics_one(to, METRIC_GAUGE, "trainer_buffer_fill", "", numbers->buffered,
                    "Differences buffered for the next step.");
        known(to, "trainer_buffer_staleness", "", numbers->buffer_staleness,
              "Mean age, in steps, of the differences in the last step.");
    }
}

static void add_checkpoints(const struct metrics *to, const struct board_numbers *numbers)
{
    metrics_one(to, METRIC_COUNTER, "trainer_checkpoints", "", (double)numbers->saved,
                "Checkpoints written by this process.");
    metrics_one(to, METRIC_COUNTER, "trainer_checkpoint_failures", "", (double)numbers->saves_failed,
                "Checkpoints that could not be written.");
    if (numbers->saved > 0) {
        metrics_one(to, METRIC_GAUGE, "trainer_checkpoint_step", "", (double)numbers->saved_step,
                    "Step of the last checkpoint.");
        metrics_one(to, METRIC_GAUGE, "trainer_checkpoint_timestamp_seconds", "seconds", numbers->saved_time_s,
                    "Time of the last checkpoint, in seconds since 1970.");
        metrics_one(to, METRIC_GAUGE, "trainer_checkpoint_write_seconds", "seconds", numbers->saved_took_s,
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

static void add_of_member(const struct metrics *to, enum metric_kind kind, const char *name,
                          const struct board_member *member, double value)
{
    char task[16];
    snprintf(task, sizeof task, "%d", member->task);
    metrics_sample(to, kind, name, value, "role", member->role, "task", task, NULL);
}

static void add_link(const struct metrics *to, const struct board_member *member)
{
    char task[16];
    if (member->link[0] != '\0') {
        snprintf(task, sizeof task, "%d", member->task);
        metrics_sample(to, METRIC_GAUGE, "trainer_member_link", 1, "role", member->role, "task", task, "link",
                       member->link, NULL);
    }
}

static void add_members(const struct metrics *to, const struct board *board)
{
    int missing = 0;
    metrics_family(to, METRIC_GAUGE, "trainer_members", "", "Members by role and state, as seen by this process.");
    for (int i = 0; i < board->member_count; i++) {
        const struct board_member *member = &board->members[i];
        missing += member->is_missing;
        if (is_first_of_kind(board, i)) {
            metrics_sample(to, METRIC_GAUGE, "trainer_members", count_members(board, member->role, member->state),
                           "role", member->role, "state", member->state, NULL);
        }
    }
    metrics_one(to, METRIC_GAUGE, "trainer_members_missing", "", missing, "Members that are absent or lost.");
    metrics_family(to, METRIC_GAUGE, "trainer_member_silence_seconds", "seconds",
                   "Time since a member last answered: the age of its lease.");
    for (int i = 0; i < board->member_count; i++) {
        if (board->members[i].silent_ms >= 0) {
            add_of_member(to, METRIC_GAUGE, "trainer_member_silence_seconds", &board->members[i],
                          (double)board->members[i].silent_ms / 1e3);
        }
    }
    metrics_family(to, METRIC_GAUGE, "trainer_member_staleness", "",
                   "Steps between a worker's last pull and its push.");
    for (int i = 0; i < board->member_count; i++) {
        add_of_member(to, METRIC_GAUGE, "trainer_member_staleness", &board->members[i], board->members[i].staleness);
    }
    metrics_family(to, METRIC_GAUGE, "trainer_member_link", "",
                   "1: how a worker's gradients come, as shared memory, TLS or plain text.");
    for (int i = 0; i < board->member_count; i++) {
        add_link(to, &board->members[i]);
    }
}

static void add_difference(const struct metrics *to, const struct board *board, const char *name, const char *help,
                           size_t offset)
{
    metrics_family(to, METRIC_GAUGE, name, "", help);
    for (int i = 0; i < board->member_count; i++) {
        const char *rounds = (const char *)&board->members[i].rounds;
        const double value = *(const double *)(const void *)(rounds + offset);
        if (board->members[i].rounds.asked > 0 && !isnan(value)) {
            add_of_member(to, METRIC_GAUGE, name, &board->members[i], value);
        }
    }
}

/* For workers that take part in rounds; without any, no such families. */
static void add_rounds(const struct metrics *to, const struct board *board)
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
        metrics_family(to, METRIC_COUNTER, counters[k].name, "", counters[k].help);
        for (int i = 0; i < board->member_count; i++) {
            const struct board_rounds *rounds = &board->members[i].rounds;
            if (rounds->asked > 0) {
                add_of_member(to, METRIC_COUNTER, counters[k].name, &board->members[i],
                              (double)*(const int64_t *)(const void *)((const char *)rounds + counters[k].offset));
            }
        }
    }
}

/* For workers that validate on their own rows; without any, these families are absent. */
static void add_own(const struct metrics *to, const struct board *board)
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
        metrics_family(to, METRIC_GAUGE, families[k].name, "", families[k].help);
        for (int i = 0; i < board->member_count; i++) {
            const struct board_own *own = &board->members[i].own;
            const double values[] = {own->score, (double)own->examples, own->is_worst};
            if (own->examples > 0 && !isnan(values[k])) {
                add_of_member(to, METRIC_GAUGE, families[k].name, &board->members[i], values[k]);
            }
        }
    }
}

static void add_rollout(const struct metrics *to, const struct board_rollout *rollout)
{
    metrics_one(to, METRIC_GAUGE, "trainer_rollout_under_way", "", rollout->is_under_way,
                "1 while a rollout is in progress.");
    if (rollout->is_under_way) {
        metrics_one(to, METRIC_GAUGE, "trainer_rollout_version", "", (double)rollout->version,
                    "Version that is being rolled out.");
        metrics_family(to, METRIC_GAUGE, "trainer_rollout_phase", "", "1 for the current phase of the rollout.");
        metrics_sample(to, METRIC_GAUGE, "trainer_rollout_phase", 1, "phase", rollout->phase, NULL);
    }
}

/* --- The process and its server --- */

static void add_process(const struct metrics *to, const struct process_use *use, double started_s)
{
    metrics_one(to, METRIC_COUNTER, "process_cpu_seconds", "seconds", use->cpu_s, "CPU time, user and system.");
    metrics_one(to, METRIC_GAUGE, "process_resident_memory_bytes", "bytes", (double)use->resident_bytes,
                "Resident memory.");
    metrics_one(to, METRIC_GAUGE, "process_virtual_memory_bytes", "bytes", (double)use->virtual_bytes,
                "Virtual memory.");
    metrics_one(to, METRIC_GAUGE, "process_start_time_seconds", "seconds", started_s,
                "Start time of the process, in seconds since 1970.");
    known(to, "process_open_fds", "", use->descriptors < 0 ? (double)NAN : use->descriptors, "Open file descriptors.");
    known(to, "process_max_fds", "", use->most_descriptors < 0 ? (double)NAN : use->most_descriptors,
          "Limit of open file descriptors.");
    known(to, "process_threads", "", use->threads < 0 ? (double)NAN : use->threads, "Threads.");
    if (use->gpus > 0) {
        metrics_one(to, METRIC_GAUGE, "trainer_gpus", "", use->gpus, "GPUs in use.");
        metrics_one(to, METRIC_COUNTER, "trainer_gpu_busy_seconds", "seconds", use->gpu_s,
                    "Time that GPUs were computing, summed over all GPUs.");
    }
}

static void add_server(const struct metrics *to, const struct http_server *server)
{
    struct http_counts counts;
    http_server_counts(server, &counts);
    metrics_one(to, METRIC_COUNTER, "trainer_http_requests", "", (double)counts.requests, "HTTP requests answered.");
    metrics_one(to, METRIC_COUNTER, "trainer_http_refused", "", (double)counts.refused,
                "HTTP requests answered with status 400 or above.");
    metrics_one(to, METRIC_COUNTER, "trainer_http_received_bytes", "bytes", (double)counts.bytes_in,
                "Bytes received in HTTP requests.");
    metrics_one(to, METRIC_COUNTER, "trainer_http_sent_bytes", "bytes", (double)counts.bytes_out,
                "Bytes sent in HTTP responses.");
    metrics_one(to, METRIC_GAUGE, "trainer_http_connections", "", counts.connections, "Open HTTP connections.");
    metrics_one(to, METRIC_COUNTER, "trainer_http_evicted", "", (double)counts.evicted,
                "HTTP connections closed to make room.");
    metrics_one(to, METRIC_GAUGE, "trainer_http_memory_bytes", "bytes", (double)counts.memory,
                "Memory of HTTP requests and responses in progress.");
    metrics_one(to, METRIC_GAUGE, "trainer_http_streams", "", counts.streams, "Open event streams (live pages).");
}

void metrics_write(struct text_buffer *text, struct board *board, const struct http_server *server, bool open)
{
    const struct metrics to = {text, open};
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

void metrics_write_process(const struct metrics *to, const char *role, double started_s,
                           const struct http_server *server)
{
    struct process_use use;
    process_measure(&use);
    add_build(to, role, -1);
    add_process(to, &use, started_s);
    add_server(to, server);
}
