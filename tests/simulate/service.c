/* A process that is killed, or ends with an error, starts again after some time. Unlisted workers come and go. */
#include "tests/simulate/service.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/process/restart.h"
#include "ps/job/job.h"
#include "ps/server.h"
#include "tests/simulate/fleet.h"
#include "tests/simulate/programs.h"
#include "tests/simulate/records.h"
#include "tests/simulate/setup.h"
#include "tests/simulate/world.h"
#include "tests/simulate/wrap.h"
#include "worker/remote/worker.h"

enum { MOST_VISITS = 3 };

static const double LOOKUP_S = 10; /* of a thread that may be delayed at each of its locks */

struct service service;

/* Of the unlisted ones. */
static double depart_s[WORLD_MAX_MACHINES]; /* 0: not known yet */
static int visits[WORLD_MAX_MACHINES];

/* --- Processes --- */

/* The thread of an abandoned lookup is never joined; it soon ends by itself, and leaves nothing behind. */
static void await_lookups(const struct machine *machine)
{
    const double until_s = world.now_s + LOOKUP_S;
    while (machine->thread_count > 1 && world.now_s < until_s) {
        thread_block(machine, world.now_s + 0.001);
    }
}

int service_run(struct machine *machine)
{
    struct config config = {0};
    struct error error;
    char index[16];
    struct config_setting settings[SETUP_MOST_SETTINGS + 2];
    int count;
    const struct config_setting *drawn = setup_settings(&count);
    memcpy(settings, drawn, (size_t)count * sizeof settings[0]);
    snprintf(index, sizeof index, "%d", setup_is_ps(machine) ? machine->number : machine->number - setup.ps);
    settings[count] = (struct config_setting){"job_name", setup_is_ps(machine) ? "ps" : "worker"};
    settings[count + 1] = (struct config_setting){"task_index", index};
    const struct config_setting *own = &settings[count];
    const int died = programs_live(machine);
    if (died != 0) {
        return died;
    }
    bool loaded = fleet_rolls() ? fleet_load(machine, &config, own, 2, &error)
                                : config_parse(&config, "simulation", NULL, 0, settings, count + 2, &error);
    if (!loaded) {
        if (shortage.kind != SHORT_OF_MEMORY && !disk_is_rotten(machine->disk)) {
            fail("the run's own config is wrong: %s", error.text);
        }
        say("error: %s", error.text); /* as the program's main logs it */
        return 2;
    }
    if (fleet_dies_of(&config)) {
        config_free(&config);
        say("error: it can't run in this version");
        return 1;
    }
    int status = setup_is_ps(machine) ? server_run(&config, NULL) : remote_worker_run(&config);
    config_free(&config);
    if (status != 0 && status != RESTART_STATUS && status < 128 && !machine->complained) {
        fail("%s ends with status %d and does not say why", machine->name, status);
    }
    await_lookups(machine);
    if (machine->bytes > 0 || machine->thread_count > 1) {
        fail("%s ends in order and leaves %zu bytes of memory and %d threads behind", machine->name, machine->bytes,
             machine->thread_count - 1);
    }
    return status;
}

/* --- Comings and goings --- */

bool service_is_unlisted(const struct machine *machine)
{
    return machine->number >= setup.ps + setup.listed && machine->main == service_run;
}

/* Leaves in order or silently; some for good, some for a while in which little or much may happen. */
void service_let_go(struct machine *machine)
{
    double *when_s = &depart_s[machine->number];
    if (*when_s == 0) {
        *when_s = ++visits[machine->number] <= MOST_VISITS ? world.now_s + 60 * chance_real() : INFINITY;
    } else if (world.now_s >= *when_s && !service.leaving) {
        const double away_s = chance(4) == 0 ? 1e9 : 40 * chance_real();
        *when_s = 0;
        service.restart_s[machine->number] = world.now_s + away_s;
        world.here = machine;
        say("goes for %.0f s", away_s);
        if (chance(2) == 0) {
            machine_kill(machine);
        } else {
            machine->signal = 15;
        }
        world.here = NULL;
    }
}

void service_look_after(struct machine *machine)
{
    double *when_s = &service.restart_s[machine->number];
    if (machine->runs || service.leaving || machine->main != service_run ||
        (service.is_gone && machine == setup.gone)) {
        return;
    }
    if (service_is_unlisted(machine) && machine->life > 0 && machine->status == 0 && machine->signal == 0 &&
        !service.over) {
        fail("%s ends, though there is room for it", machine->name);
    }
    if (machine->status == RESTART_STATUS) {
        records_forget(machine);
        programs_started(machine, true);
        machine_start(machine);
        return;
    }
    if (machine == setup_chief() && machine->status >= 0 && service.over &&
        (machine->status == 0 || (machine->status == 1 && service.disk_was_full))) {
        return;
    }
    if (*when_s == 0) {
        records_forget(machine);
        *when_s = world.now_s + 0.1 + 2 * chance_real();
    } else if (world.now_s >= *when_s) {
        *when_s = 0;
        programs_started(machine, false);
        machine_start(machine);
        world.here = machine;
        say("starts");
        world.here = NULL;
    }
}

/* What the ps are told at the end. */
WRAP(void, job_end, struct job *job, int worker, const struct message_end_job *message, double now_s,
     struct verdict *verdict)
{
    __real_job_end(job, worker, message, now_s, verdict);
    if (verdict->code == 0 && (message->job_state == JOB_DONE || shortage.kind == SHORT_OF_MEMORY)) {
        service.over = true; /* a chief without memory may give up, and reports it */
    } else if (verdict->code == 0) {
        fail("the chief calls the job failed: %s", message->message);
    }
}
