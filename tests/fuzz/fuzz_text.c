/*
 * Arbitrary texts: what the strict JSON checker accepts, cJSON accepts, too, and every value has a position; printable
 * text is UTF-8 without control characters, and JSON remains JSON.
 */
#include "tests/fuzz/fuzz.h"

#include <cJSON.h>

#include "base/text/json.h"
#include "base/text/text.h"

FUZZ_MEMORY(128, 16 << 10)

static void check_places(const char *text, size_t size, const cJSON *value, int *path, int depth)
{
    struct json_place place, name;
    assert(json_find(text, size, path, depth, false, &place) && place.line >= 1 && place.column >= 1);
    if (depth == JSON_MAX_DEPTH) {
        return;
    }
    int i = 0;
    for (const cJSON *item = cJSON_IsArray(value) || cJSON_IsObject(value) ? value->child : NULL; item && i < 8;
         item = item->next, i++) {
        path[depth] = i;
        assert(!cJSON_IsObject(value) || json_find(text, size, path, depth + 1, true, &name));
        check_places(text, size, item, path, depth + 1);
    }
}

static void check_printable(const char *text, size_t room)
{
    char *shown = malloc(room);
    if (!shown) {
        abort();
    }
    printable(shown, room, text);
    const size_t size = strlen(shown);
    assert(size < room && utf8_check(shown, size));
    for (size_t i = 0; i < size; i++) {
        assert((uint8_t)shown[i] >= 0x20 && shown[i] != 0x7f);
    }
    free(shown);
}

static void check_json(const char *text, size_t size)
{
    struct json_place place = {0, 0};
    struct error error = {""};
    int path[JSON_MAX_DEPTH + 1];
    if (!json_check(text, size, &place, &error)) {
        assert(place.line >= 1 && place.column >= 1 && error.text[0] != '\0');
        return;
    }
    cJSON *value = json_build(text, size);
    assert(value && utf8_check(text, size));
    check_places(text, size, value, path, 0);
    char *printed = cJSON_PrintUnformatted(value);
    cJSON *before = cJSON_Parse(printed); /* numbers beyond a double became null */
    printed = printable_json(printed);
    assert(before && printed && utf8_check(printed, strlen(printed)));
    cJSON *after = cJSON_Parse(printed);
    char *one = cJSON_PrintUnformatted(before), *other = cJSON_PrintUnformatted(after);
    assert(one && other && strcmp(one, other) == 0);
    free(one);
    free(other);
    free(printed);
    cJSON_Delete(after);
    cJSON_Delete(before);
    cJSON_Delete(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char *text = text_of(bytes, size);
    const size_t room = size > 0 ? 1 + bytes[0] : 1;
    check_printable(text, room);
    check_printable(text, 8 * size + 1);
    check_json(text, size);
    utf8_mend(text, size);
    assert(utf8_check(text, size));
    free(text);
    return 0;
}
