/*
 * The versions of a config that a machine has had: a folder beside config.json, CONFIG.d, with one file for each
 * version (00000003.json: its job-scoped keys as canonical JSON, immutable once written; 00000003.local.json: its
 * machine-scoped keys, if any), and `current`, which holds the number of the version in force and may be edited by
 * hand. All carry checksums (base/checked.h). After a power cut at any point `current` names the old version or the
 * new, and the file of that version is whole.
 *
 * Several processes of one machine may share the folder: writing the same version twice is fine.
 */
#ifndef BASE_CONFIG_VERSIONS_H
#define BASE_CONFIG_VERSIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    VERSIONS_PATH = 4096,
    VERSIONS_MAX_NUMBER = 99999999,
    VERSIONS_MAX_TEXT = 64 << 10, /* bytes of a config */
};

struct versions {
    char folder[VERSIONS_PATH]; /* CONFIG.d */
};

/* The path of a file in CONFIG.d, which need not be there; name NULL: of the folder. False if it is too long. */
bool versions_path(const char *config_path, const char *name, char path[VERSIONS_PATH], struct error *error);

/* Makes the folder if it is missing. */
bool versions_open(struct versions *versions, const char *config_path, struct error *error);

/* Adds a version. Fails, naming the file, if it exists with other content. */
bool versions_add(const struct versions *versions, uint64_t number, const char *text, size_t size, struct error *error);

/* Adds the machine-scoped keys of a version; called before versions_add. size 0: there are none. */
bool versions_add_local(const struct versions *versions, uint64_t number, const char *text, size_t size,
                        struct error *error);
/* *text: NULL if there are none. */
bool versions_read_local(const struct versions *versions, uint64_t number, char **text, size_t *size,
                         struct error *error);

/* The caller frees *text, which ends with a zero byte that is not counted. */
bool versions_read(const struct versions *versions, uint64_t number, char **text, size_t *size, struct error *error);

/* True if all files of the version are intact. */
bool versions_verify(const struct versions *versions, uint64_t number, struct error *error);

/* Switches atomically to a version that exists. */
bool versions_switch(const struct versions *versions, uint64_t number, struct error *error);

/*
 * The version in force. *there is false if none was ever switched to. A missing folder is fine; a `current` that is not
 * a number is an error.
 */
bool versions_current(const char *config_path, bool *there, uint64_t *number, struct error *error);

/*
 * CONFIG.d/floor: the highest version that this machine knows its fleet to have settled on, below which nobody takes it
 * back: not ps 0, which may be an impostor, and no `current` that was edited or restored. 0: there is none. A damaged
 * one is an error that says what to do.
 */
bool versions_floor(const char *config_path, uint64_t *floor, struct error *error);
bool versions_set_floor(const char *config_path, uint64_t floor, struct error *error); /* the folder exists */

/*
 * The floor is this version at most: for a machine that goes back by its own decision, because it crashes or its files
 * are damaged, not by that of ps 0.
 */
bool versions_lower_floor(const char *config_path, uint64_t version, struct error *error);

/*
 * CONFIG.d/last: the version that the last rollout in which this machine took part was to bring. 0: there was none. A
 * damaged one is an error; ps 0 sends that manifest again.
 */
bool versions_last(const char *config_path, uint64_t *last, struct error *error);
bool versions_set_last(const char *config_path, uint64_t last, struct error *error); /* the folder exists */

/* Fails if the version is below the floor. */
bool versions_check_floor(const char *config_path, uint64_t number, struct error *error);

/*
 * The same at the start, for the version in force, of `current` (there) or of the file. The one that versions_step_back
 * went to may be below the floor: CONFIG.d/healed names it, until the fleet brings a later one.
 */
bool versions_check_start(const char *config_path, bool there, uint64_t number, struct error *error);

/*
 * For a member, before it reads its config: if `current`, or a file of the version that it names, is damaged, they are
 * set aside and the newest other version that is whole comes into force, or the file alone. The fleet then brings what
 * it is at; so nothing is done where ps 0 is, except for `current`. failed: a version that must not come into force; 0:
 * none.
 */
void versions_heal(const char *config_path, uint64_t failed);

/* Does ps 0 run here, from which all others get versions and programs? */
bool versions_lead(const char *config_path);

/*
 * The newest version below `number` that is whole comes into force, since `number` can't be used on this machine;
 * *lower is 0 if there is none, and then the file alone does.
 */
bool versions_step_back(const char *config_path, uint64_t number, uint64_t failed, uint64_t *lower,
                        struct error *error);

#endif
