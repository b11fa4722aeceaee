/* What a connection waits for: its life, the deadline of that, and the events that end it. */
#include <math.h>
#include <sys/epoll.h>

#include "observe/http/internal.h"

static double time_for(enum connection_life life)
{
    static const int seconds[LIFE_COUNT] = {
        [LIFE_IDLE] = HTTP_IDLE_S,      [LIFE_SHAKING] = HTTP_HEAD_S, [LIFE_HEAD] = HTTP_HEAD_S,
        [LIFE_BODY] = HTTP_MOVE_S,      [LIFE_HANDLED] = 0,           [LIFE_ANSWERING] = HTTP_MOVE_S,
        [LIFE_STREAMING] = HTTP_MOVE_S, [LIFE_ENDING] = HTTP_MOVE_S,  [LIFE_LINGERING] = HTTP_LINGER_S};
    return seconds[life] == 0 ? (double)INFINITY : seconds[life];
}

void connection_leave(struct http_connection *connection)
{
    struct queue *queue = &connection->server->queues[connection->life];
    *(connection->before ? &connection->before->after : &queue->first) = connection->after;
    *(connection->after ? &connection->after->before : &queue->last) = connection->before;
    queue->count--;
}

void connection_enter(struct http_connection *connection)
{
    struct queue *queue = &connection->server->queues[connection->life];
    connection->deadline_s = connection->server->now_s + time_for(connection->life);
    connection->before = queue->last;
    connection->after = NULL;
    *(queue->last ? &queue->last->after : &queue->first) = connection;
    queue->last = connection;
    queue->count++;
}

void connection_watch_for(struct http_connection *connection, uint32_t events)
{
    events |= connection->left_s > 0 ? 0 : (uint32_t)EPOLLRDHUP;
    if (events != connection->events) {
        connection->events = events;
        struct epoll_event event = {.events = events, .data.ptr = connection};
        epoll_ctl(connection->server->poll_fd, EPOLL_CTL_MOD, connection->fd, &event);
    }
}

void connection_watch(struct http_connection *connection)
{
    static const uint32_t wanted[LIFE_COUNT] = {
        [LIFE_IDLE] = EPOLLIN, [LIFE_SHAKING] = EPOLLIN,   [LIFE_HEAD] = EPOLLIN,
        [LIFE_BODY] = EPOLLIN, [LIFE_STREAMING] = EPOLLIN, [LIFE_LINGERING] = EPOLLIN};
    const bool writes = connection->first || connection->life == LIFE_ENDING ||
                        (connection->session && web_session_wants_write(connection->session));
    const uint32_t events = wanted[connection->life] | (writes ? (uint32_t)EPOLLOUT : 0);
    /*
     * Most peers send nothing while they wait for an answer, so it does not matter that epoll would report it
     * (on_event).
     */
    if (connection->life != LIFE_HANDLED || writes || !(connection->events & EPOLLIN)) {
        connection_watch_for(connection, events);
    }
}

void connection_live(struct http_connection *connection, enum connection_life life)
{
    connection_leave(connection);
    connection->life = life;
    connection->since_s = connection->server->now_s;
    connection->moved = 0;
    connection_enter(connection);
}
