/*
 * Arbitrary bytes as a safetensors file: the decoder must neither crash nor let a tensor reach outside the file. What
 * it accepts then gets a matching digest, as only a hostile writer would make, and is opened and loaded as a
 * checkpoint.
 */
#include "tests/fuzz/fuzz.h"

#include <sodium.h>

#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/safetensors.h"

FUZZ_MEMORY(64, 2 << 20)

enum { MAX_FLOATS = 1 << 16 };

static struct safetensors file;

static bool decode(const uint8_t *bytes, size_t size)
{
    struct error error;
    size_t header_size;
    if (size < SAFETENSORS_PREFIX || !safetensors_header_size(bytes, size, &header_size, &error)) {
        return false;
    }
    /* Of exactly its size, so that reads beyond it are caught. */
    uint8_t *header = malloc(header_size);
    memcpy(header, bytes, header_size);
    bool decoded = safetensors_decode(&file, header, header_size, size, &error);
    uint64_t used = header_size;
    for (int i = 0; decoded && i < file.tensor_count; i++) {
        assert(file.tensors[i].offset == used && file.tensors[i].size <= size - used);
        used += file.tensors[i].size;
    }
    assert(!decoded || used == size);
    free(header);
    return decoded;
}

/* Puts the right digest into the header if it has room for one. */
static void sign(uint8_t *bytes, size_t size)
{
    static const char key[] = "\"digest\":\"";
    uint8_t *found = memmem(bytes, size, key, sizeof key - 1);
    if (!found || size - (size_t)(found - bytes) < sizeof key - 1 + 64) {
        return;
    }
    found += sizeof key - 1;
    memset(found, '0', 64);
    uint8_t digest[32];
    char hex[65];
    crypto_generichash(digest, sizeof digest, bytes, size, NULL, 0);
    sodium_bin2hex(hex, sizeof hex, digest, sizeof digest);
    memcpy(found, hex, 64);
}

static void load(struct checkpoint_file *checkpoint)
{
    struct config_model config = {0};
    struct model model;
    checkpoint_file_model(checkpoint, &config);
    model_layout(&model, &config);
    if (model.float_count > MAX_FLOATS) {
        return;
    }
    static float values[MAX_FLOATS];
    struct config_train train = {.optimizer = OPTIMIZER_ADAM, .ema_decay = 0.9};
    struct checkpoint_state state;
    struct error error;
    checkpoint_load_parameters(checkpoint, &model, CHECKPOINT_BEST_WEIGHTS, values, NULL, &error);
    checkpoint_state_create(&state, &model, &train);
    checkpoint_load(checkpoint, &state, &error);
    checkpoint_state_destroy(&state);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (!decode(bytes, size)) {
        return 0;
    }
    uint8_t *copy = malloc(size);
    memcpy(copy, bytes, size);
    sign(copy, size);
    struct checkpoint_file *checkpoint;
    struct error error;
    if (checkpoint_open(&checkpoint, fuzz_file(copy, size), &error) == CHECKPOINT_OPENED) {
        load(checkpoint);
        checkpoint_close(checkpoint);
    }
    free(copy);
    return 0;
}
