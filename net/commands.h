/* The commands of this room, for the table in trainer.c. */
#ifndef NET_COMMANDS_H
#define NET_COMMANDS_H

#include "base/cli/command.h"

/* trainer keygen --out=FILE | --ca=DIR | --ca=DIR --member=ROLE:INDEX --out=FILE */
extern const struct command command_keygen;

#endif
