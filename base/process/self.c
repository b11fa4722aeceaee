/* The running program's file on disk, which a machine keeps to fall back to. The simulator replaces this file. */
#include <pthread.h>

#include "base/file.h"
#include "base/process/program.h"

static const char own_file[] = "/proc/self/exe";

const char *program_own_architecture(void)
{
#if defined __x86_64__
    return "x86_64";
#elif defined __aarch64__
    return "aarch64";
#else
    return "unknown";
#endif
}

static char own_digest[PROGRAM_DIGEST_HEX + 1];

static void find_own_digest(void)
{
    struct error ignored;
    if (!checked_digest_file(own_file, own_digest, &ignored)) {
        own_digest[0] = '\0';
    }
}

const char *program_own_digest(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_own_digest);
    return own_digest;
}

bool program_own_bytes(uint8_t **bytes, size_t *size, struct error *error)
{
    return file_read(own_file, PROGRAM_MAX_BYTES, bytes, size, error);
}
