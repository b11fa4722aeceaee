/* The commands about trained models, for the table in trainer.c (base/cli/command.h). */
#ifndef WORKER_EXPORT_COMMANDS_H
#define WORKER_EXPORT_COMMANDS_H

#include "base/cli/command.h"

extern const struct command command_inspect; /* trainer inspect [--json] CHECKPOINT */
extern const struct command command_diff;    /* trainer diff [--json] A B */
extern const struct command command_export;  /* trainer export --format=onnx --out=FILE [CHECKPOINT] */
extern const struct command command_predict; /* trainer predict [--checkpoint=FILE] FILE... */

#endif
