/* The files of a page, which the program carries compressed (observe/page/page.mk). */
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

/* A handler of routes: "/" and the files that the page of members names. */
void files_get(void *context, struct http_request *request);

/* Answers with one of another page; a path of NULL ends the table, and no route names a path that is not in it. */
void files_answer(const struct file *files, struct http_request *request);

#endif
