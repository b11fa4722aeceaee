/* One writer per kind of file. Each refuses to overwrite a file that exists. */
#include "worker/data/convert/write.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "worker/data/convert/pack.h"
#include "worker/data/files.h"
#include "worker/data/idx.h"
#include "worker/data/image/image.h"
#include "worker/data/tfrecord/framing.h"

enum { TELL_EVERY = 256 };

static void tell(const struct write_options *options, int done, int count)
{
    if (options->progress && (done % TELL_EVERY == 0 || done == count)) {
        options->progress(options->context, done, count);
    }
}

static const uint8_t *image_at(const struct examples *examples, int i)
{
    return examples->images + (size_t)i * (size_t)examples->height * (size_t)examples->width;
}

static bool check_new(const char *path, struct error *error)
{
    return !file_exists(path) || error_set(error, "%s: already exists; choose another folder, or remove it", path);
}

/* --- IDX --- */

static bool write_idx_file(const char *name, const struct write_options *options, int dimensions, const uint32_t *sizes,
                           const struct file_part *elements, struct error *error)
{
    char path[DATA_MAX_PATH], file[64];
    uint8_t header[IDX_MAX_HEADER];
    struct file_part parts[2] = {{header, idx_write_header(header, dimensions, sizes)}, *elements};
    snprintf(file, sizeof file, "%s%s", name, options->packing == STREAM_GZIP ? ".gz" : "");
    return file_join(path, sizeof path, options->folder, file, error) && check_new(path, error) &&
           pack_write(path, parts, 2, options->packing, error);
}

bool write_idx(const struct examples *examples, const struct write_options *options, struct error *error)
{
    bool test = options->part == DATASET_TEST;
    uint32_t sizes[] = {(uint32_t)examples->count, (uint32_t)examples->height, (uint32_t)examples->width};
    size_t count = (size_t)examples->count;
    if (examples->classes > UINT8_MAX + 1) {
        return error_set(error, "IDX files hold labels up to %d, but the largest is %d; convert to TFRecord", UINT8_MAX,
                         examples->classes - 1);
    }
    uint8_t *labels = malloc(count);
    if (!labels) {
        return error_set(error, "out of memory for %zu labels", count);
    }
    for (size_t i = 0; i < count; i++) {
        labels[i] = (uint8_t)examples->labels[i];
    }
    struct file_part images_part = {examples->images, count * (size_t)examples->height * (size_t)examples->width};
    struct file_part labels_part = {labels, count};
    bool done =
        file_make_folder(options->folder, error) &&
        write_idx_file(data_file_names[test ? TEST_IMAGES : TRAIN_IMAGES], options, 3, sizes, &images_part, error) &&
        write_idx_file(data_file_names[test ? TEST_LABELS : TRAIN_LABELS], options, 1, sizes, &labels_part, error);
    free(labels);
    if (done) {
        tell(options, examples->count, examples->count);
    }
    return done;
}

/* --- TFRecord --- */

static bool shard_path(char path[DATA_MAX_PATH], const struct write_options *options, int shard, struct error *error)
{
    char file[96];
    const char *part = options->part == DATASET_TEST ? "test" : "train";
    if (options->shards == 1) {
        snprintf(file, sizeof file, "%s.tfrecord", part);
    } else {
        snprintf(file, sizeof file, "%s-%05d-of-%05d.tfrecord", part, shard, options->shards);
    }
    return file_join(path, DATA_MAX_PATH, options->folder, file, error) && check_new(path, error);
}

static bool write_shard(const struct examples *examples, const struct write_options *options, int shard, int *done,
                        struct error *error)
{
    char path[DATA_MAX_PATH];
    struct proto file = {0}, record = {0};
    bool written = shard_path(path, options, shard, error);
    for (int i = shard; i < examples->count && written; i += options->shards) {
        proto_clear(&record);
        example_encode(&record, &options->names, image_at(examples, i), examples->height, examples->width,
                       examples->labels[i]);
        tfrecord_append(&file, record.bytes, record.size);
        tell(options, ++*done, examples->count);
    }
    if (written && (record.failed || file.failed)) {
        written = error_set(error, "%s: out of memory while writing it; make smaller files with --shards=%d", path,
                            2 * options->shards);
    }
    written = written && pack_write(path, &(struct file_part){file.bytes, file.size}, 1, options->packing, error);
    proto_free(&record);
    proto_free(&file);
    return written;
}

bool write_tfrecord(const struct examples *examples, const struct write_options *options, struct error *error)
{
    int done = 0;
    if (options->shards > examples->count) {
        return error_set(error, "--shards=%d exceeds the number of images, %d", options->shards, examples->count);
    }
    if (!file_make_folder(options->folder, error)) {
        return false;
    }
    for (int shard = 0; shard < options->shards; shard++) {
        if (!write_shard(examples, options, shard, &done, error)) {
            return false;
        }
    }
    return true;
}

/* --- folders of pictures --- */

static bool write_picture(const char *folder, const struct examples *examples, int i, struct error *error)
{
    char path[DATA_MAX_PATH], name[64];
    uint8_t *bytes;
    size_t size;
    snprintf(name, sizeof name, "%d", examples->labels[i]);
    if (!file_join(path, sizeof path, folder, name, error) || (!file_exists(path) && !file_make_folder(path, error))) {
        return false;
    }
    snprintf(name, sizeof name, "%d/%05d.png", examples->labels[i], i);
    if (!file_join(path, sizeof path, folder, name, error) ||
        !image_encode_png(image_at(examples, i), examples->width, examples->height, &bytes, &size, error)) {
        return false;
    }
    /* No sync for each of many small files: if a crash spoils the copy, it can be made again. */
    const int fd = file_create(path, 0666, error);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool done = file && fwrite(bytes, 1, size, file) == size;
    done = (file ? fclose(file) == 0 : false) && done;
    free(bytes);
    return done || (fd >= 0 && error_set(error, "%s: cannot be written", path));
}

bool write_folders(const struct examples *examples, const struct write_options *options, struct error *error)
{
    char folder[DATA_MAX_PATH];
    if (!file_join(folder, sizeof folder, options->folder, options->part == DATASET_TEST ? "test" : "train", error) ||
        !check_new(folder, error)) {
        return false;
    }
    for (int i = 0; i < examples->count; i++) {
        if (!write_picture(folder, examples, i, error)) {
            return false;
        }
        tell(options, i + 1, examples->count);
    }
    return true;
}
