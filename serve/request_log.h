/*
 * A log of requests that training can read as data: in FOLDER/MODEL, of a table train-*.csv, the model's columns as
 * they came and behind them what the model said, as `trainer predict` writes it; of pictures PNG files in train/CLASS,
 * the folder of the class that the model took them for, and each tenth in test/CLASS.
 *
 * A share of the requests is kept, in bounded space: the oldest files go. Workers add to memory, also bounded, and one
 * thread writes, so that no request waits for a disk. A file appears under its name when it is whole.
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
    size_t most_bytes;  /* on disk, of each model */
};

/* Makes the folder, and counts what is there already. */
bool request_log_open(struct request_log **log, const struct request_log_options *options, const char *model,
                      struct error *error);
void request_log_close(struct request_log *log); /* writes what is left; nobody adds any more. NULL is fine */

/* --- Any thread --- */

bool request_log_wants(struct request_log *log); /* draws whether the next request is one of those that are kept */

/* Appends a row's fields to `rows`, in the order of the model's columns. */
void request_log_row(struct text_buffer *rows, const struct encoder *encoder, const struct row *row);

/* Rows by request_log_row, and what the model says of them. Out of memory or behind with writing, they are lost. */
void request_log_add_rows(struct request_log *log, const void *rows, size_t size, const struct answers *answers);

/* Pictures, [answers->count, version_inputs]. */
void request_log_add_pictures(struct request_log *log, const uint8_t *pixels, const struct answers *answers);

struct request_log_counts {
    uint64_t kept, lost; /* rows: on disk, or soon there; and those that there was no room or time for */
};
struct request_log_counts request_log_counts(struct request_log *log);

/* --- The writing thread --- */

void request_log_write(struct request_log *log); /* what has come since; every second, say */

#endif
