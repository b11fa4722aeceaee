/*
 * Files as the Makefile compressed them: every browser accepts gzip, and other clients get an error. Files change only
 * with the program, so a digest tells whether a browser has one already.
 */
#include "observe/files.h"

#include <stdio.h>
#include <string.h>

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
    struct http_answer answer = {.status = 304, .headers = headers};
    const char *known = http_request_header(request, "if-none-match");
    if (!known || (!strstr(known, tag) && strcmp(known, "*") != 0)) {
        if (!http_request_accepts(request, "accept-encoding", "gzip") &&
            !http_request_accepts(request, "accept-encoding", "*")) {
            http_answer_error(request, 406,
                              "this file is served only as gzip: send Accept-Encoding: gzip (curl --compressed)");
            return;
        }
        answer.status = 200;
        answer.type = file->type;
        answer.body = file->bytes;
        answer.size = size;
        strncat(headers, "Content-Encoding: gzip\r\n", sizeof headers - strlen(headers) - 1);
    }
    http_answer(request, &answer);
}
