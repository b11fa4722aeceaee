/* The command `trainer version`: what this file is made of, and what it would compute with on this machine. */
#ifndef WORKER_VERSION_H
#define WORKER_VERSION_H

#include "base/cli/command.h"

extern const struct command command_version;

#endif
