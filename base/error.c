/* Errors are formatted once, where they occur; callers pass them on and may add context. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool(error_set)(struct error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return false;
}

bool(error_wrap)(struct error *error, const char *format, ...)
{
    char context[sizeof error->text / 2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(context, sizeof context - 2, format, arguments);
    va_end(arguments);
    strcat(context, ": ");
    size_t used = strlen(context);
    size_t kept = strnlen(error->text, sizeof error->text - 1 - used);
    memmove(error->text + used, error->text, kept); /* if it does not fit, the end of the inner text is cut */
    memcpy(error->text, context, used);
    error->text[used + kept] = '\0';
    return false;
}
