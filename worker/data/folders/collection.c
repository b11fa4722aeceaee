/*
 * Lists images and fixes their order once. If names are not numbers, a hash of the name decides: it mixes the classes,
 * is the same on every machine, and does not depend on the order in which a file system lists files.
 */
#include "worker/data/folders/collection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/config.h"
#include "base/file.h"

static bool is_folder(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

bool collection_list_classes(struct names *classes, const char *path, struct error *error)
{
    if (!names_list(classes, path, "*", error)) {
        return false;
    }
    int kept = 0;
    for (int i = 0; i < classes->count; i++) {
        char folder[DATA_MAX_PATH];
        if (!file_join(folder, sizeof folder, path, classes->items[i], error)) {
            return false;
        }
        if (is_folder(folder)) {
            char *swap = classes->items[kept];
            classes->items[kept++] = classes->items[i];
            classes->items[i] = swap;
        }
    }
    for (int i = kept; i < classes->count; i++) {
        free(classes->items[i]);
    }
    classes->count = kept;
    return true;
}

/* The number formed by `size` digits; negative if there is anything else. */
static int64_t number_of(const char *text, size_t size)
{
    int64_t number = 0;
    for (size_t i = 0; i < size; i++) {
        if (text[i] < '0' || text[i] > '9' || number > INT64_MAX / 16) {
            return -1;
        }
        number = 10 * number + (text[i] - '0');
    }
    return size > 0 ? number : -1;
}

/* FNV-1a with a finalizer that moves similar names far apart; any fixed hash would do. */
static uint64_t hash_name(const char *name, uint64_t salt)
{
    uint64_t hash = 0xCBF29CE484222325 ^ salt;
    for (; *name != '\0'; name++) {
        hash = (hash ^ (uint8_t)*name) * 0x100000001B3;
    }
    hash = (hash ^ hash >> 33) * 0xFF51AFD7ED558CCD;
    return hash ^ hash >> 33;
}

static bool add_picture(struct collection *collection, char *name, int class_index)
{
    if (collection->count == collection->capacity) {
        int capacity = collection->capacity == 0 ? 1024 : 2 * collection->capacity;
        struct picture *pictures = realloc(collection->pictures, (size_t)capacity * sizeof *pictures);
        if (!pictures) {
            return false;
        }
        collection->pictures = pictures;
        collection->capacity = capacity;
    }
    int64_t number = number_of(name, strcspn(name, "."));
    collection->numbered = collection->numbered && number >= 0;
    collection->pictures[collection->count++] =
        (struct picture){name, class_index, number, hash_name(name, (uint64_t)class_index)};
    return true;
}

static bool list_pictures(struct collection *collection, struct error *error)
{
    for (int i = 0; i < collection->classes.count; i++) {
        char folder[DATA_MAX_PATH];
        struct names names = {0};
        bool done = file_join(folder, sizeof folder, collection->path, collection->classes.items[i], error) &&
                    names_list(&names, folder, "*", error);
        for (int k = 0; k < names.count && done; k++) {
            done = add_picture(collection, names.items[k], i) ||
                   error_set(error, "%s: out of memory while listing its pictures", folder);
            names.items[k] = done ? NULL : names.items[k]; /* the collection's now */
        }
        names_free(&names);
        if (!done) {
            return false;
        }
    }
    return true;
}

static int by_number(const void *a, const void *b)
{
    const struct picture *left = a, *right = b;
    return (left->number > right->number) - (left->number < right->number);
}

static int by_order(const void *a, const void *b)
{
    const struct picture *left = a, *right = b;
    int order = (left->order > right->order) - (left->order < right->order);
    return order != 0 ? order : left->class_index - right->class_index;
}

static void sort_pictures(struct collection *collection)
{
    size_t count = (size_t)collection->count;
    if (count == 0) {
        return;
    }
    if (collection->numbered) {
        qsort(collection->pictures, count, sizeof *collection->pictures, by_number);
        for (size_t i = 1; i < count && collection->numbered; i++) {
            collection->numbered = collection->pictures[i].number != collection->pictures[i - 1].number;
        }
    }
    if (!collection->numbered) {
        qsort(collection->pictures, count, sizeof *collection->pictures, by_order);
    }
}

/* Labels are the class names themselves if all of these are numbers in range. */
bool collection_are_numbers(const struct names *classes)
{
    for (int i = 0; i < classes->count; i++) {
        int64_t number = number_of(classes->items[i], strlen(classes->items[i]));
        if (number < 0 || number >= CONFIG_MAX_WIDTH) {
            return false;
        }
    }
    return true;
}

/*
 * The classes of a part: its own if they are numbers, otherwise those of the training set, some of which it may lack.
 */
static bool list_classes(struct collection *collection, const char *training, struct error *error)
{
    struct names *classes = &collection->classes;
    struct names known = {0};
    if (!collection_list_classes(classes, collection->path, error)) {
        return false;
    }
    if (strcmp(training, collection->path) == 0) {
        return true;
    }
    bool done = collection_list_classes(&known, training, error);
    if (done && !(collection_are_numbers(&known) && collection_are_numbers(classes))) {
        for (int i = 0; i < classes->count && done; i++) {
            done = names_have(&known, classes->items[i]) || error_set(error, "%s/%s: is of a class that %s has not",
                                                                      collection->path, classes->items[i], training);
        }
        const struct names own = *classes;
        *classes = known;
        known = own;
    }
    names_free(&known);
    return done;
}

bool collection_list(struct collection *collection, const char *path, const char *training, struct error *error)
{
    *collection = (struct collection){.numbered = true};
    snprintf(collection->path, sizeof collection->path, "%s", path);
    if (!list_classes(collection, training, error) || !list_pictures(collection, error)) {
        return false;
    }
    sort_pictures(collection);
    collection->classes_numbers = collection_are_numbers(&collection->classes);
    return true;
}

void collection_free(struct collection *collection)
{
    for (int i = 0; i < collection->count; i++) {
        free(collection->pictures[i].name);
    }
    free(collection->pictures);
    names_free(&collection->classes);
    *collection = (struct collection){.count = 0};
}

int32_t collection_label(const struct collection *collection, int picture)
{
    int index = collection->pictures[picture].class_index;
    const char *name = collection->classes.items[index];
    return collection->classes_numbers ? (int32_t)number_of(name, strlen(name)) : (int32_t)index;
}

int32_t collection_classes(const struct collection *collection)
{
    int32_t classes = 0;
    for (int i = 0; i < collection->count; i++) {
        int32_t label = collection_label(collection, i);
        classes = label >= classes ? label + 1 : classes;
    }
    return classes;
}

bool collection_path(const struct collection *collection, int picture, char path[DATA_MAX_PATH], struct error *error)
{
    const struct picture *found = &collection->pictures[picture];
    char folder[DATA_MAX_PATH];
    return file_join(folder, sizeof folder, collection->path, collection->classes.items[found->class_index], error) &&
           file_join(path, DATA_MAX_PATH, folder, found->name, error);
}
