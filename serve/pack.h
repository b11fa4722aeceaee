/* Compresses answers by gzip or deflate, for clients that accept it (Accept-Encoding) and where it pays. */
#ifndef SERVE_PACK_H
#define SERVE_PACK_H

#include <stdbool.h>
#include <stddef.h>

#include <zlib.h>

#include "base/text/json_writer.h"
#include "observe/http/server.h"

enum { PACK_LEAST = 2048 /* bytes: less fits into a packet or two */ };

/* Per thread; starts as zeros. Takes some 100 KiB after the first use. */
struct packer {
    z_stream stream;
    int window; /* as for deflateInit2; 0: none yet */
};

/*
 * Compresses a text of PACK_LEAST bytes to 4 MiB in place, and adds the header line to `headers`, which has room for
 * `size` bytes and may hold other lines. Texts of other sizes stay as they are, as do all if memory runs out. busy:
 * other requests wait, so nothing is compressed.
 */
void pack_answer(struct packer *packer, const struct http_request *request, bool busy, struct text_buffer *text,
                 char *headers, size_t size);
void packer_end(struct packer *packer);

#endif
