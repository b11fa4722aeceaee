/* Both are files (serve/page). The description is decompressed, since programs that read it may not support gzip. */
#include "serve/page.h"

#include <stdlib.h>
#include <zlib.h>

#include "observe/files.h"

enum { MOST_DESCRIPTION = 1 << 18 };

FILES_EMBED(try_page, "try.html");
FILES_EMBED(try_style, "try.css");
FILES_EMBED(try_script, "try.js");
FILES_EMBED(openapi, "openapi.json");

static const struct file files[] = {
    {"/", "text/html; charset=utf-8", try_page, try_page_end},
    {"/try.css", "text/css; charset=utf-8", try_style, try_style_end},
    {"/try.js", "text/javascript; charset=utf-8", try_script, try_script_end},
    {NULL, NULL, NULL, NULL},
};

static const struct file description = {"/openapi.json", "application/json", openapi, openapi_end};

void page_get(void *context, struct http_request *request)
{
    (void)context;
    files_answer(files, request);
}

void page_openapi(void *context, struct http_request *request)
{
    (void)context;
    if (http_request_accepts(request, "accept-encoding", "gzip")) {
        http_answer(request, &(struct http_answer){.status = 200,
                                                   .type = description.type,
                                                   .headers = "Content-Encoding: gzip\r\nVary: Accept-Encoding\r\n",
                                                   .body = description.bytes,
                                                   .size = (size_t)(description.end - description.bytes)});
        return;
    }
    uint8_t *text = malloc(MOST_DESCRIPTION);
    z_stream stream = {.next_in = (Bytef *)(uintptr_t)description.bytes,
                       .avail_in = (uInt)(description.end - description.bytes),
                       .next_out = text,
                       .avail_out = MOST_DESCRIPTION};
    if (!text || inflateInit2(&stream, 15 + 16) != Z_OK) {
        free(text);
        http_answer_error(request, 503, "out of memory; try again");
        return;
    }
    inflate(&stream, Z_FINISH);
    inflateEnd(&stream);
    http_answer(request, &(struct http_answer){.status = 200,
                                               .type = description.type,
                                               .headers = "Vary: Accept-Encoding\r\n",
                                               .body = text,
                                               .size = MOST_DESCRIPTION - stream.avail_out,
                                               .release = free,
                                               .owner = text});
}
