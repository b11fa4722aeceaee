/* trainer status: how the members of a running cluster are, as a table or as JSON. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/progress.h"
#include "base/text/count.h"
#include "worker/remote/operator/commands.h"
#include "worker/remote/operator/status_query.h"

static const double TIMEOUT_S = 2.0;

static int missing(const struct roll_entry *entries, int count)
{
    int number = 0;
    for (int i = 0; i < count; i++) {
        number += entries[i].is_missing;
    }
    return number;
}

static void add_number(cJSON *object, const char *name, double value)
{
    if (isfinite(value)) {
        cJSON_AddNumberToObject(object, name, value);
    } else {
        cJSON_AddNullToObject(object, name);
    }
}

static cJSON *entry_as_json(const struct roll_entry *entry)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "role", entry->member.role == MEMBER_PS ? "ps" : "worker");
    cJSON_AddNumberToObject(object, "task", entry->member.index);
    cJSON_AddStringToObject(object, "address", entry->address);
    cJSON_AddStringToObject(object, "host", entry->host);
    cJSON_AddStringToObject(object, "state", roll_state_name(entry->state));
    cJSON_AddBoolToObject(object, "missing", entry->is_missing);
    add_number(object, "silent_ms", entry->silent_ms == UINT32_MAX ? NAN : (double)entry->silent_ms);
    cJSON_AddNumberToObject(object, "generation", (double)entry->generation);
    add_number(object, "global_step", entry->global_step < 0 ? NAN : (double)entry->global_step);
    add_number(object, "local_step", entry->local_step < 0 ? NAN : (double)entry->local_step);
    add_number(object, "steps_per_s", (double)entry->steps_per_s);
    add_number(object, "loss", (double)entry->loss);
    cJSON_AddNumberToObject(object, "staleness", (double)entry->staleness);
    cJSON_AddNumberToObject(object, "dropped", (double)entry->dropped);
    cJSON_AddNumberToObject(object, "retries", (double)entry->retries);
    cJSON_AddNumberToObject(object, "bytes_in", (double)entry->bytes_in);
    cJSON_AddNumberToObject(object, "bytes_out", (double)entry->bytes_out);
    cJSON_AddStringToObject(object, "device", entry->device);
    cJSON_AddStringToObject(object, "program", entry->program);
    cJSON_AddNumberToObject(object, "config_version", (double)entry->config_version);
    cJSON_AddStringToObject(object, "config_digest", entry->digest);
    cJSON_AddStringToObject(object, "message", entry->message);
    return object;
}

static void show_json(const struct roll_entry *entries, int count)
{
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddNumberToObject(fields, "missing", missing(entries, count));
    cJSON *members = cJSON_AddArrayToObject(fields, "members");
    for (int i = 0; i < count; i++) {
        cJSON_AddItemToArray(members, entry_as_json(&entries[i]));
    }
    log_event("status", fields, NULL);
}

/* 1536 as "1.5K". */
static void format_bytes(char text[16], uint64_t bytes)
{
    static const char units[] = "BKMGTP";
    double number = (double)bytes;
    int unit = 0;
    while (number >= 1000 && unit < 5) {
        number /= 1024;
        unit++;
    }
    snprintf(text, 16, unit == 0 || number >= 100 ? "%.0f%c" : "%.1f%c", number, units[unit]);
}

static void show_entry(const struct roll_entry *entry)
{
    char name[MEMBER_TEXT], step[COUNT_TEXT] = "-", in[16], out[16];
    member_format(&entry->member, ' ', name);
    if (entry->global_step >= 0) {
        count_text(step, entry->global_step);
    }
    format_bytes(in, entry->bytes_in);
    format_bytes(out, entry->bytes_out);
    printf("%-11s %-9s %11s %8.1f %5u %7llu %7llu %7s %7s  %-22s %-16.16s %s\n", name, roll_state_name(entry->state),
           step, (double)entry->steps_per_s, entry->staleness, (unsigned long long)entry->dropped,
           (unsigned long long)entry->retries, in, out, entry->address, entry->host, entry->device);
    if (entry->message[0] != '\0') {
        printf("            %s\n", entry->message);
    }
}

/* Members of one version need not say so each. */
static void show_versions(const struct roll_entry *entries, int count)
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
            member_format(&entries[i].member, ' ', name);
            printf("%s, config version %llu, digest %.16s: %s and all like it\n", entries[i].program,
                   (unsigned long long)entries[i].config_version, entries[i].digest, name);
        }
    }
}

static void show_table(const struct roll_entry *entries, int count)
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

static int run_status(const struct command_call *call)
{
    struct error error;
    struct status_query *roll;
    int count;
    bool json = command_switch(call, "json");
    if (json) {
        log_setup(LOG_JSON, LOG_INFO);
    }
    if (call->config->cluster.ps_hosts.count == 0) {
        log_error("which cluster? Its ps_hosts and worker_hosts stand in config.json, or in --ps_hosts and "
                  "--worker_hosts");
        return COMMAND_MISUSED;
    }
    if (!status_query_create(&roll, call->config, &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    const struct roll_entry *entries = status_query_ask(roll, TIMEOUT_S, &count);
    if (json || call->config->output.log_format == LOG_JSON) {
        show_json(entries, count);
    } else {
        show_table(entries, count);
    }
    int status = missing(entries, count) > 0 ? COMMAND_FAILED : COMMAND_DONE;
    status_query_destroy(roll);
    return status;
}

static const struct command_flag status_flags[] = {
    {"json", NULL, "one JSON object instead of a table"},
    {NULL, NULL, NULL},
};

const struct command command_status = {
    .name = "status",
    .summary = "show how the members of a running cluster are",
    .details = "Asks every ps in ps_hosts, with the key that the members share. STEP is the global step that a member "
               "knows of, STALE how many steps passed between a worker's last pull and its push. The exit status is 1 "
               "if any member is missing.",
    .flags = status_flags,
    .takes_config = true,
    .run = run_status,
};
