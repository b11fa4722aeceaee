/*
 * Private to checkpoints, shared by writing, opening and loading: checkpoint.c writes, open.c opens and verifies, and
 * load.c loads what fits from an open file.
 */
#ifndef PS_CHECKPOINT_INTERNAL_H
#define PS_CHECKPOINT_INTERNAL_H

#include <sodium.h>

#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/safetensors.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats go to the file as they are in memory");

#define FORMAT_NAME "trainer-checkpoint"
enum {
    FORMAT_VERSION = 1,
    DIGEST_BYTES = 32,
    DIGEST_HEX = 2 * DIGEST_BYTES,
    CHUNK_BYTES = 1 << 18, /* at least one row of CONFIG_MAX_WIDTH floats */
    TENSOR_NAME = 64,
    METADATA_VALUE = 256,
    METRIC_KEY = 48,
    KEY_NAME_HEX = 16,
};
_Static_assert((size_t)CHUNK_BYTES >= CONFIG_MAX_WIDTH * sizeof(float), "a chunk holds whole rows");

/* The digest's placeholder while it is computed. */
#define ZERO_DIGEST "0000000000000000000000000000000000000000000000000000000000000000"
_Static_assert(sizeof ZERO_DIGEST == DIGEST_HEX + 1, "one character for each of the digest's");

struct checkpoint_file {
    char path[CHECKPOINT_MAX_PATH];
    int fd;
    uint64_t size;
    uint8_t *header;
    size_t header_size;
    struct safetensors tensors;
    struct checkpoint_info info;
    struct config_model model; /* layers, layer_count and activation only */
    char optimizer[32];
    char *preprocessing, *group, *time, *class_names, *kept_rows; /* unescaped; NULL: none */
    char digest[DIGEST_HEX + 1];
    uint8_t chunk[CHUNK_BYTES];
};

/* The tensor name of a variable's vector. kind: the optimizer of the slots. */
void checkpoint_tensor_name(char name[TENSOR_NAME], const struct variable *variable, enum optimizer_kind kind,
                            enum store_vector vector);

/* Returns the dimensions: weights [in, out], biases [out]. */
int checkpoint_tensor_shape(const struct variable *variable, int64_t shape[2]);

/* "784,500,10" */
void checkpoint_layers_text(char text[METADATA_VALUE], const struct model *model);

/* "best_roc_auc" */
void checkpoint_metric_key(char key[METRIC_KEY], const char *of, enum metric metric);

/* Which key digests are made with, in hex, to distinguish keys; "": none. */
const char *checkpoint_key_name(void);

/* Starts a digest, and ends it in hex. path: for errors. */
bool checkpoint_start_digest(crypto_generichash_state *hash, const char *path, struct error *error);
void checkpoint_digest_hex(crypto_generichash_state *hash, char hex[DIGEST_HEX + 1]);

#endif
