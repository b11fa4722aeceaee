/* trainer profile: shows where the time of a run went, and merges the traces of its members. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>

#include "base/cli/commands.h"
#include "base/log.h"
#include "base/profile.h"
#include "base/text/json.h"
#include "base/text/text.h"
#include "worker/profile/trace.h"

/* Totals of all spans of one name. */
struct total {
    const char *name;
    int64_t count;
    double self_us, cipher_us;
};

static int compare_totals(const void *a, const void *b)
{
    const struct total *one = a, *two = b;
    return one->self_us > two->self_us ? -1 : one->self_us < two->self_us;
}

/* [trace->name_count], the largest first. */
static void add_up(const struct trace *trace, struct total *totals)
{
    for (int i = 0; i < trace->name_count; i++) {
        totals[i] = (struct total){.name = trace->names[i]};
    }
    for (size_t i = 0; i < trace->count; i++) {
        const struct trace_span *span = &trace->spans[i];
        totals[span->name].count++;
        totals[span->name].self_us += span->self_us;
        totals[span->name].cipher_us += span->self_cipher_us;
    }
    qsort(totals, (size_t)trace->name_count, sizeof *totals, compare_totals);
}

static double covered_us(const struct trace *trace)
{
    double begin_us = INFINITY, end_us = -INFINITY;
    for (size_t i = 0; i < trace->count; i++) {
        begin_us = fmin(begin_us, trace->spans[i].begin_us);
        end_us = fmax(end_us, trace->spans[i].begin_us + trace->spans[i].us);
    }
    return fmax(end_us - begin_us, 1e-3);
}

static void show_text(const struct trace *trace, const struct total *totals, double us)
{
    char shown[256];
    printf("%s: %.2f s, %d thread%s", printable(shown, sizeof shown, trace->name), us / 1e6, trace->thread_count,
           trace->thread_count == 1 ? "" : "s");
    if (trace->unsure_us > 0) {
        printf("; its clock is %.3f ms %s, +- %.3f ms", fabs(trace->behind_us) / 1e3,
               trace->behind_us > 0 ? "behind" : "ahead", trace->unsure_us / 1e3);
    } else if (trace->unsure_us < 0) {
        printf("; its clock offset is unknown");
    }
    printf("%s\n", trace->forgotten > 0 ? "; only its end was kept" : "");
    for (int i = 0; i < trace->name_count; i++) {
        printf("  %-24s %7.2f%%  %9lld times  %10.1f us each", printable(shown, sizeof shown, totals[i].name),
               100 * totals[i].self_us / us, (long long)totals[i].count, totals[i].self_us / (double)totals[i].count);
        if (totals[i].cipher_us > 0.01 * totals[i].self_us) {
            printf(", encryption %.0f us", totals[i].cipher_us / (double)totals[i].count);
        }
        printf("\n");
    }
}

static bool show_json(cJSON *members, const struct trace *trace, const struct total *totals, double us)
{
    cJSON *member = cJSON_CreateObject(), *spans = cJSON_AddArrayToObject(member, "spans");
    json_append(members, member);
    cJSON_AddStringToObject(member, "member", trace->name);
    cJSON_AddNumberToObject(member, "seconds", us / 1e6);
    cJSON_AddNumberToObject(member, "threads", trace->thread_count);
    cJSON_AddNumberToObject(member, "clock_behind_us", trace->behind_us);
    cJSON_AddNumberToObject(member, "clock_unsure_us", trace->unsure_us);
    cJSON_AddNumberToObject(member, "forgotten_spans", (double)trace->forgotten);
    for (int i = 0; i < trace->name_count; i++) {
        cJSON *span = cJSON_CreateObject();
        cJSON_AddStringToObject(span, "name", totals[i].name);
        cJSON_AddNumberToObject(span, "count", (double)totals[i].count);
        cJSON_AddNumberToObject(span, "self_us", totals[i].self_us);
        cJSON_AddNumberToObject(span, "cipher_us", totals[i].cipher_us);
        json_append(spans, span);
    }
    return spans;
}

static bool show(const struct trace *traces, int count, bool json)
{
    struct total totals[TRACE_MAX_NAMES];
    cJSON *members = json ? cJSON_CreateArray() : NULL;
    bool done = !json || members;
    for (int i = 0; i < count && done; i++) {
        double us = covered_us(&traces[i]);
        add_up(&traces[i], totals);
        if (json) {
            done = show_json(members, &traces[i], totals, us);
        } else {
            show_text(&traces[i], totals, us);
        }
    }
    char *text = json && done ? cJSON_PrintUnformatted(members) : NULL;
    text = text ? printable_json(text) : NULL;
    if (text) {
        printf("%s\n", text);
    }
    done = done && (!json || text);
    free(text);
    cJSON_Delete(members);
    return done;
}

static int run_profile(const struct command_call *call)
{
    struct error error;
    struct trace *traces = NULL;
    int count = call->operand_count;
    const char *out = command_value(call, "out");
    if (count == 0) {
        log_error("no profile given; name the files written by --profile, one per member");
        return COMMAND_MISUSED;
    }
    bool done = trace_read(&traces, call->operands, count, &error) && (!out || trace_write(traces, count, out, &error));
    if (done && !show(traces, count, command_switch(call, "json"))) {
        done = error_set(&error, "out of memory while showing the profile");
    }
    if (!done) {
        log_error("%s", error.text);
    }
    trace_free(traces, count);
    return done ? COMMAND_DONE : COMMAND_FAILED;
}

static const struct command_flag profile_flags[] = {
    {"out", "FILE", "write all profiles as one Chrome trace, for Perfetto or chrome://tracing"},
    {"json", NULL, "print the shares as one JSON array"},
    {.name = NULL},
};

const struct command command_profile = {
    .name = "profile",
    .operands = "FILE...",
    .max_operands = TRACE_MAX_FILES,
    .summary = "show where the time of a run went, from files written by --profile",
    .details = "Each member writes its own file; their clocks are aligned by the pushes between them. A span's share "
               "is its own time, without nested spans, relative to the time the member was profiled; several threads "
               "may add up to more than 100%.",
    .flags = profile_flags,
    .run = run_profile,
};
