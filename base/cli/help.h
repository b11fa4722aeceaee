/*
 * What `trainer help [topic]` prints, in at most 100 columns: made from the table of commands and the table of keys.
 */
#ifndef BASE_CLI_HELP_H
#define BASE_CLI_HELP_H

#include "base/cli/command.h"

/* `help [topic]`; a topic is a command, "config", "flags", "files", a section, a key or a flag. */
extern const struct command command_help;

#endif
