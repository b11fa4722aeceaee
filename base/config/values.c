/*
 * Parses and prints one value: from flag text, from JSON, and back. A value of the file is checked for its kind, and
 * then set as a flag's text is, so that flags and the file always accept the same values.
 */
#include "base/config/keys.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text/address.h"
#include "base/text/json.h"
#include "base/text/text.h"

/* --- Devices of layers --- */

/*
 * Both spellings of a placement, text and JSON, go through one function that assigns a single layer, so that they
 * accept the same layers and devices.
 */

enum { LAYERS = CONFIG_MAX_LAYERS - 1, NAME_SIZE = 24 };

/* The number after a prefix, without leading zeros; -1 if there is no number or it exceeds `most`. */
static int number_after(const char *text, const char *prefix, int most)
{
    size_t length = strlen(prefix);
    const char *digits = text + length;
    size_t count = strncmp(text, prefix, length) == 0 ? strspn(digits, "0123456789") : 0;
    if (count < 1 || count > 3 || digits[count] != '\0' || (digits[0] == '0' && count > 1)) {
        return -1;
    }
    int number = (int)strtol(digits, NULL, 10);
    return number <= most ? number : -1;
}

/* True for "cpu" and "gpu:N", the entries of train.towers. */
static bool layer_devices_is_tower(const char *device)
{
    return strcmp(device, "cpu") == 0 || number_after(device, "gpu:", CONFIG_MAX_DEVICE) >= 0;
}

/* Puts one layer on a device. */
static bool layer_devices_add(int *devices, const char *layer, const char *device, struct error *error)
{
    int index = number_after(layer, "layer", LAYERS - 1);
    int gpu = number_after(device, "gpu:", CONFIG_MAX_DEVICE);
    if (index < 0) {
        return error_set(error, "\"%.32s\" is not a layer; expected layer0 (next to the inputs) to layer%d", layer,
                         LAYERS - 1);
    }
    if (gpu < 0 && strcmp(device, "cpu:0") != 0) {
        return error_set(error, "layer%d must be on cpu:0 or gpu:N with N from 0 to %d, not \"%.32s\"", index,
                         CONFIG_MAX_DEVICE, device);
    }
    if (devices[index] != LAYER_ANYWHERE) {
        return error_set(error, "duplicate layer%d; remove one", index);
    }
    devices[index] = gpu < 0 ? LAYER_ON_CPU : LAYER_ON_GPU + gpu;
    return true;
}

bool layer_devices_from_text(int *devices, const char *text, struct error *error)
{
    int found[LAYERS] = {0};
    for (const char *at = text; *at != '\0';) {
        char layer[NAME_SIZE] = "", device[NAME_SIZE] = "";
        size_t length = strcspn(at, ","), name = strcspn(at, "=,");
        if (at[name] != '=' || name >= NAME_SIZE || length - name - 1 >= NAME_SIZE) {
            return error_set(error, "must be a list like layer1=cpu:0,layer2=gpu:0");
        }
        memcpy(layer, at, name);
        memcpy(device, at + name + 1, length - name - 1);
        if (!layer_devices_add(found, layer, device, error)) {
            return false;
        }
        at += length + (at[length] == ',');
    }
    memcpy(devices, found, sizeof found);
    return true;
}

static bool layer_devices_from_json(int *devices, const cJSON *object, struct error *error)
{
    int found[LAYERS] = {0};
    for (const cJSON *child = object->child; child; child = child->next) {
        if (!layer_devices_add(found, child->string, cJSON_IsString(child) ? child->valuestring : "?", error)) {
            return false;
        }
    }
    memcpy(devices, found, sizeof found);
    return true;
}

/* True if every layer is where the others are. */
static bool layer_devices_are_none(const int *devices)
{
    for (int i = 0; i < LAYERS; i++) {
        if (devices[i] != LAYER_ANYWHERE) {
            return false;
        }
    }
    return true;
}

static void device_name(int device, char name[NAME_SIZE])
{
    if (device == LAYER_ON_CPU) {
        snprintf(name, NAME_SIZE, "cpu:0");
    } else {
        snprintf(name, NAME_SIZE, "gpu:%d", device - LAYER_ON_GPU);
    }
}

static cJSON *layer_devices_json(const int *devices)
{
    cJSON *object = cJSON_CreateObject();
    for (int i = 0; i < LAYERS; i++) {
        char layer[NAME_SIZE], device[NAME_SIZE];
        snprintf(layer, sizeof layer, "layer%d", i);
        device_name(devices[i], device);
        if (devices[i] != LAYER_ANYWHERE) {
            must_have(cJSON_AddStringToObject(object, layer, device), 0, "JSON");
        }
    }
    return object;
}

char *layer_devices_text(const int *devices)
{
    char text[LAYERS * 2 * NAME_SIZE] = "";
    for (int i = 0, used = 0; i < LAYERS; i++) {
        char device[NAME_SIZE];
        device_name(devices[i], device);
        if (devices[i] != LAYER_ANYWHERE) {
            used += snprintf(text + used, sizeof text - (size_t)used, "%slayer%d=%s", used > 0 ? "," : "", i, device);
        }
    }
    return must_copy(text);
}

/* --- Values --- */

bool flags_switch(const char *text, bool *on)
{
    static const char *const words[][2] = {{"false", "true"}, {"0", "1"}, {"no", "yes"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i][0]) == 0 || strcmp(text, words[i][1]) == 0) {
            *on = strcmp(text, words[i][1]) == 0;
            return true;
        }
    }
    return false;
}

enum {
    SHOWN_SIZE = 48, /* of a value quoted in an error */
    LAYERS_TEXT = CONFIG_MAX_LAYERS * 12,
};

_Static_assert(sizeof(enum optimizer_kind) == sizeof(int), "words are stored as int");

static bool is_number(const struct config_key *key)
{
    return key->type == KEY_COUNT || key->type == KEY_LONG || key->type == KEY_NUMBER;
}

static bool is_of_layers(const struct config_key *key)
{
    return key->type == KEY_LAYERS || key->type == KEY_HIDDEN;
}

/* Written with commas in a flag, and as an array in the file. */
static bool is_list(const struct config_key *key)
{
    return is_of_layers(key) || key->type == KEY_HOSTS || key->type == KEY_NAMES || key->type == KEY_DEVICES;
}

static void *field_of(const struct config_key *key, struct config *config)
{
    return (char *)config + key->offset;
}

static const void *value_of(const struct config_key *key, const struct config *config)
{
    return (const char *)config + key->offset;
}

static int *companion_of(const struct config_key *key, struct config *config)
{
    void *field = (char *)config + key->companion;
    return field;
}

static int companion_value(const struct config_key *key, const struct config *config)
{
    const void *field = (const char *)config + key->companion;
    return *(const int *)field;
}

void json_must_put(cJSON *object, const char *name, cJSON *value)
{
    const bool done = name ? json_put(object, name, value) : json_append(object, value);
    must_have(done ? object : NULL, 0, "JSON");
}

void config_number_text(double number, char text[32])
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, number);
        if (strtod(text, NULL) == number) {
            return;
        }
    }
}

static void allowed_number(const struct config_key *key, char *text, size_t size)
{
    char low[32], high[32];
    const char *automatic = key->takes_auto ? "auto or " : "";
    config_number_text(key->minimum, low);
    config_number_text(key->maximum, high);
    if (key->is_time) {
        snprintf(text, size, "seconds from %s to %s, or a number with a unit: 90s, 5m, 2h or 1d", low, high);
    } else if (key->above_minimum) {
        snprintf(text, size, "%sa number above %s and at most %s", automatic, low, high);
    } else if (key->below_maximum) {
        snprintf(text, size, "%sa number from %s to less than %s", automatic, low, high);
    } else {
        snprintf(text, size, "%sa number from %s to %s", automatic, low, high);
    }
}

static void allowed_words(const struct config_key *key, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (const char *const *word = key->words; *word && used < size; word++) {
        const char *before = word == key->words ? "" : word[1] ? ", " : " or ";
        int written = snprintf(text + used, size - used, "%s%s", before, *word);
        used += written > 0 ? (size_t)written : 0;
    }
}

void config_key_allowed(const struct config_key *key, char *text, size_t size)
{
    switch (key->type) {
    case KEY_SWITCH:
        snprintf(text, size, "true or false");
        break;
    case KEY_COUNT:
    case KEY_LONG:
        snprintf(text, size, "%san integer from %.0f to %.0f", key->takes_auto ? "auto or " : "", key->minimum,
                 key->maximum);
        break;
    case KEY_NUMBER:
        allowed_number(key, text, size);
        break;
    case KEY_TEXT:
        snprintf(text, size, "a string of at most %d bytes without control characters", CONFIG_MAX_TEXT);
        break;
    case KEY_WORD:
        allowed_words(key, text, size);
        break;
    case KEY_LAYERS:
        snprintf(text, size, "a list of 2 to %d integers from %.0f to %.0f", CONFIG_MAX_LAYERS, key->minimum,
                 key->maximum);
        break;
    case KEY_HIDDEN:
        snprintf(text, size, "auto or a list of at most %d integers from %.0f to %.0f", CONFIG_MAX_LAYERS - 2,
                 key->minimum, key->maximum);
        break;
    case KEY_NAMES:
        snprintf(text, size, "a list of at most %d names", CONFIG_MAX_HOSTS);
        break;
    case KEY_HOSTS:
        snprintf(text, size, "a list of at most %d addresses host:port", CONFIG_MAX_HOSTS);
        break;
    case KEY_DEVICES:
        snprintf(text, size, "a list of devices, each cpu or gpu:N with N from 0 to %d", CONFIG_MAX_DEVICE);
        break;
    case KEY_DEVICE:
        snprintf(text, size, "auto, cpu, gpu or gpu:N with N from 0 to %d", CONFIG_MAX_DEVICE);
        break;
    case KEY_LAYER_DEVICES:
        snprintf(text, size, LAYER_DEVICES_ALLOWED);
        break;
    }
}

/* shown: the offending value as the user wrote it. */
static bool reject(const struct config_key *key, const char *shown, struct error *error)
{
    char allowed[256];
    const bool meant_auto = key->takes_auto && key->above_minimum && strcmp(shown, "0") == 0;
    config_key_allowed(key, allowed, sizeof allowed);
    return error_set(error, "must be %s, not %s%s", allowed, shown,
                     meant_auto ? ": write \"auto\" for the usual value" : "");
}

/* The text in quotes, truncated if long, control characters as '?'. */
static void show_text(const char *text, char shown[SHOWN_SIZE])
{
    size_t length = strlen(text);
    bool cut = length > SHOWN_SIZE - 6;
    snprintf(shown, SHOWN_SIZE, "\"%.*s%s\"", SHOWN_SIZE - 6, text, cut ? "..." : "");
    for (char *p = shown; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7F) {
            *p = '?';
        }
    }
}

static bool number_fits(const struct config_key *key, double number)
{
    return number >= key->minimum && number <= key->maximum && !(key->above_minimum && number == key->minimum) &&
           !(key->below_maximum && number == key->maximum);
}

static void put_number(const struct config_key *key, struct config *config, double number)
{
    void *field = field_of(key, config);
    if (key->type == KEY_COUNT) {
        *(int *)field = (int)number;
    } else if (key->type == KEY_LONG) {
        *(int64_t *)field = (int64_t)number;
    } else {
        *(double *)field = number + 0.0; /* -0 becomes 0 */
    }
}

static double number_of(const struct config_key *key, const struct config *config)
{
    const void *field = value_of(key, config);
    return key->type == KEY_COUNT  ? (double)*(const int *)field
           : key->type == KEY_LONG ? (double)*(const int64_t *)field
                                   : *(const double *)field;
}

static bool set_number(const struct config_key *key, struct config *config, double number, const char *shown,
                       struct error *error)
{
    if (!number_fits(key, number) || (key->type != KEY_NUMBER && number != floor(number))) {
        return reject(key, shown, error);
    }
    put_number(key, config, number);
    return true;
}

/* True if the word is auto, and the key takes that. */
static bool set_auto(const struct config_key *key, struct config *config, const char *word)
{
    const bool is_auto = key->takes_auto && strcmp(word, "auto") == 0;
    if (is_auto) {
        put_number(key, config, CONFIG_AUTO);
    }
    return is_auto;
}

/* Written as "auto", whether or not something was chosen for it since. */
static bool is_auto(const struct config_key *key, const struct config *config)
{
    return (config->origins && config_origin_of(config, key)->is_auto) ||
           (key->takes_auto && number_of(key, config) == CONFIG_AUTO);
}

static bool set_text(const struct config_key *key, struct config *config, const char *text, struct error *error)
{
    if (strlen(text) > CONFIG_MAX_TEXT) {
        return reject(key, "a longer string", error);
    }
    for (const char *p = text; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7F) {
            return reject(key, "one with control characters", error);
        }
    }
    char **field = field_of(key, config), *copy = must_copy(text);
    free(*field);
    *field = copy;
    return true;
}

/* The list may be empty; each element names a device. */
static bool set_devices(const struct config_key *key, struct config *config, const char *const *texts, int count,
                        int *element, struct error *error)
{
    char text[CONFIG_MAX_TEXT + 1] = "";
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        char shown[SHOWN_SIZE];
        show_text(texts[i], shown);
        if (!layer_devices_is_tower(texts[i])) {
            *element = i;
            return reject(key, shown, error);
        }
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i > 0 ? "," : "", texts[i]);
        if (used >= sizeof text) {
            return reject(key, "a longer list", error);
        }
    }
    return set_text(key, config, text, error);
}

static bool set_word(const struct config_key *key, struct config *config, const char *text, const char *shown,
                     struct error *error)
{
    struct suggestion suggestion = {.word = text};
    for (int i = 0; key->words[i]; i++) {
        if (strcmp(text, key->words[i]) == 0) {
            memcpy(field_of(key, config), &i, sizeof i);
            return true;
        }
        suggest_offer(&suggestion, key->words[i]);
    }
    reject(key, shown, error);
    if (suggestion.best) {
        size_t used = strlen(error->text);
        snprintf(error->text + used, sizeof error->text - used, "; did you mean %s?", suggestion.best);
    }
    return false;
}

static bool set_device(const struct config_key *key, struct config *config, const char *text, const char *shown,
                       struct error *error)
{
    enum device_kind kind = DEVICE_GPU;
    int index = 0;
    if (strcmp(text, "auto") == 0) {
        kind = DEVICE_AUTO;
    } else if (strcmp(text, "cpu") == 0) {
        kind = DEVICE_CPU;
    } else if (strncmp(text, "gpu:", 4) == 0) {
        size_t digits = strspn(text + 4, "0123456789");
        index = digits >= 1 && digits <= 3 && text[4 + digits] == '\0' ? (int)strtol(text + 4, NULL, 10)
                                                                       : CONFIG_MAX_DEVICE + 1;
    } else if (strcmp(text, "gpu") != 0) {
        index = CONFIG_MAX_DEVICE + 1;
    }
    if (index > CONFIG_MAX_DEVICE) {
        return reject(key, shown, error);
    }
    *(enum device_kind *)field_of(key, config) = kind;
    *companion_of(key, config) = index;
    return true;
}

static void free_list(struct string_list *list)
{
    for (int i = 0; i < list->count; i++) {
        free(list->items[i]);
    }
    free(list->items);
    *list = (struct string_list){0};
}

/* Host names are the same in any case. */
static bool is_same(const struct config_key *key, const char *one, const char *other)
{
    struct address a, b;
    struct error error;
    return strcmp(one, other) == 0 || (key->type == KEY_HOSTS && address_parse(one, &a, &error) &&
                                       address_parse(other, &b, &error) && address_same(&a, &b));
}

/* Adds one address or name; the list must have room for it. */
static bool add_to_list(const struct config_key *key, struct string_list *list, const char *text, struct error *error)
{
    struct address address;
    char shown[SHOWN_SIZE];
    show_text(text, shown);
    if (key->type == KEY_HOSTS && !address_parse(text, &address, error)) {
        return error_wrap(error, "%s is not an address", shown);
    }
    if (key->type == KEY_NAMES && text[0] == '\0') {
        return error_set(error, "has an empty name in it; remove a comma");
    }
    for (int i = 0; i < list->count; i++) {
        if (is_same(key, list->items[i], text)) {
            return error_set(error, "duplicate %s %s", key->type == KEY_HOSTS ? "address" : "name", shown);
        }
    }
    list->items[list->count++] = must_copy(text);
    return true;
}

static bool set_list(const struct config_key *key, struct config *config, const char *const *texts, int count,
                     int *element, struct error *error)
{
    struct string_list list = {0};
    if (count > CONFIG_MAX_HOSTS) {
        return reject(key, "more of them", error);
    }
    list.items = must_zero((size_t)count, sizeof *list.items, "a list of addresses or names");
    for (int i = 0; i < count; i++) {
        if (!add_to_list(key, &list, texts[i], error)) {
            *element = i;
            free_list(&list);
            return false;
        }
    }
    struct string_list *field = field_of(key, config);
    free_list(field);
    *field = list;
    return true;
}

/* A number as people type it: JSON's, plus .5 and +1; no hex, inf or nan. NAN if it is not a number. */
static double parse_number(const char *text)
{
    if (text[0] == '\0' || strspn(text, "0123456789+-.eE") != strlen(text)) {
        return NAN;
    }
    char *end;
    double number = strtod(text, &end);
    return *end == '\0' ? number : NAN;
}

/* shown: the whole list, as an error quotes it; NULL: the element at fault is quoted. */
static bool set_layers(const struct config_key *key, struct config *config, const char *const *texts, int count,
                       const char *shown, int *element, struct error *error)
{
    const bool is_hidden = key->type == KEY_HIDDEN;
    int widths[CONFIG_MAX_LAYERS] = {0};
    for (int i = 0; i < count; i++) {
        const double width = parse_number(texts[i]);
        const bool is_input = !is_hidden && i == 0 && width >= key->minimum && width <= CONFIG_MAX_INPUTS;
        if (i == CONFIG_MAX_LAYERS || !(number_fits(key, width) || is_input) || width != floor(width)) {
            *element = i;
            return reject(key, i == CONFIG_MAX_LAYERS ? "more of them" : shown ? shown : texts[i], error);
        }
        widths[i] = (int)width;
    }
    if (is_hidden ? count > CONFIG_MAX_LAYERS - 2 : count < 2) {
        return reject(key,
                      is_hidden    ? "more of them"
                      : shown      ? shown
                      : count == 0 ? "an empty one"
                                   : "a single one",
                      error);
    }
    memcpy(field_of(key, config), widths, sizeof widths);
    *companion_of(key, config) = count;
    return true;
}

static bool set_elements(const struct config_key *key, struct config *config, const char *const *texts, int count,
                         const char *shown, int *element, struct error *error)
{
    return is_of_layers(key)          ? set_layers(key, config, texts, count, shown, element, error)
           : key->type == KEY_DEVICES ? set_devices(key, config, texts, count, element, error)
                                      : set_list(key, config, texts, count, element, error);
}

/* Splits at commas, in place, into at most `most` parts; the last one keeps the rest. */
static int split(char *text, const char **parts, int most)
{
    int count = 0;
    for (char *part = text; part && text[0] != '\0' && count < most;) {
        char *comma = strchr(part, ',');
        if (comma) {
            *comma++ = '\0';
        }
        parts[count++] = part;
        part = comma;
    }
    return count;
}

/* "90", "90s", "1.5h" in seconds; NaN: none of them. */
static double parse_time(const char *text)
{
    static const struct {
        char unit;
        double seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    const size_t size = strlen(text);
    char number[SHOWN_SIZE];
    for (size_t i = 0; i < sizeof units / sizeof *units && size > 1 && size < sizeof number; i++) {
        if (text[size - 1] == units[i].unit) {
            snprintf(number, sizeof number, "%.*s", (int)size - 1, text);
            return units[i].seconds * parse_number(number);
        }
    }
    return parse_number(text);
}

/* Anything but a list: a flag's text, or a value of the file as a flag has it. */
static bool set_single(const struct config_key *key, struct config *config, const char *text, const char *shown,
                       struct error *error)
{
    switch (key->type) {
    case KEY_SWITCH:
        return flags_switch(text, field_of(key, config)) || reject(key, shown, error);
    case KEY_TEXT:
        return set_text(key, config, text, error);
    case KEY_WORD:
        return set_word(key, config, text, shown, error);
    case KEY_DEVICE:
        return set_device(key, config, text, shown, error);
    case KEY_HIDDEN: /* "auto": only the hidden layers are given */
        memset(field_of(key, config), 0, CONFIG_MAX_LAYERS * sizeof(int));
        *companion_of(key, config) = CONFIG_AUTO;
        return true;
    default:
        return set_auto(key, config, text) ||
               set_number(key, config, key->is_time ? parse_time(text) : parse_number(text), shown, error);
    }
}

static bool set_from_text(const struct config_key *key, struct config *config, const char *text, struct error *error)
{
    char shown[SHOWN_SIZE];
    int element;
    show_text(text, shown);
    if (key->type == KEY_LAYER_DEVICES) {
        return layer_devices_from_text(field_of(key, config), text, error);
    }
    if (!is_list(key) || (key->type == KEY_HIDDEN && strcmp(text, "auto") == 0)) {
        return set_single(key, config, text, shown, error);
    }
    char *copy = must_copy(text);
    const char **parts = must_zero(CONFIG_MAX_HOSTS + 1, sizeof *parts, "a list of addresses or names");
    const int count = split(copy, parts, CONFIG_MAX_HOSTS + 1);
    const bool done = set_elements(key, config, parts, count, shown, &element, error);
    free(parts);
    free(copy);
    return done;
}

/* A value was set: what was chosen before does not count any more. */
static bool note_set(const struct config_key *key, struct config *config, bool done)
{
    if (done && config->origins) {
        config_origin_of(config, key)->is_auto = false;
    }
    return done;
}

bool config_key_set_text(const struct config_key *key, struct config *config, const char *text, struct error *error)
{
    return note_set(key, config, set_from_text(key, config, text, error));
}

static void show_json(const cJSON *value, char shown[SHOWN_SIZE])
{
    if (cJSON_IsNumber(value)) {
        config_number_text(value->valuedouble, shown);
    } else if (cJSON_IsString(value)) {
        show_text(value->valuestring, shown);
    } else {
        snprintf(shown, SHOWN_SIZE, "%s",
                 cJSON_IsBool(value)    ? (cJSON_IsTrue(value) ? "true" : "false")
                 : cJSON_IsArray(value) ? "an array"
                 : cJSON_IsNull(value)  ? "null"
                                        : "an object");
    }
}

/* One element beyond the longest list is enough to report the error. */
static bool set_from_array(const struct config_key *key, struct config *config, const cJSON *array, int *element,
                           struct error *error)
{
    const bool are_numbers = is_of_layers(key);
    const int most = are_numbers ? CONFIG_MAX_LAYERS + 1 : CONFIG_MAX_HOSTS + 1;
    char numbers[CONFIG_MAX_LAYERS + 1][SHOWN_SIZE];
    const char **texts = must_zero((size_t)most, sizeof *texts, "a list of addresses or names");
    int count = 0;
    bool good = true;
    for (const cJSON *child = array->child; child && count < most && good; child = child->next) {
        good = are_numbers || cJSON_IsString(child);
        if (are_numbers) {
            show_json(child, numbers[count]); /* what is no number is no number as a text either */
            texts[count] = numbers[count];
            count++;
        } else if (good) {
            texts[count++] = child->valuestring;
        } else {
            *element = count;
            error_set(error, "must be a string%s",
                      key->type == KEY_HOSTS     ? " like host:port"
                      : key->type == KEY_DEVICES ? " like gpu:N"
                                                 : "");
        }
    }
    good = good && set_elements(key, config, texts, count, NULL, element, error);
    free(texts);
    return good;
}

/* Is the value of the kind that the key has in the file? */
static bool suits(const struct config_key *key, const cJSON *value)
{
    const bool is_auto = cJSON_IsString(value) && strcmp(value->valuestring, "auto") == 0;
    switch (key->type) {
    case KEY_SWITCH:
        return cJSON_IsBool(value);
    case KEY_COUNT:
    case KEY_LONG:
    case KEY_NUMBER:
        return cJSON_IsNumber(value) || (is_auto && key->takes_auto) || (cJSON_IsString(value) && key->is_time);
    case KEY_LAYER_DEVICES:
        return cJSON_IsObject(value);
    default:
        return is_list(key) ? cJSON_IsArray(value) || (is_auto && key->type == KEY_HIDDEN) : cJSON_IsString(value);
    }
}

static bool set_from_json(const struct config_key *key, struct config *config, const cJSON *value, int *element,
                          struct error *error)
{
    char shown[SHOWN_SIZE];
    show_json(value, shown);
    *element = -1;
    return !suits(key, value)      ? reject(key, shown, error)
           : cJSON_IsObject(value) ? layer_devices_from_json(field_of(key, config), value, error)
           : cJSON_IsArray(value)  ? set_from_array(key, config, value, element, error)
           : cJSON_IsString(value) ? set_single(key, config, value->valuestring, shown, error)
                                   : set_single(key, config, shown, shown, error);
}

bool config_key_set_json(const struct config_key *key, struct config *config, const cJSON *value, int *element,
                         struct error *error)
{
    return note_set(key, config, set_from_json(key, config, value, element, error));
}

static void device_text(const struct config_key *key, const struct config *config, char text[32])
{
    enum device_kind kind = *(const enum device_kind *)value_of(key, config);
    int index = companion_value(key, config);
    if (kind == DEVICE_GPU && index > 0) {
        snprintf(text, 32, "gpu:%d", index);
    } else {
        snprintf(text, 32, "%s", kind == DEVICE_AUTO ? "auto" : kind == DEVICE_CPU ? "cpu" : "gpu");
    }
}

static void layers_text(const struct config_key *key, const struct config *config, char text[LAYERS_TEXT])
{
    const int *widths = value_of(key, config);
    const int count = companion_value(key, config);
    snprintf(text, LAYERS_TEXT, "%s", count == CONFIG_AUTO ? "auto" : "");
    for (int i = 0, used = 0; i < count; i++) {
        used += snprintf(text + used, LAYERS_TEXT - (size_t)used, "%s%d", i > 0 ? "," : "", widths[i]);
    }
}

/* The value in force as a flag has it, in `buffer` or elsewhere; NULL: a list of names or hosts, or layers' devices. */
static const char *value_text(const struct config_key *key, const struct config *config, char buffer[LAYERS_TEXT])
{
    const void *value = value_of(key, config);
    switch (key->type) {
    case KEY_SWITCH:
        return *(const bool *)value ? "true" : "false";
    case KEY_COUNT:
    case KEY_LONG:
    case KEY_NUMBER:
        config_number_text(number_of(key, config), buffer);
        return buffer;
    case KEY_TEXT:
    case KEY_DEVICES:
        return *(char *const *)value;
    case KEY_WORD:
        return key->words[*(const int *)value];
    case KEY_LAYERS:
    case KEY_HIDDEN:
        layers_text(key, config, buffer);
        return buffer;
    case KEY_DEVICE:
        device_text(key, config, buffer);
        return buffer;
    case KEY_HOSTS:
    case KEY_NAMES:
    case KEY_LAYER_DEVICES:
        break;
    }
    return NULL;
}

static cJSON *devices_json(const char *devices)
{
    const char *parts[CONFIG_MAX_HOSTS + 1];
    char *copy = must_copy(devices);
    cJSON *array = cJSON_CreateStringArray(parts, split(copy, parts, CONFIG_MAX_HOSTS + 1));
    free(copy);
    return array;
}

cJSON *config_key_json(const struct config_key *key, const struct config *config)
{
    const void *value = value_of(key, config);
    const struct string_list *list = value;
    const bool written_auto =
        is_auto(key, config) || (is_of_layers(key) && companion_value(key, config) == CONFIG_AUTO);
    char buffer[LAYERS_TEXT];
    const char *text = value_text(key, config, buffer);
    cJSON *json = written_auto                     ? cJSON_CreateString("auto")
                  : key->type == KEY_SWITCH        ? cJSON_CreateBool(*(const bool *)value)
                  : key->type == KEY_DEVICES       ? devices_json(text)
                  : key->type == KEY_LAYER_DEVICES ? layer_devices_json(value)
                  : is_of_layers(key)              ? cJSON_CreateIntArray(value, companion_value(key, config))
                  : is_list(key) && list->count > 0
                      ? cJSON_CreateStringArray((const char *const *)list->items, list->count)
                  : is_list(key)   ? cJSON_CreateArray()
                  : is_number(key) ? cJSON_CreateRaw(text)
                                   : cJSON_CreateString(text);
    return must_have(json, 0, "JSON");
}

static char *join(const struct string_list *list)
{
    size_t size = 1;
    for (int i = 0; i < list->count; i++) {
        size += strlen(list->items[i]) + 1;
    }
    char *text = must_zero(size, 1, "a list of addresses or names");
    for (int i = 0; i < list->count; i++) {
        strcat(strcat(text, i > 0 ? "," : ""), list->items[i]);
    }
    return text;
}

static char *copy_of_value(const struct config_key *key, const struct config *config)
{
    const void *value = value_of(key, config);
    char buffer[LAYERS_TEXT];
    const char *text = value_text(key, config, buffer);
    return text ? must_copy(text) : key->type == KEY_LAYER_DEVICES ? layer_devices_text(value) : join(value);
}

char *config_key_chosen_text(const struct config_key *key, const struct config *config)
{
    return config_origin_of(config, key)->is_auto ? copy_of_value(key, config) : config_key_text(key, config);
}

char *config_key_text(const struct config_key *key, const struct config *config)
{
    return !is_of_layers(key) && is_auto(key, config) ? must_copy("auto") : copy_of_value(key, config);
}

/*
 * Must not allocate: whether a key has its default must not depend on free memory, since a job's digest and its files
 * do depend on it.
 */
bool config_key_is_default(const struct config_key *key, const struct config *config)
{
    const void *value = value_of(key, config);
    const bool is_auto_by_default = strcmp(key->initial, "auto") == 0;
    char buffer[LAYERS_TEXT];
    if (is_auto(key, config)) {
        return is_auto_by_default;
    }
    if (is_number(key)) {
        return !is_auto_by_default && number_of(key, config) == strtod(key->initial, NULL);
    }
    const char *text = value_text(key, config, buffer);
    return text                             ? strcmp(text, key->initial) == 0
           : key->type == KEY_LAYER_DEVICES ? layer_devices_are_none(value) /* by default; and all lists are empty */
                                            : ((const struct string_list *)value)->count == 0;
}

void config_key_clear(const struct config_key *key, struct config *config)
{
    if (key->type == KEY_TEXT || key->type == KEY_DEVICES) {
        char **field = field_of(key, config);
        free(*field);
        *field = NULL;
    } else if (key->type == KEY_HOSTS || key->type == KEY_NAMES) {
        free_list(field_of(key, config));
    }
}

const char *config_environment_name(const struct config *config)
{
    return config->cluster.cluster == CLUSTER_BY_SLURM ? "cluster=slurm" : "TF_CONFIG";
}

struct config_origin *config_origin_of(const struct config *config, const struct config_key *key)
{
    return &config->origins[key - config_keys];
}
