/* The status of a cluster's members: converted for display, and queried from its ps. */
#include "ps/status.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "net/link.h"
#include "net/member.h"
#include "net/socket.h"

/* --- For display --- */

static const char *link_name(uint8_t link)
{
    static const char *const names[] = {
        [STATUS_LINK_UNKNOWN] = "",
        [STATUS_LINK_PLAIN] = "plain text",
        [STATUS_LINK_TLS] = "TLS",
        [STATUS_LINK_MEMORY] = "shared memory",
    };
    return link < sizeof names / sizeof *names ? names[link] : "";
}

void status_show(struct board_member *member, const struct message_status *status, const char *address)
{
    *member =
        (struct board_member){.task = status->index,
                              .is_missing = status->state == STATE_ABSENT || status->state == STATE_LOST,
                              .silent_ms = status->silent_ms == UINT32_MAX ? -1 : (int64_t)status->silent_ms,
                              .global_step = status->global_step,
                              .local_step = status->local_step,
                              .config_version = status->digest[0] != '\0' ? (int64_t)status->fleet_version : -1,
                              .generation = (int)status->generation,
                              .staleness = (int)status->staleness,
                              .steps_per_s = (double)status->steps_per_s,
                              .loss = (double)status->loss,
                              .dropped = status->dropped,
                              .retries = status->retries,
                              .bytes_in = status->bytes_in,
                              .bytes_out = status->bytes_out,
                              .memory_bytes = status->memory_bytes > 0 ? (double)status->memory_bytes : (double)NAN,
                              .cpu_percent = (double)status->cpu_percent,
                              .gpu_percent = (double)status->gpu_percent};
    snprintf(member->role, sizeof member->role, "%s", status->role == MEMBER_PS ? "ps" : "worker");
    snprintf(member->address, sizeof member->address, "%s", address);
    snprintf(member->host, sizeof member->host, "%s", status->host);
    snprintf(member->state, sizeof member->state, "%s", member_state_name((enum member_state)status->state));
    snprintf(member->device, sizeof member->device, "%s", status->device);
    snprintf(member->program, sizeof member->program, "%.64s", status->program);
    snprintf(member->digest, sizeof member->digest, "%.64s", status->digest);
    snprintf(member->message, sizeof member->message, "%.255s", status->message);
    snprintf(member->link, sizeof member->link, "%s", link_name(status->link));
}

void status_show_rounds(struct board_member *member, const struct message_rounds *rounds)
{
    if (rounds->asked > 0) {
        member->rounds = (struct board_rounds){.is_asked = rounds->is_asked == 1,
                                               .asked = (int64_t)rounds->asked,
                                               .counted = (int64_t)rounds->counted,
                                               .late = (int64_t)rounds->late,
                                               .missed = (int64_t)rounds->missed,
                                               .cosine = (double)rounds->cosine,
                                               .norm = (double)rounds->norm};
    }
    if (rounds->validated > 0) {
        member->own = (struct board_own){.examples = (int64_t)rounds->validated,
                                         .step = rounds->validated_step,
                                         .score = (double)rounds->score,
                                         .is_worst = rounds->is_worst == 1};
    }
}

/* --- Querying the ps once --- */

/*
 * The ps, then the workers by index: the listed ones, and those beyond that an answer has named, which this machine's
 * config need not know.
 */
struct member_list {
    struct board_member *entries; /* [room] */
    int count, room;
};

/* The query of one ps, on its own thread. */
struct member_query {
    struct status_query *query;
    struct link link;
    struct member_list reply;
    double timeout_s;
    pthread_t thread;
    bool has_thread;
};

struct status_query {
    const struct config *config;
    struct identity identity; /* an operator's; zeros for a member */
    struct hello_options self;
    struct traffic traffic;
    struct wake wake;
    bool is_member;
    int own_ps;                 /* queries the others, about themselves only; -1: about all */
    struct member_query *asked; /* [ps_count] */
    struct member_list merged;
    int ps_count, listed; /* listed: all ps, and workers unless only ps are asked about */
};

/* As if nobody had reported on it. */
static void clear_entry(const struct status_query *query, struct board_member *entry, int at)
{
    const struct config_cluster *cluster = &query->config->cluster;
    const bool is_ps = at < query->ps_count;
    const int index = is_ps ? at : at - query->ps_count;
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
    status_show(entry, &nothing, is_ps ? cluster->ps_hosts.items[index] : config_worker_host(cluster, index));
}

/* Grows it to at least `count` entries, of which a config allows CONFIG_MAX_WORKERS. */
static void member_list_extend(const struct status_query *query, struct member_list *member_list, int count)
{
    if (count > member_list->room) {
        member_list->room = count > 2 * member_list->room ? count : 2 * member_list->room;
        member_list->entries = must_grow(member_list->entries, (size_t)member_list->room, sizeof *member_list->entries,
                                         "the status of the members");
    }
    while (member_list->count < count) {
        clear_entry(query, &member_list->entries[member_list->count], member_list->count);
        member_list->count++;
    }
}

/* As if nobody had answered. */
static void member_list_clear(const struct status_query *query, struct member_list *member_list)
{
    member_list->count = 0;
    member_list_extend(query, member_list, query->listed);
}

static bool create(struct status_query *query, struct error *error)
{
    const struct config *config = query->config;
    query->ps_count = config->cluster.ps_hosts.count;
    query->listed = query->ps_count + (query->own_ps < 0 ? config->cluster.worker_hosts.count : 0);
    query->asked = must_zero((size_t)query->ps_count, sizeof *query->asked, "the status of the members");
    member_list_clear(query, &query->merged);
    if (!wake_create(&query->wake, error)) {
        return false;
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
        member_list_clear(query, &one->reply);
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
    struct status_query *query = must_zero(1, sizeof *query, "the status of the members");
    query->config = config;
    query->own_ps = -1;
    query->wake.fd = -1;
    const bool done =
        identity_create(&query->identity, config, (struct member){MEMBER_OPERATOR, MEMBER_ANY_INDEX}, error);
    /* A query needs no config of the job. */
    query->identity.hello.digest = "";
    query->identity.hello.job = "";
    query->self = identity_hello_options(&query->identity);
    return finish(out, query, done, error);
}

bool status_query_create_for(struct status_query **out, const struct config *config, const struct identity *identity,
                             struct error *error)
{
    const struct member who = identity->hello.member;
    struct status_query *query = must_zero(1, sizeof *query, "the status of the members");
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
            free(query->asked[i].reply.entries);
        }
        identity_destroy(&query->identity);
        wake_destroy(&query->wake);
        free(query->asked);
        free(query->merged.entries);
        free(query);
    }
}

/* The entry of a member; NULL: this machine's config has other hosts than the ps's (the missing ones will show). */
static struct board_member *find_entry(const struct status_query *query, struct member_list *member_list, uint8_t role,
                                       int index)
{
    const bool is_ps = role == MEMBER_PS;
    const bool can_be = is_ps ? index >= 0 && index < query->ps_count
                              : role == MEMBER_WORKER && query->own_ps < 0 && index >= 0 && index < CONFIG_MAX_WORKERS;
    const int at = is_ps ? index : query->ps_count + index;
    if (!can_be) {
        return NULL;
    }
    member_list_extend(query, member_list, at + 1);
    return &member_list->entries[at];
}

static void take_answer(struct member_query *one, const struct message_status *status)
{
    struct board_member *entry = find_entry(one->query, &one->reply, status->role, status->index);
    if (entry) {
        char address[sizeof entry->address];
        snprintf(address, sizeof address, "%s", entry->address);
        status_show(entry, status, address);
    }
}

static void take_rounds(struct member_query *one, const struct message_rounds *rounds)
{
    struct board_member *entry = find_entry(one->query, &one->reply, MEMBER_WORKER, rounds->worker);
    if (entry) {
        status_show_rounds(entry, rounds);
    }
}

/* All of them, with their rounds. */
static uint8_t members_wanted(const struct member_query *one)
{
    return one->query->own_ps >= 0 ? 0 : 2;
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
    take_answer(one, &channel->message.status);
    while (!(channel->frame.flags & FRAME_LAST)) {
        if (!channel_receive(channel, deadline_s, error)) {
            return false;
        }
        const bool is_rounds = channel->frame.type == MESSAGE_rounds;
        if (!channel_check_answer(channel, MESSAGE_get_status, channel->next_request,
                                  is_rounds ? MESSAGE_rounds : MESSAGE_status, NULL, error)) {
            return false;
        }
        if (is_rounds) {
            take_rounds(one, &channel->message.rounds);
        } else {
            take_answer(one, &channel->message.status);
        }
    }
    return true;
}

static void *ask_one(void *context)
{
    struct member_query *one = context;
    struct error error;
    member_list_clear(one->query, &one->reply); /* only the listed ones have room */
    if (!ask(one, &error)) {
        link_close(&one->link);
        struct board_member *own = &one->reply.entries[one->link.member.index];
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
            member_list_clear(query, &one->reply);
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
 * The freshest report on a worker, with two exceptions: a worker that one ps makes wait is waiting, whatever it
 * reported to the others a moment later; and only the ps that decides on steps knows its rounds and its own rows.
 */
static void merge_worker(struct board_member *entry, const struct board_member *reply)
{
    const struct board_rounds rounds = entry->rounds.asked > 0 ? entry->rounds : reply->rounds;
    const struct board_own own = entry->own.examples > 0 ? entry->own : reply->own;
    bool waits = is_waiting(reply) || is_waiting(entry);
    if (is_fresher(reply, entry)) {
        *entry = *reply;
    }
    entry->rounds = rounds;
    entry->own = own;
    if (waits) {
        snprintf(entry->state, sizeof entry->state, "%s", member_state_name(STATE_WAITING));
    }
}

/* Merges the ps' reports: each on itself, and the freshest on each worker. */
static void merge_answers(struct status_query *query)
{
    struct member_list *merged = &query->merged;
    member_list_clear(query, merged);
    for (int i = 0; i < query->ps_count; i++) {
        const struct member_list *reply = &query->asked[i].reply;
        member_list_extend(query, merged, reply->count);
        merged->entries[i] = reply->entries[i];
        for (int k = query->ps_count; k < reply->count; k++) {
            merge_worker(&merged->entries[k], &reply->entries[k]);
        }
    }
    const struct member_list *first = &query->asked[0].reply;
    for (int k = query->ps_count; k < merged->count && k < first->count; k++) {
        /* ps 0 learns versions from reports, the others only from hello */
        const struct board_member *reply = &first->entries[k];
        if (reply->silent_ms >= 0) {
            merged->entries[k].config_version = reply->config_version;
            memcpy(merged->entries[k].digest, reply->digest, sizeof reply->digest);
        }
    }
}

const struct board_member *status_query_ask(struct status_query *query, double timeout_s, int *count)
{
    struct member_list *merged = &query->merged;
    ask_all(query, timeout_s);
    merge_answers(query);
    *count = query->listed;
    for (int i = *count; i < merged->count; i++) { /* of workers that are not listed, those that joined */
        if (!is_absent(&merged->entries[i])) {
            merged->entries[(*count)++] = merged->entries[i];
        }
    }
    return merged->entries;
}

/*
 * --- Querying them each second: the last answers are copied under a lock, which is not held while the thread waits ---
 */

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

static void *watch_fleet(void *context)
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
    struct fleet_watch *watch = must_zero(1, sizeof *watch, "the status of the members");
    watch->wake.fd = -1;
    pthread_mutex_init(&watch->mutex, NULL);
    watch->most = config->cluster.ps_hosts.count + config_worker_room(&config->cluster);
    watch->members = must_zero((size_t)watch->most, sizeof *watch->members, "the status of the members");
    bool done = wake_create(&watch->wake, error) && status_query_create_for(&watch->query, config, identity, error);
    if (done) {
        watch->runs = pthread_create(&watch->thread, NULL, watch_fleet, watch) == 0;
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
