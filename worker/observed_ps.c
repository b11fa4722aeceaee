/* A ps reports plain values (ps/server.h); here they become the numbers of its board. */
#include "worker/observed_ps.h"

#include <math.h>
#include <stdio.h>

#include "observe/observe.h"

static void show_numbers(struct board *board, const struct server_report *report)
{
    static const enum board_state states[] = {[JOB_WAITING] = BOARD_WAITING,
                                              [JOB_RESTORING] = BOARD_STARTING,
                                              [JOB_TRAINING] = BOARD_TRAINING,
                                              [JOB_DONE] = BOARD_DONE,
                                              [JOB_FAILED] = BOARD_FAILED};
    struct board_numbers *numbers = board_lock(board);
    numbers->state = states[report->state];
    numbers->generation = (int)report->generation;
    numbers->global_step = report->global_step < 0 ? 0 : report->global_step;
    numbers->last_step = report->last_step;
    numbers->pushed = report->pushes;
    numbers->not_finite = report->not_finite;
    numbers->stale = report->stale;
    numbers->buffer_size = report->buffer_size;
    numbers->buffered = report->buffered;
    numbers->buffer_staleness = report->buffer_staleness;
    numbers->bytes_in = report->bytes_in;
    numbers->bytes_out = report->bytes_out;
    numbers->config_version = report->config_version;
    numbers->certificate_until_s = report->certificate_until_s;
    snprintf(numbers->digest, sizeof numbers->digest, "%s", report->digest);
    snprintf(numbers->engine, sizeof numbers->engine, "parameter server");
    board_unlock(board);
    if (!isnan(report->loss)) {
        board->loss = (double)report->loss;
    }
}

static void show(void *context, struct board *board)
{
    struct server *server = context;
    if (!board_begin_members(board, server_most_members(server))) {
        return;
    }
    struct server_report report = {.members = board->members, .rollout = &board->rollout};
    server_report(server, &report);
    board->member_count = report.member_count;
    show_numbers(board, &report);
    observe_waiting(report.waits);
}

static void begin(void *context, struct server *server)
{
    (void)context;
    observe_source(show, server);
}

static void end(void *context)
{
    (void)context;
    observe_source(NULL, NULL);
}

static void alive(void *context)
{
    (void)context;
    observe_alive();
}

const struct server_observer *observed_ps(void)
{
    static const struct server_observer observer = {.begin = begin, .end = end, .alive = alive};
    return observe_is_on() ? &observer : NULL;
}
