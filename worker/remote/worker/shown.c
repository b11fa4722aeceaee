/* What the chief shows of the fleet, to who watches it: what the ps say of all members. */
#include "base/log.h"
#include "observe/observe.h"
#include "worker/remote/worker/internal.h"

static void fill(void *context, struct board *board)
{
    struct remote_worker *worker = context;
    live_config_show(worker->live, &board->rollout);
    if (!board_begin_members(board, fleet_watch_most(worker->watch))) {
        return;
    }
    board->member_count = fleet_watch_members(worker->watch, board->members, board->member_count);
}

void worker_show(struct remote_worker *worker)
{
    struct error error;
    if (!worker->is_chief || !observe_is_on()) {
        return;
    }
    if (!fleet_watch_create(&worker->watch, worker->launched, &worker->identity, &error)) {
        log_warning("the page of this worker shows only itself: %s", error.text);
        return;
    }
    observe_source(fill, worker);
}

void worker_hide(struct remote_worker *worker)
{
    if (worker->watch) {
        observe_source(NULL, NULL);
        fleet_watch_destroy(worker->watch);
        worker->watch = NULL;
    }
}
