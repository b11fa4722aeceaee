/* Runs a fuzz target over files and folders of inputs, without libFuzzer: for line coverage. */
#include "tests/fuzz/fuzz.h"

static void replay(const char *path)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
        uint8_t *bytes = malloc((size_t)status.st_size + 1);
        const ssize_t size = bytes ? read(fd, bytes, (size_t)status.st_size) : -1;
        if (size >= 0) {
            LLVMFuzzerTestOneInput(bytes, (size_t)size);
        }
        free(bytes);
    }
    if (fd >= 0) {
        close(fd);
    }
}

int main(int count, char **arguments)
{
    for (int i = 1; i < count; i++) {
        char path[4096];
        struct dirent *entry;
        DIR *folder = opendir(arguments[i]);
        if (!folder) {
            replay(arguments[i]);
            continue;
        }
        while ((entry = readdir(folder))) {
            snprintf(path, sizeof path, "%s/%s", arguments[i], entry->d_name);
            replay(path);
        }
        closedir(folder);
    }
    return 0;
}
