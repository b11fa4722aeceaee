/* trainer status: the state of a running cluster's members, as a table or as JSON. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli/commands.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/text/count.h"
#include "base/text/printable.h"
#include "net/member.h"
#include "observe/member.h"
#include "ps/status.h"

static const double TIMEOUT_S = 2.0, RETRY_AFTER_S = 0.2;

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
    struct text_buffer members = {.bytes = NULL};
    size_t size;
    json_write_open(&members, NULL, '[');
    for (int i = 0; i < count; i++) {
        member_write(&members, &entries[i]);
    }
    json_write_close(&members, ']');
    text_buffer_add(&members, "%c", 0);
    char *json = text_buffer_take(&members, &size);
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

static void show_rounds(const struct board_rounds *rounds)
{
    printf("            rounds: asked %lld, counted %lld, late %lld, missed %lld", (long long)rounds->asked,
           (long long)rounds->counted, (long long)rounds->late, (long long)rounds->missed);
    if (isfinite(rounds->cosine)) {
        printf("; cosine %.3f", rounds->cosine);
    }
    printf("%s\n", rounds->is_asked ? "; asked now" : "");
}

static void show_own(const struct board_own *own)
{
    char step[COUNT_TEXT];
    count_text(step, own->step);
    printf("            own rows: ");
    if (isfinite(own->score)) {
        printf("score %.4f of ", own->score);
    }
    printf("%lld at step %s%s\n", (long long)own->examples, step, own->is_worst ? "; of the worst tenth" : "");
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
    if (entry->rounds.asked > 0) {
        show_rounds(&entry->rounds);
    }
    if (entry->own.examples > 0) {
        show_own(&entry->own);
    }
    if (entry->message[0] != '\0') {
        printf("            %s\n", printable(message, sizeof message, entry->message));
    }
}

/* Once for all members with the same program and config. */
static void show_versions(const struct board_member *entries, int count)
{
    for (int i = 0; i < count; i++) {
        char name[MEMBER_TEXT];
        bool shown = entries[i].program[0] == '\0';
        for (int k = 0; k < i && !shown; k++) {
            shown = strcmp(entries[k].program, entries[i].program) == 0 &&
                    strcmp(entries[k].digest, entries[i].digest) == 0 &&
                    entries[k].config_version == entries[i].config_version;
        }
        if (!shown) {
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

/* A ps did not answer in time, or a member has just joined. A second query is cheap and usually tells more. */
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
