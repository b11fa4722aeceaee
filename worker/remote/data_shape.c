/* Two requests on a separate connection; after a failure they are tried again. */
#include "worker/remote/data_shape.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "net/channel.h"
#include "ps/store/model.h"
#include "worker/remote/shard_link.h"

bool data_shape_is_unknown(const struct config *config)
{
    return config->data.target.count > 0 || config->data.data_source == DATA_TABLE ||
           config->model.hidden_count != CONFIG_AUTO;
}

/* Worker 0's answers. */
struct shape {
    char units[MODEL_UNITS_TEXT];
    char *schema; /* as JSON; NULL: images */
};

static bool ask_once(struct link *link, struct shape *shape, struct error *error)
{
    struct channel *channel = &link->channel;
    char nothing[] = "";
    const struct message_layers layers = {.units = nothing};
    const struct message_describe describe = {.digest = nothing};
    if (!link_call(link, &(struct outgoing){.type = MESSAGE_layers, .message = &layers}, MESSAGE_layers, NULL, error)) {
        return false;
    }
    snprintf(shape->units, sizeof shape->units, "%s", channel->message.layers.units);
    if (!link_call(link, &(struct outgoing){.type = MESSAGE_describe, .message = &describe}, MESSAGE_description, NULL,
                   error)) {
        return false;
    }
    const size_t size = channel->bulk_left;
    free(shape->schema);
    shape->schema = size > 0 ? calloc(1, size + 1) : NULL;
    if (size > 0 && !shape->schema) {
        return error_set(error, "out of memory for the preprocessing of worker 0");
    }
    return size == 0 || channel_read_bulk(channel, shape->schema, size, clock_monotonic_s() + LINK_ANSWER_S, error);
}

static bool ask(struct shape *shape, const struct config *config, const struct identity *identity,
                struct traffic *traffic, struct error *error)
{
    struct link link;
    if (!shard_link_create_to_chief(&link, config, identity, traffic, error)) {
        return false;
    }
    bool done = false, over = false;
    while (!done && !over) {
        over = link_open(&link, NULL, NULL, error) != LINK_OPEN;
        done = !over && ask_once(&link, shape, error);
        if (!over && !done) {
            link_lost(&link, error->text);
        }
    }
    link_destroy(&link);
    return done;
}

bool data_shape_learn(struct dataset *dataset, struct config *config, const struct identity *identity,
                      struct traffic *traffic, struct error *error)
{
    struct shape shape = {.schema = NULL};
    bool done = ask(&shape, config, identity, traffic, error);
    if (done && shape.schema) {
        done = dataset_describe(dataset, shape.schema, config, error) && dataset_fit(config, dataset, error);
    } else if (done && config->model.hidden_count != CONFIG_AUTO) {
        done = model_take_units(&config->model, shape.units, error);
    }
    free(shape.schema);
    return done;
}
