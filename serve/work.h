/*
 * From a request to its answer: a bounded queue, and worker threads that take all waiting requests for one model, read
 * them, compute them in one pass, and answer. While all workers are busy requests accumulate, so batches grow with the
 * load by themselves.
 */
#ifndef SERVE_WORK_H
#define SERVE_WORK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text/json_writer.h"
#include "observe/http/server.h"
#include "serve/intake.h"
#include "serve/model.h"

/* A request in progress; owned by its worker once taken from the queue. */
struct call {
    struct call *next;
    struct work *work;
    struct http_request *request;
    struct budget_account *account; /* the request's; closed when its client has gone */
    size_t charged;                 /* bytes there for its rows and outputs, until they are answered */
    struct served *served;          /* borrowed */
    struct version *version;        /* held */
    const struct protocol *protocol;
    double arrived_s;
    const uint8_t *body; /* decompressed; while it is read */
    size_t size;
    int first, count;        /* its rows in the intake; for lent rows, among the outputs */
    struct examples lent;    /* pictures computed in place in its body; count 0: none */
    const float *numbers;    /* likewise, for wide rows; NULL: they are in the intake */
    bool is_trial;           /* from the try-out page: not part of the traffic that drift, log and counts are about */
    bool is_kept;            /* in the log of requests */
    size_t first_raw;        /* then, for a table: their offset in the intake's raw rows... */
    size_t raw_size;         /* ...and how many bytes they take */
    bool is_wide;            /* of pictures: some pixels are not whole levels of grey */
    bool is_array;           /* plain posts: pictures of an array, not a single one... */
    bool is_written;         /* ...or rows, whose answer is in `text` already */
    int status;              /* of an error, if `read` fails; 0: 400 */
    void *format;            /* state from `read` for `write`; malloc'd, freed with the call */
    struct text_buffer text; /* the answer's body, until it is sent... */
    struct text_buffer tail; /* ...and `write`'s raw bytes to send after it */
};

/* How a client's requests are read and answered, on worker threads. */
struct protocol {
    /*
     * Adds the body's rows to the intake. False: the client's fault, answered with call->status, or with 413 or 503 if
     * a charge to the call's account was refused.
     */
    bool (*read)(struct call *call, struct intake *intake, struct error *error);
    /* Writes the answer's body, and call->tail; returns its content type. headers: more lines, "" for none. */
    const char *(*write)(struct call *call, const struct answers *answers, struct text_buffer *body, char headers[512]);
    void (*forget)(struct call *call); /* frees what call->format points to; NULL: nothing to free */
};

/* An error that is answered with this status. Returns false. */
bool call_fault(struct call *call, int status, struct error *error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Charges memory that the call needs until it is answered. False: it is refused. */
bool call_charge(struct call *call, size_t bytes, struct error *error);

struct work_options {
    int workers;
    int most_rows;      /* most rows computed at once */
    int most_waiting;   /* most calls in the queue; further clients get 503 */
    double most_wait_s; /* longest wait for more calls after the first */
    size_t most_body;   /* bytes, decompressed */
};

/* Upper bounds of the histograms' buckets; the last one has none. */
extern const double work_latency_bounds[SERVED_LATENCY_BUCKETS - 1];

struct work;
bool work_start(struct work **work, const struct work_options *options, struct error *error);
void work_stop(struct work *work); /* answers waiting requests first; NULL is fine */
void work_free(struct work *work); /* once the server has released all answers; NULL is fine */

/*
 * Queues a request for a version that the caller holds, and releases the version when done. NULL: the model is not
 * loaded yet. That, and a full queue, are answered at once with 503 and Retry-After. Server's thread only.
 */
void work_take(struct work *work, struct http_request *request, struct served *served, struct version *version,
               const struct protocol *protocol);

int work_waiting(struct work *work);

#endif
