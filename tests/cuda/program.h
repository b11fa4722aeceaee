/* A test's program as bytes: build/san/tests/cuda/NAME, next to the running test. */
#ifndef TESTS_CUDA_PROGRAM_H
#define TESTS_CUDA_PROGRAM_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline uint8_t *program_read(const char *name, size_t *size)
{
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 64);
    if (length < 0) {
        return NULL;
    }
    path[length] = '\0';
    snprintf(strrchr(path, '/'), 64, "/%s", name);
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return NULL;
    }
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*size);
    if (bytes && fread(bytes, 1, *size, file) != *size) {
        free(bytes);
        bytes = NULL;
    }
    fclose(file);
    return bytes;
}

#endif
