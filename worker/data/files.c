/* A plain file takes precedence over a compressed one, since it loads faster. */
#include "worker/data/files.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"

const char *const data_file_names[DATA_FILES] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                                 "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};

static bool find_file(char path[DATA_MAX_PATH], const char *folder, const char *name, struct error *error)
{
    for (int variant = 0; variant < 4; variant++) {
        char file[64];
        snprintf(file, sizeof file, "%s%s", name, variant % 2 == 1 ? ".gz" : "");
        if (variant >= 2) {
            *strstr(file, "-idx") = '.';
        }
        if (!file_join(path, DATA_MAX_PATH, folder, file, error)) {
            return false;
        }
        if (file_exists(path)) {
            return true;
        }
    }
    path[0] = '\0';
    return true;
}

bool data_files_find(struct data_files *files, const char *folder, struct error *error)
{
    files->found = 0;
    for (int i = 0; i < DATA_FILES; i++) {
        if (!find_file(files->path[i], folder, data_file_names[i], error)) {
            return error_wrap(error, "data.data_dir");
        }
        files->found += files->path[i][0] != '\0';
    }
    return true;
}
