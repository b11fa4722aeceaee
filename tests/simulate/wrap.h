/* Intercepts a call between the program's own parts: tests/simulate.mk names those that are linked so (--wrap). */
#ifndef TESTS_SIMULATE_WRAP_H
#define TESTS_SIMULATE_WRAP_H

#define WRAP(type, name, ...)                                                                                          \
    type __real_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__)

#endif
