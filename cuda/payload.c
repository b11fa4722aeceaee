/* Embeds the GPU program. cuda/build.mk defines its path and architectures if there is one. */
#include "cuda/launch.h"

#ifdef GPU_PROGRAM

__asm__(".section .rodata.gpu_program, \"a\", @progbits\n"
        ".balign 64\n"
        "gpu_program_begin:\n"
        ".incbin \"" GPU_PROGRAM "\"\n"
        "gpu_program_end:\n"
        ".previous\n");

extern const unsigned char gpu_program_begin[] __attribute__((visibility("hidden")));
extern const unsigned char gpu_program_end[] __attribute__((visibility("hidden")));

const void *payload_program(size_t *size)
{
    *size = (size_t)(gpu_program_end - gpu_program_begin);
    return gpu_program_begin;
}

const char *payload_architectures(void)
{
    return GPU_ARCHITECTURES;
}

#else

const void *payload_program(size_t *size)
{
    *size = 0;
    return NULL;
}

const char *payload_architectures(void)
{
    return "";
}

#endif
