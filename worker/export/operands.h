/* What commands about checkpoints themselves (inspect, diff) share: their operands and their flags. */
#ifndef WORKER_EXPORT_OPERANDS_H
#define WORKER_EXPORT_OPERANDS_H

#include "base/cli/command.h"
#include "ps/checkpoint/checkpoint.h"

/* --json */
extern const struct command_flag checkpoint_flags[];

/*
 * Opens the `count` checkpoints that the operands name, each a file or a folder whose newest is taken; `misuse` is what to
 * say if there are not so many. COMMAND_DONE: they are the caller's to close. Else the exit status, all said.
 */
int checkpoint_operands(const struct command_call *call, struct checkpoint_file **files, int count, const char *misuse);

#endif
