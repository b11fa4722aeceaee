/*
 * Rows are few and long, or many and short. Neighbouring rows are sent as one run where the padding between them costs
 * less than a separate range (its bytes, and its handling on both sides).
 */
#include "worker/remote/exchange/outbox.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/copy.h"
#include "base/encoding/crc32c.h"
#include "base/file.h"
#include "base/finite.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/profile.h"
#include "net/bytes.h"
#include "ps/store/codec.h"

enum {
    PADDING_SENT = 32,      /* floats between two rows that are sent along */
    RUN_FLOATS = 64 * 1024, /* longest run, about */
};
_Static_assert((int)PADDING_SENT >= 2 * (int)MODEL_ROW_ALIGN, "no row has more of it");
_Static_assert((int)LARGEST_PIECE == (int)PACKED_FLOATS, "what is packed together is a range of a message");
_Static_assert((int)INT8_BLOCK == 64, "the decoder of messages knows it");

static size_t round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

struct outbox_form outbox_form(const struct config *config)
{
    return (struct outbox_form){sent_model_gradient_dtype(&config->cluster), config->cluster.wire_top};
}

/* Memory for what is packed. */
static void create_packed(struct outbox *outbox, struct outbox *lender)
{
    const size_t floats = outbox->model->float_count;
    const size_t pieces = 2 * outbox->rows + floats / PACKED_FLOATS; /* no run or span is shorter than a row */
    const size_t chosen = (size_t)(outbox->share * (double)floats) + pieces;
    outbox->residual = lender ? lender->residual : &outbox->own_residual;
    if (!lender) {
        outbox->own_residual.now = must_zero(floats, sizeof(float), "the residual");
        outbox->own_residual.next = must_zero(floats, sizeof(float), "the residual");
    }
    const size_t room = outbox->dtype == DTYPE_INT8
                            ? floats + (floats / INT8_BLOCK + pieces) * sizeof(float)
                            : pieces * LARGEST_HEAD + chosen * (LARGEST_GAP + sizeof(float) + 1);
    outbox->packed = must_alloc(room + LARGEST_ROOM, "a push");
    outbox->pieces = must_alloc(pieces * sizeof *outbox->pieces, "a push");
}

void outbox_create(struct outbox *outbox, const struct model *model, struct outbox_form form, struct outbox *lender)
{
    const enum dtype dtype = form.dtype;
    *outbox = (struct outbox){.model = model, .dtype = dtype, .share = form.share};
    for (int i = 0; i < model->variable_count; i++) {
        outbox->first_row[i] = outbox->rows;
        outbox->rows += (size_t)model->variables[i].rows;
    }
    bool lent = dtype == DTYPE_BFLOAT16 && lender;
    bool packed = dtype_is_packed(dtype);
    size_t floats = lent || packed ? 0 : round_up(model->float_count * sizeof(float));
    size_t halves = dtype == DTYPE_BFLOAT16 ? round_up(model->float_count * sizeof(uint16_t)) : 0;
    size_t size = floats + halves + round_up(outbox->rows);
    uint8_t *memory = must_align(size, "a gradient to push");
    if (packed) {
        create_packed(outbox, lender);
    }
    memset(memory, 0, size); /* padding is sent along, and stays zero */
    outbox->memory = memory;
    if (dtype == DTYPE_BFLOAT16) {
        outbox->half_residual = lent ? lender->half_residual : (float *)(void *)memory;
        outbox->halves = (uint16_t *)(void *)(memory + floats);
    } else if (!packed) {
        outbox->values = (float *)(void *)memory;
    }
    outbox->present = (_Atomic unsigned char *)(memory + floats + halves);
}

void outbox_destroy(struct outbox *outbox)
{
    free(outbox->memory);
    free(outbox->own_residual.now);
    free(outbox->own_residual.next);
    free(outbox->packed);
    free(outbox->pieces);
    memset(outbox, 0, sizeof *outbox);
}

void outbox_begin(struct outbox *outbox)
{
    for (size_t i = 0; i < outbox->rows; i++) {
        atomic_store_explicit(&outbox->present[i], 0, memory_order_relaxed);
    }
    outbox->piece_count = outbox->packed_bytes = 0;
    atomic_store(&outbox->not_finite, false);
    if (outbox->residual) {
        copy_bytes(outbox->residual->next, outbox->residual->now, outbox->model->float_count * sizeof(float));
    }
}

/* Tests for zero of either sign. */
static bool has_float(const float *values, int n)
{
    uint32_t any = 0;
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        any |= bits << 1;
    }
    return any != 0;
}

static void add(float *restrict to, const float *restrict values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        to[i] += values[i];
    }
}

/* As it will be sent, with what earlier gradients owe. */
static bool row_is_finite(const struct outbox *outbox, size_t offset, size_t cols)
{
    if (outbox->dtype != DTYPE_BFLOAT16) {
        return all_finite((outbox->residual ? outbox->residual->next : outbox->values) + offset, cols);
    }
    uint16_t found = 0;
    for (size_t i = 0; i < cols; i++) {
        found |= (outbox->halves[offset + i] & 0x7f80u) == 0x7f80u;
    }
    return found == 0;
}

/*
 * Copies one row of a block. Its columns may come in several blocks, one of them zero: the row is present as soon as
 * one is not, and then its other columns must be right as well, so zeros are stored too.
 */
static void take_row(struct outbox *outbox, const struct gradient_block *block, int row, const float *values)
{
    const struct variable *variable = &outbox->model->variables[block->variable];
    size_t offset = variable->offset + (size_t)row * (size_t)variable->stride + (size_t)block->col;
    bool some;
    if (outbox->dtype == DTYPE_BFLOAT16) {
        some = bfloat16_feed_back(outbox->halves + offset, outbox->half_residual + offset, values, (size_t)block->cols);
    } else if (outbox->residual) {
        add(outbox->residual->next + offset, values, (size_t)block->cols);
        some = has_float(values, block->cols);
    } else {
        copy_bytes(outbox->values + offset, values, (size_t)block->cols * sizeof *values);
        /* Rows are listed if they have a pixel that is not zero, and such rows are hardly ever zero. */
        some = block->present || has_float(values, block->cols);
    }
    if (!row_is_finite(outbox, offset, (size_t)block->cols)) {
        atomic_store_explicit(&outbox->not_finite, true, memory_order_relaxed);
    }
    if (some) {
        atomic_store_explicit(&outbox->present[outbox->first_row[block->variable] + (size_t)row], 1,
                              memory_order_relaxed);
    }
}

/*
 * Blocks are strips: their rows are too short for the processor to predict where the next one lies, and no longer in
 * its caches.
 */
static void prefetch_row(const struct outbox *outbox, const struct gradient_block *block, int k, int count)
{
    enum { LINE = 64 };
    if (k >= count) {
        return;
    }
    const struct variable *variable = &outbox->model->variables[block->variable];
    int row = block->row + (block->present ? block->present[k] : k);
    size_t offset = variable->offset + (size_t)row * (size_t)variable->stride + (size_t)block->col;
    const float *floats = outbox->residual                  ? outbox->residual->next
                          : outbox->dtype == DTYPE_BFLOAT16 ? outbox->half_residual
                                                            : outbox->values;
    for (size_t i = 0; i < (size_t)block->cols * sizeof *floats; i += LINE) {
        __builtin_prefetch((const char *)(floats + offset) + i, 1);
    }
    for (size_t i = 0; outbox->halves && i < (size_t)block->cols * sizeof *outbox->halves; i += LINE) {
        __builtin_prefetch((const char *)(outbox->halves + offset) + i, 1);
    }
}

static void take_block(void *context, const struct gradient_block *block)
{
    enum { AHEAD = 2 };
    struct outbox *outbox = context;
    int count = block->present ? block->present_count : block->rows;
    for (int k = 0; k < count; k++) {
        prefetch_row(outbox, block, k + AHEAD, count);
        int row = block->row + (block->present ? block->present[k] : k);
        take_row(outbox, block, row, block->values + (size_t)k * (size_t)block->stride);
    }
}

struct gradient_sink outbox_sink(struct outbox *outbox)
{
    return (struct gradient_sink){.block = take_block, .context = outbox};
}

bool outbox_is_finite(const struct outbox *outbox)
{
    return !atomic_load(&outbox->not_finite);
}

/* --- Runs --- */

struct outbox_cursor outbox_open(const struct outbox *outbox, const struct span *spans, int span_count)
{
    return (struct outbox_cursor){.outbox = outbox, .spans = spans, .span_count = span_count};
}

/* The span that holds this float and the rest of its row; NULL if that is another ps's. */
static const struct span *span_of(const struct outbox_cursor *cursor, size_t first)
{
    for (int i = 0; i < cursor->span_count; i++) {
        const struct span *span = &cursor->spans[i];
        if (first >= span->first && first - span->first < span->count) {
            return span;
        }
    }
    return NULL;
}

static bool is_present(const struct outbox *outbox, int variable, int row)
{
    return atomic_load_explicit(&outbox->present[outbox->first_row[variable] + (size_t)row], memory_order_relaxed);
}

/* The next run of neighbouring rows. */
static bool next_run(struct outbox_cursor *cursor, struct range *range)
{
    const struct outbox *outbox = cursor->outbox;
    for (; cursor->variable < outbox->model->variable_count; cursor->variable++, cursor->row = 0) {
        const struct variable *variable = &outbox->model->variables[cursor->variable];
        size_t stride = (size_t)variable->stride;
        for (; cursor->row < variable->rows; cursor->row++) {
            size_t first = variable->offset + (size_t)cursor->row * stride;
            const struct span *span = span_of(cursor, first);
            if (!span || !is_present(outbox, cursor->variable, cursor->row)) {
                continue;
            }
            size_t end = first + (size_t)variable->cols;
            cursor->row++;
            while (cursor->row < variable->rows && end - first < RUN_FLOATS &&
                   end + stride <= span->first + span->count && is_present(outbox, cursor->variable, cursor->row)) {
                end += stride;
                cursor->row++;
            }
            *range = (struct range){first, (uint32_t)(end - first)};
            return true;
        }
    }
    return false;
}

/* Packed floats are already in pieces. */
static bool next_piece(struct outbox_cursor *cursor, struct range *range, const void **bytes, size_t *size)
{
    const struct outbox *outbox = cursor->outbox;
    while (cursor->piece < outbox->piece_count) {
        const struct outbox_piece *piece = &outbox->pieces[cursor->piece++];
        if (span_of(cursor, (size_t)piece->range.first)) {
            *range = piece->range;
            *bytes = outbox->packed + piece->at;
            *size = piece->bytes;
            return true;
        }
    }
    return false;
}

bool outbox_next(struct outbox_cursor *cursor, struct range *range, const void **floats, size_t *bytes)
{
    const struct outbox *outbox = cursor->outbox;
    if (outbox->residual) {
        return next_piece(cursor, range, floats, bytes);
    }
    if (!next_run(cursor, range)) {
        return false;
    }
    *floats = outbox->dtype == DTYPE_BFLOAT16 ? (const void *)(outbox->halves + range->first)
                                              : (const void *)(outbox->values + range->first);
    *bytes = range->count * dtype_size(outbox->dtype);
    return true;
}

/* --- Packing --- */

static void put_piece(struct outbox *outbox, struct range range, size_t bytes)
{
    outbox->pieces[outbox->piece_count++] = (struct outbox_piece){range, outbox->packed_bytes, (uint32_t)bytes};
    outbox->packed_bytes += bytes;
}

static void pack_int8(struct outbox *outbox, const struct span *spans, int span_count)
{
    struct outbox_cursor cursor = outbox_open(outbox, spans, span_count);
    struct range run;
    while (next_run(&cursor, &run)) {
        for (uint32_t done = 0; done < run.count; done += PACKED_FLOATS) {
            const uint32_t left = run.count - done;
            const struct range range = {run.first + done, left < PACKED_FLOATS ? left : PACKED_FLOATS};
            int8_round(outbox->packed + outbox->packed_bytes, outbox->residual->next + range.first, range.count);
            put_piece(outbox, range, int8_size(range.count));
        }
    }
}

/* How many of a ps's floats are sent, without padding. */
static size_t count_chosen(const struct outbox *outbox, const struct outbox_cursor *cursor)
{
    size_t floats = 0;
    for (int i = 0; i < outbox->model->variable_count; i++) {
        const struct variable *variable = &outbox->model->variables[i];
        for (int row = 0; row < variable->rows; row++) {
            const bool held = span_of(cursor, variable->offset + (size_t)row * (size_t)variable->stride);
            floats += held ? (size_t)variable->cols : 0;
        }
    }
    return (size_t)ceil(outbox->share * (double)floats);
}

static void pack_largest(struct outbox *outbox, const struct span *spans, int span_count)
{
    const struct outbox_cursor cursor = outbox_open(outbox, spans, span_count);
    struct largest_search search;
    largest_begin(&search, count_chosen(outbox, &cursor));
    for (int pass = 0; pass < LARGEST_PASSES; pass++) {
        for (int i = 0; i < span_count; i++) {
            largest_look(&search, outbox->residual->next + spans[i].first, spans[i].count);
        }
        largest_end_pass(&search);
    }
    struct largest chosen = largest_found(&search);
    for (int i = 0; i < span_count; i++) {
        for (size_t done = 0; done < spans[i].count; done += LARGEST_PIECE) {
            const size_t left = spans[i].count - done;
            const struct range range = {spans[i].first + done, (uint32_t)(left < LARGEST_PIECE ? left : LARGEST_PIECE)};
            const size_t bytes =
                largest_pack(outbox->packed + outbox->packed_bytes, outbox->residual->next + range.first, range.count,
                             &chosen, outbox->dtype);
            if (bytes > 0) {
                put_piece(outbox, range, bytes);
            }
        }
    }
}

void outbox_pack(struct outbox *outbox, const struct span *spans, int span_count)
{
    PROFILE("pack");
    if (outbox->dtype == DTYPE_INT8) {
        pack_int8(outbox, spans, span_count);
    } else if (dtype_is_packed(outbox->dtype)) {
        pack_largest(outbox, spans, span_count);
    }
}

/*
 * A gradient that is not finite is refused, and would leave in the residual what would make every later one not finite.
 */
static void swap_residual(struct outbox *outbox)
{
    struct outbox_residual *residual = outbox->residual;
    if (residual && outbox_is_finite(outbox)) {
        float *const now = residual->now;
        residual->now = residual->next;
        residual->next = now;
    }
}

void outbox_packed(struct outbox *outbox)
{
    swap_residual(outbox);
}

void outbox_restore_residual(struct outbox *outbox)
{
    if (outbox->piece_count > 0) {
        swap_residual(outbox);
        outbox->piece_count = 0;
    }
}

/* --- Files with residuals --- */

/* Files of residuals. They are few and small, so each is read and written whole. */

enum {
    HEAD = 40,
    AT_VERSION = 8,
    AT_WORKER = 12,
    AT_STEP = 16,
    AT_COUNT = 24,
    AT_CRC = 32,
    VERSION = 1,
    MAX_NAME = 64
};

static const char magic[AT_VERSION + 1] = "TRNRRESD";

static void put_head(uint8_t head[HEAD], const struct residual_files *files, int64_t step, const float *floats)
{
    memset(head, 0, HEAD);
    memcpy(head, magic, AT_VERSION);
    put_le32(head + AT_VERSION, VERSION);
    put_le32(head + AT_WORKER, (uint32_t)files->worker);
    put_le64(head + AT_STEP, (uint64_t)step);
    put_le64(head + AT_COUNT, files->count);
    put_le32(head + AT_CRC, crc32c(head, AT_CRC));
    put_le32(head + AT_CRC + 4, crc32c(floats, files->count * sizeof *floats));
}

static void name_of(const struct residual_files *files, int64_t step, char name[MAX_NAME])
{
    if (files->worker == RESIDUAL_FILES_SENT) {
        snprintf(name, MAX_NAME, "sent-model-%lld", (long long)step);
    } else if (files->worker == RESIDUAL_FILES_CLIENTS) {
        snprintf(name, MAX_NAME, "residual-clients-%lld", (long long)step);
    } else {
        snprintf(name, MAX_NAME, "residual-worker%d-%lld", files->worker, (long long)step);
    }
}

static bool path_of(const struct residual_files *files, int64_t step, char path[PATH_MAX], struct error *error)
{
    char name[MAX_NAME];
    name_of(files, step, name);
    return file_join(path, PATH_MAX, files->folder, name, error);
}

/* The step in the name of such a file; -1: it is not one. */
static int64_t step_of(const struct residual_files *files, const char *name)
{
    char canonical[MAX_NAME];
    const char *last = strrchr(name, '-');
    const int64_t step = last ? strtoll(last + 1, NULL, 10) : -1;
    name_of(files, step, canonical);
    return strcmp(name, canonical) == 0 ? step : -1;
}

static bool is_due(const struct residual_files *files, int64_t step)
{
    return files->every > 0 && step % files->every == 0;
}

enum which { ALL, DUE, OTHERS };
enum { MOST = RESIDUAL_FILES_DUE + RESIDUAL_FILES_OTHERS + 1 };

/* Steps of the newest files of that kind, the newest first; returns how many. */
static int list(const struct residual_files *files, enum which which, int64_t steps[MOST])
{
    DIR *directory = opendir(files->folder);
    int count = 0;
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        const int64_t step = step_of(files, entry->d_name);
        int at = count;
        if (step < 0 || (which != ALL && is_due(files, step) != (which == DUE))) {
            continue;
        }
        while (at > 0 && steps[at - 1] < step) {
            at--;
        }
        if (at < MOST) {
            count += count < MOST;
            memmove(steps + at + 1, steps + at, (size_t)(count - 1 - at) * sizeof *steps);
            steps[at] = step;
        }
    }
    if (directory) {
        closedir(directory);
    }
    return count;
}

/* Removes all but the newest `kept`; one that can't be removed stays. */
static void remove_oldest(const struct residual_files *files, enum which which, int kept)
{
    int64_t steps[MOST];
    const int count = list(files, which, steps);
    for (int i = kept; i < count; i++) {
        char path[PATH_MAX];
        struct error error;
        if (path_of(files, steps[i], path, &error)) {
            unlink(path);
        }
    }
}

bool residual_files_save(const struct residual_files *files, int64_t step, const float *floats, struct error *error)
{
    char path[PATH_MAX];
    uint8_t head[HEAD];
    put_head(head, files, step, floats);
    const struct file_part parts[] = {{head, HEAD}, {floats, files->count * sizeof *floats}};
    if (!file_make_folder(files->folder, error) || !path_of(files, step, path, error) ||
        !file_write_atomic(path, parts, 2, error)) {
        return false;
    }
    remove_oldest(files, DUE, RESIDUAL_FILES_DUE);
    remove_oldest(files, OTHERS, RESIDUAL_FILES_OTHERS);
    return true;
}

static bool read_one(const struct residual_files *files, int64_t step, float *floats, struct error *error)
{
    char path[PATH_MAX];
    uint8_t head[HEAD], *bytes;
    size_t size, wanted = HEAD + files->count * sizeof *floats;
    if (!path_of(files, step, path, error) || !file_read(path, wanted, &bytes, &size, error)) {
        return false;
    }
    bool fits = size == wanted;
    if (fits) {
        memcpy(floats, bytes + HEAD, wanted - HEAD);
        put_head(head, files, step, floats);
        fits = memcmp(head, bytes, HEAD) == 0;
    }
    free(bytes);
    return fits || error_set(error, "%s is damaged, or of another %s", path,
                             files->worker == RESIDUAL_FILES_CLIENTS ? "model or number of clients" : "model");
}

bool residual_files_load(const struct residual_files *files, int64_t step, float *floats, int64_t *found,
                         struct error *error)
{
    int64_t steps[MOST];
    *found = -1;
    file_remove_leftovers(files->folder);
    while (list(files, ALL, steps) > 0 && steps[0] > step) {
        char path[PATH_MAX];
        if (!path_of(files, steps[0], path, error)) {
            return false;
        }
        if (unlink(path) != 0) {
            return file_error(error, path, "cannot be removed", errno);
        }
    }
    const int count = list(files, ALL, steps);
    for (int i = 0; i < count && *found < 0; i++) {
        struct error why;
        if (read_one(files, steps[i], floats, &why)) {
            *found = steps[i];
        } else {
            log_warning("%s", why.text);
        }
    }
    return true;
}
