/* The last answers are copied under a lock, which is not held while the thread waits. */
#include "ps/fleet_watch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/wake.h"

static const double PERIOD_S = 1, TIMEOUT_S = 2;

struct fleet_watch {
    struct status_query *query;
    int most;
    struct wake wake;
    pthread_t thread;
    bool runs;
    atomic_bool ends;
    pthread_mutex_t mutex;        /* guards these: */
    struct board_member *members; /* [most] */
    int count;
};

static void *run(void *context)
{
    struct fleet_watch *watch = context;
    while (!atomic_load(&watch->ends)) {
        const double began_s = clock_monotonic_s();
        int count;
        const struct board_member *members = status_query_ask(watch->query, TIMEOUT_S, &count);
        pthread_mutex_lock(&watch->mutex);
        watch->count = count < watch->most ? count : watch->most;
        memcpy(watch->members, members, (size_t)watch->count * sizeof *members);
        pthread_mutex_unlock(&watch->mutex);
        wake_wait(-1, 0, &watch->wake, began_s + PERIOD_S);
    }
    return NULL;
}

bool fleet_watch_create(struct fleet_watch **out, const struct config *config, const struct identity *identity,
                        struct error *error)
{
    struct fleet_watch *watch = calloc(1, sizeof *watch);
    if (!watch) {
        return error_set(error, "out of memory");
    }
    watch->wake.fd = -1;
    pthread_mutex_init(&watch->mutex, NULL);
    watch->most = config->cluster.ps_hosts.count + config_worker_room(&config->cluster);
    watch->members = calloc((size_t)watch->most, sizeof *watch->members);
    bool done = watch->members ? true : error_set(error, "out of memory to watch the fleet");
    done = done && wake_create(&watch->wake, error) && status_query_create_for(&watch->query, config, identity, error);
    if (done) {
        watch->runs = pthread_create(&watch->thread, NULL, run, watch) == 0;
        done = watch->runs || error_set(error, "can't start a thread to watch the fleet");
    }
    if (!done) {
        fleet_watch_destroy(watch);
        return false;
    }
    *out = watch;
    return true;
}

void fleet_watch_destroy(struct fleet_watch *watch)
{
    if (!watch) {
        return;
    }
    if (watch->runs) {
        atomic_store(&watch->ends, true);
        wake_raise(&watch->wake);
        status_query_interrupt(watch->query);
        pthread_join(watch->thread, NULL);
    }
    status_query_destroy(watch->query);
    wake_destroy(&watch->wake);
    pthread_mutex_destroy(&watch->mutex);
    free(watch->members);
    free(watch);
}

int fleet_watch_members(struct fleet_watch *watch, struct board_member *members, int room)
{
    pthread_mutex_lock(&watch->mutex);
    const int count = watch->count < room ? watch->count : room;
    memcpy(members, watch->members, (size_t)count * sizeof *members);
    pthread_mutex_unlock(&watch->mutex);
    return count;
}

int fleet_watch_most(const struct fleet_watch *watch)
{
    return watch->most;
}
