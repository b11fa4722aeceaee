/*
 * Each thread fills its own chunk without locks, then takes another. When the limit is reached, the oldest full chunk
 * is reused, so that the end of the run is kept.
 */
#include "base/profile.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

enum {
    CHUNK_SPANS = 512,
    MAX_CHUNKS = 2048, /* about a million spans, 48 MiB */
    NAME_SIZE = 32,
    PATH_SIZE = 1024,
};

struct profile_span {
    const char *name;
    uint64_t begin_ns, end_ns, cipher_ns;
    int64_t number;
    int64_t peer;
};

struct span_chunk {
    struct span_chunk *next; /* list of all chunks; next_full: list of full ones, oldest first */
    struct span_chunk *next_full;
    int thread;
    char thread_name[NAME_SIZE];
    atomic_int count;
    struct profile_span spans[CHUNK_SPANS];
};

/* Per thread. */
struct track {
    struct span_chunk *chunk;
    int thread;
    char name[NAME_SIZE];
    uint64_t cipher_ns;
};

atomic_bool profile_is_on;

static _Thread_local struct track track;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards everything below */
static struct span_chunk *all, *first_full, **last_full = &first_full;
static int chunk_count;
static uint64_t forgotten; /* spans */
static char file_path[PATH_SIZE];
static int member;
static uint64_t opened_ns;
static double opened_wall_s;
static pthread_key_t at_exit;
static bool has_key;

uint64_t profile_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t profile_cipher_ns(void)
{
    return track.cipher_ns;
}

void profile_note_cipher(uint64_t begin_ns)
{
    if (begin_ns != 0) {
        track.cipher_ns += profile_now_ns() - begin_ns;
    }
}

/* Locked. */
static void retire(struct span_chunk *chunk)
{
    chunk->next_full = NULL;
    *last_full = chunk;
    last_full = &chunk->next_full;
}

/* A thread ends: its last chunk joins the full ones, to be reused in turn. */
static void leave(void *chunk)
{
    pthread_mutex_lock(&mutex);
    retire(chunk);
    pthread_mutex_unlock(&mutex);
}

static struct span_chunk *another_chunk(void)
{
    struct span_chunk *chunk = NULL;
    pthread_mutex_lock(&mutex);
    if (track.chunk) {
        retire(track.chunk);
    }
    if (chunk_count < MAX_CHUNKS && (chunk = calloc(1, sizeof *chunk))) {
        chunk->next = all;
        all = chunk;
        chunk_count++;
    } else if (first_full) {
        chunk = first_full;
        first_full = chunk->next_full;
        last_full = first_full ? last_full : &first_full;
        forgotten += (uint64_t)atomic_load(&chunk->count);
        atomic_store(&chunk->count, 0);
    }
    track.chunk = chunk;
    if (chunk) {
        track.thread = track.thread != 0 ? track.thread : (int)syscall(SYS_gettid);
        chunk->thread = track.thread;
        memcpy(chunk->thread_name, track.name, NAME_SIZE);
    }
    pthread_setspecific(at_exit, chunk);
    pthread_mutex_unlock(&mutex);
    return chunk;
}

void profile_scope_note(const struct profile_scope *scope)
{
    if (!atomic_load_explicit(&profile_is_on, memory_order_relaxed)) {
        return;
    }
    struct span_chunk *chunk = track.chunk;
    if ((!chunk || atomic_load_explicit(&chunk->count, memory_order_relaxed) == CHUNK_SPANS) &&
        !(chunk = another_chunk())) {
        return;
    }
    int count = atomic_load_explicit(&chunk->count, memory_order_relaxed);
    chunk->spans[count] = (struct profile_span){.name = scope->name,
                                                .begin_ns = scope->begin_ns,
                                                .end_ns = profile_now_ns(),
                                                .cipher_ns = track.cipher_ns - scope->cipher_ns,
                                                .number = scope->number,
                                                .peer = scope->peer};
    atomic_store_explicit(&chunk->count, count + 1, memory_order_release);
}

void profile_thread(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(track.name, sizeof track.name, format, arguments);
    va_end(arguments);
}

void profile_member_name(int who, char name[32])
{
    if (who >= PROFILE_WORKER) {
        snprintf(name, NAME_SIZE, "worker %d", who - PROFILE_WORKER);
    } else if (who >= PROFILE_PS) {
        snprintf(name, NAME_SIZE, "ps %d", who - PROFILE_PS);
    } else {
        snprintf(name, NAME_SIZE, "local");
    }
}

/* Reads both clocks as simultaneously as possible: the closest pair of several tries. */
static void read_clocks(void)
{
    uint64_t least_ns = UINT64_MAX;
    for (int i = 0; i < 10; i++) {
        uint64_t before_ns = profile_now_ns();
        double wall_s = clock_wall_s();
        uint64_t took_ns = profile_now_ns() - before_ns;
        if (took_ns < least_ns) {
            least_ns = took_ns;
            opened_ns = before_ns;
            opened_wall_s = wall_s;
        }
    }
}

bool profile_open(const char *path, int identity, struct error *error)
{
    if (strlen(path) >= sizeof file_path - 8) {
        return error_set(error, "--profile: the path is too long");
    }
    if (!has_key && pthread_key_create(&at_exit, leave) != 0) {
        return error_set(error, "--profile: no thread-specific data key left");
    }
    /* Better to find out now than after hours that the file can't be written. */
    struct file_draft draft;
    if (!file_draft_begin(&draft, path, 0666, error)) {
        return error_wrap(error, "--profile");
    }
    file_draft_drop(&draft);
    has_key = true;
    snprintf(file_path, sizeof file_path, "%s", path);
    member = identity;
    read_clocks();
    atomic_store(&profile_is_on, true);
    return true;
}

/* --- The file: one event a line --- */

static double microseconds(uint64_t ns)
{
    return (double)(ns - opened_ns) / 1e3;
}

static void write_span(FILE *file, const struct span_chunk *chunk, const struct profile_span *span)
{
    fprintf(file, ",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f", span->name, member,
            chunk->thread, microseconds(span->begin_ns), (double)(span->end_ns - span->begin_ns) / 1e3);
    if (span->peer != PROFILE_NOBODY || span->cipher_ns != 0) {
        const char *comma = "";
        fprintf(file, ",\"args\":{");
        if (span->peer != PROFILE_NOBODY) {
            char name[NAME_SIZE];
            profile_member_name((int)span->peer, name);
            fprintf(file, "\"peer\":\"%s\",\"number\":%" PRId64, name, span->number);
            comma = ",";
        }
        if (span->cipher_ns != 0) {
            fprintf(file, "%s\"cipher_us\":%.3f", comma, (double)span->cipher_ns / 1e3);
        }
        fprintf(file, "}");
    }
    fprintf(file, "}");
}

static void write_names(FILE *file)
{
    char name[NAME_SIZE];
    profile_member_name(member, name);
    fprintf(file, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"%s\"}}", member, name);
    fprintf(file, ",\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"args\":{\"sort_index\":%d}}", member,
            member);
    for (const struct span_chunk *chunk = all; chunk; chunk = chunk->next) {
        if (chunk->thread_name[0] != '\0') {
            fprintf(file, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
                    member, chunk->thread, chunk->thread_name);
        }
    }
}

static void write_spans(FILE *file)
{
    for (struct span_chunk *chunk = all; chunk; chunk = chunk->next) {
        int count = atomic_load_explicit(&chunk->count, memory_order_acquire);
        for (int i = 0; i < count; i++) {
            write_span(file, chunk, &chunk->spans[i]);
        }
    }
}

bool profile_close(struct error *error)
{
    struct file_draft draft;
    if (!atomic_exchange(&profile_is_on, false)) {
        return true;
    }
    if (!file_draft_begin(&draft, file_path, 0666, error) || !file_draft_stream(&draft, error)) {
        return error_wrap(error, "the profile");
    }
    FILE *file = draft.stream;
    pthread_mutex_lock(&mutex);
    fprintf(file,
            "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"begin_us\":%.0f,\"forgotten_spans\":%" PRIu64
            "},\"traceEvents\":[\n",
            opened_wall_s * 1e6, forgotten);
    write_names(file);
    write_spans(file);
    fprintf(file, "\n]}\n");
    pthread_mutex_unlock(&mutex);
    return file_draft_end(&draft, false, error) || error_wrap(error, "the profile");
}
