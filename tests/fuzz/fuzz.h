/*
 * Shared by fuzzers: the entry point, taking the input apart, files that contain it, and what all refusals have in
 * common.
 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/*
 * A target's promise: an input takes at most `times` its bytes and `constant` more, what it frees again included, and
 * what each allocation of the sanitizer's own rounds up. tests/fuzz/limit.c counts.
 */
struct fuzz_memory {
    size_t times, constant;
};
#define FUZZ_MEMORY(times, constant) const struct fuzz_memory fuzz_memory = {(times), (constant)};
extern const struct fuzz_memory fuzz_memory;

/* --- The input --- */

struct input {
    const uint8_t *next, *end;
};

static inline struct input input_of(const uint8_t *bytes, size_t size)
{
    return (struct input){bytes, bytes + size};
}

static inline size_t input_left(const struct input *input)
{
    return (size_t)(input->end - input->next);
}

/* 0 at the end. */
static inline uint8_t input_byte(struct input *input)
{
    return input->next < input->end ? *input->next++ : 0;
}

/* Up to `most` bytes; `size` receives how many. */
static inline const uint8_t *input_bytes(struct input *input, size_t most, size_t *size)
{
    const uint8_t *bytes = input->next;
    *size = most < input_left(input) ? most : input_left(input);
    input->next += *size;
    return bytes;
}

/* The text before the next line that is "@@", or the rest: inputs of several files are texts with such lines. */
static inline const uint8_t *input_part(struct input *input, size_t *size)
{
    static const char mark[] = "\n@@\n";
    const uint8_t *bytes = input->next, *end = memmem(bytes, input_left(input), mark, sizeof mark - 1);
    *size = end ? (size_t)(end - bytes) : input_left(input);
    input->next = end ? end + sizeof mark - 1 : input->end;
    return bytes;
}

/* A copy of exactly this size plus a zero byte, so that the sanitizer catches reads beyond it; the caller frees it. */
static inline char *text_of(const uint8_t *bytes, size_t size)
{
    char *text = malloc(size + 1);
    if (!text) {
        abort();
    }
    memcpy(text, bytes, size);
    text[size] = '\0';
    return text;
}

/* --- Files --- */

static inline void fuzz_write(const char *path, const uint8_t *bytes, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size) {
        abort();
    }
    close(fd);
}

/* Removes the files of a folder; those in its subfolders belong to others. */
static inline void fuzz_empty(const char *folder)
{
    char path[1024];
    struct dirent *entry;
    DIR *listing = opendir(folder);
    while (listing && (entry = readdir(listing))) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        unlink(path);
    }
    if (listing) {
        closedir(listing);
    }
}

/* This process's own folder under TMPDIR, which tests/fuzz/run makes and removes. */
static inline const char *fuzz_folder(void)
{
    static char path[256];
    if (path[0] == '\0') {
        const char *parent = getenv("TMPDIR");
        snprintf(path, sizeof path, "%s/fuzz-XXXXXX", parent ? parent : "/tmp");
        if (!mkdtemp(path)) {
            abort();
        }
    }
    return path;
}

/* A file that exists only in memory; the path is valid until the next call. */
static inline const char *fuzz_file(const uint8_t *bytes, size_t size)
{
    static char path[64];
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (fd < 0 || fchmod(fd, 0600) != 0 || ftruncate(fd, 0) != 0 || pwrite(fd, bytes, size, 0) != (ssize_t)size) {
        abort();
    }
    return path;
}

/* --- Messages --- */

static inline void be_silent(void)
{
    log_setup(LOG_TEXT, (enum log_level)(LOG_ERROR + 1));
}

/* A refusal begins with whose fault it is; it may quote names from a file, which the log makes printable. */
static inline void check_beginning(const struct error *error, const char *begins)
{
    assert(error->text[0] != '\0' && strncmp(error->text, begins, strlen(begins)) == 0);
}

/* One without quotes is a single line as it is. */
static inline void check_refusal(const struct error *error, const char *begins)
{
    check_beginning(error, begins);
    assert(!strchr(error->text, '\n'));
}

#endif
