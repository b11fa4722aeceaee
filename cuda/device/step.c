/*
 * One batch from the host: its gradient, copied back in pieces while the rest is still being computed; and its logits.
 */
#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "cuda/device/host.h"
#include "cuda/device/state.h"

enum { LAYER_PIECES = 4 }; /* of the first layer's gradient, which is most of it */

/* Floats [.., end) of the gradient are computed once an event has fired. */
struct pieces {
    uint64_t end[DEVICE_CHUNKS];
    int count;
};

/* Puts the host's batch on the device as if it had been drawn there. */
static bool stage(struct device *device, const struct device_examples *examples, uint32_t task, struct error *error)
{
    device->staged.given = examples->count;
    device->staged.micro = 0;
    device->staged.sampler.task = task;
    return memory_stage(device, &device->staged, 0, examples, error);
}

/* Computes some rows of a layer's gradient (0: already computed), and queues the copy of floats up to `end`. */
static bool send_piece(struct device *device, struct pieces *pieces, int layer, int first, int rows, uint64_t end,
                       float *gradient, struct error *error)
{
    int piece = pieces->count++;
    uint64_t begin = piece > 0 ? pieces->end[piece - 1] : 0;
    assert(pieces->count <= DEVICE_CHUNKS);
    pieces->end[piece] = end;
    if (rows > 0 && !launch_gradient(device, &device->staged, layer, first, rows, GRADIENT_STORE, 1.0f, error)) {
        return false;
    }
    DEVICE_TRY(device, error, event_record, (device->computed[piece], device->stream));
    DEVICE_TRY(device, error, stream_wait_event, (device->copying, device->computed[piece], 0));
    DEVICE_TRY(device, error, copy_to_host,
               (gradient + begin, device->gradient + begin * sizeof *gradient, (end - begin) * sizeof *gradient,
                device->copying));
    DEVICE_TRY(device, error, event_record, (device->copied[piece], device->copying));
    return true;
}

/* All layers from the first on, in memory order: all deltas are known by now. */
static bool send_gradient(struct device *device, struct pieces *pieces, float *gradient, struct error *error)
{
    bool clips = device->network.clip_norm > 0.0; /* which needs the whole gradient first */
    if (clips && (!launch_gradients(device, &device->staged, GRADIENT_STORE, 1.0f, error) ||
                  !launch_clip(device, CLIP_IN_PLACE, 1.0f, error))) {
        return false;
    }
    for (int i = 0; i < device->network.layers; i++) {
        const struct kernel_layer *layer = &device->network.layer[i];
        int tile = launch_gradient_rows(device, i);
        int rows = i == 0 ? (layer->in / LAYER_PIECES / tile + 1) * tile : layer->in + 1;
        for (int first = 0; first <= layer->in; first += rows) {
            bool last = first + rows > layer->in;
            int some = last ? layer->in + 1 - first : rows;
            uint64_t end = !last ? layer->weights + (uint64_t)(first + rows) * (uint64_t)layer->stride
                           : i + 1 < device->network.layers ? layer[1].weights
                                                            : device->model.float_count;
            if (!send_piece(device, pieces, i, first, clips ? 0 : some, end, gradient, error)) {
                return false;
            }
        }
    }
    return true;
}

/* With host layers: everything at once. */
static bool gather_gradient(struct device *device, const uint8_t *images, struct pieces *pieces, float *gradient,
                            struct error *error)
{
    return (device->progress->stopped ||
            (host_gradients(device, &device->staged, images, GRADIENT_STORE, 1.0f, error) &&
             host_send_gradients(device, error) &&
             (device->network.clip_norm <= 0.0 || launch_clip(device, CLIP_IN_PLACE, 1.0f, error)))) &&
           send_piece(device, pieces, 0, 0, 0, device->model.float_count, gradient, error);
}

bool device_step(struct device *device, const struct device_batch *batch, float *gradient, _Atomic uint64_t *ready,
                 struct device_outcome *outcome, struct error *error)
{
    assert(batch->examples.count >= 1 && batch->examples.count <= device->shape.batch_size);
    struct kernel_network *network = &device->network;
    const uint8_t *images = batch->examples.arrays[DEVICE_IMAGES];
    struct pieces pieces = {.count = 0};
    int micro_batches = network->micro_batches;
    *outcome = (struct device_outcome){.finite = 1};
    if (!memory_take_gradient(device, error) || !stage(device, &batch->examples, batch->task, error) ||
        !memory_begin(device, batch->step, error)) {
        return false;
    }
    network->micro_batches = 1; /* the caller decides what to do with this batch */
    bool launched = (device->host ? host_batch(device, &device->staged, images, error)
                                  : launch_batch(device, &device->staged, error)) &&
                    memory_fetch_progress(device, error);
    network->micro_batches = micro_batches;
    if (!launched) {
        return false;
    }
    DEVICE_TRY(device, error, event_record, (device->known, device->stream));
    if (device->host ? !gather_gradient(device, images, &pieces, gradient, error)
                     : !send_gradient(device, &pieces, gradient, error)) {
        return false;
    }
    DEVICE_TRY(device, error, event_wait, (device->known));
    const struct kernel_progress *progress = device->progress;
    *outcome = (struct device_outcome){.steps = progress->steps,
                                       .correct = progress->correct,
                                       .images = progress->images,
                                       .loss_sum = progress->loss_sum,
                                       .last_loss = progress->last_loss,
                                       .finite = !progress->stopped,
                                       .bad_loss = progress->bad_loss};
    for (int i = 0; i < pieces.count; i++) {
        DEVICE_TRY(device, error, event_wait, (device->copied[i]));
        if (ready && outcome->finite) {
            atomic_store_explicit(ready, pieces.end[i], memory_order_release);
        }
    }
    DEVICE_TRY(device, error, stream_wait, (device->stream));
    return true;
}

/* Drops the padding of the rows. */
static bool fetch_outputs(struct device *device, const struct kernel_layer *last, int count, float *outputs,
                          struct error *error)
{
    size_t row = (size_t)last->out * sizeof *outputs;
    size_t pitch = (size_t)last->pitch * sizeof *outputs;
    cu_pointer from = device_address(last->activations);
    DEVICE_TRY(device, error, copy_to_host, (device->host_logits, from, (size_t)count * pitch, device->stream));
    DEVICE_TRY(device, error, stream_wait, (device->stream));
    for (int i = 0; i < count; i++) {
        memcpy((char *)outputs + (size_t)i * row, (const char *)device->host_logits + (size_t)i * pitch, row);
    }
    return true;
}

bool device_forward(struct device *device, bool averaged, const struct device_examples *examples, float *outputs,
                    struct error *error)
{
    struct kernel_network network = device->network;
    const struct kernel_layer *last = &network.layer[network.layers - 1];
    if (averaged && network.vectors.averages) {
        network.vectors.parameters = network.vectors.averages;
    }
    for (int first = 0; first < examples->count;) {
        int some = examples->count - first < device->rows ? examples->count - first : device->rows;
        const struct device_examples part = device_examples_part(&device->shape, examples, first, some);
        if (!stage(device, &part, 0, error) || !memory_begin(device, 0, error) ||
            !launch_draw(device, &device->staged, error) ||
            (device->host
                 ? !host_forward(device, &network, &device->staged, part.arrays[DEVICE_IMAGES], some, false, error)
                 : !launch_forward(device, &network, &device->staged, some, false, error))) {
            return false;
        }
        if (!fetch_outputs(device, last, some, outputs + (size_t)first * (size_t)last->out, error)) {
            return false;
        }
        first += some;
    }
    return true;
}
