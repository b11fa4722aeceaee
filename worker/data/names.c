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

/* Where the name is, or would be. */
static int place_of(const struct names *names, const char *name)
{
    int low = 0, high = names->count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (strcmp(names->items[middle], name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool names_add(struct names *names, const char *name)
{
    int capacity = names->count;
    const int place = place_of(names, name);
    if (!add(names, &capacity, name)) {
        return false;
    }
    char *added = names->items[names->count - 1];
    memmove(names->items + place + 1, names->items + place, (size_t)(names->count - 1 - place) * sizeof *names->items);
    names->items[place] = added;
    return true;
}

bool names_have(const struct names *names, const char *name)
{
    const int place = place_of(names, name);
    return place < names->count && strcmp(names->items[place], name) == 0;
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
