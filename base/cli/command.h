/*
 * The commands of `trainer NAME ...`.
 *
 * trainer.c lists them in one table, which both parses and documents the command line. A command receives its call
 * parsed and checked: the configuration from config.json and flags, the values of its own flags, and its operands.
 */
#ifndef BASE_CLI_COMMAND_H
#define BASE_CLI_COMMAND_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "base/process/confine.h"
#include "base/process/program.h"

/* --- Words of a command line --- */

/*
 * Command-line flags: --flag=value, --flag value, and for switches --flag, --noflag, --flag=true|false|1|0|yes|no.
 * Pure functions of their arguments; values are not copied.
 */

struct flag {
    const char *name; /* without the dashes */
    bool is_switch;   /* the word after it is not its value */
};

/*
 * Reads argv[0..argc). values: [flag_count], set to each flag's value as written in argv ("true" or "false" for a
 * switch, however it was written), NULL for those not given. operands: room for argc; receives the words that are
 * neither a flag nor a flag's value, including a single dash, which means standard input. An unknown flag is reported
 * with the nearest known one; a repeated flag is an error.
 */
bool flags_parse(const struct flag *flags, int flag_count, int argc, char *const *argv, const char **values,
                 char **operands, int *operand_count, struct error *error);

/* Exit statuses. An interrupted run that left a checkpoint returns 128 + the signal: 130 or 143. */
enum { COMMAND_DONE = 0, COMMAND_FAILED = 1, COMMAND_MISUSED = 2 };

enum { COMMAND_MAX_FLAGS = 16 };

/* A flag of one command, in addition to those of config.json's keys. */
struct command_flag {
    const char *name;        /* "checkpoint" for --checkpoint */
    const char *value;       /* placeholder for the value in the help: "FILE"; NULL for a switch (--json, --nojson) */
    const char *description; /* one line */
};

struct command_call {
    const struct command *command;
    const struct command *const *commands; /* the whole table, for the help */
    struct config *config;                 /* NULL unless takes_config; freed after run */
    char *const *operands;                 /* words on the command line that are not flags */
    int operand_count;                     /* at most the command's max_operands */
    char *const *arguments;                /* the whole command line, as main got it */
    const char *values[COMMAND_MAX_FLAGS]; /* in the order of command->flags; command_value reads them */
};

struct command {
    const char *name;     /* "eval"; two words for a subcommand: "data info" */
    const char *operands; /* shown in the help: "[topic]"; NULL: takes none */
    int max_operands;
    const char *summary;              /* one line, no capital, no full stop */
    const char *details;              /* one more paragraph, for `help NAME`; may be NULL */
    const struct command_flag *flags; /* ends with a name of NULL; may itself be NULL */
    bool takes_config;         /* reads config.json, takes its keys as flags; log_setup is called with its log_format */
    enum confine_role confine; /* after its config was read; as a launcher if that asks for a GPU */
    bool only_shows;           /* the config, and acts on nothing in it: anyone's may be shown (base/trust.h) */
    /* If not NULL, it may be a member of a fleet, whose program may have been rolled out, and this vouches for it. */
    program_vouches *vouches;
    int (*run)(const struct command_call *call); /* returns the exit status; reports its own errors by log_error */
};

/* Does a config ask for a GPU? The engine is a process of its own then, which loads a driver. */
bool command_may_use_gpus(const struct config *config);

/* The value of one of the command's own flags, NULL if it was not given. The name must be in its table. */
const char *command_value(const struct command_call *call, const char *name);

/* True if one of the command's own switches was given and is on. */
bool command_switch(const struct command_call *call, const char *name);

/*
 * Finds the command that argv names (by default the table's first), parses its flags and operands, loads the
 * configuration, and runs it. Returns the exit status. commands ends with NULL and contains "help" and "version", which
 * --help and --version are short for.
 */
int command_main(const struct command *const *commands, int argc, char *const *argv);

#endif
