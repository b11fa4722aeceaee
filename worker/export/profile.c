/*
 * Offsets are estimated per pair of members from pushes alone, because only they are recorded at both ends; spans of
 * one thread nest, so self time is what remains of a span without the ones inside it.
 */
#include "worker/export/profile.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>

#include "base/cli/commands.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/profile.h"
#include "base/text/json.h"
#include "base/text/text.h"
#include "net/message.h"

/* --- Reading --- */

static int find_name(struct trace *trace, const char *name)
{
    for (int i = 0; i < trace->name_count; i++) {
        if (strcmp(trace->names[i], name) == 0) {
            return i;
        }
    }
    if (trace->name_count == TRACE_MAX_NAMES) {
        return -1;
    }
    trace->names[trace->name_count] = must_copy(name);
    return trace->name_count++;
}

static int find_thread(struct trace *trace, int id)
{
    for (int i = 0; i < trace->thread_count; i++) {
        if (trace->threads[i].id == id) {
            return i;
        }
    }
    if (!trace->threads) {
        trace->threads = must_zero(TRACE_MAX_THREADS, sizeof *trace->threads, "the threads of a profile");
    }
    if (trace->thread_count == TRACE_MAX_THREADS) {
        return -1;
    }
    trace->threads[trace->thread_count] = (struct trace_thread){.id = id};
    return trace->thread_count++;
}

static int member_by_name(const char *name)
{
    int index;
    char rest;
    if (sscanf(name, "ps %d%c", &index, &rest) == 1 && index >= 0 && index < PROFILE_WORKER - PROFILE_PS) {
        return PROFILE_PS + index;
    }
    if (sscanf(name, "worker %d%c", &index, &rest) == 1 && index >= 0 && index < 1 << 20) {
        return PROFILE_WORKER + index;
    }
    return strcmp(name, "local") == 0 ? PROFILE_LOCAL : PROFILE_NOBODY;
}

/* Microseconds, a million years of them: sums of such numbers are finite, as JSON wants them. */
static const double MOST_US = 3e19;

static double within(double number, double most)
{
    return fabs(number) <= most ? number : 0.0;
}

/* Anything that is not a number, or a larger one than any of ours, becomes 0. */
static double number_of(const cJSON *object, const char *key, double most)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) ? within(item->valuedouble, most) : 0.0;
}

static int64_t whole_number_of(const cJSON *object, const char *key, int64_t most)
{
    return (int64_t)number_of(object, key, (double)most);
}

static const char *text_of(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static bool add_span(struct trace *trace, const cJSON *event)
{
    if (trace->count == TRACE_MAX_SPANS) {
        return false;
    }
    if (trace->count == trace->room) {
        trace->room = trace->room > 0 ? 2 * trace->room : 4096;
        trace->spans = must_grow(trace->spans, trace->room, sizeof *trace->spans, "the spans of a profile");
    }
    const cJSON *arguments = cJSON_GetObjectItemCaseSensitive(event, "args");
    struct trace_span *span = &trace->spans[trace->count];
    *span = (struct trace_span){.begin_us = number_of(event, "ts", MOST_US),
                                .us = number_of(event, "dur", MOST_US),
                                .cipher_us = number_of(arguments, "cipher_us", MOST_US),
                                .number = whole_number_of(arguments, "number", INT64_C(1) << 53),
                                .peer = member_by_name(text_of(arguments, "peer")),
                                .name = find_name(trace, text_of(event, "name")),
                                .thread = find_thread(trace, (int)whole_number_of(event, "tid", INT32_MAX))};
    trace->count++;
    return span->name >= 0 && span->thread >= 0;
}

static bool add_event(struct trace *trace, const cJSON *event)
{
    const char *name = text_of(cJSON_GetObjectItemCaseSensitive(event, "args"), "name");
    if (strcmp(text_of(event, "ph"), "X") == 0) {
        return add_span(trace, event);
    }
    if (strcmp(text_of(event, "name"), "process_name") == 0) {
        trace->several = trace->several || trace->name[0] != '\0';
        trace->member = member_by_name(name);
        snprintf(trace->name, sizeof trace->name, "%s", name);
    } else if (strcmp(text_of(event, "name"), "thread_name") == 0) {
        int thread = find_thread(trace, (int)whole_number_of(event, "tid", INT32_MAX));
        if (thread < 0) {
            return false;
        }
        snprintf(trace->threads[thread].name, sizeof trace->threads[thread].name, "%s", name);
    }
    return true;
}

/* By thread, then by start, outer spans first. */
static int compare_spans(const void *a, const void *b)
{
    const struct trace_span *one = a, *two = b;
    if (one->thread != two->thread) {
        return one->thread < two->thread ? -1 : 1;
    }
    if (one->begin_us < two->begin_us || one->begin_us > two->begin_us) {
        return one->begin_us < two->begin_us ? -1 : 1;
    }
    return one->us > two->us ? -1 : one->us < two->us;
}

static void find_selves(struct trace *trace)
{
    enum { DEPTH = 64 };
    struct trace_span *open[DEPTH];
    int depth = 0;
    for (size_t i = 0; i < trace->count; i++) {
        struct trace_span *span = &trace->spans[i];
        while (depth > 0 && (open[depth - 1]->thread != span->thread ||
                             open[depth - 1]->begin_us + open[depth - 1]->us <= span->begin_us)) {
            depth--;
        }
        span->self_us += span->us;
        span->self_cipher_us += span->cipher_us;
        if (depth > 0) {
            open[depth - 1]->self_us -= span->us;
            open[depth - 1]->self_cipher_us -= span->cipher_us;
        }
        if (depth < DEPTH) {
            open[depth++] = span;
        }
    }
}

/* One line of our own format, or the rest if it is not such a line: the caller checks what it is. */
static bool take_line(struct trace *trace, const char *line, int number, struct error *error)
{
    const char *other = number == 1 ? strstr(line, "\"otherData\":") : NULL;
    if (other) {
        sscanf(other, "\"otherData\":{\"begin_us\":%lf,\"forgotten_spans\":%" SCNu64, &trace->begin_us,
               &trace->forgotten);
        trace->begin_us = within(trace->begin_us, MOST_US);
    }
    const char *begin = line + (line[0] == ',' ? 1 : 0) + (line[0] == ',' && line[1] == '\n');
    if (strncmp(begin, "{\"ph\":", 6) != 0) {
        return true;
    }
    cJSON *event = cJSON_Parse(begin);
    bool good = event && add_event(trace, event);
    if (!good) {
        error_set(error, "%s:%d: %s", trace->path, number,
                  event ? "more than a profile holds, or than there is memory for"
                        : "not an event: is the file complete?");
    }
    cJSON_Delete(event);
    return good;
}

/* Our files hold one short event per line, so that memory depends only on their content. */
static bool read_lines(struct trace *trace, FILE *file, struct error *error)
{
    char line[TRACE_MAX_LINE];
    bool good = true;
    for (int number = 1; good && fgets(line, sizeof line, file); number++) {
        const size_t size = strlen(line);
        good = size + 1 < sizeof line || line[size - 1] == '\n' ||
               error_set(error,
                         "%s:%d: a line of more than %d bytes: not a profile of one member; give the files that "
                         "--profile wrote",
                         trace->path, number, TRACE_MAX_LINE - 2);
        good = good && (size > 0 || error_set(error,
                                              "%s:%d: a zero byte: not a profile of one member; give the files that "
                                              "--profile wrote",
                                              trace->path, number));
        good = good && take_line(trace, line, number, error);
    }
    return good;
}

static void free_trace(struct trace *trace)
{
    for (int i = 0; i < trace->name_count; i++) {
        free(trace->names[i]);
    }
    free(trace->spans);
    free(trace->threads);
}

void trace_free(struct trace *traces, int count)
{
    for (int i = 0; traces && i < count; i++) {
        free_trace(&traces[i]);
    }
    free(traces);
}

static bool read_trace(struct trace *trace, const char *path, struct error *error)
{
    *trace = (struct trace){.path = path, .member = PROFILE_NOBODY, .unsure_us = -1};
    FILE *file = fopen(path, "re");
    if (!file) {
        return file_error(error, path, "cannot be opened", errno);
    }
    bool good = read_lines(trace, file, error);
    if (good && ferror(file)) {
        good = file_error(error, path, "cannot be read", errno);
    }
    fclose(file);
    if (good && trace->several) {
        good = error_set(error, "%s: a profile of several members; give the file that each of them wrote", path);
    }
    if (good && (trace->member == PROFILE_NOBODY || trace->count == 0)) {
        good = error_set(error, "%s: not a profile of one member; give the files that --profile wrote", path);
    }
    if (good) {
        qsort(trace->spans, trace->count, sizeof *trace->spans, compare_spans);
        find_selves(trace);
    }
    return good;
}

/* --- Matching pushes --- */

/* A push as its worker recorded it. */
struct sent_push {
    int peer;
    int64_t number;
    double begin_us, end_us; /* end: of its answer; 0: none arrived */
    int thread;
};

static int name_index(const struct trace *trace, const char *name)
{
    for (int i = 0; i < trace->name_count; i++) {
        if (strcmp(trace->names[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

static int compare_pushes(const void *a, const void *b)
{
    const struct sent_push *one = a, *two = b;
    if (one->peer != two->peer) {
        return one->peer < two->peer ? -1 : 1;
    }
    return one->number < two->number ? -1 : one->number > two->number;
}

/* All pushes of a worker, sorted; malloc'd, [*count]. For a push that was sent twice, the last one counts. */
static struct sent_push *list_pushes(const struct trace *trace, size_t *count)
{
    struct sent_push *pushes = must_alloc((trace->count + 1) * sizeof *pushes, "the pushes of a profile");
    int send = name_index(trace, SPAN_SEND_PUSH), answer = name_index(trace, SPAN_RECEIVE_ANSWER);
    *count = 0;
    for (size_t i = 0; i < trace->count; i++) {
        const struct trace_span *span = &trace->spans[i];
        if (span->name == send && send >= 0) {
            pushes[(*count)++] = (struct sent_push){
                .peer = span->peer, .number = span->number, .begin_us = span->begin_us, .thread = span->thread};
        }
    }
    qsort(pushes, *count, sizeof *pushes, compare_pushes);
    for (size_t i = 0; i < trace->count; i++) {
        const struct trace_span *span = &trace->spans[i];
        struct sent_push wanted = {.peer = span->peer, .number = span->number};
        struct sent_push *push = span->name == answer && answer >= 0
                                     ? bsearch(&wanted, pushes, *count, sizeof *pushes, compare_pushes)
                                     : NULL;
        if (push) {
            push->end_us = span->begin_us + span->us;
        }
    }
    return pushes;
}

/* --- Aligning --- */

/* How far the clock of a ps is ahead of a worker's. */
struct offset {
    double us, unsure_us; /* unsure_us < 0: unknown */
};

/* When the ps began to send the answer to a request: a span nested in that of the request; NAN if there is none. */
static double answer_begin_us(const struct trace *ps, size_t request, int answer)
{
    const struct trace_span *span = &ps->spans[request];
    for (size_t i = request + 1; i < ps->count; i++) {
        const struct trace_span *inner = &ps->spans[i];
        if (inner->thread != span->thread || inner->begin_us > span->begin_us + span->us) {
            break;
        }
        if (inner->name == answer) {
            return inner->begin_us;
        }
    }
    return NAN;
}

static struct offset compare_clocks(const struct trace *ps, int worker, const struct sent_push *pushes, size_t count)
{
    struct offset best = {.unsure_us = -1};
    int name = name_index(ps, SPAN_PUSH), answer = name_index(ps, SPAN_SEND_CHANGES);
    for (size_t i = 0; i < ps->count; i++) {
        const struct trace_span *span = &ps->spans[i];
        if (span->name != name || span->peer != worker) {
            continue;
        }
        struct sent_push wanted = {.peer = ps->member, .number = span->number};
        const struct sent_push *push = bsearch(&wanted, pushes, count, sizeof *pushes, compare_pushes);
        if (!push || push->end_us == 0) {
            continue;
        }
        double most_us = span->begin_us - push->begin_us;
        double least_us = answer_begin_us(ps, i, answer) - push->end_us;
        double unsure_us = (most_us - least_us) / 2;
        if (unsure_us >= 0 && (best.unsure_us < 0 || unsure_us < best.unsure_us)) {
            best = (struct offset){.us = (most_us + least_us) / 2, .unsure_us = unsure_us};
        }
    }
    return best;
}

/* Propagates known clocks along known offsets until nothing changes. Each hop adds to the uncertainty. */
static void spread(struct trace *traces, int count, const struct offset *offsets)
{
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < count * count; i++) {
            struct trace *ps = &traces[i / count], *worker = &traces[i % count];
            struct offset offset = offsets[i];
            if (offset.unsure_us < 0 || (ps->unsure_us < 0) == (worker->unsure_us < 0)) {
                continue;
            }
            if (ps->unsure_us < 0) {
                ps->shift_us = worker->shift_us - offset.us;
                ps->unsure_us = worker->unsure_us + offset.unsure_us;
            } else {
                worker->shift_us = ps->shift_us + offset.us;
                worker->unsure_us = ps->unsure_us + offset.unsure_us;
            }
            more = true;
        }
    }
}

static void align(struct trace *traces, int count)
{
    int first = 0;
    struct offset *offsets = must_alloc((size_t)(count * count) * sizeof *offsets, "clocks"); /* [ps, worker] */
    for (int i = 0; i < count * count; i++) {
        offsets[i] = (struct offset){.unsure_us = -1};
    }
    for (int w = 0; w < count; w++) {
        size_t pushes = 0;
        struct sent_push *sent = traces[w].member >= PROFILE_WORKER ? list_pushes(&traces[w], &pushes) : NULL;
        for (int p = 0; p < count && sent; p++) {
            if (traces[p].member >= PROFILE_PS && traces[p].member < PROFILE_WORKER) {
                offsets[p * count + w] = compare_clocks(&traces[p], traces[w].member, sent, pushes);
            }
        }
        free(sent);
    }
    for (int i = count - 1; i >= 0; i--) {
        first = traces[i].member >= PROFILE_PS && traces[i].member < PROFILE_WORKER ? i : first;
    }
    traces[first].unsure_us = 0;
    spread(traces, count, offsets);
    free(offsets);
    for (int i = 0; i < count; i++) {
        double by_clock_us = traces[i].begin_us - traces[first].begin_us;
        traces[i].shift_us = traces[i].unsure_us < 0 ? by_clock_us : traces[i].shift_us;
        traces[i].behind_us = traces[i].shift_us - by_clock_us;
    }
}

/* --- All of them --- */

static int compare_members(const void *a, const void *b)
{
    const struct trace *one = a, *two = b;
    return one->member < two->member ? -1 : one->member > two->member;
}

bool trace_read(struct trace **out, char *const *paths, int count, struct error *error)
{
    struct trace *traces = must_zero((size_t)count, sizeof *traces, "profiles");
    bool done = true;
    for (int i = 0; done && i < count; i++) {
        done = read_trace(&traces[i], paths[i], error);
    }
    if (done) {
        qsort(traces, (size_t)count, sizeof *traces, compare_members);
    }
    for (int i = 1; done && i < count; i++) {
        if (traces[i].member == traces[i - 1].member) {
            done = error_set(error, "%s and %s are both of %s; give one file per member", traces[i - 1].path,
                             traces[i].path, traces[i].name);
        }
    }
    if (done) {
        align(traces, count);
    } else {
        trace_free(traces, count);
        traces = NULL;
    }
    *out = traces;
    return done;
}

/* --- Writing --- */

/* A name from a file that anyone may have written, as JSON; the caller frees it. */
static char *quote(const char *name)
{
    cJSON *text = cJSON_CreateStringReference(name);
    char *quoted = text ? cJSON_PrintUnformatted(text) : NULL;
    cJSON_Delete(text);
    return must_have(quoted ? printable_json(quoted) : NULL, 0, "a name");
}

static void write_name(FILE *file, const char *kind, int member, const char *thread, const char *quoted)
{
    fprintf(file, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d%s,\"args\":{\"name\":%s}}", kind, member, thread, quoted);
}

static void write_names(FILE *file, const struct trace *trace)
{
    char *quoted = quote(trace->name);
    write_name(file, "process_name", trace->member, "", quoted);
    free(quoted);
    fprintf(file, ",\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"args\":{\"sort_index\":%d}}",
            trace->member, trace->member);
    for (int i = 0; i < trace->thread_count; i++) {
        if (trace->threads[i].name[0] != '\0') {
            char id[24];
            snprintf(id, sizeof id, ",\"tid\":%d", trace->threads[i].id);
            quoted = quote(trace->threads[i].name);
            fprintf(file, ",\n");
            write_name(file, "thread_name", trace->member, id, quoted);
            free(quoted);
        }
    }
}

static void write_spans(FILE *file, const struct trace *trace, double zero_us)
{
    char *quoted[TRACE_MAX_NAMES] = {NULL};
    for (int i = 0; i < trace->name_count; i++) {
        quoted[i] = quote(trace->names[i]);
    }
    for (size_t i = 0; i < trace->count; i++) {
        const struct trace_span *span = &trace->spans[i];
        char peer[32];
        fprintf(file, ",\n{\"ph\":\"X\",\"name\":%s,\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f", quoted[span->name],
                trace->member, trace->threads[span->thread].id, span->begin_us + trace->shift_us - zero_us, span->us);
        fprintf(file, ",\"args\":{\"cipher_us\":%.3f", span->cipher_us);
        if (span->peer != PROFILE_NOBODY) {
            profile_member_name(span->peer, peer);
            fprintf(file, ",\"peer\":\"%s\",\"number\":%" PRId64, peer, span->number);
        }
        fprintf(file, "}}");
    }
    for (int i = 0; i < trace->name_count; i++) {
        free(quoted[i]);
    }
}

/* An arrow for each push between these two. */
static void write_arrows(FILE *file, const struct trace *worker, const struct trace *ps, const struct sent_push *pushes,
                         size_t count, double zero_us, uint64_t *id)
{
    int name = name_index(ps, SPAN_PUSH);
    for (size_t i = 0; i < ps->count; i++) {
        const struct trace_span *span = &ps->spans[i];
        struct sent_push wanted = {.peer = ps->member, .number = span->number};
        const struct sent_push *push = span->name == name && span->peer == worker->member
                                           ? bsearch(&wanted, pushes, count, sizeof *pushes, compare_pushes)
                                           : NULL;
        if (push) {
            ++*id;
            fprintf(file,
                    ",\n{\"ph\":\"s\",\"name\":\"push\",\"cat\":\"push\",\"id\":%" PRIu64
                    ",\"pid\":%d,\"tid\":%d,\"ts\":%.3f}",
                    *id, worker->member, worker->threads[push->thread].id, push->begin_us + worker->shift_us - zero_us);
            fprintf(file,
                    ",\n{\"ph\":\"f\",\"bp\":\"e\",\"name\":\"push\",\"cat\":\"push\",\"id\":%" PRIu64
                    ",\"pid\":%d,\"tid\":%d,\"ts\":%.3f}",
                    *id, ps->member, ps->threads[span->thread].id, span->begin_us + ps->shift_us - zero_us);
        }
    }
}

/* The file starts at 0. */
static double earliest(const struct trace *traces, int count)
{
    double least_us = INFINITY;
    for (int i = 0; i < count; i++) {
        for (size_t k = 0; k < traces[i].count; k++) {
            least_us = fmin(least_us, traces[i].spans[k].begin_us + traces[i].shift_us);
        }
    }
    return least_us;
}

static void write_all(FILE *file, const struct trace *traces, int count)
{
    double zero_us = earliest(traces, count);
    uint64_t id = 0;
    for (int i = 0; i < count; i++) {
        size_t pushes;
        fprintf(file, i > 0 ? ",\n" : "");
        write_names(file, &traces[i]);
        write_spans(file, &traces[i], zero_us);
        if (traces[i].member < PROFILE_WORKER) {
            continue;
        }
        struct sent_push *sent = list_pushes(&traces[i], &pushes);
        for (int p = 0; p < count; p++) {
            if (traces[p].member >= PROFILE_PS && traces[p].member < PROFILE_WORKER) {
                write_arrows(file, &traces[i], &traces[p], sent, pushes, zero_us, &id);
            }
        }
        free(sent);
    }
}

bool trace_write(const struct trace *traces, int count, const char *path, struct error *error)
{
    struct file_draft draft;
    if (!file_output_begin(&draft, path, 0666, error) || !file_draft_stream(&draft, error)) {
        return false;
    }
    fprintf(draft.stream, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    write_all(draft.stream, traces, count);
    fprintf(draft.stream, "\n]}\n");
    return file_draft_end(&draft, false, error);
}

/* --- The command profile --- */

/* trainer profile: shows where the time of a run went, and merges the traces of its members. */

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

static void show_json(cJSON *members, const struct trace *trace, const struct total *totals, double us)
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
}

static void show(const struct trace *traces, int count, bool json)
{
    struct total totals[TRACE_MAX_NAMES];
    cJSON *members = json ? cJSON_CreateArray() : NULL;
    for (int i = 0; i < count; i++) {
        double us = covered_us(&traces[i]);
        add_up(&traces[i], totals);
        if (json) {
            show_json(members, &traces[i], totals, us);
        } else {
            show_text(&traces[i], totals, us);
        }
    }
    if (json) {
        char *text =
            must_have(printable_json(must_have(cJSON_PrintUnformatted(members), 0, "a profile")), 0, "a profile");
        printf("%s\n", text);
        free(text);
        cJSON_Delete(members);
    }
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
    if (done) {
        show(traces, count, command_switch(call, "json"));
    } else {
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
    .confine = CONFINE_READER,
    .run = run_profile,
};
