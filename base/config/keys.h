/*
 * The table of all keys of config.json, and operations on a single key. Code that only reads values needs just
 * base/config.h.
 */
#ifndef BASE_CONFIG_KEYS_H
#define BASE_CONFIG_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include <cJSON.h>

#include "base/config.h"
#include "base/config/keys.h"
#include "base/error.h"

enum key_type {
    KEY_SWITCH,        /* bool */
    KEY_COUNT,         /* int */
    KEY_LONG,          /* int64_t */
    KEY_NUMBER,        /* double */
    KEY_TEXT,          /* char * */
    KEY_WORD,          /* an enum; values index `words` */
    KEY_LAYERS,        /* int [CONFIG_MAX_LAYERS]; their count is at `companion` */
    KEY_HOSTS,         /* struct string_list of addresses */
    KEY_NAMES,         /* struct string_list of arbitrary texts */
    KEY_HIDDEN,        /* as KEY_LAYERS, but may be empty; CONFIG_AUTO entries for "auto" */
    KEY_DEVICES,       /* char *: "gpu:0,gpu:1", or "" */
    KEY_DEVICE,        /* enum device_kind; the index of gpu:N, an int, at `companion` */
    KEY_LAYER_DEVICES, /* int [CONFIG_MAX_LAYERS - 1], see below */
};

/* Whether all members of a job must agree on a key, or each machine has its own value. */
enum key_scope { SCOPE_JOB, SCOPE_MACHINE };

/* When a running job can take a new value. */
enum key_change {
    CHANGE_LIVE,  /* at the same global step on every member, while training continues; numbers and switches only */
    CHANGE_LOCAL, /* when this member restarts */
    CHANGE_JOB,   /* through a checkpoint and a restart of the whole job */
};

/* Where a value came from; later ones override earlier ones. */
enum config_source {
    SOURCE_DEFAULT,
    SOURCE_FILE,
    SOURCE_VERSION, /* rolled out: base/config/versions.h */
    SOURCE_ENVIRONMENT,
    SOURCE_FLAG,
};

struct config_origin {
    enum config_source source;
    int line, column; /* of SOURCE_FILE and SOURCE_VERSION */
    bool is_auto;     /* written as "auto", and filled in (config_fill_in): the field has what was chosen */
};

struct config_key {
    const char *section, *name;
    enum key_type type;
    size_t offset;    /* in struct config */
    size_t companion; /* of KEY_LAYERS, KEY_HIDDEN and KEY_DEVICE */
    double minimum, maximum;
    bool above_minimum, below_maximum; /* the limit itself is excluded */
    bool takes_auto;                   /* of KEY_COUNT, KEY_LONG and KEY_NUMBER: "auto" is CONFIG_AUTO */
    bool is_time;                      /* of KEY_NUMBER: seconds, or a text with a unit ("90s", "5m", "2h", "1d") */
    const char *const *words;          /* of KEY_WORD; ends with NULL */
    const char *initial;               /* the default, as written in a flag */
    enum key_scope scope;
    enum key_change change;
    bool no_flag; /* only in the file */
    /*
     * For SCOPE_JOB: builds still in use do not know this key. The job text omits it at its default, which may never
     * change, so that those builds can still read the text and get the same digest. Set for every new key of a job.
     */
    bool omit_default;
    const char *description;
};

enum { CONFIG_PATH_SIZE = 64, CONFIG_MAX_TEXT = 4096, CONFIG_MAX_DEVICE = 63 };

/* Grouped by section, in display order; ends with a section of NULL. */
extern const struct config_key config_keys[];
extern const int config_key_count;

/* "train.batch_size" into path. */
void config_key_path(const struct config_key *key, char path[CONFIG_PATH_SIZE]);

/* The key with this flag, or at this path; NULL if there is none. */
const struct config_key *config_key_by_flag(const char *flag);
const struct config_key *config_key_by_path(const char *section, const char *name);

/* The allowed values, phrased to follow "must be": "an integer from 1 to 65536". */
void config_key_allowed(const struct config_key *key, char *text, size_t size);

const char *config_scope_name(enum key_scope scope);
const char *config_change_name(enum key_change change);

/*
 * Sets one value after checking its range; frees the old one. The error is phrased to follow the key's path: "must be
 * an integer from 1 to 65536, not 0". *element is the index of the list element at fault, else -1.
 */
bool config_key_set_text(const struct config_key *key, struct config *config, const char *text, struct error *error);
bool config_key_set_json(const struct config_key *key, struct config *config, const cJSON *value, int *element,
                         struct error *error);

/*
 * The value as it was written ("auto", even if something was chosen), as JSON (the caller deletes it), and as flag text
 * (the caller frees it).
 */
cJSON *config_key_json(const struct config_key *key, const struct config *config);
char *config_key_text(const struct config_key *key, const struct config *config);

/* What was chosen for a key that is "auto", as flag text; otherwise config_key_text. */
char *config_key_chosen_text(const struct config_key *key, const struct config *config);

/* True if the value equals the default, whether or not there is memory. */
bool config_key_is_default(const struct config_key *key, const struct config *config);

/* Frees what the value points to, and zeroes the pointer. */
void config_key_clear(const struct config_key *key, struct config *config);

/* Where the value of the key came from. */
struct config_origin *config_origin_of(const struct config *config, const struct config_key *key);

/* The name that messages give the origin of SOURCE_ENVIRONMENT values: "TF_CONFIG". */
const char *config_environment_name(const struct config *config);

/* json_put, or json_append if name is NULL, where memory must be there: ends the process if it is not. */
void json_must_put(cJSON *object, const char *name, cJSON *value);

/* The shortest decimal that reads back as the same double: 0.1, 100, 1e-08. */
void config_number_text(double number, char text[32]);

/* "true", "1", "yes", "false", "0" or "no" into *on; false for any other text. */
bool flags_switch(const char *text, bool *on);

/* --- Relations between keys (relations.c) --- */

/* Values derived from others, and combinations that are not allowed. Part of config_load. */

/*
 * Derives values from other keys: what "auto" means for this kind of data (except what takes the data themselves), and
 * which of train_steps and epochs bounds the run. A function of the config alone, so that all members of a job agree.
 */
void config_fill_in(struct config *config);

/* Reads the nets of model.ensemble, if it was not "auto" or config_fill_in has run, into the model. */
bool config_take_ensemble(struct config *config, struct error *error);

/* The error names file, line and column, or the flag, of one of the keys concerned. */
bool config_check_relations(const struct config *config, struct error *error);

/*
 * Prefixes the error with where the key's value came from, "config.json:3:17: data.data_dir: ", "--data_dir: "; returns
 * false. Values found wrong only later are reported by it.
 */
bool config_error_at(const struct config *config, const char *section, const char *name, struct error *error);

/* --- Devices of layers (values.c) --- */

/*
 * Keys that name devices: train.towers, and train.placement, which assigns layers of weights to devices: {"layer1":
 * "cpu:0"}, or as text "layer1=cpu:0,layer2=gpu:0". devices: int [CONFIG_MAX_LAYERS - 1], for each layer
 * LAYER_ANYWHERE, LAYER_ON_CPU, or LAYER_ON_GPU + N for gpu:N.
 */

#define LAYER_DEVICES_ALLOWED "an object from layers (layer0, layer1, ...) to devices (cpu:0, gpu:0, ...)"

/*
 * Parses a whole placement from text or an object; devices is unchanged on failure. The error follows the key's path.
 */
bool layer_devices_from_text(int *devices, const char *text, struct error *error);

/* The caller frees the result. */
char *layer_devices_text(const int *devices);

/* --- The difference of two configurations --- */

struct config_change {
    const struct config_key *key;
    char *before, *after; /* as written in flags */
};

struct config_diff {
    struct config_change *changes; /* [count], in the table's order */
    int count;
};

/*
 * The keys of one scope whose values differ. fleet.version is left out: it only says which of the two is newer. The
 * caller calls config_diff_free, which is also safe on a zeroed diff.
 */
void config_diff(struct config_diff *diff, const struct config *before, const struct config *after,
                 enum key_scope scope);
void config_diff_free(struct config_diff *diff);

/* One line: "train.learning_rate  0.5 -> 0.25  (live)". */
void config_diff_line(const struct config_change *change, char *text, size_t size);

/*
 * Copies the live keys of another config, and nothing else: they are plain values, so nothing is allocated or freed,
 * and readers of other keys are not disturbed. The second function does so for a train section alone.
 */
void config_take_live(struct config *config, const struct config *from);
void config_take_live_train(struct config_train *train, const struct config_train *from);

#endif
