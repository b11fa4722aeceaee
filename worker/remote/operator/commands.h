/* The commands about clusters, for the table in trainer.c (base/cli/command.h). */
#ifndef WORKER_REMOTE_OPERATOR_COMMANDS_H
#define WORKER_REMOTE_OPERATOR_COMMANDS_H

#include "base/cli/command.h"

extern const struct command command_cluster; /* trainer cluster [--ps=1] [--workers=2] */
extern const struct command command_status;  /* trainer status [--json] */
extern const struct command command_rollout; /* trainer rollout NEW.json | status | history | abort */

#endif
