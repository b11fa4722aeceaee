/*
 * Load for one ps: as many workers as the config lists, each a thread that pushes a whole gradient and receives what
 * changed, again and again, without computing anything. It measures the ps, the protocol and TLS.
 *
 *     ps_load [--seconds=5] [--ps=0] [--pid=PID] FLAGS
 *
 * FLAGS are those that the ps was started with, so that both have the same job: with --issync=1 all push to one step
 * after another, and wait for it together. Prints one JSON object: rounds per second of all workers, of the slowest and
 * of the fastest, errors, and, given its process id, the memory of the ps next to the estimate. Exit status 1 if
 * anything failed.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/text/address.h"
#include "net/channel.h"
#include "net/handshake.h"
#include "ps/store/codec.h"
#include "ps/store/model.h"
#include "ps/identity.h"
#include "ps/server.h"
#include "ps/shard.h"

enum { MAX_SETTINGS = 64, FRAME_FLOATS = 256 * 1024, START_S = 60, ANSWER_S = 60, STACK = 256 * 1024 };
enum { PADDING_SENT = 32, RUN_FLOATS = 64 * 1024 };

struct load {
    struct config config;
    struct identity identity;
    struct model model;
    struct address address;
    int ps;
    double seconds;
    struct range *ranges; /* of the shard, as sent */
    uint32_t range_count;
    size_t floats, sent; /* without padding, and with it */
    pthread_barrier_t ready;
    double began_s;
    atomic_llong last_step; /* synchronous: the last step, once known */
};

struct worker {
    struct load *load;
    pthread_t thread;
    int index;
    struct hello_identity identity;
    struct channel channel;
    uint8_t *gradient;   /* as on the wire */
    uint8_t *parameters; /* received and discarded */
    uint64_t version;
    int64_t step;
    long rounds, retries;
    double seconds;
    bool failed;
    struct error error;
};

static double soon(void)
{
    return clock_monotonic_s() + ANSWER_S;
}

/* --- Start --- */

static bool connect_once(struct worker *worker)
{
    struct load *load = worker->load;
    struct connection *connection;
    const struct member ps = {MEMBER_PS, load->ps};
    struct peer peer;
    if (!connection_connect(&connection, &load->address, &ps, load->identity.credentials, NULL, soon(),
                            &worker->error)) {
        return false;
    }
    channel_open(&worker->channel, connection);
    struct error why_not = {""};
    if (handshake_connect(&worker->channel, &worker->identity, &ps, &peer, soon(), NULL, &worker->error) &&
        (!load->config.cluster.local || handshake_offer_memory(&worker->channel, soon(), &why_not, &worker->error))) {
        return why_not.text[0] == '\0' || error_set(&worker->error, "no shared memory: %s", why_not.text);
    }
    channel_close(&worker->channel);
    return false;
}

/* As real workers do: retries with growing delays. */
static bool connect_patiently(struct worker *worker)
{
    double deadline_s = clock_monotonic_s() + START_S;
    useconds_t pause_us = 20000;
    while (!connect_once(worker)) {
        if (worker->retries++ == 0 && worker->index == 0) {
            log_warning("worker 0 tries again: %s", worker->error.text);
        }
        if (clock_monotonic_s() > deadline_s) {
            return false;
        }
        usleep(pause_us + (useconds_t)(worker->index * 997) % pause_us);
        pause_us = pause_us < 1000000 ? pause_us * 2 : pause_us;
    }
    return true;
}

/* The chief's part: writes a model of zeros. */
static bool initialise(struct worker *worker)
{
    struct channel *channel = &worker->channel;
    const struct load *load = worker->load;
    const struct message_begin_restore begin = {.source = "zeros, to measure with"};
    const struct message_end_restore end = {.epoch_batches = 600};
    struct span spans[PLACEMENT_MAX_SPANS];
    int count = placement_spans(&load->model, load->config.cluster.placement, load->config.cluster.ps_hosts.count,
                                load->ps, spans);
    channel->generation++;
    if (!channel_call(channel, MESSAGE_begin_restore, &begin, MESSAGE_done, soon(), NULL, &worker->error)) {
        return false;
    }
    float *zeros = calloc(FRAME_FLOATS, sizeof *zeros);
    bool done = zeros;
    for (int i = 0; i < count; i++) {
        for (size_t at = 0; done && at < spans[i].count; at += FRAME_FLOATS) {
            uint8_t bytes[RANGE_BYTES];
            size_t left = spans[i].count - at;
            struct range range = {spans[i].first + at, (uint32_t)(left < FRAME_FLOATS ? left : FRAME_FLOATS)};
            struct message_write write = {.ranges = {bytes, 1}};
            struct iovec bulk = {zeros, range.count * sizeof *zeros};
            range_put(bytes, 0, range);
            const struct outgoing frame = {.type = MESSAGE_write,
                                           .request = ++channel->next_request,
                                           .more = true,
                                           .message = &write,
                                           .bulk = &bulk,
                                           .bulk_parts = 1};
            done = channel_send_frame(channel, &frame, soon(), &worker->error);
        }
    }
    free(zeros);
    return done && channel_call(channel, MESSAGE_end_restore, &end, MESSAGE_done, soon(), NULL, &worker->error);
}

static bool await_model(struct worker *worker)
{
    const struct message_get_model ask = {.wait_ms = START_S * 1000};
    if (!channel_call(&worker->channel, MESSAGE_get_model, &ask, MESSAGE_model, soon() + START_S, NULL,
                      &worker->error)) {
        return false;
    }
    worker->channel.generation = worker->channel.frame.generation;
    worker->version = 0;
    return worker->channel.message.model.state == 2 || error_set(&worker->error, "the model did not get ready");
}

/* --- Rounds --- */

static bool send_push(struct worker *worker, uint64_t request, const struct message_push *header)
{
    const struct load *load = worker->load;
    const size_t float_bytes = dtype_size((enum dtype)header->dtype);
    struct message_push push = *header;
    uint8_t *values = worker->gradient;
    uint32_t next = 0;
    while (next < load->range_count) {
        uint8_t bytes[512 * RANGE_BYTES];
        size_t floats = 0;
        push.ranges = (struct ranges){bytes, 0};
        while (next < load->range_count && push.ranges.count < 512 &&
               (floats == 0 || floats + load->ranges[next].count <= FRAME_FLOATS)) {
            range_put(bytes, push.ranges.count++, load->ranges[next]);
            floats += load->ranges[next++].count;
        }
        struct iovec bulk = {values, floats * float_bytes};
        values += bulk.iov_len;
        const struct outgoing frame = {.type = MESSAGE_push,
                                       .request = request,
                                       .more = next < load->range_count,
                                       .message = &push,
                                       .bulk = &bulk,
                                       .bulk_parts = 1};
        if (!channel_send_frame(&worker->channel, &frame, soon(), &worker->error)) {
            return false;
        }
    }
    return true;
}

static bool take_answer(struct worker *worker, uint64_t request, uint64_t sequence)
{
    struct channel *channel = &worker->channel;
    do {
        if (!channel_receive(channel, soon(), &worker->error)) {
            return false;
        }
        if (channel->frame.type == MESSAGE_ping || channel->frame.request != request) {
            continue;
        }
        if (channel->frame.type != MESSAGE_pushed) {
            return error_set(&worker->error, "answered by %s: %s", message_name(channel->frame.type),
                             channel->frame.type == MESSAGE_error ? channel->message.error.message : "");
        }
        const struct message_pushed *pushed = &channel->message.pushed;
        if (pushed->outcome != 0 || pushed->sequence != sequence) {
            return error_set(&worker->error, "push %llu: outcome %u", (unsigned long long)sequence, pushed->outcome);
        }
        worker->version = pushed->version;
        worker->step = pushed->global_step;
        while (channel->bulk_left > 0) {
            size_t most = worker->load->sent * sizeof(float);
            size_t size = channel->bulk_left < most ? channel->bulk_left : most;
            if (!channel_read_bulk(channel, worker->parameters, size, soon(), &worker->error)) {
                return false;
            }
        }
    } while ((channel->frame.flags & FRAME_LAST) == 0);
    return true;
}

static bool push_once(struct worker *worker)
{
    const uint8_t dtype = worker->load->config.cluster.wire_dtype == WIRE_BFLOAT16;
    const struct message_push push = {
        .sequence = (uint64_t)worker->rounds + 1,
        .base_version = worker->version,
        .base_step = worker->step,
        .token = worker->load->config.cluster.issync ? worker->step : -1,
        .local_step = worker->rounds,
        .examples = 100,
        .answer_dtype = dtype,
        .dtype = dtype,
    };
    const uint64_t request = ++worker->channel.next_request;
    return send_push(worker, request, &push) && take_answer(worker, request, push.sequence);
}

/*
 * A synchronous step needs all workers: worker 0 announces the last step before it pushes to it, so that none can be
 * past it.
 */
static bool goes_on(struct worker *worker)
{
    struct load *load = worker->load;
    const bool is_over = clock_monotonic_s() >= load->began_s + load->seconds;
    if (!load->config.cluster.issync) {
        return !is_over;
    }
    if (worker->index == 0 && is_over && atomic_load(&load->last_step) > worker->step) {
        atomic_store(&load->last_step, worker->step);
    }
    return worker->step <= atomic_load(&load->last_step);
}

static void leave(struct worker *worker)
{
    const struct message_leave message = {.message = "measured"};
    const struct message_end_job end = {.job_state = 3, .global_step = worker->step};
    pthread_barrier_wait(&worker->load->ready);
    if (worker->index == 0 && !worker->failed) {
        worker->failed =
            !channel_call(&worker->channel, MESSAGE_end_job, &end, MESSAGE_done, soon(), NULL, &worker->error);
    }
    if (!worker->failed) {
        worker->failed =
            !channel_call(&worker->channel, MESSAGE_leave, &message, MESSAGE_done, soon(), NULL, &worker->error);
    }
}

static void *work(void *context)
{
    struct worker *worker = context;
    struct load *load = worker->load;
    worker->failed = !connect_patiently(worker) || (worker->index == 0 && !initialise(worker)) || !await_model(worker);
    pthread_barrier_wait(&load->ready); /* all are connected */
    pthread_barrier_wait(&load->ready); /* the clock is running */
    while (!worker->failed && goes_on(worker)) {
        worker->failed = !push_once(worker);
        worker->rounds += !worker->failed;
    }
    worker->seconds = clock_monotonic_s() - load->began_s;
    pthread_barrier_wait(&load->ready); /* the report reads the ps's memory before any worker leaves */
    leave(worker);
    if (worker->failed) {
        log_error("worker %d: %s", worker->index, worker->error.text);
    }
    channel_close(&worker->channel);
    return NULL;
}

/* --- Set-up and report --- */

/* As a worker's outbox does: neighbouring rows are one range, with the padding between them. */
static void add_row(struct load *load, size_t first, uint32_t cols)
{
    struct range *last = load->range_count > 0 ? &load->ranges[load->range_count - 1] : NULL;
    load->floats += cols;
    if (last && first - last->first - last->count <= PADDING_SENT && last->count < RUN_FLOATS) {
        load->sent += first + cols - last->first - last->count;
        last->count = (uint32_t)(first + cols - last->first);
    } else {
        load->sent += cols;
        load->ranges[load->range_count++] = (struct range){first, cols};
    }
}

static bool list_rows(struct load *load)
{
    struct span spans[PLACEMENT_MAX_SPANS];
    int count = placement_spans(&load->model, load->config.cluster.placement, load->config.cluster.ps_hosts.count,
                                load->ps, spans);
    size_t rows = 0;
    for (int i = 0; i < load->model.variable_count; i++) {
        rows += (size_t)load->model.variables[i].rows;
    }
    load->ranges = calloc(rows, sizeof *load->ranges);
    for (int i = 0; load->ranges && i < load->model.variable_count; i++) {
        const struct variable *variable = &load->model.variables[i];
        for (int row = 0; row < variable->rows; row++) {
            size_t first = variable->offset + (size_t)row * (size_t)variable->stride;
            for (int k = 0; k < count; k++) {
                if (first >= spans[k].first && first < spans[k].first + spans[k].count) {
                    add_row(load, first, (uint32_t)variable->cols);
                }
            }
        }
    }
    return load->ranges;
}

static bool create_worker(struct load *load, struct worker *worker, int index)
{
    pthread_attr_t attributes;
    *worker = (struct worker){.load = load, .index = index, .identity = load->identity.hello};
    worker->identity.member = (struct member){MEMBER_WORKER, index};
    worker->identity.incarnation = handshake_new_incarnation();
    /* Tiny numbers in either type: 0x01010101 is 2.4e-38, 0x0101 likewise. */
    size_t bytes = load->sent * sizeof(float);
    worker->gradient = malloc(bytes);
    worker->parameters = malloc(bytes);
    if (!worker->gradient || !worker->parameters) {
        return false;
    }
    memset(worker->gradient, 1, bytes);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    bool started = pthread_create(&worker->thread, &attributes, work, worker) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

/* VmHWM of a process, in bytes; 0 if there is none. */
static size_t memory_of(const char *pid)
{
    char path[64], line[256];
    size_t kilobytes = 0;
    snprintf(path, sizeof path, "/proc/%.20s/status", pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        sscanf(line, "VmHWM: %zu", &kilobytes);
    }
    if (file) {
        fclose(file);
    }
    return kilobytes * 1024;
}

static bool report(const struct load *load, struct worker *workers, int count, size_t ps_memory)
{
    double total = 0.0, slowest = 1e30, fastest = 0.0;
    long retries = 0;
    int failed = 0;
    for (int i = 0; i < count; i++) {
        double rate = (double)workers[i].rounds / workers[i].seconds;
        total += rate;
        slowest = rate < slowest ? rate : slowest;
        fastest = rate > fastest ? rate : fastest;
        retries += workers[i].retries;
        failed += workers[i].failed;
    }
    printf("{\"workers\":%d,\"floats\":%zu,\"rounds_per_s\":%.1f,\"slowest\":%.2f,\"fastest\":%.2f,\"failed\":%d,"
           "\"connects_tried_again\":%ld,\"cipher\":\"%s\",\"dtype\":\"%s\",\"ps_shard_bytes\":%zu,"
           "\"ps_predicted_bytes\":%zu,\"ps_peak_bytes\":%zu}\n",
           count, load->floats, total, slowest, fastest, failed, retries,
           load->identity.credentials ? "TLS 1.3" : "plain TCP",
           load->config.cluster.wire_dtype == WIRE_BFLOAT16 ? "bfloat16" : "float32",
           shard_memory(&load->model, &load->config, load->ps),
           server_memory(&load->model, &load->config, load->ps, count), ps_memory);
    return failed == 0;
}

static bool run(struct load *load, const char *pid)
{
    int count = load->config.cluster.worker_hosts.count;
    struct worker *workers = calloc((size_t)count, sizeof *workers);
    pthread_barrier_init(&load->ready, NULL, (unsigned)count + 1);
    for (int i = 0; i < count; i++) {
        if (!workers || !create_worker(load, &workers[i], i)) {
            log_error("worker %d could not be started", i);
            exit(1);
        }
    }
    pthread_barrier_wait(&load->ready);
    load->began_s = clock_monotonic_s();
    pthread_barrier_wait(&load->ready);
    pthread_barrier_wait(&load->ready);
    size_t ps_memory = pid ? memory_of(pid) : 0;
    pthread_barrier_wait(&load->ready);
    for (int i = 0; i < count; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    bool good = report(load, workers, count, ps_memory);
    for (int i = 0; i < count; i++) {
        free(workers[i].gradient);
        free(workers[i].parameters);
    }
    free(workers);
    pthread_barrier_destroy(&load->ready);
    return good;
}

int main(int argc, char **argv)
{
    struct load load = {.seconds = 5, .last_step = INT64_MAX};
    struct config_setting settings[MAX_SETTINGS];
    struct error error;
    const char *pid = NULL;
    int count = 0;
    bool good = false;
    log_setup(LOG_TEXT, LOG_INFO);
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (strncmp(argv[i], "--", 2) != 0 || count == MAX_SETTINGS) {
            log_error("%s: only flags, written --name=value", argv[i]);
            return 2;
        }
        const char *text = value ? value + 1 : "true";
        if (value) {
            *value = '\0';
        }
        if (strcmp(argv[i], "--seconds") == 0) {
            load.seconds = strtod(text, NULL);
        } else if (strcmp(argv[i], "--ps") == 0) {
            load.ps = atoi(text); /* NOLINT(cert-err34-c): a wrong one finds no ps */
        } else if (strcmp(argv[i], "--pid") == 0) {
            pid = text;
        } else {
            settings[count++] = (struct config_setting){argv[i] + 2, text};
        }
    }
    if (config_load(&load.config, NULL, settings, count, &error) &&
        identity_create(&load.identity, &load.config, (struct member){MEMBER_WORKER, MEMBER_ANY_INDEX}, &error) &&
        (load.ps < load.config.cluster.ps_hosts.count || error_set(&error, "there is no ps %d", load.ps)) &&
        address_parse(load.config.cluster.ps_hosts.items[load.ps], &load.address, &error)) {
        model_layout(&load.model, &load.config.model);
        good = list_rows(&load) && run(&load, pid);
    } else {
        log_error("%s", error.text);
    }
    free(load.ranges);
    identity_destroy(&load.identity);
    config_free(&load.config);
    return good ? 0 : 1;
}
