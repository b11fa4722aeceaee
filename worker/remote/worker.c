/* The role from start to end. */
#include "worker/remote/worker.h"

#include <math.h>
#include <string.h>

#include "base/cli/command.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process/notify.h"
#include "base/process/restart.h"
#include "base/process/signals.h"
#include "base/text/address.h"
#include "base/threads.h"
#include "worker/remote/worker/internal.h"

static bool is_on(const char *text, const char *host)
{
    struct address address;
    struct error error;
    return address_parse(text, &address, &error) && strcmp(address.host, host) == 0;
}

/* Do many more members run on this machine than it has CPUs, judging by its name? */
static bool is_crowded(const struct config_cluster *cluster)
{
    enum { MEMBERS_A_CPU = 2 }; /* up to this many hardly slow each other down */
    struct address own;
    struct error error;
    int members = 0;
    if (cluster->task_index >= cluster->worker_hosts.count ||
        !address_parse(cluster->worker_hosts.items[cluster->task_index], &own, &error)) {
        return false;
    }
    for (int i = 0; i < cluster->ps_hosts.count; i++) {
        members += is_on(cluster->ps_hosts.items[i], own.host);
    }
    for (int i = 0; i < cluster->worker_hosts.count; i++) {
        members += is_on(cluster->worker_hosts.items[i], own.host);
    }
    return members > MEMBERS_A_CPU * threads_available();
}

int remote_worker_run(const struct config *config)
{
    struct remote_worker worker = {.updater = {.table = &remote_updater_table},
                                   .training = {.updater = &worker.updater, .begun_s = clock_monotonic_s()},
                                   .launched = config,
                                   .config = *config,
                                   .is_chief = config->cluster.task_index == 0,
                                   .gives_way = is_crowded(&config->cluster),
                                   .last_loss = NAN};
    struct error error;
    int status = COMMAND_FAILED;
    if (!config_check_role(config, &error)) {
        log_error("%s", error.text);
        return COMMAND_MISUSED;
    }
    signals_catch();
    if (worker_open(&worker, &error)) {
        status = training_run(&worker.training);
    } else if (signals_pending() != 0) {
        status = signals_exit_status(signals_pending());
    } else {
        log_error("%s", error.text);
    }
    if (status == RESTART_STATUS) {
        notify_restarting();
    } else {
        notify_stopping();
    }
    worker_close(&worker, status == COMMAND_DONE ? "done" : status == RESTART_STATUS ? "starts again" : "stopped");
    return status;
}
