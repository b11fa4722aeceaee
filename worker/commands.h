/*
 * The commands of this room, as the table in trainer.c calls them. Each logs its own errors and returns the exit status
 * of the process: 0 done, 1 failed, 2 misused, 128 + signal interrupted after a checkpoint. log_setup has been called.
 */
#ifndef WORKER_COMMANDS_H
#define WORKER_COMMANDS_H

#include <stdbool.h>

#include "base/config.h"

/* trainer [train]: trains on this box, then shows the test accuracy. config: valid, all defaults filled in. */
int command_train(const struct config *config);

/*
 * trainer eval [--checkpoint=FILE|newest|best] [train_dir] [--json]: the test accuracy of a checkpoint. checkpoint:
 * NULL or "newest", "best", or a file. The caller has put a train_dir given as a word into config.
 */
int command_eval(const struct config *config, const char *checkpoint, bool json);

#endif
