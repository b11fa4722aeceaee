/* The command about profiles, for the table in trainer.c (base/cli/command.h). */
#ifndef WORKER_PROFILE_COMMANDS_H
#define WORKER_PROFILE_COMMANDS_H

#include "base/cli/command.h"

extern const struct command command_profile; /* trainer profile [--out=FILE] [--json] FILE... */

#endif
