/*
 * The program that hosts the GPU. It is linked against the system's libc, as NVIDIA's driver is, and embedded in the
 * static program, which starts it from memory with a descriptor of the shared memory (cuda/protocol.h) as its only
 * argument.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cuda/helper/serve.h"

static struct protocol_header *map_header(int file)
{
    if (lseek(file, 0, SEEK_END) < (off_t)protocol_header_bytes()) {
        return NULL;
    }
    void *memory = mmap(NULL, protocol_header_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    struct protocol_header *header = memory;
    return memory != MAP_FAILED && header->magic == PROTOCOL_MAGIC && header->layout == sizeof *header ? header : NULL;
}

int main(int argc, char **argv)
{
    prctl(PR_SET_NAME, "trainer-gpu", 0, 0, 0);
    int file = argc == 2 ? atoi(argv[1]) : -1;
    struct protocol_header *header = file > 0 ? map_header(file) : NULL;
    if (!header) {
        fprintf(stderr, "trainer-gpu is part of trainer, which starts it automatically\n");
        return 2;
    }
    serve(header, file);
    return 0;
}
