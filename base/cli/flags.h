/*
 * Command-line flags: --flag=value, --flag value, and for switches --flag, --noflag, --flag=true|false|1|0|yes|no.
 * Pure functions of their arguments; values are not copied.
 */
#ifndef BASE_CLI_FLAGS_H
#define BASE_CLI_FLAGS_H

#include <stdbool.h>

#include "base/error.h"

struct flag {
    const char *name; /* without the dashes */
    bool is_switch;   /* the word after it is not its value */
};

/* "true", "1", "yes", "false", "0" or "no" into *on; false for any other text. */
bool flags_switch(const char *text, bool *on);

/*
 * Reads argv[0..argc). values: [flag_count], set to each flag's value as written in argv ("true" or "false" for a
 * switch, however it was written), NULL for those not given. operands: room for argc; receives the words that are
 * neither a flag nor a flag's value, including a single dash, which means standard input. An unknown flag is reported
 * with the nearest known one; a repeated flag is an error.
 */
bool flags_parse(const struct flag *flags, int flag_count, int argc, char *const *argv, const char **values,
                 char **operands, int *operand_count, struct error *error);

#endif
