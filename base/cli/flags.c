/* One pass over the words; each is an operand, or a flag, which may take the next word as its value. */
#include "base/cli/flags.h"

#include <string.h>

#include "base/text/suggest.h"

enum { SHOWN = 64 }; /* characters of a word that errors quote */

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

/* Index of the flag called name[0..length), -1 if there is none; *off: it is --noflag. */
static int find_flag(const struct flag *flags, int flag_count, const char *name, size_t length, bool *off)
{
    *off = false;
    for (int i = 0; i < flag_count; i++) {
        if (strlen(flags[i].name) == length && memcmp(flags[i].name, name, length) == 0) {
            return i;
        }
    }
    if (length > 2 && memcmp(name, "no", 2) == 0) {
        int index = find_flag(flags, flag_count, name + 2, length - 2, off);
        *off = true;
        return index >= 0 && flags[index].is_switch ? index : -1;
    }
    return -1;
}

static bool unknown_flag(const struct flag *flags, int flag_count, const char *name, size_t length, struct error *error)
{
    char word[SHOWN + 1] = "";
    memcpy(word, name, length < SHOWN ? length : SHOWN);
    struct suggestion suggestion = {.word = word};
    for (int i = 0; i < flag_count; i++) {
        suggest_offer(&suggestion, flags[i].name);
    }
    if (suggestion.best) {
        return error_set(error, "unknown flag --%s; did you mean --%s?", word, suggestion.best);
    }
    return error_set(error, "unknown flag --%s; `trainer help flags` lists them all", word);
}

/* value NULL: no "=value" follows. */
static bool set_switch(const struct flag *flag, const char *value, bool off, const char **text, struct error *error)
{
    bool on = !off;
    if (off && value) {
        return error_set(error, "--no%s takes no value; write --%s=%.*s", flag->name, flag->name, SHOWN, value);
    }
    if (value && !flags_switch(value, &on)) {
        return error_set(error, "--%s: must be true or false, not \"%.*s\"", flag->name, SHOWN, value);
    }
    *text = on ? "true" : "false";
    return true;
}

/* argv[*at] begins with a dash; *at advances to the last word of the flag. */
static bool parse_flag(const struct flag *flags, int flag_count, int argc, char *const *argv, int *at,
                       const char **values, struct error *error)
{
    const char *word = argv[*at];
    const char *name = word + (word[1] == '-' ? 2 : 1);
    size_t length = strcspn(name, "=");
    const char *value = name[length] == '=' ? name + length + 1 : NULL;
    bool off;
    int index = find_flag(flags, flag_count, name, length, &off);
    if (length == 0) {
        return error_set(error, "%s: not a flag; flags are written --name=value", word);
    }
    if (index < 0) {
        return unknown_flag(flags, flag_count, name, length, error);
    }
    const struct flag *flag = &flags[index];
    if (word[1] != '-') {
        return error_set(error, "%.*s: flags begin with two dashes: --%s", SHOWN, word, flag->name);
    }
    if (values[index]) {
        return error_set(error, "--%s is given twice", flag->name);
    }
    if (flag->is_switch) {
        return set_switch(flag, value, off, &values[index], error);
    }
    if (!value) {
        if (*at + 1 == argc || strncmp(argv[*at + 1], "--", 2) == 0) {
            return error_set(error, "--%s needs a value: --%s=...", flag->name, flag->name);
        }
        value = argv[++*at];
    }
    values[index] = value;
    return true;
}

bool flags_parse(const struct flag *flags, int flag_count, int argc, char *const *argv, const char **values,
                 char **operands, int *operand_count, struct error *error)
{
    for (int i = 0; i < flag_count; i++) {
        values[i] = NULL;
    }
    *operand_count = 0;
    for (int at = 0; at < argc; at++) {
        bool is_operand = argv[at][0] != '-' || argv[at][1] == '\0'; /* a single dash stands for standard input */
        if (is_operand) {
            operands[(*operand_count)++] = argv[at];
        } else if (!parse_flag(flags, flag_count, argc, argv, &at, values, error)) {
            return false;
        }
    }
    return true;
}
