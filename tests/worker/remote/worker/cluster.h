/* Whom a worker has beside its shards: its heartbeat, the chief, rollouts, and data by the chief. */
#ifndef TESTS_WORKER_REMOTE_WORKER_CLUSTER_H
#define TESTS_WORKER_REMOTE_WORKER_CLUSTER_H

#include "tests/worker/remote/worker/computing.h"
#include "tests/worker/remote/worker/world.h"

/* --- Heartbeats --- */

static char the_heartbeat;

bool heartbeat_create(struct heartbeat **heartbeat, const struct config *config, const struct identity *identity,
                      struct traffic *traffic, const char *device, struct error *error)
{
    tell("heartbeat of %s\n", device);
    *heartbeat = (struct heartbeat *)(void *)&the_heartbeat;
    return true;
}

void heartbeat_report_failure(const struct config *config, const struct identity *identity, const char *reason)
{
}

void heartbeat_destroy(struct heartbeat *heartbeat, const char *message)
{
    if (heartbeat) {
        tell("goodbye: %s\n", message);
    }
}

void heartbeat_set_vitals(struct heartbeat *heartbeat, const struct vitals *vitals)
{
    tell("%s at %lld, %lld here, %g/s, loss %g, stale %u\n", member_state_name(vitals->state),
         (long long)vitals->global_step, (long long)vitals->local_step, (double)vitals->steps_per_s,
         (double)vitals->loss, vitals->staleness);
}

void heartbeat_set_message(struct heartbeat *heartbeat, const char *message)
{
    tell("says: %s\n", message);
}

void heartbeat_wake(struct heartbeat *heartbeat)
{
    world.hurried_s = world.now_s;
}

bool heartbeat_needs_rejoin(struct heartbeat *heartbeat, uint32_t generation, double since_s, char why[256])
{
    assert_int_equal(generation, GENERATION);
    assert_true(since_s > 0 && since_s <= world.now_s);
    snprintf(why, 256, "%s", world.needs_rejoin ? world.needs_rejoin : "");
    return world.needs_rejoin;
}

void heartbeat_job_status(struct heartbeat *heartbeat, struct job_status *job)
{
    *job = world.job;
}

bool heartbeat_is_over(struct heartbeat *heartbeat)
{
    return world.over || world.fenced;
}

bool heartbeat_is_fenced(struct heartbeat *heartbeat)
{
    return world.fenced;
}

/* --- The chief --- */

static char the_chief;
static struct checkpoint_info held_record;

bool chief_create(struct chief **chief, const struct chief_options *options, struct error *error)
{
    assert_ptr_equal(options->given_up, world.given_up);
    assert_ptr_equal(options->context, world.context);
    assert_ptr_equal(options->engine, &the_engine);
    tell("chief, to step %lld\n", (long long)options->plan->last_step);
    *chief = (struct chief *)(void *)&the_chief;
    return true;
}

void chief_destroy(struct chief *chief)
{
    if (chief) {
        tell("chief goes\n");
    }
}

enum exchange_result chief_begin(struct chief *chief, struct chief_start *start, struct error *error)
{
    *start = (struct chief_start){.global_step = world.step, .restored_from = "a checkpoint", .record = world.says};
    tell("chief begins\n");
    return once(&world.begun, error);
}

void chief_note_step(struct chief *chief, int64_t global_step)
{
    tell("notes %lld\n", (long long)global_step);
}

enum chief_hold_result chief_hold(struct chief *chief, int64_t *global_step, struct checkpoint_info **record,
                                  struct error *error)
{
    *global_step = world.step;
    *record = &held_record;
    tell("holds\n");
    const enum chief_hold_result held = world.held;
    world.held = CHIEF_HELD;
    error_set(error, "as the test wants");
    return held;
}

void chief_release(struct chief *chief, bool is_best)
{
    tell("releases%s\n", is_best ? " the best" : "");
}

enum exchange_result chief_save_last(struct chief *chief, int64_t *global_step, struct error *error)
{
    *global_step = world.step;
    tell("chief saves\n");
    return once(&world.finished, error);
}

enum exchange_result chief_finish(struct chief *chief, int64_t *global_step, struct error *error)
{
    *global_step = world.step;
    tell("chief finishes the job\n");
    return once(&world.finished, error);
}

enum exchange_result chief_go_back(struct chief *chief, const struct good_model *good, int64_t *global_step,
                                   struct error *error)
{
    *global_step = good->global_step;
    tell("chief goes back to %lld, lowered %d times\n", (long long)good->global_step, good->record.retries);
    return EXCHANGE_OK;
}

void chief_reschedule(struct chief *chief, const struct config_output *output, const struct plan *plan)
{
    tell("retimed to %lld\n", (long long)plan->last_step);
}

bool chief_end_job(struct chief *chief, bool failed, double test_accuracy, const char *why, struct error *error)
{
    tell("job %s, %g: %s\n", failed ? "failed" : "done", test_accuracy, why ? why : "");
    return !world.cannot_notify || error_set(error, "ps 1 is gone");
}

void chief_record(struct chief *chief, struct updater_record *record)
{
    *record = world.record;
}

/* --- Rollouts --- */

static char the_live_config;

void live_config_hold(struct traffic *traffic, const struct config *config)
{
    tell("holds links\n");
}

bool live_config_create(struct live_config **live, const struct config *config, const struct config_model *model,
                        struct identity *identity, struct chief *chief, struct traffic *traffic, struct error *error)
{
    tell("rollouts%s\n", chief ? " with a chief" : "");
    *live = (struct live_config *)(void *)&the_live_config;
    return true;
}

void live_config_destroy(struct live_config *live)
{
    if (live) {
        tell("rollouts go\n");
    }
}

bool live_config_look(struct live_config *live, struct config *config, int64_t global_step, float loss, bool finite)
{
    tell("looks at %lld, loss %g%s\n", (long long)global_step, (double)loss, finite ? "" : ", not finite");
    if (world.changes) {
        world.changes = false;
        config->train.train_steps = 77;
        return true;
    }
    return false;
}

void live_config_note_joining(struct live_config *live)
{
    tell("takes no part\n");
}

void live_config_note_joined(struct live_config *live)
{
    tell("takes part\n");
}

enum live_config_end live_config_end(struct live_config *live)
{
    return live ? world.live_end : LIVE_STAYS;
}

void live_config_drift(struct live_config *live, char message[256])
{
    snprintf(message, 256, "%s", world.drift ? world.drift : "");
}

void live_config_show(struct live_config *live, struct board_rollout *shown)
{
    *shown = (struct board_rollout){0};
}

bool live_config_knows(struct live_config *live, const char *digest)
{
    return strcmp(digest, "known") == 0;
}

bool live_config_is_rolling(struct live_config *live)
{
    return world.is_rolling;
}

/* --- Data by the chief --- */

static char the_server, the_fetcher;
static struct examples fed;

bool data_server_create(struct data_server **server, const struct config *config, const struct identity *identity,
                        const struct dataset *dataset, bool (*knows)(void *context, const char *digest), void *context,
                        struct error *error)
{
    tell("serves %d images\n", dataset->train.count);
    assert_true(knows(context, "known"));
    assert_false(knows(context, "other"));
    *server = (struct data_server *)(void *)&the_server;
    return true;
}

void data_server_destroy(struct data_server *server)
{
    if (server) {
        tell("data server goes\n");
    }
}

bool batch_fetcher_create(struct batch_fetcher **fetcher, const struct batch_fetcher_options *options,
                          struct error *error)
{
    assert_ptr_equal(options->given_up, world.given_up);
    assert_ptr_equal(options->context, world.context);
    *fetcher = (struct batch_fetcher *)(void *)&the_fetcher;
    tell("fetcher\n");
    return true;
}

void batch_fetcher_destroy(struct batch_fetcher *fetcher)
{
    if (fetcher) {
        tell("fetcher goes\n");
    }
}

enum exchange_result batch_fetcher_ask(struct batch_fetcher *fetcher, struct batch_fetcher_facts *facts,
                                       struct error *error)
{
    *facts = (struct batch_fetcher_facts){.train = 44, .validation = 11, .description = "from afar"};
    tell("asks for data\n");
    return once(&world.asked, error);
}

enum exchange_result batch_fetcher_take(struct batch_fetcher *fetcher, int64_t number, struct batch *batch,
                                        struct error *error)
{
    static int32_t indexes[BATCH];
    tell("takes batch %lld\n", (long long)number);
    *batch = (struct batch){.examples = &fed, .indexes = indexes, .count = BATCH};
    return once(&world.took, error);
}

#endif
