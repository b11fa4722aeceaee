/*
 * Files as the Makefile compressed them: every browser accepts gzip; curl and others get them unpacked. Files change
 * only with the program, so a digest tells whether a browser has one already.
 */
#include "observe/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/encoding/crc32c.h"

FILES_EMBED(page_index, "index.html");
FILES_EMBED(page_script, "app.js");
FILES_EMBED(page_style, "app.css");
FILES_EMBED(page_charts, "dygraph.js");

static const struct file page[] = {
    {"/", "text/html; charset=utf-8", page_index, page_index_end},
    {"/app.js", "text/javascript; charset=utf-8", page_script, page_script_end},
    {"/app.css", "text/css; charset=utf-8", page_style, page_style_end},
    {"/dygraph.js", "text/javascript; charset=utf-8", page_charts, page_charts_end},
    {NULL, NULL, NULL, NULL},
};

void files_get(void *context, struct http_request *request)
{
    (void)context;
    files_answer(page, request);
}

/* NULL: out of memory. The last four bytes of gzip data are its size unpacked. */
static uint8_t *unpack(const struct file *file, size_t *size)
{
    const uint8_t *end = file->end;
    *size = (size_t)end[-4] | (size_t)end[-3] << 8 | (size_t)end[-2] << 16 | (size_t)end[-1] << 24;
    uint8_t *bytes = malloc(*size + 1);
    z_stream stream = {.next_in = (Bytef *)(uintptr_t)file->bytes,
                       .avail_in = (uInt)(file->end - file->bytes),
                       .next_out = bytes,
                       .avail_out = (uInt)*size + 1};
    if (!bytes || inflateInit2(&stream, 15 + 16) != Z_OK) {
        free(bytes);
        return NULL;
    }
    inflate(&stream, Z_FINISH);
    inflateEnd(&stream);
    return bytes;
}

void file_answer(const struct file *file, const char *headers, struct http_request *request)
{
    char more[640];
    struct http_answer answer = {.status = 200, .type = file->type, .headers = headers};
    if (http_request_accepts(request, "accept-encoding", "gzip") ||
        http_request_accepts(request, "accept-encoding", "*")) {
        snprintf(more, sizeof more, "%sContent-Encoding: gzip\r\n", headers);
        answer.headers = more;
        answer.body = file->bytes;
        answer.size = (size_t)(file->end - file->bytes);
    } else {
        uint8_t *bytes = unpack(file, &answer.size);
        if (!bytes) {
            http_answer_error(request, 503, "out of memory; try again");
            return;
        }
        answer.body = answer.owner = bytes;
        answer.release = free;
    }
    http_answer(request, &answer);
}

void files_answer(const struct file *files, struct http_request *request)
{
    const struct file *file = files;
    while (file->path && strcmp(file->path, http_request_path(request)) != 0) {
        file++;
    }
    if (!file->path) {
        http_answer_error(request, 404, "there is no such file");
        return;
    }
    char tag[16], headers[512];
    const size_t size = (size_t)(file->end - file->bytes);
    snprintf(tag, sizeof tag, "\"%08x\"", crc32c(file->bytes, size));
    snprintf(headers, sizeof headers,
             "ETag: %s\r\nCache-Control: no-cache\r\nVary: Accept-Encoding\r\n"
             "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
             "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n",
             tag);
    const char *known = http_request_header(request, "if-none-match");
    if (!known || (!strstr(known, tag) && strcmp(known, "*") != 0)) {
        file_answer(file, headers, request);
        return;
    }
    http_answer(request, &(struct http_answer){.status = 304, .headers = headers});
}
