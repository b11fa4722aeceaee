#include "worker/remote/operator/status_query.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "worker/remote/shard_link.h"

/* What one ps is asked, on a thread of its own. */
struct member_query {
    struct status_query *roll;
    struct shard_link link;
    struct roll_entry *entries; /* [members] */
    double timeout_s;
    pthread_t thread;
    bool has_thread;
};

struct status_query {
    const struct config *config;
    struct identity identity;
    struct traffic traffic;
    struct member_query *questions; /* [ps_count] */
    struct roll_entry *answers;     /* [ps_count, members]: who says what */
    struct roll_entry *entries;     /* [members] */
    int ps_count, members;
};

const char *roll_state_name(enum member_state state)
{
    static const char *const names[] = {"absent", "starting", "ready", "training", "waiting",
                                        "saving", "done",     "lost",  "failed"};
    return (size_t)state < sizeof names / sizeof names[0] ? names[state] : "unknown";
}

bool status_query_create(struct status_query **out, const struct config *config, struct error *error)
{
    struct status_query *roll = calloc(1, sizeof *roll);
    if (!roll) {
        return error_set(error, "out of memory");
    }
    roll->config = config;
    roll->ps_count = config->cluster.ps_hosts.count;
    /* Whoever asks may not know that the job is elastic. */
    roll->members = roll->ps_count + config->cluster.worker_hosts.count + CONFIG_ELASTIC_WORKERS;
    roll->questions = calloc((size_t)roll->ps_count, sizeof *roll->questions);
    roll->answers = calloc((size_t)roll->ps_count * (size_t)roll->members, sizeof *roll->answers);
    roll->entries = calloc((size_t)roll->members, sizeof *roll->entries);
    bool done = (roll->questions && roll->answers && roll->entries) || error_set(error, "out of memory");
    done = done && identity_create(&roll->identity, config, (struct member){MEMBER_OPERATOR, MEMBER_ANY_INDEX}, error);
    /* Whoever only asks need not have the job's config. */
    roll->identity.hello.digest = "";
    roll->identity.hello.job = "";
    for (int i = 0; done && i < roll->ps_count; i++) {
        struct member_query *question = &roll->questions[i];
        question->roll = roll;
        question->entries = roll->answers + (size_t)i * (size_t)roll->members;
        done = shard_link_create(&question->link, config, i, &roll->identity, &roll->traffic, NULL, error);
        question->link.quiet = true;
    }
    if (!done) {
        status_query_destroy(roll);
        return false;
    }
    *out = roll;
    return true;
}

void status_query_destroy(struct status_query *roll)
{
    if (roll) {
        for (int i = 0; roll->questions && i < roll->ps_count; i++) {
            shard_link_destroy(&roll->questions[i].link);
        }
        identity_destroy(&roll->identity);
        free(roll->questions);
        free(roll->answers);
        free(roll->entries);
        free(roll);
    }
}

/* As if nobody had answered. */
static void clear_entries(const struct status_query *roll, struct roll_entry *entries)
{
    for (int i = 0; i < roll->members; i++) {
        bool is_ps = i < roll->ps_count;
        int index = is_ps ? i : i - roll->ps_count;
        const struct config_cluster *cluster = &roll->config->cluster;
        entries[i] =
            (struct roll_entry){.member = {is_ps ? MEMBER_PS : MEMBER_WORKER, index},
                                .address = is_ps ? cluster->ps_hosts.items[index] : config_worker_host(cluster, index),
                                .state = STATE_ABSENT,
                                .is_missing = true,
                                .silent_ms = UINT32_MAX,
                                .global_step = -1,
                                .local_step = -1,
                                .loss = NAN};
    }
}

static void take_answer(const struct status_query *roll, struct roll_entry *entries,
                        const struct message_status *status)
{
    int count = status->role == MEMBER_PS ? roll->ps_count : roll->members - roll->ps_count;
    if ((status->role != MEMBER_PS && status->role != MEMBER_WORKER) || status->index < 0 || status->index >= count) {
        return; /* its hosts are not ours; the missing ones will show */
    }
    struct roll_entry *entry = &entries[status->index + (status->role == MEMBER_PS ? 0 : roll->ps_count)];
    entry->state = (enum member_state)status->state;
    entry->is_missing = status->state == STATE_ABSENT || status->state == STATE_LOST;
    entry->silent_ms = status->silent_ms;
    entry->generation = status->generation;
    entry->staleness = status->staleness;
    entry->dropped = status->dropped;
    entry->global_step = status->global_step;
    entry->local_step = status->local_step;
    entry->steps_per_s = status->steps_per_s;
    entry->loss = status->loss;
    entry->retries = status->retries;
    entry->bytes_in = status->bytes_in;
    entry->bytes_out = status->bytes_out;
    entry->config_version = status->fleet_version;
    snprintf(entry->host, sizeof entry->host, "%s", status->host);
    snprintf(entry->device, sizeof entry->device, "%s", status->device);
    snprintf(entry->program, sizeof entry->program, "%s", status->program);
    snprintf(entry->digest, sizeof entry->digest, "%s", status->digest);
    snprintf(entry->message, sizeof entry->message, "%.255s", status->message);
}

static bool ask(struct member_query *question, struct error *error)
{
    double deadline_s = clock_monotonic_s() + question->timeout_s;
    struct channel *channel = &question->link.channel;
    struct message_get_status request = {.members = 1};
    question->link.timeout_s = question->timeout_s;
    question->link.next_try_s = 0;
    if (shard_link_try(&question->link, error) != LINK_OPEN ||
        !channel_call(channel, MESSAGE_get_status, &request, MESSAGE_status, deadline_s, NULL, error)) {
        return false;
    }
    take_answer(question->roll, question->entries, &channel->message.status);
    while (!(channel->frame.flags & FRAME_LAST)) {
        if (!channel_receive(channel, deadline_s, error)) {
            return false;
        }
        if (channel->frame.type != MESSAGE_status) {
            return error_set(error, "%s: answered get_status by %s", question->link.name,
                             message_name(channel->frame.type));
        }
        take_answer(question->roll, question->entries, &channel->message.status);
    }
    return true;
}

static void *ask_one(void *context)
{
    struct member_query *question = context;
    struct error error;
    clear_entries(question->roll, question->entries);
    if (!ask(question, &error)) {
        shard_link_close(&question->link);
        struct roll_entry *own = &question->entries[question->link.member.index];
        own->state = STATE_ABSENT;
        own->is_missing = true;
        snprintf(own->message, sizeof own->message, "%.255s", error.text);
    }
    return NULL;
}

const struct roll_entry *status_query_ask(struct status_query *roll, double timeout_s, int *count)
{
    for (int i = 0; i < roll->ps_count; i++) {
        struct member_query *question = &roll->questions[i];
        question->timeout_s = timeout_s;
        question->has_thread = roll->ps_count > 1 && pthread_create(&question->thread, NULL, ask_one, question) == 0;
        if (!question->has_thread) {
            ask_one(question);
        }
    }
    clear_entries(roll, roll->entries);
    for (int i = 0; i < roll->ps_count; i++) {
        struct member_query *question = &roll->questions[i];
        if (question->has_thread) {
            pthread_join(question->thread, NULL);
        }
        roll->entries[i] = question->entries[i];
        for (int k = roll->ps_count; k < roll->members; k++) {
            if (question->entries[k].silent_ms < roll->entries[k].silent_ms) {
                roll->entries[k] = question->entries[k];
            }
        }
    }
    for (int k = roll->ps_count; k < roll->members; k++) { /* ps 0 is told what version is in force, others at hello */
        const struct roll_entry *told = &roll->questions[0].entries[k];
        if (told->silent_ms != UINT32_MAX) {
            roll->entries[k].config_version = told->config_version;
            memcpy(roll->entries[k].digest, told->digest, sizeof told->digest);
        }
    }
    *count = roll->ps_count + roll->config->cluster.worker_hosts.count;
    for (int i = *count; i < roll->members; i++) { /* of those who are not listed, the ones that joined */
        if (roll->entries[i].state != STATE_ABSENT) {
            roll->entries[(*count)++] = roll->entries[i];
        }
    }
    return roll->entries;
}
