/* Kinds are tried in a fixed order; the errors are made for the person whose folder it is. */
#include "worker/data/found.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/config/keys.h"
#include "base/file.h"
#include "worker/data/folders.h"
#include "worker/data/idx_set.h"
#include "worker/data/names.h"
#include "worker/data/table/table.h"
#include "worker/data/tfrecord/files.h"

enum { SHOWN_NAMES = 3 };

/* Without a folder for the test a share of the training pictures is it, or there is no test at all. */
static bool find_folder(char found[DATA_MAX_PATH], const char *folder, enum dataset_part part, struct error *error)
{
    char test[DATA_MAX_PATH];
    if (!folders_find(found, folder, part, error) || !file_join(test, sizeof test, folder, "test", error)) {
        return false;
    }
    const bool is_held_out = part == DATASET_TEST && found[0] == '\0' && !file_exists(test);
    return !is_held_out || folders_find(found, folder, DATASET_TRAIN, error);
}

bool found_look(struct found *found, enum data_source source, enum dataset_part part, const struct config *config,
                struct error *error)
{
    const char *folder = config->data.data_dir;
    found->is_there = true;
    switch (source) {
    case DATA_IDX:
        if (!data_files_find(&found->files, folder, error)) {
            return false;
        }
        found->is_there = found->files.found > 0;
        return true;
    case DATA_TFRECORD:
        return tfrecord_files_exist(&found->is_there, &config->data, part, error);
    case DATA_FOLDERS:
        if (!find_folder(found->folder, folder, part, error)) {
            return false;
        }
        found->is_there = found->folder[0] != '\0';
        return true;
    case DATA_TABLE:
        if (!table_files_exist(&found->is_there, config, part, error)) {
            return false;
        }
        found->is_there |= part == DATASET_TEST; /* rows of the training files, or with test_share 0 no test at all */
        return true;
    case DATA_SYNTHETIC:
    case DATA_AUTO:
        break;
    }
    return true;
}

/* "is empty", or "holds notes.txt, a.jpg, b.jpg and 12 more". */
static void say_content(const char *folder, char *text, size_t size)
{
    struct names names;
    struct error ignored;
    size_t used;
    if (!names_list(&names, folder, "*", &ignored) || names.count == 0) {
        snprintf(text, size, "is empty");
        names_free(&names);
        return;
    }
    used = (size_t)snprintf(text, size, "holds ");
    for (int i = 0; i < names.count && i < SHOWN_NAMES && used < size; i++) {
        const char *before = i == 0 ? "" : i + 1 == names.count ? " and " : ", ";
        used += (size_t)snprintf(text + used, size - used, "%s%.48s", before, names.items[i]);
    }
    if (names.count > SHOWN_NAMES && used < size) {
        snprintf(text + used, size - used, " and %d more", names.count - SHOWN_NAMES);
    }
    names_free(&names);
}

/* What the kind consists of. */
static void say_wanted(enum data_source source, enum dataset_part part, const struct config *config, char *text,
                       size_t size)
{
    const char *name = part == DATASET_TEST ? "test" : "train";
    switch (source) {
    case DATA_TFRECORD:
        snprintf(text, size, "has no files %.100s; name them with --train_files and --test_files",
                 tfrecord_pattern(&config->data, part));
        break;
    case DATA_FOLDERS:
        snprintf(text, size, "has no folder %s with folders of pictures in it, one for each class", name);
        break;
    case DATA_TABLE:
        snprintf(text, size,
                 "has no table, a file with the ending .csv, .tsv, .npy or .npz, plain or .gz; rename it, or name it "
                 "with --%s_files",
                 name);
        break;
    case DATA_IDX:
        snprintf(text, size, "has no IDX files; it needs %s, %s, %s and %s, plain or .gz (" HOW_TO_GET_DATA ")",
                 data_file_names[0], data_file_names[1], data_file_names[2], data_file_names[3]);
        break;
    case DATA_SYNTHETIC:
    case DATA_AUTO:
        snprintf(text, size,
                 "has no data set of a known kind: the IDX files of MNIST, a table (.csv, .tsv, .npy or .npz), "
                 "TFRecord files (%.100s), or folders train and test of pictures by class; --train_files names other "
                 "files (" HOW_TO_GET_DATA ")",
                 tfrecord_pattern(&config->data, part));
        break;
    }
}

bool found_say_missing(enum data_source source, enum dataset_part part, const struct config *config,
                       struct error *error)
{
    char content[256], wanted[512];
    say_content(config->data.data_dir, content, sizeof content);
    say_wanted(source, part, config, wanted, sizeof wanted);
    error_set(error, "%.300s %s, and %s", config->data.data_dir, content, wanted);
    return config_error_at(config, "data", "data_dir", error);
}

static bool say_no_folder(const struct config *config, struct error *error)
{
    const char *folder = config->data.data_dir;
    char here[256], in[288] = "";
    if (folder[0] != '/' && getcwd(here, sizeof here)) {
        snprintf(in, sizeof in, " in %s", here);
    }
    if (config_key_is_default(config_key_by_path("data", "data_dir"), config)) {
        error_set(error,
                  "there is no folder %s%s. To begin, name the folder that holds your data, --data_dir=FOLDER, and for "
                  "a table the column to learn, --target=COLUMN (" HOW_TO_GET_DATA ")",
                  folder, in);
    } else {
        error_set(error,
                  "there is no folder %.300s%s; name the one with the data, or mount its disk (" HOW_TO_GET_DATA ")",
                  folder, in);
    }
    return config_error_at(config, "data", "data_dir", error);
}

bool found_check_folder(const struct config *config, struct error *error)
{
    const char *folder = config->data.data_dir;
    struct stat status;
    if (stat(folder, &status) != 0) {
        if (errno == ENOENT || errno == ENOTDIR) {
            return say_no_folder(config, error);
        }
        file_error(error, folder, "cannot be looked at", errno);
        return config_error_at(config, "data", "data_dir", error);
    }
    if (!S_ISDIR(status.st_mode)) {
        const char *slash = strrchr(folder, '/');
        error_set(error, "%.300s is a file; name the folder that it is in: --data_dir=%.*s --train_files=%.100s",
                  folder,
                  slash == folder ? 1
                  : slash         ? (int)(slash - folder)
                                  : 1,
                  slash ? folder : ".", slash ? slash + 1 : folder);
        return config_error_at(config, "data", "data_dir", error);
    }
    if (access(folder, R_OK | X_OK) != 0) {
        file_error(error, folder, "cannot be read", errno);
        return config_error_at(config, "data", "data_dir", error);
    }
    return true;
}

bool found_choose(struct found *found, enum data_source *source, enum dataset_part part, const struct config *config,
                  struct error *error)
{
    static const enum data_source candidates[] = {DATA_IDX, DATA_TFRECORD, DATA_FOLDERS, DATA_TABLE};
    const bool is_table = config->data.target.count > 0;
    *source = config->data.data_source;
    if (*source == DATA_SYNTHETIC) {
        return true;
    }
    if (!found_check_folder(config, error)) {
        return false;
    }
    for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
        const bool is_wanted =
            *source == DATA_AUTO ? !is_table || candidates[i] == DATA_TABLE : *source == candidates[i];
        if (!is_wanted) {
            continue;
        }
        if (!found_look(found, candidates[i], DATASET_TRAIN, config, error)) {
            return false;
        }
        if (found->is_there) {
            *source = candidates[i];
            return found_look(found, *source, part, config, error) &&
                   (found->is_there || found_say_missing(*source, part, config, error));
        }
    }
    return found_say_missing(*source == DATA_AUTO && is_table ? DATA_TABLE : *source, part, config, error);
}
