/* The page for trying out a model, and the description of the interface: for people rather than programs. */
#ifndef SERVE_PAGE_H
#define SERVE_PAGE_H

#include "observe/http/server.h"

void page_get(void *context, struct http_request *request);     /* "/", "/try.css", "/try.js" */
void page_openapi(void *context, struct http_request *request); /* "/openapi.json" */

#endif
