/* Numbers as in tables: the very double that the C library reads, and text exactly where it reads none. */
#include "tests/fuzz/fuzz.h"

#include <math.h>

#include "worker/data/table/number.h"

FUZZ_MEMORY(4, 4 << 10)

static bool is_decimal(const char *text)
{
    return text[strspn(text, "0123456789+-.eE")] == '\0';
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    enum { MOST = 1000 };
    double value = 0;
    char *text = text_of(bytes, size), *end;
    uint8_t *exact = malloc(size + 1); /* so that nothing after it can pass for its end */
    if (!exact) {
        abort();
    }
    memcpy(exact, bytes, size);
    const enum number_kind kind = number_parse((const char *)exact, size, &value);
    const bool missing = number_is_missing((const char *)exact, size);
    free(exact);
    assert((kind == NUMBER_MISSING) == missing);
    assert(kind != NUMBER_FINITE || isfinite(value));
    if (size > 0 && size < MOST && strlen(text) == size && is_decimal(text)) {
        const double expected = strtod(text, &end);
        if (end != text && *end == '\0') {
            assert(kind == (isfinite(expected) ? NUMBER_FINITE : NUMBER_INFINITE));
            assert(kind != NUMBER_FINITE || memcmp(&value, &expected, sizeof value) == 0);
        } else {
            assert(kind == NUMBER_TEXT || missing);
        }
    }
    free(text);
    return 0;
}
