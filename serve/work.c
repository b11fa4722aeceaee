/* A worker computes all its requests at once. Invalid input from one client fails only that client's request. */
#include "serve/work.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <zlib.h>

#include "base/clock.h"
#include "base/threads.h"
#include "serve/request_log.h"
#include "worker/data/table/schema.h"
#include "worker/ensemble.h"
#include "worker/export/outcome.h"

/* --- Compressed answers --- */

/*
 * Speed matters more than size: level 1, and a window of 8 KiB, since rows of numbers hardly gain from more. Text that
 * does not become smaller is sent as it is.
 */

enum {
    MOST = 4 << 20, /* limits the time that one client may cost the others */
    LEVEL = 1,
    WINDOW = 13, /* bits */
    GZIP = 16,   /* what deflateInit2 adds to them */
    MEMORY = 7,
};

static bool prepare(struct packer *packer, int window)
{
    if (packer->window == window) {
        return deflateReset(&packer->stream) == Z_OK;
    }
    packer_end(packer);
    if (deflateInit2(&packer->stream, LEVEL, Z_DEFLATED, window, MEMORY, Z_DEFAULT_STRATEGY) != Z_OK) {
        return false;
    }
    packer->window = window;
    return true;
}

void packer_end(struct packer *packer)
{
    if (packer->window != 0) {
        deflateEnd(&packer->stream);
    }
    *packer = (struct packer){.window = 0};
}

/* False: it does not become smaller, or memory ran out. */
static bool squeeze(struct packer *packer, int window, struct text_buffer *text)
{
    const size_t room = text->size;
    if (!budget_try(text->account, room)) {
        return false;
    }
    uint8_t *packed = malloc(room);
    if (!packed || !prepare(packer, window)) {
        free(packed);
        budget_release(text->account, room);
        return false;
    }
    packer->stream.next_in = (Bytef *)(uintptr_t)text->bytes;
    packer->stream.avail_in = (uInt)text->size;
    packer->stream.next_out = packed;
    packer->stream.avail_out = (uInt)text->size;
    if (deflate(&packer->stream, Z_FINISH) != Z_STREAM_END) {
        free(packed);
        budget_release(text->account, room);
        return false;
    }
    const size_t size = room - packer->stream.avail_out;
    text_buffer_free(text);
    *text = (struct text_buffer){.bytes = (char *)packed, .size = size, .room = room, .account = text->account};
    return true;
}

void pack_answer(struct packer *packer, const struct http_request *request, bool busy, struct text_buffer *text,
                 char *headers, size_t size)
{
    if (text->failed || text->size < PACK_LEAST || text->size > MOST) {
        return;
    }
    const bool gzip = http_request_accepts(request, "accept-encoding", "gzip");
    const bool wanted = gzip || http_request_accepts(request, "accept-encoding", "deflate");
    strncat(headers, "Vary: Accept-Encoding\r\n", size - strlen(headers) - 1);
    if (wanted && !busy && squeeze(packer, gzip ? WINDOW + GZIP : WINDOW, text)) {
        strncat(headers, gzip ? "Content-Encoding: gzip\r\n" : "Content-Encoding: deflate\r\n",
                size - strlen(headers) - 1);
    }
}

const double work_latency_bounds[SERVED_LATENCY_BUCKETS - 1] = {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02,
                                                                0.05,   0.1,    0.2,    0.5,   1,     2,     5};

enum {
    MOST_SPARE = 256,
    MOST_SPARE_TEXT = 16 * 1024,
    MOST_KEPT = 1024 * 1024,    /* bytes of outputs whose memory stays for the next requests */
    COMPUTED_TOGETHER = 4096,   /* rows, until it is seen whether anybody waits for them */
    FIRST_UNPACKED = 64 * 1024, /* bytes */
};

struct worker {
    struct work *work;
    pthread_t thread;
    int index;
    struct budget_account account; /* of what answered requests still take, until their batch ends */
    struct intake intake;
    struct packer packer;
    float *outputs;
    size_t outputs_room;
};

struct call_queue {
    struct call *first, *last;
    int count;
};

struct work {
    struct work_options options;
    struct worker *workers;
    int started;
    pthread_mutex_t mutex; /* guards what follows: */
    pthread_cond_t changed;
    struct call_queue quick, slow; /* slow: explanations, say */
    int slow_taken;                /* slow calls that workers are busy with */
    atomic_bool stops;             /* also read without it */
    struct call *spare;            /* for reuse, with their texts' memory */
    int spare_count;
};

int work_waiting(struct work *work)
{
    pthread_mutex_lock(&work->mutex);
    const int waiting = work->quick.count + work->slow.count;
    pthread_mutex_unlock(&work->mutex);
    return waiting;
}

/* --- the queue --- */

static bool is_slow(const struct call *call)
{
    return call->protocol->compute;
}

/* Everything but its texts. */
static void call_end(struct call *call)
{
    if (call->protocol->forget) {
        call->protocol->forget(call);
    }
    version_release(call->version);
    free(call->format);
    free(call->spreads);
}

/* Kept for reuse: freeing and allocating memory for each would go through the system every time. */
static void call_give_back(void *owner)
{
    struct call *call = owner;
    struct work *work = call->work;
    bool is_kept = false;
    call->text.account = call->tail.account = NULL; /* the charge has been released, or is the server's */
    if (call->text.room <= MOST_SPARE_TEXT && call->tail.room <= MOST_SPARE_TEXT) {
        pthread_mutex_lock(&work->mutex);
        is_kept = work->spare_count < MOST_SPARE;
        if (is_kept) {
            call->next = work->spare;
            work->spare = call;
            work->spare_count++;
        }
        pthread_mutex_unlock(&work->mutex);
    }
    if (!is_kept) {
        text_buffer_free(&call->text);
        text_buffer_free(&call->tail);
        free(call);
    }
}

bool call_fault(struct call *call, int status, struct error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    call->status = status;
    return false;
}

bool call_ask_spread(struct call *call, struct json_value parameters, struct error *error)
{
    const struct json_value spread = json_member(parameters, "spread");
    const char *obstacle = outcome_spread_obstacle(&call->version->trained);
    if (spread.kind != JSON_NONE && spread.kind != JSON_TRUE && spread.kind != JSON_FALSE) {
        return error_set(error, "parameters: spread is %s, not true or false", json_kind_name(spread.kind));
    }
    call->wants_spread = call->wants_spread || spread.kind == JSON_TRUE;
    return !call->wants_spread || !obstacle || error_set(error, "spread: %s %s", call->served->name, obstacle);
}

bool call_charge(struct call *call, size_t bytes, struct error *error)
{
    if (!budget_charge(call->account, bytes, error)) {
        return false;
    }
    call->charged += call->account ? bytes : 0;
    return true;
}

static void call_free(struct call *call)
{
    call_end(call);
    budget_release(call->account, call->text.room + call->tail.room);
    call_give_back(call);
}

static struct call *call_create(struct work *work)
{
    pthread_mutex_lock(&work->mutex);
    struct call *call = work->spare;
    if (call) {
        work->spare = call->next;
        work->spare_count--;
    }
    pthread_mutex_unlock(&work->mutex);
    return call ? call : calloc(1, sizeof *call);
}

static void refuse(struct served *served, struct http_request *request, const char *why)
{
    char text[256];
    struct text_buffer body = {0};
    atomic_fetch_add(&served->counts.refused, 1);
    snprintf(text, sizeof text, "%s", why);
    json_write_open(&body, NULL, '{');
    json_write_string(&body, "error", text);
    json_write_close(&body, '}');
    size_t size;
    char *bytes = text_buffer_take(&body, &size);
    http_answer(request, &(struct http_answer){.status = 503,
                                               .type = bytes ? "application/json" : NULL,
                                               .headers = "Retry-After: 1\r\n",
                                               .body = bytes,
                                               .size = bytes ? size : 0,
                                               .release = free,
                                               .owner = bytes});
}

/* Frees it and answers with why it failed. status: unless a charge was refused. */
static void fail(struct call *call, int status, const char *why)
{
    struct served_counts *counts = &call->served->counts;
    struct error error;
    const enum budget_refusal refusal = budget_is_closed(call->account) ? BUDGET_GONE : budget_refusal(call->account);
    if (refusal == BUDGET_NEVER || refusal == BUDGET_LATER) {
        budget_explain(call->account, &error);
        why = error.text;
    }
    if (!call->is_trial) {
        atomic_fetch_add(refusal == BUDGET_GONE                     ? &counts->left
                         : status == 503 || refusal == BUDGET_LATER ? &counts->refused
                                                                    : &counts->faulty,
                         1);
    }
    status = refusal == BUDGET_NEVER ? 413 : refusal != BUDGET_FITS ? 503 : status;
    call_end(call);
    text_buffer_free(&call->text);
    text_buffer_free(&call->tail);
    struct http_request *request = call->request;
    call_give_back(call);
    http_answer_error(request, status, "%s", why);
}

void work_take(struct work *work, struct http_request *request, struct served *served, struct version *version,
               const struct protocol *protocol)
{
    if (!version) {
        refuse(served, request, "the model is not loaded yet; /readyz says why");
        return;
    }
    struct call *call = call_create(work);
    if (!call) {
        version_release(version);
        refuse(served, request, "out of memory; try again");
        return;
    }
    struct budget_account *account = http_request_account(request);
    *call = (struct call){.work = work,
                          .text = {.bytes = call->text.bytes, .room = call->text.room, .account = account},
                          .tail = {.bytes = call->tail.bytes, .room = call->tail.room, .account = account},
                          .request = request,
                          .account = account,
                          .served = served,
                          .version = version,
                          .protocol = protocol,
                          .arrived_s = clock_monotonic_s()};
    budget_force(account, call->text.room + call->tail.room); /* MOST_SPARE_TEXT at most */
    struct call_queue *queue = is_slow(call) ? &work->slow : &work->quick;
    pthread_mutex_lock(&work->mutex);
    const bool fits = queue->count < work->options.most_waiting && !atomic_load(&work->stops);
    if (fits) {
        *(queue->last ? &queue->last->next : &queue->first) = call;
        queue->last = call;
        queue->count++;
        pthread_cond_signal(&work->changed);
    }
    pthread_mutex_unlock(&work->mutex);
    if (!fits) {
        call_free(call);
        refuse(served, request, "too many requests are waiting; try again");
    }
}

bool call_goes_on(struct call *call, struct error *error)
{
    if (budget_is_closed(call->account)) {
        return error_set(error, "the client has gone");
    }
    return !atomic_load(&call->work->stops) || call_fault(call, 503, error, "the server stops; ask again later");
}

/* A worker is left to quick calls, if there are several. Mutex held. */
static bool slow_is_due(const struct work *work)
{
    const int most = work->options.workers > 1 ? work->options.workers - 1 : 1;
    return work->slow.first && (work->slow_taken < most || atomic_load(&work->stops));
}

/* The first call and later ones for the same version, at most `most`. Mutex held. */
static struct call *take_together(struct call_queue *queue, int most, int *count)
{
    struct call *first = queue->first, *last = first;
    int taken = 1;
    while (last->next && last->next->version == first->version && taken < most) {
        last = last->next;
        taken++;
    }
    queue->first = last->next;
    if (!queue->first) {
        queue->last = NULL;
    }
    last->next = NULL;
    queue->count -= taken;
    *count = taken;
    return first;
}

/* Quick calls first; slow ones one by one. NULL: there is nothing to do. Mutex held. */
static struct call *take(struct work *work, int *count)
{
    struct call *calls = NULL;
    if (work->quick.first) {
        calls = take_together(&work->quick, work->options.most_rows, count);
    } else if (slow_is_due(work)) {
        calls = take_together(&work->slow, 1, count);
        work->slow_taken++;
    }
    if (calls && (work->quick.first || slow_is_due(work))) {
        pthread_cond_signal(&work->changed); /* whoever was told of these may be this worker, which is busy now */
    }
    return calls;
}

/* Waits for calls, and longer for more if configured. NULL: the end. */
static struct call *wait_for_calls(struct work *work, int *count)
{
    pthread_mutex_lock(&work->mutex);
    while (!work->quick.first && !slow_is_due(work) && !atomic_load(&work->stops)) {
        pthread_cond_wait(&work->changed, &work->mutex);
    }
    while (work->quick.first && !atomic_load(&work->stops) && work->quick.count < work->options.most_rows) {
        const double left_s = work->quick.first->arrived_s + work->options.most_wait_s - clock_monotonic_s();
        if (left_s <= 0) {
            break;
        }
        condition_wait_for(&work->changed, &work->mutex, left_s);
    }
    struct call *calls = take(work, count);
    pthread_mutex_unlock(&work->mutex);
    return calls;
}

/* --- reading --- */

/* A compressed body. */
struct unpacked {
    uint8_t *bytes;
    size_t size, room; /* charged to the call */
};

static bool check_size(struct call *call, const struct unpacked *unpacked, size_t most, struct error *error)
{
    return unpacked->size <= most ||
           call_fault(call, 413, error,
                      "the body is more than %zu bytes unpacked; send fewer rows at a time, or raise --max_body_mb",
                      most);
}

static bool widen(struct call *call, struct unpacked *unpacked, size_t most, struct error *error)
{
    const size_t twice = unpacked->room > 0 ? 2 * unpacked->room : FIRST_UNPACKED;
    const size_t room = twice < most + 1 ? twice : most + 1; /* a byte that shows that there is more */
    if (!budget_charge(call->account, room - unpacked->room, error)) {
        return false;
    }
    uint8_t *bytes = realloc(unpacked->bytes, room);
    if (!bytes) {
        budget_release(call->account, room - unpacked->room);
        return error_set(error, "out of memory to unpack the body");
    }
    unpacked->bytes = bytes;
    unpacked->room = room;
    return true;
}

/* Unpacks all members of gzip data, of which there may be several, or the only stream of deflate. */
static bool inflate_all(struct call *call, z_stream *stream, bool is_gzip, struct unpacked *unpacked, size_t most,
                        struct error *error)
{
    int status = Z_OK;
    while (status != Z_STREAM_END || (is_gzip && stream->avail_in > 0)) {
        if (status == Z_STREAM_END && inflateReset(stream) != Z_OK) {
            return error_set(error, "out of memory to unpack the body");
        }
        if (!check_size(call, unpacked, most, error)) {
            return false;
        }
        if (unpacked->size == unpacked->room && !widen(call, unpacked, most, error)) {
            return false;
        }
        stream->next_out = unpacked->bytes + unpacked->size;
        stream->avail_out = (uInt)(unpacked->room - unpacked->size);
        const uInt before = stream->avail_in;
        status = inflate(stream, Z_NO_FLUSH);
        const size_t size = unpacked->room - stream->avail_out;
        const bool moves = size > unpacked->size || stream->avail_in < before;
        unpacked->size = size;
        if (status != Z_STREAM_END &&
            ((status != Z_OK && status != Z_BUF_ERROR) || (!moves && stream->avail_out > 0))) {
            return error_set(error, "the body is not complete %s", is_gzip ? "gzip" : "deflate");
        }
    }
    return check_size(call, unpacked, most, error) &&
           (stream->avail_in == 0 || error_set(error, "the body has bytes behind its deflate data"));
}

/* A compressed body, with the size limit of an uncompressed one; the caller frees it. */
static bool unpack(const struct work *work, struct call *call, struct unpacked *unpacked, struct error *error)
{
    const char *encoding = http_request_header(call->request, "content-encoding");
    call->body = http_request_body(call->request, &call->size);
    if (!encoding || strcasecmp(encoding, "identity") == 0) {
        return true;
    }
    const bool is_gzip = strcasecmp(encoding, "gzip") == 0 || strcasecmp(encoding, "x-gzip") == 0;
    if (!is_gzip && strcasecmp(encoding, "deflate") != 0) {
        return call_fault(call, 415, error,
                          "Content-Encoding %.32s is not known here; send gzip, deflate, or the bytes as they are",
                          encoding);
    }
    z_stream stream = {.next_in = (Bytef *)(uintptr_t)call->body, .avail_in = (uInt)call->size};
    if (inflateInit2(&stream, is_gzip ? 15 + 16 : 15) != Z_OK) {
        return error_set(error, "out of memory to unpack the body");
    }
    const bool done = inflate_all(call, &stream, is_gzip, unpacked, work->options.most_body, error);
    inflateEnd(&stream);
    call->body = unpacked->bytes;
    call->size = unpacked->size;
    return done;
}

/* For its outputs, which follow from its rows. */
static bool charge_outputs(struct call *call, const struct intake *intake, struct error *error)
{
    const size_t rows = (size_t)(intake->examples.count - call->first) + (size_t)intake->lent.count;
    return call_charge(call, rows * (size_t)version_outputs(call->version) * sizeof(float), error);
}

static bool read_call(const struct work *work, struct call *call, struct intake *intake, struct error *error)
{
    struct unpacked unpacked = {.bytes = NULL};
    call->first = intake->examples.count;
    call->is_trial = http_request_header(call->request, "trainer-try");
    call->is_kept = !call->is_trial && call->served->log && request_log_wants(call->served->log);
    call->first_raw = intake->raw.size;
    intake->keeps = call->is_kept && call->version->trained.schema;
    intake->lent.count = 0;
    intake->lent_numbers = NULL;
    intake_charge(intake, call->account);
    bool done = budget_is_closed(call->account) ? error_set(error, "the client has gone")
                                                : unpack(work, call, &unpacked, error);
    intake->may_lend = !unpacked.bytes;
    done = done && call->protocol->read(call, intake, error);
    call->charged += intake->charged;
    done = done && charge_outputs(call, intake, error);
    free(unpacked.bytes);
    budget_release(call->account, unpacked.room);
    call->body = NULL;
    if (!done) {
        intake_cut(intake, call->first);
        intake->raw.size = call->first_raw;
        return false;
    }
    call->count = intake->examples.count - call->first;
    call->raw_size = intake->raw.size - call->first_raw;
    call->is_wide = intake->lent_numbers || (intake->wide && intake->last_wide >= call->first);
    call->numbers = intake->lent_numbers;
    call->lent = intake->lent;
    return true;
}

/* --- computing --- */

static void count_latency(const struct call *call)
{
    const double seconds = clock_monotonic_s() - call->arrived_s;
    int bucket = 0;
    while (bucket < SERVED_LATENCY_BUCKETS - 1 && seconds > work_latency_bounds[bucket]) {
        bucket++;
    }
    atomic_fetch_add(&call->served->counts.latency[bucket], 1);
    atomic_fetch_add(&call->served->counts.latency_us, (uint64_t)(seconds * 1e6));
}

static void count_batch(struct served_counts *counts, int rows)
{
    int bucket = 0;
    while (bucket < SERVED_BATCH_BUCKETS - 1 && rows > 1 << bucket) {
        bucket++;
    }
    atomic_fetch_add(&counts->batch[bucket], 1);
    atomic_fetch_add(&counts->rows, (uint64_t)rows);
}

/* Has the client of any of them gone? Once that is false, none had gone before. */
static bool one_has_gone(const struct call *calls)
{
    while (calls && !budget_is_closed(calls->account)) {
        calls = calls->next;
    }
    return calls;
}

/* Does nobody wait for any of them? */
static bool all_have_gone(const struct call *calls)
{
    while (calls && budget_is_closed(calls->account)) {
        calls = calls->next;
    }
    return !calls;
}

/* Computes rows [0, count) into outputs [count, width], a part at a time, as long as anybody waits for an answer. */
static bool forward_parts(struct engine *engine, const struct examples *rows, int count, float *outputs, int width,
                          const struct call *calls, struct error *error)
{
    for (int at = 0; at < count; at += COMPUTED_TOGETHER) {
        const int some = count - at < COMPUTED_TOGETHER ? count - at : COMPUTED_TOGETHER;
        if (!all_have_gone(calls) &&
            !engine->table->forward(engine, false, rows, at, some, outputs + (size_t)at * (size_t)width, error)) {
            return false;
        }
    }
    return true;
}

static bool make_room(struct worker *worker, size_t floats, struct error *error)
{
    if (floats <= worker->outputs_room) {
        return true;
    }
    free(worker->outputs);
    worker->outputs = malloc(floats * sizeof *worker->outputs);
    worker->outputs_room = worker->outputs ? floats : 0;
    return worker->outputs || error_set(error, "out of memory for %zu outputs", floats);
}

static float *outputs_at(const struct worker *worker, const struct version *version, int row)
{
    return worker->outputs + (size_t)row * (size_t)version_outputs(version);
}

/*
 * A call's rows, [call->count], and the engine for them: for images whose pixels are not levels of grey one that
 * accepts numbers, created for the first of them. NULL with an error: it can't be created.
 */
static struct engine *rows_of(struct worker *worker, struct version *version, const struct call *call,
                              struct examples *rows, struct error *error)
{
    const int inputs = version_inputs(version);
    if (!call->is_wide) {
        *rows = call->lent.count > 0 ? call->lent : examples_part(&worker->intake.examples, call->first, call->count);
        return version->engines[worker->index];
    }
    *rows = (struct examples){.count = call->count, .inputs = inputs, .numbers = inputs};
    /* Only read, like the original. */
    rows->values = call->numbers ? (float *)(uintptr_t)call->numbers
                                 : worker->intake.values + (size_t)call->first * (size_t)inputs;
    return version_wide_engine(version, worker->index, error);
}

static bool forward_wide(struct worker *worker, struct version *version, const struct call *call, struct error *error)
{
    struct examples rows;
    struct engine *engine = rows_of(worker, version, call, &rows, error);
    const struct call alone = {.account = call->account};
    return engine && forward_parts(engine, &rows, call->count, outputs_at(worker, version, call->first),
                                   version_outputs(version), &alone, error);
}

static bool has_trial(const struct call *calls)
{
    while (calls && !calls->is_trial) {
        calls = calls->next;
    }
    return calls;
}

/* Outputs of those who have gone may not have been computed, and trials do not count. */
static void compare(const struct worker *worker, struct version *version, const struct call *calls)
{
    const struct examples *rows = &worker->intake.examples;
    if (!one_has_gone(calls) && !has_trial(calls)) {
        drift_add(&version->drift, rows, worker->outputs);
        return;
    }
    for (const struct call *call = calls; call; call = call->next) {
        if (call->lent.count == 0 && call->count > 0 && !call->is_trial && !budget_is_closed(call->account)) {
            const struct examples part = examples_part(rows, call->first, call->count);
            drift_add(&version->drift, &part, outputs_at(worker, version, call->first));
        }
    }
}

/* Computes the intake's rows at once, unless all of them are numbers for the other engine. */
static bool forward_intake(struct worker *worker, struct version *version, const struct call *calls,
                           struct error *error)
{
    const struct examples *rows = &worker->intake.examples;
    struct engine *engine = version->engines[worker->index];
    bool all_wide = true;
    for (const struct call *call = calls; call; call = call->next) {
        all_wide &= call->is_wide || call->lent.count > 0 || call->count == 0;
    }
    count_batch(&calls->served->counts, rows->count);
    if (!all_wide &&
        !forward_parts(engine, rows, rows->count, worker->outputs, version_outputs(version), calls, error)) {
        return false;
    }
    for (const struct call *call = calls; call; call = call->next) {
        if (call->is_wide && !forward_wide(worker, version, call, error)) {
            return false;
        }
    }
    compare(worker, version, calls);
    return true;
}

/* Images that are in a request's body. */
static bool forward_lent(struct worker *worker, struct version *version, const struct call *call, struct error *error)
{
    struct engine *engine = version->engines[worker->index];
    float *outputs = outputs_at(worker, version, call->first);
    count_batch(&call->served->counts, call->count);
    const struct call alone = {.account = call->account};
    if (!forward_parts(engine, &call->lent, call->count, outputs, version_outputs(version), &alone, error)) {
        return false;
    }
    if (!call->is_trial && !budget_is_closed(call->account)) {
        drift_add(&version->drift, &call->lent, outputs);
    }
    return true;
}

static bool compute(struct worker *worker, struct version *version, struct call *calls, struct error *error)
{
    const int taken_in = worker->intake.examples.count;
    size_t rows = (size_t)taken_in;
    for (struct call *call = calls; call; call = call->next) {
        if (call->lent.count > 0) {
            call->first = (int)rows;
            call->count = call->lent.count;
            rows += (size_t)call->count;
        }
    }
    if (!make_room(worker, rows * (size_t)version_outputs(version), error) ||
        (taken_in > 0 && !forward_intake(worker, version, calls, error))) {
        return false;
    }
    for (const struct call *call = calls; call; call = call->next) {
        if (call->lent.count > 0 && !forward_lent(worker, version, call, error)) {
            return false;
        }
    }
    return true;
}

/* Logs requests. Posts of whole files are logged where they are read (serve/plain.c). */
static void keep(const struct intake *intake, const struct call *call, const struct answers *answers)
{
    struct request_log *log = call->served->log;
    if (call->version->trained.schema && call->count > 0) {
        request_log_add_rows(log, intake->raw.failed ? NULL : intake->raw.bytes + call->first_raw,
                             intake->raw.failed ? 0 : call->raw_size, answers);
    } else if (call->count > 0) {
        const size_t first = (size_t)call->first * (size_t)version_inputs(call->version);
        request_log_add_pictures(log, call->lent.count > 0 ? call->lent.images : intake->examples.images + first,
                                 answers);
    }
}

/* What is wanted beside the outputs. */
static bool compute_more(struct worker *worker, struct call *call, struct error *error)
{
    struct version *version = call->version;
    const size_t bytes = (size_t)call->count * (size_t)version_outputs(version) * sizeof(float);
    const bool wants_spread = call->wants_spread && call->count > 0; /* of rows already written there are none */
    if (!wants_spread && !call->protocol->compute) {
        return true;
    }
    struct examples rows;
    struct engine *engine = rows_of(worker, version, call, &rows, error);
    if (!engine || (wants_spread && !call_charge(call, bytes, error))) {
        return false;
    }
    call->spreads = wants_spread ? malloc(bytes) : NULL;
    if (wants_spread && !call->spreads) {
        return error_set(error, "out of memory for the spread of %d rows", call->count);
    }
    return (!wants_spread || ensemble_spread(engine, &rows, 0, call->count, call->spreads, error)) &&
           (!call->protocol->compute || call->protocol->compute(call, engine, &rows, error));
}

/* And ends the call. */
static void answer(struct worker *worker, struct call *call)
{
    struct version *version = call->version;
    const struct examples *examples = &worker->intake.examples;
    struct error error;
    const bool has_gone = budget_is_closed(call->account);
    if (!has_gone && !compute_more(worker, call, &error)) {
        budget_move(call->account, &worker->account, call->charged);
        fail(call, call->status > 0 ? call->status : 500, error.text);
        return;
    }
    const struct answers answers = {
        .version = version,
        .outputs = outputs_at(worker, version, call->first),
        .spreads = call->spreads,
        .wanted =
            examples->target_values ? examples->target_values + (size_t)call->first * (size_t)examples->targets : NULL,
        .count = call->count,
    };
    char headers[512] = "", more[1024];
    const char *type = has_gone ? NULL : call->protocol->write(call, &answers, &call->text, headers);
    budget_move(call->account, &worker->account, call->charged); /* others in the batch may still need the memory */
    if (has_gone || call->text.failed || call->tail.failed) {
        fail(call, 500, "out of memory for the answer; send fewer rows at a time");
        return;
    }
    if (call->is_kept) {
        keep(&worker->intake, call, &answers);
    }
    if (!call->is_trial) {
        atomic_fetch_add(&call->served->counts.answered, 1);
        count_latency(call);
    }
    snprintf(more, sizeof more, "Model-Name: %s\r\nModel-Version: %lld\r\n%s", call->served->name,
             (long long)version->number, headers);
    if (call->tail.size == 0 && call->text.size >= PACK_LEAST) {
        const bool busy = work_waiting(worker->work) > worker->work->options.workers;
        pack_answer(&worker->packer, call->request, busy, &call->text, more, sizeof more);
    }
    call_end(call);
    http_answer(call->request, &(struct http_answer){.status = 200,
                                                     .type = type,
                                                     .headers = more,
                                                     .body = call->text.bytes,
                                                     .size = call->text.size,
                                                     .tail = call->tail.bytes,
                                                     .tail_size = call->tail.size,
                                                     .release = call_give_back,
                                                     .owner = call,
                                                     .charged = call->text.room + call->tail.room});
}

/* Reads them all; answers those with unusable rows at once. Returns the rest. */
static struct call *read_all(struct worker *worker, struct call *calls)
{
    struct call *kept = NULL, **end = &kept;
    struct error error;
    bool ready = intake_begin(&worker->intake, worker->index, calls->version, &error);
    worker->intake.shared = &worker->account;
    for (struct call *call = calls, *next; call; call = next) {
        next = call->next;
        call->next = NULL;
        if (ready && read_call(worker->work, call, &worker->intake, &error)) {
            *end = call;
            end = &call->next;
            continue;
        }
        budget_move(call->account, &worker->account, call->charged);
        fail(call, !ready ? 500 : call->status > 0 ? call->status : 400, error.text);
    }
    return kept;
}

static void process(struct worker *worker, struct call *calls)
{
    struct error error;
    struct budget_account *first = calls->account;
    worker->account.budget = first ? first->budget : NULL; /* all requests have the server's */
    struct call *kept = read_all(worker, calls);
    const bool done = !kept || compute(worker, kept->version, kept, &error);
    for (struct call *call = kept, *next; call; call = next) {
        next = call->next;
        if (done) {
            answer(worker, call);
        } else {
            budget_move(call->account, &worker->account, call->charged);
            fail(call, 500, error.text);
        }
    }
    intake_shrink(&worker->intake);
    if (worker->outputs_room * sizeof *worker->outputs > MOST_KEPT) {
        free(worker->outputs);
        worker->outputs = NULL;
        worker->outputs_room = 0;
    }
    budget_release(&worker->account, atomic_load(&worker->account.used));
}

/* --- threads --- */

static void *work_on(void *context)
{
    struct worker *worker = context;
    struct call *calls;
    int count;
    threads_run_soon(); /* clients are waiting, unlike training on the same machine */
    while ((calls = wait_for_calls(worker->work, &count))) {
        const bool was_slow = is_slow(calls);
        process(worker, calls);
        if (was_slow) {
            pthread_mutex_lock(&worker->work->mutex);
            worker->work->slow_taken--;
            pthread_mutex_unlock(&worker->work->mutex);
        }
    }
    return NULL;
}

bool work_start(struct work **started, const struct work_options *options, struct error *error)
{
    struct work *work = calloc(1, sizeof *work);
    struct worker *workers = calloc((size_t)options->workers, sizeof *workers);
    if (!work || !workers) {
        free(work);
        free(workers);
        return error_set(error, "out of memory for %d workers", options->workers);
    }
    work->options = *options;
    work->workers = workers;
    pthread_mutex_init(&work->mutex, NULL);
    condition_create(&work->changed);
    for (; work->started < options->workers; work->started++) {
        struct worker *worker = &workers[work->started];
        *worker = (struct worker){.work = work, .index = work->started};
        if (pthread_create(&worker->thread, NULL, work_on, worker) != 0) {
            error_set(error, "cannot start thread %d of %d", work->started + 1, options->workers);
            work_stop(work);
            work_free(work);
            return false;
        }
    }
    *started = work;
    return true;
}

void work_stop(struct work *work)
{
    if (!work) {
        return;
    }
    pthread_mutex_lock(&work->mutex);
    atomic_store(&work->stops, true);
    pthread_cond_broadcast(&work->changed);
    pthread_mutex_unlock(&work->mutex);
    for (int i = 0; i < work->started; i++) {
        pthread_join(work->workers[i].thread, NULL);
        intake_end(&work->workers[i].intake);
        packer_end(&work->workers[i].packer);
        free(work->workers[i].outputs);
    }
}

void work_free(struct work *work)
{
    if (!work) {
        return;
    }
    while (work->spare) {
        struct call *next = work->spare->next;
        text_buffer_free(&work->spare->text);
        text_buffer_free(&work->spare->tail);
        free(work->spare);
        work->spare = next;
    }
    pthread_cond_destroy(&work->changed);
    pthread_mutex_destroy(&work->mutex);
    free(work->workers);
    free(work);
}
