/* A data set as folders of pictures: its classes, its files in order, and their pixels. */
#include "worker/data/folders.h"

#include <cJSON.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text/json.h"
#include "base/text/text.h"
#include "worker/data/image.h"
#include "worker/data/names.h"
#include "worker/data/table/dictionary.h"

/* --- Names of classes --- */

/*
 * The text; NULL if out of memory. Bytes that are not UTF-8 become '?'. The caller frees it.
 *
 * Class names as JSON; worker/data/folders.h explains their use.
 */
static char *class_names_text(const struct names *classes)
{
    cJSON *array = cJSON_CreateArray();
    bool done = array;
    for (int i = 0; i < classes->count && done; i++) {
        cJSON *name = cJSON_CreateString(classes->items[i]);
        if (name) {
            utf8_mend(name->valuestring, strlen(name->valuestring));
        }
        done = json_append(array, name);
    }
    char *text = done ? cJSON_PrintUnformatted(array) : NULL;
    cJSON_Delete(array);
    return text;
}

static bool take_names(struct names *names, const cJSON *array)
{
    const cJSON *name;
    names->items = calloc((size_t)cJSON_GetArraySize(array) + 1, sizeof *names->items);
    cJSON_ArrayForEach(name, array)
    {
        char *copy = names->items && cJSON_IsString(name) ? strdup(name->valuestring) : NULL;
        if (!copy) {
            return false;
        }
        names->items[names->count++] = copy;
    }
    return names->items;
}

bool class_names_parse(struct names *names, const char *text, struct error *error)
{
    *names = (struct names){0};
    cJSON *array = cJSON_Parse(text);
    const bool done = cJSON_IsArray(array) && take_names(names, array);
    cJSON_Delete(array);
    if (!done) {
        names_free(names);
    }
    return done || error_set(error, "the names of its classes cannot be read");
}

bool class_names_check(const char *path, const char *there, const char *here, struct error *error)
{
    return !there || !here || strcmp(there, here) == 0 ||
           error_set(error,
                     "%.300s: its classes are %.200s, and the data's folders %.200s, so labels would mean something "
                     "else (choose another --train_dir or --data_dir)",
                     path, there, here);
}

/* --- The collection of files --- */

/*
 * The pictures of a part by class, and their order (worker/data/folders.h).
 *
 * Lists images and fixes their order once. If names are not numbers, a hash of the name decides: it mixes the classes,
 * is the same on every machine, and does not depend on the order in which a file system lists files.
 */

/* One picture to be read. */
struct picture {
    char *name;      /* of the file */
    int class_index; /* in the list of classes */
    int64_t number;  /* its name as a number; negative: not a number */
    uint64_t order;  /* sort key if not all names are numbers */
};

struct collection {
    char path[DATA_MAX_PATH];
    struct names classes;
    struct picture *pictures;
    int count, capacity;
    bool numbered; /* all pictures' names are numbers */
    int left_out;  /* files that are no pictures, and the first of them */
    char left_out_names[160];
    bool classes_numbers; /* class names are the labels */
};

/* Is it none that systems make by themselves, nor a train_dir beside the classes? */
static bool is_class(const char *path, const char *name)
{
    char lock[DATA_MAX_PATH];
    struct error ignored;
    return file_is_folder(path) && strcmp(name, "__MACOSX") != 0 && strcmp(name, "@eaDir") != 0 &&
           strcmp(name, "lost+found") != 0 &&
           !(file_join(lock, sizeof lock, path, "trainer.lock", &ignored) && file_exists(lock));
}

/* Names of the folders in a folder. */
static bool collection_list_classes(struct names *classes, const char *path, struct error *error)
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
        if (is_class(folder, classes->items[i])) {
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

/* Does its name end like that of a picture, whatever the program can read? */
static bool is_called_picture(const char *name)
{
    static const char *const endings[] = {"jpg", "jpeg", "jpe", "jfif", "png", "bmp",  "dib",  "pnm",  "pgm",
                                          "ppm", "pbm",  "gif", "webp", "tif", "tiff", "heic", "heif", "avif"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof endings / sizeof endings[0]; i++) {
        if (strcasecmp(dot + 1, endings[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* An empty file is none; one that cannot be looked at is reported when it is read. */
static bool is_picture(const char *folder, const char *name)
{
    enum { BEGINNING = 64 };
    uint8_t head[BEGINNING];
    char path[DATA_MAX_PATH];
    struct error error;
    struct stat status;
    if (!file_join(path, sizeof path, folder, name, &error) || stat(path, &status) != 0) {
        return true;
    }
    return S_ISREG(status.st_mode) && status.st_size > 0 &&
           (is_called_picture(name) || image_is_known(head, file_head(path, head, sizeof head)));
}

static void note_left_out(struct collection *collection, const char *class, const char *name, bool is_a_folder)
{
    const size_t used = strlen(collection->left_out_names), size = sizeof collection->left_out_names;
    enum { MOST_NAMED = 3 };
    if (collection->left_out++ < MOST_NAMED) {
        snprintf(collection->left_out_names + used, size - used, "%s%.24s/%.24s%s", used > 0 ? ", " : "", class, name,
                 is_a_folder ? "/" : "");
    }
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
            if (!is_picture(folder, names.items[k])) {
                char path[DATA_MAX_PATH];
                done = file_join(path, sizeof path, folder, names.items[k], error);
                note_left_out(collection, collection->classes.items[i], names.items[k], done && file_is_folder(path));
                continue;
            }
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

/*
 * True if every name is a number, its label.
 *
 * Labels are the class names themselves if all of these are numbers in range.
 */
static bool collection_are_numbers(const struct names *classes)
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

/*
 * All pictures of a part in order. training: the training set's folder, whose classes number those of every part, so
 * that a part that lacks some is numbered alike. The caller calls collection_free, also after a failure.
 */
static bool collection_list(struct collection *collection, const char *path, const char *training, struct error *error)
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

/* safe on zeros */
static void collection_free(struct collection *collection)
{
    for (int i = 0; i < collection->count; i++) {
        free(collection->pictures[i].name);
    }
    free(collection->pictures);
    names_free(&collection->classes);
    *collection = (struct collection){.count = 0};
}

static int32_t collection_label(const struct collection *collection, int picture)
{
    int index = collection->pictures[picture].class_index;
    const char *name = collection->classes.items[index];
    return collection->classes_numbers ? (int32_t)number_of(name, strlen(name)) : (int32_t)index;
}

/* 1 + the largest label of a picture */
static int32_t collection_classes(const struct collection *collection)
{
    int32_t classes = 0;
    for (int i = 0; i < collection->count; i++) {
        int32_t label = collection_label(collection, i);
        classes = label >= classes ? label + 1 : classes;
    }
    return classes;
}

static bool collection_path(const struct collection *collection, int picture, char path[DATA_MAX_PATH],
                            struct error *error)
{
    const struct picture *found = &collection->pictures[picture];
    char folder[DATA_MAX_PATH];
    return file_join(folder, sizeof folder, collection->path, collection->classes.items[found->class_index], error) &&
           file_join(path, DATA_MAX_PATH, folder, found->name, error);
}

/* --- A share of the training pictures as the test --- */

/* The key of a picture; equal bytes have equal keys. */
static bool key_of(const struct collection *collection, int picture, uint64_t *key, struct error *error)
{
    char path[DATA_MAX_PATH];
    uint8_t *bytes;
    size_t size;
    if (!collection_path(collection, picture, path, error) || !file_read(path, IMAGE_MAX_FILE, &bytes, &size, error)) {
        return false;
    }
    *key = dictionary_hash(bytes, size);
    free(bytes);
    return true;
}

/* What the classes' keys are. */
struct class_keys {
    uint64_t smallest, largest;
};

/* Keys below this are for the test: the share, or, of very few pictures, the smallest that its class can spare. */
static uint64_t find_limit(const struct class_keys *classes, int count, double share)
{
    const uint64_t limit = (uint64_t)(share * 0x1p64);
    uint64_t floor = UINT64_MAX;
    for (int i = 0; i < count; i++) {
        floor = classes[i].smallest < classes[i].largest && classes[i].smallest < floor ? classes[i].smallest : floor;
    }
    return floor < UINT64_MAX && floor >= limit ? floor + 1 : limit;
}

/* Keeps the pictures of one side, in their order. */
static void keep_side(struct collection *collection, const uint64_t *keys, const struct class_keys *classes,
                      uint64_t limit, bool is_test)
{
    int kept = 0;
    for (int i = 0; i < collection->count; i++) {
        const struct picture picture = collection->pictures[i];
        const bool is_tested = keys[i] < limit && keys[i] != classes[picture.class_index].largest;
        if (is_tested == is_test) {
            collection->pictures[kept++] = picture;
        } else {
            free(picture.name);
        }
    }
    collection->count = kept;
}

static bool collection_split(struct collection *collection, double share, bool is_test, struct error *error)
{
    const size_t count = (size_t)collection->count, class_count = (size_t)collection->classes.count;
    uint64_t *keys = calloc(count + 1, sizeof *keys);
    struct class_keys *classes = calloc(class_count + 1, sizeof *classes);
    bool done = (keys && classes) || error_set(error, "out of memory for %d pictures", collection->count);
    for (size_t i = 0; done && i < class_count; i++) {
        classes[i].smallest = UINT64_MAX;
    }
    for (int i = 0; done && i < collection->count; i++) {
        done = key_of(collection, i, &keys[i], error);
        struct class_keys *of_class = &classes[collection->pictures[i].class_index];
        of_class->smallest = done && keys[i] < of_class->smallest ? keys[i] : of_class->smallest;
        of_class->largest = done && keys[i] > of_class->largest ? keys[i] : of_class->largest;
    }
    if (done) {
        keep_side(collection, keys, classes, find_limit(classes, (int)class_count, share), is_test);
    }
    free(keys);
    free(classes);
    return done;
}

static bool check_classes(const struct collection *collection, struct error *error)
{
    const int first = collection->count > 0 ? collection->pictures[0].class_index : 0;
    for (int i = 0; i < collection->count; i++) {
        if (collection->pictures[i].class_index != first) {
            return true;
        }
    }
    return collection->count == 0 ||
           error_set(
               error,
               "%s: has pictures of one class, %s; there is nothing to learn with fewer than 2: a folder for each",
               collection->path, collection->classes.items[first]);
}

/* A class without pictures can't be learnt. */
static void warn_of_empty_classes(const struct collection *collection)
{
    const int count = collection->classes.count;
    bool *has_pictures = must_zero((size_t)count + 1, sizeof *has_pictures, "classes");
    for (int i = 0; i < collection->count; i++) {
        has_pictures[collection->pictures[i].class_index] = true;
    }
    for (int i = 0; i < count && collection->count > 0; i++) {
        if (!has_pictures[i]) {
            log_warning("%s/%s: holds no pictures, so this class is never learnt; remove the folder if it is none",
                        collection->path, collection->classes.items[i]);
        }
    }
    free(has_pictures);
}

/* The pictures of a part; the log says once which files of a folder are none. */
static bool list_part(struct collection *collection, const struct folders_part *part, struct error *error)
{
    const bool is_split = part->test_share > 0;
    if (!collection_list(collection, part->path, part->training, error)) {
        return false;
    }
    if (collection->left_out > 0 && !(is_split && part->is_test)) {
        log_warning("%s: %d file%s (%s%s)", part->path, collection->left_out,
                    collection->left_out == 1 ? " is not a picture and is left out"
                                              : "s are not pictures and are left out",
                    collection->left_out_names, collection->left_out > 3 ? ", ..." : "");
    }
    if (!part->is_test) {
        warn_of_empty_classes(collection);
    }
    if ((part->needs_classes && !check_classes(collection, error)) ||
        (is_split && !collection_split(collection, part->test_share, part->is_test, error))) {
        return false;
    }
    return !is_split || !part->is_test || collection->count > 0 ||
           error_set(error,
                     "%s: no picture can be held out for the test, since each class has only one, or only equal ones: "
                     "add others, make a folder test, or set --test_share=0",
                     part->path);
}

/* --- Loading --- */

/* Decodes and fits the images of a part, into memory or, if they are too many, block by block during training. */

/* Does a folder hold a picture? */
static bool holds_picture(const char *folder)
{
    struct names names = {0};
    struct error ignored;
    bool found = names_list(&names, folder, "*", &ignored);
    int i = 0;
    while (found && i < names.count && !is_picture(folder, names.items[i])) {
        i++;
    }
    found = found && i < names.count;
    names_free(&names);
    return found;
}

/* Are these the folders of classes, two at least, rather than of parts of a set? */
static bool are_classes(const struct names *folders, const char *path)
{
    static const char *const parts[] = {"train", "test", "val", "dev"};
    int classes = 0;
    for (int i = 0; i < folders->count; i++) {
        char folder[DATA_MAX_PATH];
        struct error ignored;
        for (size_t j = 0; j < sizeof parts / sizeof parts[0]; j++) {
            if (strncasecmp(folders->items[i], parts[j], strlen(parts[j])) == 0) {
                return false;
            }
        }
        classes += file_join(folder, sizeof folder, path, folders->items[i], &ignored) && holds_picture(folder);
    }
    return classes > 1;
}

/* data_dir itself, if it holds classes; not beside a table, which may say what the pictures are. */
static bool find_bare(char path[DATA_MAX_PATH], const char *data_dir, struct error *error)
{
    struct names classes = {0}, tables = {0};
    const bool done = names_list(&tables, data_dir, "*.csv", error) &&
                      (tables.count > 0 || collection_list_classes(&classes, data_dir, error));
    snprintf(path, DATA_MAX_PATH, "%s", done && are_classes(&classes, data_dir) ? data_dir : "");
    names_free(&classes);
    names_free(&tables);
    return done;
}

void folders_warn_of_unused(const char *data_dir, const char *training)
{
    static const char *const names[] = {"val", "valid", "validation", "dev", "Val", "Valid", "Validation"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[DATA_MAX_PATH];
        struct error ignored;
        if (strcmp(data_dir, training) != 0 && file_join(path, sizeof path, data_dir, names[i], &ignored) &&
            file_is_folder(path)) {
            log_warning("%s is not used: the pictures to validate with are held out of %s (--validation_size); move "
                        "them there to learn from them",
                        path, training);
        }
    }
}

bool folders_find(char path[DATA_MAX_PATH], const char *data_dir, enum dataset_part part, struct error *error)
{
    static const char *const names[2][4] = {{"train", "training", "Train", "Training"},
                                            {"test", "testing", "Test", "Testing"}};
    for (int i = 0; i < 4; i++) {
        struct names classes = {0};
        bool done = file_join(path, DATA_MAX_PATH, data_dir, names[part == DATASET_TEST][i], error) &&
                    collection_list_classes(&classes, path, error);
        bool found = classes.count > 0;
        names_free(&classes);
        if (!done || found) {
            return done;
        }
    }
    path[0] = '\0';
    return part == DATASET_TEST || find_bare(path, data_dir, error);
}

/* --- Shape --- */

enum { USUAL_SIDE = 64, HEAD_BYTES = 64 << 10, LOG_EVERY_S = 10 };

/* The heads of all pictures of a part. */
struct heads {
    struct image_head first, smallest, largest; /* the sides of the latter two each by itself */
    int count, in_colour;
};

/* Of a file's first bytes, or of all of it if its head is that long. */
static bool examine(struct image_head *head, const char *path, uint8_t *beginning, struct error *error)
{
    uint8_t *bytes;
    size_t size = file_head(path, beginning, HEAD_BYTES);
    bool more, done = image_examine(head, beginning, size, &more, error);
    if (!more || size < HEAD_BYTES) {
        return done;
    }
    if (!file_read(path, IMAGE_MAX_FILE, &bytes, &size, error)) {
        return false;
    }
    done = image_examine(head, bytes, size, &more, error);
    free(bytes);
    return done;
}

static void add_head(struct heads *heads, const struct image_head *head)
{
    if (heads->count++ == 0) {
        heads->first = heads->smallest = heads->largest = *head;
    }
    struct image_head *smallest = &heads->smallest, *largest = &heads->largest;
    smallest->width = head->width < smallest->width ? head->width : smallest->width;
    smallest->height = head->height < smallest->height ? head->height : smallest->height;
    largest->width = head->width > largest->width ? head->width : largest->width;
    largest->height = head->height > largest->height ? head->height : largest->height;
    heads->in_colour += head->channels > 1;
}

/* A picture that cannot be read is reported, or left out, where its pixels are needed. */
static bool read_heads(struct heads *heads, const struct collection *collection, struct error *error)
{
    uint8_t *beginning = must_alloc(HEAD_BYTES, "pictures");
    bool done = true;
    for (int i = 0; i < collection->count && done; i++) {
        char path[DATA_MAX_PATH];
        struct image_head head;
        struct error ignored;
        done = collection_path(collection, i, path, error);
        if (done && examine(&head, path, beginning, &ignored)) {
            add_head(heads, &head);
        }
    }
    free(beginning);
    return done;
}

/* Layers that are given say how large pictures are, if nothing else does. */
static bool shape_by_layers(struct image_shape *shape, const struct heads *heads, bool is_open, int inputs,
                            struct error *error)
{
    const struct image_head *first = &heads->first;
    const int tried[] = {shape->channels, 1, IMAGE_RGB}; /* the others only if neither keys nor files say which */
    for (int i = 0; i < (is_open ? 3 : 1); i++) {
        const int channels = tried[i], pixels = inputs / channels, side = image_side(pixels);
        const bool is_own = first->width * first->height == pixels;
        if (inputs % channels == 0 && (is_own || side > 0)) {
            *shape = (struct image_shape){.height = is_own ? first->height : side,
                                          .width = is_own ? first->width : side,
                                          .channels = channels,
                                          .digits = shape->digits};
            return true;
        }
    }
    return error_set(error,
                     "has pictures of %dx%d, but the %d inputs that model.layers begins with are no square to scale "
                     "them to; set --image_size, or change --layers",
                     first->height, first->width, inputs);
}

/* The pictures' own size, if they are all of one that is not too large; else none of the sides is longer than usual. */
static void shape_by_heads(struct image_shape *shape, const struct heads *heads)
{
    const struct image_head *largest = &heads->largest;
    const bool is_one = heads->smallest.width == largest->width && heads->smallest.height == largest->height;
    shape->height = largest->height;
    shape->width = largest->width;
    if (!is_one || image_values(shape) > CONFIG_MAX_WIDTH) {
        shape->height = largest->height < USUAL_SIDE ? largest->height : USUAL_SIDE;
        shape->width = largest->width < USUAL_SIDE ? largest->width : USUAL_SIDE;
    }
}

static void say_shape(const struct image_shape *shape, const struct heads *heads, const char *training)
{
    const struct image_head *smallest = &heads->smallest, *largest = &heads->largest;
    const bool is_one = smallest->width == largest->width && smallest->height == largest->height;
    const bool is_own = is_one && largest->width == shape->width && largest->height == shape->height;
    char sizes[64], fit[96] = "";
    snprintf(sizes, sizeof sizes, is_one ? "%dx%d" : "%dx%d to %dx%d", smallest->height, smallest->width,
             largest->height, largest->width);
    if (!is_own) {
        snprintf(fit, sizeof fit, ", %s to %dx%d (--image_size sets another size)",
                 shape->digits ? "normalised as digits" : "scaled", shape->height, shape->width);
    }
    log_info("%s: pictures of %s%s, %d of %d stored in colour, learnt in %s: %zu inputs", training, sizes, fit,
             heads->in_colour, heads->count, shape->channels > 1 ? "colour" : "grey", image_values(shape));
}

bool folders_shape(struct image_shape *shape, const char *training, const struct config_data *config, int inputs,
                   bool is_logged, struct error *error)
{
    enum { DIGIT_SIDE = 28 };
    struct collection collection;
    struct heads heads = {.count = 0};
    *shape = (struct image_shape){.digits = config->image_fit == PICTURE_FIT_DIGITS};
    bool done = image_size_parse(config->image_size, &shape->height, &shape->width, error) &&
                collection_list(&collection, training, training, error);
    if (!done) {
        return false;
    }
    done = read_heads(&heads, &collection, error);
    collection_free(&collection);
    const bool is_colour = config->color == COLOR_RGB || (config->color == COLOR_AUTO && heads.in_colour > 0);
    shape->channels = is_colour && !shape->digits ? IMAGE_RGB : 1;
    if (!done || heads.count == 0) {
        shape->height = shape->width = shape->height > 0 ? shape->height : DIGIT_SIDE;
        return done; /* reading them says why none can be read */
    }
    if (shape->height == 0 && inputs > 0) {
        done = shape_by_layers(shape, &heads, config->color == COLOR_AUTO && !shape->digits, inputs, error) ||
               error_wrap(error, "%s", training);
    } else if (shape->height == 0 && shape->digits) {
        shape->height = shape->width = DIGIT_SIDE;
    } else if (shape->height == 0) {
        shape_by_heads(shape, &heads);
    }
    if (done && image_values(shape) > CONFIG_MAX_WIDTH) {
        return error_set(error, "data.image_size: pictures of %dx%d have %zu values; the limit is %d", shape->height,
                         shape->width, image_values(shape), CONFIG_MAX_WIDTH);
    }
    if (done && is_logged) {
        say_shape(shape, &heads, training);
    }
    return done;
}

/* --- Pixels --- */

/* Reads one picture and fits it. fitted: [image_values(shape)] */
static bool read_picture(const struct collection *collection, int picture, const struct image_shape *shape,
                         uint8_t *fitted, struct error *error)
{
    char path[DATA_MAX_PATH];
    uint8_t *bytes;
    size_t size;
    struct image image;
    if (!collection_path(collection, picture, path, error) || !file_read(path, IMAGE_MAX_FILE, &bytes, &size, error)) {
        return false;
    }
    bool done = image_decode(&image, bytes, size, shape->channels, error);
    free(bytes);
    done = done && image_fit(&image, shape, fitted, error);
    image_free(&image);
    return done || error_wrap(error, "%s", path);
}

#define BAD_PICTURE "a picture that cannot be read (raise --max_bad_records to leave it out)"

/* False: there were too many; the error describes the last one. */
static bool pass_over(int *bad, int most, struct error *error)
{
    if (*bad >= most) {
        return error_wrap(error, *bad == 0 ? BAD_PICTURE : "more pictures than --max_bad_records cannot be read");
    }
    ++*bad;
    log_warning("%s; left out", error->text);
    return true;
}

/* Removes those that can't be read, so that a set that streams has none. */
static bool leave_out_bad(struct collection *collection, const struct image_shape *shape, int max_bad_records,
                          struct error *error)
{
    uint8_t *fitted = must_alloc(image_values(shape), "a picture");
    int bad = 0, kept = 0;
    bool done = true;
    double logged_s = clock_monotonic_s();
    for (int i = 0; i < collection->count; i++) {
        const bool is_good = done && read_picture(collection, i, shape, fitted, error);
        done = done && (is_good || pass_over(&bad, max_bad_records, error));
        if (is_good || !done) {
            collection->pictures[kept++] = collection->pictures[i];
        } else {
            free(collection->pictures[i].name);
        }
        if (clock_monotonic_s() - logged_s >= LOG_EVERY_S) {
            logged_s = clock_monotonic_s();
            log_info("%s: %d of %d pictures checked, which will stream", collection->path, i + 1, collection->count);
        }
    }
    collection->count = kept;
    free(fitted);
    return done;
}

/* The first `count` pictures, less those that can't be read. */
static bool read_pictures(struct examples *examples, const struct collection *collection, int count,
                          const struct image_shape *shape, int max_bad_records, struct error *error)
{
    const struct examples like = {
        .height = shape->height, .width = shape->width * shape->channels, .channels = shape->channels};
    const size_t pixels = image_values(shape);
    int bad = 0;
    bool done = examples_create(examples, &like, count) || error_set(error, "out of memory for %d images", count);
    examples->count = 0;
    for (int i = 0; i < count && done; i++) {
        const int label = collection_label(collection, i);
        if (!read_picture(collection, i, shape, examples->images + (size_t)examples->count * pixels, error)) {
            done = pass_over(&bad, max_bad_records, error);
            continue;
        }
        examples->labels[examples->count++] = label;
        examples->classes = label + 1 > examples->classes ? label + 1 : examples->classes;
    }
    return done && (examples->count > 0 ||
                    error_set(error, "%s: holds no images directly in the folders of its classes", collection->path));
}

/* --- Streaming: a block's offset is the number of its first picture --- */

struct folders_source {
    struct example_source source;
    struct collection collection;
    struct image_shape shape;
};

static bool source_open(const struct example_source *source, struct example_reader **reader, struct error *error)
{
    (void)error;
    *reader = must_zero(1, sizeof **reader, "a reader of pictures");
    (*reader)->source = source;
    return true;
}

static bool source_read(struct example_reader *reader, const struct stream_block *block, uint32_t first,
                        const struct examples *into, struct error *error)
{
    const struct folders_source *source = (const struct folders_source *)reader->source;
    const size_t pixels = (size_t)into->height * (size_t)into->width;
    for (int i = 0; i < into->count; i++) {
        int picture = (int)(block->offset + block->skip + first) + i;
        if (!read_picture(&source->collection, picture, &source->shape, into->images + (size_t)i * pixels, error)) {
            return error_wrap(error, BAD_PICTURE);
        }
        into->labels[i] = collection_label(&source->collection, picture);
    }
    return true;
}

static void source_close(struct example_reader *reader)
{
    free(reader);
}

static void source_destroy(struct example_source *base)
{
    struct folders_source *source = (struct folders_source *)base;
    collection_free(&source->collection);
    free(source);
}

static const struct example_source_table source_table = {
    .open = source_open, .read = source_read, .close = source_close, .destroy = source_destroy};

/* Takes ownership of the collection. */
static bool make_source(struct overflow *overflow, struct collection *collection, const struct image_shape *shape,
                        struct error *error)
{
    struct folders_source *source = must_zero(1, sizeof *source, "a source of pictures");
    const int in_block = BLOCK_BYTES / (int)image_values(shape) + 1;
    bool done = true;
    for (int i = overflow->held_out; i < collection->count && done; i += in_block) {
        int left = collection->count - i;
        done = blocks_add(&overflow->blocks, 0, (uint64_t)i, (uint32_t)(left < in_block ? left : in_block));
    }
    if (!done) {
        free(source);
        return error_set(error, "%s: out of memory while listing its pictures", collection->path);
    }
    source->source = (struct example_source){.table = &source_table,
                                             .like = {.height = shape->height,
                                                      .width = shape->width * shape->channels,
                                                      .channels = shape->channels,
                                                      .classes = collection_classes(collection)},
                                             .files = 1};
    source->shape = *shape;
    source->collection = *collection;
    *collection = (struct collection){.count = 0};
    overflow->source = &source->source;
    return true;
}

bool folders_class_names(char **text, const char *training, struct error *error)
{
    struct names classes = {0};
    *text = NULL;
    bool done = collection_list_classes(&classes, training, error);
    if (done && !collection_are_numbers(&classes)) {
        *text = class_names_text(&classes);
        done = *text || error_set(error, "%s: out of memory for the names of its classes", training);
    }
    names_free(&classes);
    return done;
}

bool folders_read(struct examples *examples, const struct folders_part *part, const struct image_shape *shape,
                  struct overflow *overflow, struct error *error)
{
    struct collection collection;
    bool done = list_part(&collection, part, error);
    const uint64_t of_picture = image_values(shape) + sizeof *examples->labels;
    const bool too_large = (uint64_t)collection.count * of_picture > overflow->limit;
    if (done && too_large && part->max_bad_records > 0) {
        done = leave_out_bad(&collection, shape, part->max_bad_records, error);
    }
    overflow_settle(overflow, collection.count);
    int count = too_large && overflow->keep < collection.count ? overflow->keep : collection.count;
    done = done && read_pictures(examples, &collection, count, shape, part->max_bad_records, error) &&
           (!too_large || make_source(overflow, &collection, shape, error));
    collection_free(&collection);
    return done;
}
