/* Answers in gzip or deflate, for clients that ask for that (Accept-Encoding) and where it pays. */
#ifndef SERVE_PACK_H
#define SERVE_PACK_H

#include <stdbool.h>
#include <stddef.h>

#include <zlib.h>

#include "base/text/json_writer.h"
#include "observe/http/server.h"

enum { PACK_LEAST = 2048 /* bytes: below, a packet or two carry it */ };

/* A thread's own; zeros at first. It takes some 100 KiB once it has packed something. */
struct packer {
    z_stream stream;
    int window; /* as for deflateInit2; 0: none yet */
};

/*
 * Packs a text of PACK_LEAST bytes to 4 MiB in place, and tells the client so in `headers`, which has room for `size`
 * bytes and holds some lines already. Otherwise, and where there is no memory for it, the text stays as it is. busy:
 * others wait, and nothing is packed.
 */
void pack_answer(struct packer *packer, const struct http_request *request, bool busy, struct text_buffer *text,
                 char *headers, size_t size);
void packer_end(struct packer *packer);

#endif
