/* Compression of files to be written. */
#ifndef WORKER_DATA_CONVERT_PACK_H
#define WORKER_DATA_CONVERT_PACK_H

#include <stdbool.h>

#include "base/error.h"
#include "base/file.h"
#include "worker/data/stream.h"

/* Writes the parts to `path`, packed or plain, atomically. */
bool pack_write(const char *path, const struct file_part *parts, int count, enum stream_packing packing,
                struct error *error);

#endif
