/* Both are files (serve/page). */
#include "serve/page.h"

#include "observe/files.h"

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
    file_answer(&description, "Vary: Accept-Encoding\r\n", request);
}
