#include "ps/server/desk/inside.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/restart.h"
#include "ps/rollout/audit.h"
#include "ps/rollout/lineage.h"
#include "ps/rollout/record.h"

enum { LEAVE_S = 15 };

static const double RATE_S = 0.2, FORGETTING = 0.99;
static const double STOOD_STILL_S = 2; /* between two ticks */

/* --- What a change is to a ps ------------------------------------------------------------------------------------------- */

static enum keeper_switch switch_to(void *context, const struct config *config, int64_t step)
{
    struct desk *desk = context;
    struct server *server = desk->server;
    struct shard *shard = server->shard;
    int64_t now;
    if (shard_floats(shard) == 0) {
        step = 0; /* nobody pushes to a ps that holds nothing, so that no step ever comes there */
    }
    bool is_new = desk->scheduled != step || step == 0;
    server_lock(server);
    if (is_new) {
        desk->scheduled = step;
        job_schedule(&server->job, config, step, clock_monotonic_s());
        const int64_t epoch_steps = job_epoch_steps(&server->job, config, server->job.epoch_batches);
        pthread_cond_broadcast(&server->changed); /* whoever waits may have waited enough */
        pthread_cond_broadcast(&server->stepped);
        shard_schedule(shard, &config->train, epoch_steps, step);
    }
    const bool waits = server->job.has_next;
    server_unlock(server);
    shard_now(shard, NULL, &now);
    if (now < step || waits) {
        return SWITCH_PENDING;
    }
    desk->scheduled = -1;
    return is_new && step > 0 ? SWITCH_LATE : SWITCH_DONE;
}

static bool check(void *context, const struct config *then, struct error *error)
{
    const struct desk *desk = context;
    struct model model;
    uint64_t there;
    model_layout(&model, &then->model);
    size_t wanted = server_memory(&model, then, desk->server->index, config_worker_room(&then->cluster));
    return !memory_for_this_process(&there) || wanted <= there ||
           error_set(error, "it would take %zu MiB of memory here, and there are %llu", wanted >> 20,
                     (unsigned long long)(there >> 20));
}

/* Is the model here? */
static bool is_ready(void *context)
{
    struct server *server = ((struct desk *)context)->server;
    server_lock(server);
    bool ready = job_initialised(&server->job);
    server_unlock(server);
    return ready;
}

static void part(void *context, bool for_good)
{
    const struct desk *desk = context;
    restart_within(LEAVE_S);
    atomic_store(&desk->server->parting, for_good ? PARTING_FOR_GOOD : PARTING_TO_START_ANEW);
}

bool desk_store_manifest(const struct desk *desk, uint64_t target, const uint8_t *bytes, size_t size,
                         struct error *error)
{
    char path[VERSIONS_PATH];
    return lineage_path(desk->server->config, target, path, error) && file_keep(path, bytes, size, error);
}

void desk_take_manifest(struct desk *desk, const struct manifest *manifest, uint8_t *bytes, size_t size)
{
    free(desk->manifest);
    desk->manifest = bytes;
    desk->manifest_size = size;
    memcpy(desk->digests[0], manifest->target.digest, sizeof desk->digests[0]);
    memcpy(desk->digests[1], manifest->fallback.digest, sizeof desk->digests[1]);
    snprintf(desk->author, sizeof desk->author, "%s", manifest->author);
}

/* *bytes: NULL if what is there is another rollout's, or nothing. */
static bool read_manifest(const char *path, uint64_t target, struct manifest *manifest, uint8_t **bytes, size_t *size,
                          struct error *error)
{
    *bytes = NULL;
    if (!file_exists(path)) {
        return true;
    }
    uint8_t *read;
    if (!file_read(path, MANIFEST_MAX_BYTES, &read, size, error)) {
        return false;
    }
    const bool done = manifest_decode_unsigned(manifest, read, *size, error);
    if (done && manifest->target.version == target) {
        *bytes = read;
    } else {
        free(read);
    }
    return done;
}

/* By its version; as the versions before had it, it is only in the place of the last. */
static bool find_manifest(const struct desk *desk, uint64_t target, struct manifest *manifest, uint8_t **bytes,
                          size_t *size, struct error *error)
{
    char path[VERSIONS_PATH];
    *bytes = NULL;
    if (!lineage_path(desk->server->config, target, path, error) ||
        !read_manifest(path, target, manifest, bytes, size, error)) {
        return false;
    }
    return *bytes != NULL || (file_join(path, sizeof path, desk->versions.folder, "manifest", error) &&
                              read_manifest(path, target, manifest, bytes, size, error));
}

/* A rollout that an earlier process of this ps led, or leads, if it has just started anew for it. */
static bool resume(struct desk *desk, struct error *error)
{
    const char *config_path = desk->server->config->path;
    uint8_t *bytes;
    size_t size;
    bool there;
    struct record record;
    struct manifest manifest;
    if (config_path == NULL) {
        return true;
    }
    snprintf(desk->versions.folder, sizeof desk->versions.folder, "%.4000s.d", config_path);
    desk->has_versions = true;
    if (!record_read(&desk->versions, &there, &record, error)) {
        return false;
    }
    if (!there) {
        return true;
    }
    if (!find_manifest(desk, record.plan.target, &manifest, &bytes, &size, error)) {
        return false;
    }
    desk->highest = record.highest;
    if (bytes == NULL) {
        return true;
    }
    desk_take_manifest(desk, &manifest, bytes, size);
    desk->stored_state = record.state;
    rollout_resume(&desk->rollout, record.state, &record.plan, record.loss_before, record.reason, clock_monotonic_s());
    if (record.state != ROLLOUT_IDLE) {
        log_info("the rollout of version %" PRIu64 " was %s; now it is %s", record.plan.target,
                 rollout_state_name(record.state), rollout_state_name(desk->rollout.state));
    }
    return true;
}

/* --- Leading ----------------------------------------------------------------------------------------------------------- */

struct rollout_vitals desk_vitals(const struct desk *desk)
{
    const struct server *server = desk->server;
    const struct config_cluster *cluster = &server->config->cluster;
    double worst = 0;
    for (int i = 0; i < server->job.worker_count; i++) {
        const bool comes_and_goes = i >= cluster->worker_hosts.count;
        float loss = comes_and_goes && !server->job.workers[i].present ? -1.0f : desk->losses[i];
        worst = isnan(worst) || isnan(loss) ? NAN : loss > (float)worst ? (double)loss : worst;
    }
    return (struct rollout_vitals){.global_step = server->job.global_step,
                                   .steps_per_s = desk->fastest,
                                   .generation = server->job.generation,
                                   .under_way =
                                       cluster->issync ? 1 : job_present(&server->job) * (1 + cluster->pipeline_depth),
                                   .may_come_s = cluster->issync ? cluster->lease_secs : 0,
                                   .loss = worst,
                                   .training = server->job.state == JOB_TRAINING,
                                   .waits = server->job.state == JOB_TRAINING && !server->job.started,
                                   .over = server->job.state == JOB_DONE};
}

static void tell_change(const struct desk *desk, enum rollout_state state, uint64_t target, const char *sentence)
{
    if (state == ROLLOUT_GOING_BACK) {
        log_warning("rollout: %s", sentence);
    } else {
        log_info("rollout: %s", sentence);
    }
    audit_write(&desk->versions, "ps 0", desk->author, rollout_state_name(state), target, sentence);
}

/* Locked. */
static void measure(struct desk *desk, double now_s)
{
    const int64_t step = desk->server->job.global_step;
    double seconds = now_s - desk->rated_s;
    const uint32_t generation = desk->server->job.state == JOB_TRAINING ? desk->server->job.generation : 0;
    if (generation == 0 || desk->rated_generation != generation) {
        desk->rated_generation = generation;
        desk->rated_s = now_s;
        desk->rated_step = step;
    } else if (seconds >= RATE_S) {
        double rate = step > desk->rated_step ? (double)(step - desk->rated_step) / seconds : 0;
        desk->fastest = fmax(rate, desk->fastest * FORGETTING);
        desk->rated_s = now_s;
        desk->rated_step = step;
    }
}

void desk_tick(struct desk *desk)
{
    struct server *server = desk->server;
    struct error error;
    char sentence[1024];
    if (!desk->leads || !desk->has_versions) { /* without a config file there are no rollouts */
        return;
    }
    server_lock(server);
    const double now_s = clock_monotonic_s();
    if (desk->ticked_s > 0 && now_s - desk->ticked_s >= STOOD_STILL_S) {
        rollout_stood_still(&desk->rollout, now_s - desk->ticked_s);
    }
    desk->ticked_s = now_s;
    measure(desk, now_s);
    const struct rollout_vitals vitals = desk_vitals(desk);
    rollout_tick(&desk->rollout, &vitals, now_s);
    job_keep_waiting(&server->job, rollout_keeps_waiting(&desk->rollout));
    bool changed = desk->rollout.changes != desk->stored;
    const uint64_t changes = desk->rollout.changes, highest = desk->highest;
    const struct rollout rollout = desk->rollout;
    rollout_describe(&desk->rollout, sentence, sizeof sentence);
    server_unlock(server);
    if (!changed) {
        return;
    }
    struct record record = {.state = rollout.state,
                            .plan = {.target = rollout.target,
                                     .fallback = rollout.fallback,
                                     .kind = rollout.kind,
                                     .healthy_s = rollout.healthy_s,
                                     .waited = rollout.waited,
                                     .absent = rollout.absent},
                            .loss_before = rollout.loss_before,
                            .highest = highest};
    snprintf(record.reason, sizeof record.reason, "%s", rollout.reason);
    if (!record_store(&desk->versions, &record, &error)) {
        log_warning("rollout: %s; it goes on once that can be written", error.text);
        return;
    }
    tell_change(desk, rollout.state, rollout.target, sentence);
    server_lock(server);
    desk->stored = changes;
    desk->stored_state = rollout.state;
    server_unlock(server);
}
/* --- Life -------------------------------------------------------------------------------------------------------------- */

bool desk_create(struct desk **out, struct server *server, struct error *error)
{
    const int workers = server->config->cluster.worker_hosts.count, room = server->job.worker_count;
    struct desk *desk = calloc(1, sizeof *desk);
    if (desk == NULL) {
        return error_set(error, "out of memory");
    }
    *out = desk;
    desk->server = server;
    desk->scheduled = -1;
    desk->leads = server->index == 0;
    desk->losses = calloc((size_t)room, sizeof *desk->losses);
    for (int i = 0; desk->losses != NULL && i < room; i++) {
        desk->losses[i] = -1.0f;
    }
    if (desk->losses == NULL ||
        !rollout_create(&desk->rollout, server->config->cluster.ps_hosts.count, workers, room)) {
        return error_set(error, "out of memory");
    }
    const struct agent_options options = {
        .config = server->config,
        .self = &server->self,
        .who = {MEMBER_PS, server->index},
        .host =
            {.context = desk, .check = check, .switch_to = switch_to, .ready = is_ready, .leave = part, .stays = true},
        .ask = desk->leads ? desk_ask_self : NULL,
        .context = desk};
    return (!desk->leads || resume(desk, error)) && agent_create(&desk->agent, &options, error);
}

void desk_destroy(struct desk *desk)
{
    if (desk != NULL) {
        agent_destroy(desk->agent);
        rollout_destroy(&desk->rollout);
        free(desk->manifest);
        free(desk->losses);
        free(desk);
    }
}

bool desk_knows(struct desk *desk, const char *digest)
{
    server_lock(desk->server);
    bool known = desk->manifest != NULL && desk->rollout.kind != ROLLOUT_JOB &&
                 (strcmp(digest, desk->digests[0]) == 0 || strcmp(digest, desk->digests[1]) == 0);
    server_unlock(desk->server);
    return known || agent_knows(desk->agent, digest);
}

void desk_version(struct desk *desk, uint64_t *version, char digest[CONFIG_DIGEST_HEX + 1])
{
    agent_version(desk->agent, version, digest);
}

void desk_drift(struct desk *desk, char *sentence, size_t size)
{
    char drift[DRIFT_TEXT];
    const size_t used = strlen(sentence);
    agent_drift(desk->agent, drift);
    if (drift[0] != '\0') {
        snprintf(sentence + used, size - used, "%s%.250s", used > 0 ? "; " : "", drift);
    }
}
