/* The Makefile defines the strings when it compiles this file. */
#include "base/version.h"

#ifndef TRAINER_VERSION
#define TRAINER_VERSION "unknown"
#endif
#ifndef TRAINER_DATE
#define TRAINER_DATE "January 1, 1970"
#endif
#ifndef TRAINER_LIBC
#define TRAINER_LIBC "system libc"
#endif

const char *version_trainer(void)
{
    return TRAINER_VERSION;
}

const char *version_date(void)
{
    return TRAINER_DATE;
}

const char *version_libc(void)
{
    return TRAINER_LIBC;
}
