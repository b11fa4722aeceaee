/* A worker that fetches its batches, and a chief that has them; time passes as fast as the test wants. */
#ifndef TESTS_WORKER_REMOTE_FETCHING_H
#define TESTS_WORKER_REMOTE_FETCHING_H

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/random/sampler.h"
#include "net/bytes.h"
#include "tests/worker/remote/fake_member.h"
#include "tests/worker/remote/story.h"
#include "worker/data/streaming.h"
#include "worker/data/table/schema.h"
#include "worker/remote/batches.h"
#include "worker/remote/exchange/requests.h"
#define OWN_CLOCK_WITHOUT_WAITS
#include "tests/own_clock.h"

enum { PIXELS = 6, CLASSES = 3, IMAGES = 30, BATCH = 4 };

static _Atomic(double) jumped_s;

double own_clock_s(void)
{
    return system_clock_s() + atomic_load(&jumped_s);
}

/*
 * A wait with a deadline ends when it is signalled, or after a minute more: then the test fails. So no missing
 * signal is hidden by a periodic check.
 */
static atomic_bool without_looks;

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    struct timespec later = *until;
    if (!atomic_load(&without_looks)) {
        return own_clock_wait(condition, mutex, until);
    }
    later.tv_sec += 60;
    const int result = own_clock_wait(condition, mutex, &later);
    if (result == ETIMEDOUT) {
        fprintf(stderr, "somebody was not told\n");
        abort();
    }
    return result;
}

static const char *batch_size = "4"; /* BATCH unless a test needs larger ones */

static struct bench {
    struct config config;
    struct identity identity, chief_identity;
    struct traffic traffic;
    struct dataset dataset;
    struct data_server *server;
    struct batch_fetcher *fetcher;
    atomic_bool given_up;
} bench;

static inline bool given_up(void *context)
{
    return atomic_load(&((struct bench *)context)->given_up);
}

static inline bool knows(void *context, const char *digest)
{
    assert_ptr_equal(context, &bench);
    return strcmp(digest, "coming") == 0;
}

/* Worker `index` of three; worker 0 at this port. */
static inline void begin(const char *index, int port)
{
    char hosts[80];
    struct error error;
    memset(&bench, 0, sizeof bench);
    atomic_store(&jumped_s, 0);
    snprintf(hosts, sizeof hosts, "127.0.0.1:%d,127.0.0.1:2,127.0.0.1:3", port);
    const struct config_setting settings[] = {
        {"insecure", "true"},    {"layers", "6,3"},     {"batch_size", batch_size},
        {"worker_hosts", hosts}, {"ps_hosts", "a:1"},   {"job_name", "worker"},
        {"task_index", index},   {"bind", "127.0.0.1"}, {"lease_secs", "60"}};
    listen_in();
    if (!config_load(&bench.config, NULL, settings, sizeof settings / sizeof *settings, &error) ||
        !identity_create(&bench.identity, &bench.config, (struct member){MEMBER_WORKER, index[0] - '0'}, &error) ||
        !identity_create(&bench.chief_identity, &bench.config, (struct member){MEMBER_WORKER, 0}, &error)) {
        fail_msg("%s", error.text);
    }
}

/* like: for rows; NULL: images. */
static inline void create_fetcher_of(const struct examples *like)
{
    struct error error;
    const struct batch_fetcher_options options = {.config = &bench.config,
                                                  .like = like,
                                                  .identity = &bench.identity,
                                                  .traffic = &bench.traffic,
                                                  .given_up = given_up,
                                                  .context = &bench};
    if (!batch_fetcher_create(&bench.fetcher, &options, &error)) {
        fail_msg("%s", error.text);
    }
}

static inline void create_fetcher(void)
{
    create_fetcher_of(NULL);
}

static inline void end(void)
{
    batch_fetcher_destroy(bench.fetcher);
    data_server_destroy(bench.server);
    examples_free(&bench.dataset.train);
    identity_destroy(&bench.identity);
    identity_destroy(&bench.chief_identity);
    config_free(&bench.config);
    heard();
}

static inline int free_port(void)
{
    struct error error;
    int fd;
    assert_true(socket_listen(&fd, "127.0.0.1", 0, &error));
    const int port = socket_port(fd);
    close(fd);
    return port;
}

static inline void begin_served(const char *index)
{
    struct examples *train = &bench.dataset.train;
    struct error error;
    begin(index, free_port());
    *train = (struct examples){.count = IMAGES, .height = 2, .width = 3, .classes = CLASSES};
    train->images = calloc(IMAGES, PIXELS);
    train->labels = calloc(IMAGES, sizeof *train->labels);
    for (int i = 0; i < IMAGES; i++) {
        train->labels[i] = i % CLASSES;
        memset(train->images + i * PIXELS, i, PIXELS);
    }
    bench.dataset.validation.count = 7;
    snprintf(bench.dataset.description, sizeof bench.dataset.description, "thirty images");
    if (!data_server_create(&bench.server, &bench.config, &bench.chief_identity, &bench.dataset, knows, &bench,
                            &error)) {
        fail_msg("%s", error.text);
    }
}

static inline void *give_up_once_told(void *words)
{
    for (int i = 0; i < 60000 && !strstr(heard_so_far(), words); i++) {
        usleep(1000);
    }
    atomic_store(&bench.given_up, true);
    return NULL;
}

/* Waits for a batch until these words are in the log. */
static inline void take_none(char *words)
{
    struct batch batch;
    struct error error;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, give_up_once_told, words), 0);
    assert_int_equal(batch_fetcher_take(bench.fetcher, 0, &batch, &error), EXCHANGE_STOPPED);
    pthread_join(thread, NULL);
    assert_non_null(strstr(heard_so_far(), words));
}

#endif
