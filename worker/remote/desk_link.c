#include "worker/remote/desk_link.h"

#include <string.h>

#include "base/clock.h"

static const double PATIENCE_S = 5.0;

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

bool desk_link_propose(struct desk_link *link, const uint8_t *bytes, size_t size, double healthy_s, struct error *error)
{
    struct channel *channel = &link->link.channel;
    const double deadline_s = clock_monotonic_s() + PATIENCE_S;
    const struct message_propose proposal = {.healthy_s = healthy_s};
    struct iovec bulk = {(void *)(uintptr_t)bytes, size};
    const uint64_t request = ++channel->next_request;
    if (!channel_send(channel, MESSAGE_propose, request, FRAME_LAST, &proposal, &bulk, 1, deadline_s, error) ||
        !channel_receive(channel, deadline_s, error)) {
        return false;
    }
    if (channel->frame.type == MESSAGE_error) {
        return error_set(error, "ps 0 refuses it: %s", channel->message.error.sentence);
    }
    return channel->frame.type == MESSAGE_done ||
           error_set(error, "ps 0 answered propose by %s", message_name(channel->frame.type));
}

bool desk_link_abort(struct desk_link *link, const char *who, struct error *error)
{
    const struct message_abort_rollout wish = {.who = who};
    return desk_link_ask(link, error) != NULL &&
           channel_call(&link->link.channel, MESSAGE_abort_rollout, &wish, MESSAGE_done,
                        clock_monotonic_s() + PATIENCE_S, NULL, error);
}
