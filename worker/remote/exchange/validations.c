/* Requests to the ps that decides on steps. */
#include "worker/remote/exchange/validations.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/profile.h"
#include "worker/remote/exchange/push_pull.h"

enum { ASK_MS = 500 /* how often to check for a signal */ };

/* To the ps that decides on steps. */
static enum exchange_result make_request(struct push_pull *exchange, shard_request *request, void *context,
                                         struct error *error)
{
    uint16_t code;
    const enum exchange_result end = shard_call(exchange, push_pull_decider(exchange), request, context, &code, error);
    return code != 0 ? push_pull_by_code(code) : end;
}

/* --- Reporting --- */

struct report_request {
    struct message_validated message;
    struct iovec bulk;
};

static bool report_own(struct shard_part *part, void *context, uint16_t *code, struct error *error)
{
    const struct report_request *report = context;
    struct outgoing frame = {.type = MESSAGE_validated,
                             .message = &report->message,
                             .bulk = &report->bulk,
                             .bulk_parts = report->bulk.iov_len > 0 ? 1 : 0};
    return link_call(&part->link, &frame, MESSAGE_done, code, error);
}

enum exchange_result validations_report(struct push_pull *exchange, const struct own_validation *own, uint8_t *bytes,
                                        size_t size, struct error *error)
{
    struct report_request report = {.message = {.step = own->step,
                                                .examples = (uint64_t)own->examples,
                                                .score = (float)own->score,
                                                .rises = own->rises},
                                    .bulk = {bytes, size}};
    return make_request(exchange, report_own, &report, error);
}

/* --- Gathering --- */

struct ask_request {
    struct message_validate message;
    const struct validations_receiver *receiver;
    int *missing;
};

static bool ask(struct shard_part *part, void *context, uint16_t *code, struct error *error)
{
    const struct ask_request *asked = context;
    const struct validations_receiver *receiver = asked->receiver;
    struct channel *channel = &part->link.channel;
    const uint64_t request = ++channel->next_request;
    const double until_s = clock_monotonic_s() + LINK_ANSWER_S;
    if (!channel_send(channel, MESSAGE_validate, request, &asked->message, until_s, error)) {
        return false;
    }
    receiver->begin(receiver->context);
    for (;;) {
        if (!link_receive_answer(&part->link, MESSAGE_validate, request, MESSAGE_validation, code, error)) {
            return false;
        }
        const struct message_validation one = channel->message.validation;
        if (channel->frame.flags & FRAME_LAST) {
            *asked->missing = one.missing > INT32_MAX ? INT32_MAX : (int)one.missing;
            return true;
        }
        const size_t size = channel->bulk_left;
        uint8_t *bytes = malloc(size + 1); /* if NULL the next frame is read past these: a retry would not help */
        if (bytes && !channel_read_bulk(channel, bytes, size, clock_monotonic_s() + LINK_ANSWER_S, error)) {
            free(bytes);
            return false;
        }
        receiver->take(receiver->context, one.worker, (int64_t)one.examples, (double)one.score, bytes,
                       bytes ? size : 0);
        free(bytes);
    }
}

enum exchange_result validations_gather(struct push_pull *exchange, const struct own_validation *own, double wait_s,
                                        const struct validations_receiver *receiver, int *missing, struct error *error)
{
    PROFILE("wait for validations");
    const double until_s = clock_monotonic_s() + wait_s;
    struct ask_request asked = {.message = {.step = own->step,
                                            .examples = (uint64_t)own->examples,
                                            .score = (float)own->score,
                                            .rises = own->rises},
                                .receiver = receiver,
                                .missing = missing};
    for (;;) {
        const bool is_last = clock_monotonic_s() >= until_s;
        asked.message.wait_ms = is_last ? 0 : ASK_MS;
        *missing = 0;
        const enum exchange_result end = make_request(exchange, ask, &asked, error);
        if (end != EXCHANGE_OK || *missing == 0 || is_last) {
            return end;
        }
        if (push_pull_must_stop(exchange)) {
            return EXCHANGE_STOPPED;
        }
    }
}
