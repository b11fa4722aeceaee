/*
 * An HTTP/1.1 server on one thread: epoll, llhttp for the grammar, TLS where wanted, and a table of routes.
 *
 * Made for hostile networks. A silent connection costs a small struct; a request takes memory as its bytes arrive, up
 * to limits, and all requests and answers together never more than http_options.most_bytes, from one budget that
 * handlers charge as well (http_request_account). Everything has a deadline: the head, the body, an answer that the
 * peer does not read. At the limit of connections a new one takes another's place, whatever that is doing: first those
 * without a token, of addresses with more than their share, that read nothing or wait. Health checks keep theirs.
 * Ambiguous framing (two lengths, folded lines, both framings) is refused, and the connection closed.
 *
 * A handler runs on the server's thread and must not block. It answers at once, or keeps the request, which any thread
 * may answer later. Requests of one connection are answered in their order: the next is read once the last is answered.
 */
#ifndef OBSERVE_HTTP_SERVER_H
#define OBSERVE_HTTP_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/budget.h"
#include "base/error.h"
#include "observe/http/server.h"

enum {
    HTTP_MOST_HEAD = 16 * 1024, /* bytes of a request's line and headers */
    HTTP_MOST_TARGET = 4096,    /* of the request's target */
    HTTP_MOST_HEADERS = 64,
    HTTP_HEAD_S = 10,  /* for the whole head, from the first byte or the connection's start */
    HTTP_IDLE_S = 75,  /* between two requests */
    HTTP_MOVE_S = 20,  /* in this time a body or an answer must move by HTTP_MOVE_BYTES, or end */
    HTTP_LINGER_S = 2, /* after an answer that ends a connection, for the peer to read it */
    HTTP_MOVE_BYTES = 64 * 1024,
    HTTP_BODY_SLACK = 64, /* readable bytes after a request's body */
    HTTP_STALL_S = 1,     /* who reads nothing for so long, or leaves while others wait, makes room for them */
    HTTP_LEFT_S = 60,     /* who sends no more is answered for so long if nobody waits */
    HTTP_TIMES = 16,      /* bytes that a request may take for each of its own, besides http_options.most_each */
};

struct http_server;
struct http_request; /* from the end of its head (or body, if any) until it is answered */
struct http_stream;  /* an answer without an end: server-sent events */
struct web_keys;     /* net/tls/web.h */

enum http_method { HTTP_METHOD_GET = 1, HTTP_METHOD_HEAD = 2, HTTP_METHOD_POST = 4 };

struct http_route {
    const char *path; /* "/api/status"; one asterisk matches anything */
    int methods;      /* of enum http_method; GET includes HEAD */
    bool is_public;   /* needs no token */
    bool is_health;   /* a health check: whoever asks keeps its place */
    size_t most_body; /* bytes; a longer one is refused before it is read */
    void (*handle)(void *context, struct http_request *request);
};

/* An answer as it starts: one line of an access log. */
struct http_logged {
    const char *client; /* its address */
    const char *method;
    const char *path; /* NULL: there was no head to read it from */
    int status;
    size_t bytes;   /* of the answer's body */
    double seconds; /* since the request's first byte */
};

struct http_options {
    const char *host; /* as for socket_listen */
    uint16_t port;
    int listener;                    /* a listening socket to use instead of these two, owned by the server; 0: none */
    const struct http_route *routes; /* the first match counts; ends with a path of NULL. Borrowed, as all below */
    const char *paths_at;            /* where all paths are listed, for errors */
    void *context;                   /* for routes, tick and is_busy */
    void (*tick)(void *context);     /* each second, on the server's thread; NULL: none */
    bool (*is_busy)(void *context);  /* do requests wait for others? Asked on the server's thread; NULL: never */
    /* For each answer except streams, on the server's thread; NULL: none. */
    void (*log)(void *context, const struct http_logged *logged);
    const struct web_keys *keys; /* NULL: plain text */
    const char *token;           /* required in "Authorization: Bearer"; NULL: none */
    const char *only_host;       /* without a token: the one name besides loopback's allowed in Host; NULL: any */
    const char *hosts;           /* further such names, separated by commas; NULL: none */
    const char *cors;            /* origins whose pages may use this server, separated by commas; NULL: none */
    int most_connections;        /* 0: HTTP_CONNECTIONS, or what the limit of descriptors allows */
    size_t most_bytes;           /* of all current requests and answers together */
    size_t most_each;            /* of one of them, plus HTTP_TIMES for each byte of its body; 0: most_bytes */
    const char *memory_setting;  /* the flag that sets most_bytes, for errors; NULL: none */
    const char *body_setting;    /* the flag that sets the routes' most_body, likewise */
    bool low_priority;           /* the thread runs at lower priority; otherwise it asks for low latency */
};

enum { HTTP_CONNECTIONS = 10240, HTTP_TLS_CONNECTIONS = 512 };

/* Starts listening and serving. http_server_stop closes all connections; no handler runs after it returns. */
bool http_server_start(struct http_server **server, const struct http_options *options, struct error *error);
void http_server_stop(struct http_server *server); /* NULL is fine. Requests kept by handlers must be answered before */
/*
 * Drains connections: accepts no more, and ends each connection with its next answer, idle ones at once; what `tick`
 * sends to streams now is still sent. Returns when all have ended, by deadline_s of clock_monotonic_s at the latest.
 * Handlers keep running.
 */
void http_server_drain(struct http_server *server, double deadline_s);
uint16_t http_server_port(const struct http_server *server);

struct http_counts {
    uint64_t requests, refused; /* refused: answered with 400 or above */
    uint64_t bytes_in, bytes_out;
    uint64_t evicted; /* connections closed to make room */
    int connections, streams;
    size_t memory, most_memory, peak_memory; /* bytes of requests and answers */
    uint64_t too_large, too_busy;            /* requests refused for more memory than one may take; than is free */
};
void http_server_counts(const struct http_server *server, struct http_counts *counts); /* any thread */

/* --- Requests: pointers are valid until the request is answered --- */

const char *http_request_path(const struct http_request *request); /* decoded, without the query; valid UTF-8 */
const char *http_request_header(const struct http_request *request, const char *name); /* NULL: not there */
/* HTTP_BODY_SLACK more bytes, of any value, are readable after its last byte. */
const uint8_t *http_request_body(const struct http_request *request, size_t *size);

/*
 * What the request's memory is charged to, from any thread until it is answered: the body is already. It is closed when
 * the client leaves (base/budget.h).
 */
struct budget_account *http_request_account(struct http_request *request);

/* Copies the query's parameter, decoded, into text. False: it is missing, or does not fit. */
bool http_request_parameter(const struct http_request *request, const char *name, char *text, size_t size);

/* True if a comma-separated header names `word`, whatever its parameters, unless with a weight of 0. */
bool http_request_accepts(const struct http_request *request, const char *header, const char *word);

/* --- Answers: any thread; the request is gone afterwards --- */

struct http_answer {
    int status;
    const char *type;    /* of the content; NULL: there is none */
    const char *headers; /* more lines, each with its "\r\n"; NULL: none */
    const void *body;
    size_t size;
    const void *tail; /* sent right after the body, so that the two need not be copied together */
    size_t tail_size;
    void (*release)(void *owner); /* called once, when both are no longer needed; NULL: not needed */
    void *owner;
    size_t charged; /* bytes of them in the request's account, which pass to the server; 0: it charges them itself */
};
/* An answer that exceeds its memory is replaced by 413 or 503; 503 always says Retry-After. */
void http_answer(struct http_request *request, const struct http_answer *answer);

/* {"error": text} */
void http_answer_error(struct http_request *request, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* --- Streams: the server's thread alone --- */

/*
 * Answers with what http_stream_send will send. `closed` is called once, when the peer or the server ends the stream,
 * or when the peer reads nothing for HTTP_MOVE_S; the stream is then gone.
 */
struct http_stream *http_stream_begin(struct http_request *request, const char *type,
                                      void (*closed)(void *owner, struct http_stream *stream), void *owner);

/* Bytes that the peer has not taken yet. Do not send anything unimportant to a peer that lags. */
size_t http_stream_unsent(const struct http_stream *stream);

/* How many streams the peer's address has. */
int http_stream_crowd(const struct http_stream *stream);

/* Ends the stream: the peer gets what is unsent, then the end. Calls `closed` now. */
void http_stream_end(struct http_stream *stream);

/* Copies the bytes. False if out of memory: nothing is sent. */
bool http_stream_send(struct http_stream *stream, const void *bytes, size_t size);

/* --- Embedded files --- */

/* The files of a page, embedded compressed in the program (observe/page/page.mk). */

struct file {
    const char *path, *type;
    const uint8_t *bytes, *end; /* gzip */
};

/* Declares where build/page/`path`.gz lies in the program: `name` up to `name`_end. */
#define FILES_EMBED(name, path)                                                                                        \
    __asm__(".section .rodata.page, \"a\", @progbits\n" #name ":\n"                                                    \
            ".incbin \"build/page/" path ".gz\"\n" #name "_end:\n"                                                     \
            ".previous\n");                                                                                            \
    extern const uint8_t name[] __attribute__((visibility("hidden")));                                                 \
    extern const uint8_t name##_end[] __attribute__((visibility("hidden")))

/* A route handler: "/" and the files that the page of members uses. */
void files_get(void *context, struct http_request *request);

/*
 * Answers with a file of another page; a path of NULL ends the table, which must contain every path that a route names.
 */
void files_answer(const struct file *files, struct http_request *request);

/* Answers 200 with the file, unpacked for a client that does not accept gzip. headers: more lines. */
void file_answer(const struct file *file, const char *headers, struct http_request *request);

#endif
