/* tf.train.Example, read and written. */
#include "worker/data/tfrecord/example.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/text/text.h"
#include "worker/data/image.h"
#include "worker/data/stream.h"

/* --- Features --- */

/* Parses straight from the record: nothing is copied. */

bool feature_entry(const struct proto_field *entry, struct proto_field *key, struct proto_field *value)
{
    struct proto_reader reader = proto_read(entry->bytes, entry->size);
    struct proto_field field;
    *key = *value = (struct proto_field){0};
    while (proto_next(&reader, &field)) {
        if (field.wire == PROTO_BYTES && field.number == EXAMPLE_KEY) {
            *key = field;
        } else if (field.wire == PROTO_BYTES && field.number == EXAMPLE_VALUE) {
            *value = field;
        }
    }
    return !reader.damaged;
}

bool feature_read(struct feature *feature, const struct proto_field *value)
{
    struct proto_reader reader = proto_read(value->bytes, value->size);
    struct proto_field list;
    while (proto_next(&reader, &list)) {
        if (list.wire == PROTO_BYTES && list.number >= FEATURE_BYTES && list.number <= FEATURE_INTEGERS) {
            *feature = (struct feature){(enum feature_kind)list.number, list.bytes, list.size};
        }
    }
    return !reader.damaged;
}

struct feature_walk feature_walk(const struct feature *feature)
{
    return (struct feature_walk){.list = proto_read(feature->bytes, feature->size)};
}

static bool next_packed(struct feature_walk *walk, enum feature_kind kind, double *number)
{
    uint64_t bits;
    if (kind == FEATURE_INTEGERS) {
        if (!proto_next_varint(&walk->packed, &bits)) {
            return false;
        }
        *number = (double)(int64_t)bits;
        return true;
    }
    if (walk->packed.size - walk->packed.at < 4) {
        walk->packed.damaged = walk->packed.damaged || walk->packed.at < walk->packed.size;
        return false;
    }
    float value;
    memcpy(&value, walk->packed.bytes + walk->packed.at, sizeof value);
    walk->packed.at += sizeof value;
    *number = (double)value;
    return true;
}

bool feature_next(struct feature_walk *walk, enum feature_kind kind, double *number)
{
    struct proto_field field;
    for (;;) {
        if (next_packed(walk, kind, number)) {
            return true;
        }
        walk->list.damaged = walk->list.damaged || walk->packed.damaged;
        if (walk->list.damaged || !proto_next(&walk->list, &field)) {
            return false;
        }
        if (field.number != FEATURE_LIST) {
            continue;
        }
        if (field.wire == PROTO_BYTES) {
            walk->packed = proto_read(field.bytes, field.size);
        } else if (kind == FEATURE_INTEGERS && field.wire == PROTO_VARINT) {
            *number = (double)(int64_t)field.value;
            return true;
        } else if (kind == FEATURE_FLOATS && field.wire == PROTO_FIXED32) {
            *number = (double)proto_float_of(field.value);
            return true;
        } else {
            walk->list.damaged = true;
        }
    }
}

bool feature_bytes(const struct feature *feature, struct proto_field *raw)
{
    struct proto_reader list = proto_read(feature->bytes, feature->size);
    return proto_next(&list, raw) && raw->number == FEATURE_LIST && raw->wire == PROTO_BYTES;
}

int feature_dtype_bytes(enum label_dtype dtype)
{
    static const int bytes[] = {
        [LABEL_UINT8] = 1, [LABEL_INT32] = 4, [LABEL_INT64] = 8, [LABEL_FLOAT32] = 4, [LABEL_FLOAT64] = 8};
    return bytes[dtype];
}

double feature_raw_number(const uint8_t *bytes, enum label_dtype dtype)
{
    uint64_t bits = 0;
    float single;
    double number;
    memcpy(&bits, bytes, (size_t)feature_dtype_bytes(dtype));
    const uint32_t low = (uint32_t)bits;
    switch (dtype) {
    case LABEL_INT32:
        return (double)(int32_t)low;
    case LABEL_INT64:
        return (double)(int64_t)bits;
    case LABEL_FLOAT32:
        memcpy(&single, &low, sizeof single);
        return (double)single;
    case LABEL_FLOAT64:
        memcpy(&number, &bits, sizeof number);
        return number;
    case LABEL_AUTO:
    case LABEL_UINT8:
        break;
    }
    return (double)bits;
}

/* --- Examples --- */

/*
 * Parses only the fields needed, straight from the record. Most records of a file differ only in pixels and label; a
 * template of the last record recognises these and skips the parsing.
 */

enum {
    FEATURES = EXAMPLE_FEATURES,
    ENTRY = EXAMPLE_ENTRY,
    KEY = EXAMPLE_KEY,
    VALUE = EXAMPLE_VALUE,
    LIST = FEATURE_LIST
};

enum { MOST_NAMED = 12, MOST_NAME_SHOWN = 64 };

struct features {
    struct feature image, label, height, width, channels;
};

static bool is_name(const struct proto_field *key, const char *name)
{
    size_t i = 0;
    while (i < key->size && name[i] != '\0' && (uint8_t)name[i] == key->bytes[i]) {
        i++;
    }
    return i == key->size && name[i] == '\0';
}

static struct feature *feature_for(struct features *features, const struct example_names *names,
                                   const struct proto_field *key)
{
    if (is_name(key, names->image)) {
        return &features->image;
    }
    if (is_name(key, names->label)) {
        return &features->label;
    }
    if (is_name(key, "height") || is_name(key, "image/height")) {
        return &features->height;
    }
    if (is_name(key, "channels") || is_name(key, "depth") || is_name(key, "image/channels")) {
        return &features->channels;
    }
    return is_name(key, "width") || is_name(key, "image/width") ? &features->width : NULL;
}

static bool read_entry(struct features *features, const struct example_names *names, const struct proto_field *entry)
{
    struct proto_field key, value;
    if (!feature_entry(entry, &key, &value)) {
        return false;
    }
    struct feature *feature = key.bytes ? feature_for(features, names, &key) : NULL;
    return !feature || feature_read(feature, &value);
}

static bool read_features(struct features *features, const struct example_names *names, const uint8_t *record,
                          size_t size, struct error *error)
{
    struct proto_reader example = proto_read(record, size);
    struct proto_field field;
    memset(features, 0, sizeof *features);
    while (proto_next(&example, &field)) {
        struct proto_reader map = proto_read(field.bytes, field.wire == PROTO_BYTES ? field.size : 0);
        struct proto_field entry;
        while (field.number == FEATURES && proto_next(&map, &entry)) {
            if (entry.number == ENTRY && entry.wire == PROTO_BYTES && !read_entry(features, names, &entry)) {
                return error_set(error, "its features are not those of a tf.train.Example");
            }
        }
        if (map.damaged) {
            return error_set(error, "its features are not those of a tf.train.Example");
        }
    }
    return !example.damaged || error_set(error, "it is not a tf.train.Example");
}

/* --- labels of raw bytes --- */

/* The label, if the bytes are one number or a one-hot list of this type; else -1. */
static int32_t raw_label(const struct proto_field *raw, enum label_dtype dtype)
{
    const size_t size = (size_t)feature_dtype_bytes(dtype);
    int32_t place = -1;
    if (raw->size == 0 || raw->size % size != 0 || raw->size / size > CONFIG_MAX_WIDTH) {
        return -1;
    }
    if (raw->size == size) {
        const double number = feature_raw_number(raw->bytes, dtype);
        return number >= 0 && number < CONFIG_MAX_WIDTH && number == floor(number) ? (int32_t)number : -1;
    }
    for (size_t i = 0; i < raw->size / size; i++) {
        const double number = feature_raw_number(raw->bytes + i * size, dtype);
        if (number != 0 && (number != 1 || place >= 0)) {
            return -1;
        }
        place = number == 1 ? (int32_t)i : place;
    }
    return place;
}

/* All types that fit must agree; but a single number is preferred to a list of smaller ones. */
static bool find_raw_label(const struct proto_field *raw, const char *name, int32_t *label, struct error *error)
{
    *label = -1;
    for (int single = 1; single >= 0 && *label < 0; single--) {
        for (int dtype = LABEL_UINT8; dtype <= LABEL_FLOAT64; dtype++) {
            const bool is_single = raw->size == (size_t)feature_dtype_bytes((enum label_dtype)dtype);
            const int32_t found = is_single == (single == 1) ? raw_label(raw, (enum label_dtype)dtype) : -1;
            if (found >= 0 && *label >= 0 && found != *label) {
                return error_set(error,
                                 "the %zu raw bytes of its label \"%s\" may be label %d or %d; set it by "
                                 "--label_dtype",
                                 raw->size, name, *label, found);
            }
            *label = found >= 0 ? found : *label;
        }
    }
    return *label >= 0 ||
           error_set(error, "the %zu raw bytes of its label \"%s\" are neither a number nor one-hot", raw->size, name);
}

static bool read_raw_label(const struct feature *feature, const struct example_names *names, int32_t *label,
                           struct error *error)
{
    struct proto_reader list = proto_read(feature->bytes, feature->size);
    struct proto_field raw;
    if (!proto_next(&list, &raw) || raw.number != LIST || raw.wire != PROTO_BYTES) {
        return error_set(error, "its label \"%s\" is empty", names->label);
    }
    if (names->dtype == LABEL_AUTO) {
        return find_raw_label(&raw, names->label, label, error);
    }
    *label = raw_label(&raw, names->dtype);
    return *label >= 0 ||
           error_set(error, "the %zu raw bytes of its label \"%s\" are neither a number nor one-hot of label_dtype",
                     raw.size, names->label);
}

bool example_label(const struct feature *feature, const struct example_names *names, int32_t *label,
                   struct error *error)
{
    const char *name = names->label;
    if (feature->kind == FEATURE_BYTES) {
        return read_raw_label(feature, names, label, error);
    }
    if (feature->kind != FEATURE_INTEGERS && feature->kind != FEATURE_FLOATS) {
        return error_set(error, "it has no feature \"%s\" for its label", name);
    }
    struct feature_walk walk = feature_walk(feature);
    double number, first = 0;
    int64_t count = 0, ones = 0, place = 0;
    for (bool hot = true; feature_next(&walk, feature->kind, &number); count++) {
        first = count == 0 ? number : first;
        place = number == 1 ? count : place;
        ones += number == 1;
        hot = hot && (number == 0 || number == 1);
        ones = hot ? ones : -1;
    }
    if (walk.list.damaged || count == 0) {
        return error_set(error, "its label \"%s\" is empty", name);
    }
    if (count > 1 && ones != 1) {
        return error_set(error, "its label \"%s\" is a list of %" PRId64 " numbers, but not one-hot", name, count);
    }
    double found = count > 1 ? (double)place : first;
    if (!(found >= 0 && found < CONFIG_MAX_WIDTH) || found != floor(found)) {
        return error_set(error, "its label is %g; expected 0 to %d", found, CONFIG_MAX_WIDTH - 1);
    }
    *label = (int32_t)found;
    return true;
}

/* --- images --- */

/* An optional size; 0 if missing. */
static bool read_size(const struct feature *feature, int64_t *size, struct error *error)
{
    double number = 0;
    struct feature_walk walk = feature_walk(feature);
    *size = 0;
    if (feature->kind == FEATURE_NONE) {
        return true;
    }
    if (feature->kind != FEATURE_INTEGERS || !feature_next(&walk, feature->kind, &number) || number < 1 ||
        number > IMAGE_MAX_SIDE) {
        return error_set(error, "its height or width is not a number from 1 to %d", IMAGE_MAX_SIDE);
    }
    *size = (int64_t)number;
    return true;
}

/* The shape of an image of `values` raw bytes or numbers. */
static bool shape_image(const struct features *features, uint64_t values, struct image *image, struct error *error)
{
    int64_t height, width, channels;
    if (!read_size(&features->height, &height, error) || !read_size(&features->width, &width, error) ||
        !read_size(&features->channels, &channels, error)) {
        return false;
    }
    if (values < 1 || values > IMAGE_MAX_PIXELS) {
        return error_set(error, "its image has %" PRIu64 " pixels; expected 1 to %d", values, IMAGE_MAX_PIXELS);
    }
    const bool has_sides = height > 0 && width > 0;
    const bool in_colour =
        channels == IMAGE_RGB || (channels == 0 && has_sides && (uint64_t)(height * width) * IMAGE_RGB == values);
    const uint64_t pixels = in_colour ? values / IMAGE_RGB : values;
    if (has_sides && (uint64_t)(height * width) != pixels) {
        return error_set(error, "its image has %" PRIu64 " pixels, but height x width is %" PRId64 "x%" PRId64, pixels,
                         height, width);
    }
    if (in_colour && values % IMAGE_RGB != 0) {
        return error_set(error, "its image has %" PRIu64 " values, which are not three a pixel", values);
    }
    if (!has_sides) {
        int side = image_side((int)pixels);
        height = side > 0 ? side : 1;
        width = side > 0 ? side : (int64_t)pixels;
    }
    *image = (struct image){.width = (int)width, .height = (int)height, .channels = in_colour ? IMAGE_RGB : 1};
    return true;
}

/* The example's own memory for pixels. */
static bool take_memory(struct example *example, size_t pixels, struct error *error)
{
    if (pixels > example->capacity) {
        uint8_t *larger = realloc(example->memory, pixels);
        if (!larger) {
            return error_set(error, "out of memory for an image of %zu pixels", pixels);
        }
        example->memory = larger;
        example->capacity = pixels;
    }
    example->image.pixels = example->memory;
    return true;
}

/* Decodes a picture, in the wanted colours and size. */
static bool decode_picture(struct example *example, const struct proto_field *picture, const struct image_shape *wanted,
                           struct error *error)
{
    struct image image = {.width = 0};
    struct image_head head;
    bool more;
    if (!image_examine(&head, picture->bytes, picture->size, &more, error)) {
        return error_wrap(error, "its image");
    }
    struct image_shape shape = *wanted;
    shape.channels = shape.channels > 0 ? shape.channels : head.channels;
    shape.height = wanted->height > 0 ? wanted->height : head.height;
    shape.width = wanted->height > 0 ? wanted->width : head.width;
    if (!image_decode(&image, picture->bytes, picture->size, shape.channels, error)) {
        return error_wrap(error, "its image");
    }
    const bool done =
        take_memory(example, image_values(&shape), error) && image_fit(&image, &shape, example->memory, error);
    image_free(&image);
    example->encoded = true;
    example->image = (struct image){
        .width = shape.width, .height = shape.height, .channels = shape.channels, .pixels = example->memory};
    return done;
}

/* Raw pixels become grey, or all of one colour, if the others are. */
static bool convert_channels(struct example *example, int channels, struct error *error)
{
    const struct image from = example->image;
    const size_t pixels = (size_t)from.width * (size_t)from.height;
    if (channels == 0 || channels == from.channels) {
        return true;
    }
    if (from.pixels == example->memory || !take_memory(example, pixels * (size_t)channels, error)) {
        return error_set(error, "its image is %s, but the images before it are not",
                         from.channels > 1 ? "in colour" : "grey");
    }
    for (size_t i = 0; i < pixels; i++) {
        const uint8_t *pixel = from.pixels + i * (size_t)from.channels;
        if (channels == 1) {
            example->memory[i] = image_luma(pixel[0], pixel[1], pixel[2]);
        } else {
            memset(example->memory + IMAGE_RGB * i, pixel[0], IMAGE_RGB);
        }
    }
    example->image.channels = channels;
    return true;
}

static bool read_bytes(struct example *example, const struct features *features, const struct image_shape *wanted,
                       struct error *error)
{
    struct proto_reader list = proto_read(features->image.bytes, features->image.size);
    struct proto_field field;
    if (!proto_next(&list, &field) || field.number != LIST || field.wire != PROTO_BYTES) {
        return error_set(error, "its image is an empty list");
    }
    if (image_is_known(field.bytes, field.size)) {
        return decode_picture(example, &field, wanted, error);
    }
    const bool has_shape = shape_image(features, field.size, &example->image, error);
    const struct file_kind *found = signature_find(field.bytes, field.size);
    const bool is_square = has_shape && example->image.width == example->image.height;
    if (found && !is_square && strstr(found->what, "picture")) { /* raw pixels may begin in any way */
        return error_set(error, "its image is %s, which is not read from TFRecord; store PNG, or raw pixels",
                         found->what);
    }
    if (!has_shape) {
        return false;
    }
    example->image.pixels = (uint8_t *)(uintptr_t)field.bytes; /* read only, as the header says */
    return convert_channels(example, wanted->channels, error);
}

static bool read_floats(struct example *example, const struct features *features, const struct image_shape *wanted,
                        struct error *error)
{
    struct feature_walk walk = feature_walk(&features->image);
    uint64_t count = 0;
    double number, largest = 0;
    for (; feature_next(&walk, FEATURE_FLOATS, &number); count++) {
        if (!(number >= 0 && number <= 255)) {
            return error_set(error, "a pixel of its image is %g; expected 0 to 255, or 0 to 1", number);
        }
        largest = number > largest ? number : largest;
    }
    if (walk.list.damaged) {
        return error_set(error, "its image is not a list of floats");
    }
    if (!shape_image(features, count, &example->image, error) || !take_memory(example, (size_t)count, error)) {
        return false;
    }
    if (wanted->channels > 0 && wanted->channels != example->image.channels) {
        return error_set(error, "its image is a list of floats %s; only bytes can be converted (--color)",
                         example->image.channels > 1 ? "in colour" : "in grey");
    }
    double scale = largest > 1 ? 1 : 255;
    walk = feature_walk(&features->image);
    for (uint64_t i = 0; i < count && feature_next(&walk, FEATURE_FLOATS, &number); i++) {
        example->memory[i] = (uint8_t)lround(number * scale);
    }
    return true;
}

/* --- records like the previous one --- */

/* The position of the label, if it is a single number of one byte. */
static const uint8_t *label_byte(const struct feature *label)
{
    enum { PACKED = LIST << 3 | PROTO_BYTES, SINGLE = LIST << 3 | PROTO_VARINT };
    const uint8_t *bytes = label->bytes;
    bool is_packed = label->size == 3 && bytes[0] == PACKED && bytes[1] == 1;
    bool is_single = label->size == 2 && bytes[0] == SINGLE;
    return label->kind == FEATURE_INTEGERS && (is_packed || is_single) ? bytes + label->size - 1 : NULL;
}

/* Records the template after an example of raw pixels. */
static void remember_frame(struct example *example, const struct features *features, const uint8_t *record, size_t size)
{
    struct example_frame *frame = &example->frame;
    const struct image *image = &example->image;
    const uint8_t *label = label_byte(&features->label);
    size_t image_size = (size_t)image->width * (size_t)image->height * (size_t)image->channels;
    frame->size = 0;
    if (!label || size - image_size > sizeof frame->bytes) {
        return;
    }
    assert(label < image->pixels || label >= image->pixels + image_size);
    size_t image_at = (size_t)(image->pixels - record), behind = image_at + image_size;
    *frame = (struct example_frame){.size = size,
                                    .image_at = image_at,
                                    .image_size = image_size,
                                    .label_at = (size_t)(label - record),
                                    .width = image->width,
                                    .height = image->height,
                                    .channels = image->channels};
    memcpy(frame->bytes, record, image_at);
    memcpy(frame->bytes + image_at, record + behind, size - behind);
}

/* memcmp without early exit, so that it vectorises: musl's goes byte by byte. */
static bool is_same(const uint8_t *one, const uint8_t *other, size_t size)
{
    unsigned differ = 0;
    for (size_t i = 0; i < size; i++) {
        differ |= (unsigned)(one[i] ^ other[i]);
    }
    return differ == 0;
}

/*
 * Records of one file usually differ only in pixels and label. Then both are where they were in the last record, and
 * nothing needs parsing.
 */
static bool is_like_last(struct example *example, const uint8_t *record, size_t size)
{
    struct example_frame *frame = &example->frame;
    if (frame->size == 0 || size != frame->size || record[frame->label_at] > 0x7F) {
        return false;
    }
    size_t behind = frame->image_at + frame->image_size;
    frame->bytes[frame->label_at < behind ? frame->label_at : frame->label_at - frame->image_size] =
        record[frame->label_at];
    if (!is_same(frame->bytes, record, frame->image_at) ||
        !is_same(frame->bytes + frame->image_at, record + behind, size - behind) ||
        image_is_known(record + frame->image_at, frame->image_size)) {
        return false;
    }
    example->encoded = false;
    example->image = (struct image){.width = frame->width,
                                    .height = frame->height,
                                    .channels = frame->channels,
                                    .pixels = (uint8_t *)(uintptr_t)record + frame->image_at};
    example->label = record[frame->label_at];
    return true;
}

/* Adds to the error which features the record has instead; returns false. */
static bool add_names(const uint8_t *record, size_t size, struct error *error)
{
    struct proto_reader example = proto_read(record, size);
    struct proto_field field, entry, key, value;
    struct error before;
    int named = 0;
    while (proto_next(&example, &field)) {
        struct proto_reader map = proto_read(field.bytes, field.wire == PROTO_BYTES ? field.size : 0);
        while (field.number == FEATURES && proto_next(&map, &entry)) {
            if (entry.number != ENTRY || entry.wire != PROTO_BYTES || !feature_entry(&entry, &key, &value) ||
                !key.bytes || named == MOST_NAMED) {
                continue;
            }
            char name[MOST_NAME_SHOWN + 1], shown[MOST_NAME_SHOWN + 1];
            snprintf(name, sizeof name, "%.*s", (int)(key.size < MOST_NAME_SHOWN ? key.size : MOST_NAME_SHOWN),
                     (const char *)key.bytes);
            before = *error;
            error_set(error, "%s%s %s", before.text, named++ == 0 ? "; it has" : ",",
                      printable(shown, sizeof shown, name));
        }
    }
    before = *error;
    return named > 0 ? error_set(error, "%s: name them with --image_feature and --label_feature", before.text) : false;
}

static bool say_no_image(const struct features *features, const struct example_names *names, struct error *error)
{
    return error_set(error,
                     features->image.kind == FEATURE_NONE ? "it has no feature \"%s\" for its image"
                                                          : "its feature \"%s\" is integers, not an image",
                     names->image);
}

bool example_decode(struct example *example, const uint8_t *record, size_t size, const struct example_names *names,
                    struct error *error)
{
    struct features features;
    if (is_like_last(example, record, size)) {
        return true;
    }
    example->image = (struct image){0};
    example->encoded = false;
    if (!read_features(&features, names, record, size, error)) {
        return false;
    }
    if (!example_label(&features.label, names, &example->label, error)) {
        return features.label.kind == FEATURE_NONE && add_names(record, size, error);
    }
    if (features.image.kind == FEATURE_NONE) {
        return say_no_image(&features, names, error) || add_names(record, size, error);
    }
    if (features.image.kind == FEATURE_BYTES) {
        if (!read_bytes(example, &features, &names->shape, error)) {
            return false;
        }
        if (example->image.pixels != example->memory) {
            remember_frame(example, &features, record, size);
        }
        return true;
    }
    if (features.image.kind == FEATURE_FLOATS) {
        return read_floats(example, &features, &names->shape, error);
    }
    return say_no_image(&features, names, error);
}

void example_free(struct example *example)
{
    free(example->memory);
    *example = (struct example){.capacity = 0};
}

/* --- writing --- */

/* One entry of the map, up to the list inside; the caller puts the value and ends all three. */
struct feature_entry {
    size_t entry, feature, list;
};

static struct feature_entry begin_entry(struct proto *proto, const char *name, enum feature_kind kind)
{
    struct feature_entry entry;
    entry.entry = proto_begin(proto, ENTRY);
    proto_text(proto, KEY, name);
    entry.feature = proto_begin(proto, VALUE);
    entry.list = proto_begin(proto, (int)kind);
    return entry;
}

static void end_entry(struct proto *proto, struct feature_entry entry)
{
    proto_end(proto, entry.list);
    proto_end(proto, entry.feature);
    proto_end(proto, entry.entry);
}

static void put_integer(struct proto *proto, const char *name, int64_t value)
{
    struct feature_entry entry = begin_entry(proto, name, FEATURE_INTEGERS);
    proto_packed_integers(proto, LIST, &value, 1);
    end_entry(proto, entry);
}

void example_encode(struct proto *proto, const struct example_names *names, const struct image *image, int32_t label)
{
    size_t features = proto_begin(proto, FEATURES);
    struct feature_entry pixels = begin_entry(proto, names->image, FEATURE_BYTES);
    proto_bytes(proto, LIST, image->pixels, (size_t)image->height * (size_t)image->width * (size_t)image->channels);
    end_entry(proto, pixels);
    put_integer(proto, names->label, label);
    put_integer(proto, "height", image->height);
    put_integer(proto, "width", image->width);
    if (image->channels > 1) {
        put_integer(proto, "channels", image->channels);
    }
    proto_end(proto, features);
}
