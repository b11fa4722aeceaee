/*
 * Commands: what `trainer NAME ...` can do.
 *
 * Each command lives in the room that does its work and describes itself in one `const struct command`; trainer.c lists
 * them all in one table, which both parses the command line and documents it. A command gets its call parsed and
 * checked: the configuration from config.json and flags, the values of the flags that it alone has, its operands.
 *
 *     const struct command command_eval = {
 *         .name = "eval", .summary = "test accuracy of a checkpoint", .flags = flags, .takes_config = true, .run = run};
 */
#ifndef BASE_COMMAND_H
#define BASE_COMMAND_H

#include <stdbool.h>

#include "base/config.h"

/* Exit statuses. An interrupted run that left a checkpoint returns 128 + the signal: 130 or 143. */
enum { COMMAND_DONE = 0, COMMAND_FAILED = 1, COMMAND_MISUSED = 2 };

enum { COMMAND_MAX_FLAGS = 8 };

/* A flag that one command has beside those of config.json's keys. */
struct command_flag {
    const char *name;        /* "checkpoint" for --checkpoint */
    const char *value;       /* what its value is called in the help: "FILE"; NULL for a switch (--json, --nojson) */
    const char *description; /* one line */
};

struct command_call {
    const struct command *command;
    struct config *config;                 /* NULL unless takes_config; belongs to the caller of run */
    char *const *operands;                 /* what stands on the command line besides flags */
    int operand_count;                     /* within the command's limits */
    char *const *arguments;                /* the whole command line, as main got it */
    const char *values[COMMAND_MAX_FLAGS]; /* of command->flags: text, "1" or "0" for a switch, NULL if not given */
};

struct command {
    const char *name;     /* "eval"; two words for one of a family: "data info" */
    const char *operands; /* what follows, in the help: "[topic]"; NULL: nothing may */
    int max_operands;
    const char *summary;              /* one line, no capital, no full stop */
    const char *details;              /* more lines for `help NAME`; may be NULL */
    const struct command_flag *flags; /* ends with a name of NULL; may itself be NULL */
    bool takes_config; /* load config.json and take its keys as flags; log_setup was called with its log_format */
    int (*run)(const struct command_call *call); /* returns the exit status; reports its own errors by log_error */
};

/* The value given for one of the command's own flags, NULL if it was not given. The name must be in its table. */
const char *command_value(const struct command_call *call, const char *name);

/* True if a switch of the command's own was given and is on. */
bool command_switch(const struct command_call *call, const char *name);

#endif
