/*
 * Programs on their way from an operator through ps 0 to every machine. An operator may send only what a manifest with
 * the operator's signature names, so that nobody else can fill the disk; members get what the current rollout carries,
 * all together no faster than its manifest allows.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "ps/server/coordinator.h"
#include "ps/server/requests/requests.h"

enum { MOST_WAIT_MS = 60000, LEAST_PIECE = 4 << 10 };

/* --- From an operator --- */

/*
 * Adds a piece; with size 0 only looks. *there: how much is here afterwards. A piece at another offset than the next is
 * dropped, and the answer says which is next. Unlocked.
 */
static bool add_piece(struct rollout_coordinator *coordinator, const struct manifest_program *program, uint64_t offset,
                      const uint8_t *bytes, size_t size, uint64_t *there, struct error *error)
{
    struct program_intake intake;
    pthread_mutex_lock(&coordinator->taking_in);
    const enum intake_state state =
        program_intake_open(&intake, &coordinator->programs, program->digest, program->size, error);
    bool done = state == INTAKE_OPEN || state == INTAKE_WHOLE;
    if (state == INTAKE_OPEN && size > 0 && offset == intake.there) {
        done = program_intake_add(&intake, bytes, size, error);
    }
    *there = state == INTAKE_WHOLE ? program->size : intake.there;
    program_intake_close(&intake);
    pthread_mutex_unlock(&coordinator->taking_in);
    return state == INTAKE_BUSY ? error_set(error, "a member on the machine of ps 0 is receiving it: try again") : done;
}

/* The manifest must be one that could be proposed now. */
static bool take_offer(struct rollout_coordinator *coordinator, const uint8_t *bytes, size_t size, const char *digest,
                       struct manifest_program *offered, struct error *error)
{
    struct manifest manifest;
    uint64_t version, highest;
    char ignored[CONFIG_DIGEST_HEX + 1];
    if (!coordinator_accepts(coordinator, bytes, size, &manifest, error)) {
        return false;
    }
    agent_version(coordinator->agent, &version, ignored);
    server_lock(coordinator->server);
    highest = coordinator->highest;
    server_unlock(coordinator->server);
    if (!manifest_fits(&manifest, coordinator->server->config->fleet.name, version, highest, error)) {
        return false;
    }
    const struct manifest_program *program = manifest_program_by_digest(&manifest.programs, digest);
    if (!program) {
        return error_set(error, "the manifest names no program %.16s", digest);
    }
    *offered = *program;
    return true;
}

static bool send_position(struct session *session, uint64_t request, uint64_t there, struct error *error)
{
    const struct message_program answer = {.offset = there};
    return serve_send(session, MESSAGE_program, request, &answer, error);
}

bool serve_offer_program(struct session *session, struct error *error)
{
    struct rollout_coordinator *coordinator = session->server->coordinator;
    const uint64_t request = session->channel->frame.request;
    char digest[PROGRAM_DIGEST_HEX + 1];
    struct manifest_program offered;
    struct error why;
    uint8_t *bytes;
    size_t size;
    uint64_t there;
    snprintf(digest, sizeof digest, "%s", session->channel->message.offer_program.digest);
    if (!serve_read_bulk(session, &bytes, &size, error)) {
        return false;
    }
    const bool done = take_offer(coordinator, bytes, size, digest, &offered, &why) &&
                      add_piece(coordinator, &offered, 0, NULL, 0, &there, &why);
    free(bytes);
    if (!done) {
        coordinator_note_refusal(coordinator, "unknown", "program", 0, why.text);
        return serve_send_error(session, request, ERROR_NOT_ALLOWED, why.text, error);
    }
    server_lock(session->server);
    coordinator->offered = offered;
    server_unlock(session->server);
    return send_position(session, request, there, error);
}

bool serve_put_program(struct session *session, struct error *error)
{
    struct rollout_coordinator *coordinator = session->server->coordinator;
    const struct channel *channel = session->channel;
    const uint64_t request = channel->frame.request, offset = channel->message.put_program.offset;
    struct manifest_program offered;
    struct error why;
    uint8_t *bytes;
    size_t size;
    uint64_t there = 0;
    server_lock(session->server);
    offered = coordinator->offered;
    server_unlock(session->server);
    const bool is_it = offered.digest[0] != '\0' && strcmp(offered.digest, channel->message.put_program.digest) == 0;
    if (!serve_read_bulk(session, &bytes, &size, error)) {
        return false;
    }
    const bool done = is_it ? add_piece(coordinator, &offered, offset, bytes, size, &there, &why)
                            : error_set(&why, "that program was not offered, or another one has been since");
    free(bytes);
    return done ? send_position(session, request, there, error)
                : serve_send_error(session, request, ERROR_NOT_ALLOWED, why.text, error);
}

/* --- To members --- */

/* At most a second's worth: training on the same slow link must not wait long for one piece. */
static size_t piece_at(uint32_t rate_kib)
{
    const double most = rate_kib > 0 ? fmax(1024.0 * rate_kib, LEAST_PIECE) : PROGRAM_CHUNK;
    return (size_t)fmin(most, PROGRAM_CHUNK);
}

/* May a piece be sent now? If not, *wait_ms says how long to wait. Locked. */
static bool may_hand_on(struct rollout_coordinator *coordinator, size_t size, uint32_t *wait_ms)
{
    const double rate = 1024.0 * coordinator->carried.rate_kib, now_s = clock_monotonic_s();
    *wait_ms = 0;
    if (rate <= 0) {
        return true;
    }
    const double most = fmax(rate / 4, 1); /* at most a quarter of a second's budget is saved up */
    coordinator->budget = fmin(coordinator->budget + rate * (now_s - coordinator->budget_s), most);
    coordinator->budget_s = now_s;
    if (coordinator->budget < 0) {
        *wait_ms = (uint32_t)fmin(1 + 1000 * -coordinator->budget / rate, MOST_WAIT_MS);
        return false;
    }
    coordinator->budget -= (double)size;
    return true;
}

bool serve_get_program(struct session *session, struct error *error)
{
    struct rollout_coordinator *coordinator = session->server->coordinator;
    const struct message_get_program *wish = &session->channel->message.get_program;
    const uint64_t request = session->channel->frame.request;
    struct message_program answer = {.offset = wish->offset};
    char digest[PROGRAM_DIGEST_HEX + 1];
    struct error why;
    size_t size = 0;
    snprintf(digest, sizeof digest, "%s", wish->digest);
    server_lock(session->server);
    const struct manifest_program *program = coordinator_program(coordinator, digest);
    const bool known = program && answer.offset < program->size;
    const size_t piece = piece_at(coordinator->carried.rate_kib);
    const bool may = known && may_hand_on(coordinator, piece, &answer.wait_ms);
    if (may) {
        rollout_moves(&coordinator->rollout, clock_monotonic_s());
    }
    server_unlock(session->server);
    if (!known) {
        return serve_send_error(session, request, ERROR_NOT_ALLOWED, "no such program is rolled out", error);
    }
    uint8_t *bytes = may ? malloc(piece) : NULL;
    if (may && (!bytes || !programs_read(&coordinator->programs, digest, answer.offset, bytes, piece, &size, &why))) {
        const bool sent = serve_send_error(session, request, ERROR_INTERNAL, bytes ? why.text : "out of memory", error);
        free(bytes);
        return sent;
    }
    struct iovec bulk = {bytes, size};
    const struct outgoing frame = {
        .type = MESSAGE_program, .request = request, .message = &answer, .bulk = &bulk, .bulk_parts = size > 0 ? 1 : 0};
    const bool sent = channel_send_frame(session->channel, &frame, serve_deadline(), error);
    free(bytes);
    return sent;
}
