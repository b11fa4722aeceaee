#include "worker/remote/operator/desk_link.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"

static const double PATIENCE_S = 5.0;
static const double REACH_S = 20.0; /* by several tries, of a ps 0 that has its hands full */

bool desk_link_open(struct desk_link *link, const struct config *config, struct error *error)
{
    memset(link, 0, sizeof *link);
    if (!self_create(&link->self, config, (struct member){MEMBER_OPERATOR, MEMBER_ANY_INDEX}, error)) {
        return false;
    }
    link->self.identity.digest = "";
    link->self.identity.job = "";
    if (!shard_link_create(&link->link, config, 0, &link->self, &link->traffic, NULL, error)) {
        return false;
    }
    link->link.quiet = true;
    link->link.patience_s = PATIENCE_S;
    return true;
}

void desk_link_close(struct desk_link *link)
{
    shard_link_destroy(&link->link);
    self_destroy(&link->self);
}

bool desk_link_reach(struct desk_link *link, struct error *error)
{
    const double until_s = clock_monotonic_s() + REACH_S;
    for (;;) {
        const double begun_s = clock_monotonic_s();
        link->link.next_try_s = 0;
        enum link_try result = shard_link_try(&link->link, error);
        const double now_s = clock_monotonic_s();
        if (result == LINK_OPEN) {
            return true;
        }
        if (result == LINK_REFUSED || now_s - begun_s < PATIENCE_S || now_s >= until_s) {
            return false; /* a port where nobody listens says so at once, and will go on saying so */
        }
        log_info("waiting for %s, up to %.0f s: %s", link->link.name, REACH_S, error->text);
    }
}

const struct message_rollout *desk_link_ask(struct desk_link *link, struct error *error)
{
    struct channel *channel = &link->link.channel;
    const struct message_report report = {.loss = -1.0f};
    if (!shard_link_is_open(&link->link)) {
        link->link.next_try_s = 0;
        if (shard_link_try(&link->link, error) != LINK_OPEN) {
            return NULL;
        }
    }
    if (!channel_call(channel, MESSAGE_report, &report, MESSAGE_rollout, clock_monotonic_s() + PATIENCE_S, NULL,
                      error)) {
        shard_link_close(&link->link);
        return NULL;
    }
    return &channel->message.rollout;
}

enum proposal desk_link_propose(struct desk_link *link, const uint8_t *bytes, size_t size, double healthy_s,
                                struct error *error)
{
    struct channel *channel = &link->link.channel;
    const double deadline_s = clock_monotonic_s() + PATIENCE_S;
    const struct message_propose proposal = {.healthy_s = healthy_s};
    struct iovec bulk = {(void *)(uintptr_t)bytes, size};
    const uint64_t request = ++channel->next_request;
    if (!channel_send(channel, MESSAGE_propose, request, FRAME_LAST, &proposal, &bulk, 1, deadline_s, error) ||
        !channel_receive(channel, deadline_s, error)) {
        shard_link_close(&link->link);
        return PROPOSAL_UNANSWERED;
    }
    if (channel->frame.type == MESSAGE_error) {
        error_set(error, "ps 0 refuses it: %s", channel->message.error.sentence);
        return PROPOSAL_REFUSED;
    }
    if (channel->frame.type != MESSAGE_done) {
        error_set(error, "ps 0 answered propose by %s", message_name(channel->frame.type));
        return PROPOSAL_REFUSED;
    }
    return PROPOSAL_TAKEN;
}

bool desk_link_abort(struct desk_link *link, const char *who, struct error *error)
{
    const struct message_abort_rollout wish = {.who = who};
    return desk_link_ask(link, error) != NULL &&
           channel_call(&link->link.channel, MESSAGE_abort_rollout, &wish, MESSAGE_done,
                        clock_monotonic_s() + PATIENCE_S, NULL, error);
}
