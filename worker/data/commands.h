/* data info, data synth and convert: what the data are, the program's own digits as files, one kind of files to another. */
#ifndef WORKER_DATA_COMMANDS_H
#define WORKER_DATA_COMMANDS_H

#include "base/cli/command.h"

extern const struct command command_data_info;
extern const struct command command_data_synth; /* --out=DIR [--gzip] */
extern const struct command command_convert;    /* --to=KIND --out=DIR */

#endif
