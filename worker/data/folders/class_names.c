/* Class names as JSON; worker/data/folders/class_names.h explains their use. */
#include "worker/data/folders/class_names.h"

#include <stdlib.h>
#include <string.h>

#include <cJSON.h>

#include "base/text/json.h"
#include "base/text/utf8.h"

char *class_names_text(const struct names *classes)
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
