/*
 * Memory of the simulated processes. Each block is on its machine's list, so that a killed process leaves nothing
 * behind, and each can be measured. Blocks are powers of two, taken from one mapping, and reused.
 */
#include "tests/simulate/world.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { MEMORY = 1 << 30 /* of all machines together */ };

/* The linker's --wrap redirects the program's calls here. */
#define WRAP(type, name, ...)                                                                                          \
    type __wrap_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__)

struct memory_block {
    struct memory_block *next, *previous;
    struct machine *machine; /* NULL: the world's own */
    uint32_t size_class;     /* 2^class bytes in all */
    uint32_t mark;
    size_t size;
    bool is_clean; /* it was all zeros when allocated */
    size_t unused[2];
};
_Static_assert(sizeof(struct memory_block) == 64, "memory behind it must be aligned");

static struct memory_block *pool[64];

/* Memory not allocated yet: zeros, of which the kernel makes pages when they are touched. */
static char *unused_memory;
static size_t unused_bytes;

static void *take_unused(size_t size)
{
    if (!unused_memory) {
        unused_bytes = MEMORY;
        unused_memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (unused_memory == MAP_FAILED || unused_bytes < size) {
        return NULL;
    }
    unused_bytes -= size;
    unused_memory += size;
    return unused_memory - size;
}

static struct memory_block *block_of(void *bytes)
{
    struct memory_block *block = (struct memory_block *)bytes - 1;
    assert(block->mark == 0xb10cb10c);
    return block;
}

WRAP(void *, malloc, size_t size)
{
    if (falls_short(SHORT_OF_MEMORY)) {
        errno = ENOMEM;
        return NULL;
    }
    size_t whole = size + sizeof(struct memory_block);
    uint32_t class = 6;
    while (((size_t)1 << class) < whole) {
        class ++;
    }
    struct memory_block *block = pool[class];
    bool is_clean = true;
    if (block) {
        pool[class] = block->next;
        is_clean = false;
    } else if (!(block = take_unused((size_t)1 << class))) {
        return NULL;
    }
    *block = (struct memory_block){
        .machine = world.here, .size_class = class, .mark = 0xb10cb10c, .size = size, .is_clean = is_clean};
    if (world.here) {
        block->next = world.here->blocks;
        if (block->next) {
            block->next->previous = block;
        }
        world.here->blocks = block;
        world.here->bytes += size;
        if (world.here->bytes > world.here->most_bytes) {
            world.here->most_bytes = world.here->bytes;
        }
    }
    return block + 1;
}

WRAP(void, free, void *bytes)
{
    if (!bytes) {
        return;
    }
    struct memory_block *block = block_of(bytes);
    if (block->machine) {
        if (block->previous) {
            block->previous->next = block->next;
        } else {
            block->machine->blocks = block->next;
        }
        if (block->next) {
            block->next->previous = block->previous;
        }
        block->machine->bytes -= block->size;
    }
    block->mark = 0xdead;
    block->next = pool[block->size_class];
    pool[block->size_class] = block;
}

void memory_forget(struct machine *machine)
{
    while (machine->blocks) {
        __wrap_free(machine->blocks + 1);
    }
}

WRAP(void *, calloc, size_t count, size_t size)
{
    void *bytes = __wrap_malloc(count * size);
    return !bytes || block_of(bytes)->is_clean ? bytes : memset(bytes, 0, count * size);
}

WRAP(void *, realloc, void *bytes, size_t size)
{
    void *new = __wrap_malloc(size);
    if (bytes && new) {
        size_t old = block_of(bytes)->size;
        memcpy(new, bytes, old < size ? old : size);
        __wrap_free(bytes);
    }
    return new;
}

WRAP(char *, strdup, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = __wrap_malloc(size);
    return !copy ? NULL : memcpy(copy, text, size);
}

WRAP(char *, strndup, const char *text, size_t most)
{
    const size_t size = strnlen(text, most);
    char *copy = __wrap_malloc(size + 1);
    if (copy) {
        memcpy(copy, text, size);
        copy[size] = '\0';
    }
    return copy;
}

/* All memory has that alignment. */
WRAP(void *, aligned_alloc, size_t alignment, size_t size)
{
    assert(alignment <= sizeof(struct memory_block));
    return __wrap_malloc(size);
}

void *world_alloc(size_t size)
{
    struct machine *here = world.here;
    world.here = NULL;
    void *bytes = __wrap_calloc(1, size);
    world.here = here;
    return bytes;
}
