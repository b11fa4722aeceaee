/* Arbitrary TF_CONFIG: refused with a one-line message that begins with its name, or a role with its lists of hosts. */
#include "tests/fuzz/fuzz.h"

#include "base/config/scheduler.h"

FUZZ_MEMORY(32, 32 << 10)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct error error = {""};
    struct assignment parsed;
    char *text = text_of(bytes, size);
    if (tf_config_parse(&parsed, text, &error)) {
        assert(parsed.count == 0 || parsed.count == ASSIGNMENT_SETTINGS);
        for (int i = 0; i < parsed.count; i++) {
            assert(parsed.settings[i].flag && parsed.settings[i].text);
        }
    } else {
        check_refusal(&error, "TF_CONFIG:");
    }
    assignment_free(&parsed);
    free(text);
    return 0;
}
