/*
 * A command line, one word per line of the input: refused with a one-line message, or settings that give a config or a
 * one-line refusal. And every word as an address, as a member, and as a device for layers.
 */
#include "tests/fuzz/fuzz.h"

#include "base/cli/command.h"
#include "base/config.h"
#include "base/config/keys.h"
#include "base/text/address.h"
#include "net/member.h"

FUZZ_MEMORY(64, 64 << 10)

enum { MOST_WORDS = 32, MOST_FLAGS = 300 };

static void check_word(const char *word)
{
    struct error error = {""};
    struct address address;
    struct member member, same;
    int devices[CONFIG_MAX_LAYERS - 1] = {0};
    char again[MEMBER_TEXT];
    if (address_parse(word, &address, &error)) {
        assert(address.port >= 1 && address.port <= 65535 && address.host[0] != '\0');
        assert(strlen(word) <= ADDRESS_MAX_TEXT && strstr(word, address.host));
    }
    if (member_parse(word, &member, &error)) {
        member_format(&member, ':', again);
        assert(member_parse(again, &same, &error) && same.role == member.role && same.index == member.index);
    }
    if (layer_devices_from_text(devices, word, &error)) {
        int copy[CONFIG_MAX_LAYERS - 1] = {0};
        char *text = layer_devices_text(devices);
        assert(text && layer_devices_from_text(copy, text, &error) && memcmp(copy, devices, sizeof copy) == 0);
        free(text);
    }
}

static void check_settings(const struct flag *flags, int count, const char *const *values)
{
    struct config_setting settings[MOST_FLAGS];
    struct config config;
    struct error error = {""};
    int given = 0;
    for (int i = 0; i < count; i++) {
        if (values[i]) {
            settings[given++] = (struct config_setting){flags[i].name, values[i]};
        }
    }
    if (config_parse(&config, NULL, NULL, 0, settings, given, &error)) {
        for (const struct config_key *key = config_keys; key->section; key++) {
            free(config_key_text(key, &config));
        }
        config_check_role(&config, &error);
        config_free(&config);
    } else {
        check_beginning(&error, "");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct flag flags[MOST_FLAGS];
    static int flag_count;
    const char *values[MOST_FLAGS];
    char *words[MOST_WORDS], *operands[MOST_WORDS], *rest = text_of(bytes, size), *text = rest;
    struct error error = {""};
    int count = 0, operand_count = 0;
    for (const struct config_key *key = config_keys; flag_count < config_key_count; key++) {
        flags[flag_count++] = (struct flag){key->name, key->type == KEY_SWITCH};
    }
    for (char *word; count < MOST_WORDS && (word = strsep(&rest, "\n"));) {
        check_word(word);
        words[count++] = word;
    }
    if (flags_parse(flags, flag_count, count, words, values, operands, &operand_count, &error)) {
        assert(operand_count <= count);
        check_settings(flags, flag_count, values);
    } else {
        assert(error.text[0] != '\0');
    }
    free(text);
    return 0;
}
