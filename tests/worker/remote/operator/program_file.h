/* A file that looks like a trainer for some architecture: its headers, noise, and a trainer's mark. */
#ifndef TESTS_WORKER_REMOTE_OPERATOR_PROGRAM_FILE_H
#define TESTS_WORKER_REMOTE_OPERATOR_PROGRAM_FILE_H

#include <elf.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum { PROGRAM_FILE_MARK_AT = 1000 };

/* One that speaks protocol `lowest` and later; 0: without the mark. size: above PROGRAM_FILE_MARK_AT. */
static inline bool program_file_write(const char *path, uint16_t machine, uint16_t lowest, size_t size)
{
    static const char mark[24] = "trainer speaks protocol";
    Elf64_Ehdr head = {.e_type = ET_DYN,
                       .e_machine = machine,
                       .e_phoff = sizeof head,
                       .e_phentsize = sizeof(Elf64_Phdr),
                       .e_phnum = 1};
    const Elf64_Phdr segment = {.p_type = PT_LOAD, .p_offset = 0, .p_filesz = PROGRAM_FILE_MARK_AT};
    const uint16_t versions[] = {lowest, 0x7fff};
    uint8_t *bytes = malloc(size + sizeof mark + sizeof versions);
    struct error error;
    memcpy(head.e_ident, ELFMAG, SELFMAG);
    head.e_ident[EI_CLASS] = ELFCLASS64;
    head.e_ident[EI_DATA] = ELFDATA2LSB;
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (uint8_t)(i * 2654435761U >> 13 ^ machine);
    }
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + sizeof head, &segment, sizeof segment);
    if (lowest > 0) {
        memcpy(bytes + PROGRAM_FILE_MARK_AT, mark, sizeof mark);
        memcpy(bytes + PROGRAM_FILE_MARK_AT + sizeof mark, versions, sizeof versions);
    }
    const struct file_part part = {bytes, size};
    const bool written = file_write_atomic(path, &part, 1, &error);
    free(bytes);
    return written;
}

#endif
