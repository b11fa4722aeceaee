/* data info and data synth: what the data are, and the program's own digits as files. */
#ifndef WORKER_DATA_COMMANDS_H
#define WORKER_DATA_COMMANDS_H

#include "base/cli/command.h"

extern const struct command command_data_info;
extern const struct command command_data_synth; /* --out=DIR [--gzip] */

#endif
