/*
 * Statistics of the rows of workers with their own data. A ps does not interpret them: it keeps each worker's until the
 * chief asks.
 */
#include <stdlib.h>
#include <string.h>

#include "ps/server/requests/requests.h"

enum { FIGURES_MOST = 64 << 20 /* bytes, of all workers together */ };

/* Takes ownership of the bytes, unless they are too many. Locked. */
static bool keep(struct server *server, int worker, uint8_t *bytes, size_t size)
{
    struct figures *figures = &server->figures[worker];
    if (server->figures_bytes - figures->size + size > FIGURES_MOST) {
        return false;
    }
    server->figures_bytes += size - figures->size;
    free(figures->bytes);
    *figures = (struct figures){bytes, size};
    return true;
}

static bool answer(struct session *session, uint64_t request, int worker, struct iovec bulk, struct error *error)
{
    const struct message_figures message = {.worker = worker};
    const struct outgoing frame = {.type = MESSAGE_figures,
                                   .request = request,
                                   .message = &message,
                                   .bulk = &bulk,
                                   .bulk_parts = bulk.iov_len > 0 ? 1 : 0};
    return channel_send_frame(session->channel, &frame, serve_deadline(), error);
}

static bool take(struct session *session, uint64_t request, struct error *error)
{
    uint8_t *bytes;
    size_t size;
    if (!serve_read_bulk(session, &bytes, &size, error)) {
        return false;
    }
    server_lock(session->server);
    const bool kept = keep(session->server, session->worker, bytes, size);
    server_unlock(session->server);
    if (!kept) {
        free(bytes);
        return serve_send_error(session, request, ERROR_INTERNAL,
                                "the workers' categories are more than this ps keeps; leave columns out (--ignore)",
                                error);
    }
    return answer(session, request, session->worker, (struct iovec){0}, error);
}

bool serve_figures(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const uint64_t request = session->channel->frame.request;
    const int32_t worker = session->channel->message.figures.worker;
    if (session->channel->bulk_left > 0) {
        return take(session, request, error);
    }
    if (session->worker != 0 || worker < 0 || worker >= config_worker_room(&server->config->cluster)) {
        return serve_send_error(session, request, ERROR_BAD_REQUEST,
                                "figures are sent by workers, each about its own rows, and requested by worker 0",
                                error);
    }
    server_lock(server);
    const struct figures *figures = &server->figures[worker];
    struct iovec bulk = {malloc(figures->size + 1), figures->size};
    if (bulk.iov_base && figures->size > 0) {
        memcpy(bulk.iov_base, figures->bytes, figures->size);
    }
    server_unlock(server);
    const bool sent = bulk.iov_base ? answer(session, request, worker, bulk, error)
                                    : error_set(error, "out of memory for figures of %zu bytes", bulk.iov_len);
    free(bulk.iov_base);
    return sent;
}
