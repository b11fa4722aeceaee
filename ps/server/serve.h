/*
 * Inside the server: what its connections share, and what each has of its own.
 *
 * Whatever the server shares is guarded by `lock`, but for what is set up once; the lock is never held during input,
 * output or arithmetic. server_unlock carries out what the job decided meanwhile.
 */
#ifndef PS_SERVER_SERVE_H
#define PS_SERVER_SERVE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "net/channel.h"
#include "net/handshake.h"
#include "ps/job/job.h"
#include "ps/model.h"
#include "ps/self.h"
#include "ps/server.h"
#include "ps/shard.h"

enum { SERVER_TICK_MS = 250 /* idle connections look this often whether something is wanted of them */ };

/* One connection, and the thread that serves it. */
struct visitor {
    struct server *server;
    pthread_t thread;
    enum { VISITOR_FREE, VISITOR_HERE, VISITOR_GONE } life; /* GONE: its thread is to be joined */
    int fd;
    char peer[ENDPOINT_TEXT];
    double came_s, patience_s; /* to be through with its handshake */
    bool admitted;             /* said hello, and was welcome */
    bool ping_wanted;
    int worker; /* -1: an operator, or nobody yet */
    uint64_t incarnation;
    struct channel channel;        /* used by the thread alone */
    struct connection *connection; /* the channel's, for counting bytes; NULL: not open */
};

struct server {
    const struct config *config;
    struct model model;
    struct self self;
    struct shard *shard;
    int index;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* something happened that a waiting thread may wait for */
    struct job job;
    struct visitor *visitors; /* [visitor_count] */
    int visitor_count;
    int here, newcomers;          /* visitors that are here, and those of them that have not said who they are */
    int waiting;                  /* threads that wait for `changed` */
    struct visitor **stage_users; /* [workers]: who uses a worker's stage; NULL: nobody */
    struct wake hurry;            /* raised when connections are to end, whatever they are doing */
    bool leaving;                 /* idle connections are to be closed */
    const char *farewell;
    uint64_t bytes_in, bytes_out; /* of connections that ended */
    int64_t pushes;               /* applied */
    float last_loss;
    uint32_t last_staleness;
    float steps_per_s;
    int turned_away;

    pthread_mutex_t restoring; /* held while the chief writes: one frame at a time */
};

void server_lock(struct server *server);
void server_unlock(struct server *server);

/* Waits for something to change, at most one tick; the lock is given back meanwhile, and actions are carried out. */
void server_wait(struct server *server);

/* Ends the connection of a visitor that is admitted, from outside: its thread finds it closed. Locked. */
void server_cut(struct visitor *visitor);

/* Serves an open channel whose peer was welcomed, until it ends. */
void serve(struct visitor *visitor);

/* Answers get_status. */
bool serve_status(struct visitor *visitor, uint64_t request, bool members, double deadline_s, struct error *error);

#endif
