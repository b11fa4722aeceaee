/* Taking rows out of the partition's order leaves gaps, which the next client's rows close. */
#include "worker/clients/held_out.h"

#include <stdlib.h>
#include <string.h>

#include "worker/dataset.h"

/* The number that each client holds out, one after another; false: some client would have none left. */
static bool count(struct held_out *held_out, const struct partition *partition, const struct config *config,
                  struct error *error)
{
    for (int client = 0; client < partition->clients; client++) {
        const int own = partition_count(partition, client), out = dataset_held_out(config, own);
        if (out >= own) {
            return error_set(error,
                             "client %d has %d examples, and data.validation_size=%d would leave it none to train on; "
                             "lower --validation_size",
                             client, own, out);
        }
        held_out->first[client + 1] = held_out->first[client] + out;
    }
    return true;
}

static void move(struct held_out *held_out, struct partition *partition, const struct examples *examples)
{
    int32_t to = 0, from = 0;
    for (int client = 0; client < partition->clients; client++) {
        const int32_t end = partition->first[client + 1];
        for (int32_t at = held_out->first[client]; at < held_out->first[client + 1]; at++) {
            examples_copy(&held_out->examples, at, examples, partition->order[from++], 1);
        }
        partition->first[client] = to;
        memmove(partition->order + to, partition->order + from, (size_t)(end - from) * sizeof *partition->order);
        to += end - from;
        from = end;
    }
    partition->first[partition->clients] = to;
}

bool held_out_create(struct held_out *held_out, struct partition *partition, const struct examples *examples,
                     const struct config *config, struct error *error)
{
    *held_out = (struct held_out){.first = calloc((size_t)partition->clients + 1, sizeof *held_out->first)};
    if (!(held_out->first || error_set(error, "out of memory for the clients' validation examples")) ||
        !count(held_out, partition, config, error)) {
        held_out_destroy(held_out);
        return false;
    }
    if (!examples_create(&held_out->examples, examples, held_out->first[partition->clients])) {
        held_out_destroy(held_out);
        return error_set(error, "out of memory for the clients' validation examples");
    }
    move(held_out, partition, examples);
    return true;
}

void held_out_destroy(struct held_out *held_out)
{
    examples_free(&held_out->examples);
    free(held_out->first);
    *held_out = (struct held_out){0};
}

struct examples held_out_of(const struct held_out *held_out, int client)
{
    const int32_t first = held_out->first[client];
    return examples_part(&held_out->examples, first, held_out->first[client + 1] - first);
}

int held_out_most(const struct held_out *held_out, int clients)
{
    int most = 0;
    for (int client = 0; client < clients; client++) {
        const int own = held_out->first[client + 1] - held_out->first[client];
        most = own > most ? own : most;
    }
    return most;
}
