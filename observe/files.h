/* The files of a page, embedded compressed in the program (observe/page/page.mk). */
#ifndef OBSERVE_FILES_H
#define OBSERVE_FILES_H

#include <stdint.h>

#include "observe/http/server.h"

struct file {
    const char *path, *type;
    const uint8_t *bytes, *end; /* gzip */
};

/* Declares where build/page/`path`.gz lies in the program: `name` up to `name`_end. */
#define FILES_EMBED(name, path)                                                                                        \
    __asm__(".section .rodata.page, \"a\", @progbits\n" #name ":\n"                                                    \
            ".incbin \"build/page/" path ".gz\"\n" #name "_end:\n"                                                     \
            ".previous\n");                                                                                            \
    extern const uint8_t name[] __attribute__((visibility("hidden")));                                                 \
    extern const uint8_t name##_end[] __attribute__((visibility("hidden")))

/* A route handler: "/" and the files that the page of members uses. */
void files_get(void *context, struct http_request *request);

/*
 * Answers with a file of another page; a path of NULL ends the table, which must contain every path that a route names.
 */
void files_answer(const struct file *files, struct http_request *request);

/* Answers 200 with the file, unpacked for a client that does not accept gzip. headers: more lines. */
void file_answer(const struct file *file, const char *headers, struct http_request *request);

#endif
