/*
 * Requests of one connection. What is legal is said in one place, the switch of `answer`; what it comes to is the job's
 * decision; bulk goes straight between the connection and the shard's memory.
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/profile.h"
#include "ps/server/requests/requests.h"

double serve_deadline(void)
{
    return clock_monotonic_s() + SERVER_FRAME_S;
}

void serve_tell_generation(struct visitor *visitor)
{
    visitor->channel.generation = visitor->server->job.generation;
}

bool serve_send(struct visitor *visitor, enum message_type type, uint64_t request, const void *message,
                struct error *error)
{
    return channel_send(&visitor->channel, type, request, FRAME_LAST, message, NULL, 0, serve_deadline(), error);
}

bool serve_send_done(struct visitor *visitor, uint64_t request, int64_t global_step, struct error *error)
{
    struct message_done done = {.global_step = global_step};
    return serve_send(visitor, MESSAGE_done, request, &done, error);
}

bool serve_send_error(struct visitor *visitor, uint64_t request, uint16_t code, const char *sentence,
                      struct error *error)
{
    if (!channel_send_error(&visitor->channel, request, (enum error_code)code, serve_deadline(), error, "%s",
                            sentence)) {
        return false;
    }
    if (code == ERROR_BAD_REQUEST) {
        log_warning("dropped %s: %s", connection_name(visitor->channel.connection), sentence);
        return error_set(error, "%s", sentence);
    }
    return true;
}

bool serve_send_verdict(struct visitor *visitor, uint64_t request, const struct verdict *verdict, int64_t global_step,
                        struct error *error)
{
    return verdict->code != 0 ? serve_send_error(visitor, request, verdict->code, verdict->sentence, error)
                              : serve_send_done(visitor, request, global_step, error);
}

bool serve_receive(struct visitor *visitor, struct error *error)
{
    struct channel *channel = &visitor->channel;
    struct error ignored;
    if (channel_receive(channel, serve_deadline(), error)) {
        return true;
    }
    if (connection_state(channel->connection) == CONNECTION_OPEN) { /* it is the frame that is wrong */
        log_warning("dropped %s", error->text);
        channel_send_error(channel, channel->frame.request, ERROR_BAD_REQUEST, serve_deadline(), &ignored, "%s",
                           error->text);
    }
    return false;
}

/* --- Dispatch ---------------------------------------------------------------------------------------------------------- */

/* Who may ask for what. In which state of the job it may be done is for the job to say. */
static bool may_ask(const struct visitor *visitor, uint16_t type)
{
    const bool is_guest = visitor->guest.role != MEMBER_NONE;
    switch (type) {
    case MESSAGE_ping:
    case MESSAGE_pong:
    case MESSAGE_leave:
    case MESSAGE_get_status:
    case MESSAGE_report:
        return true;
    case MESSAGE_propose:
    case MESSAGE_abort_rollout:
        return visitor->worker < 0 && visitor->ps < 0 && !is_guest;
    case MESSAGE_begin_restore:
    case MESSAGE_write:
    case MESSAGE_end_restore:
    case MESSAGE_snapshot:
    case MESSAGE_release:
    case MESSAGE_end_job:
        return visitor->worker == 0;
    case MESSAGE_staged:
    case MESSAGE_get_aggregate:
        return visitor->ps >= 0 && visitor->server->job.synchronous &&
               visitor->server->job.coordinator == visitor->server->index;
    default:
        return visitor->worker >= 0;
    }
}

static bool answer(struct visitor *visitor, struct error *error)
{
    char sentence[128];
    const struct frame *frame = &visitor->channel.frame;
    if (!may_ask(visitor, frame->type)) {
        snprintf(sentence, sizeof sentence, "%s is not for %s", message_name(frame->type),
                 visitor->guest.role != MEMBER_NONE ? "members that came without a config"
                 : visitor->ps >= 0                 ? "another ps"
                 : visitor->worker < 0              ? "operators"
                                                    : "any worker but worker 0, the chief");
        return serve_send_error(visitor, frame->request, ERROR_NOT_ALLOWED, sentence, error);
    }
    PROFILE_PEER(message_name(frame->type), visitor->worker >= 0 ? PROFILE_WORKER + visitor->worker : PROFILE_NOBODY,
                 frame->type == MESSAGE_push ? (int64_t)visitor->channel.message.push.sequence : 0);
    switch (frame->type) {
    case MESSAGE_push:
        return visitor->server->job.synchronous ? serve_synchronous_push(visitor, error) : serve_push(visitor, error);
    case MESSAGE_staged:
        return serve_staged(visitor, error);
    case MESSAGE_get_aggregate:
        return serve_get_aggregate(visitor, error);
    case MESSAGE_pull:
        return serve_pull(visitor, error);
    case MESSAGE_read:
        return serve_read(visitor, error);
    case MESSAGE_get_model:
        return serve_get_model(visitor, error);
    case MESSAGE_begin_restore:
        return serve_begin_restore(visitor, error);
    case MESSAGE_write:
        return serve_write(visitor, error);
    case MESSAGE_end_restore:
        return serve_end_restore(visitor, error);
    case MESSAGE_snapshot:
        return serve_snapshot(visitor, error);
    case MESSAGE_release:
        return serve_release(visitor, error);
    case MESSAGE_heartbeat:
        return serve_heartbeat(visitor, error);
    case MESSAGE_end_job:
        return serve_end_job(visitor, error);
    case MESSAGE_leave:
        return serve_leave(visitor, error);
    case MESSAGE_get_status:
        return serve_get_status(visitor, error);
    case MESSAGE_report:
        return serve_report(visitor, error);
    case MESSAGE_propose:
        return serve_propose(visitor, error);
    case MESSAGE_abort_rollout:
        return serve_abort_rollout(visitor, error);
    case MESSAGE_ping:
        return serve_ping(visitor, error);
    case MESSAGE_pong:
        return serve_pong(visitor);
    default:
        snprintf(sentence, sizeof sentence, "%s is not a request to a ps", message_name(frame->type));
        return serve_send_error(visitor, frame->request, ERROR_BAD_REQUEST, sentence, error);
    }
}

/* Between two requests: what the server wants of an idle connection. False if it is to end. */
static bool look_around(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    server_lock(server);
    bool ping = visitor->ping_wanted;
    bool leaving = server->leaving;
    visitor->ping_wanted = false;
    struct message_ping question = {.nonce = ping ? job_probe_nonce(&server->job, visitor->worker) : 0};
    server_unlock(server);
    if (leaving) {
        struct message_leave leave = {.sentence = server->farewell};
        serve_send(visitor, MESSAGE_leave, 0, &leave, error);
        return error_set(error, "%s", "");
    }
    return !ping || serve_send(visitor, MESSAGE_ping, 0, &question, error);
}

/* Waits for the next request. */
static bool await_request(struct visitor *visitor, struct error *error)
{
    struct channel *channel = &visitor->channel;
    bool there = false;
    while (!there) {
        if (!look_around(visitor, error) ||
            !connection_wait(channel->connection, clock_monotonic_s() + SERVER_TICK_MS / 1000.0, &there, error)) {
            return false;
        }
    }
    if (!serve_receive(visitor, error)) {
        return false;
    }
    server_lock(visitor->server);
    visitor->heard_s = clock_monotonic_s();
    if (visitor->worker >= 0) {
        job_heard(&visitor->server->job, visitor->worker, visitor->incarnation, visitor->heard_s);
    }
    server_unlock(visitor->server);
    return true;
}

void serve(struct visitor *visitor)
{
    struct error error = {""};
    while (await_request(visitor, &error) && answer(visitor, &error)) {
    }
    enum connection_state state = connection_state(visitor->channel.connection);
    if (state == CONNECTION_BROKEN || state == CONNECTION_TIMED_OUT) {
        log_info("%s", error.text);
    }
}
