/*
 * Speed matters more than size: level 1, and a window of 8 KiB, since rows of numbers hardly gain from more. Text that
 * does not become smaller is sent as it is.
 */
#include "serve/pack.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST = 4 << 20, /* limits the time that one client may cost the others */
    LEVEL = 1,
    WINDOW = 13, /* bits */
    GZIP = 16,   /* what deflateInit2 adds to them */
    MEMORY = 7,
};

static bool prepare(struct packer *packer, int window)
{
    if (packer->window == window) {
        return deflateReset(&packer->stream) == Z_OK;
    }
    packer_end(packer);
    if (deflateInit2(&packer->stream, LEVEL, Z_DEFLATED, window, MEMORY, Z_DEFAULT_STRATEGY) != Z_OK) {
        return false;
    }
    packer->window = window;
    return true;
}

void packer_end(struct packer *packer)
{
    if (packer->window != 0) {
        deflateEnd(&packer->stream);
    }
    *packer = (struct packer){.window = 0};
}

/* False: it does not become smaller, or memory ran out. */
static bool squeeze(struct packer *packer, int window, struct text_buffer *text)
{
    const size_t room = text->size;
    if (!budget_try(text->account, room)) {
        return false;
    }
    uint8_t *packed = malloc(room);
    if (!packed || !prepare(packer, window)) {
        free(packed);
        budget_release(text->account, room);
        return false;
    }
    packer->stream.next_in = (Bytef *)(uintptr_t)text->bytes;
    packer->stream.avail_in = (uInt)text->size;
    packer->stream.next_out = packed;
    packer->stream.avail_out = (uInt)text->size;
    if (deflate(&packer->stream, Z_FINISH) != Z_STREAM_END) {
        free(packed);
        budget_release(text->account, room);
        return false;
    }
    const size_t size = room - packer->stream.avail_out;
    text_buffer_free(text);
    *text = (struct text_buffer){.bytes = (char *)packed, .size = size, .room = room, .account = text->account};
    return true;
}

void pack_answer(struct packer *packer, const struct http_request *request, bool busy, struct text_buffer *text,
                 char *headers, size_t size)
{
    if (text->failed || text->size < PACK_LEAST || text->size > MOST) {
        return;
    }
    const bool gzip = http_request_accepts(request, "accept-encoding", "gzip");
    const bool wanted = gzip || http_request_accepts(request, "accept-encoding", "deflate");
    strncat(headers, "Vary: Accept-Encoding\r\n", size - strlen(headers) - 1);
    if (wanted && !busy && squeeze(packer, gzip ? WINDOW + GZIP : WINDOW, text)) {
        strncat(headers, gzip ? "Content-Encoding: gzip\r\n" : "Content-Encoding: deflate\r\n",
                size - strlen(headers) - 1);
    }
}
