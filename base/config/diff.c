/* Walks the table of keys, so that new keys are compared and copied without any change here. */
#include "base/config/diff.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static bool is_version(const struct config_key *key)
{
    return strcmp(key->section, "fleet") == 0 && strcmp(key->name, "version") == 0;
}

void config_diff(struct config_diff *diff, const struct config *before, const struct config *after,
                 enum key_scope scope)
{
    *diff = (struct config_diff){.changes =
                                     must_zero((size_t)config_key_count, sizeof *diff->changes, "changes of a config")};
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (key->scope != scope || is_version(key)) {
            continue;
        }
        char *old = config_key_text(key, before), *new = config_key_text(key, after);
        if (strcmp(old, new) != 0) {
            diff->changes[diff->count++] = (struct config_change){key, old, new};
        } else {
            free(old);
            free(new);
        }
    }
}

void config_diff_free(struct config_diff *diff)
{
    for (int i = 0; i < diff->count; i++) {
        free(diff->changes[i].before);
        free(diff->changes[i].after);
    }
    free(diff->changes);
    *diff = (struct config_diff){NULL, 0};
}

void config_diff_line(const struct config_change *change, char *text, size_t size)
{
    char path[CONFIG_PATH_SIZE];
    config_key_path(change->key, path);
    snprintf(text, size, "%-28s %s -> %s  (%s)", path, change->before[0] != '\0' ? change->before : "(empty)",
             change->after[0] != '\0' ? change->after : "(empty)", config_change_name(change->key->change));
}

static size_t size_of(enum key_type type)
{
    switch (type) {
    case KEY_SWITCH:
        return sizeof(bool);
    case KEY_COUNT:
        return sizeof(int);
    case KEY_LONG:
        return sizeof(int64_t);
    case KEY_NUMBER:
        return sizeof(double);
    case KEY_TEXT:
    case KEY_WORD:
    case KEY_LAYERS:
    case KEY_HOSTS:
    case KEY_NAMES:
    case KEY_HIDDEN:
    case KEY_DEVICES:
    case KEY_DEVICE:
    case KEY_LAYER_DEVICES:
        break;
    }
    assert(false); /* live keys are numbers and switches: see the table */
    return 0;
}

/* Copies the live keys with offsets in [first, end) of struct config; part and from point to offset `first`. */
static void take_part(void *part, const void *from, size_t first, size_t end)
{
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (key->change == CHANGE_LIVE && key->offset >= first && key->offset < end) {
            const size_t at = key->offset - first;
            memcpy((char *)part + at, (const char *)from + at, size_of(key->type));
        }
    }
}

void config_take_live(struct config *config, const struct config *from)
{
    take_part(config, from, 0, sizeof *config);
    for (const struct config_key *key = config_keys; key->section && config->origins && from->origins; key++) {
        if (key->change == CHANGE_LIVE) {
            config_origin_of(config, key)->is_auto = config_origin_of(from, key)->is_auto;
        }
    }
}

void config_take_live_train(struct config_train *train, const struct config_train *from)
{
    const size_t first = offsetof(struct config, train);
    take_part(train, from, first, first + sizeof *train);
}
