/*
 * A checkpoint's kept rows as arbitrary text, for models of images and of tables: refused with a one-line message, or
 * evaluated, with valid categories, and compared with the stated answers.
 */
#include "tests/fuzz/fuzz.h"

#include "worker/evaluation/kept_rows.h"
#include "worker/engine.h"

FUZZ_MEMORY(64, 64 << 10)

/* The kernels are left out of fuzzers, and nothing here trains. */
bool cpu_engine_create(struct engine **engine, const struct engine_options *options, struct error *error)
{
    return error_set(error, "no engine");
}

enum { INPUTS = 6, NUMBERS = 2, CODES = 2, OUTPUTS = 2 };

/* A row's outputs are the sum of its inputs and its number of categories; only good rows get here. */
static bool adding_forward(struct engine *engine, bool averaged, const struct examples *rows, int first, int count,
                           float *outputs, struct error *error)
{
    assert(first == 0 && count == rows->count);
    for (int i = 0; i < count; i++) {
        float sum = 0, places = 0;
        for (int k = 0; rows->images && k < INPUTS; k++) {
            sum += rows->images[i * INPUTS + k];
        }
        for (int k = 0; k < rows->numbers; k++) {
            sum += rows->values[i * rows->numbers + k];
        }
        for (int k = 0; k < rows->codes; k++) {
            const int32_t place = rows->places[i * rows->codes + k];
            assert(place == -1 || (place >= 0 && place < rows->inputs - rows->numbers));
            places += place >= 0;
        }
        outputs[OUTPUTS * i] = sum;
        outputs[OUTPUTS * i + 1] = places;
    }
    return true;
}

static void check(const char *text, const struct examples *like)
{
    static const struct engine_table table = {.name = "adding", .forward = adding_forward};
    static const struct model model = {.layer_count = 1, .widths = {INPUTS, OUTPUTS}};
    struct engine engine = {.table = &table};
    struct error error = {""};
    int count = -1;
    if (kept_rows_check(text, &model, like, PRECISION_FLOAT32, &engine, &count, &error)) {
        assert(count >= 0 && error.text[0] == '\0');
    } else {
        check_beginning(&error, ""); /* about rows that differ, or about the text */
        assert(count == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char *text = text_of(bytes, size);
    check(text, &(struct examples){.height = 2, .width = 3});
    check(text, &(struct examples){.inputs = INPUTS, .numbers = NUMBERS, .codes = CODES});
    free(text);
    return 0;
}
