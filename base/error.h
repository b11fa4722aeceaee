/*
 * One error, one line: what failed, where, why, and what to do about it.
 *
 * Every function that can fail for a reason outside the program (a file, a flag, a peer, a disk, memory) returns bool
 * and takes a `struct error *` as its last argument. True means done; false means that nothing the caller owns was
 * changed and that the error holds a complete message for the user, without a final newline. What only a bug can break
 * is asserted instead (asserts stay on in release builds).
 *
 * A struct error belongs to its caller and is used by one thread at a time.
 */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include <stdbool.h>

struct error {
    char text[1024];
};

/* Sets the text and returns false, so that a failing function can end with `return error_set(...)`. */
bool error_set(struct error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prefixes the existing text with "context: "; returns false. */
bool error_wrap(struct error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Tells compilers and analyzers, which see one file at a time, that both return false. */
static inline bool error_is_set(bool set)
{
    (void)set;
    return false;
}
#define error_set(...)  error_is_set(error_set(__VA_ARGS__))
#define error_wrap(...) error_is_set(error_wrap(__VA_ARGS__))

#endif
