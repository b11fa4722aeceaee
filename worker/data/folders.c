#include "worker/data/folders.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "worker/data/builder.h"
#include "worker/data/image/fit.h"
#include "worker/data/image/image.h"
#include "worker/data/names.h"

/* One picture to be read. */
struct picture {
    char *name;      /* of the file */
    int class_index; /* in the list of classes */
    int64_t number;  /* what its name says, negative: no number */
    uint64_t order;  /* where it stands if not all are numbers */
};

struct collection {
    const char *path;
    struct names classes;
    struct picture *pictures;
    int count, capacity;
    bool numbered; /* all pictures' names are numbers */
};

static bool is_folder(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* Names of the folders in a folder. */
static bool list_classes(struct names *classes, const char *path, struct error *error)
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

bool folders_find(char path[DATA_MAX_PATH], const char *data_dir, enum dataset_part part, struct error *error)
{
    static const char *const names[2][2] = {{"train", "training"}, {"test", "testing"}};
    for (int i = 0; i < 2; i++) {
        struct names classes = {0};
        bool done = file_join(path, DATA_MAX_PATH, data_dir, names[part == DATASET_TEST][i], error) &&
                    list_classes(&classes, path, error);
        bool found = classes.count > 0;
        names_free(&classes);
        if (!done || found) {
            return done;
        }
    }
    path[0] = '\0';
    return true;
}

/* The number that the digits of a text are, up to `size` of them; negative if there is anything else. */
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

/* FNV-1a, finished so that similar names end up far apart: any fixed mixture would do. */
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
                   error_set(error, "%s: no memory to list its pictures", folder);
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

/* Labels: the classes' own numbers if all are numbers that can be labels. */
static bool classes_are_numbers(const struct names *classes)
{
    for (int i = 0; i < classes->count; i++) {
        int64_t number = number_of(classes->items[i], strlen(classes->items[i]));
        if (number < 0 || number >= CONFIG_MAX_WIDTH) {
            return false;
        }
    }
    return true;
}

/* The size that all are brought to: the first picture's if the model has as many inputs, else a square. */
static bool choose_size(struct image *size, const struct image *first, int inputs, struct error *error)
{
    int side = image_side(inputs);
    bool as_it_is = (int64_t)first->width * first->height == inputs;
    *size = (struct image){.width = as_it_is ? first->width : side, .height = as_it_is ? first->height : side};
    return as_it_is || side > 0 ||
           error_set(error, "is an image of %dx%d, and the model has %d inputs, which is no square to scale it to",
                     first->width, first->height, inputs);
}

static bool read_picture(struct builder *builder, struct image *fitted, const char *path, int32_t label, int inputs,
                         struct error *error)
{
    uint8_t *bytes;
    size_t size;
    struct image image;
    if (!file_read(path, IMAGE_MAX_FILE, &bytes, &size, error)) {
        return false;
    }
    bool done = image_decode(&image, bytes, size, error);
    free(bytes);
    if (done && !fitted->pixels) {
        done = choose_size(fitted, &image, inputs, error);
        fitted->pixels = done ? malloc((size_t)fitted->width * (size_t)fitted->height) : NULL;
        done = done && (fitted->pixels || error_set(error, "no memory for an image"));
    }
    done = done && image_fit(&image, fitted->width, fitted->height, fitted->pixels, error) &&
           builder_add(builder, fitted, label, error);
    image_free(&image);
    return done || error_wrap(error, "%s", path);
}

static bool read_pictures(struct collection *collection, struct builder *builder, int inputs, struct error *error)
{
    bool numbers = classes_are_numbers(&collection->classes), done = true;
    struct image fitted = {0};
    for (int i = 0; i < collection->count && done; i++) {
        const struct picture *picture = &collection->pictures[i];
        const char *class_name = collection->classes.items[picture->class_index];
        char folder[DATA_MAX_PATH], path[DATA_MAX_PATH];
        int32_t label = numbers ? (int32_t)number_of(class_name, strlen(class_name)) : (int32_t)picture->class_index;
        done = file_join(folder, sizeof folder, collection->path, class_name, error) &&
               file_join(path, sizeof path, folder, picture->name, error) &&
               read_picture(builder, &fitted, path, label, inputs, error);
    }
    image_free(&fitted);
    return done;
}

bool folders_read(struct examples *examples, const char *path, int inputs, struct error *error)
{
    struct collection collection = {.path = path, .numbered = true};
    struct builder builder = {.capacity = 0};
    bool done = list_classes(&collection.classes, path, error) && list_pictures(&collection, error);
    if (done) {
        sort_pictures(&collection);
        done = read_pictures(&collection, &builder, inputs, error) &&
               (builder_finish(&builder, examples, error) || error_wrap(error, "%s", path));
    }
    for (int i = 0; i < collection.count; i++) {
        free(collection.pictures[i].name);
    }
    free(collection.pictures);
    names_free(&collection.classes);
    builder_free(&builder);
    return done;
}
