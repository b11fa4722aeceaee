/* The table of commands stands here; until it does, the program tells its version. */
#include <stdio.h>

#include "base/version.h"

int main(void)
{
    printf("trainer %s (%s)\n", version_trainer(), version_libc());
    return 0;
}
