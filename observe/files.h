/* The page's files, which the program carries compressed (observe/page/page.mk). */
#ifndef OBSERVE_FILES_H
#define OBSERVE_FILES_H

#include "observe/http/server.h"

/* A handler of routes: "/" and the files that the page names. */
void files_get(void *context, struct http_request *request);

#endif
