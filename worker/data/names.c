/* Folder listings, sorted, because readdir's order differs between file systems and would change what is trained. */
#include "worker/data/names.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool add(struct names *names, int *capacity, const char *name)
{
    if (names->count == *capacity) {
        int larger = *capacity < 64 ? 64 : 2 * *capacity;
        char **items = realloc(names->items, (size_t)larger * sizeof *items);
        if (!items) {
            return false;
        }
        names->items = items;
        *capacity = larger;
    }
    names->items[names->count] = strdup(name);
    return names->items[names->count++];
}

bool names_add(struct names *names, const char *name)
{
    int capacity = names->count;
    return add(names, &capacity, name);
}

bool names_have(const struct names *names, const char *name)
{
    bool found = false;
    for (int i = 0; i < names->count && !found; i++) {
        found = strcmp(names->items[i], name) == 0;
    }
    return found;
}

bool names_list(struct names *names, const char *folder, const char *pattern, struct error *error)
{
    int capacity = 0;
    bool done = true;
    *names = (struct names){0};
    DIR *directory = opendir(folder);
    if (!directory) {
        bool is_missing = errno == ENOENT || errno == ENOTDIR;
        return is_missing || file_error(error, folder, "cannot be listed", errno);
    }
    for (struct dirent *entry; done && (entry = readdir(directory));) {
        if (entry->d_name[0] != '.' && fnmatch(pattern, entry->d_name, 0) == 0) {
            done = add(names, &capacity, entry->d_name);
        }
    }
    closedir(directory);
    if (!done) {
        return error_set(error, "%s: out of memory while listing it", folder);
    }
    if (names->count > 0) {
        qsort(names->items, (size_t)names->count, sizeof *names->items, by_name);
    }
    return true;
}

void names_free(struct names *names)
{
    for (int i = 0; i < names->count; i++) {
        free(names->items[i]);
    }
    free(names->items);
    *names = (struct names){0};
}
