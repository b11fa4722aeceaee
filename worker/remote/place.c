/* Asks ps 0, as a guest who may ask nothing else, until it answers. */
#include "worker/remote/worker.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/process/restart.h"
#include "base/process/signals.h"
#include "net/link.h"
#include "ps/identity.h"

static const char machine_id_path[] = "/etc/machine-id";
static const double AGAIN_S = 2.0, SLICE_S = 0.1; /* between two requests while all places are taken */

static void add_text(crypto_generichash_state *state, const char *text)
{
    crypto_generichash_update(state, (const uint8_t *)text, strlen(text) + 1);
}

static uint64_t end_key(crypto_generichash_state *state)
{
    uint8_t hash[crypto_generichash_BYTES_MIN];
    uint64_t key;
    crypto_generichash_final(state, hash, sizeof hash);
    memcpy(&key, hash, sizeof key);
    return key != 0 ? key : 1;
}

/* What distinguishes this process from others with the same key, before and after a restart. */
static uint64_t own_key(const struct credentials *credentials, const char *worker_name)
{
    crypto_generichash_state state;
    char machine[64] = "", host[256] = "", folder[4096] = "", arguments[RESTART_ID];
    uint64_t key = credentials ? credentials_identity(credentials) : 0;
    if (key != 0) { /* a name proves nothing */
        return key;
    }
    crypto_generichash_init(&state, NULL, 0, crypto_generichash_BYTES_MIN);
    if (worker_name[0] != '\0') {
        add_text(&state, worker_name);
        return end_key(&state);
    }
    FILE *file = fopen(machine_id_path, "re");
    if (file) {
        machine[fread(machine, 1, sizeof machine - 1, file)] = '\0';
        fclose(file);
    }
    gethostname(host, sizeof host - 1);
    if (!getcwd(folder, sizeof folder)) {
        folder[0] = '\0';
    }
    restart_identity(arguments);
    add_text(&state, machine);
    add_text(&state, host);
    add_text(&state, folder);
    add_text(&state, arguments);
    return end_key(&state);
}

/* *index; false with *again: the link is lost, or with *full: all places are taken now. */
static bool ask_once(struct link *link, uint64_t key, int *index, bool *again, bool *full, struct error *error)
{
    const struct message_get_place request = {.key = key};
    uint16_t code;
    const bool done = channel_call(&link->channel, MESSAGE_get_place, &request, MESSAGE_place,
                                   clock_monotonic_s() + LINK_ANSWER_S, &code, error);
    *again = !done && code == 0;
    *full = !done && code == ERROR_NOT_READY;
    *index = done ? link->channel.message.place.index : -1;
    return done && ((*index >= 0 && *index <= MEMBER_MAX_INDEX) ||
                    error_set(error, "%s: gives this worker the index %d, which is invalid", link->name, *index));
}

/* A place may become free: others leave, or never come. False: this process was stopped, or has waited long enough. */
static bool await_place(const struct config *config, double begun_s, double *logged_s, const struct error *why)
{
    const double now_s = clock_monotonic_s(), join_s = config->cluster.join_secs;
    if (join_s > 0 && now_s - begun_s >= join_s) {
        return false;
    }
    if (*logged_s == 0 || now_s - *logged_s >= LINK_LOGGED_EVERY_S) {
        *logged_s = now_s;
        log_info("waiting for a place, %.0f s: %s", now_s - begun_s, why->text);
    }
    for (double next_s = now_s; next_s < now_s + AGAIN_S && signals_pending() == 0;) {
        next_s += SLICE_S;
        clock_pause(next_s);
    }
    return signals_pending() == 0;
}

static bool ask(const struct config *config, const struct identity *identity, int *index, struct error *error)
{
    struct traffic traffic = {.answer_within_s = config->cluster.join_secs};
    struct link link;
    const struct link_options options = {.peer = {MEMBER_PS, 0},
                                         .self = identity_guest(identity),
                                         .traffic = &traffic,
                                         .purpose = " to assign an index"};
    const double begun_s = clock_monotonic_s();
    double logged_s = 0;
    bool done = false, again = true;
    if (!link_create(&link, config->cluster.ps_hosts.items[0], &options, error)) {
        return false;
    }
    while (again) {
        bool full = false;
        again = false;
        if (link_open(&link, NULL, NULL, error) == LINK_OPEN) {
            done = ask_once(&link, own_key(identity->credentials, config->cluster.worker_name), index, &again, &full,
                            error);
        }
        if (again) {
            link_lost(&link, error->text);
        }
        again = again || (full && await_place(config, begun_s, &logged_s, error));
    }
    link_destroy(&link);
    return done;
}

/* The index in the worker's own certificate; CONFIG_AUTO: there is none. */
static bool read_certificate(const struct config *config, int *index, struct error *error)
{
    char path[4096];
    struct credentials *credentials;
    if (config->security.insecure || !identity_key_path(config, path, sizeof path, error) ||
        !credentials_load(&credentials, path, error)) {
        return config->security.insecure;
    }
    const struct member named = credentials_member(credentials);
    *index = named.role == MEMBER_WORKER ? named.index : CONFIG_AUTO;
    credentials_free(credentials);
    return true;
}

bool place_find(struct config *config, struct error *error)
{
    struct config_cluster *cluster = &config->cluster;
    struct identity identity;
    int index = CONFIG_AUTO;
    if (cluster->job_name != JOB_WORKER || cluster->task_index != CONFIG_AUTO) {
        return true;
    }
    signals_catch();
    if (!config_check_role(config, error) || !read_certificate(config, &index, error)) {
        return false;
    }
    if (index == CONFIG_AUTO) {
        const bool good = identity_create(&identity, config, (struct member){MEMBER_WORKER, MEMBER_ANY_INDEX}, error) &&
                          ask(config, &identity, &index, error);
        identity_destroy(&identity);
        if (!good) {
            return false;
        }
        log_info("this is worker %d, assigned by ps 0", index);
    }
    cluster->task_index = index;
    return true;
}
