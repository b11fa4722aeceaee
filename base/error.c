/* Errors are formatted once, where they happen; everybody above only hands them on or adds the context they know. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool error_set(struct error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return false;
}

bool error_wrap(struct error *error, const char *format, ...)
{
    char inner[sizeof error->text];
    memcpy(inner, error->text, sizeof inner);
    va_list arguments;
    va_start(arguments, format);
    int used = vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    if (used >= 0 && (size_t)used < sizeof error->text) {
        snprintf(error->text + used, sizeof error->text - (size_t)used, ": %s", inner);
    }
    return false;
}
