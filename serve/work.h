/*
 * From a request to its answer: a bounded queue, and worker threads that take all waiting requests for one model, read
 * them, compute them in one pass, and answer. While all workers are busy requests accumulate, so batches grow with the
 * load by themselves. What takes long, such as explanations, waits in a queue of its own.
 */
#ifndef SERVE_WORK_H
#define SERVE_WORK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <zlib.h>

#include "base/error.h"
#include "base/text/json.h"
#include "base/text/json_writer.h"
#include "observe/http/server.h"
#include "serve/model.h"
#include "worker/data/table/csv.h"
#include "worker/data/table/encode.h"

/* --- Rows for a model (intake.c) --- */

/*
 * Encodes clients' rows as training encoded them, and collects them in one set of examples, so that concurrent requests
 * are computed together.
 *
 * An intake belongs to a worker thread, and to one version at a time.
 */

/* Of pixels without a declared type; unknown while all are 0 or 1. */
enum intake_scale { SCALE_UNKNOWN, SCALE_UNIT, SCALE_LEVELS };

struct intake {
    struct version *version; /* borrowed; may be gone before the next intake_begin */
    uint64_t version_id;
    int worker;             /* index of the version's engine that it is for */
    struct encoder encoder; /* of tables */
    struct examples examples;
    size_t row_bytes; /* of the examples */
    size_t inputs;
    int room;      /* rows allocated; examples.count is the number in use */
    float *values; /* [room, inputs]: pictures as numbers, 0 to 1; only where `wide` */
    bool wide;     /* some pixels are not whole levels of grey... */
    int last_wide; /* ...the last time in this picture */
    int wide_room;
    void *row;              /* scratch for reading rows: [inputs] floats, or a field for each column */
    bool keeps;             /* rows of tables are also kept in raw form: */
    struct text_buffer raw; /* by request_log_row */
    /* Of the request being read: */
    struct budget_account *account; /* its rows are charged here; NULL: nowhere */
    size_t charged;
    struct budget_account *shared; /* charged for what all requests of a batch need; used where `account` is set */
    int rows, charged_rows;
    int first_row; /* in the examples */
    enum intake_scale scale;
    bool may_lend;             /* its body stays until it is answered, so pictures may be computed from it */
    struct examples lent;      /* bytes lent instead of added; count 0: none */
    const float *lent_numbers; /* of all its rows, some not whole levels of grey; NULL: none */
};

/*
 * Begins a request's rows. They are charged to its account as they are added, and the caller moves or releases
 * intake->charged. No rows are added for a client that has gone.
 */
void intake_charge(struct intake *intake, struct budget_account *account);

/* Prepares for this version's rows, starting with none; reuses memory where possible. */
bool intake_begin(struct intake *intake, int worker, struct version *version, struct error *error);
void intake_end(struct intake *intake); /* frees all; fine on zeros */

/* The columns of rows, in order. */
int intake_columns(const struct version *version);
const char *intake_column_name(const struct version *version, int column);
bool intake_column_is_text(const struct version *version, int column);

/* What was seen in training, for people: `"categories": [...]`, or `"typical": [low, high]` of a number, if known. */
void intake_describe_column(struct text_buffer *text, const struct version *version, int column);

/*
 * Adds a table row of [intake_columns] fields in that order; an empty one is missing. row: its number in the request.
 */
bool intake_add_fields(struct intake *intake, const struct csv_field *fields, int64_t row, struct error *error);

/* Add a picture: bytes 0..255, or numbers 0..1, [version_inputs]. */
bool intake_add_bytes(struct intake *intake, const uint8_t *pixels, struct error *error);
/* A picture as in a file (worker/data/image.h), of any size; it is fitted as in training. */
bool intake_add_picture(struct intake *intake, const uint8_t *bytes, size_t size, struct error *error);

/* The same from a JSON text in base64, as TensorFlow Serving's clients send bytes: {"b64": "..."}. */
bool intake_add_base64(struct intake *intake, struct json_value text, struct error *error);
bool intake_add_numbers(struct intake *intake, const float *pixels, int64_t row, struct error *error);

/*
 * The same for numbers without a declared type, overwritten: all pictures of a request together decide. If one is above
 * 1 they are whole levels of grey, 0..255; else they are 0..1, however they are written.
 */
bool intake_add_undeclared(struct intake *intake, float *pixels, int64_t row, struct error *error);

/*
 * Take all pictures of a request from its body. If the body may be lent and holds enough pictures for a batch of its
 * own, they are computed in place, without a copy. `pixels`: numbers must be aligned; after bytes, HTTP_BODY_SLACK more
 * must be readable. False: nothing was done, and the caller adds them one by one; or *failed.
 */
bool intake_lend_bytes(struct intake *intake, const uint8_t *pixels, int64_t rows);
bool intake_lend_numbers(struct intake *intake, const float *pixels, int64_t rows, bool *failed, struct error *error);

/* Frees memory that many rows took, once they are answered: little is kept for the next requests. */
void intake_shrink(struct intake *intake);

/* Removes the rows from `count` on. */
void intake_cut(struct intake *intake, int count);

/* --- Compressed answers --- */

/* Compresses answers by gzip or deflate, for clients that accept it (Accept-Encoding) and where it pays. */

enum { PACK_LEAST = 2048 /* bytes: less fits into a packet or two */ };

/* Per thread; starts as zeros. Takes some 100 KiB after the first use. */
struct packer {
    z_stream stream;
    int window; /* as for deflateInit2; 0: none yet */
};

/*
 * Compresses a text of PACK_LEAST bytes to 4 MiB in place, and adds the header line to `headers`, which has room for
 * `size` bytes and may hold other lines. Texts of other sizes stay as they are, as do all if memory runs out. busy:
 * other requests wait, so nothing is compressed.
 */
void pack_answer(struct packer *packer, const struct http_request *request, bool busy, struct text_buffer *text,
                 char *headers, size_t size);
void packer_end(struct packer *packer);

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
    bool wants_spread;       /* set by `read`, of an ensemble ... */
    float *spreads;          /* ... [count, version_outputs], while it is answered */
    bool is_array;           /* plain posts: pictures of an array, not a single one... */
    bool is_written;         /* ...or rows, whose answer is in `text` already */
    int status;              /* of an error, if `read` or `compute` fails; 0: 400, or 500 */
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
    /*
     * What takes long, once the outputs are known; engine: for these rows. It asks call_goes_on now and then. False:
     * answered with call->status, or 500. NULL: there is nothing. Requests that have it are taken one by one, after
     * quicker ones, and by all workers but one, if there are several.
     */
    bool (*compute)(struct call *call, struct engine *engine, const struct examples *rows, struct error *error);
    /* Writes the answer's body, and call->tail; returns its content type. headers: more lines, "" for none. */
    const char *(*write)(struct call *call, const struct answers *answers, struct text_buffer *body, char headers[512]);
    void (*forget)(struct call *call); /* frees what call->format points to; NULL: nothing to free */
};

/* An error that is answered with this status. Returns false. */
bool call_fault(struct call *call, int status, struct error *error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/*
 * Do the parameters of a request, an object or nothing, ask for the spread? Notes it in the call; false: it has none.
 */
bool call_ask_spread(struct call *call, struct json_value parameters, struct error *error);

/* False: its client has gone, or the server stops: that is answered with 503. */
bool call_goes_on(struct call *call, struct error *error);

/* Charges memory that the call needs until it is answered. False: it is refused. */
bool call_charge(struct call *call, size_t bytes, struct error *error);

struct work_options {
    int workers;
    int most_rows;      /* most rows computed at once */
    int most_waiting;   /* most quick calls in the queue, and most slow ones; further clients get 503 */
    double most_wait_s; /* longest wait for more calls after the first */
    size_t most_body;   /* bytes, decompressed */
};

/* Upper bounds of the histograms' buckets; the last one has none. */
extern const double work_latency_bounds[SERVED_LATENCY_BUCKETS - 1];

struct work;
bool work_start(struct work **work, const struct work_options *options, struct error *error);
void work_stop(struct work *work); /* answers waiting requests first, slow ones with 503; NULL is fine */
void work_free(struct work *work); /* once the server has released all answers; NULL is fine */

/*
 * Queues a request for a version that the caller holds, and releases the version when done. NULL: the model is not
 * loaded yet. That, and a full queue, are answered at once with 503 and Retry-After. Server's thread only.
 */
void work_take(struct work *work, struct http_request *request, struct served *served, struct version *version,
               const struct protocol *protocol);

int work_waiting(struct work *work);

#endif
