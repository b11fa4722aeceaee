/*
 * A log of requests that training can read as data, in FOLDER/MODEL: for tables train-*.csv, with the model's columns
 * as received, followed by the predictions as `trainer predict` writes them; for pictures PNG files in train/CLASS, the
 * folder of the predicted class, and every tenth in test/CLASS.
 *
 * It keeps a share of the requests in bounded space, deleting the oldest files. Workers add to a bounded buffer, and
 * one thread writes it, so that no request waits for a disk. A file gets its final name when it is complete.
 */
#ifndef SERVE_REQUEST_LOG_H
#define SERVE_REQUEST_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text/json_writer.h"
#include "worker/data/table/encode.h"

struct answers;
struct request_log;

struct request_log_options {
    const char *folder; /* borrowed; NULL: nothing is kept */
    double share;       /* of the requests, 0 to 1 */
    size_t most_bytes;  /* on disk, per model */
};

/* Creates the folder, and counts existing files. */
bool request_log_open(struct request_log **log, const struct request_log_options *options, const char *model,
                      struct error *error);
void request_log_close(struct request_log *log); /* writes the rest; nobody may add any more. NULL is fine */

/* --- Any thread --- */

bool request_log_wants(struct request_log *log); /* draws whether to keep the next request */

/* Appends a row's fields to `rows`, in the order of the model's columns. */
void request_log_row(struct text_buffer *rows, const struct encoder *encoder, const struct row *row);

/* What it appends for a row of all the model's columns, which has fields. */
size_t request_log_row_bytes(const struct row *row);

/* Adds rows made by request_log_row, with the model's answers. They are lost if memory or the buffer is exhausted. */
void request_log_add_rows(struct request_log *log, const void *rows, size_t size, const struct answers *answers);

/* Adds pictures, [answers->count, version_inputs]. */
void request_log_add_pictures(struct request_log *log, const uint8_t *pixels, const struct answers *answers);

struct request_log_counts {
    uint64_t kept, lost; /* rows on disk or about to be written; rows dropped because there was no space or time */
};
struct request_log_counts request_log_counts(struct request_log *log);

/* --- The writing thread --- */

void request_log_write(struct request_log *log); /* writes the buffer; every second, say */

#endif
