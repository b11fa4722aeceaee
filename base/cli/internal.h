/* What help and the manual pages share. */
#ifndef BASE_CLI_INTERNAL_H
#define BASE_CLI_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

/* Files that the program reads and writes; names of files within a folder are indented. Ends with a name of NULL. */
struct help_file {
    const char *name, *text;
    bool is_written;
};
extern const struct help_file help_files[];

/* What help, manual and completion say of --trust_folder, a flag of every command. */
#define TRUST_FOLDER_TEXT "act on what is in these folders, whoever owns it or may change it; separated by colons"

/*
 * The next part of a command's details: a line that begins with "trainer " is a command, a paragraph ends before one or
 * at an empty line. *rest moves on; NULL: there is no more.
 */
const char *details_next(const char **rest, size_t *size, bool *is_command);

#endif
