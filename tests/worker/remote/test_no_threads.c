/* Creates a worker's parts while one thread after another can't start: each reports it and leaves nothing behind. */
#include <stdatomic.h>

#include "tests/check.h"

#include <errno.h>
#include <pthread.h>

#include "net/socket.h"
#include "tests/system.h"
#include "tests/worker/remote/story.h"
#include "worker/data/dataset.h"
#include "worker/remote/batches.h"
#include "worker/remote/exchange/push_pull.h"
#include "worker/remote/heartbeat.h"

enum { NEVER = 1 << 30 };

static atomic_int threads, thread_fails_at = NEVER;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context)
{
    return atomic_fetch_add(&threads, 1) + 1 == atomic_load(&thread_fails_at)
               ? EAGAIN
               : SYSTEM(pthread_create)(thread, attributes, run, context);
}

/* --- The parts --- */

static struct bench {
    struct config config;
    struct model model;
    struct identity identity;
    struct traffic traffic;
    struct dataset dataset;
    struct engine engine;
} bench;

static float *parameters;

static float *engine_parameters(struct engine *engine)
{
    return parameters;
}

static bool engine_write(struct engine *engine, enum store_vector vector, size_t first, size_t count,
                         const float *values, struct error *error)
{
    return true;
}

static bool engine_read(struct engine *engine, enum store_vector vector, size_t first, size_t count, float *values,
                        struct error *error)
{
    memcpy(values, parameters + first, count * sizeof *values);
    return true;
}

static const struct engine_table table = {
    .name = "fake", .parameters = engine_parameters, .write = engine_write, .read = engine_read};

static bool begin_push_pull(struct push_pull *exchange, struct error *error)
{
    const struct push_pull_options options = {.config = &bench.config,
                                              .model = &bench.model,
                                              .engine = &bench.engine,
                                              .identity = &bench.identity,
                                              .traffic = &bench.traffic};
    return push_pull_create(exchange, &options, error);
}

/* Each is created and destroyed again; false: it was not created. */
static bool try_pipeline(struct error *error)
{
    struct push_pull exchange;
    struct pipeline *pipeline = NULL;
    const bool done =
        begin_push_pull(&exchange, error) && pipeline_create(&pipeline, &exchange, &bench.engine, 2, error);
    pipeline_destroy(pipeline);
    push_pull_destroy(&exchange);
    return done;
}

static bool try_heartbeat(struct error *error)
{
    struct heartbeat *heartbeat = NULL;
    const bool done = heartbeat_create(&heartbeat, &bench.config, &bench.identity, &bench.traffic, "a device", error);
    heartbeat_destroy(done ? heartbeat : NULL, "");
    return done;
}

static bool knows(void *context, const char *digest)
{
    return false;
}

static bool try_data_server(struct error *error)
{
    struct data_server *server;
    const bool done = data_server_create(&server, &bench.config, &bench.identity, &bench.dataset, knows, NULL, error);
    data_server_destroy(server);
    return done;
}

static bool (*const parts[])(struct error *error) = {try_pipeline, try_heartbeat, try_data_server};

/* --- Each of them --- */

static void try_part(size_t which)
{
    struct error error;
    for (int at = 1; at < 3; at++) {
        atomic_store(&threads, 0);
        atomic_store(&thread_fails_at, at);
        const bool done = parts[which](&error);
        atomic_store(&thread_fails_at, NEVER);
        if (atomic_load(&threads) < at) {
            break;
        }
        assert_false(done);
        assert_non_null(strstr(error.text, "thread"));
    }
}

static void begin(void)
{
    struct config_setting settings[] = {
        {"insecure", "true"},   {"layers", "6,20,3"},     {"ps_hosts", "127.0.0.1:1,127.0.0.1:2"},
        {"worker_hosts", NULL}, {"job_name", "worker"},   {"bind", "127.0.0.1"},
        {"batch_size", "4"},    {"wire_dtype", "float32"}};
    struct error error;
    char hosts[80];
    int fd;
    assert_true(socket_listen(&fd, "127.0.0.1", 0, &error)); /* a port for the data server */
    snprintf(hosts, sizeof hosts, "127.0.0.1:%d,127.0.0.1:4", socket_port(fd));
    close(fd);
    memset(&bench, 0, sizeof bench);
    settings[3].text = hosts;
    listen_in();
    if (!config_load(&bench.config, NULL, settings, 8, &error) ||
        !identity_create(&bench.identity, &bench.config, (struct member){MEMBER_WORKER, 0}, &error)) {
        fail_msg("%s", error.text);
    }
    model_layout(&bench.model, &bench.config.model);
    bench.engine.table = &table;
    bench.dataset.train = (struct examples){.count = 10, .height = 2, .width = 3, .classes = 3};
    parameters = calloc(bench.model.float_count, sizeof *parameters);
}

TEST(one_thread_cannot_start)
{
    begin();
    for (size_t which = 0; which < sizeof parts / sizeof *parts; which++) {
        try_part(which);
    }
    free(parameters);
    identity_destroy(&bench.identity);
    config_free(&bench.config);
    heard();
}

int main(void)
{
    return check_run(NULL, NULL);
}
