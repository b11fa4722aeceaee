/*
 * The requests of one session, one after another. What is legal is defined in one place, the table in `request_of`;
 * what it leads to is the job's decision; bulk goes straight between the connection and the shard's memory.
 */
#include "ps/server/requests.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/profile.h"

/* --- The requests --- */

/* Who may send a request. In which state of the job it is allowed is for the job to decide. */
enum senders {
    SENDERS_ALL, /* except members without an index */
    SENDERS_WORKERS,
    SENDERS_CHIEF,
    SENDERS_FOLLOWERS, /* other ps, if this one decides on synchronous steps */
    SENDERS_OPERATORS,
    SENDERS_WITHOUT_INDEX, /* workers that ask ps 0 for an index, and may ask nothing else */
};

struct request {
    enum senders senders;
    bool (*answer)(struct session *session, struct error *error);
    bool is_quick; /* always, or sometimes (is_quick), answered without waiting and in few bytes */
};

static bool refuse(struct session *session, struct error *error)
{
    const struct frame *frame = &session->channel->frame;
    char message[128];
    snprintf(message, sizeof message, "%s is not a request to a ps", message_name(frame->type));
    return serve_send_error(session, frame->request, ERROR_BAD_REQUEST, message, error);
}

static const struct request *request_of(uint16_t type)
{
    static const struct request requests[MESSAGE_TYPES] = {
        [MESSAGE_ping] = {SENDERS_ALL, serve_ping, .is_quick = true},
        [MESSAGE_pong] = {SENDERS_ALL, serve_pong, .is_quick = true},
        [MESSAGE_leave] = {SENDERS_ALL, serve_leave},
        [MESSAGE_get_status] = {SENDERS_ALL, serve_get_status},
        [MESSAGE_report] = {SENDERS_ALL, serve_report},
        [MESSAGE_get_program] = {SENDERS_ALL, serve_get_program},
        [MESSAGE_get_revoked] = {SENDERS_ALL, serve_get_revoked},

        [MESSAGE_heartbeat] = {SENDERS_WORKERS, serve_heartbeat, .is_quick = true},
        [MESSAGE_get_model] = {SENDERS_WORKERS, serve_get_model},
        [MESSAGE_pull] = {SENDERS_WORKERS, serve_pull, .is_quick = true},
        [MESSAGE_push] = {SENDERS_WORKERS, serve_push},
        [MESSAGE_local] = {SENDERS_WORKERS, serve_local},
        [MESSAGE_read] = {SENDERS_WORKERS, serve_read},
        [MESSAGE_describe] = {SENDERS_WORKERS, serve_describe},
        [MESSAGE_layers] = {SENDERS_WORKERS, serve_layers},
        [MESSAGE_figures] = {SENDERS_WORKERS, serve_figures},
        [MESSAGE_validated] = {SENDERS_WORKERS, serve_validated},

        [MESSAGE_begin_restore] = {SENDERS_CHIEF, serve_begin_restore},
        [MESSAGE_write] = {SENDERS_CHIEF, serve_write},
        [MESSAGE_end_restore] = {SENDERS_CHIEF, serve_end_restore},
        [MESSAGE_snapshot] = {SENDERS_CHIEF, serve_snapshot},
        [MESSAGE_release] = {SENDERS_CHIEF, serve_release},
        [MESSAGE_validate] = {SENDERS_CHIEF, serve_validate},
        [MESSAGE_end_job] = {SENDERS_CHIEF, serve_end_job},

        [MESSAGE_staged] = {SENDERS_FOLLOWERS, serve_staged},
        [MESSAGE_get_aggregate] = {SENDERS_FOLLOWERS, serve_get_aggregate},

        [MESSAGE_propose] = {SENDERS_OPERATORS, serve_propose},
        [MESSAGE_abort_rollout] = {SENDERS_OPERATORS, serve_abort_rollout},
        [MESSAGE_offer_program] = {SENDERS_OPERATORS, serve_offer_program},
        [MESSAGE_put_program] = {SENDERS_OPERATORS, serve_put_program},
        [MESSAGE_revoke] = {SENDERS_OPERATORS, serve_revoke},

        [MESSAGE_get_place] = {SENDERS_WITHOUT_INDEX, serve_get_place},
    };
    static const struct request other = {SENDERS_WORKERS, refuse, .is_quick = false};
    return type < MESSAGE_TYPES && requests[type].answer ? &requests[type] : &other;
}

static bool may_send(const struct session *session, enum senders senders)
{
    const struct server *server = session->server;
    if (member_has_no_index(session->who)) {
        return senders == SENDERS_WITHOUT_INDEX && server->index == 0;
    }
    switch (senders) {
    case SENDERS_ALL:
        return true;
    case SENDERS_WORKERS:
        return session->worker >= 0;
    case SENDERS_CHIEF:
        return session->worker == 0;
    case SENDERS_FOLLOWERS:
        return session->who.role == MEMBER_PS && !session->is_guest && server->job.synchronous &&
               server->job.coordinator == server->index;
    case SENDERS_OPERATORS:
        return session->who.role == MEMBER_OPERATOR && !session->is_guest;
    case SENDERS_WITHOUT_INDEX:
        break;
    }
    return false;
}

static bool answer(struct session *session, struct error *error)
{
    char message[128];
    const struct frame *frame = &session->channel->frame;
    const struct request *request = request_of(frame->type);
    if (!may_send(session, request->senders)) {
        snprintf(message, sizeof message, "%s is not for %s", message_name(frame->type),
                 session->is_guest                      ? "members that connected without a config"
                 : session->who.role == MEMBER_PS       ? "another ps"
                 : session->who.role == MEMBER_OPERATOR ? "operators"
                                                        : "any worker but worker 0, the chief");
        return serve_send_error(session, frame->request, ERROR_NOT_ALLOWED, message, error);
    }
    PROFILE_PEER(message_name(frame->type), session->worker >= 0 ? PROFILE_WORKER + session->worker : PROFILE_NOBODY,
                 frame->type == MESSAGE_push ? (int64_t)session->channel->message.push.sequence : 0);
    return request->answer(session, error);
}

/* --- One request after another --- */

/*
 * Between two requests: carries out what the server wants of an idle connection. False if it must end. *keep_s: see
 * await.
 */
static bool handle_wakeups(struct session *session, double *keep_s, struct error *error)
{
    struct server *server = session->server;
    server_lock(server);
    bool ping = session->ping_wanted;
    bool leaving = server->leaving;
    session->ping_wanted = false;
    struct message_ping question = {.nonce = ping ? job_probe_nonce(&server->job, session->worker) : 0};
    listener_set_waiting(&session->base, true);
    *keep_s = listener_keep_thread_s(server->listener);
    server_unlock(server);
    if (leaving) {
        struct message_leave leave = {.message = server->close_reason};
        serve_send(session, MESSAGE_leave, 0, &leave, error);
        return error_set(error, "%s", "");
    }
    return !ping || serve_send(session, MESSAGE_ping, 0, &question, error);
}

/*
 * Waits until something has arrived; *rests: nothing arrived for a while, or waiting is pointless, and no request is in
 * progress.
 */
static bool await_request(struct session *session, bool answered, bool *rests, struct error *error)
{
    struct channel *channel = session->channel;
    bool there = false;
    *rests = false;
    while (!there && !*rests) {
        double keep_s;
        if (!handle_wakeups(session, &keep_s, error)) {
            return false;
        }
        *rests = answered && session->is_rare && channel_park(channel);
        if (*rests) {
            return true;
        }
        if (!connection_wait(channel->connection, clock_monotonic_s() + keep_s, &there, error)) {
            return false;
        }
        *rests = !there && channel_park(channel);
        if (!there && !*rests && keep_s == 0 && /* half a frame keeps its thread */
            !connection_wait(channel->connection, clock_monotonic_s() + SERVER_TICK_MS / 1000.0, &there, error)) {
            return false;
        }
    }
    return true;
}

static void touch_session(struct session *session)
{
    const double now_s = clock_monotonic_s();
    server_lock(session->server);
    listener_set_waiting(&session->base, false);
    session->is_rare = now_s - session->base.last_active_s > SERVER_RARE_S;
    session->base.last_active_s = now_s;
    if (session->worker >= 0) {
        job_touch(&session->server->job, session->worker, session->incarnation, now_s);
    }
    server_unlock(session->server);
}

bool serve_request(struct session *session, struct error *error)
{
    if (!session->has_frame) {
        if (!serve_receive(session, error)) {
            return false;
        }
        touch_session(session);
    }
    session->has_frame = false;
    return answer(session, error);
}

/* --- On the listener's thread, which must not wait --- */

/* For a held pull: it needs a thread if the answer is larger than an empty socket's buffer. */
static bool is_small(const struct message_pull *pull)
{
    enum { SMALL = 256 };
    return pull->ranges.count == 1 && range_get(&pull->ranges, 0).count <= SMALL;
}

/* Can this request, of a quick kind, be answered without waiting and in few bytes? */
static bool is_quick(const struct session *session)
{
    const struct message_pull *pull = &session->channel->message.pull;
    return session->channel->frame.type != MESSAGE_pull ||
           (session->may_rest && pull->after_step >= 0 && is_small(pull));
}

/*
 * Answers what has arrived if that is possible at once. *goes_on: it was, or nothing arrived; otherwise a thread
 * answers.
 */
static bool answer_at_once(struct session *session, bool *goes_on, struct error *error)
{
    struct channel *channel = session->channel;
    bool there;
    uint16_t type;
    if (!connection_wait(channel->connection, 0, &there, error)) {
        return false;
    }
    *goes_on = !there || (channel_has_frame(channel, &type) && request_of(type)->is_quick);
    if (!there || !*goes_on) {
        return true;
    }
    if (!serve_receive(session, error)) {
        return false;
    }
    touch_session(session);
    session->has_frame = !is_quick(session);
    if (!session->has_frame && !answer(session, error)) {
        return false;
    }
    *goes_on = !session->has_frame; /* a pull that would have to wait is left alone */
    return true;
}

static bool try_inline(struct session *session, enum listener_inline *how, struct error *error)
{
    struct channel *channel = session->channel;
    bool goes_on = true, rests = false;
    if (!session->held.holds && !answer_at_once(session, &goes_on, error)) {
        return false;
    }
    if (session->held.holds) {
        goes_on = goes_on && is_small(&session->held.pull) && connection_is_empty(channel->connection);
        if (goes_on && !serve_held_pull(session, &rests, error)) {
            return false;
        }
    }
    *how = rests || (goes_on && channel_park(channel)) ? INLINE_PARKED : INLINE_NEEDS_THREAD;
    return true;
}

/* Logs why a session ended unexpectedly. */
static void log_end(const struct session *session, const struct error *error)
{
    enum connection_state state = connection_state(session->channel->connection);
    if (state == CONNECTION_BROKEN || state == CONNECTION_TIMED_OUT) {
        log_info("%s", error->text);
    }
}

enum listener_inline serve_without_waiting(struct session *session)
{
    enum listener_inline how = INLINE_NEEDS_THREAD;
    struct error error = {""};
    if (session->server->leaving || connection_unsent(session->channel->connection) > 0 ||
        !channel_resume(session->channel, &error)) {
        return INLINE_NEEDS_THREAD;
    }
    if (!try_inline(session, &how, &error)) {
        log_end(session, &error);
        return INLINE_CLOSE;
    }
    return how;
}

bool serve_until_idle(struct session *session)
{
    struct error error = {""};
    bool rests = false;
    if (!channel_resume(session->channel, &error)) {
        log_warning("dropped %s", error.text);
        return false;
    }
    session->may_rest = true;
    bool answered = false;
    for (bool good = true; good && !rests;) {
        good = session->held.holds ? serve_held_pull(session, &rests, &error)
               : session->has_frame
                   ? serve_request(session, &error)
                   : await_request(session, answered, &rests, &error) && (rests || serve_request(session, &error));
        answered = true;
    }
    if (rests) {
        return true;
    }
    log_end(session, &error);
    return false;
}
