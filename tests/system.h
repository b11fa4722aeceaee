/*
 * The system as a test has it. A function of libc that a test program defines itself is called by the product, too:
 * no --wrap, by which a test could replace functions of the product as well. SYSTEM(name) is libc's own.
 */
#ifndef TESTS_SYSTEM_H
#define TESTS_SYSTEM_H

#include <dlfcn.h>
#include <stdlib.h>

static inline void *system_function(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        abort();
    }
    return found;
}

#define SYSTEM(name)                                                                                                   \
    (((union {                                                                                                         \
         void *address;                                                                                                \
         __typeof__(&name) function;                                                                                   \
     }){system_function(#name)})                                                                                       \
         .function)

#endif
