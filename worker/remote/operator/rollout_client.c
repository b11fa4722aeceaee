/* The operator's connection to ps 0: queries, proposes and aborts a rollout. */
#include "worker/remote/operator/rollout_client.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/message.h"
#include "ps/rollout/manifest.h"

static const double TIMEOUT_S = 5.0;
static const double REACH_S = 20.0; /* over several attempts, while ps 0 is busy */

bool rollout_client_open(struct rollout_client *client, const struct config *config, struct error *error)
{
    memset(client, 0, sizeof *client);
    if (!identity_create(&client->identity, config, (struct member){MEMBER_OPERATOR, MEMBER_ANY_INDEX}, error)) {
        return false;
    }
    client->identity.hello.digest = "";
    client->identity.hello.job = "";
    if (!shard_link_create(&client->link, config, 0, &client->identity, &client->traffic, error)) {
        return false;
    }
    client->link.quiet = true;
    client->link.timeout_s = TIMEOUT_S;
    /* While ps 0 writes what it received to a slow disk it is silent, whatever the fleet's lease. */
    client->link.idle_timeout_s = fmax(client->link.idle_timeout_s, LINK_ANSWER_S);
    return true;
}

void rollout_client_close(struct rollout_client *client)
{
    link_destroy(&client->link);
    identity_destroy(&client->identity);
}

bool rollout_client_reach(struct rollout_client *client, struct error *error)
{
    const double until_s = clock_monotonic_s() + REACH_S;
    for (;;) {
        const double begun_s = clock_monotonic_s();
        client->link.next_try_s = 0;
        enum link_try result = link_try(&client->link, error);
        const double now_s = clock_monotonic_s();
        if (result == LINK_OPEN) {
            return true;
        }
        if (result == LINK_REFUSED || now_s - begun_s < TIMEOUT_S || now_s >= until_s) {
            return false; /* nobody listens there: that is known at once and won't change */
        }
        log_info("waiting for %s, up to %.0f s: %s", client->link.name, REACH_S, error->text);
    }
}

const struct message_rollout *rollout_client_ask(struct rollout_client *client, struct error *error)
{
    struct channel *channel = &client->link.channel;
    const struct message_report report = {.loss = -1.0f};
    if (!link_is_open(&client->link)) {
        client->link.next_try_s = 0;
        if (link_try(&client->link, error) != LINK_OPEN) {
            return NULL;
        }
    }
    if (!channel_call(channel, MESSAGE_report, &report, MESSAGE_rollout, clock_monotonic_s() + TIMEOUT_S, NULL,
                      error)) {
        link_close(&client->link);
        return NULL;
    }
    return &channel->message.rollout;
}

bool rollout_client_manifest(struct rollout_client *client, uint8_t **bytes, size_t *size, struct error *error)
{
    struct channel *channel = &client->link.channel;
    *size = channel->bulk_left;
    *bytes = NULL;
    if (*size == 0) {
        return true;
    }
    if (*size > MANIFEST_MAX_BYTES || !(*bytes = malloc(*size))) {
        return error_set(error, "ps 0 sent a manifest of %zu bytes, which is too large", *size);
    }
    if (!channel_read_bulk(channel, *bytes, *size, clock_monotonic_s() + TIMEOUT_S, error)) {
        free(*bytes);
        *bytes = NULL;
        link_close(&client->link);
        return false;
    }
    return true;
}

/*
 * *refused: ps 0 says why it refuses. If there is no valid answer the connection is closed: then it is unknown whether
 * ps 0 accepted.
 */
static bool call_with_bulk(struct rollout_client *client, const struct outgoing *request, const uint8_t *bytes,
                           size_t size, enum message_type answer, bool *refused, struct error *error)
{
    struct link *link = &client->link;
    const struct iovec bulk = {(void *)(uintptr_t)bytes, size};
    struct outgoing frame = *request;
    uint16_t code;
    frame.bulk = &bulk;
    frame.bulk_parts = 1;
    const bool done = link_call(link, &frame, answer, &code, error);
    *refused = code != 0;
    if (*refused) {
        error_set(error, "ps 0 refuses it: %s", link->channel.message.error.message);
    } else if (!done) {
        link_close(link);
    }
    return done;
}

enum proposal rollout_client_propose(struct rollout_client *client, const uint8_t *bytes, size_t size, double healthy_s,
                                     struct error *error)
{
    const struct message_propose proposal = {.healthy_s = healthy_s};
    const struct outgoing request = {.type = MESSAGE_propose, .message = &proposal};
    bool refused;
    return call_with_bulk(client, &request, bytes, size, MESSAGE_done, &refused, error) ? PROPOSAL_TAKEN
           : refused                                                                    ? PROPOSAL_REFUSED
                                                                                        : PROPOSAL_UNANSWERED;
}

/* For a request whose answer says how much is there. */
static bool call_for_position(struct rollout_client *client, const struct outgoing *request, const uint8_t *bytes,
                              size_t size, uint64_t *there, struct error *error)
{
    bool refused;
    if (!call_with_bulk(client, request, bytes, size, MESSAGE_program, &refused, error)) {
        return false;
    }
    *there = client->link.channel.message.program.offset;
    return true;
}

bool rollout_client_offer(struct rollout_client *client, const char *digest, const uint8_t *manifest, size_t size,
                          uint64_t *there, struct error *error)
{
    const struct message_offer_program offer = {.digest = (char *)(uintptr_t)digest};
    const struct outgoing request = {.type = MESSAGE_offer_program, .message = &offer};
    return call_for_position(client, &request, manifest, size, there, error);
}

bool rollout_client_put(struct rollout_client *client, const char *digest, uint64_t offset, const uint8_t *bytes,
                        size_t size, uint64_t *there, struct error *error)
{
    const struct message_put_program piece = {.digest = (char *)(uintptr_t)digest, .offset = offset};
    const struct outgoing request = {.type = MESSAGE_put_program, .message = &piece};
    return call_for_position(client, &request, bytes, size, there, error);
}

bool rollout_client_abort(struct rollout_client *client, const char *who, const uint8_t *bytes, size_t size,
                          struct error *error)
{
    const struct message_abort_rollout wish = {.who = who};
    const struct outgoing request = {.type = MESSAGE_abort_rollout, .message = &wish};
    bool refused;
    return call_with_bulk(client, &request, bytes, size, MESSAGE_done, &refused, error);
}
