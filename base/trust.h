/*
 * Whose files this process acts on. What decides which program runs, which files are written, or who is trusted must
 * belong to this user or to root and be writable by nobody else, and so must every folder above it (as with ssh's
 * StrictModes and git's safe.directory). Otherwise another user of the machine could act with this user's rights.
 *
 * Exact rules, checked from "/" on, component by component, through handles, following links as the system would:
 *
 *  - The owner is this user or root. Root does not act on other users' files. In a user namespace, an owner who has no
 *    number there is nobody we know.
 *  - A folder that others may write to is accepted above the file if it is sticky, as /tmp is: nobody else can then
 *    replace what this user or root owns in it.
 *  - Writable by a group is accepted if nobody else is in it: this user's own group (a "user private group", where
 *    umask is 002). Not for keys.
 *  - A file named by a descriptor (/dev/stdin, /proc/self/fd/63) is the choice of whoever started this process.
 *
 * Owners and modes are as the file system reports them; see docs/security.md for those that can't be trusted to.
 * --trust_folder names folders that are exempt, with all that is reached through them.
 *
 * If a check succeeds, no other user can change what the path leads to, so it may be opened by its name afterwards.
 * All functions may be called by any thread, except trust_begin, trust_folders and trust_everything.
 */
#ifndef BASE_TRUST_H
#define BASE_TRUST_H

#include <stdbool.h>

#include "base/error.h"

/*
 * Once, at the beginning of main. Refuses to run setuid, setgid or with file capabilities: whoever starts the program
 * would have those rights through its config.
 */
bool trust_begin(struct error *error);

/* The value of --trust_folder: folders, separated by colons; borrowed. NULL: none. */
bool trust_folders(const char *list, struct error *error);

/* For a process that only shows what files hold, and acts on nothing in them: all of them are trusted. */
void trust_everything(void);

/* What was given, to pass it on to a child; NULL: nothing. */
const char *trust_given(void);

/* The error says whose it is or who may write to it, and how to change that. A file that is missing is an error. */
bool trust_file(const char *path, struct error *error);

/* The same for a folder to whose entries nobody else may add. */
bool trust_folder(const char *path, struct error *error);

/* The same for a public key or a certificate: no group may write to it. */
bool trust_public_key(const char *path, struct error *error);

/*
 * From now on neither core dumps nor debuggers of this user show this process's memory; what it executes is dumpable
 * again. For whoever holds a secret.
 */
void trust_hide_memory(void);

/*
 * The same for a secret, which must not be readable by everybody either; and trust_hide_memory. what: "key" or "token",
 * for the error.
 */
bool trust_secret(const char *path, const char *what, struct error *error);

#endif
