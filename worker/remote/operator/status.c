/*
 * trainer status: how the members of a running cluster are, as a table or as JSON; and the query behind it.
 *
 * All ps are asked at once, each on a thread of its own, since one that hangs must not hold up the others. Each says
 * how it is and what it knows of the workers; of what several say about one worker the freshest counts, and ps 0
 * knows best which version of the config it is in.
 */
#include "worker/remote/operator/status.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli/commands.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/text/count.h"
#include "base/text/printable.h"
#include "observe/member.h"
#include "ps/identity.h"
#include "ps/status.h"
#include "worker/remote/shard_link.h"

static const double TIMEOUT_S = 2.0, RETRY_AFTER_S = 0.2;

/* --- The query --- */

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
    struct identity identity;
    struct traffic traffic;
    struct member_query *asked;   /* [ps_count] */
    struct board_member *answers; /* [ps_count, members]: who says what */
    struct board_member *entries; /* [members] */
    int ps_count, members;
};

bool status_query_create(struct status_query **out, const struct config *config, struct error *error)
{
    struct status_query *query = calloc(1, sizeof *query);
    if (!query) {
        return error_set(error, "out of memory");
    }
    query->config = config;
    query->ps_count = config->cluster.ps_hosts.count;
    /* This machine's config may not say that the job is elastic. */
    query->members = query->ps_count + config->cluster.worker_hosts.count + CONFIG_ELASTIC_WORKERS;
    query->asked = calloc((size_t)query->ps_count, sizeof *query->asked);
    query->answers = calloc((size_t)query->ps_count * (size_t)query->members, sizeof *query->answers);
    query->entries = calloc((size_t)query->members, sizeof *query->entries);
    bool done = (query->asked && query->answers && query->entries) || error_set(error, "out of memory");
    done = done && identity_create(&query->identity, config, (struct member){MEMBER_OPERATOR, MEMBER_ANY_INDEX}, error);
    /* Asking takes no config of the job. */
    query->identity.hello.digest = "";
    query->identity.hello.job = "";
    for (int i = 0; done && i < query->ps_count; i++) {
        struct member_query *one = &query->asked[i];
        one->query = query;
        one->entries = query->answers + (size_t)i * (size_t)query->members;
        done = shard_link_create(&one->link, config, i, &query->identity, &query->traffic, error);
        one->link.quiet = true;
    }
    if (!done) {
        status_query_destroy(query);
        return false;
    }
    *out = query;
    return true;
}

void status_query_destroy(struct status_query *query)
{
    if (query) {
        for (int i = 0; query->asked && i < query->ps_count; i++) {
            link_destroy(&query->asked[i].link);
        }
        identity_destroy(&query->identity);
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

static bool ask(struct member_query *one, struct error *error)
{
    double deadline_s = clock_monotonic_s() + one->timeout_s;
    struct channel *channel = &one->link.channel;
    struct message_get_status request = {.members = 1};
    one->link.timeout_s = one->timeout_s;
    one->link.next_try_s = 0;
    if (link_try(&one->link, error) != LINK_OPEN ||
        !channel_call(channel, MESSAGE_get_status, &request, MESSAGE_status, deadline_s, NULL, error)) {
        return false;
    }
    take_answer(one->query, one->entries, &channel->message.status);
    while (!(channel->frame.flags & FRAME_LAST)) {
        if (!channel_receive(channel, deadline_s, error)) {
            return false;
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

/* Of what the ps say: each about itself, and the freshest about each worker. */
static void merge_answers(struct status_query *query)
{
    clear_entries(query, query->entries);
    for (int i = 0; i < query->ps_count; i++) {
        const struct board_member *told = query->asked[i].entries;
        query->entries[i] = told[i];
        for (int k = query->ps_count; k < query->members; k++) {
            if (is_fresher(&told[k], &query->entries[k])) {
                query->entries[k] = told[k];
            }
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
    *count = query->ps_count + query->config->cluster.worker_hosts.count;
    for (int i = *count; i < query->members; i++) { /* of workers that are not listed, those that joined */
        if (!is_absent(&query->entries[i])) {
            query->entries[(*count)++] = query->entries[i];
        }
    }
    return query->entries;
}

/* --- As JSON --- */

static int missing(const struct board_member *entries, int count)
{
    int number = 0;
    for (int i = 0; i < count; i++) {
        number += entries[i].is_missing;
    }
    return number;
}

static void show_json(const struct board_member *entries, int count)
{
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddNumberToObject(fields, "missing", missing(entries, count));
    struct text members = {.bytes = NULL};
    size_t size;
    json_open(&members, NULL, '[');
    for (int i = 0; i < count; i++) {
        member_write(&members, &entries[i], false);
    }
    json_close(&members, ']');
    text_add(&members, "%c", 0);
    char *json = text_take(&members, &size);
    if (json) {
        cJSON_AddRawToObject(fields, "members", json);
    }
    free(json);
    log_event("status", fields, NULL);
}

/* --- As a table --- */

static void name_of(const struct board_member *entry, char name[MEMBER_TEXT])
{
    snprintf(name, MEMBER_TEXT, "%s %d", entry->role, entry->task);
}

static void show_entry(const struct board_member *entry)
{
    char name[MEMBER_TEXT], step[COUNT_TEXT] = "-", in[COUNT_TEXT], out[COUNT_TEXT];
    char host[17], device[256], message[1024];
    name_of(entry, name);
    if (entry->global_step >= 0) {
        count_text(step, entry->global_step);
    }
    bytes_text(in, (double)entry->bytes_in);
    bytes_text(out, (double)entry->bytes_out);
    printf("%-11s %-9s %11s %8.1f %5d %7llu %7llu %7s %7s  %-22s %-16s %s\n", name, entry->state, step,
           entry->steps_per_s, entry->staleness, (unsigned long long)entry->dropped, (unsigned long long)entry->retries,
           in, out, entry->address, printable(host, sizeof host, entry->host),
           printable(device, sizeof device, entry->device));
    if (entry->message[0] != '\0') {
        printf("            %s\n", printable(message, sizeof message, entry->message));
    }
}

/* Once for all members of the same program and config. */
static void show_versions(const struct board_member *entries, int count)
{
    for (int i = 0; i < count; i++) {
        char name[MEMBER_TEXT];
        bool told = entries[i].program[0] == '\0';
        for (int k = 0; k < i && !told; k++) {
            told = strcmp(entries[k].program, entries[i].program) == 0 &&
                   strcmp(entries[k].digest, entries[i].digest) == 0 &&
                   entries[k].config_version == entries[i].config_version;
        }
        if (!told) {
            name_of(&entries[i], name);
            char version[24] = "-", program[256], digest[17];
            if (entries[i].has_version) {
                snprintf(version, sizeof version, "%llu", (unsigned long long)entries[i].config_version);
            }
            printf("%s, config version %s, digest %s: %s and all like it\n",
                   printable(program, sizeof program, entries[i].program), version,
                   printable(digest, sizeof digest, entries[i].has_version ? entries[i].digest : "-"), name);
        }
    }
}

static void show_table(const struct board_member *entries, int count)
{
    int absent = missing(entries, count);
    printf("%-11s %-9s %11s %8s %5s %7s %7s %7s %7s  %-22s %-16s %s\n", "MEMBER", "STATE", "STEP", "STEPS/S", "STALE",
           "DROPPED", "RETRIES", "IN", "OUT", "ADDRESS", "HOST", "DEVICE");
    for (int i = 0; i < count; i++) {
        show_entry(&entries[i]);
    }
    show_versions(entries, count);
    if (absent > 0) {
        printf("%d of %d members missing\n", absent, count);
    }
}

/* --- The command --- */

/* A ps did not answer in time, or somebody has just joined. A second look is cheap, and tells more often than not. */
static bool is_incomplete(const struct board_member *entries, int count)
{
    bool incomplete = false;
    for (int i = 0; i < count; i++) {
        const bool may_be_gone = entries[i].is_missing && strcmp(entries[i].role, "worker") == 0;
        incomplete = incomplete || (!may_be_gone && !entries[i].has_version);
    }
    return incomplete;
}

static int run_status(const struct command_call *call)
{
    struct error error;
    struct status_query *query;
    int count;
    bool json = command_switch(call, "json");
    if (json) {
        log_setup(LOG_JSON, LOG_INFO);
    }
    if (call->config->cluster.ps_hosts.count == 0) {
        log_error(
            "which cluster? Give its ps_hosts and worker_hosts, in config.json or as --ps_hosts and --worker_hosts");
        return COMMAND_MISUSED;
    }
    if (!status_query_create(&query, call->config, &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    const struct board_member *entries = status_query_ask(query, TIMEOUT_S, &count);
    if (is_incomplete(entries, count)) {
        const double until_s = clock_monotonic_s() + RETRY_AFTER_S;
        while (clock_monotonic_s() < until_s) {
            clock_pause(until_s);
        }
        entries = status_query_ask(query, TIMEOUT_S, &count);
    }
    if (json || call->config->output.log_format == LOG_JSON) {
        show_json(entries, count);
    } else {
        show_table(entries, count);
    }
    int status = missing(entries, count) > 0 ? COMMAND_FAILED : COMMAND_DONE;
    status_query_destroy(query);
    return status;
}

static const struct command_flag status_flags[] = {
    {"json", NULL, "one JSON object instead of a table"},
    {NULL, NULL, NULL},
};

const struct command command_status = {
    .name = "status",
    .summary = "show the state of a running cluster's members",
    .details = "Queries every ps in ps_hosts, using the members' shared key. STEP is the global step a member has "
               "seen; STALE is the number of steps between a worker's last pull and its push. The exit status is 1 if "
               "any member is missing.",
    .flags = status_flags,
    .takes_config = true,
    .run = run_status,
};
