/* The commands of `trainer config`. */
#ifndef BASE_CONFIG_COMMANDS_H
#define BASE_CONFIG_COMMANDS_H

#include "base/cli/command.h"

extern const struct command command_config_check;
extern const struct command command_config_show;
extern const struct command command_config_schema;

#endif
