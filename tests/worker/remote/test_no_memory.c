/*
 * Creates a worker's parts while one allocation after another fails, and then the start of a thread: each reports it
 * and leaves nothing behind, or does without.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>

#include "net/socket.h"
#include "tests/no_memory.h"
#include "tests/worker/remote/story.h"
#include "worker/remote/batch_fetcher.h"
#include "worker/remote/chief.h"
#include "worker/remote/data_server.h"
#include "worker/remote/exchange/pipeline.h"
#include "worker/remote/heartbeat.h"

enum { NEVER = 1 << 30, MOST_CALLS = 5000 };

static atomic_int threads, thread_fails_at = NEVER;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context)
{
    return atomic_fetch_add(&threads, 1) + 1 == atomic_load(&thread_fails_at)
               ? EAGAIN
               : __real_pthread_create(thread, attributes, run, context);
}

/* --- The parts --- */

static struct bench {
    struct config config;
    struct model model;
    struct identity identity;
    struct traffic traffic;
    struct dataset dataset;
    struct plan plan;
    struct engine engine;
} bench;

static float *parameters;

static float *engine_parameters(struct engine *engine)
{
    (void)engine;
    return parameters;
}

static bool engine_write(struct engine *engine, enum store_vector vector, size_t first, size_t count,
                         const float *values, struct error *error)
{
    (void)engine, (void)vector, (void)first, (void)count, (void)values, (void)error;
    return true;
}

static bool engine_read(struct engine *engine, enum store_vector vector, size_t first, size_t count, float *values,
                        struct error *error)
{
    (void)engine, (void)vector, (void)error;
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
static bool try_push_pull(struct error *error)
{
    struct push_pull exchange;
    const bool done = begin_push_pull(&exchange, error);
    push_pull_destroy(&exchange);
    return done;
}

static bool try_outbox(struct error *error)
{
    struct outbox outbox;
    if (!outbox_create(&outbox, &bench.model, outbox_form(&bench.config), NULL, error)) {
        return false;
    }
    outbox_destroy(&outbox);
    return true;
}

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

static bool given_up(void *context)
{
    (void)context;
    return true;
}

static bool try_batch_fetcher(struct error *error)
{
    static const struct examples like = {.inputs = 5, .numbers = 2, .codes = 2, .classes = 3};
    bool done = true;
    for (int i = 0; i < 2 && done; i++) {
        const struct batch_fetcher_options options = {.config = &bench.config,
                                                      .like = i == 0 ? NULL : &like,
                                                      .identity = &bench.identity,
                                                      .traffic = &bench.traffic,
                                                      .given_up = given_up};
        struct batch_fetcher *fetcher;
        done = batch_fetcher_create(&fetcher, &options, error);
        batch_fetcher_destroy(fetcher);
    }
    return done;
}

static bool knows(void *context, const char *digest)
{
    (void)context, (void)digest;
    return false;
}

static bool try_data_server(struct error *error)
{
    struct data_server *server;
    const bool done = data_server_create(&server, &bench.config, &bench.identity, &bench.dataset, knows, NULL, error);
    data_server_destroy(server);
    return done;
}

static bool try_chief(struct error *error)
{
    const struct chief_options options = {.config = &bench.config,
                                          .model = &bench.model,
                                          .identity = &bench.identity,
                                          .engine = &bench.engine,
                                          .dataset = &bench.dataset,
                                          .plan = &bench.plan,
                                          .traffic = &bench.traffic};
    struct chief *chief = NULL;
    const bool done = chief_create(&chief, &options, error);
    chief_destroy(done ? chief : NULL);
    return done;
}

/* Nothing is requested of the shards before there is memory for their answers. */
static void a_chief_without_memory(void)
{
    const struct chief_options options = {.config = &bench.config,
                                          .model = &bench.model,
                                          .identity = &bench.identity,
                                          .engine = &bench.engine,
                                          .dataset = &bench.dataset,
                                          .plan = &bench.plan,
                                          .traffic = &bench.traffic};
    struct chief *chief = NULL;
    struct chief_start found;
    struct error error;
    assert_true(chief_create(&chief, &options, &error));
    no_memory_from(1, 1);
    const enum exchange_result begun = chief_begin(chief, &found, &error);
    assert_int_equal(no_memory_end(), 1);
    assert_int_equal(begun, EXCHANGE_FAILED);
    assert_string_equal(error.text, "out of memory for the chief");
    error.text[0] = '\0';
    no_memory_from(1, 1);
    const bool restored = chief_restore(chief, &error);
    assert_int_equal(no_memory_end(), 1);
    assert_false(restored);
    assert_string_equal(error.text, "out of memory for the chief");
    chief_destroy(chief);
}

static const struct {
    const char *name;
    bool (*begin)(struct error *error);
    bool needs_all, has_thread; /* it needs all of its memory */
} parts[] = {{"push and pull", try_push_pull, true, false},
             {"outbox", try_outbox, true, false},
             {"pipeline", try_pipeline, true, true},
             {"heartbeat", try_heartbeat, false, true},
             {"batch fetcher", try_batch_fetcher, true, false},
             {"data server", try_data_server, false, true},
             {"chief", try_chief, false, false}};

/* --- Each of them --- */

static void try_part(size_t which)
{
    struct error error;
    int failures = 0;
    for (int at = 1; at < MOST_CALLS; at++) {
        error.text[0] = '\0';
        no_memory_from(at, 1);
        const bool done = parts[which].begin(&error);
        if (no_memory_end() < at) { /* none failed */
            assert_true(done);
            break;
        }
        failures += !done;
        assert_false(done && parts[which].needs_all);
        if (!done && !strstr(error.text, "out of memory")) {
            fail_msg("%s, allocation %d: %s", parts[which].name, at, error.text);
        }
    }
    if (failures == 0) {
        fail_msg("%s: begins without any memory", parts[which].name);
    }
    for (int at = 1; at < 3 && parts[which].has_thread; at++) {
        atomic_store(&threads, 0);
        atomic_store(&thread_fails_at, at);
        const bool done = parts[which].begin(&error);
        atomic_store(&thread_fails_at, NEVER);
        if (atomic_load(&threads) < at) {
            break;
        }
        assert_false(done);
        assert_non_null(strstr(error.text, "thread"));
    }
}

static void begin(const char *dtype)
{
    struct config_setting settings[] = {
        {"insecure", "true"},   {"layers", "6,20,3"},   {"ps_hosts", "127.0.0.1:1,127.0.0.1:2"},
        {"worker_hosts", NULL}, {"job_name", "worker"}, {"bind", "127.0.0.1"},
        {"batch_size", "4"},    {"wire_dtype", dtype}};
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
    bench.plan.last_step = 10;
    parameters = calloc(bench.model.float_count, sizeof *parameters);
}

static void one_allocation_fails(void **state)
{
    const char *const dtypes[] = {"float32", "bfloat16", "int8"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        begin(dtypes[i]);
        for (size_t which = 0; which < sizeof parts / sizeof *parts; which++) {
            try_part(which);
        }
        a_chief_without_memory();
        free(parameters);
        identity_destroy(&bench.identity);
        config_free(&bench.config);
        heard();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_allocation_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
