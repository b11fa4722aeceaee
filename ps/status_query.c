/*
 * All ps are asked at once, each on a thread of its own, since one that hangs must not hold up the others. Each says
 * how it is and what it knows of the workers; of what several say about one worker the freshest counts, and ps 0
 * knows best which version of the config it is in.
 */
#include "ps/status_query.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/link.h"
#include "ps/status.h"

/* What one ps is asked, on a thread of its own. */
struct member_query {
    struct status_query *query;
    struct link link;
    struct board_member *entries; /* [members] */
    double timeout_s;
    pthread_t thread;
    bool has_thread;
};

struct status_query {
    const struct config *config;
    struct identity identity; /* an operator's; zeros for a member */
    struct introduction self;
    struct traffic traffic;
    struct wake wake;
    bool is_member;
    int own_ps;                   /* asks the others, about themselves alone; -1: about everybody */
    struct member_query *asked;   /* [ps_count] */
    struct board_member *answers; /* [ps_count, members]: who says what */
    struct board_member *entries; /* [members] */
    int ps_count, members;
};

static bool create(struct status_query *query, struct error *error)
{
    const struct config *config = query->config;
    query->ps_count = config->cluster.ps_hosts.count;
    query->members = query->ps_count;
    if (query->own_ps < 0) { /* this machine's config may not say that the job is elastic */
        query->members += config->cluster.worker_hosts.count + config->cluster.elastic_workers;
    }
    query->asked = calloc((size_t)query->ps_count, sizeof *query->asked);
    query->answers = calloc((size_t)query->ps_count * (size_t)query->members, sizeof *query->answers);
    query->entries = calloc((size_t)query->members, sizeof *query->entries);
    if (!query->asked || !query->answers || !query->entries || !wake_create(&query->wake, error)) {
        return error_set(error, "out of memory to ask how the members are");
    }
    for (int i = 0; i < query->ps_count; i++) {
        struct member_query *one = &query->asked[i];
        const struct link_options options = {.peer = {MEMBER_PS, i},
                                             .self = query->self,
                                             .traffic = &query->traffic,
                                             .wake = &query->wake,
                                             .longest_delay_s = config->cluster.recovery_wait_secs,
                                             .quiet = true,
                                             .retries_refusals = query->is_member};
        const char *host = config->cluster.ps_hosts.items[i];
        one->query = query;
        one->entries = query->answers + (size_t)i * (size_t)query->members;
        if (!link_create(&one->link, host, &options, error)) {
            return error_wrap(error, "cluster.ps_hosts: %s", host);
        }
    }
    return true;
}

static bool finish(struct status_query **out, struct status_query *query, bool done, struct error *error)
{
    if (!done || !create(query, error)) {
        status_query_destroy(query);
        return false;
    }
    *out = query;
    return true;
}

bool status_query_create(struct status_query **out, const struct config *config, struct error *error)
{
    struct status_query *query = calloc(1, sizeof *query);
    if (!query) {
        return error_set(error, "out of memory");
    }
    query->config = config;
    query->own_ps = -1;
    query->wake.fd = -1;
    const bool done =
        identity_create(&query->identity, config, (struct member){MEMBER_OPERATOR, MEMBER_ANY_INDEX}, error);
    /* Asking takes no config of the job. */
    query->identity.hello.digest = "";
    query->identity.hello.job = "";
    query->self = identity_introduction(&query->identity);
    return finish(out, query, done, error);
}

bool status_query_create_for(struct status_query **out, const struct config *config, const struct identity *identity,
                             struct error *error)
{
    const struct member who = identity->hello.member;
    struct status_query *query = calloc(1, sizeof *query);
    if (!query) {
        return error_set(error, "out of memory");
    }
    query->config = config;
    query->own_ps = who.role == MEMBER_PS ? who.index : -1;
    query->wake.fd = -1;
    query->is_member = true;
    query->self = identity_guest(identity);
    return finish(out, query, true, error);
}

void status_query_interrupt(struct status_query *query)
{
    wake_raise(&query->wake);
}

void status_query_destroy(struct status_query *query)
{
    if (query) {
        for (int i = 0; query->asked && i < query->ps_count; i++) {
            link_destroy(&query->asked[i].link);
        }
        identity_destroy(&query->identity);
        wake_destroy(&query->wake);
        free(query->asked);
        free(query->answers);
        free(query->entries);
        free(query);
    }
}

/* As if nobody had answered. */
static void clear_entries(const struct status_query *query, struct board_member *entries)
{
    for (int i = 0; i < query->members; i++) {
        bool is_ps = i < query->ps_count;
        int index = is_ps ? i : i - query->ps_count;
        const struct config_cluster *cluster = &query->config->cluster;
        const struct message_status nothing = {.role = is_ps ? MEMBER_PS : MEMBER_WORKER,
                                               .index = index,
                                               .state = STATE_ABSENT,
                                               .silent_ms = UINT32_MAX,
                                               .global_step = -1,
                                               .local_step = -1,
                                               .loss = NAN,
                                               .cpu_percent = NAN,
                                               .gpu_percent = NAN,
                                               .digest = "",
                                               .program = "",
                                               .host = "",
                                               .device = "",
                                               .message = ""};
        status_show(&entries[i], &nothing, is_ps ? cluster->ps_hosts.items[index] : config_worker_host(cluster, index));
    }
}

static void take_answer(const struct status_query *query, struct board_member *entries,
                        const struct message_status *status)
{
    int count = status->role == MEMBER_PS ? query->ps_count : query->members - query->ps_count;
    if ((status->role != MEMBER_PS && status->role != MEMBER_WORKER) || status->index < 0 || status->index >= count) {
        return; /* it was given other hosts than we were; the missing ones will show */
    }
    struct board_member *entry = &entries[status->index + (status->role == MEMBER_PS ? 0 : query->ps_count)];
    char address[sizeof entry->address];
    snprintf(address, sizeof address, "%s", entry->address);
    status_show(entry, status, address);
}

static void take_rounds(const struct status_query *query, struct board_member *entries,
                        const struct message_rounds *rounds)
{
    if (rounds->worker >= 0 && rounds->worker < query->members - query->ps_count) {
        status_show_rounds(&entries[query->ps_count + rounds->worker], rounds);
    }
}

/* All of them, and rounds too if the ps is of a version that tells of these. */
static uint8_t members_wanted(const struct member_query *one)
{
    const bool has_rounds = one->link.channel.version >= PROTOCOL_ROUNDS;
    return one->query->own_ps >= 0 ? 0 : has_rounds ? 2 : 1;
}

static bool ask(struct member_query *one, struct error *error)
{
    double deadline_s = clock_monotonic_s() + one->timeout_s;
    struct channel *channel = &one->link.channel;
    struct message_get_status request;
    one->link.timeout_s = one->timeout_s;
    one->link.next_try_s = 0;
    if (link_try(&one->link, error) != LINK_OPEN) {
        return false;
    }
    request.members = members_wanted(one);
    if (!channel_call(channel, MESSAGE_get_status, &request, MESSAGE_status, deadline_s, NULL, error)) {
        return false;
    }
    take_answer(one->query, one->entries, &channel->message.status);
    while (!(channel->frame.flags & FRAME_LAST)) {
        if (!channel_receive(channel, deadline_s, error)) {
            return false;
        }
        if (channel->frame.type == MESSAGE_rounds) {
            take_rounds(one->query, one->entries, &channel->message.rounds);
            continue;
        }
        if (channel->frame.type != MESSAGE_status) {
            return error_set(error, "%s: answered get_status by %s", one->link.name, message_name(channel->frame.type));
        }
        take_answer(one->query, one->entries, &channel->message.status);
    }
    return true;
}

static void *ask_one(void *context)
{
    struct member_query *one = context;
    struct error error;
    clear_entries(one->query, one->entries);
    if (!ask(one, &error)) {
        link_close(&one->link);
        struct board_member *own = &one->entries[one->link.member.index];
        snprintf(own->state, sizeof own->state, "%s", member_state_name(STATE_ABSENT));
        own->is_missing = true;
        snprintf(own->message, sizeof own->message, "%.255s", error.text);
    }
    return NULL;
}

static void ask_all(struct status_query *query, double timeout_s)
{
    for (int i = 0; i < query->ps_count; i++) {
        struct member_query *one = &query->asked[i];
        one->timeout_s = timeout_s;
        one->has_thread = false;
        if (i == query->own_ps) {
            clear_entries(query, one->entries);
            continue;
        }
        one->has_thread = query->ps_count > 1 && pthread_create(&one->thread, NULL, ask_one, one) == 0;
        if (!one->has_thread) {
            ask_one(one);
        }
    }
    for (int i = 0; i < query->ps_count; i++) {
        if (query->asked[i].has_thread) {
            pthread_join(query->asked[i].thread, NULL);
        }
    }
}

static bool is_fresher(const struct board_member *a, const struct board_member *b)
{
    return a->silent_ms >= 0 && (b->silent_ms < 0 || a->silent_ms < b->silent_ms);
}

static bool is_absent(const struct board_member *member)
{
    return strcmp(member->state, member_state_name(STATE_ABSENT)) == 0;
}

static bool is_waiting(const struct board_member *member)
{
    return strcmp(member->state, member_state_name(STATE_WAITING)) == 0;
}

/*
 * The freshest answer about a worker, but a worker that one ps makes wait stands still, whatever it told the others a
 * moment later, and of its rounds only the ps that decides on them knows.
 */
static void merge_worker(struct board_member *entry, const struct board_member *told)
{
    const struct board_rounds rounds = entry->rounds.asked > 0 ? entry->rounds : told->rounds;
    bool waits = is_waiting(told) || is_waiting(entry);
    if (is_fresher(told, entry)) {
        *entry = *told;
    }
    entry->rounds = rounds;
    if (waits) {
        snprintf(entry->state, sizeof entry->state, "%s", member_state_name(STATE_WAITING));
    }
}

/* Of what the ps say: each about itself, and the freshest about each worker. */
static void merge_answers(struct status_query *query)
{
    clear_entries(query, query->entries);
    for (int i = 0; i < query->ps_count; i++) {
        const struct board_member *told = query->asked[i].entries;
        query->entries[i] = told[i];
        for (int k = query->ps_count; k < query->members; k++) {
            merge_worker(&query->entries[k], &told[k]);
        }
    }
    for (int k = query->ps_count; k < query->members;
         k++) { /* ps 0 hears of versions by reports, others at hello only */
        const struct board_member *told = &query->asked[0].entries[k];
        if (told->silent_ms >= 0) {
            query->entries[k].config_version = told->config_version;
            query->entries[k].has_version = told->has_version;
            memcpy(query->entries[k].digest, told->digest, sizeof told->digest);
        }
    }
}

const struct board_member *status_query_ask(struct status_query *query, double timeout_s, int *count)
{
    ask_all(query, timeout_s);
    merge_answers(query);
    *count = query->own_ps >= 0 ? query->ps_count : query->ps_count + query->config->cluster.worker_hosts.count;
    for (int i = *count; i < query->members; i++) { /* of workers that are not listed, those that joined */
        if (!is_absent(&query->entries[i])) {
            query->entries[(*count)++] = query->entries[i];
        }
    }
    return query->entries;
}
