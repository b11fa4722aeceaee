/*
 * From a request to its answer: a bounded queue, and worker threads that take what has come for one model, read it,
 * compute it in one pass, and answer. While all are busy requests gather, so batches grow with the load by themselves.
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

/* A request under way: its worker's, once it is taken from the queue. */
struct call {
    struct call *next;
    struct work *work;
    struct http_request *request;
    struct served *served;   /* borrowed */
    struct version *version; /* held */
    const struct protocol *protocol;
    double arrived_s;
    const uint8_t *body; /* unpacked; while it is read */
    size_t size;
    int first, count;        /* its rows in the intake; of rows that it lends, among the outputs */
    struct examples lent;    /* pictures that are computed where they are, in its body; count 0: none */
    const float *numbers;    /* likewise, of rows in the intake that are wide; NULL: they are there, too */
    bool is_kept;            /* in the log of requests */
    size_t first_raw;        /* then, of a table: where they begin among the intake's rows as they came... */
    size_t raw_size;         /* ...and how many bytes they take */
    bool is_wide;            /* of pictures: some of them are numbers that are no levels of grey */
    bool is_array;           /* plain posts: pictures of an array, not a single one */
    void *format;            /* what read leaves for write; malloc'd, freed with the call */
    struct text_buffer text; /* the answer's body, until it is sent... */
    struct text_buffer tail; /* ...and what `write` put behind it, as it is */
};

/* How a client asks and is answered. Both run on worker threads. */
struct protocol {
    /* Adds the body's rows to the intake. False: the client's fault, and answered with 400. */
    bool (*read)(struct call *call, struct intake *intake, struct error *error);
    /* Writes the answer's body, and call->tail; returns its content type. headers: more lines, "" for none. */
    const char *(*write)(struct call *call, const struct answers *answers, struct text_buffer *body, char headers[512]);
    void (*forget)(struct call *call); /* what call->format points to; NULL: nothing */
};

struct work_options {
    int workers;
    int most_rows;      /* that are computed at once */
    int most_waiting;   /* calls in the queue: beyond that clients get 503 */
    double most_wait_s; /* for more calls to come, once there is one */
    size_t most_body;   /* bytes, unpacked */
};

/* Upper bounds of the histograms' buckets; the last one has none. */
enum { WORK_LATENCY_BUCKETS = 16, WORK_BATCH_BUCKETS = 12 };
extern const double work_latency_bounds[WORK_LATENCY_BUCKETS - 1];

struct work_counts {
    atomic_uint_fast64_t answered, faulty, refused; /* requests: with 200, by their own fault, for want of room */
    atomic_uint_fast64_t rows, batches;
    atomic_uint_fast64_t latency[WORK_LATENCY_BUCKETS]; /* from the end of the request to the start of the answer */
    atomic_uint_fast64_t latency_us;
    atomic_uint_fast64_t batch[WORK_BATCH_BUCKETS]; /* rows: at most 1, 2, 4, ... */
};

struct work;
bool work_start(struct work **work, const struct work_options *options, struct error *error);
void work_stop(struct work *work); /* answers what waits first; NULL is fine */
void work_free(struct work *work); /* the server has let go of all answers; NULL is fine */

/*
 * Queues a request for a version that the caller holds; it is let go of once that is done. NULL: the model is not
 * loaded yet. That, and a full queue, are answered at once with 503 and Retry-After. From the server's thread.
 */
void work_take(struct work *work, struct http_request *request, struct served *served, struct version *version,
               const struct protocol *protocol);

int work_waiting(struct work *work);
const struct work_counts *work_counts(const struct work *work);

#endif
