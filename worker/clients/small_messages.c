/* One outbox serves all clients: before each one's difference it gets the residual of that client's messages. */
#include "worker/clients/small_messages.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/copy.h"
#include "base/log.h"
#include "ps/store/codec.h"
#include "worker/remote/exchange/residual_files.h"
#include "worker/remote/exchange/outbox.h"

struct small_messages {
    const struct model *model;
    const struct config *config;
    int clients;
    bool has_residuals; /* some of them is not zero */
    struct span whole;  /* held by the single ps */
    struct outbox outbox;
    struct sent_packer packer;
    float *residuals;       /* [clients, float_count]: of zero pages until a client takes part */
    float *arrived;         /* [float_count] */
    float *sent_model;      /* [float_count] */
    float *packer_residual; /* [float_count] */
};

bool small_messages_are_known(const struct config_cluster *cluster)
{
    return dtype_is_packed(sent_model_gradient_dtype(cluster));
}

static size_t count_values(const struct model *model)
{
    size_t values = 0;
    for (int i = 0; i < model->variable_count; i++) {
        values += (size_t)model->variables[i].rows * (size_t)model->variables[i].cols;
    }
    return values;
}

bool small_messages_create(struct small_messages **out, const struct model *model, const struct config *config,
                           int clients, struct error *error)
{
    const size_t floats = model->float_count;
    struct small_messages *messages = calloc(1, sizeof *messages);
    if (!messages) {
        return error_set(error, "out of memory for small messages");
    }
    *messages = (struct small_messages){.model = model, .config = config, .clients = clients, .whole = {0, floats}};
    messages->residuals = calloc((size_t)clients * floats, sizeof(float));
    messages->arrived = calloc(floats, sizeof(float));
    messages->sent_model = calloc(floats, sizeof(float));
    messages->packer_residual = calloc(floats, sizeof(float));
    const bool there = messages->residuals && messages->arrived && messages->sent_model && messages->packer_residual;
    if (!(there || error_set(error, "out of memory for the unsent parts of the messages of %d clients", clients)) ||
        !outbox_create(&messages->outbox, model, outbox_form(config), NULL, error)) {
        small_messages_destroy(messages);
        return false;
    }
    sent_packer_begin(&messages->packer, &config->cluster, count_values(model), messages->packer_residual);
    *out = messages;
    return true;
}

void small_messages_destroy(struct small_messages *messages)
{
    if (messages) {
        outbox_destroy(&messages->outbox);
        free(messages->residuals);
        free(messages->arrived);
        free(messages->sent_model);
        free(messages->packer_residual);
        free(messages);
    }
}

void small_messages_forget(struct small_messages *messages, const float *parameters)
{
    const size_t floats = messages->model->float_count;
    if (messages->has_residuals) {
        memset(messages->residuals, 0, (size_t)messages->clients * floats * sizeof(float));
        messages->has_residuals = false;
    }
    copy_bytes(messages->sent_model, parameters, floats * sizeof(float));
}

/* --- To the ps --- */

static float *residual_of(const struct small_messages *messages, int client)
{
    return messages->residuals + (size_t)client * messages->model->float_count;
}

struct gradient_sink small_messages_sink(struct small_messages *messages, int client)
{
    copy_bytes(messages->outbox.residual->now, residual_of(messages, client),
               messages->model->float_count * sizeof(float));
    outbox_begin(&messages->outbox);
    return outbox_sink(&messages->outbox);
}

const float *small_messages_deliver(struct small_messages *messages, int client)
{
    struct outbox *outbox = &messages->outbox;
    const size_t bytes = messages->model->float_count * sizeof(float);
    outbox_pack(outbox, &messages->whole, 1);
    outbox_packed(outbox);
    copy_bytes(residual_of(messages, client), outbox->residual->now, bytes);
    messages->has_residuals = true;
    memset(messages->arrived, 0, bytes);
    struct outbox_cursor cursor = outbox_open(outbox, &messages->whole, 1);
    struct range range;
    const void *piece;
    size_t size;
    while (outbox_next(&cursor, &range, &piece, &size)) {
        const size_t took = sent_model_apply(messages->arrived + range.first, piece, size, range.count, outbox->dtype);
        assert(took == size);
        (void)took;
    }
    return messages->arrived;
}

/* --- To the clients --- */

void small_messages_tell(struct small_messages *messages, const float *parameters)
{
    sent_packer_pack(&messages->packer, parameters, messages->sent_model, &messages->whole, 1, NULL);
}

const float *small_messages_sent_model(const struct small_messages *messages)
{
    return messages->sent_model;
}

/* --- Files --- */

static struct residual_files files_of(const struct small_messages *messages, int whose)
{
    const struct config_output *output = &messages->config->output;
    const size_t floats = messages->model->float_count;
    return (struct residual_files){.folder = output->train_dir,
                                   .worker = whose,
                                   .count =
                                       whose == RESIDUAL_FILES_CLIENTS ? (size_t)messages->clients * floats : floats,
                                   .every = output->save_steps};
}

bool small_messages_keep(const struct small_messages *messages, int64_t step, struct error *error)
{
    const struct residual_files clients = files_of(messages, RESIDUAL_FILES_CLIENTS),
                                sent = files_of(messages, RESIDUAL_FILES_SENT);
    return residual_files_save(&clients, step, messages->residuals, error) &&
           residual_files_save(&sent, step, messages->sent_model, error);
}

/* *found: is there one of exactly this step? */
static bool load(const struct residual_files *files, int64_t step, float *floats, bool *found, struct error *error)
{
    int64_t of_step;
    const bool done = residual_files_load(files, step, floats, &of_step, error);
    *found = done && of_step == step;
    return done;
}

bool small_messages_recall(struct small_messages *messages, int64_t step, const float *parameters, struct error *error)
{
    const struct residual_files clients = files_of(messages, RESIDUAL_FILES_CLIENTS),
                                sent = files_of(messages, RESIDUAL_FILES_SENT);
    bool has_clients, has_sent;
    messages->has_residuals = true;
    if (!load(&clients, step, messages->residuals, &has_clients, error) ||
        !load(&sent, step, messages->sent_model, &has_sent, error)) {
        return false;
    }
    if (!has_clients || !has_sent) {
        log_warning("the unsent parts of small messages at step %lld are missing: starting without any",
                    (long long)step);
        small_messages_forget(messages, parameters);
    }
    return true;
}
