/* The commands of this room that train and evaluate, for the table in trainer.c (base/cli/command.h). */
#ifndef WORKER_COMMANDS_H
#define WORKER_COMMANDS_H

#include "base/cli/command.h"

extern const struct command command_train;   /* trainer [train] */
extern const struct command command_devices; /* trainer devices */
extern const struct command command_eval;    /* trainer eval [--checkpoint=FILE] [train_dir] */

#endif
