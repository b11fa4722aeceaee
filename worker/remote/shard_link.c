/* Makes links from the config's hosts and delays. */
#include "worker/remote/shard_link.h"

bool shard_link_create(struct link *link, const struct config *config, int ps, const struct identity *identity,
                       struct traffic *traffic, struct error *error)
{
    const struct link_options options = {.peer = {MEMBER_PS, ps},
                                         .self = identity_hello_options(identity),
                                         .traffic = traffic,
                                         .longest_delay_s = config->cluster.recovery_wait_secs};
    return link_create(link, config->cluster.ps_hosts.items[ps], &options, error);
}

bool shard_link_create_to_chief(struct link *link, const struct config *config, const struct identity *identity,
                                struct traffic *traffic, struct error *error)
{
    const struct link_options options = {
        .peer = {MEMBER_WORKER, 0}, .self = identity_hello_options(identity), .traffic = traffic};
    return link_create(link, config->cluster.worker_hosts.items[0], &options, error);
}
