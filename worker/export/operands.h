/* Operands and flags shared by the commands on checkpoint files (inspect, diff). */
#ifndef WORKER_EXPORT_OPERANDS_H
#define WORKER_EXPORT_OPERANDS_H

#include "base/cli/command.h"
#include "ps/checkpoint/checkpoint.h"

/* The flag --json. */
extern const struct command_flag checkpoint_flags[];

/*
 * Opens the `count` checkpoints named by the operands, each a file or a folder with its newest; `misuse` is the error
 * if the number of operands is wrong. On COMMAND_DONE the caller closes them; otherwise returns the exit status, after
 * logging.
 */
int checkpoint_operands(const struct command_call *call, struct checkpoint_file **files, int count, const char *misuse);

#endif
