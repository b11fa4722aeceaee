/* Private to observe/http: a connection, and the calls between its parts. Server's thread only, unless stated. */
#ifndef OBSERVE_HTTP_INTERNAL_H
#define OBSERVE_HTTP_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <llhttp.h>

#include "net/socket.h"
#include "net/tls/web.h"
#include "observe/http/server.h"

enum { MOST_ERROR_TEXT = 512, READ_BYTES = 16 * 1024, PEER_BUCKETS = 1024 };

/* A run of bytes to send. */
struct output {
    struct output *next;
    const uint8_t *bytes;
    size_t size, sent;
    size_t held; /* charged to the connection */
    void (*release)(void *owner);
    void *owner;
    uint8_t own[]; /* what `bytes` may point to */
};

/* Offsets of a name and a value in request->head; each ends with a zero. */
struct header {
    uint16_t name, value;
};

/* A request being received. It is freed when answered. */
struct http_request {
    struct http_connection *connection;
    char *head; /* target, then names and values */
    size_t head_size, head_room;
    struct header headers[HTTP_MOST_HEADERS];
    int header_count;
    size_t began; /* offset of the text being received */
    char *path;   /* NULL until the head is whole */
    char *query;  /* NULL: none */
    uint8_t *body;
    size_t body_size, body_room;
    uint64_t body_length; /* announced by the head; 0: not announced */
    const struct http_route *route;
    enum http_method method;
    double began_s;                               /* its first byte */
    bool has_head, is_whole, keeps_alive, is_old; /* old: HTTP/1.0 */
    bool is_preflight;                            /* a browser asks whether a page may send a request */
    const char *origin;                           /* of the page that sends it, if it is allowed to; else NULL */
    /* Of http_answer from another thread. */
    struct http_request *next_answered;
    struct http_answer answer;
    char *answer_headers;
};

enum connection_life {
    LIFE_IDLE,      /* between requests, or nothing received yet */
    LIFE_SHAKING,   /* TLS */
    LIFE_HEAD,      /* receiving a head */
    LIFE_BODY,      /* receiving a body */
    LIFE_HANDLED,   /* a handler has the request */
    LIFE_ANSWERING, /* sending output, then reading the next request */
    LIFE_STREAMING, /* an http_stream */
    LIFE_ENDING,    /* sending the last output */
    LIFE_LINGERING, /* all is sent; the peer may still be reading */
    LIFE_COUNT,
};

/* An address, or an IPv6 network of 64 bits, and what it has open. */
struct caller {
    struct caller *next; /* in its bucket */
    uint8_t address[16];
    int connections, streams;
};

/* Connections that share a deadline's length, oldest first. */
struct queue {
    struct http_connection *first, *last;
    int count;
};

struct http_stream {
    void (*closed)(void *owner, struct http_stream *stream);
    void *owner;
    bool is_chunked;
};

struct http_connection {
    struct http_server *server;
    struct http_connection *before, *after; /* in the queue of its state */
    enum connection_life life;
    int fd;
    uint32_t events; /* watched by epoll */
    struct caller *peer;
    struct budget_account account;
    double since_s, deadline_s; /* of its life */
    double left_s;              /* when the peer was seen to have ended its side; 0: it has not */
    uint64_t moved;             /* bytes since the deadline was set */
    llhttp_t parser;
    struct http_request *request; /* NULL: none */
    struct output *first, *last;  /* to be sent */
    size_t unsent;
    uint8_t *pending; /* bytes received after the current request */
    size_t pending_size;
    struct web_session *session; /* NULL: plain text */
    struct http_stream stream;
    int refusal; /* the status that the parser's callback refused with; 0: none */
    const char *refusal_text, *refusal_headers;
    bool is_known;       /* it has shown the token */
    bool has_asked;      /* a request has begun */
    bool is_health;      /* its last request was a health check */
    bool wants_continue; /* "100 Continue" must be sent */
    bool is_gone;        /* its socket is closed; a handler still has the request */
};

struct http_server {
    struct http_options options;
    int listener, poll_fd;
    pthread_t thread;
    bool has_thread, is_accepting;
    struct wake wake;
    atomic_bool stops, drains;
    bool has_drained; /* its thread has noticed */
    double now_s, ticked_s;
    char date[40];
    struct queue queues[LIFE_COUNT];
    struct http_connection *dead; /* to be freed */
    int most_connections;
    struct budget budget; /* of requests and answers */
    uint64_t too_busy;    /* budget.later at the last tick */
    struct caller *peers[PEER_BUCKETS];
    struct http_request *spare; /* for reuse with their memory, linked by next_answered: */
    char refusal_text[512];     /* of the connection being read, which is answered before the next is */
    int spare_count;
    size_t spare_bytes;
    uint8_t *scratch;              /* [READ_BYTES] */
    pthread_mutex_t mutex;         /* guards what follows: */
    struct http_request *answered; /* by other threads, newest first */
    atomic_uint_fast64_t requests, refused, evicted, bytes_in, bytes_out;
    atomic_int connection_count, stream_count;
};

/* --- connection.c --- */

void connection_live(struct http_connection *connection, enum connection_life life); /* sets a new deadline */
void connection_enter(struct http_connection *connection); /* the queue of its life, with its deadline */
void connection_leave(struct http_connection *connection);
void connection_watch(struct http_connection *connection); /* updates epoll to what it waits for now */
void connection_watch_for(struct http_connection *connection, uint32_t events);

/* --- parse.c --- */

void parse_begin(struct http_connection *connection);

/* Parses bytes. Stops at the end of a request, perhaps with *taken below size. False: connection->refusal is set. */
bool parse(struct http_connection *connection, const uint8_t *bytes, size_t size, size_t *taken);

/*
 * Where to receive the rest of a body without a copy: `parse` leaves it there. NULL: no body is expected, or its length
 * is unknown.
 */
uint8_t *parse_room(struct http_connection *connection, size_t *size);
void request_free(struct http_request *request); /* NULL is fine */
void requests_free_spare(struct http_server *server);

/* --- answer.c --- */

/* Answers a browser that asks whether a page may send a request. */
void answer_preflight(struct http_connection *connection);

/* Answers the current request; if there is none, the connection ends with the answer. */
void answer_now(struct http_connection *connection, const struct http_answer *answer);
void answer_error(struct http_connection *connection, int status, const char *headers, const char *text);
bool output_add(struct http_connection *connection, const void *bytes,
                size_t size); /* copies; false: no memory for it */
void output_sent(struct http_connection *connection, size_t size);
void output_free(struct http_connection *connection);

#endif
