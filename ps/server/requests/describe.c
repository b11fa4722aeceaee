/*
 * How the workers' data are preprocessed: worker 0 sends it, and the others, and a restarted worker 0, ask whether
 * theirs is the same. A ps does not interpret it. Also the layer widths, which a ps may have learnt itself
 * (ps/server/learn.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/server/requests/requests.h"

/* Takes ownership of the bytes. Locked. */
static void keep_description(struct server *server, const char *digest, uint8_t *bytes, size_t size)
{
    free(server->description);
    server->description = bytes;
    server->description_size = size;
    snprintf(server->description_digest, sizeof server->description_digest, "%s", digest);
}

static bool take_description(struct session *session, const char *digest, struct error *error)
{
    uint8_t *bytes;
    size_t size;
    if (!serve_read_bulk(session, &bytes, &size, error)) {
        return false;
    }
    server_lock(session->server);
    keep_description(session->server, digest, bytes, size);
    server_unlock(session->server);
    return true;
}

/* The other workers compare their own data's layer widths themselves. */
bool serve_layers(struct session *session, struct error *error)
{
    char units[MODEL_UNITS_TEXT];
    model_units_text(&session->server->config->model, units);
    return serve_send(session, MESSAGE_layers, session->channel->frame.request,
                      &(struct message_layers){.units = units}, error);
}

bool serve_describe(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const uint64_t request = session->channel->frame.request;
    char own[sizeof server->description_digest], known[sizeof server->description_digest];
    struct message_description description = {.digest = known};
    snprintf(own, sizeof own, "%s", session->channel->message.describe.digest);
    const bool tells = session->worker == 0 && own[0] != '\0';
    if (tells && !take_description(session, own, error)) {
        return false;
    }
    server_lock(server);
    memcpy(known, server->description_digest, sizeof known);
    if (session->worker == 0 && !tells && server->job.state >= JOB_DONE) {
        known[0] = '\0'; /* this worker 0 begins another job */
    }
    const bool differs = known[0] != '\0' && strcmp(known, own) != 0;
    struct iovec bulk = {differs ? malloc(server->description_size + 1) : NULL, server->description_size};
    if (bulk.iov_base) {
        memcpy(bulk.iov_base, server->description, server->description_size);
    }
    serve_unlock(session);
    if (differs && !bulk.iov_base) { /* an empty text would pass for the chief's: let the worker ask again */
        return error_set(error, "out of memory for a description");
    }
    const struct outgoing frame = {.type = MESSAGE_description,
                                   .request = request,
                                   .message = &description,
                                   .bulk = &bulk,
                                   .bulk_parts = bulk.iov_base ? 1 : 0};
    const bool sent = channel_send_frame(session->channel, &frame, serve_deadline(), error);
    free(bulk.iov_base);
    return sent;
}
