/* Reads tensors through a buffer of fixed size, side by side if several are compared. */
#include "worker/export/tensor_walk.h"

#include <assert.h>
#include <stdlib.h>

enum { PIECE = 1 << 15 };

bool tensor_walk(const struct tensor_place *places, int count, tensor_visit *visit, void *context, struct error *error)
{
    const float *pieces[TENSOR_WALK_MOST] = {NULL};
    uint64_t floats = places[0].tensor->size / sizeof(float);
    assert(count >= 1 && count <= TENSOR_WALK_MOST);
    float *memory = malloc((size_t)count * PIECE * sizeof *memory);
    if (!memory) {
        return error_set(error, "%s: out of memory while reading its tensors", checkpoint_path(places[0].file));
    }
    bool done = true;
    for (uint64_t first = 0; first < floats && done; first += PIECE) {
        size_t some = floats - first < PIECE ? (size_t)(floats - first) : PIECE;
        for (int i = 0; i < count && done; i++) {
            float *piece = memory + (size_t)i * PIECE;
            pieces[i] = piece;
            done = checkpoint_read_tensor(places[i].file, places[i].tensor, first, some, piece, error);
        }
        if (done) {
            visit(context, pieces, some);
        }
    }
    free(memory);
    return done;
}
