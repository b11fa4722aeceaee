/*
 * IDX files, the format of MNIST: two zero bytes, a type, the number of dimensions, the dimensions (32 bits,
 * big-endian), then the elements row-major, big-endian. Format: http://yann.lecun.com/exdb/mnist/, "The IDX file
 * format".
 *
 * The whole header is checked before memory is allocated. A file must end with its last element.
 */
#ifndef WORKER_DATA_IDX_H
#define WORKER_DATA_IDX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/names.h"
#include "worker/data/stream.h"

struct overflow;

enum idx_type {
    IDX_UINT8 = 0x08,
    IDX_INT8 = 0x09,
    IDX_INT16 = 0x0B,
    IDX_INT32 = 0x0C,
    IDX_FLOAT = 0x0D,
    IDX_DOUBLE = 0x0E,
};

enum {
    IDX_MAX_DIMENSIONS = 4,
    IDX_MAX_HEADER = 4 + 4 * IDX_MAX_DIMENSIONS,
    IDX_MAX_EXAMPLES = 1 << 26, /* of a data set */
};

#define IDX_MAX_BYTES ((uint64_t)1 << 36) /* of elements: 64 GiB */

struct idx_header {
    enum idx_type type;
    int dimensions;                     /* 1..IDX_MAX_DIMENSIONS */
    uint32_t sizes[IDX_MAX_DIMENSIONS]; /* each > 0 and <= INT32_MAX; 1 beyond `dimensions` */
    uint64_t elements;
    uint64_t bytes; /* of the elements; <= IDX_MAX_BYTES */
};

/* Reads the header at the beginning of a stream, and checks it against the stream's size. */
bool idx_read_header(struct idx_header *header, struct stream *stream, struct error *error);

/*
 * Reads the elements that follow, up to the end of the stream. *bytes: malloc'd, header->bytes bytes as in the file,
 * then EXAMPLES_PADDING zeros.
 */
bool idx_read_elements(const struct idx_header *header, struct stream *stream, uint8_t **bytes, struct error *error);

/* The same in parts, to save memory: `size` bytes of elements at a time; finally checks the end and the checksum. */
bool idx_read_part(struct stream *stream, uint8_t *bytes, size_t size, struct error *error);
bool idx_read_end(const struct idx_header *header, struct stream *stream, struct error *error);

/* Writes the header of a uint8 file with these dimensions to `bytes`; returns its length. */
size_t idx_write_header(uint8_t bytes[IDX_MAX_HEADER], int dimensions, const uint32_t *sizes);

/* --- The four files of a data set, with MNIST's names --- */

#define HOW_TO_GET_DATA "`make mnist` fetches MNIST; --data_source=synthetic makes up digits"

enum data_file { TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS, DATA_FILES };

/* MNIST's names, without .gz. */
extern const char *const data_file_names[DATA_FILES];

struct data_files {
    char path[DATA_FILES][DATA_MAX_PATH]; /* "" if missing */
    int found;
};

/*
 * Looks for each file by its usual name, then with .gz, then for both with a dot, as some archives unpack them
 * (train-images.idx3-ubyte). Fails only if the folder's name is too long.
 */
bool data_files_find(struct data_files *files, const char *folder, struct error *error);

/*
 * Reads both files of a part, which must exist and belong together. Images beyond the overflow's limit stay in their
 * file, and stream: a block's offset is the number of its first image. folder: for errors.
 */
bool idx_set_read(struct examples *examples, const struct data_files *files, enum dataset_part part, const char *folder,
                  struct overflow *overflow, struct error *error);

/*
 * Checks by the headers alone that the test set exists and has images of the training set's size. train_path: for
 * errors.
 */
bool idx_set_check_test(const struct examples *train, const char *train_path, const struct data_files *files,
                        const char *folder, struct error *error);

#endif
