/* TF_CONFIG from anywhere: refused with one line that begins with its name, or a role with its lists of hosts. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/config/tf_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct error error = {""};
    struct tf_config parsed;
    char *text = malloc(size + 1);
    assert(text);
    memcpy(text, bytes, size);
    text[size] = '\0';
    if (tf_config_parse(&parsed, text, &error)) {
        assert(parsed.count == 0 || parsed.count == TF_CONFIG_SETTINGS);
        for (int i = 0; i < parsed.count; i++) {
            assert(parsed.settings[i].flag && parsed.settings[i].text);
        }
    } else {
        assert(strncmp(error.text, "TF_CONFIG:", 10) == 0 && !strchr(error.text, '\n'));
    }
    tf_config_free(&parsed);
    free(text);
    return 0;
}
