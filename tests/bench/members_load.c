/*
 * Load for one ps: idle members. Each has the connections of a real worker, with the real protocol, TLS and pace: one
 * sends heartbeats, one waits to be selected for a round, one reports to ps 0. No round is ever made. Measure their
 * cost to the ps from outside.
 *
 *     members_load [--first=1] [--members=1000] [--links=beat,wait,report] FLAGS
 *
 * FLAGS are those that the ps was started with, so that both have the same job. The workers are `first` and those after
 * it. Prints "ready" once all are connected, continues until standard input ends, and prints one JSON object: seconds
 * since then, and the number of answers of each kind. Exit status 1 if a connection was lost.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/text/address.h"
#include "net/channel.h"
#include "net/handshake.h"
#include "ps/identity.h"
#include "ps/job/job.h"
#include "ps/store/model.h"

enum { MAX_SETTINGS = 64, THREADS = 4, START_S = 300, ANSWER_S = 60, AT_A_TIME = 256, STACK = 1 << 20 };

static const double LOOK_S = 0.02; /* between two checks for what is due */

enum kind { BEAT, WAIT, REPORT, KINDS };
static const char *const kind_names[] = {"beat", "wait", "report"};

struct load {
    struct config config;
    struct identity identity;
    struct model model;
    struct address address;
    uint64_t first_float;
    int first, members;
    bool has[KINDS];
    double every_s[KINDS];
    pthread_barrier_t ready;
    atomic_bool over, failed;
};

struct member_link {
    struct channel channel;
    enum kind kind;
    int index;
    double due_s; /* INFINITY: it waits for an answer, or was selected for a round, which it never makes */
};

struct player { /* plays some of the members, on a thread */
    struct load *load;
    pthread_t thread;
    struct member_link *links;
    int count, set;
    long answers[KINDS];
    struct error error;
};

static double soon(void)
{
    return clock_monotonic_s() + ANSWER_S;
}

static bool connect_link(const struct load *load, struct member_link *link, uint64_t incarnation, struct error *error)
{
    const struct member ps = {MEMBER_PS, 0};
    struct hello_identity hello = load->identity.hello;
    struct connection *connection;
    struct peer peer;
    hello.member = (struct member){MEMBER_WORKER, link->index};
    hello.incarnation = incarnation;
    if (link->kind == REPORT) { /* like an agent */
        hello.digest = hello.job = "";
    }
    if (!connection_connect(&connection, &load->address, &ps, load->identity.credentials, NULL, soon(), error)) {
        return false;
    }
    channel_open(&link->channel, connection);
    if (!handshake_connect(&link->channel, &hello, &ps, &peer, soon(), NULL, error)) {
        channel_close(&link->channel);
        return false;
    }
    return true;
}

static bool connect_patiently(const struct load *load, struct member_link *link, uint64_t incarnation,
                              struct error *error)
{
    const double deadline_s = clock_monotonic_s() + START_S;
    while (!connect_link(load, link, incarnation, error)) {
        if (clock_monotonic_s() > deadline_s) {
            return false;
        }
        usleep(100000);
    }
    return true;
}

static bool ask(const struct load *load, struct member_link *link, struct error *error)
{
    struct channel *channel = &link->channel;
    uint8_t bytes[RANGE_BYTES];
    const uint64_t request = ++channel->next_request;
    link->due_s = INFINITY;
    switch (link->kind) {
    case BEAT:
        return channel_send(channel, MESSAGE_heartbeat, request,
                            &(struct message_heartbeat){
                                .state = STATE_WAITING, .loss = NAN, .host = "here", .device = "none", .message = ""},
                            soon(), error);
    case WAIT:
        range_put(bytes, 0, (struct range){load->first_float, 1});
        return channel_send(channel, MESSAGE_pull, request,
                            &(struct message_pull){.after_step = JOB_MAX_STEP,
                                                   .wait_ms = (uint32_t)(load->every_s[WAIT] * 1e3),
                                                   .ranges = {.bytes = bytes, .count = 1}},
                            soon(), error);
    default:
        return channel_send(channel, MESSAGE_report, request,
                            &(struct message_report){.version = (uint64_t)load->config.fleet.version,
                                                     .ready = 1,
                                                     .loss = -1,
                                                     .digest = load->identity.digest,
                                                     .message = ""},
                            soon(), error);
    }
}

/* Handles an answer, or a ping, which gets its pong. */
static bool take_frame(struct player *player, struct member_link *link)
{
    struct channel *channel = &link->channel;
    const double now_s = clock_monotonic_s();
    if (!channel_receive(channel, soon(), &player->error)) {
        return false;
    }
    switch (channel->frame.type) {
    case MESSAGE_ping:
        return channel_send(channel, MESSAGE_pong, channel->frame.request,
                            &(struct message_pong){channel->message.ping.nonce}, soon(), &player->error);
    case MESSAGE_values: {
        float unused;
        link->due_s = channel->message.values.token >= 0 ? INFINITY : now_s;
        player->answers[WAIT]++;
        return channel->bulk_left != sizeof unused ||
               channel_read_bulk(channel, &unused, sizeof unused, soon(), &player->error);
    }
    case MESSAGE_lease:
    case MESSAGE_rollout:
        link->due_s = now_s + player->load->every_s[link->kind];
        player->answers[link->kind]++;
        return true;
    default:
        return error_set(&player->error, "%s says %s%s%s", connection_name(channel->connection),
                         message_name(channel->frame.type), channel->frame.type == MESSAGE_error ? ": " : "",
                         channel->frame.type == MESSAGE_error ? channel->message.error.message : "");
    }
}

/* Handles what has arrived on an idle link; if nothing has, sends the request that is due. */
static bool serve_link(struct player *player, struct member_link *link, bool came)
{
    bool ready = came;
    if (!channel_resume(&link->channel, &player->error) || (!came && !ask(player->load, link, &player->error))) {
        return false;
    }
    while (ready) {
        if (!connection_wait(link->channel.connection, 0, &ready, &player->error) ||
            (ready && !take_frame(player, link))) {
            return false;
        }
    }
    return channel_park(&link->channel) || error_set(&player->error, "half a frame came at once");
}

static bool begin_link(struct player *player, struct member_link *link, double now_s)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
    /* Spread over time: real workers connect one after another. */
    link->due_s = now_s + (link->kind == WAIT ? 0 : player->load->every_s[link->kind]) * (double)rand() / RAND_MAX;
    return channel_park(&link->channel) &&
           epoll_ctl(player->set, EPOLL_CTL_ADD, connection_fd(link->channel.connection), &event) == 0;
}

/* Handles what arrives within that time, and what is due. */
static bool play(struct player *player, double wait_s)
{
    struct epoll_event events[AT_A_TIME];
    bool good = true;
    const int came = epoll_wait(player->set, events, AT_A_TIME, (int)(wait_s * 1e3));
    for (int i = 0; i < came && good; i++) {
        good = serve_link(player, events[i].data.ptr, true);
    }
    const double now_s = clock_monotonic_s();
    for (int i = 0; i < player->count && good; i++) {
        good = player->links[i].due_s > now_s || serve_link(player, &player->links[i], false);
    }
    return good;
}

static void *play_all(void *context)
{
    struct player *player = context;
    struct load *load = player->load;
    bool good = true;
    uint64_t incarnation = 0;
    for (int i = 0; i < player->count && good; i++) {
        struct member_link *link = &player->links[i];
        incarnation = i > 0 && link->index == link[-1].index ? incarnation : handshake_new_incarnation();
        good =
            connect_patiently(load, link, incarnation, &player->error) && begin_link(player, link, clock_monotonic_s());
        good = good && play(player, 0); /* leases are short compared with the time until all are connected */
    }
    if (!good) {
        log_error("%s", player->error.text);
        atomic_store(&load->failed, true);
    }
    pthread_barrier_wait(&load->ready);
    memset(player->answers, 0, sizeof player->answers);
    while (good && !atomic_load(&load->over)) {
        good = play(player, LOOK_S);
    }
    if (!good) {
        log_error("%s", player->error.text);
        atomic_store(&load->failed, true);
    }
    return NULL;
}

static bool create_player(struct load *load, struct player *player, int number)
{
    const int from = load->members * number / THREADS, to = load->members * (number + 1) / THREADS;
    pthread_attr_t attributes;
    *player = (struct player){.load = load, .set = epoll_create1(EPOLL_CLOEXEC)};
    player->links = calloc((size_t)(to - from) * KINDS, sizeof *player->links);
    if (!player->links || player->set < 0) {
        return false;
    }
    for (int i = from; i < to; i++) {
        for (int kind = 0; kind < KINDS; kind++) {
            if (load->has[kind]) {
                player->links[player->count++] =
                    (struct member_link){.kind = kind, .index = load->first + i, .due_s = INFINITY};
            }
        }
    }
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    const bool started = pthread_create(&player->thread, &attributes, play_all, player) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

static void report(const struct player *players, double seconds)
{
    printf("{\"seconds\":%.2f", seconds);
    for (int kind = 0; kind < KINDS; kind++) {
        long answers = 0;
        for (int i = 0; i < THREADS; i++) {
            answers += players[i].answers[kind];
        }
        printf(",\"%s\":%ld", kind_names[kind], answers);
    }
    printf("}\n");
}

static bool run(struct load *load)
{
    struct player players[THREADS];
    pthread_barrier_init(&load->ready, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) {
        if (!create_player(load, &players[i], i)) {
            log_error("out of memory or threads");
            exit(1);
        }
    }
    pthread_barrier_wait(&load->ready);
    const double began_s = clock_monotonic_s();
    printf("ready\n");
    fflush(stdout);
    while (!atomic_load(&load->failed) && getchar() != EOF) {
    }
    atomic_store(&load->over, true);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(players[i].thread, NULL);
    }
    report(players, clock_monotonic_s() - began_s);
    for (int i = 0; i < THREADS; i++) {
        for (int k = 0; k < players[i].count; k++) {
            channel_close(&players[i].links[k].channel);
        }
        close(players[i].set);
        free(players[i].links);
    }
    pthread_barrier_destroy(&load->ready);
    return !atomic_load(&load->failed);
}

static bool prepare(struct load *load, struct error *error)
{
    const struct config_cluster *cluster = &load->config.cluster;
    struct span spans[PLACEMENT_MAX_SPANS];
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (!identity_create(&load->identity, &load->config, (struct member){MEMBER_WORKER, MEMBER_ANY_INDEX}, error) ||
        !address_parse(cluster->ps_hosts.items[0], &load->address, error)) {
        return false;
    }
    model_layout(&load->model, &load->config.model);
    placement_spans(&load->model, cluster->placement, cluster->ps_hosts.count, 0, spans);
    load->first_float = spans[0].first;
    load->every_s[BEAT] = pace_beat_s(cluster);
    load->every_s[WAIT] = pace_round_s(cluster);
    load->every_s[REPORT] = pace_report_s(cluster);
    return true;
}

/* A flag of this program; false: it is the ps's. */
static bool take_flag(struct load *load, const char *name, const char *value)
{
    if (strcmp(name, "--first") == 0) {
        load->first = (int)strtol(value, NULL, 10);
    } else if (strcmp(name, "--members") == 0) {
        load->members = (int)strtol(value, NULL, 10);
    } else if (strcmp(name, "--links") == 0) {
        for (int kind = 0; kind < KINDS; kind++) {
            load->has[kind] = strstr(value, kind_names[kind]);
        }
    } else {
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct load load = {.first = 1, .members = 1000, .has = {true, true, true}};
    struct config_setting settings[MAX_SETTINGS];
    struct error error;
    int count = 0;
    bool good = false;
    log_setup(LOG_TEXT, LOG_INFO);
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (strncmp(argv[i], "--", 2) != 0 || !value || count == MAX_SETTINGS) {
            log_error("%s: only flags, written --name=value", argv[i]);
            return 2;
        }
        *value++ = '\0';
        if (!take_flag(&load, argv[i], value)) {
            settings[count++] = (struct config_setting){argv[i] + 2, value};
        }
    }
    if (config_load(&load.config, NULL, settings, count, &error) && prepare(&load, &error)) {
        good = run(&load);
    } else {
        log_error("%s", error.text);
    }
    identity_destroy(&load.identity);
    config_free(&load.config);
    return good ? 0 : 1;
}
